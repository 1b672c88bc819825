"""`nodewise demo`: shows nodewise on one machine without a cluster.

The extender is the real one, a separate process on loopback. The simulated kube-scheduler and the API server in memory
pass the same tests as the real ones.
"""

import asyncio
import contextlib
import json
import shlex
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import httpx2
import msgspec
from rich.console import Console

import nodewise
from nodewise.agents.telemetry import KIND as TELEMETRY
from nodewise.base.errors import NodewiseError, Problem, Unavailable
from nodewise.engine.pod_requeueing import ANNOTATION
from nodewise.kube import object_files
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.resource_kinds import NAMESPACES, NODES, PODS
from nodewise.policies.options import TelemetryOptions
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.scheduling_model.in_memory_api_http_server import ApiServer
from nodewise.scheduling_model.simulated_cluster import Cluster

NAMESPACE: Final = "health-metric-demo"
RESOURCE: Final = "telemetry/scheduling"
"""The resource by which kube-scheduler sends pods to the extender."""
METRIC: Final = "health_metric"
_METRICS: Final = "/apis/custom.metrics.k8s.io"
_VERSION: Final = {"groupVersion": "custom.metrics.k8s.io/v1beta2", "version": "v1beta2"}

_POLICY_KINDS: Final = tuple(
    watched.resource for watched in TELEMETRY.watched(TelemetryOptions()) if watched.resource != NAMESPACES
)

Object = dict[str, Any]


def example() -> Path:
    """The folder `examples/health-metric`: beside the package, or in the checkout."""
    package = Path(nodewise.__file__).parent
    inside = package / "examples/health-metric"
    return inside if inside.exists() else package.parents[1] / "examples/health-metric"


def objects(group: str, kind: str) -> list[Object]:
    """The example's objects of a kind."""
    return [json.loads(entry.data) for entry in object_files.read([example()]).entries(group, kind)]


def create_example_pod(name: str) -> Object:
    """A pod like those of the example, with another name, as the API server stores it."""
    pod = _with_resource(objects("", PODS.kind)[0])
    return pod | {"metadata": pod["metadata"] | {"name": name}}


def create_unselected_pod(name: str) -> Object:
    """A pod with the resources of the example's pods that no policy selects."""
    pod = objects("", PODS.kind)[0]
    metadata = {"name": name, "namespace": NAMESPACE}
    return pod | {"metadata": metadata, "spec": {"containers": pod["spec"]["containers"]}}


def _with_resource(pod: Object) -> Object:
    """A selected pod as `deploy/extender-pods.yaml` changes it when it is created."""
    container, *others = pod["spec"]["containers"]
    marked = {
        part: {**container["resources"].get(part, {}), RESOURCE: "1"} for part in ("requests", "limits")
    }
    return pod | {"spec": pod["spec"] | {"containers": [container | {"resources": marked}, *others]}}


class DemoCluster:
    """The cluster of the demo, changed through its API server; nodewise's updates are read from there."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server = server
        self.kubeconfig = server.kubeconfig(folder)
        self.nodes = objects("", NODES.kind)
        self.pods = [_with_resource(pod) for pod in objects("", PODS.kind)]
        self.names: list[str] = [node["metadata"]["name"] for node in self.nodes]
        [cluster_policy] = objects("nodewise.io", "ClusterPlacementPolicy")
        [(self.label, self.label_value)] = cluster_policy["spec"]["nodeLabels"][0]["labels"].items()
        self.values: Mapping[str, int] = {}
        for node in self.nodes:
            server.call(lambda api, node=node: api.put(NODES, node))  # type: ignore[misc]
        for kind in _POLICY_KINDS:
            for policy in objects(kind.group, kind.kind):
                server.call(lambda api, kind=kind, policy=policy: api.put(kind, policy))  # type: ignore[misc]
        values = objects("custom.metrics.k8s.io", "MetricValue")
        self.measure({value["describedObject"]["name"]: int(value["value"]) for value in values})

    def measure(self, values: Mapping[str, int]) -> None:
        """Set the values of the nodes' metric."""
        self.values = values
        items = [{"describedObject": {"kind": "Node", "name": n}, "value": str(v)} for n, v in values.items()]
        group = {"name": "custom.metrics.k8s.io", "preferredVersion": _VERSION, "versions": [_VERSION]}
        answers = {
            _METRICS: msgspec.json.encode(group),
            f"{_METRICS}/v1beta2/nodes/%2A/{METRIC}": msgspec.json.encode({"items": items}),
        }
        self._server.call(lambda api: api.raw.update(answers))

    def put_unschedulable_pod(self, pod: Object, message: str) -> Object:
        """Store a pod with the status of an unschedulable one. Returns it as stored."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        waiting = pod | {"status": {"phase": "Pending", "conditions": [condition]}}
        return self._server.call(lambda api: api.put(PODS, waiting))

    def remove_pod(self, name: str) -> None:
        self._server.call(lambda api: api.remove(PODS, name, NAMESPACE))

    def _nodes_by_name(self) -> dict[str, Object]:
        objects_by_key = self._server.call(lambda api: api.objects(NODES))
        return {name: node for (_, name), node in objects_by_key.items()}

    def node_with_requeue_annotation(self) -> str | None:
        """The node with nodewise's requeueing annotation, if there is one."""
        for name, node in self._nodes_by_name().items():
            if ANNOTATION in node["metadata"].get("annotations", {}):
                return name
        return None

    def labels(self) -> dict[str, str]:
        """Values of the label of the cluster policy by node."""
        values = {
            name: node["metadata"].get("labels", {}).get(self.label)
            for name, node in self._nodes_by_name().items()
        }
        return {name: value for name, value in values.items() if value}

    def count_label_changes(self) -> int:
        """Number of label changes of all nodes so far."""
        changes = self._server.call(lambda api: api.changes(NODES))
        nodes = [(old["metadata"], new["metadata"]) for old, new in changes if old and new]
        return sum((old.get("labels") or {}) != (new.get("labels") or {}) for old, new in nodes)


