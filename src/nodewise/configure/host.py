"""A control-plane host: what is there, what is wrong with it, and which files are to change."""

import datetime as dt
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.configure import checks, difference, manifest, profile, versions, yamltext
from nodewise.configure.manifest import Before, Manifest, Wanted
from nodewise.configure.profile import Rendered, Terms
from nodewise.configure.transaction import Backup, Change, content, restoration
from nodewise.configure.versions import Version
from nodewise.errors import BadInput, Problem

CONFIG_NAME: Final = "scheduler-config.yaml"
_NAMES: Final = {"key": "client.key", "cert": "client.crt", "ca": "ca.crt"}
PAPERS: Final = frozenset(_NAMES.values())
_MODES: Final = {"key": 0o600, "cert": 0o644, "ca": 0o644}
_MOST_FILES: Final = 200
_LARGEST: Final = 2**18
_OLD_MASTER: Final = 24
"""Minor version from which nodes of the control plane are not called `master`."""


class Asked(NamedTuple):
    """What somebody wants; all paths are absolute."""

    manifest: str
    template: str
    """Empty: the built-in one."""
    config_dir: str
    cert_dir: str
    cert: str
    key: str
    ca: str
    """Empty: none."""
    builtin: Callable[[str, str], dict[str, Any]]
    """A configuration by kube-scheduler's kubeconfig and the CA that it is to see."""
    container: str = ""
    version: str = ""
    existing: str = ""
    """What to do with a configuration of the user's own: `merge`, `replace`, or nothing."""
    allow_ca_key: bool = False
    deployments: Sequence[str] = ()
    backup_dir: str = ""
    """Empty: none."""
    writes: bool = True
    pod_folders: Sequence[str] = ()
    """Where the kubelet looks for static pods."""


class Plan(NamedTuple):
    """The files in the order in which they change, the manifest last, and what to say about it."""

    changes: Sequence[Change]
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    version: Version | None = None
    summary: Sequence[str] = ()
    emptied: str = ""
    """A folder that is not needed any more."""
    needed: Mapping[str, bytes] = {}
    """The files that all of it is made of, by their paths, but for the manifest."""
    config_hash: str = ""


class Read(NamedTuple):
    """The contents of the files that a run needs."""

    manifest: Manifest
    template: bytes | None
    papers: checks.Papers | None


def real(path: str) -> str:
    """The file behind symbolic links. `BadInput` for a link that leads nowhere."""
    found = os.path.realpath(path)
    if os.path.islink(path) and not os.path.exists(found):
        raise BadInput(f"file check error: {path}: a symbolic link that leads nowhere, to {found}")
    return found


def plan(asked: Asked, backup: Backup | None) -> Plan:
    """What has to change; nothing is written. `BadInput` for all that is wrong on the host."""
    read = _read(asked)
    version = versions.of_setting(asked.version) if asked.version else manifest.version(read.manifest)
    destination = config_path(asked)
    warnings = _check_papers(asked, read)
    if version.is_newer_than_tried:
        warnings.append(f"kube-scheduler {version} is newer than what was tried, 1.{versions.NEWEST}")
    ca = f"{manifest.CERTS_MOUNT}/{_NAMES['ca']}" if asked.ca else ""
    terms = Terms(version, read.manifest.kubeconfig, ca, not asked.ca)
    rendered = _rendered(asked, read, terms)
    _check_named(asked, read, rendered)
    config = _file(destination, rendered.data, 0o600 if profile.has_key_data(rendered.value) else 0o644)
    papers = _paper_changes(asked, read.papers)
    before = manifest.former(read.manifest)
    if read.manifest.before is None and before.config and read.manifest.on_host(before.config) == destination:
        before = before._replace(backup=backup.path if backup else None)
    hashed = config_hash([rendered.data, *(change.after or b"" for change in papers)])
    wanted = Wanted(destination, asked.cert_dir if papers else "", hashed, before)
    value = manifest.configured(read.manifest, wanted)
    pod = _file(asked.manifest, yamltext.rewritten(read.manifest.document, value), 0o600)
    changes = [*papers, config, *_deployments(asked, version), pod]
    return Plan(
        changes,
        _stale(read.manifest, wanted),
        [*warnings, *rendered.warnings],
        version,
        difference.of_pod(read.manifest.document.value, value, read.manifest.at),
        needed=_needed(asked, read),
        config_hash=hashed,
    )


