"""Log lines on stderr with structlog. Each line is an event of the table `log_events.EVENTS`."""

import logging
import os
import sys
from typing import Any, Final, Literal, NamedTuple

from nodewise.base.terminal_escaping import visible
from nodewise.observe.log_events import EVENTS

# Import structlog without rich, which takes a tenth of the start-up time and is used only for pretty tracebacks.
_rich = sys.modules.get("rich")
if _rich is None:
    sys.modules["rich"] = None  # type: ignore[assignment]  # makes `import rich` fail
try:
    import structlog
finally:
    if _rich is None:
        del sys.modules["rich"]

Format = Literal["text", "json"]
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _BufferedEvent(NamedTuple):
    """An event that was emitted before `configure`."""

    event: str
    fields: dict[str, Any]


_early: list[_BufferedEvent] = []
_early_whatever_level: list[_BufferedEvent] = []


def configure(level: str = "info", form: Format = "text") -> None:
    """Set level and format of all lines, and write buffered events. The command line calls it once."""
    _set_level_and_format("debug", form)
    _write_buffered(_early_whatever_level)
    _set_level_and_format(level, form)
    _write_buffered(_early)
    # Libraries use the standard module `logging`; only their warnings are of interest to an operator.
    logging.basicConfig(stream=sys.stderr, level=max(_LEVELS[level], logging.WARNING), format="%(message)s")


def _write_buffered(early: list[_BufferedEvent]) -> None:
    while early:
        event, fields = early.pop(0)
        emit(event, **fields)


def _set_level_and_format(level: str, form: Format) -> None:
    # plain tracebacks: pretty ones include the values of variables, such as the bodies of requests
    plain = structlog.dev.plain_traceback
    text = structlog.dev.ConsoleRenderer(colors=_uses_colors(), exception_formatter=plain)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([structlog.processors.JSONRenderer()] if form == "json" else [_escape_fields, text]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _uses_colors() -> bool:
    """On a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")


class _Quoted(NamedTuple):
    """A text that structlog renders with its repr, as it does for texts with spaces."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)


def _escape_fields(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with escaped control characters: they can contain text of tenants and servers."""
    for key, value in fields.items():
        if key == "exception":
            fields[key] = "\n".join(map(visible, value.split("\n")))
        elif isinstance(value, str) and not value.isprintable():
            fields[key] = _Quoted(value)
    return fields


def emit(event: str, **fields: Any) -> None:
    """Write one event. KeyError if it is not in the table."""
    getattr(structlog.get_logger(), EVENTS[event].level)(event, **fields)


def emit_later(event: str, *, whatever_level: bool = False, **fields: Any) -> None:
    """Buffer an event while the command line is parsed; `configure` writes it."""
    (_early_whatever_level if whatever_level else _early).append(_BufferedEvent(event, fields))
