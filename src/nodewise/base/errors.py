"""Kinds of error, and text in messages. A kind determines what the caller does next.

    NodewiseError
    ├── BadInput       a request, file or object cannot be read; correct it                  HTTP 400, exit 1
    ├── BadSettings    flags, environment or configuration are invalid; correct them         exit 2
    ├── Unavailable    a required service does not respond; try again after retry_after_s    HTTP 503, exit 1
    ├── Conflict       another client wrote first; read again, then decide again             HTTP 409, exit 1
    └── Refused        the other side denied the request; trying again does not help         HTTP 403, exit 1

A module that calls a library translates the library's exceptions into one of these. A node that an agent rejects is no
error but a verdict (`nodewise.agent`).
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    import msgspec

    UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
    """All exceptions of msgspec for bytes that it cannot decode: invalid, nested too deeply, or no UTF-8."""
else:

    def __getattr__(name: str) -> object:
        """`UNREADABLE` on first use, because programs in a workload's container run without msgspec."""
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
        # clients and the numbered cases depend on this form and on the names in `to_dict`
        expected = f"; expected {self.expected}" if self.expected else ""
        return f"{self.field}: {self.found}{expected}" if self.field else f"{self.found}{expected}"

    def to_dict(self) -> dict[str, str]:
        """The form in JSON responses and in the output of commands."""
        return {"field": self.field, "seen": self.found, "wanted": self.expected}


class NodewiseError(Exception):
    """The root of all kinds: what was being done (`what`), with all its problems."""

    http_status = 0
    """The HTTP status of the response that is the error; 0 without a response."""

    def __init__(self, what: str, problems: Iterable[Problem] = (), *, remedy: str = "") -> None:
        self.what = what
        self.problems: Sequence[Problem] = tuple(problems)
        self.remedy = remedy
        super().__init__(what)

    @classmethod
    def of(cls, what: str, field: str, value: str, expected: str = "", **options: Any) -> Self:
        """An error with one problem: the field with its value, and what was expected."""
        return cls(what, [Problem(field, value, expected)], **options)

    def __str__(self) -> str:
        text = self.what
        if self.problems:
            text += ": " + "; ".join(map(str, self.problems))
        return f"{text} ({self.remedy})" if self.remedy else text


class BadInput(NodewiseError):
    """An input that cannot be read."""


class BadSettings(NodewiseError):
    """An invalid flag, environment variable or configuration file."""


class Unavailable(NodewiseError):
    """A service that does not respond. Try again after `retry_after_s` seconds.

    `timeout_s` is the timeout that has passed without a response; 0 for any other reason.
    """

    requests_pause = False
    """Whether the response has the header Retry-After, or its equivalent."""

    def __init__(
        self,
        what: str,
        problems: Iterable[Problem] = (),
        *,
        remedy: str = "",
        retry_after_s: float = 1.0,
        timeout_s: float = 0.0,
    ) -> None:
        super().__init__(what, problems, remedy=remedy)
        self.retry_after_s = retry_after_s
        self.timeout_s = timeout_s


class Conflict(NodewiseError):
    """The object changed since it was read, or exists already."""


class Refused(NodewiseError):
    """The other side denied a valid request: authorization, admission, a policy."""


class NotFound(Refused):
    """The object does not exist in the API server, or the API server does not have the kind."""


def shown(value: object, limit: int = 80) -> str:
    """A value as errors show it: its repr, which has quotes and visible characters only, cut at `limit` characters."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        # nested too deeply, or a number with more digits than Python converts
        text = f"<{type(value).__name__}>"
    return truncate(text, limit)


def truncate(text: str, limit: int) -> str:
    """A text of at most `limit` characters; the last one of a longer text is `…`."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def closest_name(name: str, valid: Sequence[str]) -> str:
    """The valid name most similar to a misspelt one, ignoring case, `-`, `_` and `.`; empty if none is similar."""
    return next(iter(closest_names(name, valid, 1)), "")


def closest_names(name: str, valid: Sequence[str], count: int, least: float = 0.6) -> list[str]:
    """Up to so many valid names that are similar to a misspelt one, the most similar first. `least` is between 0 and 1
    for equal names.
    """
    import difflib  # start-up time: only errors need it

    plain = {_normalize_name_for_comparison(option): option for option in valid}
    matches = difflib.get_close_matches(_normalize_name_for_comparison(name), plain, count, least)
    return [plain[match] for match in matches]


def did_you_mean(name: str, valid: Sequence[str]) -> str:
    """The end of a message about an unknown name: `; did you mean "max_age"?`; empty if no name is similar."""
    match = closest_name(name, valid)
    return f'; did you mean "{match}"?' if match else ""


def quoting_hint(value: Any) -> str:
    """The end of the expected text: ` in quotes` if YAML reads the value as a number or, as `n`, a truth value."""
    return " in quotes" if isinstance(value, int | float) else ""


def list_first(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first texts of a list, and the number of the others: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 node`, or `1,000 nodes`. The plural has an `s` by default."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def _normalize_name_for_comparison(name: str) -> str:
    return name[:80].lower().translate({ord(character): None for character in "-_."})


def visible(text: str) -> str:
    """The text with escapes such as `\\x1b` for all characters that are not printable, except tabs. These include line
    ends, control sequences and changes of the writing direction.
    """
    if text.isprintable():
        return text
    # repr instead of the codec `unicode_escape`, whose module would have to be imported first
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def short(text: str, longest: int = 300) -> str:
    """The escaped text in one line of at most `longest` characters."""
    line = visible(" ".join(text[: 4 * longest].split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
