"""ResourceClaims and DeviceClasses: what pods request of DRA devices, and what kube-scheduler allocated to them.

A pod names its claims in `spec.resourceClaims`, or requests an extended resource that a DeviceClass names
(`resource_of_class`), for which kube-scheduler creates a claim while it binds the pod. Source: Kubernetes 1.37
`resource/v1/types.go`, `core/v1/types.go` and `extendedresourcecache.go`.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from nodewise.base.quantity import Quantity
from nodewise.devices.resource_slices import (
    EMPTY,
    Amounts,
    DeviceId,
    DeviceObjectMetadata,
    NodeSelector,
    parse_amount,
    qualified_name,
)

MOST_REQUEST_BYTES: Final = 8 * 1024
"""The most text of a claim's requests that is kept. The API permits a megabyte, and tenants write claims."""
IMPLICIT_RESOURCE_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""The prefix of the extended resource that each DeviceClass has in addition to the one that it names."""


UNKNOWN_RESOURCE_MESSAGE: Final = "cannot fit resource"
"""What kube-scheduler reports on a pod with an extended resource of a DeviceClass and another one that no node has.

It does so also if entries of extenders say to ignore the other one. Source: filterExtendedResources in Kubernetes 1.36
and 1.37.
"""


class DeviceToleration(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    key: str = ""
    """Empty: all keys."""
    operator: str = "Equal"
    """`Equal` or `Exists`."""
    value: str = ""
    effect: str = ""
    """Empty: all effects."""


class DeviceRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for devices of one class, or one alternative of a prioritized list."""

    name: str
    device_class: str
    selectors: tuple[str, ...] = ()
    """CEL expressions, all of which have to be true."""
    is_all: bool = False
    """Whether it requests all matching devices of the node (`allocationMode: All`)."""
    count: int = 1
    """Number of devices without `is_all`."""
    is_admin_access: bool = False
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    """Names of capacities as the request has them, qualified or not, with nano-units."""
    has_derived_attributes: bool = False
    is_unknown_form: bool = False
    """Whether it has an allocation mode that is newer than nodewise."""


class ClaimRequest(NamedTuple):
    name: str
    alternatives: tuple[DeviceRequest, ...]
    """One for `exactly`, else those of `firstAvailable` in their order; none if the form is newer than nodewise."""


class DeviceConstraint(NamedTuple):
    """A constraint on the devices of several requests; none named means all."""

    requests: tuple[str, ...] = ()
    match_attribute: str = ""
    distinct_attribute: str = ""


class AllocatedDevice(NamedTuple):
    request: str
    """The name of the request, or `request/alternative`."""
    device: DeviceId
    is_admin_access: bool = False
    """Then the device is not in use by this claim."""
    share_id: str = ""
    consumed_capacity: Amounts = EMPTY
    """Nano-units by qualified name of the capacity."""
    binding_conditions: tuple[str, ...] = ()
    """The conditions that the device must have in the status of the claim before kube-scheduler binds the pod."""


class ClaimConsumer(msgspec.Struct, frozen=True, gc=False):
    """A user of a claim: a pod, if the resource is `pods`."""

    resource: str
    name: str
    uid: str = ""