def _needed(asked: Asked, read: Read) -> dict[str, bytes]:
    papers = {getattr(asked, field): getattr(read.papers, field, None) for field in _NAMES}
    found = {**({asked.template: read.template} if asked.template else {}), **papers}
    return dict([*filter(None, [_users(asked, read)])]) | {
        path: data for path, data in found.items() if data is not None
    }


def removal(asked: Asked) -> Plan:
    """What has to change so that all is gone that a run put here."""
    found = manifest.read(_bytes(asked.manifest), asked.manifest, asked.container)
    value = manifest.unconfigured(found)
    pod = _file(asked.manifest, yamltext.rewritten(found.document, value), 0o600)
    changes: list[Change] = []
    warnings: list[str] = []
    if found.own_config is not None:
        changes, warnings = _own_files(found)
    said = difference.of_pod(found.document.value, value, found.at)
    return Plan([pod, *changes], (), warnings, None, said, found.own_certs or "")


def restored(asked: Asked, folder: str) -> Plan:
    """What brings a backup back, the manifest last."""
    changes = restoration(folder, [config_path(asked), asked.manifest])
    return Plan(sorted(changes, key=lambda change: change.path == asked.manifest))


def config_path(asked: Asked) -> str:
    return real(os.path.join(asked.config_dir, os.path.basename(asked.template) or CONFIG_NAME))


def config_hash(contents: Sequence[bytes]) -> str:
    """One for all files that kube-scheduler reads at its start only."""
    return hashlib.sha256(b"".join(hashlib.sha256(data).digest() for data in contents)).hexdigest()


def _read(asked: Asked) -> Read:
    """All files that are needed. `BadInput` with a line for each that is not as it has to be."""
    problems: list[str] = []
    pod = _tried(asked.manifest, problems, writes=asked.writes)
    template = _tried(asked.template, problems) if asked.template else None
    _check_destination(asked, problems)
    papers = None
    if _needs_papers(asked, template):
        key, cert = _tried(asked.key, problems), _tried(asked.cert, problems)
        ca = _tried(asked.ca, problems) if asked.ca else None
        _check_folder(asked.cert_dir, problems, writes=asked.writes)
        papers = checks.Papers(cert or b"", key or b"", ca if asked.ca else None)
    problems += [f"{path}: a folder for static pods" for path in _misplaced(asked)]
    if asked.backup_dir and asked.writes:
        _check_backup_dir(asked.backup_dir, problems)
    if problems or pod is None:
        raise BadInput("file check error: " + "\n".join(problems))
    return Read(manifest.read(pod, asked.manifest, asked.container), template, papers)


def _needs_papers(asked: Asked, template: bytes | None) -> bool:
    if asked.template:
        return template is None or b"https://" in template
    return any("tlsConfig" in entry for entry in asked.builtin("", asked.ca)["extenders"])


def _bytes(path: str) -> bytes:
    problems: list[str] = []
    found = _tried(path, problems)
    if found is None:
        raise BadInput("file check error: " + "\n".join(problems))
    return found


