"""Types of parameters: durations, sizes, and the type for the declaration of a setting."""

import re
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from nodewise.base import clock, quantity
from nodewise.cli.setting_declarations import Setting


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


class Text(click.ParamType[str]):
    """A text as it was typed. Subclasses say how the shell completes it."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return str(value)


class SecretText(Text):
    """A text that no message shows. It may contain spaces, so in the variable of a list each line is a value."""

    name = "secret"
    envvar_list_splitter = "\n"


class FilePath(Text):
    """The path of a file or folder."""

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's interface
        param: click.Parameter,  # noqa: ARG002 - click's interface
        incomplete: str,
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


_PATHS: Final = re.compile(r"\[?(FILE|DIR|FOLDER|OLD|NEW)\b")
"""Placeholders of values that are paths."""


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
    ranges = {int: click.IntRange, float: click.FloatRange}
    return ranges[setting.list_element_type](**limits)
