"""Changes several files of a host together: all of them or none, even if the process is killed, and never one partly.

Also restores a host from a backup, or by removing the changes of earlier runs.

Each file is written under a temporary name beside its path, synced to disk, and renamed. The last file of the list, the
manifest, is renamed last. Before that, a backup folder stores the previous content and the progress, so that the next
run after a power loss restores all files and starts again. The kubelet ignores the temporary names because they begin
with a dot.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from nodewise.base import trusted_files
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Problem
from nodewise.install import backups, file_diff, scheduler_static_pod, yaml_editor
from nodewise.install.backups import Backup, BackupIndex
from nodewise.install.control_plane_file_plan import (
    CERTIFICATE_NAMES,
    ChangePlan,
    HostRequest,
    cluster_ca_digest,
    config_hash,
    list_managed_files,
    read_required_file,
    scheduler_config_path,
)
from nodewise.install.scheduler_static_pod import Manifest, PriorState

PERMISSIONS: Final = 0o777
"""The permission bits that are written, whatever a file or backup has: no setuid, setgid or sticky bit."""
STAGED_PREFIX: Final = ".nodewise-"
"""Prefix of temporary names. The kubelet ignores names that begin with a dot."""
_MAX_BYTES: Final = 2**24
_PRESERVED_ATTRIBUTES: Final = ("user.", "security.selinux", "system.posix_acl_access")
"""Extended attributes that belong to the path, unlike a signature, which belongs to the content."""


class FileChange(NamedTuple):
    """A file, by its real path, before and after a change; None: the file does not exist."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int
    owner: tuple[int, int] | None = None
    """User and group; None: those of the process."""
    old_mode: int | None = None
    """The mode before the change; None: `mode`."""

    @property
    def is_unchanged(self) -> bool:
        return self.before == self.after and self.old_mode in (None, self.mode)

    @property
    def mode_before(self) -> int:
        return self.mode if self.old_mode is None else self.old_mode


def read_file(path: str, *, is_trusted: bool = True) -> bytes | None:
    """The content of a regular file; None if it does not exist. `BadInput` for other kinds of files, OSError from the
    system.

    `BadInput` also for a file that users other than root can write or replace, unless `is_trusted` is False. Untrusted
    content may only be used to refuse a run.
    """
    try:
        real = trusted_files.resolve(path) if is_trusted else path
        descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if is_trusted else 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    with os.fdopen(descriptor, "rb") as file:
        status = trusted_files.check_open_file_trust(descriptor, real) if is_trusted else os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(path, [Problem("file", "no regular file", "one")])
        if status.st_size > _MAX_BYTES:
            raise BadInput(path, [Problem("file", f"{status.st_size} bytes", f"at most {_MAX_BYTES}")])
        return file.read(_MAX_BYTES + 1)


def digest(data: bytes | None) -> str | None:
    return hashlib.sha256(data).hexdigest() if data is not None else None


def plan_file_change(path: str, after: bytes | None, mode: int = 0o600) -> FileChange:
    """A change that keeps the mode and owner of the file; a new file gets `mode`."""
    before = read_file(path)
    if before is None:
        return FileChange(path, None, after, mode)
    status = os.stat(path)
    return FileChange(path, before, after, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))


def write_staged(path: str, data: bytes, mode: int, owner: tuple[int, int] | None) -> str:
    """Write a complete, synced temporary file beside a path, with the extended attributes of the file there. Returns
    its path.
    """
    name = os.path.join(os.path.dirname(path), f"{STAGED_PREFIX}{secrets.token_hex(6)}")
    write(name, data, mode, owner, like=path)
    return name


