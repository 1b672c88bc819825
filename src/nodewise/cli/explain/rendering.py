"""Prints an explanation of a pod as text or JSON: verdicts, policies, native mode, scores, and what is missing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from nodewise.base import clock, quantity
from nodewise.base.errors import counted
from nodewise.cli import terminal_output
from nodewise.cli.explain import explanation as explanations
from nodewise.cli.explain.explanation import PodEvent, PodExplanation, VisibleState
from nodewise.cli.explain.native_evaluation import Evaluation
from nodewise.cli.explain.pod_state import (
    LabelledNode,
    NativeState,
    PodReadResult,
    PodState,
    PreferredClasses,
    RequiredLabel,
)
from nodewise.engine import decision_json
from nodewise.engine.counterfactuals import PolicyRemoval
from nodewise.engine.decision import Decision
from nodewise.engine.scheduling_attempt_explanation import (
    Explanation,
    MeasuredRule,
    NodeExplanation,
    ScorePart,
)
from nodewise.policies.native_mode_admission import GATE


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
    yield from _combination_lines(explanation)


def _combination_lines(explanation: Explanation) -> Iterator[str]:
    total = len(explanation.findings)
    is_one_enough = any(policy.rejected == total for policy in explanation.policies)
    passes_none = all(node.reasons for node in explanation.findings)
    if explanation.is_rejected_by_several_policies and passes_none and not is_one_enough:
        yield "no policy alone rejects every node"


def _format_policy(policy: PolicyRemoval, total: int) -> str:
    """How many of `total` nodes a policy rejects, or why it rejects none."""
    if policy.not_enforced:
        return f"{policy.policy} selects the pod and is not enforced: {policy.not_enforced}"
    if policy.would_reject is not None:
        count, names = counted(len(policy.would_reject), "node"), _first_names(policy.would_reject)
        return f"{policy.policy} only observes the pod (its mode or guard): would have rejected {count}" + (
            f": {names}" if names else ""
        )
    if total == 1:
        return f"{policy.policy} {'rejects' if policy.rejected else 'does not reject'} it"
    many = "all" if policy.rejected == total else f"{policy.rejected:,}" if policy.rejected else "none"
    return f"{policy.policy} rejects {many} of the {total:,} nodes"


def change_lines(explanation: Explanation) -> Iterator[str]:
    """What would have let more nodes pass, and remedies, without duplicates."""
    several = explanation.is_rejected_by_several_policies
    lines = list(_needed_change_lines(explanation))
    lines += [
        f"without {policy.policy}: {_format_passing(policy.more)}"
        for policy in explanation.policies
        if several and policy.more  # without the only one, all that it rejects would pass
    ]
    lines += [
        f"{remedy} ({counted(len(group.nodes), 'node')})"
        for group in explanation.groups
        if (remedy := group.reason.remedy())
    ]
    if explanation.held:
        lines.append(_HELD)
    if explanation.stuck:
        lines.append(f"{counted(explanation.stuck, 'node')} would need more than one of these changes")
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


def _format_passing(more: int) -> str:
    return f"{counted(more, 'more node')} {'passes' if more == 1 else 'pass'}"


_STALE_S: Final = 300.0  # an evaluation that is older is reported, like the alert NodewiseNoEvaluation


def _native_state_lines(  # complexity: a list of independent facts
    pod: str, state: NativeState, now: float, node: str
) -> Iterator[str]:
    where = f"is on {node}" if node else "waits"
    total, passing = len(state.nodes), sum(labelled.passes for labelled in state.nodes)
    count = ""
    if state.requirements and total:
        count = f": {passing:,} of {total:,} nodes have the labels that it requires"
    yield f"{pod} {where}, placed by native mode{count}"
    yield from _controller_lines(state, now)
    for label in state.requirements:
        yield _requirement_line(label, total)
        if label.problem:
            yield f"Warning: {_name(label)}: {label.problem}"
    yield from map(_preference_line, state.preferences)
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
        age_s = now - clock.parse_rfc3339(controller.evaluated)
        warning = "Warning: " if age_s > _STALE_S else ""
        yield f"{warning}{controller.leader} evaluated the policies {_ago(age_s)}"


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


def _preference_line(preferred: PreferredClasses) -> str:
    numbered = enumerate(preferred.nodes, 1)
    counts = ", ".join(f"{count:,} in class {number}" for number, count in numbered if count)
    return f"it prefers nodes by the classes of {preferred.policy}" + (counts and f": {counts}")


def _name(label: RequiredLabel) -> str:
    return label.policy or f"policy {label.label.rpartition('/')[2]}"


def _evaluation_lines(  # complexity: a list of independent facts
    pod_explanation: PodExplanation, evaluation: Evaluation
) -> Iterator[str]:
    """What the evaluation adds to the labels: policies that the pod does not require, and differences."""
    native = pod_explanation.lookup.native
    if native is None:
        state, passing = pod_explanation.lookup.state, evaluation.passing
        where = "" if state is None else f" is on {state.node}" if state.node else " waits"
        yield f"{pod_explanation.pod}{where}: {passing:,} of {evaluation.nodes:,} nodes pass its policies now"
    if native is None or native.controller is None:
        yield f"{evaluation.replica} evaluated the policies {_ago(pod_explanation.now - evaluation.at)}"
    yield from _responsibility_lines(
        evaluation, leads_are_known=native is not None and native.controller is not None
    )
    yield from _policies_without_label_lines(pod_explanation.lookup, evaluation.explanation)
    yield from _combination_lines(evaluation.explanation)
    preferred = {classes.policy for classes in native.preferences} if native else set()
    for policy in evaluation.only_ranking:
        if policy not in preferred:
            yield (
                f"{policy} only ranks nodes, and the pod does not prefer their classes: it is older than the policy, or"
                " has too many preferred terms"
            )
    for difference in pod_explanation.label_differences:
        names = _first_names(difference.nodes)
        label = "label differs" if len(difference.nodes) == 1 else "labels differ"
        yield f"{difference.policy}: the {label} from its verdict now on {names}: {difference.cause}"
    if evaluation.explanation.held:
        yield _HELD
    if evaluation.left_out:
        yield (
            f"{evaluation.left_out:,} of {evaluation.nodes:,} nodes are left out: with the values of all rules, the "
            "response would be too large"
        )


def _responsibility_lines(evaluation: Evaluation, *, leads_are_known: bool) -> Iterator[str]:
    """That the replica with the values does not label all nodes."""
    if evaluation.shards > 1:
        numbers = ", ".join(map(str, evaluation.own_shards)) or "none"
        yield (
            f"the values are those of the {evaluation.nodes:,} nodes of {evaluation.replica}, which holds shard"
            f" {numbers} of {evaluation.shards}; labels are those of all nodes"
        )
    elif leads_are_known and not evaluation.leads:
        yield f"the values are those of {evaluation.replica}, which does not lead"


def _policies_without_label_lines(lookup: PodReadResult, explanation: Explanation) -> Iterator[str]:
    """The policies whose label the pod does not require, with the problems of their status."""
    native = lookup.native
    explained = {label.policy for label in native.requirements} if native else set()
    problems = {policy.policy: policy.problems for policy in lookup.policies}
    for policy in explanation.policies:
        is_warned = native and any(text.startswith(f"{policy.policy} ") for text in native.not_covering)
        if policy.policy not in explained and not is_warned:
            yield _format_policy(policy, len(explanation.findings))
            yield from (f"  {problem}" for problem in problems.get(policy.policy, ()))


def _first_names(nodes: Sequence[str]) -> str:
    return ", ".join([*nodes[:_MAX_LISTED], *(["…"] if len(nodes) > _MAX_LISTED else [])])


class _NodeRow(NamedTuple):
    """A node in native mode."""

    labelled: LabelledNode | None
    """Its labels; None if they are not known."""
    evaluated: NodeExplanation | None
    """None if no replica has evaluated it."""

    @property
    def node(self) -> str:
        known = self.labelled or self.evaluated
        return known.node if known else ""

    @property
    def passes(self) -> bool:
        """By its labels, which kube-scheduler compares; by the evaluation if they are not known."""
        if self.labelled is not None:
            return self.labelled.passes
        return self.evaluated is not None and not self.evaluated.reasons

    @property
    def has_two_verdicts(self) -> bool:
        """Whether the verdict of the evaluation differs from that of the labels."""
        return bool(self.labelled and self.evaluated and self.passes == bool(self.evaluated.reasons))


def _has_labels(native: NativeState) -> bool:
    return bool(native.requirements or native.preferences)


def _native_rows(pod_explanation: PodExplanation) -> list[_NodeRow]:
    """All nodes that are known: passing ones, then the others, the closest to passing first."""
    native, evaluation = pod_explanation.lookup.native, pod_explanation.evaluation
    labelled = {node.node: node for node in native.nodes} if native and _has_labels(native) else {}
    evaluated = {node.node: node for node in evaluation.explanation.findings} if evaluation else {}
    rows = [
        _NodeRow(labelled.get(name), evaluated.get(name)) for name in dict.fromkeys([*evaluated, *labelled])
    ]
    return sorted(rows, key=lambda row: not row.passes)


def _select_native_rows(rows: Sequence[_NodeRow], *, every_node: bool) -> Sequence[_NodeRow]:
    passing = sum(row.passes for row in rows)
    return rows if every_node else terminal_output.select_nodes_to_list(rows[:passing], rows[passing:])


def _print_native_nodes(pod_explanation: PodExplanation, *, every_node: bool) -> None:
    """Print a row for each node or, of many nodes that a replica has evaluated, for each reason."""
    native, evaluation = pod_explanation.lookup.native, pod_explanation.evaluation
    rows = _native_rows(pod_explanation)
    if not rows:
        return
    terminal_output.print_line("")
    if (
        evaluation is not None
        and not every_node
        and (len(rows) > terminal_output.MAX_LISTED_NODES or _is_failure_of_all_nodes(evaluation.explanation))
    ):
        _print_nodes_or_groups(evaluation.explanation, every_node=False)
        return
    shown = _select_native_rows(rows, every_node=every_node)
    requirements, preferences = (native.requirements, native.preferences) if native else ((), ())
    classes = [f"class of {preferred.policy}" for preferred in preferences]
    head = ("NODE", "VERDICT", *map(_name, requirements), *classes, *_NATIVE_COLUMNS)
    differs = any(row.has_two_verdicts for row in rows)
    observers = evaluation.observers if evaluation else {}
    cells = [
        [
            *_native_row(row, len(requirements) + len(preferences), pod_explanation.now, differs=differs),
            ", ".join(observers.get(row.node, ())) or "-",
        ]
        for row in shown
    ]
    terminal_output.print_table(*terminal_output.drop_empty_columns(_NATIVE_COLUMNS, head, cells))
    _print_number_of_others(len(rows) - len(shown))


def _native_row(row: _NodeRow, labels: int, now: float, *, differs: bool) -> list[str]:
    labelled, evaluated = row
    changed, now_text, measured, details, rejected = "-", "-", "-", "-", "-"
    if labelled is not None and labelled.written:
        changed = _ago(now - clock.parse_rfc3339(labelled.written))
    if evaluated is not None:
        now_text = _verdict(passes=not evaluated.reasons) if differs else "-"
        measured, details = _format_values(evaluated), _format_details(evaluated) or "-"
        rejected = "; ".join(reason.text() for _, reason in evaluated.reasons) or "-"
    values = [value or "-" for value in (*labelled.labels, *labelled.classes)] if labelled else ["-"] * labels
    return [row.node, _verdict(passes=row.passes), *values, changed, now_text, measured, details, rejected]


def _verdict(*, passes: bool) -> str:
    return "passes" if passes else "rejected"


def _ago(seconds: float) -> str:
    return f"{clock.format_duration(round(seconds)) if seconds >= 1 else '0s'} ago"


_NATIVE_COLUMNS: Final = ("LABELS CHANGED", "NOW", "MEASURED", "DETAILS", "REJECTED", "OBSERVED ONLY")
"""Columns of native mode after the labels, which are shown only if they have values."""
_HELD: Final = (
    "a rule lost most of its values at once, and its last verdicts stay in effect: restore its metric"
)
_CLOSEST: Final = 3
_MOST_EVENTS: Final = 5
_DETAILS: Final = "DETAILS"
_MADE_OF: Final = "MADE OF"
_OPTIONAL_COLUMNS: Final = (_DETAILS, _MADE_OF)  # columns that are shown only if they have values


def print_text(pod_explanation: PodExplanation, *, every_node: bool) -> None:
    """Print the result, the nodes or groups of nodes, and what would have changed the result."""
    explanation = pod_explanation.explanation
    if explanations.is_placed_natively(pod_explanation):
        _print_native_lines(pod_explanation)
        _print_native_nodes(pod_explanation, every_node=every_node)
        _print_lines(_native_remedy_lines(pod_explanation))
        if explanation is not None or pod_explanation.visible is not None:
            terminal_output.print_line("")
    if explanation is None:
        _print_lines(_lines_without_attempt(pod_explanation))
        return
    _print_lines(_scheduling_result_lines(pod_explanation, explanation))
    _print_nodes_or_groups(explanation, every_node=every_node)
    _print_lines(_bind_result_and_remedy_lines(explanation))


def _print_native_lines(pod_explanation: PodExplanation) -> None:
    """Print kube-scheduler's message, the requirements of the pod, and what is wrong."""
    state, native = pod_explanation.lookup.state, pod_explanation.lookup.native
    if state and state.message and pod_explanation.explanation is None:  # otherwise printed with the result
        terminal_output.print_line(f"kube-scheduler: {state.message}")
    if native is not None:
        node = state.node if state else ""
        _print_lines(_native_state_lines(pod_explanation.pod, native, pod_explanation.now, node))
    if pod_explanation.explanation is None:
        _print_lines(_device_lines(state))
    if pod_explanation.evaluation is not None:
        _print_lines(_evaluation_lines(pod_explanation, pod_explanation.evaluation))


