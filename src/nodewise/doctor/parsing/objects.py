"""Reads fields of JSON objects of any shape: a missing value, or one of another type, is empty."""

import hashlib
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, short
from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER
from nodewise.kube import object_files


def get(value: Any, *path: str | int) -> Any:
    """The value at a path of keys and numbers; None if there is none."""
    for step in path:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def get_text(value: Any, *path: str | int) -> str:
    text = get(value, *path)
    return text if isinstance(text, str) else ""


def get_list(value: Any, *path: str | int) -> list[Any]:
    items = get(value, *path)
    return items if isinstance(items, list) else []


def get_text_list(value: Any, *path: str | int) -> list[str]:
    """The texts of a list; other elements are left out."""
    return [item for item in get_list(value, *path) if isinstance(item, str)]


def get_mapping(value: Any, *path: str | int) -> dict[str, Any]:
    mapping = get(value, *path)
    if not isinstance(mapping, dict):
        return {}
    return {key: item for key, item in mapping.items() if isinstance(key, str)}


def get_text_mapping(value: Any, *path: str | int) -> dict[str, str]:
    """Texts by texts, such as labels and annotations."""
    return {key: item for key, item in get_mapping(value, *path).items() if isinstance(item, str)}


def get_number(value: Any, *path: str | int) -> int | None:
    number = get(value, *path)
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def get_condition(value: Any, kind: str) -> Any:
    """A condition of an object's status; None if there is none."""
    conditions = get_list(value, "status", "conditions")
    return next((condition for condition in conditions if get_text(condition, "type") == kind), None)


def get_field_ignoring_case(value: Any, key: str) -> Any:
    """A field by its name in any case: /configz prints kube-scheduler's internal type with the names of Go's fields."""
    if not isinstance(value, Mapping):
        return None
    if key in value:
        return value[key]
    low = key.lower()
    return next((item for name, item in value.items() if isinstance(name, str) and name.lower() == low), None)


_TEMPLATES: Final = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Pod": (),
}
_MIRROR: Final = "kubernetes.io/config.mirror"
_SHELLS: Final = frozenset({"sh", "bash", "ash", "dash"})
_VARIABLE: Final = "NODEWISE_"
_MAX_FILE: Final = 2**20


class VolumeMount(NamedTuple):
    """A volume mount of a container with its volume's source."""

    path: str
    kind: str
    """`configMap`, `secret`, `hostPath`, or empty for any other source."""
    name: str
    """Of the object, or the host's path."""
    sub_path: str = ""
    items: tuple[tuple[str, str], ...] = ()
    """Keys of the object with their file names; empty: every key by its own name."""


class Container(NamedTuple):
    """A container of a pod or a pod template."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    """Command and arguments."""
    environment: Mapping[str, str] = {}
    mounts: tuple[VolumeMount, ...] = ()


class Workload(NamedTuple):
    """A pod, or a Deployment or another object that makes pods."""

    where: str
    """`Pod/kube-system/kube-scheduler-a`, `Deployment/nodewise/nodewise`."""
    namespace: str = ""
    containers: tuple[Container, ...] = ()
    labels: Mapping[str, str] = {}
    account: str = "default"
    scheduler_name: str = DEFAULT_SCHEDULER
    host_network: bool = False
    dns_policy: str = "ClusterFirst"
    is_static: bool = False
    """Whether it is the mirror pod of a static pod."""
    node: str = ""
    replicas: int = 1
    ready: int | None = None
    """None if the status does not say."""
    problems: tuple[str, ...] = ()
    """Why its pods are not ready."""


def parse(kind: str, value: Any) -> Workload:
    """A Pod, or the pod template of a Deployment or the like."""
    template = get(value, *_TEMPLATES[kind])
    spec = get_mapping(template, "spec")
    namespace = get_text(value, "metadata", "namespace")
    volumes = {
        get_text(volume, "name"): _parse_volume_sources(volume) for volume in get_list(spec, "volumes")
    }
    containers = [*get_list(spec, "containers"), *get_list(spec, "initContainers")]
    replicas, ready = _replica_counts(kind, value)
    return Workload(
        where=f"{kind}/{namespace}/{get_text(value, 'metadata', 'name')}",
        namespace=namespace,
        containers=tuple(_parse_container(container, volumes) for container in containers),
        labels=get_text_mapping(template, "metadata", "labels"),
        account=get_text(spec, "serviceAccountName") or "default",
        scheduler_name=get_text(spec, "schedulerName") or DEFAULT_SCHEDULER,
        host_network=get(spec, "hostNetwork") is True,
        dns_policy=get_text(spec, "dnsPolicy") or "ClusterFirst",
        is_static=_MIRROR in get_text_mapping(value, "metadata", "annotations"),
        node=get_text(spec, "nodeName"),
        replicas=replicas,
        ready=ready,
        problems=tuple(_container_problems(value) if kind == "Pod" else _creation_problems(value)),
    )


def _replica_counts(kind: str, value: Any) -> tuple[int, int | None]:
    if kind == "Pod":
        if is_finished(value):
            return 0, None
        ready = get_condition(value, "Ready")
        return 1, None if ready is None else int(get_text(ready, "status") == "True")
    if kind == "DaemonSet":
        desired = get_number(value, "status", "desiredNumberScheduled") or 0
        return desired, get_number(value, "status", "numberReady") or 0
    if kind in ("Deployment", "StatefulSet"):
        replicas = get_number(value, "spec", "replicas")
        return 1 if replicas is None else replicas, get_number(value, "status", "readyReplicas") or 0
    return (0 if get(value, "spec", "suspend") is True else 1), None


def is_finished(pod: Any) -> bool:
    return get_text(pod, "status", "phase") in ("Succeeded", "Failed")


def unscheduled_message(pod: Any) -> str:
    """Why a scheduler did not place a pod; empty if it did, or has not tried."""
    condition = get_condition(pod, "PodScheduled")
    if get_text(condition, "status") != "False":
        return ""
    return f"{get_text(condition, 'reason')}: {get_text(condition, 'message')}"


def _container_problems(pod: Any) -> Iterator[str]:
    """Why a pod's containers do not run, in the kubelet's or the scheduler's words."""
    statuses = get_list(pod, "status", "containerStatuses") + get_list(pod, "status", "initContainerStatuses")
    for status in statuses:
        for state in ("waiting", "terminated"):
            reason, message = (get_text(status, "state", state, field) for field in ("reason", "message"))
            if reason and reason != "Completed":
                yield short(f"{get_text(status, 'name')}: {reason}" + (f": {message}" if message else ""))
    if message := unscheduled_message(pod):
        yield short(message)


