"""Rounds of `bench.cluster` while rejected pods wait and labels of nodes change, with and without native mode.

kube-scheduler examines all waiting pods whenever a label of a node changes. Therefore pods wait and labels change in
the rounds without nodewise as well.
"""

import contextlib
import functools
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from tests.cluster import kubernetes_objects
from tests.cluster.api_client import MERGE, ClusterApi, Object
from tests.cluster.child_processes import Process
from tests.cluster.namespace_sandboxes import wait

from bench import native_mode_rounds, scheduler_bind_rounds
from bench.generated_cluster_objects import HALF_LABEL
from bench.native_mode_rounds import (
    CHANGING_NODES,
    FLAPPING,
    PERIOD_S,
    WAITING,
    NativeCluster,
    RunningController,
)
from bench.progress_lines import report_progress_line
from bench.scheduler_bind_rounds import Rounds

NONE, NATIVE = "no policy, pods wait", "native mode, pods wait"
STRICT = "native mode, whenMissing: Reject, pods wait"
"""As `NATIVE`, but the requirements are node selectors."""
WAITING_PODS: Final = 5000
_REJECTION_S: Final = 600.0
_STRICT: Final = {"app": "strict"}


_Changing = Callable[[], AbstractContextManager[None]]
"""Changes labels of nodes until the block ends."""


class _Contender(NamedTuple):
    """The measured pods, and those that wait."""

    measured: Callable[[str], Object]
    waiting: Callable[[str], Object]


def measure(cluster: NativeCluster, count: int) -> Rounds:
    """Measure rounds of all contenders, one contender after the other."""
    rounds: Rounds = {}
    changing: _Changing = functools.partial(_labels_change, cluster)
    contender = _Contender(kubernetes_objects.pod, _pod_with_selector_of_no_node)
    rounds[NONE] = _measure(cluster, NONE, contender, count, changing)
    _put_policies_that_reject_missing_values(cluster)
    # steadily, instead of 200 labels at once
    with native_mode_rounds.controller(cluster.account, cluster.bench.folder, "--kube-burst=10") as running:
        running.wait_settled()
        changing = functools.partial(_verdicts_change, cluster, running)
        contender = _Contender(native_mode_rounds.pod_with_policy, _pod_that_a_policy_rejects)
        rounds[NATIVE] = _measure(cluster, NATIVE, contender, count, changing)
        strict = functools.partial(kubernetes_objects.pod, labels=_STRICT)
        rounds[STRICT] = _measure(cluster, STRICT, _Contender(strict, strict), count, changing)
    return rounds


def _put_policies_that_reject_missing_values(cluster: NativeCluster) -> None:
    half, none = (
        [rule | {"whenMissing": "Reject"} for rule in rules]
        for rules in (native_mode_rounds.HALF_RULES, [native_mode_rounds.NONE_RULE])
    )
    policies = [
        native_mode_rounds.put_policy(cluster.sandbox, "strict-half", _STRICT, *half),
        native_mode_rounds.put_policy(cluster.waiting, "strict-none", _STRICT, *none),
    ]
    native_mode_rounds.label_nodes(cluster, policies)


def figures(rounds: Rounds, nodes: int) -> dict[str, float]:
    """The figures of results.json."""
    rate = functools.partial(scheduler_bind_rounds.median_rate, rounds)
    ratio = functools.partial(scheduler_bind_rounds.median_ratio, rounds)
    cpu_ms = functools.partial(scheduler_bind_rounds.median_cpu_ms, rounds)
    return {
        f"native_waiting_bind_rate_none_{nodes}": rate(NONE),
        f"native_waiting_bind_rate_{nodes}": rate(NATIVE),
        f"native_waiting_bind_ratio_none_{nodes}": ratio(NATIVE, NONE),
        f"native_waiting_strict_bind_rate_{nodes}": rate(STRICT),
        f"native_waiting_strict_bind_ratio_none_{nodes}": ratio(STRICT, NONE),
        f"native_waiting_cpu_none_{nodes}_ms": cpu_ms(NONE),
        f"native_waiting_cpu_{nodes}_ms": cpu_ms(NATIVE),
        f"native_waiting_strict_cpu_{nodes}_ms": cpu_ms(STRICT),
    }


