"""`nodewise demo`: the whole thing on one machine, with nothing installed.

The extender is the real one, a process of its own on loopback. Who asks it is the stand-in for kube-scheduler, which
passes the same tests as the real one.
"""

import contextlib
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import httpx2
import msgspec
from rich.console import Console

import nodewise
from nodewise.cli import child
from nodewise.cli.child import Child
from nodewise.errors import Unavailable
from nodewise.kube import files
from nodewise.kube.resources import NODES, PODS
from nodewise.simulate.cluster import Cluster

METRIC: Final = "health_metric"
NAMESPACE: Final = "health-metric-demo"
_SCALE: Final = 5000
_CALLS: Final = 200

_console = Console(highlight=False, soft_wrap=True)


def say(text: str = "") -> None:
    _console.print(text)


@click.command()
def command() -> None:
    """See nodewise place pods on this machine: no cluster, no network, under half a minute.

    \b
    Example:  nodewise demo
    """
    with tempfile.TemporaryDirectory(prefix="nodewise-demo-") as folder:
        world = Path(shutil.copytree(example(), Path(folder, "world")))
        with serving(world) as served:
            say(f"[bold]nodewise {nodewise.__version__}[/]: the real extender at {served.url}, asked as")
            say("kube-scheduler asks, by a stand-in that passes the same tests as the real one.\n")
            side_by_side(world, served)
            every_node_bad(world, served)
            killed(world, served)
        at_scale(Path(folder))
    say("\nnext: [bold]nodewise decide examples/health-metric -o wide[/]")


def example() -> Path:
    """The folder `examples/health-metric`: beside the package, or in the checkout."""
    package = Path(nodewise.__file__).parent
    inside = package / "examples/health-metric"
    return inside if inside.exists() else package.parents[1] / "examples/health-metric"


@contextlib.contextmanager
def serving(world: Path, port: str = "0") -> Iterator[Child]:
    """The extender on the files of a folder; ready."""
    with child.extender([f"--objects-from={world}", "--sync-period=100ms", f"--port={port}"]) as served:
        served.wait_ready()
        yield served


def entry(served: Child, **fields: Any) -> dict[str, Any]:
    """The extender's entry of kube-scheduler's configuration, as the README has it."""
    return {
        "urlPrefix": f"{served.url}/scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 5,
        "nodeCacheCapable": True,
        "httpTimeout": "1s",
        "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
    } | fields


def objects(world: Path, kind: str) -> list[dict[str, Any]]:
    found = files.read([world]).entries("", kind)
    return [json.loads(one.data) for one in found]


def pod_like(world: Path, name: str) -> dict[str, Any]:
    """Another pod like those of the example."""
    pod = objects(world, PODS.kind)[0]
    return pod | {"metadata": pod["metadata"] | {"name": name}}


def plain(pod: dict[str, Any]) -> dict[str, Any]:
    """The same pod without anything of nodewise's: it asks for cores and memory, and names no policy."""
    requests = {"cpu": "1", "memory": "2Gi"}
    spec = {"containers": [{"name": "main", "image": "none", "resources": {"requests": requests}}]}
    metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    return pod | {"metadata": metadata, "spec": spec}


def measure(world: Path, values: Mapping[str, int]) -> None:
    """What the nodes' metric says from now on."""
    items = [
        {
            "describedObject": {"kind": "Node", "name": node},
            "metric": {"name": METRIC},
            "value": str(value),
        }
        for node, value in values.items()
    ]
    whole = {"apiVersion": "custom.metrics.k8s.io/v1beta2", "kind": "MetricValueList", "items": items}
    fresh = world / "metrics.yaml.new"
    fresh.write_bytes(msgspec.json.encode(whole))
    fresh.rename(world / "metrics.yaml")  # in one step, so that nobody reads half of it


def rejected(served: Child, world: Path, nodes: list[str]) -> dict[str, str]:
    """What the extender says now of the nodes, for a pod like those of the example."""
    body = {"Pod": pod_like(world, "probe"), "NodeNames": nodes}
    answer = httpx2.post(f"{served.url}/scheduler/filter", json=body).json()
    found: dict[str, str] = answer["FailedNodes"] or {}
    return found


def until(seen: Callable[[], bool], within_s: float = 15.0) -> None:
    end = time.monotonic() + within_s
    while not seen():
        if time.monotonic() > end:
            raise Unavailable(f"the demo: not seen within {within_s:g} s")
        time.sleep(0.005)


