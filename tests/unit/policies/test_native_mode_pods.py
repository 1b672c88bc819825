"""Pods of native mode without a node: the labels that they require, the keys of other policies, the removal of their
gate, and pods that a policy selects and that do not require its label."""

from typing import Any, Final

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.policies import native_mode_pods
from nodewise.policies.native_mode_admission import GATE
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
from nodewise.policies.policy_namespace_trust import NamespaceObject
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.verdict_labels import LabelledPolicy, label_key

A, B = label_key("a"), label_key("b")
OWN_GATE, OUR_GATE = {"name": "example.com/wait"}, {"name": GATE}
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)


def selector(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, "In", frozenset((value,))) for key, value in labels.items()))


def not_violating(*keys: str) -> dict[str, Any]:
    """A node selector term."""
    return {"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["violating"]} for key in keys]}


def is_ok(*keys: str) -> dict[str, Any]:
    """A node selector term, as earlier versions added it."""
    return {"matchExpressions": [{"key": key, "operator": "In", "values": ["ok"]} for key in keys]}


def seen(
    name: str = "p",
    namespace: str = "web",
    *terms: Any,
    gates: list[Any] | None = None,
    labels: dict[str, str] | None = None,
    owner: str = "ReplicaSet",
    **spec: Any,
) -> UnscheduledPod:
    """A pod as the API server returns it."""
    if terms:
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    owners = [{"kind": owner, "name": "o", "apiVersion": "apps/v1", "controller": True}]
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "labels": labels,
        "ownerReferences": owners,
    }
    body = {"metadata": metadata, "spec": {"schedulingGates": gates, **spec}}
    return msgspec.convert(body, UnscheduledPod)


def stored(*arguments: Any, **more: Any) -> UnscheduledPod:
    """The same as it is stored."""
    kept = native_mode_pods.keep_pod(seen(*arguments, **more))
    assert kept is not None
    return kept


@pytest.mark.parametrize(
    "pod",
    [seen(), seen(gates=[OWN_GATE]), seen("p", "web", not_violating("zone")), seen("p", "web", {})],
)
def test_pods_that_native_mode_does_not_concern_are_not_stored(pod: UnscheduledPod) -> None:
    assert native_mode_pods.keep_pod(pod) is None


@pytest.mark.parametrize(
    ("pod", "keys", "keys_with_ok", "gate"),
    [
        (stored(gates=[OUR_GATE]), set(), set(), 0),
        (
            stored("p", "web", not_violating("zone", A), is_ok(B), gates=[OWN_GATE, OUR_GATE]),
            {A, B},
            {B},
            1,
        ),
        (stored(nodeSelector={"zone": "z", A: "ok"}), {A}, {A}, -1),
    ],
    ids=["gate", "affinity", "a node selector requires ok"],
)
def test_requirements_and_gate_of_a_pod(
    pod: UnscheduledPod, keys: set[str], keys_with_ok: set[str], gate: int
) -> None:
    assert (pod.keys, pod.keys_with_ok, pod.gate) == (keys, keys_with_ok, gate)
    assert pod.spec == UnscheduledPod().spec, "the spec takes no memory"


MANY: Final = [label_key(str(number)) for number in range(1000)]


@pytest.mark.parametrize(
    "pod", [stored("p", "web", is_ok(*MANY), is_ok(*MANY)), stored(nodeSelector=dict.fromkeys(MANY, "ok"))]
)
def test_a_pod_requires_a_limited_number_of_labels(pod: UnscheduledPod) -> None:
    assert (len(pod.keys), len(pod.keys_with_ok)) == (64, 64)


def test_a_pod_requires_ok_of_the_policies_of_its_own_namespace_and_of_the_cluster() -> None:
    pods = [stored("p", "web", is_ok(A)), stored("q", "db", not_violating(A), is_ok(B))]
    assert native_mode_pods.keys_with_ok(pods) == {("web", A), ("", A), ("db", B), ("", B)}


def test_pods_without_a_gate_that_no_node_matches_count_as_rejected() -> None:
    waiting, gated = (
        stored("p", "web", not_violating(A)),
        stored("p", "web", not_violating(A), gates=[OUR_GATE]),
    )
    rejected = [msgspec.structs.replace(pod, lacks_matching_node=True) for pod in (waiting, gated)]
    assert native_mode_pods.count_rejected([waiting, gated, *rejected]) == 1


@pytest.mark.parametrize(
    ("settled", "released"), [((), ["none"]), ((A,), ["a", "none"]), ((A, B), ["a", "ab", "none"])]
)
def test_the_gate_of_a_pod_is_removed_when_all_its_policies_are_settled(
    settled: tuple[str, ...], released: list[str]
) -> None:
    pods = [
        stored("a", "web", not_violating(A), gates=[OUR_GATE]),
        stored("ab", "web", not_violating(A, B), gates=[OUR_GATE]),
        stored("none", gates=[OUR_GATE]),
        stored("ungated", "web", not_violating(A)),
    ]
    result = native_mode_pods.releasable_pods(pods, frozenset(settled))
    assert [pod.metadata.name for pod in result] == released


