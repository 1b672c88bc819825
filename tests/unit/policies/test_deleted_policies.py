"""Policies that were deleted while pods waited for their labels: which pods count, for how long, and their records."""

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.policies.controller import native_mode
from nodewise.policies.controller.native_mode import DeletedPolicies, DeletedPolicy
from nodewise.policies.native_mode_pods import UnscheduledPod
from nodewise.policies.placement_policy import LabelSelector, PodSelection, Policy, PolicyKey, Requirement
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.selected_pods import ListedPod, ListedPodMetadata, PodLabelGroups
from nodewise.policies.verdict_labels import label_key

NOON_S = 1_800_000_000.0
A = label_key("a")
WEB_PODS = PodSelection(LabelSelector((Requirement("app", "In", frozenset(["web"])),)))
CLUSTER_POLICY = Policy(PolicyKey("ClusterPlacementPolicy", "", "a"), selection=WEB_PODS, uid="a")
NONE = SelectionIndex((), {})


def waiting(namespace: str, app: str = "web", key: str = A) -> UnscheduledPod:
    """A pod that waits for a label."""
    body = {"metadata": {"name": "p", "namespace": namespace}, "keys": [key]}
    listed = PodLabelGroups().keep(ListedPod(ListedPodMetadata("p", namespace, {"app": app})))
    assert listed is not None
    return msgspec.structs.replace(
        msgspec.convert(body, UnscheduledPod), keys=frozenset([key]), group=listed.group
    )


def update(
    policies: DeletedPolicies, live: list[Policy], pods: list[UnscheduledPod], now_s: float = NOON_S
) -> dict[str, tuple[str, ...]]:
    """The namespaces of the records after an update with these policies."""
    keys = {label_key(policy.uid): policy.key for policy in live}
    selection = SelectionIndex(live, {}) if live else NONE
    cooperative_scheduling.run_without_pauses(policies.update(keys, selection, pods, now_s))
    return {uid: record.namespaces for uid, record in policies.records.items()}


def test_namespaces_of_the_pods_that_a_cluster_policy_selected_are_recorded() -> None:
    policies = DeletedPolicies()
    pods = [waiting("web"), waiting("db"), waiting("other", app="db")]
    assert update(policies, [CLUSTER_POLICY], pods) == {}
    assert update(policies, [], pods) == {"a": ("db", "web")}
    assert policies.wanted_labels() == [(A, frozenset(["db", "web"]))]
    assert update(policies, [], [waiting("other")]) == {}, (
        "a pod of another namespace does not keep the label"
    )


def test_pods_that_are_seen_after_the_deletion_count() -> None:
    """Pods and policies have separate watches."""
    policies = DeletedPolicies()
    update(policies, [CLUSTER_POLICY], [])
    assert update(policies, [], []) == {}
    assert policies.wanted_labels() == [(A, frozenset([""]))], "the label stays for a moment"
    assert update(policies, [], [waiting("web"), waiting("other", app="db")], NOON_S + 2.9) == {"a": ("web",)}
    update(policies, [CLUSTER_POLICY], [])
    update(policies, [], [])
    assert update(policies, [], [waiting("web")], NOON_S + 3.0) == {}
    assert policies.wanted_labels() == []


def test_a_policy_that_exists_again_is_not_deleted() -> None:
    """The API server may return no policies for a moment."""
    policies = DeletedPolicies()
    update(policies, [CLUSTER_POLICY], [waiting("web")])
    assert update(policies, [], [waiting("web")]) == {"a": ("web",)}
    assert update(policies, [CLUSTER_POLICY], [waiting("web")]) == {}


def test_a_new_leader_continues_with_the_records_and_adds_no_policies_that_it_never_saw() -> None:
    policies = DeletedPolicies()
    record = DeletedPolicy("2027-01-15T08:00:00Z", ("web",))
    policies.begin(native_mode.decode(native_mode.encode({"a": record})))
    pods = [waiting("web"), waiting("web", key=label_key("unknown"))]
    assert update(policies, [], pods, NOON_S + 3599.0) == {"a": ("web",)}
    assert update(policies, [], pods, NOON_S + 3600.0) == {}


def test_a_deletion_in_the_future_of_another_clock_counts_from_now() -> None:
    record = DeletedPolicy("2027-01-15T08:00:00Z", ("web",))
    assert record.age_s(NOON_S - 5.0) == 0.0
    assert record.age_s(NOON_S + 5.0) == 5.0


def test_a_policy_whose_labels_have_no_space_is_forgotten() -> None:
    policies = DeletedPolicies()
    update(policies, [CLUSTER_POLICY], [waiting("web")])
    update(policies, [], [waiting("web")])
    policies.keep(frozenset())
    assert update(policies, [], [waiting("web")]) == {}


def test_the_last_of_the_policies_that_are_deleted_in_one_second_comes_first() -> None:
    policies = DeletedPolicies()
    other = msgspec.structs.replace(CLUSTER_POLICY, uid="b", key=CLUSTER_POLICY.key._replace(name="b"))
    pods = [waiting("web"), waiting("web", key=label_key("b"))]
    update(policies, [CLUSTER_POLICY, other], pods)
    update(policies, [CLUSTER_POLICY], pods, NOON_S + 0.1)
    update(policies, [], pods, NOON_S + 0.2)
    assert [key for key, _ in policies.wanted_labels()] == [A, label_key("b")]


def test_a_record_names_a_limited_number_of_namespaces() -> None:
    policies = DeletedPolicies()
    pods = [waiting(f"n{number:02}") for number in range(30)]
    update(policies, [CLUSTER_POLICY], pods)
    assert [len(namespaces) for namespaces in update(policies, [], pods).values()] == [16]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": {"deletedAt": "yesterday", "namespaces": []}}']
)
def test_records_that_cannot_be_read_keep_no_label(text: str) -> None:
    assert native_mode.decode(text) == {}
