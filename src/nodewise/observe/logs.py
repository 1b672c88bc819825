"""Log lines: structlog, on stderr, one event of the catalogue each."""

import logging
import sys
from typing import Any, Final, Literal

import structlog

from nodewise.observe.catalogue import EVENTS

Format = Literal["text", "json"]
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure(level: str = "info", form: Format = "text") -> None:
    """Set the threshold and the form of all lines. Called once, by the command line."""
    # plain tracebacks: a pretty one shows the values of variables, and so the bodies of requests
    plain = structlog.dev.plain_traceback
    text = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(
                [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
                if form == "json"
                else [text]
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    # Libraries log through the standard module; of them only warnings are of interest to an operator.
    logging.basicConfig(stream=sys.stderr, level=max(_LEVELS[level], logging.WARNING), format="%(message)s")


def emit(event: str, **fields: Any) -> None:
    """Write one event. KeyError if the catalogue has no such row."""
    getattr(structlog.get_logger(), EVENTS[event].level)(event, **fields)
