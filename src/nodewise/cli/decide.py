"""`nodewise decide`: decides pods once, as the extender does, from files or from a cluster."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import click

from nodewise import clock
from nodewise.agent import ClusterState, NodeIndex, Snapshot, StateBuilder
from nodewise.cli import (
    agent_selection,
    decide_inputs,
    decide_report,
    exit_codes,
    options_from_settings,
    setting_declarations,
)
from nodewise.cli.decide_inputs import InputSelection, MetricSettings, ObjectsAndMetrics
from nodewise.cli.decide_report import PodDecisions
from nodewise.cli.extender_options import GROUPS, ExtenderOptions
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.errors import BadInput, BadSettings, Problem
from nodewise.extender import agent_state_rebuilds
from nodewise.extender.agent_chain import AgentChain, assign_weights
from nodewise.extender.score_weights import ChainOptions
from nodewise.kube.api_client_creation import connect
from nodewise.kube.api_server_interface import Api
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.option import Argument, Option

_METRICS_HELP = next(
    setting.help
    for setting in setting_declarations.list_settings(ExtenderOptions)
    if setting.field == "metrics"
)


class DecideOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise decide`."""

    paths: Annotated[tuple[str, ...], Argument(metavar="[FILE]...", is_required=False)] = ()

    cluster: bool = False
    """Read the cluster; needs only the rights to list and get objects."""

    running: bool = False
    """Decide pods on nodes, too."""

    policies: Annotated[tuple[str, ...], Option("--policy", metavar="FILE")] = ()
    """Files with policies to try; they override all others."""

    only_namespace: Annotated[str, Option("-n --namespace", metavar="NAMESPACE")] = ""
    """Only pods and policies of this namespace; default: all."""

    agent_names: Annotated[str, Option("--agents", metavar="NAMES")] = ""
    """Agents to call, separated by commas; default: all agents with input."""

    now: Annotated[str, Option(metavar="TIME")] = ""
    """Time of the decision, RFC 3339; default: that of the newest sample in files."""

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


def run(command_line: CommandLine) -> None:
    """Decide which nodes pods may go to, and why, offline or for a cluster in its current state.

    FILE is any mix of files, folders or - (standard input) in Kubernetes YAML or JSON: Nodes, Pods, Namespaces,
    policies, MetricValueLists, NodeMetricsLists, and Lists of them; and CSV files of metrics. With --cluster, nodes,
    pods, policies and metrics are read once from the cluster, and nothing is written. Files override objects of the
    cluster. Waiting pods are decided. With --running, pods on nodes are decided, too: the output shows which of them a
    policy rejects on their node, and where they would go. Only nodewise's agents decide: requests, taints and affinity
    are checked by kube-scheduler.

    \b
    Examples:
      nodewise decide examples/health-metric
      nodewise decide --cluster --running --policy stricter.yaml
      kubectl get nodes,pods,ns,plp,cplp -A -o json |
        nodewise decide - metrics.yaml -o wide

    \b
    Exit codes:
      0  every waiting pod fits on a node, and every running pod may stay
      1  a file or the cluster cannot be read
      2  the command line or a setting is invalid
      3  a waiting pod fits on no node, or a policy rejects a running pod's node
    """
    logs.configure("warning")
    own = command_line.settings(DecideOptions)
    if not own.paths and not own.cluster:
        raise BadSettings("settings", [Problem("FILE", "none", "files to decide from, or --cluster")])
    names = [name.strip() for name in own.agent_names.split(",") if name.strip()]
    agents = agent_selection.load_agents_by_name(names, *GROUPS) or agent_selection.agents_without_conflicts(
        *GROUPS
    )
    selection = InputSelection(
        own.paths,
        own.policies,
        names,
        {kind.name: command_line.agent_options(kind) for kind in agents},
        own.only_namespace,
        own.running,
        command_line.settings(MetricOptions).metrics,
    )
    inputs = asyncio.run(_read_inputs(selection, command_line))
    pods = _pods_to_decide(inputs.objects, selection)
    _check_nodes_and_pods_exist(selection, inputs.objects, pods, live=own.cluster)
    chain = _create_agent_chain(inputs, selection, command_line.settings(ChainOptions))
    names = inputs.objects.node_names
    decisions = (decide_report.decide_pod(chain, pod, names, inputs.snapshot) for pod in pods)
    pods_decided = PodDecisions(decisions, selection.running)
    if not decide_report.PRINTERS[own.output](pods_decided):
        click.get_current_context().exit(exit_codes.NO)


async def _read_inputs(selection: InputSelection, command_line: CommandLine) -> DecisionInputs:
    is_live = command_line.settings(DecideOptions).cluster
    api = connect(command_line.settings(ClusterOptions).kube, MetricsRegistry()) if is_live else None
    try:
        return await _read_and_evaluate(selection, command_line, api)
    finally:
        if api is not None:
            await api.close()


async def _read_and_evaluate(
    selection: InputSelection, command_line: CommandLine, api: Api | None
) -> DecisionInputs:
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
    metrics_snapshot = await decide_inputs.fetch_metrics(inputs, metric_requests, how, api)
    at = _decision_time(command_line.settings(DecideOptions).now, inputs.snapshot if api is None else None)
    return DecisionInputs(inputs, states, _build_snapshot(states, inputs, metrics_snapshot, at))


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


def _decision_time(text: str, metrics: MetricsSnapshot | None) -> float:
    """The time of the decision: `text`, else the newest timestamp of files, else now."""
    if text:
        try:
            return clock.parse_rfc3339(text)
        except ValueError as error:
            raise BadSettings("settings", [Problem("--now", repr(text), "2026-11-21T00:43:47Z")]) from error
    series = metrics.series.values() if metrics else ()
    times = [sample.at for node_series in series for sample in node_series.samples.values()]
    return max((at for at in times if at is not None), default=clock.SystemClock().now())


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


def _create_agent_chain(
    inputs: DecisionInputs, selection: InputSelection, options: ChainOptions
) -> AgentChain:
    made = [kind.agent(selection.options[kind.name]) for kind in inputs.objects.kinds]
    return AgentChain(made, assign_weights(made, options), inputs.states)


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
        kinds=agent_selection.agents_without_conflicts(*GROUPS),
        known=GROUPS,
    ),
    short_help="Decide offline, or for a whole cluster.",
)
