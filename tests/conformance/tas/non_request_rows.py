"""Rows that are neither requests nor stories: single answers, objects, definitions and starts of the process."""

from typing import Any, Literal

import msgspec

from tests.conformance.tas import table_rows
from tests.conformance.tas.table_rows import ExpectedLogLine


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A misspelt key in a table is an error."""


class MetricsApiResponse(_Strict, kw_only=True):
    """One look at the metrics API, a period after the one before."""

    offered: tuple[str, ...] = ()
    """Versions of the API, the preferred one first. Left out: as before."""
    items: tuple[dict[str, Any], ...] = ({"node": "n1", "value": "5"},)
    """`node`, and fields of an item."""
    calls: tuple[str, ...]
    """Every call, in order, below /apis/custom.metrics.k8s.io."""
    read: dict[str, dict[str, Any]] | None = None
    """By node: value, at and window_s. Null: nothing came of it."""


class AnswerRow(_Strict, kw_only=True):
    """What a rule asks the metrics API for, look by look, and what is read of the answers."""

    number: str
    name: str
    rule: str | dict[str, Any] = "m GreaterThan 10"
    looks: tuple[MetricsApiResponse, ...] = ()
    problem: str = ""
    """What is wrong with the rule, in words; then nothing is asked for."""
    differs: str = ""


class ObjectRow(_Strict, kw_only=True):
    """Objects as a watch might bring them."""

    number: str
    name: str
    items: tuple[str, ...]
    """As JSON."""
    read: dict[str, str]
    """By namespace/name, what is there afterwards: words of what is wrong with it, empty where nothing is."""
    logged: ExpectedLogLine
    differs: str = ""


class DefinitionRow(_Strict, kw_only=True):
    """Policies that the API server takes or refuses, each by itself."""

    number: str = ""
    """Empty: of what is new here, which the older system has no case of."""
    name: str
    rules: tuple[dict[str, Any], ...] = ()
    """Each is a policy with this rule only."""
    specs: tuple[Any, ...] = ()
    """Each is a policy with this spec; null for one that has none."""
    object_name: str = "pol"
    refused: str = ""
    """Words of the refusal; empty: it is taken."""
    differs: str = ""


class ProcessRow(_Strict, kw_only=True):
    """A start of the process, and how it ends or what it answers."""

    number: str
    name: str
    arguments: tuple[str, ...] = ()
    """After those with which it would serve; {nowhere} is a path where nothing is."""
    exit: int | None = None
    """Null: it goes on."""
    said: tuple[str, ...] = ()
    """Words that it says before it ends."""
    signal: Literal["", "SIGTERM", "SIGINT"] = ""
    """What ends it once it serves."""
    logged: str = ""
    """An event in its log."""
    reason: str = ""
    """Why it rejects a node for a pod that names a policy."""
    differs: str = ""


class AnswerTable(msgspec.Struct):
    """metrics.yaml, as far as it is no story."""

    answers: tuple[AnswerRow, ...]


class ObjectTable(msgspec.Struct):
    """controller.yaml, as far as it is no story."""

    objects: tuple[ObjectRow, ...]


class DefinitionTable(_Strict):
    """crd.yaml."""

    rows: tuple[DefinitionRow, ...]
    older: dict[str, Any]
    """The older system's schema."""


class ProcessTable(msgspec.Struct):
    """process.yaml, as far as it is no story."""

    rows: tuple[ProcessRow, ...]


def all_rows() -> list[AnswerRow | ObjectRow | DefinitionRow | ProcessRow]:
    """The rows of all these tables."""
    return [
        *table_rows.read("metrics", AnswerTable).answers,
        *table_rows.read("controller", ObjectTable).objects,
        *table_rows.read("crd", DefinitionTable).rows,
        *table_rows.read("process", ProcessTable).rows,
    ]
