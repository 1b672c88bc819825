"""Plans the changes of the files of a control-plane host: configuration, removal of earlier changes, and restore."""

import contextlib
import datetime as dt
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, Problem
from nodewise.install import (
    client_certificate_checks,
    file_transaction,
    host_checks,
    scheduler_configuration_file,
    scheduler_static_pod,
    scheduler_versions,
    yaml_editor,
)
from nodewise.install.file_transaction import (
    Backup,
    BackupIndex,
    FileChange,
    digest,
    plan_file_change,
    read_file,
)
from nodewise.install.scheduler_configuration_file import RenderContext, RenderedConfiguration
from nodewise.install.scheduler_static_pod import DesiredState, Manifest, PriorState
from nodewise.install.scheduler_versions import SchedulerVersion

CONFIG_NAME: Final = "scheduler-config.yaml"
CERTIFICATE_NAMES: Final = {"key": "client.key", "cert": "client.crt", "ca": "ca.crt"}
CERTIFICATE_FILES: Final = frozenset(CERTIFICATE_NAMES.values())
_MODES: Final = {"key": 0o600, "cert": 0o644, "ca": 0o644}
_MAX_FILES: Final = 200
_MAX_BYTES: Final = 2**18
_FIRST_WITHOUT_MASTER: Final = 24
"""First minor version in which control-plane nodes do not have the role `master`."""


class HostRequest(NamedTuple):
    """The request of the user. All paths are absolute."""

    manifest: str
    template: str
    """Path of the template; empty: the built-in one."""
    config_dir: str
    cert_dir: str
    cert: str
    key: str
    ca: str
    """Path of the CA; empty: none."""
    builtin: Callable[[str, str], dict[str, Any]]
    """Builds the built-in configuration from the kubeconfig and the CA as kube-scheduler sees them."""
    container: str = ""
    version: str = ""
    existing: str = ""
    """How an existing configuration of the user is handled: `merge`, `replace`, or empty to refuse it."""
    allow_ca_key: bool = False
    deployments: Sequence[str] = ()
    backup_dir: str = ""
    """Folder for backups; empty: none."""
    writes: bool = True
    pod_folder: str = ""
    """The folder of static pods of the kubelet."""


class ChangePlan(NamedTuple):
    """The changes in their order, the manifest last, and the messages for the user."""

    changes: Sequence[FileChange]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    version: SchedulerVersion | None = None
    summary: Sequence[str] = ()
    emptied: str = ""
    """A certificate folder that may be empty after the change; empty text: none."""
    needed: Mapping[str, bytes] = {}
    """The content of the source files by their paths, without the manifest."""
    config_hash: str = ""

    @property
    def effective_changes(self) -> list[FileChange]:
        """The changes that modify or remove a file."""
        return [change for change in self.changes if not change.is_unchanged]


class HostFiles(NamedTuple):
    """The content of the files that a run reads."""

    manifest: Manifest
    template: bytes | None
    credentials: client_certificate_checks.ClientCredentials | None


