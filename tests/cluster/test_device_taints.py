"""Device taints on a real API server, kube-scheduler and Prometheus with series in the form of DCGM."""

import contextlib
import random
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from nodewise.kube import shard_election
from tests import short_and_long_case_counts
from tests.cluster import (
    changing_exporter,
    debian_packages,
    device_objects,
    extender_process,
    kubernetes_objects,
    native_mode,
)
from tests.cluster.api_client import ApiError, ClusterApi, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.changing_exporter import ChangingExporter
from tests.cluster.controlplane import ControlPlane
from tests.cluster.device_objects import DRIVER
from tests.cluster.killed_leaders import LEASE, ControllerReplicas, StateComparison, wait_for_leader
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.prometheus_process import PrometheusProcess
from tests.cluster.test_network_faults import events

pytestmark = pytest.mark.kubernetes_versions(oldest=36)

DEVICE_TAINTS: Final = extender_process.manifest("device-taints.yaml")
RULES: Final = f"/apis/{device_objects.TAINT_RULE_VERSION}/devicetaintrules"
POLICIES: Final = "/apis/nodewise.io/v1alpha1/clusterplacementpolicies"
LEASES: Final = LEASE.rpartition("/")[0]
LABEL: Final = "nodewise.io/device-policy"
NODES: Final = ("n1", "n2")
GPUS: Final = 4
SCRAPE_S: Final = 1.0
PERIOD_S: Final = 2.0
KILLS: Final = short_and_long_case_counts.of(3, 50)
SEED: Final = 39
TRIES: Final = 3
"""Number of attempts, since a stalled machine may spoil one."""
KILL_PERIOD_S: Final = 10.0
"""Three periods are longer than the Lease of a killed leader and the start of another process."""
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


def slice_of(node: str) -> Object:
    devices = [
        device_objects.device(
            f"gpu-{gpu}",
            attributes={
                "uuid": uuid(node, gpu),
                "index": gpu,
                "resource.kubernetes.io/pciBusID": f"0000:{gpu:02x}:00.0",
            },
        )
        for gpu in range(GPUS)
    ]
    return device_objects.resource_slice(node, devices)


class Temperatures:
    """The temperatures of all GPUs, as an exporter serves them."""

    def __init__(self, exporter: ChangingExporter) -> None:
        self.exporter = exporter
        self.values = {(node, gpu): 40 for node in NODES for gpu in range(GPUS)}
        self.set({})

    def set(self, changes: Mapping[tuple[str, int], int | None]) -> None:
        """Changes some temperatures; None ends the series."""
        merged = {**self.values, **changes}
        self.values = {key: value for key, value in merged.items() if value is not None}
        self.exporter.text = "".join(
            f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",UUID="{uuid(node, gpu)}",pci_bus_id="00000000:{gpu:02X}:00.0",'
            f'device="nvidia{gpu}",modelName="NVIDIA H100",Hostname="{node}",node="{node}"}} {value}\n'
            for (node, gpu), value in self.values.items()
        )


@pytest.fixture
def temperatures() -> Iterator[Temperatures]:
    with changing_exporter.exporting("") as exporter:
        yield Temperatures(exporter)


