"""One attempt to place one pod: a function of the pod, of the cluster as it is, and of what extenders answer.

    plugins -> a sample of the nodes that pass -> extenders, one after the other -> scores -> the best node
                                                     none is left -> preemption -> the words of the outcome

Source: kubernetes v1.36.3 pkg/scheduler/schedule_one.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Final, NamedTuple

from nodewise.errors import Unavailable
from nodewise.simulate import filter_plugins, preemption, score_plugins, unschedulable_message
from nodewise.simulate.extender_client import Extender
from nodewise.simulate.filter_plugins import Plugins
from nodewise.simulate.node_info import NodeInfo
from nodewise.simulate.scheduler_objects import Pod
from nodewise.simulate.unschedulable_message import Rejection

UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULER_ERROR: Final = "SchedulerError"

_LEAST_SAMPLE: Final = 100
_EXTENDER_SCALE: Final = 10
"""An extender's scores go from 0 to 10, a plugin's from 0 to 100. Neither is clamped to that here."""


class Rules(NamedTuple):
    """What holds for every attempt. `percent` is percentageOfNodesToScore; 0 lets the size of the cluster say."""

    plugins: Plugins
    extenders: Sequence[Extender]
    random: Random
    percent: int = 0


class ClusterState(NamedTuple):
    """The cluster as an attempt sees it.

    `nominated` are the pods that wait for room which others make for them; `first` is the number of the node
    where the search begins.
    """

    nodes: Mapping[str, NodeInfo]
    nominated: Sequence[Pod] = ()
    first: int = 0


class Decision(NamedTuple):
    """A node; or the reason and message of the pod's condition, and what else follows.

    `rejectors` names the plugins that stood against it, `nominated` is the node that the pod waits for (empty
    clears it, None leaves it), `looked_at` is how many nodes were looked at.
    """

    node: str | None
    reason: str = ""
    message: str = ""
    rejectors: frozenset[str] = frozenset()
    nominated: str | None = ""
    victims: tuple[Pod, ...] = ()
    looked_at: int = 0


class _Found(NamedTuple):
    feasible: list[NodeInfo]
    rejections: dict[str, Rejection]
    looked_at: int
    extenders_rejected: bool = False
    error: str = ""

    @property
    def rejectors(self) -> frozenset[str]:
        by_plugins = {rejection.plugin for rejection in self.rejections.values() if rejection.plugin}
        return frozenset(by_plugins | ({filter_plugins.EXTENDER} if self.extenders_rejected else set()))


def decide(pod: Pod, cluster_state: ClusterState, rules: Rules) -> Decision:
    """Where a pod goes, or why nowhere. Nothing is bound or evicted here."""
    if not cluster_state.nodes:
        return Decision(None, UNSCHEDULABLE, unschedulable_message.NO_NODES)
    if (alone := _nominated_node(pod, cluster_state, rules)) is not None:
        return Decision(alone)
    search = _find(pod, cluster_state, rules)
    if search.error:
        return Decision(None, SCHEDULER_ERROR, search.error, looked_at=search.looked_at)
    if search.feasible:
        return Decision(_best(pod, search.feasible, rules), looked_at=search.looked_at)
    return _nowhere(pod, cluster_state, rules, search)


def sample_size(nodes: int, percent: int = 0) -> int:
    """How many feasible nodes are enough: all up to 100; 50 % less a percent for each 125 nodes, at least 5 %."""
    if nodes < _LEAST_SAMPLE:
        return nodes
    share = percent or max(50 - nodes // 125, 5)
    return max(nodes * share // 100, _LEAST_SAMPLE)


def _nowhere(pod: Pod, cluster_state: ClusterState, rules: Rules, search: _Found) -> Decision:
    def judge(info: NodeInfo) -> Rejection | None:
        return filter_plugins.judge(rules.plugins, pod, _with_nominated(pod, info, cluster_state))

    seen = preemption.Situation(cluster_state.nodes, search.rejections, judge)
    tried = preemption.attempt(pod, seen, rules.extenders, rules.random)
    message = unschedulable_message.text(
        len(cluster_state.nodes), search.rejections.values(), preemption=tried.message
    )
    return Decision(
        None, UNSCHEDULABLE, message, search.rejectors, tried.nominated, tried.victims, search.looked_at
    )


def _nominated_node(pod: Pod, cluster_state: ClusterState, rules: Rules) -> str | None:
    """The node that others left for this pod, if everybody passes it; it is tried before all others."""
    waited_for = cluster_state.nodes.get(pod.nominated)
    if waited_for is None:
        return None
    try:
        feasible = _pass_plugins(pod, [waited_for], cluster_state, rules, {})
        left = _pass_extenders(pod, feasible, rules.extenders, {})
    except Unavailable:
        return None
    return left[0].name if left else None


def _find(pod: Pod, cluster_state: ClusterState, rules: Rules) -> _Found:
    """The nodes that everybody passes."""
    infos = list(cluster_state.nodes.values())
    turned = (*infos[cluster_state.first :], *infos[: cluster_state.first])
    rejections: dict[str, Rejection] = {}
    feasible = _pass_plugins(pod, turned, cluster_state, rules, rejections)
    looked_at = len(feasible) + len(rejections)
    try:
        left = _pass_extenders(pod, feasible, rules.extenders, rejections)
    except Unavailable as error:
        return _Found([], rejections, looked_at, error=str(error))
    return _Found(left, rejections, looked_at, extenders_rejected=len(left) != len(feasible))


def _pass_plugins(
    pod: Pod,
    infos: Sequence[NodeInfo],
    cluster_state: ClusterState,
    rules: Rules,
    rejections: dict[str, Rejection],
) -> list[NodeInfo]:
    """Looks until the sample is full; adds to the rejections."""
    enough = sample_size(len(infos), rules.percent)
    feasible: list[NodeInfo] = []
    for info in infos:
        if rejection := filter_plugins.judge(rules.plugins, pod, _with_nominated(pod, info, cluster_state)):
            rejections[info.name] = rejection
        else:
            feasible.append(info)
        if len(feasible) >= enough:
            break
    return feasible


def _with_nominated(pod: Pod, info: NodeInfo, cluster_state: ClusterState) -> NodeInfo:
    """Pods of at least this priority that wait for the node count as if they were there."""
    coming = [
        nominated
        for nominated in cluster_state.nominated
        if nominated.nominated == info.name
        and nominated.priority >= pod.priority
        and nominated.key != pod.key
    ]
    return info.adding(*coming) if coming else info


def _pass_extenders(
    pod: Pod, feasible: list[NodeInfo], extenders: Iterable[Extender], rejections: dict[str, Rejection]
) -> list[NodeInfo]:
    """What is left, each extender asked about what those before it left; adds to the rejections."""
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


def _best(pod: Pod, feasible: Sequence[NodeInfo], rules: Rules) -> str:
    """The node of the highest score. One that is alone is not scored.

    Among equals that an extender scored chance decides, among others the first: as upstream.
    """
    if len(feasible) == 1:
        return feasible[0].name
    from_extenders = _extenders_scores(pod, feasible, rules.extenders)

    def rank(scored: tuple[NodeInfo, int]) -> tuple[int, float]:
        name, own = scored[0].name, scored[1]
        chance = rules.random.random() if name in from_extenders else 0.0
        return own + from_extenders.get(name, 0), chance

    pairs = zip(feasible, score_plugins.of(pod, feasible), strict=True)
    return max(pairs, key=rank)[0].name


def _extenders_scores(
    pod: Pod, feasible: Sequence[NodeInfo], extenders: Iterable[Extender]
) -> dict[str, int]:
    """What the extenders add to each node, all asked at once; one that fails adds nothing."""
    interested = [extender for extender in extenders if extender.is_interested(pod)]
    totals: dict[str, int] = {}
    if not interested:
        return totals
    for extender, answer in zip(interested, _answers(pod, feasible, interested), strict=True):
        for name, score in answer:
            added = score * extender.entry.weight * _EXTENDER_SCALE
            totals[name] = totals.get(name, 0) + added
    return totals


def _answers(
    pod: Pod, feasible: Sequence[NodeInfo], interested: Sequence[Extender]
) -> list[list[tuple[str, int]]]:
    """One that is alone needs no thread of its own."""
    if len(interested) == 1:
        return [_scores(pod, feasible, interested[0])]
    with ThreadPoolExecutor(len(interested)) as pool:
        return list(pool.map(lambda extender: _scores(pod, feasible, extender), interested))


def _scores(pod: Pod, feasible: Sequence[NodeInfo], extender: Extender) -> list[tuple[str, int]]:
    try:
        return extender.prioritize(pod, feasible)
    except Unavailable:
        return []
