"""`nodewise decide`: decides pods once, as the extender does, from files or from a cluster."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn

import click
import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nodewise import agents
from nodewise.agent import ClusterState, NodeIndex, Snapshot, StateBuilder
from nodewise.agents.gpu import gpu_pod_fields
from nodewise.base import clock, cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import agent_selection, decide_inputs, terminal_output
from nodewise.cli.decide_inputs import InputSelection, MetricOptions, ObjectsAndMetrics, RunningConfiguration
from nodewise.cli.explain import pod_state, rendering
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, ReplicaOptions, settings_command
from nodewise.cli.parameter_types import AgentNames, NamespaceName
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import Progress
from nodewise.devices.device_inventory import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from nodewise.engine import cluster_state_changes, decision_json
from nodewise.engine.agent_chain import AgentChain, ChainOptions, assign_weights
from nodewise.engine.decision import Decision
from nodewise.engine.scheduling_attempt_explanation import ScorePart
from nodewise.kube import yaml_writer
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.api_server_interface import DEADLINE_S, Api
from nodewise.kube.http_client import HttpApi
from nodewise.metrics import missing_values
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.series import ValueState, pack_samples
from nodewise.observe import logs
from nodewise.policies.agent import SCHEDULING_RESOURCE

_GETS: Final = "GETS"
_DETAILS: Final = "DETAILS"
_MADE_OF: Final = "MADE OF"
_NUMBERS: Final = "NUMBERS"
_OPTIONAL_COLUMNS: Final = (_GETS, _DETAILS, _MADE_OF, _NUMBERS)
"""Columns that are shown only if they have values."""
_PROGRESS_INTERVAL: Final = 100  # number of pods between two progress messages
_AHEAD_S: Final = 10.0  # how far ahead the clock of a source may be until its values are marked
_MAX_NODES_WITH_PROBLEMS: Final = 10


class PodDecision(NamedTuple):
    filtered: Decision
    scored: Decision
    agents: list[str]
    node: str
    """The node that it is on; empty while it waits."""
    misfits: Mapping[str, str]
    """The nodes that pass and whose free devices do not fit the claims of the pod, with the reason."""

    @property
    def stays(self) -> bool:
        """Whether no agent rejects the node that it is on. An unknown node counts as not rejected."""
        return bool(self.filtered.feasible()[_is_node(self.filtered, self.node)].all())

    @property
    def is_acceptable(self) -> bool:
        """Whether it may stay on its node or, if it waits, fits on some node."""
        return self.stays if self.node else bool(self.fits.any())

    @property
    def category(self) -> str:
        """`free`: it is on a node, and no agent filters its nodes, so that it has no result."""
        if not self.node:
            return "waits"
        return ("stays" if self.stays else "goes") if self.filtered.verdicts else "free"

    @property
    def best_node(self) -> str:
        """The node with the best score, first of those that fit; empty if none passes."""
        points, misfits = self.scored.points(), self.misfits
        if misfits:
            points = np.where([name in misfits for name in self.scored.names], -1, points)
        return self.scored.names[int(points.argmax())] if len(points) else ""

    @property
    def fits(self) -> NDArray[np.bool_]:
        """The nodes that pass, without those whose free devices do not fit the claims of the pod: kube-scheduler
        rejects these.
        """
        feasible, misfits = self.filtered.feasible(), self.misfits
        return feasible & [name not in misfits for name in self.filtered.names] if misfits else feasible


class PodDecisions(NamedTuple):
    """The decisions of all pods, computed lazily."""

    pods: Iterable[PodDecision]
    running: bool
    """Whether pods on a node are among them."""
    ahead_s: Mapping[tuple[str, str], float] = MappingProxyType({})
    """By metric and node: how far the time of a value is in the future."""
    inputs: str = ""
    """Whose settings and metric values decided; empty: those of the command."""


def _is_node(decision: Decision, node: str) -> NDArray[np.bool_]:
    return np.array([name == node for name in decision.names], bool)


def decide_pod(  # complexity: devices that are only predicted
    chain: AgentChain,
    pod: Any,
    names: list[str],
    snapshot: Snapshot,
    *,
    offered: Mapping[str, frozenset[str]],
    devices: AgentChain | None = None,
    are_slices_known: bool = True,
) -> PodDecision:
    """Filter, then score the remaining nodes, like kube-scheduler. A running pod's own resources count as free.

    `devices` is the agent gpu if the running nodewise does not have it: it only predicts the devices of waiting pods.
    `offered` are those of `decide_inputs.offered_resources`, for which kube-scheduler takes no devices on these nodes.
    """
    # start-up time: most pods have no claims
    from nodewise.agents.gpu.device_placement import DeviceDetails

    node: str = pod.spec.nodeName
    filtered = chain.filter(pod, names, snapshot, snapshot.at)
    if devices is not None and not node:
        predicted = tuple(
            (agent, replace(verdict, codes=np.zeros_like(verdict.codes), reasons=()))
            for agent, verdict in devices.filter(pod, names, snapshot, snapshot.at).verdicts
            if isinstance(verdict.details, DeviceDetails)
        )
        filtered = replace(filtered, verdicts=(*filtered.verdicts, *predicted))
    if node in snapshot.nodes:
        evicted = {node: frozenset({pod.metadata.uid})}
        without_pod = chain.preempt(pod, evicted, snapshot, snapshot.at)
        filtered = _pass_own_node_without_pod(filtered, node, without_pod)
    left = filtered.names[filtered.feasible()].tolist()
    scored = chain.prioritize(pod, left, snapshot, snapshot.at)
    requested = decide_inputs.extended_resources(pod) if offered else set()
    may_misfit = {name for name in left if requested.isdisjoint(offered.get(name, ()))}
    misfits = _misfits((filtered, scored), may_misfit) if are_slices_known else {}
    return PodDecision(filtered, scored, [agent.name for agent in chain.agents], node, misfits)


def _misfits(decisions: Iterable[Decision], candidates: AbstractSet[str]) -> dict[str, str]:
    """The candidates whose free devices do not fit the claims, with the reason; those of first-fit are in a verdict."""
    from nodewise.agents.gpu.device_placement import DeviceDetails

    return {
        name: details.text(position)
        for decision in decisions
        for _, details in decision.details()
        if isinstance(details, DeviceDetails)
        for position in np.flatnonzero(details.misfits()).tolist()
        if (name := decision.names[position]) in candidates
    }


def _pass_own_node_without_pod(filtered: Decision, node: str, without_pod: Decision) -> Decision:
    """Let the pod's own node pass each agent that would accept it there if the pod were gone."""
    lenient = {agent for agent, verdict in without_pod.verdicts if not verdict.codes[0]}
    here = _is_node(filtered, node)
    verdicts = tuple(
        (agent, replace(verdict, codes=np.where(here, np.int16(0), verdict.codes)))
        if agent in lenient
        else (agent, verdict)
        for agent, verdict in filtered.verdicts
    )
    return replace(filtered, verdicts=verdicts)