def placed(cluster: Cluster, pods: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Submit pods; their names by node."""
    by_node: dict[str, list[str]] = {}
    for pod in pods:
        node = cluster.submit(pod).node
        by_node.setdefault(node or "", []).append(pod["metadata"]["name"])
    return by_node


def side_by_side(world: Path, served: Child) -> None:
    """The same pods by requests alone and by nodewise."""
    nodes, pods = objects(world, NODES.kind), objects(world, PODS.kind)
    values = {"rack1-a": 0, "rack1-b": 2, "rack2-a": 0}
    with Cluster(nodes) as alone, Cluster(nodes, [entry(served)]) as aware:
        by_requests, by_us = placed(alone, [plain(pod) for pod in pods]), placed(aware, pods)
    bad = rejected(served, world, list(values))
    say(f"[bold]{'NODE':9} {METRIC:15} {'BY REQUESTS ALONE':34} BY NODEWISE[/]")
    for node, value in values.items():
        mark = "[red]✗ failing disk[/]" if node in bad else "[green]✓[/]" + " " * 13
        alone_names, our_names = (_names(found.get(node, [])) for found in (by_requests, by_us))
        pad = " " * (0 if node in bad else 1)
        say(f"{node:9} {value} {mark}{pad:1}{alone_names:34} {our_names}")
    for node, why in bad.items():
        say(f"[red]{node}[/] rejected: {why}")


def _names(pods: list[str]) -> str:
    return ", ".join(name.removeprefix("demo-") for name in pods) or "-"


def every_node_bad(world: Path, served: Child) -> None:
    """No node is left: the pod waits and says why; the metric heals."""
    nodes = objects(world, NODES.kind)
    names = [node["metadata"]["name"] for node in nodes]
    measure(world, dict.fromkeys(names, 1))
    until(lambda: len(rejected(served, world, names)) == len(names))
    say("\n[bold]Every disk fails.[/] kubectl describe pod demo-app-5:")
    with Cluster(nodes, [entry(served)]) as cluster:
        cluster.submit(pod_like(world, "demo-app-5"))
        say(f"  [yellow]Warning  FailedScheduling[/]  {cluster.event(f'{NAMESPACE}/demo-app-5')}")
        healed = time.monotonic()
        measure(world, {"rack1-a": 1, "rack1-b": 1, "rack2-a": 0})
        until(lambda: "rack2-a" not in rejected(served, world, names))
        node = _after_an_event(cluster, f"{NAMESPACE}/demo-app-5")
    took_ms = (time.monotonic() - healed) * 1000
    say(f"rack2-a heals, one node event follows: bound to [green]{node}[/] after {took_ms:.0f} ms")
    say("  (without nodewise: up to 300 s, for a metric that heals is no event to kube-scheduler)")


def _after_an_event(cluster: Cluster, pod: str) -> str:
    """The node that a waiting pod goes to at the next cluster event."""

    def is_bound() -> bool:
        cluster.settle()
        return cluster.outcome(pod).node is not None

    cluster.touch("rack1-a")
    until(is_bound)
    return cluster.outcome(pod).node or ""


def killed(world: Path, served: Child) -> None:
    """The extender dies in the middle, and what kube-scheduler makes of that."""
    nodes = objects(world, NODES.kind)
    port = served.url.rpartition(":")[2]
    served.kill()
    say("\n[bold]The extender is killed.[/] What kube-scheduler does then:")
    with Cluster(nodes, [entry(served)]) as strict, Cluster(nodes, [entry(served, ignorable=True)]) as lax:
        waiting = strict.submit(pod_like(world, "demo-app-6"))
        say("  ignorable: false  demo-app-6 waits, it is not placed blindly")
        say(
            f"  pods without us   {strict.submit(plain(pod_like(world, 'plain'))).node}: never asked, never stopped"
        )
        blind = lax.submit(pod_like(world, "demo-app-6")).node
        say(f"  ignorable: true   {blind}: placed without asking - do not write that")
        assert waiting.node is None
        began = time.monotonic()
        with serving(world, port):
            node = _after_an_event(strict, f"{NAMESPACE}/demo-app-6")
    took_ms = (time.monotonic() - began) * 1000
    say(f"  started again     demo-app-6 on [green]{node}[/] {took_ms:.0f} ms later, nothing was lost")


def at_scale(folder: Path) -> None:
    """One line of latency with many nodes."""
    world = Path(shutil.copytree(example(), folder / "many"))
    names = [f"ip-10-{n // 250}-{n % 250}-7.compute.internal" for n in range(_SCALE)]
    shapes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names]
    (world / "nodes.yaml").write_bytes(
        msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": shapes})
    )
    measure(world, {name: number % 2 for number, name in enumerate(names)})
    body = msgspec.json.encode({"Pod": pod_like(world, "probe"), "NodeNames": names})
    with serving(world) as served:
        filter_ms, prioritize_ms = (_median_ms(f"{served.url}/scheduler/{verb}", body) for verb in _VERBS)
    say(
        f"\n[bold]At {_SCALE:,} nodes[/] on this machine: filter {filter_ms:.1f} ms, prioritize"
        f" {prioritize_ms:.1f} ms (median of {_CALLS} calls, names, plain HTTP)"
    )


_VERBS: Final = ("filter", "prioritize")


def _median_ms(url: str, body: bytes) -> float:
    headers = {"Content-Type": "application/json"}
    times: list[float] = []
    with httpx2.Client() as client:
        for _ in range(_CALLS):
            began = time.perf_counter()
            client.post(url, content=body, headers=headers).raise_for_status()
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)
