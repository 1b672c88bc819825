"""Traces of a running extender in a real OpenTelemetry Collector."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests import plain_http
from tests.cluster import child_processes, kubernetes_objects
from tests.cluster.child_processes import Process
from tests.cluster.extender_process import NODEWISE
from tests.cluster.namespace_sandboxes import wait

pytestmark = pytest.mark.cluster

EXAMPLE = Path(__file__).parents[2] / "examples/health-metric"
GPU = "gpu.intel.com/i915"
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(NamedTuple):
    """A running collector."""

    url: str
    log: Path

    def wait_spans(self, *names: str) -> dict[str, dict[str, str]]:
        """Waits until spans with these names have arrived, and returns the ids of all spans by name."""
        return wait(
            f"the spans {', '.join(names)} arrived",
            lambda: received if {*names} <= (received := spans(self.log.read_text())).keys() else None,
        )


def spans(log: str) -> dict[str, dict[str, str]]:
    """By name, the ids that the debug exporter printed of the last span with this name."""
    parts = re.split(r"^Span #\d+$", log, flags=re.MULTILINE)[1:]
    listed = [
        dict(re.findall(r"^ +(Trace ID|Parent ID|ID|Name) +: (.*)$", part, re.MULTILINE)) for part in parts
    ]
    return {span["Name"]: span for span in listed}


@pytest.fixture
def collector(otelcol_program: Path, tmp_path: Path) -> Iterator[Collector]:
    """A collector that prints the spans that it receives."""
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
    ) as process:
        process.wait_ready(lambda: process.log_line_has("Everything is ready"))
        yield Collector(f"http://{endpoint}", process.log)


def test_spans_of_a_filter_request_arrive_below_the_clients_span(
    collector: Collector, tmp_path: Path
) -> None:
    with extender(collector, tmp_path, f"--objects-from={EXAMPLE}") as url:
        pod = kubernetes_objects.pod("demo-app-1", labels={"app": "demo-app"})
        pod["metadata"]["namespace"] = "health-metric-demo"
        body = {"Pod": pod, "NodeNames": ["rack1-a", "rack1-b", "rack2-a"]}
        assert post(f"{url}/scheduler/filter", body)["NodeNames"] == ["rack1-a", "rack2-a"]
    arrived = collector.wait_spans("POST /scheduler/filter", "filter telemetry", "refresh metric")
    request, agent = arrived["POST /scheduler/filter"], arrived["filter telemetry"]
    assert (request["Trace ID"], request["Parent ID"]) == (TRACE, CALLER)
    assert (agent["Trace ID"], agent["Parent ID"]) == (TRACE, request["ID"])
    assert arrived["refresh metric"]["Parent ID"] == ""


def test_spans_of_a_bind_arrive(collector: Collector, tmp_path: Path) -> None:
    api = FakeApi()
    node = {
        "metadata": {"name": "n1", "labels": {"gpu.intel.com/gpu-numbers": "0"}},
        "status": {"allocatable": {GPU: "1"}},
    }
    api.put(NODES, node)
    resources = {"requests": {GPU: "1"}, "limits": {GPU: "1"}}
    pod = api.put(
        PODS,
        {
            "metadata": {"name": "train", "namespace": "default"},
            "spec": {"containers": [{"name": "main", "resources": resources}]},
        },
    )
    with in_memory_api_http_server.serving(api) as server:
        options = (f"--kubeconfig={server.kubeconfig(tmp_path)}", "--namespace=nodewise", "--agents=gpu")
        with extender(collector, tmp_path, *options) as url:
            assert post(f"{url}/scheduler/filter", {"Pod": pod, "NodeNames": ["n1"]})["NodeNames"] == ["n1"]
            meta = pod["metadata"]
            binding = {"PodName": "train", "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n1"}
            assert post(f"{url}/scheduler/bind", binding) == {"Error": ""}
    arrived = collector.wait_spans("POST /scheduler/bind", "bind")
    request, bind = arrived["POST /scheduler/bind"], arrived["bind"]
    assert (request["Trace ID"], request["Parent ID"]) == (TRACE, CALLER)
    assert (bind["Trace ID"], bind["Parent ID"]) == (TRACE, request["ID"])


@contextlib.contextmanager
def extender(collector: Collector, folder: Path, *options: str) -> Iterator[str]:
    """The address of a running extender, whose end sends the spans."""
    arguments = [NODEWISE, "extender", "--unsafe", "--port=0", "--health-port=0", *options]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
    log = folder / "extender.log"
    with Process([*arguments, "--log-format=json", "--shutdown-delay=0s"], log, environment) as running:
        running.wait_ready(lambda: running.log_line_has('"ready"'))
        (address,) = re.findall(r'"address": "(http[^"]+)"', log.read_text())
        yield address


def post(url: str, body: object) -> Any:
    """The response to a request with the trace context of a client."""
    headers = {"Content-Type": "application/json", "traceparent": f"00-{TRACE}-{CALLER}-01"}
    return plain_http.post(url, content=json.dumps(body).encode(), headers=headers).json()
