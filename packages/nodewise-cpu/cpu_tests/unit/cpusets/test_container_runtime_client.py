"""Requests to the container runtime, and the parsing of responses. tests/node uses a real runtime."""

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from nodewise.base.errors import BadInput, BadSettings, Refused, Unavailable
from nodewise_cpu.cpusets import container_runtime_client
from nodewise_cpu.cpusets.container_cpusets import Cpuset
from nodewise_cpu.cpusets.container_runtime_client import ContainerRuntime

ID = "c" * 64
TYPES = container_runtime_client._messages()
Answer = Callable[[Any, grpc.ServicerContext], Mapping[str, Any]]


class FakeContainerRuntime:
    """A CRI server whose responses tests define."""

    def __init__(self, folder: Path) -> None:
        self.answers: dict[str, Answer] = {}
        self.socket = folder / "runtime.sock"
        self._pool = ThreadPoolExecutor(2)
        self._server = grpc.server(self._pool)
        handlers = {
            name: self._handler(name)
            for name in ("ContainerStatus", "PodSandboxStatus", "UpdateContainerResources", "Version")
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers)]
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def _handler(self, method: str) -> grpc.RpcMethodHandler:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            return TYPES[f"{method}Response"](**self.answers[method](request, context))

        reads, writes = TYPES[f"{method}Request"].FromString, TYPES[f"{method}Response"].SerializeToString
        return grpc.unary_unary_rpc_method_handler(answer, reads, writes)

    def runs(self, info: Any, **status: Any) -> None:
        """Report a running container with this information."""
        self.answers["ContainerStatus"] = lambda *_: {
            "status": {"state": 1, **status},
            "info": {"info": info},
        }

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown()


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[FakeContainerRuntime]:
    served = FakeContainerRuntime(tmp_path)
    yield served
    served.stop()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A `/proc` in which the first process may use more CPUs than the sandbox's."""
    for pid, cpus in ((1, "0-7"), (42, "0-3")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/status").write_text(f"Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t0-1\n")
    return tmp_path / "proc"


@pytest.fixture
def asking(runtime: FakeContainerRuntime, proc: Path) -> Iterator[ContainerRuntime]:
    made = ContainerRuntime(runtime.socket, proc, timeout_s=5)
    yield made
    made.close()


def fails(code: grpc.StatusCode, why: str = "because") -> Answer:
    def answer(_: Any, context: grpc.ServicerContext) -> Mapping[str, Any]:
        context.abort(code, why)
        raise AssertionError

    return answer


def test_name_and_version_of_the_runtime(runtime: FakeContainerRuntime, asking: ContainerRuntime) -> None:
    runtime.answers["Version"] = lambda *_: {"runtime_name": "containerd", "runtime_version": "1.7.24"}
    assert asking.version() == "containerd 1.7.24"


def test_the_cpuset_is_read_from_the_status(runtime: FakeContainerRuntime, asking: ContainerRuntime) -> None:
    runtime.runs("{}", resources={"linux": {"cpuset_cpus": "1,3", "cpuset_mems": "0"}})
    container = asking.find(ID)
    assert container is not None
    assert container.effective == Cpuset(frozenset({1, 3}), frozenset({0}))


def test_the_cpuset_is_read_from_the_specification_of_older_runtimes(
    runtime: FakeContainerRuntime, asking: ContainerRuntime
) -> None:
    spec = {"linux": {"resources": {"cpu": {"cpus": "2", "shares": 2}}}}
    runtime.runs(json.dumps({"sandboxID": "s", "runtimeSpec": spec}))
    runtime.answers["PodSandboxStatus"] = lambda *_: {"info": {"info": json.dumps({"pid": 42})}}
    container = asking.find(ID)
    assert container is not None
    assert container.configured == Cpuset(frozenset({2}))
    assert container.inherited == Cpuset(frozenset(range(4)), frozenset({0, 1}))


@pytest.mark.parametrize(
    "sandbox", [lambda *_: {"info": {"info": '{"pid": 0}'}}, fails(grpc.StatusCode.NOT_FOUND)]
)
def test_pod_without_own_process_keeps_cpus_of_machine(
    runtime: FakeContainerRuntime, asking: ContainerRuntime, sandbox: Answer
) -> None:
    runtime.runs(json.dumps({"sandboxID": "s"}))
    runtime.answers["PodSandboxStatus"] = sandbox
    container = asking.find(ID)
    assert container is not None
    assert container.effective == Cpuset(frozenset(range(8)), frozenset({0, 1}))


def test_a_container_that_is_not_running_is_none(
    runtime: FakeContainerRuntime, asking: ContainerRuntime
) -> None:
    runtime.answers["ContainerStatus"] = fails(grpc.StatusCode.NOT_FOUND)
    assert asking.find(ID) is None
    runtime.runs("{}", state=2)
    assert asking.find(ID) is None


def test_empty_parts_of_a_cpuset_are_not_set(runtime: FakeContainerRuntime, asking: ContainerRuntime) -> None:
    requests: list[Any] = []
    runtime.answers["UpdateContainerResources"] = lambda request, _: requests.append(request) or {}
    asking.confine(ID, Cpuset(frozenset({4, 5, 6, 9})))
    (request,) = requests
    assert (request.container_id, request.linux.cpuset_cpus, request.linux.cpuset_mems) == (ID, "4-6,9", "")


def test_a_container_that_ended_meanwhile_is_no_error(
    runtime: FakeContainerRuntime, asking: ContainerRuntime
) -> None:
    runtime.answers["UpdateContainerResources"] = fails(grpc.StatusCode.UNKNOWN, "not running")
    runtime.answers["ContainerStatus"] = fails(grpc.StatusCode.NOT_FOUND)
    asking.confine(ID, Cpuset(frozenset({1})))
    runtime.answers["UpdateContainerResources"] = fails(grpc.StatusCode.NOT_FOUND)
    asking.confine(ID, Cpuset(frozenset({1})))


def test_a_refusal_of_the_runtime_has_its_message(
    runtime: FakeContainerRuntime, asking: ContainerRuntime
) -> None:
    runtime.runs("{}")
    runtime.answers["UpdateContainerResources"] = fails(
        grpc.StatusCode.UNKNOWN, "write cpuset.cpus: permission denied"
    )
    with pytest.raises(Refused, match="permission denied"):
        asking.confine(ID, Cpuset(frozenset({99})))


@pytest.mark.parametrize("info", ["no json", "[]", ""])
def test_an_answer_that_cannot_be_read_is_named(
    runtime: FakeContainerRuntime, asking: ContainerRuntime, info: str
) -> None:
    runtime.runs(info)
    with pytest.raises(Refused, match=f"info of {ID}"):
        asking.find(ID)
    runtime.runs("{}", resources={"linux": {"cpuset_cpus": "one"}})
    with pytest.raises(BadInput, match=f"cpuset of container {ID}"):
        asking.find(ID)


def test_a_runtime_that_does_not_answer_is_unavailable(runtime: FakeContainerRuntime, proc: Path) -> None:
    runtime.answers["Version"] = lambda *_: time.sleep(1) or {}
    slow = ContainerRuntime(runtime.socket, proc, timeout_s=0.2)
    with pytest.raises(Unavailable, match="DEADLINE_EXCEEDED"):
        slow.version()
    slow.close()


def test_socket_without_listener_is_unavailable(tmp_path: Path) -> None:
    alone = ContainerRuntime(tmp_path / "nobody.sock", tmp_path, timeout_s=5)
    with pytest.raises(Unavailable, match=r"nobody\.sock"):
        alone.version()
    alone.close()


def test_the_socket_is_the_one_that_is_given(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="--runtime-endpoint: no socket at /nowhere"):
        container_runtime_client.endpoint("unix:///nowhere")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "a.sock"))
        assert container_runtime_client.endpoint(f"unix://{tmp_path}/a.sock") == tmp_path / "a.sock"
