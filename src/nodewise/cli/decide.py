"""`nodewise decide`: decides pods once, as the extender does, from files or from a cluster."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn

import click
import msgspec
import numpy as np
import yaml
from msgspec.structs import replace

from nodewise.agent import ClusterState, NodeIndex, Snapshot, StateBuilder
from nodewise.base import clock
from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import (
    agent_selection,
    decide_inputs,
    setting_declarations,
    tables,
    terminal_output,
)
from nodewise.cli.completion import AgentNames, NamespaceName
from nodewise.cli.decide_inputs import InputSelection, MetricSettings, ObjectsAndMetrics, RunningConfiguration
from nodewise.cli.explain import pod_state, rendering
from nodewise.cli.extender_options import ExtenderOptions
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import Progress
from nodewise.engine import cluster_state_changes, decision_json
from nodewise.engine.agent_chain import AgentChain, ChainOptions, assign_weights
from nodewise.engine.decision import Decision
from nodewise.engine.scheduling_attempt_explanation import ScorePart
from nodewise.kube import replicas
from nodewise.kube.api_client_creation import connect
from nodewise.kube.api_server_interface import DEADLINE_S, Api
from nodewise.kube.http_client import HttpApi
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

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
    entry = decision_json.pod_document(pod_decision.filtered, pod_decision.scored, pod_decision.agents)
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
            between + decision_json.encode_document(pod_document(pod_decision, running=decisions.running)),
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
    plain = msgspec.json.decode(decision_json.encode_document({"decisions": documents} | rest))
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
        f"{pod_decision.filtered.pod.namespace}/{pod_decision.filtered.pod.name}",
        f"{kept}/{len(pod_decision.filtered.names)}",
        _best_node(pod_decision),
        _best_node_details(pod_decision),
        _format_rejections(pod_decision),
    ]


def _running_pod_row(pod_decision: PodDecision) -> list[str]:
    name, fits, best, gets, why = _waiting_pod_row(pod_decision)
    if not pod_decision.node:
        return [name, "-", "-", fits, best, gets, why]
    filtered = pod_decision.filtered
    reasons = "; ".join(
        rejection["reason"]
        for position, node in enumerate(filtered.names)
        if node == pod_decision.node
        for rejection in decision_json.reasons_at(filtered, position)
    )
    return [name, pod_decision.node, "no", fits, best, gets, reasons]


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
            if decision_json.has_details(decision)
            else ()
        )
        for position in at:
            details |= dict(decision_json.candidate_details(decision, int(position)))
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
            rendering.format_agent_values(counted),
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
    return rendering.format_score_parts(
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


_METRICS_HELP = next(
    setting.help
    for setting in setting_declarations.list_settings(ExtenderOptions)
    if setting.field == "metrics"
)

_MAX_NODES_WITH_PROBLEMS = 10


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

    nodewise_namespace: Annotated[str, Option(metavar="NAMESPACE", type=NamespaceName())] = replicas.NAMESPACE
    """Namespace of the running nodewise."""

    now: Annotated[str, Option(metavar="TIME")] = ""
    """Time of the decision, RFC 3339; default: that of the newest sample in files."""

    watch: Annotated[bool, Option("-w --watch")] = False
    """Print again whenever a row of the table changes, until Ctrl-C; with -o json one document per line."""

    output: Annotated[Literal["table", "wide", "json", "yaml"], Option("-o --output")] = "table"
    """Output format."""


class MetricOptions(CommandOptions, frozen=True, kw_only=True):
    """The sources of metrics. The settings file of the extender may name them."""

    metrics: Annotated[
        tuple[str, ...],
        Option(metavar="SOURCE", environment="NODEWISE_METRICS", shows_default=False, help=_METRICS_HELP),
    ] = ExtenderOptions().metrics


class DecisionInputs(NamedTuple):
    """The objects that were read, and the snapshot that is built from them."""

    objects: ObjectsAndMetrics
    states: Mapping[str, StateBuilder[Any]]
    snapshot: Snapshot
    selection: InputSelection
    chain_options: ChainOptions
    running_source: str
    """Which settings and values of a running nodewise were used; empty for none."""


@settings_command(
    "decide",
    DecideOptions,
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
    by kube-scheduler.

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
    logs.configure("warning")
    own = command_line.settings(DecideOptions)
    if not own.paths and not own.cluster:
        raise BadSettings("settings", [Problem("FILE", "none", "files to decide from, or --cluster")])
    if own.watch and not own.cluster:
        raise BadSettings("settings", [Problem("--watch", "files only", "--cluster, as files are read once")])
    _select_inputs(command_line)
    if own.watch:
        asyncio.run(_watch_cluster(command_line))
    inputs = asyncio.run(_read_inputs(command_line))
    if not _print_decisions(inputs, own):
        click.get_current_context().exit(terminal_output.NO)


def _print_decisions(inputs: DecisionInputs, own: DecideOptions) -> bool:
    """Print the decisions, and return whether every pod may stay on its node or fits on one."""
    is_acceptable = PRINTERS[own.output](_decide_pods(inputs, live=own.cluster))
    _print_gpu_problems(inputs)
    telemetry = inputs.snapshot.agent_states.get("telemetry")
    if own.cluster and telemetry is not None:
        pods = _pods_to_decide(inputs.objects, inputs.selection)
        decide_inputs.print_uncovered_pods(pods, telemetry, inputs.objects.objects)
    return is_acceptable


def _print_gpu_problems(inputs: DecisionInputs) -> None:
    """Print what is invalid or unclear about the GPUs of nodes; of many nodes the first ones."""
    builder = inputs.states.get("gpu")
    problems = builder.problems(inputs.objects.objects) if builder is not None else {}
    for node, texts in list(problems.items())[:_MAX_NODES_WITH_PROBLEMS]:
        terminal_output.print_message(f"Warning: {node}: {'; '.join(texts)}")
    if len(problems) > _MAX_NODES_WITH_PROBLEMS:
        more = len(problems) - _MAX_NODES_WITH_PROBLEMS
        terminal_output.print_message(
            f"Warning: {more} more nodes with GPUs have problems; GET /state/gpu lists them"
        )


def _decide_pods(inputs: DecisionInputs, *, live: bool) -> PodDecisions:
    """The decisions of all pods, computed lazily."""
    selection = inputs.selection
    pods = _pods_to_decide(inputs.objects, selection)
    _check_nodes_and_pods_exist(selection, inputs.objects, pods, live=live)
    plugins = [kind.agent(inputs.selection.options[kind.name]) for kind in inputs.objects.kinds]
    chain = AgentChain(plugins, assign_weights(plugins, inputs.chain_options), inputs.states)
    names = inputs.objects.node_names
    decisions = (decide_pod(chain, pod, names, inputs.snapshot) for pod in pods)
    return PodDecisions(decisions, selection.running, inputs.running_source)


async def _watch_cluster(command_line: CommandLine) -> NoReturn:
    """Print the decisions again whenever a row of their table changes."""
    own = command_line.settings(DecideOptions)

    def show(inputs: DecisionInputs) -> None:
        _print_decisions(inputs, own)
        if own.output != "json":
            click.echo("---" if own.output == "yaml" else "")

    api = connect(command_line.settings(ClusterOptions).kube, MetricsRegistry())
    printed: set[str] = set()
    try:
        await terminal_output.show_changes(
            lambda: _read_cluster(command_line, api, printed),
            lambda inputs: comparable_rows(_decide_pods(inputs, live=True)),
            show,
            command_line.settings(RefreshOptions).sync_period_s,
            SystemClock(),
        )
    finally:
        await api.close()


def _select_inputs(command_line: CommandLine) -> InputSelection:
    """What to read. `BadSettings` if an agent or an option cannot be used."""
    own = command_line.settings(DecideOptions)
    names = [name.strip() for name in own.agent_names.split(",") if name.strip()]
    agents = agent_selection.load_agents_by_name(names or command_line.running_agents)
    agents = agents or agent_selection.agents_without_conflicts()
    return InputSelection(
        own.paths,
        own.policies,
        names,
        {kind.name: command_line.agent_options(kind) for kind in agents},
        own.only_namespace,
        own.running,
        command_line.settings(MetricOptions).metrics,
    )


async def _read_inputs(command_line: CommandLine) -> DecisionInputs:
    if not command_line.settings(DecideOptions).cluster:
        return await _read_and_evaluate(command_line, None, None)
    api = connect(command_line.settings(ClusterOptions).kube, MetricsRegistry())
    try:
        return await _read_cluster(command_line, api, set())
    finally:
        await api.close()


async def _read_cluster(command_line: CommandLine, api: HttpApi, printed: set[str]) -> DecisionInputs:
    """The inputs of a decision now. Messages in `printed` are not printed again."""
    running = await _read_running_configuration(command_line, api, printed)
    if running is not None:
        command_line = decide_inputs.apply_to_command_line(running, command_line)
    inputs = await _read_and_evaluate(command_line, api, running)
    namespace = inputs.selection.namespace
    if namespace and not _pods_to_decide(inputs.objects, inputs.selection):
        await _check_namespace_exists(api, namespace)
    return inputs


async def _read_running_configuration(
    command_line: CommandLine, api: HttpApi, printed: set[str]
) -> RunningConfiguration | None:
    """The settings and values of the running nodewise; None, with a message, if they cannot be read."""
    namespace = command_line.settings(DecideOptions).nodewise_namespace
    try:
        with Progress() as progress:
            progress.say("reading settings and metrics of the running nodewise")
            return await decide_inputs.read_running_configuration(api, namespace)
    except BadSettings:
        raise
    except NodewiseError as error:
        message = f"settings and metrics are those of this command, not of a running nodewise: {error}"
        if message not in printed:
            terminal_output.print_message(message)
        printed.add(message)
        return None


async def _read_and_evaluate(
    command_line: CommandLine, api: Api | None, running: RunningConfiguration | None
) -> DecisionInputs:
    selection = _select_inputs(command_line)
    inputs = await decide_inputs.read_objects(selection, api)
    refresh = command_line.settings(RefreshOptions)
    states = {
        kind.name: kind.state(selection.options[kind.name], refresh.sync_period_s) for kind in inputs.kinds
    }
    metric_requests = (
        metric_request
        for state in states.values()
        for metric_request in state.metric_requests(inputs.objects)
    )
    how = MetricSettings(selection.metrics, refresh, command_line.settings(PrometheusOptions))
    uses_values = running is not None and not decide_inputs.selects_other_sources(command_line)
    known = running.metrics if running is not None and uses_values else MetricsSnapshot()
    metrics_snapshot = await decide_inputs.fetch_metrics(inputs, metric_requests, how, api, known)
    if running is not None and uses_values:
        at = running.at
        source = f"settings and metric values of {running.source_text()}"
    else:
        at = decide_inputs.decision_time("", inputs.snapshot if api is None else None)
        source = f"settings of {running.source_text()}" if running is not None else ""
    now = command_line.settings(DecideOptions).now
    at = decide_inputs.decision_time(now, None) if now else at
    snapshot = _build_snapshot(states, inputs, metrics_snapshot, at)
    chain_options = command_line.settings(ChainOptions)
    return DecisionInputs(inputs, states, snapshot, selection, chain_options, source)


async def _check_namespace_exists(api: Api, namespace: str) -> None:
    """Raises `BadInput` with the most similar name if the namespace does not exist; not if the user may not know."""
    if not await pod_state.namespace_exists(api, namespace, DEADLINE_S):
        similar = await pod_state.similar_namespace(api, namespace, DEADLINE_S)
        expected = f"a namespace of the cluster{similar}"
        raise BadInput("decide", [Problem("--namespace", shown(namespace), expected)])


def _build_snapshot(
    states: dict[str, StateBuilder[Any]],
    inputs: ObjectsAndMetrics,
    metrics_snapshot: MetricsSnapshot,
    at: float,
) -> Snapshot:
    cluster_state = ClusterState(
        NodeIndex(inputs.node_names), inputs.objects, metrics_snapshot, at, inputs.nodes
    )
    return Snapshot(
        cluster_state.nodes, cluster_state_changes.build_all_agent_states(states, cluster_state), at, 1
    )


def _pods_to_decide(inputs: ObjectsAndMetrics, selection: InputSelection) -> list[Any]:
    """The pods to decide: waiting pods, then running ones."""
    inside = [pod for (namespace, _), pod in inputs.pods.items() if selection.namespace in {"", namespace}]
    waiting = [pod for pod in inside if not pod.spec.nodeName]
    running = (
        [pod for pod in inside if pod.spec.nodeName and _is_unfinished_pod(pod)] if selection.running else []
    )
    return [*waiting, *running]


def _is_unfinished_pod(pod: Any) -> bool:
    return pod.metadata.deletionTimestamp is None and pod.status.phase not in {"Succeeded", "Failed"}


def _check_nodes_and_pods_exist(
    selection: InputSelection, inputs: ObjectsAndMetrics, pods: Sequence[Any], *, live: bool
) -> None:
    """Raises `BadInput` without nodes, and for files without pods to decide. A cluster may have no waiting pods."""
    where = " ".join(selection.paths) or "the cluster"
    problems = [] if inputs.nodes else [Problem(where, "no Node", "at least one")]
    if not pods and not live:
        actual = "no Pod" if selection.running else "no Pod without spec.nodeName"
        problems.append(Problem(where, actual, "at least one to decide"))
    if problems:
        raise BadInput("decide", problems)
