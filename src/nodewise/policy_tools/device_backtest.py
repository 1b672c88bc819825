"""Evaluates device rules over the history of their metrics, block by block, for the taints of that time. No I/O.

The taints are those of the leader's code at each time (`device_timeline`), for the devices of today.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.prometheus.range_matrix import NodeMatrix, TimeGrid
from nodewise.metrics.series import NodeNames, Series
from nodewise.policies import device_taints
from nodewise.policies.options import MaxAges
from nodewise.policies.placement_policy import Policy, PolicyKey
from nodewise.policy_tools.backtest_summary import Interval
from nodewise.policy_tools.device_timeline import DeviceObjects, DeviceTimeline
from nodewise.policy_tools.policy_backtest import MatrixResponses


class DeviceTaintInterval(NamedTuple):
    """A taint that would have been written, and the time until it would have been removed."""

    device: str
    """`DRIVER/POOL/DEVICE`."""
    effect: str
    reason: str
    """The rules that the device met at first."""
    interval: Interval


class DevicePolicyReport(NamedTuple):
    """What the device rules of one policy would have done."""

    policy: Policy
    rules: Sequence[str]
    devices: int
    """How many devices the drivers of the rules have."""
    taints: Sequence[DeviceTaintInterval]
    """In the order of their beginnings."""
    most_tainted: int
    """Devices at once."""
    limited_s: float
    """How long `maxTaintedShare` kept devices from being tainted."""
    unmatched: str
    """Which values of labels match no device, at the last time with a series; empty for none."""


class _PolicyRecord:
    """The taints of one policy so far."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[float, str, str]] = {}
        """By device: since when, effect and reason."""
        self.closed: list[DeviceTaintInterval] = []
        self.most_tainted = 0
        self.limited_steps = 0
        self.unmatched = ""


class DeviceBacktest:
    """The device rules of policies over the history of their metrics, as if they were enforced. Blocks are added in
    order.
    """

    def __init__(
        self, policies: Mapping[PolicyKey, Policy], objects: DeviceObjects, max_ages: MaxAges, step_s: float
    ) -> None:
        replace = msgspec.structs.replace
        self.policies: Final = {
            key: replace(policy, mode="Enforce", stepped_back=False, not_enforced="")
            for key, policy in policies.items()
            if policy.device_taints
        }
        self._timeline = DeviceTimeline(
            self.policies.values(), DeviceObjects(objects.slices) if self.policies else DeviceObjects()
        )
        self._max_ages = max_ages
        self._step_s = step_s
        self._records = {key: _PolicyRecord() for key in self.policies}
        self._end = 0.0
        self.requests: Final = self.requests_for({})

    @property
    def device_count(self) -> int:
        return self._timeline.table.present

    def requests_for(self, distances: Mapping[str, float | None]) -> dict[str, MetricRequest]:
        """The requests for metrics with samples at these distances, by key, as in `Backtest.requests_for`."""
        parts = [part for policy in self.policies.values() for part in policy.device_comparisons()]
        return self._max_ages.requests(parts, distances)

    def add(self, grid: TimeGrid, matrices: Mapping[str, NodeMatrix]) -> None:
        """Evaluate a block of times."""
        requests = self.requests_for({key: matrix.sample_distance_s for key, matrix in matrices.items()})
        sources = {key: MatrixResponses(NodeNames(matrices[key].devices or ())) for key in requests}
        for step, at in enumerate(grid.times.tolist()):
            responses = {
                key: sources[key].response(request, at, matrices[key], step)
                for key, request in requests.items()
            }
            # a missing value changes no state, so those of earlier times need not be kept
            series = {key: each for key, each in responses.items() if isinstance(each, Series)}
            taints = self._timeline.advance(MetricsSnapshot(series), self._max_ages, at)
            tainted: dict[str, dict[str, tuple[str, str]]] = {}
            for taint in taints.wanted.values():
                tainted.setdefault(taint.policy, {})[str(taint.device)] = taint.effect, taint.reason
            for key, record in self._records.items():
                self._advance(record, tainted.get(key.name, {}), at)
                report = taints.reports[key]
                record.limited_steps += bool(report.limited)
                if series:
                    record.unmatched = report.unmatched
            self._end = at + self._step_s

    def _advance(self, record: _PolicyRecord, tainted: Mapping[str, tuple[str, str]], at: float) -> None:
        record.most_tainted = max(record.most_tainted, len(tainted))
        for device, (since, effect, reason) in list(record.open.items()):
            if device not in tainted or tainted[device][0] != effect:
                del record.open[device]
                record.closed.append(DeviceTaintInterval(device, effect, reason, Interval(since, at)))
        for device, (effect, reason) in tainted.items():
            record.open.setdefault(device, (at, effect, reason))

    def reports(self) -> list[DevicePolicyReport]:
        """The report of each policy."""
        return [self._report(self.policies[key], record) for key, record in self._records.items()]

    def _report(self, policy: Policy, record: _PolicyRecord) -> DevicePolicyReport:
        drivers = {rule.driver for rule in policy.device_taints}
        not_removed = [
            DeviceTaintInterval(device, effect, reason, Interval(since, self._end))
            for device, (since, effect, reason) in record.open.items()
        ]
        return DevicePolicyReport(
            policy,
            [device_taints.rule_text(rule) for rule in policy.device_taints],
            sum(len(self._timeline.table.numbers(driver)) for driver in drivers),
            sorted([*record.closed, *not_removed], key=lambda taint: (taint.interval.start, taint.device)),
            record.most_tainted,
            record.limited_steps * self._step_s,
            record.unmatched,
        )
