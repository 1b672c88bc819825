"""The parser of placement policies and a real API server reject the same policies."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodewise.policies import placement_policy_fields as fields
from nodewise.policies import placement_policy_parser
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from tests.cluster import placement_policy_server
from tests.cluster.api_client import ClusterApi
from tests.cluster.controlplane import ControlPlane
from tests.cluster.placement_policy_specs import COOL, WIDE, policy

WHOLE: dict[str, Any] = {
    "PlacementPolicy": COOL
    | {
        "podSelector": {
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "a", "operator": "Exists"}],
        }
    },
    "ClusterPlacementPolicy": WIDE
    | {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}},
}
NAMES = sorted(
    {
        *fields.SPEC.fields,
        *fields.AVOID_RULE.fields,
        *fields.LABEL_RULE.fields,
        *fields.PREFERENCE.fields,
        *fields.SELECTOR.fields,
        *fields.REQUIREMENT.fields,
        "when_missing",
        "colour",
        "a b",
        "a/b",
        "Metric",
        "",
    }
)
ATOMS = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        100,
        101,
        1.0,
        2.0,
        1e3,
        0.8,
        2**53,
        2.0**53,
        2**63 - 1,
        2**63,
        -(2**63),
        1e30,
    ),
    *([], {}, [None], [{}], ["a"], {"a": "b"}, {"a": None}, {"a b": "c"}, {"gpu.nodewise.io/a": ""}),
    *(
        "",
        "m",
        "Allow",
        "allow",
        "Healthy",
        "Ascending",
        "In",
        "Exists",
        "max",
        "0.8",
        "64Gi",
        "1e99",
        "1e100",
    ),
    *(
        "90s",
        "90",
        "0s",
        "0.0000001ms",
        "0.000001ms",
        "8784h",
        "8784h1ms",
        "8784h0.000001ms",
        "90s\n",
        "1h1m1s1ms",
    ),
    *("m" * 253, "m" * 254, "m\n", "a/b", "a" * 63, "a" * 64, "ä", "-", "violating"),
]


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[ClusterApi]:
    with placement_policy_server.defining_both_kinds(plane.api):
        yield plane.api


def check(api: ClusterApi, kind: Any, spec: Any) -> None:
    """Check that both accept the policy, or both reject it."""
    refused = placement_policy_server.refusal(api, policy(spec, kind))
    obj = PolicyObject(PolicyMetadata("pol", "default"), msgspec.Raw(msgspec.json.encode(spec)))
    problems = placement_policy_parser.parse_policy(obj, kind).problems
    assert bool(refused) == bool(problems), (spec, refused, problems)


def containers(value: Any) -> list[Any]:
    """All objects and lists in a value, including the value itself."""
    inner = value.values() if isinstance(value, dict) else value
    below = [container for part in inner if isinstance(part, dict | list) for container in containers(part)]
    return [value, *below]


def change_object(draw: st.DrawFn, place: dict[str, Any], value: Any) -> None:
    """Replace, rename, remove or add a field."""
    action = draw(st.sampled_from(["replace", "rename", "remove", "add"]))
    if not place or action == "add":
        place[draw(st.sampled_from(NAMES))] = value
        return
    key = draw(st.sampled_from(sorted(place)))
    kept = place.pop(key)
    if action == "replace":
        place[key] = value
    elif action == "rename":
        place[draw(st.sampled_from(NAMES))] = kept


@st.composite
def odd_specs(draw: st.DrawFn) -> tuple[str, Any]:
    """A kind, and a spec with a few fields added, replaced, renamed or removed."""
    kind = draw(st.sampled_from(sorted(WHOLE)))
    spec = deepcopy(WHOLE[kind])
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(containers(spec)))
        value = deepcopy(draw(st.sampled_from(ATOMS)))
        if isinstance(place, dict):
            change_object(draw, place, value)
        elif place and draw(st.booleans()):
            place.pop()
        else:
            place.append(value)
    return kind, spec


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(odd_specs())
def test_they_agree_about_any_spec(api: ClusterApi, kind_and_spec: tuple[str, Any]) -> None:
    check(api, *kind_and_spec)
