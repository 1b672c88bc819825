"""A container may allocate what it requests, and nothing if its requests are unknown."""

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from cpu_tests.unit.allocation_factory import create_allocations
from cpu_tests.unit.node.in_memory_api_client import InMemoryApiClient
from nodewise.base.errors import BadInput, Refused, Unavailable
from nodewise.kube.resource_kinds import PODS
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise_cpu import agent_messages, cmk_names, configmap_store, procfs
from nodewise_cpu.agent import allocation_service, socket_server
from nodewise_cpu.agent.allocation_service import AgentNode, AllocationService, NodePods
from nodewise_cpu.agent.socket_server import PeerProcess
from nodewise_cpu.agent_messages import AllocateRequest
from nodewise_cpu.cluster.api_server import Object
from nodewise_cpu.directory_store import DirectoryStore
from nodewise_cpu.node import machine_features
from nodewise_cpu.node.task_garbage_collection import TaskGarbageCollector
from nodewise_cpu.pool_allocations import Task

EXCLUSIVE = "cmk.intel.com/exclusive-cores"
TASK = Task(17, 5, "boot", "uid-1", "a" * 64)


def container(name: str, count: int | None = None, kind: str = "requests") -> Object:
    return {"name": name, "resources": {kind: {EXCLUSIVE: str(count)}} if count is not None else {}}


def pod(uid: str, *containers: Object, node: str = "n1", **more: Any) -> Object:
    status = more.pop("status", {})
    metadata = {"name": f"pod-{uid}", "namespace": "default", "uid": uid, **more.pop("metadata", {})}
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": list(containers), **more},
        "status": status,
    }


def statuses(**ids: str) -> dict[str, Any]:
    return {
        "containerStatuses": [
            {"name": name, "containerID": f"containerd://{container_id}"}
            for name, container_id in ids.items()
        ]
    }


TWO = (container("one", 2), container("other"))
CASES: dict[str, tuple[Object, int, int | None]] = {
    "its own request": (pod("uid-1", *TWO, status=statuses(one="a" * 64, other="b" * 64)), 1, 2),
    "and not that of another": (pod("uid-1", *TWO, status=statuses(one="b" * 64, other="a" * 64)), 1, 0),
    "limits where there is no request": (
        pod("uid-1", container("one", 3, "limits"), status=statuses(one="a" * 64)),
        1,
        3,
    ),
    "a sole container that is not told yet": (pod("uid-1", container("one", 2)), 2, 2),
    "more than any of them requested": (pod("uid-1", *TWO), 3, 2),
    "one of several that is not told yet": (pod("uid-1", *TWO), 1, None),
    "one that was started again is not told yet": (
        pod("uid-1", *TWO, status=statuses(one="c" * 64, other="b" * 64)),
        1,
        None,
    ),
    "an init container": (
        pod(
            "uid-1",
            container("one"),
            initContainers=[container("first", 1)],
            status={"initContainerStatuses": [{"name": "first", "containerID": f"cri-o://{'a' * 64}"}]},
        ),
        1,
        1,
    ),
    "a pod of another node": (pod("uid-1", container("one", 1), node="n2"), 1, None),
    "no resources at all": (pod("uid-1", {"name": "one", "resources": None}), 1, 0),
}


def api_client(*pods: Object) -> InMemoryApiClient:
    api = FakeApi()
    for pod_object in pods:
        api.put(PODS, pod_object)
    return InMemoryApiClient(api)


@pytest.mark.parametrize("case", CASES)
def test_the_allowed_number_of_lists(case: str) -> None:
    stored_pod, wanted, allowed = CASES[case]
    pods = NodePods(api_client(stored_pod), "n1", patience_s=0.0)
    if allowed is None:
        with pytest.raises(Unavailable, match="container"):
            pods.allowed("exclusive", TASK, wanted)
    else:
        assert pods.allowed("exclusive", TASK, wanted) == allowed


@pytest.mark.parametrize("task", [Task(17, 5, "boot"), TASK._replace(container="")], ids=["host", "pause"])
def test_a_process_in_no_container_may_have_nothing(task: Task) -> None:
    with pytest.raises(Refused, match="runs in no container of a pod"):
        NodePods(api_client(), "n1").allowed("exclusive", task, 1)


def test_a_pool_without_a_resource_cannot_be_allocated() -> None:
    with pytest.raises(Refused, match="has no resource"):
        NodePods(api_client(), "n1").allowed("mine", TASK, 1)


