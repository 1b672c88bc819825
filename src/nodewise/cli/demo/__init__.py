"""`nodewise demo`: shows nodewise on one machine without a cluster.

The extender is the real one, a separate process on loopback. The simulated kube-scheduler and the API server in memory
pass the same tests as the real ones.
"""

import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import httpx2
import msgspec
from rich.console import Console

import nodewise
from nodewise.base.errors import NodewiseError, Unavailable
from nodewise.cli.demo import extender_process
from nodewise.cli.demo.cluster import (
    NAMESPACE,
    RESOURCE,
    DemoCluster,
    create_example_pod,
    create_unselected_pod,
    demo_cluster,
    example,
)
from nodewise.cli.demo.extender_process import ExtenderProcess
from nodewise.kube.api_client_creation import connect
from nodewise.kube.options import KubeOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.simulated_cluster import Cluster

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
    print_demo_text(f"\nnext: [bold]{suggest_next_command()}[/]")


@contextlib.contextmanager
def run_demo_extender(stage: DemoCluster, port: str = "0") -> Iterator[ExtenderProcess]:
    """Run an extender with the API server of the demo; it is ready."""
    arguments = [f"--kubeconfig={stage.kubeconfig}", "--sync-period=200ms", f"--port={port}"]
    with extender_process.extender(arguments) as served:
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
    answer = httpx2.post(f"{served.url}/scheduler/filter", json=body).json()
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
            _format_pod_names(nodes_by_node.get(node, [])) for nodes_by_node in (by_requests, by_us)
        )
        print_demo_text(f"{node:9} {value} {mark} {alone_names:20} {our_names}")
    wait_until(lambda: bool(stage.labels().get("rack1-b")))
    for node, why in bad.items():
        print_demo_text(
            f"[red]{node}[/] rejected: {why}; labelled {stage.label}={stage.label_value},"
            " so a descheduler drains it"
        )


def _format_pod_names(pods: list[str]) -> str:
    return ", ".join(name.removeprefix("demo-") for name in pods) or "-"


def show_requeueing(stage: DemoCluster, served: ExtenderProcess) -> None:
    """Show the message of a pod without a feasible node, and its requeueing after the metric recovers."""
    stage.measure(dict.fromkeys(stage.names, 1))
    wait_until(lambda: len(rejected_nodes(served, stage.names)) == len(stage.names))
    print_demo_text("\n[bold]Every disk fails.[/] kubectl describe pod demo-app-5:")
    with Cluster(stage.nodes, [entry(served)]) as cluster:
        pod = create_example_pod("demo-app-5")
        waiting = cluster.submit(pod)
        print_demo_text(f"  [yellow]Warning  FailedScheduling[/]  {cluster.event(f'{NAMESPACE}/demo-app-5')}")
        stage.put_unschedulable_pod(pod, waiting.message)
        recovered = time.monotonic()
        stage.measure({"rack1-a": 1, "rack1-b": 2, "rack2-a": 0})
        node = _node_after_requeueing(stage, cluster, f"{NAMESPACE}/demo-app-5")
        took_ms = (time.monotonic() - recovered) * 1000
        stage.remove_pod("demo-app-5")
    print_demo_text(
        f"rack2-a recovers, nodewise requeues waiting pods: bound to [green]{node}[/] after {took_ms:.0f} ms"
    )
    print_demo_text(
        "  (without nodewise: up to 300 s, because a recovered metric is no event for kube-scheduler)"
    )


def _node_after_requeueing(stage: DemoCluster, cluster: Cluster, pod: str) -> str:
    """The node of a waiting pod after nodewise has updated a node, which is an event for the scheduler."""
    wait_until(lambda: stage.node_with_requeue_annotation() is not None)
    cluster.touch(stage.node_with_requeue_annotation() or "")
    return _node_of_bound_pod(cluster, pod)


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
            strict.touch(stage.names[0])
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
    with extender_process.extender([f"--objects-from={many}"]) as served:
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
    with httpx2.Client() as client:
        for _ in range(_CALLS):
            began = time.perf_counter()
            client.post(url, content=body, headers=headers).raise_for_status()
            times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def suggest_next_command() -> str:
    """The next command to try: on the user's cluster if it responds."""
    with contextlib.suppress(NodewiseError):
        asyncio.run(_check_cluster_responds())
        return "nodewise decide --cluster"
    return "nodewise decide examples/health-metric -o wide"


async def _check_cluster_responds() -> None:
    api = connect(KubeOptions(), MetricsRegistry())
    try:
        await api.get("/version", timeout_s=2.0)
    finally:
        await api.close()
