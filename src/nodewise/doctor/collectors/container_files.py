"""Reads files as containers see them: from ConfigMaps and Secrets through the API server, or from this host."""

import base64
import binascii
import posixpath
import socket
from pathlib import Path
from typing import Any, Final

from nodewise.base.errors import BadInput
from nodewise.doctor.collectors.cluster_reader import ClusterReader
from nodewise.doctor.facts import UnavailableFact
from nodewise.doctor.parsing import certificates, workloads
from nodewise.doctor.parsing.certificates import Chain
from nodewise.doctor.parsing.object_fields import get_text
from nodewise.doctor.parsing.workloads import Container, Workload
from nodewise.kube.resource_kinds import CONFIG_MAPS, SECRETS, Resource

_MAX_BYTES: Final = 2**20
_COPY: Final = "copy it from there and name the copy: --scheduler-config FILE"
_FORWARD: Final = (
    "kubectl -n {0} port-forward {1} 10259, and --scheduler-url https://127.0.0.1:10259; or copy the file and name the"
    " copy: --scheduler-config FILE"
)


class FileReader:
    """Reads files of containers and of this host. Callers keep only the public key of a private key."""

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader
        self._objects: dict[str, Any] = {}

    async def read(self, workload: Workload, container: Container, path: str) -> bytes | UnavailableFact:
        """A file as a container sees it."""
        what = f"{path} of {workload.where}"
        source = workloads.find_mount(container, path)
        if source is None:
            return UnavailableFact(what, "it is part of the image", remedy=_COPY)
        mount, inside = source
        if mount.kind == "hostPath":
            return _read_host_path(
                what, posixpath.join(mount.name, inside) if inside else mount.name, workload
            )
        if mount.kind == "configMap":
            return await self._read_config_map_or_secret_key(
                CONFIG_MAPS, workload.namespace, mount.name, inside
            )
        if mount.kind == "secret":
            return await self._read_config_map_or_secret_key(SECRETS, workload.namespace, mount.name, inside)
        return UnavailableFact(what, "its volume is of a kind that cannot be read from here")

    async def read_certificate_chain(
        self, workload: Workload, container: Container, path: str
    ) -> Chain | UnavailableFact:
        """The certificates of a file."""
        return parse_certificate_chain(await self.read(workload, container, path))

    async def _read_config_map_or_secret_key(
        self, resource: Resource, namespace: str, name: str, key: str
    ) -> bytes | UnavailableFact:
        """A key of a ConfigMap or a Secret."""
        value = await self._read_object_once(resource, namespace, name)
        if isinstance(value, UnavailableFact):
            return value
        what = f"{resource.kind}/{namespace}/{name}"
        if value is None:
            return UnavailableFact(what, "it does not exist, and a pod mounts it")
        text = get_text(value, "data", key)
        if resource is CONFIG_MAPS and text:
            return text.encode(errors="replace")[:_MAX_BYTES]
        encoded = get_text(value, "binaryData", key) if resource is CONFIG_MAPS else text
        return _decode_utf8(encoded) or UnavailableFact(what, f"it has no key {key}")

    async def _read_object_once(self, resource: Resource, namespace: str, name: str) -> Any:
        """An object, read once."""
        what = f"{resource.kind}/{namespace}/{name}"
        try:
            path = resource.path(namespace, name)
        except BadInput as error:  # the API server accepts volumes with such a name
            return UnavailableFact(what, str(error))
        if path not in self._objects:
            right = f"get {resource.plural} {name} in namespace {namespace}"
            self._objects[path] = await self._reader.get(what, right, path)
        return self._objects[path]


def read_local_file(path: str) -> bytes | UnavailableFact:
    """A file of this host."""
    try:
        with Path(path).open("rb") as file:
            return file.read(_MAX_BYTES)
    except OSError as error:
        return UnavailableFact(path, error.strerror or str(error))
    except ValueError:
        return UnavailableFact(path, "it is no file name")


def parse_certificate_chain(pem: bytes | UnavailableFact) -> Chain | UnavailableFact:
    return pem if isinstance(pem, UnavailableFact) else certificates.parse_pem(pem)


def host_path_of_container_file(container: Container, path: str) -> str:
    """The path on its host of a container's file; empty if the file is not of the host."""
    source = workloads.find_mount(container, path)
    if source is None or source[0].kind != "hostPath":
        return ""
    mount, inside = source
    return posixpath.join(mount.name, inside) if inside else mount.name


def may_read_host_files(workload: Workload) -> bool:
    """Whether doctor may read files that a workload mounts from this host: only of a static pod of the control plane.

    Tenants can make pods that name any path and any node, but no static pods of kube-system.
    """
    return workload.is_static and workload.namespace == "kube-system" and is_this_host(workload.node)


def is_this_host(node: str) -> bool:
    """Whether doctor runs on a node, by its name."""
    return bool(node) and _first_host_name_label(node) == _first_host_name_label(socket.gethostname())


def _first_host_name_label(host: str) -> str:
    return host.partition(".")[0].lower()


def _read_host_path(what: str, path: str, workload: Workload) -> bytes | UnavailableFact:
    if may_read_host_files(workload):
        data = read_local_file(path)
        return data._replace(remedy=_COPY) if isinstance(data, UnavailableFact) else data
    kind, namespace, name = workload.where.split("/")
    remedy = _FORWARD.format(namespace, name) if kind == "Pod" else _COPY
    return UnavailableFact(what, f"it lies on host {workload.node or 'of the pod'}, as {path}", remedy=remedy)


def _decode_utf8(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)[:_MAX_BYTES]
    except (binascii.Error, ValueError):
        return b""
