"""Clients with a certificate of the cluster CA, on a real API server: only a pinned client may bind."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from nodewise.agents.gpu import allocation_record
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand
from tests.cluster import gpu_cluster, kubernetes_objects, namespace_sandboxes
from tests.cluster.api_client import Object
from tests.cluster.certificates import CertificatePair
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.filter_responses import rejected_nodes

EVIL = "system:node:evil"
SELECTOR = {"zone": "elsewhere"}
"""A nodeSelector that no node satisfies, so that kube-scheduler would place the pod on no node."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return CertificateFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def evil(certificates: CertificateFiles) -> CertificatePair:
    """A kubelet's certificate of the same CA, valid for clients and servers."""
    return certificates.authority.issue(EVIL)


@pytest.fixture
def sandbox(plane: ControlPlane) -> Iterator[Sandbox]:
    with namespace_sandboxes.created(plane) as own:
        own.nodes(gpu_cluster.node("g1", cards=2))
        yield own


@contextlib.contextmanager
def serving(
    plane: ControlPlane, folder: Path, certificates: CertificateFiles, *flags: str
) -> Iterator[ExtenderProcess]:
    with gpu_cluster.extender(plane, folder, *flags, certificates=certificates) as running:
        yield running


def call(
    running: ExtenderProcess, pair: CertificatePair, method: str, path: str, body: Object | None = None
) -> httpx2.Response:
    context = running.certificates.authority.client_context(pair)
    with httpx2.Client(verify=context, timeout=60, trust_env=False) as client:
        return client.request(method, f"{running.url}{path}", json=body)


def bind(
    running: ExtenderProcess, pair: CertificatePair, pod: Object, path: str = "/scheduler/bind"
) -> httpx2.Response:
    meta = pod["metadata"]
    names = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"]}
    return call(running, pair, "POST", path, names | {"Node": "g1"})


def node_of(sandbox: Sandbox, pod: Object) -> str:
    stored = sandbox.pod(pod["metadata"]["name"])
    assert stored is not None
    return str(stored["spec"].get("nodeName", ""))


def waiting(sandbox: Sandbox, made: Object) -> Object:
    """Creates a pod that no scheduler places, and returns it as stored."""
    made["spec"] |= {"schedulerName": "nobody", "nodeSelector": SELECTOR}
    sandbox.pods(made)
    pod = sandbox.pod(made["metadata"]["name"])
    assert pod is not None
    return pod


@pytest.mark.parametrize("flags", [(), ("--any-client",)], ids=["pinned", "any client"])
def test_a_client_of_the_cluster_ca_binds_no_pod(
    plane: ControlPlane,
    sandbox: Sandbox,
    certificates: CertificateFiles,
    evil: CertificatePair,
    tmp_path: Path,
    flags: tuple[str, ...],
) -> None:
    pods = [waiting(sandbox, gpu_cluster.pod("cards", 1)), waiting(sandbox, kubernetes_objects.pod("plain"))]
    with serving(plane, tmp_path, certificates, *flags) as running:
        for pod in pods:
            for path in ("/scheduler/bind", "/agents/gpu/bind"):
                answer = bind(running, evil, pod, path)
                assert answer.status_code == 403
                (problem,) = answer.json()["problems"]
                assert EVIL in problem["seen"]
                assert f"--client-name '{EVIL}'" in problem["wanted"]
        for path in ("/decisions", "/state/gpu"):
            assert call(running, evil, "GET", path).status_code == 403
        body = {"Pod": pods[0], "NodeNames": ["g1"]}
        filtered = call(running, evil, "POST", "/scheduler/filter", body)
        assert filtered.status_code == (200 if flags else 403)
    assert [node_of(sandbox, pod) for pod in pods] == ["", ""]
    assert gpu_cluster.allocation_record(sandbox, "g1") == {}


def test_a_pinned_client_binds_only_pods_that_request_something_from_an_agent(
    plane: ControlPlane, sandbox: Sandbox, certificates: CertificateFiles, tmp_path: Path
) -> None:
    plain, cards = (
        waiting(sandbox, kubernetes_objects.pod("plain")),
        waiting(sandbox, gpu_cluster.pod("cards", 1)),
    )
    with serving(plane, tmp_path, certificates) as running:
        refused = bind(running, certificates.client, plain)
        assert refused.status_code == 404
        assert "requests none of gpu.intel.com/i915, gpu.intel.com/xe" in refused.json()["Error"]
        bound = bind(running, certificates.client, cards)
        assert (bound.status_code, bound.json()) == (200, {"Error": ""})
        assert call(running, certificates.client, "GET", "/decisions").status_code == 200
    assert (node_of(sandbox, plain), node_of(sandbox, cards)) == ("", "g1")


def _fill_record(sandbox: Sandbox, size: int) -> None:
    """Fills the allocation record of `g1` to `size` bytes, with an entry that no version of nodewise reads."""
    text = '{"other":{"newer":""}}'
    text = text.replace('""', f'"{"x" * (size - len(text))}"')
    metadata = {"labels": {"nodewise.io/ledger": "gpu"}, "annotations": {"nodewise.io/holdings": text}}
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    if sandbox.api.find(f"{path}/gpu-g1"):
        sandbox.api.patch(f"{path}/gpu-g1", {"metadata": metadata})
        return
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    sandbox.api.create(lease | {"metadata": metadata | {"name": "gpu-g1", "namespace": "default"}})


def test_filter_rejects_a_node_whose_ledger_has_no_room_and_bind_takes_the_one_that_passes(
    plane: ControlPlane, sandbox: Sandbox, certificates: CertificateFiles, tmp_path: Path
) -> None:
    """Nine pods with thousands of empty containers once filled an allocation record, so that every bind failed."""
    evil = gpu_cluster.pod("evil", 1)
    evil["spec"]["containers"] += [{"name": f"empty-{number}", "image": "none"} for number in range(64)]
    evil, first, second = (
        waiting(sandbox, evil),
        waiting(sandbox, gpu_cluster.pod("a", 1)),
        waiting(sandbox, gpu_cluster.pod("b", 1)),
    )
    demand = [ContainerDemand("main", 1, {"gpu.intel.com/i915": 1})]
    room = allocation_record.max_record_bytes(demand, "gpu.intel.com/tiles")
    _fill_record(sandbox, room)
    with serving(plane, tmp_path, certificates) as running:

        def reason(pod: Object) -> str:
            body = {"Pod": pod, "NodeNames": ["g1"]}
            answer = call(running, certificates.client, "POST", "/scheduler/filter", body).json()
            return rejected_nodes(answer).get("g1", "")

        assert "the pod has 65 containers; at most 64" in reason(evil)
        assert bind(running, certificates.client, evil).status_code == 404
        assert reason(first) == ""
        assert bind(running, certificates.client, first).json() == {"Error": ""}
        wait("the record is full", lambda: "at most 258048 bytes" in reason(second) or None)
        assert bind(running, certificates.client, second).json() == {"Error": "will not fit"}
    assert [node_of(sandbox, pod) for pod in (evil, first, second)] == ["", "g1", ""]
