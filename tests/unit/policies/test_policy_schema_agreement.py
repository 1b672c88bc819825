"""The CRD of TASPolicy, its admission policy and the parser have the same strategies and fields."""

import re
from pathlib import Path
from typing import Any

import yaml

from nodewise.policies import taspolicy_parser as policies

DEPLOY = Path(__file__).parents[3] / "deploy"
SPEC = yaml.safe_load((DEPLOY / "crds/taspolicies.yaml").read_text())["spec"]["versions"][0]["schema"][
    "openAPIV3Schema"
]["properties"]["spec"]
STRATEGIES: dict[str, Any] = SPEC["properties"]["strategies"]
STRATEGY: dict[str, Any] = STRATEGIES["additionalProperties"]
RULE: dict[str, Any] = STRATEGY["properties"]["rules"]["items"]


def admission_fields(variable: str) -> list[str]:
    """A list of the admission policy."""
    policy, *_ = yaml.safe_load_all((DEPLOY / "policy-fields.yaml").read_text())
    [expression] = [entry["expression"] for entry in policy["spec"]["variables"] if entry["name"] == variable]
    return re.findall(r"'(\w+)'", expression)


def test_fields_of_a_rule() -> None:
    assert list(RULE["properties"]) == admission_fields("ruleFields") == list(policies.RULE_FIELDS)


def test_fields_of_a_strategy() -> None:
    assert list(STRATEGY["properties"]) == admission_fields("strategyFields")
    assert list(STRATEGY["properties"]) == list(policies.STRATEGY_FIELDS)


def test_strategies() -> None:
    [rule] = STRATEGIES["x-kubernetes-validations"]
    assert re.findall(r"'(\w+)'", rule["rule"]) == list(policies.STRATEGIES)
    assert ", ".join(policies.STRATEGIES) in rule["message"]


def test_suggestions_are_unambiguous() -> None:
    """The API server recognizes strategies by their first two letters and fields by their first three."""
    assert len({name[:2] for name in policies.STRATEGIES}) == len(policies.STRATEGIES)
    for fields in (policies.RULE_FIELDS, policies.STRATEGY_FIELDS):
        assert len({name[:3].lower() for name in fields}) == len(fields)


def test_unknown_fields_are_kept_for_the_admission_policy_to_refuse() -> None:
    assert all(schema["x-kubernetes-preserve-unknown-fields"] for schema in (SPEC, STRATEGY, RULE))
