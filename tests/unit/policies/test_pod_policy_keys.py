"""Which keys of labels with verdicts count for a pod: those of its own policies."""

from typing import Any, Final

import msgspec
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.policies import native_mode_pods
from nodewise.policies.native_mode_pods import UncoveredPods, UnscheduledPod
from nodewise.policies.placement_policy import (
    AvoidRule,
    Comparison,
    LabelSelector,
    PodSelection,
    Policy,
    PolicyKey,
    Requirement,
)
from nodewise.policies.policy_namespace_trust import NamespaceObject
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.verdict_labels import label_key

WEB: Final = PolicyKey("PlacementPolicy", "web", "cool")
NAMED: Final = PolicyKey("TASPolicy", "web", "old")
WIDE: Final = PolicyKey("ClusterPlacementPolicy", "", "wide")
NARROW: Final = PolicyKey("ClusterPlacementPolicy", "", "narrow")
KEYS: Final = {label_key(key.name): key for key in (WEB, NAMED, WIDE, NARROW)}
DELETED: Final = label_key("deleted")


def _selector(**labels: str) -> LabelSelector:
    return LabelSelector(tuple(Requirement(key, "In", (value,)) for key, value in labels.items()))


def _policy(key: PolicyKey, selection: PodSelection | None = None) -> Policy:
    return Policy(key, "", selection, avoid=(AvoidRule((Comparison("heat", "above", 80),)),), uid=key.name)


SELECTION: Final = SelectionIndex(
    [
        _policy(WEB, PodSelection(_selector(app="other"))),
        _policy(NAMED),
        _policy(WIDE, PodSelection(_selector(app="web"), _selector(team="a"))),
        _policy(NARROW, PodSelection(_selector(app="other"), LabelSelector())),
    ],
    {
        ("", name): msgspec.convert({"metadata": {"name": name, "labels": labels}}, NamespaceObject)
        for name, labels in {"web": {"team": "a"}, "shop": {}, "kube-system": {"team": "a"}}.items()
    },
)


def _pod(namespace: str, labels: dict[str, str], *keys: str, owners: Any = ()) -> UnscheduledPod:
    body = {
        "metadata": {"name": "p", "namespace": namespace, "labels": labels, "ownerReferences": owners},
        "spec": {"nodeSelector": dict.fromkeys(keys, "ok")},
    }
    pod = msgspec.convert(body, UnscheduledPod)
    kept = native_mode_pods.keep_pod(pod)
    assert kept is not None
    return msgspec.structs.replace(kept, group=UncoveredPods().record(pod, 0.0))


def _own(pod: UnscheduledPod) -> tuple[set[str], bool]:
    """The names of the policies whose keys count, and whether there are others."""
    (kept,) = cooperative_scheduling.run_without_pauses(
        native_mode_pods.remove_foreign_keys([pod], KEYS, SELECTION)
    )
    assert kept.keys == kept.keys_with_ok
    return {key.removeprefix(label_key("")) for key in kept.keys}, kept.names_foreign_key


@pytest.mark.parametrize(
    ("namespace", "labels", "own"),
    [
        ("web", {"app": "web"}, {"cool", "old", "wide"}),
        ("web", {}, {"cool", "old"}),
        ("web", {"app": "other"}, {"cool", "old", "narrow"}),
        ("shop", {"app": "web"}, set()),
        ("shop", {"app": "other"}, {"narrow"}),
        ("kube-system", {"app": "web"}, set()),
        ("web", {"app": "web", "large": "x" * 20_000}, {"cool", "old"}),
    ],
    ids=[
        "selected",
        "no labels",
        "other labels",
        "namespace",
        "other namespace",
        "kube-system",
        "large labels",
    ],
)
def test_keys_of_other_policies_are_removed(namespace: str, labels: dict[str, str], own: set[str]) -> None:
    assert _own(_pod(namespace, labels, *KEYS)) == (own, True)


def test_keys_of_own_and_of_deleted_policies_stay() -> None:
    web, wide = label_key("cool"), label_key("wide")
    assert _own(_pod("web", {"app": "web"}, web, wide, DELETED)) == ({"cool", "wide", "deleted"}, False)


def test_owner_reference_to_a_daemonset_changes_nothing() -> None:
    """A pod that the DaemonSet controller creates has no key; a tenant may name any owner."""
    owners = [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "controller": True}]
    assert _own(_pod("web", {"app": "web"}, label_key("wide"), owners=owners)) == ({"wide"}, False)
