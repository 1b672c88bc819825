"""The telemetry agent: avoids and prefers nodes by live metrics, as policies configure it.

Replaces Telemetry Aware Scheduling 0.7.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nodewise.agent import DeferredType, Resource, Watched
from nodewise.agent.controller_interface import ControllerKind, Handle
from nodewise.policies.options import TelemetryOptions, max_age_s

if TYPE_CHECKING:
    # imported when a kind is used: commands declare the options of all agents
    from nodewise.policies.agent import TelemetryAgent
    from nodewise.policies.controller import TelemetryController
    from nodewise.policies.state import TelemetryStateBuilder


class NodeMetadata(msgspec.Struct, frozen=True):
    labels: msgspec.Raw = msgspec.Raw(b"null")
    """Decoded only for the nodes that need it."""


class NodeStatus(msgspec.Struct, frozen=True):
    capacity: msgspec.Raw = msgspec.Raw(b"null")


class NodeFields(msgspec.Struct, frozen=True):
    """The fields of a node that the controller reads."""

    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


_NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


class TelemetryKind(ControllerKind):
    """The agent `telemetry`."""

    name = "telemetry"
    summary = "avoid and prefer nodes by live metrics (policies)"
    options = TelemetryOptions
    node_fields = NodeFields

    pod_fields = DeferredType("nodewise.policies.policy_selection", "PodFields")

    def watched(self, options: TelemetryOptions) -> tuple[Watched, ...]:  # noqa: ARG002
        """Policies, and namespaces for trust and for selectors of namespaces."""
        from nodewise.policies.policy_namespace_trust import (
            NAMESPACES,
            NamespaceObject,
            drop_oversized_labels,
        )
        from nodewise.policies.policy_objects import RESOURCES, PolicyObject, drop_oversized_spec
        from nodewise.policies.state import POLICY_KINDS

        policies = (
            Watched(name, RESOURCES[kind], PolicyObject, keep=drop_oversized_spec)
            for name, kind in POLICY_KINDS.items()
        )
        return *policies, Watched(NAMESPACES, _NAMESPACES, NamespaceObject, keep=drop_oversized_labels)

    def resources(self, options: TelemetryOptions) -> dict[str, bool]:  # noqa: ARG002
        """The resource that pods with a policy request, as in the older system."""
        from nodewise.policies.agent import SCHEDULING_RESOURCE

        return {SCHEDULING_RESOURCE: True}

    def concerns(self, options: TelemetryOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any pod names a policy, whether or not it exists."""
        from nodewise.policies.policy_selection import POLICY_LABEL

        return any(POLICY_LABEL in (pod.metadata.labels or {}) for pod in pods)

    def state(self, options: TelemetryOptions, sync_period_s: float) -> "TelemetryStateBuilder":
        from nodewise.policies.state import TelemetryStateBuilder

        return TelemetryStateBuilder(options, max_age_s(options, sync_period_s), sync_period_s)

    def agent(self, options: TelemetryOptions) -> "TelemetryAgent":  # noqa: ARG002 - the contract of a kind
        from nodewise.policies.agent import TelemetryAgent

        return TelemetryAgent()

    def controller(self, options: TelemetryOptions, handle: Handle) -> "TelemetryController":
        from nodewise.policies.controller import TelemetryController

        return TelemetryController(options, handle)


KIND: Final = TelemetryKind()
