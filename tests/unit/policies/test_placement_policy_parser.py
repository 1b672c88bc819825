# ruff: noqa: E501 - the rows of a table
"""The parser of PlacementPolicy and ClusterPlacementPolicy: what it accepts, and how it fails closed."""

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.base import quantity
from nodewise.policies import placement_policy_parser as policies
from nodewise.policies.placement_policy import (
    AvoidRule,
    Comparison,
    Guard,
    LabelRule,
    LabelSelector,
    PodSelection,
    Policy,
    PolicyKey,
    Preference,
    Requirement,
)
from nodewise.policies.policy_objects import MAX_SPEC_BYTES, PolicyMetadata, PolicyObject
from nodewise.policies.rule_operators import expand_ranges
from tests.cluster.placement_policy_specs import ACCEPTED, COOL, HOT, LABEL, RANK, REJECTED, WIDE

Kind = Literal["PlacementPolicy", "ClusterPlacementPolicy"]
WEB = PodSelection(LabelSelector((Requirement("app", "In", frozenset(["web"])),)))


def parse(spec: Any, kind: Kind = "PlacementPolicy") -> Policy:
    namespace = "web" if kind == "PlacementPolicy" else ""
    metadata = PolicyMetadata("pol", namespace, creationTimestamp="2026-01-01T00:00:00Z")
    return policies.parse_policy(PolicyObject(metadata, msgspec.Raw(msgspec.json.encode(spec))), kind)


def without_none(value: Any) -> Any:
    """A copy without fields that are None."""
    if isinstance(value, dict):
        return {key: without_none(field) for key, field in value.items() if field is not None}
    return [without_none(entry) for entry in value] if isinstance(value, list) else value


def messages(spec: Any, kind: Kind = "PlacementPolicy") -> list[str]:
    return [str(problem) for problem in parse(spec, kind).problems]


def rejects_all(policy: Policy) -> bool:
    return [part.unusable for part in policy.avoided()] == [str(policy.problems[0])]


def comparison(metric: str, operator: str, target: int = 0, **more: Any) -> Comparison:
    return Comparison(metric, operator, target * quantity.NANO // 10, when_missing="pass", **more)


def test_all_fields_of_a_placement_policy() -> None:
    hot = comparison("node_hwmon_temp_celsius", "above", 800, max_age_s=120.0, aggregate="max")
    busy = (comparison("cpu_usage_share", "above", 8), comparison("load_average", "above", 20))
    assert parse(COOL) == Policy(
        PolicyKey("PlacementPolicy", "web", "pol"),
        "2026-01-01T00:00:00Z",
        WEB,
        avoid=(AvoidRule((hot,)), AvoidRule(busy)),
        enforcement="Preferred",
        prefer=(
            Preference(comparison("package_power", "below"), 2),
            Preference(comparison("cpu_usage_share", "above")),
        ),
        sections=("avoid", "prefer"),
    )


def test_all_fields_of_a_cluster_placement_policy() -> None:
    policy = parse(WIDE, "ClusterPlacementPolicy")
    hot = Comparison("temp", "above", 80 * quantity.NANO, when_missing="pass")
    assert policy.problems == ()
    assert policy.key.text() == "cluster placement policy pol"
    assert policy.selection == PodSelection(LabelSelector((Requirement("tier", "In", frozenset(["batch"])),)))
    [avoided] = policy.avoided()
    assert (avoided.query, avoided.empty_means) == ("max by (node) (node_disk_errors)", "healthy")
    assert policy.node_labels == (
        LabelRule((hot,), ((("gpu.nodewise.io/suspect", "true"),),)),
        LabelRule(
            (hot, Comparison("query", "equals", when_missing="pass", query="up")),
            ((("pol", "violating"),), ()),
        ),
    )


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ({"key": "a", "operator": "In", "values": ["b", "c"]}, Requirement("a", "In", frozenset("bc"))),
        ({"key": "a", "operator": "NotIn", "values": ["b"]}, Requirement("a", "NotIn", frozenset("b"))),
        ({"key": "a", "operator": "Exists"}, Requirement("a", "Exists")),
        ({"key": "a", "operator": "DoesNotExist", "values": []}, Requirement("a", "DoesNotExist")),
        ({"key": "a", "operator": "Exists", "values": None}, Requirement("a", "Exists")),
    ],
)
def test_requirements_of_a_selector(requirement: Any, expected: Requirement) -> None:
    policy = parse({"podSelector": {"matchExpressions": [requirement]}, "avoid": [HOT]})
    assert policy.selection == PodSelection(LabelSelector((expected,)))


