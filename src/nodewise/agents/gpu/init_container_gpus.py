"""The GPUs of init containers, which use those of the containers that run after them.

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

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.agents.gpu import extended_resource_amounts
from nodewise.agents.gpu.allocation_record import ContainerRequest
from nodewise.agents.gpu.gpu_node_labels import LONGEST_NAME
from nodewise.agents.gpu.gpu_rejection_reasons import LATER_CONTAINERS_REMEDY, InvalidDemand, RejectionKind
from nodewise.base.errors import truncate


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
