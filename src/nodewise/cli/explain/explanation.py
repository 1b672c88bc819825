"""Builds the explanation of a pod: from a decision, from the reason why there is none, or from what its user may see.

A user without rights in nodewise's namespace sees events of the pod and the status of policies.
"""

import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent import is_unresolvable
from nodewise.base import clock, quantity
from nodewise.base.errors import UNREADABLE, NodewiseError, counted
from nodewise.cli.explain import native_evaluation
from nodewise.cli.explain.native_evaluation import Evaluation, LabelDifference
from nodewise.cli.explain.pod_state import DEFAULT_SCHEDULER, PodReadResult, PodState
from nodewise.cli.explain.replica_queries import ReplicaResponse
from nodewise.devices.resource_claims import UNKNOWN_RESOURCE_MESSAGE
from nodewise.engine import decision_json
from nodewise.engine.counterfactuals import PolicyRemoval
from nodewise.engine.decision import Decision
from nodewise.engine.scheduling_attempt_explanation import (
    Explanation,
    MeasuredRule,
    NodeExplanation,
    RejectionGroup,
)
from nodewise.kube.api_server_interface import Api
from nodewise.kube.resource_kinds import Resource
from nodewise.policies.agent import SCHEDULING_RESOURCE
from nodewise.policies.policy_selection import POLICY_LABEL

_MANAGED_RESOURCES: Final = "telemetry/scheduling or gpu.intel.com/i915"


def find_missing_decision_causes(lookup: PodReadResult, responses: Sequence[ReplicaResponse]) -> list[str]:
    """The possible causes, one sentence each, the most likely one first."""
    state = lookup.state
    if state is not None:
        causes = list(_causes_in_pod_state(state, lookup))
    elif lookup.gone:
        causes = [f"there is no such pod now: {lookup.missing}"]
    elif evaluating := [response for response in responses if response.evaluation]:
        what = "no policy selects the pod" if evaluating[0].decisions else "the pod does not exist"
        causes = [f"{what}, according to {evaluating[0].replica}"]
    else:
        rule = "kube-scheduler asks only about pods that request a resource of its entry's managedResources, such as"
        causes = [f"{rule} {_MANAGED_RESOURCES}; with --kubeconfig, nodewise explain also examines the pod"]
    causes += _causes_in_replicas(state, responses)
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


def selection_problem(  # complexity: one sentence of several parts
    lookup: PodReadResult, considered: Collection[str] = ()
) -> str:
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
    # times are in whole seconds
    created = clock.parse_rfc3339(state.created) if state.created else math.inf
    if all(policy.created and clock.parse_rfc3339(policy.created) > created for policy in ignored):
        remedy = f"{pronoun} newer than the pod: create the pod again"
    else:
        remedy = (
            "apply the admission policies of nodewise configure manifests extender-pods, which add the request to new "
            "pods that a policy selects, and create the pod again"
        )
    return (
        f"{names} {verb} it, and it does not request {SCHEDULING_RESOURCE}, so kube-scheduler does not ask nodewise "
        f"about it, unless its entry has no managedResources; {remedy}"
    )


def _causes_in_pod_state(  # complexity: a list of independent causes
    state: PodState, lookup: PodReadResult
) -> Iterator[str]:
    if state.gates:
        gates = ", ".join(state.gates)
        yield f"it has scheduling gates ({gates}): no scheduler tries to place it until they are removed"
    problems = list(filter(None, (policy_label_problem(lookup), selection_problem(lookup))))
    yield from problems
    for policy in lookup.policies:
        if policy.not_enforced:
            yield f"{policy.policy} selects it and is not enforced: {policy.not_enforced}"
    if not problems and has_no_policy(lookup):
        yield (
            "this pod references no policy: no policy of its namespace and no ClusterPlacementPolicy selects it, and "
            f"it has no label {POLICY_LABEL}, so policies have no effect on it"
        )
    if not problems and not state.asks:
        yield _cause_without_resources(state)
    if state.scheduler != DEFAULT_SCHEDULER:
        yield f"its scheduler is {state.scheduler}: is nodewise an extender in that one's configuration?"
    if state.message and not state.gates:
        yield (
            f"kube-scheduler reports: {state.message}; it asks extenders only about nodes that its own rules leave"
        )
        if UNKNOWN_RESOURCE_MESSAGE in state.message and SCHEDULING_RESOURCE in state.asks:
            yield (
                f"beside an extended resource of a DeviceClass, kube-scheduler finds {SCHEDULING_RESOURCE} on no node: "
                "have it send all pods (nodewise configure render-scheduler --filter-all-pods), and create the pod "
                "without it"
            )
    elif not state.node and not state.gates:
        yield "no scheduler has reported on it yet"


