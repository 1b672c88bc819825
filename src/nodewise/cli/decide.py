"""`nodewise decide`: the same decisions as the extender's, from files, in one go."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import click
import msgspec
import yaml
from rich.console import Console
from rich.table import Table

from nodewise import agents, clock
from nodewise.agent import AgentKind, NodeIndex, ObjectKey, View, World
from nodewise.cli import exits, settings
from nodewise.errors import BadInput, BadSettings, Problem
from nodewise.extender import report
from nodewise.extender.chain import Chain
from nodewise.kube import files
from nodewise.kube.fields import merge
from nodewise.kube.resources import NODES, PODS
from nodewise.metrics import file as metric_files
from nodewise.metrics.refresher import RefreshOptions
from nodewise.metrics.snapshot import Snapshot


class _PodSpec(msgspec.Struct, frozen=True):
    nodeName: str = ""  # noqa: N815 - the API's name


class _PodPlace(msgspec.Struct, frozen=True):
    """Where a pod is, if it is anywhere."""

    spec: _PodSpec = _PodSpec()


def run(paths: Sequence[str], agents_: str, now: str, output: str, **given: Any) -> None:
    """Decide offline which nodes pods may go to, and why.

    FILE is any mix of files, folders or - (standard input) in Kubernetes YAML or JSON: Nodes, Pods, TASPolicies,
    MetricValueLists, and Lists of them. Pods that have a node name are taken as running; the others are decided.
    Only what nodewise's agents say is told here: requests, taints and affinity are kube-scheduler's own part.
    Exit code 0: every pod fits somewhere, 3: some pod fits nowhere.

    \b
    Example:  nodewise decide examples/health-metric
              kubectl get nodes,pods,taspolicies -A -o json | nodewise decide - metrics.yaml -o wide
    """
    plain, tables = metric_files.split(paths)
    objects = files.read(plain)
    kinds = _asked(agents_, objects)
    pod_type = merge("Pod", _PodPlace, *(kind.pod_fields for kind in kinds))
    pods = [pod for pod in objects.of(PODS, pod_type) if not pod.spec.nodeName]
    names = [node.metadata.name for node in objects.of(NODES, merge("Node"))]
    _complete(paths, pods, names)
    snapshot = metric_files.snapshot(objects, tables)
    at = _now(now, snapshot)
    view = _view(kinds, given, _world(kinds, objects, names, snapshot, at))
    chain = Chain([kind.agent(settings.build(kind.options, given)) for kind in kinds])
    documents = [_decided(chain, pod, names, view) for pod in pods]
    _FORMS[output](documents)
    if not all(document["feasible"] for document in documents):
        click.get_current_context().exit(exits.NO)


def _asked(names: str, objects: files.Objects) -> list[AgentKind]:
    """The agents that are named, or those whose objects are there."""
    if names:
        return [agents.load(name.strip()) for name in names.split(",")]
    every = [agents.load(name) for name in agents.names()]
    found = [
        kind
        for kind in every
        if any(objects.entries(one.resource.group, one.resource.kind) for one in kind.watched)
    ]
    return found or every


def _complete(paths: Sequence[str], pods: Sequence[Any], names: Sequence[str]) -> None:
    problems = [] if names else [Problem(" ".join(paths), "no Node", "at least one")]
    if not pods:
        problems.append(Problem(" ".join(paths), "no Pod without spec.nodeName", "at least one to decide"))
    if problems:
        raise BadInput("decide", problems)


def _now(text: str, snapshot: Snapshot) -> float:
    """The moment of the decision: as told, else the newest timestamp of the input."""
    if text:
        try:
            return clock.parse_rfc3339(text)
        except ValueError as error:
            raise BadSettings("settings", [Problem("--now", repr(text), "2026-11-21T00:43:47Z")]) from error
    times = [one.at for series in snapshot.series.values() for one in series.samples.values()]
    return max((at for at in times if at is not None), default=clock.SystemClock().now())


def _world(
    kinds: Iterable[AgentKind], objects: files.Objects, names: Sequence[str], snapshot: Snapshot, at: float
) -> World:
    by_name: dict[str, dict[ObjectKey, Any]] = {}
    for kind in kinds:
        for one in kind.watched:
            found: list[Any] = objects.of(one.resource, cast("type[Any]", one.type))
            by_name[one.name] = {(item.metadata.namespace, item.metadata.name): item for item in found}
    return World(NodeIndex(names), by_name, snapshot, at)


def _view(kinds: Iterable[AgentKind], given: dict[str, Any], world: World) -> View:
    period_s = RefreshOptions().sync_period_s
    slots = {
        kind.name: clock.result(kind.state(settings.build(kind.options, given), period_s).slot(world))
        for kind in kinds
    }
    return View(world.nodes, slots, world.now, 1)


def _decided(chain: Chain, pod: Any, names: Sequence[str], view: View) -> dict[str, Any]:
    """As kube-scheduler asks: filter, then score what is left."""
    filtered = chain.filter(pod, names, view, view.at)
    left = filtered.names[filtered.kept()].tolist()
    scored = chain.prioritize(pod, left, view, view.at)
    return report.pod(filtered, scored, [agent.name for agent in chain.agents])


def _json(documents: list[dict[str, Any]]) -> None:
    click.echo(report.encode({"decisions": documents}))


def _yaml(documents: list[dict[str, Any]]) -> None:
    plain = msgspec.json.decode(report.encode({"decisions": documents}))
    click.echo(yaml.safe_dump(plain, sort_keys=False), nl=False)


def _table(documents: list[dict[str, Any]]) -> None:
    """A row a pod: where it may go, which node is liked best, and why not elsewhere."""
    table = Table("POD", "FITS", "BEST", "WHY NOT ELSEWHERE", box=None, header_style="")
    for one in documents:
        best = max(one["feasible"], key=lambda node: one["scores"].get(node, 0), default="-")
        reasons = Counter(rejection["reason"] for node in one["rejected"].values() for rejection in node)
        why = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        fits = f"{len(one['feasible'])}/{len(one['feasible']) + len(one['rejected'])}"
        table.add_row(one["pod"], fits, best, why or "-")
    _print(table)


def _wide(documents: list[dict[str, Any]]) -> None:
    """A row a pod and node, with what was measured there."""
    table = Table("POD", "NODE", "SCORE", "MEASURED", "REJECTED", box=None, header_style="")
    for one in documents:
        measured: dict[str, list[str]] = {}
        for value in one["values"]:
            text = f"{value['metric']}={value['value'] if value['value'] is not None else value['state']}"
            if text not in measured.setdefault(value["node"], []):
                measured[value["node"]].append(text)
        for node in [*one["feasible"], *one["rejected"]]:
            why = "; ".join(rejection["reason"] for rejection in one["rejected"].get(node, []))
            score = str(one["scores"].get(node, "-"))
            table.add_row(one["pod"], node, score, " ".join(measured.get(node, [])) or "-", why or "-")
    _print(table)


def _print(table: Table) -> None:
    # A pipe gets whole lines; only a terminal has a width to keep to.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
    console.print(table)


_FORMS = {"table": _table, "wide": _wide, "json": _json, "yaml": _yaml}

command = click.Command(
    "decide",
    callback=run,
    help=run.__doc__,
    short_help="Decide offline.",
    params=[
        click.Argument(["paths"], nargs=-1, required=True, metavar="FILE..."),
        click.Option(["--agents", "agents_"], default="", help="Agents to ask; default: those with input."),
        click.Option(["--now"], default="", help="Time of the decision; default: the newest sample's."),
        click.Option(["-o", "--output"], type=click.Choice(list(_FORMS)), default="table", show_default=True),
        *settings.options(*(agents.load(name).options for name in agents.names())),
    ],
)
