"""Types of parameters for click: how a text becomes a value, and what a shell completes.

Completion and `--help` import this module, so it imports nothing that takes long. Sources of names are imported when
they are used, and by name: the program that is installed on hosts completes nothing and does not contain them.
"""

from importlib import import_module
from math import isnan
from typing import Any, Final

import click
from click.shell_completion import CompletionItem
from click.types import StringParamType

from nodewise.base import clock, quantity

_COMPLETION: Final = "nodewise.cli.completion"
_POD_TYPES: Final = ("pod", "pods", "po")


class Duration(click.ParamType[float]):
    """Seconds from a text such as `5s`. With `has_default_unit` a plain number means seconds."""

    name = "duration"

    def __init__(self, *, has_default_unit: bool = False, is_positive: bool = False) -> None:
        self._has_default_unit = has_default_unit
        self._is_positive = is_positive

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            seconds = clock.parse_option_duration(value, has_default_unit=self._has_default_unit)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._is_positive and seconds <= 0:
            self.fail(f"{value} is not more than 0", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """Bytes from a text such as `64Mi`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return quantity.parse(str(value)) // quantity.NANO
        except ValueError as error:
            self.fail(str(error), param, ctx)


class FloatRange(click.FloatRange):
    """A number within bounds. Click compares only, and nan is neither below nor above them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


class SecretText(StringParamType):
    """A text that no message shows. It may contain spaces, so in the variable of a list each line is a value."""

    name = "secret"
    envvar_list_splitter = "\n"


class FilePath(StringParamType):
    """The path of a file or folder."""

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's interface
        param: click.Parameter,  # noqa: ARG002 - click's interface
        incomplete: str,
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class _Name(StringParamType):
    """A name of which `names` lists the possible values."""

    def names(self, ctx: click.Context, incomplete: str) -> list[str]:
        """All names, in any order; those that do not begin with `incomplete` are dropped."""
        raise NotImplementedError

    def shell_complete(
        self,
        ctx: click.Context,
        param: click.Parameter,  # noqa: ARG002 - click's interface
        incomplete: str,
    ) -> list[CompletionItem]:
        names = sorted(self.names(ctx, incomplete))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class NamespaceName(_Name):
    """The name of a namespace."""

    def names(self, ctx: click.Context, incomplete: str) -> list[str]:  # noqa: ARG002
        names: list[str] = import_module(_COMPLETION).list_namespaces(ctx)
        return names


class PodName(_Name):
    """`POD`, `NAMESPACE/POD`, or `pod/POD`."""

    def names(self, ctx: click.Context, incomplete: str) -> list[str]:
        prefix, slash, _ = incomplete.rpartition("/")
        namespace = "" if prefix in _POD_TYPES else prefix
        pods = import_module(_COMPLETION).list_pods(ctx, namespace or ctx.params.get("namespace") or "")
        return [f"{prefix}{slash}{pod}" for pod in pods]


class AgentNames(_Name):
    """The names of agents, separated by commas."""

    def names(self, ctx: click.Context, incomplete: str) -> list[str]:  # noqa: ARG002
        before, comma, _ = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in import_module("nodewise.agents").names()]


class PresetName(_Name):
    """The name of a policy of the library."""

    def names(self, ctx: click.Context, incomplete: str) -> list[str]:  # noqa: ARG002
        names: list[str] = import_module("nodewise.policy_tools.library").preset_names()
        return names


class PartName(_Name):
    """The name of a part of an installation."""

    def names(self, ctx: click.Context, incomplete: str) -> list[str]:  # noqa: ARG002
        return list(import_module("nodewise.install.platform_manifests").PARTS)
