"""The merged reports of shards equal the evaluation of all nodes by a single process."""

import random
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agent.controller_interface import NodeOwnership
from nodewise.base import cooperative_scheduling
from nodewise.kube.shard_election import Tenure
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.policies import native_mode_pods, policy_status, selected_pods, shard_reports
from nodewise.policies.hysteresis import NodeStateGroup
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.policy_status_fields import PlacementPolicyStatus, RuleCounts
from nodewise.policies.shard_reports import (
    Pattern,
    PolicyShardReport,
    ReportedReason,
    ShardReport,
    ShardReports,
)
from nodewise.policies.state import TelemetryState, TelemetryStateBuilder
from nodewise.policies.verdict_labels import label_key
from tests.unit.policies.policy_snapshot_builders import namespaces, series

NOW: Final = 1000.0
AT: Final = "1970-01-01T00:16:40Z"
METRICS: Final = ("heat", "load", "rare")


class FixedOwnership(NodeOwnership):
    """The Leases of other replicas, each with a report."""

    def __init__(self, own: int, shards: int, reports: dict[int, ShardReport]) -> None:
        self._own = own
        self._shards = shards
        self._reports = reports
        self.since = 0.0
        """The time from which snapshots have all nodes."""

    @property
    def shards(self) -> int:
        return self._shards

    def own_shards(self) -> frozenset[int]:
        return frozenset([self._own])

    def is_whole(self, at: float) -> bool:
        return at >= self.since

    def tenure(self) -> Tenure:
        return Tenure()

    def write_timeout_s(self, uid: str, at: float) -> float:
        raise NotImplementedError

    def live_annotations(self) -> dict[int, dict[str, str]]:
        return {
            shard: {shard_reports.ANNOTATION: shard_reports.encode(report)}
            for shard, report in self._reports.items()
        }


def random_policies(chance: random.Random) -> list[PolicyObject]:
    policies = []
    for number in range(chance.randint(1, 4)):
        avoid = [
            {
                "metric": chance.choice(METRICS),
                "above": chance.randint(0, 9),
                "whenMissing": chance.choice(["Allow", "Reject"]),
            }
            for _ in range(chance.randint(1, 3))
        ]
        spec = {"podSelector": {}, "avoid": avoid}
        metadata = PolicyMetadata(f"p{number}", "d", uid=f"uid-{number}", generation=1)
        policies.append(PolicyObject(metadata, msgspec.Raw(msgspec.json.encode(spec))))
    return policies


def state_of(
    names: list[str], policies: list[PolicyObject], metrics: MetricsSnapshot, reports: ShardReports | None
) -> TelemetryState:
    builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
    if reports is not None:
        builder.values_elsewhere = reports.has_values
    by_key = {(policy.metadata.namespace, policy.metadata.name): policy for policy in policies}
    objects: dict[str, Any] = {"placementpolicies": by_key, "namespaces": namespaces("d")}
    cluster = ClusterState(NodeIndex(names), objects, metrics, NOW)
    return cooperative_scheduling.run_without_pauses(builder.build(cluster))


def report_of(shard: int, names: list[str], state: TelemetryState) -> ShardReport:
    counting = shard_reports.count_rejections(state.policies.values())
    reasons, patterns = cooperative_scheduling.run_without_pauses(counting)
    policies = {
        each.policy.uid: policy_status.create_report(each, StatusFacts(1), AT)
        for each in state.policies.values()
    }
    return ShardReport((shard,), len(names), dict(state.own_values), policies, reasons, patterns)


def counts(status: Any) -> Any:
    """What a status says, without the messages about single nodes, of which each shard names its own."""
    conditions = [(each.type, each.status, each.reason) for each in status.conditions]
    return msgspec.structs.replace(status, conditions=[]), conditions