def plan_configuration(request: HostRequest, backup: Backup | None) -> ChangePlan:
    """The changes that make kube-scheduler call nodewise. Nothing is written. `BadInput` lists all problems."""
    files = _read_required_host_files(request)
    manifest = files.manifest
    version = (
        scheduler_versions.parse_version(request.version)
        if request.version
        else scheduler_static_pod.scheduler_version(manifest)
    )
    destination = scheduler_config_path(request)
    warnings = _check_client_certificate(request, files)
    if os.stat(request.manifest).st_nlink > 1:
        warnings.append(f"{request.manifest} has another name, a hard link, which keeps the old content")
    warnings += version.untested_warnings()
    ca = f"{scheduler_static_pod.CERTS_MOUNT}/{CERTIFICATE_NAMES['ca']}" if request.ca else ""
    ignored_flags = scheduler_versions.list_ignored_flags(manifest.container, version.minor)
    context = RenderContext(version, manifest.kubeconfig, ca, not request.ca, ignored_flags)
    user_config = _read_user_configuration(request, files)
    rendered = _render_configuration(request, files, user_config, context)
    _check_files_named_in_config(request, files, rendered)
    mode = 0o600 if scheduler_configuration_file.has_inline_private_key(rendered.value) else 0o644
    config = plan_file_change(destination, rendered.data, mode)
    credentials = _plan_certificate_copies(request, files.credentials)
    certificate_folder = request.cert_dir if credentials else ""
    config, *credentials = _grant_read_access(manifest, certificate_folder, [config, *credentials])
    before = scheduler_static_pod.state_before_first_run(manifest)
    if manifest.recorded_state is None and before.config and manifest.host_path(before.config) == destination:
        before = before._replace(backup=backup.path if backup else None)
    hashed = config_hash([rendered.data, *(change.after or b"" for change in credentials)])
    desired_state = DesiredState(destination, certificate_folder, hashed, before)
    value = scheduler_static_pod.add_configuration(manifest, desired_state)
    pod = plan_file_change(request.manifest, yaml_editor.rewrite_document(manifest.document, value))
    summary = scheduler_static_pod.describe_pod_changes(manifest, value)
    return ChangePlan(
        [*credentials, config, *_older_extender_manifest_changes(request, version), pod],
        _describe_unused_paths_and_flags(manifest, desired_state),
        [*warnings, *rendered.warnings],
        version,
        [*summary, *rendered.carried],
        needed=_list_required_files(request, files, user_config),
        config_hash=hashed,
    )


def _describe_unused_paths_and_flags(manifest: Manifest, desired_state: DesiredState) -> list[str]:
    pairs = ((manifest.own_config, desired_state.config), (manifest.own_certs, desired_state.certs))
    notes = [f"{old} is not used any more" for old, new in pairs if old and old.rstrip("/") != new]
    if flag := scheduler_versions.flag_without_field(manifest.container):
        notes.append(
            f"{flag} has no field in the configuration; kube-scheduler reads this flag beside --config"
        )
    return notes


def cluster_ca_digest(request: HostRequest) -> str:
    """The digest of the CA certificate of the cluster, which identifies the cluster; empty if it is missing."""
    path = os.path.join(os.path.dirname(os.path.dirname(request.manifest)), "pki", "ca.crt")
    try:
        return digest(read_file(path)) or ""
    except (OSError, BadInput):
        return ""


def _list_required_files(
    request: HostRequest, files: HostFiles, user_config: tuple[str, bytes] | None
) -> dict[str, bytes]:
    contents = {request.template: files.template} if request.template else {}
    for field in CERTIFICATE_NAMES:
        contents[getattr(request, field)] = getattr(files.credentials, field, None)
    used = {path: data for path, data in contents.items() if data is not None}
    return {**dict([user_config] if user_config else []), **used}


def scheduler_config_path(request: HostRequest) -> str:
    return host_checks.resolve_path(
        os.path.join(request.config_dir, os.path.basename(request.template) or CONFIG_NAME)
    )


def list_managed_files(request: HostRequest) -> set[str]:
    """The real paths of all files that a run may write or remove, from the flags and the manifest."""
    configs: list[str | None] = [scheduler_config_path(request)]
    folders: list[str | None] = [request.cert_dir]
    # a backup may repair an invalid manifest; otherwise the problem is reported later, with all others
    with contextlib.suppress(OSError, BadInput):
        manifest = scheduler_static_pod.parse_manifest(
            read_file(request.manifest) or b"", request.manifest, request.container
        )
        before = manifest.recorded_state or PriorState()
        configs += [manifest.host_path(path) for path in (manifest.user_config, before.config) if path]
        configs.append(manifest.own_config)
        folders.append(manifest.own_certs)
    paths = [os.path.join(folder, name) for folder in filter(None, folders) for name in CERTIFICATE_FILES]
    paths += [*filter(None, configs), *request.deployments]
    return {request.manifest, *map(host_checks.resolve_path, paths)}


def config_hash(contents: Sequence[bytes]) -> str:
    """One digest of all files that kube-scheduler reads only at its start."""
    return hashlib.sha256(b"".join(hashlib.sha256(data).digest() for data in contents)).hexdigest()