def write(path: str, data: bytes, mode: int, owner: tuple[int, int] | None, *, like: str = "") -> None:
    """Create a file with this content and sync it. On failure no file remains. OSError if the path exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        if owner is not None and owner != (os.geteuid(), os.getegid()):
            os.fchown(descriptor, *owner)
        os.fchmod(descriptor, mode & PERMISSIONS)
        for name, value in _read_extended_attributes(like):
            os.setxattr(descriptor, name, value)
        os.fsync(descriptor)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def remove_temporary_files(folders: Sequence[str]) -> None:
    """Remove the temporary files that an interrupted run left in these folders."""
    for folder in folders:
        with (
            contextlib.suppress(OSError, BadInput),
            os.scandir(trusted_files.check_folder(folder)) as entries,
        ):
            for entry in entries:
                if entry.name.startswith(STAGED_PREFIX) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


def _read_extended_attributes(path: str) -> list[tuple[str, bytes]]:
    """Names and values of the preserved extended attributes; empty without such a file or without support for
    attributes.
    """
    try:
        names = os.listxattr(path) if path else []
        return [(name, os.getxattr(path, name)) for name in names if name.startswith(_PRESERVED_ATTRIBUTES)]
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENOTSUP, errno.ENODATA}:
            return []
        raise


def fsync_folder(folder: str | Path) -> None:
    """Sync the entries of a folder: only then a rename or removal survives a power loss. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_LOCK_TIMEOUT_S: Final = 10.0
"""Timeout for another run to end."""


class RecoveredBackup(NamedTuple):
    """The result for a backup of an interrupted run."""

    folder: str
    outcome: Literal["undone", "left", "unreadable", "foreign"]
    """`left`: a file was modified since, so nothing is restored. `foreign`: the backup names files that this run does
    not manage."""


@contextlib.contextmanager
def lock_folder(folder: str) -> Iterator[None]:
    """Hold an exclusive lock on the folder. `Conflict` if another run holds it for longer than the timeout."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise Conflict(
                        f"another run works on {folder}", remedy="wait until it has ended, and run it again"
                    ) from error
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def commit_changes(changes: Sequence[FileChange], backup: Backup | None = None) -> None:
    """Apply the changes in this order. On any failure nothing is changed.

    `Conflict` if a file differs from the content that the change was computed from, `NodewiseError` for an error of the
    system.
    """
    changes = [change for change in changes if not change.is_unchanged]
    for change in changes:
        trusted_files.check_folder(os.path.dirname(change.path))
        _check_file_unchanged(change)
    created_folders: list[str] = []
    applied: list[FileChange] = []
    staged: dict[str, str] = {}
    try:
        if backup is not None:
            backups.save_backup(changes, backup)
        for change in changes:
            _make_folder(os.path.dirname(change.path), created_folders)
            if change.after is not None:
                staged[change.path] = write_staged(change.path, change.after, change.mode, change.owner)
        for change in changes:
            _check_file_unchanged(change)
            applied.append(change)
            _move_staged_file_in_place(staged, change)
        _verify_written_files(changes)
    except BaseException as error:
        _undo_applied_changes(applied, list(staged.values()), created_folders, backup)
        if isinstance(error, OSError):
            raise NodewiseError(f"nothing was changed: {error.strerror}: {error.filename}") from error
        raise
    if backup is not None:
        backups.mark_backup_finished(backup.path)


def restore_interrupted_runs(parent: str, managed: Collection[str]) -> list[RecoveredBackup]:
    """Restore the files that interrupted runs changed, if this run manages them.

    `BadInput` if users other than root can write to the folder.
    """
    trusted_files.check_folder(parent)
    for folder in backups.list_incomplete_backups(parent):
        shutil.rmtree(folder, ignore_errors=True)
    recovered = []
    for folder in backups.list_backups(parent):
        try:
            index = backups.read_backup_index(folder)
        except BadInput:
            recovered.append(RecoveredBackup(folder, "unreadable"))
            continue
        if index is None:
            continue
        remove_temporary_files([folder])
        if not index.finished and not {entry.path for entry in index.files} <= {*managed}:
            recovered.append(RecoveredBackup(folder, "foreign"))
        elif not index.finished:
            recovered += _restore_interrupted_run(folder, index)
            backups.mark_backup_finished(folder)
    return recovered


def _restore_interrupted_run(folder: str, index: BackupIndex) -> list[RecoveredBackup]:
    now = [digest(read_file(entry.path)) for entry in index.files]
    if all(actual == entry.after for actual, entry in zip(now, index.files, strict=True)):
        return []
    if any(actual not in {entry.before, entry.after} for actual, entry in zip(now, index.files, strict=True)):
        return [RecoveredBackup(folder, "left")]
    commit_changes([backups.plan_file_restore(folder, entry) for entry in index.files])
    return [RecoveredBackup(folder, "undone")]


def _check_file_unchanged(change: FileChange) -> None:
    if read_file(change.path) != change.before:
        raise Conflict(f"{change.path} was changed by another process", remedy="run the command again")


def _make_folder(path: str, created_folders: list[str]) -> None:
    """Create a folder with its parents, and append the created folders to the list."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        created_folders.append(folder)
        os.mkdir(folder, 0o700)
        os.chmod(folder, 0o755)  # noqa: S103 - as other folders of /etc, whatever the umask
        fsync_folder(os.path.dirname(folder))