def _creation_problems(workload: Any) -> Iterator[str]:
    """Why the API server creates no pods of a Deployment: by Pod Security, a quota, or an admission webhook."""
    condition = get_condition(workload, "ReplicaFailure")
    if get_text(condition, "status") == "True":
        yield short(get_text(condition, "message"))


def _parse_volume_sources(volume: Any) -> list[VolumeMount]:
    kinds = (("configMap", "name"), ("secret", "secretName"), ("secret", "name"), ("hostPath", "path"))
    return [
        VolumeMount("", kind, name, items=_parse_items(get_list(source, kind, "items")))
        for source in (volume, *get_list(volume, "projected", "sources"))
        for kind, key in kinds
        if (name := get_text(source, kind, key))
    ]


def _parse_items(items: list[Any]) -> tuple[tuple[str, str], ...]:
    return tuple((get_text(item, "key"), get_text(item, "path")) for item in items)


def _parse_container(value: Any, volumes: Mapping[str, list[VolumeMount]]) -> Container:
    mounts = [
        source._replace(path=get_text(mount, "mountPath"), sub_path=get_text(mount, "subPath"))
        for mount in get_list(value, "volumeMounts")
        for source in volumes.get(get_text(mount, "name"), [])
    ]
    variables = [
        (get_text(variable, "name"), get_text(variable, "value")) for variable in get_list(value, "env")
    ]
    return Container(
        get_text(value, "name"),
        get_text(value, "image"),
        tuple(_split_shell_command([*get_text_list(value, "command"), *get_text_list(value, "args")])),
        {name: text for name, text in variables if name},
        tuple(mounts),
    )


def _split_shell_command(words: Sequence[str]) -> Sequence[str]:
    """The words of a command; the script of `sh -c` is split as the shell splits it."""
    if len(words) > 2 and posixpath.basename(words[0]) in _SHELLS and words[1].startswith("-"):  # noqa: PLR2004
        try:
            return [*words[:2], *(word for script in words[2:] for word in shlex.split(script))]
        except ValueError:
            return words
    return words


def runs(container: Container, program: str) -> bool:
    """Whether a container runs a program, by its command, or by its image if it has no command."""
    if program in map(posixpath.basename, container.command):
        return True
    has_command = bool(container.command) and not container.command[0].startswith("-")
    image = posixpath.basename(container.image.partition("@")[0]).partition(":")[0]
    return not has_command and image == program


def runs_nodewise_extender(container: Container) -> bool:
    return runs(container, "nodewise") and "extender" in container.command


def runs_nodewise_controller(container: Container) -> bool:
    return runs(container, "nodewise") and "controller" in container.command


def flag(container: Container, name: str) -> str | None:
    """The value of `--name=value` or `--name value`, the last one; empty for a flag alone, None if it is absent."""
    values = flags(container).get(name.replace("-", "_"))
    return values[-1] if values else None


