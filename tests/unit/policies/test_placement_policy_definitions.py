"""The definitions of both kinds of placement policies and their admission policy have the same fields."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodewise.policies import placement_policy_fields as fields
from nodewise.policies.policy_objects import MAX_METRIC_NAME
from nodewise.policies.rule_operators import OPERATOR_FIELDS, OPERATORS

DEPLOY = Path(__file__).parents[3] / "deploy"
KINDS = ("placementpolicies", "clusterplacementpolicies")
CLUSTER_FIELDS = {"namespaceSelector", "nodeLabels", "query", "emptyMeans"}
"""The fields that only ClusterPlacementPolicy has."""


def definition(plural: str) -> Any:
    return yaml.safe_load((DEPLOY / f"crds/{plural}.yaml").read_text())


def schema(plural: str) -> Any:
    return definition(plural)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def admission_fields(variable: str) -> list[str]:
    """A list of the admission policy, with the fields that only ClusterPlacementPolicy has."""
    return re.findall(r"'(\w+)'", admission_expression(variable))


def admission_expression(variable: str) -> str:
    """The expression of a variable of the admission policy."""
    policies = {
        (document["kind"], document["metadata"]["name"]): document
        for document in yaml.safe_load_all((DEPLOY / "policy-fields.yaml").read_text())
    }
    policy = policies["ValidatingAdmissionPolicy", "nodewise-placement-policy-fields"]
    [expression] = [entry["expression"] for entry in policy["spec"]["variables"] if entry["name"] == variable]
    return str(expression)


def properties(plural: str, *path: str) -> set[str]:
    """The names of the fields at a path; `[]` stands for the entries of a list."""
    field = schema(plural)["spec"]
    for name in path:
        field = field["items"] if name == "[]" else field["properties"][name]
    return set(field["properties"])


def objects(path: str, field: Any) -> Iterator[tuple[str, Any]]:
    """All fields below a schema with their paths, and the entries of lists."""
    yield path, field
    for name, inner in field.get("properties", {}).items():
        yield from objects(f"{path}.{name}", inner)
    if "items" in field:
        yield from objects(f"{path}[]", field["items"])


@pytest.mark.parametrize("plural", KINDS)
def test_every_field_has_a_description(plural: str) -> None:
    fields = [
        *objects("spec", schema(plural)["spec"]),
        *objects("status", schema(plural)["status"]),
    ]
    named = [(path, field) for path, field in fields if not path.endswith("values[]")]
    assert [path for path, field in named if len(field.get("description", "")) < 10] == []


@pytest.mark.parametrize("plural", KINDS)
def test_objects_of_the_spec_keep_unknown_fields_for_the_admission_policy_to_refuse(plural: str) -> None:
    for path, field in objects("spec", schema(plural)["spec"]):
        if "properties" in field:
            assert field["x-kubernetes-preserve-unknown-fields"], path


def test_both_kinds_have_the_same_status_and_columns() -> None:
    namespaced, cluster = (definition(plural)["spec"]["versions"][0] for plural in KINDS)
    assert namespaced["additionalPrinterColumns"] == cluster["additionalPrinterColumns"]
    assert schema(KINDS[0])["status"] == schema(KINDS[1])["status"]


def test_fields_that_both_kinds_have_are_equal() -> None:
    """Except for the descriptions, and rules that name fields of ClusterPlacementPolicy."""
    namespaced, cluster = (dict(objects("spec", schema(plural)["spec"])) for plural in KINDS)
    in_both = {path for path in cluster if not set(re.findall(r"\w+", path)) & CLUSTER_FIELDS}
    assert namespaced.keys() == in_both
    kept = ("type", "enum", "pattern", "maxLength", "minLength", "maxItems", "minItems", "minimum", "maximum")
    for path, field in namespaced.items():
        assert {key: field.get(key) for key in kept} == {key: cluster[path].get(key) for key in kept}, path
        if "properties" not in field:
            assert field.get("x-kubernetes-validations") == cluster[path].get("x-kubernetes-validations"), (
                path
            )


def test_the_admission_policy_has_the_fields_of_the_definitions() -> None:
    comparison = set(admission_fields("comparisonFields"))
    for plural in KINDS:
        allowed = set() if plural == KINDS[1] else CLUSTER_FIELDS
        assert properties(plural) == set(admission_fields("specFields")) - allowed
        part = comparison | {"whenMissing", "release"}
        assert properties(plural, "avoid", "[]") == (part | {"for", "keepFor", "all"}) - allowed
        assert properties(plural, "avoid", "[]", "all", "[]") == part - allowed
        assert properties(plural, "prefer", "[]") == set(admission_fields("preferFields")) - allowed
        assert properties(plural, "podSelector") == set(admission_fields("selectorFields"))
        assert properties(plural, "canary", "podSelector") == set(admission_fields("selectorFields"))
        assert properties(plural, "canary") == set(admission_fields("canaryFields"))
        assert properties(plural, "guard") == set(admission_fields("guardFields"))
        requirement = properties(plural, "podSelector", "matchExpressions", "[]")
        assert requirement == set(admission_fields("requirementFields"))
    assert properties(KINDS[1], "nodeLabels", "[]") == comparison | {"all", "labels"}
    assert properties(KINDS[1], "nodeLabels", "[]", "all", "[]") == comparison
    assert set(admission_fields("clusterFields")) == CLUSTER_FIELDS


def test_suggestions_are_unambiguous() -> None:
    """The admission policy recognizes a field by its first three letters, or six of those that begin with match."""
    rule = [*admission_fields("comparisonFields"), "whenMissing", "all", "labels"]
    avoided = [*rule[:-1], "release", "for", "keepFor"]
    for names in (
        rule,
        avoided,
        admission_fields("specFields"),
        admission_fields("preferFields"),
        admission_fields("selectorFields"),
        admission_fields("canaryFields"),
        admission_fields("guardFields"),
        admission_fields("requirementFields"),
    ):
        starts = {name.lower()[: 6 if name.startswith(("match", "maxR", "maxW")) else 3] for name in names}
        assert len(starts) == len(names)


def test_the_indexes_of_the_admission_policy_reach_the_longest_list() -> None:
    indexes = yaml.safe_load(admission_expression("indexes"))
    limits = [
        field["maxItems"] for _, field in objects("spec", schema(KINDS[1])["spec"]) if "maxItems" in field
    ]
    assert indexes == list(range(max(limits)))


def test_the_parser_has_the_fields_of_the_definitions() -> None:
    cluster = KINDS[1]
    assert properties(cluster) == set(fields.SPEC_FIELDS)
    assert properties(cluster, "avoid", "[]") == set(fields.AVOID_FIELDS)
    assert properties(cluster, "avoid", "[]", "all", "[]") == set(fields.AVOID_PART_FIELDS)
    assert properties(cluster, "prefer", "[]") == set(fields.PREFERENCE_FIELDS)
    assert properties(cluster, "nodeLabels", "[]") == set(fields.LABEL_RULE_FIELDS)
    assert properties(cluster, "nodeLabels", "[]", "all", "[]") == set(fields.COMPARISON_FIELDS)
    assert properties(cluster, "podSelector") == set(fields.SELECTOR_FIELDS)
    assert properties(cluster, "canary") == set(fields.CANARY_FIELDS)
    assert properties(cluster, "guard") == set(fields.GUARD_FIELDS)
    requirement = properties(cluster, "podSelector", "matchExpressions", "[]")
    assert requirement == set(fields.REQUIREMENT_FIELDS)
    assert set(fields.CLUSTER_FIELDS) == CLUSTER_FIELDS


def test_the_parser_has_the_limits_of_the_definitions() -> None:
    spec = dict(objects("spec", schema(KINDS[1])["spec"]))
    rule, selector = "spec.nodeLabels[]", "spec.podSelector"
    limits = {
        (f"{rule}.metric", "maxLength"): MAX_METRIC_NAME,
        (f"{rule}.query", "maxLength"): fields.MAX_QUERY,
        (f"{rule}.above", "maxLength"): fields.MAX_QUANTITY,
        (f"{rule}.above", "pattern"): f"^{fields.QUANTITY}$",
        (f"{rule}.maxAge", "maxLength"): fields.MAX_DURATION,
        (f"{rule}.aggregate", "enum"): list(fields.AGGREGATES),
        (f"{rule}.emptyMeans", "enum"): list(fields.EMPTY_MEANS),
        (f"{rule}.all", "maxItems"): fields.MAX_PARTS,
        (f"{rule}.labels", "maxProperties"): fields.MAX_RULE_LABELS,
        ("spec.avoid[].whenMissing", "enum"): list(fields.WHEN_MISSING),
        ("spec.avoid", "maxItems"): fields.MAX_RULES,
        ("spec.nodeLabels", "maxItems"): fields.MAX_RULES,
        ("spec.prefer", "maxItems"): fields.MAX_PREFERENCES,
        ("spec.prefer[].weight", "maximum"): fields.MAX_WEIGHT,
        ("spec.prefer[].order", "enum"): list(fields.ORDERS),
        ("spec.mode", "enum"): list(fields.MODES),
        ("spec.enforcement", "enum"): list(fields.ENFORCEMENTS),
        ("spec.canary.percent", "maximum"): fields.MAX_PERCENT,
        ("spec.guard.maxRejectedShare", "pattern"): f"^{fields.SHARE}$",
        ("spec.guard.maxWaitingPods", "maximum"): fields.MAX_WAITING_PODS,
        ("spec.guard.within", "pattern"): f"^{fields.GUARD_DURATION}$",
        ("spec.guard.resumeAfter", "pattern"): f"^{fields.GUARD_DURATION}$",
        (f"{selector}.matchLabels", "maxProperties"): fields.MAX_SELECTOR_ENTRIES,
        (f"{selector}.matchExpressions", "maxItems"): fields.MAX_SELECTOR_ENTRIES,
        (f"{selector}.matchExpressions[].key", "maxLength"): fields.MAX_LABEL_KEY,
        (f"{selector}.matchExpressions[].operator", "enum"): list(fields.SELECTOR_OPERATORS),
        (f"{selector}.matchExpressions[].values", "maxItems"): fields.MAX_VALUES,
        (f"{selector}.matchExpressions[].values[]", "maxLength"): fields.MAX_LABEL_VALUE,
    }
    assert {key: spec[key[0]].get(key[1]) for key in limits} == limits
    [age] = spec[f"{rule}.maxAge"]["x-kubernetes-validations"]
    assert f"'^{fields.DURATION}$'" in age["rule"]
    [metric] = spec[f"{rule}.metric"]["x-kubernetes-validations"]
    assert f"'^{fields.METRIC}$'" in metric["rule"]


def test_the_admission_policy_has_the_label_keys_of_the_parser() -> None:
    patterns = re.findall(r"matches\('\^(.*?)\$'\)", admission_expression("labelKeys"))
    assert patterns == [fields.POD_LABEL_KEY, fields.LABEL_VALUE]
    patterns = re.findall(r"matches\('\^(.*?)\$'\)", admission_expression("nodeLabelKeys"))
    assert patterns == [
        fields.LABEL_VALUE,
        fields.NODEWISE_LABEL_KEY,
        fields.LABELING_KEY,
        fields.LABEL_NAME,
    ]


@pytest.mark.parametrize("plural", KINDS)
def test_rules_of_the_definitions_list_all_operators_or_those_with_an_order(plural: str) -> None:
    ordered = {name for name, operator in OPERATORS.items() if operator.order}
    count = 0
    for path, field in objects("spec", schema(plural)["spec"]):
        for validation in field.get("x-kubernetes-validations", []):
            for text in (validation["rule"], validation.get("messageExpression", "")):
                names = set(re.findall(r"has\(self[.](\w+)\)", text)) & set(OPERATOR_FIELDS)
                assert names in (set(), ordered, set(OPERATOR_FIELDS)), path
                count += names == set(OPERATOR_FIELDS)
            if "exactly one of above" in validation["message"]:
                assert validation["message"].endswith(", ".join(OPERATOR_FIELDS)), path
                assert f"{', '.join(OPERATOR_FIELDS)}'" in validation["messageExpression"], path
    assert count >= 5
