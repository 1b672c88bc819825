"""Certificates as files of one folder. One rename replaces all files, as the kubelet does for a mounted Secret.

`tls.crt` and the other files are links to `..data/tls.crt`, and `..data` is a link to the folder with the content. A
reader sees a certificate with the key of another one only if the rename happens between its two reads.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Problem
from nodewise.install import host_checks
from nodewise.install.certificate_renewal import ConnectionCertificates, PeerCertificates
from nodewise.install.file_transaction import fsync_folder, read_file, write
from nodewise.tls.x509_certificates import merge_authorities

_DATA: Final = "..data"
_PREFIX: Final = "..nodewise-"
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644
FILE_NAMES: Final = ("tls.crt", "tls.key", "ca.crt", "client.crt", "client.key")
_SERVER: Final = {
    "cert": "tls.crt",
    "key": "tls.key",
    "next_cert": "next-tls.crt",
    "next_key": "next-tls.key",
}
_CLIENT: Final = {
    "cert": "client.crt",
    "key": "client.key",
    "next_cert": "next-client.crt",
    "next_key": "next-client.key",
}


_STATIC_POD_FOLDER: Final = "/etc/kubernetes/manifests"
_MAX_MANIFEST_BYTES: Final = 2**20


class FolderContents(NamedTuple):
    """The certificates of a folder, and the names of files that `nodewise certs` did not write."""

    certificates: ConnectionCertificates
    foreign: tuple[str, ...]


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder, which is created if it is missing.

    BadInput if users other than root could write to the folder.
    """
    trusted_files.check_folder(folder)
    folder.mkdir(parents=True, mode=0o755, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_certificates(folder: Path) -> FolderContents:
    """The certificates of the folder; missing files are empty. OSError for an unreadable file, BadInput for a pipe, a
    device, a folder or a huge file.
    """

    def read(name: str) -> bytes:
        # the owner of a file may be the user of nodewise, so only the folder has to be root's
        where = folder / name if name in FILE_NAMES else folder / _DATA / name
        return read_file(str(where), is_trusted=False) or b""

    trusted = read("ca.crt")
    values: list[dict[str, Any]] = [
        {field: read(name) for field, name in names.items()} for names in (_SERVER, _CLIENT)
    ]
    certificates = ConnectionCertificates(*(PeerCertificates(trusted=trusted, **each) for each in values))
    foreign = [
        name
        for name in FILE_NAMES
        if os.path.lexists(folder / name) and not _is_own_symbolic_link(folder, name)
    ]
    data = folder / _DATA
    if os.path.lexists(data) and not (data.is_symlink() and data.readlink().name.startswith(_PREFIX)):
        foreign.append(_DATA)
    return FolderContents(certificates, tuple(foreign))


def check_folder(folder: Path) -> None:
    """BadInput for a folder of static pods, and for a folder with the certificates of the cluster itself.

    `--replace` does not override this: replacing the `ca.crt` of the cluster would stop the cluster.
    """
    inside = Path(os.path.realpath(folder))
    pods = Path(os.path.realpath(_STATIC_POD_FOLDER))
    files = inside.iterdir() if inside.is_dir() else ()
    if inside == pods or pods in inside.parents or any(map(_is_pod_manifest, files)):
        actual = "a folder of static pods: the kubelet reads its files as pods"
        expected = "a folder of its own"
    elif (name := host_checks.find_cluster_certificate_file(inside)) is not None:
        actual = f"the cluster's own certificates are there, such as {name}"
        expected = "a folder of its own, such as /etc/nodewise/pki"
    else:
        return
    raise BadInput("files", [Problem(f"--host {folder}", actual, expected)])


def _is_pod_manifest(path: Path) -> bool:
    if path.name.startswith(".") or not path.is_file() or path.stat().st_size > _MAX_MANIFEST_BYTES:
        return False
    pattern = rb"""^(?:\xef\xbb\xbf)?[\s{]*["']?kind["']?\s*:\s*["']?Pod\b"""
    return bool(re.search(pattern, path.read_bytes(), re.MULTILINE))


def check_ownership(folder: Path, existing: FolderContents) -> None:
    """BadInput if the folder has files that `nodewise certs` did not write."""
    if existing.foreign:
        problems = [
            Problem(str(folder / name), "was not written by nodewise certs", "--replace to have it replaced")
            for name in existing.foreign
        ]
        raise BadInput("files", problems)


def write_certificates(folder: Path, certificates: ConnectionCertificates) -> None:
    """Replace all files at once. Each file keeps the owner of the file that it replaces."""
    contents = {"ca.crt": merge_authorities(certificates.server.trusted, certificates.client.trusted)}
    for peer, names in zip(certificates, (_SERVER, _CLIENT), strict=True):
        values = peer._asdict()
        contents |= {name: values[field] for field, name in names.items() if values[field]}
    fresh = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    fresh.mkdir(mode=0o755)
    fresh.chmod(0o755)
    try:
        for name, content in contents.items():
            mode = _PRIVATE if name.endswith(".key") else _PUBLIC
            write(str(fresh / name), content, mode, _owner_of_file_to_replace(folder, name))
        fsync_folder(fresh)
        _replace_by_symbolic_link(folder / _DATA, fresh.name)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    for name in FILE_NAMES:
        if not _is_own_symbolic_link(folder, name):
            _replace_by_symbolic_link(folder / name, f"{_DATA}/{name}")
    fsync_folder(folder)
    for path in folder.glob(f"{_PREFIX}*"):  # previous content and remains of interrupted runs, with keys
        if path.is_symlink():
            path.unlink(missing_ok=True)
        elif path.name != fresh.name:
            shutil.rmtree(path, ignore_errors=True)


def _is_own_symbolic_link(folder: Path, name: str) -> bool:
    path = folder / name
    return path.is_symlink() and str(path.readlink()) == f"{_DATA}/{name}"


def _owner_of_file_to_replace(folder: Path, name: str) -> tuple[int, int] | None:
    before = name.removeprefix("next-")
    try:
        status = (folder / before).stat()
    except OSError:
        return None
    return status.st_uid, status.st_gid


def _replace_by_symbolic_link(path: Path, to: str) -> None:
    fresh = path.with_name(f"{_PREFIX}{secrets.token_hex(8)}.link")
    fresh.symlink_to(to)
    fresh.rename(path)
    fsync_folder(path.parent)
