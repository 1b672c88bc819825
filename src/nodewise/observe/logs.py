"""Log lines: structlog, on stderr, one event of the table each."""

import logging
import sys
from typing import Any, Final, Literal, NamedTuple

from nodewise.observe.log_events import EVENTS
from nodewise.observe.plain import structlog
from nodewise.terminal_escaping import visible

Format = Literal["text", "json"]
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _BufferedEvent(NamedTuple):
    """An event of the time before `configure`."""

    event: str
    fields: dict[str, Any]


_early: list[_BufferedEvent] = []
_early_whatever_level: list[_BufferedEvent] = []


def configure(level: str = "info", form: Format = "text") -> None:
    """Set the threshold and the form of all lines, and write what waited. Called once, by the command line."""
    _set("debug", form)
    _write(_early_whatever_level)
    _set(level, form)
    _write(_early)
    # Libraries log through the standard module; of them only warnings are of interest to an operator.
    logging.basicConfig(stream=sys.stderr, level=max(_LEVELS[level], logging.WARNING), format="%(message)s")


def _write(early: list[_BufferedEvent]) -> None:
    while early:
        event, fields = early.pop(0)
        emit(event, **fields)


def _set(level: str, form: Format) -> None:
    # plain tracebacks: a pretty one shows the values of variables, and so the bodies of requests
    plain = structlog.dev.plain_traceback
    text = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([structlog.processors.JSONRenderer()] if form == "json" else [_shown, text]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


class _Quoted(NamedTuple):
    """A text that structlog shows by its repr, as it does with those that have blanks."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)


def _shown(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, of which a terminal obeys none: words of tenants and servers are among them."""
    for key, value in fields.items():
        if key == "exception":
            fields[key] = "\n".join(map(visible, value.split("\n")))
        elif isinstance(value, str) and not value.isprintable():
            fields[key] = _Quoted(value)
    return fields


def emit(event: str, **fields: Any) -> None:
    """Write one event. KeyError if the table has no such row."""
    getattr(structlog.get_logger(), EVENTS[event].level)(event, **fields)


def emit_later(event: str, *, whatever_level: bool = False, **fields: Any) -> None:
    """An event of the time in which the command line is read: `configure` writes it."""
    (_early_whatever_level if whatever_level else _early).append(_BufferedEvent(event, fields))
