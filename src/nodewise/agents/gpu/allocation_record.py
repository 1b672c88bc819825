"""The allocation record of a node as text: an annotation of its Lease, a JSON object of reservations by pod uid.

    {"<pod uid>": {"pod": "web/train-0", "cards": "card0,card1", "tiles": "card0:gt0,card1:gt0", "at": 1795219200,
                   "seen": "4711", "charged": [{"gpu.intel.com/i915": 1, "gpu.intel.com/tiles": 1}]}}

A reservation omits containers without GPUs; otherwise a tenant could fill the record with empty containers.
`pad_reservation_to_all_containers` adds them for the pod's annotations. Reservations of older versions include
all containers.

If sidecars of the pod have GPUs, the reservation lists all ordinary containers and then these sidecars. Versions that
do not know sidecars use the reservation's own amounts (`charged`) if the number of parts is neither that of the pod's
ordinary containers nor that of those with GPUs; a reservation with sidecars has more parts than both. Plain init
containers are never listed, because they use the GPUs of other containers (`pod_gpu_requests`).

A writer of a record keeps reservations that it cannot read byte for byte: a newer version may have written them. GPUs
and sub-devices are written as in the pod's annotations (`format_gpus`, `format_subdevices`), with the grammar of GPU
Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`.

Filter, preempt, score and bind share the limits of pods and records, so that bind accepts what filter accepts. The API
server accepts 256 KiB of annotations per object. The size of a reservation follows from what the pod gets; one with
sidecars lists at most `MOST_CONTAINERS`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from nodewise.agent.bind_plugin_interface import RESERVATIONS_ANNOTATION, AllocationRecordLease
from nodewise.agents.gpu import gpu_node_labels, node_gpus
from nodewise.base.errors import UNREADABLE, shown

MAX_SUBDEVICE_NUMBER: Final = 1024
"""The numbers of sub-devices are below this; no GPU has as many."""

_DIGITS: Final = 4
_LONGEST_VERSION: Final = 40
"""Digits; versions of an API server have up to 20."""

_NUMBERED: Final = "card"

GpuNames = tuple[tuple[str, ...], ...]
"""GPU names by container, in the order of the pod's containers."""


