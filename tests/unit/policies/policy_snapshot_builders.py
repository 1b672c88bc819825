"""Small snapshots in the notation of the specification: `series("m", n1=5)`, `policy(dontschedule=[...])`."""

from typing import Any

import msgspec
import numpy as np

from nodewise.agent import ClusterState, Names, NodeIndex, ObjectKey, Snapshot
from nodewise.base import cooperative_scheduling, quantity
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_namespace_trust import (
    LABEL,
    NAMESPACES,
    VALUE,
    NamespaceMetadata,
    NamespaceObject,
)
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.policy_selection import PodFields, PodMetadata
from nodewise.policies.state import POLICIES, TelemetryStateBuilder

NOW = 1000.0


def series(metric: str, at: float | None = NOW, **values: object) -> Series:
    """A metric with a quantity for each node; None for a value that cannot be read."""
    good = {n: Sample(quantity.parse(str(v)), at) for n, v in values.items() if v is not None}
    return Series(metric, "test", NOW, good, {n: "bad" for n, v in values.items() if v is None})


def metrics_snapshot(*series: Series) -> MetricsSnapshot:
    return MetricsSnapshot({metric_series.metric: metric_series for metric_series in series})


def rule(metric: str, operator: str = "GreaterThan", target: Any = None, **more: Any) -> dict[str, Any]:
    return (
        {"metricname": metric, "operator": operator} | ({} if target is None else {"target": target}) | more
    )


def policy(name: str = "pol", namespace: str = "d", **strategies: Any) -> PolicyObject:
    """A policy. Each strategy is a list of rules or a whole strategy object."""
    listed = {
        key: strategy if isinstance(strategy, dict) else {"rules": strategy}
        for key, strategy in strategies.items()
    }
    return PolicyObject(
        PolicyMetadata(name, namespace), msgspec.Raw(msgspec.json.encode({"strategies": listed}))
    )


def tas_key(name: str = "pol", namespace: str = "d") -> PolicyKey:
    return PolicyKey("TASPolicy", namespace, name)


def namespaces(*trusted: str) -> dict[ObjectKey, NamespaceObject]:
    """Namespaces with the label that grants trust."""
    labels = {LABEL: VALUE}
    return {("", name): NamespaceObject(NamespaceMetadata(name, labels=labels)) for name in trusted}


def cluster_state(
    policies: list[PolicyObject],
    metrics: MetricsSnapshot,
    nodes: str = "n1 n2 n3",
    trusted: tuple[str, ...] = ("d", "e"),
) -> ClusterState:
    """A cluster state with policies and metrics. `trusted` are the trusted namespaces."""
    by_key = {(policy.metadata.namespace, policy.metadata.name): policy for policy in policies}
    objects = {POLICIES: by_key, NAMESPACES: namespaces(*trusted)}
    return ClusterState(NodeIndex(nodes.split()), objects, metrics, NOW)


def snapshot(
    cluster: ClusterState, options: TelemetryOptions | None = None, max_age_s: float = 60.0
) -> Snapshot:
    state = TelemetryStateBuilder(options or TelemetryOptions(), max_age_s)
    return Snapshot(
        cluster.nodes,
        {"telemetry": cooperative_scheduling.run_without_pauses(state.build(cluster))},
        cluster.now,
        1,
    )


class PolicyTimeline:
    """A state builder for one TASPolicy, and its history of responses. Each `see` is an evaluation at that time."""

    def __init__(self, policy_object: PolicyObject, nodes: str = "n1 n2 n3") -> None:
        self.builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
        self.policy = policy_object
        self.nodes = nodes
        self.metrics = MetricsSnapshot()

    def see(self, at: float, answer: Series | None = None) -> set[str]:
        """The rejected nodes. Without a new response, the old one remains."""
        if answer:
            self.metrics = self.metrics.with_series(msgspec.structs.replace(answer, fetched_at=at))
        cluster = msgspec.structs.replace(cluster_state([self.policy], self.metrics, self.nodes), now=at)
        agent_state = cooperative_scheduling.run_without_pauses(self.builder.build(cluster))
        [self.state] = agent_state.policies.values()
        return set(rejected(Snapshot(cluster.nodes, {"telemetry": agent_state}, at), self.nodes) or ())


def pod(label: str | None = "pol", namespace: str = "d") -> PodFields:
    labels = {"app": "x"} if label is None else {"telemetry-policy": label}
    return PodFields(PodMetadata(namespace, labels))


def candidates(cluster_snapshot: Snapshot, names: str) -> Names:
    return cluster_snapshot.nodes.named(names.split())


def rejected(
    cluster_snapshot: Snapshot, names: str = "n1 n2 n3", of: PodFields | None = None
) -> dict[str, str] | None:
    """Rejected nodes with their reasons, or None if the pod does not concern the agent."""
    verdict = TelemetryAgent().filter(of or pod(), candidates(cluster_snapshot, names), cluster_snapshot)
    if verdict is None:
        return None
    return {
        name: verdict.reasons[code - 1].text()
        for name, code in zip(names.split(), verdict.codes.tolist(), strict=True)
        if code
    }


def scores(
    cluster_snapshot: Snapshot, names: str = "n1 n2 n3", of: PodFields | None = None
) -> dict[str, int] | None:
    node_scores = TelemetryAgent().score(of or pod(), candidates(cluster_snapshot, names), cluster_snapshot)
    return (
        None
        if node_scores is None
        else dict(zip(names.split(), np.asarray(node_scores.points).tolist(), strict=True))
    )
