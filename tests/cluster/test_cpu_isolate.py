"""`isolate` without a node agent on a real API server: allocations in the ConfigMap, requests, and the real process."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cpu_tests.conformance import concurrent_isolates, isolate_process
from cpu_tests.conformance.isolate_process import clean, show_command
from cpu_tests.unit.api_client_suite import CONFIG_MAPS, ApiClientSuite
from cpu_tests.unit.store.store_suite import StoreSuite
from nodewise.base.errors import BadSettings, Refused, Unavailable
from nodewise.base.safe_yaml_loader import MOST_FROM_ALIASES
from nodewise.kube.kubeconfig import KubeOptions
from nodewise_cpu import pool_allocations
from nodewise_cpu.cluster.blocking_client import BlockingApiClient
from nodewise_cpu.configmap_store import ConfigMapStore
from nodewise_cpu.workload import service_account_client
from nodewise_cpu.workload.service_account_client import ServiceAccountClient
from tests.cluster import api_user_kubeconfigs, child_processes, kubernetes_objects, skip_conditions
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox
from tests.unit.base.test_safe_yaml_loader import bomb

FAILED = 125
NODE = "node-of-cores"
RIGHTS = [rule("get patch", "configmaps"), rule("get", "pods")]
MOUNT = """
mount -t tmpfs tmpfs /run && mkdir -p "$0" && mount --bind "$1" "$0" && shift && exec "$@"
"""


@pytest.fixture
def space(sandbox: Sandbox) -> str:
    return sandbox.namespace


@pytest.fixture
def account(plane: ControlPlane, space: str, tmp_path: Path) -> Path:
    """The service account files that a kubelet mounts into a pod's containers."""
    folder = tmp_path / "account"
    folder.mkdir()
    token = api_user_kubeconfigs.service_account_token(plane.api, "worker", space)
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_bytes(plane.ca_file.read_bytes())
    (folder / "namespace").write_text(space)
    return folder


def options(plane: ControlPlane) -> KubeOptions:
    return KubeOptions(kubeconfig=str(plane.admin.kubeconfig), kube_qps=1000, kube_burst=1000)


def environment(plane: ControlPlane) -> dict[str, str]:
    host, _, port = plane.url.removeprefix("https://").rpartition(":")
    return {service_account_client.HOST: host, service_account_client.PORT: port}


def allow(plane: ControlPlane, space: str, *rules: Any) -> None:
    api_user_kubeconfigs.grant(plane.api, f"system:serviceaccount:{space}:worker", rules, space)


class TestServiceAccountClientOnReal(ApiClientSuite):
    @pytest.fixture
    def api_client(self, plane: ControlPlane, space: str, account: Path) -> ServiceAccountClient:
        allow(plane, space, rule("*", "*"))
        return ServiceAccountClient(account, environment(plane))


class TestConfigMapStoreOnReal(StoreSuite):
    @pytest.fixture
    def store(self, plane: ControlPlane, space: str) -> Iterator[ConfigMapStore]:
        with BlockingApiClient(options(plane)) as opened:
            yield ConfigMapStore(opened, space, NODE)


def test_a_user_without_rights_is_refused(plane: ControlPlane, space: str, account: Path) -> None:
    with pytest.raises(Refused, match="403"):
        ServiceAccountClient(account, environment(plane)).get(CONFIG_MAPS.path(space, "a"))
    (account / "token").write_text("no token")
    with pytest.raises(Refused, match="401"):
        ServiceAccountClient(account, environment(plane)).get(CONFIG_MAPS.path(space, "a"))


def test_no_answer_is_unavailable(plane: ControlPlane, space: str, account: Path) -> None:
    nobody = environment(plane) | {service_account_client.PORT: str(child_processes.free_port())}
    with pytest.raises(Unavailable, match="refused"):
        ServiceAccountClient(account, nobody).get(CONFIG_MAPS.path(space, "a"))


def test_another_authority_is_not_believed(
    plane: ControlPlane, space: str, account: Path, tmp_path: Path
) -> None:
    (account / "ca.crt").write_bytes(CertificateAuthority(tmp_path).ca_file.read_bytes())
    with pytest.raises(Unavailable, match="certificate verify failed"):
        ServiceAccountClient(account, environment(plane)).get(CONFIG_MAPS.path(space, "a"))


def test_error_outside_of_pods_has_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="node agent"):
        ServiceAccountClient(tmp_path, {})