def _native_remedy_lines(  # complexity: with and without an evaluation
    pod_explanation: PodExplanation,
) -> Iterator[str]:
    """What would let more nodes pass or, without an evaluation, where the rules are."""
    native, evaluation = pod_explanation.lookup.native, pod_explanation.evaluation
    if evaluation is not None:
        if lines := [line for line in change_lines(evaluation.explanation) if line != _HELD]:
            yield from ["", "What would change it:", *(f"  {line}" for line in lines)]
    elif native is not None and not all(node.passes for node in native.nodes):
        state = pod_explanation.lookup.state
        has_rules = any(label.policy for label in native.requirements)  # policies that exist
        if has_rules and (state is None or not state.node):  # decide considers pods that wait
            namespace = pod_explanation.pod.partition("/")[0]
            yield ""
            yield "The rules are in the pod's event NoNodePasses. For the values behind them:"
            yield f"  nodewise decide --cluster --namespace {namespace} -o wide"


def _print_nodes_or_groups(  # complexity: two tables
    explanation: Explanation, *, every_node: bool
) -> None:
    """Print a row for each node or, of many nodes, for each reason."""
    nodes = explanation.findings
    if every_node or (
        len(nodes) <= terminal_output.MAX_LISTED_NODES and not _is_failure_of_all_nodes(explanation)
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
            for node in nodes
        ]
        head = ("NODE", "SCORE", _MADE_OF, "MEASURED", _DETAILS, "REJECTED")
        terminal_output.print_table(*terminal_output.drop_empty_columns(_OPTIONAL_COLUMNS, head, rows))
        return
    passing = [node for node in nodes if not node.reasons]
    rows = [[f"{len(passing):,}", "pass", _format_first_nodes(passing, rejecting=False)]] if passing else []
    rows += [
        [f"{len(group.nodes):,}", group.reason.text(), _format_first_nodes(group.nodes, rejecting=True)]
        for group in explanation.groups
    ]
    terminal_output.print_table(("NODES", "VERDICT", "BEST, OR CLOSEST TO PASSING"), rows)