@pytest.mark.parametrize("kind", ["PlacementPolicy", "ClusterPlacementPolicy"])
def test_between_stands_for_two_rules_in_all(kind: Kind) -> None:
    selectors: dict[str, Any] = {"podSelector": {}}
    if kind == "ClusterPlacementPolicy":
        selectors["namespaceSelector"] = {}
    rule = {"metric": "temp", "aggregate": "max", "maxAge": "1m", "whenMissing": "Reject"}
    low, high = rule | {"atLeast": "0.5"}, rule | {"atMost": 80}
    short = parse(selectors | {"avoid": [rule | {"between": ["0.5", 80], "for": "2m"}]}, kind)
    assert short.problems == ()
    assert short == parse(selectors | {"avoid": [{"all": [low, high], "for": "2m"}]}, kind)
    assert parse(selectors | {"avoid": [{"all": [HOT, rule | {"between": ["0.5", 80]}]}]}, kind) == parse(
        selectors | {"avoid": [{"all": [HOT, low, high]}]}, kind
    )


def test_expanded_ranges_are_the_same_policy() -> None:
    rule = {"metric": "temp", "between": [1, 2]}
    labels = {"labels": {"gpu.nodewise.io/suspect": "true"}}
    spec = {
        "podSelector": {},
        "namespaceSelector": {},
        "avoid": [rule | {"keepFor": "1m"}, HOT, {"all": [rule, HOT], "for": "1m"}],
        "prefer": [RANK],
        "nodeLabels": [rule | labels, {"all": [rule], **labels}],
    }
    expanded = expand_ranges(spec)
    assert "between" not in str(expanded)
    assert parse(expanded, "ClusterPlacementPolicy") == parse(spec, "ClusterPlacementPolicy")
    assert expand_ranges(expanded) == expanded


def test_a_policy_of_node_labels_selects_pods_only_by_both_selectors() -> None:
    for spec, expected in (
        ({}, None),
        ({"podSelector": {}}, None),
        ({"podSelector": {}, "namespaceSelector": {}}, PodSelection()),
    ):
        assert parse({"nodeLabels": [LABEL]} | spec, "ClusterPlacementPolicy").selection == expected


@pytest.mark.parametrize("obj", ACCEPTED.values(), ids=ACCEPTED)
def test_accepts_every_policy_that_the_api_server_accepts(obj: Any) -> None:
    policy = parse(without_none(obj["spec"]), obj["kind"])
    assert not policy.problems
    assert not any(comparison.unusable for comparison in policy.comparisons())


@pytest.mark.parametrize(("obj", "parts"), REJECTED.values(), ids=REJECTED)
def test_reports_problems_at_the_place_of_the_api_servers_refusal(obj: Any, parts: list[str]) -> None:
    policy = parse(without_none(obj.get("spec")), obj["kind"])
    fields = [problem.field for problem in policy.problems]
    places = [part.split(":")[0].split(" in body")[0] for part in parts if part.startswith("spec")]
    assert fields
    assert [place for place in places if not any(field.startswith(place) for field in fields)] == []