@pytest.fixture
def prometheus(
    temperatures: Temperatures, prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> Iterator[PrometheusProcess]:
    scraping = temperatures.exporter.scrape_configuration(f"{SCRAPE_S:g}s")
    server = PrometheusProcess(prometheus_programs, tmp_path / "prometheus", scraping)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> User:
    """The account with the shipped rights."""
    account = native_mode.install_with_account(plane)
    for document in DEVICE_TAINTS:
        plane.api.ensure(document)
    wait(
        "the policy is active",
        lambda: refusal(account, rule()) == "" or None,
        show=lambda: refusal(account, rule()),
    )
    wait("the policy denies", lambda: refusal(account, rule(name="vendor")) or None)
    return account


@pytest.fixture
def cluster(sandbox: Sandbox) -> Sandbox:
    """A cluster with nodes and GPUs."""
    sandbox.nodes(*map(kubernetes_objects.node, NODES))
    for node in NODES:
        sandbox.create(slice_of(node))
    sandbox.create(device_objects.device_class())
    return sandbox


def rule(
    name: str = "nodewise-x",
    label: str = "x",
    value: str = "x",
    effect: str = "NoSchedule",
    key: str = LABEL,
    **selector: str,
) -> Object:
    """A DeviceTaintRule in the form of nodewise's."""
    selector = selector or {"driver": DRIVER, "pool": "n1", "device": "gpu-0"}
    body = device_objects.taint_rule(name, effect=effect, key=key, **selector)
    body["metadata"]["labels"] = {LABEL: label} if label else {}
    body["spec"]["taint"]["value"] = value
    return body


def refusal(account: User, body: Object) -> str:
    """Why a rule may not be created; empty if it may."""
    try:
        account.api.request("POST", RULES, json=body, params={"dryRun": "All"})
    except ApiError as error:
        return str(error)
    return ""


def put_policy(sandbox: Sandbox, *rules: Object, name: str = "gpus", **spec: Any) -> Object:
    return sandbox.create(
        {
            "apiVersion": "nodewise.io/v1alpha1",
            "kind": "ClusterPlacementPolicy",
            "metadata": {"name": name},
            "spec": {"deviceTaints": list(rules), **spec},
        }
    )


def tainted(api: ClusterApi, policy: str = "gpus") -> dict[tuple[str, str], str]:
    """The effects by pool and device."""
    rules = api.get(RULES, labelSelector=f"{LABEL}={policy}")["items"]
    selectors = [(each["spec"]["deviceSelector"], each["spec"]["taint"]["effect"]) for each in rules]
    return {(selector["pool"], selector["device"]): effect for selector, effect in selectors}


def status(sandbox: Sandbox, policy: str = "gpus") -> Any:
    return sandbox.api.get(f"{POLICIES}/{policy}").get("status", {})


def condition(sandbox: Sandbox, kind: str, policy: str = "gpus") -> str:
    """The message of a condition that applies; empty otherwise."""
    conditions = status(sandbox, policy).get("conditions", [])
    return next(
        (each["message"] for each in conditions if each["type"] == kind and each["status"] == "True"), ""
    )


def wait_tainted(sandbox: Sandbox, *expected: str, policy: str = "gpus") -> float:
    """Waits until these devices, `POOL/DEVICE`, are tainted and no others; returns how long that took in seconds."""
    start_s = time.monotonic()
    wait(
        f"tainted: {expected}",
        lambda: {"/".join(device) for device in tainted(sandbox.api, policy)} == {*expected} or None,
        show=lambda: (tainted(sandbox.api, policy), status(sandbox, policy)),
    )
    return time.monotonic() - start_s


def options(prometheus: PrometheusProcess, period_s: float = PERIOD_S) -> tuple[str, ...]:
    url = f"--prometheus-url={prometheus.url}"
    return ("--native-mode", "--namespace=nodewise", url, f"--sync-period={period_s:g}s")


@contextlib.contextmanager
def controller(account: User, prometheus: PrometheusProcess, folder: Path) -> Iterator[None]:
    with extender_process.controller(account, folder, *options(prometheus)):
        yield


def claiming_pod(sandbox: Sandbox, name: str, count: int = 1) -> None:
    sandbox.put(device_objects.claim(name, device_objects.request(count=count)))
    sandbox.put(device_objects.claiming_pod(name, name))


def allocated(sandbox: Sandbox, name: str) -> set[str]:
    path = f"/apis/resource.k8s.io/v1/namespaces/{sandbox.namespace}/resourceclaims/{name}"
    return {"/".join(device[1:]) for device in device_objects.allocated(sandbox.api.get(path))}


def test_sick_device_is_tainted_within_two_periods_avoided_and_released(
    cluster: Sandbox, account: User, temperatures: Temperatures, prometheus: PrometheusProcess, tmp_path: Path
) -> None:
    cluster.create(device_objects.taint_rule("vendor-rule", driver="other.example.com", device="gpu-0"))
    cluster.plane.start_scheduler({})
    put_policy(cluster, HOT)
    with controller(account, prometheus, tmp_path):
        wait("devices are counted", lambda: status(cluster).get("taintedDevices") == 0 or None)
        wait(
            "all are scraped", lambda: prometheus.ask("DCGM_FI_DEV_GPU_TEMP") or None, show=prometheus.targets
        )
        took_s: list[float] = []
        while len(took_s) < TRIES and (not took_s or took_s[-1] >= 2 * PERIOD_S + SCRAPE_S):
            temperatures.set({("n1", 0): 40, ("n2", 3): 40})
            wait_tainted(cluster)
            temperatures.set({("n1", 0): 95, ("n2", 3): 97})
            took_s.append(wait_tainted(cluster, "n1/gpu-0", "n2/gpu-3"))
        assert took_s[-1] < 2 * PERIOD_S + SCRAPE_S, took_s
        for name, count in (("first", 3), ("second", 3)):
            claiming_pod(cluster, name, count)
            cluster.expect_bound(name)
            assert not {"n1/gpu-0", "n2/gpu-3"} & allocated(cluster, name)
        claiming_pod(cluster, "waits")
        cluster.expect_rejected("waits")
        temperatures.set({("n1", 0): 85, ("n2", 3): None})
        time.sleep(2 * PERIOD_S)
        assert len(tainted(cluster.api)) == 2, "between release and the value, and without a series"
        temperatures.set({("n2", 3): 70})
        wait_tainted(cluster, "n1/gpu-0")
        cluster.expect_bound("waits")
        assert allocated(cluster, "waits") == {"n2/gpu-3"}
        wait("the status counts", lambda: status(cluster)["taintedDevices"] == 1 or None)
        assert "DEVICES TAINTED" in cluster.plane.kubectl("get", "cplp")
        cluster.api.delete(f"{POLICIES}/gpus")
        wait("no rule is left", lambda: not tainted(cluster.api) or None)
    assert [each["metadata"]["name"] for each in cluster.api.get(RULES)["items"]] == ["vendor-rule"]


def test_missing_rights_are_reported_with_their_remedy(
    cluster: Sandbox, account: User, temperatures: Temperatures, prometheus: PrometheusProcess, tmp_path: Path
) -> None:
    (binding,) = (each for each in DEVICE_TAINTS if each["kind"] == "ClusterRoleBinding")
    cluster.api.delete(path_of(binding))
    try:
        put_policy(cluster, HOT)
        temperatures.set({("n1", 0): 95})
        with controller(account, prometheus, tmp_path):
            refused = wait("the taint is refused", lambda: condition(cluster, "DeviceTaintsRefused") or None)
    finally:
        cluster.api.ensure(binding)
    assert refused.endswith("; remedy: apply what nodewise configure manifests device-taints prints")


def test_policies_with_other_identities_effects_and_problems(
    cluster: Sandbox, account: User, temperatures: Temperatures, prometheus: PrometheusProcess, tmp_path: Path
) -> None:
    """All policies run at once, because a controller takes seconds to start."""
    pci = {"deviceLabel": "pci_bus_id", "deviceAttribute": "resource.kubernetes.io/pciBusID"}
    put_policy(cluster, HOT | {"deviceLabel": "gpu", "deviceAttribute": "index"}, name="by-index")
    put_policy(cluster, HOT | pci, name="by-pci")
    put_policy(cluster, HOT | {"effect": "NoExecute"}, name="evicts")
    put_policy(cluster, HOT, name="observes", mode="Shadow")
    put_policy(cluster, HOT | {"deviceAttribute": "uid"}, name="misspelt")
    put_policy(cluster, HOT | {"deviceLabel": "uuid"}, name="mislabelled")
    put_policy(cluster, HOT, name="gpus")
    names = ("gpus", "by-index", "by-pci")
    temperatures.set({("n2", 1): 99})
    with controller(account, prometheus, tmp_path):
        for name in names:
            wait_tainted(cluster, "n2/gpu-1", policy=name)
        refused = wait(
            "NoExecute is refused", lambda: condition(cluster, "DeviceTaintsRefused", "evicts") or None
        )
        assert "ClusterRole nodewise-device-eviction is bound" in refused
        unmatched = wait(
            "the attribute is reported", lambda: condition(cluster, "DevicesUnmatched", "misspelt") or None
        )
        assert unmatched.endswith('found index, resource.kubernetes.io/pciBusID, uuid; did you mean "uuid"?')
        wait(
            "the label is reported",
            lambda: "remedy: set deviceLabel: UUID" in str(status(cluster, "mislabelled")) or None,
            show=lambda: status(cluster, "mislabelled"),
        )
        wait("Shadow counts", lambda: status(cluster, "observes").get("wouldTaintDevices") == 1 or None)
        assert [status(cluster, name)["taintedDevices"] for name in ("observes", "evicts")] == [0, 0]
        assert not tainted(cluster.api, "observes")
        # who stops the policy does not need the controller's help to see which devices are free
        cluster.api.patch(f"{POLICIES}/by-index", {"spec": {"deviceTaints": None, "nodeLabels": NODE_LABELS}})
        wait("its taints are gone", lambda: not tainted(cluster.api, "by-index") or None)
        cluster.api.delete(f"{RULES}/{rule_name(cluster, 'by-pci')}")
        wait_tainted(cluster, "n2/gpu-1", policy="by-pci")


def test_one_of_two_replicas_with_shards_taints_devices_of_all_nodes_and_is_followed(
    cluster: Sandbox, account: User, temperatures: Temperatures, prometheus: PrometheusProcess, tmp_path: Path
) -> None:
    put_nodes_in_two_shards(cluster)
    put_policy(cluster, HOT)
    temperatures.set({("n1", 0): 99, ("n2", 3): 99})
    start = partial(
        extender_process.controller, account, tmp_path, *options(prometheus, KILL_PERIOD_S), "--shards=2"
    )
    with start() as first, start() as second:
        wait_tainted(cluster, "n1/gpu-0", "n2/gpu-3")
        leader, other = sorted((first, second), key=lambda process: -len(events(process, "device_tainted")))
        holders = [LEASE, *(f"{LEASES}/{shard_election.shard_lease(shard)}" for shard in range(2))]
        wait(
            "each replica holds a shard",
            lambda: len({holder(cluster.api, lease) for lease in holders[1:]} - {""}) == 2 or None,
        )
        assert [len(events(process, "device_tainted")) for process in (leader, other)] == [2, 0]
        leader.kill()
        temperatures.set({("n1", 0): 40, ("n1", 1): 99})
        wait_tainted(cluster, "n1/gpu-1", "n2/gpu-3")
        assert len(events(other, "device_tainted")) == len(events(other, "device_taint_removed")) == 1
        wait(
            "one replica holds all",
            lambda: len({holder(cluster.api, lease) for lease in holders}) == 1 or None,
        )


def put_nodes_in_two_shards(sandbox: Sandbox) -> None:
    """Creates the second node again until its uid belongs to another shard than that of the first."""

    def shards() -> list[int]:
        nodes = (sandbox.api.get(f"/api/v1/nodes/{name}") for name in NODES)
        return [shard_election.shard_of(node["metadata"]["uid"], 2) for node in nodes]

    while len({*shards()}) == 1:
        sandbox.api.delete(f"/api/v1/nodes/{NODES[1]}")
        sandbox.nodes(kubernetes_objects.node(NODES[1]))


def holder(api: ClusterApi, lease: str) -> str:
    return str((api.find(lease) or {}).get("spec", {}).get("holderIdentity") or "")


NODE_LABELS: Final = [{"metric": "temp", "above": 1, "labels": {"gpu.nodewise.io/hot": "true"}}]


def rule_name(sandbox: Sandbox, policy: str) -> str:
    (item,) = sandbox.api.get(RULES, labelSelector=f"{LABEL}={policy}")["items"]
    return str(item["metadata"]["name"])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (rule(name="vendor"), "found a DeviceTaintRule of others"),
        (rule(label=""), "found a DeviceTaintRule of others"),
        (rule(driver=DRIVER, pool="n1"), "found a DeviceTaintRule for several devices"),
        (rule(pool="n1", device="gpu-0"), "found a DeviceTaintRule for several devices"),
        (rule(value="y"), "found another taint"),
        (rule(key="example.com/x"), "found another taint"),
        (rule(effect="NoExecute"), "found an effect other than NoSchedule"),
        (rule(effect="None"), "found an effect other than NoSchedule"),
    ],
)
def test_account_may_not_write(account: User, body: Object, expected: str) -> None:
    assert expected in refusal(account, body)