def _lines_without_attempt(pod_explanation: PodExplanation) -> Iterator[str]:
    """What is known without an attempt of kube-scheduler; the state of native mode is printed before."""
    lookup, visible, pod = pod_explanation.lookup, pod_explanation.visible, pod_explanation.pod
    if visible is not None:
        yield from _visible_state_lines(pod, lookup, visible, pod_explanation.now)
    elif not explanations.is_placed_natively(pod_explanation):
        none_decided = f"{counted(len(pod_explanation.responses), 'replica')} asked, none has a decision"
        causes = explanations.find_missing_decision_causes(lookup, pod_explanation.responses)
        yield from [lookup.missing, f"  {none_decided}"] if lookup.gone else [f"{pod}: {none_decided}"]
        yield from (f"  {line}" for line in _device_lines(lookup.state))
        yield from (f"  {cause}" for cause in (causes[1:] if lookup.gone else causes))


def _visible_state_lines(  # complexity: a list of independent facts
    pod: str, lookup: PodReadResult, visible: VisibleState, now: float
) -> Iterator[str]:
    """What is known without the decisions of replicas, and which rights would show more."""
    if lookup.native is None:
        yield from _pod_lines(pod, lookup)
    for event in visible.events[:_MOST_EVENTS]:
        times = f", {event.times} times" if event.times > 1 else ""
        yield f"nodewise, {_age_of_event(event, now)}{times}: {event.reason}: {event.message}"
    for policy in lookup.policies:
        yield f"{policy.policy} selects it" + (f", and {policy.not_enforced}" if policy.not_enforced else "")
        yield from (f"  {line}" for line in policy.status)
    if not (visible.events or (lookup.state and lookup.state.node) or lookup.native):
        yield "nodewise has written no event about it"
        if not lookup.gone:
            yield from (f"  {cause}" for cause in explanations.find_missing_decision_causes(lookup, ()))
    hidden = {
        "the measured values, scores and suggestions of replicas": visible.hidden,
        "policies that may select it, too": lookup.policies_error,
        "events": visible.events_error,
    }
    yield "Not visible to you:"
    yield from (f"  {what}: {why}" for what, why in hidden.items() if why)


