"""Settings of the connection to the API server, and kubeconfig files: selected and merged as kubectl does, and
validated. Opens no connection.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, BadSettings, Problem, shown
from nodewise.base.option import Option

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The folder at which a kubelet mounts the service account of a pod."""

_HOME: Final = "~/.kube/config"
_ENTRY_KEYS: Final = {"clusters": "cluster", "contexts": "context", "users": "user"}
_FILES: Final = {
    "cluster": ("certificate-authority",),
    "user": ("client-certificate", "client-key", "tokenFile"),
}
_REMEDY: Final = "give a kubeconfig with --kubeconfig, or set KUBECONFIG"


class KubeconfigContext(NamedTuple):
    """A context with its cluster and user, as in the file; `source` names the files in messages."""

    source: str
    name: str
    context: Mapping[str, Any]
    cluster: Mapping[str, Any]
    user: Mapping[str, Any]

    @property
    def what(self) -> str:
        """The files and the context, for messages."""
        return f"kubeconfig {self.source}, context {self.name}"


def context_from_file_or_pod(
    kubeconfig: str, context: str, environ: Mapping[str, str], account: Path = ACCOUNT
) -> KubeconfigContext:
    """The context of the given file, else of the pod's service account, else of the file that kubectl would use."""
    inside_pod = environ.get("KUBERNETES_SERVICE_HOST") and (account / "token").is_file()
    if inside_pod and not kubeconfig:
        return in_cluster_context(environ, account)
    return load_context(kubeconfig, context, environ)


