"""The annotations of nodes that carry statistics and how their texts are read, and the allocatable resources of nodes.

Names and spellings are those of kube-safe-scheduler, so that existing writers and readers continue to work.
"""

import contextlib
import re
from collections.abc import Iterable
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from nodewise.base import clock, quantity
from nodewise.base.errors import UNREADABLE

MEAN_FREE_CPU: Final = "mean-free-cpu"
STD_FREE_CPU: Final = "std-free-cpu"
FORECAST_FREE_CPU: Final = "forcasted-free-cpu"
MEAN_FREE_MEMORY: Final = "mean-free-memory"
STD_FREE_MEMORY: Final = "std-free-memory"
FORECAST_FREE_MEMORY: Final = "forcasted-free-memory"
USAGE_KEYS: Final = (
    MEAN_FREE_CPU,
    STD_FREE_CPU,
    FORECAST_FREE_CPU,
    MEAN_FREE_MEMORY,
    STD_FREE_MEMORY,
    FORECAST_FREE_MEMORY,
)
CONGESTION_FACTOR: Final = "congestion-factor"
_RESOURCES: Final = ("cpu", "memory", "pods", "gpu", "ephemeral-storage")  # in the order of `Capacity`
REQUESTED_KEYS: Final = tuple(f"requested-{resource}" for resource in _RESOURCES)
FREE_KEYS: Final = tuple(f"free-{resource}" for resource in _RESOURCES)
ANNOTATED_AT: Final = "nodewise.io/annotated-at"
"""When the statistics were taken, RFC 3339 in UTC."""


class TimedAnnotations(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """The annotation that tells the age of the others."""

    annotated_at: str | None = msgspec.field(default=None, name=ANNOTATED_AT)


class UsageAnnotations(TimedAnnotations, frozen=True, gc=False, rename="kebab"):
    """Measured free resources of a node: CPU in milli-CPU, memory in bytes."""

    mean_free_cpu: str | None = None
    std_free_cpu: str | None = None
    forecast_free_cpu: str | None = msgspec.field(default=None, name=FORECAST_FREE_CPU)
    mean_free_memory: str | None = None
    std_free_memory: str | None = None
    forecast_free_memory: str | None = msgspec.field(default=None, name=FORECAST_FREE_MEMORY)


class AllocationAnnotations(TimedAnnotations, frozen=True, gc=False, rename="kebab"):
    """Resources of a node that its pods request: CPU in milli-CPU, memory and storage in bytes."""

    requested_cpu: str | None = None
    requested_memory: str | None = None
    requested_pods: str | None = None
    requested_gpu: str | None = None
    requested_ephemeral_storage: str | None = None


class CongestionAnnotations(TimedAnnotations, frozen=True, gc=False, rename="kebab"):
    """How congested a node is, by its writer: a whole number."""

    congestion_factor: str | None = None


_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")
_MAX_LENGTH: Final = 512  # characters of a number; bounds the time that a hostile text costs


def number(text: str | None) -> float:
    """A decimal number as Go's ParseFloat takes it: with sign, fraction and exponent.

    NaN for none: nothing, blanks, a suffix such as `2000m`, `nan`, `inf`, hexadecimal digits, underscores, or more than
    a double holds.
    """
    if not text or len(text) > _MAX_LENGTH or not _DECIMAL.fullmatch(text):
        return np.nan
    value = float(text)
    return value if isfinite(value) else np.nan


def parse_integer(text: str | None) -> float:
    """A whole number of 64 bits to base ten with an optional sign, as Go's ParseInt takes it; NaN for none."""
    if not text or len(text) > _MAX_LENGTH or not _INTEGER.fullmatch(text):
        return np.nan
    value = int(text)
    return float(value) if -(2**63) <= value < 2**63 else np.nan


def integers(texts: Iterable[str | None]) -> NDArray[np.float64]:
    """`parse_integer` of each text."""
    return np.fromiter(map(parse_integer, texts), np.float64)


def time(text: str | None) -> float:
    """Seconds since 1970 of a time in RFC 3339; NaN for none."""
    try:
        return clock.parse_rfc3339(text) if text and len(text) <= _MAX_LENGTH else np.nan
    except (ValueError, OverflowError):
        return np.nan


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    """The field of a Node's status that is read; raw, because agents read other resources of it."""

    allocatable: msgspec.Raw = msgspec.Raw(b"null")


GPU: Final = "gpu"


class Capacity(NamedTuple):
    """Allocatable resources in whole numbers; 0 where absent or invalid."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    pods: int = 0
    gpu: int = 0
    """Of the resource named `gpu`, or of the name passed to `parse_capacity`."""
    ephemeral_storage_bytes: int = 0


class _Allocatable(msgspec.Struct, frozen=True, gc=False):
    cpu: Any = None
    memory: Any = None
    pods: Any = None
    gpu: Any = None
    ephemeral_storage: Any = msgspec.field(default=None, name="ephemeral-storage")


_decode: Final = msgspec.json.Decoder(_Allocatable | None).decode
_decode_all: Final = msgspec.json.Decoder(dict[str, Any] | None).decode


def parse_capacity(allocatable: msgspec.Raw, gpu: str = GPU) -> Capacity:
    """Read a node's capacity; `gpu` is the name of the resource that is counted as GPU."""
    fields, devices = _Allocatable(), None
    with contextlib.suppress(*UNREADABLE):
        fields = _decode(allocatable) or fields
        devices = fields.gpu if gpu == GPU else (_decode_all(allocatable) or {}).get(gpu)
    quantities = (fields.memory, fields.pods, devices, fields.ephemeral_storage)
    return Capacity(quantity.milli(fields.cpu), *map(quantity.units, quantities))
