"""A reference implementation of fitting one pod to one node, GPU by GPU (section 8 of the specification)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand

SUBDEVICES = "gpu.intel.com/tiles"


@dataclass
class ReferenceUsage:
    """The allocated amounts and sub-devices of a node, in the form that the fit needs."""

    amounts: Mapping[str, Mapping[str, int]]
    subdevices: Mapping[str, frozenset[int]]
    record_bytes: int = 0


@dataclass
class ReferencePlacement:
    """The placement of a pod: GPUs and linked sub-devices by container."""

    gpus: list[list[str]] = field(default_factory=list)
    links: list[list[int]] = field(default_factory=list)
    preferred: bool = False


class NodeDoesNotFit(Exception):
    """The pod does not fit the node."""


@dataclass
class ReferenceNode:
    """The state of a node while the containers of a pod are placed one by one."""

    gpus: NodeGpus
    demand: Demand
    balanced: str
    used: dict[str, Counter[str]]
    gone: dict[str, set[int]]
    """Sub-devices that cannot be linked, by GPU."""

    def capacity(self, gpu: str, resource: str) -> int:
        amounts = self.gpus.capacity.get(resource)
        return amounts[self.gpus.names.index(gpu)] if amounts else 0

    def order(self) -> list[str]:
        names = list(self.gpus.names)
        if self.balanced:
            return sorted(names, key=self.load)
        if self.gpus.preferred in names:
            at = names.index(self.gpus.preferred)
            names[0], names[at] = names[at], names[0]
        return names

    def load(self, gpu: str) -> int:
        """The used amount of the balanced resource. It is 0 if the GPU does not have the resource."""
        return self.used[gpu][self.balanced] if self.capacity(gpu, self.balanced) else 0

    def may_be_used(self, gpu: str) -> bool:
        demand = self.demand
        model = self.gpus.models[self.gpus.names.index(gpu)]
        return (
            gpu not in self.gpus.unusable
            and gpu not in demand.deny
            and (demand.allow is None or gpu in demand.allow)
            and (demand.models is None or model in demand.models)
        )

    def has(self, gpu: str, wanted: Mapping[str, int]) -> bool:
        return all(
            0 < self.capacity(gpu, name) >= self.used[gpu][name] + amount for name, amount in wanted.items()
        )

    def take(self, gpu: str, wanted: Mapping[str, int]) -> None:
        self.used[gpu].update(wanted)

    def is_open(self, gpu: str, subdevice: int) -> bool:
        count = self.capacity(gpu, SUBDEVICES)
        return subdevice not in self.gone[gpu] and (count == 0 or subdevice < count)


def fit(gpus: NodeGpus, usage: ReferenceUsage, demand: Demand, balanced: str = "") -> ReferencePlacement:
    """The placement of the pod. NodeDoesNotFit: there is none."""
    if not gpus.names or (demand.single_numa and gpus.numa_problem):
        raise NodeDoesNotFit
    node = begun(gpus, usage, demand, balanced)
    outcome = ReferencePlacement([[] for _ in demand.containers], [[] for _ in demand.containers])
    for numbers, wanted in steps(demand):
        pairs = taken(node, wanted)
        for number in numbers:
            outcome.gpus[number] = [gpu for gpu, _ in pairs]
            outcome.links[number] = [subdevice for _, subdevice in pairs if subdevice >= 0]
        first = pairs[:1] if demand.linked else pairs
        if not balanced and any(gpu == gpus.preferred for gpu, _ in first):
            outcome.preferred = True
    return outcome


def begun(gpus: NodeGpus, usage: ReferenceUsage, demand: Demand, balanced: str) -> ReferenceNode:
    used = {gpu: Counter(usage.amounts.get(gpu, {})) for gpu in gpus.names}
    gone = {
        gpu: set(usage.subdevices.get(gpu, ())) | gpus.subdevices_off.get(gpu, set()) for gpu in gpus.names
    }
    for gpu in gpus.names:
        without_name = max(0, used[gpu][SUBDEVICES] - len(usage.subdevices.get(gpu, ())))
        used[gpu][SUBDEVICES] = len(gone[gpu]) + without_name
    return ReferenceNode(gpus, demand, balanced, used, gone)


def steps(demand: Demand) -> Iterable[tuple[Sequence[int], ContainerDemand]]:
    if demand.same_gpu:
        total = Counter[str]()
        for number in demand.same_gpu:
            total.update(demand.containers[number].per_gpu)
        yield demand.same_gpu, ContainerDemand("group", 1, total)
    for number, container in enumerate(demand.containers):
        if container.count and number not in demand.same_gpu:
            yield [number], container


def taken(node: ReferenceNode, wanted: ContainerDemand) -> list[tuple[str, int]]:
    """GPUs, each with its linked sub-device or -1, of the first group with enough of them."""
    groups = [frozenset(node.gpus.names)]
    if node.demand.single_numa and node.gpus.numa:
        groups = [*node.gpus.numa]
    for group in groups:
        pairs = (linked if node.demand.linked else single)(node, wanted, group)
        if len(pairs) == wanted.count:
            for gpu, subdevice in pairs:
                node.take(gpu, wanted.per_gpu)
                node.gone[gpu].add(subdevice)
            return pairs
    raise NodeDoesNotFit


def able(node: ReferenceNode, wanted: ContainerDemand, group: frozenset[str]) -> list[str]:
    return [
        gpu
        for gpu in node.order()
        if gpu in group and node.may_be_used(gpu) and node.has(gpu, wanted.per_gpu)
    ]


def single(node: ReferenceNode, wanted: ContainerDemand, group: frozenset[str]) -> list[tuple[str, int]]:
    return [(gpu, -1) for gpu in able(node, wanted, group)[: wanted.count]]


def linked(node: ReferenceNode, wanted: ContainerDemand, group: frozenset[str]) -> list[tuple[str, int]]:
    left, pairs = able(node, wanted, group), list[tuple[str, int]]()
    while len(pairs) < wanted.count:
        pair = first_pair(node, left)
        if pair is None:
            break
        pairs += pair
        left = [gpu for gpu in left if gpu not in dict(pair)]
    return pairs


def first_pair(node: ReferenceNode, left: list[str]) -> list[tuple[str, int]] | None:
    for gpu in left:
        for link in sorted(node.gpus.links, key=lambda link: link.left_subdevice):
            is_one = link.left == gpu != link.right and link.right in left
            if (
                is_one
                and node.is_open(gpu, link.left_subdevice)
                and node.is_open(link.right, link.right_subdevice)
            ):
                return [(gpu, link.left_subdevice), (link.right, link.right_subdevice)]
    return None
