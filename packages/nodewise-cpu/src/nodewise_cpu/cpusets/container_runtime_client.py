"""The containers of this node and their cpusets, through CRI (`runtime.v1`, api.proto of k8s.io/cri-api).

The container runtime writes the cgroups, whichever version and driver they have. gRPC is in the extra `cri`.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, BadSettings, NodewiseError, Problem, Refused, Unavailable, shown
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.cpusets import container_cpusets
from nodewise_cpu.cpusets.container_cpusets import ContainerCpuset, Cpuset

if TYPE_CHECKING:
    import grpc

DEFAULT_ENDPOINTS: Final = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
)
"""Sockets of container runtimes, in the order in which they are tried."""
_SERVICE: Final = "runtime.v1.RuntimeService"
_RUNNING: Final = 1
_FIRST_PROCESS: Final = 1
_TEMPORARY: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED"}
)

_TEXT, _FLAG, _NUMBER, _TEXTS = "string", "bool", "int32", "map<string, string>"
_MESSAGES: Final[Mapping[str, Mapping[str, tuple[int, str]]]] = {
    "VersionRequest": {"version": (1, _TEXT)},
    "VersionResponse": {"runtime_name": (2, _TEXT), "runtime_version": (3, _TEXT)},
    "ContainerStatusRequest": {"container_id": (1, _TEXT), "verbose": (2, _FLAG)},
    "ContainerStatusResponse": {"status": (1, "ContainerStatus"), "info": (2, _TEXTS)},
    "ContainerStatus": {"state": (3, _NUMBER), "resources": (16, "ContainerResources")},
    "ContainerResources": {"linux": (1, "LinuxContainerResources")},
    "LinuxContainerResources": {"cpuset_cpus": (6, _TEXT), "cpuset_mems": (7, _TEXT)},
    "PodSandboxStatusRequest": {"pod_sandbox_id": (1, _TEXT), "verbose": (2, _FLAG)},
    "PodSandboxStatusResponse": {"info": (2, _TEXTS)},
    "UpdateContainerResourcesRequest": {"container_id": (1, _TEXT), "linux": (2, "LinuxContainerResources")},
    "UpdateContainerResourcesResponse": {},
}
"""The messages and fields that are used here: number and type of each field."""
_ONE, _MANY = 1, 3
_SCALARS: Final = {_TEXT: 9, _FLAG: 8, _NUMBER: 5}
_MESSAGE: Final = 11  # labels and types of fields, with their numbers in descriptor.proto


def endpoint(configured: str = "") -> Path:
    """The runtime's socket: the configured one, else the first that exists. BadSettings if there is none."""
    candidates = [configured.removeprefix("unix://")] if configured else DEFAULT_ENDPOINTS
    socket = next((Path(path) for path in candidates if Path(path).is_socket()), None)
    if socket is None:
        raise BadSettings.of(
            "cannot reach the container runtime",
            "--runtime-endpoint",
            f"no socket at {' or '.join(candidates)}",
            "the container runtime's",
            remedy="mount its socket and name it",
        )
    try:
        return Path(trusted_files.resolve(socket))
    except BadInput as error:
        raise BadSettings(
            "cannot reach the container runtime", error.problems, remedy=error.remedy
        ) from error