class ResourceClaim(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A claim, as it is stored."""

    metadata: DeviceObjectMetadata
    requests: tuple[ClaimRequest, ...] = ()
    """Empty, like the constraints, if they have more than MOST_REQUEST_BYTES (`is_too_large`)."""
    constraints: tuple[DeviceConstraint, ...] = ()
    is_too_large: bool = False
    is_allocated: bool = False
    devices: tuple[AllocatedDevice, ...] = ()
    node_selector: NodeSelector | None = None
    """The nodes on which the allocated devices can be used; None: all."""
    reserved_for: tuple[ClaimConsumer, ...] = ()


class DeviceClass(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A DeviceClass, as it is stored."""

    metadata: DeviceObjectMetadata
    selectors: tuple[str, ...] = ()
    """CEL expressions, all of which have to be true."""
    extended_resource: str = ""
    """The resource that `spec.extendedResourceName` names; empty if none."""


def classes_by_resource(classes: Iterable[DeviceClass]) -> dict[str, DeviceClass]:
    """By extended resource, the class whose devices it counts: the resource that a class names, and the implicit one.

    Of several classes that name a resource the newest counts, then the first by name.
    """
    by_age = sorted(classes, key=lambda each: each.metadata.name, reverse=True)
    by_age.sort(key=lambda each: each.metadata.creation_timestamp or "")
    named = {each.extended_resource: each for each in by_age if each.extended_resource}
    return named | {f"{IMPLICIT_RESOURCE_PREFIX}{each.metadata.name}": each for each in by_age}


def class_of_resource(classes: Iterable[DeviceClass], resource: str) -> DeviceClass | None:
    """The class whose devices an extended resource counts; None if it counts none."""
    return classes_by_resource(classes).get(resource)


# The claims of pods


class PodClaimReference(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A claim in `spec.resourceClaims` of a pod."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodClaimStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The claim that was created from a template for a pod."""

    name: str
    resource_claim_name: str | None = None
    """None if the pod needs no claim."""


class ExtendedResourceClaimStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The claim that kube-scheduler created for the extended resources of a pod."""

    resource_claim_name: str = ""


class ClaimingPodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_claims: tuple[PodClaimReference, ...] | None = None


class ClaimingPodStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_claim_statuses: tuple[PodClaimStatus, ...] | None = None
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None


class PodClaim(NamedTuple):
    reference: str
    """The name in `spec.resourceClaims`; empty for the claim of extended resources."""
    claim: str
    """The name of the ResourceClaim; empty if it was not created yet."""
    template: str = ""


def claims_of_pod(spec: ClaimingPodSpec, status: ClaimingPodStatus) -> tuple[PodClaim, ...]:
    """The claims of a pod, that of its extended resources last. References that need no claim are left out."""
    created = {each.name: each.resource_claim_name for each in status.resource_claim_statuses or ()}
    claims = [
        PodClaim(
            reference.name,
            reference.resource_claim_name or created.get(reference.name) or "",
            reference.resource_claim_template_name or "",
        )
        for reference in spec.resource_claims or ()
        if reference.resource_claim_name or created.get(reference.name, "") is not None
    ]
    if status.extended_resource_claim_status is not None:
        claims.append(PodClaim("", status.extended_resource_claim_status.resource_claim_name))
    return tuple(claims)


# Objects of the API, with the fields of all versions


class _Cel(msgspec.Struct, frozen=True, gc=False):
    expression: str = ""


class _Selector(msgspec.Struct, frozen=True, gc=False):
    cel: _Cel | None = None


class _Capacity(msgspec.Struct, frozen=True, gc=False):
    requests: dict[str, Quantity] | None = None


class _ExactFields(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    device_class_name: str = ""
    selectors: tuple[_Selector, ...] | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] | None = None
    capacity: _Capacity | None = None
    derived_attributes: tuple[msgspec.Raw, ...] | None = None


class _SubRequest(_ExactFields, frozen=True, gc=False, rename="camel", kw_only=True):
    name: str


class _Request(_SubRequest, frozen=True, gc=False, rename="camel", kw_only=True):
    """In v1beta1, the fields of `exactly` are those of the request."""

    exactly: _ExactFields | None = None
    first_available: tuple[_SubRequest, ...] | None = None


class _Constraint(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    requests: tuple[str, ...] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class _ClaimDevices(msgspec.Struct, frozen=True, gc=False):
    requests: tuple[_Request, ...] | None = None
    constraints: tuple[_Constraint, ...] | None = None


class ClaimSpec(msgspec.Struct, frozen=True, gc=False):
    devices: _ClaimDevices = _ClaimDevices()


class _Result(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    request: str
    driver: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, Quantity] | None = None
    binding_conditions: tuple[str, ...] | None = None


class _Results(msgspec.Struct, frozen=True, gc=False):
    results: tuple[_Result, ...] | None = None


class _Allocation(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    devices: _Results = _Results()
    node_selector: NodeSelector | None = None


class _ClaimStatus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[ClaimConsumer, ...] | None = None


class ResourceClaimObject(msgspec.Struct, frozen=True, gc=False):
    """A ResourceClaim of the API, of any version."""

    metadata: DeviceObjectMetadata
    spec: ClaimSpec = ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()


class _ClassSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    selectors: tuple[_Selector, ...] | None = None
    extended_resource_name: str | None = None


class DeviceClassObject(msgspec.Struct, frozen=True, gc=False):
    """A DeviceClass of the API, of any version."""

    metadata: DeviceObjectMetadata
    spec: _ClassSpec = _ClassSpec()


def parse_device_class(item: DeviceClassObject) -> DeviceClass:
    """The class as it is stored."""
    extended = item.spec.extended_resource_name or ""
    return DeviceClass(
        metadata=item.metadata, selectors=_expressions(item.spec.selectors), extended_resource=extended
    )


def parse_resource_claim(item: ResourceClaimObject) -> ResourceClaim:
    """The claim as it is stored."""
    allocation = item.status.allocation
    requests, constraints = _parse_requests(item.spec), _parse_constraints(item.spec)
    is_too_large = (
        bool(requests or constraints)
        and len(msgspec.json.encode((requests, constraints))) > MOST_REQUEST_BYTES
    )
    return ResourceClaim(
        metadata=item.metadata,
        requests=() if is_too_large else requests,
        constraints=() if is_too_large else constraints,
        is_too_large=is_too_large,
        is_allocated=allocation is not None,
        devices=() if allocation is None else tuple(map(_parse_result, allocation.devices.results or ())),
        node_selector=None if allocation is None else allocation.node_selector,
        reserved_for=item.status.reserved_for or (),
    )


class AllocatedClaimObject(msgspec.Struct, frozen=True, gc=False):
    """The parts of a ResourceClaim that say which devices it has."""

    metadata: DeviceObjectMetadata
    status: _ClaimStatus = _ClaimStatus()


def parse_allocated_claim(item: AllocatedClaimObject) -> ResourceClaim | None:
    """The claim without its requests; None if it has no devices."""
    if item.status.allocation is None:
        return None
    return parse_resource_claim(ResourceClaimObject(item.metadata, status=item.status))


def _parse_requests(spec: ClaimSpec) -> tuple[ClaimRequest, ...]:
    return tuple(map(_parse_request, spec.devices.requests or ()))


def _parse_constraints(spec: ClaimSpec) -> tuple[DeviceConstraint, ...]:
    return tuple(
        DeviceConstraint(each.requests or (), each.match_attribute or "", each.distinct_attribute or "")
        for each in spec.devices.constraints or ()
    )


def _expressions(selectors: Iterable[_Selector] | None) -> tuple[str, ...]:
    """An unknown kind of selector is an empty expression, which cannot be evaluated."""
    return tuple(each.cel.expression if each.cel is not None else "" for each in selectors or ())


def _parse_request(item: _Request) -> ClaimRequest:
    if item.first_available:
        forms = tuple(_parse_form(each.name, each) for each in item.first_available)
        return ClaimRequest(item.name, forms)
    exact = item if item.exactly is None else item.exactly
    return ClaimRequest(item.name, (_parse_form(item.name, exact),) if exact.device_class_name else ())


def _parse_form(name: str, fields: _ExactFields) -> DeviceRequest:
    mode = fields.allocation_mode or "ExactCount"
    requested: Mapping[str, Quantity] = fields.capacity.requests or {} if fields.capacity is not None else {}
    return DeviceRequest(
        name,
        fields.device_class_name,
        _expressions(fields.selectors),
        is_all=mode == "All",
        count=1 if fields.count is None else fields.count,
        is_admin_access=bool(fields.admin_access),
        tolerations=fields.tolerations or (),
        capacity=tuple((key, parse_amount(amount)) for key, amount in sorted(requested.items())),
        has_derived_attributes=bool(fields.derived_attributes),
        is_unknown_form=mode not in ("All", "ExactCount"),
    )


def _parse_result(item: _Result) -> AllocatedDevice:
    consumed = {
        qualified_name(item.driver, name): parse_amount(amount)
        for name, amount in (item.consumed_capacity or {}).items()
    }
    return AllocatedDevice(
        item.request,
        DeviceId(item.driver, item.pool, item.device),
        bool(item.admin_access),
        item.share_id or "",
        consumed,
        item.binding_conditions or (),
    )
