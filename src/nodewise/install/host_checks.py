"""Checks of a host: paths, folders that are mounted into a container, and the script for other control-plane hosts.

Paths are checked for access, trust, and files that a run must not overwrite. A folder of the container itself would be
lost when it ends.
"""

import os
import posixpath
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Problem
from nodewise.install.file_transaction import digest, read_file

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
        why = _why_folder_not_usable(folder)
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
    elif writes and (why := _why_folder_not_usable(there, path)):
        yield f"{path}: {why}"
    elif (name := find_cluster_certificate_file(path)) is not None:
        yield f"{path}: the cluster's own certificates are there, such as {name}; expected a folder of its own"


def backup_folder_problems(path: str) -> Iterator[str]:
    if not os.path.isdir(path):
        why = "not a directory" if os.path.exists(path) else "no such file or directory"
        yield f'user can\'t create folders to "{path}", err: stat {path}: {why}'
    elif why := _why_folder_not_usable(path):
        yield f'user can\'t create folders to "{path}", err: {why}'


def static_pod_folder_problems(folders: Iterable[str], pods: str) -> Iterator[str]:
    """Problems of folders that are, or are inside of, a folder for static pods."""
    own = os.path.realpath(pods)
    for path in sorted({*folders} - {""}):
        if posixpath.commonpath([own, os.path.realpath(path)]) == own:
            yield f"{path}: a folder for static pods"


def _why_not_writable(path: str) -> str:
    """The reason why the process cannot write to a path; empty if it can."""
    if os.access(path, os.W_OK):
        return ""
    is_closed = os.statvfs(path).f_flag & os.ST_RDONLY
    return "read-only file system" if is_closed else "permission denied"


def _why_folder_not_usable(folder: str, trusted: str = "") -> str:
    """The reason why the process cannot write to a folder, or why it is not trusted: other users can write to it. Empty
    if it is usable. `trusted`: the folder that has to be trusted, if it is another one.
    """
    if why := _why_not_writable(folder):
        return why
    try:
        trusted_files.check_folder(trusted or folder)
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


_OCTAL: Final = re.compile(r"\\([0-7]{3})")


class MountPoint(NamedTuple):
    """A line of /proc/self/mountinfo: the mount point in the container, and the mounted folder of the file system."""

    point: str
    root: str


def parse_mountinfo(text: str) -> list[MountPoint]:
    """The mounts of /proc/self/mountinfo (proc(5)) in order; later mounts cover earlier ones.

    Paths may contain characters at which `str.splitlines` splits; the kernel escapes only spaces, tabs, `\\n` and `\\`.
    """

    def unescape(field: str) -> str:
        return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)

    rows = (line.split(" ") for line in text.split("\n"))
    return [
        MountPoint(unescape(row[4]), unescape(row[3]))
        for row in rows
        if len(row) > 4  # noqa: PLR2004 - the fields up to the mount point
    ]


def container_folder_problems(folders: Mapping[str, str], mounts: Iterable[MountPoint]) -> list[Problem]:
    """A problem for each folder, by flag, that is not mounted from the host. The folders are real paths."""
    there = list(mounts)
    expected = "a folder that is mounted from the host, at the path that it has there"
    return [
        Problem(flag, f"{folder} is not the host's: it is in no mount of this container", expected)
        for flag, folder in folders.items()
        if _find_mount_of_folder(folder, there).point == "/"
    ]


def mounts_with_uncertain_host_path(folders: Iterable[str], mounts: Iterable[MountPoint]) -> list[MountPoint]:
    """The mounts of these folders whose path on the host may differ from the path in the container."""
    there = list(mounts)
    containing = dict.fromkeys(_find_mount_of_folder(folder, there) for folder in folders)
    return [mount for mount in containing if mount.point != "/" and not mount.root.endswith(mount.point)]


def _find_mount_of_folder(folder: str, mounts: Iterable[MountPoint]) -> MountPoint:
    best = MountPoint("/", "/")
    for mount in mounts:
        inside = posixpath.commonpath([mount.point, folder]) == mount.point
        if inside and len(mount.point) >= len(best.point):
            best = mount
    return best


_SCRIPT_START: Final = """\
#!/bin/sh
# Repeats a run on another control-plane host, as root. One host after another: wait until kube-scheduler is back.
# Stops at the first difference to the host of the first run; before the run, nothing has been changed.
set -eu
"""
_SCRIPT_END: Final = """\
# The kubelet restarts kube-scheduler now. Wait until it is back before the next host:
#   kubectl --namespace kube-system get pods --selector component=kube-scheduler --output wide
# `kubeadm upgrade` rewrites the manifest: run this script again afterwards.
"""


class OtherHostRun(NamedTuple):
    """A run to repeat on other hosts."""

    version: str
    """The version of nodewise; another version may write another configuration."""
    words: Sequence[str]
    """The arguments of `nodewise`."""
    needed: Mapping[str, bytes]
    """Source files by path."""
    written: Mapping[str, bytes]
    """Written files by path, without the manifest, which may differ between hosts."""
    manifest: str
    config_hash: str
    """The digest of the files that kube-scheduler reads, as in the annotation of the manifest."""


def render_repeat_script(run: OtherHostRun) -> str:
    """The run as a shell script."""
    fail = f"{{ echo 'another version of nodewise: expected {run.version}' >&2; exit 1; }}"
    pattern = shlex.quote(f" {run.version}$")
    lines = [
        f"nodewise --version | grep -q {pattern} || {fail}",
        "",
        "# These files must be the same as on the first host. They may include a private key.",
        *_checksum_lines(run.needed),
        "",
        shlex.join(["nodewise", *run.words]),
        "",
        "# The written files must be the same as on the first host.",
        *_checksum_lines(run.written),
        shlex.join(["grep", "-q", run.config_hash, run.manifest]),
        "",
    ]
    return _SCRIPT_START + "\n".join(lines) + _SCRIPT_END


def encode_repeat_document(run: OtherHostRun) -> dict[str, Any]:
    """The run as a JSON document."""
    return {
        "version": run.version,
        "command": ["nodewise", *run.words],
        "needed": {path: digest(data) for path, data in run.needed.items()},
        "written": {path: digest(data) for path, data in run.written.items()},
        "manifest": {"path": run.manifest, "configHash": run.config_hash},
    }


def _checksum_lines(files: Mapping[str, bytes]) -> list[str]:
    if not files:
        return []
    lines = [f"{digest(data)}  {path}" for path, data in files.items()]
    return ["sha256sum --check --quiet <<'FILES'", *lines, "FILES"]
