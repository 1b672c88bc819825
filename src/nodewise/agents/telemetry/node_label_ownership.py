"""Ownership of node labels in `metadata.managedFields`. No I/O.

The API server tracks which manager and operation last wrote a key (KEP-555, server-side apply).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from nodewise.agents.telemetry.node_labels import Labels
from nodewise.agents.telemetry.taspolicy_parser import PREFIX, VIOLATING

FIELD_MANAGER: Final = "nodewise-telemetry"
"""The owner of our fields."""
OLD_MANAGERS: Final = frozenset(["extender"])
"""Telemetry Aware Scheduling set no manager, so the API server used the first part of its user agent."""

ManagedFieldsEntry = dict[str, Any]
"""One entry of managedFields."""


def owned_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The labels that we own by server-side apply, with their current values."""
    labels = metadata.get("labels") or {}
    ours = {
        key
        for entry in _managed_field_entries(metadata)
        if _is_nodewise_entry(entry)
        for key in _label_keys(entry)
    }
    return {key: labels[key] for key in ours if key in labels}


def inheritable_label_keys(metadata: Mapping[str, Any], policies: frozenset[str]) -> frozenset[str]:
    """The label keys that only the older system owns and that have the same meaning as ours.

    `<policy>=violating` of a policy that exists, and every key below `telemetry.aware.scheduling.`.
    """
    owners: dict[str, set[str]] = {}
    for entry in _managed_field_entries(metadata):
        for key in _label_keys(entry):
            owners.setdefault(key, set()).add(str(entry.get("manager", "")))
    labels: Labels = metadata.get("labels") or {}
    return frozenset(
        key
        for key, managers in owners.items()
        if managers <= OLD_MANAGERS and _looks_like_telemetry_label(key, labels.get(key, ""), policies)
    )


def _looks_like_telemetry_label(key: str, value: str, policies: frozenset[str]) -> bool:
    return key.startswith(PREFIX) or (key in policies and value == VIOLATING)


def may_be_managed_label(key: str, value: str) -> bool:
    """Whether a label may be ours or the older system's, regardless of the current policies."""
    return value == VIOLATING or key.startswith(PREFIX)


def transfer_ownership(
    metadata: Mapping[str, Any], keys: frozenset[str], api_version: str
) -> list[ManagedFieldsEntry]:
    """`managedFields` with these label keys moved from the older system's entries to ours; values do not change.

    This is how client-go's `csaupgrade` (v0.36) migrates a client-side apply to a server-side one.
    """
    entries = [
        _entry_without_labels(entry, keys) if _is_older_system_entry(entry) else dict(entry)
        for entry in _managed_field_entries(metadata)
    ]
    ours = next((entry for entry in entries if _is_nodewise_entry(entry)), None)
    if ours is None:
        ours = {
            "manager": FIELD_MANAGER,
            "operation": "Apply",
            "apiVersion": api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": {},
        }
        entries.append(ours)
    fields: ManagedFieldsEntry = {f"f:{key}": {} for key in {*_label_keys(ours), *keys}}
    ours["fieldsV1"] = {"f:metadata": {"f:labels": fields}}
    return [entry for entry in entries if entry["fieldsV1"]]


def _entry_without_labels(entry: Mapping[str, Any], keys: frozenset[str]) -> ManagedFieldsEntry:
    """The entry without some labels, and without fields that are then empty."""
    fields = dict(entry.get("fieldsV1") or {})
    metadata = dict(fields.get("f:metadata") or {})
    labels = {
        name: inner
        for name, inner in (metadata.get("f:labels") or {}).items()
        if name.removeprefix("f:") not in keys
    }
    if labels.keys() - {"."}:
        metadata["f:labels"] = labels
    else:
        metadata.pop("f:labels", None)
    if metadata:
        fields["f:metadata"] = metadata
    else:
        fields.pop("f:metadata", None)
    return {**entry, "fieldsV1": fields}


def _managed_field_entries(metadata: Mapping[str, Any]) -> Sequence[ManagedFieldsEntry]:
    return metadata.get("managedFields") or ()


def _is_nodewise_entry(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"


def _is_older_system_entry(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") in OLD_MANAGERS and not entry.get("subresource")


def _label_keys(entry: Mapping[str, Any]) -> list[str]:
    labels = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
    return [name.removeprefix("f:") for name in labels if name != "."]
