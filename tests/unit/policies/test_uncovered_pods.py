"""Pods of native mode that a policy selects and that do not require its label."""

from typing import Any

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.policies import native_mode_pods
from nodewise.policies.native_mode_pods import UncoveredPods, UnscheduledPod
from nodewise.policies.placement_policy import (
    AvoidRule,
    Canary,
    Comparison,
    LabelSelector,
    PodSelection,
    Policy,
    PolicyKey,
    Requirement,
)
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.verdict_labels import LabelledPolicy, label_key


def selector(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, "In", frozenset((value,))) for key, value in labels.items()))


COOL = Policy(
    PolicyKey("PlacementPolicy", "web", "cool"),
    avoid=(AvoidRule((Comparison("temp", "above", 80),)),),
    selection=PodSelection(selector(app="shop")),
    uid="u",
)
LABEL = label_key("u")
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
TERM = {"matchExpressions": [{"key": LABEL, "operator": "NotIn", "values": ["violating"]}]}
COVERED = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}
ONLY_PREFERRED = {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": TERM}]}}


def pod(name: str = "a", affinity: Any = None, owner: str = "ReplicaSet", **labels: str) -> UnscheduledPod:
    body = {
        "metadata": {
            "name": name,
            "namespace": "web",
            "labels": labels or {"app": "shop"},
            "ownerReferences": [{"kind": owner, "name": "o", "apiVersion": "apps/v1", "controller": True}],
        },
        "spec": {"affinity": affinity},
    }
    return msgspec.convert(body, UnscheduledPod)


def find(pods: UncoveredPods, policy: Policy = COOL, now_s: float = 0.0) -> dict[str, str]:
    selection = SelectionIndex([policy], {})
    return cooperative_scheduling.run_without_pauses(
        pods.find(selection, {policy.key: LabelledPolicy(policy, None, awaits_metrics=False)}, now_s)
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (pod(), {"u": "web/a"}),
        (pod(affinity=COVERED), {}),
        (pod(affinity=ONLY_PREFERRED), {}),
        (pod(app="other"), {}),
        (pod(owner="DaemonSet"), {}),
    ],
    ids=["no requirement", "required", "preferred", "not selected", "of a DaemonSet"],
)
def test_a_selected_pod_without_the_label(seen: UnscheduledPod, expected: dict[str, str]) -> None:
    pods = UncoveredPods()
    pods.record(seen, 0.0)
    assert find(pods) == expected


def test_the_newest_pod_of_equal_labels_counts_for_an_hour() -> None:
    pods = UncoveredPods()
    pods.record(pod("old"), 0.0)
    pods.record(pod("new", COVERED), 1.0)
    assert find(pods) == {}
    pods.record(pod("newer"), 2.0)
    assert find(pods, now_s=3602.0) == {"u": "web/newer"}
    assert find(pods, now_s=3602.1) == {}


def test_a_policy_without_an_effect_on_the_pod_covers_it() -> None:
    pods = UncoveredPods()
    pods.record(pod(), 0.0)
    trial = Canary(selector(app="shop", trial="yes"))
    assert find(pods, msgspec.structs.replace(COOL, mode="Canary", canary=trial)) == {}
    pods.record(pod("b", None, "ReplicaSet", app="shop", trial="yes"), 0.0)
    assert find(pods, msgspec.structs.replace(COOL, mode="Canary", canary=trial)) == {"u": "web/b"}
    assert find(pods, msgspec.structs.replace(COOL, mode="Shadow")) == {}


def test_a_limited_number_of_groups_is_remembered_of_each_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_mode_pods, "_MAX_GROUPS", 2)
    pods = UncoveredPods()
    pods.record(pod("first"), 0.0)
    for number in range(3):
        other = pod(f"other-{number}", app=f"other-{number}")
        pods.record(msgspec.structs.replace(other, metadata=in_namespace(other, "hostile")), 0.0)
    assert find(pods) == {"u": "web/first"}
    for number in range(2):
        pods.record(pod(f"other-{number}", app=f"other-{number}"), 0.0)
    assert find(pods) == {}


def in_namespace(item: UnscheduledPod, namespace: str) -> Any:
    return msgspec.structs.replace(item.metadata, namespace=namespace)
