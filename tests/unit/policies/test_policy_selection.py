"""Which policies select a pod, and the union of their verdicts."""

from typing import Any

import msgspec
import pytest

from nodewise.agent import NodeIndex, Snapshot
from nodewise.policies.agent import TelemetryAgent, find_misspelt_policy_label
from nodewise.policies.policy_budgets import MAX_ENFORCED
from nodewise.policies.policy_namespace_trust import NamespaceMetadata, NamespaceObject, drop_oversized_labels
from nodewise.policies.policy_selection import PodFields, PodMetadata
from tests.label_selector_cases import SELECTOR_CASES, SelectorCase
from tests.unit.policies.placement_policy_cluster import ALL, BUSY, HOT, Cluster, placement, pod, wide
from tests.unit.policies.policy_snapshot_builders import candidates, policy, rejected, rule


@pytest.mark.parametrize("case", SELECTOR_CASES, ids=lambda case: case.name)
def test_selectors(case: SelectorCase) -> None:
    """The same cases as those of the admission policies."""
    for item in (placement("pol", case.selector), wide("pol", case.selector)):
        assert bool(Cluster(item).policies_of(pod(case.labels))) == case.is_selected
    by_namespace = Cluster(wide("pol", namespaces=case.selector), namespaces={"d": case.labels})
    assert bool(by_namespace.policies_of(pod())) == case.is_selected


def test_many_different_pods_are_selected_by_their_own_labels() -> None:
    """Results are remembered by the labels that selectors name, and only some of them."""
    cluster = Cluster(placement("web", {"matchLabels": {"app": "web"}}), placement("all"))
    for number in range(300):
        assert cluster.policies_of(pod({"app": f"x{number}"})) == ["placement policy d/all"]
        expected = ["placement policy d/all", "placement policy d/web"]
        assert cluster.policies_of(pod({"app": "web", "number": str(number)})) == expected


def test_policies_in_the_order_of_their_kinds_and_ages() -> None:
    cluster = Cluster(
        wide("young", created="3"),
        wide("old", created="1"),
        placement("young", created="3"),
        placement("a", created="3"),
        placement("old", created="2"),
        placement("elsewhere", namespace="e"),
        policy("named", dontschedule=[rule("m")]),
        policy("other", dontschedule=[rule("m")]),
    )
    assert cluster.policies_of(pod({"telemetry-policy": "named"})) == [
        "telemetry policy d/named",
        "placement policy d/old",
        "placement policy d/a",
        "placement policy d/young",
        "cluster placement policy old",
        "cluster placement policy young",
    ]


def _term(operator: str, *nodes: str) -> dict[str, Any]:
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": [*nodes]}]}


def _forged(
    apiVersion: str = "apps/v1",  # noqa: N803 - the API's name
    terms: list[Any] | None = None,
    *,
    controller: bool = True,
) -> PodFields:
    """A pod of a tenant with an owner reference to a DaemonSet."""
    owner = {"apiVersion": apiVersion, "kind": "DaemonSet", "name": "d", "controller": controller}
    required = {"nodeSelectorTerms": [_term("In", "n1")] if terms is None else terms}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    body = {"metadata": {"namespace": "d", "ownerReferences": [owner]}, "spec": {"affinity": affinity}}
    return msgspec.convert(body, PodFields)