def _read_required_host_files(
    request: HostRequest,
) -> HostFiles:  # complexity: all problems of a host at once
    problems: list[str] = []
    read = partial(host_checks.read_file_or_append_problem, problems=problems)
    pod = read(request.manifest, writes=request.writes)
    template = read(request.template) if request.template else None
    path = scheduler_config_path(request)
    others = [request.manifest, request.key, request.cert, request.ca]
    problems += host_checks.configuration_path_problems(path, others, writes=request.writes)
    credentials = None
    if request.template:
        needs_certificate = template is None or b"https://" in template
    else:
        needs_certificate = any(
            "tlsConfig" in entry for entry in request.builtin("", request.ca)["extenders"]
        )
    if needs_certificate:
        key, cert = read(request.key), read(request.cert)
        ca = read(request.ca) if request.ca else None
        problems += host_checks.certificate_folder_problems(request.cert_dir, writes=request.writes)
        credentials = client_certificate_checks.ClientCredentials(cert or b"", key or b"", ca)
    folders = [os.path.dirname(path), request.cert_dir, request.backup_dir]
    problems += host_checks.static_pod_folder_problems(folders, request.pod_folder)
    if request.backup_dir and request.writes:
        problems += host_checks.backup_folder_problems(request.backup_dir)
    if problems or pod is None:
        if not os.path.lexists(request.manifest):
            problems.append(_MISSING_MANIFEST_HINT)
        raise BadInput("file check error: " + "\n".join(dict.fromkeys(problems)))
    manifest = scheduler_static_pod.parse_manifest(pod, request.manifest, request.container)
    return HostFiles(manifest, template, credentials)


_MISSING_MANIFEST_HINT: Final = (
    "Is this a host of the control plane, set up by kubeadm? Elsewhere name the manifest with -m. Clusters without one"
    " have --mode native from Kubernetes 1.36, --mode second-scheduler before, or --mode with their distribution."
)


def read_required_file(path: str) -> bytes:
    problems: list[str] = []
    content = host_checks.read_file_or_append_problem(path, problems)
    if content is None:
        raise BadInput("file check error: " + "\n".join(problems))
    return content


def _check_client_certificate(request: HostRequest, files: HostFiles) -> list[str]:
    if files.credentials is None:
        return []
    folders = {
        os.path.dirname(request.key),
        os.path.dirname(request.cert),
        os.path.join(os.path.dirname(request.pod_folder), "pki"),
        os.path.join(request.config_dir, "pki"),
    }
    others = {path: data for folder in sorted(folders) for path, data in _find_possible_ca_files(folder)}
    result = client_certificate_checks.check_client_certificate_files(
        files.credentials, others, dt.datetime.now(dt.UTC), allow_ca_key=request.allow_ca_key
    )
    if result.problems:
        raise BadInput("certificates", result.problems)
    return list(result.warnings)


def _find_possible_ca_files(folder: str) -> Iterable[tuple[str, bytes]]:
    """Files below a folder that may hold the certificate of a CA. Unreadable files are skipped."""
    paths = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in sorted(names))
    for path in itertools.islice(paths, _MAX_FILES):
        try:
            status = os.stat(path)
            is_small = stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES
            data = (read_file(path, is_trusted=False) or b"") if is_small else b""
        except (OSError, BadInput):
            continue
        if b"CERTIFICATE-----" in data:
            yield path, data


def _render_configuration(
    request: HostRequest, files: HostFiles, user_config: tuple[str, bytes] | None, context: RenderContext
) -> RenderedConfiguration:
    if request.template:
        own = scheduler_configuration_file.render_template(files.template or b"", request.template, context)
    else:
        own = scheduler_configuration_file.render_builtin_configuration(
            request.builtin(context.kubeconfig, context.ca), context
        )
    if user_config is None:
        return own
    path, data = user_config
    merged = scheduler_configuration_file.add_extender_entries(data, path, own.value["extenders"], context)
    return merged._replace(warnings=[*own.warnings, *merged.warnings])


