"""Declarations of settings: the fields of structs, the command line option of each field, and its type for click.

A field `sync_period_s: float` with a docstring is `--sync-period 5s`, `NODEWISE_SYNC_PERIOD`, the key `sync_period` of
the file, a line of `--help` and a row of the reference page. A field of `CommandOptions` is the option of one command,
without a variable and a key. A struct may inherit fields from others.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import click
import msgspec

from nodewise.base import clock
from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.base.option import Argument, Option
from nodewise.cli.parameter_types import Duration, FilePath, FloatRange, SecretText, Size

if TYPE_CHECKING:
    from nodewise.agent import AgentKind  # numpy is not part of the program that is installed on hosts

Group = type[msgspec.Struct]

_SYNONYMS: Final = {"accept": "pass", "pass": "accept"}
"""An agent that has only one of the two words accepts the other one as a synonym."""


class CommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a single command."""


class Setting(NamedTuple):
    """A field of a settings struct as a user sees it."""

    field: str
    type: Any
    default: Any
    help: str
    option: Option | Argument
    section: str = ""
    """The heading in the help."""
    owners: tuple[str, ...] = ()
    """The agents that have the setting, if it is one of agents only."""

    @property
    def key(self) -> str:
        """The key in the configuration file. Durations carry their unit in the value."""
        return self.field.removesuffix("_s")

    @property
    def flags(self) -> list[str]:
        own = self.option.flags.split() if isinstance(self.option, Option) else []
        return own or ["--" + self.key.replace("_", "-")]

    @property
    def flag(self) -> str:
        """The longest flag, without the one that turns it off."""
        return max((flag.partition("/")[0] for flag in self.flags), key=len)

    @property
    def flag_with_opposite(self) -> str:
        """The flag with the one that turns it off, if there is one: `--native-mode/--no-native-mode`."""
        return next((flag for flag in self.flags if "/" in flag), self.flag)

    @property
    def variable(self) -> str:
        return "NODEWISE_" + self.key.upper()

    @property
    def inner(self) -> Any:
        """The type without bounds, and without the None of one that may be left out."""
        return _without_bounds(self.type)

    @property
    def is_list(self) -> bool:
        return get_origin(self.inner) is tuple

    @property
    def list_element_type(self) -> Any:
        """The type of one value: of a list, that of its elements."""
        return _without_bounds(get_args(self.inner)[0]) if self.is_list else self.inner

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words; empty where every value of the type is allowed."""
        if isinstance(self.option, Option) and self.option.choices:
            return self.option.choices
        return get_args(self.list_element_type) if get_origin(self.list_element_type) is Literal else ()

    @property
    def is_secret(self) -> bool:
        """Whether no message may show a value."""
        return isinstance(self.option, Option) and self.option.is_secret

    def show(self, value: Any) -> str:
        """A value in a message."""
        return "a value that is hidden" if self.is_secret else shown(value)

    @property
    def bounds(self) -> msgspec.Meta:
        """The bounds of a number."""
        metas = (meta for meta in _annotated_metadata(self.type) if isinstance(meta, msgspec.Meta))
        return next(metas, msgspec.Meta())

    @property
    def is_required(self) -> bool:
        return self.default is msgspec.NODEFAULT

    def synonym(self, value: Any) -> Any:
        """The value, or this setting's synonym for it."""
        return value if not self.words or value in self.words else _SYNONYMS.get(value, value)

    def default_as_text(self) -> str:
        """The default as a user would write it."""
        if isinstance(self.option, Option) and self.option.default_text:
            return self.option.default_text
        if self.default in ("", (), None, msgspec.NODEFAULT) or self.default is False:
            return ""
        if self.field.endswith("_s"):
            return clock.format_duration(self.default) if self.default else "0s"
        if self.field.endswith("_bytes") and self.default % 2**20 == 0:
            return f"{self.default // 2**20}Mi"
        return ",".join(map(str, self.default)) if isinstance(self.default, tuple) else str(self.default)


