"""`nodewise decide`: decides pods once, as the extender does, from files or from a cluster."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import click

from nodewise.agent import ClusterState, NodeIndex, Snapshot, StateBuilder
from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import (
    agent_selection,
    decide_inputs,
    decide_metrics,
    decide_report,
    exit_codes,
    native_coverage,
    options_from_settings,
    running_configuration,
    setting_declarations,
    terminal_output,
    watching,
)
from nodewise.cli.decide_inputs import InputSelection, ObjectsAndMetrics
from nodewise.cli.decide_metrics import MetricSettings
from nodewise.cli.decide_report import PodDecisions
from nodewise.cli.explain import similar_names
from nodewise.cli.extender_options import ExtenderOptions, setting_groups
from nodewise.cli.name_completion import AgentNames, NamespaceName
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine
from nodewise.cli.progress import Progress
from nodewise.cli.running_configuration import RunningConfiguration
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.engine import agent_state_rebuilds
from nodewise.engine.agent_chain import AgentChain, assign_weights
from nodewise.engine.score_weights import ChainOptions
from nodewise.kube import replicas
from nodewise.kube.api_client_creation import connect
from nodewise.kube.api_server_interface import DEADLINE_S, Api
from nodewise.kube.http_client import HttpApi
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

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


def run(command_line: CommandLine) -> None:
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
        click.get_current_context().exit(exit_codes.NO)


def _print_decisions(inputs: DecisionInputs, own: DecideOptions) -> bool:
    """Print the decisions, and return whether every pod may stay on its node or fits on one."""
    is_acceptable = decide_report.PRINTERS[own.output](_decide_pods(inputs, live=own.cluster))
    _print_gpu_problems(inputs)
    telemetry = inputs.snapshot.agent_states.get("telemetry")
    if own.cluster and telemetry is not None:
        pods = _pods_to_decide(inputs.objects, inputs.selection)
        native_coverage.print_uncovered_pods(pods, telemetry, inputs.objects.objects)
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
    chain = _create_agent_chain(inputs)
    names = inputs.objects.node_names
    decisions = (decide_report.decide_pod(chain, pod, names, inputs.snapshot) for pod in pods)
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
        await watching.show_changes(
            lambda: _read_cluster(command_line, api, printed),
            lambda inputs: decide_report.comparable_rows(_decide_pods(inputs, live=True)),
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
    agents = agent_selection.load_agents_by_name(names or command_line.running_agents, *setting_groups())
    agents = agents or agent_selection.agents_without_conflicts(*setting_groups())
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
        command_line = running_configuration.apply_to_command_line(running, command_line)
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
            return await running_configuration.read_running_configuration(api, namespace)
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
    uses_values = running is not None and not running_configuration.selects_other_sources(command_line)
    known = running.metrics if running is not None and uses_values else MetricsSnapshot()
    metrics_snapshot = await decide_metrics.fetch_metrics(inputs, metric_requests, how, api, known)
    if running is not None and uses_values:
        at = running.at
        source = f"settings and metric values of {running.source_text()}"
    else:
        at = decide_metrics.decision_time("", inputs.snapshot if api is None else None)
        source = f"settings of {running.source_text()}" if running is not None else ""
    now = command_line.settings(DecideOptions).now
    at = decide_metrics.decision_time(now, None) if now else at
    snapshot = _build_snapshot(states, inputs, metrics_snapshot, at)
    chain_options = command_line.settings(ChainOptions)
    return DecisionInputs(inputs, states, snapshot, selection, chain_options, source)


async def _check_namespace_exists(api: Api, namespace: str) -> None:
    """Raises `BadInput` with the most similar name if the namespace does not exist; not if the user may not know."""
    if not await similar_names.namespace_exists(api, namespace, DEADLINE_S):
        similar = await similar_names.similar_namespace(api, namespace, DEADLINE_S)
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
        cluster_state.nodes, agent_state_rebuilds.build_all_agent_states(states, cluster_state), at, 1
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


def _create_agent_chain(inputs: DecisionInputs) -> AgentChain:
    made = [kind.agent(inputs.selection.options[kind.name]) for kind in inputs.objects.kinds]
    return AgentChain(made, assign_weights(made, inputs.chain_options), inputs.states)


command = options_from_settings.create_click_command(
    "decide",
    run,
    options_from_settings.click_parameters(
        DecideOptions,
        ClusterOptions,
        MetricOptions,
        RefreshOptions,
        PrometheusOptions,
        ChainOptions,
        kinds=agent_selection.agents_without_conflicts(*setting_groups()),
        known_settings=agent_selection.known_settings,
    ),
    short_help="Decide offline, or for a whole cluster.",
)
