"""Pods and pod templates, as the API server gives them: what runs in them, with which settings and files."""

import posixpath
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from nodewise.configure.doctor.facts import Container, Mount, Pod
from nodewise.configure.doctor.objects import at, fields, items, labels, number, text, texts
from nodewise.visible import short

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


def read(kind: str, value: Any) -> Pod:
    """A Pod, or the pods that a Deployment and the like makes."""
    template = at(value, *_TEMPLATES[kind])
    spec = fields(template, "spec")
    namespace = text(value, "metadata", "namespace")
    volumes = dict(_volumes(spec))
    containers = [*items(spec, "containers"), *items(spec, "initContainers")]
    wanted, ready = _replicas(kind, value)
    return Pod(
        where=f"{kind}/{namespace}/{text(value, 'metadata', 'name')}",
        namespace=namespace,
        containers=tuple(_container(one, volumes) for one in containers),
        labels=labels(template, "metadata", "labels"),
        annotations=labels(template, "metadata", "annotations"),
        account=text(spec, "serviceAccountName") or "default",
        scheduler=text(spec, "schedulerName") or "default-scheduler",
        host_network=at(spec, "hostNetwork") is True,
        dns=text(spec, "dnsPolicy") or "ClusterFirst",
        is_static=_MIRROR in labels(value, "metadata", "annotations"),
        node=text(spec, "nodeName"),
        wanted=wanted,
        ready=ready,
        troubles=tuple(_troubles(value)) if kind == "Pod" else (),
    )


def _replicas(kind: str, value: Any) -> tuple[int, int | None]:
    """How many pods there should be, and how many are ready."""
    if kind == "Pod":
        conditions = {text(one, "type"): text(one, "status") for one in items(value, "status", "conditions")}
        is_over = text(value, "status", "phase") in ("Succeeded", "Failed")
        return (
            (0, None)
            if is_over
            else (1, int(conditions["Ready"] == "True") if "Ready" in conditions else None)
        )
    if kind == "DaemonSet":
        wanted = number(value, "status", "desiredNumberScheduled")
        return wanted or 0, number(value, "status", "numberReady") or 0
    if kind in ("Deployment", "StatefulSet"):
        wanted = number(value, "spec", "replicas")
        return 1 if wanted is None else wanted, number(value, "status", "readyReplicas") or 0
    return (0 if at(value, "spec", "suspend") is True else 1), None


def _troubles(value: Any) -> Iterator[str]:
    """Why a pod's containers do not run, in the kubelet's words; or the scheduler's."""
    for one in items(value, "status", "containerStatuses") + items(value, "status", "initContainerStatuses"):
        for state in ("waiting", "terminated"):
            reason, message = (text(one, "state", state, name) for name in ("reason", "message"))
            if reason and reason != "Completed":
                yield short(f"{text(one, 'name')}: {reason}" + (f": {message}" if message else ""))
    for one in items(value, "status", "conditions"):
        if text(one, "type") == "PodScheduled" and text(one, "status") == "False":
            yield short(f"{text(one, 'reason')}: {text(one, 'message')}")


def _volumes(spec: Any) -> Iterator[tuple[str, list[Mount]]]:
    """By name, what a volume is made of; where it comes from several objects, each."""
    for one in items(spec, "volumes"):
        parts = [one, *items(one, "projected", "sources")]
        yield text(one, "name"), [found for part in parts for found in _sources(part)]


def _sources(part: Any) -> Iterator[Mount]:
    for kind, key in (
        ("configMap", "name"),
        ("secret", "secretName"),
        ("secret", "name"),
        ("hostPath", "path"),
    ):
        if name := text(part, kind, key):
            chosen = [(text(one, "key"), text(one, "path")) for one in items(part, kind, "items")]
            yield Mount("", kind, name, items=tuple(chosen))


def _container(value: Any, volumes: Mapping[str, list[Mount]]) -> Container:
    mounts = [
        source._replace(path=text(one, "mountPath"), sub_path=text(one, "subPath"))
        for one in items(value, "volumeMounts")
        for source in volumes.get(text(one, "name"), [])
    ]
    environment = {text(one, "name"): text(one, "value") for one in items(value, "env") if text(one, "name")}
    words = _plain([*texts(value, "command"), *texts(value, "args")])
    return Container(text(value, "name"), text(value, "image"), tuple(words), environment, tuple(mounts))


def _plain(words: Sequence[str]) -> Iterable[str]:
    """The words of a command; one that a shell reads is taken apart as the shell would."""
    if len(words) > 2 and posixpath.basename(words[0]) in _SHELLS and words[1].startswith("-"):  # noqa: PLR2004
        try:
            return [*words[:2], *(word for each in words[2:] for word in shlex.split(each))]
        except ValueError:
            return words
    return words


def runs(container: Container, program: str) -> bool:
    """Whether a container runs a program, by its command, or by its image where there is none."""
    names = [posixpath.basename(word) for word in container.words]
    if program in names:
        return True
    has_command = bool(container.words) and not container.words[0].startswith("-")
    return (
        not has_command and posixpath.basename(container.image.partition("@")[0]).partition(":")[0] == program
    )


def flag(container: Container, name: str) -> str | None:
    """The value of `--name=value` or `--name value`, the last one; empty for a flag alone, None where it is absent."""
    found = None
    for number_, word in enumerate(container.words):
        bare, equals, value = word.partition("=")
        if bare in (f"--{name}", f"-{name}"):
            after = container.words[number_ + 1] if number_ + 1 < len(container.words) else ""
            found = value if equals else ("" if after.startswith("-") else after)
    return found


def flags(container: Container) -> dict[str, list[str]]:
    """Every flag with its values, as written; the names without dashes and with underscores, as settings have them."""
    found: dict[str, list[str]] = {}
    words = container.words
    for at_, word in enumerate(words):
        if not word.startswith("-") or word.strip("-") == "":
            continue
        bare, equals, value = word.lstrip("-").partition("=")
        after = words[at_ + 1] if at_ + 1 < len(words) else ""
        given = value if equals else ("" if after.startswith("-") else after)
        found.setdefault(bare.replace("-", "_"), []).append(given)
    return found


def mount(container: Container, path: str) -> tuple[Mount, str] | None:
    """The mount that a file comes from, and its name inside: the object's key, or the path below the host's."""
    best: tuple[int, Mount, str] | None = None
    for one in container.mounts:
        inside = _inside(one, path)
        if inside is not None and (best is None or len(one.path) >= best[0]):
            best = len(one.path), one, inside
    return None if best is None else (best[1], best[2])


def _inside(one: Mount, path: str) -> str | None:
    if not one.path or not path.startswith("/"):
        return None
    place, wanted = posixpath.normpath(one.path), posixpath.normpath(path)
    if wanted == place:
        rest = one.sub_path if one.kind != "hostPath" else ""
    elif wanted.startswith(f"{place.rstrip('/')}/"):
        rest = wanted[len(place.rstrip("/")) + 1 :]
    else:
        return None
    if one.kind == "hostPath":
        return rest
    if one.items:
        return next((key for key, file in one.items if posixpath.normpath(file) == rest), None)
    return rest or None
