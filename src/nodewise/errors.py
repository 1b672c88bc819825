"""Kinds of error. A kind says what to do next; the words are made here and nowhere else.

    NodewiseError
    ├── BadInput       what somebody sent or wrote cannot be read: mend it          HTTP 400, exit 1
    ├── BadSettings    flags, environment or configuration cannot be used: mend it  exit 2
    ├── Unavailable    somebody we need does not answer: try again after retry_after_s  HTTP 503, exit 1
    ├── Conflict       somebody else wrote first: read again, then decide again     HTTP 409, exit 1
    └── Refused        the other side said no: trying again does not help           HTTP 403, exit 1

Every file that talks to a library translates that library's exceptions into one of these.
A node that an agent rejects is no error, it is a verdict (`nodewise.agent`).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import msgspec

    UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
    """All that msgspec raises on bytes that it cannot decode: of a wrong form, nested too deep, no UTF-8."""
else:

    def __getattr__(name: str) -> object:
        """`UNREADABLE`, made when somebody asks: what starts in a workload's container does without msgspec."""
        if name != "UNREADABLE":
            raise AttributeError(name)
        import msgspec

        return (msgspec.MsgspecError, RecursionError, ValueError)


class Problem(NamedTuple):
    """A field with an invalid value: what was found there, and what was expected."""

    field: str
    found: str
    expected: str

    def __str__(self) -> str:
        # clients and the numbered cases know this form and the names in `to_dict`
        expected = f"; wanted {self.expected}" if self.expected else ""
        return f"{self.field}: {self.found}{expected}" if self.field else f"{self.found}{expected}"

    def to_dict(self) -> dict[str, str]:
        """The form in JSON responses and in the output of commands."""
        return {"field": self.field, "seen": self.found, "wanted": self.expected}


class NodewiseError(Exception):
    """The root: `what` was being done, and all problems of it together."""

    def __init__(self, what: str, problems: Iterable[Problem] = (), *, remedy: str = "") -> None:
        self.what = what
        self.problems: Sequence[Problem] = tuple(problems)
        self.remedy = remedy
        super().__init__(what)

    def __str__(self) -> str:
        text = self.what
        if self.problems:
            text += ": " + "; ".join(map(str, self.problems))
        return f"{text} ({self.remedy})" if self.remedy else text


class BadInput(NodewiseError):
    """An input that cannot be read as what it should be."""


class BadSettings(NodewiseError):
    """A flag, an environment variable or a configuration file that cannot be used."""


class Unavailable(NodewiseError):
    """A service that does not answer now; worth another try after `retry_after_s` seconds."""

    def __init__(
        self, what: str, problems: Iterable[Problem] = (), *, remedy: str = "", retry_after_s: float = 1.0
    ) -> None:
        super().__init__(what, problems, remedy=remedy)
        self.retry_after_s = retry_after_s


class Conflict(NodewiseError):
    """The object changed since it was read, or exists already."""


class Refused(NodewiseError):
    """The other side understood and said no: rights, admission, a policy."""


def shown(value: object, limit: int = 80) -> str:
    """A value as an error shows it: its repr, which has quotes and visible characters only, cut at `limit` of them."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # nested as deep as it could just be read, or a number of more digits than Python writes
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def closest(name: str, valid: Sequence[str]) -> str:
    """The valid name that a misspelt one resembles most, whatever its case, `-`, `_` and `.`; empty where none does."""
    import difflib  # start-up time: only errors need it

    plain = {_plain(option): option for option in valid}
    matches = difflib.get_close_matches(_plain(name), plain, n=1)
    return plain[matches[0]] if matches else ""


def suggestion(name: str, valid: Sequence[str]) -> str:
    """The end of a message about an unknown name: `; did you mean "max_age"?`, or nothing."""
    match = closest(name, valid)
    return f'; did you mean "{match}"?' if match else ""


def _plain(name: str) -> str:
    return name[:80].lower().translate({ord(character): None for character in "-_."})