PROBLEMS: dict[str, tuple[Any, str]] = {
    "a fraction without quotes": (
        {"above": 0.8},
        'spec.avoid[0].above: 0.8; expected an integer of 64 bits, or a text such as "0.8"',
    ),
    "a field of TASPolicy": (
        {"when_missing": "reject"},
        'spec.avoid[0].when_missing: an unknown field; expected metric, aggregate, above, atLeast, below, atMost, equals, notEquals, between, maxAge, whenMissing, release, for, keepFor, all; did you mean "whenMissing"?',
    ),
    "a field of the cluster kind": (
        {"query": "up"},
        "release, for, keepFor, all; only ClusterPlacementPolicy has it",
    ),
    "a text in another case": (
        {"whenMissing": "reject"},
        "spec.avoid[0].whenMissing: 'reject'; expected Allow or Reject; did you mean \"Reject\"?",
    ),
    "two operators": (
        {"below": 3},
        "spec.avoid[0]: above and below; expected exactly one of above, atLeast, below, atMost, equals, notEquals, between",
    ),
    "no metric": (
        {"metric": None},
        "spec.avoid[0]: no metric and no all; expected exactly one of metric, all",
    ),
    "a group with other fields": (
        {"metric": None, "above": None, "all": [HOT], "maxAge": "5m", "aggregate": "max"},
        "spec.avoid[0]: aggregate and maxAge together with all; expected these fields in the rules of all",
    ),
}


@pytest.mark.parametrize(("fields", "message"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_of_a_rule_names_found_and_expected(fields: Any, message: str) -> None:
    problems = messages({"podSelector": {}, "avoid": [HOT | fields]})
    assert any(message in text for text in problems), problems


SPEC_PROBLEMS: dict[str, tuple[Any, Kind, str]] = {
    "no selector": (
        {"avoid": [HOT]},
        "PlacementPolicy",
        "spec.podSelector: no value; expected a label selector; {} selects all pods of the namespace",
    ),
    "one selector of two": (
        {"podSelector": {}, "prefer": [RANK]},
        "ClusterPlacementPolicy",
        "spec.namespaceSelector: no value; expected a label selector together with avoid or prefer; {} selects all namespaces",
    ),
    "a misspelt field of a selector": (
        {"podSelector": {"matchlabels": {"app": "web"}}, "avoid": [HOT]},
        "PlacementPolicy",
        'spec.podSelector.matchlabels: an unknown field; expected matchLabels, matchExpressions; did you mean "matchLabels"?',
    ),
    "a requirement without values": (
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}, "avoid": [HOT]},
        "PlacementPolicy",
        "spec.podSelector.matchExpressions[0].values: no values; expected at least one value with the operator In",
    ),
    "a label of another domain": (
        {"nodeLabels": [LABEL | {"labels": {"node-role.kubernetes.io/master": ""}}]},
        "ClusterPlacementPolicy",
        "spec.nodeLabels[0].labels.node-role.kubernetes.io/master: ''; expected a key whose domain ends in .nodewise.io",
    ),
}


@pytest.mark.parametrize(("spec", "kind", "message"), SPEC_PROBLEMS.values(), ids=SPEC_PROBLEMS)
def test_a_problem_of_the_spec_names_found_and_expected(spec: Any, kind: Kind, message: str) -> None:
    assert any(message in text for text in messages(spec, kind)), messages(spec, kind)


def test_a_query_is_not_part_of_a_problem() -> None:
    rule = {"query": "secret" * 1000, "above": 1}
    spec = {"namespaceSelector": {}, "podSelector": {}, "avoid": [rule]}
    [message] = messages(spec, "ClusterPlacementPolicy")
    assert (
        message == "spec.avoid[0].query: 6000 characters; expected an expression of at most 4096 characters"
    )


def test_the_fields_of_a_guard() -> None:
    guard = {"maxRejectedShare": ".25", "maxWaitingPods": 3, "within": "2m", "resumeAfter": "12h"}
    policy = parse({"podSelector": {}, "avoid": [HOT], "guard": guard})
    assert (policy.guard, policy.problems) == (Guard(".25", 3, 120.0, 43200.0), ())


