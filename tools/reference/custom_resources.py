"""The page of custom resources: all fields of the definitions in `deploy/crds`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

import yaml

from tools.reference.markdown_formatting import MADE, code, table

Row = tuple[str, str, str, str]
"""Field, type, what is allowed, and meaning."""
FOLDER: Final = Path(__file__).parents[2] / "deploy/crds"
_BOUNDS: Final = {
    "enum": "one of",
    "pattern": "like",
    "format": "format",
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "characters at least",
    "maxLength": "characters at most",
    "minItems": "entries at least",
    "maxItems": "entries at most",
    "maxProperties": "keys at most",
    "default": "default",
}


def definitions_page() -> str:
    """All custom resources with all fields."""
    return "".join(
        [
            MADE,
            "# Custom resources\n\n",
            "This page lists the fields of the definitions in `deploy/crds`, which the API server validates.\n",
            "`[]` marks the elements of a list, `.*` the values of a map. `nodewise policy lint` reports more\n",
            "problems than the API server: see [its checks](commands/policy.md).\n",
            "A field that has the same form in several places is listed in the first one only: in a\n",
            "ClusterPlacementPolicy and not in a PlacementPolicy; in `podSelector` and not in other selectors; in\n",
            "`avoid` and not in `prefer`, `nodeLabels` or `deviceTaints`; in a rule and not in its parts in `all`.\n",
            *_kinds(),
        ]
    )


def _kinds() -> Iterator[str]:
    seen: set[Row] = set()
    for path in sorted(FOLDER.glob("*.yaml")):
        for document in _documents(path):
            is_policy = document["spec"]["names"]["kind"].endswith("PlacementPolicy")
            yield _kind(path, document, seen if is_policy else frozenset())
            if is_policy:
                seen.update(row for version in document["spec"]["versions"] for row in _rows(version))


def _documents(path: Path) -> list[Mapping[str, Any]]:
    return [document for document in yaml.load_all(path.read_text(), yaml.CSafeLoader) if document]


def _kind(path: Path, definition: Mapping[str, Any], seen: AbstractSet[Row]) -> str:
    spec = definition["spec"]
    names = spec["names"]
    short = ", ".join(code(name) for name in names.get("shortNames", ()))
    parts = [
        f"\n## {names['kind']}\n\n",
        f"`{definition['metadata']['name']}`, {spec['scope'].lower()}",
        f"; short {short}" if short else "",
        f". Defined in [`{path.name}`](../../deploy/crds/{path.name}).\n",
    ]
    return "".join([*parts, *(_version(version, seen) for version in spec["versions"])])


def _rows(version: Mapping[str, Any]) -> list[Row]:
    """All fields of a version, without those that equal the field of the same name in the place listed first."""
    rows = list(_fields(version["schema"]["openAPIV3Schema"], ""))
    every = set(rows)
    return [
        row for row in rows if (first := _first_place(row[0])) == row[0] or (first, *row[1:]) not in every
    ]


def _first_place(field: str) -> str:
    """The field of this name in the first selector, or in the rules of `avoid`."""
    field = field.replace(".all[]", "")
    field = re.sub(r"(?<=^`spec\.)(?:canary\.podSelector|namespaceSelector)(?=\.)", "podSelector", field)
    return re.sub(r"(?<=^`spec\.)(?:prefer|nodeLabels|deviceTaints)(?=\[\]\.)", "avoid", field)


def _version(version: Mapping[str, Any], seen: AbstractSet[Row]) -> str:
    notes = [
        "stored" if version["storage"] else "not stored",
        *([] if version["served"] else ["not served"]),
        *(["status is a subresource"] if "status" in version.get("subresources", {}) else []),
    ]
    columns = [
        (column["name"], code(column["jsonPath"])) for column in version.get("additionalPrinterColumns", ())
    ]
    parts = [
        f"\nVersion `{version['name']}`: {', '.join(notes)}.\n\n",
        _without_empty(
            ("field", "type", "allowed", "meaning"), [row for row in _rows(version) if row not in seen]
        ),
    ]
    if columns:
        parts.append("\n" + table(("column of `kubectl get`", "from"), columns))
    return "".join(parts)


def _without_empty(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without its empty columns."""
    kept = [at for at in range(len(head)) if any(row[at] for row in rows)]
    return table([head[at] for at in kept], ([row[at] for at in kept] for row in rows))


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[Row]:
    """Yield all fields below a schema, in the order of the definition."""
    needed = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        if not path and name in {"apiVersion", "kind", "metadata"}:
            continue
        yield from _field(field, f"{path}.{name}" if path else name, is_needed=name in needed)
    inner = schema.get("additionalProperties")
    if isinstance(inner, dict):
        yield from _field(inner, f"{path}.*", is_needed=False)


def _field(field: Mapping[str, Any], path: str, *, is_needed: bool) -> Iterator[Row]:
    allowed = "; ".join(["needed"] * is_needed + list(_allowed(field)))
    yield code(path), _type(field), allowed, " ".join(field.get("description", "").split())
    if field.get("type") == "array":
        items = field["items"]
        yield from _fields(items, f"{path}[]")
    else:
        yield from _fields(field, path)


def _type(field: Mapping[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}s"
    if isinstance(field.get("additionalProperties"), dict):
        return f"map of {_type(field['additionalProperties'])}s"
    return str(field.get("type", "anything"))


def _allowed(field: Mapping[str, Any]) -> Iterator[str]:
    inner = field["items"] if field.get("type") == "array" else {}
    for bounded in (field, inner):
        for key, words in _BOUNDS.items():
            if key in bounded:
                value = bounded[key]
                shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                yield f"{words} {code(shown)}"
        for rule in bounded.get("x-kubernetes-validations", ()):
            yield rule.get("message") or code(rule["rule"])
    if field.get("nullable"):
        yield "null"
    if field.get("x-kubernetes-preserve-unknown-fields"):
        yield "other fields are kept"