def _cause_without_resources(state: PodState) -> str:
    """Why kube-scheduler does not ask about a pod that requests no extended resource."""
    if state.has_claims:
        return (
            "its ResourceClaims are no extended resource: kube-scheduler asks nodewise about it only if it requests "
            f"{SCHEDULING_RESOURCE}, which the admission policies of nodewise configure manifests extender-pods add "
            "to new pods with claims, unless its entry has no managedResources; nodewise devices lists free devices"
        )
    return (
        "it requests no extended resource: kube-scheduler asks only about pods that request a resource of its "
        f"entry's managedResources, such as {_MANAGED_RESOURCES}"
    )


def _causes_in_replicas(  # complexity: a list of independent causes
    state: PodState | None, responses: Sequence[ReplicaResponse]
) -> Iterator[str]:
    """Causes in the replicas: no decisions at all, no response, or decisions that were dropped."""
    pages = [response.page for response in responses if response.page]
    if pages and not any(page.kept for page in pages):
        yield (
            "nodewise has decided nothing at all since it started: is it in the extenders of kube-scheduler's "
            "configuration?"
        )
    created = clock.parse_rfc3339(state.created) if state and state.created else None
    for response in responses:
        url, page = response.replica, response.page
        if response.error:
            yield f"{url} did not respond: its decisions are unknown"
        elif page and page.kept_since and (created is None or clock.parse_rfc3339(page.kept_since) > created):
            yield (
                f"{url} keeps {counted(page.kept, 'decision')}, the oldest of {page.kept_since}: "
                "older ones were dropped (--decisions-bytes) or lost when it restarted"
            )


_EVENTS: Final = Resource("", "v1", "events", "Event")
"""The API of `kubectl describe`: the ClusterRole `view` has the right to read these."""
_REPORTERS: Final = "nodewise.io/"
_MOST_LISTED: Final = "200"


class PodEvent(NamedTuple):
    """An event that nodewise wrote about the pod."""

    reason: str
    message: str
    times: int
    last: str
    """RFC 3339."""


class VisibleState(NamedTuple):
    """What is visible, and what is not."""

    events: tuple[PodEvent, ...]
    """The newest first."""
    events_error: str
    """Why events cannot be read; empty if they can."""
    hidden: str
    """Why the decisions of replicas cannot be read."""


class _Series(msgspec.Struct, frozen=True, rename="camel"):
    count: int = 0
    last_observed_time: str | None = None


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    reporting_component: str = ""
    event_time: str | None = None
    last_timestamp: str | None = None
    series: _Series | None = None


class _Events(msgspec.Struct, frozen=True):
    items: tuple[_Event, ...] | None = None


async def read_visible_state(
    api: Api, namespace: str, pod: str, uid: str, timeout_s: float, hidden: str
) -> VisibleState:
    """The events of nodewise about the pod with this uid, or with this name if the uid is empty."""
    fields = {"involvedObject.name": pod, "involvedObject.kind": "Pod"} | (
        {"involvedObject.uid": uid} if uid else {}
    )
    selector = ",".join(f"{name}={value}" for name, value in fields.items())
    try:
        query = {"fieldSelector": selector, "limit": _MOST_LISTED}
        body = await api.get(_EVENTS.path(namespace), query, timeout_s=timeout_s)
        listed = msgspec.json.decode(body, type=_Events).items or ()
    except (NodewiseError, *UNREADABLE) as error:
        return VisibleState((), str(error), hidden)
    events = []
    for event in listed:
        if event.reporting_component.startswith(_REPORTERS):
            series = event.series or _Series()
            last = series.last_observed_time or event.event_time or event.last_timestamp or ""
            events.append(PodEvent(event.reason, event.message, max(series.count, 1), last))
    return VisibleState(tuple(sorted(events, key=lambda event: event.last, reverse=True)), "", hidden)


_NUMBER: Final = re.compile(r"(?<![\w.-])-?\d(?:[\w.]|,(?=\d)|(?<=e)[+-](?=\d))*")
"""A number in a text, with its unit: `40s`, `1,200`, `-0.5`, `3G`. The digits of names such as `card0` are none."""