def pod_document(pod_decision: PodDecision, decisions: PodDecisions) -> dict[str, Any]:
    """A pod as `-o json` prints it; `node` and `stays` (null while it waits) only with --running. The age of a value
    of the future is negative. Nodes whose devices do not fit are in `misfits`, with the reason, not in `feasible`.
    """
    entry = decision_json.pod_document(pod_decision.filtered, pod_decision.scored, pod_decision.agents)
    if misfits := pod_decision.misfits:
        entry["feasible"] = [name for name in entry["feasible"] if name not in misfits]
        entry["misfits"] = misfits
    for value in entry["values"]:
        if ahead_s := decisions.ahead_s.get((value["metric"], value["node"])):
            value["age_s"] = -round(ahead_s, 3)
    node = pod_decision.node or None
    return (
        {**entry, "node": node, "stays": pod_decision.stays if node else None} if decisions.running else entry
    )


def _print_json(decisions: PodDecisions) -> bool:
    """Print pod by pod, so that memory does not grow with the number of pods."""
    is_acceptable, between = True, b""
    click.echo(b'{"decisions":[', nl=False)
    for pod_decision in decisions.pods:
        if pod_decision.category != "free":
            document = pod_document(pod_decision, decisions)
            click.echo(between + decision_json.encode_document(document), nl=False)
            is_acceptable, between = is_acceptable and pod_decision.is_acceptable, b","
    inputs = b',"inputs":' + msgspec.json.encode(decisions.inputs) if decisions.inputs else b""
    click.echo(b"]" + inputs + b"}")
    return is_acceptable


