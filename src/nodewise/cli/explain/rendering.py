"""Prints an explanation as text, as a wide table or as JSON. It computes nothing."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click

from nodewise import clock, quantity
from nodewise.cli import agent_value_format, tables, terminal_output
from nodewise.cli.explain import explanation as explanations
from nodewise.cli.explain import missing_decision
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.extender import decision_document
from nodewise.extender.counterfactuals import PolicyRemoval
from nodewise.extender.decision import Decision
from nodewise.extender.scheduling_attempt_explanation import Explanation, MeasuredRule, NodeExplanation

MAX_LISTED: Final = 20
"""If there are more nodes, only the most relevant ones are shown."""
_CLOSEST: Final = 3
_DETAILS: Final = "DETAILS"
_MADE_OF: Final = "MADE OF"
_OPTIONAL_COLUMNS: Final = (_DETAILS, _MADE_OF)
"""Columns that are shown only if they have values."""


def print_text(pod_explanation: PodExplanation, *, every_node: bool) -> None:
    """Print the result, the nodes or groups of nodes, and what would have changed the result."""
    if pod_explanation.explanation is None:
        replicas = _format_count(len(pod_explanation.responses), "replica")
        terminal_output.print_line(f"{pod_explanation.pod}: {replicas} asked, none has a decision")
        _print_lines(
            f"  {reason}"
            for reason in missing_decision.find_missing_decision_causes(
                pod_explanation.lookup, pod_explanation.responses
            )
        )
        return
    findings = pod_explanation.explanation.findings
    _print_lines(_scheduling_result_lines(pod_explanation))
    _print_warning(pod_explanation)
    if every_node or (
        len(findings) <= MAX_LISTED and not _is_failure_of_all_nodes(pod_explanation.explanation)
    ):
        rows = [
            [
                node.node,
                _format_score(node),
                agent_value_format.format_score_parts(node.parts) or "-",
                _format_values(node),
                _format_details(node) or "-",
                _format_reasons(node),
            ]
            for node in findings
        ]
        head = ("NODE", "SCORE", _MADE_OF, "MEASURED", _DETAILS, "REJECTED")
        tables.print_table(*tables.drop_empty_columns(_OPTIONAL_COLUMNS, head, rows))
    else:
        _print_groups(pod_explanation.explanation)
    _print_lines(_bind_result_and_remedy_lines(pod_explanation.explanation))


def print_rows_by_node_and_rule(pod_explanation: PodExplanation, *, every_node: bool) -> None:
    """Print a row for each node and rule: value, age, threshold. Of many nodes, only the most relevant."""
    if pod_explanation.explanation is None or (
        not every_node and _is_failure_of_all_nodes(pod_explanation.explanation)
    ):
        print_text(pod_explanation, every_node=every_node)
        return
    findings = pod_explanation.explanation.findings
    shown = findings if every_node or len(findings) <= MAX_LISTED else _select_nodes_to_list(findings)
    _print_lines(_scheduling_result_lines(pod_explanation))
    _print_warning(pod_explanation)
    rows = (row for node in shown for row in _node_rows(node))
    tables.print_table(("NODE", "VERDICT", "SCORE", "RULE", "VALUE", "AGE", "REJECTS"), rows)
    if len(shown) < len(findings):
        click.echo(f"{len(findings) - len(shown):,} more nodes: --nodes shows all")
    _print_lines(_bind_result_and_remedy_lines(pod_explanation.explanation))


def _is_failure_of_all_nodes(explanation: Explanation) -> bool:
    """Whether all nodes are rejected by a failure that has nothing to do with them, so that one line is enough."""
    return bool(explanation.groups) and explanation.groups[0].reason.is_failure


def _print_warning(pod_explanation: PodExplanation) -> None:
    warning = explanations.policy_warning(pod_explanation)
    if warning:
        terminal_output.print_line(f"Warning: {warning}")


def _print_lines(lines: Iterator[str]) -> None:
    for line in lines:
        terminal_output.print_line(line)


def _scheduling_result_lines(pod_explanation: PodExplanation) -> Iterator[str]:
    """The result, its time, and kube-scheduler's own message."""
    assert pod_explanation.explanation is not None
    judged = pod_explanation.explanation.attempt.main_decision
    total, passing = len(judged.names), int(judged.feasible().sum())
    yield f"{pod_explanation.pod} {_format_placement(pod_explanation)}: {_format_passing_node_count(passing, total)}"
    known = (
        f"; {pod_explanation.tries} attempts since {pod_explanation.since}"
        if pod_explanation.tries > 1
        else ""
    )
    ago = format_age(max(pod_explanation.now - judged.at, 0.0))
    yield f"last attempt {clock.format_rfc3339(judged.at)}, {ago} ago{known}"
    yield from _explanation_remark_lines(pod_explanation, judged)
    yield from _policy_lines(pod_explanation.explanation)
    yield ""


