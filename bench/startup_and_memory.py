"""Start and memory: a real API server with 5,000 nodes of 10 kB and 50,000 pods of 5 kB; then the memory with a hostile
namespace in addition, and without it.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster import (
    controlplane,
    extender_process,
    fake_custom_metrics_server,
    gpu_cluster,
    kubernetes_objects,
    namespace_sandboxes,
    program_cache,
)
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.namespace_sandboxes import Sandbox

from bench import (
    benchmark_servers,
    compared_extenders,
    etcd_population,
    generated_cluster_objects,
    hostile_namespace,
)
from bench.alternating_rounds import of_rounds
from bench.benchmark_servers import Scale
from bench.generated_cluster_objects import Object
from bench.progress_lines import report_progress_line
from bench.results import Measurement

AGENTS: Final = "telemetry,gpu"
"""Agents whose memory a hostile namespace can increase, by policies and by pods."""
MOVING_METRIC: Final = generated_cluster_objects.OTHERS[-1]
MOVING_TARGET: Final = 897_300
"""Threshold for values up to 900,000: about fifteen of 5,000 nodes exceed it, different ones in each period."""
PLACEMENT_POLICY: Final = {
    "apiVersion": "nodewise.io/v1alpha1",
    "kind": "PlacementPolicy",
    "metadata": {"name": "cool", "namespace": generated_cluster_objects.NAMESPACE},
    "spec": {"podSelector": {}, "avoid": [{"metric": MOVING_METRIC, "above": MOVING_TARGET}]},
}
"""The first policy with selectors has the leader count all pods, so that the memory is compared with it."""


class Start(NamedTuple):
    """Measurements of one start of the extender."""

    ready_s: float
    rss_mib: float
    """The larger value of when it was ready and some periods later."""
    peak_mib: float


class FilledControlPlane(NamedTuple):
    """A control plane with its objects, and the user of the extender."""

    sandbox: Sandbox
    folder: Path
    user: User
    etcd: str
    """The address of its etcd."""


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Measure starts with the telemetry agent, and as many with the gpu agent too, without and with a hostile
    namespace.
    """
    times = context.scale.rounds
    settle_s, settle_with_flaps_s = (
        count * compared_extenders.PERIOD_S for count in context.scale.settle_periods
    )
    report_progress_line("finding the control plane (where it has to be built: five minutes)")
    with _filled(program_cache.folder(), context.folder, context.scale) as plane:
        starts = _starts(plane, times, "telemetry", settle_s)
        plane.sandbox.create(PLACEMENT_POLICY)
        without = _starts(plane, times, AGENTS, settle_with_flaps_s)
        _add_hostile_namespace(plane)
        hostile = _starts(plane, times, AGENTS, settle_with_flaps_s)
    rss_gpu_mib = of_rounds((start.rss_mib for start in without), 1)
    figures = {
        "ready_s": of_rounds((start.ready_s for start in starts), 2),
        "rss_50000_pods_mib": of_rounds((start.rss_mib for start in starts), 1),
        "rss_50000_pods_peak_mib": of_rounds((start.peak_mib for start in starts), 1),
        "rss_gpu_50000_pods_mib": rss_gpu_mib,
        "rss_hostile_namespace_mib": of_rounds((start.rss_mib for start in hostile), 1),
        "rss_hostile_namespace_ratio": of_rounds((start.rss_mib / rss_gpu_mib for start in hostile), 2),
    }
    more = {
        "starts": [start._asdict() for start in starts],
        "hostile_starts": {
            "without": [start._asdict() for start in without],
            "with": [start._asdict() for start in hostile],
        },
    }
    versions = {"kubernetes": program_cache.VERSION}
    return Measurement(figures, {}, "", more, versions)


def _starts(plane: FilledControlPlane, times: int, agents: str, settle_s: float) -> list[Start]:
    starts = []
    for number in range(times):
        starts.append(_start(plane, agents, settle_s))
        report_progress_line(f"start {number + 1} of {times}, --agents={agents}: {starts[-1]}")
    return starts


@contextlib.contextmanager
def _filled(programs: Path, folder: Path, scale: Scale) -> Iterator[FilledControlPlane]:
    """Run a control plane with nodes, pods, policies, and ten metrics that change."""
    named = generated_cluster_objects.names(scale.nodes)
    with controlplane.running(programs, folder) as plane, namespace_sandboxes.created(plane) as sandbox:
        for what, entries in (
            (f"{scale.nodes} nodes", etcd_population.nodes(named)),
            (f"{scale.pods} pods", etcd_population.pods(named, scale.pods)),
        ):
            report_progress_line(f"writing {what} into etcd")
            etcd_population.fill(plane.etcd, entries, lambda count: report_progress_line(f"{count} written"))
        extender_process.define(plane.api)
        sandbox.create(kubernetes_objects.namespace(generated_cluster_objects.NAMESPACE, trusted=True))
        for policy in policies():
            sandbox.create(policy)
        with (
            fake_custom_metrics_server.behind(sandbox, folder, ("v1beta2",)) as metrics,
            compared_extenders.feeding(
                metrics, named, (*generated_cluster_objects.METRICS, *hostile_namespace.METRICS)
            ),
        ):
            yield FilledControlPlane(sandbox, folder, gpu_cluster.user(plane), plane.etcd)


def _add_hostile_namespace(plane: FilledControlPlane) -> None:
    report_progress_line("creating the hostile namespace")
    plane.sandbox.create(kubernetes_objects.namespace(hostile_namespace.NAMESPACE))
    etcd_population.fill(plane.etcd, hostile_namespace.pods(), lambda _: None)
    for policy in hostile_namespace.policies():
        plane.sandbox.create(policy)


def policies() -> list[Object]:
    """The common policies, and one whose labels move to other nodes after each refresh."""
    rule = {
        "metricname": MOVING_METRIC,
        "operator": "GreaterThan",
        "target": MOVING_TARGET,
        "labels": ["tier=hot"],
    }
    policies = [
        *generated_cluster_objects.policies(),
        generated_cluster_objects.policy("moving", {"labeling": {"rules": [rule]}}),
    ]
    own = ("uid", "resourceVersion", "generation")
    return [
        policy | {"metadata": {key: value for key, value in policy["metadata"].items() if key not in own}}
        for policy in policies
    ]


def _start(plane: FilledControlPlane, agents: str, settle_s: float) -> Start:
    """Measure one start, with the shipped access rights."""
    folder = Path(tempfile.mkdtemp(prefix="start-", dir=plane.folder))
    words = [
        "extender",
        *extender_process.arguments(plane.user, extender_process.CertificateFiles(folder)),
        f"--agents={agents}",
        f"--sync-period={compared_extenders.PERIOD_S}s",
        "--log-format=json",
    ]
    with benchmark_servers.serving(benchmark_servers.PROGRAM, words, folder / "extender.log") as extender:
        rss_mib = extender.rss_mib()
        time.sleep(settle_s)
        return Start(
            round(extender.ready_s, 2),
            round(max(rss_mib, extender.rss_mib()), 1),
            round(extender.peak_mib(), 1),
        )
