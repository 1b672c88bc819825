"""Rounds of `bench.cluster` while rejected pods wait and labels of nodes change, with and without native mode.

kube-scheduler examines all waiting pods whenever a label of a node changes. Therefore pods wait in the rounds without
nodewise as well, and labels change in all of these but one series. Their waiting pods are rejected by a constraint of
the same kind as that of native mode, because kube-scheduler compares a node selector much faster than node affinity.
"""

import contextlib
import functools
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from tests.cluster import child_processes, kubernetes_objects
from tests.cluster.api_client import MERGE, ClusterApi, Object
from tests.cluster.child_processes import Process
from tests.cluster.namespace_sandboxes import Sandbox, wait

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
from bench.scheduler_bind_rounds import BindSummary, BindWatch, Rounds

QUIET = "no policy, pods wait for node affinity, no label changes"
SELECTOR, AFFINITY = "no policy, pods wait for a node selector", "no policy, pods wait for node affinity"
NATIVE = "native mode, missing values allowed"
"""The requirements are node affinity."""
STRICT = "native mode, missing values rejected"
"""The requirements are node selectors."""
EQUAL = " (labels of another client change)"
"""Appended to a name in native mode: the same labels change as in the rounds without nodewise, and no verdict."""
WAITING_PODS: Final = 5000
_REJECTION_S: Final = 600.0
_BEFORE_S: Final = 40.0
"""Labels change for this time before the measured pods are created, because native mode writes the most at first."""
_STRICT: Final = {"app": "strict"}


_Changing = Callable[[], AbstractContextManager[Callable[[], float]]]
"""Changes labels of nodes, or none, until the block ends. Yields a function that counts the changes so far."""


class _Contender(NamedTuple):
    """What is measured in a series of rounds."""

    name: str
    measured: Callable[[str], Object]
    """Makes the pods that are bound."""
    waiting: Callable[[str], Object]
    """Makes the pods that wait."""
    summary: Callable[[BindWatch], BindSummary] = scheduler_bind_rounds.summary


def measure(cluster: NativeCluster, count: int) -> Rounds:
    """Measure rounds of all contenders, one contender after the other."""
    run = functools.partial(_measure, cluster, count=count)
    labels_change = functools.partial(_labels_change, cluster)
    plain = kubernetes_objects.pod
    rounds = {
        contender.name: run(contender, changing=changing)
        for contender, changing in (
            (_Contender(QUIET, plain, _pod_with_affinity_to_no_node), _no_label_changes),
            (_Contender(SELECTOR, plain, _pod_with_selector_of_no_node), labels_change),
            (_Contender(AFFINITY, plain, _pod_with_affinity_to_no_node), labels_change),
        )
    }
    _put_policies_that_reject_missing_values(cluster)
    # steadily, instead of 200 labels at once
    with native_mode_rounds.controller(cluster.account, cluster.bench.folder, "--kube-burst=10") as running:
        running.wait_settled()
        verdicts_change = functools.partial(_verdicts_change, cluster, running)
        half = functools.partial(native_mode_rounds.half_summary, cluster)
        strict = functools.partial(kubernetes_objects.pod, labels=_STRICT)
        allow = _Contender(NATIVE, native_mode_rounds.pod_with_policy, _pod_that_a_policy_rejects, half)
        reject = _Contender(STRICT, strict, strict, half)
        rounds |= {
            contender.name: run(contender, changing=changing)
            for each in (allow, reject)
            for contender, changing in (
                (each, verdicts_change),
                (each._replace(name=each.name + EQUAL), labels_change),
            )
        }
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
    label_rate = functools.partial(scheduler_bind_rounds.median_label_rate, rounds)
    return {
        f"native_waiting_bind_rate_quiet_{nodes}": rate(QUIET),
        f"native_waiting_bind_rate_none_{nodes}": rate(SELECTOR),
        f"native_waiting_bind_rate_affinity_{nodes}": rate(AFFINITY),
        f"native_waiting_bind_rate_{nodes}": rate(NATIVE),
        f"native_waiting_bind_ratio_quiet_{nodes}": ratio(NATIVE, QUIET),
        f"native_waiting_bind_ratio_affinity_{nodes}": ratio(NATIVE, AFFINITY),
        f"native_waiting_bind_ratio_none_{nodes}": ratio(NATIVE, SELECTOR),
        f"native_waiting_strict_bind_rate_{nodes}": rate(STRICT),
        f"native_waiting_strict_bind_ratio_quiet_{nodes}": ratio(STRICT, QUIET),
        f"native_waiting_strict_bind_ratio_none_{nodes}": ratio(STRICT, SELECTOR),
        f"native_waiting_equal_bind_rate_{nodes}": rate(NATIVE + EQUAL),
        f"native_waiting_equal_bind_ratio_affinity_{nodes}": ratio(NATIVE + EQUAL, AFFINITY),
        f"native_waiting_equal_bind_ratio_none_{nodes}": ratio(NATIVE + EQUAL, SELECTOR),
        f"native_waiting_equal_strict_bind_rate_{nodes}": rate(STRICT + EQUAL),
        f"native_waiting_equal_strict_bind_ratio_none_{nodes}": ratio(STRICT + EQUAL, SELECTOR),
        f"native_waiting_label_rate_none_{nodes}": label_rate(SELECTOR),
        f"native_waiting_label_rate_{nodes}": label_rate(NATIVE),
        f"native_waiting_cpu_none_{nodes}_ms": cpu_ms(SELECTOR),
        f"native_waiting_cpu_affinity_{nodes}_ms": cpu_ms(AFFINITY),
        f"native_waiting_cpu_{nodes}_ms": cpu_ms(NATIVE),
        f"native_waiting_strict_cpu_{nodes}_ms": cpu_ms(STRICT),
    }