def _pod_lines(pod: str, lookup: PodReadResult) -> Iterator[str]:
    state = lookup.state
    if state is None:
        yield lookup.missing if lookup.gone else pod
    else:
        yield f"{pod} is on {state.node}" if state.node else f"{pod} waits"
        if state.message:
            yield f"kube-scheduler: {state.message}"
        yield from _device_lines(state)


def _age_of_event(event: PodEvent, now: float) -> str:
    try:
        return _ago(now - clock.parse_rfc3339(event.last))
    except ValueError:
        return "at an unknown time"


def print_rows_by_node_and_rule(pod_explanation: PodExplanation, *, every_node: bool) -> None:
    """Print a row for each node and rule: value, age, threshold. Of many nodes, only the most relevant."""
    explanation, evaluation = pod_explanation.explanation, pod_explanation.evaluation
    if explanation is None and evaluation is not None and evaluation.has_policies:
        _print_native_rules(pod_explanation, evaluation.explanation, every_node=every_node)
        return
    if explanation is None or (not every_node and _is_failure_of_all_nodes(explanation)):
        print_text(pod_explanation, every_node=every_node)
        return
    nodes: Sequence[NodeExplanation] = explanation.findings
    if not every_node:  # the best, and those that are closest to passing
        passing = sum(not node.reasons for node in nodes)
        nodes = terminal_output.select_nodes_to_list(nodes[:passing], nodes[passing:])
    _print_lines(_scheduling_result_lines(pod_explanation, explanation))
    rows = [
        [*head, *row]
        for node in nodes
        for head, row in _with_head([node.node, _verdict(passes=not node.reasons), _format_score(node)], node)
    ]
    terminal_output.print_table(("NODE", "VERDICT", "SCORE", "RULE", "VALUE", "AGE", "REJECTS"), rows)
    _print_number_of_others(len(explanation.findings) - len(nodes))
    _print_lines(_bind_result_and_remedy_lines(explanation))


