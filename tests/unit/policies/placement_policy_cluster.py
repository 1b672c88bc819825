"""A cluster with policies of all kinds, evaluated by the telemetry agent."""

from typing import Any

import msgspec

from nodewise.agent import Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.policies import node_labels
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_namespace_trust import NAMESPACES, NamespaceMetadata, NamespaceObject
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.policy_selection import PodFields, PodMetadata, PodOwner, daemon_set_pod
from nodewise.policies.state import POLICIES, TelemetryStateBuilder
from tests.unit.policies.policy_snapshot_builders import (
    cluster_state,
    metrics_snapshot,
    rejected,
    scores,
    series,
)

HOT = {"metric": "heat", "above": 80}
BUSY = {"metric": "load", "atLeast": "0.5"}
VALUES = metrics_snapshot(
    series("heat", n1=90, n2=50, n3=50), series("load", n1="0.5", n2="0.5", n3="0.25"), series("m", n3=7)
)
ALL: dict[str, Any] = {}
"""A selector of everything."""


def placement(name: str, pods: Any = ALL, *avoid: Any, created: str = "1", namespace: str = "d") -> Any:
    """A PlacementPolicy."""
    return policy_object(name, namespace, created, {"podSelector": pods, "avoid": avoid or [HOT]})


def wide(name: str, pods: Any = ALL, *avoid: Any, namespaces: Any = ALL, created: str = "1") -> Any:
    """A ClusterPlacementPolicy."""
    spec = {"namespaceSelector": namespaces, "podSelector": pods, "avoid": avoid or [HOT]}
    return policy_object(name, "", created, spec)


def policy_object(name: str, namespace: str, created: str, spec: Any) -> PolicyObject:
    metadata = PolicyMetadata(name, namespace, creationTimestamp=created)
    return PolicyObject(metadata, msgspec.Raw(msgspec.json.encode(spec)))


def pod(labels: dict[str, str] | None = None, namespace: str = "d", owner: str = "ReplicaSet") -> PodFields:
    if owner == "DaemonSet":
        return daemon_set_pod(namespace, labels)
    return PodFields(PodMetadata(namespace, labels, (PodOwner(owner),)))


class Cluster:
    """A state builder, and the snapshot of the last objects."""

    def __init__(
        self,
        *policies: PolicyObject,
        namespaces: dict[str, Any] | None = None,
        values: MetricsSnapshot = VALUES,
        **options: Any,
    ) -> None:
        self.builder = TelemetryStateBuilder(TelemetryOptions(**options), 60.0)
        self.values = values
        self.namespaces = {"d": {}, "e": {}, "kube-system": {}} if namespaces is None else namespaces
        self.update(*policies)

    def update(self, *policies: PolicyObject) -> None:
        """Replace all policies."""
        objects: dict[str, Any] = {POLICIES: {}, "placementpolicies": {}, "clusterplacementpolicies": {}}
        for item in policies:
            spec = msgspec.json.decode(item.spec)
            name = (
                POLICIES
                if "strategies" in spec
                else "clusterplacementpolicies"
                if not item.metadata.namespace
                else "placementpolicies"
            )
            objects[name][item.metadata.namespace, item.metadata.name] = item
        listed = {
            ("", name): NamespaceObject(NamespaceMetadata(name, labels=labels))
            for name, labels in self.namespaces.items()
        }
        cluster = cluster_state([], self.values)
        cluster = msgspec.structs.replace(cluster, objects=objects | {NAMESPACES: listed})
        state = cooperative_scheduling.run_without_pauses(self.builder.build(cluster))
        self.snapshot = Snapshot(cluster.nodes, {"telemetry": state}, cluster.now, 1)

    def policies_of(self, of: PodFields) -> list[str]:
        """The policies of a pod, as texts."""
        keys = TelemetryAgent().equivalence_key(of, self.snapshot)
        return [key.text() for key in keys or ()]

    def rejected(self, of: PodFields) -> dict[str, str] | None:
        return rejected(self.snapshot, of=of)

    def scores(self, of: PodFields) -> dict[str, int] | None:
        return scores(self.snapshot, of=of)

    def _label_assignment(self) -> node_labels.LabelAssignment:
        policies = self.snapshot.agent_states["telemetry"].policies
        return node_labels.combine_policy_labels(
            {key: (state.policy, state.labels) for key, state in policies.items()}
        )

    def node_labels(self, owned: Any = None) -> dict[str, dict[str, str]]:
        """The labels that policies want, by node; `owned` are those of ours that nodes have."""
        return cooperative_scheduling.run_without_pauses(
            node_labels.desired_labels(self._label_assignment().columns, self.snapshot.nodes, owned or {})
        )

    def label_conflicts(self) -> dict[str, str]:
        """Why labels are not written, by policy."""
        return {key.text(): why for key, why in self._label_assignment().conflicts.items()}