def _format_placement(pod_explanation: PodExplanation) -> str:
    state = pod_explanation.lookup.state
    if state is None:
        return "does not exist any more" if pod_explanation.lookup.gone else "at its last attempt"
    return f"is on {state.node}" if state.node else "waits"


def _format_passing_node_count(passing: int, total: int) -> str:
    """How many of the requested nodes pass."""
    if total == 1:
        return f"the one node asked about {'passes' if passing else 'is rejected'}"
    many = "all" if passing == total else f"{passing:,}" if passing else "none"
    return f"{many} of the {total:,} nodes asked about {'pass' if passing > 1 else 'passes'}"


def _explanation_remark_lines(pod_explanation: PodExplanation, judged: Decision) -> Iterator[str]:
    state = pod_explanation.lookup.state
    if state and state.message:
        yield f"kube-scheduler: {state.message}"
    if state and state.uid and judged.pod.uid not in {"", state.uid}:
        yield "this attempt was about an earlier pod of that name"
    elif state and state.node:
        yield _format_reason_for_chosen_node(pod_explanation, state.node)
    preempted = pod_explanation.explanation.attempt.preempted if pod_explanation.explanation else None
    if preempted is not None:
        left, total = int(preempted.feasible().sum()), len(preempted.names)
        yield f"of {_format_count(total, 'node')} where pods could be evicted for it, {left} would pass then"


def _policy_lines(explanation: Explanation) -> Iterator[str]:
    """What each policy rejects, and whether only all of them together leave no node."""
    total = len(explanation.findings)
    yield from (_format_policy(policy, total) for policy in explanation.policies)
    yield from (f"{policy} ranks the nodes and rejects none" for policy in explanation.ranking_only)
    is_one_enough = any(policy.rejected == total for policy in explanation.policies)
    passes_none = not any(not node.reasons for node in explanation.findings)
    if explanation.is_rejected_by_several_policies and passes_none and not is_one_enough:
        yield "no policy alone rejects every node"


def _format_policy(policy: PolicyRemoval, total: int) -> str:
    """How many of `total` nodes a policy rejects, or why it rejects none."""
    if policy.not_enforced:
        return f"{policy.policy} selects the pod and is not enforced: {policy.not_enforced}"
    if total == 1:
        return f"{policy.policy} {'rejects' if policy.rejected else 'does not reject'} it"
    many = "all" if policy.rejected == total else f"{policy.rejected:,}" if policy.rejected else "none"
    return f"{policy.policy} rejects {many} of the {total:,} nodes"


def _format_bind(bound: Decision) -> str:
    """The result of the bind call."""
    node = bound.names[0]
    refused = decision_document.rejection_reasons(bound).get(node)
    if refused:
        return f"kube-scheduler chose {node}, and the bind failed: {refused[0]['reason']}"
    return f"kube-scheduler chose {node}; bound" + (
        f", with {bound.description}" if bound.description else ""
    )


