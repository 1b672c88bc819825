"""`nodewise decide`: the same decisions as the extender's, from files or from a cluster, in one go."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from nodewise import clock
from nodewise.agent import ClusterState, Counting, NodeIndex, Snapshot, StateBuilder
from nodewise.cli import cluster, decided, exits, forms, kinds, reading, settings
from nodewise.cli.decided import Outcome
from nodewise.cli.options import ExtenderOptions
from nodewise.cli.reading import Measuring, Read, Wish
from nodewise.cli.sections import Sectioned
from nodewise.errors import BadInput, BadSettings, Problem
from nodewise.extender import agent_states
from nodewise.extender.chain import Chain, weighed
from nodewise.extender.weights import ChainOptions
from nodewise.kube.api import Api
from nodewise.kube.connect import connect
from nodewise.kube.options import KubeOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.refresher import RefreshOptions
from nodewise.metrics.snapshot import MetricsSnapshot
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.options import AdminOptions, ServeOptions

GROUPS: Final = (RefreshOptions, PrometheusOptions, ChainOptions)
_OTHERS: Final = (ExtenderOptions, ServeOptions, AdminOptions, KubeOptions)
"""The extender's file of settings serves here too, so that both decide by the same."""
_ALL: Final = (*GROUPS, *_OTHERS)


class Situation(NamedTuple):
    """What was read, and the snapshot that follows from it."""

    found: Read
    states: Mapping[str, StateBuilder]
    snapshot: Snapshot


def run(**given: Any) -> None:
    """Decide which nodes pods may go to, and why: offline, or for a whole cluster as it is now.

    FILE is any mix of files, folders or - (standard input) in Kubernetes YAML or JSON: Nodes, Pods, TASPolicies,
    MetricValueLists, NodeMetricsLists, and Lists of them; and CSV files of metrics. With --cluster nodes, pods,
    policies and metrics are read from the cluster, once, and nothing is written; files beside it win.
    Pods that wait are decided; with --running those on a node as well: which sit where a policy rejects them, and
    where each would go. Only what nodewise's agents say is told here: requests, taints and affinity are
    kube-scheduler's own part.

    \b
    Examples:
      nodewise decide examples/health-metric
      nodewise decide --cluster --running --policy stricter.yaml
      kubectl get nodes,pods,taspolicies -A -o json |
        nodewise decide - metrics.yaml -o wide

    \b
    Exit codes:
      0  every pod fits somewhere, and may stay where it is
      1  a file or the cluster cannot be read
      2  the command line or a setting is wrong
      3  some pod fits nowhere, or sits where it may not
    """
    logs.configure("warning")
    if not given["paths"] and not given["cluster"]:
        raise BadSettings("settings", [Problem("FILE", "none", "files to decide from, or --cluster")])
    names = [name.strip() for name in given["agents_"].split(",") if name.strip()]
    asked = kinds.chosen(names, *_ALL) or kinds.known(*_ALL)
    wish = Wish(
        given["paths"],
        given["policies"],
        names,
        {kind.name: settings.of_agent(kind, given) for kind in asked},
        given["inside"],
        given["running"],
        given["metrics"],
    )
    situation = asyncio.run(_situation(wish, given))
    pods = _pods(situation.found, wish)
    _complete(wish, situation.found, pods, live=given["cluster"])
    chain = _chain(situation, wish, settings.build(ChainOptions, given))
    names = situation.found.node_names
    told = (decided.decide(chain, pod, names, situation.snapshot) for pod in pods)
    outcome = Outcome(told, wish.running)
    if not decided.FORMS[given["output"]](outcome):
        click.get_current_context().exit(exits.NO)


async def _situation(wish: Wish, given: dict[str, Any]) -> Situation:
    api = connect(cluster.chosen(given), MetricsRegistry()) if given["cluster"] else None
    try:
        return await _seen(wish, given, api)
    finally:
        if api is not None:
            await api.close()


async def _seen(wish: Wish, given: dict[str, Any], api: Api | None) -> Situation:
    found = await reading.read(wish, api)
    refresh = settings.build(RefreshOptions, given)
    states = {kind.name: kind.state(wish.options[kind.name], refresh.sync_period_s) for kind in found.kinds}
    wants = (want for state in states.values() for want in state.wants(found.objects))
    how = Measuring(wish.metrics, refresh, settings.build(PrometheusOptions, given))
    metrics_snapshot = await reading.measured(found, wants, how, api)
    at = _now(given["now"], found.snapshot if api is None else None)
    return Situation(found, states, _view(states, found, metrics_snapshot, at))


