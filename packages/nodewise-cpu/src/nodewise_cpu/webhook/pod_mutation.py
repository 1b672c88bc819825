"""The response to an AdmissionReview: the selection of pods that request cores, and their mutation.

Mutation is idempotent: existing entries, identified by name, are unchanged. A mutation is merged into the pod; the
response has the difference as a JSON patch (RFC 6902). Parts that do not change are the same Python objects afterwards,
so that the patch is found without comparing them.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from nodewise.base import quantity
from nodewise.base.errors import UNREADABLE, BadInput, BadSettings, shown
from nodewise_cpu import cmk_names
from nodewise_cpu.allocator import COUNT_VARIABLE

Operation = dict[str, Any]

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "hostAliases": ("ip",),
}
"""The fields that identify the entries of a list, by the list's field; entries of other lists have a name."""


def merge_json(whole: Any, partial: Any, path: str = "") -> Any:
    """`whole` with the content of `partial`.

    Mappings are merged key by key. Entries that a list lacks are appended: an entry with the same name stays as it is,
    and an entry without a name is not appended twice. Any other value is replaced; null has no effect. BadSettings,
    which names the `path`, if `partial` has another value in the place of a mapping.
    """
    if partial is None:
        return whole
    if isinstance(whole, dict):
        return _merge_mapping(whole, partial, path)
    if isinstance(whole, list):
        return _merge_list(whole, partial if isinstance(partial, list) else [partial], path)
    if isinstance(partial, dict):
        return _merge_mapping({}, partial, path)
    if isinstance(partial, list):
        return _merge_list([], partial, path)
    return whole if type(whole) is type(partial) and whole == partial else partial


def _merge_mapping(whole: dict[str, Any], partial: Any, path: str) -> dict[str, Any]:
    if not isinstance(partial, dict):
        raise BadSettings.of("mutations cannot be merged", path, shown(partial), "a mapping")
    merged = {
        key: merge_json(whole.get(key), value, f"{path}.{key}" if path else key)
        for key, value in partial.items()
        if value is not None
    }
    if all(key in whole and whole[key] is value for key, value in merged.items()):
        return whole
    return whole | merged


def _merge_list(whole: list[Any], partial: list[Any], path: str) -> list[Any]:
    keys = _KEYS.get(path.rpartition(".")[2], ("name",))
    merged = whole
    for entry in partial:
        identity = _merge_key_values(entry, keys)
        if not any(_merge_key_values(other, keys) == identity for other in merged):
            merged = [*merged, entry]
    return merged


def _merge_key_values(entry: Any, keys: tuple[str, ...]) -> tuple[bool, Any]:
    if isinstance(entry, dict) and keys[0] in entry:
        return True, tuple(entry.get(key) for key in keys)
    return False, entry


def json_patch(  # complexity: one branch for each type
    before: Any, after: Any, at: str = ""
) -> Iterator[Operation]:
    """The operations that change `before` into `after`, in their order. `at` is a JSON pointer.

    A value that is the same Python object in both is not compared.
    """
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield {"op": "remove", "path": f"{at}/{_escape_pointer_token(key)}"}
        for key, value in after.items():
            path = f"{at}/{_escape_pointer_token(key)}"
            if key in before:
                yield from json_patch(before[key], value, path)
            else:
                yield {"op": "add", "path": path, "value": value}
    elif isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from json_patch(old, new, f"{at}/{index}")
        # from the end, so that no index changes before it is used
        for index in reversed(range(len(after), len(before))):
            yield {"op": "remove", "path": f"{at}/{index}"}
        for value in after[len(before) :]:
            yield {"op": "add", "path": f"{at}/-", "value": value}
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": at, "value": after}


