"""Native mode in `bench.cluster`: the time from a change of metrics to labels and bindings, and writes at rest.

The controller runs with its default options, a period of 5 s. Ten policies change their verdict on the same 100 nodes
at once, again and again. `bench.label_writes` measures labels of all nodes.
"""

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from tests.cluster import kubernetes_objects, label_watch, namespace_sandboxes, native_mode
from tests.cluster.label_watch import LabelWatch
from tests.cluster.namespace_sandboxes import Sandbox, wait

from bench import alternating_rounds, native_mode_rounds, scheduler_bind_rounds
from bench.alternating_rounds import RoundFigure
from bench.progress_lines import report_progress_line
from bench.scheduler_bind_rounds import BindBench, BindWatch

METRICS: Final = [f"node_changing_{number}" for number in range(10)]
CHANGING_NODES: Final = 100
WAITING_PODS: Final = 10
"""Pods that wait for one of the changing nodes each."""
TURNS: Final = 5
REST_S: Final = 30.0
_SETTLE_S: Final = 45.0  # the status of a policy shows the number of its pods up to 30 s later
_POLL_S: Final = 0.01
_DEADLINE_S: Final = 120.0
_WRITES: Final = ("POST", "PUT", "PATCH", "APPLY", "DELETE")


def measure(bench: BindBench) -> dict[str, float]:
    """The figures of results.json."""
    chance = random.Random(1)
    account = native_mode.install_with_account(bench.plane)
    with namespace_sandboxes.created(bench.plane) as sandbox:
        _set_metrics(bench, 10)
        policies = [
            native_mode_rounds.put_policy(
                sandbox, f"pol-{number}", {"app": "web"}, {"metric": metric, "above": 50}
            )
            for number, metric in enumerate(METRICS)
        ]
        with (
            native_mode_rounds.controller(account, bench.folder) as running,
            scheduler_bind_rounds.new_scheduler(bench, {}),
            label_watch.watch_labels(bench.plane) as labels,
        ):
            native_mode_rounds.wait_active(bench.plane.api, policies)
            running.wait_settled(*METRICS)
            label_s: list[list[float]] = [[] for _ in range(TURNS)]
            bind_s: list[list[float]] = []
            for turn in range(TURNS):
                time.sleep(chance.uniform(0, native_mode_rounds.PERIOD_S))
                label_s[turn] += _label_times(bench, labels, 90)
                bind_s.append(_bind_times(bench, sandbox, labels, turn, label_s[turn]))
            _set_metrics(bench, 10)
            writes = _writes_at_rest(bench)
        native_mode_rounds.uninstall(bench, account)
    return {
        "native_label_p50_s": _percentile(label_s, 0.5),
        "native_label_p99_s": _percentile(label_s, 0.99),
        "native_label_max_s": alternating_rounds.of_rounds(map(max, label_s), 1, max),
        "native_recovery_max_s": alternating_rounds.of_rounds(map(max, bind_s), 1, max),
        "native_writes_at_rest": writes,
    }


def _percentile(turns: Sequence[Sequence[float]], share: float) -> RoundFigure:
    """A percentile of the values of all turns, with the spread of the turns."""
    whole = alternating_rounds.percentile([value for turn in turns for value in turn], share)
    return alternating_rounds.of_rounds(
        (alternating_rounds.percentile(turn, share) for turn in turns), 1, lambda _: whole
    )


def _set_metrics(bench: BindBench, value: int) -> None:
    """Set the metrics of the changing nodes to a value, and those of all others to another one below the threshold."""
    values = {name: random.randrange(10, 40) for name in bench.names}
    values |= dict.fromkeys(bench.names[:CHANGING_NODES], value)
    for metric in METRICS:
        bench.metrics.set(metric, values)


def _label_times(bench: BindBench, labels: LabelWatch, value: int) -> list[float]:
    """Seconds from a change of all metrics to each of the labels, as a watch shows them."""
    before = len(labels.changes)
    _set_metrics(bench, value)
    return change_times(labels, before, CHANGING_NODES * len(METRICS), _DEADLINE_S)


def change_times(labels: LabelWatch, before: int, due: int, deadline_s: float) -> list[float]:
    """Seconds from now to each of the labels after the first `before` ones, as a watch shows them."""
    began_s, times_s = time.monotonic(), list[float]()
    while len(times_s) < due:
        elapsed_s = time.monotonic() - began_s
        if elapsed_s > deadline_s:
            raise RuntimeError(f"{len(times_s)} of {due} labels were written")
        times_s += [elapsed_s] * (len(labels.changes) - before - len(times_s))
        time.sleep(_POLL_S)
    report_progress_line(f"{due} labels: the last one after {times_s[-1]:.1f} s")
    return times_s


def _bind_times(
    bench: BindBench, sandbox: Sandbox, labels: LabelWatch, turn: int, label_s: list[float]
) -> list[float]:
    """Seconds from a change of all metrics to the binding of each waiting pod. Appends those to each label."""
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    with scheduler_bind_rounds.watching(bench.plane, path) as watch:
        names = [f"waiting-{turn}-{number}" for number in range(WAITING_PODS)]
        for name, node in zip(names, bench.names, strict=False):
            pod = kubernetes_objects.pod(name, labels={"app": "web"})
            pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
            sandbox.put(pod)
        _wait_for(watch, lambda: watch.rejected.issuperset(names))
        began_s = time.monotonic()
        label_s += _label_times(bench, labels, 10)
        _wait_for(watch, lambda: watch.at_s.keys() >= set(names))
        return [watch.at_s[name] - began_s for name in names]


def _wait_for(watch: BindWatch, condition: Callable[[], bool]) -> None:
    wait(
        "the waiting pods",
        lambda: condition() or None,
        _DEADLINE_S,
        lambda: f"{watch.progress()}, {watch.ended}",
    )


def _writes_at_rest(bench: BindBench) -> float:
    """Writes to the API server in `REST_S`, apart from Leases, while values change and verdicts do not."""
    time.sleep(_SETTLE_S)
    before = _count_writes(bench)
    end_s = time.monotonic() + REST_S
    while time.monotonic() < end_s:
        _set_metrics(bench, 10)
        time.sleep(1.0)
    written = _count_writes(bench) - before
    report_progress_line(f"writes at rest, by resource: {dict(written)}")
    return float(written.total())


def _count_writes(bench: BindBench) -> Counter[str]:
    """Writes to the API server so far, by resource."""
    writes: Counter[str] = Counter()
    for line in bench.plane.api.request("GET", "/metrics").text.splitlines():
        resource = re.search(r'resource="([^"]+)"', line)
        is_write = line.startswith("apiserver_request_total{") and any(
            f'verb="{verb}"' in line for verb in _WRITES
        )
        if is_write and resource and resource[1] != "leases":
            writes[resource[1]] += int(float(line.rpartition(" ")[2]))
    return writes
