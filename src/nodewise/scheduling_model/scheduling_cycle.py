"""One scheduling attempt for one pod: a function of the pod, the snapshot and the responses of extenders.

    filter plugins -> a sample of feasible nodes -> extenders, in order -> scores -> the best node
                                                        none left -> preemption -> message

Preemption selects the pods to evict for a pod that fits nowhere. Source: kubernetes v1.36.3
pkg/scheduler/schedule_one.go.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final, NamedTuple

from nodewise.base.errors import Unavailable
from nodewise.scheduling_model import scheduler_plugins
from nodewise.scheduling_model.extender_client import ExtenderClient, Victims
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo, Pod
from nodewise.scheduling_model.scheduler_plugins import Rejection, Rejections, SimulatedFilterPlugins

Judge = Callable[[NodeInfo], Rejection | None]
"""Runs the filter plugins for the pod on a hypothetical node; None if it fits."""

_NO_HELP: Final = "Preemption is not helpful for scheduling"
_NO_VICTIMS: Final = Rejection(("No preemption victims found for incoming pod",), for_good=True)
_LEAST_CANDIDATES: Final = 100
_CANDIDATES_PERCENT: Final = 10


class Preemption(NamedTuple):
    """Result of preemption: the text to append to the pod's message, and a node with its victims if there is one.

    `nominated` is the new nominated node; None leaves it unchanged.
    """

    message: str = ""
    nominated: str | None = None
    victims: tuple[Pod, ...] = ()


class PreemptionContext(NamedTuple):
    """Inputs of preemption: all nodes, and their rejections in the failed attempt."""

    nodes: Mapping[str, NodeInfo]
    rejections: Rejections
    judge: Judge


def attempt(
    pod: Pod, context: PreemptionContext, extenders: Sequence[ExtenderClient], random: Random
) -> Preemption:
    """Find the node with the least costly victims. The caller evicts them."""
    if why := _preemption_ineligibility_reason(pod, context):
        return Preemption(f"preemption: {why}")
    try:
        candidates, rejected = _preemption_candidates(pod, context, random)
        if not candidates:
            message = scheduler_plugins.text(len(context.nodes), rejected.values(), absent=_NO_HELP)
            return Preemption(f"preemption: {message}", nominated="")
        candidates = _filter_candidates_by_extenders(pod, candidates, extenders, context.nodes)
    except Unavailable as error:
        return Preemption(f"preemption: {error}")
    if not candidates:
        return Preemption("preemption: no candidate node for preemption")
    chosen = min(candidates, key=lambda name: _victims_cost(candidates[name]))
    victims = candidates[chosen].pods
    message = f"found a potential placement for pod on node {chosen}, preempting {len(victims)} victims"
    return Preemption(f"preemption: {message}", chosen, victims)


def _preemption_ineligibility_reason(pod: Pod, context: PreemptionContext) -> str:
    if pod.spec.get("preemptionPolicy") == "Never":
        return "not eligible due to preemptionPolicy=Never."
    info, rejection = context.nodes.get(pod.nominated), context.rejections.get(pod.nominated)
    if info is None or rejection is None or rejection.for_good:
        return ""
    waits = any(other.is_leaving and other.priority < pod.priority for other in info.pods)
    return "not eligible due to a terminating pod on the nominated node." if waits else ""


def _preemption_candidates(
    pod: Pod, context: PreemptionContext, random: Random
) -> tuple[dict[str, Victims], dict[str, Rejection]]:
    """Nodes where eviction helps, and the reasons against others. The search stops at a tenth of them, at least 100.

    Unavailable if a node needs no victims and there is no other candidate: an extender rejected the node, which
    kube-scheduler reports as an error.
    """
    names = [name for name in context.nodes if _eviction_may_help(context.rejections.get(name))]
    candidates: dict[str, Victims] = {}
    rejected: dict[str, Rejection] = {}
    errors: list[str] = []
    max_candidates = max(len(names) * _CANDIDATES_PERCENT // 100, _LEAST_CANDIDATES)
    first = random.randrange(len(names)) if len(names) > max_candidates else 0
    for name in (*names[first:], *names[:first]):
        victims = _select_victims(pod, context.nodes[name], context.judge)
        if isinstance(victims, Rejection):
            rejected[name] = victims
        elif victims:
            candidates[name] = Victims(tuple(victims))
        else:
            errors.append(f'expected at least one victim pod on node "{name}"')
        if len(candidates) >= max_candidates:
            break
    if errors and not candidates:
        raise Unavailable(errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")
    return candidates, rejected


def _eviction_may_help(rejection: Rejection | None) -> bool:
    return rejection is not None and not rejection.for_good


def _select_victims(pod: Pod, info: NodeInfo, judge: Judge) -> list[Pod] | Rejection:
    """The pods of lower priority to evict, the most important first; a Rejection if eviction does not help."""
    lesser = sorted((other for other in info.pods if other.priority < pod.priority), key=_pod_importance)
    if not lesser:
        return _NO_VICTIMS
    kept = info.without(*lesser)
    if rejection := judge(kept):
        return rejection
    victims = []
    for candidate in lesser:
        spared = kept.with_additional_pods(candidate)
        if judge(spared):
            victims.append(candidate)
        else:
            kept = spared
    return victims


def _pod_importance(pod: Pod) -> tuple[int, float]:
    """Sort key: higher priority first, then earlier start."""
    return -pod.priority, pod.started_s


def _filter_candidates_by_extenders(
    pod: Pod,
    candidates: dict[str, Victims],
    extenders: Sequence[ExtenderClient],
    nodes: Mapping[str, NodeInfo],
) -> dict[str, Victims]:
    """The candidates that remain after all extenders; each extender gets those that the previous one left."""
    for extender in extenders:
        if not extender.entry.preempt_verb or not extender.is_interested(pod):
            continue
        try:
            left = extender.preempt(pod, candidates, nodes)
        except Unavailable:
            if extender.entry.ignorable:
                continue
            raise
        candidates = _candidates_with_victims(left, ignorable=extender.entry.ignorable)
        if not candidates:
            break
    return candidates


def _candidates_with_victims(left: dict[str, Victims], *, ignorable: bool) -> dict[str, Victims]:
    for name, victims in left.items():
        if not victims.pods and not ignorable:
            raise Unavailable(f'expected at least one victim pod on node "{name}"')
    return {name: victims for name, victims in left.items() if victims.pods}


def _victims_cost(victims: Victims) -> tuple[int, int, int, int, float]:
    """Sort key of a node: budget violations, highest priority, sum of priorities, number of pods, latest start."""
    highest = max(pod.priority for pod in victims.pods)
    oldest_s = min(pod.started_s for pod in victims.pods if pod.priority == highest)
    total = sum(pod.priority + 2**31 for pod in victims.pods)
    return victims.budget_violations, victims.pods[0].priority, total, len(victims.pods), -oldest_s


UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"

_LEAST_SAMPLE: Final = 100
_EXTENDER_SCALE: Final = 10
"""Scores of extenders range from 0 to 10, those of plugins from 0 to 100. Neither is clamped here."""


class SchedulerRules(NamedTuple):
    """Configuration of all attempts. `percent` is percentageOfNodesToScore; 0 depends on the size of the cluster."""

    plugins: SimulatedFilterPlugins
    extenders: Sequence[ExtenderClient]
    random: Random
    percent: int = 0


class SchedulerSnapshot(NamedTuple):
    """The cluster as seen by one attempt.

    `nominated` are the pods with a nominated node; `first` is the index of the node where the search begins.
    """

    nodes: Mapping[str, NodeInfo]
    nominated: Sequence[Pod] = ()
    first: int = 0


class SchedulingResult(NamedTuple):
    """A node; or the reason and message of the pod's condition, with the result of preemption.

    `rejectors` names the plugins that rejected nodes, `nominated` is the new nominated node (empty clears it, None
    leaves it), `examined_nodes` is the number of nodes that were tried.
    """

    node: str | None
    reason: str = ""
    message: str = ""
    rejectors: frozenset[str] = frozenset()
    nominated: str | None = ""
    victims: tuple[Pod, ...] = ()
    examined_nodes: int = 0


class _NodeSearch(NamedTuple):
    feasible: list[NodeInfo]
    rejections: dict[str, Rejection]
    examined_nodes: int
    extenders_rejected: bool = False
    error: str = ""

    @property
    def rejectors(self) -> frozenset[str]:
        by_plugins = {rejection.plugin for rejection in self.rejections.values() if rejection.plugin}
        return frozenset(by_plugins | ({scheduler_plugins.EXTENDER} if self.extenders_rejected else set()))


def select_node_for_pod(pod: Pod, snapshot: SchedulerSnapshot, rules: SchedulerRules) -> SchedulingResult:
    """Select a node, or report why there is none. The caller binds and evicts."""
    if not snapshot.nodes:
        return SchedulingResult(None, UNSCHEDULABLE, scheduler_plugins.NO_NODES)
    if (nominated := _nominated_node(pod, snapshot, rules)) is not None:
        return SchedulingResult(nominated)
    search = _find_feasible_nodes(pod, snapshot, rules)
    if search.error:
        return SchedulingResult(None, SCHEDULER_ERROR, search.error, examined_nodes=search.examined_nodes)
    if search.feasible:
        return SchedulingResult(_best_node(pod, search.feasible, rules), examined_nodes=search.examined_nodes)
    return _preempt(pod, snapshot, rules, search)


def feasible_nodes_to_find(nodes: int, percent: int = 0) -> int:
    """Number of feasible nodes to find: all up to 100; then 50 % minus 1 % for each 125 nodes, at least 5 %."""
    if nodes < _LEAST_SAMPLE:
        return nodes
    share = percent or max(50 - nodes // 125, 5)
    return max(nodes * share // 100, _LEAST_SAMPLE)


def _preempt(
    pod: Pod, snapshot: SchedulerSnapshot, rules: SchedulerRules, search: _NodeSearch
) -> SchedulingResult:
    def judge(info: NodeInfo) -> Rejection | None:
        return scheduler_plugins.judge(rules.plugins, pod, _add_nominated_pods(pod, info, snapshot))

    seen = PreemptionContext(snapshot.nodes, search.rejections, judge)
    tried = attempt(pod, seen, rules.extenders, rules.random)
    message = scheduler_plugins.text(
        len(snapshot.nodes), search.rejections.values(), preemption=tried.message
    )
    return SchedulingResult(
        None, UNSCHEDULABLE, message, search.rejectors, tried.nominated, tried.victims, search.examined_nodes
    )


def _nominated_node(pod: Pod, snapshot: SchedulerSnapshot, rules: SchedulerRules) -> str | None:
    """The pod's nominated node, if it is feasible; it is tried before all others."""
    waited_for = snapshot.nodes.get(pod.nominated)
    if waited_for is None:
        return None
    try:
        feasible = _filter_by_plugins(pod, [waited_for], snapshot, rules, {})
        left = _filter_by_extenders(pod, feasible, rules.extenders, {})
    except Unavailable:
        return None
    return left[0].name if left else None


