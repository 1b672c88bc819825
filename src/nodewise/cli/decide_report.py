"""Decides each pod for `nodewise decide`, and prints the decisions as a table, JSON or YAML."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import click
import msgspec
import numpy as np
import yaml
from msgspec.structs import replace

from nodewise.agent import Snapshot
from nodewise.base import clock
from nodewise.cli import agent_value_format, tables, terminal_output
from nodewise.cli.progress import Progress
from nodewise.engine import decision_document
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.decision import Decision
from nodewise.engine.scheduling_attempt_explanation import ScorePart

_GETS: Final = "GETS"
_DETAILS: Final = "DETAILS"
_MADE_OF: Final = "MADE OF"
_NUMBERS: Final = "NUMBERS"
_OPTIONAL_COLUMNS: Final = (_GETS, _DETAILS, _MADE_OF, _NUMBERS)
"""Columns that are shown only if they have values."""
_PROGRESS_INTERVAL: Final = 100
"""Number of pods between two progress messages."""


class PodDecision(NamedTuple):
    """The decision for one pod."""

    filtered: Decision
    scored: Decision
    agents: list[str]
    node: str
    """The node that it is on; empty while it waits."""

    @property
    def fits(self) -> bool:
        return bool(self.filtered.feasible().any())

    @property
    def stays(self) -> bool:
        """Whether no agent rejects the node that it is on. An unknown node counts as not rejected."""
        here = np.array([name == self.node for name in self.filtered.names], bool)
        return bool(self.filtered.feasible()[here].all())

    @property
    def is_acceptable(self) -> bool:
        """Whether it may stay on its node or, if it waits, fits on some node."""
        return self.stays if self.node else self.fits

    @property
    def is_filtered_by_agent(self) -> bool:
        """Whether an agent filters its nodes."""
        return bool(self.filtered.verdicts)


class PodDecisions(NamedTuple):
    """The decisions of all pods, computed lazily."""

    pods: Iterable[PodDecision]
    running: bool
    """Whether pods on a node are among them."""
    inputs: str = ""
    """Whose settings and metric values decided; empty: those of the command."""


def decide_pod(chain: AgentChain, pod: Any, names: list[str], snapshot: Snapshot) -> PodDecision:
    """Filter, then score the remaining nodes, like kube-scheduler. A running pod's own resources count as free."""
    node: str = pod.spec.nodeName
    filtered = chain.filter(pod, names, snapshot, snapshot.at)
    if node in snapshot.nodes:
        evicted = {node: frozenset({pod.metadata.uid})}
        without_pod = chain.preempt(pod, evicted, snapshot, snapshot.at)
        filtered = _pass_own_node_without_pod(filtered, node, without_pod)
    left = filtered.names[filtered.feasible()].tolist()
    scored = chain.prioritize(pod, left, snapshot, snapshot.at)
    return PodDecision(filtered, scored, [agent.name for agent in chain.agents], node)


def _pass_own_node_without_pod(filtered: Decision, node: str, without_pod: Decision) -> Decision:
    """Let the pod's own node pass each agent that would accept it there if the pod were gone."""
    lenient = {agent for agent, verdict in without_pod.verdicts if not verdict.codes[0]}
    here = np.array([name == node for name in filtered.names], bool)
    verdicts = tuple(
        (agent, replace(verdict, codes=np.where(here, np.int16(0), verdict.codes)))
        if agent in lenient
        else (agent, verdict)
        for agent, verdict in filtered.verdicts
    )
    return msgspec.structs.replace(filtered, verdicts=verdicts)


def pod_document(pod_decision: PodDecision, *, running: bool) -> dict[str, Any]:
    """A pod as `-o json` prints it; `node` and `stays` (null while it waits) only with --running."""
    entry = decision_document.pod_document(pod_decision.filtered, pod_decision.scored, pod_decision.agents)
    return (
        {
            **entry,
            "node": pod_decision.node or None,
            "stays": pod_decision.stays if pod_decision.node else None,
        }
        if running
        else entry
    )


def _print_json(decisions: PodDecisions) -> bool:
    """Print pod by pod, so that memory does not grow with the number of pods."""
    is_acceptable, between = True, b""
    click.echo(b'{"decisions":[', nl=False)
    for pod_decision in _reported_pods(decisions):
        click.echo(
            between + decision_document.encode(pod_document(pod_decision, running=decisions.running)),
            nl=False,
        )
        is_acceptable, between = is_acceptable and pod_decision.is_acceptable, b","
    inputs = b',"inputs":' + msgspec.json.encode(decisions.inputs) if decisions.inputs else b""
    click.echo(b"]" + inputs + b"}")
    return is_acceptable


