"""Prints an explanation as text, as a wide table or as JSON. It computes nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import click

from nodewise.base import clock, quantity
from nodewise.cli import agent_value_format, tables, terminal_output
from nodewise.cli.explain import counterfactual_rendering, missing_decision, native_rendering, visible_state
from nodewise.cli.explain import explanation as explanations
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.cli.explain.native_labels import NativeState
from nodewise.engine import decision_document
from nodewise.engine.decision import Decision
from nodewise.engine.scheduling_attempt_explanation import Explanation, MeasuredRule, NodeExplanation

_CLOSEST: Final = 3
_DETAILS: Final = "DETAILS"
_MADE_OF: Final = "MADE OF"
_OPTIONAL_COLUMNS: Final = (_DETAILS, _MADE_OF)
"""Columns that are shown only if they have values."""


def print_text(pod_explanation: PodExplanation, *, every_node: bool) -> None:
    """Print the result, the nodes or groups of nodes, and what would have changed the result."""
    native = pod_explanation.lookup.native
    if native is not None:
        _print_native_state(pod_explanation, native, every_node=every_node)
    if pod_explanation.explanation is None:
        _print_without_attempt(pod_explanation)
        return
    findings = pod_explanation.explanation.findings
    _print_lines(_scheduling_result_lines(pod_explanation))
    _print_warning(pod_explanation)
    if every_node or (
        len(findings) <= tables.MAX_LISTED_NODES and not _is_failure_of_all_nodes(pod_explanation.explanation)
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


def _print_without_attempt(pod_explanation: PodExplanation) -> None:
    """Print what is known without an attempt of kube-scheduler; the state of native mode is printed before."""
    lookup, visible = pod_explanation.lookup, pod_explanation.visible
    if visible is not None:
        if lookup.native is not None:
            terminal_output.print_line("")
        visible_state.print_visible_state(pod_explanation.pod, lookup, visible, pod_explanation.now)
    elif lookup.native is None:
        replicas = counterfactual_rendering.format_count(len(pod_explanation.responses), "replica")
        none_decided = f"{replicas} asked, none has a decision"
        causes = missing_decision.find_missing_decision_causes(lookup, pod_explanation.responses)
        if lookup.gone:
            _print_lines([lookup.missing, f"  {none_decided}", *(f"  {cause}" for cause in causes[1:])])
        else:
            _print_lines([f"{pod_explanation.pod}: {none_decided}", *(f"  {cause}" for cause in causes)])


def _print_native_state(pod_explanation: PodExplanation, native: NativeState, *, every_node: bool) -> None:
    state = pod_explanation.lookup.state
    node, message = (state.node, state.message) if state else ("", "")
    if message and pod_explanation.explanation is None:  # otherwise printed with the result
        terminal_output.print_line(f"kube-scheduler: {message}")
    native_rendering.print_native_state(
        pod_explanation.pod, native, pod_explanation.now, node=node, every_node=every_node
    )
    if pod_explanation.explanation is not None:
        terminal_output.print_line("")


def print_rows_by_node_and_rule(pod_explanation: PodExplanation, *, every_node: bool) -> None:
    """Print a row for each node and rule: value, age, threshold. Of many nodes, only the most relevant."""
    if pod_explanation.explanation is None or (
        not every_node and _is_failure_of_all_nodes(pod_explanation.explanation)
    ):
        print_text(pod_explanation, every_node=every_node)
        return
    findings = pod_explanation.explanation.findings
    shown = findings if every_node else _select_nodes_to_list(findings)
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


def _print_lines(lines: Iterable[str]) -> None:
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
    yield from counterfactual_rendering.policy_lines(pod_explanation.explanation)
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
        nodes = counterfactual_rendering.format_count(total, "node")
        yield f"of {nodes} where pods could be evicted for it, {left} would pass then"


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
    """The nodes that are listed if there are many: the best, and those that are closest to passing."""
    passing = sum(not node.reasons for node in findings)
    return tables.select_nodes_to_list(findings[:passing], findings[passing:])


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


def _bind_result_and_remedy_lines(explanation: Explanation) -> Iterator[str]:
    """The result of the bind call, then what would have changed the result, and remedies."""
    if explanation.attempt.bound is not None:
        yield ""
        yield _format_bind(explanation.attempt.bound)
    lines = list(counterfactual_rendering.change_lines(explanation))
    if lines:
        yield ""
        yield "What would have changed it:"
        yield from (f"  {line}" for line in lines)


def _print_json(pod_explanation: PodExplanation, *, every_node: bool) -> None:  # noqa: ARG001 - always all
    click.echo(decision_document.encode(explanations.explanation_document(pod_explanation)))


PRINTERS: Final[dict[str, Callable[..., None]]] = {
    "text": print_text,
    "wide": print_rows_by_node_and_rule,
    "json": _print_json,
}