def flags(container: Container) -> dict[str, list[str]]:
    """All flags with their values; names as in a settings file, without dashes in front and with underscores."""
    values: dict[str, list[str]] = {}
    command = container.command
    for number, word in enumerate(command):
        if not word.startswith("-") or word.strip("-") == "":
            continue
        name, equals, value = word.lstrip("-").partition("=")
        following = command[number + 1] if number + 1 < len(command) else ""
        value = value if equals else ("" if following.startswith("-") else following)
        values.setdefault(name.replace("-", "_"), []).append(value)
    return values


def find_mount(container: Container, path: str) -> tuple[VolumeMount, str] | None:
    """The mount that contains a file, and the file in it: the object's key, or the path below the host's."""
    best: tuple[int, VolumeMount, str] | None = None
    for mount in container.mounts:
        inside = _locate_file_in_mount(mount, path)
        if inside is not None and (best is None or len(mount.path) >= best[0]):
            best = len(mount.path), mount, inside
    return None if best is None else (best[1], best[2])


def _locate_file_in_mount(mount: VolumeMount, path: str) -> str | None:
    if not mount.path or not path.startswith("/"):
        return None
    folder, file = posixpath.normpath(mount.path), posixpath.normpath(path)
    if file == folder:
        rest = mount.sub_path if mount.kind != "hostPath" else ""
    elif file.startswith(f"{folder.rstrip('/')}/"):
        rest = file[len(folder.rstrip("/")) + 1 :]
    else:
        return None
    if mount.kind == "hostPath":
        return rest
    if mount.items:
        return next((key for key, name in mount.items if posixpath.normpath(name) == rest), None)
    return rest or None


def settings_file_path(container: Container) -> str:
    """The path of an extender's settings file; empty if it has none."""
    return flag(container, "config") or container.environment.get(f"{_VARIABLE}CONFIG", "")


def settings(container: Container, file: bytes = b"") -> dict[str, str]:
    """An extender's settings by their names in a settings file: flags win over variables, and these over the file."""
    variables = {
        name.removeprefix(_VARIABLE).lower(): value
        for name, value in container.environment.items()
        if name.startswith(_VARIABLE)
    }
    joined = {name: ",".join(filter(None, values)) or "true" for name, values in flags(container).items()}
    return {**parse_settings(file), **variables, **joined}


def parse_documents(text: bytes, name: str) -> list[Any]:
    """The documents of the first MiB of a YAML or JSON text. `BadInput` if it cannot be read."""
    try:
        return [msgspec.json.decode(json) for _, json in object_files.split_documents(text[:_MAX_FILE], name)]
    except UNREADABLE as error:
        raise BadInput(str(error)) from error


def parse_settings(text: bytes) -> dict[str, str]:
    """The settings of a file, those of agents' sections included; empty if it cannot be read."""
    try:
        values = parse_documents(text, "settings")
    except BadInput:
        return {}
    top = get_mapping(values[0]) if values else {}
    sections = [get_mapping(value) for value in top.values()]
    merged = {name: value for section in [*sections, top] for name, value in section.items()}
    texts = {name.replace("-", "_"): _format_setting_value(value) for name, value in merged.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _format_setting_value(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list):
        return ",".join(item for item in value if isinstance(item, str))
    return None


_RESOURCE: Final = "resource"
"""The name of the variable with the resource of kube-scheduler's managedResources, which users may change."""
_LENGTH: Final = 16  # hexadecimal digits of a digest


def expressions_digest(policy: Any) -> str:
    """A digest of what an admission policy does: its kind of parameter, failure policy and CEL expressions.

    Names, messages and excluded namespaces are left out, because each installation may have its own, and so is what the
    API server adds to an object.
    """
    resource = next(
        (
            get_text(variable, "expression").strip("'")
            for variable in get_list(policy, "spec", "variables")
            if get_text(variable, "name") == _RESOURCE
        ),
        "",
    )
    texts = [text.replace(resource, _RESOURCE) if resource else text for text in _texts(policy)]
    return hashlib.sha256(msgspec.json.encode(texts)).hexdigest()[:_LENGTH]


def _texts(policy: Any) -> Iterator[str]:
    yield get_text(policy, "spec", "paramKind", "kind")
    yield get_text(policy, "spec", "failurePolicy")
    for field in ("matchConditions", "variables", "validations"):
        for item in get_list(policy, "spec", field):
            yield " ".join((field, get_text(item, "name"), get_text(item, "expression")))
    for mutation in get_list(policy, "spec", "mutations"):
        yield get_text(mutation, "patchType")
        yield get_text(mutation, "jsonPatch", "expression")