def _print_yaml(decisions: PodDecisions) -> bool:
    listed = list(_reported_pods(decisions))
    documents = [pod_document(pod_decision, running=decisions.running) for pod_decision in listed]
    rest = {"inputs": decisions.inputs} if decisions.inputs else {}
    plain = msgspec.json.decode(decision_document.encode({"decisions": documents} | rest))
    click.echo(yaml.safe_dump(plain, sort_keys=False), nl=False)
    return all(pod_decision.is_acceptable for pod_decision in listed)


def _reported_pods(decisions: PodDecisions) -> Iterator[PodDecision]:
    """Waiting pods, and running pods that an agent filters; the others have no result."""
    return (
        pod_decision
        for pod_decision in decisions.pods
        if not pod_decision.node or pod_decision.is_filtered_by_agent
    )


def _print_table(decisions: PodDecisions) -> bool:
    """Print one row for each pod: how many nodes pass, the best node, and why the others are rejected."""
    if decisions.running:
        table = _collect_rows(decisions, lambda pod_decision: [_running_pod_row(pod_decision)])
        table.show(("POD", "NODE", "STAYS", "FITS", "BEST", _GETS, "WHY NOT THERE, OR ELSEWHERE"))
    else:
        table = _collect_rows(decisions, lambda pod_decision: [_waiting_pod_row(pod_decision)])
        table.show(("POD", "FITS", "BEST", _GETS, "WHY NOT ELSEWHERE"))
    _print_summary(decisions, table.counts)
    return table.is_acceptable


def comparable_rows(decisions: PodDecisions) -> list[list[str]]:
    """The rows of the table, which `--watch` compares: they have no values and ages, which change all the time."""
    row = _running_pod_row if decisions.running else _waiting_pod_row
    return _collect_rows(decisions, lambda pod_decision: [row(pod_decision)]).rows


class _PodTable(NamedTuple):
    """Rows of waiting pods and of pods that may not stay, and counts of all pods by class."""

    rows: list[list[str]]
    counts: Counter[str]
    is_acceptable: bool

    def show(self, head: Sequence[str]) -> None:
        if self.rows:
            tables.print_table(*tables.drop_empty_columns(_OPTIONAL_COLUMNS, head, self.rows))


def _collect_rows(decisions: PodDecisions, rows: Callable[[PodDecision], Iterable[list[str]]]) -> _PodTable:
    """Make rows as pods are decided: decisions over 5,000 nodes are too large to keep for every pod."""
    listed: list[list[str]] = []
    counts, is_acceptable = Counter[str](), True
    with Progress() as progress:
        for number, pod_decision in enumerate(decisions.pods):
            if number % _PROGRESS_INTERVAL == 0:
                progress.say(f"deciding pod {number + 1:,}")
            kind = _pod_decision_category(pod_decision)
            counts[kind] += 1
            is_acceptable = is_acceptable and pod_decision.is_acceptable
            if kind in {"waits", "goes"}:
                listed += rows(pod_decision)
    return _PodTable(listed, counts, is_acceptable)


def _pod_decision_category(pod_decision: PodDecision) -> str:
    if not pod_decision.node:
        return "waits"
    return ("stays" if pod_decision.stays else "goes") if pod_decision.is_filtered_by_agent else "free"


def _print_summary(decisions: PodDecisions, counts: Counter[str]) -> None:
    if decisions.running:
        where = (
            f"{counts['goes']:,} running where a policy rejects them, {counts['stays']:,} where they may stay"
        )
        click.echo(f"pods: {counts['waits']:,} waiting, {where}, {counts['free']:,} that no policy judges")
    elif not counts["waits"]:
        click.echo("no pod waits")
    if decisions.inputs:
        terminal_output.print_line(f"with {decisions.inputs}")


def _waiting_pod_row(pod_decision: PodDecision) -> list[str]:
    kept = int(pod_decision.filtered.feasible().sum())
    return [
        _qualified_name(pod_decision),
        f"{kept}/{len(pod_decision.filtered.names)}",
        _best_node(pod_decision),
        _best_node_details(pod_decision),
        _format_rejections(pod_decision),
    ]


def _running_pod_row(pod_decision: PodDecision) -> list[str]:
    name, fits, best, gets, why = _waiting_pod_row(pod_decision)
    if not pod_decision.node:
        return [name, "-", "-", fits, best, gets, why]
    here = decision_document.rejection_reasons(
        pod_decision.filtered,
        np.flatnonzero([name == pod_decision.node for name in pod_decision.filtered.names]),
    )
    reasons = "; ".join(rejection["reason"] for rejection in here.get(pod_decision.node, []))
    return [name, pod_decision.node, "no", fits, best, gets, reasons]


def _qualified_name(pod_decision: PodDecision) -> str:
    return f"{pod_decision.filtered.pod.namespace}/{pod_decision.filtered.pod.name}"


def _best_node(pod_decision: PodDecision) -> str:
    points = pod_decision.scored.points()
    return pod_decision.scored.names[int(points.argmax())] if len(points) else "-"