@contextlib.contextmanager
def demo_cluster(folder: Path) -> Iterator[DemoCluster]:
    """Run the cluster of the demo until the block ends."""
    with in_memory_api_http_server.serving(FakeApi(*_POLICY_KINDS)) as server:
        yield DemoCluster(server, folder)


def loopback_client() -> httpx2.Client:
    """A client for servers on this machine: through no proxy of the environment, and without certificates."""
    return httpx2.Client(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False)


class ExtenderProcess:
    """A running `nodewise extender` with its URLs."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        """Read the addresses from the event `started` in the log."""
        self._process = process
        for _ in _poll_until_deadline(30.0):
            for line in log.read_bytes().splitlines():
                if b'"started"' in line:
                    event = json.loads(line)
                    self.url, self.health_url = event["address"], event["health"]
                    return
            if process.poll() is not None:
                break
        raise Unavailable("the extender", [Problem("log", log.read_text()[-500:], "the event started")])

    def wait_ready(self, within_s: float = 60.0) -> float:
        """Wait until the extender is ready; return the waiting time in seconds."""
        began = time.monotonic()
        with loopback_client() as client:
            for _ in _poll_until_deadline(within_s):
                with contextlib.suppress(httpx2.TransportError):
                    if client.get(f"{self.health_url}/readyz").is_success:
                        return time.monotonic() - began
        raise Unavailable("the extender", [Problem("/readyz", f"not ready after {within_s:g} s", "ready")])

    def kill(self) -> None:
        """Kill the process, as in a crash."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def extender(arguments: Sequence[str]) -> Iterator[ExtenderProcess]:
    """Run `nodewise extender` with these arguments on free loopback ports until the block ends."""
    program = [sys.executable] if getattr(sys, "frozen", False) else [sys.executable, "-m", "nodewise"]
    plain = ["--unsafe", "--log-format=json", "--shutdown-delay=0s", "--health-port=0"]
    ports = [] if any(argument.startswith("--port") for argument in arguments) else ["--port=0"]
    words = [*program, "extender", *plain, *arguments, *ports]
    with tempfile.TemporaryDirectory(prefix="nodewise-") as folder:
        log = Path(folder, "log")
        with log.open("wb") as out, subprocess.Popen(words, stdout=out, stderr=out) as process:  # noqa: S603
            try:
                yield ExtenderProcess(process, log)
            finally:
                process.terminate()
                process.wait()


def _poll_until_deadline(within_s: float) -> Iterator[None]:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        yield
        time.sleep(0.01)


_SCALE: Final = 5000
_CALLS: Final = 200
_PATIENCE_S: Final = 15.0

_console = Console(highlight=False, soft_wrap=True)


def print_demo_text(text: str = "") -> None:
    _console.print(text)


@click.command()
def command() -> None:
    """See nodewise place pods on this machine: no cluster, no network, under half a minute.

    \b
    Example:
      nodewise demo

    \b
    Exit codes:
      0  shown
      1  the extender did not start
    """
    with tempfile.TemporaryDirectory(prefix="nodewise-demo-") as folder, demo_cluster(Path(folder)) as stage:
        with run_demo_extender(stage) as served:
            print_demo_text(
                f"[bold]nodewise {nodewise.__version__}[/]: the real extender at {served.url}, called as"
            )
            print_demo_text("kube-scheduler does, by a simulated scheduler that passes the same tests.\n")
            show_placements(stage, served)
            show_requeueing(stage, served)
            show_extender_crash(stage, served)
        show_latency(Path(folder))
    print_demo_text("\nNext:")
    click.echo(suggest_next_command())  # as it is, so that it can be pasted


