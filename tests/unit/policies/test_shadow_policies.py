"""Policies in the mode Shadow: what is reported about them. `tests/laws` compares the responses."""

import msgspec

from nodewise.agents.telemetry import KIND
from nodewise.engine.decision import DecisionRing
from nodewise.extender.routes import Extender, RequestHandler
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.options import TelemetryOptions
from tests.manual_clock import ManualClock
from tests.unit.policies.placement_policy_cluster import ALL, HOT, Cluster, placement, pod, policy_object
from tests.unit.policies.policy_snapshot_builders import candidates

LABELLING = [HOT | {"labels": {"gpu.nodewise.io/suspect": "true"}}]


def shadow(name: str = "trial", namespace: str = "d") -> object:
    scope = {} if namespace else {"namespaceSelector": ALL, "nodeLabels": LABELLING}
    spec = {"podSelector": ALL, "avoid": [HOT], "mode": "Shadow"} | scope
    return policy_object(name, namespace, "1", spec)


def test_the_verdict_names_the_nodes_that_would_be_rejected() -> None:
    cluster = Cluster(shadow(), placement("cool", ALL, HOT | {"above": 40}))
    verdict = TelemetryAgent().filter(pod(), candidates(cluster.snapshot, "n3 n1"), cluster.snapshot)
    assert verdict is not None
    assert verdict.codes.tolist() == [1, 1]
    by_policy = {each.policy: each for each in verdict.policies}
    observed = by_policy["placement policy d/trial"]
    assert observed.would_reject is not None
    assert observed.would_reject.tolist() == [False, True]
    assert not observed.rejected.any()
    assert by_policy["placement policy d/cool"].would_reject is None
    assert not verdict.only_observes


def test_an_edit_of_the_mode_makes_waiting_pods_be_matched_again() -> None:
    cluster, agent = Cluster(shadow(), namespaces={"d": {}}), TelemetryAgent()
    before = cluster.snapshot
    assert agent.equivalence_key(pod(), before) is None
    cluster.update(placement("trial"))
    assert agent.equivalence_key(pod(), cluster.snapshot) is not None
    versions = [agent.namespace_equivalence_version(each, "d") for each in (before, cluster.snapshot)]
    assert versions[0] is not versions[1]


def test_a_shadow_policy_labels_no_node() -> None:
    assert Cluster(shadow(namespace="")).node_labels() == {}


def test_would_be_rejections_are_counted_for_a_limited_number_of_policies() -> None:
    registry = MetricsRegistry()
    cluster = Cluster(*(shadow(f"p{number:02}") for number in range(23)), shadow("wide", ""))
    handler = RequestHandler([KIND], {KIND.name: TelemetryOptions()})
    extender = Extender(handler, lambda *_: cluster.snapshot, DecisionRing(), ManualClock(1000.0), registry)
    body = msgspec.json.encode(
        {"Pod": {"metadata": {"name": "p", "namespace": "d"}}, "NodeNames": ["n1", "n2", "n3"]}
    )
    for _ in range(2):
        handled = handler.handle("/scheduler/filter", body, cluster.snapshot, 1000.0)
        extender.store_decision(handled.decision)
    prefix = "nodewise_policy_would_reject_total"
    counted = dict(
        line.removeprefix(prefix).rsplit(" ", 1)
        for line in registry.exposition().decode().splitlines()
        if line.startswith(prefix)
    )
    assert len(counted) == 22
    assert counted['{policy="placement policy d/p19"}'] == "2.0"
    assert counted['{policy=""}'] == "6.0"
    assert counted['{policy="cluster placement policy wide"}'] == "2.0"