def _print_yaml(decisions: PodDecisions) -> bool:
    listed = [pod_decision for pod_decision in decisions.pods if pod_decision.category != "free"]
    documents = [pod_document(pod_decision, decisions) for pod_decision in listed]
    rest = {"inputs": decisions.inputs} if decisions.inputs else {}
    plain = msgspec.json.decode(decision_json.encode_document({"decisions": documents} | rest))
    click.echo(yaml_writer.dump(plain), nl=False)
    return all(pod_decision.is_acceptable for pod_decision in listed)


def _print_table(decisions: PodDecisions) -> bool:
    """Print one row for each pod: how many nodes pass, the best node, and why the others are rejected."""
    on_nodes = ("POD", "NODE", "STAYS", "FITS", "BEST", _GETS, "WHY NOT THERE, OR ELSEWHERE")
    head = on_nodes if decisions.running else ("POD", "FITS", "BEST", _GETS, "WHY NOT ELSEWHERE")
    return _print_rows(decisions, head, lambda pod_decision: [_pod_row(pod_decision, decisions)])


def comparable_rows(decisions: PodDecisions) -> list[list[str]]:
    """The rows of the table, which `--watch` compares: they have no values and ages, which change all the time."""
    return _collect_rows(decisions, lambda pod_decision: [_pod_row(pod_decision, decisions)])[0]


def _collect_rows(
    decisions: PodDecisions, rows: Callable[[PodDecision], Iterable[list[str]]]
) -> tuple[list[list[str]], Counter[str], bool]:
    """Rows of waiting pods and of pods that may not stay, counts of all pods by category, and whether all are
    acceptable. Rows are made as pods are decided: decisions over 5,000 nodes are too large to keep for every pod.
    """
    listed: list[list[str]] = []
    counts, is_acceptable = Counter[str](), True
    with Progress() as progress:
        for number, pod_decision in enumerate(decisions.pods):
            if number % _PROGRESS_INTERVAL == 0:
                progress.say(f"deciding pod {number + 1:,}")
            counts[pod_decision.category] += 1
            is_acceptable = is_acceptable and pod_decision.is_acceptable
            if pod_decision.category in {"waits", "goes"}:
                listed += rows(pod_decision)
    return listed, counts, is_acceptable


def _print_rows(
    decisions: PodDecisions, head: Sequence[str], rows: Callable[[PodDecision], Iterable[list[str]]]
) -> bool:
    listed, counts, is_acceptable = _collect_rows(decisions, rows)
    if listed:
        terminal_output.print_table(*terminal_output.drop_empty_columns(_OPTIONAL_COLUMNS, head, listed))
    if decisions.running:
        where = (
            f"{counts['goes']:,} running where a policy rejects them, {counts['stays']:,} where they may stay"
        )
        click.echo(f"pods: {counts['waits']:,} waiting, {where}, {counts['free']:,} that no policy judges")
    elif not counts["waits"]:
        click.echo("no pod waits")
    if decisions.inputs:
        terminal_output.print_line(f"with {decisions.inputs}")
    return is_acceptable