def _escape_pointer_token(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


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
    metadata: _Metadata | None = None
    spec: _Spec | None = None


_POD: Final = msgspec.json.Decoder(_Pod)


def default_mutations(install_dir: str = cmk_names.DEFAULT_INSTALL_DIR) -> Mutations:
    """The default mutations, for nodes with the node agent.

    A pod gets the program and the agent's socket, both read-only, and a toleration of the taint.
    """
    socket_dir = cmk_names.DEFAULT_SOCKET.rpartition("/")[0]
    # the pod waits on a node that is not prepared yet; the agent may start after the pod
    folders = (
        ("cmk-install-dir", install_dir, "Directory", cmk_names.DEFAULT_INSTALL_DIR),
        ("nodewise-cpu-agent", socket_dir, "DirectoryOrCreate", socket_dir),
    )
    volumes = [{"name": name, "hostPath": {"path": path, "type": kind}} for name, path, kind, _ in folders]
    mounts = [{"name": name, "mountPath": mount, "readOnly": True} for name, _, _, mount in folders]
    tolerated = {"key": cmk_names.TAINT, "operator": "Exists", "effect": "NoSchedule"}
    return Mutations(
        {
            "metadata": {"annotations": {cmk_names.INJECTED: "true"}},
            "spec": {"tolerations": [tolerated], "volumes": volumes},
        },
        {"volumeMounts": mounts},
    )


def is_mutation_requested(pod: bytes) -> bool:
    """Whether a pod in JSON requests cores or mutation. BadInput names the field that cannot be parsed."""
    parts = pod.count(b"{") + pod.count(b"[")
    if parts > _MOST_PARTS:
        raise BadInput.of(_WHAT, "", f"{parts} objects and lists", f"at most {_MOST_PARTS}")
    try:
        decoded = _POD.decode(pod)
    except UNREADABLE as error:
        raise decoding_error(error, _WHAT) from error
    return _has_mutation_annotation(decoded) or any(
        _count_requested_lists(container.resources, f"spec.{kind}[{index}]")
        for kind, containers in zip(_KINDS, _containers(decoded), strict=True)
        for index, container in enumerate(containers)
    )


def decoding_error(error: Exception, what: str, below: str = "") -> BadInput:
    """The error for an error of msgspec, with the field that it means."""
    if isinstance(error, RecursionError):
        return BadInput.of(what, below, "nested too deep", "a Kubernetes object")
    seen, _, path = str(error).partition(" - at `$")
    field = f"{below}{path.rstrip('`')}".removeprefix(".")
    return BadInput.of(what, field, shown(seen))


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
        raise BadInput.of(_WHAT, path, shown(amount), "a whole number of CPU lists")
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
        raise BadInput.of(_WHAT, f"{path}.env", shown(env), "a list")
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


PATH: Final = "/mutate"
"""The path to which the API server sends reviews."""
VERSIONS: Final = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_UNREADABLE_REVIEW: Final = "the review cannot be read"
_OBJECT: Final = "request.object"


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Request(msgspec.Struct, frozen=True):
    uid: str = ""
    kind: _Kind = _Kind()
    operation: str = "CREATE"
    namespace: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    request: _Request | None = None


class ReviewResponse(NamedTuple):
    """The response to a review, and its outcome."""

    body: bytes
    outcome: Literal["mutated", "untouched", "refused"]
    detail: str = ""
    """The namespace of a mutated pod, or the reason of a refusal."""


_REVIEW: Final = msgspec.json.Decoder(_Review)


def respond_to_review(body: bytes, mutations: Callable[[], Mutations]) -> ReviewResponse:
    """The response to a review: with a patch, without one, or a refusal that names what is wrong with the object.

    BadInput if the body is not a review, or has no UID. BadSettings if the pod requests cores while the
    mutations are invalid.
    """
    try:
        review = _REVIEW.decode(body)
    except UNREADABLE as error:
        raise decoding_error(error, _UNREADABLE_REVIEW) from error
    if review.kind != "AdmissionReview":
        raise BadInput.of(_UNREADABLE_REVIEW, "kind", shown(review.kind), "AdmissionReview")
    if review.api_version not in VERSIONS:
        raise BadInput.of(_UNREADABLE_REVIEW, "apiVersion", shown(review.api_version), " or ".join(VERSIONS))
    request = review.request
    if request is None:
        raise BadInput.of(_UNREADABLE_REVIEW, "request", "missing", "an AdmissionRequest")
    if not request.uid:
        raise BadInput.of(_UNREADABLE_REVIEW, "request.uid", "missing", "the UID of the request")
    outcome: Literal["mutated", "untouched", "refused"] = "untouched"
    detail = ""
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    try:
        operations = _mutate_requested_pod(request, mutations)
    except BadInput as error:
        outcome, detail = "refused", str(error)
        status = {"code": 400, "reason": "BadRequest", "message": f"nodewise: {error}"}
        response |= {"allowed": False, "status": status}
    else:
        if operations:
            outcome, detail = "mutated", request.namespace
            encoded = base64.b64encode(msgspec.json.encode(operations)).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
    document = {"apiVersion": review.api_version, "kind": review.kind, "response": response}
    return ReviewResponse(msgspec.json.encode(document), outcome, detail)


def _mutate_requested_pod(request: _Request, mutations: Callable[[], Mutations]) -> list[Operation]:
    """The patch of the pod that is created; empty if it is not mutated."""
    if request.operation != "CREATE":
        return []
    if request.kind.kind != "Pod":
        raise BadInput.of(_UNREADABLE_REVIEW, "request.kind.kind", shown(request.kind.kind), "Pod")
    pod = bytes(request.object)
    if pod == b"null":
        raise BadInput.of(_UNREADABLE_REVIEW, _OBJECT, "missing", "a pod")
    try:
        return _mutation_as_json_patch(pod, mutations)
    except BadInput as error:
        problems = [
            problem._replace(field=f"{_OBJECT}.{problem.field}".rstrip(".")) for problem in error.problems
        ]
        raise BadInput(error.what, problems) from error


def _mutation_as_json_patch(pod: bytes, mutations: Callable[[], Mutations]) -> list[Operation]:
    if not is_mutation_requested(pod):
        return []
    try:
        whole = msgspec.json.decode(pod)
    except UNREADABLE as error:
        raise decoding_error(error, "the pod cannot be read") from error
    valid_mutations = mutations()
    try:
        mutated = mutate(whole, valid_mutations)
    except BadSettings as error:  # the same mutations fit other pods
        raise BadInput("the pod cannot be mutated", error.problems) from error
    return list(json_patch(whole, mutated))
