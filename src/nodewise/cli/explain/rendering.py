"""Prints an explanation of a pod as text or JSON: verdicts, policies, native mode, scores, and what is missing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import click

from nodewise.base import clock, quantity
from nodewise.cli import tables, terminal_output
from nodewise.cli.explain import explanation as explanations
from nodewise.cli.explain.explanation import PodExplanation
from nodewise.cli.explain.pod_state import LabelledNode, NativeState, RequiredLabel
from nodewise.engine import decision_json
from nodewise.engine.counterfactuals import PolicyRemoval
from nodewise.engine.decision import Decision
from nodewise.engine.scheduling_attempt_explanation import (
    Explanation,
    MeasuredRule,
    NodeExplanation,
    ScorePart,
)
from nodewise.policies.native_mode_pods import GATE


def format_agent_values(by_agent: Mapping[str, Mapping[str, Any]]) -> str:
    """`safe cpu mean_share=0.62 risk=0.0003; safe memory missing=no statistics; congestion factor=50`."""
    return "; ".join(line for agent, values in by_agent.items() for line in _flatten_to_lines(agent, values))


def _flatten_to_lines(path: str, values: Mapping[str, Any]) -> Iterator[str]:
    """One line for each innermost mapping: the keys that lead there, then its values. None is left out."""
    own = [
        f"{key}={_format_agent_value(value)}"
        for key, value in values.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    if own:
        yield f"{path} {' '.join(own)}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten_to_lines(f"{path} {key}", value)


def _format_agent_value(value: Any) -> str:
    """A number with four significant digits."""
    if isinstance(value, list | tuple):
        return ",".join(map(_format_agent_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_score_parts(score_parts: Iterable[ScorePart]) -> str:
    """`safe-overload 9, congestion 5 x2`: weights where they are not 1."""
    return ", ".join(
        f"{part.label} {part.points}" + (f" x{part.weight:.4g}" if part.weight != 1 else "")
        for part in score_parts
    )


_MAX_LISTED: Final = 3
_TASPOLICY_OPERATORS: Final = frozenset({"LessThan", "GreaterThan", "Equals"})
"""They tell the rules of a TASPolicy, whose fields have other names, from those of other kinds."""


def policy_lines(explanation: Explanation) -> Iterator[str]:
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
    if policy.would_reject is not None:
        count = format_count(len(policy.would_reject), "node")
        names = ", ".join(policy.would_reject[:_MAX_LISTED]) + (
            ", …" if len(policy.would_reject) > _MAX_LISTED else ""
        )
        return f"{policy.policy} only observes the pod (its mode or guard): would have rejected {count}" + (
            f": {names}" if names else ""
        )
    if total == 1:
        return f"{policy.policy} {'rejects' if policy.rejected else 'does not reject'} it"
    many = "all" if policy.rejected == total else f"{policy.rejected:,}" if policy.rejected else "none"
    return f"{policy.policy} rejects {many} of the {total:,} nodes"


def change_lines(explanation: Explanation) -> Iterator[str]:
    """What would have let more nodes pass, and remedies, without duplicates."""
    lines = (
        *_needed_change_lines(explanation),
        *_removable_policy_lines(explanation),
        *_remedy_lines(explanation),
    )
    yield from dict.fromkeys(lines)


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


def _format_passing(more: int) -> str:
    return f"{format_count(more, 'more node')} {'passes' if more == 1 else 'pass'}"


def _remedy_lines(explanation: Explanation) -> Iterator[str]:
    for group in explanation.groups:
        if remedy := group.reason.remedy():
            yield f"{remedy} ({format_count(len(group.nodes), 'node')})"
    if explanation.held:
        yield "a rule lost most of its values at once, and its last verdicts stay in effect: restore its metric"
    if explanation.stuck:
        yield f"{format_count(explanation.stuck, 'node')} would need more than one of these changes"


def format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


_STALE_S: Final = 300.0
"""An evaluation that is older is reported, like the alert NodewiseNoEvaluation."""


def print_native_state(pod: str, state: NativeState, now: float, *, node: str, every_node: bool) -> None:
    """Print the requirements of the pod, the labels of nodes, and what is wrong."""
    for line in _lines(pod, state, now, node):
        terminal_output.print_line(line)
    if not state.nodes or not state.requirements:
        return
    shown = state.nodes if every_node else _select_nodes(state.nodes)
    head = ("NODE", "VERDICT", *(_name(label) for label in state.requirements), "LABELS CHANGED")
    terminal_output.print_line("")
    tables.print_table(head, (_row(labelled, now) for labelled in shown))
    if len(shown) < len(state.nodes):
        terminal_output.print_line(f"{len(state.nodes) - len(shown):,} more nodes: --nodes shows all")
    if any(not labelled.passes for labelled in state.nodes):
        terminal_output.print_line("")
        terminal_output.print_line(
            "The rules are in the pod's event NoNodePasses; nodewise decide --cluster shows the values behind them."
        )


def _select_nodes(nodes: tuple[LabelledNode, ...]) -> list[LabelledNode]:
    """The nodes that are listed if there are many."""
    passing = [labelled for labelled in nodes if labelled.passes]
    return tables.select_nodes_to_list(passing, [labelled for labelled in nodes if not labelled.passes])


def _lines(pod: str, state: NativeState, now: float, node: str) -> Iterator[str]:
    where = f"is on {node}" if node else "waits"
    total, passing = len(state.nodes), sum(labelled.passes for labelled in state.nodes)
    count = ""
    if state.requirements and total:
        count = f": {passing:,} of {total:,} nodes have the labels that it requires"
    yield f"{pod} {where}, placed by native mode{count}"
    yield from _controller_lines(state, now)
    for label in state.requirements:
        yield from _requirement_lines(label, total)
    if state.gated:
        inactive = ", ".join(_name(label) for label in state.requirements if not label.active)
        why = (
            f"not all nodes have the label of {inactive} yet"
            if inactive
            else "nodewise controller removes it soon"
        )
        yield f"Warning: it has the scheduling gate {GATE}: {why}"
    yield from (f"Warning: {text}" for text in state.not_covering)
    if state.nodes_error:
        yield f"the labels of nodes are not known: {state.nodes_error}"


def _controller_lines(state: NativeState, now: float) -> Iterator[str]:
    controller = state.controller
    if controller is None:
        return
    if not controller.leader:
        since = f" since {controller.renewed}" if controller.renewed else ""
        yield (
            f"Warning: no nodewise controller leads{since}: labels keep their last values, and gates stay, unless"
            " nodewise extender runs with --native-mode; kubectl -n nodewise logs deploy/nodewise-controller shows why"
        )
    elif controller.evaluated:
        age_s = max(now - clock.parse_rfc3339(controller.evaluated), 0.0)
        warning = "Warning: " if age_s > _STALE_S else ""
        yield f"{warning}{controller.leader} evaluated the policies {_ago(age_s)}"


def _requirement_lines(label: RequiredLabel, total: int) -> Iterator[str]:
    """What the pod requires, and what is wrong with the policy."""
    yield _requirement_line(label, total)
    if label.problem:
        yield f"Warning: {_name(label)}: {label.problem}"


def _requirement_line(label: RequiredLabel, total: int) -> str:
    verb, result = ("prefers", "not preferred") if label.preferred else ("requires", "rejected")
    nodes = "with the label ok" if label.needs_ok else "without the label violating"
    count = "" if label.rejected is None else f": {label.rejected:,} of {total:,} nodes are {result}"
    gone = (
        ""
        if label.policy
        else ", which does not exist any more or is not the pod's own: create the pod again to remove the requirement"
    )
    return f"it {verb} nodes {nodes} of {_name(label)}{count}{gone}"


def _name(label: RequiredLabel) -> str:
    return label.policy or f"policy {label.label.rpartition('/')[2]}"


def _row(labelled: LabelledNode, now: float) -> list[str]:
    changed = _ago(max(now - clock.parse_rfc3339(labelled.written), 0.0)) if labelled.written else "-"
    values = [value or "-" for value in labelled.labels]
    return [labelled.node, "passes" if labelled.passes else "rejected", *values, changed]


def _ago(seconds: float) -> str:
    return f"{clock.format_duration(round(seconds))} ago"


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
                format_score_parts(node.parts) or "-",
                _format_values(node),
                _format_details(node) or "-",
                "; ".join(reason.text() for _, reason in node.reasons) or "-",
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
        explanations.print_visible_state(pod_explanation.pod, lookup, visible, pod_explanation.now)
    elif lookup.native is None:
        replicas = format_count(len(pod_explanation.responses), "replica")
        none_decided = f"{replicas} asked, none has a decision"
        causes = explanations.find_missing_decision_causes(lookup, pod_explanation.responses)
        if lookup.gone:
            _print_lines([lookup.missing, f"  {none_decided}", *(f"  {cause}" for cause in causes[1:])])
        else:
            _print_lines([f"{pod_explanation.pod}: {none_decided}", *(f"  {cause}" for cause in causes)])


def _print_native_state(pod_explanation: PodExplanation, native: NativeState, *, every_node: bool) -> None:
    state = pod_explanation.lookup.state
    node, message = (state.node, state.message) if state else ("", "")
    if message and pod_explanation.explanation is None:  # otherwise printed with the result
        terminal_output.print_line(f"kube-scheduler: {message}")
    print_native_state(pod_explanation.pod, native, pod_explanation.now, node=node, every_node=every_node)
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
    yield from policy_lines(pod_explanation.explanation)
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
        nodes = format_count(total, "node")
        yield f"of {nodes} where pods could be evicted for it, {left} would pass then"


def _format_bind(bound: Decision) -> str:
    """The result of the bind call."""
    node = bound.names[0]
    refused = decision_json.rejection_reasons(bound).get(node)
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
            format_score_parts(node.parts),
            format_agent_values(node.numbers),
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


def format_age(seconds: float) -> str:
    """`4.2s`, `3m20s`."""
    return clock.format_duration(round(seconds, 1) if seconds < 10 else round(seconds))  # noqa: PLR2004


def _bind_result_and_remedy_lines(explanation: Explanation) -> Iterator[str]:
    """The result of the bind call, then what would have changed the result, and remedies."""
    if explanation.attempt.bound is not None:
        yield ""
        yield _format_bind(explanation.attempt.bound)
    lines = list(change_lines(explanation))
    if lines:
        yield ""
        yield "What would have changed it:"
        yield from (f"  {line}" for line in lines)


def _print_json(pod_explanation: PodExplanation, *, every_node: bool) -> None:  # noqa: ARG001 - always all
    click.echo(decision_json.encode_document(explanations.explanation_document(pod_explanation)))


PRINTERS: Final[dict[str, Callable[..., None]]] = {
    "text": print_text,
    "wide": print_rows_by_node_and_rule,
    "json": _print_json,
}
