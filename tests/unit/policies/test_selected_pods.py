"""Counting of pods by policy, and policies that together leave a pod no node."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.kube.reflector import ObjectDecoder
from nodewise.kube.store import StoreWriter
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import selected_pods
from nodewise.policies.placement_policy import (
    Canary,
    Enforcement,
    LabelSelector,
    Mode,
    Policy,
    PolicyKey,
    Requirement,
)
from nodewise.policies.placement_policy_parser import parse_policy
from nodewise.policies.policy_namespace_trust import NamespaceObject
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.policy_selection import PodFields, PodMetadata, SelectionIndex
from nodewise.policies.rule_evaluation import AvoidVerdict
from nodewise.policies.selected_pods import ListedPod, PodLabelGroups, SelectedPodCounter, SelectedPods
from nodewise.policies.state import PolicyState
from tests.label_selector_cases import SELECTOR_CASES, SelectorCase

HOT = {"metric": "heat", "above": 80}


def placement_policy(name: str, selector: Mapping[str, Any], namespace: str = "web") -> Policy:
    spec = msgspec.Raw(msgspec.json.encode({"podSelector": selector, "avoid": [HOT]}))
    return parse_policy(PolicyObject(PolicyMetadata(name, namespace), spec), "PlacementPolicy")


def namespace(name: str) -> NamespaceObject:
    return msgspec.convert({"metadata": {"name": name}}, NamespaceObject)


def pod(name: str, namespace: str = "web", labels: Any = None, owner: str = "") -> ListedPod:
    owners = [{"kind": owner, "apiVersion": "apps/v1", "controller": True}] if owner else None
    metadata = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owners}
    return msgspec.convert({"metadata": metadata}, ListedPod)


class CountedPods:
    """A store of pods with its counts."""

    def __init__(self) -> None:
        self.groups = PodLabelGroups()
        self.writer: StoreWriter[ListedPod] = StoreWriter()
        self.writer.store.subscribe(partial(self.groups.update, self.writer.store.values))
        self.counter = SelectedPodCounter(self.groups)

    def list(self, *pods: ListedPod) -> None:
        self.writer.replace(filter(None, map(self.groups.keep, pods)))

    def put(self, item: ListedPod) -> None:
        kept = self.groups.keep(item)
        assert kept is not None
        self.writer.apply(kept)

    def count(self, selection: SelectionIndex) -> SelectedPods:
        return cooperative_scheduling.run_without_pauses(self.counter.count(selection))

    def by_name(self, selection: SelectionIndex) -> dict[str, int]:
        return {key.name: count for key, count in self.count(selection).by_policy.items()}


WEB, ANY = placement_policy("of-web", {"matchLabels": {"app": "web"}}), placement_policy("any", {})
SELECTION = SelectionIndex([WEB, ANY], {})


def test_pods_are_counted_by_policy() -> None:
    pods = CountedPods()
    pods.list(
        pod("a", labels={"app": "web"}),
        pod("b", labels={"app": "web"}),
        pod("c"),
        pod("d", "other", {"app": "web"}),
        pod("e", labels={"app": "web"}, owner="DaemonSet"),
        pod("f", labels={"app": "web"}, owner="ReplicaSet"),
    )
    assert pods.by_name(SELECTION) == {"of-web": 3, "any": 4}
    assert pods.count(SELECTION).selections == {(ANY.key,), (ANY.key, WEB.key)}
    assert len(pods.groups.counts) == 4


def test_pods_of_a_canary_are_counted() -> None:
    track = LabelSelector((Requirement("track", "In", frozenset(["canary"])),))
    trial = msgspec.structs.replace(ANY, mode="Canary", canary=Canary(track))
    pods = CountedPods()
    pods.list(pod("a", labels={"track": "canary"}), pod("b"), pod("c", "other", {"track": "canary"}))
    assert pods.count(SelectionIndex([trial], {})).in_canary == {trial.key: 1}
    assert pods.count(SelectionIndex([ANY], {})).in_canary == {}


def test_changes_are_counted() -> None:
    pods = CountedPods()
    pods.list(pod("a", labels={"app": "web"}), pod("b"))
    assert pods.by_name(SELECTION) == {"of-web": 1, "any": 2}
    pods.put(pod("b", labels={"app": "web"}))
    pods.put(pod("c", labels={"app": "db"}))
    assert pods.by_name(SELECTION) == {"of-web": 2, "any": 3}
    pods.writer.remove(("web", "a"))
    pods.writer.remove(("web", "b"))
    assert pods.by_name(SELECTION) == {"any": 1}
    assert len(pods.groups.counts) == 1
    pods.list(pod("a", labels={"app": "web"}))
    assert pods.by_name(SELECTION) == {"of-web": 1, "any": 1}


def test_other_selectors_count_the_same_pods() -> None:
    pods = CountedPods()
    pods.list(pod("a", labels={"app": "db"}))
    assert pods.by_name(SELECTION) == {"any": 1}
    other = SelectionIndex([placement_policy("of-db", {"matchLabels": {"app": "db"}})], {})
    assert pods.by_name(other) == {"of-db": 1}
    assert pods.count(other) is pods.count(other)


def test_pods_of_a_replica_set_share_their_labels() -> None:
    decoder = ObjectDecoder("Pod", ListedPod, MetricsRegistry(), (groups := PodLabelGroups()).keep)
    decoder.restart()
    for number in range(3):
        metadata = {"name": f"p{number}", "namespace": "web", "labels": {"app": "web"}}
        decoder.add(msgspec.Raw(msgspec.json.encode({"metadata": metadata})))
    decoder.finish()
    stored = decoder.store.values()
    assert len({id(item.group) for item in stored}) == 1
    assert {item.metadata.labels for item in stored} == {None}
    del stored
    decoder.restart()
    decoder.finish()
    assert len(groups._groups) == 0, "groups without pods are dropped"


def test_a_pod_with_a_megabyte_of_labels_is_not_counted() -> None:
    labels = {f"key-{number}": "v" * 60 for number in range(1000)}
    assert PodLabelGroups().keep(pod("a", labels=labels)) is None


@pytest.mark.parametrize("case", SELECTOR_CASES, ids=lambda case: case.name)
def test_selectors_agree_with_the_admission_policies(case: SelectorCase) -> None:
    policy = placement_policy("pol", case.selector)
    selected = SelectionIndex([policy], {}).select(PodFields(PodMetadata("web", case.labels)))
    assert policy.problems == ()
    assert selected == ((policy.key,) if case.is_selected else ())


def state(
    key: PolicyKey,
    rejected: str,
    not_enforced: str = "",
    enforcement: Enforcement = "Required",
    mode: Mode = "Enforce",
) -> PolicyState:
    """A policy that rejects the nodes with an x. The last code is that of the unknown node."""
    codes = np.array([*(int(mark == "x") for mark in rejected), 1], np.int16)
    policy = Policy(key, mode=mode, not_enforced=not_enforced, enforcement=enforcement)
    return PolicyState(policy, AvoidVerdict(codes, ()), ())


A, B, C = (PolicyKey("PlacementPolicy", "web", name) for name in "abc")
MISSING = PolicyKey("TASPolicy", "web", "missing")


@pytest.mark.parametrize(
    ("rejected", "selections", "expected"),
    [
        ({A: "xx.", B: "..x"}, [(A, B)], {A: (A, B), B: (A, B)}),
        ({A: "xx.", B: ".x."}, [(A, B)], {}),
        ({A: "xx.", B: "..x"}, [(A,), (B,)], {}),
        ({A: "xxx", B: "..x"}, [(A, B)], {A: (A,)}),
        ({A: "xx.", B: "..x", C: "..."}, [(A, B, C)], {A: (A, B), B: (A, B)}),
        ({A: "xx.", B: "..x", C: ".xx"}, [(A, C), (A, B)], {A: (A, B), B: (A, B), C: (A, C)}),
        ({A: "..."}, [(MISSING, A)], {MISSING: (MISSING,)}),
        ({A: ""}, [(A,)], {}),
        ({A: "x" * 1000}, [(A,)], {A: (A,)}),
    ],
)
def test_policies_that_together_reject_every_node(
    rejected: dict[PolicyKey, str], selections: list[tuple[PolicyKey, ...]], expected: Any
) -> None:
    states = {key: state(key, marks) for key, marks in rejected.items()}
    node_count = len(rejected[A])
    work = selected_pods.find_rejecting_policies(states, node_count, selections)
    assert cooperative_scheduling.run_without_pauses(work) == expected


@pytest.mark.parametrize(
    "other",
    [
        state(A, "xx.", "too many"),
        state(A, "xx.", enforcement="Preferred"),
        state(A, "xx.", mode="Shadow"),
        state(A, "xxx")._replace(awaits_metrics=True),
    ],
    ids=["budget", "preferred", "shadow", "awaits_metrics"],
)
def test_a_policy_that_is_not_enforced_or_not_evaluated_yet_rejects_nothing(other: PolicyState) -> None:
    states = {A: other, B: state(B, "..x")}
    work = selected_pods.find_rejecting_policies(states, 3, [(A, B)])
    assert cooperative_scheduling.run_without_pauses(work) == {}


def test_a_namespace_with_many_sets_of_policies_does_not_displace_those_of_others() -> None:
    """With 50 policies each of 10,000 pods can be selected by a set of its own, which took 0.7 s at each step."""
    keys = [f"k{number}" for number in range(8)]
    hostile = [placement_policy(key, {"matchLabels": {key: "y"}}, "hostile") for key in keys]
    counted = CountedPods()
    sets = [{key: "y" for bit, key in enumerate(keys) if number >> bit & 1} for number in range(1, 256)]
    counted.list(
        *(pod(f"pod-{number}", "hostile", labels) for number, labels in enumerate(sets)),
        pod("web", "web", {"app": "web"}),
    )
    result = counted.count(SelectionIndex([*hostile, WEB, ANY], {}))
    by_namespace = Counter(selection[0].namespace for selection in result.selections)
    assert by_namespace == {"hostile": 100, "web": 1}
    assert result.by_policy[hostile[0].key] == 128


def test_an_edit_in_one_namespace_matches_only_its_pods_again(monkeypatch: pytest.MonkeyPatch) -> None:
    namespaces = {("", name): namespace(name) for name in ("web", "other")}
    other = placement_policy("of-other", {}, "other")
    counted = CountedPods()
    counted.list(pod("a", "web", {"app": "web"}), pod("b", "other", {"app": "b"}))
    before = SelectionIndex([WEB, other], namespaces)
    assert counted.by_name(before) == {"of-web": 1, "of-other": 1}
    edited = placement_policy("of-other", {"matchLabels": {"app": "none"}}, "other")
    after = SelectionIndex([WEB, edited], namespaces, before=before)
    matched: list[str] = []
    select = SelectionIndex.select

    def spy(index: SelectionIndex, fields: PodFields) -> tuple[PolicyKey, ...]:
        matched.append(fields.metadata.namespace)
        return select(index, fields)

    monkeypatch.setattr(SelectionIndex, "select", spy)
    assert counted.by_name(after) == {"of-web": 1}
    assert matched == ["other"]
