"""Finds the lines of fields of objects in files, for messages about them."""

from pathlib import Path
from typing import Any

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput
from nodewise.kube import object_files, yaml_json_documents


class ObjectLineFinder:
    """Finds the lines of fields in files, which it reads again for that."""

    def __init__(self, stdin: bytes = b"") -> None:
        self._stdin = stdin
        self._documents: dict[str, list[Any]] = {}

    def line(self, location: object_files.ObjectLocation, field: str) -> int:
        """The line of an object's field; 0 if it is not known."""
        source, document, items = location
        if source not in self._documents:
            text = self._stdin if source == object_files.STDIN else Path(source).read_bytes()
            try:
                self._documents[source] = safe_yaml_loader.compose_all(text, source)
            except BadInput:  # several JSON documents in a row, for example, which are no YAML together
                self._documents[source] = []
        if document > len(self._documents[source]):
            return 0
        path = ".".join([*(f"items[{position}]" for position in items), field])
        return yaml_json_documents.line_of_field(self._documents[source][document - 1], path)
