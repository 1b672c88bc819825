"""Preemption: which pods to evict for a pod that fits nowhere.

Sources: kubernetes v1.37.2 pkg/scheduler/framework/preemption/preemption.go and
plugins/defaultpreemption/default_preemption.go. Disruption budgets are not modelled: none is
violated unless an extender reports violations.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from nodewise.base.errors import Unavailable
from nodewise.scheduling_model import scheduler_plugins
from nodewise.scheduling_model.extender_client import ExtenderClient
from nodewise.scheduling_model.extender_messages import Victims
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo
from nodewise.scheduling_model.parsed_nodes_and_pods import Pod
from nodewise.scheduling_model.scheduler_plugins import Rejection, Rejections

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
