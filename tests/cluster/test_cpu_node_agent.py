"""Node agents with the shipped rights on a real API server, and writes that the rights do not allow."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, LABEL
from tests.cluster import (
    admission_policy_waits,
    extender_process,
    kubernetes_objects,
    rbac_rights_comparison,
    skip_conditions,
)
from tests.cluster.api_client import ApiError, ClusterApi, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import wait
from tests.node import temporary_cgroups

NAMESPACE = "cmk-namespace"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:cmk-agent"
NODES = ("n1", "n2.example")
REPORTS = f"/apis/intel.com/v1/namespaces/{NAMESPACE}"
CMK = Path(sys.executable).parent / "cmk"
FIRST, SECOND = "1" * 64, "2" * 64
PATIENCE_S = 60.0


class CpuAgentNode(NamedTuple):
    """A node, its agent, and the service account of the agent."""

    node: str
    account: User
    agent: Process
    socket: Path


class TwoNodeCluster(NamedTuple):
    """Two Node objects for this machine, so that no right is limited to one node."""

    plane: ControlPlane
    log: AuditLog
    places: Sequence[CpuAgentNode]

    @property
    def api(self) -> ClusterApi:
        return self.plane.api

    def config_map(self, node: str) -> Object:
        return self.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/cmk-config-{node}")

    def is_free(self, node: str) -> bool | None:
        return "exclusive:\n  0:\n    '0': []" in self.config_map(node)["data"]["config"] or None


@pytest.fixture(scope="module")
def cluster(
    plane: ControlPlane, audit_log: AuditLog, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoNodeCluster]:
    folder = tmp_path_factory.mktemp("agents")
    with contextlib.ExitStack() as stack:
        for name in ("crds/cmk-reports.yaml", "cpu.yaml", "cpu-agent.yaml"):
            plane.kubectl("apply", "-f", str(extender_process.ROOT / "deploy" / name))
        wait("reports are served", lambda: plane.api.answers(f"{REPORTS}/cmk-nodereports") or None)
        places = [_place(plane, node, folder, stack) for node in NODES]
        for place in places:
            place.agent.wait_ready(place.socket.exists)
        another = f"/api/v1/nodes/{NODES[1]}", {"metadata": {"labels": {LABEL: "false"}}}
        admission_policy_waits.wait_denied(
            lambda: admission_policy_waits.try_patch(places[0].account.api, *another)
        )
        yield TwoNodeCluster(plane, audit_log, places)


def _place(plane: ControlPlane, node: str, folder: Path, stack: contextlib.ExitStack) -> CpuAgentNode:
    plane.api.create(kubernetes_objects.node(node))
    pod = kubernetes_objects.pod(f"agent-{node}")
    pod["metadata"]["namespace"] = NAMESPACE
    pod["spec"] |= {"nodeName": node, "serviceAccountName": "cmk-agent"}
    account = plane.pod_account(plane.api.create(pod))
    where = [f"--node-name={node}", f"--namespace={NAMESPACE}"]
    init = [extender_process.NODEWISE, "cpu", "init", *where, f"--kubeconfig={plane.admin.kubeconfig}"]
    subprocess.run(
        [*init, "--num-exclusive-cores=1", "--num-shared-cores=0"], check=True, capture_output=True
    )
    path = folder / f"run-{node}/cpu.sock"
    command = [
        extender_process.NODEWISE,
        "cpu",
        "agent",
        *where,
        f"--kubeconfig={account.kubeconfig}",
        f"--socket={path}",
    ]
    process = Process(
        [*command, "--health-port=0", "--interval=1s", "--proc-fs=/proc"], folder / f"{node}.log"
    )
    stack.callback(process.stop)
    return CpuAgentNode(node, account, process, path)


@contextlib.contextmanager
def _containers(
    cluster: TwoNodeCluster, place: CpuAgentNode, name: str, *requested: int
) -> Iterator[list[Path]]:
    """Creates a pod and yields the cgroups of its containers, which request these numbers of exclusive cores. No
    kubelet runs.
    """
    pod = kubernetes_objects.pod(name)
    main = pod["spec"]["containers"][0]
    pod["spec"]["containers"] = [
        {
            **main,
            "name": f"c{at}",
            "resources": {kind: {EXCLUSIVE_CORES: str(count)} for kind in ("requests", "limits")},
        }
        if count
        else {**main, "name": f"c{at}"}
        for at, count in enumerate(requested)
    ]
    pod["metadata"]["namespace"] = "default"
    pod["spec"]["nodeName"] = place.node
    uid = cluster.api.create(pod)["metadata"]["uid"]
    ids = (FIRST, SECOND)[: len(requested)]
    statuses = [
        {
            "name": f"c{at}",
            "containerID": f"containerd://{container_id}",
            "image": "",
            "imageID": "",
            "ready": True,
            "restartCount": 0,
        }
        for at, container_id in enumerate(ids)
    ]
    if len(ids) > 1:
        cluster.api.patch(
            f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"containerStatuses": statuses}}
        )
    with contextlib.ExitStack() as stack:
        stack.callback(_deleted, cluster.api, f"/api/v1/namespaces/default/pods/{name}")
        folders = [_hierarchy() / f"kubepods-{name}" / f"pod{uid}" / container_id for container_id in ids]
        for folder in folders:
            try:
                folder.mkdir(parents=True)
            except OSError as error:
                skip_conditions.not_run(f"no cgroup can be made here: {error}")
        for folder in (folders[0].parents[1], folders[0].parent, *folders):
            stack.callback(_removed, folder)
        yield folders


def _deleted(api: ClusterApi, path: str) -> None:
    with contextlib.suppress(httpx2.TransportError):  # one test stops the API server
        api.delete(path)


def _hierarchy() -> Path:
    hierarchies = [
        hierarchy.place
        for hierarchy in temporary_cgroups.hierarchies()
        if hierarchy.version == 2 or "pids" in hierarchy.options
    ]
    if not hierarchies:
        skip_conditions.not_run("cgroups are not mounted")
    return hierarchies[0]


def _removed(folder: Path) -> None:
    def gone() -> bool | None:
        for pid in _inside(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            folder.rmdir()
        return not folder.exists() or None

    wait(f"{folder} is empty", gone)


def _isolate(
    place: CpuAgentNode, inside: Path, *command: str, options: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Starts `isolate` in a container's cgroup."""
    words = [CMK, "isolate", "--pool=exclusive", f"--agent-socket={place.socket}", *options]
    program = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    return subprocess.Popen(
        ["sh", "-c", program, inside, *words, command[0], "--", *command[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_container_gets_no_more_than_its_request(cluster: TwoNodeCluster) -> None:
    place = cluster.places[0]
    with _containers(cluster, place, "one", 1) as (inside,):
        first = _isolate(place, inside, "cat")
        wait(
            "it is told in the ConfigMap",
            lambda: f"'{first.pid}'" in str(cluster.config_map(place.node)) or None,
        )
        second = _isolate(place, inside, "true")
        _, stderr = second.communicate()
        assert second.returncode == 125
        assert "1 held and 1 more wanted; expected at most 1, which its container requests" in stderr
        first.communicate("")
        assert first.returncode == 0
    assert cluster.is_free(place.node)


def test_a_container_that_requested_nothing_gets_nothing(cluster: TwoNodeCluster) -> None:
    place = cluster.places[0]
    with _containers(cluster, place, "two", 0, 1) as (without, with_one):
        refused = _isolate(place, without, "true")
        assert "expected at most 0, which its container requests" in refused.communicate()[1]
        process = _isolate(place, with_one, "true")
        process.communicate()
        assert (refused.returncode, process.returncode) == (125, 0)


def test_a_process_outside_of_pods_gets_nothing_of_the_exclusive_pool(cluster: TwoNodeCluster) -> None:
    place = cluster.places[0]
    ran = subprocess.run(
        [CMK, "isolate", "--pool=exclusive", f"--agent-socket={place.socket}", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 125
    assert "runs in no container of a pod" in ran.stderr


def test_a_pod_of_another_node_gets_nothing(cluster: TwoNodeCluster) -> None:
    first, other = cluster.places
    with _containers(cluster, other, "elsewhere", 1) as (inside,):
        ran = _isolate(first, inside, "true")
        assert "not among the node's pods" in ran.communicate()[1]
        assert ran.returncode == 125


def test_node_and_reports_show_the_current_state(cluster: TwoNodeCluster) -> None:
    for place in cluster.places:
        node = wait(
            f"{place.node} is labelled and advertises its core",
            lambda place=place: _labelled(cluster.api, place.node),
        )
        assert {"key": "cmk", "value": "true", "effect": "NoSchedule"} in node["spec"]["taints"]
        path = f"{REPORTS}/cmk-nodereports/{place.node.replace('.', '-')}"
        report = wait("the report is written", lambda path=path: cluster.api.find(path))["spec"]["report"]
        assert report["checks"]["configDirectory"] == {"ok": True, "errors": []}


def _labelled(api: ClusterApi, name: str) -> Object | None:
    node = api.get(f"/api/v1/nodes/{name}")
    labelled = node["metadata"]["labels"].get(LABEL) == "true" and node["spec"].get("taints")
    return node if labelled and node["status"]["capacity"].get(EXCLUSIVE_CORES) == "1" else None


def test_a_kubelet_that_takes_the_cores_back_is_put_right(cluster: TwoNodeCluster) -> None:
    """The agent advertises the cores again after half a minute at most, or as soon as it starts."""
    place = cluster.places[1]
    path = f"/api/v1/nodes/{place.node}"
    wait("the cores are advertised", lambda: _labelled(cluster.api, place.node))
    cluster.api.patch(f"{path}/status", {"status": {"capacity": {EXCLUSIVE_CORES: "0"}}})
    wait(
        "the agent advertises the cores again",
        lambda: cluster.api.get(path)["status"]["capacity"][EXCLUSIVE_CORES] == "1" or None,
        120,
    )


def test_nothing_is_written_while_nothing_happens(cluster: TwoNodeCluster) -> None:
    def writes() -> int:
        return sum(request.verb not in {"get", "list"} for request in cluster.log.requests(ACCOUNT))

    def sweeps() -> int:
        return sum(
            "cmk-config" in request.path and request.verb == "get"
            for request in cluster.log.requests(ACCOUNT)
        )

    for place in cluster.places:
        wait("all is free", lambda place=place: cluster.is_free(place.node))
        wait("the cores are advertised", lambda place=place: _labelled(cluster.api, place.node))
    seen = [-1, writes()]
    while seen[-1] != seen[-2]:  # what the tests before changed is still written
        assert len(seen) < 6, seen
        swept = sweeps()
        wait("the agents sweep", lambda swept=swept: sweeps() > swept + 12 or None)  # type: ignore[misc]
        seen.append(writes())


FORBIDDEN: dict[str, tuple[str, str, Any]] = {
    "another node's label": ("PATCH", "/api/v1/nodes/n2.example", {"metadata": {"labels": {LABEL: "false"}}}),
    "another node's capacity": (
        "PATCH",
        "/api/v1/nodes/n2.example/status",
        {"status": {"capacity": {EXCLUSIVE_CORES: "9"}}},
    ),
    "another node's state": (
        "PATCH",
        f"/api/v1/namespaces/{NAMESPACE}/configmaps/cmk-config-n2.example",
        {"data": {"config": ""}},
    ),
    "another ConfigMap": ("PATCH", f"/api/v1/namespaces/{NAMESPACE}/configmaps/other", {"data": {"a": "b"}}),
    "another node's report": (
        "POST",
        f"{REPORTS}/cmk-nodereports",
        {
            "apiVersion": "intel.com/v1",
            "kind": "Cmk-nodereport",
            "metadata": {"name": "n3"},
            "spec": {"report": {"checks": {}, "topology": {}}},
        },
    ),
    "a label of somebody else": ("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"zone": "a"}}}),
    "a label taken away": (
        "PATCH",
        "/api/v1/nodes/n1",
        {"metadata": {"labels": {"kubernetes.io/hostname": None}}},
    ),
    "another value of its label": ("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {LABEL: "false"}}}),
    "a finalizer": ("PATCH", "/api/v1/nodes/n1", {"metadata": {"finalizers": ["a.example/b"]}}),
    "an owner": (
        "PATCH",
        "/api/v1/nodes/n1",
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}]}},
    ),
    "a name's prefix": ("PATCH", "/api/v1/nodes/n1", {"metadata": {"generateName": "n"}}),
    "a provider's id": ("PATCH", "/api/v1/nodes/n1", {"spec": {"providerID": "x://y"}}),
    "images": ("PATCH", "/api/v1/nodes/n1/status", {"status": {"images": [{"names": ["evil"]}]}}),
    "an annotation": ("PATCH", "/api/v1/nodes/n1", {"metadata": {"annotations": {"a": "b"}}}),
    "a label by way of the status": (
        "PATCH",
        "/api/v1/nodes/n1/status",
        {"metadata": {"labels": {"zone": "a"}}},
    ),
    "a taint of somebody else": (
        "PATCH",
        "/api/v1/nodes/n1",
        {"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}},
    ),
    "a taint that ends pods": (
        "PATCH",
        "/api/v1/nodes/n1",
        {"spec": {"taints": [{"key": "cmk", "value": "true", "effect": "NoExecute"}]}},
    ),
    "a node without pods": ("PATCH", "/api/v1/nodes/n1", {"spec": {"unschedulable": True}}),
    "more memory": ("PATCH", "/api/v1/nodes/n1/status", {"status": {"capacity": {"memory": "999Gi"}}}),
    "another resource of that domain": (
        "PATCH",
        "/api/v1/nodes/n1/status",
        {"status": {"capacity": {"cmk.intel.com/other": "9"}}},
    ),
    "less room": ("PATCH", "/api/v1/nodes/n1/status", {"status": {"allocatable": {"pods": None}}}),
    "a node that is not ready": (
        "PATCH",
        "/api/v1/nodes/n1/status",
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "no"}]}},
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_an_agent_may_not_write(cluster: TwoNodeCluster, what: str) -> None:
    method, path, body = FORBIDDEN[what]
    if "other" in path:
        cluster.api.ensure(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": NAMESPACE}}
        )
    with pytest.raises(ApiError) as refused:
        _send(cluster.places[0].account.api, method, path, body)
    assert refused.value.code in {403, 422}
    assert "cmk-own-node" in str(refused.value)
    assert "resulted in error" not in str(refused.value)


UNINSTALL_FORBIDDEN = {
    what: FORBIDDEN[what]
    for what in (
        "a label of somebody else",
        "an annotation",
        "a taint of somebody else",
        "a node without pods",
        "more memory",
        "images",
    )
}


@pytest.mark.parametrize("what", UNINSTALL_FORBIDDEN)
def test_account_of_removal_may_not_write(cluster: TwoNodeCluster, what: str) -> None:
    """cmk-uninstall may write to every node, but only the CPU manager's fields."""
    method, path, body = UNINSTALL_FORBIDDEN[what]
    account = cluster.plane.service_account("cmk-uninstall", NAMESPACE)
    with pytest.raises(ApiError, match="cmk-own-node"):
        _send(account.api, method, path, body)
    labelled = {"metadata": {"labels": {LABEL: None}}}
    admission_policy_waits.try_patch(account.api, "/api/v1/nodes/n1", labelled)


def test_a_token_that_is_bound_to_no_node_writes_nothing(cluster: TwoNodeCluster) -> None:
    loose = cluster.plane.service_account("cmk-agent", NAMESPACE).api
    with pytest.raises(ApiError, match="not bound to a pod on a node"):
        _send(loose, "PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {LABEL: "true"}}})


def test_others_write_nodes_as_before(cluster: TwoNodeCluster) -> None:
    cluster.api.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"by": "somebody else"}}})
    cluster.api.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"by": None}}})