def _measure(
    cluster: NativeCluster,
    name: str,
    contender: _Contender,
    count: int,
    changing: _Changing,
) -> list[scheduler_bind_rounds.BindSummary]:
    """Rounds of one contender. The scheduler is stopped by a signal while the pods of a round are created."""
    series = []
    with _rejected_pods(cluster, contender.waiting) as scheduler:
        for number in range(count):
            with changing():
                watch = native_mode_rounds.bind(cluster, contender.measured, _resumed(scheduler))
            is_native = name != NONE
            bound = (
                native_mode_rounds.half_summary(cluster, watch)
                if is_native
                else scheduler_bind_rounds.summary(watch)
            )
            series.append(bound)
            report_progress_line(f"round {number + 1} of {count}, {name}: {bound.rate:g} pods a second")
    return series


def _pod_with_selector_of_no_node(name: str) -> Object:
    pod = kubernetes_objects.pod(name)
    pod["spec"]["nodeSelector"] = {HALF_LABEL: "neither"}
    return pod


def _pod_that_a_policy_rejects(name: str) -> Object:
    return kubernetes_objects.pod(name, labels=WAITING)


@contextlib.contextmanager
def _rejected_pods(cluster: NativeCluster, wanted: Callable[[str], Object]) -> Iterator[Process]:
    """Pods that no node accepts, and a scheduler that has rejected them and is stopped by a signal."""
    sandbox = cluster.waiting
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    report_progress_line(f"creating and rejecting {WAITING_PODS} pods")
    pods = [wanted(f"waiting-{number:05d}") for number in range(WAITING_PODS)]
    create = functools.partial(sandbox.api.request, "POST", path)
    scheduler_bind_rounds.run_concurrently(lambda pod: create(json=pod), pods)
    with scheduler_bind_rounds.watching(sandbox.plane, path) as watch:
        # by default, all of them would be tried again after five minutes, which takes minutes
        flags = {"pod-max-in-unschedulable-pods-duration": "24h"}
        config = {"clientConnection": cluster.bench.limits}
        scheduler = sandbox.plane.start_scheduler(config, verbosity=0, more=flags)
        try:
            wait(
                "all waiting pods are rejected",
                lambda: len(watch.rejected) >= WAITING_PODS or None,
                _REJECTION_S,
                watch.progress,
            )
            os.kill(scheduler.pid, signal.SIGSTOP)
            yield scheduler
        finally:
            scheduler.kill()
        if watch.at_s:
            raise RuntimeError(f"{len(watch.at_s)} of the waiting pods were bound")
    sandbox.api.delete(path)
    wait("the waiting pods are gone", lambda: not sandbox.api.get(path, limit="1")["items"] or None)


@contextlib.contextmanager
def _resumed(scheduler: Process) -> Iterator[Process]:
    os.kill(scheduler.pid, signal.SIGCONT)
    try:
        yield scheduler
    finally:
        os.kill(scheduler.pid, signal.SIGSTOP)


@contextlib.contextmanager
def _repeating(do: Callable[[int], object], pause_s: float) -> Iterator[None]:
    """Call a function with 0, 1, 2 and so on, one call per `pause_s` on average, until the block ends."""
    ended = threading.Event()

    def run() -> None:
        began_s = time.monotonic()
        for number in itertools.count():
            do(number)
            if ended.wait(max(began_s + (number + 1) * pause_s - time.monotonic(), 0.0)):
                break

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _labels_change(cluster: NativeCluster) -> Iterator[None]:
    """Change 50 labels a second that no pod selects."""
    names, plane = cluster.bench.names[:CHANGING_NODES], cluster.bench.plane
    api = ClusterApi(plane.url, plane.authority.client_context(plane.admin.pair))

    def change(number: int) -> None:
        labels = {"node.example/flapping": str(number)}
        path = f"/api/v1/nodes/{names[number % len(names)]}"
        api.request("PATCH", path, json={"metadata": {"labels": labels}}, headers={"Content-Type": MERGE})

    with contextlib.closing(api), _repeating(change, PERIOD_S / CHANGING_NODES):
        yield


@contextlib.contextmanager
def _verdicts_change(cluster: NativeCluster, running: RunningController) -> Iterator[None]:
    """Change 50 labels a second by metric values, and report how many were written."""
    names, metrics = cluster.bench.names[:CHANGING_NODES], cluster.bench.metrics

    def change(number: int) -> None:
        metrics.set(FLAPPING, dict.fromkeys(names, 90 * (number % 2)))

    with _repeating(change, PERIOD_S):
        before, began_s = running.label_writes(), time.monotonic()
        yield
        rate = (running.label_writes() - before) / (time.monotonic() - began_s)
    report_progress_line(f"{rate:.0f} labels a second")
