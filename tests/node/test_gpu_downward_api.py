"""A container reads its devices from the downward API, with a real kube-scheduler and a real kubelet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import gpu_cluster
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.node import busybox_image
from tests.node.kubelet import Kubelet

pytestmark = pytest.mark.cluster

TELL = 'echo "mask=$ZE_AFFINITY_MASK"; exec busybox sleep {for_s}'
FOR_EVER_S = 1_000_000_000


@pytest.fixture
def cards(plane: ControlPlane, sandbox: Sandbox, node: Kubelet, tmp_path: Path) -> Iterator[None]:
    """The node has four devices with 1000 millicores each; nodewise, and a scheduler that uses it."""
    shape = gpu_cluster.node(node.name, cards=4, shares=10, millicores=1000)
    node.label(shape["metadata"]["labels"])
    node.advertise({name: amount for name, amount in shape["status"]["capacity"].items() if "/" in name})
    with (
        gpu_cluster.extender(plane, tmp_path) as served,
        plane.start_scheduler({"extenders": [gpu_cluster.entry(served)]}),
    ):
        yield


def pod(name: str, for_s: int = FOR_EVER_S, **cards: int) -> Object:
    """Containers that print their devices and stay; each requests this number, with most of each device."""
    made = gpu_cluster.pod(name)
    made["spec"]["containers"] = [_container(*each, for_s) for each in cards.items()]
    return made


def _container(name: str, cards: int, for_s: int) -> Object:
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['cards.nodewise.io/{name}']"}}
    wanted = (
        {f"{gpu_cluster.PREFIX}i915": str(cards), f"{gpu_cluster.PREFIX}millicores": str(600 * cards)}
        if cards
        else {}
    )
    return {
        "name": name,
        "image": busybox_image.NAME,
        "command": ["sh", "-c", TELL.format(for_s=for_s)],
        "env": [{"name": "ZE_AFFINITY_MASK", "valueFrom": source}],
        "resources": {"limits": wanted},
    }


def test_each_container_reads_its_own_devices(sandbox: Sandbox, node: Kubelet, cards: None) -> None:
    sandbox.pods(pod("train", main=2), pod("video", decode=1, encode=1, sidecar=0))
    devices = _told(sandbox, node, "train") | _told(sandbox, node, "video")
    assert {name: len(numbers) for name, numbers in devices.items()} == {
        "main": 2,
        "decode": 1,
        "encode": 1,
        "sidecar": 0,
    }
    assert sorted(number for numbers in devices.values() for number in numbers) == ["0", "1", "2", "3"]


def test_a_restarted_container_reads_the_current_annotation(
    sandbox: Sandbox, node: Kubelet, cards: None
) -> None:
    sandbox.pods(pod("short", for_s=2, main=1))
    assert _told(sandbox, node, "short") == {"main": ["0"]}
    short_pod = sandbox.pod("short") or {}
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods/short"
    sandbox.api.patch(path, {"metadata": {"annotations": {"cards.nodewise.io/main": "3"}}})
    wait("it is told anew", lambda: node.log(short_pod, "main")[-1:] == ["mask=3"] or None)
    assert gpu_cluster.allocation_record(sandbox, node.name)[short_pod["metadata"]["uid"]]["cards"] == "card0"


def test_an_init_container_and_a_sidecar_read_their_devices(
    sandbox: Sandbox, node: Kubelet, cards: None
) -> None:
    """The init container uses a device of a later container, and the sidecar has one in addition."""
    made = pod("train", main=1)
    made["spec"]["initContainers"] = [
        _container("setup", 1, 0),
        _container("log", 1, FOR_EVER_S) | {"restartPolicy": "Always"},
    ]
    sandbox.pods(made)
    running = _running(sandbox, node, "train")
    masks = {name: _mask(node, running, name) for name in ("setup", "log", "main")}
    assert masks == {"setup": "0", "log": "1", "main": "0"}


def _running(sandbox: Sandbox, node: Kubelet, name: str) -> Object:
    """A pod once it runs on the node."""
    assert sandbox.expect_bound(name) == node.name

    def running() -> Object | None:
        pod = sandbox.pod(name) or {}
        return pod if pod.get("status", {}).get("phase") == "Running" else None

    return wait(f"pod {name} runs", running, show=lambda: (sandbox.pod(name), sandbox.events(name)))


def _told(sandbox: Sandbox, node: Kubelet, name: str) -> dict[str, list[str]]:
    """The device numbers that each container of a running pod printed, which are those of its annotations."""
    pod = _running(sandbox, node, name)
    annotations = pod["metadata"]["annotations"]
    devices = {}
    for container in (each["name"] for each in pod["spec"]["containers"]):
        mask = _mask(node, pod, container)
        assert mask == annotations.get(f"cards.nodewise.io/{container}", "")
        devices[container] = [number for number in mask.split(",") if number]
    assert sorted(gpu_cluster.cards_of(pod)) == sorted(
        f"card{number}" for held in devices.values() for number in held
    )
    return devices


def _mask(node: Kubelet, pod: Object, container: str) -> str:
    """The value of the variable that a container printed."""
    (line,) = wait(f"container {container} speaks", lambda: node.log(pod, container) or None)
    assert line.startswith("mask=")
    return line.removeprefix("mask=")
