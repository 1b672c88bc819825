"""`nodewise policy lint` and a real API server reject the same policies."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodewise.policies import taspolicy_parser as policies
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policy_tools import policy_lint
from tests.cluster import extender_process
from tests.cluster.api_client import ApiError, ClusterApi
from tests.cluster.controlplane import ControlPlane
from tests.conformance.tas import case_table_rows
from tests.conformance.tas.non_request_rows import DefinitionTable

PATH = "/apis/telemetry.intel.com/v1alpha1/namespaces/default/taspolicies"
WHOLE: dict[str, Any] = {
    "apiVersion": "telemetry.intel.com/v1alpha1",
    "kind": "TASPolicy",
    "metadata": {"name": "p", "namespace": "default", "labels": {"a": "b"}, "annotations": {"x.y/z": "any"}},
    "spec": {
        "strategies": {
            "dontschedule": {
                "policyName": "p",
                "logicalOperator": "allOf",
                "rules": [
                    {"metricname": "m", "operator": "Equals", "target": 1, "when_missing": "pass"},
                    {"metricname": "m", "operator": "LessThan", "target": "0.8", "max_age": "90s"},
                ],
            },
            "labeling": {"rules": [{"metricname": "m", "operator": "Equals", "labels": ["a=b"]}]},
        }
    },
}
NAMES = [
    *("name", "namespace", "generateName", "labels", "annotations", "strategies", "rules", "metricname"),
    *(
        "operator",
        "target",
        "max_age",
        "query",
        "when_missing",
        "logicalOperator",
        "policyName",
        "deschedule",
    ),
    *("dontSchedule", "Target", "maxAge", "logicaloperator", "colour", "a b", "a/b/c", ".a", ""),
]
ATOMS = [
    *(None, True, 0, -1, 1.0, 1e3, 0.8, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1e30, [], {}, [None]),
    *(
        "",
        "m",
        "a=b",
        "Equals",
        "equals",
        "0.8",
        "64Gi",
        "90s",
        "90",
        "90s\n",
        "m\n",
        "pass",
        "allOf",
        "Bad_Name",
    ),
    *("m" * 253, "m" * 254, "q" * 4096, "q" * 4097, "a.b", "a.b/c", "-a", "ä", "default", "A"),
]


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[ClusterApi]:
    extender_process.define(plane.api)
    with extender_process.refusing_unknown_fields(plane.api):
        yield plane.api


def refusal(api: ClusterApi, policy: Any) -> str:
    """The error of the API server for a policy; empty if it accepts the policy. Nothing is stored."""
    try:
        api.request("POST", PATH, json=policy, params={"dryRun": "All", "fieldValidation": "Ignore"})
    except ApiError as error:
        return str(error)
    return ""


def expected_refusals(policy: Any) -> list[str]:
    """The problems of a policy for which the API server must refuse it as well."""
    spec = PolicyObject(spec=msgspec.Raw(msgspec.json.encode(policy.get("spec"))))
    read = policies.parse_policy(spec).problems
    unknown = [problem for problem in read if problem.found in {"an unknown strategy", "an unknown field"}]
    return [str(problem) for problem in (*policy_lint.problems(policy), *unknown)]


def check(api: ClusterApi, policy: Any) -> None:
    refused, expected = refusal(api, policy), expected_refusals(policy)
    assert bool(refused) == bool(expected), (policy, refused, expected)


@pytest.mark.parametrize("row", case_table_rows.read("crd", DefinitionTable).rows, ids=lambda row: row.name)
def test_they_agree_about_the_rows_of_the_definition(api: ClusterApi, row: Any) -> None:
    metadata = {"namespace": "default", **({"name": row.object_name} if row.object_name else {})}
    specs = [*row.specs, *({"strategies": {"dontschedule": {"rules": [rule]}}} for rule in row.rules)]
    for spec in specs:
        policy = WHOLE | {"metadata": metadata, "spec": spec}
        check(api, policy)
        if row.refused:
            assert expected_refusals(policy), spec


@pytest.mark.parametrize(
    "change",
    [
        {"rules": [{"metricname": "m", "operator": "Equals", "target": 1}] * 101},
        {"rules": [{"metricname": "m", "operator": "Equals", "target": 1}] * 100},
        {"rules": [None]},
        {"rules": None},
        {"rules": [{"metricname": "m", "operator": "Equals", "labels": [None]}]},
        {"rules": [{"metricname": "m", "operator": "Equals", "labels": "a=b"}]},
        {"rules": [{"metricname": "m", "operator": "Equals", "target": None}]},
        {"rules": {"metricname": "m", "operator": "Equals"}},
        {"rules": [], "logicalOperator": ""},
        {"rules": [], "policyName": 7},
    ],
    ids=str,
)
def test_they_agree_about_strategies(api: ClusterApi, change: Any) -> None:
    check(api, WHOLE | {"spec": {"strategies": {"dontschedule": change}}})


@pytest.mark.parametrize(
    "metadata",
    [
        *(
            {"generateName": value}
            for value in ("a", "a-", "A-", "-a", "-", "a.-", "Bad_Name", "m" * 254, True, 0, [], None)
        ),
        *(
            {"name": "p", "generateName": value}
            for value in ("A-", "a.-", "Bad_Name", "m" * 253, "m" * 254, True, 0, "")
        ),
        *({"name": value, "generateName": "a-"} for value in (None, "", 0, False, [])),
        *({"name": "p", "namespace": value} for value in (None, "", 0, [])),
    ],
    ids=str,
)
def test_they_agree_about_names(api: ClusterApi, metadata: Any) -> None:
    check(api, WHOLE | {"metadata": {"namespace": "default", **metadata}})


def test_they_agree_about_too_many_strategies(api: ClusterApi) -> None:
    check(api, WHOLE | {"spec": {"strategies": {f"s{number}": {"rules": []} for number in range(17)}}})


def containers(value: Any) -> list[Any]:
    """All objects and lists in a value, including the value itself."""
    inner = value.values() if isinstance(value, dict) else value
    below = [
        container for value in inner if isinstance(value, dict | list) for container in containers(value)
    ]
    return [value, *below]


@st.composite
def odd_policies(draw: st.DrawFn) -> Any:
    """A policy with a few fields added, replaced, renamed or removed."""
    policy = deepcopy(WHOLE)
    for _ in range(draw(st.integers(1, 3))):
        places = (
            [*containers(policy["metadata"]), *containers(policy["spec"])] if policy["spec"] else [policy]
        )
        place = draw(st.sampled_from(places))
        value = deepcopy(draw(st.sampled_from(ATOMS)))
        if isinstance(place, list):
            place.append(value) if draw(st.booleans()) or not place else place.pop()
        elif place and draw(st.booleans()):
            key = draw(st.sampled_from(sorted(place)))
            kept = place.pop(key)
            action = draw(st.sampled_from(["replace", "rename", "remove"]))
            if action != "remove":
                place[key if action == "replace" else draw(st.sampled_from(NAMES))] = (
                    value if action == "replace" else kept
                )
        else:
            place[draw(st.sampled_from(NAMES))] = value
    return policy


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_policies())
def test_they_agree_about_any_policy(api: ClusterApi, policy: Any) -> None:
    check(api, policy)
