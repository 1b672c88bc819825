"""`python -m bench.hostile_tenant`: what one tenant at every limit costs another tenant.

It runs a control plane, a real kube-scheduler and nodewise with its default period and rate limits. The victim is a
namespace with one policy that labels nodes and one that a waiting pod references. Rounds without and with the hostile
namespace follow each other. That namespace is trusted and at every budget of the telemetry agent: its queries never
end, its labels change on all nodes in each period, and hundreds of its pods wait. Updates results.json.
"""

import argparse
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qs

import httpx2
from tests.cluster import (
    asgi_server_thread,
    controlplane,
    extender_process,
    fake_custom_metrics_server,
    gpu_cluster,
    kubernetes_objects,
    namespace_sandboxes,
    program_cache,
)
from tests.cluster.api_client import Object
from tests.cluster.asgi_server_thread import Receive, Scope, Send
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.hostile.tenant_cluster import POLICY_LABEL, Tenant

from bench import report, results
from bench.alternating_rounds import of_rounds
from bench.progress_lines import report_progress_line
from bench.results import TENANTS
from nodewise.engine.pod_requeueing import ANNOTATION
from nodewise.policies import policy_budgets, policy_objects, taspolicy_parser
from nodewise.policies.options import TelemetryOptions

PERIOD_S: Final = 5.0
VICTIM_NODES: Final = 10
"""Nodes whose label of the victim changes in a round."""
UNRELATED_PODS: Final = 1200
GPU_PODS: Final = 300
"""Waiting pods, each with another GPU request."""
ANNOTATED_PODS: Final = 200
_LIMITS: Final = TelemetryOptions()
_STEP_S: Final = 0.05
_TIMEOUT_S: Final = 120.0


class Round(NamedTuple):
    """The figures of one round, in seconds."""

    metric_age_s: float
    """The largest age of the victim's metric."""
    label_s: float
    """From a change of the metric's values to the last label."""
    requeue_s: float
    """From the moment at which filter passes the pod to the requeue event."""


class FairnessBench(NamedTuple):
    """The running cluster."""

    plane: ControlPlane
    served: ExtenderProcess
    metrics: FakeCustomMetricsApi
    victim: Tenant
    nodes: tuple[str, ...]


async def hang_forever(scope: Scope, receive: Receive, send: Send) -> None:
    """A Prometheus that never answers queries with `hang`, and answers all others without series."""
    query = parse_qs(scope["query_string"].decode()).get("query", [""])[0]
    if "hang" in query:
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await asgi_server_thread.answer(
        send, 200, {"status": "success", "data": {"resultType": "vector", "result": []}}
    )


def main() -> None:
    options = _arguments()
    machine_load = results.MachineLoad()
    with (
        tempfile.TemporaryDirectory(prefix="nodewise-bench-") as name,
        _cluster(Path(name), options.nodes) as bench,
    ):
        alone = [_measure(bench, number, "alone") for number in range(options.rounds)]
        with _hostile_namespace(bench):
            # the numbers continue, so that the labels change in each round
            beside = [_measure(bench, options.rounds + number, "beside") for number in range(options.rounds)]
    share = machine_load.others_share()
    report.print_and_update(TENANTS, _figures(alone, beside), share, options.write)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile_tenant", description=__doc__)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the table only")
    return parser.parse_args()


def _figures(alone: list[Round], beside: list[Round]) -> dict[str, float]:
    """The maxima beside the hostile namespace, and without it."""
    figures: dict[str, float] = {}
    for field in Round._fields:
        name = field.removesuffix("_s")
        figures[f"tenant_{name}_alone_s"] = of_rounds((getattr(row, field) for row in alone), 1, max)
        figures[f"tenant_{name}_s"] = of_rounds((getattr(row, field) for row in beside), 1, max)
    return figures


@contextlib.contextmanager
def _cluster(folder: Path, count: int) -> Iterator[FairnessBench]:
    nodes = tuple(f"n{number:04}" for number in range(count))
    report_progress_line("starting the control plane")
    with (
        controlplane.running(program_cache.folder(), folder) as plane,
        namespace_sandboxes.created(plane) as own,
        fake_custom_metrics_server.behind(own, folder) as metrics,
        asgi_server_thread.serving(hang_forever) as prometheus,
    ):
        extender_process.define(plane.api)
        own.nodes(*(gpu_cluster.node(name, cards=2) for name in nodes))
        metrics.set("heat", dict.fromkeys(nodes, 10))
        metrics.set("load", dict.fromkeys(nodes, 90))
        victim = Tenant(plane, "victim")
        victim.sandbox.trust()
        hot = {"operator": "GreaterThan", "target": 50}
        victim.policy("pol", labeling=[{"metricname": "heat", **hot, "labels": ["hot=yes"]}])
        victim.policy("cool", dontschedule=[{"metricname": "load", **hot}])
        with (
            gpu_cluster.extender(
                plane,
                folder,
                "--agents=telemetry,gpu",
                f"--prometheus-url={prometheus}",
                f"--sync-period={PERIOD_S:g}s",
                "--kube-qps=20",
                "--kube-burst=50",
            ) as served,
            plane.start_scheduler({"extenders": [served.entry()]}),
        ):
            served.wait_leading()
            yield FairnessBench(plane, served, metrics, victim, nodes)


def _measure(bench: FairnessBench, number: int, what: str) -> Round:
    """One round: labels of the victim change, and its waiting pod becomes feasible."""
    with _largest_metric_age(bench) as age:
        label_s = _measure_labels(bench, number)
        requeue_s = _measure_requeueing(bench, f"{what}-{number}")
    row = Round(age(), label_s, requeue_s)
    report_progress_line(
        f"{what}, round {number + 1}: {' '.join(f'{k}={v:.1f}' for k, v in row._asdict().items())}"
    )
    return row


