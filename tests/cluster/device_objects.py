"""Objects of Dynamic Resource Allocation (DRA): classes, claims, slices, taint rules, and pods that claim devices."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.cluster import kubernetes_objects, program_cache
from tests.cluster.api_client import Object

VERSION: Final = "resource.k8s.io/v1"
TAINT_RULE_VERSION: Final = VERSION if program_cache.MINOR >= 37 else "resource.k8s.io/v1beta2"
"""The newest version of DeviceTaintRule that the tested release serves."""
DRIVER: Final = "gpu.example.com"
"""The driver of the `gpu` profile of the example driver."""
SLICE_PATH: Final = f"/apis/{VERSION}/resourceslices"
CLASS_PATH: Final = f"/apis/{VERSION}/deviceclasses"


def device_class(name: str = DRIVER, *selectors: str, extended_resource: str = "") -> Object:
    """A DeviceClass with CEL selectors, by default one that selects the driver of the class's name."""
    expressions = selectors or (f"device.driver == '{name}'",)
    spec: Object = {"selectors": [_cel(expression) for expression in expressions]}
    if extended_resource:
        spec["extendedResourceName"] = extended_resource
    return {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def resources_of_class(device_class: Object) -> list[str]:
    """The extended resources of a DeviceClass: the implicit one and that of its spec."""
    named = device_class["spec"].get("extendedResourceName")
    implicit = f"deviceclass.resource.kubernetes.io/{device_class['metadata']['name']}"
    return [implicit, *([named] if named else [])]


def request(name: str = "gpu", *selectors: str, device_class: str = DRIVER, **fields: Any) -> Object:
    """A request for devices; `fields` are those of an exact request, such as `count=2`."""
    return {"name": name, "exactly": alternative("", *selectors, device_class=device_class, **fields)}


def alternative(name: str, *selectors: str, device_class: str = DRIVER, **fields: Any) -> Object:
    """An alternative of a request with `firstAvailable`; without a name, the content of an exact request."""
    body: Object = {"deviceClassName": device_class, **fields}
    if name:
        body["name"] = name
    if selectors:
        body["selectors"] = [_cel(expression) for expression in selectors]
    return body


def claim(name: str, *requests: Object, constraints: Sequence[Object] = ()) -> Object:
    """A ResourceClaim, by default for one device of DRIVER."""
    devices: Object = {"requests": list(requests) or [request()]}
    if constraints:
        devices["constraints"] = list(constraints)
    metadata, spec = {"name": name}, {"devices": devices}
    return {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def claiming_pod(name: str, *claims: str, **fields: Any) -> Object:
    """A pod whose container uses these claims; `fields` are those of a pod."""
    references = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    pod = kubernetes_objects.pod(name, **fields)
    pod["spec"]["resourceClaims"] = references
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": each["name"]} for each in references]
    return pod


def device(
    name: str,
    *,
    attributes: Mapping[str, str | int | bool] | None = None,
    capacity: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Object:
    """A device of a slice. A capacity is an amount, or a mapping with `value` and `requestPolicy`."""
    kinds: dict[type, str] = {bool: "bool", int: "int", str: "string"}
    body: Object = {"name": name, **fields}
    if attributes:
        body["attributes"] = {key: {kinds[type(value)]: value} for key, value in attributes.items()}
    if capacity:
        body["capacity"] = {
            key: value if isinstance(value, Mapping) else {"value": str(value)}
            for key, value in capacity.items()
        }
    return body


def resource_slice(
    node: str,
    devices: Sequence[Object],
    *,
    driver: str = DRIVER,
    pool: str = "",
    number: int = 0,
    slices: int = 1,
    generation: int = 1,
    **spec: Any,
) -> Object:
    """A slice of a node's pool, by default its only slice. Without a node, `spec` says which nodes can use it."""
    pool = pool or node
    place = {"nodeName": node} if node else {}
    name = f"{pool.replace('/', '-')}-{driver}-{generation}-{number}"
    return {
        "apiVersion": VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": slices},
            **place,
            "devices": list(devices),
            **spec,
        },
    }


def taint_rule(
    name: str, *, effect: str = "NoSchedule", key: str = "example.com/sick", **selector: str
) -> Object:
    """A DeviceTaintRule for the devices that the selector (`driver`, `pool`, `device`) names."""
    return {
        "apiVersion": TAINT_RULE_VERSION,
        "kind": "DeviceTaintRule",
        "metadata": {"name": name},
        "spec": {"deviceSelector": selector, "taint": {"key": key, "effect": effect}},
    }


def allocated(claim: Object | None) -> list[tuple[str, str, str]]:
    """The driver, pool and name of each device that is allocated to a claim."""
    allocation = (claim or {}).get("status", {}).get("allocation", {})
    results = allocation.get("devices", {}).get("results", [])
    return [(result["driver"], result["pool"], result["device"]) for result in results]


def _cel(expression: str) -> Object:
    return {"cel": {"expression": expression}}
