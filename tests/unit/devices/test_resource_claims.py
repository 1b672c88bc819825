"""ResourceClaims and DeviceClasses of all versions are decoded, and the claims of pods named."""

from typing import Any

import msgspec
import pytest

from nodewise.base.quantity import NANO
from nodewise.devices import resource_claims
from nodewise.devices.resource_claims import (
    AllocatedDevice,
    ClaimingPodSpec,
    ClaimingPodStatus,
    ClaimRequest,
    DeviceClass,
    DeviceClassObject,
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
    PodClaim,
    ResourceClaim,
    ResourceClaimObject,
)
from nodewise.devices.resource_slices import DeviceId

SELECTORS = [{"cel": {"expression": "true"}}, {"future": {}}]


def claim_of(status: dict[str, Any] | None = None, **devices: Any) -> ResourceClaim:
    document = {
        "metadata": {"name": "c", "namespace": "d"},
        "spec": {"devices": devices},
        "status": status or {},
    }
    decoded = msgspec.json.decode(msgspec.json.encode(document), type=ResourceClaimObject)
    return resource_claims.parse_resource_claim(decoded)


def class_of(name: str, resource: str | None = None, created: str = "2026-01-01T00:00:00Z") -> DeviceClass:
    document = {
        "metadata": {"name": name, "creationTimestamp": created},
        "spec": {"extendedResourceName": resource, "selectors": SELECTORS},
    }
    return resource_claims.parse_device_class(msgspec.convert(document, DeviceClassObject))


EXACTLY = {
    "deviceClassName": "gpu",
    "selectors": SELECTORS,
    "count": 2,
    "adminAccess": True,
    "tolerations": [{"key": "sick", "operator": "Exists"}],
    "capacity": {"requests": {"memory": "10Gi"}},
}


@pytest.mark.parametrize(
    "request_", [{"name": "r", "exactly": EXACTLY}, {"name": "r", **EXACTLY}], ids=["v1", "v1beta1"]
)
def test_a_request_has_its_fields_in_every_version(request_: dict[str, Any]) -> None:
    form = DeviceRequest(
        "r",
        "gpu",
        ("true", ""),
        count=2,
        is_admin_access=True,
        tolerations=(DeviceToleration("sick", "Exists"),),
        capacity=(("memory", 10 * 2**30 * NANO),),
    )
    assert claim_of(requests=[request_]).requests == (ClaimRequest("r", (form,)),)
    assert hash(form) == hash(msgspec.structs.replace(form))


def test_a_prioritized_list_keeps_its_order_and_unknown_forms_are_marked() -> None:
    alternatives = [
        {"name": "big", "deviceClassName": "h100", "allocationMode": "All"},
        {"name": "small", "deviceClassName": "a10", "allocationMode": "Some"},
    ]
    claim = claim_of(
        requests=[{"name": "r", "firstAvailable": alternatives}, {"name": "future", "newForm": {}}],
        constraints=[{"requests": ["r"], "matchAttribute": "x/numa"}, {"distinctAttribute": "x/slot"}],
    )
    first, future = claim.requests
    expected = [("big", True, False), ("small", False, True)]
    assert [(form.name, form.is_all, form.is_unknown_form) for form in first.alternatives] == expected
    assert future == ClaimRequest("future", ())
    assert claim.constraints == (
        DeviceConstraint(("r",), "x/numa"),
        DeviceConstraint(distinct_attribute="x/slot"),
    )


def test_an_allocation_names_its_devices() -> None:
    result = {
        "request": "r/big",
        "driver": "gpu.example.com",
        "pool": "n",
        "device": "gpu-0",
        "shareID": "s",
        "consumedCapacity": {"memory": "1Gi"},
    }
    allocation = {"devices": {"results": [result, {**result, "adminAccess": True, "shareID": None}]}}
    claim = claim_of(
        {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    )
    device = DeviceId("gpu.example.com", "n", "gpu-0")
    consumed = {"gpu.example.com/memory": 2**30 * NANO}
    assert claim.devices == (
        AllocatedDevice("r/big", device, share_id="s", consumed_capacity=consumed),
        AllocatedDevice("r/big", device, is_admin_access=True, consumed_capacity=consumed),
    )
    assert claim.is_allocated
    assert [consumer.name for consumer in claim.reserved_for] == ["p"]
    assert not claim_of().is_allocated
    assert claim_of({"allocation": {}}).is_allocated


def test_the_newest_class_counts_an_extended_resource() -> None:
    gpu = "nvidia.com/gpu"
    old, new = class_of("a", gpu), class_of("b", gpu, "2026-02-01T00:00:00Z")
    same, other = class_of("c", gpu, "2026-02-01T00:00:00Z"), class_of("other")
    find = resource_claims.class_of_resource
    assert find([old, same, new, other], gpu) == new
    assert find([old, other], gpu) == old
    assert find([other], gpu) is None
    assert find([old, other], "deviceclass.resource.kubernetes.io/other") == other
    assert find([old, other], "deviceclass.resource.kubernetes.io/none") is None


def test_a_pod_has_named_claims_claims_of_templates_and_one_of_extended_resources() -> None:
    spec = {
        "resourceClaims": [
            {"name": "named", "resourceClaimName": "c1"},
            {"name": "created", "resourceClaimTemplateName": "t"},
            {"name": "waiting", "resourceClaimTemplateName": "t"},
            {"name": "unneeded", "resourceClaimTemplateName": "t"},
        ]
    }
    status = {
        "resourceClaimStatuses": [
            {"name": "created", "resourceClaimName": "p-created-x"},
            {"name": "unneeded"},
        ],
        "extendedResourceClaimStatus": {"resourceClaimName": "p-extended", "requestMappings": []},
    }
    assert resource_claims.claims_of_pod(
        msgspec.convert(spec, ClaimingPodSpec), msgspec.convert(status, ClaimingPodStatus)
    ) == (
        PodClaim("named", "c1"),
        PodClaim("created", "p-created-x", "t"),
        PodClaim("waiting", "", "t"),
        PodClaim("", "p-extended"),
    )
