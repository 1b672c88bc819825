"""Waiting pods to which native mode does not apply a policy that selects them: they are older than the policy, or than
a change of its selector. `nodewise decide --cluster` reports them, because it applies the policy.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from nodewise.agent import ObjectKey
from nodewise.cli import terminal_output
from nodewise.cli.explain import native_labels, pod_policies
from nodewise.policies import policy_selection
from nodewise.policies.state import TelemetryState
from nodewise.policies.verdict_labels import NodeConstraints, label_key, verdict_requirements

_MAX_LISTED: Final = 5


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    creationTimestamp: str | None = None  # noqa: N815 - the API's name


class _Spec(NodeConstraints, frozen=True, gc=False):
    nodeName: str = ""  # noqa: N815 - the API's name


class NativePodFields(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that are read in addition to those of the agent telemetry."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


def print_uncovered_pods(
    pods: Iterable[Any], state: TelemetryState, objects: Mapping[str, Mapping[ObjectKey, Any]]
) -> None:
    """Print a message for each of the first pods, and the number of the others."""
    messages = [message for pod in pods for message in _messages(pod, state, objects)]
    for message in messages[:_MAX_LISTED]:
        terminal_output.print_message(message)
    if len(messages) > _MAX_LISTED:
        terminal_output.print_message(
            f"{len(messages) - _MAX_LISTED:,} more policies of waiting pods have no effect in native mode"
        )


def _messages(
    pod: Any, state: TelemetryState, objects: Mapping[str, Mapping[ObjectKey, Any]]
) -> Iterator[str]:
    if pod.spec.nodeName:
        return
    keys = {requirement.key for requirement in verdict_requirements(pod.spec)}
    for key in state.selection.select(pod):
        # a pod may name a TASPolicy that does not exist
        policy_state = state.policies.get(key)
        if policy_state is None or label_key(policy_state.policy.uid) in keys:
            continue
        policy = policy_state.policy
        if not policy_selection.is_enforced_for(policy, pod):
            continue
        of_label = pod_policies.policy_of_label(policy, objects, selects=True)
        if of_label.is_labelled:
            why = native_labels.why_not_covering(of_label, pod.metadata.creationTimestamp or "")
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            yield f"native mode does not apply {of_label.policy} to pod {name}: {why}; create the pod again"
