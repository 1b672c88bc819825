"""Options from settings structs: flag over environment over `--config` file over default, from one declaration.

A field `sync_period_s: float` with a docstring becomes `--sync-period 5s`, `NODEWISE_SYNC_PERIOD`, the key
`sync_period` of the file, a line of `--help` and a row of the reference page.
"""

import ast
import difflib
import inspect
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import click
import msgspec
import yaml

from nodewise import clock, quantity
from nodewise.errors import BadSettings, Problem, shown

T = TypeVar("T", bound=msgspec.Struct)


class Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return clock.parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return quantity.parse(str(value)) // quantity.NANO
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Setting(NamedTuple):
    """One field of a settings struct, as a user meets it."""

    field: str
    type: Any
    default: Any
    help: str

    @property
    def key(self) -> str:
        """The key in the configuration file. Durations carry their unit in the value."""
        return self.field.removesuffix("_s")

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return "NODEWISE_" + self.key.upper()

    def shown_default(self) -> str:
        """The default in the form in which a user would give it."""
        if self.default in ("", (), False):
            return ""
        if self.field.endswith("_s"):
            return clock.format_duration(self.default)
        if self.field.endswith("_bytes") and self.default % 2**20 == 0:
            return f"{self.default // 2**20}Mi"
        return ",".join(map(str, self.default)) if isinstance(self.default, tuple) else str(self.default)


def settings(group: type[msgspec.Struct]) -> list[Setting]:
    """The settings of a group, in the order of declaration."""
    helps = _docstrings(group)
    return [
        Setting(field.name, field.type, field.default, helps.get(field.name, ""))
        for field in msgspec.structs.fields(group)
    ]


def _docstrings(group: type) -> dict[str, str]:
    """The docstring under each field. Empty where the source is not there (a frozen program)."""
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


def options(
    *groups: type[msgspec.Struct], known: Sequence[type[msgspec.Struct]] = ()
) -> list[click.Parameter]:
    """The options of a command that takes these groups, and `--config`.

    The file may hold settings of `known` groups as well, of which the command takes what it has options for.
    """
    found: list[click.Parameter] = [_config([*groups, *known])]
    return found + [_option(setting) for group in groups for setting in settings(group)]


def build(group: type[T], given: dict[str, Any]) -> T:
    """The struct from a command's parameters. `BadSettings` if a value is out of its bounds."""
    values = {setting.field: given[setting.field] for setting in settings(group)}
    try:
        return msgspec.convert(values, group, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`")
        flag = next((s.flag for s in settings(group) if s.field == field), field)
        raise BadSettings("settings", [Problem(flag, shown(values.get(field)), text)]) from error


def _option(setting: Setting) -> click.Option:
    many = get_origin(setting.type) is tuple
    default = setting.shown_default()
    return click.Option(
        [setting.flag, setting.field],
        type=_type(setting),
        is_flag=setting.type is bool,
        multiple=many,
        default=setting.default,
        envvar=setting.variable,
        help=f"{setting.help} [default: {default}]" if default else setting.help,
    )


def _type(setting: Setting) -> Any:
    if setting.field.endswith("_s"):
        return Duration()
    if setting.field.endswith("_bytes"):
        return _Size()
    if get_origin(setting.type) is Literal:
        return click.Choice(get_args(setting.type))
    inner = get_args(setting.type)[0] if get_origin(setting.type) is Annotated else setting.type
    plain = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
    return plain.get(inner, click.STRING)


def _config(groups: Sequence[type[msgspec.Struct]]) -> click.Option:
    def read(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
        if path:
            ctx.default_map = read_file(path, groups)

    return click.Option(
        ["--config"],
        envvar="NODEWISE_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=read,
        help="YAML file of settings; keys are the options without dashes, such as `sync_period: 5s`.",
    )


def read_file(path: str, groups: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    """The settings of a file by field name. `BadSettings` for every unknown key, with the nearest known one."""
    try:
        given = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadSettings("settings", [Problem("--config", str(error), "a readable YAML file")]) from error
    if not isinstance(given, dict):
        raise BadSettings("settings", [Problem(path, shown(given), "a mapping of settings")])
    known = {setting.key: setting.field for group in groups for setting in settings(group)}
    problems = [
        Problem(f"{path}: {key}", "an unknown setting", _nearest(str(key), known))
        for key in given
        if key not in known
    ]
    if problems:
        raise BadSettings("settings", problems)
    return {known[key]: value for key, value in given.items()}


def _nearest(key: str, known: dict[str, str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return close[0] if close else "one of " + ", ".join(sorted(known))