def _view(
    states: dict[str, StateBuilder], found: Read, metrics_snapshot: MetricsSnapshot, at: float
) -> Snapshot:
    cluster_state = ClusterState(
        NodeIndex(found.node_names), found.objects, metrics_snapshot, at, found.nodes
    )
    return Snapshot(cluster_state.nodes, agent_states.computed(states, cluster_state), at, 1)


def _now(text: str, given: MetricsSnapshot | None) -> float:
    """The moment of the decision: as told, else the newest timestamp of files, else now."""
    if text:
        try:
            return clock.parse_rfc3339(text)
        except ValueError as error:
            raise BadSettings("settings", [Problem("--now", repr(text), "2026-11-21T00:43:47Z")]) from error
    series = given.series.values() if given else ()
    times = [sample.at for one in series for sample in one.samples.values()]
    return max((at for at in times if at is not None), default=clock.SystemClock().now())


def _pods(found: Read, wish: Wish) -> list[Any]:
    """The pods to decide: those that wait, then those that run."""
    inside = [pod for (namespace, _), pod in found.pods.items() if wish.namespace in {"", namespace}]
    waiting = [pod for pod in inside if not pod.spec.nodeName]
    running = [pod for pod in inside if pod.spec.nodeName and _lasts(pod)] if wish.running else []
    return [*waiting, *running]


def _lasts(pod: Any) -> bool:
    return pod.metadata.deletionTimestamp is None and pod.status.phase not in {"Succeeded", "Failed"}


def _complete(wish: Wish, found: Read, pods: Sequence[Any], *, live: bool) -> None:
    """A cluster may be without pods that wait; files without any pod to decide were not meant."""
    where = " ".join(wish.paths) or "the cluster"
    problems = [] if found.nodes else [Problem(where, "no Node", "at least one")]
    if not pods and not live:
        seen = "no Pod" if wish.running else "no Pod without spec.nodeName"
        problems.append(Problem(where, seen, "at least one to decide"))
    if problems:
        raise BadInput("decide", problems)


def _chain(situation: Situation, wish: Wish, options: ChainOptions) -> Chain:
    made = [kind.agent(wish.options[kind.name]) for kind in situation.found.kinds]
    counting = {name: one for name, one in situation.states.items() if isinstance(one, Counting)}
    return Chain(made, weighed(made, options), counting)


def _metrics_help() -> str:
    return next(one.help for one in settings.settings(ExtenderOptions) if one.field == "metrics")


command = Sectioned(
    "decide",
    callback=run,
    help=run.__doc__,
    short_help="Decide offline, or for a whole cluster.",
    params=[
        click.Argument(["paths"], nargs=-1, metavar="[FILE]..."),
        click.Option(["--cluster"], is_flag=True, help="Read the cluster, with list and get rights only."),
        click.Option(["--running"], is_flag=True, help="Decide pods that are on a node as well."),
        click.Option(
            ["--policy", "policies"],
            multiple=True,
            metavar="FILE",
            help="Policies to try: files that win over all others.",
        ),
        click.Option(
            ["-n", "--namespace", "inside"],
            default="",
            metavar="NAMESPACE",
            help="Only pods and policies of this one; default: all.",
        ),
        click.Option(
            ["--agents", "agents_"],
            default="",
            metavar="NAMES",
            help="Agents to ask, separated by commas; default: those with input.",
        ),
        click.Option(
            ["--now"],
            default="",
            metavar="TIME",
            help="Time of the decision, RFC 3339; default: the newest sample's of files.",
        ),
        forms.option(decided.FORMS),
        *cluster.options(),
        click.Option(
            ["--metrics"],
            multiple=True,
            metavar="SOURCE",
            default=ExtenderOptions().metrics,
            envvar="NODEWISE_METRICS",
            help=_metrics_help(),
        ),
        *settings.options(*GROUPS, kinds=kinds.known(*_ALL), known=_OTHERS),
    ],
)