class PodExplanation(NamedTuple):
    """Everything that is known about a pod's placement."""

    pod: str
    """`NAMESPACE/NAME`."""
    lookup: PodReadResult
    responses: Sequence[ReplicaResponse]
    explanation: Explanation | None
    now: float
    visible: VisibleState | None = None
    """What a user sees who may not ask the replicas; None for other users."""
    evaluation: Evaluation | None = None
    """In native mode, what the policies say now; None if no replica has evaluated the pod."""
    evaluation_error: str = ""
    """Why no replica could be asked for an evaluation."""

    @property
    def label_differences(self) -> list[LabelDifference]:
        """Where the labels of native mode differ from the evaluation."""
        native = self.lookup.native
        return (
            native_evaluation.label_differences(native, self.evaluation) if native and self.evaluation else []
        )

    @property
    def tries(self) -> int:
        return sum(response.page.tries for response in self.responses if response.page)

    @property
    def since(self) -> str | None:
        return min(
            (response.page.since for response in self.responses if response.page and response.page.since),
            default=None,
        )


def policy_warning(pod_explanation: PodExplanation) -> str:
    """Why a policy has no effect because of the pod's labels or requests; empty if there is no such reason.

    If the decision considers the pod's policies, the pod needs no request, as in native mode.
    """
    lookup, explanation = pod_explanation.lookup, pod_explanation.explanation
    state = lookup.state
    if state is None or is_placed_natively(pod_explanation):
        return ""
    is_considered = explanation is not None and state.policy is not None and not lookup.missing_policy
    considered = (
        {*(policy.policy for policy in explanation.policies), *explanation.ranking_only}
        if explanation
        else ()
    )
    return ("" if is_considered else policy_label_problem(lookup)) or selection_problem(lookup, considered)


def comparable_answer(  # complexity: one tuple of optional parts
    pod_explanation: PodExplanation,
) -> object:
    """What `--watch` compares: the result, without times, ages and values, which change all the time."""
    lookup, explained = pod_explanation.lookup, pod_explanation.explanation
    failed = {response.replica: response.error for response in pod_explanation.responses if response.error}
    # only a user who cannot ask the replicas sees the status, which counts nodes
    policies = (
        lookup.policies
        if pod_explanation.visible
        else tuple(policy._replace(status=()) for policy in lookup.policies)
    )
    visible, native = pod_explanation.visible, lookup.native
    bound = explained.attempt.bound if explained else None
    return (
        lookup._replace(native=None, policies=policies),
        failed,
        native
        and (
            native._replace(nodes=(), controller=None),
            native.controller and native.controller.leader,
            {node.node: (node.passes, node.labels) for node in native.nodes},
        ),
        _comparable_evaluation(pod_explanation.evaluation),
        explained and (bound and _bind_result_document(bound), _comparable_nodes(explained)),
        visible and [(event.reason, event.message) for event in visible.events],
    )


def _comparable_evaluation(evaluation: Evaluation | None) -> object:
    # without the replica: the newest evaluation counts while none of several leads
    return evaluation and (evaluation.leads, _comparable_nodes(evaluation.explanation))


def _comparable_nodes(explanation: Explanation) -> object:
    return explanation.held, {node.node: _comparable_node(node) for node in explanation.findings}


def _comparable_node(node: NodeExplanation) -> object:
    """Score, reasons and details. Numbers in details are values, and times such as `broken for 40s of 2m`."""
    details = {agent: _NUMBER.sub("#", text) for agent, text in node.details}
    return node.score, [reason.text() for _, reason in node.reasons], details


def explanation_document(  # complexity: one document of optional parts
    pod_explanation: PodExplanation,
) -> dict[str, Any]:
    """The explanation as a JSON document."""
    lookup, explained = pod_explanation.lookup, pod_explanation.explanation
    document = {
        "pod": pod_explanation.pod,
        "state": _plain(lookup.state),
        "gone": lookup.gone,
        "replicas": [
            {
                "replica": response.replica,
                "error": response.error or None,
                "found": response.page and response.page.found,
                "kept": response.page and response.page.kept,
                "kept_since": response.page and response.page.kept_since,
            }
            for response in pod_explanation.responses
        ],
        "tries": pod_explanation.tries,
        "since": pod_explanation.since,
        "attempt": _attempt_document(explained) if explained else None,
        "warning": policy_warning(pod_explanation) or None,
        "why_none": None
        if explained or is_placed_natively(pod_explanation)  # no replica decides about such a pod
        else find_missing_decision_causes(lookup, pod_explanation.responses),
    }
    if evaluation := pod_explanation.evaluation:
        document["evaluation"] = _evaluation_document(evaluation, pod_explanation.label_differences)
    optional = {"selected_by": lookup.policies, "visible": pod_explanation.visible, "native": lookup.native}
    return document | {name: _plain(value) for name, value in optional.items() if value}