@pytest.mark.parametrize("seed", range(150))
def test_merged_reports_equal_the_evaluation_of_a_single_process(seed: int) -> None:
    chance = random.Random(seed)
    shards = chance.randint(2, 4)
    names = [f"n{number}" for number in range(chance.randint(shards, 14))]
    policies = random_policies(chance)
    shares = {"heat": 1.0, "load": chance.random(), "rare": 0.15 * chance.random()}
    values = {
        metric: {name: chance.randint(0, 9) for name in names if chance.random() < share}
        for metric, share in shares.items()
    }
    whole = MetricsSnapshot({metric: series(metric, **of_metric) for metric, of_metric in values.items()})
    alone = state_of(names, policies, whole, None)
    owners = {name: chance.randrange(shards) for name in names}
    parts = [[name for name in names if owners[name] == shard] for shard in range(shards)]
    metrics = [
        MetricsSnapshot(
            {
                key: msgspec.structs.replace(
                    of, samples={name: of.samples[name] for name in part if name in of.samples}
                )
                for key, of in whole.series.items()
            }
        )
        for part in parts
    ]
    reports: dict[int, ShardReport] = {}
    states: list[TelemetryState] = []
    for _ in range(2):  # at first nothing is known of others
        readers = [ShardReports(FixedOwnership(shard, shards, reports)) for shard in range(shards)]
        states = [state_of(*each) for each in zip(parts, [policies] * shards, metrics, readers, strict=True)]
        reports = {shard: report_of(shard, parts[shard], states[shard]) for shard in range(shards)}

    leader = chance.randrange(shards)
    others = ShardReports(FixedOwnership(leader, shards, reports)).others()
    assert others is not None
    extended = cooperative_scheduling.run_without_pauses(
        shard_reports.extend_states(states[leader].policies, others)
    )
    for key, expected in alone.policies.items():
        verdicts: dict[str, str] = {}
        for part, state in zip(parts, states, strict=True):
            verdict = state.policies[key].verdict
            assert verdict is not None
            codes = verdict.codes[:-1].tolist()
            verdicts |= {
                name: verdict.reasons[code - 1].text() if code else ""
                for name, code in zip(part, codes, strict=True)
            }
        assert expected.verdict is not None
        for name, code in zip(names, expected.verdict.codes[:-1].tolist(), strict=True):
            assert verdicts[name] == (expected.verdict.reasons[code - 1].text() if code else "")
        of_leader = extended[key].verdict
        assert of_leader is not None
        assert np.count_nonzero(of_leader.codes[:-1]) == np.count_nonzero(expected.verdict.codes[:-1])
        facts = StatusFacts(1, others=tuple(other.policies[expected.policy.uid] for other in others))
        merged = policy_status.desired_status(
            states[leader].policies[key], facts, PlacementPolicyStatus(), AT
        )
        single = policy_status.desired_status(expected, StatusFacts(1), PlacementPolicyStatus(), AT)
        assert counts(merged) == counts(single)

    selections = [
        tuple(sorted(chance.sample(sorted(alone.policies), chance.randint(1, len(alone.policies)))))
    ]
    assert _rejecting(extended, len(names), selections) == _rejecting(alone.policies, len(names), selections)
    keys = [label_key(alone.policies[key].policy.uid) for key in selections[0]]
    assert _note(extended, keys, len(names)) == _note(alone.policies, keys, len(names))


def _rejecting(states: Any, count: int, selections: list[tuple[PolicyKey, ...]]) -> Any:
    finding = selected_pods.find_rejecting_policies(states, count, selections)
    return cooperative_scheduling.run_without_pauses(finding)


def _note(states: Any, keys: list[str], count: int) -> str:
    return native_mode_pods.rejection_note(keys, native_mode_pods.states_by_label_key(states.values()), count)


def test_shard_without_a_report_leaves_the_whole_unknown() -> None:
    reports = {0: ShardReport((0,), 1)}
    assert ShardReports(FixedOwnership(0, 2, reports)).others() is None
    assert ShardReports(FixedOwnership(1, 2, reports)).others() == [reports[0]]
    assert ShardReports(FixedOwnership(1, 3, reports)).has_values("heat") is None


def test_snapshot_without_all_nodes_of_own_shards_leaves_the_whole_unknown() -> None:
    ownership = FixedOwnership(1, 2, {0: ShardReport((0,), 1)})
    ownership.since = 10.0
    reports = ShardReports(ownership)
    reports.at = 9.0
    assert reports.others() is None
    reports.at = 10.0
    assert reports.others() == [ShardReport((0,), 1)]


