"""Nodes whose GPUs a driver for Dynamic Resource Allocation (DRA) provides.

Since Kubernetes 1.36 a pod can request devices of a DRA driver by an extended resource, which a DeviceClass names in
`spec.extendedResourceName` (KEP-5004). Such a node has no allocatable amount of the resource. kube-scheduler allocates
the devices itself, so the gpu agent leaves these nodes to it.
Source: Kubernetes 1.37 `pkg/scheduler/framework/plugins/helper/resource_requests.go`, ShouldDelegateResourceToDRA.
"""

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

import msgspec

from nodewise.agent import ObjectKey

DEVICE_CLASSES: Final = "device_classes"
RESOURCE_SLICES: Final = "resource_slices"
"""Keys of `ClusterState.objects`."""
_STRIDE: Final = 512
"""Slices between two yields."""


class DraMetadata(msgspec.Struct, frozen=True, gc=False):
    name: str
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name


class DeviceClassSpec(msgspec.Struct, frozen=True, gc=False):
    extendedResourceName: str = ""  # noqa: N815 - the API's name


class DeviceClass(msgspec.Struct, frozen=True, gc=False):
    """The fields of a DeviceClass that are read."""

    metadata: DraMetadata
    spec: DeviceClassSpec = DeviceClassSpec()


class ResourceSliceSpec(msgspec.Struct, frozen=True, gc=False):
    nodeName: str | None = None  # noqa: N815 - the API's name


class ResourceSlice(msgspec.Struct, frozen=True, gc=False):
    """The fields of a ResourceSlice that are read; devices are not."""

    metadata: DraMetadata
    spec: ResourceSliceSpec = ResourceSliceSpec()


def keep_gpu_classes(counts: tuple[str, ...]) -> Callable[[DeviceClass], DeviceClass | None]:
    """Keep only classes of these counting resources."""
    return lambda device_class: device_class if device_class.spec.extendedResourceName in counts else None


def keep_slices_of_nodes(resource_slice: ResourceSlice) -> ResourceSlice | None:
    """Keep only slices with devices of one node."""
    return resource_slice if resource_slice.spec.nodeName else None


def dra_node_names(
    objects: Mapping[str, Mapping[ObjectKey, Any]], counts: tuple[str, ...]
) -> Generator[None, None, frozenset[str] | None]:
    """The nodes with devices of a driver; None if no class names a counting resource."""
    classes = objects.get(DEVICE_CLASSES, {}).values()
    if not any(device_class.spec.extendedResourceName in counts for device_class in classes):
        return None
    names = set()
    for number, resource_slice in enumerate(objects.get(RESOURCE_SLICES, {}).values()):
        names.add(resource_slice.spec.nodeName)
        if number % _STRIDE == 0:
            yield
    return frozenset(names)
