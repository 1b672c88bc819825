"""Settings as they are declared: the fields of structs, and the option of the command line that each of them is.

A field `sync_period_s: float` with a docstring is `--sync-period 5s`, `NODEWISE_SYNC_PERIOD`, the key `sync_period` of
the file, a line of `--help` and a row of the reference page. A struct may inherit fields from others.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

import click
import msgspec

from nodewise import clock, quantity
from nodewise.agent import AgentKind
from nodewise.errors import BadSettings, Problem

FORMS: Final[Mapping[str, str]] = {
    "address": "ADDRESS",
    "advertise_resource": "NAME=AMOUNT",
    "agents": "NAMES",
    "annotate_cpu_samples_query": "QUERY",
    "annotate_gpu_resource": "RESOURCE",
    "annotate_memory_samples_query": "QUERY",
    "balanced_resource": "RESOURCE",
    "cert": "FILE",
    "client_ca": "FILE",
    "client_name": "NAME",
    "context": "NAME",
    "cpu_deviation_query": "QUERY",
    "cpu_mean_query": "QUERY",
    "exporter_matchers": "MATCHERS",
    "gpu_profile": "NAME|FILE",
    "gpu_typical_pods": "FILE",
    "health_address": "ADDRESS",
    "identity": "NAME",
    "key": "FILE",
    "kubeconfig": "FILE",
    "label_policies_from": "NAMESPACE",
    "learned_namespaces": "NAMESPACE",
    "allowed_metrics": "REGEX",
    "own_namespace": "NAMESPACE",
    "memory_deviation_query": "QUERY",
    "memory_mean_query": "QUERY",
    "metrics": "SOURCE",
    "namespace": "NAMESPACE",
    "objects_from": "PATH",
    "pigeon_config": "FILE",
    "pigeon_gpu_resource": "RESOURCE",
    "prometheus_ca": "FILE",
    "prometheus_cert": "FILE",
    "prometheus_key": "FILE",
    "prometheus_node_label": "LABEL",
    "prometheus_password_file": "FILE",
    "prometheus_token_file": "FILE",
    "prometheus_url": "URL",
    "prometheus_user": "NAME",
    "record": "FILE",
    "state": "FILE",
    "unsafe_address": "ADDRESS",
    "usage_from": "SOURCE",
    "weights": "NAME=WEIGHT,…",
}
"""What help shows of the value of a setting that is a text."""
_SAME: Final = {"accept": "pass", "pass": "accept"}
"""Two words for one thing: an agent that has only one of them takes the other for it."""


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
    section: str = ""
    """What it is about, among the settings of a whole command."""

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

    @property
    def inner(self) -> Any:
        """The type without bounds, and without the None of one that may be left out."""
        found = self.type
        while get_origin(found) is Annotated or NoneType in get_args(found):
            found = next(one for one in get_args(found) if one is not NoneType)
        return found

    @property
    def is_list(self) -> bool:
        return get_origin(self.inner) is tuple

    @property
    def words(self) -> tuple[str, ...]:
        """Those that it may be; empty where it may be anything."""
        return get_args(self.inner) if get_origin(self.inner) is Literal else ()

    def taken(self, value: Any) -> Any:
        """The value, or the word that this setting has for it."""
        return value if not self.words or value in self.words else _SAME.get(value, value)

    def shown_default(self) -> str:
        """The default in the form in which a user would give it."""
        if self.default in ("", (), None) or self.default is False:
            return ""
        if self.field.endswith("_s"):
            return clock.format_duration(self.default) if self.default else "0s"
        if self.field.endswith("_bytes") and self.default % 2**20 == 0:
            return f"{self.default // 2**20}Mi"
        return ",".join(map(str, self.default)) if isinstance(self.default, tuple) else str(self.default)


def settings(group: type[msgspec.Struct]) -> list[Setting]:
    """The settings of a group, in the order of declaration, those that it inherits first."""
    helps = {
        field: text
        for base in reversed(group.__mro__)
        if issubclass(base, msgspec.Struct)
        for field, text in _docstrings(base).items()
    }
    return [
        Setting(field.name, field.type, field.default, helps.get(field.name, ""))
        for field in msgspec.structs.fields(group)
    ]


@cache  # reading the source again takes a tenth of a second over a whole start
def _docstrings(group: type) -> Mapping[str, str]:
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


def together(groups: Iterable[type[msgspec.Struct]], kinds: Iterable[AgentKind] = ()) -> list[Setting]:
    """The settings of several groups and agents, each once. `BadSettings` where two mean different things by one name.

    What agents say of the same setting in different words is told with their names.
    """
    found: dict[str, Setting] = {}
    said: dict[str, dict[str, list[str]]] = {}
    owned = [
        *(("nodewise", _about(group), group) for group in groups),
        *((kind.name, f"Agent {kind.name}", kind.options) for kind in kinds),
    ]
    for owner, section, group in owned:
        for declared in settings(group):
            one = declared._replace(section=section)
            before = found.get(one.field)
            found[one.field] = one if before is None else _wider(before, one)
            said.setdefault(one.field, {}).setdefault(one.help, []).append(owner)
    return [
        one._replace(help=_helps(said[one.field]), section=_section(one, said[one.field]))
        for one in found.values()
    ]


def _about(group: type[msgspec.Struct]) -> str:
    return (group.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _section(one: Setting, said: Mapping[str, Sequence[str]]) -> str:
    owners = {owner for told in said.values() for owner in told}
    return one.section if len(owners) == 1 or "nodewise" in owners else "Several agents"


def _helps(said: Mapping[str, Sequence[str]]) -> str:
    if len(said) == 1:
        return next(iter(said))
    return " ".join(f"[{', '.join(owners)}] {text}" for text, owners in said.items())


def _wider(one: Setting, other: Setting) -> Setting:
    """Of two that take words, the one that takes more of them."""
    if one[:3] == other[:3]:
        return one
    narrow, wide = sorted((one, other), key=lambda setting: len(setting.words))
    default = narrow.taken(wide.default)
    if not narrow.words or set(narrow.words) - set(wide.words) or default != narrow.default:
        seen = "two agents declare it, with other values or another default"
        raise BadSettings("settings", [Problem(one.flag, seen, "another name in one of them")])
    return wide


def parameter_type(setting: Setting) -> Any:
    """What click reads the setting with."""
    if setting.field.endswith("_s"):
        return Duration()
    if setting.field.endswith("_bytes"):
        return _Size()
    if setting.words:
        return click.Choice(setting.words)
    plain = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
    return plain.get(setting.inner, click.STRING)