class Reservation(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The GPUs that a pod holds on a node. This is written before the pod is bound."""

    pod: str
    """`namespace/name`."""
    gpus: str = msgspec.field(name="cards")
    subdevices: str = msgspec.field(default="", name="tiles")
    at: float = 0.0
    """When it was written, in seconds since 1970; for information only."""
    seen: str = ""
    """The pod's resourceVersion that the reservation was planned on. The Binding requires this version."""
    charged: tuple[dict[str, int], ...] = ()
    """By container of `cards`, the amounts that each of its GPUs is charged, by full resource name.

    They count if the pod is unknown.
    """

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name of the pod."""
        namespace, _, name = self.pod.partition("/")
        return namespace, name


class AllocationRecord(NamedTuple):
    """A parsed allocation record."""

    entries: Mapping[str, Reservation]
    """By pod uid."""
    unreadable: Mapping[str, str]
    """By pod uid, why a reservation is invalid; it does not count."""
    problem: str = ""
    """Why the whole record is invalid; none of its reservations counts."""


EMPTY: Final = AllocationRecord({}, {})

_raws: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_entries: Final = msgspec.json.Decoder(dict[str, Reservation]).decode
_entry: Final = msgspec.json.Decoder(Reservation).decode


def reservation_bytes(text: str, uids: Collection[str]) -> int:
    """The bytes of an allocation record that are reservations of these pods; 0 if it cannot be parsed."""
    try:
        raws = _raws(text) if text and uids else {}
    except UNREADABLE:
        return 0
    return sum(len(uid) + len(raw) for uid, raw in raws.items() if uid in uids)


def pad_reservation_to_all_containers(entry: Reservation, with_gpus: Sequence[bool]) -> Reservation:
    """The reservation with a part for every container of the pod, as in the annotations.

    `with_gpus` marks the containers with GPUs. Reservations of older versions have all parts already.
    """
    parts = entry.gpus.split("|")
    if len(parts) == len(with_gpus) or len(parts) != sum(with_gpus):
        return entry
    subdevices = entry.subdevices.split("|") if entry.subdevices else [""] * len(parts)

    def pad(parts: Sequence[str]) -> str:
        left = iter(parts)
        return "|".join(next(left) if has_gpus else "" for has_gpus in with_gpus)

    return msgspec.structs.replace(
        entry, gpus=pad(parts), subdevices=pad(subdevices) if len(subdevices) == len(parts) else ""
    )


def first_parts(text: str, count: int) -> str:
    """The parts of the first containers of a text with a part per container."""
    return "|".join(text.split("|")[:count])


def parse_lease(lease: AllocationRecordLease | None) -> AllocationRecord:
    """Parse the allocation record in a Lease; it is empty without a Lease."""
    return parse_record(record_text(lease))


def record_text(lease: AllocationRecordLease | None) -> str:
    """The text of the reservations in a Lease; empty if there is none."""
    return (lease.metadata.annotations or {}).get(RESERVATIONS_ANNOTATION, "") if lease is not None else ""


def parse_record(text: str) -> AllocationRecord:
    """Parse the text of the annotation; an empty text has no reservations."""
    if not text:
        return EMPTY
    try:
        return AllocationRecord(_entries(text), {})
    except UNREADABLE:
        pass  # then each reservation by itself
    try:
        raws = _raws(text)
    except UNREADABLE as error:
        return EMPTY._replace(problem=f"{RESERVATIONS_ANNOTATION} cannot be read: {shown(str(error))}")
    entries: dict[str, Reservation] = {}
    unreadable: dict[str, str] = {}
    for uid, raw in raws.items():
        try:
            entries[uid] = _entry(raw)
        except UNREADABLE as error:
            unreadable[uid] = shown(str(error))
    return AllocationRecord(entries, unreadable)


def latest_planned_version(before: str, now: str) -> str:
    """The version that a repeated reservation is planned on: never an older one than before.

    A client with old pods may repeat a bind. With an older version, the reservation of a pod that is bound could
    be removed by a check that rules out a Binding of that version only.
    """
    old, new = resource_version_number(before), resource_version_number(now)
    return before if old is not None and new is not None and old > new else now


def resource_version_number(version: str) -> int | None:
    """A resourceVersion as a number for comparisons; None if it is not a number."""
    is_number = version.isascii() and version.isdecimal() and len(version) <= _LONGEST_VERSION
    return int(version) if is_number else None


def reservation_to_json(entry: Reservation) -> Mapping[str, Any]:
    built: Mapping[str, Any] = msgspec.to_builtins(entry)
    return built


def format_gpus(gpus: Sequence[Sequence[str]]) -> str:
    """Format GPU names: `card0,card1|card0`, a part for each container, empty for one without GPUs."""
    return "|".join(",".join(names) for names in gpus)


def parse_gpus(text: str) -> GpuNames:
    """Parse GPU names. Any text between commas and bars is a name; names of unknown GPUs have no effect."""
    return tuple(tuple(part.split(",")) if part else () for part in text.split("|"))


def format_gpu_numbers(gpus: Sequence[str]) -> str:
    """Format the value of `cards.nodewise.io/<container>`: `0,1` for card0 and card1, other GPUs by name."""
    numbers = ((gpu, gpu.removeprefix(_NUMBERED)) for gpu in gpus)
    return ",".join(number if _is_number(number) else gpu for gpu, number in numbers)


def parse_gpu_numbers(text: str) -> tuple[str, ...]:
    """Parse the value of `cards.nodewise.io/<container>`."""
    numbers = text.split(",") if text else ()
    return tuple(f"{_NUMBERED}{number}" if _is_number(number) else number for number in numbers)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def format_subdevices(gpus: Sequence[Sequence[str]], subdevices: Sequence[Sequence[Sequence[int]]]) -> str:
    """Format GPUs with their sub-devices: `card0:gt0+gt1,|`. Empty for a single container without sub-devices."""

    def text(gpu: str, numbers: Sequence[int]) -> str:
        return f"{gpu}:{'+'.join(f'gt{number}' for number in numbers)}" if numbers else ""

    return "|".join(
        ",".join(map(text, names, gpu_subdevices))
        for names, gpu_subdevices in zip(gpus, subdevices, strict=True)
    )


def parse_subdevices(text: str) -> Mapping[str, frozenset[int]]:
    """Parse sub-devices by GPU; invalid parts are ignored."""
    by_gpu: dict[str, set[int]] = {}
    for part in text.replace("|", ",").split(","):
        gpu, colon, subdevices = part.partition(":")
        if colon and ":" not in subdevices:
            numbers = (name.removeprefix("gt") for name in subdevices.split("+") if name.startswith("gt"))
            by_gpu.setdefault(gpu, set()).update(
                int(number)
                for number in numbers
                if _is_number(number) and len(number) <= _DIGITS and int(number) < MAX_SUBDEVICE_NUMBER
            )
    return {gpu: frozenset(subdevices) for gpu, subdevices in by_gpu.items() if subdevices}


MOST_CONTAINERS: Final = 64
"""Containers of a pod that requests GPUs, and its init containers with GPUs. Annotations name the GPUs of each
container by its position, and the GPUs of init containers depend on all later containers."""
MOST_GPUS: Final = 256
"""GPUs that the containers of a pod request together. Each costs a search over all nodes and bytes of the record."""
MOST_ANNOTATION_BYTES: Final = 2**18
"""Keys and values of one object's annotations, bytes (k8s.io/apimachinery `TotalAnnotationSizeLimitB`)."""
RECORD_BYTES: Final = MOST_ANNOTATION_BYTES - 2**12
"""The longest allocation record of a node, in bytes. The rest is for the key, and for reservations that are written
again with a longer resourceVersion and time."""
LONGEST_NODE: Final = 253 - len("gpu-")
"""Longest name of a node with GPUs, characters: the Lease is named `gpu-<node>`, and its name has at most 253."""
NO_RECORD: Final = 2**62
"""The size of an allocation record that can never be written."""

_LONGEST_GPU: Final = 63
_SUBDEVICE_BYTES: Final = len("gt63+")
_AMOUNT_BYTES: Final = len('"":9223372036854775807,')
_ENTRY_BYTES: Final = 700
"""Uid (64), namespace and name (317), resourceVersion (40), time (20), and the JSON around them."""
_GPU_NUMBERS_KEY_BYTES: Final = len("cards.nodewise.io/") + 63
"""The key that names the GPUs of a container. The name of a container has at most 63 characters."""
_ANNOTATIONS_BYTES: Final = 256
"""`gas-ts`, and the keys of `gas-container-cards` and `gas-container-tiles`."""


class ContainerRequest(Protocol):
    """The GPU request of a container (`ContainerDemand` or `InitContainerDemand`)."""

    @property
    def name(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def per_gpu(self) -> Mapping[str, int]: ...


def record_bytes(node: str, text: str) -> int:
    """The size of a node's allocation record, bytes; `NO_RECORD` where its Lease cannot have a name."""
    if len(node) > LONGEST_NODE:
        return NO_RECORD
    return len(text) if text.isascii() else len(text.encode())


def max_reservation_bytes(containers: Iterable[ContainerRequest], subdevices: str) -> int:
    """The longest reservation of a pod with these containers on any GPUs. `subdevices` is the counting resource."""
    return _ENTRY_BYTES + sum(_container_reservation_bytes(container, subdevices) for container in containers)


def max_record_bytes(containers: Iterable[ContainerRequest], subdevices: str) -> int:
    """The longest allocation record that has space for the pod's reservation."""
    return RECORD_BYTES - max_reservation_bytes(containers, subdevices)


def max_annotation_bytes(
    containers: Iterable[ContainerRequest], subdevices: str, init: Iterable[ContainerRequest] = ()
) -> int:
    """The longest annotations that nodewise writes to a pod with these containers and plain init containers."""
    of_containers = sum(
        2 + 2 * _container_reservation_bytes(container, subdevices) for container in containers
    )
    of_init = sum(
        _GPU_NUMBERS_KEY_BYTES + min(container.count, node_gpus.MOST_GPUS) * (_LONGEST_GPU + 1)
        for container in init
    )
    return _ANNOTATIONS_BYTES + of_containers + of_init


def _container_reservation_bytes(container: ContainerRequest, subdevices: str) -> int:
    """The bytes of the names of GPUs and sub-devices and of charged amounts."""
    if not container.count:
        return len("||{},")
    count = min(container.count, node_gpus.MOST_GPUS)
    named = min(container.per_gpu.get(subdevices, 0), gpu_node_labels.MOST_SUBDEVICES)
    charged = sum(len(resource.encode()) + _AMOUNT_BYTES for resource in container.per_gpu)
    return count * (2 * (_LONGEST_GPU + 2) + named * _SUBDEVICE_BYTES) + charged + len("||{},")