@contextlib.contextmanager
def run_demo_extender(stage: DemoCluster, port: str = "0") -> Iterator[ExtenderProcess]:
    """Run an extender with the API server of the demo; it is ready."""
    arguments = [f"--kubeconfig={stage.kubeconfig}", "--sync-period=200ms", f"--port={port}"]
    with extender(arguments) as served:
        served.wait_ready()
        yield served


def entry(served: ExtenderProcess, **fields: Any) -> dict[str, Any]:
    """The extender's entry in kube-scheduler's configuration, as in the README."""
    return {
        "urlPrefix": f"{served.url}/scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 5,
        "nodeCacheCapable": True,
        "httpTimeout": "1s",
        "managedResources": [{"name": RESOURCE, "ignoredByScheduler": True}],
    } | fields


def rejected_nodes(served: ExtenderProcess, nodes: list[str]) -> dict[str, str]:
    """The nodes that the extender rejects for a pod like those of the example, with reasons."""
    body = {"Pod": create_example_pod("probe"), "NodeNames": nodes}
    with loopback_client() as client:
        answer = client.post(f"{served.url}/scheduler/filter", json=body).json()
    failed: dict[str, str] = answer["FailedAndUnresolvableNodes"] or {}
    return failed


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise Unavailable(f"the demo: expected state not reached within {_PATIENCE_S:g} s")
        time.sleep(0.005)