@pytest.mark.parametrize(
    ("of", "selected"),
    [
        pytest.param(pod(), True, id="a pod"),
        pytest.param(PodFields(PodMetadata("d")), True, id="a pod without an owner"),
        pytest.param(pod(owner="DaemonSet"), False, id="a pod of a DaemonSet"),
        *(
            pytest.param(_forged(**change), True, id=f"a pod that names a DaemonSet, {name}")
            for name, change in {
                "of another group": {"apiVersion": "example.com/v1"},
                "of OpenKruise": {"apiVersion": "apps.kruise.io/v1alpha1"},
                "of no group": {"apiVersion": "v1"},
                "not the controller": {"controller": False},
                "without node affinity": {"terms": []},
                "for labels": {"terms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]},
                "for all nodes but one": {"terms": [_term("NotIn", "n1")]},
                "for two nodes": {"terms": [_term("In", "n1", "n2")]},
                "for two nodes in two terms": {"terms": [_term("In", "n1"), _term("In", "n2")]},
            }.items()
        ),
        pytest.param(_forged(), False, id="a pod for one node that names a DaemonSet"),
        pytest.param(pod(namespace="kube-system"), False, id="a pod of the system"),
        pytest.param(pod(namespace="nw"), False, id="a pod in nodewise's namespace"),
        pytest.param(pod(namespace="new"), True, id="a pod in a namespace that is not known yet"),
    ],
)
def test_pods_that_selectors_never_select(of: PodFields, selected: bool) -> None:
    in_d = {"matchLabels": {"kubernetes.io/metadata.name": "d"}}
    labels = {name: {"kubernetes.io/metadata.name": name} for name in ("d", "nw", "kube-system")}
    cluster = Cluster(wide("wide", namespaces=in_d), own_namespace="nw", namespaces=labels)
    assert bool(cluster.policies_of(of)) == selected
    everywhere = Cluster(wide("wide"), own_namespace="nw", namespaces=labels)
    assert bool(everywhere.policies_of(of)) == selected


def test_without_namespace_objects_each_namespace_has_its_name() -> None:
    """Files given to `decide` usually have none."""
    in_d = {"matchLabels": {"kubernetes.io/metadata.name": "d"}}
    cluster = Cluster(wide("wide", namespaces=in_d), namespaces={})
    assert cluster.policies_of(pod()) == ["cluster placement policy wide"]
    assert cluster.policies_of(pod(namespace="e")) == []


def test_a_namespace_whose_labels_are_too_large_is_selected_by_every_selector() -> None:
    large = NamespaceObject(NamespaceMetadata("d", labels={f"l{number}": "x" * 60 for number in range(300)}))
    stored = drop_oversized_labels(large)
    assert (stored.metadata.labels, stored.has_unknown_labels) == (None, True)
    cluster = Cluster(wide("wide", namespaces={"matchLabels": {"a": "b"}}))
    state = cluster.snapshot.agent_states["telemetry"]
    state.selection._namespaces = {("", "d"): stored}
    assert cluster.policies_of(pod()) == ["cluster placement policy wide"]


def test_the_union_of_two_policies_names_each() -> None:
    cluster = Cluster(placement("cool", ALL, HOT), wide("calm", ALL, BUSY))
    assert cluster.rejected(pod()) == {
        "n1": "placement policy d/cool: heat above 80",
        "n2": "cluster placement policy calm: load atLeast 0.5",
    }
    verdict = TelemetryAgent().filter(pod(), candidates(cluster.snapshot, "n3 n1"), cluster.snapshot)
    assert verdict is not None
    assert verdict.codes.tolist() == [0, 1]
    assert [(item.policy, item.metric, item.operator) for item in verdict.evidence] == [
        ("placement policy d/cool", "heat", "above"),
        ("cluster placement policy calm", "load", "atLeast"),
    ]
    assert [(item.policy, item.rejected.tolist(), item.joined) for item in verdict.policies] == [
        ("placement policy d/cool", [False, True], "any"),
        ("cluster placement policy calm", [False, True], "any"),
    ]


def test_the_parts_of_a_rule_are_a_group() -> None:
    cluster = Cluster(placement("both", ALL, {"metric": "m", "above": 80}, {"all": [HOT, BUSY]}))
    assert cluster.rejected(pod()) == {"n1": "placement policy d/both: heat above 80 and load atLeast 0.5"}
    verdict = TelemetryAgent().filter(pod(), candidates(cluster.snapshot, "n1"), cluster.snapshot)
    assert verdict is not None
    assert [item.group for item in verdict.evidence] == [-1, 1, 1]


@pytest.mark.parametrize(
    ("part", "n2"),
    [
        pytest.param({"whenMissing": "Reject"}, "no fresh value of m", id="missing rejects"),
        pytest.param({"whenMissing": "Allow"}, None, id="missing is allowed"),
        pytest.param({}, None, id="missing is allowed by default, whatever the option is"),
    ],
)
def test_a_missing_value_in_a_group(part: Any, n2: str | None) -> None:
    """A group rejects a node without values if the other parts are met."""
    unmeasured = {"metric": "m", "above": 80} | part
    cluster = Cluster(placement("both", ALL, {"all": [BUSY, unmeasured]}), when_missing="reject")
    reason = f"placement policy d/both: {n2}"
    assert cluster.rejected(pod()) == ({"n1": reason, "n2": reason} if n2 else {})


def test_a_named_policy_that_does_not_exist_and_one_that_selects() -> None:
    of = pod({"telemetry-policy": "gone"})
    cluster = Cluster(placement("cool", ALL, HOT))
    assert cluster.policies_of(of) == ["telemetry policy d/gone", "placement policy d/cool"]
    assert cluster.rejected(of) == dict.fromkeys(("n1", "n2", "n3"), "nodewise: policy d/gone does not exist")


def test_equal_comparisons_of_several_policies_are_evaluated_once() -> None:
    cluster = Cluster(placement("a"), placement("b"), wide("c"))
    states = cluster.snapshot.agent_states["telemetry"].policies
    assert len({id(state.filter_rules[0]) for state in states.values()}) == 1


def test_a_policy_that_is_deleted_selects_no_longer() -> None:
    cluster = Cluster(placement("cool"))
    assert cluster.rejected(pod()) is not None
    version = TelemetryAgent().equivalence_version(cluster.snapshot)
    cluster.update(placement("cool", ALL, BUSY))
    assert TelemetryAgent().equivalence_version(cluster.snapshot) is version, "selectors did not change"
    cluster.update()
    assert cluster.rejected(pod()) is None
    assert TelemetryAgent().equivalence_version(cluster.snapshot) is not version


def test_a_selector_of_one_namespace_changes_nothing_for_pods_of_others() -> None:
    agent, versions = TelemetryAgent(), []
    cluster = Cluster(placement("cool"), placement("warm", namespace="e"))
    for changed in (
        placement("cool", {"matchLabels": {"app": "x"}}),
        placement("cool"),
        policy(dontschedule=[rule("heat", target=80)]),
    ):
        versions.append({name: agent.namespace_equivalence_version(cluster.snapshot, name) for name in "de"})
        cluster.update(changed, placement("warm", namespace="e"))
    versions.append({name: agent.namespace_equivalence_version(cluster.snapshot, name) for name in "de"})
    assert len({id(version["d"]) for version in versions}) == len(versions)
    assert len({id(version["e"]) for version in versions}) == 1
    cluster.update(wide("all"))
    assert agent.namespace_equivalence_version(cluster.snapshot, "e") is not versions[0]["e"]
    unknown = agent.namespace_equivalence_version(cluster.snapshot, "unknown")
    assert unknown is agent.equivalence_version(cluster.snapshot)


def test_policies_that_are_not_enforced_are_named_and_reject_nothing() -> None:
    many = [placement(f"p{number:02}", ALL, BUSY, created=f"{number:02}") for number in range(MAX_ENFORCED)]
    beyond = [placement(f"q{number:02}", ALL, HOT, created="99") for number in range(30)]
    cluster = Cluster(*many, *beyond)
    of = pod()
    verdict = TelemetryAgent().filter(of, candidates(cluster.snapshot, "n1 n3"), cluster.snapshot)
    assert verdict is not None
    assert verdict.codes.tolist() == [1, 0]
    not_enforced = [item for item in verdict.policies if item.not_enforced]
    assert len(not_enforced) == 10, "thousands of policies must not make each request slow"
    assert "has 80 PlacementPolicies; at most 50 are enforced" in not_enforced[0].not_enforced


def test_before_anything_is_read_pods_wait() -> None:
    nothing = Snapshot(NodeIndex(["n1"]), {}, 0.0)
    assert rejected(nothing, "n1", of=pod()) == {"n1": "nodewise: starting, policies are not read yet"}
    assert rejected(nothing, "n1", of=pod(owner="DaemonSet")) is None


@pytest.mark.parametrize(
    ("selector", "passing"),
    [
        ({"matchLabels": {"telemetry-policy": "pol"}}, {"n2", "n3"}),
        (
            {"matchExpressions": [{"key": "telemetry-policy", "operator": "In", "values": ["a", "pol"]}]},
            {"n2", "n3"},
        ),
        ({"matchExpressions": [{"key": "telemetry-policy", "operator": "Exists"}]}, set()),
        ({}, set()),
    ],
    ids=["by its name", "by several names", "by any name", "all pods"],
)
def test_a_policy_that_selects_by_its_name_replaces_a_taspolicy(selector: Any, passing: set[str]) -> None:
    """Without the TASPolicy, the pods that name it keep their label; other policies do not replace it."""
    of = pod({"telemetry-policy": "pol"})
    tas_policy = policy(dontschedule=[rule("load", target="0.3")])
    cluster = Cluster(placement("pol", selector), tas_policy)
    assert (cluster.rejected(of) or {}).keys() == {"n1", "n2"}, "both apply"
    cluster.update(placement("pol", selector))
    assert {"n1", "n2", "n3"} - (cluster.rejected(of) or {}).keys() == passing


def test_a_policy_that_is_not_enforced_does_not_replace_a_taspolicy() -> None:
    by_name = {"matchLabels": {"telemetry-policy": "pol"}}
    others = [placement(f"p{number:02}", {"matchLabels": {"a": "b"}}) for number in range(MAX_ENFORCED)]
    cluster = Cluster(*others, placement("pol", by_name, created="2"))
    rejections = cluster.rejected(pod({"telemetry-policy": "pol"})) or {}
    assert set(rejections.values()) == {"nodewise: policy d/pol does not exist"}


def test_a_namespace_has_the_label_with_its_name_also_if_a_file_does_not_contain_it() -> None:
    in_d = {"matchLabels": {"kubernetes.io/metadata.name": "d"}}
    cluster = Cluster(wide("wide", namespaces=in_d), namespaces={"d": {}, "e": {}})
    assert [bool(cluster.policies_of(pod(namespace=name))) for name in ("d", "e")] == [True, False]


MISSPELT = (
    *("telemetry-polcy", "telemetry-policyy", "telemetry-poilcy", "telemetri-policy", "elemetry-policy"),
    *("Telemetry-Policy", "telemetry_policy", "telemetrypolicy", "telemetry.policy", "telemetry-policies"),
    *("x/telemetry-policy", "telemetry.intel.com/telemetry-policy", "x.y/Telemetry_Polcy"),
)
OTHERS = (
    *("telemetry", "policy", "telemetry-pipeline", "telemetry-profile", "network-policy"),
    *("telemetry-policy.example.com/enabled", "telemetry-plcyy", "app"),
)


@pytest.mark.parametrize("key", MISSPELT)
def test_a_misspelt_key_is_found(key: str) -> None:
    assert find_misspelt_policy_label(["app", key]) == key


@pytest.mark.parametrize("key", OTHERS)
def test_another_key_is_none(key: str) -> None:
    assert find_misspelt_policy_label([key]) == ""


def test_a_pod_with_the_label_itself_has_no_misspelt_one() -> None:
    assert find_misspelt_policy_label(["telemetry-policy", "x/telemetry-policy"]) == ""
