"""Pods without a node: the labels that they require, and the removal of their gate."""

from typing import Any

import msgspec
import pytest

from nodewise.policies import native_mode_pods
from nodewise.policies.native_mode_pods import GATE, UnscheduledPod
from nodewise.policies.verdict_labels import label_key

A, B = label_key("a"), label_key("b")
OWN_GATE = {"name": "example.com/wait"}


def stored(name: str = "p", namespace: str = "web", gates: list[Any] | None = None, *terms: Any) -> Any:
    """The pod as it is stored. A term is a list of requirements, each a key and values; one value means `NotIn`."""
    selector = {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": key, "operator": "In" if values == ["ok"] else "NotIn", "values": values}
                    for key, values in term
                ]
            }
            for term in terms
        ]
    }
    affinity = (
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}} if terms else None
    )
    body = {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"affinity": affinity, "schedulingGates": gates},
    }
    return native_mode_pods.keep_pod(msgspec.convert(body, UnscheduledPod))


def test_only_pods_that_native_mode_concerns_are_stored() -> None:
    assert stored() is None
    assert stored(gates=[OWN_GATE]) is None
    assert stored("p", "web", None, [("zone", ["z"])]) is None
    assert stored("p", "web", None, []) is None
    assert stored(gates=[{"name": GATE}]).gate == 0


def test_requirements_of_a_pod_for_labels() -> None:
    pod = stored("p", "web", [OWN_GATE, {"name": GATE}], [("zone", ["z"]), (A, ["violating"])], [(B, ["ok"])])
    assert (pod.keys, pod.keys_with_ok, pod.gate) == ({A, B}, {B}, 1)
    assert pod.spec == UnscheduledPod().spec, "the spec takes no memory"


def test_a_node_selector_requires_ok() -> None:
    spec = {"nodeSelector": {"zone": "z", A: "ok"}}
    pod = native_mode_pods.keep_pod(msgspec.convert({"spec": spec}, UnscheduledPod))
    assert pod is not None
    assert (pod.keys, pod.keys_with_ok) == ({A}, {A})
    assert pod.spec == UnscheduledPod().spec, "the spec takes no memory"


def test_a_pod_requires_a_limited_number_of_labels() -> None:
    keys = [label_key(str(number)) for number in range(1000)]
    terms = [(key, ["ok"]) for key in keys]
    pod = stored("p", "web", None, terms, terms)
    assert (len(pod.keys), len(pod.keys_with_ok)) == (64, 64)
    spec = {"nodeSelector": dict.fromkeys(keys, "ok")}
    selects = native_mode_pods.keep_pod(msgspec.convert({"spec": spec}, UnscheduledPod))
    assert selects is not None
    assert (len(selects.keys), len(selects.keys_with_ok)) == (64, 64)


def test_a_pod_requires_ok_of_the_policies_of_its_own_namespace_and_of_the_cluster() -> None:
    pods = [
        stored("p", "web", None, [(A, ["ok"])]),
        stored("q", "db", None, [(A, ["violating"]), (B, ["ok"])]),
    ]
    assert native_mode_pods.keys_with_ok(pods) == {("web", A), ("", A), ("db", B), ("", B)}


def test_pods_without_a_gate_that_no_node_matches_count_as_rejected() -> None:
    waiting = stored("p", "web", None, [(A, ["violating"])])
    gated = stored("p", "web", [{"name": GATE}], [(A, ["violating"])])
    rejected = [msgspec.structs.replace(pod, lacks_matching_node=True) for pod in (waiting, gated)]
    assert native_mode_pods.count_rejected([waiting, gated, *rejected]) == 1


def test_the_gate_of_a_pod_is_removed_when_all_its_policies_are_settled() -> None:
    gate = [{"name": GATE}]
    pods = [
        stored(name, "web", gate, [(key, ["violating"]) for key in keys])
        for name, keys in (("a", [A]), ("ab", [A, B]), ("none", []))
    ]
    waits = stored("ungated", "web", None, [(A, ["violating"])])

    def released(*settled: str) -> list[str]:
        released_pods = native_mode_pods.releasable_pods([*pods, waits], frozenset(settled))
        return [pod.metadata.name for pod in released_pods]

    assert released() == ["none"]
    assert released(A) == ["a", "none"]
    assert released(A, B) == ["a", "ab", "none"]


def test_the_gate_of_a_pod_that_requires_more_labels_than_are_read_stays() -> None:
    """A tenant may add labels to the node selector of a pod with gates, so that its real ones are not read."""
    expression = {"key": A, "operator": "NotIn", "values": ["violating"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    for count, is_released in ((62, True), (63, False), (64, False), (1000, False)):
        keys = [label_key(f"added-{number}") for number in range(count)]
        spec = {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "nodeSelector": dict.fromkeys(keys, "ok"),
            "schedulingGates": [{"name": GATE}],
        }
        pod = native_mode_pods.keep_pod(msgspec.convert({"spec": spec}, UnscheduledPod))
        assert pod is not None
        released = native_mode_pods.releasable_pods([pod], frozenset([A, *keys]))
        assert bool(released) == is_released
        assert native_mode_pods.releasable_pods([pod], frozenset(keys)) == []


def test_namespaces_take_turns() -> None:
    gate = [{"name": GATE}]
    many = [stored(f"m{number}", "busy", gate) for number in range(3)]
    few = [stored("f", "quiet", gate)]
    names = [pod.metadata.name for pod in native_mode_pods.releasable_pods([*many, *few], frozenset())]
    assert names == ["m0", "f", "m1", "m2"]


def test_the_patch_fails_for_another_pod_or_changed_gates() -> None:
    assert native_mode_pods.gate_removal(stored(gates=[OWN_GATE, {"name": GATE}])) == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-p"},
        {"op": "test", "path": "/spec/schedulingGates/1", "value": {"name": GATE}},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]


def exclusion(*names: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in names]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
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
                            {"matchExpressions": [{"key": A, "operator": "NotIn", "values": ["violating"]}]},
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
    body = {"spec": {"affinity": affinity, "schedulingGates": [{"name": GATE}]}}
    pod = native_mode_pods.keep_pod(msgspec.convert(body, UnscheduledPod))
    assert pod is not None
    patch = native_mode_pods.gate_removal(pod, frozenset(["n1", "n2"]))
    assert patch is not None
    assert [(each["path"], each["value"]) for each in patch if each["op"] == "add"] == operations
    assert patch[-1] == {"op": "remove", "path": "/spec/schedulingGates/0"}


def test_a_pod_with_very_many_terms_keeps_its_gate_while_nodes_refuse_labels() -> None:
    terms = [{"matchExpressions": [{"key": A, "operator": "NotIn", "values": ["violating"]}]}] * 65
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    body = {"spec": {"affinity": affinity, "schedulingGates": [{"name": GATE}]}}
    pod = native_mode_pods.keep_pod(msgspec.convert(body, UnscheduledPod))
    assert pod is not None
    assert native_mode_pods.gate_removal(pod, frozenset(["n1"])) is None
    assert native_mode_pods.gate_removal(pod) is not None