def _format_reason_for_chosen_node(pod_explanation: PodExplanation, node: str) -> str:
    """Why the pod is on this node, as far as nodewise knows."""
    assert pod_explanation.explanation is not None
    findings = pod_explanation.explanation.findings
    own = next((finding for finding in findings if finding.node == node), None)
    if own is None:
        return f"kube-scheduler did not ask about {node} then: another scheduler or an earlier attempt placed the pod"
    if own.reasons:
        return (
            f"{node} was rejected and the pod is there all the same: another scheduler placed it, or an entry "
            "with ignorable: true did while nodewise did not answer"
        )
    if own.score is None:
        return f"{node} passes; it has no score"
    best = max(node.score or 0 for node in findings)
    if own.score == best:
        return f"{node} passes and has the best score, {best}"
    return (
        f"{node} passes with the score {own.score}, others have up to {best}: kube-scheduler adds its own scores; "
        "a larger weight of the extender's entry makes ours count more"
    )


def _print_groups(explanation: Explanation) -> None:
    passing = [node for node in explanation.findings if not node.reasons]
    rows = [
        [f"{len(group.nodes):,}", group.reason.text(), _format_first_nodes(group.nodes, rejecting=True)]
        for group in explanation.groups
    ]
    if passing:
        rows.insert(0, [f"{len(passing):,}", "pass", _format_first_nodes(passing, rejecting=False)])
    tables.print_table(("NODES", "VERDICT", "BEST, OR CLOSEST TO PASSING"), rows)


def _format_first_nodes(nodes: Sequence[NodeExplanation], *, rejecting: bool) -> str:
    """The first few nodes, each with its score and measured values."""
    texts = []
    for node in nodes[:_CLOSEST]:
        score = "" if node.score is None else f"score {node.score}"
        text_of_node = ", ".join(
            filter(None, (score, _format_values(node, rejecting=rejecting), _format_details(node)))
        )
        texts.append(f"{node.node}: {text_of_node}" if text_of_node not in {"", "-"} else node.node)
    return "; ".join([*texts, *(["…"] if len(nodes) > _CLOSEST else [])])