def _tried(path: str, problems: list[str], *, writes: bool = False) -> bytes | None:
    """A file's content; else a problem."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, os.strerror(21))
        found = content(path)
        if writes and not (os.access(path, os.W_OK) and os.access(os.path.dirname(path), os.W_OK)):
            raise PermissionError(13, os.strerror(13))
    except OSError as error:
        problems.append(f'no access to the file at path "{path}", err: open {path}: {_said(error)}')
        return None
    return found


def _said(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _check_destination(asked: Asked, problems: list[str]) -> None:
    path = config_path(asked)
    folder = os.path.dirname(path)
    why = ""
    if os.path.isdir(path):
        why = "is a directory"
    elif not os.path.isdir(folder):
        why = "no such file or directory"
    elif asked.writes and not os.access(folder, os.W_OK):
        why = "permission denied"
    if why:
        problems.append(f'user can\'t create the file at path "{path}", err: open {path}: {why}')


def _check_folder(path: str, problems: list[str], *, writes: bool) -> None:
    there = path
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        problems.append(f"{path}: not a directory")
    elif writes and not os.access(there, os.W_OK):
        problems.append(f"{path}: permission denied")


def _check_backup_dir(path: str, problems: list[str]) -> None:
    if not os.path.isdir(path):
        why = "not a directory" if os.path.exists(path) else "no such file or directory"
        problems.append(f'user can\'t create folders to "{path}", err: stat {path}: {why}')
    elif not os.access(path, os.W_OK):
        problems.append(f'user can\'t create folders to "{path}", err: permission denied')


def _misplaced(asked: Asked) -> Iterable[str]:
    """What the kubelet would take for a pod, or a folder that somebody may soon put into a pod's name."""
    pods = [os.path.realpath(folder) for folder in asked.pod_folders]
    for path in sorted({os.path.dirname(config_path(asked)), asked.cert_dir, asked.backup_dir} - {""}):
        found = os.path.realpath(path)
        if any(found == folder or found.startswith(folder + os.sep) for folder in pods):
            yield path


def _check_papers(asked: Asked, read: Read) -> list[str]:
    if read.papers is None:
        return []
    folders = {
        os.path.dirname(asked.key),
        os.path.dirname(asked.cert),
        *(os.path.join(os.path.dirname(folder), "pki") for folder in asked.pod_folders),
        os.path.join(asked.config_dir, "pki"),
    }
    others = {path: data for folder in sorted(folders) for path, data in _certificates(folder)}
    now = dt.datetime.now(dt.UTC)
    found = checks.findings(read.papers, others, now, allow_ca_key=asked.allow_ca_key)
    if found.problems:
        raise BadInput("certificates", found.problems)
    return list(found.warnings)


def _certificates(folder: str) -> Iterable[tuple[str, bytes]]:
    """Files that may hold a CA's certificate; what cannot be read is left out."""
    left = _MOST_FILES
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.join(parent, name)
            left -= 1
            if left < 0:
                return
            try:
                small = stat.S_ISREG(os.stat(path).st_mode) and os.stat(path).st_size <= _LARGEST
                data = (content(path) or b"") if small else b""
            except OSError:
                continue
            if b"CERTIFICATE-----" in data:
                yield path, data


def _rendered(asked: Asked, read: Read, terms: Terms) -> Rendered:
    if asked.template:
        own = profile.of_template(read.template or b"", asked.template, terms)
    else:
        own = profile.of_value(asked.builtin(terms.kubeconfig, terms.ca), terms)
    users = _users(asked, read)
    if users is None:
        return own
    path, data = users
    found = profile.merged(data, path, own.value["extenders"], terms)
    return found._replace(warnings=[*own.warnings, *found.warnings])


def _users(asked: Asked, read: Read) -> tuple[str, bytes] | None:
    """The configuration of the user's own that ours is merged into, as it was before. `BadInput` if nobody says how."""
    before = read.manifest.before
    users = read.manifest.users_config or (before.config if before else None)
    if users is None or asked.existing == "replace":
        return None
    if asked.existing != "merge":
        if read.manifest.users_config is None:
            wanted = f"--merge to keep {users}, which is used without us, or --replace"
        else:
            wanted = "--merge to have our entries put among its own, or --replace"
        raise BadInput("manifest", [Problem("--config", f"the configuration {users} is in use", wanted)])
    path = read.manifest.on_host(users)
    if before and before.backup and path == config_path(asked):
        return path, _from_backup(before.backup, path)
    return path, _bytes(path)


