"""The allocation record of a node as text: an annotation of its Lease, a JSON object of reservations by pod uid.

    {"<pod uid>": {"pod": "web/train-0", "cards": "card0,card1", "tiles": "card0:gt0,card1:gt0", "at": 1795219200,
                   "seen": "4711", "charged": [{"gpu.intel.com/i915": 1, "gpu.intel.com/tiles": 1}]}}

A reservation omits containers without GPUs; otherwise a tenant could fill the record with empty containers.
`pad_reservation_to_all_containers` adds them for the pod's annotations. Reservations of older versions include
all containers.

If sidecars of the pod have GPUs, the reservation lists all ordinary containers and then these sidecars. Versions that
do not know sidecars use the reservation's own amounts (`charged`) if the number of parts is neither that of the pod's
ordinary containers nor that of those with GPUs; a reservation with sidecars has more parts than both. Plain init
containers are never listed, because they use the GPUs of other containers (`init_container_gpus`).

A writer of a record keeps reservations that it cannot read byte for byte: a newer version may have written them. GPUs
and sub-devices are written as in the pod's annotations (`format_gpus`, `format_subdevices`), with the grammar of GPU
Aware Scheduling 0.5.6, `pkg/gpuscheduler/scheduler.go`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agent.bind_plugin_interface import RESERVATIONS_ANNOTATION, AllocationRecordLease
from nodewise.base.errors import UNREADABLE, shown

MAX_SUBDEVICE_NUMBER: Final = 1024
"""The numbers of sub-devices are below this; no GPU has as many."""

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
    return msgspec.structs.replace(
        entry,
        gpus=_parts_for_all_containers(parts, with_gpus),
        subdevices=_parts_for_all_containers(subdevices, with_gpus) if len(subdevices) == len(parts) else "",
    )


def _parts_for_all_containers(parts: Sequence[str], with_gpus: Sequence[bool]) -> str:
    left = iter(parts)
    return "|".join(next(left) if has_gpus else "" for has_gpus in with_gpus)


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
        return _parse_reservations_singly(text)


def _parse_reservations_singly(text: str) -> AllocationRecord:
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
    """The reservation as JSON values."""
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
    return ",".join(_format_gpu_number(gpu) for gpu in gpus)


def _format_gpu_number(gpu: str) -> str:
    number = gpu.removeprefix(_NUMBERED)
    return number if _is_number(number) else gpu


def parse_gpu_numbers(text: str) -> tuple[str, ...]:
    """Parse the value of `cards.nodewise.io/<container>`."""
    numbers = text.split(",") if text else ()
    return tuple(f"{_NUMBERED}{number}" if _is_number(number) else number for number in numbers)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def format_subdevices(gpus: Sequence[Sequence[str]], subdevices: Sequence[Sequence[Sequence[int]]]) -> str:
    """Format GPUs with their sub-devices: `card0:gt0+gt1,|`. Empty for a single container without sub-devices."""
    return "|".join(
        ",".join(
            _format_gpu_subdevices(name, numbers) for name, numbers in zip(names, gpu_subdevices, strict=True)
        )
        for names, gpu_subdevices in zip(gpus, subdevices, strict=True)
    )


def _format_gpu_subdevices(gpu: str, subdevices: Sequence[int]) -> str:
    return f"{gpu}:{'+'.join(f'gt{subdevice}' for subdevice in subdevices)}" if subdevices else ""


def parse_subdevices(text: str) -> Mapping[str, frozenset[int]]:
    """Parse sub-devices by GPU; invalid parts are ignored."""
    by_gpu: dict[str, set[int]] = {}
    for part in text.replace("|", ",").split(","):
        gpu, colon, subdevices = part.partition(":")
        if colon and ":" not in subdevices:
            by_gpu.setdefault(gpu, set()).update(
                filter(_is_subdevice, map(_parse_subdevice_number, subdevices.split("+")))
            )
    return {gpu: frozenset(subdevices) for gpu, subdevices in by_gpu.items() if subdevices}


def _parse_subdevice_number(text: str) -> int:
    digits = text.removeprefix("gt")
    is_number = text.startswith("gt") and digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS
    return int(digits) if is_number else -1


_DIGITS: Final = 4


def _is_subdevice(number: int) -> bool:
    return 0 <= number < MAX_SUBDEVICE_NUMBER