@pytest.mark.parametrize(("count", "is_released"), [(62, True), (63, False), (64, False), (1000, False)])
def test_the_gate_of_a_pod_that_requires_more_labels_than_are_read_stays(
    count: int, is_released: bool
) -> None:
    """A tenant may add labels to the node selector of a pod with gates, so that its real ones are not read."""
    keys = [label_key(f"added-{number}") for number in range(count)]
    pod = stored("p", "web", not_violating(A), gates=[OUR_GATE], nodeSelector=dict.fromkeys(keys, "ok"))
    assert bool(native_mode_pods.releasable_pods([pod], frozenset([A, *keys]))) == is_released
    assert native_mode_pods.releasable_pods([pod], frozenset(keys)) == []


def test_namespaces_take_turns() -> None:
    many = [stored(f"m{number}", "busy", gates=[OUR_GATE]) for number in range(3)]
    pods = native_mode_pods.releasable_pods([*many, stored("f", "quiet", gates=[OUR_GATE])], frozenset())
    assert [pod.metadata.name for pod in pods] == ["m0", "f", "m1", "m2"]


def test_the_patch_fails_for_another_pod_or_changed_gates() -> None:
    assert native_mode_pods.gate_removal(stored(gates=[OWN_GATE, OUR_GATE])) == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-p"},
        {"op": "test", "path": "/spec/schedulingGates/1", "value": {"name": GATE}},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]


def exclusion(*names: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in names]


ONLY_EXCLUSION = {"nodeSelectorTerms": [{"matchFields": exclusion("n1", "n2")}]}
TERMS = f"/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms"


@pytest.mark.parametrize(
    ("affinity", "operations"),
    [
        (None, [("/spec/affinity", {"nodeAffinity": {REQUIRED: ONLY_EXCLUSION}})]),
        ({"podAffinity": {}}, [("/spec/affinity/nodeAffinity", {REQUIRED: ONLY_EXCLUSION})]),
        ({"nodeAffinity": {}}, [(f"/spec/affinity/nodeAffinity/{REQUIRED}", ONLY_EXCLUSION)]),
        (
            {
                "nodeAffinity": {
                    REQUIRED: {
                        "nodeSelectorTerms": [
                            not_violating(A),
                            {},
                            {"matchFields": exclusion("n2")},
                            {"matchFields": exclusion("n1", "n2")},
                        ]
                    }
                }
            },
            [
                (f"{TERMS}/0/matchFields", exclusion("n1", "n2")),
                (f"{TERMS}/2/matchFields/-", exclusion("n1")[0]),
            ],
        ),
    ],
)
def test_a_pod_excludes_nodes_by_name_when_its_gate_is_removed(
    affinity: dict[str, Any] | None, operations: list[tuple[str, Any]]
) -> None:
    pod = stored(gates=[OUR_GATE], affinity=affinity)
    patch = native_mode_pods.gate_removal(pod, frozenset(["n1", "n2"]))
    assert patch is not None
    assert [(each["path"], each["value"]) for each in patch if each["op"] == "add"] == operations
    assert patch[-1] == {"op": "remove", "path": "/spec/schedulingGates/0"}


def test_a_pod_with_very_many_terms_keeps_its_gate_while_nodes_refuse_labels() -> None:
    pod = stored("p", "web", *[not_violating(A)] * 65, gates=[OUR_GATE])
    assert native_mode_pods.gate_removal(pod, frozenset(["n1"])) is None
    assert native_mode_pods.gate_removal(pod) is not None


WEB: Final = PolicyKey("PlacementPolicy", "web", "cool")
NAMED: Final = PolicyKey("TASPolicy", "web", "old")
WIDE: Final = PolicyKey("ClusterPlacementPolicy", "", "wide")
NARROW: Final = PolicyKey("ClusterPlacementPolicy", "", "narrow")
KEYS: Final = {label_key(key.name): key for key in (WEB, NAMED, WIDE, NARROW)}


def _policy(key: PolicyKey, selection: PodSelection | None = None) -> Policy:
    return Policy(key, "", selection, avoid=(AvoidRule((Comparison("heat", "above", 80),)),), uid=key.name)


SELECTION: Final = SelectionIndex(
    [
        _policy(WEB, PodSelection(selector(app="other"))),
        _policy(NAMED),
        _policy(WIDE, PodSelection(selector(app="web"), selector(team="a"))),
        _policy(NARROW, PodSelection(selector(app="other"), LabelSelector())),
    ],
    {
        ("", name): msgspec.convert({"metadata": {"name": name, "labels": labels}}, NamespaceObject)
        for name, labels in {"web": {"team": "a"}, "shop": {}, "kube-system": {"team": "a"}}.items()
    },
)