def in_cluster_context(environ: Mapping[str, str], account: Path) -> KubeconfigContext:
    """The in-cluster configuration: the pod's service account, and the API server from environment variables."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    space = account / "namespace"
    namespace = space.read_text().strip() if space.is_file() else ""
    cluster = {"server": server, "certificate-authority": str(account / "ca.crt")}
    user = {"tokenFile": str(account / "token")}
    return KubeconfigContext("the service account", "in-cluster", {"namespace": namespace}, cluster, user)


def load_context(kubeconfig: str, context: str, environ: Mapping[str, str]) -> KubeconfigContext:
    """The context with this name; an empty name means the current-context. `BadSettings` names the problems."""
    paths = _kubeconfig_paths(kubeconfig, environ)
    source = os.pathsep.join(map(str, paths))
    document = _merge_kubeconfigs(_read_kubeconfig(path) for path in paths)
    name = context or document.get("current-context") or ""
    what = f"kubeconfig {source}"
    if not name:
        problem = Problem("current-context", "not set", _entry_names(document, "contexts"))
        raise BadSettings(what, [problem], remedy="give one with --context")
    chosen = _find_entry(document, "contexts", name, what)
    cluster = _find_entry(document, "clusters", chosen.get("cluster") or "", what)
    user = _find_entry(document, "users", chosen["user"], what) if chosen.get("user") else {}
    if not cluster.get("server"):
        raise BadSettings.of(what, f"cluster {chosen['cluster']}: server", "not set", "https://host:port")
    return KubeconfigContext(source, name, chosen, cluster, user)


def _kubeconfig_paths(kubeconfig: str, environ: Mapping[str, str]) -> list[Path]:
    """The files to read. Files of $KUBECONFIG may be missing, as for kubectl; a file of the option may not."""
    if kubeconfig:
        return [_require_file(kubeconfig, "--kubeconfig")]
    if listed := [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]:
        there = [Path(part) for part in listed if Path(part).is_file()]
        return there or [_require_file(listed[0], "KUBECONFIG")]
    return [_require_file(_HOME, "kubeconfig")]


def _require_file(path: str, field: str) -> Path:
    # unlike Path.expanduser, this leaves ~ for a user without an entry in /etc/passwd, as containers may have
    full = Path(os.path.expanduser(path))  # noqa: PTH111
    if full.is_file():
        return full
    actual = f"{full} is a folder" if full.is_dir() else f"there is no file {full}"
    problem = Problem(field, actual, "a kubeconfig file")
    raise BadSettings("cannot connect to an API server", [problem], remedy=_REMEDY)


def _read_kubeconfig(path: Path) -> dict[str, Any]:
    """One file, with absolute paths: relative ones are relative to the folder of the file."""
    what = f"kubeconfig {path}"
    try:
        document = safe_yaml_loader.load(path.read_bytes(), str(path))
    except (OSError, BadInput) as error:
        actual = " ".join(str(error).split())
        raise BadSettings(what, [Problem("", actual, "YAML of kind Config")], remedy=_REMEDY) from error
    if not isinstance(document, dict):
        raise BadSettings(what, [Problem("", shown(document), "YAML of kind Config")], remedy=_REMEDY)
    for section, key in _ENTRY_KEYS.items():
        entries = document.get(section) or []
        if not isinstance(entries, list):
            raise BadSettings(what, [Problem(section, shown(entries), "a list")])
        document[section] = [_parse_entry(entry, key, what, path.parent) for entry in entries]
    return document


def _parse_entry(entry: Any, key: str, what: str, folder: Path) -> dict[str, Any]:
    """One named cluster, context or user. `BadSettings` if it has an invalid structure."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise BadSettings(what, [Problem(f"{key}s", shown(entry), "entries with a name")])
    body = entry.get(key) or {}
    if not isinstance(body, dict):
        raise BadSettings(what, [Problem(f"{key} {entry['name']}", shown(body), "a mapping")])
    changed: dict[str, Any] = {
        field: str(folder / body[field]) for field in _FILES.get(key, ()) if body.get(field)
    }
    plugin = body.get("exec") if key == "user" else None
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command", "")):
        # a bare name is searched in PATH, a name with a slash is relative to the file (client-go v0.36 clientcmd)
        changed["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return {"name": entry["name"], key: {**body, **changed}}


def _merge_kubeconfigs(documents: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The merged files: the first file that defines an entry wins (client-go v0.36 clientcmd, loading rules)."""
    merged: dict[str, Any] = {section: [] for section in _ENTRY_KEYS} | {"current-context": ""}
    for document in documents:
        merged["current-context"] = merged["current-context"] or document.get("current-context")
        for section in _ENTRY_KEYS:
            known = {entry["name"] for entry in merged[section]}
            merged[section] += [entry for entry in document[section] if entry["name"] not in known]
    return merged


def _find_entry(document: Mapping[str, Any], section: str, name: str, what: str) -> Mapping[str, Any]:
    key = _ENTRY_KEYS[section]
    for entry in document[section]:
        if entry["name"] == name:
            fields: Mapping[str, Any] = entry[key]
            return fields
    raise BadSettings(what, [Problem(key, f"there is none named {name!r}", _entry_names(document, section))])


def _entry_names(document: Mapping[str, Any], section: str) -> str:
    names = [repr(entry["name"]) for entry in document[section]]
    return f"one of {', '.join(names)}" if names else f"{section}, but the file has none"


class KubeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Connection to the cluster."""

    kubeconfig: Annotated[str, Option(metavar="FILE")] = ""
    """Path of a kubeconfig file. Takes precedence over the in-cluster configuration.

    Empty: the in-cluster configuration if a service account is mounted, else the files of $KUBECONFIG, else
    ~/.kube/config.
    """

    context: Annotated[str, Option(metavar="NAME")] = ""
    """Context of the kubeconfig. Empty: its current-context."""

    kube_qps: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    """Most writes to the API server per second, on average. The rate begins at 50 at most, rises above that while
    responses take up to 25 ms on average, and falls after the statuses 429 and 5xx and after timeouts. Binds have
    this limit of their own."""

    kube_burst: Annotated[int, msgspec.Meta(ge=1)] = 50
    """Burst of writes to the API server."""

    namespace: Annotated[str, Option(metavar="NAMESPACE")] = ""
    """Namespace of nodewise's own objects, such as the Lease. Empty: that of the service account or of the context,
    else `default`."""

    identity: Annotated[str, Option(metavar="NAME")] = ""
    """Identity of this replica in the leader election. Must be unique. With the name or uid of the pod, a container
    that restarts in its pod continues to lead at once. Empty: the host name with a random suffix; then a restarted
    process waits until the Lease of the killed process has expired."""
