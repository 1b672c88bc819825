"""Diagnoses why no replica knows a decision about a pod."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from nodewise.base import clock
from nodewise.cli.explain.pod_state import DEFAULT_SCHEDULER, PodReadResult, PodState
from nodewise.cli.explain.replica_queries import ReplicaResponse
from nodewise.policies.agent import SCHEDULING_RESOURCE
from nodewise.policies.policy_selection import POLICY_LABEL

_MANAGED_RESOURCES: Final = "telemetry/scheduling or gpu.intel.com/i915"


def find_missing_decision_causes(lookup: PodReadResult, responses: Sequence[ReplicaResponse]) -> list[str]:
    """The possible causes, one sentence each, the most likely one first."""
    causes = [
        *(_causes_in_pod_state(lookup.state, lookup) if lookup.state else _causes_without_pod_state(lookup)),
        *_causes_in_replicas(lookup.state, responses),
    ]
    return causes or ["kube-scheduler has not asked about it yet"]


def has_no_policy(lookup: PodReadResult) -> bool:
    """Whether no policy selects the pod now and its label names none. False if that is unknown."""
    state = lookup.state
    is_known = state is not None and not lookup.policies_error
    return is_known and state is not None and state.policy is None and not lookup.policies


def is_never_decided(lookup: PodReadResult) -> bool:
    """Whether no replica decides about the pod: it does not exist, native mode places it, or it has no policy and
    requests no resource.
    """
    state = lookup.state
    return (
        lookup.gone
        or lookup.native is not None
        or (has_no_policy(lookup) and state is not None and not state.asks and not state.misspelt)
    )


def policy_label_problem(lookup: PodReadResult) -> str:
    """Why the pod's policy has no effect, with or without a decision; empty if it may have one."""
    state = lookup.state
    if state is None:
        return ""
    if lookup.missing_policy:
        return f"its label {POLICY_LABEL} names a policy that does not exist: {lookup.missing_policy}"
    if state.misspelt:
        return (
            f"it has the label {state.misspelt} and no label {POLICY_LABEL}, so no TASPolicy applies: rename the label "
            "in the pod's template"
        )
    if state.policy is not None and SCHEDULING_RESOURCE not in state.asks:
        return (
            f"it names TASPolicy {state.policy} and does not request {SCHEDULING_RESOURCE}, so kube-scheduler does not "
            f"ask nodewise about it, unless its entry has no managedResources: add the limit {SCHEDULING_RESOURCE}: 1 "
            "to a container of the pod's template"
        )
    return ""


def selection_problem(lookup: PodReadResult, considered: Collection[str] = ()) -> str:
    """Why policies that select the pod have no effect; empty if they may have one.

    `considered` are the policies in the pod's last decision: for them, kube-scheduler has asked nodewise.
    """
    state = lookup.state
    ignored = [
        policy for policy in lookup.policies if policy.policy not in considered and not policy.not_enforced
    ]
    if state is None or not ignored or SCHEDULING_RESOURCE in state.asks:
        return ""
    names = ", ".join(policy.policy for policy in ignored)
    verb, pronoun = ("select", "they are") if len(ignored) > 1 else ("selects", "it is")
    if all(_is_newer(policy.created, state.created) for policy in ignored):
        remedy = f"{pronoun} newer than the pod: create the pod again"
    else:
        remedy = (
            "apply deploy/extender-pods.yaml, which adds the request to new pods that a policy selects, and create "
            "the pod again"
        )
    return (
        f"{names} {verb} it, and it does not request {SCHEDULING_RESOURCE}, so kube-scheduler does not ask nodewise "
        f"about it, unless its entry has no managedResources; {remedy}"
    )


def _is_newer(created: str, other: str) -> bool:
    """Whether one object was created after another one. Times are in whole seconds."""
    return bool(created and other) and clock.parse_rfc3339(created) > clock.parse_rfc3339(other)


def not_enforced_policies(lookup: PodReadResult) -> list[str]:
    """The policies that select the pod and have no effect, one sentence each."""
    return [
        f"{policy.policy} selects it and is not enforced: {policy.not_enforced}"
        for policy in lookup.policies
        if policy.not_enforced
    ]


def _causes_without_pod_state(lookup: PodReadResult) -> Iterator[str]:
    if lookup.gone:
        yield f"there is no such pod now: {lookup.missing}"
        return
    yield (
        f"kube-scheduler asks only about pods that request a resource of its entry's managedResources, such as "
        f"{_MANAGED_RESOURCES}; with --kubeconfig, nodewise explain also examines the pod"
    )


def _causes_in_pod_state(state: PodState, lookup: PodReadResult) -> Iterator[str]:
    if state.gates:
        gates = ", ".join(state.gates)
        yield f"it has scheduling gates ({gates}): no scheduler tries to place it until they are removed"
    problems = list(filter(None, (policy_label_problem(lookup), selection_problem(lookup))))
    yield from problems
    yield from not_enforced_policies(lookup)
    if not problems and has_no_policy(lookup):
        yield (
            "this pod references no policy: no policy of its namespace and no ClusterPlacementPolicy selects it, and "
            f"it has no label {POLICY_LABEL}, so policies have no effect on it"
        )
    if not problems and not state.asks:
        yield (
            "it requests no extended resource: kube-scheduler asks only about pods that request a resource of its "
            f"entry's managedResources, such as {_MANAGED_RESOURCES}"
        )
    if state.scheduler != DEFAULT_SCHEDULER:
        yield f"its scheduler is {state.scheduler}: is nodewise an extender in that one's configuration?"
    if state.message and not state.gates:
        yield (
            f"kube-scheduler reports: {state.message}; it asks extenders only about nodes that its own rules leave"
        )
    elif not state.node and not state.gates:
        yield "no scheduler has reported on it yet"


def _causes_in_replicas(state: PodState | None, responses: Sequence[ReplicaResponse]) -> Iterator[str]:
    """Causes in the replicas: no decisions at all, no response, or decisions that were dropped."""
    pages = [response.page for response in responses if response.page]
    if pages and not any(page.kept for page in pages):
        yield (
            "nodewise has decided nothing at all since it started: is it in the extenders of kube-scheduler's "
            "configuration?"
        )
    created = clock.parse_rfc3339(state.created) if state and state.created else None
    for response in responses:
        yield from _cause_in_replica(response, created)


def _cause_in_replica(response: ReplicaResponse, created: float | None) -> Iterator[str]:
    """Whether a replica may have dropped the decision about a pod of this creation time."""
    url, page = response.replica, response.page
    if page is None:
        yield f"{url} did not respond: its decisions are unknown"
    elif page.kept_since and (created is None or clock.parse_rfc3339(page.kept_since) > created):
        yield (
            f"{url} keeps {page.kept:,} decisions, the oldest of {page.kept_since}: older ones were dropped "
            "(--decisions-bytes) or lost when it restarted"
        )