def _select_nodes_to_list(findings: Sequence[NodeExplanation]) -> Sequence[NodeExplanation]:
    """At most `MAX_LISTED` nodes: half of them pass, the others are closest to passing."""
    passing = [node for node in findings if not node.reasons]
    best = passing[: max(MAX_LISTED // 2, MAX_LISTED - (len(findings) - len(passing)))]
    return [*best, *findings[len(passing) : len(passing) + MAX_LISTED - len(best)]]


def _node_rows(node: NodeExplanation) -> Iterator[list[str]]:
    """One row for each rule; only the first has the node's name."""
    head = [node.node, "rejected" if node.reasons else "passes", _format_score(node)]
    rules = [
        [
            _format_rule(m),
            _format_value(m),
            _format_measured_age(m),
            "yes" if m.rejects else "no" if m.target is not None else "-",
        ]
        for m in node.measured
    ]
    if not rules:
        text = "; ".join(
            filter(None, (*(reason.text() for _, reason in node.reasons), _format_details(node)))
        )
        rules = [[text or "-", "-", "-", "-"]]
    elif node.details:
        rules.append([_format_details(node), "-", "-", "-"])
    further_texts = filter(
        None,
        (
            agent_value_format.format_score_parts(node.parts),
            agent_value_format.format_agent_values(node.numbers),
        ),
    )
    rules += [[text, "-", "-", "-"] for text in further_texts]
    for number, rule in enumerate(rules):
        yield [*(head if not number else ["", "", ""]), *rule]


def _format_score(node: NodeExplanation) -> str:
    return "-" if node.score is None else str(node.score)


def _format_values(node: NodeExplanation, *, rejecting: bool = False) -> str:
    """`heat 81.5 (4s), power 300 (4s)`, without duplicates. `rejecting`: only values that reject the node."""
    texts: dict[str, None] = {}
    for measured in node.measured:
        if measured.rejects or not rejecting:
            old = f" ({_format_measured_age(measured)} old)" if measured.age_s is not None else ""
            texts[f"{measured.metric} {_format_value(measured)}{old}"] = None
    return ", ".join(texts) or ("" if rejecting else "-")


def _format_value(measured: MeasuredRule) -> str:
    state = measured.state.name.lower()
    if measured.value is None:
        return state
    shown = quantity.nano_to_text(measured.value)
    return f"{shown} {state}" if state == "stale" else shown


def _format_measured_age(measured: MeasuredRule) -> str:
    return "-" if measured.age_s is None else format_age(measured.age_s)


_ORDERS: Final = {"below": "Ascending", "above": "Descending"}
"""The order of a preference by the operator of its evidence. A TASPolicy has the operator itself."""


def _format_rule(measured: MeasuredRule) -> str:
    if measured.target is not None:
        return f"{measured.metric} {measured.operator} {quantity.nano_to_text(measured.target)}"
    weight = "" if measured.weight == 1 else f", weight {measured.weight:g}"
    return f"{measured.metric} {_ORDERS.get(measured.operator, measured.operator)} (ranks{weight})"


def _format_details(node: NodeExplanation) -> str:
    return "; ".join(text for _, text in node.details)


def _format_reasons(node: NodeExplanation) -> str:
    return "; ".join(reason.text() for _, reason in node.reasons) or "-"


def format_age(seconds: float) -> str:
    """`4.2s`, `3m20s`."""
    return clock.format_duration(round(seconds, 1) if seconds < 10 else round(seconds))  # noqa: PLR2004


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _bind_result_and_remedy_lines(explanation: Explanation) -> Iterator[str]:
    """The result of the bind call, then what would have changed the result, and remedies."""
    if explanation.attempt.bound is not None:
        yield ""
        yield _format_bind(explanation.attempt.bound)
    lines = [
        *_needed_change_lines(explanation),
        *_removable_policy_lines(explanation),
        *_remedy_lines(explanation),
    ]
    if lines:
        yield ""
        yield "What would have changed it:"
        yield from (f"  {line}" for line in dict.fromkeys(lines))


def _needed_change_lines(explanation: Explanation) -> Iterator[str]:
    for change in explanation.changes:
        rule = change.rule
        target = quantity.nano_to_text(rule.target or 0)
        where = f" in {rule.policy}" if explanation.is_rejected_by_several_policies and rule.policy else ""
        if change.relaxed:
            first, *rest = change.relaxed
            more = "".join(
                f", {relaxed.more:,} at {quantity.nano_to_text(relaxed.target)}" for relaxed in rest
            )
            yield (
                f"{rule.metric} {rule.operator}{where}: {_format_passing(first.more)} at "
                f"{quantity.nano_to_text(first.target)} instead of {target}{more}"
            )
        elif change.alone:
            yield f"without the rule {rule.metric} {rule.operator} {target}{where}: {_format_passing(change.alone)}"
        if change.unmeasured:
            setting = "when_missing: pass" if rule.operator in _TASPOLICY_OPERATORS else "whenMissing: Allow"
            yield f"{rule.metric}: {_format_passing(change.unmeasured)} with {setting} in the rule{where}"


def _removable_policy_lines(explanation: Explanation) -> Iterator[str]:
    """What would pass without one of several policies. Without the only one, all that it rejects would."""
    for policy in explanation.policies if explanation.is_rejected_by_several_policies else ():
        if policy.more:
            yield f"without {policy.policy}: {_format_passing(policy.more)}"


_TASPOLICY_OPERATORS: Final = frozenset({"LessThan", "GreaterThan", "Equals"})
"""They tell the rules of a TASPolicy, whose fields have other names, from those of other kinds."""


def _format_passing(more: int) -> str:
    return f"{_format_count(more, 'more node')} {'passes' if more == 1 else 'pass'}"


def _remedy_lines(explanation: Explanation) -> Iterator[str]:
    for group in explanation.groups:
        if remedy := group.reason.remedy():
            yield f"{remedy} ({_format_count(len(group.nodes), 'node')})"
    if explanation.held:
        yield "a rule lost most of its values at once, and its last verdicts stay in effect: restore its metric"
    if explanation.stuck:
        yield f"{_format_count(explanation.stuck, 'node')} would need more than one of these changes"


def _print_json(pod_explanation: PodExplanation, *, every_node: bool) -> None:  # noqa: ARG001 - always all
    click.echo(decision_document.encode(explanations.explanation_document(pod_explanation)))


PRINTERS: Final[dict[str, Callable[..., None]]] = {
    "text": print_text,
    "wide": print_rows_by_node_and_rule,
    "json": _print_json,
}
