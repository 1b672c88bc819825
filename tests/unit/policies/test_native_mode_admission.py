"""Whether native mode is on, by the setting and the admission policies of the cluster."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from nodewise.agent import ClusterState, NodeIndex
from nodewise.base import cooperative_scheduling
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.policies.native_mode_admission import BINDINGS, POLICIES, WATCHED
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.state import TelemetryState, TelemetryStateBuilder

DEPLOY = Path(__file__).parents[3] / "deploy"


def stored(*files: str, prefix: str = "nodewise") -> dict[str, dict[tuple[str, str], Any]]:
    """The admission policies of these manifests as the watches store them, under another name of the release."""
    objects: dict[str, dict[tuple[str, str], Any]] = {}
    for watched in WATCHED:
        objects[watched.name] = {}
        for document in yaml.load_all(
            "---\n".join((DEPLOY / file).read_text() for file in files), yaml.CSafeLoader
        ):
            if document["kind"] != watched.resource.kind:
                continue
            text = msgspec.json.encode(document).replace(b"nodewise-", prefix.encode() + b"-")
            item: Any = msgspec.json.decode(text, type=watched.type)
            if (kept := watched.keep(item) if watched.keep else item) is not None:
                objects[watched.name]["", item.metadata.name] = kept
    return objects


def state(objects: dict[str, Any], native_mode: bool | None = None) -> TelemetryState:
    builder = TelemetryStateBuilder(TelemetryOptions(native_mode=native_mode), 60.0)
    cluster_state = ClusterState(NodeIndex(()), objects, MetricsSnapshot({}), 0.0)
    return cooperative_scheduling.run_without_pauses(builder.build(cluster_state))


NATIVE = stored("native.yaml")
EXTENDER = stored("extender-pods.yaml")


@pytest.mark.parametrize(
    ("objects", "configured", "expected"),
    [
        ({}, None, (False, False)),
        ({}, True, (True, False)),
        ({}, False, (False, False)),
        (NATIVE, None, (True, True)),
        (NATIVE, False, (False, True)),
        (stored("native.yaml", prefix="sun"), None, (True, True)),
        (EXTENDER, None, (False, False)),
        (NATIVE | {BINDINGS: {}}, None, (False, False)),
        (NATIVE | {POLICIES: {}}, None, (False, False)),
        (EXTENDER | {BINDINGS: NATIVE[BINDINGS]}, None, (False, False)),
    ],
)
def test_native_mode_follows_its_admission_policies_unless_a_setting_decides(
    objects: dict[str, Any], configured: bool | None, expected: tuple[bool, bool]
) -> None:
    evaluated = state(objects, configured)
    assert (evaluated.native_mode, evaluated.has_native_admission) == expected


def test_stored_admission_policies_are_only_names() -> None:
    [policy, *_] = NATIVE[POLICIES].values()
    assert policy.spec.mutations is None
    expected = {"nodewise-native", "nodewise-native-cluster", "nodewise-native-named"}
    assert {name for _, name in NATIVE[POLICIES]} == expected


def test_policies_beyond_the_budget_of_labels_have_none_as_soon_as_native_mode_is_on() -> None:
    """The builder is the same one when the admission policies are installed."""
    builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
    spec = msgspec.Raw(msgspec.json.encode({"podSelector": {}, "avoid": [{"metric": "temp", "above": 80}]}))
    policies = {
        ("web", f"p{number}"): PolicyObject(PolicyMetadata(f"p{number}", "web", uid=f"uid-{number}"), spec)
        for number in range(12)
    }
    objects = {"placementpolicies": policies}
    assert not any(policy.no_verdict_label for policy in builder.policies(objects).values())
    limited = builder.policies(objects | NATIVE).values()
    assert sum(bool(policy.no_verdict_label) for policy in limited) == 2
