"""Annotations of settings fields for the command line, where name and type are not enough."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A positional argument: `pod: Annotated[str, Argument(metavar="POD")]`."""

    metavar: str | None = None
    is_required: bool = True
    type: Any = None
    """A click.ParamType. None: from the type of the field."""


@dataclass(frozen=True)
class Option:
    """An option: `cert_file: Annotated[str, Option("--cert", metavar="FILE")] = ""`."""

    flags: str = ""
    """Separated by spaces, such as `-n --namespace`. Empty: the field's name."""

    metavar: str | None = None
    """The placeholder of the value in the help. None: from the type."""

    help: str = ""
    """The help text. Empty: the docstring of the field, which a frozen program does not have."""

    section: str = ""
    """The heading in the help of a command's own option."""

    environment: str = ""
    """The environment variable of a command's own option."""

    shows_environment: bool = False
    shows_default: bool = True
    default_text: str = ""
    """The default in the help and in the type's syntax. Empty: from the default itself."""

    value_of_bare_flag: str | None = None
    """The value of the flag without a value."""

    is_hidden: bool = False
    """Whether the help leaves it out, such as the older name of an option."""

    is_secret: bool = False
    """Whether no message may show a value. In the variable of a list each line is a value."""

    choices: tuple[str, ...] = ()
    """The allowed values, if the type is no Literal."""

    type: Any = None
    """A click.ParamType. None: from the type of the field."""


class SettingsByGroup(Protocol):
    """The settings of several groups, by the struct that declares the group."""

    def __getitem__(self, group: type[T], /) -> T: ...
