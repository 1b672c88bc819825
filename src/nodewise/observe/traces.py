"""Spans of requests, agents, refreshes of metrics and binds, sent to an OpenTelemetry collector.

The SDK is imported only if the variable OTEL_EXPORTER_OTLP_ENDPOINT is set; otherwise a span does nothing. The SDK
reads its other settings, such as OTEL_TRACES_SAMPLER, from the environment too.
"""

import logging
import os
import re
import threading
import urllib.parse
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Self

from nodewise.observe import logs

if TYPE_CHECKING:
    from types import TracebackType

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_FLUSH_MS: Final = 3000  # the longest time that the end of the process waits for the collector
_SHORTEST_SECRET: Final = 4
_INACTIVE: Final = nullcontext()


class Span:
    """An operation with a begin and an end. As a context manager it is the parent of the spans that begin in its body,
    and ends with it.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        pass

    def set(self, key: str, value: str | float) -> None:
        """Set an attribute."""

    def fail(self, description: str) -> None:
        """Mark the operation as failed."""

    def activate(self) -> AbstractContextManager[Any]:
        """The parent of the spans that begin in the context; it does not end the span."""
        return _INACTIVE

    def end(self) -> None:
        """End the span."""


NO_SPAN: Final = Span()
"""The span of a process that sends none."""


class _RecordedSpan(Span):
    def __init__(self, span: Any) -> None:
        from opentelemetry import trace

        self._trace = trace
        self._span = span
        self._active: AbstractContextManager[Any] = _INACTIVE

    def __enter__(self) -> Self:
        self._active = self.activate()
        self._active.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        if error is not None:
            self.fail(str(error))
        self._active.__exit__(kind, error, trace)
        self.end()

    def set(self, key: str, value: str | float) -> None:
        self._span.set_attribute(key, value)

    def fail(self, description: str) -> None:
        self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, description))

    def activate(self) -> AbstractContextManager[Any]:
        active: AbstractContextManager[Any] = self._trace.use_span(
            self._span, record_exception=False, set_status_on_exception=False
        )
        return active

    def end(self) -> None:
        self._span.end()


class _Tracer:
    """Makes the spans of the process."""

    def __init__(self, exporter: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        import nodewise

        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "nodewise"}
        resource = Resource.create({"service.version": nodewise.__version__, **named})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("nodewise", nodewise.__version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._server = trace.SpanKind.SERVER

    def start(self, name: str, attributes: dict[str, str]) -> Span:
        return _RecordedSpan(self._tracer.start_span(name, attributes=attributes))

    def start_request(self, path: str, traceparent: str) -> Span:
        context = self._extract({"traceparent": traceparent})
        attributes = {"http.request.method": "POST", "http.route": path}
        return _RecordedSpan(
            self._tracer.start_span(f"POST {path}", context, self._server, attributes=attributes)
        )

    def flush(self) -> None:
        # in a thread, because the exporter retries for ten seconds whatever timeout force_flush is given
        thread = threading.Thread(target=self._provider.force_flush, args=(_FLUSH_MS,), daemon=True)
        thread.start()
        thread.join(_FLUSH_MS / 1000)


_tracer: _Tracer | None = None


def configure() -> None:
    """Send spans from now on if the environment names a collector. The log has the reason if that is not possible."""
    global _tracer  # noqa: PLW0603 - a process has one, as it has one log
    if not os.environ.get(_ENDPOINT):
        return
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(_SdkLog())
    logger.propagate = False
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        _tracer = _Tracer(OTLPSpanExporter())
    except Exception as error:  # noqa: BLE001
        # without the SDK, or with a variable that it cannot use, nodewise runs without spans
        logs.emit("traces_unavailable", error=str(error))


class _SdkLog(logging.Handler):
    """Logs what the SDK reports, without the credentials that its errors may contain."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.getMessage()
        if any(word in error for word in _secret_words()):
            error = f"an error of {record.name} that contains credentials of OTEL_EXPORTER_OTLP_*"
        logs.emit("traces_unavailable", error=error)


def _secret_words() -> set[str]:
    """The words of headers, and user and password of endpoints."""
    texts = [os.environ.get(f"OTEL_EXPORTER_OTLP_{name}HEADERS", "") for name in ("", "TRACES_")]
    for name in ("", "TRACES_"):
        endpoint = os.environ.get(f"OTEL_EXPORTER_OTLP_{name}ENDPOINT", "")
        texts.append(endpoint.rpartition("@")[0].partition("//")[2])
    words = {word for text in texts for word in re.split(r"[\s=:,;]+", urllib.parse.unquote(text))}
    return {word for word in words if len(word) >= _SHORTEST_SECRET}


def flush() -> None:
    """Send what is not sent yet, at the end of the process."""
    if _tracer is not None:
        _tracer.flush()


def span(name: str, **attributes: str) -> Span:
    """Begin a span below the current one. Use it as a context manager."""
    return NO_SPAN if _tracer is None else _tracer.start(name, attributes)


def start_request_span(path: str, traceparent: str) -> Span:
    """Begin the span of a POST request, below the client's span of the header `traceparent` (W3C Trace Context)."""
    return NO_SPAN if _tracer is None else _tracer.start_request(path, traceparent)
