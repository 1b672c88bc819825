"""The GPU requests of a pod, parsed once and then compared with all nodes at once.

A limit without a request counts as the request, as the API server defaults it; `decide` reads pods that did not pass
the API server. Sources: GPU Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go` and `docs/usage.md`.

A sidecar (an init container with `restartPolicy: Always`) runs until the pod ends. It holds GPUs like an ordinary
container and is one of `Demand.containers`. A plain init container ends before the next container starts. It uses GPUs
of the later containers: the ordinary ones, and sidecars that are listed after it. It needs `count` distinct GPUs, on
each of which the later containers together hold at least its amount of every resource. If one later container has
enough, it uses the first GPUs of this container, otherwise GPUs of all later ones, in the order in which these took
them. Nothing is charged or reserved for it: its GPUs follow from the request of the pod and the GPUs of the others.

The total of a pod is therefore that of Kubernetes. kube-scheduler counts the larger one of two amounts: the sum of
ordinary containers and sidecars, and the largest init container with the sidecars before it (KEP-753;
k8s.io/component-helpers `resource.PodRequests`). No init container exceeds the later containers here, so the sum is the
larger one. The kubelet offers the devices of an init container to the later containers first, and keeps those of a
sidecar (kubernetes `pkg/kubelet/cm/devicemanager/manager.go`, `devicesToReuse`). As in all requests, the remainder of a
division among GPUs does not count.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu import allocation_record, extended_resource_amounts, gpu_pod_fields, node_gpus
from nodewise.agents.gpu.allocation_record import ContainerRequest
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.gpu_node_labels import LONGEST_NAME
from nodewise.agents.gpu.gpu_pod_fields import (
    ALLOW,
    DENY,
    LINKED,
    MODELS,
    PLACEMENT,
    SAME_GPU,
    SINGLE_NUMA,
    GpuPod,
    annotation_bytes,
    cpu_milli,
    is_sidecar,
)
from nodewise.agents.gpu.gpu_rejection_reasons import LATER_CONTAINERS_REMEDY, InvalidDemand, RejectionKind
from nodewise.agents.gpu.options import PLACEMENTS, GpuOptions, Placement
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import shown, truncate
from nodewise.kube.pod_requests import RequestingContainer


class InitContainerDemand(msgspec.Struct, frozen=True):
    """The amounts that a plain init container needs of GPUs of later containers."""

    name: str
    count: int
    """The number of distinct GPUs, at least 1."""
    per_gpu: Mapping[str, int]
    """As in `ContainerDemand`, without amounts of 0."""
    later: tuple[int, ...]
    """Indices into `Demand.containers`, ascending: the containers with GPUs that run after it."""


def source_containers(init: InitContainerDemand, containers: Sequence[ContainerRequest]) -> tuple[int, ...]:
    """The containers whose GPUs it uses: the first later container that has enough, otherwise all later ones."""
    return next(((at,) for at in init.later if _has_enough(containers[at], init)), init.later)


def _has_enough(container: ContainerRequest, init: InitContainerDemand) -> bool:
    return container.count >= init.count and _holds_enough(container.per_gpu, init)


def invalid_demand(  # complexity: one branch for each refusal
    init: InitContainerDemand,
    containers: Sequence[ContainerRequest],
    same_gpu: Sequence[int] = (),
    one_container: str = "",
) -> InvalidDemand | None:
    """Why no node has GPUs for the init container; None if a node may have them.

    `same_gpu` are the indices of the containers that share a GPU. `one_container` is the annotation that requires all
    GPUs from one container; empty without such an annotation. With it, the result is None only if every node that
    the pod fits has GPUs for the init container.
    """
    later = [containers[at] for at in init.later]
    distinct = sum(container.count for container in later) - max(len({*same_gpu} & {*init.later}) - 1, 0)
    if init.count > distinct:
        return _exceeds_later(init, _gpus(init.count), str(distinct or "none"))
    for resource, amount in sorted(init.per_gpu.items()):
        amounts = [(container.count, container.per_gpu.get(resource, 0)) for container in later]
        on_one = sum(amount_of_one for _, amount_of_one in amounts)
        total = sum(count * amount_of_one for count, amount_of_one in amounts)
        name, text = truncate(resource, LONGEST_NAME), extended_resource_amounts.format_amount
        if amount > on_one:
            there = f"at most {text(on_one)}" if on_one else "none"
            return _exceeds_later(init, f"{text(amount)} {name} of a GPU", there)
        if init.count * amount > total:
            wanted = f"{text(init.count * amount)} {name} of {_gpus(init.count)}"
            return _exceeds_later(init, wanted, text(total))
    if one_container and not any(_has_enough(container, init) for container in later):
        what = f"{_gpus(init.count)} of one container, because of {one_container}"
        return _exceeds_later(init, what, "too few each, or too small ones")
    return None


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _exceeds_later(init: InitContainerDemand, wanted: str, there: str) -> InvalidDemand:
    name = truncate(init.name, LONGEST_NAME)
    words = f"init container {name} asks for {wanted}; the containers after it have {there}"
    return InvalidDemand(RejectionKind.BAD_ARGS, words, LATER_CONTAINERS_REMEDY)


def candidates_with_enough(
    init_containers: Sequence[InitContainerDemand],
    containers: Sequence[ContainerRequest],
    taken: Mapping[int, NDArray[np.bool_]],
) -> list[NDArray[np.bool_]]:
    """By init container (M): the candidates on which the later containers have enough GPUs for it.

    `taken` are the GPUs (C, M) that the containers with GPUs take, by index. Where the mask is true, `reused_gpus`
    finds GPUs.
    """
    resources = frozenset(resource for init in init_containers for resource in init.per_gpu)
    shape = next(iter(taken.values())).shape
    held = {resource: np.zeros(shape, np.int64) for resource in resources}
    added: set[int] = set()
    masks = []
    # From the last to the first, the later containers of one are among those of the next: each is added once.
    for init in reversed(init_containers):
        for at in init.later:
            if at not in added:
                for resource in resources & containers[at].per_gpu.keys():
                    held[resource] += taken[at] * np.int64(containers[at].per_gpu[resource])
        added.update(init.later)
        enough = np.ones(shape, bool)
        for resource, amount in init.per_gpu.items():
            enough &= held[resource] >= amount
        masks.append(enough.sum(axis=0) >= init.count)
    return masks[::-1]


def reused_gpus(
    init_containers: Sequence[InitContainerDemand],
    containers: Sequence[ContainerRequest],
    gpus: Sequence[Sequence[str]],
) -> list[tuple[str, ...]]:
    """The GPUs of each init container, among those of the containers (`gpus`); () if they do not suffice.

    `init_containers` are all of the pod, in their order.
    """
    if len(gpus) != len(containers):  # a reservation that was written for another resource profile
        return [() for _ in init_containers]
    held: dict[str, Counter[str]] = {}
    added: set[int] = set()
    chosen = []
    for init in reversed(init_containers):  # as in `candidates_with_enough`
        for at in init.later:
            for gpu in gpus[at] if at not in added else ():
                held.setdefault(gpu, Counter()).update(containers[at].per_gpu)
        added.update(init.later)
        sources = source_containers(init, containers)
        in_order = dict.fromkeys(gpu for at in sources for gpu in gpus[at])
        suitable = [gpu for gpu in in_order if _holds_enough(held[gpu], init)]
        chosen.append(tuple(suitable[: init.count]) if len(suitable) >= init.count else ())
    return chosen[::-1]


def _holds_enough(amounts: Mapping[str, int], init: InitContainerDemand) -> bool:
    return all(amounts.get(resource, 0) >= amount for resource, amount in init.per_gpu.items())


def reused_subdevices(
    init: InitContainerDemand,
    containers: Sequence[ContainerRequest],
    subdevices: Sequence[Mapping[str, Sequence[str]]],
    resource: str,
) -> Mapping[str, Sequence[str]]:
    """By GPU, the sub-devices of the init container among those of the containers (`subdevices`, by container and GPU).

    `resource` counts sub-devices.
    """
    wanted = init.per_gpu.get(resource, 0)
    by_gpu: dict[str, list[str]] = {}
    for at in source_containers(init, containers):
        for gpu, names in subdevices[at].items():
            by_gpu.setdefault(gpu, []).extend(names)
    return {gpu: names[:wanted] for gpu, names in by_gpu.items()}


_MOST_NAMES: Final = 1024
"""Names in one annotation."""
MOST_RESOURCES: Final = node_gpus.MOST_RESOURCES
"""Different GPU resources in one pod. No node has more, and each resource is compared on all nodes."""


class ContainerDemand(msgspec.Struct, frozen=True):
    """The amounts that one container requests of each of its GPUs."""

    name: str
    count: int = 0
    """The number of distinct GPUs; 0 for none. It may be more than any node has."""
    per_gpu: Mapping[str, int] = extended_resource_amounts.NONE
    """By full resource name, an equal share of the request, rounded down, so it may be 0; the counting resource is 1.

    Resources that are not requested are omitted.
    """

    def __hash__(self) -> int:
        """The hash of a text instead of the number (`Amounts`)."""
        return hash((self.name, str(self.count), self.per_gpu))


class Demand(NamedTuple):
    """The GPU demand of a pod. Pods with equal demands fit the same nodes."""

    containers: tuple[ContainerDemand, ...] = ()
    """All containers in the order of the pod, then the sidecars with GPUs in theirs; () if there is a problem."""
    init_containers: tuple[InitContainerDemand, ...] = ()
    """The plain init containers with GPUs, in the order of the pod."""
    same_gpu: tuple[int, ...] = ()
    """Indices of containers that share one GPU; () or at least two."""
    linked: bool = False
    """GPUs come in pairs with an Xe Link; counts are even."""
    single_numa: bool = False
    """The GPUs of each container must be in one NUMA node."""
    allow: frozenset[str] | None = None
    """Names of the only allowed GPUs; None if all are allowed."""
    deny: frozenset[str] = frozenset()
    """Names of GPUs that are not allowed."""
    models: frozenset[str] | None = None
    """The only allowed models; None if all are allowed."""
    placement: Placement | None = None
    """The placement of the pod; None if the setting applies."""
    problem: InvalidDemand | None = None
    """Why the pod fits nowhere."""
    refused: frozenset[str] = frozenset()
    """With a problem, the resources that the pod requests, at most MOST_RESOURCES of them."""
    cpu_milli: int = 0
    """The CPU request of all containers, for typical pods."""

    @property
    def wants_gpus(self) -> bool:
        """Whether the pod concerns the agent. A pod with an invalid demand does."""
        return self.problem is not None or any(container.count for container in self.containers)


NOTHING: Final = Demand()
"""The demand of a pod that requests no GPU."""


class _Refused(Exception):
    def __init__(self, reason: InvalidDemand) -> None:
        self.reason = reason


def _refuse(
    words: str, hint: str, kind: RejectionKind = RejectionKind.BAD_ARGS, *, at_once: bool = True
) -> NoReturn:
    raise _Refused(InvalidDemand(kind, words, hint, at_once))


def parse_demand(pod: GpuPod, profile: ResourceProfile, options: GpuOptions) -> Demand:
    """Parse the demand of a pod. An invalid one, or one that no node can serve, has a `problem`."""
    if not gpu_pod_fields.requests_gpu_resources(pod, profile):
        return NOTHING
    ordinary, init = pod.spec.containers or (), pod.spec.initContainers or ()
    every = (*ordinary, *init)
    try:
        requests = [_gpu_requests(container, profile) for container in every]
        demands = tuple(
            _container_demand(container.name, amounts, profile)
            for container, amounts in zip(every, requests, strict=True)
        )
        if not any(container.count for container in demands):
            _refuse_shares_without_gpu(every, requests, profile)
            return NOTHING
        wanted, reusing = _arrange_containers(demands[: len(ordinary)], init, demands[len(ordinary) :])
        _check_size(pod, wanted, reusing, profile)
        demand = _parse_demand_annotations(pod.metadata.annotations or {}, options)
        demand = demand._replace(
            containers=wanted,
            init_containers=reusing,
            same_gpu=_same_gpu_containers(pod, profile),
            cpu_milli=cpu_milli(pod),
        )
        _check_topology(demand)
    except _Refused as error:
        resources = {name for each in every for name in gpu_pod_fields.requested_gpu_resources(each, profile)}
        return Demand(problem=error.reason, refused=frozenset(sorted(resources)[:MOST_RESOURCES]))
    return demand


def _gpu_requests(container: RequestingContainer, profile: ResourceProfile) -> dict[str, int]:
    requests = {}
    for resource, value in sorted(gpu_pod_fields.requested_gpu_resources(container, profile).items()):
        try:
            requests[resource] = extended_resource_amounts.parse_amount(value)
        except ValueError:
            where = f"container {truncate(container.name, LONGEST_NAME)}: {truncate(resource, LONGEST_NAME)}"
            hint = f"{where}: {shown(value)}; expected {extended_resource_amounts.EXPECTED}"
            _refuse(f"{where} is no whole number", hint)
    return requests


def _container_demand(name: str, requests: Mapping[str, int], profile: ResourceProfile) -> ContainerDemand:
    positive = {resource: amount for resource, amount in requests.items() if amount}
    count = next((positive[resource] for resource in profile.counts if resource in positive), 0)
    if count:
        return ContainerDemand(name, count, extended_resource_amounts.divide_amounts(positive, count))
    return ContainerDemand(name)


def _arrange_containers(  # complexity: one branch for each kind of container
    ordinary: tuple[ContainerDemand, ...],
    init: Sequence[RequestingContainer],
    init_demands: Sequence[ContainerDemand],
) -> tuple[tuple[ContainerDemand, ...], tuple[InitContainerDemand, ...]]:
    """`Demand.containers` and `Demand.init_containers`. `init_demands` are the demands of `init`."""
    sidecars: list[ContainerDemand] = []
    reusing: list[tuple[ContainerDemand, int]] = []
    for container, demand in zip(init, init_demands, strict=True):
        if demand.count and is_sidecar(container):
            sidecars.append(demand)
        elif demand.count:
            reusing.append((demand, len(ordinary) + len(sidecars)))
    # checked before the loop below, whose time is the product of both numbers
    with_gpus, most = len(sidecars) + len(reusing), allocation_record.MOST_CONTAINERS
    if len(ordinary) + with_gpus > most:
        among = f", with {with_gpus} init containers that ask for GPUs" if with_gpus else ""
        total = len(ordinary) + with_gpus
        _refuse(
            f"the pod has {total} containers{among}; at most {most} where one asks for GPUs", "split the pod"
        )
    containers = (*ordinary, *sidecars)
    init_containers = []
    for demand, first_later_sidecar in reusing:
        # sidecars that are listed before it keep their GPUs while it runs
        earlier_sidecars = range(len(ordinary), first_later_sidecar)
        later = (at for at, other in enumerate(containers) if other.count and at not in earlier_sidecars)
        positive = Amounts({resource: amount for resource, amount in demand.per_gpu.items() if amount})
        init_containers.append(InitContainerDemand(demand.name, demand.count, positive, tuple(later)))
    return containers, tuple(init_containers)


def _refuse_shares_without_gpu(
    containers: Sequence[RequestingContainer], requests: Sequence[Mapping[str, int]], profile: ResourceProfile
) -> None:
    """Refuse a pod that requests shares of GPUs without a GPU, which would otherwise get nothing without a message."""
    for container, amounts in zip(containers, requests, strict=True):
        for resource, amount in sorted(amounts.items()):
            if amount and resource not in profile.monitoring:
                counts, name = " or ".join(profile.counts), truncate(container.name, LONGEST_NAME)
                _refuse(
                    f"container {name}: {truncate(resource, LONGEST_NAME)} without {counts}",
                    f"let the container ask for {counts} as well: the number of its GPUs",
                )


def _check_size(
    pod: GpuPod,
    wanted: Sequence[ContainerDemand],
    init: Sequence[InitContainerDemand],
    profile: ResourceProfile,
) -> None:
    """Limit the size of a demand, because each pod is compared with thousands of nodes, and refuse a pod that cannot be
    stored, or whose annotations would become too large for the API server with those that bind adds.

    A container that requests more GPUs than any node has costs nothing and is not refused here.
    """
    if sum(min(container.count, node_gpus.MOST_GPUS) for container in wanted) > allocation_record.MOST_GPUS:
        _refuse(
            f"the containers ask for more than {allocation_record.MOST_GPUS} GPUs altogether", "split the pod"
        )
    resources = len({resource for container in wanted for resource in container.per_gpu})
    if resources > MOST_RESOURCES:
        _refuse(
            f"the containers ask for {resources} resources of GPUs, more than the {MOST_RESOURCES} that nodes have",
            "ask for fewer resources",
        )
    size = gpu_pod_fields.gpu_field_bytes(pod)
    if size > gpu_pod_fields.MOST_BYTES:
        _refuse(
            f"the pod's containers, resources and annotations for GPUs take {size} bytes of memory;"
            f" at most {gpu_pod_fields.MOST_BYTES}",
            "ask for fewer containers, resources or names of GPUs",
        )
    size = annotation_bytes(pod.metadata)
    added = allocation_record.max_annotation_bytes(wanted, profile.subdevices, init)
    most = allocation_record.MOST_ANNOTATION_BYTES - added
    if size > most:
        _refuse(
            f"the pod's annotations have {size} bytes; at most {most}, so that its GPUs can be added",
            "remove annotations",
        )


def _parse_demand_annotations(  # complexity: one expression for each annotation
    annotations: Mapping[str, str], options: GpuOptions
) -> Demand:
    """The parts of the demand that come from annotations."""
    if LINKED in annotations and SAME_GPU in annotations:
        _refuse(f"{LINKED} and {SAME_GPU} exclude each other", "remove one of them")
    allow, deny = annotations.get(ALLOW), annotations.get(DENY)
    models, word = annotations.get(MODELS), annotations.get(PLACEMENT)
    demand = Demand(
        linked=LINKED in annotations,
        single_numa=SINGLE_NUMA in annotations,
        allow=_split_names(ALLOW, allow) if options.enable_allowlist and allow is not None else None,
        deny=_split_names(DENY, deny) if options.enable_denylist and deny is not None else frozenset(),
        models=frozenset(filter(None, map(str.strip, _split_names(MODELS, models)))) if models else None,
        placement=next((placement for placement in PLACEMENTS if placement == word), None),
    )
    if models is not None and not demand.models:
        hint = "name models between commas, as nodes have them"
        _refuse(f"{MODELS} names no model", hint, RejectionKind.MALFORMED)
    if word is not None and demand.placement is None:
        words = f"{PLACEMENT} is none of {', '.join(PLACEMENTS)}"
        _refuse(words, f"it is {shown(word)}", RejectionKind.MALFORMED)
    return demand


def _split_names(key: str, text: str) -> frozenset[str]:
    """Names between commas; blanks are part of a name."""
    if text.count(",") >= _MOST_NAMES:
        _refuse(f"{key} has more than {_MOST_NAMES} names", "name fewer", RejectionKind.MALFORMED)
    return frozenset(name for name in text.split(",") if len(name) <= LONGEST_NAME)


def _same_gpu_containers(  # complexity: one branch for each refusal
    pod: GpuPod, profile: ResourceProfile
) -> tuple[int, ...]:
    """Indices of the containers that must share a GPU, in the order of the annotation."""
    text = (pod.metadata.annotations or {}).get(SAME_GPU)
    if text is None:
        return ()
    containers = gpu_pod_fields.running_containers(pod, profile)
    names, at = text.split(","), {container.name: index for index, container in enumerate(containers)}
    if len(names) < 2 or len(set(names)) < len(names) or not at.keys() >= set(names):  # noqa: PLR2004
        _refuse(
            f"{SAME_GPU} names two or more of the pod's containers, each once, without blanks",
            f"it is {shown(text)}; a sidecar with GPUs can be named, another init container cannot",
            RejectionKind.MALFORMED,
            at_once=False,
        )
    group = tuple(at[name] for name in names)
    for container in (containers[index] for index in group):
        requests = _gpu_requests(container, profile)
        where = f"container {truncate(container.name, LONGEST_NAME)} of {SAME_GPU}"
        barred = sorted(requests.keys() & (profile.monitoring | {profile.subdevices}))
        if barred:
            _refuse(f"{where} asks for {barred[0]}", "leave it out", RejectionKind.CONFLICT, at_once=False)
        if _container_demand(container.name, requests, profile).count != 1:
            words = f"{where} does not ask for exactly one {' or '.join(profile.counts)}"
            _refuse(words, "let it ask for one", RejectionKind.CONFLICT, at_once=False)
    try:
        extended_resource_amounts.sum_amounts(_gpu_requests(containers[index], profile) for index in group)
    except OverflowError as error:
        words = f"{SAME_GPU}: the sum of {truncate(str(error), LONGEST_NAME)}"
        _refuse(words, "ask for less", RejectionKind.OVERFLOW, at_once=False)
    return group


def _check_topology(demand: Demand) -> None:
    """Refuse an odd number of linked GPUs, and init containers that no node has GPUs for."""
    containers: Sequence[ContainerRequest] = (*demand.containers, *demand.init_containers)
    for container in containers if demand.linked else ():
        if container.count % 2:
            _refuse(
                f"container {truncate(container.name, LONGEST_NAME)}: an odd number of GPUs with {LINKED}",
                "linked GPUs come in pairs: ask for an even number",
                at_once=False,
            )
    one_container = LINKED if demand.linked else SINGLE_NUMA if demand.single_numa else ""
    for init in demand.init_containers:
        reason = invalid_demand(init, demand.containers, demand.same_gpu, one_container)
        if reason is not None:
            raise _Refused(reason)
