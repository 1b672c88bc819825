"""The explanation of a pod: its state, the responses of replicas and its last scheduling attempt."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from nodewise.agent import is_unresolvable
from nodewise.base import clock, quantity
from nodewise.cli.explain import missing_decision
from nodewise.cli.explain.native_labels import NativeState
from nodewise.cli.explain.pod_state import PodReadResult
from nodewise.cli.explain.replica_queries import ReplicaResponse
from nodewise.cli.explain.visible_state import VisibleState
from nodewise.engine import decision_document
from nodewise.engine.counterfactuals import PolicyRemoval, RuleChange
from nodewise.engine.decision import Decision
from nodewise.engine.scheduling_attempt_explanation import (
    Explanation,
    MeasuredRule,
    NodeExplanation,
    RejectionGroup,
    ScorePart,
)

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

    If the decision considers the pod's policies, the pod needs no request.
    """
    state, explanation = pod_explanation.lookup.state, pod_explanation.explanation
    if state is None or pod_explanation.lookup.native:
        return ""
    lookup = pod_explanation.lookup
    is_considered = explanation is not None and state.policy is not None and not lookup.missing_policy
    considered = (
        {*(policy.policy for policy in explanation.policies), *explanation.ranking_only}
        if explanation
        else ()
    )
    return (
        "" if is_considered else missing_decision.policy_label_problem(lookup)
    ) or missing_decision.selection_problem(lookup, considered)


def comparable_answer(pod_explanation: PodExplanation) -> object:
    """What `--watch` compares: the result, without times, ages and values, which change all the time."""
    lookup, explained = pod_explanation.lookup, pod_explanation.explanation
    failed = {response.replica: response.error for response in pod_explanation.responses if response.error}
    # only a user who cannot ask the replicas sees the status, which counts nodes
    policies = (
        lookup.policies
        if pod_explanation.visible
        else tuple(policy._replace(status=()) for policy in lookup.policies)
    )
    return (
        lookup._replace(native=None, policies=policies),
        failed,
        lookup.native and _comparable_native_state(lookup.native),
        explained and _comparable_attempt(explained),
        pod_explanation.visible
        and [(event.reason, event.message) for event in pod_explanation.visible.events],
    )


def _comparable_native_state(native: NativeState) -> object:
    return (
        native._replace(nodes=(), controller=None),
        native.controller and native.controller.leader,
        {node.node: (node.passes, node.labels) for node in native.nodes},
    )


def _comparable_attempt(explained: Explanation) -> object:
    bound = explained.attempt.bound
    return (
        explained.held,
        bound and _bind_result_document(bound),
        {node.node: _comparable_node(node) for node in explained.findings},
    )


def _comparable_node(node: NodeExplanation) -> object:
    """Score, reasons and details. The numbers in details are values, and times such as `broken for 40s of 2m`."""
    details = {agent: _NUMBER.sub("#", text) for agent, text in node.details}
    return node.score, [reason.text() for _, reason in node.reasons], details


def explanation_document(pod_explanation: PodExplanation) -> dict[str, Any]:
    """The explanation as a JSON document."""
    lookup = pod_explanation.lookup
    state = lookup.state
    selected_by = [policy._asdict() for policy in lookup.policies]
    return {
        "pod": pod_explanation.pod,
        "state": state._asdict() if state else None,
        "gone": lookup.gone,
        "replicas": [_replica_document(response) for response in pod_explanation.responses],
        "tries": pod_explanation.tries,
        "since": pod_explanation.since,
        "attempt": _attempt_document(pod_explanation.explanation) if pod_explanation.explanation else None,
        "warning": policy_warning(pod_explanation) or None,
        "why_none": None
        if pod_explanation.explanation or lookup.native  # no replica decides about a pod of native mode
        else missing_decision.find_missing_decision_causes(lookup, pod_explanation.responses),
        **({"selected_by": selected_by} if selected_by else {}),
        **({"visible": _visible_document(pod_explanation.visible)} if pod_explanation.visible else {}),
        **({"native": _native_document(lookup.native)} if lookup.native else {}),
    }


def _visible_document(visible: VisibleState) -> dict[str, Any]:
    return {**visible._asdict(), "events": [event._asdict() for event in visible.events]}


def _native_document(native: NativeState) -> dict[str, Any]:
    return {
        **native._asdict(),
        "requirements": [requirement._asdict() for requirement in native.requirements],
        "nodes": [node._asdict() for node in native.nodes],
        "controller": native.controller._asdict() if native.controller else None,
    }


def _replica_document(response: ReplicaResponse) -> dict[str, Any]:
    page = response.page
    return {
        "replica": response.replica,
        "error": response.error or None,
        "found": page.found if page else None,
        "kept": page.kept if page else None,
        "kept_since": page.kept_since if page else None,
    }


def _attempt_document(explanation: Explanation) -> dict[str, Any]:
    judged, preempted, bound = (
        explanation.attempt.main_decision,
        explanation.attempt.preempted,
        explanation.attempt.bound,
    )
    calls = [call.verb for call in explanation.attempt if call]
    return {
        "time": clock.format_rfc3339(judged.at),
        "view": judged.generation,
        "calls": calls,
        "asked": len(judged.names),
        "passing": int(judged.feasible().sum()),
        "held": explanation.held,
        "nodes": [_node_document(node) for node in explanation.findings],
        "groups": [_node_group_document(group) for group in explanation.groups],
        "changes": [_needed_change_document(change) for change in explanation.changes],
        **({"policies": list(map(_policy_document, explanation.policies))} if explanation.policies else {}),
        **({"ranking_only": explanation.ranking_only} if explanation.ranking_only else {}),
        "preempt": None
        if preempted is None
        else {
            "feasible": preempted.names[preempted.feasible()].tolist(),
            "rejected": decision_document.rejection_reasons(preempted),
        },
        "bind": None if bound is None else _bind_result_document(bound),
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


def _bind_result_document(bound: Decision) -> dict[str, Any]:
    why = decision_document.rejection_reasons(bound).get(bound.names[0], [])
    return {"node": bound.names[0], "told": bound.description, "refused": why[0]["reason"] if why else None}


def _node_document(node: NodeExplanation) -> dict[str, Any]:
    return {
        "node": node.node,
        "passes": not node.reasons,
        "score": node.score,
        "reasons": [{"agent": agent, "reason": reason.text()} for agent, reason in node.reasons],
        "measured": [_measured_value_document(measured) for measured in node.measured],
        **({"details": dict(node.details)} if node.details else {}),
        **({"numbers": node.numbers} if node.numbers else {}),
        **({"parts": {part.label: _score_part_document(part) for part in node.parts}} if node.parts else {}),
    }


def _score_part_document(part: ScorePart) -> dict[str, Any]:
    return {"weight": part.weight, "score": part.points}


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


def _node_group_document(group: RejectionGroup) -> dict[str, Any]:
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


def _needed_change_document(change: RuleChange) -> dict[str, Any]:
    return {
        "agent": change.agent,
        "rule": change.number,
        "metric": change.rule.metric,
        "operator": change.rule.operator,
        "target": quantity.nano_to_decimal(change.rule.target or 0),
        "more": [
            {"target": quantity.nano_to_decimal(relaxed.target), "nodes": relaxed.more}
            for relaxed in change.relaxed
        ],
        "alone": change.alone,
        "missing": change.unmeasured,
        "one_is_enough": change.enough,
        **({"policy": change.rule.policy} if change.rule.policy else {}),
    }