def _pod_row(pod_decision: PodDecision, decisions: PodDecisions) -> list[str]:
    filtered, node, best = pod_decision.filtered, pod_decision.node, pod_decision.best_node
    where = [node or "-", "no" if node else "-"] if decisions.running else []
    if node:
        positions = np.flatnonzero(_is_node(filtered, node)).tolist()
        reasons = [
            reason for position in positions for reason in decision_json.reasons_at(filtered, position)
        ]
        why = [rejection["reason"] for rejection in reasons]
    else:
        why = list(_format_rejections(pod_decision))
    why += _format_times(pod_decision, decisions.ahead_s)
    fits = int(pod_decision.fits.sum())
    return [
        f"{filtered.pod.namespace}/{filtered.pod.name}",
        *where,
        f"{fits}/{len(filtered.names)}",
        best if best and fits else "-",
        "; ".join(_details_of(pod_decision, best).values()) or "-",
        "; ".join(why) or "-",
    ]


def _details_of(pod_decision: PodDecision, node: str) -> dict[str, str]:
    """What agents report for a node, such as the GPU that the pod would get, by agent."""
    details: dict[str, str] = {}
    for decision in (pod_decision.filtered, pod_decision.scored):
        if decision_json.has_details(decision):
            for position in np.flatnonzero(_is_node(decision, node)).tolist():
                details |= dict(decision_json.candidate_details(decision, position))
    return details


def _format_times(pod_decision: PodDecision, ahead_s: Mapping[tuple[str, str], float]) -> Iterator[str]:
    """The metrics with values that no rule compares, because they are too old, or that have a time in the future; on
    the pod's node or, if it waits, on all nodes. Values and ages are left out: they change all the time.
    """
    marked: dict[str, dict[str, None]] = {}
    for decision in (pod_decision.filtered, pod_decision.scored):
        for rule in decision.evidence():
            for position in np.flatnonzero(np.asarray(rule.states) == ValueState.STALE).tolist():
                marked.setdefault(f"{rule.metric} is stale", {})[decision.names[position]] = None
            for node in decision.names if ahead_s else ():
                if (rule.metric, node) in ahead_s:
                    marked.setdefault(f"{rule.metric} has a time in the future", {})[node] = None
    for text, nodes in marked.items():
        names = [node for node in nodes if pod_decision.node in ("", node)]
        if names:
            yield f"{text} on {missing_values.name_nodes(names, len(names))}"


def _format_rejections(pod_decision: PodDecision) -> Iterator[str]:
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
    counts.update(pod_decision.misfits.values())
    yield from (f"{count} {text}{closest.get(text, '')}" for text, count in counts.most_common())
    for _, verdict in pod_decision.filtered.verdicts:
        for policy in verdict.policies:
            if policy.not_enforced:
                yield f"{policy.policy} is not enforced ({policy.not_enforced})"
            if policy.would_reject is not None:
                count = int(policy.would_reject.sum())
                yield f"{count} would be rejected by {policy.policy}, which only observes"


def _print_wide(decisions: PodDecisions) -> bool:
    """Print one row for each pod and node, with the measured values."""
    here = ("ON",) if decisions.running else ()
    head = ("POD", *here, "NODE", "SCORE", _MADE_OF, "MEASURED", _DETAILS, _NUMBERS, "REJECTED")

    def rows(pod_decision: PodDecision) -> Iterable[list[str]]:
        return _node_rows(pod_document(pod_decision, decisions))

    return _print_rows(decisions, head, rows)


def _node_rows(entry: dict[str, Any]) -> Iterator[list[str]]:
    measured: dict[str, dict[str, None]] = {}
    for value in entry["values"]:
        measured.setdefault(value["node"], {})[_format_value(value)] = None
    here = [entry["node"] or "-"] if "node" in entry else []
    details = _details_by_node(entry)
    for node in [*entry["feasible"], *entry.get("misfits", ()), *entry["rejected"]]:
        parts = (
            ScorePart(label, part["weight"], part["scores"][node])
            for label, part in entry.get("parts", {}).items()
            if node in part["scores"]
        )
        numbers = {
            agent: by_node[node] for agent, by_node in entry.get("numbers", {}).items() if node in by_node
        }
        cells = [
            str(entry["scores"].get(node, "-")),
            rendering.format_score_parts(parts),
            " ".join(measured.get(node, ())),
            details.get(node, ""),
            rendering.format_agent_values(numbers),
            "; ".join(rejection["reason"] for rejection in entry["rejected"].get(node, [])),
        ]
        yield [entry["pod"], *here, node, *(cell or "-" for cell in cells)]