def _print_native_rules(
    pod_explanation: PodExplanation, explanation: Explanation, *, every_node: bool
) -> None:
    """The same in native mode: LABELS is the verdict of the labels, NOW that of the evaluation."""
    if not every_node and _is_failure_of_all_nodes(explanation):
        print_text(pod_explanation, every_node=False)
        return
    nodes = _native_rows(pod_explanation)
    shown = _select_native_rows(nodes, every_node=every_node)
    _print_native_lines(pod_explanation)
    terminal_output.print_line("")
    rows = []
    for row in shown:
        by_labels = _verdict(passes=row.labelled.passes) if row.labelled else "-"
        if row.evaluated is None:  # left out, or new
            rows.append([row.node, by_labels, *["-"] * 5])
            continue
        head = [row.node, by_labels, _verdict(passes=not row.evaluated.reasons)]
        rows += [[*start, *rule] for start, rule in _with_head(head, row.evaluated)]
    terminal_output.print_table(("NODE", "LABELS", "NOW", "RULE", "VALUE", "AGE", "REJECTS"), rows)
    _print_number_of_others(len(nodes) - len(shown))
    _print_lines(_native_remedy_lines(pod_explanation))


def _print_number_of_others(count: int) -> None:
    if count:
        terminal_output.print_line(f"{count:,} more nodes: --nodes shows all")


