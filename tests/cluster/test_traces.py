"""Traces of a running extender in a real OpenTelemetry Collector."""

import json
import os
import re
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.cluster import child_processes, kubernetes_objects
from tests.cluster.child_processes import Process
from tests.cluster.extender_process import NODEWISE
from tests.cluster.namespace_sandboxes import wait

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples/health-metric"
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans(log: str) -> dict[str, dict[str, str]]:
    """By name, the ids that the debug exporter printed of the last span with this name."""
    parts = re.split(r"^Span #\d+$", log, flags=re.MULTILINE)[1:]
    listed = [
        dict(re.findall(r"^ +(Trace ID|Parent ID|ID|Name) +: (.*)$", part, re.MULTILINE)) for part in parts
    ]
    return {span["Name"]: span for span in listed}


def test_spans_of_a_filter_request_arrive_below_the_clients_span(
    otelcol_program: Path, tmp_path: Path
) -> None:
    endpoint = f"127.0.0.1:{child_processes.free_port()}"
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": endpoint}}}},
        "exporters": {"debug": {"verbosity": "detailed"}},
        "service": {
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["debug"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    (tmp_path / "otelcol.yaml").write_text(yaml.safe_dump(config))
    with Process(
        [otelcol_program, f"--config={tmp_path / 'otelcol.yaml'}"], tmp_path / "otelcol.log"
    ) as collector:
        collector.wait_ready(lambda: collector.log_line_has("Everything is ready"))
        names = _filter_once(f"http://{endpoint}", tmp_path)
        arrived = wait("the spans arrived", lambda: _complete(spans(collector.log.read_text())))
    assert names == ["rack1-a", "rack2-a"]
    request, agent = arrived["POST /scheduler/filter"], arrived["filter telemetry"]
    assert (request["Trace ID"], request["Parent ID"]) == (TRACE, CALLER)
    assert (agent["Trace ID"], agent["Parent ID"]) == (TRACE, request["ID"])
    assert arrived["refresh metric"]["Parent ID"] == ""


def _complete(ids_by_name: dict[str, dict[str, str]]) -> dict[str, dict[str, str]] | None:
    return (
        ids_by_name
        if {"POST /scheduler/filter", "filter telemetry", "refresh metric"} <= ids_by_name.keys()
        else None
    )


def _filter_once(collector: str, folder: Path) -> list[str]:
    """The nodes that a filter request of an extender leaves; its end sends the spans."""
    arguments = [NODEWISE, "extender", f"--objects-from={EXAMPLE}", "--unsafe", "--port=0", "--health-port=0"]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector}
    log = folder / "extender.log"
    with Process([*arguments, "--log-format=json", "--shutdown-delay=0s"], log, environment) as extender:
        extender.wait_ready(lambda: extender.log_line_has('"ready"'))
        (address,) = re.findall(r'"address": "(http[^"]+)"', log.read_text())
        pod = kubernetes_objects.pod("demo-app-1", labels={"app": "demo-app"})
        pod["metadata"]["namespace"] = "health-metric-demo"
        body = {"Pod": pod, "NodeNames": ["rack1-a", "rack1-b", "rack2-a"]}
        headers = {"Content-Type": "application/json", "traceparent": f"00-{TRACE}-{CALLER}-01"}
        response = httpx2.post(
            f"{address}/scheduler/filter", content=json.dumps(body).encode(), headers=headers
        )
        names: list[str] = response.json()["NodeNames"]
        return names