def _without_bounds(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated or NoneType in get_args(annotation):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    return annotation


def _annotated_metadata(annotation: Any) -> Iterable[Any]:
    """The metadata of `Annotated`, also inside of an optional type."""
    if get_origin(annotation) is Annotated:
        inner, *annotations = get_args(annotation)
        yield from annotations
        yield from _annotated_metadata(inner)
    elif NoneType in get_args(annotation):
        yield from _annotated_metadata(next(part for part in get_args(annotation) if part is not NoneType))


def list_settings(group: Group) -> list[Setting]:
    """The settings of a group, in the order of declaration, those that it inherits first."""
    bases = [base for base in group.__mro__ if issubclass(base, msgspec.Struct)]
    settings = []
    for field in msgspec.structs.fields(group):
        options = (part for part in _annotated_metadata(field.type) if isinstance(part, Option | Argument))
        option = next(options, Option())
        help_ = option.help if isinstance(option, Option) else ""
        texts = (_field_docstrings(base).get(field.name, "") for base in bases)
        help_ = help_ or next(filter(None, texts), "")
        settings.append(Setting(field.name, field.type, field.default, help_, option))
    return settings


@cache  # reading the source again takes a tenth of a second over a whole start
def _field_docstrings(group: type) -> Mapping[str, str]:
    """The docstring under each field; empty if the source is unavailable, as in a frozen program."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(group)))
    except (OSError, TypeError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def merge_settings(  # complexity: merges by field, then by help text
    groups: Iterable[Group], kinds: "Iterable[AgentKind]" = ()
) -> list[Setting]:
    """The settings of several groups and agents, each once. `BadSettings` where two declare the same name differently.

    Different help texts of the same setting are shown with the names of their agents.
    """
    declarations = [
        *(("nodewise", settings_group_heading(group), group) for group in groups),
        *((kind.name, f"Agent {kind.name}", kind.options) for kind in kinds),
    ]
    settings: dict[str, Setting] = {}
    owners_by_help: dict[str, dict[str, list[str]]] = {}
    for owner, section, group in declarations:
        for setting in list_settings(group):
            own = setting._replace(section=section)
            known = settings.setdefault(setting.field, own)
            if known is not own:
                settings[setting.field] = _setting_with_more_choices(known, own)
            owners_by_help.setdefault(setting.field, {}).setdefault(setting.help, []).append(owner)
    merged = []
    for field, setting in settings.items():
        texts = owners_by_help[field]
        owners = [owner for listed in texts.values() for owner in listed]
        help_ = " ".join(f"[{', '.join(listed)}] {text}" for text, listed in texts.items())
        merged.append(
            setting._replace(
                help=help_ if len(texts) > 1 else setting.help,
                section=setting.section if len(owners) == 1 or "nodewise" in owners else "Several agents",
                owners=tuple(owner for owner in owners if owner != "nodewise"),
            )
        )
    return merged


def settings_group_heading(group: Group) -> str:
    """The first line of the group's docstring: the heading in the help."""
    return (group.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _setting_with_more_choices(first: Setting, second: Setting) -> Setting:
    """Of two settings with choices, the one with more choices. `BadSettings` if they contradict each other."""
    if first[:3] == second[:3]:
        return first
    narrow, wide = sorted((first, second), key=lambda setting: len(setting.words))
    default = narrow.synonym(wide.default)
    if not narrow.words or set(narrow.words) - set(wide.words) or default != narrow.default:
        actual = "two agents declare it, with other values or another default"
        raise BadSettings("settings", [Problem(first.flag, actual, "another name in one of the agents")])
    return wide


_PATHS: Final = re.compile(r"\[?(FILE|DIR|FOLDER|OLD|NEW)\b")  # placeholders of values that are paths


def click_type_of_setting(setting: Setting) -> Any:
    """The type with which click reads the setting. The bounds of numbers are those of the struct."""
    if setting.field.endswith("_s"):
        return Duration(is_positive=setting.bounds.gt == 0)
    if setting.field.endswith("_bytes"):
        return Size()
    if setting.words:
        return click.Choice(setting.words)
    if setting.is_secret:
        return SecretText()
    if _PATHS.match(setting.option.metavar or ""):
        return FilePath()
    plain = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
    return plain.get(setting.inner, click.STRING)


def click_type_with_bounds(setting: Setting) -> Any:
    """The same with the bounds in it, so that the help shows them."""
    bounds = setting.bounds
    limits: dict[str, Any] = {
        "min": bounds.ge if bounds.ge is not None else bounds.gt,
        "max": bounds.le if bounds.le is not None else bounds.lt,
        "min_open": bounds.gt is not None,
        "max_open": bounds.lt is not None,
    }
    if (limits["min"] is None and limits["max"] is None) or setting.field.endswith(("_s", "_bytes")):
        return click_type_of_setting(setting)
    ranges = {int: click.IntRange, float: FloatRange}
    return ranges[setting.list_element_type](**limits)