def _find_feasible_nodes(pod: Pod, snapshot: SchedulerSnapshot, rules: SchedulerRules) -> _NodeSearch:
    """Find the nodes that all plugins and extenders accept."""
    infos = list(snapshot.nodes.values())
    rotated = (*infos[snapshot.first :], *infos[: snapshot.first])
    rejections: dict[str, Rejection] = {}
    feasible = _filter_by_plugins(pod, rotated, snapshot, rules, rejections)
    examined_nodes = len(feasible) + len(rejections)
    try:
        left = _filter_by_extenders(pod, feasible, rules.extenders, rejections)
    except Unavailable as error:
        return _NodeSearch([], rejections, examined_nodes, error=str(error))
    return _NodeSearch(left, rejections, examined_nodes, extenders_rejected=len(left) != len(feasible))


def _filter_by_plugins(
    pod: Pod,
    infos: Sequence[NodeInfo],
    snapshot: SchedulerSnapshot,
    rules: SchedulerRules,
    rejections: dict[str, Rejection],
) -> list[NodeInfo]:
    """Filter nodes until the sample is full; adds to `rejections`."""
    enough = feasible_nodes_to_find(len(infos), rules.percent)
    feasible: list[NodeInfo] = []
    for info in infos:
        if rejection := scheduler_plugins.judge(rules.plugins, pod, _add_nominated_pods(pod, info, snapshot)):
            rejections[info.name] = rejection
        else:
            feasible.append(info)
        if len(feasible) >= enough:
            break
    return feasible