def is_placed_natively(pod_explanation: PodExplanation) -> bool:
    """Whether the pod is explained by native mode instead of decisions."""
    evaluation = pod_explanation.evaluation
    return pod_explanation.lookup.native is not None or (evaluation is not None and evaluation.has_policies)


def _plain(value: Any) -> Any:
    """The value with objects instead of named tuples."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def _evaluation_document(evaluation: Evaluation, differences: Sequence[LabelDifference]) -> dict[str, Any]:
    return {
        "replica": evaluation.replica,
        "leads": evaluation.leads,
        "asked": evaluation.nodes,
        "passing": evaluation.passing,
        "left_out": evaluation.left_out,
        "shards": evaluation.shards,
        "own_shards": evaluation.own_shards,
        "differing_labels": _plain(tuple(differences)),
        **_decision_document(evaluation.explanation),
    }


def _attempt_document(explanation: Explanation) -> dict[str, Any]:
    attempt = explanation.attempt
    judged, preempted, bound = attempt.main_decision, attempt.preempted, attempt.bound
    return {
        "calls": [call.verb for call in attempt if call],
        "asked": len(judged.names),
        "passing": int(judged.feasible().sum()),
        **_decision_document(explanation),
        "preempt": preempted
        and {
            "feasible": preempted.names[preempted.feasible()].tolist(),
            "rejected": decision_json.rejection_reasons(preempted),
        },
        "bind": bound and _bind_result_document(bound),
    }


def _decision_document(explanation: Explanation) -> dict[str, Any]:
    """The nodes, what rejects them, and what would change that."""
    judged = explanation.attempt.main_decision
    policies = list(map(_policy_document, explanation.policies))
    return {
        "time": clock.format_rfc3339(judged.at),
        "view": judged.generation,
        "held": explanation.held,
        "nodes": [_node_document(node) for node in explanation.findings],
        "groups": [_group_document(group) for group in explanation.groups],
        "changes": [decision_json.change_document(change) for change in explanation.changes],
        **({"policies": policies} if policies else {}),
        **({"ranking_only": explanation.ranking_only} if explanation.ranking_only else {}),
    }


def _policy_document(policy: PolicyRemoval) -> dict[str, Any]:
    return {
        "agent": policy.agent,
        "policy": policy.policy,
        "rejected": policy.rejected,
        "more_without": policy.more,
        "not_enforced": policy.not_enforced or None,
        **({} if policy.would_reject is None else {"would_reject": policy.would_reject}),
    }


def _group_document(group: RejectionGroup) -> dict[str, Any]:
    return {
        "agent": group.agent,
        "reason": group.reason.text(),
        "failure": group.reason.is_failure,
        "remedy": group.reason.remedy(),
        "nodes": [node.node for node in group.nodes],
        "unresolvable": [
            node.node for node in group.nodes if any(is_unresolvable(reason) for _, reason in node.reasons)
        ],
    }


def _bind_result_document(bound: Decision) -> dict[str, Any]:
    why = decision_json.rejection_reasons(bound).get(bound.names[0], [])
    return {"node": bound.names[0], "told": bound.description, "refused": why[0]["reason"] if why else None}


def _node_document(node: NodeExplanation) -> dict[str, Any]:
    parts = {part.label: {"weight": part.weight, "score": part.points} for part in node.parts}
    return {
        "node": node.node,
        "passes": not node.reasons,
        "score": node.score,
        "reasons": [{"agent": agent, "reason": reason.text()} for agent, reason in node.reasons],
        "measured": [_measured_value_document(measured) for measured in node.measured],
        **({"details": dict(node.details)} if node.details else {}),
        **({"numbers": node.numbers} if node.numbers else {}),
        **({"parts": parts} if parts else {}),
    }


def _measured_value_document(measured: MeasuredRule) -> dict[str, Any]:
    return {
        "metric": measured.metric,
        "operator": measured.operator,
        "target": None if measured.target is None else quantity.nano_to_decimal(measured.target),
        "value": None if measured.value is None else quantity.nano_to_decimal(measured.value),
        "state": measured.state.name.lower(),
        "age_s": measured.age_s,
        "rejects": measured.rejects,
        **({"policy": measured.policy} if measured.policy else {}),
    }