def test_account_may_not_change_rules_of_others(cluster: Sandbox, account: User) -> None:
    cluster.create(device_objects.taint_rule("nodewise-of-others", driver="other.example.com"))
    path = f"{RULES}/nodewise-of-others"
    with pytest.raises(ApiError, match="found a DeviceTaintRule of others"):
        account.api.request("DELETE", path)
    with pytest.raises(ApiError, match="found a DeviceTaintRule of others"):
        account.api.patch(path, {"metadata": {"labels": {LABEL: "x"}}, "spec": rule()["spec"]})


def test_only_sick_devices_are_tainted_while_leaders_are_killed(
    cluster: Sandbox, account: User, temperatures: Temperatures, prometheus: PrometheusProcess, tmp_path: Path
) -> None:
    chance, comparison = random.Random(SEED), StateComparison(cluster.plane, tainted)
    put_policy(cluster, HOT)
    killed = ""
    with contextlib.ExitStack() as stack:
        replicas = ControllerReplicas(account, tmp_path, stack, options(prometheus, KILL_PERIOD_S))
        wait("devices are counted", lambda: status(cluster).get("taintedDevices") == 0 or None)
        stack.enter_context(comparison)
        for _ in range(KILLS):
            holder = wait_for_leader(cluster.api, killed)
            sick = chance.sample(
                sorted(temperatures.values), chance.randint(0, len(temperatures.values) // 2)
            )
            temperatures.set({key: 99 if key in sick else 40 for key in temperatures.values})
            comparison.expected = {(node, f"gpu-{gpu}"): "NoSchedule" for node, gpu in sick}
            time.sleep(chance.uniform(0, KILL_PERIOD_S / 2))
            replicas.kill(holder)
            killed = holder
            wait("taints are right", lambda: comparison.is_right() or None, show=comparison.wrong)
        print(f"longest difference {comparison.longest_s:.1f} s in {KILLS} kills")
        assert comparison.longest_s < 3 * KILL_PERIOD_S
