"""Decodes objects from JSON as types with the declared fields only, and writes them to a store.

An object that cannot be decoded counts as absent; it is logged and counted. So the contents of the store depend only
on the server's objects, not on the order of its events.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from nodewise.errors import UNREADABLE
from nodewise.kube import list_watch
from nodewise.kube.store import Key, KubernetesObject, Store, StoreWriter
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

T = TypeVar("T", bound=KubernetesObject)

_MOST_NAMED: Final = 100
"""Number of unreadable objects that are logged by name; others are only counted."""


class ObjectDecoder(Generic[T]):
    """Decodes objects into a store of `kind`. An object for which `keep` returns None counts as absent."""

    def __init__(
        self,
        kind: str,
        type_: type[T],
        metrics_registry: MetricsRegistry,
        keep: Callable[[T], T | None] | None = None,
    ) -> None:
        self._kind = kind
        self._keep = keep
        self._decoder = msgspec.json.Decoder(type_)
        self._raw = tuple(_find_raw_json_fields(type_))
        self._metrics_registry = metrics_registry
        self._writer: StoreWriter[T] = StoreWriter()
        self._named: set[Key] = set()

    @property
    def store(self) -> Store[T]:
        return self._writer.store

    def restart(self) -> None:
        """Start a list."""
        self._writer.restart()

    def add(self, data: msgspec.Raw) -> None:
        """Add an object of the list."""
        item = self._decode_and_filter(data)
        if item is not None:
            self._writer.add(item)

    def finish(self, version: str = "") -> None:
        """Apply the complete list."""
        self._writer.finish(version)
        self._update_gauge()

    def apply_response(self, data: bytes) -> T | None:
        """Apply the server's response to our write before the watch delivers it (`StoreWriter.apply_response`)."""
        raw = msgspec.Raw(data)
        item = self._decode_and_filter(raw)
        return (
            None
            if item is None
            else self._writer.apply_response(item, list_watch.resource_version_of_object(raw))
        )

    def apply(self, watch_event: list_watch.WatchEvent) -> None:
        """Apply an event of the watch."""
        if watch_event.kind == "bookmark":
            self._writer.advance_resource_version(watch_event.version)
            return
        item = self._decode_and_filter(watch_event.object) if watch_event.kind == "put" else None
        if item is None:
            self._writer.remove(watch_event.key, watch_event.version)
        else:
            self._writer.apply(item, watch_event.version)
        self._update_gauge()

    def _update_gauge(self) -> None:
        self._metrics_registry.set("kube_objects", len(self.store), kind=self._kind)

    def _decode_and_filter(self, data: msgspec.Raw) -> T | None:
        item = self._decode(data)
        return item if item is None or self._keep is None else self._keep(item)

    def _decode(self, data: msgspec.Raw) -> T | None:
        try:
            return self._detach_raw_fields(self._decoder.decode(data))
        except UNREADABLE as error:
            self._report_unreadable_object(list_watch.object_key(data), str(error))
            return None

    def _detach_raw_fields(self, item: T) -> T:
        """The object with copies of its raw fields: slices would keep the whole page in memory."""
        for path, name in self._raw:
            part: Any = item
            for step in path:
                part = getattr(part, step)
            if part is not None:
                msgspec.structs.force_setattr(part, name, getattr(part, name).copy())
        return item

    def _report_unreadable_object(self, key: Key, error: str) -> None:
        self._metrics_registry.count("kube_unreadable_total", kind=self._kind)
        if key not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(key)
            namespace, name = key
            logs.emit("object_unreadable", kind=self._kind, namespace=namespace, name=name, error=error)


def _find_raw_json_fields(type_: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The fields of a struct with raw JSON: the path to the struct that has the field, and the field's name."""
    for field in msgspec.structs.fields(type_):
        if field.type is msgspec.Raw:
            yield path, field.name
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _find_raw_json_fields(field.type, (*path, field.name))
