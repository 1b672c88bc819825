"""Real DRA: the example driver publishes devices, kube-controller-manager creates claims, kube-scheduler allocates."""

from collections.abc import Iterator

import pytest

from tests.cluster import device_objects, kubernetes_objects
from tests.cluster.api_client import ApiError, Object
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.controlplane import ControlPlane
from tests.cluster.example_driver import ExampleDrivers
from tests.cluster.namespace_sandboxes import Sandbox

pytestmark = pytest.mark.kubernetes_versions(oldest=36)

EXTENDED_RESOURCE = "example.com/gpu"


@pytest.fixture(scope="module")
def scheduling(plane: ControlPlane, drivers: ExampleDrivers) -> Iterator[ExampleDrivers]:
    """Nodes `plain`, `divided` and `shared`, each with a driver, and the programs that allocate their devices."""
    for node in ("plain", "divided", "shared"):
        plane.api.create(kubernetes_objects.node(node, labels={"kind": node}))
    drivers.start("plain", 2)
    drivers.start("divided", 1, "--gpu-partitions=4")
    drivers.start("shared", 1, "--gpu-allow-multiple-allocations")
    plane.api.create(device_objects.device_class(extended_resource=EXTENDED_RESOURCE))
    plane.start_controller_manager()
    plane.start_scheduler({})
    yield drivers
    for node in ("plain", "divided", "shared"):
        plane.api.delete(f"/api/v1/nodes/{node}")


def on(node: str, pod: Object) -> Object:
    """The pod, with a selector of the node."""
    return pod | {"spec": pod["spec"] | {"nodeSelector": {"kind": node}}}


def claims_of(sandbox: Sandbox, pod: str) -> list[Object]:
    """The allocated claims of a pod, which controllers or kube-scheduler have created."""
    claims = sandbox.api.get(f"/apis/{device_objects.VERSION}/namespaces/{sandbox.namespace}/resourceclaims")
    owned = [
        claim
        for claim in claims["items"]
        if pod in {owner["name"] for owner in claim["metadata"].get("ownerReferences", ())}
    ]
    return owned if all(map(device_objects.allocated, owned)) else []


def test_extended_resource_is_allocated_from_a_slice(scheduling: ExampleDrivers, sandbox: Sandbox) -> None:
    sandbox.pods(on("plain", kubernetes_objects.pod("a", limits={EXTENDED_RESOURCE: "2"})))
    assert sandbox.expect_bound("a") == "plain"
    status = (sandbox.pod("a") or {})["status"]["extendedResourceClaimStatus"]
    assert status["requestMappings"][0]["resourceName"] == EXTENDED_RESOURCE
    (claim,) = claims_of(sandbox, "a")
    assert sorted(device_objects.allocated(claim)) == [
        (device_objects.DRIVER, "plain", f"gpu-{index}") for index in range(2)
    ]


def test_claim_of_a_template_is_allocated(scheduling: ExampleDrivers, sandbox: Sandbox) -> None:
    sandbox.put(device_objects.claim_template("one"))
    sandbox.pods(on("plain", device_objects.claiming_pod("a", templates=["one"])))
    assert sandbox.expect_bound("a") == "plain"
    (claim,) = claims_of(sandbox, "a")
    assert device_objects.allocated(claim) == [(device_objects.DRIVER, "plain", "gpu-0")]


def test_partition_and_whole_device_exclude_each_other(scheduling: ExampleDrivers, sandbox: Sandbox) -> None:
    for name, attribute in (("part", "partition"), ("full", "full")):
        selector = f"'{attribute}' in device.attributes['{device_objects.DRIVER}']"
        sandbox.put(device_objects.claim(name, device_objects.request("gpu", selector)))
    sandbox.pods(on("divided", device_objects.claiming_pod("a", "part")))
    sandbox.expect_bound("a")
    sandbox.pods(on("divided", device_objects.claiming_pod("b", "full")))
    assert "cannot allocate all claims" in sandbox.expect_rejected("b")


def test_capacity_of_a_shared_device_is_consumed(scheduling: ExampleDrivers, sandbox: Sandbox) -> None:
    half = device_objects.request(capacity={"requests": {"memory": "40Gi", "compute": "50"}})
    for name in "abc":
        sandbox.put(device_objects.claim(name, half))
        sandbox.pods(on("shared", device_objects.claiming_pod(name, name)))
        if name != "c":
            sandbox.expect_bound(name)
    assert "cannot allocate all claims" in sandbox.expect_rejected("c")
    (result,) = sandbox.api.get(
        f"/apis/{device_objects.VERSION}/namespaces/{sandbox.namespace}/resourceclaims/a"
    )["status"]["allocation"]["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": "40Gi", "compute": "50"}
    assert result["shareID"]


def test_tainted_device_is_not_allocated_and_its_pod_is_evicted(
    scheduling: ExampleDrivers, sandbox: Sandbox
) -> None:
    sandbox.put(device_objects.claim("one"))
    sandbox.pods(on("plain", device_objects.claiming_pod("a", "one")))
    sandbox.expect_bound("a")
    sandbox.create(
        device_objects.taint_rule("sick", effect="NoExecute", driver=device_objects.DRIVER, pool="plain")
    )
    sandbox.expect_gone("a")
    sandbox.put(device_objects.claim("other"))
    sandbox.pods(on("plain", device_objects.claiming_pod("b", "other")))
    assert "cannot allocate all claims" in sandbox.expect_rejected("b")


def test_driver_that_disappears_leaves_no_slices(scheduling: ExampleDrivers, sandbox: Sandbox) -> None:
    sandbox.nodes(kubernetes_objects.node("gone"))
    scheduling.start("gone", 1)
    assert [
        device["name"]
        for published in scheduling.slices("gone")
        for device in published["spec"].get("devices", ())
    ] == ["gpu-0"]
    scheduling.remove("gone")
    assert not scheduling.slices("gone")


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2", "v1"])
def test_slices_are_served_in_every_version(
    version: str, scheduling: ExampleDrivers, sandbox: Sandbox
) -> None:
    slices = sandbox.api.get(f"/apis/resource.k8s.io/{version}/resourceslices")["items"]
    devices = [device for item in slices for device in item["spec"].get("devices", ())]
    assert {"capacity" in device for device in devices} == {version != "v1beta1"}


def test_tenant_cannot_forge_the_allocation_of_a_claim(plane: ControlPlane, sandbox: Sandbox) -> None:
    tenant = plane.user(
        "claiming-tenant",
        [rule("create get update patch", "resourceclaims", "resource.k8s.io")],
        namespace=sandbox.namespace,
    )
    result = {"request": "gpu", "driver": device_objects.DRIVER, "pool": "plain", "device": "gpu-0"}
    status = {"allocation": {"devices": {"results": [result]}}}
    claim = device_objects.claim("forged") | {"status": status}
    claim["metadata"]["namespace"] = sandbox.namespace
    assert not device_objects.allocated(tenant.api.create(claim))
    path = f"/apis/{device_objects.VERSION}/namespaces/{sandbox.namespace}/resourceclaims/forged/status"
    with pytest.raises(ApiError, match="403"):
        tenant.api.patch(path, {"status": status})