def _measure(
    cluster: NativeCluster, contender: _Contender, count: int, changing: _Changing
) -> list[BindSummary]:
    """Rounds of one contender. Each has a scheduler of its own, without events that an earlier round left behind."""
    series = []
    with _waiting_pods(cluster, contender.waiting):
        for number in range(count):
            with (
                _scheduler_that_rejected_all(cluster.waiting, cluster.bench.limits) as scheduler,
                changing() as changed,
            ):
                time.sleep(_BEFORE_S)
                before, began_s = changed(), time.monotonic()
                watch = native_mode_rounds.bind(
                    cluster, contender.measured, contextlib.nullcontext(scheduler)
                )
                label_rate = (changed() - before) / (time.monotonic() - began_s)
            bound = contender.summary(watch)._replace(label_rate=round(label_rate, 1))
            series.append(bound)
            report_progress_line(
                f"round {number + 1} of {count}, {contender.name}: {bound.rate:g} pods a second,"
                f" {bound.label_rate:g} labels a second"
            )
    return series


def _pod_with_selector_of_no_node(name: str) -> Object:
    pod = kubernetes_objects.pod(name)
    pod["spec"]["nodeSelector"] = {HALF_LABEL: "neither"}
    return pod


def _pod_with_affinity_to_no_node(name: str) -> Object:
    pod = kubernetes_objects.pod(name)
    requirement = {"key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return pod


def _pod_that_a_policy_rejects(name: str) -> Object:
    return kubernetes_objects.pod(name, labels=WAITING)


@contextlib.contextmanager
def _waiting_pods(cluster: NativeCluster, wanted: Callable[[str], Object]) -> Iterator[None]:
    """Pods that no node accepts."""
    sandbox = cluster.waiting
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    report_progress_line(f"creating and rejecting {WAITING_PODS} pods")
    pods = [wanted(f"waiting-{number:05d}") for number in range(WAITING_PODS)]
    create = functools.partial(sandbox.api.request, "POST", path)
    scheduler_bind_rounds.run_concurrently(lambda pod: create(json=pod), pods)
    with scheduler_bind_rounds.watching(sandbox.plane, path) as watch:
        yield
        if watch.at_s:
            raise RuntimeError(f"{len(watch.at_s)} of the waiting pods were bound")
    sandbox.api.delete(path)
    wait("the waiting pods are gone", lambda: not sandbox.api.get(path, limit="1")["items"] or None)


@contextlib.contextmanager
def _scheduler_that_rejected_all(sandbox: Sandbox, limits: Object) -> Iterator[Process]:
    """A scheduler that has rejected all waiting pods."""
    port = child_processes.free_port()
    # by default, all of them would be tried again after five minutes, which takes minutes
    flags = {"secure-port": str(port), "pod-max-in-unschedulable-pods-duration": "24h"}
    scheduler = sandbox.plane.start_scheduler({"clientConnection": limits}, verbosity=0, more=flags)
    try:
        numbers = functools.partial(_pending_pods, sandbox.plane.api, port)
        rejected = {"active": 0, "backoff": 0, "unschedulable": WAITING_PODS}
        wait(
            "all waiting pods are rejected",
            lambda: numbers().items() >= rejected.items() or None,
            _REJECTION_S,
            numbers,
        )
        yield scheduler
    finally:
        scheduler.kill()


def _pending_pods(api: ClusterApi, port: int) -> dict[str, int]:
    """The pods without a node by queue of the scheduler with this port."""
    text = api.request("GET", f"https://127.0.0.1:{port}/metrics").text
    pattern = r'^scheduler_pending_pods\{queue="(\w+)"\} (\d+)$'
    return {queue: int(count) for queue, count in re.findall(pattern, text, re.MULTILINE)}


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
def _no_label_changes() -> Iterator[Callable[[], float]]:
    yield lambda: 0.0


@contextlib.contextmanager
def _labels_change(cluster: NativeCluster) -> Iterator[Callable[[], float]]:
    """Change 50 labels a second that no pod selects."""
    names, plane = cluster.bench.names[:CHANGING_NODES], cluster.bench.plane
    api = ClusterApi(plane.url, plane.authority.client_context(plane.admin.pair))
    changed = 0

    def change(number: int) -> None:
        nonlocal changed
        labels = {"node.example/flapping": str(number)}
        path = f"/api/v1/nodes/{names[number % len(names)]}"
        api.request("PATCH", path, json={"metadata": {"labels": labels}}, headers={"Content-Type": MERGE})
        changed += 1

    with contextlib.closing(api), _repeating(change, PERIOD_S / CHANGING_NODES):
        yield lambda: changed


@contextlib.contextmanager
def _verdicts_change(cluster: NativeCluster, running: RunningController) -> Iterator[Callable[[], float]]:
    """Change the verdicts of 50 nodes a second by metric values. The controller writes fewer labels while pods wait."""
    names, metrics = cluster.bench.names[:CHANGING_NODES], cluster.bench.metrics
    before = running.label_writes()

    def change(number: int) -> None:
        metrics.set(FLAPPING, dict.fromkeys(names, 90 * (1 - number % 2)))

    with _repeating(change, PERIOD_S):
        yield lambda: running.label_writes() - before
