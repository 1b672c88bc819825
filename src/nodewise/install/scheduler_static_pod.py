"""The static pod of kube-scheduler: reads its manifest, adds or removes the configuration for nodewise, and `--config`.

Volumes have the names that the older configurator used, so a pod that it edited is taken over.
"""

import copy
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base.errors import BadInput, Problem, shown
from nodewise.install import scheduler_versions, yaml_editor
from nodewise.install.scheduler_versions import SchedulerVersion
from nodewise.install.yaml_editor import Document

_OBSOLETE: Final = {
    "policy-configmap": True,
    "policy-configmap-namespace": True,
    "policy-config-file": True,
    "use-legacy-policy-config": False,
}
"""Policy flags of Kubernetes before 1.23, with which newer versions do not start; whether a value may follow."""
_MAX_GROUP: Final = 2**31 - 1
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "busybox"})


def find_flags_field(container: Mapping[str, Any]) -> str:  # complexity: one branch for each refused form
    """The field with the flags: `args` if set, because it comes last, else `command`. `BadInput` without either."""
    for name in ("command", "args"):
        words = container.get(name)
        if name not in container or (name == "args" and words is None):
            continue
        if not isinstance(words, list):
            actual = f"{name} is not an array type in manifest file"
            raise BadInput("type assertion error", [Problem("", actual, "")])
        if not all(isinstance(word, str) for word in words):
            actual = f"{name} array item is not a string type in manifest file"
            raise BadInput("type assertion error", [Problem("", actual, "")])
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    if not words:
        actual = "'command' missing from YAML spec container in manifest file"
        raise BadInput("not found error", [Problem("command", actual, "")])
    if posixpath.basename(words[0]) in _SHELLS or "-c" in words:
        expected = "kube-scheduler with its flags: what follows a shell's command is not kube-scheduler's"
        remedy = "list kube-scheduler and each flag as an entry of `command`, without a shell"
        raise BadInput("not supported error", [Problem("command", repr(words[0]), expected)], remedy=remedy)
    return "args" if container.get("args") else "command"


def flag_value(container: Mapping[str, Any], name: str) -> str | None:
    """The value of a flag; None if it is not set. The last occurrence counts."""
    value = None
    for words in (container.get("command") or [], container.get("args") or []):
        for at, word in enumerate(words):
            own, equals, text = word.lstrip("-").partition("=")
            if word.startswith("-") and own == name:
                value = text if equals else _flag_argument(words, at)
    return value


def set_config_flag(container: Mapping[str, Any], config: str | None) -> dict[str, list[str]]:
    """`command` and `args` with one `--config`, at the place of the first one, and without policy flags.

    None removes `--config`.
    """
    place = find_flags_field(container)
    lists = {name: list(container[name]) for name in ("command", "args") if container.get(name) is not None}
    edited = {name: _set_config_in_words(words, config) for name, words in lists.items()}
    placed = [name for name, words in edited.items() if f"--config={config}" in words]
    if config is not None and not placed:
        edited[place].append(f"--config={config}")
    for name in placed[1:]:
        edited[name].remove(f"--config={config}")
    return edited


def _set_config_in_words(words: Sequence[str], config: str | None) -> list[str]:
    edited: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.lstrip("-").partition("=")
        name = name.replace("_", "-")  # as kube-scheduler reads it
        is_flag = word.startswith("-") and len(word) - len(word.lstrip("-")) <= 2  # noqa: PLR2004 - dashes
        if not is_flag or (name != "config" and name not in _OBSOLETE):
            edited.append(word)
            continue
        if not equals and _OBSOLETE.get(name, True):
            _flag_argument([word, *left], 0)
            left.pop(0)
        if name == "config" and config is not None and f"--config={config}" not in edited:
            edited.append(f"--config={config}")
    return edited


def _flag_argument(words: Sequence[str], at: int) -> str:
    following = words[at + 1] if at + 1 < len(words) else None
    if following is None or following.startswith("-"):
        raise BadInput("manifest", [Problem("command", f"{words[at]} without a value", f"{words[at]}=VALUE")])
    return following


