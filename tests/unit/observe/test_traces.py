"""Spans: what is sent to a collector, and that nothing is imported without one."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nodewise.observe import traces
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application, RemotePeer, Request, RequestHeader, Response, Route

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class RecordedSpans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = traces._Tracer(self.exporter)

    def by_name(self) -> dict[str, Any]:
        self.tracer.flush()
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedSpans]:
    recorded = RecordedSpans()
    monkeypatch.setattr(traces, "_tracer", recorded.tracer)
    yield recorded
    recorded.tracer._provider.shutdown()


def call(handler: Any, path: str = "/scheduler/filter", traceparent: str = "") -> Any:
    """The exchange of a request, and the rest of it that is to be awaited."""
    app = Application([Route("POST", path, handler)], MetricsRegistry(), max_body_bytes=9)
    head = RequestHeader("POST", path, content_type="application/json", traceparent=traceparent)
    exchange = app.open(head, RemotePeer())
    exchange.start()
    exchange.receive(b"{}")
    return exchange, exchange.finish()


def parent_id(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def test_a_request_continues_the_trace_of_its_client_and_is_the_parent_of_agents(
    spans: RecordedSpans,
) -> None:
    def handler(_: Request) -> Response:
        with traces.span("filter telemetry"):
            return Response(200)

    call(handler, traceparent=CALLER)
    request, agent = (spans.by_name()[name] for name in ("POST /scheduler/filter", "filter telemetry"))
    assert f"{request.context.trace_id:032x}" == CALLER.split("-")[1]
    assert f"{parent_id(request):016x}" == CALLER.split("-")[2]
    assert parent_id(agent) == request.context.span_id
    assert request.attributes["http.response.status_code"] == 200
    assert request.resource.attributes["service.name"] == "nodewise"


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-0-0-00", "é" * 100])
def test_a_request_without_a_valid_context_begins_a_trace(spans: RecordedSpans, traceparent: str) -> None:
    call(lambda _: Response(200), traceparent=traceparent)
    assert spans.by_name()["POST /scheduler/filter"].parent is None


async def test_a_request_that_is_awaited_is_the_parent_too(spans: RecordedSpans) -> None:
    async def handler(_: Request) -> Response:
        with traces.span("bind") as span:
            span.fail("no room")
        return Response(200)

    _, pending = call(handler, "/scheduler/bind")
    assert spans.by_name() == {}
    await pending
    request, bind = (spans.by_name()[name] for name in ("POST /scheduler/bind", "bind"))
    assert parent_id(bind) == request.context.span_id
    assert (bind.status.is_ok, bind.status.description) == (False, "no room")
    assert request.status.is_ok


def test_a_failed_request_is_marked(spans: RecordedSpans) -> None:
    def handler(_: Request) -> Response:
        raise ZeroDivisionError

    call(handler)
    span = spans.by_name()["POST /scheduler/filter"]
    assert not span.status.is_ok
    assert span.attributes["http.response.status_code"] == 500


def test_an_exception_marks_its_span_and_is_raised(spans: RecordedSpans) -> None:
    with pytest.raises(ZeroDivisionError), traces.span("filter quiet"):
        raise ZeroDivisionError("zero")
    assert spans.by_name()["filter quiet"].status.description == "zero"


@pytest.mark.parametrize(("endpoint", "imported"), [("", False), ("http://127.0.0.1:1", True)])
def test_the_sdk_is_imported_only_for_a_collector(endpoint: str, imported: bool) -> None:
    program = (
        "import sys; from nodewise.observe import traces; import nodewise.cli.extender; traces.configure();"
        " span = traces.span('x'); print('opentelemetry' in sys.modules, span is traces.NO_SPAN)"
    )
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == [str(imported), str(not imported)]


def test_a_missing_sdk_is_logged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    traces.configure()
    assert traces.span("x") is traces.NO_SPAN
    assert "traces_unavailable" in "".join(capsys.readouterr())