def _read_user_configuration(request: HostRequest, files: HostFiles) -> tuple[str, bytes] | None:
    """Path and original content of the user's configuration to merge with; None without one. `BadInput` if the request
    does not say how to handle it.
    """
    before = files.manifest.recorded_state
    users = files.manifest.user_config or (before.config if before else None)
    if users is None or request.existing == "replace":
        return None
    if request.existing != "merge":
        if files.manifest.user_config is None:
            expected = f"--merge to keep {users}, which is used without us, or --replace"
        else:
            expected = "--merge to have our entries put among its own, or --replace"
        raise BadInput("manifest", [Problem("--config", f"the configuration {users} is in use", expected)])
    if volume := files.manifest.volume_of_other_kind(users):
        problem = Problem("--config", f"{users} is in the volume {volume}", "a file of this host")
        remedy = (
            f"save the configuration as a file of this host, and mount it at {users} with a hostPath volume"
        )
        raise BadInput("manifest", [problem], remedy=remedy)
    path = files.manifest.host_path(users)
    if before and before.backup and path == scheduler_config_path(request):
        return path, file_transaction.read_original_content(before.backup, path)
    return path, read_required_file(path)


def _check_files_named_in_config(
    request: HostRequest, files: HostFiles, rendered: RenderedConfiguration
) -> None:
    """`BadInput` if the configuration names missing files, because kube-scheduler would not start."""
    mount = scheduler_static_pod.CERTS_MOUNT
    ours = {
        f"{mount}/{name}"
        for field, name in CERTIFICATE_NAMES.items()
        if files.credentials and (field != "ca" or request.ca)
    }
    problems = []
    for field, path in scheduler_configuration_file.list_files_of_entries(rendered.value):
        inside, name = os.path.split(path)
        host = os.path.join(request.cert_dir, name) if inside == mount else files.manifest.host_path(path)
        if path not in ours and not os.path.isfile(host):
            problems.append(Problem(field, f"{path}, and there is no {host}", "a file that is there"))
    if problems:
        raise BadInput(request.template or scheduler_configuration_file.BUILTIN_NAME, problems)


def _plan_certificate_copies(
    request: HostRequest, credentials: client_certificate_checks.ClientCredentials | None
) -> list[FileChange]:
    changes = []
    for field, name in CERTIFICATE_NAMES.items():
        data = getattr(credentials, field, None)
        if data is not None:
            path = host_checks.resolve_path(os.path.join(request.cert_dir, name))
            there = plan_file_change(path, data, 0)
            old_mode = there.mode if there.before is not None else None
            changes.append(there._replace(mode=_MODES[field], old_mode=old_mode))
    return changes


def _grant_read_access(
    manifest: Manifest, certificate_folder: str, changes: Sequence[FileChange]
) -> list[FileChange]:
    """Let the group of kube-scheduler read each file that only root can read, if kube-scheduler does not run as root.

    The owner stays root, because a run refuses files that other users can write to.
    """
    is_private = [not change.mode & stat.S_IROTH for change in changes]
    group = manifest.reading_group if any(is_private) else None
    if group is None:
        return [*changes]
    if os.path.isdir(certificate_folder):
        status = os.stat(certificate_folder)
        needed = 0o050 if status.st_gid == group else 0o005
        if status.st_mode & needed != needed:
            actual = f"{certificate_folder} with the mode {stat.S_IMODE(status.st_mode):o}"
            expected = f"a folder that the group {group} of kube-scheduler can read, by chmod 755"
            raise BadInput("manifest", [Problem("--cert-dir", actual, expected)])
    return [
        _readable_by_group(change, group) if private else change
        for change, private in zip(changes, is_private, strict=True)
    ]


def _readable_by_group(change: FileChange, group: int) -> FileChange:
    owner = (change.owner[0] if change.owner else os.geteuid(), group)
    mode = change.mode | stat.S_IRGRP
    return change._replace(mode=mode, old_mode=change.mode_before, owner=owner, old_owner=change.owner)


def _older_extender_manifest_changes(request: HostRequest, version: SchedulerVersion) -> list[FileChange]:
    """Changes of the manifests of the older extenders: before 1.24 the role of the nodes is `master`."""
    if version.minor >= _FIRST_WITHOUT_MASTER:
        return []
    names = (b"node-role.kubernetes.io/control-plane", b"node-role.kubernetes.io/master")
    changes = []
    for path in request.deployments:
        if not os.path.isfile(path):
            actual = f'couldn\'t read deployment file "{path}", err: open {path}: no such file or directory'
            raise BadInput(actual)
        changes.append(
            plan_file_change(host_checks.resolve_path(path), read_required_file(path).replace(*names), 0o644)
        )
    return changes