def place(cluster: Cluster, pods: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Submit pods and return their names by node."""
    by_node: dict[str, list[str]] = {}
    for pod in pods:
        node = cluster.submit(pod).node
        by_node.setdefault(node or "", []).append(pod["metadata"]["name"])
    return by_node


def show_placements(stage: DemoCluster, served: ExtenderProcess) -> None:
    """Show where the same pods go by requests alone and with nodewise."""
    with Cluster(stage.nodes) as alone, Cluster(stage.nodes, [entry(served)]) as aware:
        by_requests = place(alone, [create_unselected_pod(pod["metadata"]["name"]) for pod in stage.pods])
        by_us = place(aware, stage.pods)
    bad = rejected_nodes(served, stage.names)
    print_demo_text(f"[bold]{'NODE':9} {'health_metric':15} {'BY REQUESTS ALONE':20} BY NODEWISE[/]")
    for node, value in stage.values.items():
        mark = "[red]✗ failing[/]    " if node in bad else "[green]✓[/]" + " " * 12
        alone_names, our_names = (
            (", ".join(name.removeprefix("demo-") for name in nodes_by_node.get(node, [])) or "-")
            for nodes_by_node in (by_requests, by_us)
        )
        print_demo_text(f"{node:9} {value} {mark} {alone_names:20} {our_names}")
    wait_until(lambda: bool(stage.labels().get("rack1-b")))
    for node, why in bad.items():
        print_demo_text(
            f"[red]{node}[/] rejected: {why}; labelled {stage.label}={stage.label_value},"
            " so a descheduler drains it"
        )


def show_requeueing(stage: DemoCluster, served: ExtenderProcess) -> None:
    """Show the message of a pod without a feasible node, and its requeueing after the metric recovers."""
    stage.measure(dict.fromkeys(stage.names, 1))
    wait_until(lambda: len(rejected_nodes(served, stage.names)) == len(stage.names))
    print_demo_text("\n[bold]Every disk fails.[/] kubectl describe pod demo-app-5:")
    with Cluster(stage.nodes, [entry(served)]) as cluster:
        pod = create_example_pod("demo-app-5")
        waiting = cluster.submit(pod)
        print_demo_text(f"  [yellow]Warning  FailedScheduling[/]  {waiting.message}")
        stage.put_unschedulable_pod(pod, waiting.message)
        recovered = time.monotonic()
        stage.measure({"rack1-a": 1, "rack1-b": 2, "rack2-a": 0})
        # nodewise updates a node, which is an event for the scheduler
        wait_until(lambda: stage.node_with_requeue_annotation() is not None)
        cluster.touch()
        node = _node_of_bound_pod(cluster, f"{NAMESPACE}/demo-app-5")
        took_ms = (time.monotonic() - recovered) * 1000
        stage.remove_pod("demo-app-5")
    print_demo_text(
        f"rack2-a recovers, nodewise requeues waiting pods: bound to [green]{node}[/] after {took_ms:.0f} ms"
    )
    print_demo_text(
        "  (without nodewise: up to 300 s, because a recovered metric is no event for kube-scheduler)"
    )


def _node_of_bound_pod(cluster: Cluster, pod: str) -> str:
    def is_bound() -> bool:
        cluster.settle()
        return cluster.outcome(pod).node is not None

    wait_until(is_bound)
    return cluster.outcome(pod).node or ""


def show_extender_crash(stage: DemoCluster, served: ExtenderProcess) -> None:
    """Kill the extender and show how kube-scheduler reacts."""
    port = served.url.rpartition(":")[2]
    wait_until(lambda: bool(stage.labels().get("rack1-b")))
    labels = stage.count_label_changes()
    served.kill()
    print_demo_text("\n[bold]The extender is killed.[/] What kube-scheduler does then:")
    strict_entry, lax_entry = entry(served), entry(served, ignorable=True)
    with Cluster(stage.nodes, [strict_entry]) as strict, Cluster(stage.nodes, [lax_entry]) as lax:
        strict.submit(create_example_pod("demo-app-6"))
        print_demo_text("  ignorable: false  demo-app-6 waits until the extender runs again")
        other_node = strict.submit(create_unselected_pod("plain")).node
        print_demo_text(f"  no policy         {other_node}: a pod that no policy selects is not affected")
        unfiltered_node = lax.submit(create_example_pod("demo-app-6")).node
        print_demo_text(f"  ignorable: true   {unfiltered_node}: placed without nodewise - not recommended")
        began = time.monotonic()
        with run_demo_extender(stage, port):
            strict.touch()
            node = _node_of_bound_pod(strict, f"{NAMESPACE}/demo-app-6")
    took_ms = (time.monotonic() - began) * 1000
    print_demo_text(f"  started again     demo-app-6 on [green]{node}[/] {took_ms:.0f} ms later")
    moved = stage.count_label_changes() - labels
    print_demo_text(f"  labels            {moved or 'none'} changed between the kill and the restart")


def show_latency(folder: Path) -> None:
    """Show the latency with many nodes."""
    many = folder / "many"
    many.mkdir()
    names = [f"ip-10-{n // 250}-{n % 250}-7.compute.internal" for n in range(_SCALE)]
    shapes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names]
    whole = {"apiVersion": "v1", "kind": "List", "items": shapes}
    (many / "nodes.json").write_bytes(msgspec.json.encode(whole))
    (many / "policy.yaml").write_text((example() / "policy.yaml").read_text())
    (many / "metrics.csv").write_text(
        "".join(f"{name},health_metric,{n % 2}\n" for n, name in enumerate(names))
    )
    body = json.dumps({"Pod": create_example_pod("probe"), "NodeNames": names}).encode()
    with extender([f"--objects-from={many}"]) as served:
        served.wait_ready()
        filter_ms, prioritize_ms = (_median_ms(f"{served.url}/scheduler/{verb}", body) for verb in _VERBS)
    print_demo_text(
        f"\n[bold]At {_SCALE:,} nodes[/] on this machine: filter {filter_ms:.1f} ms, prioritize"
        f" {prioritize_ms:.1f} ms (median of {_CALLS} calls, names, plain HTTP)"
    )


_VERBS: Final = ("filter", "prioritize")


def _median_ms(url: str, body: bytes) -> float:
    headers = {"Content-Type": "application/json"}
    times: list[float] = []
    with loopback_client() as client:
        for _ in range(_CALLS):
            began = time.perf_counter()
            client.post(url, content=body, headers=headers).raise_for_status()
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def suggest_next_command() -> str:
    """The next command to try, as it works in this shell and folder: on the user's cluster if it responds."""
    with contextlib.suppress(NodewiseError):
        asyncio.run(_read_version())
        return f"{_typed_program()} decide --cluster"
    folder = example().resolve()
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    return f"{_typed_program()} decide {shlex.quote(str(folder))} -o wide"


def _typed_program() -> str:
    """How to start nodewise: by the name that was typed, or by the path of a program that is not on the PATH."""
    name = click.get_current_context().find_root().info_name or "nodewise"
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m nodewise"
    on_path = shutil.which(name)
    is_on_path = on_path is not None and started.exists() and Path(on_path).samefile(started)
    if is_on_path or " " in name or not started.exists():
        return name
    return shlex.quote(str(started))


async def _read_version() -> None:
    async with open_api(KubeOptions()) as api:
        await api.get("/version", timeout_s=2.0)
