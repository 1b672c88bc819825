"""What is to be written of each node, out of what is known of it."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nodewise.annotator import allocation, fields, patches, usage
from nodewise.annotator.allocation import Allocation
from nodewise.annotator.fields import REQUESTED_MEMORY
from nodewise.annotator.options import Task
from nodewise.annotator.patches import Rules, Texts, Wanted
from nodewise.annotator.usage import Usage
from nodewise.statistics import capacity
from nodewise.statistics.capacity import Capacity


class NodePlan(NamedTuple):
    """What is known and wanted of one node."""

    name: str
    uid: str
    stands: Texts
    wanted: Wanted
    patch: Wanted
    """What of `wanted` is to be written, with the time; empty for nothing."""


class Plans(NamedTuple):
    """What one look at all nodes came to."""

    nodes: Sequence[NodePlan] = ()
    """Those that are ready."""
    not_ready: tuple[str, ...] = ()
    """They keep what they have, with its old time."""
    unmeasured: tuple[str, ...] = ()
    """Ready, but nobody knows what they use."""


class Known(NamedTuple):
    """What is known of all nodes, by name."""

    usage: Mapping[str, Usage] | None
    """None where it is not to be written."""
    allocation: Mapping[str, Allocation]
    now: float
    holds: bool = True
    """Whether whole statistics that stand and count are kept where only a part is known now, or samples of less than
    half a window: a query that timed out once must not turn a node that varies into one that never does."""


def plan(nodes: Iterable[Any], known: Known, task: Task, rules: Rules) -> Generator[None, None, Plans]:
    """What is to be written; yields between nodes."""
    plans: list[NodePlan] = []
    not_ready: list[str] = []
    unmeasured: list[str] = []
    for node in nodes:
        name = node.metadata.name
        if not fields.is_ready(node):
            not_ready.append(name)
        else:
            use = None if known.usage is None else known.usage.get(name, Usage())
            if use is not None and not use.is_known:
                unmeasured.append(name)
            plans.append(_node(node, _held(node, use, known, rules), known, task, rules))
        yield
    return Plans(plans, tuple(not_ready), tuple(unmeasured))


def _held(node: Any, use: Usage | None, known: Known, rules: Rules) -> Usage | None:
    """What counts of a measured use: nothing, where what stands is better."""
    stands_well = known.holds and patches.are_whole(fields.standing(node), known.now, rules)
    return Usage() if use is not None and not use.is_whole and stands_well else use


def _node(node: Any, use: Usage | None, known: Known, task: Task, rules: Rules) -> NodePlan:
    name, stands, whole = (
        node.metadata.name,
        fields.standing(node),
        capacity.read(node.status.allocatable, task.gpu),
    )
    asked = known.allocation.get(name, Allocation())
    wanted: dict[str, str | None] = {}
    if task.allocation:
        wanted |= allocation.texts(asked, whole)
    if use is None and any(key in stands for key in usage.KEYS):
        patch = patches.beside(stands, wanted, rules)  # whoever measures may have died
    elif use is not None and not use.is_known:
        patch = patches.unmeasured(stands, wanted, known.now, rules)
    else:
        wanted |= usage.texts(use, whole) if use is not None else {}
        patch = patches.patch(stands, wanted, _riding(asked, whole, task), known.now, rules)
    return NodePlan(name, node.metadata.uid, stands, wanted, patch)


def _riding(asked: Allocation, whole: Capacity, task: Task) -> Texts:
    """What is there for people, and is written only beside something else."""
    requested = {REQUESTED_MEMORY: str(asked.memory_bytes)} if task.allocation else {}
    return requested | dict(usage.riding(whole)) if task.usage else requested
