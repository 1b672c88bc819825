"""The telemetry agent: TASPolicy objects say which nodes to avoid and to prefer by live metrics.

| file | what lives there |
|---|---|
| `operators.py` | what LessThan, GreaterThan and Equals mean |
| `policy.py` | a TASPolicy read into values, with its problems |
| `policy_lint.py` | what `policy lint` reports: what the API server refuses, and what has no effect |
| `taspolicies.yaml` | the shipped definition, for `policy_lint.py` |
| `namespace_trust.py` | which namespaces' policies may affect the whole cluster |
| `rule_evaluation.py` | which nodes break which rules |
| `rank_scores.py` | from values to scores |
| `reasons.py` | why a node is rejected, in words |
| `state.py` | policies and samples in, the slot of the snapshot out |
| `agent.py` | answers a request by look-up |
| `rule_suspension.py` | a rule that loses most of its nodes at once |
| `node_labels.py` | which node labels policies want |
| `label_ownership.py` | whose a node's labels are |
| `status.py` | what a policy's status should say |
| `controller.py` | writes labels, status and events, in the leader |
| `options.py` | settings |

Takes over from Telemetry Aware Scheduling 0.7.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from nodewise.agent import Resource, Watched
from nodewise.agents.telemetry.agent import PodFields, TelemetryAgent
from nodewise.agents.telemetry.controller import TelemetryController
from nodewise.agents.telemetry.namespace_trust import LABEL, NAMESPACES, VALUE, NamespaceObject
from nodewise.agents.telemetry.options import TelemetryOptions, max_age_s
from nodewise.agents.telemetry.policy import PolicyObject
from nodewise.agents.telemetry.state import POLICIES, TelemetryStateBuilder
from nodewise.controllers import ControllerKind, Handle


class NodeMetadata(msgspec.Struct, frozen=True):
    labels: msgspec.Raw = msgspec.Raw(b"null")
    """Read only of the nodes that matter."""


class NodeStatus(msgspec.Struct, frozen=True):
    capacity: msgspec.Raw = msgspec.Raw(b"null")


class NodeFields(msgspec.Struct, frozen=True):
    """What the controller reads of a node."""

    metadata: NodeMetadata = NodeMetadata()
    status: NodeStatus = NodeStatus()


TASPOLICIES: Final = Resource(
    group="telemetry.intel.com", version="v1alpha1", plural="taspolicies", kind="TASPolicy", namespaced=True
)

_NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)


class TelemetryKind(ControllerKind):
    """The row of the registry."""

    name = "telemetry"
    summary = "avoid and prefer nodes by live metrics (TASPolicy)"
    options = TelemetryOptions
    pod_fields = PodFields
    node_fields = NodeFields

    def watched(self, options: TelemetryOptions) -> tuple[Watched, ...]:
        """Policies, and the namespaces that are trusted by their label, unless all are trusted."""
        policies = Watched(POLICIES, TASPOLICIES, PolicyObject)
        if options.trust_all_namespaces:
            return (policies,)
        trusted = {"labelSelector": f"{LABEL}={VALUE}"}
        return policies, Watched(NAMESPACES, _NAMESPACES, NamespaceObject, selectors=trusted)

    def resources(self, options: TelemetryOptions) -> dict[str, bool]:  # noqa: ARG002
        """What pods with a policy ask for, as the older system had it."""
        return {"telemetry/scheduling": True}

    def concerns(self, options: TelemetryOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:  # noqa: ARG002
        """Whether any pod names a policy, be there one or not."""
        agent = TelemetryAgent()
        return any(agent.equivalence_key(pod) is not None for pod in pods)

    def state(self, options: TelemetryOptions, sync_period_s: float) -> TelemetryStateBuilder:
        return TelemetryStateBuilder(options, max_age_s(options, sync_period_s))

    def agent(self, options: TelemetryOptions) -> TelemetryAgent:  # noqa: ARG002 - the contract of a kind
        return TelemetryAgent()

    def controller(self, options: TelemetryOptions, handle: Handle) -> TelemetryController:
        return TelemetryController(TASPOLICIES, options, handle)


KIND: Final = TelemetryKind()
