"""The definitions of policies and their admission policies agree with the tables of fields."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import policy_definitions

from nodewise.policies import placement_policy_fields as fields
from nodewise.policies import taspolicy_parser

KINDS = ("placementpolicies", "clusterplacementpolicies")


def schema(plural: str) -> Any:
    definition = yaml.load((policy_definitions.DEPLOY / f"crds/{plural}.yaml").read_text(), yaml.CSafeLoader)
    return definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]


def admission_expression(variable: str) -> str:
    """The expression of a variable of the admission policy."""
    text = (policy_definitions.DEPLOY / "policy-fields.yaml").read_text()
    [expression] = [
        entry["expression"]
        for document in yaml.load_all(text, yaml.CSafeLoader)
        if document["metadata"]["name"] == "nodewise-placement-policy-fields"
        and "variables" in document["spec"]
        for entry in document["spec"]["variables"]
        if entry["name"] == variable
    ]
    return str(expression)


def objects(path: str, field: Any) -> Iterator[tuple[str, Any]]:
    """All fields below a schema with their paths, and the entries of lists."""
    yield path, field
    for name, inner in field.get("properties", {}).items():
        yield from objects(f"{path}.{name}", inner)
    if "items" in field:
        yield from objects(f"{path}[]", field["items"])


@pytest.mark.parametrize(
    ("path", "text"), policy_definitions.generated_files().items(), ids=lambda part: getattr(part, "name", "")
)
def test_generated_files_are_current(path: Path, text: str) -> None:
    assert path.read_text() == text, "run make chart"


@pytest.mark.parametrize("plural", KINDS)
def test_every_field_has_a_description(plural: str) -> None:
    described = [
        *objects("spec", schema(plural)["spec"]),
        *objects("status", schema(plural)["status"]),
    ]
    named = [(path, field) for path, field in described if not path.endswith("values[]")]
    assert [path for path, field in named if len(field.get("description", "")) < 10] == []


def test_only_cluster_placement_policies_have_the_fields_of_the_cluster() -> None:
    namespaced, cluster = (dict(objects("spec", schema(plural)["spec"])) for plural in KINDS)
    in_both = {path for path in cluster if not set(re.findall(r"\w+", path)) & set(fields.CLUSTER_FIELDS)}
    assert namespaced.keys() == in_both


def test_suggestions_are_unambiguous() -> None:
    """The admission policy recognizes a field by its first three letters, or six of those that begin with match."""
    for described in (
        fields.AVOID_RULE,
        fields.LABEL_RULE,
        fields.SPEC,
        fields.PREFERENCE,
        fields.SELECTOR,
        fields.CANARY,
        fields.GUARD,
        fields.REQUIREMENT,
    ):
        names = described.fields
        starts = {name.lower()[: 6 if name.startswith(("match", "maxR", "maxW")) else 3] for name in names}
        assert len(starts) == len(names)


def test_the_indexes_of_the_admission_policy_reach_the_longest_list() -> None:
    limits = [
        field["maxItems"] for _, field in objects("spec", schema(KINDS[1])["spec"]) if "maxItems" in field
    ]
    assert yaml.load(admission_expression("indexes"), yaml.CSafeLoader) == list(range(max(limits)))


def test_the_admission_policy_has_the_label_keys_of_the_parser() -> None:
    patterns = re.findall(r"matches\('\^(.*?)\$'\)", admission_expression("labelKeys"))
    assert patterns == [fields.POD_LABEL_KEY, fields.LABEL_VALUE]
    patterns = re.findall(r"matches\('\^(.*?)\$'\)", admission_expression("nodeLabelKeys"))
    expected = [fields.LABEL_VALUE, fields.NODEWISE_LABEL_KEY, fields.LABELING_KEY, fields.LABEL_NAME]
    assert patterns == expected


def test_fields_of_taspolicies() -> None:
    strategies = schema("taspolicies")["spec"]["properties"]["strategies"]
    [strategy_rule] = strategies["x-kubernetes-validations"]
    assert re.findall(r"'(\w+)'", strategy_rule["rule"]) == list(taspolicy_parser.STRATEGIES)
    assert ", ".join(taspolicy_parser.STRATEGIES) in strategy_rule["message"]
    strategy = strategies["additionalProperties"]
    assert tuple(strategy["properties"]) == taspolicy_parser.STRATEGY_FIELDS
    rule = strategy["properties"]["rules"]["items"]
    assert tuple(rule["properties"]) == taspolicy_parser.RULE_FIELDS
    for kept in (schema("taspolicies")["spec"], strategy, rule):
        assert kept["x-kubernetes-preserve-unknown-fields"], "the admission policy refuses unknown fields"


def test_suggestions_for_taspolicies_are_unambiguous() -> None:
    """The API server recognizes strategies by their first two letters and fields by their first three."""
    for names, length in (
        (taspolicy_parser.STRATEGIES, 2),
        (taspolicy_parser.RULE_FIELDS, 3),
        (taspolicy_parser.STRATEGY_FIELDS, 3),
    ):
        assert len({name[:length].lower() for name in names}) == len(names)