CONFIG_VOLUME: Final = "schedulerconfig"
CERTS_VOLUME: Final = "certdir"
OWN_VOLUMES: Final = frozenset({CONFIG_VOLUME, CERTS_VOLUME})
CERTS_MOUNT: Final = "/host/certs"
HASH_ANNOTATION: Final = "nodewise.io/config-hash"
PRIOR_STATE_ANNOTATION: Final = "nodewise.io/before-configure"
"""Annotation with the state that is required to undo all changes."""
DNS_POLICY: Final = "ClusterFirstWithHostNet"
"""A pod in the host network needs this policy to resolve Services by name."""
_OTHER_MODES: Final = (
    "without a static pod on this host, use --mode native from Kubernetes 1.36, or --mode second-scheduler"
)
_NEXT_STEPS: Final = {
    "Deployment": _OTHER_MODES,
    "StatefulSet": _OTHER_MODES,
    "DaemonSet": _OTHER_MODES,
    "ReplicaSet": _OTHER_MODES,
    "KubeSchedulerConfiguration": "name the manifest with -m; the configuration that its --config names is found",
    "ConfigMap": "name the manifest with -m; the configuration that its --config names is found",
    "List": "name a file that has only the pod of kube-scheduler",
    "PodList": "name a file that has only the pod of kube-scheduler",
}
"""What to do with objects of other kinds."""


class PriorState(NamedTuple):
    """The state of the pod before the first run."""

    dns_policy: str | None = None
    config: str | None = None
    """A configuration of the user."""
    backup: str | None = None
    """The backup of that configuration, if ours has the same path."""


