"""The selection of pods that request cores, and their mutation.

Mutation is idempotent: existing entries, identified by name, are unchanged.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from nodewise.base import quantity
from nodewise.base.errors import UNREADABLE, BadInput, BadSettings, Problem, shown
from nodewise_cpu import cmk_names
from nodewise_cpu.allocator import COUNT_VARIABLE
from nodewise_cpu.webhook.json_merge_and_patch import merge_json

NUM_CORES: Final = COUNT_VARIABLE
_WORDS: Final = ("true", "True", "1")
_KINDS: Final = ("containers", "initContainers")
_WHAT: Final = "the pod cannot be read"
_MOST_PARTS: Final = 100_000
"""The limit of objects and lists in a pod.

It is a hundred times their number in the largest real pods, and a tenth of what fits into three megabytes, which would
take seconds.
"""

T = TypeVar("T", bound=msgspec.Struct)


class Mutations(NamedTuple):
    """Partial objects in the form of the Kubernetes API."""

    per_pod: Mapping[str, Any]
    per_container: Mapping[str, Any]
    """For each container that requests cores; for all containers of a pod with `cmk.intel.com/mutate`."""


class _Resources(msgspec.Struct, frozen=True):
    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Metadata(msgspec.Struct, frozen=True):
    annotations: dict[str, Any] | None = None


class _Pod(msgspec.Struct, frozen=True):
    """The fields of a pod that are read to decide whether it is mutated."""

    metadata: _Metadata | None = None
    spec: _Spec | None = None


_POD: Final = msgspec.json.Decoder(_Pod)


def default_mutations(install_dir: str = cmk_names.DEFAULT_INSTALL_DIR) -> Mutations:
    """The default mutations, for nodes with the node agent.

    A pod gets the program and the agent's socket, both read-only, and a toleration of the taint.
    """
    program, socket = "cmk-install-dir", "nodewise-cpu-agent"
    socket_dir = cmk_names.DEFAULT_SOCKET.rpartition("/")[0]
    volumes = [
        # the pod waits on a node that is not prepared yet; the agent may start after the pod
        _host_path_volume(program, install_dir, "Directory"),
        _host_path_volume(socket, socket_dir, "DirectoryOrCreate"),
    ]
    mounts = [
        {"name": program, "mountPath": cmk_names.DEFAULT_INSTALL_DIR, "readOnly": True},
        {"name": socket, "mountPath": socket_dir, "readOnly": True},
    ]
    tolerated = {"key": cmk_names.TAINT, "operator": "Exists", "effect": "NoSchedule"}
    return Mutations(
        {
            "metadata": {"annotations": {cmk_names.INJECTED: "true"}},
            "spec": {"tolerations": [tolerated], "volumes": volumes},
        },
        {"volumeMounts": mounts},
    )


def _host_path_volume(name: str, path: str, kind: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def is_mutation_requested(pod: bytes) -> bool:
    """Whether a pod in JSON requests cores or mutation. BadInput names the field that cannot be parsed."""
    parts = pod.count(b"{") + pod.count(b"[")
    if parts > _MOST_PARTS:
        raise BadInput(_WHAT, [Problem("", f"{parts} objects and lists", f"at most {_MOST_PARTS}")])
    decoded = _decode_pod(pod)
    return _has_mutation_annotation(decoded) or any(
        _count_requested_lists(container.resources, f"spec.{kind}[{index}]")
        for kind, containers in zip(_KINDS, _containers(decoded), strict=True)
        for index, container in enumerate(containers)
    )


def _decode_pod(pod: bytes) -> _Pod:
    try:
        return _POD.decode(pod)
    except UNREADABLE as error:
        raise decoding_error(error, _WHAT) from error


def decoding_error(error: Exception, what: str, below: str = "") -> BadInput:
    """The error for an error of msgspec, with the field that it means."""
    if isinstance(error, RecursionError):
        return BadInput(what, [Problem(below, "nested too deep", "a Kubernetes object")])
    seen, _, path = str(error).partition(" - at `$")
    field = f"{below}{path.rstrip('`')}".removeprefix(".")
    return BadInput(what, [Problem(field, shown(seen), "")])


def _containers(pod: _Pod) -> tuple[list[_Container], list[_Container]]:
    spec = pod.spec or _Spec()
    return spec.containers or [], spec.init_containers or []


def _has_mutation_annotation(pod: _Pod) -> bool:
    annotations = (pod.metadata and pod.metadata.annotations) or {}
    return annotations.get(cmk_names.MUTATE) in _WORDS


def _count_requested_lists(resources: _Resources | None, path: str) -> int:
    """The number of lists that a container requests, of the first pool that it requests any of."""
    amounts_of = resources or _Resources()
    for name in (cmk_names.EXCLUSIVE_CORES, cmk_names.NON_ISOLCPUS_CORES):
        for where, amounts in (("requests", amounts_of.requests), ("limits", amounts_of.limits)):
            lists = _parse_list_count((amounts or {}).get(name, 0), f"{path}.resources.{where}[{name}]")
            if lists > 0:
                return lists
    return 0


def _parse_list_count(amount: str | int, path: str) -> int:
    try:
        lists, rest = divmod(quantity.parse(str(amount)), quantity.NANO)
    except ValueError:
        rest = lists = -1
    if rest:
        raise BadInput(_WHAT, [Problem(path, shown(amount), "a whole number of CPU lists")])
    return lists


def mutate(pod: Mapping[str, Any], mutations: Mutations) -> Mapping[str, Any]:
    """The mutated pod; unchanged values are the same Python objects. The pod `is_mutation_requested`.

    BadSettings if the mutations do not fit the pod.
    """
    merged: dict[str, Any] = merge_json(dict(pod), dict(mutations.per_pod))
    looked = _decode_merged_part(merged, _Pod, "perPod")
    everywhere = _has_mutation_annotation(looked)
    for kind, containers in zip(_KINDS, _containers(looked), strict=True):
        whole = merged["spec"][kind] if containers else []
        treated = [
            _mutate_container(original, mutations.per_container, f"spec.{kind}[{index}]")
            if everywhere or _count_requested_lists(container.resources, f"spec.{kind}[{index}]")
            else original
            for index, (original, container) in enumerate(zip(whole, containers, strict=True))
        ]
        if any(original is not other for original, other in zip(whole, treated, strict=True)):
            merged = merged | {"spec": merged["spec"] | {kind: treated}}
    return merged


def _mutate_container(container: dict[str, Any], mutation: Mapping[str, Any], path: str) -> dict[str, Any]:
    merged: dict[str, Any] = merge_json(container, dict(mutation))
    looked = _decode_merged_part(merged, _Container, "perContainer")
    lists = _count_requested_lists(looked.resources, path)
    env = merged.get("env") or []
    if not isinstance(env, list):
        raise BadInput(_WHAT, [Problem(f"{path}.env", shown(env), "a list")])
    if not lists or any(isinstance(variable, dict) and variable.get("name") == NUM_CORES for variable in env):
        return merged
    return merged | {"env": [*env, {"name": NUM_CORES, "value": str(lists)}]}


def _decode_merged_part(merged: Mapping[str, Any], kind: type[T], source: str) -> T:
    """Decode a part of the merged pod. The pod was valid, so an error is one of the mutations."""
    try:
        return msgspec.convert(merged, kind)
    except UNREADABLE as error:
        wrong = decoding_error(error, "mutations cannot be used", source)
        raise BadSettings(wrong.what, wrong.problems) from error
