"""The telemetry agent: avoids and prefers nodes by live metrics, as policies configure it.

| module | content |
|---|---|
| `placement_policy.py` | the model of a policy, independent of its kind |
| `policy_objects.py` | policies as the API server returns them, and the collection of their problems |
| `rule_operators.py` | the table of the operators of rules |
| `taspolicy_parser.py` | parses a TASPolicy into the model and collects its problems |
| `placement_policy_parser.py` | parses a PlacementPolicy or ClusterPlacementPolicy into the model |
| `placement_policy_fields.py` | their fields, limits and the parsers of values |
| `policy_selection.py` | which policies select a pod, and for which of them a policy has an effect |
| `policy_namespace_trust.py` | the namespaces whose policies may affect the whole cluster |
| `policy_budgets.py` | limits the policies, rules, metrics and queries of a namespace, and the labels on a node |
| `rule_evaluation.py` | evaluates rules and preferences over all nodes, once for equal rules |
| `rule_states.py` | the verdicts of rules of `avoid`, also by the states of nodes |
| `hysteresis.py` | the states of nodes under rules with `for`, `release` or `keepFor` |
| `policy_rejection_reasons.py` | the reasons why a node is rejected |
| `state.py` | computes the agent's state from policies and metrics |
| `agent.py` | answers requests by look-up |
| `node_labels.py` | the node labels that policies require, and the owners of node labels (managedFields) |
| `verdict_labels.py` | the node labels with verdicts of policies, for native mode, and what a pod requires of them |
| `native_mode_pods.py` | pods without a node in native mode, their requirements and their Events |
| `labelling_progress.py` | when a policy is active, and nodes that refuse its label |
| `deleted_policies.py` | deleted policies whose labels stay for waiting pods |
| `selected_pods.py` | counts the pods that each policy selects |
| `policy_status_fields.py` | the fields and conditions of a status |
| `policy_status.py` | computes the status of a policy, and the events of its conditions |
| `controller` | writes labels, status and events in the leader |
| `options.py` | settings |

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

        return TelemetryStateBuilder(options, max_age_s(options, sync_period_s))

    def agent(self, options: TelemetryOptions) -> "TelemetryAgent":  # noqa: ARG002 - the contract of a kind
        from nodewise.policies.agent import TelemetryAgent

        return TelemetryAgent()

    def controller(self, options: TelemetryOptions, handle: Handle) -> "TelemetryController":
        from nodewise.policies.controller import TelemetryController

        return TelemetryController(options, handle)


KIND: Final = TelemetryKind()