@pytest.mark.parametrize("seed", range(20))
def test_each_policy_counts_its_nodes_with_rare_sets_of_reasons(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_reports, "_MAX_PATTERNS", 1)
    chance = random.Random(seed)
    names = [f"n{number}" for number in range(20)]
    policies = random_policies(chance)
    values = {metric: {name: chance.randint(0, 9) for name in names} for metric in METRICS}
    metrics = MetricsSnapshot({metric: series(metric, **of_metric) for metric, of_metric in values.items()})
    elsewhere = state_of(names, policies, metrics, None)
    own = state_of([], policies, metrics, None)
    extending = shard_reports.extend_states(own.policies, [report_of(0, names, elsewhere)])
    whole = cooperative_scheduling.run_without_pauses(extending)
    union = np.zeros(len(names), bool)
    expected_union = np.zeros(len(names), bool)
    for key, state in elsewhere.policies.items():
        counted, expected = whole[key].verdict, state.verdict
        assert counted is not None
        assert expected is not None
        assert np.count_nonzero(counted.codes[:-1]) == np.count_nonzero(expected.codes[:-1])
        union |= counted.codes[:-1] > 0
        expected_union |= expected.codes[:-1] > 0
    assert np.count_nonzero(union) <= np.count_nonzero(expected_union)


def test_policies_that_reject_every_node_do_not_lengthen_the_sets_of_reasons() -> None:
    names = [f"n{number}" for number in range(4)]
    spec = msgspec.Raw(b'{"podSelector":{},"avoid":[{"metric":"heat","above":5}]}')
    policies = [
        PolicyObject(PolicyMetadata(f"p{number}", "d", uid=f"uid-{number}", generation=1), spec)
        for number in range(30)
    ]
    heat = series("heat", **dict.fromkeys(names, 9))
    elsewhere = state_of(names, policies, MetricsSnapshot({"heat": heat}), None)
    report = report_of(0, names, elsewhere)
    assert len(report.reasons) == len(policies)
    assert report.patterns == ()
    extending = shard_reports.extend_states(elsewhere.policies, [report])
    whole = cooperative_scheduling.run_without_pauses(extending)
    for state in whole.values():
        assert state.verdict is not None
        assert state.verdict.codes[:-1].tolist() == [1] * 8


def test_namespace_with_very_many_policies_leaves_those_of_others_in_the_report() -> None:
    chance = random.Random(2)
    uids = [f"{chance.getrandbits(128):032x}" for _ in range(10_000)]
    policies = dict.fromkeys([*uids, "other"], PolicyShardReport(generation=1, rejected_nodes=3))
    reasons = tuple(ReportedReason(uid, "a reason") for uid in policies)
    report = ShardReport((0,), 9, {}, policies, reasons, (Pattern(3, (len(uids),)),))
    decoded = shard_reports.decode(shard_reports.encode(report, dict.fromkeys(uids, "hostile")))
    assert decoded is not None
    assert list(decoded.policies) == [*uids[:50], "other"]
    assert decoded.reasons[len(uids)] == ReportedReason("other", "a reason")


def test_unreadable_report_counts_as_none() -> None:
    for text in ("", "?", "AAAA", shard_reports.encode(ShardReport())[:-8]):
        assert shard_reports.decode(text) is None


def test_report_that_is_too_long_lists_no_nodes() -> None:
    chance = random.Random(1)

    def rule() -> RuleCounts:
        nodes = tuple(f"{chance.getrandbits(256):064x}" for _ in range(500))
        return RuleCounts("avoid[0]", nodes=500, node_states=(NodeStateGroup("Rejected", AT, nodes),))

    policies = {str(number): PolicyShardReport(rules=(rule(),)) for number in range(40)}
    report = shard_reports.decode(shard_reports.encode(ShardReport((0,), 500, {}, policies)))
    assert report is not None
    [counted] = report.policies["0"].rules
    assert (counted.node_states, counted.unlisted_nodes) == ((), 500)