def _move_staged_file_in_place(staged: dict[str, str], change: FileChange) -> None:
    if change.path in staged:
        os.rename(staged[change.path], change.path)
        del staged[change.path]
    else:
        os.unlink(change.path)
    fsync_folder(os.path.dirname(change.path))


def _verify_written_files(changes: Sequence[FileChange]) -> None:
    for change in changes:
        if read_file(change.path) != change.after:
            raise Conflict(
                f"{change.path} is not what was written",
                remedy="another program writes to it; run the command again",
            )


def _undo_applied_changes(
    applied: Sequence[FileChange],
    staged: Sequence[str],
    created_folders: Sequence[str],
    backup: Backup | None,
) -> None:
    """Restore all files except those that someone else changed since. What cannot be restored stays in the backup."""
    is_complete = True
    for change in reversed(applied):
        try:
            if read_file(change.path) == change.after:
                _restore_file(change)
        except (OSError, BadInput):
            is_complete = False
    for path in staged:
        with contextlib.suppress(OSError):
            os.unlink(path)
    for folder in sorted(created_folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    if is_complete and backup is not None:
        shutil.rmtree(backup.path, ignore_errors=True)
        for folder in backups.list_incomplete_backups(backup.parent):
            shutil.rmtree(folder, ignore_errors=True)


def _restore_file(change: FileChange) -> None:
    if change.before is None:
        Path(change.path).unlink(missing_ok=True)
    else:
        os.rename(
            write_staged(change.path, change.before, change.mode_before, change.owner),
            change.path,
        )


def plan_uninstall(request: HostRequest) -> ChangePlan:
    """The changes that remove everything that earlier runs added."""
    manifest = scheduler_static_pod.parse_manifest(
        read_required_file(request.manifest), request.manifest, request.container
    )
    value = scheduler_static_pod.remove_configuration(manifest)
    pod = plan_file_change(request.manifest, yaml_editor.rewrite_document(manifest.document, value), 0o600)
    changes: list[FileChange] = []
    warnings: list[str] = []
    if manifest.own_config is not None:
        changes, warnings = _changes_to_own_files(manifest)
        if manifest.user_config:
            warnings.append(f"the configuration {manifest.user_config} is not ours, and stays")
    summary = file_diff.describe_pod_changes(manifest.document.value, value, manifest.container_index)
    return ChangePlan([pod, *changes], (), warnings, None, summary, manifest.own_certs or "")


def plan_restore(request: HostRequest, folder: str) -> ChangePlan:
    """The changes that restore a backup, the manifest last.

    `BadInput` for a backup of another manifest, cluster or kube-scheduler image, unless `existing` is `replace`.
    """
    changes = backups.plan_backup_restore(folder, [scheduler_config_path(request), request.manifest])
    index = backups.read_backup_index(folder)
    problems = [] if index is None else list(_backup_origin_problems(index, request))
    manifests = _read_manifests(changes, request)
    problems += _image_version_problems(*manifests) if manifests else []
    if problems and request.existing != "replace":
        remedy = "--uninstall takes out what was put in and leaves the rest as it is now; --replace restores anyway"
        raise BadInput(f"the backup {folder} does not belong here", problems, remedy=remedy)
    own = list_managed_files(request)
    if foreign_files := [
        Problem("file", change.path, "one that this command manages")
        for change in changes
        if change.path not in own
    ]:
        remedy = "name the places of that run with -m, -d and --cert-dir"
        raise BadInput(f"the backup {folder} does not belong here", foreign_files, remedy=remedy)
    warnings = [str(problem) for problem in problems]
    warnings += [] if index is None else _modified_file_warnings(index)
    summary: list[str] = []
    if manifests and manifests[0].container_index == manifests[1].container_index:
        summary = file_diff.describe_pod_changes(
            manifests[0].document.value, manifests[1].document.value, manifests[0].container_index
        )
    changes = sorted(changes, key=lambda change: change.path == request.manifest)
    return ChangePlan(changes, warnings=warnings, summary=summary)


def _backup_origin_problems(index: BackupIndex, request: HostRequest) -> Iterator[Problem]:
    if index.manifest and index.manifest != request.manifest:
        yield Problem(
            "--restore", f"a backup of another manifest, {index.manifest}", f"one of {request.manifest}"
        )
    here = cluster_ca_digest(request)
    if index.cluster and here and index.cluster != here:
        yield Problem("--restore", "a backup of another cluster, by its pki/ca.crt", "one of this cluster")


def _read_manifests(changes: Sequence[FileChange], request: HostRequest) -> tuple[Manifest, Manifest] | None:
    """The current manifest and the one in the backup; None if one of them cannot be parsed, because the backup may
    repair it.
    """
    for change in changes:
        if change.path == request.manifest and change.before is not None and change.after is not None:
            try:
                now, then = (
                    scheduler_static_pod.parse_manifest(data, request.manifest, request.container)
                    for data in (change.before, change.after)
                )
            except BadInput:
                return None
            return now, then
    return None


def _image_version_problems(now: Manifest, then: Manifest) -> Iterator[Problem]:
    """Problems of images: after an upgrade, the old manifest would start the old kube-scheduler."""
    images = now.container.get("image"), then.container.get("image")
    if images[0] != images[1]:
        yield Problem(
            "--restore", f"a kube-scheduler of image {images[1]}, and now it is {images[0]}", "the same"
        )


def _modified_file_warnings(index: BackupIndex) -> Iterator[str]:
    host = os.uname().nodename
    if index.host and index.host != host:
        yield f"this backup was made on the host {index.host}, and this is {host}"
    for file in index.files:
        if digest(read_file(file.path)) not in {file.before, file.after}:
            yield f"{file.path} was changed since that run, which is lost"


def _changes_to_own_files(manifest: Manifest) -> tuple[list[FileChange], list[str]]:
    """Changes that remove or restore the files of earlier runs, and warnings. Files that were modified since stay."""
    config = manifest.own_config or ""
    before = manifest.recorded_state or PriorState()
    certificates = _certificate_files_of_earlier_runs(manifest)
    paths = [config, *certificates]
    if config_hash([read_file(path) or b"" for path in paths]) != manifest.config_hash:
        return [], [f"{path} is not as it was written, and stays" for path in paths if os.path.isfile(path)]
    removed = [plan_file_change(path, None, 0) for path in certificates]
    if not before.config or manifest.host_path(before.config) != config:
        return [*removed, plan_file_change(config, None, 0)], []
    if not before.backup:
        raise BadInput(
            config, [Problem("--uninstall", "what was there before was not kept", "--restore FOLDER")]
        )
    return [plan_file_change(config, backups.read_original_content(before.backup, config), 0), *removed], []


def _certificate_files_of_earlier_runs(manifest: Manifest) -> list[str]:
    """Paths of the existing certificate files of earlier runs."""
    paths = (
        [os.path.join(manifest.own_certs, name) for name in CERTIFICATE_NAMES.values()]
        if manifest.own_certs
        else []
    )
    return [path for path in paths if os.path.isfile(path)]