class ContainerRuntime:
    """A container runtime, which implements `container_cpusets.CpusetRuntime`. Several threads may call its methods.

    `proc` is the host's. A call without a response within `timeout_s` seconds raises `Unavailable`.
    """

    def __init__(self, socket: Path, proc: Path, timeout_s: float = 10.0) -> None:
        self._socket = socket
        self._proc = proc
        self._timeout_s = timeout_s
        self._messages = _messages()
        self._channel = _channel(socket)

    def close(self) -> None:
        self._channel.close()

    def version(self) -> str:
        """Name and version: `containerd 1.7.24`."""
        response = self._call_cri("Version", {"version": "v1"})
        return f"{response.runtime_name} {response.runtime_version}"

    def find(self, container: str) -> ContainerCpuset | None:
        try:
            response = self._call_cri("ContainerStatus", {"container_id": container, "verbose": True})
        except _NotFoundError:
            return None
        if response.status.state != _RUNNING:
            return None
        info = _verbose_info(response, container)
        linux = response.status.resources.linux
        cpus, mems = linux.cpuset_cpus, linux.cpuset_mems
        if not response.status.HasField("resources"):
            # containerd before 1.7 has the resources only in the verbose information
            cpus, mems = (
                str(_nested_object(info, "runtimeSpec", "linux", "resources", "cpu").get(key, ""))
                for key in ("cpus", "mems")
            )
        configured = container_cpusets.parse_cpuset(cpus, mems, f"cpuset of container {container}")
        return ContainerCpuset(configured, self._sandbox_cpuset(str(info.get("sandboxID", ""))))

    def confine(self, container: str, cpuset: Cpuset) -> None:
        linux = {
            name: cpu_set_formats.format_cpu_ranges(numbers)
            for name, numbers in (("cpuset_cpus", cpuset.cpus), ("cpuset_mems", cpuset.mems))
        }
        try:
            self._call_cri("UpdateContainerResources", {"container_id": container, "linux": linux})
        except _NotFoundError:
            return
        except Refused:
            if self.find(container) is not None:
                raise

    def _sandbox_cpuset(self, sandbox: str) -> Cpuset:
        """The cpuset that containers inherit from their pod: that of the sandbox's process, which is never confined."""
        pid = _FIRST_PROCESS
        if sandbox:
            with contextlib.suppress(_NotFoundError):
                response = self._call_cri("PodSandboxStatus", {"pod_sandbox_id": sandbox, "verbose": True})
                # some runtimes have no such process
                pid = int(_verbose_info(response, sandbox).get("pid") or _FIRST_PROCESS)
        return container_cpusets.read_cpuset(self._proc, pid)

    def _call_cri(self, method: str, fields: Mapping[str, Any]) -> Any:
        import grpc

        call = self._channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=self._messages[f"{method}Request"].SerializeToString,
            response_deserializer=self._messages[f"{method}Response"].FromString,
        )
        try:
            return call(self._messages[f"{method}Request"](**fields), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._error_of_grpc_status(method, error) from error

    def _error_of_grpc_status(self, method: str, error: Any) -> NodewiseError:
        code = error.code().name
        problem = Problem(f"{method} at {self._socket}", f"{code}: {error.details()}", "")
        if code == "NOT_FOUND":
            return _NotFoundError("there is no such container", [problem])
        if code in _TEMPORARY:
            return Unavailable("the container runtime does not answer", [problem])
        return Refused("the container runtime refused", [problem])


class _NotFoundError(Refused):
    pass


def _verbose_info(response: Any, of: str) -> Mapping[str, Any]:
    """The verbose information: JSON of a form that depends on the runtime, under one key."""
    text = response.info.get("info", "{}")
    try:
        info = json.loads(text)
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise Refused.of(
            "cannot read the container runtime's answer", f"info of {of}", shown(text), "a JSON object"
        )
    return info


def _nested_object(value: Any, *path: str) -> Mapping[str, Any]:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _channel(socket: Path) -> "grpc.Channel":
    try:
        import grpc
    except ImportError as error:
        raise BadSettings.of(
            "cannot ask the container runtime",
            "--enforce",
            "gRPC is not installed",
            "the extra `cri`",
            remedy="pip install 'nodewise[cri]'",
        ) from error
    # the runtime is on this machine, so no proxy applies
    return grpc.insecure_channel(f"unix:{socket}", options=[("grpc.enable_http_proxy", 0)])


def _messages() -> Mapping[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = _SERVICE.rpartition(".")[0]
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _define_protobuf_field(message, field, number, kind, f".{package}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in _MESSAGES
    }


def _define_protobuf_field(message: Any, name: str, number: int, kind: str, package: str) -> None:
    """A map is a repeated message of keys and values (the Protocol Buffers language guide, "Maps")."""
    field = message.field.add(name=name, number=number, label=_ONE)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _MESSAGE
    field.type_name = f"{package}.{kind}"
    if kind == _TEXTS:
        entry = message.nested_type.add(name=f"{name.title()}Entry", options={"map_entry": True})
        _define_protobuf_field(entry, "key", 1, _TEXT, package)
        _define_protobuf_field(entry, "value", 2, _TEXT, package)
        field.label = _MANY
        field.type_name = f"{package}.{message.name}.{entry.name}"
