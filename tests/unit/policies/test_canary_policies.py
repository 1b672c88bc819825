"""Policies in the mode Canary: the pods for which they have an effect."""

from typing import Any

import pytest

from nodewise.policies import policy_selection
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.placement_policy import Canary, LabelSelector, Policy, PolicyKey
from nodewise.policies.policy_selection import PodFields, PodMetadata, PodOwner
from tests.unit.policies.placement_policy_cluster import ALL, HOT, Cluster, pod, policy_object, wide
from tests.unit.policies.policy_snapshot_builders import candidates

KEY = PolicyKey("PlacementPolicy", "web", "cool")
TRACK = {"podSelector": {"matchLabels": {"track": "canary"}}}


def by_percent(percent: int, key: PolicyKey = KEY) -> Policy:
    return Policy(key, mode="Canary", canary=Canary(percent=percent))


def pod_of(
    workload: str, template_hash: str = "6f9c", kind: str = "ReplicaSet", number: int = 0
) -> PodFields:
    owner = PodOwner(kind, f"{workload}-{template_hash}" if kind == "ReplicaSet" else workload, True)
    labels = {"pod-template-hash": template_hash} if kind == "ReplicaSet" else {}
    other = PodOwner("Other", "not-the-controller")
    return PodFields(PodMetadata("web", labels, (other, owner), name=f"{workload}-{number}"))


@pytest.mark.parametrize("percent", [1, 10, 50, 99])
def test_a_percent_is_the_share_of_workloads(percent: int) -> None:
    pods = [pod_of(f"app{number}") for number in range(5000)]
    share = sum(policy_selection.is_enforced_for(by_percent(percent), each) for each in pods) / len(pods)
    assert share == pytest.approx(percent / 100, abs=0.02)


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "Job"])
def test_all_pods_of_a_workload_have_the_same_place_also_after_a_roll_out(kind: str) -> None:
    pods = [
        pod_of("app", template_hash, kind, number)
        for template_hash in ("6f9c", "77d5")
        for number in range(3)
    ]
    assert len({policy_selection.workload_place(KEY, each) for each in pods}) == 1


def test_a_larger_percent_keeps_the_workloads_of_a_smaller_one_and_policies_have_other_canaries() -> None:
    pods = [pod_of(f"app{number}") for number in range(200)]
    parts = [
        {each.metadata.name for each in pods if policy_selection.is_enforced_for(policy, each)}
        for policy in (by_percent(10), by_percent(30), by_percent(10, KEY._replace(name="other")))
    ]
    assert parts[0] < parts[1]
    assert parts[0] != parts[2]


def test_a_pod_without_a_controller_is_its_own_workload() -> None:
    places = {
        policy_selection.workload_place(KEY, PodFields(PodMetadata("web", name=f"pod{number}")))
        for number in range(500)
    }
    assert len(places) > 90


def canary(name: str = "trial", **spec: Any) -> Any:
    return policy_object(name, "d", "1", {"podSelector": ALL, "avoid": [HOT], "mode": "Canary"} | spec)


def test_only_pods_of_the_canary_are_affected() -> None:
    prefer = [{"metric": "load", "order": "Ascending"}]
    cluster, agent = Cluster(canary(canary=TRACK, prefer=prefer)), TelemetryAgent()
    chosen, other = pod({"track": "canary"}), pod({"track": "stable"})
    assert set(cluster.rejected(chosen) or ()) == {"n1"}
    assert cluster.scores(chosen) is not None
    assert agent.equivalence_key(chosen, cluster.snapshot) is not None
    assert cluster.rejected(other) == {}
    assert cluster.scores(other) is None
    assert agent.equivalence_key(other, cluster.snapshot) is None
    verdict = agent.filter(other, candidates(cluster.snapshot, "n1 n2"), cluster.snapshot)
    assert verdict is not None
    assert [each.would_reject.tolist() for each in verdict.policies if each.would_reject is not None] == [
        [True, False]
    ]


def test_an_invalid_canary_has_all_pods() -> None:
    for invalid in ({}, {"percent": 0}, {"podSelector": {"matchLabels": {"a b": "c"}}}):
        assert set(Cluster(canary(canary=invalid)).rejected(pod()) or ()) == {"n1", "n2", "n3"}
    assert set(Cluster(canary()).rejected(pod()) or ()) == {"n1", "n2", "n3"}


def test_an_edit_of_the_canary_makes_waiting_pods_be_matched_again() -> None:
    cluster, agent = Cluster(canary(canary=TRACK), wide("other"), namespaces={"d": {}}), TelemetryAgent()
    before = cluster.snapshot
    cluster.update(canary(canary={"percent": 50}), wide("other"))
    versions = [agent.namespace_equivalence_version(each, "d") for each in (before, cluster.snapshot)]
    assert versions[0] is not versions[1]


@pytest.mark.parametrize(
    ("policy", "has_labels"),
    [
        (Policy(KEY), True),
        (Policy(KEY, mode="Shadow"), False),
        (Policy(KEY, mode="Canary", canary=Canary(LabelSelector())), True),
        (Policy(KEY, mode="Canary", canary=Canary(percent=10)), False),
    ],
)
def test_native_mode_has_labels(policy: Policy, has_labels: bool) -> None:
    assert policy_selection.has_labels(policy) == has_labels
