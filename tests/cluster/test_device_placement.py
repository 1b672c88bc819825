"""Pods with claims on a real kube-scheduler: the admission policy marks them, nodewise names the devices, and packs."""

from pathlib import Path

from nodewise.devices.resource_claims import UNKNOWN_RESOURCE_MESSAGE
from tests.cluster import (
    device_objects,
    extender_process,
    gpu_cluster,
    kubernetes_objects,
    read_only_commands,
)
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import folder_of, path_of
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import MANAGED
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.read_only_commands import run

PODS = 6


def test_pods_with_claims_are_packed_and_their_devices_explained(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    for node in ("n1", "n2", "n3"):
        sandbox.nodes(kubernetes_objects.node(node))
        devices = [device_objects.device(f"gpu-{at}", attributes={"model": "A"}) for at in range(4)]
        sandbox.create(device_objects.resource_slice(node, devices))
    sandbox.create(device_objects.device_class())
    extender_process.define(sandbox.api)
    policies = [
        sandbox.create(each)
        for each in extender_process.manifest("extender-pods.yaml")
        if each["metadata"]["name"].endswith("claims")
    ]
    assert len(policies) == 2
    for number in range(PODS):
        sandbox.put(device_objects.claim(f"c{number}"))
    probe = device_objects.claiming_pod("probe", "c0") | {}
    probe["metadata"]["namespace"] = sandbox.namespace

    def marked() -> bool | None:
        made = sandbox.api.request("POST", folder_of(probe), json=probe, params=DRY_RUN).json()
        return "telemetry/scheduling" in made["spec"]["containers"][0]["resources"].get("limits", {}) or None

    wait("the admission policy has an effect", marked)
    words = ("--gpu-placement=pack", "--gpu-profile=nvidia")
    with (
        gpu_cluster.extender(plane, tmp_path, *words) as served,
        plane.start_scheduler({"extenders": [served.entry(managedResources=MANAGED, weight=20)]}),
    ):
        for number in range(PODS):
            sandbox.pods(device_objects.claiming_pod(f"p{number}", f"c{number}"))
        nodes = [sandbox.expect_bound(f"p{number}") for number in range(PODS)]
        kubeconfig = read_only_commands.reader(
            plane, [rule("get", "pods"), rule("get", "resourceclaims", "resource.k8s.io")]
        ).kubeconfig
        arguments = [f"--kubeconfig={kubeconfig}", "--server", served.health]
        assert len(set(nodes)) == 2
        for number in range(PODS):
            path = path_of(
                {
                    **device_objects.claim(f"c{number}"),
                    "metadata": {"name": f"c{number}", "namespace": sandbox.namespace},
                }
            )
            ((_, _, device),) = device_objects.allocated(sandbox.api.get(path))
            text = run("explain", f"{sandbox.namespace}/p{number}", *arguments, "--nodes").stdout
            assert f"kube-scheduler allocated devices gpu: {device}" in text
            assert f"devices gpu: {device}" in text.split("allocated devices")[1].split("\n", 1)[1]


def test_kube_scheduler_places_no_marked_pod_with_a_resource_of_a_class(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path
) -> None:
    """The finding resource-not-ignored, `explain` and three pages say so. A kube-scheduler that places `marked` needs
    none of them.
    """
    nic, driver = "example.com/nic", "nic.example.com"
    sandbox.nodes(kubernetes_objects.node("n1"))
    devices = [device_objects.device(f"nic-{at}") for at in range(2)]
    sandbox.create(device_objects.resource_slice("n1", devices, driver=driver))
    sandbox.create(device_objects.device_class(driver, extended_resource=nic))
    extender_process.define(sandbox.api)
    with gpu_cluster.extender(plane, tmp_path) as served:
        marks = served.entry(managedResources=MANAGED)
        with plane.start_scheduler({"extenders": [marks]}):
            sandbox.pods(kubernetes_objects.pod("marked", limits={nic: "1", **extender_process.LIMITS}))
            assert UNKNOWN_RESOURCE_MESSAGE in sandbox.expect_rejected("marked")
            kubeconfig = read_only_commands.reader(plane, [rule("get", "pods")]).kubeconfig
            explained = run(
                "explain",
                f"{sandbox.namespace}/marked",
                f"--kubeconfig={kubeconfig}",
                "--server",
                served.health,
            )
            assert "--filter-all-pods" in explained.stdout
        every = served.entry(managedResources=[])
        with plane.start_scheduler({"extenders": [every]}):
            sandbox.pods(kubernetes_objects.pod("plain", limits={nic: "1"}))
            assert sandbox.expect_bound("plain") == "n1"
