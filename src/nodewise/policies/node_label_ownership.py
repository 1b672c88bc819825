"""Ownership of node labels in `metadata.managedFields`. No I/O.

The API server tracks which manager and operation last wrote a key (KEP-555, server-side apply).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.policies.node_labels import Labels
from nodewise.policies.taspolicy_parser import PREFIX, VIOLATING

FIELD_MANAGER: Final = "nodewise-telemetry"
"""The owner of our fields."""
NODEWISE_DOMAIN: Final = ".nodewise.io"
"""The end of the domains of the labels of `nodeLabels`. Keys of nodewise itself are in `nodewise.io`."""
OLD_MANAGERS: Final = frozenset(["extender"])
"""Telemetry Aware Scheduling set no manager, so the API server used the first part of its user agent."""

VERDICT_LABEL_PREFIX: Final = "policy.nodewise.node-restriction.kubernetes.io/"
"""The prefix of the keys of labels with the verdict of a policy; its uid follows.

The admission plugin NodeRestriction of the API server keeps kubelets from writing labels of this domain."""

ManagedFieldsEntry = dict[str, Any]
"""One entry of managedFields."""


class LabelOwner(NamedTuple):
    """A field manager of node labels, and the labels that belong to it."""

    field_manager: str
    may_own: Callable[[str, str], bool]
    """Whether a label, by key and value, may be one of these, regardless of the current policies."""
    is_forced: bool
    """Whether a label of another owner is overwritten; otherwise it is a conflict."""
    pending_nodes_metric: str
    """The metric with the number of nodes that are still to be written."""

    def select(self, labels: Labels) -> dict[str, str]:
        """The labels that may be of this owner."""
        return {key: value for key, value in labels.items() if self.may_own(key, value)}


def owned_labels(metadata: Mapping[str, Any], field_manager: str = FIELD_MANAGER) -> dict[str, str]:
    """The labels that a manager owns by server-side apply, with their current values."""
    labels = metadata.get("labels") or {}
    ours = {
        key
        for entry in _managed_field_entries(metadata)
        if _is_entry_of(entry, field_manager)
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


def _may_be_policy_label(key: str, value: str) -> bool:
    """Whether a label may be ours or the older system's, regardless of the current policies."""
    is_of_cluster_policy = key.partition("/")[0].endswith(NODEWISE_DOMAIN)
    is_candidate = value == VIOLATING or key.startswith(PREFIX) or is_of_cluster_policy
    return is_candidate and not _is_verdict_label(key)


def _is_verdict_label(key: str, value: str = "") -> bool:  # noqa: ARG001 - as for other owners
    return key.startswith(VERDICT_LABEL_PREFIX)


POLICY_LABELS: Final = LabelOwner(FIELD_MANAGER, _may_be_policy_label, False, "nodes_to_label")
"""The owner of the labels that policies name."""
VERDICT_LABELS: Final = LabelOwner("nodewise-native", _is_verdict_label, True, "native_nodes_to_label")
"""The owner of the labels with the verdicts of policies."""


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
    ours = next((entry for entry in entries if _is_entry_of(entry, FIELD_MANAGER)), None)
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


def _is_entry_of(entry: Mapping[str, Any], field_manager: str) -> bool:
    return entry.get("manager") == field_manager and entry.get("operation") == "Apply"


def _is_older_system_entry(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") in OLD_MANAGERS and not entry.get("subresource")


def _label_keys(entry: Mapping[str, Any]) -> list[str]:
    labels = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
    return [name.removeprefix("f:") for name in labels if name != "."]