def _details_by_node(entry: dict[str, Any]) -> dict[str, str]:
    """What agents say about a node, or why its free devices do not fit."""
    details = {node: "; ".join(by_agent.values()) for node, by_agent in entry.get("details", {}).items()}
    misfits: dict[str, str] = entry.get("misfits", {})
    return misfits | details


def _format_value(value: dict[str, Any]) -> str:
    """A value with its state, unless it is fresh: no rule compares `health=2 (stale, 20m old)`. One of the future is
    compared: `health=2 (10m in the future)`.
    """
    if value["value"] is None:
        return f"{value['metric']}={value['state']}"
    text = f"{value['metric']}={value['value']}"
    if value["state"] == "fresh":
        is_ahead = value["age_s"] is not None and value["age_s"] < 0
        ahead = f" ({clock.format_duration(round(-value['age_s']))} in the future)" if is_ahead else ""
        return f"{text}{ahead}"
    age = "" if value["age_s"] is None else f", {clock.format_duration(round(value['age_s']))} old"
    return f"{text} ({value['state']}{age})"


PRINTERS: Final[dict[str, Callable[[PodDecisions], bool]]] = {
    "table": _print_table,
    "wide": _print_wide,
    "json": _print_json,
    "yaml": _print_yaml,
}
"""Each prints all decisions, and returns whether every pod may stay on its node or fits on one."""


class DecideOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise decide`."""

    paths: Annotated[tuple[str, ...], Argument(metavar="[FILE]...", is_required=False)] = ()

    cluster: bool = False
    """Read the cluster; needs only the rights to list and get objects."""

    running: bool = False
    """Decide pods on nodes, too."""

    policies: Annotated[tuple[str, ...], Option("--policy", metavar="FILE")] = ()
    """Files with policies to try; they override all others."""

    only_namespace: Annotated[str, Option("-n --namespace", metavar="NAMESPACE", type=NamespaceName())] = ""
    """Only pods and policies of this namespace; default: all."""

    agent_names: Annotated[str, Option("--agents", metavar="NAMES", type=AgentNames())] = ""
    """Agents to call, separated by commas; default: all agents with input."""

    now: Annotated[str, Option(metavar="TIME")] = ""
    """Time of the decision, RFC 3339; default: that of the newest sample in files."""

    watch: Annotated[bool, Option("-w --watch")] = False
    """Print again whenever a row of the table changes, until Ctrl-C; with -o json one document per line."""

    output: Annotated[Literal["table", "wide", "json", "yaml"], Option("-o --output")] = "table"
    """Output format."""


class DecisionInputs(NamedTuple):
    """The objects that were read, and the snapshot that is built from them."""

    objects: ObjectsAndMetrics
    states: Mapping[str, StateBuilder[Any]]
    snapshot: Snapshot
    selection: InputSelection
    chain_options: ChainOptions
    ahead_s: Mapping[tuple[str, str], float]
    """As in `PodDecisions`."""
    running_source: str
    """Which settings and values of a running nodewise were used; empty for none."""
    only_predicts_devices: bool = False
    """Whether the agent gpu only predicts devices, because the running nodewise does not have it."""


@settings_command(
    "decide",
    DecideOptions,
    ReplicaOptions,
    ClusterOptions,
    MetricOptions,
    RefreshOptions,
    PrometheusOptions,
    ChainOptions,
    kinds=agent_selection.agents_without_conflicts(),
    short_help="Decide offline, or for a whole cluster.",
)
def command(command_line: CommandLine) -> None:
    """Decide which nodes pods may go to, and why, offline or for a cluster in its current state.

    FILE is any mix of files, folders or - (standard input) in Kubernetes YAML or JSON: Nodes, Pods, Namespaces,
    policies, MetricValueLists, NodeMetricsLists, and Lists of them; and CSV files of metrics. With --cluster, nodes,
    pods and policies are read once from the cluster, and settings and metric values from a replica of the running
    nodewise; options override its settings, and --metrics or --prometheus-url its values. Without a replica that you
    may reach, metrics are read with your rights. Nothing is written. Files override objects of the cluster. Waiting
    pods are decided. With --running, pods on nodes are decided, too: the output shows which of them a policy rejects
    on their node, and where they would go. Only nodewise's agents decide: requests, taints and affinity are checked
    by kube-scheduler. Nodes whose free devices do not fit the claims of a waiting pod are not counted; -o json has them
    in misfits.

    \b
    Examples:
      nodewise decide examples/health-metric
      nodewise decide --cluster --running --policy stricter.yaml
      kubectl get nodes,pods,ns,plp,cplp -A -o json |
        nodewise decide - metrics.yaml -o wide

    \b
    Exit codes:
      0  every waiting pod fits on a node, and every running pod may stay
      1  a file or the cluster cannot be read, or the namespace does not exist
      2  the command line or a setting is invalid
      3  a waiting pod fits on no node, or a policy rejects a running pod's node
    """
    logs.configure("warning", "messages")
    own = command_line.settings(DecideOptions)
    if not own.paths and not own.cluster:
        raise BadSettings("settings", [Problem("FILE", "no file", "files to decide from, or --cluster")])
    if own.watch and not own.cluster:
        raise BadSettings("settings", [Problem("--watch", "files only", "--cluster, as files are read once")])
    _select_inputs(command_line)
    if own.watch:
        asyncio.run(_watch_cluster(command_line))
    inputs = cooperative_scheduling.run_event_loop(_read_inputs(command_line))
    if not _print_decisions(inputs, own):
        click.get_current_context().exit(terminal_output.NO)


def _print_decisions(inputs: DecisionInputs, own: DecideOptions) -> bool:
    """Print the decisions, and return whether every pod may stay on its node or fits on one."""
    is_acceptable = PRINTERS[own.output](_decide_pods(inputs, live=own.cluster))
    gpus = None if inputs.only_predicts_devices else inputs.states.get("gpu")
    problems = gpus.problems(inputs.objects.objects) if gpus is not None else {}
    for node, texts in list(problems.items())[:_MAX_NODES_WITH_PROBLEMS]:
        terminal_output.print_message(f"Warning: {node}: {'; '.join(texts)}")
    if (more := len(problems) - _MAX_NODES_WITH_PROBLEMS) > 0:
        terminal_output.print_message(
            f"Warning: {more} more nodes with GPUs have problems; GET /state/gpu lists them"
        )
    refused = sorted(inputs.objects.refused & {DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES})
    if refused and any(map(_may_request_devices, _pods_to_decide(inputs.objects, inputs.selection))):
        kinds = ", ".join(refused).replace("_", "")
        terminal_output.print_message(f"whether free devices fit pods is not known without {kinds}")
    telemetry = inputs.snapshot.agent_states.get("telemetry")
    if own.cluster and telemetry is not None:
        pods = _pods_to_decide(inputs.objects, inputs.selection)
        decide_inputs.print_uncovered_pods(pods, telemetry, inputs.objects.objects)
    return is_acceptable


def _decide_pods(  # complexity: what is missing, and an agent that only predicts devices
    inputs: DecisionInputs, *, live: bool
) -> PodDecisions:
    """The decisions of all pods, computed lazily. `BadInput` without nodes, and for files without pods to decide."""
    selection = inputs.selection
    pods = _pods_to_decide(inputs.objects, selection)
    where = " ".join(selection.paths) or "the cluster"
    problems = [] if inputs.objects.nodes else [Problem(where, "no Node", "at least one Node")]
    if not pods and not live:  # a cluster may have no waiting pods
        actual = "no Pod" if selection.running else "no Pod without spec.nodeName"
        problems.append(Problem(where, actual, "at least one to decide"))
    if problems:
        raise BadInput("decide", problems)
    plugins = [kind.agent(selection.options[kind.name]) for kind in inputs.objects.kinds]
    are_slices_known = RESOURCE_SLICES not in inputs.objects.refused
    devices = None
    if inputs.only_predicts_devices:
        if are_slices_known:
            devices = AgentChain([plugin for plugin in plugins if plugin.name == "gpu"])
        plugins = [plugin for plugin in plugins if plugin.name != "gpu"]
    chain = AgentChain(plugins, assign_weights(plugins, inputs.chain_options), inputs.states)
    names, snapshot = inputs.objects.node_names, inputs.snapshot
    offered = decide_inputs.offered_resources(inputs.objects)
    decisions = (
        decide_pod(
            chain,
            pod,
            names,
            snapshot,
            offered=offered,
            devices=devices,
            are_slices_known=are_slices_known,
        )
        for pod in pods
    )
    return PodDecisions(decisions, selection.running, inputs.ahead_s, inputs.running_source)


async def _watch_cluster(command_line: CommandLine) -> NoReturn:
    """Print the decisions again whenever a row of their table changes."""
    own = command_line.settings(DecideOptions)

    def show(inputs: DecisionInputs) -> None:
        _print_decisions(inputs, own)
        if own.output != "json":
            click.echo("---" if own.output == "yaml" else "")

    printed: set[str] = set()
    async with open_api(command_line.settings(ClusterOptions).kube) as api:
        await terminal_output.show_changes(
            lambda: _read_cluster(command_line, api, printed),
            lambda inputs: comparable_rows(_decide_pods(inputs, live=True)),
            show,
            command_line.settings(RefreshOptions).sync_period_s,
            SystemClock(),
        )


def _select_inputs(command_line: CommandLine) -> InputSelection:
    """What to read. `BadSettings` if an agent or an option cannot be used."""
    own = command_line.settings(DecideOptions)
    names = [name.strip() for name in own.agent_names.split(",") if name.strip()]
    kinds = agent_selection.load_agents_by_name(names or command_line.running_agents)
    kinds = kinds or agent_selection.agents_without_conflicts()
    return InputSelection(
        own.paths,
        own.policies,
        names,
        {kind.name: command_line.agent_options(kind) for kind in kinds},
        own.only_namespace,
        own.running,
    )


async def _read_inputs(command_line: CommandLine) -> DecisionInputs:
    if not command_line.settings(DecideOptions).cluster:
        return await _read_and_evaluate(command_line, None, None)
    async with open_api(command_line.settings(ClusterOptions).kube) as api:
        return await _read_cluster(command_line, api, set())


async def _read_cluster(command_line: CommandLine, api: HttpApi, printed: set[str]) -> DecisionInputs:
    """The inputs of a decision now, with the settings and values of the running nodewise, if they can be read.

    Messages in `printed` are not printed again. `BadInput` with the most similar name if the namespace does not exist;
    not if the user may not know.
    """
    running = None
    try:
        with Progress() as progress:
            progress.say("reading settings and metrics of the running nodewise")
            running = await decide_inputs.read_running_configuration(
                api, command_line.settings(ReplicaOptions)
            )
    except BadSettings:
        raise
    except NodewiseError as error:
        message = f"settings and metrics are those of this command, not of a running nodewise: {error}"
        if message not in printed:
            terminal_output.print_message(message)
        printed.add(message)
    else:
        command_line = decide_inputs.apply_to_command_line(running, command_line)
    inputs = await _read_and_evaluate(command_line, api, running)
    namespace = inputs.selection.namespace
    has_pods = not namespace or _pods_to_decide(inputs.objects, inputs.selection)
    if not has_pods and not await pod_state.namespace_exists(api, namespace, DEADLINE_S):
        similar = await pod_state.similar_namespace(api, namespace, DEADLINE_S)
        expected = f"a namespace of the cluster{similar}"
        raise BadInput("decide", [Problem("--namespace", shown(namespace), expected)])
    return inputs


async def _read_and_evaluate(  # complexity: sources of settings, values and times
    command_line: CommandLine, api: Api | None, running: RunningConfiguration | None
) -> DecisionInputs:
    selection = _select_inputs(command_line)
    sources = decide_inputs.read_files(selection, api)
    only_predicts_devices = False
    if api is not None and running is not None and not selection.agents and "gpu" not in selection.options:
        waiting = await decide_inputs.read_waiting_pods(selection, sources, gpu_pod_fields.RequestedGpuPod)
        only_predicts_devices = any(map(_may_request_devices, waiting))
    if only_predicts_devices:
        gpu = agents.load("gpu")
        options = {**selection.options, gpu.name: command_line.agent_options(gpu)}
        selection = selection._replace(options=options)
    inputs = await decide_inputs.read_objects(selection, sources)
    refresh = command_line.settings(RefreshOptions)
    states = {
        kind.name: kind.state(selection.options[kind.name], refresh.sync_period_s) for kind in inputs.kinds
    }
    requests = [request for state in states.values() for request in state.metric_requests(inputs.objects)]
    settings = decide_inputs.metric_settings(command_line)
    known, source = MetricsSnapshot(), ""
    at = None
    if running is not None and decide_inputs.selects_other_sources(command_line):
        source = f"settings of {running.source_text()}"
    elif running is not None:
        known, at = running.metrics, running.at
        source = f"settings and metric values of {running.source_text()}"
    metrics_snapshot = await decide_inputs.fetch_metrics(inputs, requests, settings, api, known)
    if at is None:  # also with --now, as it refuses invalid timestamps of files
        at = decide_inputs.decision_time("", inputs.snapshot if api is None else None)
    if now := command_line.settings(DecideOptions).now:
        at = decide_inputs.decision_time(now, None)
    index = NodeIndex(inputs.node_names)
    cluster_state = ClusterState(index, inputs.objects, metrics_snapshot, at, inputs.nodes)
    agent_states = cluster_state_changes.build_all_agent_states(states, cluster_state)
    snapshot = Snapshot(index, agent_states, at, 1)
    return DecisionInputs(
        inputs,
        states,
        snapshot,
        selection,
        command_line.settings(ChainOptions),
        _values_of_the_future(metrics_snapshot, at),
        source,
        only_predicts_devices,
    )


def _may_request_devices(pod: Any) -> bool:
    """Whether a waiting pod has claims, or extended resources, which a DeviceClass may count."""
    resources = decide_inputs.extended_resources(pod) - {SCHEDULING_RESOURCE}
    return bool(pod.spec.resource_claims or resources)


def _values_of_the_future(snapshot: MetricsSnapshot, at: float) -> dict[tuple[str, str], float]:
    """By metric and node: how many seconds the time of a value is after the decision."""
    ahead_s = {}
    for key, series in snapshot.series.items():
        metric = key.partition(" by ")[0].removesuffix(" or nothing")
        samples = cooperative_scheduling.run_without_pauses(pack_samples(series.samples))
        for position in np.flatnonzero(samples.times - at > _AHEAD_S).tolist():
            ahead_s[metric, samples.names.names[position]] = float(samples.times[position]) - at
    return ahead_s


def _pods_to_decide(inputs: ObjectsAndMetrics, selection: InputSelection) -> list[Any]:
    """The pods to decide: waiting pods, then running ones."""
    inside = [pod for (namespace, _), pod in inputs.pods.items() if selection.namespace in {"", namespace}]
    running = [
        pod
        for pod in inside
        if pod.spec.nodeName
        and pod.metadata.deletionTimestamp is None
        and pod.status.phase not in {"Succeeded", "Failed"}
    ]
    return [*(pod for pod in inside if not pod.spec.nodeName), *(running if selection.running else ())]