def _send(api: ClusterApi, method: str, path: str, body: Any) -> None:
    if method == "PATCH":
        api.patch(path, body)
    else:
        api.create(body | {"metadata": body["metadata"] | {"namespace": NAMESPACE}})


def test_the_rights_that_ship_are_those_that_were_needed(cluster: TwoNodeCluster) -> None:
    for at, place in enumerate(cluster.places):
        with _containers(cluster, place, f"needs-{at}", 1) as (inside,):
            wrapper = _isolate(place, inside, "sleep", "600")
            wait(
                "it is reported",
                partial(_is_reported, cluster.api, place.node, wrapper.pid),
            )
            for pid in _inside(inside):
                os.kill(pid, signal.SIGKILL)
            wrapper.wait()
            wait("all cores are free again", lambda place=place: cluster.is_free(place.node))
            wrapper.communicate()
    shipped = rbac_rights_comparison.granted(extender_process.manifest("cpu-agent.yaml"))

    def needed() -> set[rbac_rights_comparison.ApiRight]:
        requests = cluster.log.requests(ACCOUNT)
        return rbac_rights_comparison.needed(
            request
            for request in requests
            if request.resource and (request.code < 400 or request.code == 404)
        )

    # a sweep is reported after it has finished
    wait("all rights are used", lambda: shipped <= needed() or None, show=lambda: shipped - needed())
    assert needed() <= shipped, needed() - shipped


def _is_reported(api: ClusterApi, node: str, pid: int) -> bool | None:
    report = api.get(f"{REPORTS}/cmk-nodereports/{node.replace('.', '-')}")["spec"]["report"]
    return bool(report["description"]["pools"]["exclusive"]["cpuLists"]["0"]["tasks"] == [str(pid)]) or None


def _inside(folder: Path) -> list[int]:
    """The process ids of a cgroup."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    return []


def test_no_exclusive_cpus_without_an_api_server(cluster: TwoNodeCluster) -> None:
    """This must be the last test, because it kills the API server."""
    place = cluster.places[0]
    with _containers(cluster, place, "orphan", 1) as (inside,):
        server = next(
            process for process in cluster.plane.processes if process.name.startswith("kube-apiserver")
        )
        server.kill()
        wrapper = _isolate(place, inside, "true")
        _, stderr = wrapper.communicate()
        assert wrapper.returncode == 125
        assert cluster.plane.url in stderr
