"""Whom to evict for a pod that fits nowhere.

Sources: kubernetes v1.36.3 pkg/scheduler/framework/preemption/preemption.go and
plugins/defaultpreemption/default_preemption.go. Disruption budgets are not modelled: nobody's is violated
unless an extender says so.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from nodewise.errors import Unavailable
from nodewise.simulate import unschedulable_message
from nodewise.simulate.extender_client import Extender
from nodewise.simulate.extender_wire import Victims
from nodewise.simulate.node_info import NodeInfo
from nodewise.simulate.scheduler_objects import Pod
from nodewise.simulate.unschedulable_message import Rejection, Rejections

Judge = Callable[[NodeInfo], Rejection | None]
"""What the plugins say of the pod on a node in some state."""

_CLAIMS: Final = "no new claims to deallocate"
"""What the plugin DynamicResources, which comes first, says of every pod without claims."""

_NO_HELP: Final = "Preemption is not helpful for scheduling"
_NO_VICTIMS: Final = Rejection(("No preemption victims found for incoming pod",), for_good=True)
_LEAST_CANDIDATES: Final = 100
_CANDIDATES_PERCENT: Final = 10


class Preemption(NamedTuple):
    """What came of it: a node and its victims, or the words to add to the pod's message.

    `nominated` is the node that the pod waits for from now on; None leaves it as it was.
    """

    message: str = ""
    nominated: str | None = None
    victims: tuple[Pod, ...] = ()


class Situation(NamedTuple):
    """What preemption looks at: all nodes, and what became of each in the attempt that failed."""

    nodes: Mapping[str, NodeInfo]
    rejections: Rejections
    judge: Judge


def attempt(pod: Pod, seen: Situation, extenders: Sequence[Extender], random: Random) -> Preemption:
    """Looks for the node where the least is lost. Nothing is evicted here."""
    if why := _not_eligible(pod, seen):
        return Preemption(f"{_CLAIMS}, preemption: {why}")
    try:
        candidates, refused = _candidates(pod, seen, random)
        if not candidates:
            message = unschedulable_message.text(len(seen.nodes), refused.values(), absent=_NO_HELP)
            return Preemption(f"{_CLAIMS}, preemption: {message}", nominated="")
        candidates = _spared(pod, candidates, extenders, seen.nodes)
    except Unavailable as error:
        return Preemption(f"preemption: {error}")
    if not candidates:
        return Preemption(f"{_CLAIMS}, preemption: no candidate node for preemption")
    chosen = min(candidates, key=lambda name: _loss(candidates[name]))
    return Preemption(nominated=chosen, victims=candidates[chosen].pods)


def _not_eligible(pod: Pod, seen: Situation) -> str:
    if pod.spec.get("preemptionPolicy") == "Never":
        return "not eligible due to preemptionPolicy=Never."
    info, rejection = seen.nodes.get(pod.nominated), seen.rejections.get(pod.nominated)
    if info is None or rejection is None or rejection.for_good:
        return ""
    waits = any(other.is_leaving and other.priority < pod.priority for other in info.pods)
    return "not eligible due to a terminating pod on the nominated node." if waits else ""


def _candidates(pod: Pod, seen: Situation, random: Random) -> tuple[dict[str, Victims], dict[str, Rejection]]:
    """Nodes where evicting helps, and why it does not on others. Enough are enough: a tenth, at least 100.

    Unavailable where a node needs no victims: an extender rejected it, and kube-scheduler cannot make sense of
    that unless there is another candidate.
    """
    names = [name for name in seen.nodes if _may_help(seen.rejections.get(name))]
    candidates: dict[str, Victims] = {}
    refused: dict[str, Rejection] = {}
    puzzling: list[str] = []
    enough = max(len(names) * _CANDIDATES_PERCENT // 100, _LEAST_CANDIDATES)
    first = random.randrange(len(names)) if len(names) > enough else 0
    for name in (*names[first:], *names[:first]):
        victims = _victims(pod, seen.nodes[name], seen.judge)
        if isinstance(victims, Rejection):
            refused[name] = victims
        elif victims:
            candidates[name] = Victims(tuple(victims))
        else:
            puzzling.append(f'expected at least one victim pod on node "{name}"')
        if len(candidates) >= enough:
            break
    if puzzling and not candidates:
        raise Unavailable(puzzling[0] if len(puzzling) == 1 else f"[{', '.join(puzzling)}]")
    return candidates, refused


def _may_help(rejection: Rejection | None) -> bool:
    return rejection is not None and not rejection.for_good


def _victims(pod: Pod, info: NodeInfo, judge: Judge) -> list[Pod] | Rejection:
    """The pods of lesser priority that have to go, the most important first; why not, where it does not help."""
    lesser = sorted((other for other in info.pods if other.priority < pod.priority), key=_importance)
    if not lesser:
        return _NO_VICTIMS
    kept = info.without(*lesser)
    if rejection := judge(kept):
        return rejection
    victims = []
    for candidate in lesser:
        spared = kept.adding(candidate)
        if judge(spared):
            victims.append(candidate)
        else:
            kept = spared
    return victims


def _importance(pod: Pod) -> tuple[int, float]:
    """Sorts the more important pod first: of higher priority, then the older one."""
    return -pod.priority, pod.started_s


def _spared(
    pod: Pod,
    candidates: dict[str, Victims],
    extenders: Sequence[Extender],
    nodes: Mapping[str, NodeInfo],
) -> dict[str, Victims]:
    """The candidates that the extenders leave, each asked about what those before it left."""
    for extender in extenders:
        if not extender.entry.preempt_verb or not extender.is_interested(pod):
            continue
        try:
            left = extender.preempt(pod, candidates, nodes)
        except Unavailable:
            if extender.entry.ignorable:
                continue
            raise
        candidates = _with_victims(left, ignorable=extender.entry.ignorable)
        if not candidates:
            break
    return candidates


def _with_victims(left: dict[str, Victims], *, ignorable: bool) -> dict[str, Victims]:
    for name, victims in left.items():
        if not victims.pods and not ignorable:
            raise Unavailable(f'expected at least one victim pod on node "{name}"')
    return {name: victims for name, victims in left.items() if victims.pods}


def _loss(victims: Victims) -> tuple[int, int, int, int, float]:
    """Sorts the node first where the least is lost: budgets, highest priority, sum, number, oldest work."""
    highest = max(pod.priority for pod in victims.pods)
    oldest_s = min(pod.started_s for pod in victims.pods if pod.priority == highest)
    total = sum(pod.priority + 2**31 for pod in victims.pods)
    return victims.budget_violations, victims.pods[0].priority, total, len(victims.pods), -oldest_s
