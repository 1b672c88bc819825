"""Prints what places a pod in native mode. It computes nothing."""

from collections.abc import Iterator
from typing import Final

from nodewise.base import clock
from nodewise.cli import tables, terminal_output
from nodewise.cli.explain.native_labels import LabelledNode, NativeState, RequiredLabel
from nodewise.policies.native_mode_pods import GATE

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
