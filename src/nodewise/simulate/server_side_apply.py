"""Server-side apply as far as nodewise uses it: labels key by key with their owners, and a status as a whole.

Source: KEP-555, and k8s.io/apimachinery v0.36 `pkg/util/managedfields`. Ownership is kept in managedFields, in the
form in which the API server gives it.
"""

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]


def applied(before: Object, configuration: Object, manager: str) -> tuple[Object, dict[str, str]]:
    """The object after an apply, and the label fields that another manager owns with another value, with its name.

    Labels that the manager applied before and leaves out now go, unless another manager owns them as well.
    """
    if "labels" not in configuration.get("metadata", {}):
        status = {**before.get("status", {}), **configuration.get("status", {})}
        return {**before, "metadata": _identified(before, configuration), "status": status}, {}
    labels = dict(before["metadata"].get("labels") or {})
    wanted: Mapping[str, str] = configuration["metadata"]["labels"]
    owners = _owners(before)
    clashes = _clashes(labels, wanted, owners, manager)
    labels.update(wanted)
    for key, managers in owners.items():
        if key not in wanted and managers == {manager}:
            labels.pop(key, None)
    metadata = {**_identified(before, configuration), "labels": labels}
    metadata["managedFields"] = _entries(before, manager, wanted)
    return {**before, "metadata": metadata}, clashes


def _clashes(
    labels: Mapping[str, str], wanted: Mapping[str, str], owners: Mapping[str, set[str]], manager: str
) -> dict[str, str]:
    """By field, the other managers of labels whose value would change."""
    clashes: dict[str, str] = {}
    for key in [key for key, value in wanted.items() if labels.get(key, value) != value]:
        others = owners.get(key, set()) - {manager}
        if others or key not in owners:
            clashes[f".metadata.labels.{key}"] = ", ".join(sorted(others)) or "somebody"
    return clashes


def _identified(before: Object, configuration: Object) -> Object:
    """The metadata as it was, with the uid that the request insists on."""
    uid = configuration.get("metadata", {}).get("uid")
    return {**before["metadata"], **({"uid": uid} if uid else {})}


def _owners(item: Object) -> dict[str, set[str]]:
    owners: dict[str, set[str]] = {}
    for entry in item["metadata"].get("managedFields") or []:
        for name in entry["fieldsV1"].get("f:metadata", {}).get("f:labels", {}):
            owners.setdefault(name.removeprefix("f:"), set()).add(entry["manager"])
    return owners


def _entries(before: Object, manager: str, wanted: Mapping[str, str]) -> list[Object]:
    others = [entry for entry in before["metadata"].get("managedFields") or [] if entry["manager"] != manager]
    if not wanted:
        return others
    fields: Object = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in wanted}}}
    return [*others, {"manager": manager, "operation": "Apply", "apiVersion": "v1", "fieldsV1": fields}]