def test_each_pool_has_its_resource() -> None:
    static_pod = pod("uid-1", {"name": "one", "resources": {"requests": {cmk_names.NON_ISOLCPUS_CORES: "1"}}})
    pods = NodePods(api_client(static_pod), "n1", patience_s=0.0)
    assert pods.allowed("exclusive-non-isolcpus", TASK, 1) == 1
    assert pods.allowed("exclusive", TASK, 1) == 0


def test_a_static_pod_is_found_by_its_mirror_pod() -> None:
    copy = pod(
        "uid-1", container("one", 1), metadata={"annotations": {"kubernetes.io/config.mirror": "checksum"}}
    )
    pods = NodePods(api_client(copy), "n1", patience_s=0.0)
    assert pods.allowed("exclusive", TASK._replace(pod="checksum"), 1) == 1


def copy_of(uid: str, name: str, count: int, since: str) -> Object:
    annotations = {"kubernetes.io/config.mirror": uid}
    metadata = {"annotations": annotations, "creationTimestamp": since}
    return pod(name, container("one", count), metadata=metadata)


def test_a_forged_mirror_pod_is_ignored() -> None:
    """Every user who creates pods can write their annotations. They must neither raise nor lower a limit."""
    mine = pod("uid-1", container("one", 1), status=statuses(one="a" * 64))
    for count in (0, 9):
        false = copy_of("uid-1", "uid-9", count, "2026-01-02T00:00:00Z")
        assert NodePods(api_client(mine, false), "n1", patience_s=0.0).allowed("exclusive", TASK, 1) == 1


def test_the_oldest_mirror_pod_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = api_client()
    copies = [copy_of("uid-1", f"uid-{day}", day, f"2026-01-{day:02}T00:00:00Z") for day in (4, 2, 3)]
    monkeypatch.setattr(requests, "get", lambda *_: {"items": copies})
    assert NodePods(requests, "n1", patience_s=0.0).allowed("exclusive", TASK, 9) == 2


def test_a_pod_that_appears_is_found_without_waiting_for_the_next_list() -> None:
    requests = api_client()
    pods = NodePods(requests, "n1", age_s=0.0, patience_s=30.0)
    requests.api.put(PODS, pod("uid-1", container("one", 1)))
    assert pods.allowed("exclusive", TASK, 1) == 1


def test_pods_with_many_tasks_leave_room_for_those_of_others() -> None:
    """On a node with 250 pods: thirty of them, and then all, take as many tasks as they may."""
    tasks: list[Task] = []
    uids = [str(uuid.UUID(int=number)) for number in range(250)]
    for pods in (uids[:30], uids):
        for uid in pods:
            count = sum(task.pod == uid for task in tasks)
            while count < allocation_service.most_tasks_of_pod(len(tasks), 64):
                tasks.append(Task(4_000_000 + len(tasks), 10**9, uids[0], uid, "a" * 64))
                count += 1
    assert {task.pod for task in tasks} == set(uids)
    stored = configmap_store.format_config_map_data(create_allocations({"shared": {"2,3": tasks}}))
    assert len(stored.identities) < 2**18


def test_a_pool_that_a_reconfiguration_removes_meanwhile(tmp_path: Path) -> None:
    proc, store = Path("/proc"), DirectoryStore(tmp_path / "state")
    removed, kept = "exclusive-non-isolcpus", create_allocations({"exclusive": {"0": ()}})
    store.create(create_allocations({"exclusive": {"0": ()}, removed: {"1": ()}}))

    class SlowPods(NodePods):
        def allowed(self, pool: str, task: Task, wanted: int) -> int:
            store.replace(store.read().version, kept)
            return wanted

    boot, registry = procfs.read_boot_id(proc), MetricsRegistry()
    service = AllocationService(
        AgentNode(store, proc, boot, Path("/")),
        TaskGarbageCollector(store, proc, registry),
        registry,
        lambda: machine_features.read(Path("/")),
        SlowPods(api_client(), "n1"),
    )
    peer = PeerProcess(socket_server.read_process_as_task(proc, os.getpid(), boot), os.getuid())
    with pytest.raises(BadInput, match=f"--pool: '{removed}'; expected one of exclusive"):
        service.answer(peer, agent_messages.encode_allocate_request(AllocateRequest(removed)))
