"""`nodewise devices` on a real control plane: devices of the example driver, claims that kube-scheduler allocates."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from nodewise.agent import Watched
from nodewise.cli import terminal_output
from nodewise.devices import resource_claims, resource_slices
from nodewise.engine import object_feed
from nodewise.kube.api_client_creation import open_api
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.resource_kinds import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from tests.cluster import device_objects, kubernetes_objects, read_only_commands
from tests.cluster.api_user_kubeconfigs import User, rule
from tests.cluster.controlplane import ControlPlane
from tests.cluster.device_objects import DRIVER
from tests.cluster.example_driver import ExampleDrivers
from tests.cluster.namespace_sandboxes import Sandbox

pytestmark = pytest.mark.kubernetes_versions(oldest=36)

KINDS = "deviceclasses devicetaintrules resourceclaims resourceslices"


@pytest.fixture(scope="module")
def reader(plane: ControlPlane, drivers: ExampleDrivers) -> Iterator[User]:
    """An account that may list devices, on a cluster with two nodes, their devices, and a scheduler."""
    for node, count in (("one", 2), ("two", 4)):
        plane.api.create(kubernetes_objects.node(node))
        drivers.start(node, count)
    plane.api.create(device_objects.device_class())
    plane.start_scheduler({})
    yield plane.user("device-reader", [rule("list", KINDS, "resource.k8s.io"), rule("list", "nodes")])
    for node in ("one", "two"):
        plane.api.delete(f"/api/v1/nodes/{node}")


def devices(reader: User, *arguments: str, code: int = terminal_output.DONE) -> Any:
    done = read_only_commands.run("devices", f"--kubeconfig={reader.kubeconfig}", "-o", "json", *arguments)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def states(document: Any) -> dict[str, list[str]]:
    return {node["node"]: [device["state"] for device in node["devices"]] for node in document["nodes"]}


def test_devices_are_listed_with_their_claims_and_taints(reader: User, sandbox: Sandbox) -> None:
    assert states(devices(reader)) == {"one": ["free"] * 2, "two": ["free"] * 4}
    sandbox.put(device_objects.claim("three", device_objects.request(count=3)))
    sandbox.pods(device_objects.claiming_pod("train", "three"))
    assert sandbox.expect_bound("train") == "two"
    sandbox.create(device_objects.taint_rule("sick", driver=DRIVER, pool="one", device="gpu-1"))
    document = devices(reader, "--claim", "1", "--class", DRIVER)
    assert states(document)["two"] == ["allocated"] * 3 + ["free"]
    assert [node["claims"] for node in document["nodes"]] == [1, 1]
    small, large = (node["devices"] for node in document["nodes"])
    assert large[0]["holders"] == [
        {
            "namespace": sandbox.namespace,
            "claim": "three",
            "request": "gpu",
            "pods": ["train"],
            "consumed": {},
        }
    ]
    assert small[1]["taints"] == [
        {"key": "example.com/sick", "value": "", "effect": "NoSchedule", "owner": "rule sick", "reason": ""}
    ]
    assert not small[1]["available"]
    assert small[0]["attributes"][f"{DRIVER}/index"] == 0
    devices(reader, "--claim", "2", code=terminal_output.NO)


def test_the_claims_that_fit_are_those_that_the_scheduler_binds(reader: User, sandbox: Sandbox) -> None:
    fits = {fit["devices"]: fit["claims"] for fit in devices(reader)["fits"]}
    assert fits[2]
    for number in range(fits[2] + 1):
        sandbox.put(device_objects.claim(f"c{number}", device_objects.request(count=2)))
        sandbox.pods(device_objects.claiming_pod(f"p{number}", f"c{number}"))
        if number < fits[2]:
            sandbox.expect_bound(f"p{number}")
    assert "cannot allocate all claims" in sandbox.expect_rejected(f"p{fits[2]}")
    assert [fit["claims"] for fit in devices(reader)["fits"] if fit["devices"] > 1] == [0, 0]


def test_the_devices_of_one_node_are_listed(reader: User) -> None:
    assert {node: len(of_node) for node, of_node in states(devices(reader, "one")).items()} == {"one": 2}
    done = read_only_commands.run("devices", f"--kubeconfig={reader.kubeconfig}", "three")
    assert (done.returncode, done.stderr) == (
        terminal_output.NO,
        "nodewise: found no node three\n",
    )


def test_without_the_right_to_list_claims_the_message_says_so(plane: ControlPlane, reader: User) -> None:
    blind = plane.user("slice-reader", [rule("list", "resourceslices", "resource.k8s.io")])
    done = read_only_commands.run("devices", f"--kubeconfig={blind.kubeconfig}", "-o", "json")
    assert done.returncode == terminal_output.DONE
    assert "resourceclaims cannot be read and count as absent" in done.stderr
    nobody = plane.user("nobody", [])
    done = read_only_commands.run("devices", f"--kubeconfig={nobody.kubeconfig}")
    assert (done.returncode, "resourceslices" in done.stderr) == (terminal_output.FAILED, True)


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_a_server_with_only_a_beta_version_is_read(version: str, reader: User, sandbox: Sandbox) -> None:
    sandbox.put(device_objects.claim("c", device_objects.request(count=2)))

    async def read(resource: Resource, type_: Any, parse: Any) -> Any:
        # a version that no server has, so that the next one is read
        newest = resource._replace(version="v9", older_versions=(version,))
        async with open_api(KubeOptions(kubeconfig=str(reader.kubeconfig))) as api:
            return await object_feed.list_once(api, Watched("x", newest, type_, parse))

    slices = asyncio.run(
        read(RESOURCE_SLICES, resource_slices.ResourceSliceObject, resource_slices.parse_resource_slice)
    )
    first, second = (item.devices for item in sorted(slices.values(), key=lambda item: item.pool))
    assert (len(first), len(second)) == (2, 4)
    assert f"{DRIVER}/uuid" in first[0].attributes
    claims = asyncio.run(
        read(RESOURCE_CLAIMS, resource_claims.ResourceClaimObject, resource_claims.parse_resource_claim)
    )
    (request,) = claims[sandbox.namespace, "c"].requests
    assert [(form.device_class, form.count) for form in request.alternatives] == [(DRIVER, 2)]
