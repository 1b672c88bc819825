"""Bind rates where kube-scheduler may batch equal pods, in `bench.cluster`: native mode and an extender.

Opportunistic batching uses the result of a pod for the next one. The default topology spreading prevents it, so the
profile has `defaultingType: List`; an extender entry prevents it, too. Each pod takes more than half of a node, because
kube-scheduler 1.36 batches only pods of which one fits on a node.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tests.cluster import child_processes, kubernetes_objects, namespace_sandboxes, scheduler_batching
from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.cluster.namespace_sandboxes import Sandbox
from tests.cluster.scheduler_batching import BATCHING

from bench import compared_extenders, native_mode_rounds, scheduler_bind_rounds
from bench.compared_extenders import ALL, NODEWISE
from bench.native_mode_rounds import WEB, NativeCluster
from bench.scheduler_bind_rounds import BindBench, BindSummary, Rounds

SPREADING: Final = "no policy, default topology spreading"
NONE, NATIVE = "no policy", "native mode, no node rejected"
NONE_BESIDE_EXTENDER, EXTENDER = "no policy, beside the extender", "extender, no node rejected"
NATIVE_ORDER: Final = (SPREADING, NONE, NATIVE)
EXTENDER_ORDER: Final = (NONE_BESIDE_EXTENDER, EXTENDER)
_CPU: Final = "17"  # more than half of the CPUs of a node


def measure(bench: BindBench, rounds: int) -> Rounds:
    """Measure native mode, and then the extender, each with rounds without a policy."""
    with native_mode_rounds.prepared(bench) as cluster:
        bind_round = functools.partial(_native_round, cluster)
        measured = scheduler_bind_rounds.alternate(NATIVE_ORDER, rounds, bind_round)
    with namespace_sandboxes.created(bench.plane) as sandbox:
        compared_extenders.policies(sandbox)
        bind_round = functools.partial(_extender_round, bench, sandbox)
        return measured | scheduler_bind_rounds.alternate(EXTENDER_ORDER, rounds, bind_round)


def _native_round(cluster: NativeCluster, name: str) -> BindSummary:
    if name != NATIVE:
        config = {} if name == SPREADING else BATCHING
        return _bind(cluster.bench, cluster.sandbox, _pod({}), config)
    with native_mode_rounds.controller(cluster.account, cluster.bench.folder) as running:
        running.wait_settled()
        return _bind(cluster.bench, cluster.admitting, _pod(WEB), BATCHING)


def _extender_round(bench: BindBench, sandbox: Sandbox, name: str) -> BindSummary:
    if name == NONE_BESIDE_EXTENDER:
        return _bind(bench, sandbox, _pod({}), BATCHING)
    folder = bench.folder / f"extender-{child_processes.number()}"
    with compared_extenders.extenders(NODEWISE, bench.plane, folder) as extenders:
        pod = _pod({"app": "web", "telemetry-policy": ALL})
        return _bind(bench, sandbox, pod, {**BATCHING, "extenders": extenders})


def _pod(labels: Mapping[str, str]) -> Callable[[str], Object]:
    return functools.partial(kubernetes_objects.pod, labels=labels, cpu=_CPU)


def _bind(
    bench: BindBench, sandbox: Sandbox, pod: Callable[[str], Object], config: Mapping[str, Any]
) -> BindSummary:
    counts: list[int] = []
    scheduler = _counting_scheduler(bench, config, counts)
    watch = scheduler_bind_rounds.bind_pods(sandbox, bench.pods, pod, scheduler)
    return scheduler_bind_rounds.summary(watch)._replace(batched=counts[0])


@contextlib.contextmanager
def _counting_scheduler(bench: BindBench, config: Mapping[str, Any], counts: list[int]) -> Iterator[Process]:
    """Run a kube-scheduler. When the block ends, append the number of batched pods to `counts`."""
    port = child_processes.free_port()
    scheduler = bench.plane.start_scheduler(
        {"clientConnection": bench.limits, **config}, verbosity=0, more={"secure-port": str(port)}
    )
    try:
        yield scheduler
        counts.append(scheduler_batching.batched_pods(port))
    finally:
        scheduler.stop()


def figures(rounds: Rounds, nodes: int) -> dict[str, float]:
    """Rates, ratios, and the share of batched pods in the median round."""
    ratio = functools.partial(scheduler_bind_rounds.median_ratio, rounds)
    share = functools.partial(scheduler_bind_rounds.median_batched_share, rounds)
    return {
        "batching_bind_rate_none": scheduler_bind_rounds.median_rate(rounds, NONE),
        "batching_bind_ratio_spreading": ratio(SPREADING, NONE),
        f"batching_bind_ratio_native_{nodes}": ratio(NATIVE, NONE),
        f"batching_bind_ratio_extender_{nodes}": ratio(EXTENDER, NONE_BESIDE_EXTENDER),
        "batching_share_spreading": share(SPREADING),
        "batching_share_none": share(NONE),
        f"batching_share_native_{nodes}": share(NATIVE),
        f"batching_share_extender_{nodes}": share(EXTENDER),
    }
