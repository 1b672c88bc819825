"""Node labels of ClusterPlacementPolicies, and labels that several policies set."""

from typing import Any

import pytest

from nodewise.policies.node_labels import POLICY_LABELS
from nodewise.policies.policy_objects import PolicyObject
from tests.unit.policies.placement_policy_cluster import Cluster, policy_object
from tests.unit.policies.policy_snapshot_builders import metrics_snapshot, policy, rule, series

SUSPECT = "gpu.nodewise.io/suspect"
ERRORS = {"metric": "errors", "above": 0}
HEAT = {"metric": "heat", "above": 80}
VALUES = metrics_snapshot(series("errors", n1=3, n2=0, n3=1), series("heat", n1=90, n2=90))


def labelling(name: str, *rules: Any, created: str = "1") -> PolicyObject:
    return policy_object(name, "", created, {"nodeLabels": rules})


def on(condition: Any, **labels: str) -> Any:
    return {**condition, "labels": {f"gpu.nodewise.io/{name}": value for name, value in labels.items()}}


def desired(*policies: PolicyObject, owned: Any = None, **options: Any) -> dict[str, dict[str, str]]:
    return Cluster(*policies, values=VALUES, **options).node_labels(owned)


def test_a_label_of_a_cluster_policy() -> None:
    labels = {SUSPECT: "true"}
    assert desired(labelling("p", on(ERRORS, suspect="true"))) == {"n1": labels, "n3": labels}


def test_all_parts_must_be_met() -> None:
    both = {"all": [ERRORS, HEAT]}
    assert desired(labelling("p", on(both, suspect="true"))) == {"n1": {SUSPECT: "true"}}


def test_missing_values_keep_the_labels_that_they_leave_undecided() -> None:
    both = {"all": [ERRORS, HEAT]}
    owned = {name: {SUSPECT: "true"} for name in ("n2", "n3")}
    kept = desired(labelling("p", on(both, suspect="true")), owned=owned)
    assert kept == {"n1": {SUSPECT: "true"}, "n3": {SUSPECT: "true"}}, "n2 has no errors, n3 may be hot"


def test_the_most_extreme_value_decides() -> None:
    rules = [on(ERRORS, level="low"), on({"metric": "errors", "atLeast": 3}, level="high")]
    key = "gpu.nodewise.io/level"
    assert desired(labelling("p", *rules)) == {"n1": {key: "low"}, "n3": {key: "low"}}, (
        "the first of equal ones"
    )
    rules = [on({"metric": "errors", "atLeast": 3}, level="high"), on(ERRORS, level="low")]
    assert desired(labelling("p", *rules)) == {"n1": {key: "high"}, "n3": {key: "low"}}


def test_rules_with_the_same_value_do_not_conflict() -> None:
    rules = [on(ERRORS, suspect="true"), on({"metric": "heat", "below": 100}, suspect="true")]
    cluster = Cluster(labelling("p", *rules), values=VALUES)
    assert cluster.node_labels() == {name: {SUSPECT: "true"} for name in ("n1", "n2", "n3")}
    assert cluster.label_conflicts() == {}


def test_rules_of_different_directions_with_different_values_conflict() -> None:
    rules = [on(ERRORS, suspect="yes"), on({"metric": "heat", "below": 100}, suspect="no")]
    cluster = Cluster(labelling("p", *rules), values=VALUES)
    assert cluster.node_labels() == {"n2": {SUSPECT: "no"}, "n3": {SUSPECT: "yes"}}
    assert cluster.label_conflicts() == {
        "cluster placement policy p": f"rules with different operators set {SUSPECT}; it is omitted there"
    }


def test_policies_with_the_same_value_share_the_label() -> None:
    policies = [labelling("a", on(ERRORS, suspect="true")), labelling("b", on(HEAT, suspect="true"))]
    cluster = Cluster(*policies, values=VALUES)
    assert cluster.node_labels() == {name: {SUSPECT: "true"} for name in ("n1", "n2", "n3")}
    assert cluster.label_conflicts() == {}


def test_of_policies_with_different_values_the_oldest_sets_the_label() -> None:
    policies = [
        labelling("a", on(HEAT, suspect="hot", other="x"), created="2"),
        labelling("b", on(ERRORS, suspect="broken"), created="1"),
    ]
    cluster = Cluster(*policies, values=VALUES)
    assert cluster.node_labels() == {
        "n1": {SUSPECT: "broken", "gpu.nodewise.io/other": "x"},
        "n2": {"gpu.nodewise.io/other": "x"},
        "n3": {SUSPECT: "broken"},
    }
    assert cluster.label_conflicts() == {
        "cluster placement policy a": f"cluster placement policy b is older and sets {SUSPECT} instead"
    }


def test_a_converted_policy_shares_the_label_of_the_descheduler() -> None:
    """Both set `<policy>=violating`, while pods move from one to the other."""
    old = policy("cool", deschedule=[rule("heat", target=80)])
    new = labelling("d-cool", ERRORS | {"labels": {"cool": "violating"}})
    cluster = Cluster(old, new, values=VALUES, trust_all_namespaces=True)
    assert cluster.node_labels() == {name: {"cool": "violating"} for name in ("n1", "n2", "n3")}
    assert cluster.label_conflicts() == {}


@pytest.mark.parametrize(
    ("key", "is_managed"),
    [
        (SUSPECT, True),
        ("a.b.nodewise.io/x", True),
        ("nodewise.io/x", False),
        ("nodewise.io", False),
        ("evilnodewise.io/x", False),
        ("telemetry.aware.scheduling.p/x", True),
    ],
)
def test_labels_that_an_earlier_leader_may_have_written(key: str, is_managed: bool) -> None:
    assert POLICY_LABELS.may_own(key, "true") == is_managed