def own_keys(*arguments: Any, **more: Any) -> tuple[set[str], bool]:
    """The names of the policies whose keys count for a pod, and whether there are others."""
    group = UncoveredPods().record(seen(*arguments, **more), 0.0)
    pod = msgspec.structs.replace(stored(*arguments, **more), group=group)
    (kept,) = cooperative_scheduling.run_without_pauses(
        native_mode_pods.remove_foreign_keys([pod], KEYS, SELECTION)
    )
    assert kept.keys == kept.keys_with_ok
    return {key.removeprefix(label_key("")) for key in kept.keys}, kept.names_foreign_key


@pytest.mark.parametrize(
    ("namespace", "labels", "own"),
    [
        ("web", {"app": "web"}, {"cool", "old", "wide"}),
        ("web", {}, {"cool", "old"}),
        ("web", {"app": "other"}, {"cool", "old", "narrow"}),
        ("shop", {"app": "web"}, set()),
        ("shop", {"app": "other"}, {"narrow"}),
        ("kube-system", {"app": "web"}, set()),
        ("web", {"app": "web", "large": "x" * 20_000}, {"cool", "old"}),
    ],
    ids=[
        "selected",
        "no labels",
        "other labels",
        "namespace",
        "other namespace",
        "kube-system",
        "large labels",
    ],
)
def test_keys_of_other_policies_are_removed(namespace: str, labels: dict[str, str], own: set[str]) -> None:
    assert own_keys("p", namespace, is_ok(*KEYS), labels=labels) == (own, True)


def test_keys_of_own_and_of_deleted_policies_stay() -> None:
    keys = is_ok(label_key("cool"), label_key("wide"), label_key("deleted"))
    assert own_keys("p", "web", keys, labels={"app": "web"}) == ({"cool", "wide", "deleted"}, False)


def test_owner_reference_to_a_daemonset_changes_nothing() -> None:
    """A pod that the DaemonSet controller creates has no key; a tenant may name any owner."""
    wide = is_ok(label_key("wide"))
    assert own_keys("p", "web", wide, labels={"app": "web"}, owner="DaemonSet") == ({"wide"}, False)


COOL = Policy(
    PolicyKey("PlacementPolicy", "web", "cool"),
    avoid=(AvoidRule((Comparison("temp", "above", 80),)),),
    selection=PodSelection(selector(app="shop")),
    uid="u",
)
LABEL = label_key("u")
SHOP = {"app": "shop"}
ONLY_PREFERRED = {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": not_violating(LABEL)}]}}


def find(pods: UncoveredPods, policy: Policy = COOL, now_s: float = 0.0) -> dict[str, str]:
    selection = SelectionIndex([policy], {})
    return cooperative_scheduling.run_without_pauses(
        pods.find(selection, {policy.key: LabelledPolicy(policy, None, awaits_metrics=False)}, now_s)
    )


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (seen("a", labels=SHOP), {"u": "web/a"}),
        (seen("a", "web", not_violating(LABEL), labels=SHOP), {}),
        (seen("a", labels=SHOP, affinity=ONLY_PREFERRED), {}),
        (seen("a", labels={"app": "other"}), {}),
        (seen("a", labels=SHOP, owner="DaemonSet"), {}),
    ],
    ids=["no requirement", "required", "preferred", "not selected", "of a DaemonSet"],
)
def test_a_selected_pod_without_the_label(pod: UnscheduledPod, expected: dict[str, str]) -> None:
    pods = UncoveredPods()
    pods.record(pod, 0.0)
    assert find(pods) == expected


def test_the_newest_pod_of_equal_labels_counts_for_an_hour() -> None:
    pods = UncoveredPods()
    pods.record(seen("old", labels=SHOP), 0.0)
    pods.record(seen("new", "web", not_violating(LABEL), labels=SHOP), 1.0)
    assert find(pods) == {}
    pods.record(seen("newer", labels=SHOP), 2.0)
    assert find(pods, now_s=3602.0) == {"u": "web/newer"}
    assert find(pods, now_s=3602.1) == {}


def test_a_policy_without_an_effect_on_the_pod_covers_it() -> None:
    pods = UncoveredPods()
    pods.record(seen(labels=SHOP), 0.0)
    trial = Canary(selector(app="shop", trial="yes"))
    assert find(pods, msgspec.structs.replace(COOL, mode="Canary", canary=trial)) == {}
    pods.record(seen("b", labels={**SHOP, "trial": "yes"}), 0.0)
    assert find(pods, msgspec.structs.replace(COOL, mode="Canary", canary=trial)) == {"u": "web/b"}
    assert find(pods, msgspec.structs.replace(COOL, mode="Shadow")) == {}


def test_a_limited_number_of_groups_is_remembered_of_each_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_mode_pods, "_MAX_GROUPS", 2)
    pods = UncoveredPods()
    pods.record(seen("first", labels=SHOP), 0.0)
    for number in range(3):
        pods.record(seen("other", "hostile", labels={"app": f"other-{number}"}), 0.0)
    assert find(pods) == {"u": "web/first"}
    for number in range(2):
        pods.record(seen("other", labels={"app": f"other-{number}"}), 0.0)
    assert find(pods) == {}
