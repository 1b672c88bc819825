"""The type of a pod (case 180), and the fields that are kept."""

from typing import Any

import msgspec
import pytest

from nodewise.agents.gpu.gpu_pod_fields import GpuPod
from nodewise.kube.struct_type_merge import merge
from nodewise.policies.policy_selection import PodFields as TelemetryPod
from nodewise_scorers.learned import LearnedKind, LearnedOptions
from nodewise_scorers.learned.pod_types_and_outcomes import (
    ObservedPod,
    PodFields,
    bound_pod_type,
    make_pod_reducer,
    pending_pod_type,
)
from scorers_tests.unit.learned.pod_histories import pod, running

REPLICA_SET = {"kind": "ReplicaSet", "name": "web-5d4f8c7b9", "controller": True}
OWNED = {"kind": "Thing", "name": "other"}


@pytest.mark.parametrize(
    ("metadata", "type_"),
    [
        ({"labels": {"app": "x", "podtype": "D"}}, "D"),
        ({"labels": {"app": "x", "name": "y"}}, "x"),
        ({"labels": {"name": "y"}}, "y"),
        ({}, "p"),
        ({"labels": {"podtype": "", "app": "x"}}, "x"),
        ({"labels": {"other": "x"}, "ownerReferences": [OWNED, REPLICA_SET]}, "web-5d4f8c7b9"),
        ({"ownerReferences": [OWNED]}, "p"),
        ({"ownerReferences": [{**REPLICA_SET, "name": ""}]}, "p"),
        ({"labels": None, "ownerReferences": None}, "p"),
    ],
)
def test_a_pod_has_one_type_before_and_after_it_is_placed(metadata: dict[str, Any], type_: str) -> None:
    text = msgspec.json.encode({"metadata": {"name": "p", **metadata}})
    for kinds in ((PodFields,), (TelemetryPod, GpuPod, PodFields), (PodFields, GpuPod, TelemetryPod)):
        asking = msgspec.json.decode(text, type=merge("Pod", *kinds))
        assert pending_pod_type(asking) == type_
    assert bound_pod_type(msgspec.json.decode(text, type=ObservedPod)) == type_


@pytest.mark.parametrize(
    ("observed_pod", "held"),
    [
        (pod("p", "n1", running()), True),
        (pod("p", "", running()), False),
        (pod("p", "n1", phase="Pending"), False),
        (pod("p", "n1", phase="Succeeded"), False),
        (pod("p", "n1", phase="Failed"), True),
        (pod("p", "n1", running(), namespace="other"), False),
        (pod("p", "n1", *[running()] * 64), True),
        (pod("p", "n1", *[running()] * 65), False),
    ],
)
def test_a_reduced_pod_has_only_the_fields_that_are_read(observed_pod: ObservedPod, held: bool) -> None:
    assert (make_pod_reducer(["d"])(observed_pod) is not None) is held


def test_a_reduced_pod_has_the_same_type_and_outcome() -> None:
    keep = make_pod_reducer(())
    held = keep(pod("p", "n1", running(), ownerReferences=[OWNED, REPLICA_SET]))
    assert held is not None
    assert msgspec.json.decode(msgspec.json.encode(held), type=ObservedPod) == held
    assert keep(held) == held
    assert bound_pod_type(held) == "D"


def test_the_kind_watches_pods() -> None:
    (watched,) = LearnedKind().watched(LearnedOptions())
    assert (watched.name, watched.resource.plural) == ("learned_pods", "pods")