SELECTED = {"podSelector": {"matchLabels": {"app": "web"}}}


@pytest.mark.parametrize(
    "spec",
    [
        SELECTED | {"avoid": [HOT, {"metric": "temp", "over": 3}]},
        SELECTED | {"avoid": [HOT], "prefered": [RANK]},
        SELECTED | {"avoid": [HOT], "prefer": [RANK | {"weight": 0}]},
        SELECTED | {"avoid": []},
    ],
    ids=str,
)
def test_a_policy_with_a_problem_rejects_all_nodes_for_the_pods_that_it_selects(spec: Any) -> None:
    policy = parse(spec)
    assert rejects_all(policy)
    assert policy.prefer == ()
    assert policy.selection == WEB


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        {"avoid": [HOT]},
        {"podSelector": {"matchLabels": {"app": "web"}, "matchlabels": {}}, "avoid": [HOT]},
        {"podSelector": {"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "a"}]}, "avoid": [HOT]},
        {"podSelector": {"matchLabels": {"app": ["web"]}}, "avoid": [HOT]},
        {"podSelector": "app=web", "avoid": [HOT]},
        {"podSelectors": {"matchLabels": {"app": "web"}}},
    ],
    ids=str,
)
def test_a_policy_with_an_unreadable_selector_selects_all_pods(spec: Any) -> None:
    policy = parse(spec)
    assert rejects_all(policy)
    assert policy.selection == PodSelection()


def test_a_spec_that_is_too_large_rejects_all_nodes_for_all_pods() -> None:
    policy = parse(SELECTED | {"avoid": [HOT], "x": "x" * MAX_SPEC_BYTES})
    assert rejects_all(policy)
    assert policy.selection == PodSelection()
    assert "expected at most 65536" in str(policy.problems[0])


def test_a_policy_without_rules_has_no_effect() -> None:
    policy = parse(SELECTED)
    assert (policy.selection, policy.avoid) == (None, ())
    assert messages(SELECTED) == ["spec: no rules; expected at least one of avoid, prefer"]


def test_valid_node_labels_apply_beside_a_problem() -> None:
    spec = {"podSelector": {}, "avoid": [HOT], "nodeLabels": [LABEL, LABEL | {"above": "hot"}]}
    policy = parse(spec, "ClusterPlacementPolicy")
    assert rejects_all(policy)
    assert len(policy.node_labels) == 1


def test_a_problem_of_node_labels_alone_rejects_no_pods() -> None:
    policy = parse({"nodeLabels": [LABEL, LABEL | {"above": "hot"}]}, "ClusterPlacementPolicy")
    assert (policy.selection, policy.avoid, len(policy.node_labels)) == (None, (), 1)


def test_a_policy_has_at_most_16_different_node_labels() -> None:
    rules = [LABEL | {"labels": {f"gpu.nodewise.io/l{number}": "x"}} for number in range(17)]
    policy = parse({"nodeLabels": rules}, "ClusterPlacementPolicy")
    assert len(policy.node_labels) == 16
    assert [str(problem) for problem in policy.problems] == [
        "spec.nodeLabels: 17 different node labels; expected at most 16 per policy; the others are left out"
    ]


NAMES = [
    "x y",
    *[
        "podSelector",
        "namespaceSelector",
        "matchLabels",
        "matchExpressions",
        "key",
        "operator",
        "values",
        "avoid",
        "prefer",
    ],
    *["nodeLabels", "metric", "query", "all", "above", "order", "weight", "maxAge", "labels"],
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from(["PlacementPolicy", "ClusterPlacementPolicy"]))
def test_any_spec_is_parsed_without_an_error(spec: Any, kind: Kind) -> None:
    policy = parse(spec, kind)
    assert policy.problems or not any(comparison.unusable for comparison in policy.comparisons())
