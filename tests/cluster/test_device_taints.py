"""Device taints on a real API server, kube-scheduler and Prometheus with series in the form of DCGM."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import (
    changing_exporter,
    debian_packages,
    extender_process,
    kubernetes_objects,
    native_mode,
)
from tests.cluster.api_client import ApiError, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.changing_exporter import ChangingExporter
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.prometheus_process import PrometheusProcess

DRIVER: Final = "gpu.example.com"
RULES: Final = "/apis/resource.k8s.io/v1/devicetaintrules"
POLICIES: Final = "/apis/nodewise.io/v1alpha1/clusterplacementpolicies"
LABEL: Final = "nodewise.io/device-policy"
NODES: Final = ("n1", "n2")
GPUS: Final = 4
PERIOD_S: Final = 2.0
MANIFEST: Final = extender_process.manifest("device-taints.yaml")
HOT: Final[Object] = {
    "metric": "DCGM_FI_DEV_GPU_TEMP",
    "above": 90,
    "release": 80,
    "driver": DRIVER,
    "deviceLabel": "UUID",
    "deviceAttribute": "uuid",
    "maxTaintedShare": "0.5",
}


def uuid(node: str, gpu: int) -> str:
    return f"GPU-{node}-{gpu}"


def resource_slice(node: str) -> Object:
    devices = [
        {
            "name": f"gpu-{gpu}",
            "attributes": {
                "uuid": {"string": uuid(node, gpu)},
                "index": {"int": gpu},
                "resource.kubernetes.io/pciBusID": {"string": f"0000:{gpu:02x}:00.0"},
            },
        }
        for gpu in range(GPUS)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices},
    }


def device_class() -> Object:
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [selector]},
    }


class Temperatures:
    """The temperatures of all GPUs, as an exporter serves them."""

    def __init__(self, exporter: ChangingExporter) -> None:
        self.exporter = exporter
        self._values = {(node, gpu): 40 for node in NODES for gpu in range(GPUS)}
        self.set({})

    def set(self, changes: Mapping[tuple[str, int], int | None]) -> None:
        """Changes some temperatures; None ends the series."""
        for key, value in changes.items():
            if value is None:
                del self._values[key]
            else:
                self._values[key] = value
        self.exporter.text = "".join(
            f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",UUID="{uuid(node, gpu)}",pci_bus_id="00000000:{gpu:02X}:00.0",'
            f'device="nvidia{gpu}",modelName="NVIDIA H100",Hostname="{node}",node="{node}"}} {value}\n'
            for (node, gpu), value in self._values.items()
        )


@pytest.fixture
def temperatures() -> Iterator[Temperatures]:
    with changing_exporter.exporting("") as exporter:
        yield Temperatures(exporter)


@pytest.fixture
def prometheus(
    temperatures: Temperatures, prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> Iterator[PrometheusProcess]:
    server = PrometheusProcess(
        prometheus_programs,
        tmp_path / "prometheus",
        temperatures.exporter.scrape_configuration(),
    )
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> User:
    """The account with the shipped rights."""
    account = native_mode.install_with_account(plane)
    for document in MANIFEST:
        plane.api.ensure(document)
    wait("the fence is active", lambda: _refusal(account, rule_of_others()) or None)
    return account


@pytest.fixture
def cluster(sandbox: Sandbox) -> Sandbox:
    """A cluster with nodes and GPUs."""
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    for node in NODES:
        sandbox.create(resource_slice(node))
    sandbox.create(device_class())
    return sandbox


def rule_of_others(**changes: Object) -> Object:
    spec = {
        "deviceSelector": {"driver": DRIVER, "pool": "n1", "device": "gpu-0"},
        "taint": {"key": "example.com/xid", "effect": "NoSchedule"},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "vendor-rule"},
        "spec": spec,
    } | changes


def _refusal(account: User, rule: Object) -> str:
    """Why a rule may not be created; empty if it may."""
    try:
        account.api.request("POST", RULES, json=rule, params={"dryRun": "All"})
    except ApiError as error:
        return str(error)
    return ""


def put_policy(sandbox: Sandbox, *rules: Object, name: str = "gpus", **spec: object) -> Object:
    body = {"deviceTaints": list(rules), **spec}
    return sandbox.create(
        {
            "apiVersion": "nodewise.io/v1alpha1",
            "kind": "ClusterPlacementPolicy",
            "metadata": {"name": name},
            "spec": body,
        }
    )


def tainted(sandbox: Sandbox, policy: str = "gpus") -> dict[str, str]:
    """The effects by `NODE/DEVICE`."""
    rules = sandbox.api.get(RULES, labelSelector=f"{LABEL}={policy}")["items"]
    return {
        f"{rule['spec']['deviceSelector']['pool']}/{rule['spec']['deviceSelector']['device']}": rule["spec"][
            "taint"
        ]["effect"]
        for rule in rules
    }


def condition(sandbox: Sandbox, kind: str, policy: str = "gpus") -> Object:
    status = sandbox.api.get(f"{POLICIES}/{policy}").get("status", {})
    return next((each for each in status.get("conditions", []) if each["type"] == kind), {})


def wait_tainted(sandbox: Sandbox, expected: Mapping[str, str], policy: str = "gpus") -> float:
    """Waits, and returns how long that took in seconds."""
    start_s = time.monotonic()
    wait(
        f"tainted: {expected}",
        lambda: tainted(sandbox, policy) == expected or None,
        show=lambda: (tainted(sandbox, policy), sandbox.api.get(f"{POLICIES}/{policy}").get("status")),
    )
    return time.monotonic() - start_s


@contextlib.contextmanager
def controller(account: User, prometheus: PrometheusProcess, folder: Path) -> Iterator[object]:
    options = (
        "--native-mode",
        "--namespace=nodewise",
        f"--prometheus-url={prometheus.url}",
        f"--sync-period={PERIOD_S:g}s",
    )
    with extender_process.controller(account, folder, *options) as process:
        yield process


def pod_with_claim(sandbox: Sandbox, name: str, count: int = 1) -> None:
    sandbox.put(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {
                "devices": {
                    "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}]
                }
            },
        }
    )
    pod = kubernetes_objects.pod(name)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    sandbox.put(pod)


def allocated(sandbox: Sandbox, name: str) -> set[str]:
    claim = sandbox.api.get(f"/apis/resource.k8s.io/v1/namespaces/{sandbox.namespace}/resourceclaims/{name}")
    return {
        f"{each['pool']}/{each['device']}" for each in claim["status"]["allocation"]["devices"]["results"]
    }


def test_sick_device_is_tainted_within_two_periods_avoided_and_released(
    cluster: Sandbox,
    account: User,
    temperatures: Temperatures,
    prometheus: PrometheusProcess,
    tmp_path: Path,
) -> None:
    cluster.create(rule_of_others())
    cluster.plane.start_scheduler({})
    put_policy(cluster, HOT)
    with controller(account, prometheus, tmp_path):
        wait("rules are counted", lambda: condition(cluster, "Ready").get("status") == "True" or None)
        temperatures.set({("n1", 0): 95, ("n2", 3): 97})
        scrape_s = 1.0
        assert wait_tainted(cluster, {"n1/gpu-0": "NoSchedule", "n2/gpu-3": "NoSchedule"}) < (
            2 * PERIOD_S + scrape_s
        )
        pod_with_claim(cluster, "all", count=3)
        pod_with_claim(cluster, "rest", count=3)
        cluster.expect_bound("all")
        cluster.expect_bound("rest")
        assert not {"n1/gpu-0", "n2/gpu-3"} & (allocated(cluster, "all") | allocated(cluster, "rest"))
        pod_with_claim(cluster, "waits")
        cluster.expect_rejected("waits")
        temperatures.set({("n1", 0): 85, ("n2", 3): None})
        time.sleep(2 * PERIOD_S)
        assert len(tainted(cluster)) == 2
        temperatures.set({("n2", 3): 70})
        assert wait_tainted(cluster, {"n1/gpu-0": "NoSchedule"}) < 2 * PERIOD_S + scrape_s
        cluster.expect_bound("waits")
        assert allocated(cluster, "waits") == {"n2/gpu-3"}
        wait("the status counts it", lambda: counted(cluster) == 1 or None, show=lambda: counted(cluster))
        cluster.api.delete(f"{POLICIES}/gpus")
        wait_gone(cluster)
    assert [rule["metadata"]["name"] for rule in cluster.api.get(RULES)["items"]] == ["vendor-rule"]


def counted(sandbox: Sandbox, policy: str = "gpus") -> object:
    return sandbox.api.get(f"{POLICIES}/{policy}").get("status", {}).get("taintedDevices")


def wait_gone(sandbox: Sandbox) -> None:
    wait("no device is tainted", lambda: not sandbox.api.get(RULES, labelSelector=LABEL)["items"] or None)
