"""Nodes whose GPUs are devices of a DRA driver, which kube-scheduler allocates itself.

A pod requests such devices by an extended resource, which a DeviceClass names in `spec.extendedResourceName` or by its
implicit name (KEP-5004). kube-scheduler delegates a resource to DRA on the nodes that have no allocatable amount of it,
so one cluster, and even one node, may have both forms. The gpu agent leaves these nodes to kube-scheduler where they
have devices of the class, or may have: the pool is incomplete, or labels say that the node has GPUs. Source: Kubernetes
1.37 `pkg/scheduler/framework/plugins/noderesources/fit.go`, shouldDelegateResourceToDRA.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.agent import Details, NodeIndex
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base.errors import truncate
from nodewise.devices import resource_claims
from nodewise.devices.device_inventory import DeviceInventory, NodeDevices
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.resource_claims import DeviceClass
from nodewise.devices.resource_slices import EMPTY

Mask = NDArray[np.bool_]
_MOST_DRIVERS: Final = 32
"""The most different sets of drivers; nodes with others count as without."""
_LONGEST: Final = 100
"""The most characters of the drivers of a node."""
_STRIDE: Final = 64
"""Nodes between two yields."""


class DraNodes(NamedTuple):
    """Where kube-scheduler allocates the devices of a profile's resources."""

    by_resource: Mapping[str, Mask] = {}
    """By resource that a DeviceClass names, (N+1) by node number."""
    driver_codes: NDArray[np.int16] | None = None
    """(N+1), by node number: an index into `drivers`; None without devices."""
    drivers: tuple[str, ...] = ("",)
    """The drivers of a node's devices, such as `gpu.example.com, nic.example.com`; the first is empty."""

    def drivers_of(self, numbers: NDArray[np.intp]) -> NDArray[np.int16]:
        """By node number, the index into `drivers`."""
        return np.zeros(len(numbers), np.int16) if self.driver_codes is None else self.driver_codes[numbers]

    def left(self, resources: Iterable[str], numbers: NDArray[np.intp]) -> Mask:
        """By node number, whether a pod that requests these resources is left to kube-scheduler there."""
        left = np.zeros(len(numbers), np.bool_)
        for resource in resources:
            if resource in self.by_resource:
                left |= self.by_resource[resource][numbers]
        return left


NO_DRA_NODES: Final = DraNodes()


class DraDetails(NamedTuple):
    """Details of a fit, with the DRA drivers of the nodes that are left to kube-scheduler."""

    of_fit: Details | None
    left: Mask
    """By candidate, like the following."""
    driver_codes: NDArray[np.int16]
    drivers: tuple[str, ...]
    """Decisions share it."""

    @property
    def nbytes(self) -> int:
        fit_bytes = 0 if self.of_fit is None else self.of_fit.nbytes
        return fit_bytes + int(self.left.nbytes + self.driver_codes.nbytes)

    def text(self, candidate: int) -> str:
        if self.left[candidate]:
            driver = self.drivers[self.driver_codes[candidate]]
            return f"kube-scheduler allocates devices of {f'the DRA driver {driver}' if driver else 'a DRA driver'}"
        return "" if self.of_fit is None else self.of_fit.text(candidate)

    def distances(self) -> NDArray[np.float64]:
        """Those of the fit: a candidate that is left is not rejected."""
        return np.ones(len(self.left)) if self.of_fit is None else self.of_fit.distances()

    def numbers(self, candidate: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Empty: the text contains everything."""
        return {}


class DraNodeTable:
    """Follows the nodes. An update without changes costs nothing."""

    def __init__(self, profile: ResourceProfile) -> None:
        self._profile = profile
        self._allocatable: dict[str, frozenset[str]] = {}
        """By node, the resources with an allocatable amount; nodes without any are omitted."""
        self._labelled: set[str] = set()
        self._index = NodeIndex()
        self._inputs: tuple[object, ...] = ()
        """The generation of pools and the classes of the table."""
        self._table = NO_DRA_NODES

    def put(self, node: str, allocatable: frozenset[str], *, is_labelled: bool) -> None:
        """Set the resources of a node that are allocatable, and whether a label says that it has GPUs."""
        if self._allocatable.get(node, frozenset()) != allocatable or is_labelled != (node in self._labelled):
            self._inputs = ()
        if allocatable:
            self._allocatable[node] = allocatable
        else:
            self._allocatable.pop(node, None)
        (self._labelled.add if is_labelled else self._labelled.discard)(node)

    def update(  # complexity: one step for each input
        self,
        index: NodeIndex,
        inventory: DeviceInventory,
        classes: Iterable[DeviceClass],
        labels_of: Callable[[str], Mapping[str, str]],
    ) -> Generator[None, None, DraNodes]:
        """The nodes of the index that are left to kube-scheduler. `labels_of` returns the labels of a node."""
        every = tuple(classes)
        inputs = (inventory.pools_generation, every)
        if inputs == self._inputs and index is self._index:
            return self._table
        mapped = {
            resource: device_class
            for resource, device_class in resource_claims.classes_by_resource(every).items()
            if self._profile.has(resource)
        }
        by_resource = {resource: np.zeros(len(index.known) + 1, np.bool_) for resource in mapped}
        drivers, codes = {"": 0}, np.zeros(len(index.known) + 1, np.int16)
        for number, name in enumerate(index.known):
            if number % _STRIDE == 0:
                yield
            devices = inventory.of(name, labels_of(name) if inventory.network_pools else EMPTY)
            text = truncate(", ".join(dict.fromkeys(each.pool.id.driver for each in devices.pools)), _LONGEST)
            if text in drivers or len(drivers) < _MOST_DRIVERS:
                codes[number] = drivers.setdefault(text, len(drivers))
            for resource in mapped.keys() - self._allocatable.get(name, frozenset()):
                by_resource[resource][number] = name in self._labelled or may_have(devices, mapped[resource])
        self._inputs, self._index = inputs, index
        self._table = DraNodes(by_resource, codes, tuple(drivers))
        return self._table


def may_have(devices: NodeDevices, device_class: DeviceClass) -> bool:
    """Whether a node has devices of a class, or may have them: a selector or a part of a pool is unknown."""
    return any(
        bool(each.pool.problem)
        or any(
            all(device_matches(expression, device) is not False for expression in device_class.selectors)
            for device in each.devices
        )
        for each in devices.pools
    )