def plan_uninstall(request: HostRequest) -> ChangePlan:
    """The changes that remove everything that earlier runs added."""
    manifest = scheduler_static_pod.parse_manifest(
        read_required_file(request.manifest), request.manifest, request.container
    )
    value = scheduler_static_pod.remove_configuration(manifest)
    pod = plan_file_change(request.manifest, yaml_editor.rewrite_document(manifest.document, value))
    changes: list[FileChange] = []
    warnings: list[str] = []
    if manifest.own_config is not None:
        changes, warnings = _changes_to_own_files(manifest)
        if manifest.user_config:
            warnings.append(f"the configuration {manifest.user_config} is not ours, and stays")
    summary = scheduler_static_pod.describe_pod_changes(manifest, value)
    return ChangePlan([pod, *changes], (), warnings, None, summary, manifest.own_certs or "")


def plan_restore(request: HostRequest, folder: str) -> ChangePlan:
    """The changes that restore a backup, the manifest last.

    `BadInput` for a backup of another manifest, cluster or kube-scheduler image, unless `existing` is `replace`.
    """
    changes = file_transaction.plan_backup_restore(folder, [scheduler_config_path(request), request.manifest])
    index = file_transaction.read_backup_index(folder)
    problems, warnings = _check_backup_index(index, request) if index is not None else ([], [])
    manifests = _read_manifests(changes, request)
    summary: list[str] = []
    if manifests:
        now, then = manifests
        images = now.container.get("image"), then.container.get("image")
        if images[0] != images[1]:  # after an upgrade, the old manifest would start the old kube-scheduler
            actual = f"a kube-scheduler of image {images[1]}, and now it is {images[0]}"
            problems.append(Problem("--restore", actual, "the same"))
        if now.container_index == then.container_index:
            summary = scheduler_static_pod.describe_pod_changes(now, then.document.value)
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
    changes = sorted(changes, key=lambda change: change.path == request.manifest)
    return ChangePlan(changes, warnings=[*map(str, problems), *warnings], summary=summary)


def _check_backup_index(index: BackupIndex, request: HostRequest) -> tuple[list[Problem], list[str]]:
    problems, warnings = [], []
    if index.manifest and index.manifest != request.manifest:
        actual = f"a backup of another manifest, {index.manifest}"
        problems.append(Problem("--restore", actual, f"one of {request.manifest}"))
    here = cluster_ca_digest(request)
    if index.cluster and here and index.cluster != here:
        actual = "a backup of another cluster, by its pki/ca.crt"
        problems.append(Problem("--restore", actual, "one of this cluster"))
    host = os.uname().nodename
    if index.host and index.host != host:
        warnings.append(f"this backup was made on the host {index.host}, and this is {host}")
    warnings += [
        f"{file.path} was changed since that run, which is lost"
        for file in index.files
        if digest(read_file(file.path)) not in {file.before, file.after}
    ]
    return problems, warnings


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


def _changes_to_own_files(
    manifest: Manifest,
) -> tuple[list[FileChange], list[str]]:  # complexity: a branch for each state of the files
    """Changes that remove or restore the files of earlier runs, and warnings. Files that were modified since stay."""
    config = manifest.own_config or ""
    before = manifest.recorded_state or PriorState()
    names = CERTIFICATE_NAMES.values() if manifest.own_certs else ()
    certificates = [os.path.join(manifest.own_certs or "", name) for name in names]
    paths = [config, *filter(os.path.isfile, certificates)]
    if config_hash([read_file(path) or b"" for path in paths]) != manifest.config_hash:
        return [], [f"{path} is not as it was written, and stays" for path in paths if os.path.isfile(path)]
    removed = [plan_file_change(path, None) for path in paths[1:]]
    if not before.config or manifest.host_path(before.config) != config:
        return [*removed, plan_file_change(config, None)], []
    if not before.backup:
        problem = Problem("--uninstall", "what was there before was not kept", "--restore FOLDER")
        raise BadInput(config, [problem])
    original = file_transaction.read_original_content(before.backup, config)
    return [plan_file_change(config, original), *removed], []
