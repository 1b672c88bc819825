"""Checks of paths on a host: access, trust, and files that a run must not overwrite."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput
from nodewise.install.file_transaction import read_file

CLUSTER_FILES: Final = ("ca.key", "sa.key", "apiserver.crt", "front-proxy-ca.crt", "peer.crt")
"""Files that identify a folder in which kubeadm stores the certificates of the cluster."""
_KIND: Final = "KubeSchedulerConfiguration"


def resolve_path(path: str) -> str:
    """The path without symbolic links. `BadInput` for a broken link, and for a link that users other than root can
    change.
    """
    real_path = trusted_files.resolve(path)
    if os.path.islink(path) and not os.path.exists(real_path):
        raise BadInput(f"file check error: {path}: a symbolic link that leads nowhere, to {real_path}")
    return real_path


def read_file_or_append_problem(path: str, problems: list[str], *, writes: bool = False) -> bytes | None:
    """The content of a file; None, after appending to `problems`, if the file is unusable."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, os.strerror(21))
        content = read_file(path)
        refusal = (_why_not_writable(path) or _why_not_writable(os.path.dirname(path))) if writes else ""
    except OSError as error:
        refusal = (error.strerror or str(error)).lower()
    except BadInput as error:
        problems.append(str(error))
        return None
    if refusal:
        problems.append(f'no access to the file at path "{path}", err: open {path}: {refusal}')
        return None
    return content


def find_cluster_certificate_file(folder: str | Path) -> str | None:
    """The name of a file that identifies a folder of cluster certificates; None if there is no such file."""
    return next((name for name in CLUSTER_FILES if os.path.lexists(os.path.join(folder, name))), None)


def configuration_path_problems(path: str, others: Iterable[str], *, writes: bool) -> Iterator[str]:
    """Problems of the path of the configuration. `others` are files that the run must not overwrite."""
    folder = os.path.dirname(path)
    why = ""
    if os.path.isdir(path):
        why = "is a directory"
    elif not os.path.isdir(folder):
        why = "no such file or directory"
    elif writes:
        why = _why_not_writable(folder) or _why_folder_not_trusted(folder)
    if why:
        yield f'user can\'t create the file at path "{path}", err: open {path}: {why}'
    elif path in {os.path.realpath(other) for other in others if other}:
        yield f"{path}: is needed as it is; expected another -d, or another name of the template"
    elif content := _describe_foreign_content(path):
        yield f"{path}: holds {content}, which would be lost; expected another -d, or another name of the template"


def certificate_folder_problems(path: str, *, writes: bool) -> Iterator[str]:
    """Problems of the folder for certificates, which may be missing."""
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        yield f"{path}: not a directory"
    elif writes and (why := _why_not_writable(there) or _why_folder_not_trusted(path)):
        yield f"{path}: {why}"
    elif (name := find_cluster_certificate_file(path)) is not None:
        yield f"{path}: the cluster's own certificates are there, such as {name}; expected a folder of its own"


def backup_folder_problems(path: str) -> Iterator[str]:
    """Problems of the folder for backups."""
    if not os.path.isdir(path):
        why = "not a directory" if os.path.exists(path) else "no such file or directory"
        yield f'user can\'t create folders to "{path}", err: stat {path}: {why}'
    elif why := _why_not_writable(path) or _why_folder_not_trusted(path):
        yield f'user can\'t create folders to "{path}", err: {why}'


def static_pod_folder_problems(folders: Iterable[str], pods: Sequence[str]) -> Iterator[str]:
    """Problems of folders that are, or are inside of, a folder for static pods."""
    own = [os.path.realpath(folder) for folder in pods]
    for path in sorted({*folders} - {""}):
        real_path = os.path.realpath(path)
        if any(real_path == folder or real_path.startswith(folder + os.sep) for folder in own):
            yield f"{path}: a folder for static pods"


def _why_not_writable(path: str) -> str:
    """The reason why the process cannot write to a path; empty if it can."""
    if os.access(path, os.W_OK):
        return ""
    is_closed = os.statvfs(path).f_flag & os.ST_RDONLY
    return "read-only file system" if is_closed else "permission denied"


def _why_folder_not_trusted(folder: str) -> str:
    """The reason why a folder is not trusted: other users can write to it. Empty if it is trusted."""
    try:
        trusted_files.check_folder(folder)
    except BadInput as error:
        return str(error)
    return ""


def _describe_foreign_content(path: str) -> str:
    """A phrase for the content of a file other than a scheduler configuration; empty if it may be overwritten."""
    try:
        data = read_file(path) or b""
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except BadInput as error:
        return f"what cannot be read ({error})"
    if b"-----BEGIN " in data:
        return "a certificate or a key"
    kind = re.search(rb"""^["']?kind["']?:[ \t]*["']?(\w+)""", data, re.MULTILINE)
    return "" if kind is None or kind[1].decode() == _KIND else f"something of kind {kind[1].decode()}"
