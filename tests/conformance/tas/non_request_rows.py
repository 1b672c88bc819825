"""Rows that are neither requests nor stories: single answers, objects, definitions and starts of the process."""

from typing import Any, Literal

import msgspec

from tests.conformance.tas import case_table_rows
from tests.conformance.tas.case_table_rows import ExpectedLogLine


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all rows: a misspelt key in a table is an error."""


class MetricsApiResponse(_Strict, kw_only=True):
    """The responses of the metrics API to one fetch, one period after the previous fetch."""

    offered: tuple[str, ...] = ()
    """The versions of the API, the preferred one first. Empty: unchanged."""
    items: tuple[dict[str, Any], ...] = ({"node": "n1", "value": "5"},)
    """The items of the response: `node`, and the fields of the item."""
    calls: tuple[str, ...]
    """The paths of all expected calls in order, relative to /apis/custom.metrics.k8s.io."""
    read: dict[str, dict[str, Any]] | None = None
    """The expected value, at and window_s by node. Null: the fetch fails."""


class AnswerRow(_Strict, kw_only=True):
    """The calls to the metrics API that a rule causes at each fetch, and the values that are read."""

    number: str
    name: str
    rule: str | dict[str, Any] = "m GreaterThan 10"
    looks: tuple[MetricsApiResponse, ...] = ()
    problem: str = ""
    """Words of the problem of an invalid rule, for which no metric is requested. Empty: the rule is valid."""
    differs: str = ""


class ObjectRow(_Strict, kw_only=True):
    """Objects that a list could contain, valid and invalid ones."""

    number: str
    name: str
    items: tuple[str, ...]
    """The objects as JSON."""
    read: dict[str, str]
    """The policies in the store afterwards, by namespace/name, each with words of its problem or an empty text."""
    logged: ExpectedLogLine
    differs: str = ""


class DefinitionRow(_Strict, kw_only=True):
    """Policies that the API server accepts or refuses, each in a request of its own."""

    number: str = ""
    """Empty: the row tests a new feature that the older system does not have."""
    name: str
    rules: tuple[dict[str, Any], ...] = ()
    """Rules. Each one is the only rule of a policy."""
    specs: tuple[Any, ...] = ()
    """Specs of policies. Null: a policy without a spec."""
    object_name: str = "pol"
    refused: str = ""
    """Words of the refusal. Empty: the API server accepts the policy."""
    differs: str = ""


class ProcessRow(_Strict, kw_only=True):
    """A start of the process, and its expected exit or response."""

    number: str
    name: str
    arguments: tuple[str, ...] = ()
    """Arguments after those with which the process serves. {nowhere} is a path that does not exist."""
    exit: int | None = None
    """The exit code. Null: the process keeps running."""
    said: tuple[str, ...] = ()
    """Words of its output before the exit."""
    signal: Literal["", "SIGTERM", "SIGINT"] = ""
    """The signal that ends the process once it serves."""
    logged: str = ""
    """An event that its log must contain."""
    reason: str = ""
    """The reason with which it rejects a node for a pod that names a policy."""
    differs: str = ""


class AnswerTable(msgspec.Struct):
    """The rows of metrics.yaml that are not stories."""

    answers: tuple[AnswerRow, ...]


class ObjectTable(msgspec.Struct):
    """The rows of controller.yaml that are not stories."""

    objects: tuple[ObjectRow, ...]


class DefinitionTable(_Strict):
    """The table crd.yaml."""

    rows: tuple[DefinitionRow, ...]
    older: dict[str, Any]
    """The older system's schema."""


class ProcessTable(msgspec.Struct):
    """The rows of process.yaml that are not stories."""

    rows: tuple[ProcessRow, ...]


def all_rows() -> list[AnswerRow | ObjectRow | DefinitionRow | ProcessRow]:
    """The rows of all these tables."""
    return [
        *case_table_rows.read("metrics", AnswerTable).answers,
        *case_table_rows.read("controller", ObjectTable).objects,
        *case_table_rows.read("crd", DefinitionTable).rows,
        *case_table_rows.read("process", ProcessTable).rows,
    ]