def _from_backup(folder: str, path: str) -> bytes:
    for change in restoration(folder, [path]):
        if change.path == path and change.after is not None:
            return change.after
    raise BadInput(folder, [Problem("backup", f"no {path} in it", "the file that was there before")])


def _check_named(asked: Asked, read: Read, rendered: Rendered) -> None:
    """Files that are named have to be there: kube-scheduler does not start without."""
    ours = {f"{manifest.CERTS_MOUNT}/{name}" for name in _NAMES.values()} if read.papers else set()
    if not asked.ca:
        ours.discard(f"{manifest.CERTS_MOUNT}/{_NAMES['ca']}")
    problems = []
    for field, path in profile.files(rendered.value):
        inside, name = os.path.split(path)
        host = (
            os.path.join(asked.cert_dir, name)
            if inside == manifest.CERTS_MOUNT
            else read.manifest.on_host(path)
        )
        if field.startswith("extenders") and path not in ours and not os.path.isfile(host):
            problems.append(Problem(field, f"{path}, and there is no {host}", "a file that is there"))
    if problems:
        raise BadInput(asked.template or "the built-in template", problems)


def _paper_changes(asked: Asked, papers: checks.Papers | None) -> list[Change]:
    """Copies beside each other; modes are ours, whatever they were."""
    found = []
    for field, name in _NAMES.items():
        data = getattr(papers, field, None)
        if data is not None:
            path = real(os.path.join(asked.cert_dir, name))
            there = _file(path, data, 0)
            old_mode = there.mode if there.before is not None else None
            found.append(there._replace(mode=_MODES[field], old_mode=old_mode))
    return found


def _file(path: str, after: bytes | None, mode: int) -> Change:
    """A file with its mode and owner, or with this mode where there is none."""
    before = content(path)
    if before is None:
        return Change(path, None, after, mode)
    status = os.stat(path)
    return Change(path, before, after, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))


def _deployments(asked: Asked, version: Version) -> list[Change]:
    """Manifests of the older extenders, with the control plane's name before 1.24."""
    if version.minor >= _OLD_MASTER:
        return []
    names = (b"node-role.kubernetes.io/control-plane", b"node-role.kubernetes.io/master")
    found = []
    for path in asked.deployments:
        if not os.path.isfile(path):
            seen = f'couldn\'t read deployment file "{path}", err: open {path}: no such file or directory'
            raise BadInput(seen)
        found.append(_file(real(path), _bytes(path).replace(*names), 0o644))
    return found


def _stale(found: Manifest, wanted: Wanted) -> list[str]:
    pairs = ((found.own_config, wanted.config), (found.own_certs, wanted.certs))
    return [f"{old} is not used any more" for old, new in pairs if old and old.rstrip("/") != new]


def _own_files(found: Manifest) -> tuple[list[Change], list[str]]:
    """Files to remove, or to bring back; those that somebody changed stay."""
    config, certs = found.own_config or "", found.own_certs
    before = found.before or Before()
    paths = [os.path.join(certs, name) for name in _NAMES.values()] if certs else []
    papers = [path for path in paths if os.path.isfile(path)]
    contents = [content(path) or b"" for path in [config, *papers]]
    if config_hash(contents) != found.config_hash:
        return [], [
            f"{path} is not as it was written, and stays"
            for path in [config, *papers]
            if os.path.isfile(path)
        ]
    removed = [_file(path, None, 0) for path in papers]
    if not before.config or found.on_host(before.config) != config:
        return [*removed, _file(config, None, 0)], []
    if not before.backup:
        raise BadInput(
            config, [Problem("--uninstall", "what was there before was not kept", "--restore FOLDER")]
        )
    return [_file(config, _from_backup(before.backup, config), 0), *removed], []
