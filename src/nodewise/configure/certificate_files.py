"""Certificates as files of one folder, all of them put in place by one rename, as a kubelet does it with a Secret.

`tls.crt` and the others are links to `..data/tls.crt`, and `..data` is a link to the folder that holds them: a reader
never sees a certificate beside another one's key for longer than it takes to read both.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise import trusted_files
from nodewise.configure import path_checks
from nodewise.configure.certificate_renewal import Both, Side, trusting
from nodewise.configure.host_files import fsync_folder
from nodewise.errors import BadInput, Problem

_DATA: Final = "..data"
_PREFIX: Final = "..nodewise-"
_PRIVATE: Final = 0o600
_PUBLIC: Final = 0o644
FILES: Final = ("tls.crt", "tls.key", "ca.crt", "client.crt", "client.key")
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


_PODS: Final = "/etc/kubernetes/manifests"
_LARGEST_POD: Final = 2**20


class Found(NamedTuple):
    """What a folder holds, and which of its files are not ours."""

    both: Both
    foreign: tuple[str, ...]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else writes there meanwhile; the folder is made where it is not there.

    BadInput for a folder in which others than root could put a key or a CA.
    """
    trusted_files.check_folder(folder)
    if not folder.is_dir():
        folder.mkdir(parents=True, mode=0o755)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read(folder: Path) -> Found:
    """What there is; a file that is not there is empty. OSError for one that cannot be read."""

    def side(names: Mapping[str, str]) -> Side:
        held: dict[str, Any] = {field: _content(folder, name) for field, name in names.items()}
        return Side(trusted=trusted, **held)

    trusted = _content(folder, "ca.crt")
    foreign = [name for name in FILES if os.path.lexists(folder / name) and not _is_link(folder, name)]
    data = folder / _DATA
    if os.path.lexists(data) and not (data.is_symlink() and data.readlink().name.startswith(_PREFIX)):
        foreign.append(_DATA)
    return Found(Both(side(_SERVER), side(_CLIENT)), tuple(foreign))


def check_place(folder: Path) -> None:
    """BadInput for a folder whose files the kubelet reads as pods, or in which a cluster keeps its own certificates.

    Nothing is replaced there, whoever asks: a `ca.crt` of ours in the place of the cluster's stops the cluster.
    """
    inside = Path(os.path.realpath(folder))
    pods = Path(os.path.realpath(_PODS))
    if inside == pods or pods in inside.parents or any(map(_is_pod, _files_of(inside))):
        seen, wanted = "a folder of static pods: the kubelet reads its files as pods", "a folder of its own"
    elif (held := path_checks.cluster_certificate(inside)) is not None:
        seen = f"the cluster's own certificates are there, such as {held}"
        wanted = "a folder of its own, such as /etc/nodewise/pki"
    else:
        return
    raise BadInput("files", [Problem(f"--host {folder}", seen, wanted)])


def _files_of(folder: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file()]
    return []


def _is_pod(path: Path) -> bool:
    """Whether a kubelet would start something by this file."""
    if path.stat().st_size > _LARGEST_POD:
        return False
    return bool(
        re.search(
            rb"""^(?:\xef\xbb\xbf)?[\s{]*["']?kind["']?\s*:\s*["']?Pod\b""", path.read_bytes(), re.MULTILINE
        )
    )


def check_ours(folder: Path, existing: Found) -> None:
    """BadInput where somebody else's file would be written over."""
    if existing.foreign:
        problems = [
            Problem(str(folder / name), "was not written by nodewise certs", "--replace to have it replaced")
            for name in existing.foreign
        ]
        raise BadInput("files", problems)


def write(folder: Path, both: Both) -> None:
    """Put all files in place together. Their owners are those of the files before them."""
    fresh = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    fresh.mkdir(mode=0o755)
    fresh.chmod(0o755)
    try:
        for name, content in _contents(both).items():
            _write(fresh / name, content, _owner(folder, name))
        fsync_folder(fresh)
        _link(folder / _DATA, fresh.name)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    for name in FILES:
        if not _is_link(folder, name):
            _link(folder / name, f"{_DATA}/{name}")
    fsync_folder(folder)
    _sweep(folder)


def _contents(both: Both) -> dict[str, bytes]:
    contents = {"ca.crt": trusting(both.server.trusted, both.client.trusted)}
    for side, names in zip(both, (_SERVER, _CLIENT), strict=True):
        values = side._asdict()
        contents |= {name: values[field] for field, name in names.items() if values[field]}
    return contents


def _content(folder: Path, name: str) -> bytes:
    where = folder / name if name in FILES else folder / _DATA / name
    try:
        return where.read_bytes()
    except FileNotFoundError:
        return b""


def _is_link(folder: Path, name: str) -> bool:
    path = folder / name
    return path.is_symlink() and str(path.readlink()) == f"{_DATA}/{name}"


def _owner(folder: Path, name: str) -> tuple[int, int] | None:
    """Of the file that this one comes after; None where there is none."""
    before = name.removeprefix("next-")
    try:
        status = (folder / before).stat()
    except OSError:
        return None
    return status.st_uid, status.st_gid


def _write(path: Path, content: bytes, owner: tuple[int, int] | None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if owner not in {None, (os.geteuid(), os.getegid())} and owner is not None:
            os.fchown(descriptor, *owner)
        os.fchmod(descriptor, _PRIVATE if path.suffix == ".key" else _PUBLIC)
        os.fsync(descriptor)


def _link(path: Path, to: str) -> None:
    """A symbolic link in the place of whatever was there."""
    fresh = path.with_name(f"{_PREFIX}{secrets.token_hex(8)}.link")
    fresh.symlink_to(to)
    fresh.rename(path)
    fsync_folder(path.parent)


def _sweep(folder: Path) -> None:
    """Remove what was in place before, and what a run left that was ended: there are keys in it."""
    current = (folder / _DATA).readlink().name
    for path in folder.glob(f"{_PREFIX}*"):
        if path.is_symlink():
            path.unlink(missing_ok=True)
        elif path.name != current:
            shutil.rmtree(path, ignore_errors=True)
