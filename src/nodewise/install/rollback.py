"""Restores a host: from a backup, or by removing the changes of earlier runs."""

import os
from collections.abc import Iterator, Sequence

from nodewise.base.errors import BadInput, Problem
from nodewise.install import file_diff, file_transaction, scheduler_static_pod, yaml_editor
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
from nodewise.install.file_transaction import BackupIndex, FileChange, digest, plan_file_change, read_file
from nodewise.install.scheduler_static_pod import Manifest, PriorState


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
    changes = file_transaction.plan_backup_restore(folder, [scheduler_config_path(request), request.manifest])
    index = file_transaction.read_backup_index(folder)
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
    return [
        plan_file_change(config, file_transaction.read_original_content(before.backup, config), 0),
        *removed,
    ], []


def _certificate_files_of_earlier_runs(manifest: Manifest) -> list[str]:
    """Paths of the existing certificate files of earlier runs."""
    paths = (
        [os.path.join(manifest.own_certs, name) for name in CERTIFICATE_NAMES.values()]
        if manifest.own_certs
        else []
    )
    return [path for path in paths if os.path.isfile(path)]