def _best_node_details(pod_decision: PodDecision) -> str:
    """What the pod would get on its best node, such as a GPU."""
    points = pod_decision.scored.points()
    if not len(points):
        return "-"
    return (
        "; ".join(_node_details(pod_decision, pod_decision.scored.names[int(points.argmax())]).values())
        or "-"
    )


def _node_details(pod_decision: PodDecision, node: str) -> dict[str, str]:
    """The details that agents report for a node, by agent."""
    details: dict[str, str] = {}
    for decision in (pod_decision.filtered, pod_decision.scored):
        at = (
            np.flatnonzero([name == node for name in decision.names])
            if decision_document.has_details(decision)
            else ()
        )
        for position in at:
            details |= dict(decision_document.candidate_details(decision, int(position)))
    return details


def _format_rejections(pod_decision: PodDecision) -> str:
    """Each reason with its number of nodes, what the node closest to passing lacks, and policies without effect."""
    counts, closest = Counter[str](), dict[str, str]()
    for _, verdict in pod_decision.filtered.verdicts:
        for code in np.unique(verdict.codes[verdict.codes > 0]).tolist():
            text = verdict.reasons[code - 1].text()
            at = np.flatnonzero(verdict.codes == code)
            counts[text] += len(at)
            if verdict.details is not None:
                nearest = int(at[verdict.details.distances()[at].argmin()])
                shortfall = verdict.details.text(nearest)
                closest[text] = f" ({pod_decision.filtered.names[nearest]}: {shortfall})" if shortfall else ""
    texts = [f"{count} {text}{closest.get(text, '')}" for text, count in counts.most_common()]
    return "; ".join([*texts, *_policies_without_effect(pod_decision)]) or "-"


def _policies_without_effect(pod_decision: PodDecision) -> Iterator[str]:
    """The policies that select the pod and reject no node, because they are not enforced or only observe."""
    for _, verdict in pod_decision.filtered.verdicts:
        for policy in verdict.policies:
            if policy.not_enforced:
                yield f"{policy.policy} is not enforced ({policy.not_enforced})"
            if policy.would_reject is not None:
                yield f"{int(policy.would_reject.sum())} would be rejected by {policy.policy}, which only observes"


def _print_wide(decisions: PodDecisions) -> bool:
    """Print one row for each pod and node, with the measured values."""
    table = _collect_rows(
        decisions, lambda pod_decision: _node_rows(pod_document(pod_decision, running=decisions.running))
    )
    here = ("ON",) if decisions.running else ()
    table.show(("POD", *here, "NODE", "SCORE", _MADE_OF, "MEASURED", _DETAILS, _NUMBERS, "REJECTED"))
    _print_summary(decisions, table.counts)
    return table.is_acceptable


def _node_rows(entry: dict[str, Any]) -> Iterator[list[str]]:
    measured: dict[str, dict[str, None]] = {}
    for value in entry["values"]:
        measured.setdefault(value["node"], {})[_format_value(value)] = None
    here = [entry["node"] or "-"] if "node" in entry else []
    for node in [*entry["feasible"], *entry["rejected"]]:
        why = "; ".join(rejection["reason"] for rejection in entry["rejected"].get(node, []))
        score = str(entry["scores"].get(node, "-"))
        details = "; ".join(entry.get("details", {}).get(node, {}).values())
        values = " ".join(measured.get(node, ()))
        counted = {agent: of[node] for agent, of in entry.get("numbers", {}).items() if node in of}
        cells = [
            score,
            _format_node_score_parts(entry, node),
            values,
            details,
            agent_value_format.format_agent_values(counted),
            why,
        ]
        yield [entry["pod"], *here, node, *(cell or "-" for cell in cells)]


def _format_value(value: dict[str, Any]) -> str:
    """A value with its state, unless it is fresh: no rule compares `health=2 (stale, 20m old)`."""
    if value["value"] is None:
        return f"{value['metric']}={value['state']}"
    text = f"{value['metric']}={value['value']}"
    if value["state"] == "fresh":
        return text
    age = "" if value["age_s"] is None else f", {clock.format_duration(round(value['age_s']))} old"
    return f"{text} ({value['state']}{age})"


def _format_node_score_parts(entry: dict[str, Any], node: str) -> str:
    return agent_value_format.format_score_parts(
        ScorePart(label, part["weight"], part["scores"][node])
        for label, part in entry.get("parts", {}).items()
        if node in part["scores"]
    )


PRINTERS: Final[dict[str, Callable[[PodDecisions], bool]]] = {
    "table": _print_table,
    "wide": _print_wide,
    "json": _print_json,
    "yaml": _print_yaml,
}
"""Each prints all decisions, and returns whether every pod may stay on its node or fits on one."""