class PodProcesses:
    """Processes with the environment of a pod's containers, in the PID namespace of the host."""

    def __init__(self, plane: ControlPlane, sandbox: Sandbox, account: Path) -> None:
        self._account = account
        self.space = sandbox.namespace
        pod = kubernetes_objects.pod("worker-1")
        pod["spec"]["nodeName"] = NODE
        sandbox.put(pod)
        self.environment = environment(plane) | {"HOSTNAME": "worker-1", "CMK_PROC_FS": "/proc"}

    def words(self, *words: str) -> list[str]:
        isolate = [
            sys.executable,
            "-m",
            "nodewise_cpu.cmk",
            "isolate",
            f"--namespace={self.space}",
            *words,
        ]
        return [
            "unshare",
            "--mount",
            "sh",
            "-c",
            MOUNT,
            str(service_account_client.ACCOUNT),
            str(self._account),
            *isolate,
        ]

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.words(*words),
            env=clean(self.environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, errors = process.communicate(timeout=isolate_process.PATIENCE_S)
        return process.returncode, out, errors


@pytest.fixture
def pod(plane: ControlPlane, sandbox: Sandbox, account: Path) -> PodProcesses:
    if os.geteuid() != 0 or not {0, 1} <= os.sched_getaffinity(0):
        skip_conditions.not_run("a mount takes root, and isolate CPUs 0 and 1")
    return PodProcesses(plane, sandbox, account)


@pytest.fixture
def store(plane: ControlPlane, space: str) -> Iterator[ConfigMapStore]:
    with BlockingApiClient(options(plane)) as opened:
        store = ConfigMapStore(opened, space, NODE)
        store.create(
            pool_allocations.allocations_without_tasks(
                {"exclusive": {0: ("0", "1")}, "shared": {0: ("1",)}, "infra": {0: ("0",)}}
            )
        )
        yield store


def test_a_pod_with_rights_of_its_own_needs_no_agent(
    plane: ControlPlane, pod: PodProcesses, store: ConfigMapStore, space: str
) -> None:
    allow(plane, space, *RIGHTS)
    free = store.read().allocations
    code, out, errors = pod.run("--pool=exclusive", *show_command())
    assert (code, errors) == (0, "")
    assert json.loads(out)["cpus"] == [0]
    assert store.read().allocations == free


def test_many_at_once_share_two_cpus(
    plane: ControlPlane, pod: PodProcesses, store: ConfigMapStore, space: str
) -> None:
    """Case 102: after a conflict, `isolate` reads the ConfigMap again."""
    allow(plane, space, *RIGHTS)
    free = store.read().allocations
    all_of_them = [pod.start("--pool=exclusive", "--wait=2m", *show_command()) for _ in range(8)]
    outcomes = [process.communicate(timeout=120) for process in all_of_them]
    assert [process.returncode for process in all_of_them] == [0] * 8, outcomes
    assert {json.dumps(json.loads(out)["cpus"]) for out, _ in outcomes} <= {"[0]", "[1]"}
    assert store.read().allocations == free


class PodIsolates(NamedTuple):
    """`isolate` processes of a pod, and the store that they write to."""

    pod: PodProcesses
    store: ConfigMapStore

    def words(self, *more: str) -> list[str]:
        return self.pod.words(*more)


def test_no_cpu_has_two_owners_whoever_is_killed(
    plane: ControlPlane, pod: PodProcesses, store: ConfigMapStore, space: str, tmp_path: Path
) -> None:
    allow(plane, space, *RIGHTS)
    store.replace(store.read().version, concurrent_isolates.fresh())
    many = concurrent_isolates.ConcurrentIsolates(
        PodIsolates(pod, store), tmp_path, random.Random(8), pod.environment
    )
    concurrent_isolates.check_isolation(many, store)


def test_without_rights_or_a_state_it_says_so(plane: ControlPlane, pod: PodProcesses, space: str) -> None:
    code, _, errors = pod.run("--pool=exclusive", "true")
    assert (code, "--node-name" in errors, "403" in errors) == (FAILED, True, True)
    code, _, errors = pod.run("--pool=exclusive", f"--node-name={NODE}", "true")
    assert (code, "403" in errors) == (FAILED, True)
    allow(plane, space, *RIGHTS)
    code, _, errors = pod.run("--pool=exclusive", "true")
    assert (code, f'configmaps "cmk-config-{NODE}" not found' in errors) == (FAILED, True)


def test_aliases_that_multiply_in_the_pools_are_refused_before_they_are_expanded(
    plane: ControlPlane, pod: PodProcesses, store: ConfigMapStore, space: str
) -> None:
    allow(plane, space, *RIGHTS)
    path = CONFIG_MAPS.path(space, store.location.rpartition("/")[2])
    plane.api.patch(path, {"data": {"config": bomb(9)}})
    code, _, errors = pod.run("--pool=exclusive", "true")
    assert code == FAILED
    assert f"cannot read {store.location}: config: document 1, line 5, column 5: found aliases" in errors
    assert f"expected at most {MOST_FROM_ALIASES} more" in errors
