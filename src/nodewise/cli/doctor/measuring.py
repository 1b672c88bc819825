"""Policies as the telemetry agent reads them, the metrics that they name, and how many nodes they reject now."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from nodewise.agents.telemetry import operators
from nodewise.agents.telemetry import policy as policies
from nodewise.agents.telemetry.policy import PolicyObject, Rule
from nodewise.cli.doctor.asking import Asker, unread
from nodewise.cli.doctor.kinds import API_SERVICES, POLICIES
from nodewise.cli.doctor.nodes import NodesRead
from nodewise.clock import SystemClock
from nodewise.configure.doctor.facts import Extender, Measured, MetricsApi, Policy, Unread
from nodewise.configure.doctor.objects import at, items, number, text, texts
from nodewise.configure.doctor.settings import options
from nodewise.errors import UNREADABLE, NodewiseError, Unavailable
from nodewise.kube.api import Api, NotFound
from nodewise.metrics import custom, resource
from nodewise.metrics.custom import CustomMetrics
from nodewise.metrics.nodes import Nodes
from nodewise.metrics.resource import ResourceMetrics
from nodewise.metrics.series import Series
from nodewise.metrics.source import Want
from nodewise.visible import short

MOST_METRICS: Final = 100
_MOST_NAMES: Final = 5
_AT_ONCE: Final = 8


class Read(NamedTuple):
    """A policy, as it is and as the agent reads it."""

    policy: policies.Policy
    status: Any


class Found(NamedTuple):
    """All of metrics and policies."""

    policies: tuple[Policy, ...] | Unread
    measured: Mapping[str, Measured | Unread]
    apis: tuple[MetricsApi, ...] | Unread


class _Source(NamedTuple):
    """Where the replicas take metrics from, as far as doctor can ask there."""

    by_custom: bool
    by_resource: bool
    elsewhere: bool
    """Whether a metric that these lack may come from somewhere else."""


async def policies_of(ask: Asker) -> list[Read] | Unread:
    return await ask.listed(POLICIES, _read)


def _read(body: bytes) -> Read | None:
    try:
        found = msgspec.json.decode(body, type=PolicyObject)
        status = msgspec.json.decode(found.status)
    except UNREADABLE:
        return None
    return Read(policies.read(found), status)


def metrics_of(found: Sequence[Read] | Unread) -> list[str]:
    """The metrics that policies name, without those that are expressions."""
    if isinstance(found, Unread):
        return []
    return sorted(
        {rule.metric for one in found for rule in _rules(one.policy) if rule.metric and not rule.query}
    )


def _wants(policies_: Sequence[Read]) -> list[Want]:
    """The same with the aggregations of the rules."""
    rules = (rule for read in policies_ for rule in _rules(read.policy))
    wants = (rule.want() for rule in rules if rule.metric and not rule.query)
    return sorted({Want(want.metric, aggregate=want.aggregate) for want in wants})


def _rules(policy: policies.Policy) -> list[Rule]:
    return [rule for one in policy.strategies.values() for rule in one.rules if not rule.unusable]


def source(extenders: tuple[Extender, ...] | Unread) -> _Source:
    """By the settings of the replicas; of none, that of a default installation."""
    if isinstance(extenders, Unread) or not extenders:
        return _Source(by_custom=True, by_resource=True, elsewhere=True)
    named = {name for one in extenders for name in options(one.settings, "metrics") or ["auto"]}
    prometheus = any("prometheus_url" in one.settings for one in extenders)
    return _Source(
        by_custom=bool(named & {"auto", "custom"}),
        by_resource=bool(named & {"auto", "resource"}),
        elsewhere=prometheus or any(name.startswith("file:") for name in named),
    )


async def read(
    ask: Asker,
    api: Api,
    listed: list[Read] | Unread,
    nodes: NodesRead | Unread,
    extenders: tuple[Extender, ...] | Unread,
) -> Found:
    """What the metrics of these policies are worth, asked where the replicas ask."""
    if isinstance(listed, Unread):
        return Found(listed, {}, listed)
    named, wants, wanted = metrics_of(listed), _wants(listed), source(extenders)
    apis = await _apis(ask, named, wanted)
    series: dict[str, Series | Unread] = {}
    if not isinstance(nodes, Unread) and (wanted.by_custom or wanted.by_resource):
        series = await _series(ask, api, wants[:MOST_METRICS], nodes.nodes, wanted)
    for want in wants[MOST_METRICS:]:
        why = f"there are {len(wants)} metrics, and {MOST_METRICS} are asked for"
        series[want.name] = Unread(f"metric {want.name}", why, is_minor=True)
    known = frozenset() if isinstance(nodes, Unread) else frozenset(nodes.nodes.rooms)
    measured = {metric: _measured(one, known, wanted) for metric, one in series.items()}
    verdicts = _Verdicts({name: one for name, one in series.items() if isinstance(one, Series)}, known)
    told = {metric: one for metric, one in measured.items() if one is not None}
    return Found(tuple(_policy(one, verdicts) for one in listed), told, apis)


def _measured(found: Series | Unread, nodes: frozenset[str], wanted: _Source) -> Measured | Unread | None:
    """None where another source may have it, which nobody can ask from here."""
    if isinstance(found, Unread):
        return None if wanted.elsewhere and not found.right else found
    given = {*found.samples, *found.invalid}
    if not given:
        return None if wanted.elsewhere else Measured(0, (), found.source)
    others = sorted(short(name, 100) for name in list(given - nodes)[:1000])
    measured = len(found.samples.keys() & nodes)
    error = "" if measured else next((why for node, why in found.invalid.items() if node in nodes), "")
    return Measured(measured, tuple(others[:_MOST_NAMES]), error)


async def _series(
    ask: Asker, api: Api, wants: Iterable[Want], nodes: Nodes, wanted: _Source
) -> dict[str, Series | Unread]:
    """Each metric, from the custom metrics API or, by its name, from metrics.k8s.io."""

    async def lookup() -> Nodes:
        return nodes

    ask.say("asking for metrics")
    turn = asyncio.Semaphore(_AT_ONCE)
    custom_, resource_ = CustomMetrics(api, 5.0), ResourceMetrics(api, lookup, 5.0)

    async def one(want: Want) -> tuple[str, Series | Unread]:
        async with turn:
            found: Series | Unread = _none(want.metric, "nobody was asked")
            if wanted.by_custom:
                found = await _fetch(custom_, custom.GROUP, want)
            if wanted.by_resource and want.metric in resource.METRICS and not _has(found):
                found = await _fetch(resource_, resource.GROUP, want)
            return want.name, found

    return dict(await asyncio.gather(*(one(want) for want in wants)))


def _has(found: Series | Unread) -> bool:
    return isinstance(found, Series) and bool(found.samples)


def _none(metric: str, why: str) -> Series:
    """Nobody has it; `source` says why."""
    return Series(metric, short(why), 0.0, {})


async def _fetch(asked: CustomMetrics | ResourceMetrics, group: str, want: Want) -> Series | Unread:
    """The metric; an answer that there is none is an answer."""
    metric = want.metric
    try:
        return await asked.fetch(want, SystemClock().now())
    except NotFound as error:
        return _none(metric, str(error))
    except NodewiseError as error:
        is_empty = isinstance(error, Unavailable) and any(
            one.seen == "an empty list" for one in error.problems
        )
        if is_empty:
            return _none(metric, str(error))
        right = f"get nodes/{metric}.{group}" if group == custom.GROUP else f"list nodes.{group}"
        return unread(f"metric {short(metric, 100)}", right, error)


async def _apis(ask: Asker, metrics: Sequence[str], wanted: _Source) -> tuple[MetricsApi, ...] | Unread:
    """The API groups that these metrics have to come from, as their APIServices say."""
    groups: list[tuple[str, Sequence[str]]] = []
    of_nodes = [name for name in metrics if name in resource.METRICS]
    if wanted.by_custom and len(of_nodes) < len(metrics) and not wanted.elsewhere:
        groups.append((custom.GROUP, ("v1beta1", "v1beta2")))
    if wanted.by_resource and of_nodes and not wanted.elsewhere:
        groups.append((resource.GROUP, ("v1beta1",)))
    found = []
    for group, versions in groups:
        answers = await asyncio.gather(*(_api(ask, f"{version}.{group}") for version in versions))
        missed = next((one for one in answers if isinstance(one, Unread)), None)
        if missed is not None:
            return missed
        there = [one for one in answers if isinstance(one, MetricsApi) and one.exists]
        best = next((one for one in there if one.available), None) or next(iter(there), None)
        found.append(best or MetricsApi(f"{versions[0]}.{group}", exists=False, available=False))
    return tuple(found)


async def _api(ask: Asker, name: str) -> MetricsApi | Unread:
    right = f"get {API_SERVICES.plural}.{API_SERVICES.group}"
    found = await ask.get(f"APIService/{name}", right, API_SERVICES.path(name=name))
    if isinstance(found, Unread):
        return found
    said = next(
        (one for one in items(found, "status", "conditions") if text(one, "type") == "Available"), None
    )
    available = text(said, "status") == "True"
    message = f"{text(said, 'reason')}: {text(said, 'message')}"
    return MetricsApi(name, found is not None, available, short(message))


class _Verdicts:
    """How many nodes a policy rejects by the values of now; a rule is applied once, however many policies have it."""

    def __init__(self, series: Mapping[str, Series], nodes: frozenset[str]) -> None:
        self._series = series
        self._nodes = nodes
        self._broken: dict[Rule, frozenset[str] | None] = {}

    def rejects(self, policy: policies.Policy) -> int | None:
        """None where a rule's values are not known."""
        strategy = policy.strategies.get("dontschedule")
        if strategy is None:
            return 0
        broken = [self._of(rule) for rule in strategy.rules]
        sets = [one for one in broken if one is not None]
        if len(sets) < len(broken) or not sets:
            return None
        join = frozenset.intersection if strategy.all_of else frozenset.union
        return len(join(*sets))

    def _of(self, rule: Rule) -> frozenset[str] | None:
        if rule not in self._broken:
            self._broken[rule] = self._judged(rule)
        return self._broken[rule]

    def _judged(self, rule: Rule) -> frozenset[str] | None:
        series = self._series.get(rule.want().name)
        if rule.unusable or rule.query or series is None or not series.samples:
            return None
        measured = [(name, one.value) for name, one in series.samples.items() if name in self._nodes]
        if not measured:
            return None
        values = np.array([value for _, value in measured], dtype=object)
        holds = operators.holds(rule.operator, values, rule.target)
        broken = frozenset(name for (name, _), is_broken in zip(measured, holds, strict=True) if is_broken)
        lacking = (
            self._nodes - {name for name, _ in measured} if rule.when_missing == "reject" else frozenset()
        )
        return broken | lacking


def _condition(status: Any, kind: str, bad: str) -> str:
    """The message of a condition whose status is the `bad` one; empty otherwise."""
    messages = (
        text(condition, "message") or kind
        for condition in items(status, "conditions")
        if text(condition, "type") == kind and text(condition, "status") == bad
    )
    return next(messages, "")


def _policy(one: Read, verdicts: _Verdicts) -> Policy:
    policy, status = one
    rules = {name: strategy.rules for name, strategy in policy.strategies.items()}
    named = dict.fromkeys(rule.want().name for rule in _rules(policy) if rule.metric and not rule.query)
    counted = verdicts.rejects(policy)
    said = number(status, "violatingNodes") if at(status, "conditions") else None
    return Policy(
        policy.namespace,
        policy.name,
        tuple(rules),
        tuple(named),
        tuple(dict.fromkeys(rule.metric for rule in rules.get("dontschedule", ()) if rule.metric)),
        tuple(short(str(problem)) for problem in policy.problems),
        tuple(short(name, 100) for name in texts(status, "missingMetrics")),
        short(_condition(status, "MetricsFetched", "False")),
        counted if counted is not None else said,
        "by its metrics" if counted is not None else "by its status",
        short(_condition(status, "NotTrusted", "True"), 500),
    )
