"""The telemetry agent: avoids and prefers nodes by live metrics, as policies configure it.

| module | content |
|---|---|
| `placement_policy.py` | the model of a policy, independent of its kind |
| `policy_objects.py` | policies as the API server returns them, and the collection of their problems |
| `rule_operators.py` | the six operators of rules |
| `taspolicy_parser.py` | parses a TASPolicy into the model and collects its problems |
| `optional_rule_fields.py` | parses the optional fields of a rule of a TASPolicy |
| `placement_policy_parser.py` | parses a PlacementPolicy or ClusterPlacementPolicy into the model |
| `placement_policy_fields.py` | their fields, limits and the parsers of values |
| `policy_selection.py` | which policies select a pod |
| `policy_mode.py` | for which pods a policy has an effect, by its mode |
| `policy_guard.py`, `waiting_pods.py` | when a policy steps back, and which pods wait because of it |
| `taspolicy_conversion.py` | converts a TASPolicy to the other kinds |
| `policy_lint.py`, `policy_notes.py` | `policy lint`: what the API server refuses, and what has no effect |
| `taspolicies.yaml` | the CRD, for `policy_lint.py` |
| `policy_namespace_trust.py` | the namespaces whose policies may affect the whole cluster |
| `metric_columns.py` | the values of metrics by node number |
| `rule_evaluation.py` | evaluates rules over all nodes |
| `rule_evaluation_cache.py` | evaluates equal rules once, with the history of their values |
| `rank_scores.py` | scores nodes by the rank of their values |
| `policy_rejection_reasons.py` | the reasons why a node is rejected |
| `state.py` | computes the agent's state from policies and metrics |
| `agent.py` | answers requests by look-up |
| `hysteresis.py` | the states of nodes under rules with `for`, `release` or `keepFor` |
| `rule_states.py` | the verdicts of rules of `avoid`, also by these states |
| `rule_state_records.py` | these states in the status of a policy |
| `rule_state_details.py` | texts about these states, for `explain` |
| `flap_history.py` | counts how often a rule rejects a node again |
| `rule_suspension.py` | suspends a rule that loses the values of most nodes at once |
| `node_labels.py` | the node labels that policies require |
| `node_label_ownership.py` | the owners of node labels (managedFields) |
| `verdict_labels.py` | the node labels with verdicts of policies, for native mode |
| `verdict_requirements.py` | what a pod requires of these labels |
| `unscheduled_pods.py` | pods without a node in native mode |
| `labelling_progress.py` | when a policy is active, and nodes that refuse its label |
| `deleted_policies.py` | deleted policies whose labels stay for waiting pods |
| `uncovered_pods.py` | policies that native mode does not apply to pods that they select |
| `examination_budget.py` | how many nodes may be labelled while many pods wait |
| `native_pod_notes.py` | the Events of pods for which no node has the required labels |
| `policy_conditions.py` | conditions of a status |
| `taspolicy_status.py` | the status of a TASPolicy |
| `policy_status_fields.py` | the fields of that of a PlacementPolicy or ClusterPlacementPolicy |
| `placement_policy_status.py` | computes the status of a PlacementPolicy or ClusterPlacementPolicy |
| `policy_status.py` | the status of any kind, and the events of its conditions |
| `selected_pods.py` | counts the pods that each policy selects |
| `namespace_budgets.py` | limits the rules, metrics and queries of a namespace |
| `node_label_budget.py` | limits the labels on a node, in fair shares of namespaces |
| `controller` | writes labels, status and events in the leader |
| `options.py` | settings |

Replaces Telemetry Aware Scheduling 0.7.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from nodewise.agent import Resource, Watched
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

    @cached_property
    def pod_fields(self) -> type[msgspec.Struct]:  # type: ignore[override]
        from nodewise.policies.policy_selection import PodFields

        return PodFields

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