def _is_failure_of_all_nodes(explanation: Explanation) -> bool:
    """Whether all nodes are rejected by a failure that has nothing to do with them, so that one line is enough."""
    return bool(explanation.groups) and explanation.groups[0].reason.is_failure


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        terminal_output.print_line(line)


def _scheduling_result_lines(pod_explanation: PodExplanation, explanation: Explanation) -> Iterator[str]:
    """The result, its time, kube-scheduler's own message, the policies, and warnings."""
    state, judged = pod_explanation.lookup.state, explanation.attempt.main_decision
    total, passing = len(judged.names), int(judged.feasible().sum())
    if state is None:
        where = "does not exist any more" if pod_explanation.lookup.gone else "at its last attempt"
    else:
        where = f"is on {state.node}" if state.node else "waits"
    if total == 1:
        count = f"the one node asked about {'passes' if passing else 'is rejected'}"
    else:
        many = "all" if passing == total else f"{passing:,}" if passing else "none"
        count = f"{many} of the {total:,} nodes asked about {'pass' if passing > 1 else 'passes'}"
    yield f"{pod_explanation.pod} {where}: {count}"
    tries = pod_explanation.tries
    known = f"; {tries} attempts since {pod_explanation.since}" if tries > 1 else ""
    ago = format_age(max(pod_explanation.now - judged.at, 0.0))
    yield f"last attempt {clock.format_rfc3339(judged.at)}, {ago} ago{known}"
    yield from _explanation_remark_lines(state, explanation)
    yield from policy_lines(explanation)
    yield ""
    if warning := explanations.policy_warning(pod_explanation):
        yield f"Warning: {warning}"


def _explanation_remark_lines(state: PodState | None, explanation: Explanation) -> Iterator[str]:
    if state and state.message:
        yield f"kube-scheduler: {state.message}"
    yield from _device_lines(state)
    if state and state.uid and explanation.attempt.main_decision.pod.uid not in {"", state.uid}:
        yield "this attempt was about an earlier pod of that name"
    elif state and state.node:
        yield _format_reason_for_chosen_node(explanation, state.node)
    preempted = explanation.attempt.preempted
    if preempted is not None:
        left, nodes = int(preempted.feasible().sum()), counted(len(preempted.names), "node")
        yield f"of {nodes} where pods could be evicted for it, {left} would pass then"


def _device_lines(state: PodState | None) -> Iterator[str]:
    if state and state.devices and (state.node or state.binding_conditions):
        conditions = " and ".join(state.binding_conditions)
        waits = "" if state.node else f", and binds the pod when they have the condition {conditions}"
        yield f"kube-scheduler allocated devices {'; '.join(state.devices)}{waits}"


def _format_bind(bound: Decision) -> str:
    """The result of the bind call."""
    node = bound.names[0]
    refused = decision_json.rejection_reasons(bound).get(node)
    if refused:
        return f"kube-scheduler chose {node}, and the bind failed: {refused[0]['reason']}"
    return f"kube-scheduler chose {node}; bound" + (
        f", with {bound.description}" if bound.description else ""
    )


def _format_reason_for_chosen_node(explanation: Explanation, node: str) -> str:
    """Why the pod is on this node, as far as nodewise knows."""
    findings = explanation.findings
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


def _with_head(head: list[str], node: NodeExplanation) -> Iterator[tuple[list[str], list[str]]]:
    """One row for each rule of a node; only the first has the cells of the head."""
    rules = []
    for rule in node.measured:
        rejects = "yes" if rule.rejects else "no" if rule.target is not None else "-"
        rules.append([_format_rule(rule), _format_value(rule), _format_measured_age(rule), rejects])
    texts = [_format_details(node), format_score_parts(node.parts), format_agent_values(node.numbers)]
    if not rules:
        reasons = [reason.text() for _, reason in node.reasons]
        texts[0] = "; ".join(filter(None, [*reasons, texts[0]])) or "-"
    rules += [[text, "-", "-", "-"] for text in texts if text]
    for number, row in enumerate(rules):
        yield [""] * len(head) if number else head, row


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
