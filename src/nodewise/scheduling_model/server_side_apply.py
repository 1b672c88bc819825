"""The subset of server-side apply that nodewise uses: owned labels by key, and the fields of a status.

Source: KEP-555, and k8s.io/apimachinery v0.36 `pkg/util/managedfields`. Ownership is stored in managedFields, in the
API server's format.
"""

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]


def apply(before: Object, configuration: Object, manager: str) -> tuple[Object, dict[str, str]]:
    """Return the object after an apply, and its conflicts: label fields that others own, with their managers.

    Labels that the manager applied before and omits now are removed, unless another manager owns them too.
    """
    if "labels" not in configuration.get("metadata", {}):
        return _apply_status(before, configuration, manager), {}
    labels = dict(before["metadata"].get("labels") or {})
    wanted: Mapping[str, str] = configuration["metadata"]["labels"]
    owners = _label_owners(before)
    conflicts = _label_conflicts(labels, wanted, owners, manager)
    labels.update(wanted)
    for key, managers in owners.items():
        if key not in wanted and managers == {manager}:
            labels.pop(key, None)
    metadata = {**_metadata_with_uid(before, configuration), "labels": labels}
    metadata["managedFields"] = _managed_fields(before, manager, wanted)
    return {**before, "metadata": metadata}, conflicts


def _apply_status(before: Object, configuration: Object, manager: str) -> Object:
    """The object after an apply of its status, without fields that only this manager applied before and omits now."""
    wanted: Object = configuration.get("status", {})
    entries = before["metadata"].get("managedFields") or []
    others = [entry for entry in entries if entry["manager"] != manager]
    owned = {name for entry in entries for name in entry["fieldsV1"].get("f:status", {})}
    owned_by_others = {name for entry in others for name in entry["fieldsV1"].get("f:status", {})}
    omitted = {name.removeprefix("f:") for name in owned - owned_by_others} - wanted.keys()
    status = {key: value for key, value in before.get("status", {}).items() if key not in omitted} | wanted
    fields: Object = {"f:status": {f"f:{key}": {} for key in wanted}}
    entry = {"manager": manager, "operation": "Apply", "subresource": "status", "fieldsV1": fields}
    metadata = {**_metadata_with_uid(before, configuration), "managedFields": [*others, entry]}
    return {**before, "metadata": metadata, "status": status}


def _label_conflicts(
    labels: Mapping[str, str], wanted: Mapping[str, str], owners: Mapping[str, set[str]], manager: str
) -> dict[str, str]:
    """By field, the other managers of labels whose values would change."""
    conflicts: dict[str, str] = {}
    for key in [key for key, value in wanted.items() if labels.get(key, value) != value]:
        others = owners.get(key, set()) - {manager}
        if others or key not in owners:
            conflicts[f".metadata.labels.{key}"] = ", ".join(sorted(others)) or "another manager"
    return conflicts


def _metadata_with_uid(before: Object, configuration: Object) -> Object:
    """The existing metadata, with the uid of the request if it has one."""
    uid = configuration.get("metadata", {}).get("uid")
    return {**before["metadata"], **({"uid": uid} if uid else {})}


def _label_owners(item: Object) -> dict[str, set[str]]:
    owners: dict[str, set[str]] = {}
    for entry in item["metadata"].get("managedFields") or []:
        for name in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {}):
            owners.setdefault(name.removeprefix("f:"), set()).add(entry["manager"])
    return owners


def _managed_fields(before: Object, manager: str, wanted: Mapping[str, str]) -> list[Object]:
    others = [entry for entry in before["metadata"].get("managedFields") or [] if entry["manager"] != manager]
    if not wanted:
        return others
    fields: Object = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in wanted}}}
    return [*others, {"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsV1": fields}]