@contextlib.contextmanager
def _largest_metric_age(bench: FairnessBench) -> Iterator[Callable[[], float]]:
    """Polls the age of the victim's metric while the context is open; the function returns the largest one."""
    ages = [0.0]
    end = threading.Event()

    def poll() -> None:
        while not end.wait(_STEP_S):
            lines = httpx2.get(f"{bench.served.health}/metrics", timeout=30.0).text.splitlines()
            ages.extend(
                float(line.split()[1])
                for line in lines
                if line.startswith('nodewise_metric_age_seconds{metric="heat"}')
            )

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield lambda: max(ages)
    finally:
        end.set()
        thread.join()


def _until(what: str, condition: Callable[[], bool]) -> float:
    """Seconds until the condition is true."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > _TIMEOUT_S:
            raise TimeoutError(f"{what}: not so after {_TIMEOUT_S:g} s")
        time.sleep(_STEP_S)
    return time.monotonic() - began_s


def _measure_labels(bench: FairnessBench, number: int) -> float:
    """Every other round sets the label, the others remove it."""
    chosen = set(bench.nodes[-VICTIM_NODES:] if number % 2 == 0 else ())
    bench.metrics.set("heat", {name: 90 if name in chosen else 10 for name in bench.nodes})
    key = "telemetry.aware.scheduling.pol/hot"

    def is_done() -> bool:
        items = bench.plane.api.get("/api/v1/nodes")["items"]
        return {item["metadata"]["name"] for item in items if key in item["metadata"]["labels"]} == chosen

    return _until("the victim's labels", is_done)


def _measure_requeueing(bench: FairnessBench, name: str) -> float:
    bench.metrics.set("load", dict.fromkeys(bench.nodes, 90))
    space, probe = bench.victim.namespace, bench.nodes[0]
    _until("the node is rejected", lambda: bench.served.rejects(space, probe, "cool"))
    bench.victim.pod(name, labels={POLICY_LABEL: "cool"}, limits=extender_process.LIMITS)
    bench.victim.sandbox.expect_rejected(name)
    time.sleep(PERIOD_S)
    before = _requeue_events(bench)
    bench.metrics.set("load", dict.fromkeys(bench.nodes, 10))
    _until("the node passes", lambda: not bench.served.rejects(space, probe, "cool"))
    requeue_s = _until("the requeue event", lambda: _requeue_events(bench) != before)
    bench.victim.sandbox.api.delete(f"/api/v1/namespaces/{space}/pods/{name}")
    return requeue_s


def _requeue_events(bench: FairnessBench) -> set[str]:
    items = bench.plane.api.get("/api/v1/nodes")["items"]
    texts = (item["metadata"].get("annotations", {}).get(ANNOTATION, "") for item in items)
    return {text for text in texts if text}


@contextlib.contextmanager
def _hostile_namespace(bench: FairnessBench) -> Iterator[None]:
    """A trusted namespace at every budget, whose metrics change on all nodes twice in each period."""
    report_progress_line("creating the hostile namespace")
    tenant = Tenant(bench.plane, "hostile")
    tenant.sandbox.trust()
    plain = [f"h{number}" for number in range(_LIMITS.metrics_per_namespace - _LIMITS.queries_per_namespace)]
    end = threading.Event()

    def flap() -> None:
        value = 90
        while not end.wait(PERIOD_S / 2):
            value = 100 - value
            for metric in plain:
                bench.metrics.set(metric, dict.fromkeys(bench.nodes, value))

    for metric in plain:
        bench.metrics.set(metric, dict.fromkeys(bench.nodes, 90))
    _put_policies(tenant, plain)
    _put_pods(tenant)
    thread = threading.Thread(target=flap)
    thread.start()
    try:
        time.sleep(4 * PERIOD_S)
        yield
    finally:
        end.set()
        thread.join()
        tenant.delete_policies()


def _put_policies(tenant: Tenant, metrics: list[str]) -> None:
    """Policies that together have exactly the budgets of rules, metrics, queries and labels."""
    hot = {"operator": "GreaterThan", "target": 50}
    per_policy = policy_objects.MAX_POLICY_LABELS
    for number in range(policy_budgets.MAX_NAMESPACE_LABELS // per_policy):
        labels = [f"l{place}=yes" for place in range(per_policy)]
        tenant.policy(f"l{number}", labeling=[{"metricname": metrics[number], **hot, "labels": labels}])
    queries = [
        {"metricname": "q", "query": f"hang_{number} > 0", **hot}
        for number in range(_LIMITS.queries_per_namespace)
    ]
    left = _LIMITS.rules_per_namespace - policy_budgets.MAX_NAMESPACE_LABELS // per_policy - len(queries)
    rules = [
        {"metricname": metrics[number % len(metrics)], **hot, "target": number} for number in range(left)
    ]
    tenant.policy("q", dontschedule=queries)
    for first in range(0, left, taspolicy_parser.MAX_RULES):
        tenant.policy(f"r{first}", dontschedule=rules[first : first + taspolicy_parser.MAX_RULES])


def _put_pods(tenant: Tenant) -> None:
    """Waiting pods of no scheduler: unrelated ones, some with large annotations, and different GPU requests."""
    annotations = {"large": "x" * 255_000}
    pods: list[Object] = [kubernetes_objects.pod(f"a-{number}") for number in range(UNRELATED_PODS)]
    for pod in pods[:ANNOTATED_PODS]:
        pod["metadata"]["annotations"] = annotations
    pods += [gpu_cluster.pod(f"b-{number}", 3 + number) for number in range(GPU_PODS)]
    tenant.put_waiting_pods(pods)


if __name__ == "__main__":
    main()