class Manifest(NamedTuple):
    document: Document
    container_index: int
    """Index of kube-scheduler's container."""

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.document.value["spec"]
        return spec

    @property
    def container(self) -> dict[str, Any]:
        container: dict[str, Any] = self.spec["containers"][self.container_index]
        return container

    @property
    def config(self) -> str | None:
        """The configuration that kube-scheduler reads, as the container names it."""
        return flag_value(self.container, "config")

    @property
    def kubeconfig(self) -> str:
        return flag_value(self.container, "kubeconfig") or ""

    @property
    def own_config(self) -> str | None:
        """The configuration that an earlier run, or the older configurator, added."""
        return _host_paths(self.spec.get("volumes")).get(CONFIG_VOLUME)

    @property
    def own_certs(self) -> str | None:
        return _host_paths(self.spec.get("volumes")).get(CERTS_VOLUME)

    @property
    def user_config(self) -> str | None:
        """The configuration that someone else added."""
        return self.config if self.config and self.config != self.own_config else None

    @property
    def reading_group(self) -> int | None:
        """The group as which kube-scheduler reads files that others cannot read; None for root. `BadInput` for a user
        without a group.
        """
        settings: dict[str, Any] = {}
        for where in (self.spec, self.container):
            context = where.get("securityContext")
            settings |= context if isinstance(context, dict) else {}
        user, supplemental = settings.get("runAsUser"), settings.get("supplementalGroups")
        if not user:
            return None
        groups = [settings.get("runAsGroup"), settings.get("fsGroup")]
        groups += supplemental if isinstance(supplemental, list) else []
        group = next((group for group in groups if group is not None), None)
        if not isinstance(group, int) or not 0 <= group <= _MAX_GROUP:
            actual = "no value" if group is None else shown(group)
            expected = "the number of the group that may read the private key of the client certificate"
            field = f"securityContext.runAsGroup beside runAsUser: {shown(user)}"
            raise BadInput("manifest", [Problem(field, actual, expected)])
        return group

    @property
    def config_hash(self) -> str | None:
        return self._annotations.get(HASH_ANNOTATION)

    @property
    def recorded_state(self) -> PriorState | None:
        """The state that an earlier run recorded in the annotation; None without the annotation."""
        text = self._annotations.get(PRIOR_STATE_ANNOTATION)
        if text is None:
            return None
        try:
            state = json.loads(text)
            return PriorState(state.get("dnsPolicy"), state.get("config"), state.get("backup"))
        except (ValueError, AttributeError) as error:
            expected = "as `nodewise configure` wrote it"
            raise BadInput(
                self.document.name, [Problem(f"annotation {PRIOR_STATE_ANNOTATION}", text[:80], expected)]
            ) from error

    @property
    def _annotations(self) -> Mapping[str, str]:
        return (self.document.value.get("metadata") or {}).get("annotations") or {}

    def host_path(self, path: str) -> str:
        """The path on the host of a path in the container."""
        mount, volume = self._mount_and_volume(path)
        host = _host_paths([volume]).get(mount.get("name"))
        if host is None or mount.get("subPath"):
            return path
        return posixpath.normpath(host + path[len(str(mount["mountPath"]).rstrip("/")) :])

    def volume_of_other_kind(self, path: str) -> str:
        """The kind and name of the volume that holds a path of the container; empty for a `hostPath` or no volume."""
        _, volume = self._mount_and_volume(path)
        kind = next((field for field in volume if field != "name"), "hostPath")
        return "" if kind == "hostPath" else f"{kind} {shown(volume['name'])}"

    def _mount_and_volume(self, path: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The innermost mount that holds a path of the container, and its volume; both empty without one."""
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes") or []}
        mounts = self.container.get("volumeMounts") or []
        for mount in sorted(mounts, key=lambda mount: -len(str(mount.get("mountPath", "")))):
            inside = str(mount.get("mountPath", "")).rstrip("/")
            if mount["name"] in volumes and (path == inside or path.startswith(f"{inside}/")):
                return mount, volumes[mount["name"]]
        return {}, {}


class DesiredState(NamedTuple):
    """The configuration to add to the pod."""

    config: str
    certs: str
    """The certificate folder of the host; empty if no certificates are needed."""
    config_hash: str
    before: PriorState


def parse_manifest(data: bytes, name: str, container: str = "") -> Manifest:
    """Parse a manifest. `BadInput` if it is not a pod of kube-scheduler."""
    if not data.strip():
        raise BadInput("not found error: spec not found", [Problem(name, "an empty file", "a Pod")])
    document = yaml_editor.parse_document(data, name)
    root = document.value
    if not isinstance(root, dict):
        raise BadInput(f'unmarshaling of "{name}" failed', [Problem("root", "no map", "a Pod")])
    kind = root.get("kind", "Pod")
    if kind != "Pod":
        problem = Problem("kind", shown(kind), "Pod, the static pod of kube-scheduler")
        raise BadInput(f"not supported error: {name}", [problem], remedy=_NEXT_STEPS.get(str(kind), ""))
    spec = root.get("spec")
    if not isinstance(spec, dict):
        raise BadInput(f"not found error: spec not found in {name}")
    if not all(isinstance(key, str) for key in [*root, *spec]):
        raise BadInput(f"{name}", [Problem("spec", "a key that is no text", "names of fields")])
    metadata = root.get("metadata", {})
    if not isinstance(metadata, dict):
        raise BadInput(name, [Problem("metadata", "no map", "a map")])
    if not isinstance(metadata.get("annotations"), dict | None):
        raise BadInput(name, [Problem("metadata.annotations", "no map", "a map")])
    manifest = Manifest(document, _find_container(spec.get("containers"), container))
    for where, field in ((manifest.container, "volumeMounts"), (spec, "volumes")):
        _check_list_of_mappings(where, field)
    find_flags_field(manifest.container)
    return manifest


def scheduler_version(manifest: Manifest) -> SchedulerVersion:
    image = manifest.container.get("image")
    if not isinstance(image, str):
        raise BadInput("not found error: imageName not found")
    return scheduler_versions.parse_image_version(image)


def add_configuration(manifest: Manifest, desired_state: DesiredState) -> dict[str, Any]:
    """The pod with our configuration. `BadInput` if the mount of someone else is in its place."""
    root: dict[str, Any] = copy.deepcopy(manifest.document.value)
    container = root["spec"]["containers"][manifest.container_index]
    container.update(set_config_flag(container, desired_state.config))
    mounts = {CONFIG_VOLUME: {"mountPath": desired_state.config, "name": CONFIG_VOLUME, "readOnly": True}}
    volumes = {
        CONFIG_VOLUME: {"hostPath": {"path": desired_state.config, "type": "File"}, "name": CONFIG_VOLUME}
    }
    if desired_state.certs:
        mounts[CERTS_VOLUME] = {"mountPath": CERTS_MOUNT, "name": CERTS_VOLUME, "readOnly": True}
        volumes[CERTS_VOLUME] = {
            "hostPath": {"path": desired_state.certs, "type": "Directory"},
            "name": CERTS_VOLUME,
        }
    container["volumeMounts"] = _replace_or_append_own_entries(container.get("volumeMounts", []), mounts)
    root["spec"]["volumes"] = _replace_or_append_own_entries(root["spec"].get("volumes", []), volumes)
    _check_mount_collisions(container["volumeMounts"])
    _check_other_containers(root["spec"], manifest.container_index)
    root["spec"]["dnsPolicy"] = DNS_POLICY
    before = {
        "dnsPolicy": desired_state.before.dns_policy,
        "config": desired_state.before.config,
        "backup": desired_state.before.backup,
    }
    metadata = root.setdefault("metadata", {})
    metadata["annotations"] = (metadata.get("annotations") or {}) | {
        PRIOR_STATE_ANNOTATION: json.dumps(
            {name: value for name, value in before.items() if value is not None}
        ),
        HASH_ANNOTATION: desired_state.config_hash,
    }
    return root


def remove_configuration(manifest: Manifest) -> dict[str, Any]:  # complexity: every part that was added
    """The pod without anything that `add_configuration` added, and with what it replaced."""
    root: dict[str, Any] = copy.deepcopy(manifest.document.value)
    if manifest.recorded_state is None and manifest.own_config is None:
        return root
    spec, container = root["spec"], root["spec"]["containers"][manifest.container_index]
    before = manifest.recorded_state or PriorState()
    container.update(set_config_flag(container, manifest.user_config or before.config))
    for where, field in ((container, "volumeMounts"), (spec, "volumes")):
        others = [entry for entry in where.get(field) or [] if entry["name"] not in OWN_VOLUMES]
        _set_or_remove_field(where, field, others)
    if spec.get("dnsPolicy") == DNS_POLICY:
        _set_or_remove_field(spec, "dnsPolicy", before.dns_policy)
    own = {PRIOR_STATE_ANNOTATION, HASH_ANNOTATION}
    annotations = (root.get("metadata") or {}).get("annotations") or {}
    if not own.isdisjoint(annotations):
        foreign = {key: value for key, value in annotations.items() if key not in own}
        _set_or_remove_field(root["metadata"], "annotations", foreign)
    return root


def describe_pod_changes(manifest: Manifest, new: Mapping[str, Any]) -> list[str]:
    """The changes that make a pod a new one, one line each."""

    def parts(root: Mapping[str, Any]) -> dict[str, Any]:
        spec = root["spec"]
        container = spec["containers"][manifest.container_index]
        lists = {name: container.get(name) or [] for name in ("command", "args", "volumeMounts")}
        return {
            **lists,
            "volumes": spec.get("volumes") or [],
            "dnsPolicy": [spec["dnsPolicy"]] if "dnsPolicy" in spec else [],
            "annotations": [
                f"{key}: {value}"
                for key, value in ((root.get("metadata") or {}).get("annotations") or {}).items()
            ],
        }

    before, after = parts(manifest.document.value), parts(new)
    return [
        f"{name}: {sign} {item.get('name') if isinstance(item, dict) else item}"
        for name in before
        for sign, these, others in (("-", before[name], after[name]), ("+", after[name], before[name]))
        for item in these
        if item not in others
    ]


def state_before_first_run(manifest: Manifest) -> PriorState:
    """The state before the first run. For a pod that the older configurator edited, only part of it is known."""
    prior = manifest.recorded_state
    if prior is not None:
        return prior
    policy = manifest.spec.get("dnsPolicy")
    taken_over = manifest.own_config is not None and policy == DNS_POLICY
    return PriorState(None if taken_over else policy, manifest.user_config)


def _set_or_remove_field(where: dict[str, Any], field: str, value: Any) -> None:
    if value:
        where[field] = value
    else:
        where.pop(field, None)


def _replace_or_append_own_entries(entries: Sequence[Any], own: Mapping[str, Any]) -> list[Any]:
    """The entries with our own added: in place of those of an earlier run, or at the end."""
    kept: list[Any] = []
    left = dict(own)
    for entry in entries:
        name = entry["name"]
        if name not in OWN_VOLUMES:
            kept.append(entry)
        elif name in left:
            kept.append(left.pop(name))
    return [*kept, *left.values()]


def _check_mount_collisions(mounts: Sequence[Mapping[str, Any]]) -> None:
    own = {mount["mountPath"]: mount["name"] for mount in mounts if mount["name"] in OWN_VOLUMES}
    for mount in mounts:
        path = posixpath.normpath(str(mount.get("mountPath")))
        if mount["name"] not in OWN_VOLUMES and path in own:
            actual = f"{path} is mounted already, by {mount['name']!r}"
            raise BadInput("manifest", [Problem("volumeMounts", actual, f"the place free for {own[path]!r}")])


def _check_other_containers(spec: Mapping[str, Any], container_index: int) -> None:
    """`BadInput` if another container mounts a volume that is replaced."""
    others = [other for number, other in enumerate(spec["containers"]) if number != container_index]
    for other in [*others, *(spec.get("initContainers") or [])]:
        for mount in (other.get("volumeMounts") or []) if isinstance(other, dict) else []:
            if isinstance(mount, dict) and mount.get("name") in OWN_VOLUMES:
                actual = f"the container {other.get('name')!r} mounts {mount['name']!r}"
                raise BadInput("manifest", [Problem("volumes", actual, "that name free for us")])


def _check_list_of_mappings(where: Mapping[str, Any], field: str) -> None:
    if field not in where:
        return
    kind = "volumeMount" if field == "volumeMounts" else "volume"
    if not isinstance(where[field], list):
        raise BadInput(f"type assertion error: {field} type wrong, should have been array in manifest file")
    for entry in where[field]:
        if not isinstance(entry, dict):
            raise BadInput(
                f"type assertion error: {kind} type error in manifest file, should have been a map"
            )
        if not isinstance(entry.get("name"), str):
            raise BadInput("manifest", [Problem(field, f"a {kind} without a name", "a name for each")])


def _find_container(
    containers: Any, name: str
) -> int:  # complexity: the rules by which a container is chosen
    """The index of a container: the named one, else the one named kube-scheduler, else the only one, else the one that
    runs it.
    """
    if not isinstance(containers, list) or not containers:
        problem = Problem("spec.containers", "no container", "a container that runs kube-scheduler")
        raise BadInput("not found error: imageName not found", [problem])
    if not all(isinstance(container, dict) for container in containers):
        raise BadInput("type assertion error", [Problem("spec.containers", "no map", "containers")])
    names = [container.get("name") for container in containers]
    if (name or "kube-scheduler") in names:
        return names.index(name or "kube-scheduler")
    if name:
        raise BadInput("not found error", [Problem("--container", repr(name), f"one of {names}")])
    if len(containers) == 1:
        _check_is_scheduler(containers[0])
        return 0
    programs = [at for at, candidate in enumerate(containers) if _program_name(candidate) == "kube-scheduler"]
    if len(programs) != 1:
        problem = Problem("spec.containers", f"{names}", "kube-scheduler, or --container")
        raise BadInput("not found error", [problem])
    return programs[0]


def _program_name(container: Mapping[str, Any]) -> str:
    words = container.get("command")
    return posixpath.basename(str(words[0])) if isinstance(words, list) and words else ""


def _check_is_scheduler(container: Mapping[str, Any]) -> None:
    """`BadInput` if neither name, image nor command line says that the only container runs a scheduler: the API server
    does not start with the flags of kube-scheduler.
    """
    lists = [words for field in ("command", "args") if isinstance(words := container.get(field), list)]
    programs = [posixpath.basename(str(word)) for words in lists for word in words if str(word)[:1] != "-"]
    image = str(container.get("image")).partition("@")[0].rpartition("/")[2]
    if not any("scheduler" in name for name in (str(container.get("name")), image, *programs)):
        problem = Problem("spec.containers", f"only {shown(container.get('name'))}", "kube-scheduler")
        remedy = "name the manifest of kube-scheduler with -m, or with --container a container that runs it"
        raise BadInput("not found error", [problem], remedy=remedy)


def _host_paths(volumes: Any) -> dict[Any, str]:
    paths = {}
    for volume in volumes or []:
        source = volume.get("hostPath")
        if isinstance(source, dict) and isinstance(source.get("path"), str):
            paths[volume["name"]] = source["path"]
    return paths