def _add_nominated_pods(pod: Pod, info: NodeInfo, snapshot: SchedulerSnapshot) -> NodeInfo:
    """The node with the pods of at least this priority that are nominated to it."""
    coming = [
        nominated
        for nominated in snapshot.nominated
        if nominated.nominated == info.name
        and nominated.priority >= pod.priority
        and nominated.key != pod.key
    ]
    return info.with_additional_pods(*coming) if coming else info


def _filter_by_extenders(
    pod: Pod, feasible: list[NodeInfo], extenders: Iterable[ExtenderClient], rejections: dict[str, Rejection]
) -> list[NodeInfo]:
    """The nodes that remain after all extenders; each gets those that the previous one left. Adds to `rejections`."""
    for extender in extenders:
        if not feasible:
            break
        if not extender.is_interested(pod):
            continue
        try:
            left = extender.filter(pod, feasible)
        except Unavailable:
            if extender.entry.ignorable:
                continue
            raise
        failed = {name: Rejection((text,)) for name, text in left.failed.items()}
        for_good = {name: Rejection((text,), for_good=True) for name, text in left.failed_for_good.items()}
        rejections |= failed | for_good
        feasible = left.nodes
    return feasible


def _best_node(pod: Pod, feasible: Sequence[NodeInfo], rules: SchedulerRules) -> str:
    """The node with the highest score; a single node is not scored.

    As in kube-scheduler, a random one wins among equals with extender scores, else the first.
    """
    if len(feasible) == 1:
        return feasible[0].name
    from_extenders = _weighted_extender_scores(pod, feasible, rules.extenders)

    def rank(scored: tuple[NodeInfo, int]) -> tuple[int, float]:
        name, own = scored[0].name, scored[1]
        chance = rules.random.random() if name in from_extenders else 0.0
        return own + from_extenders.get(name, 0), chance

    pairs = zip(feasible, scheduler_plugins.total_scores(pod, feasible), strict=True)
    return max(pairs, key=rank)[0].name


