"""The containers of this node, asked of the container runtime over CRI (`runtime.v1`, api.proto of k8s.io/cri-api).

The runtime writes the cgroups, of whichever version and driver they are. gRPC comes with the extra `cri`.
"""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nodewise import trusted_files
from nodewise.cpu import cpulist
from nodewise.cpu.confine import confinement, residents
from nodewise.cpu.confine.confinement import Confinement, Found
from nodewise.errors import BadInput, BadSettings, NodewiseError, Problem, Refused, Unavailable, shown

if TYPE_CHECKING:
    import grpc

DEFAULT_ENDPOINTS: Final = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/cri-dockerd.sock",
)
"""Where runtimes listen, in the order in which they are looked for."""
_SERVICE: Final = "runtime.v1.RuntimeService"
_RUNNING: Final = 1
_FIRST_PROCESS: Final = 1
_TRY_AGAIN: Final = frozenset(
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
"""The messages and fields that we use: number and type of each."""
_ONE, _MANY = 1, 3
_SCALARS: Final = {_TEXT: 9, _FLAG: 8, _NUMBER: 5}
_MESSAGE: Final = 11
"""Labels and types of fields, as descriptor.proto numbers them."""


def endpoint(given: str = "") -> Path:
    """The runtime's socket: the one that is given, else the first that is there. BadSettings if there is none."""
    wanted = [given.removeprefix("unix://")] if given else DEFAULT_ENDPOINTS
    found = next((Path(path) for path in wanted if Path(path).is_socket()), None)
    if found is None:
        problem = Problem(
            "--runtime-endpoint", f"no socket at {' or '.join(wanted)}", "the container runtime's"
        )
        raise BadSettings(
            "cannot reach the container runtime", [problem], remedy="mount its socket and name it"
        )
    try:
        return Path(trusted_files.resolve(found))
    except BadInput as error:
        raise BadSettings(
            "cannot reach the container runtime", error.problems, remedy=error.remedy
        ) from error


class ContainerRuntime:
    """A container runtime; `confinement.Containers`, and usable from several threads.

    `proc` is the host's. A call that is not answered within `timeout_s` seconds raises `Unavailable`.
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
        """What it calls itself: `containerd 1.7.24`."""
        said = self._ask("Version", {"version": "v1"})
        return f"{said.runtime_name} {said.runtime_version}"

    def find(self, container: str) -> Found | None:
        try:
            said = self._ask("ContainerStatus", {"container_id": container, "verbose": True})
        except _NotFoundError:
            return None
        if said.status.state != _RUNNING:
            return None
        info = _info(said, container)
        linux = said.status.resources.linux
        cpus, mems = linux.cpuset_cpus, linux.cpuset_mems
        if not said.status.HasField("resources"):
            # containerd before 1.7 says it only where it says everything
            cpus, mems = (
                str(_at(info, "runtimeSpec", "linux", "resources", "cpu").get(key, ""))
                for key in ("cpus", "mems")
            )
        told = confinement.parse(cpus, mems, f"cpuset of container {container}")
        return Found(told, self._inherited(str(info.get("sandboxID", ""))))

    def confine(self, container: str, to: Confinement) -> None:
        told = {
            name: cpulist.format_ranges(numbers)
            for name, numbers in (("cpuset_cpus", to.cpus), ("cpuset_mems", to.mems))
        }
        try:
            self._ask("UpdateContainerResources", {"container_id": container, "linux": told})
        except _NotFoundError:
            return
        except Refused:
            if self.find(container) is not None:
                raise

    def _inherited(self, sandbox: str) -> Confinement:
        """What the pod leaves to its containers: what its sandbox's process may use, for nobody confines that."""
        pid = _FIRST_PROCESS
        if sandbox:
            with contextlib.suppress(_NotFoundError):
                said = self._ask("PodSandboxStatus", {"pod_sandbox_id": sandbox, "verbose": True})
                # a runtime may do without such a process
                pid = int(_info(said, sandbox).get("pid") or _FIRST_PROCESS)
        return residents.read_confinement(self._proc, pid)

    def _ask(self, method: str, fields: Mapping[str, Any]) -> Any:
        import grpc

        call = self._channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=self._messages[f"{method}Request"].SerializeToString,
            response_deserializer=self._messages[f"{method}Response"].FromString,
        )
        try:
            return call(self._messages[f"{method}Request"](**fields), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._translated(method, error) from error

    def _translated(self, method: str, error: Any) -> NodewiseError:
        """The kinds of gRPC's status codes."""
        code = error.code().name
        problem = Problem(f"{method} at {self._socket}", f"{code}: {error.details()}", "")
        if code == "NOT_FOUND":
            return _NotFoundError("there is no such container", [problem])
        if code in _TRY_AGAIN:
            return Unavailable("the container runtime does not answer", [problem])
        return Refused("the container runtime refused", [problem])


class _NotFoundError(Refused):
    """There is no such container or sandbox (any more)."""


def _info(said: Any, of: str) -> Mapping[str, Any]:
    """What a runtime says when it is asked to say more: JSON, of its own form, under one key."""
    text = said.info.get("info", "{}")
    try:
        info = json.loads(text)
    except ValueError:
        info = None
    if not isinstance(info, dict):
        raise Refused(
            "cannot read the container runtime's answer",
            [Problem(f"info of {of}", shown(text), "a JSON object")],
        )
    return info


def _at(value: Any, *path: str) -> Mapping[str, Any]:
    """The object below an object; an empty one where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _channel(socket: Path) -> "grpc.Channel":
    try:
        import grpc
    except ImportError as error:
        problem = Problem("--enforce", "gRPC is not installed", "the extra `cri`")
        raise BadSettings(
            "cannot ask the container runtime", [problem], remedy="pip install nodewise[cri]"
        ) from error
    # a runtime is on this machine, whatever proxies there are
    return grpc.insecure_channel(f"unix:{socket}", options=[("grpc.enable_http_proxy", 0)])


def _messages() -> Mapping[str, Any]:
    """Of each message its class, made from the table above."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = _SERVICE.rpartition(".")[0]
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add_field(message, field, number, kind, f".{package}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in _MESSAGES
    }


def _add_field(message: Any, name: str, number: int, kind: str, package: str) -> None:
    """A map is a repeated message of keys and values (the Protocol Buffers language guide, "Maps")."""
    field = message.field.add(name=name, number=number, label=_ONE)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _MESSAGE
    field.type_name = f"{package}.{kind}"
    if kind == _TEXTS:
        entry = message.nested_type.add(name=f"{name.title()}Entry", options={"map_entry": True})
        _add_field(entry, "key", 1, _TEXT, package)
        _add_field(entry, "value", 2, _TEXT, package)
        field.label = _MANY
        field.type_name = f"{package}.{message.name}.{entry.name}"
