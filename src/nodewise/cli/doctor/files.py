"""What stands in the files that containers see: of ConfigMaps and Secrets through the API server, or of this host."""

import base64
import binascii
import posixpath
import socket
from pathlib import Path
from typing import Any, Final

from nodewise.cli.doctor.asking import Asker
from nodewise.cli.doctor.kinds import CONFIG_MAPS, SECRETS
from nodewise.configure.doctor import papers, workloads
from nodewise.configure.doctor.facts import Chain, Container, Pod, Unread
from nodewise.configure.doctor.objects import text
from nodewise.errors import BadInput
from nodewise.kube.resources import Resource

_LARGEST: Final = 2**20
_COPY: Final = "copy it from there and name the copy: --scheduler-config FILE"
_FORWARD: Final = (
    "kubectl -n {0} port-forward {1} 10259, and --scheduler-url https://127.0.0.1:10259; or copy the file and name the"
    " copy: --scheduler-config FILE"
)


class Files:
    """Reads files of pods and of this host. Keys are never kept: only their public half leaves here."""

    def __init__(self, ask: Asker) -> None:
        self._ask = ask
        self._objects: dict[str, Any] = {}

    async def of_pod(self, pod: Pod, container: Container, path: str) -> bytes | Unread:
        """A file as a container sees it."""
        what = f"{path} of {pod.where}"
        mounted = workloads.mount(container, path)
        if mounted is None:
            return Unread(what, "it lies in the image", remedy=_COPY)
        mount, inside = mounted
        if mount.kind == "hostPath":
            return self._host(what, posixpath.join(mount.name, inside) if inside else mount.name, pod)
        if mount.kind == "configMap":
            return await self._of_map(pod.namespace, mount.name, inside)
        if mount.kind == "secret":
            return await self._of_secret(pod.namespace, mount.name, inside)
        return Unread(what, "its volume is none that can be read from here")

    def here(self, path: str) -> bytes | Unread:
        """A file of this host."""
        try:
            with Path(path).open("rb") as file:
                return file.read(_LARGEST)
        except OSError as error:
            return Unread(path, error.strerror or str(error))
        except ValueError:
            return Unread(path, "no name of a file")

    async def chain(self, pod: Pod, container: Container, path: str) -> Chain | Unread:
        """The certificates of a file."""
        found = await self.of_pod(pod, container, path)
        return found if isinstance(found, Unread) else papers.chain(found)

    def _host(self, what: str, path: str, pod: Pod) -> bytes | Unread:
        """A file of the pod's host, if that is where we are, and the host's owner has it run there."""
        if is_of_host(pod) and is_here(pod.node):
            found = self.here(path)
            return found._replace(remedy=_COPY) if isinstance(found, Unread) else found
        kind, namespace, name = pod.where.split("/")
        remedy = _FORWARD.format(namespace, name) if kind == "Pod" else _COPY
        return Unread(what, f"it lies on host {pod.node or 'of the pod'}, as {path}", remedy=remedy)

    async def _of_map(self, namespace: str, name: str, key: str) -> bytes | Unread:
        found = await self._object(CONFIG_MAPS, namespace, name)
        if isinstance(found, Unread):
            return found
        what = f"ConfigMap/{namespace}/{name}"
        if found is None:
            return Unread(what, "there is none, and a pod mounts it")
        if data := text(found, "data", key):
            return data.encode(errors="replace")[:_LARGEST]
        return _decoded(text(found, "binaryData", key)) or Unread(what, f"it has no key {key}")

    async def _of_secret(self, namespace: str, name: str, key: str) -> bytes | Unread:
        found = await self._object(SECRETS, namespace, name)
        if isinstance(found, Unread):
            return found
        what = f"Secret/{namespace}/{name}"
        if found is None:
            return Unread(what, "there is none, and a pod mounts it")
        return _decoded(text(found, "data", key)) or Unread(what, f"it has no key {key}")

    async def _object(self, resource: Resource, namespace: str, name: str) -> Any:
        """Asked for once."""
        what = f"{resource.kind}/{namespace}/{name}"
        try:
            path = resource.path(namespace, name)
        except BadInput as error:  # the API server accepts volumes with such a name
            return Unread(what, str(error))
        if path not in self._objects:
            right = f"get {resource.plural} {name} in namespace {namespace}"
            self._objects[path] = await self._ask.get(what, right, path)
        return self._objects[path]


def host_path(container: Container, path: str) -> str:
    """Where on its host a container's file lies; empty where it comes from elsewhere."""
    mounted = workloads.mount(container, path)
    if mounted is None or mounted[0].kind != "hostPath":
        return ""
    mount, inside = mounted
    return posixpath.join(mount.name, inside) if inside else mount.name


def is_of_host(pod: Pod) -> bool:
    """Whether the files that it names may be read here: a static pod of the control plane, which no tenant can make."""
    return pod.is_static and pod.namespace == "kube-system"


def is_here(node: str) -> bool:
    """Whether we run on that node, by its name."""
    return bool(node) and node.split(".", maxsplit=1)[0].lower() == socket.gethostname().split(".")[0].lower()


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)[:_LARGEST]
    except (binascii.Error, ValueError):
        return b""