def _weighted_extender_scores(
    pod: Pod, feasible: Sequence[NodeInfo], extenders: Iterable[ExtenderClient]
) -> dict[str, int]:
    """Weighted extender scores by node. Extenders are called concurrently; a failed one contributes nothing."""
    interested = [extender for extender in extenders if extender.is_interested(pod)]
    totals: dict[str, int] = {}
    if not interested:
        return totals
    for extender, scores in zip(
        interested, _request_scores_concurrently(pod, feasible, interested), strict=True
    ):
        for name, score in scores:
            added = score * extender.entry.weight * _EXTENDER_SCALE
            totals[name] = totals.get(name, 0) + added
    return totals


def _request_scores_concurrently(
    pod: Pod, feasible: Sequence[NodeInfo], interested: Sequence[ExtenderClient]
) -> list[list[tuple[str, int]]]:
    """Call the extenders concurrently; a single one is called without a thread."""
    if len(interested) == 1:
        return [_request_scores(pod, feasible, interested[0])]
    with ThreadPoolExecutor(len(interested)) as pool:
        return list(pool.map(lambda extender: _request_scores(pod, feasible, extender), interested))


def _request_scores(
    pod: Pod, feasible: Sequence[NodeInfo], extender: ExtenderClient
) -> list[tuple[str, int]]:
    try:
        return extender.prioritize(pod, feasible)
    except Unavailable:
        return []
