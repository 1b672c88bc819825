from typing import Any

import pytest

from nodewise.scheduling_model import parsed_nodes_and_pods, scheduler_plugins
from nodewise.scheduling_model.parsed_nodes_and_pods import Node, Pod, Taint
from tests.cluster import kubernetes_objects as made

NODE = parsed_nodes_and_pods.node(
    made.node("a", labels={"disk": "ssd", "cores": "8", "web-policy": "violating"})
)

Requirement = dict[str, Any]


def needs(*requirements: Requirement, kind: str = "matchExpressions") -> Pod:
    return affine({"requiredDuringSchedulingIgnoredDuringExecution": terms({kind: list(requirements)})})


def terms(*each: Requirement) -> Requirement:
    return {"nodeSelectorTerms": list(each)}


def affine(affinity: Requirement) -> Pod:
    return with_spec(affinity={"nodeAffinity": affinity})


def with_spec(**spec: Any) -> Pod:
    return parsed_nodes_and_pods.pod({"metadata": {"name": "web"}, "spec": spec})


def want(key: str, operator: str, *values: str) -> Requirement:
    return {"key": key, "operator": operator, "values": list(values)}


REQUIREMENTS = {
    "In": (want("disk", "In", "hdd", "ssd"), True),
    "In another": (want("disk", "In", "hdd"), False),
    "In, without the label": (want("gone", "In", "x"), False),
    "NotIn": (want("web-policy", "NotIn", "violating"), False),
    "NotIn, without the label": (want("other-policy", "NotIn", "violating"), True),
    "Exists": (want("disk", "Exists"), True),
    "DoesNotExist": (want("disk", "DoesNotExist"), False),
    "Gt": (want("cores", "Gt", "7"), True),
    "Gt, equal": (want("cores", "Gt", "8"), False),
    "Lt": (want("cores", "Lt", "9"), True),
    "Gt, no number": (want("disk", "Gt", "1"), False),
    "Gt, several values": (want("cores", "Gt", "1", "2"), False),
    "an operator that nobody knows": (want("disk", "Near", "ssd"), False),
}


@pytest.mark.parametrize(("requirement", "matches"), REQUIREMENTS.values(), ids=REQUIREMENTS)
def test_requirements(requirement: Requirement, *, matches: bool) -> None:
    assert scheduler_plugins.matches(needs(requirement), NODE) is matches


FIELDS = {
    "the node's name": (want("metadata.name", "In", "a"), True),
    "another name": (want("metadata.name", "In", "b"), False),
    "not the node's name": (want("metadata.name", "NotIn", "a"), False),
    "two names": (want("metadata.name", "In", "a", "b"), False),
    "another field": (want("metadata.uid", "In", "a"), False),
}


@pytest.mark.parametrize(("requirement", "matches"), FIELDS.values(), ids=FIELDS)
def test_fields(requirement: Requirement, *, matches: bool) -> None:
    assert scheduler_plugins.matches(needs(requirement, kind="matchFields"), NODE) is matches


def test_a_term_wants_all_and_one_term_is_enough() -> None:
    ssd, hdd = want("disk", "In", "ssd"), want("disk", "In", "hdd")
    assert not scheduler_plugins.matches(needs(ssd, hdd), NODE)
    either = terms({"matchExpressions": [hdd]}, {"matchExpressions": [ssd]})
    assert scheduler_plugins.matches(affine({"requiredDuringSchedulingIgnoredDuringExecution": either}), NODE)


def test_an_empty_term_matches_nothing() -> None:
    assert not scheduler_plugins.matches(
        affine({"requiredDuringSchedulingIgnoredDuringExecution": terms({})}), NODE
    )


def test_a_node_selector_holds_beside_the_affinity() -> None:
    assert scheduler_plugins.matches(with_spec(nodeSelector={"disk": "ssd"}), NODE)
    assert not scheduler_plugins.matches(with_spec(nodeSelector={"disk": "hdd"}), NODE)
    assert scheduler_plugins.matches(with_spec(), NODE)


def test_preferences_add_up() -> None:
    preferred = [
        {"weight": 5, "preference": {"matchExpressions": [want("disk", "Exists")]}},
        {"weight": 3, "preference": {"matchExpressions": [want("cores", "Gt", "1")]}},
        {"weight": 100, "preference": {"matchExpressions": [want("disk", "In", "hdd")]}},
    ]
    liked = affine({"preferredDuringSchedulingIgnoredDuringExecution": preferred})
    assert scheduler_plugins.preference(liked, NODE) == 8


TAINT = Taint(key="k", value="v", effect="NoSchedule")
TOLERATIONS = {
    "the same": ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}, True),
    "Equal is the default": ({"key": "k", "value": "v"}, True),
    "another value": ({"key": "k", "value": "w"}, False),
    "another key": ({"key": "l", "operator": "Exists"}, False),
    "another effect": ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
    "Exists, whatever the value": ({"key": "k", "operator": "Exists"}, True),
    "everything": ({"operator": "Exists"}, True),
    "an operator that nobody knows": ({"key": "k", "operator": "Like", "value": "v"}, False),
}


@pytest.mark.parametrize(("toleration", "tolerates"), TOLERATIONS.values(), ids=TOLERATIONS)
def test_tolerations(toleration: Requirement, *, tolerates: bool) -> None:
    assert scheduler_plugins.tolerates(toleration, TAINT) is tolerates


def test_only_taints_of_the_effects_asked_for_are_found() -> None:
    soft = {"key": "k", "effect": "PreferNoSchedule"}
    node: Node = parsed_nodes_and_pods.node(made.node("a") | {"spec": {"taints": [soft]}})
    assert not scheduler_plugins.untolerated(with_spec(), node, scheduler_plugins.NOT_SCHEDULED)
    assert len(scheduler_plugins.untolerated(with_spec(), node, scheduler_plugins.NOT_PREFERRED)) == 1
