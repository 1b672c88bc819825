"""Decodes objects from JSON as types with the declared fields and keys only, and writes them to a store.

An object that cannot be decoded counts as absent; it is logged and counted. So the contents of the store depend only
on the server's objects, not on the order of its events.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from nodewise.base.errors import UNREADABLE
from nodewise.kube import list_watch
from nodewise.kube.store import Key, KubernetesObject, Store, StoreWriter
from nodewise.kube.struct_type_merge import ReadKeys, split_read_keys
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

T = TypeVar("T", bound=KubernetesObject)

_MOST_NAMED: Final = 100
"""Number of unreadable objects that are logged by name; others are only counted."""


class ObjectDecoder(Generic[T]):
    """Decodes objects into a store of `kind`.

    An object for which `keep` returns None counts as absent. One for which it raises ValueError does, too, and is
    logged and counted like one that cannot be decoded.
    """

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
        self._fields = tuple(_find_fields_to_reduce(type_))
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
        try:
            item = self._reduce_fields(self._decoder.decode(data))
            return item if self._keep is None else self._keep(item)
        except UNREADABLE as error:
            self._report_unreadable_object(list_watch.object_key(data), str(error))
            return None

    def _reduce_fields(self, item: T) -> T:
        """The object without what nobody reads of raw fields and dicts.

        Raw fields are copied: slices would keep the whole page in memory.
        """
        for path, name, read_keys in self._fields:
            part: Any = item
            for step in path:
                part = getattr(part, step)
            if part is None or (value := getattr(part, name)) is None:
                continue
            if read_keys is None:
                msgspec.structs.force_setattr(part, name, value.copy())
            else:
                _drop_unread_entries(part, name, value, read_keys)
        return item

    def _report_unreadable_object(self, key: Key, error: str) -> None:
        self._metrics_registry.count("kube_unreadable_total", kind=self._kind)
        if key not in self._named and len(self._named) < _MOST_NAMED:
            self._named.add(key)
            namespace, name = key
            logs.emit("object_unreadable", kind=self._kind, namespace=namespace, name=name, error=error)


class _ReducedField(NamedTuple):
    """A field of which not everything is kept."""

    path: tuple[str, ...]
    """The fields that lead to the struct with this field."""
    name: str
    read_keys: ReadKeys | None
    """The keys to keep of a dict; None for raw JSON."""


def _find_fields_to_reduce(type_: Any, path: tuple[str, ...] = ()) -> Iterator[_ReducedField]:
    """The fields of a struct, and of the structs in it, with raw JSON or `ReadKeys`."""
    for field in msgspec.structs.fields(type_):
        _, read_keys = split_read_keys(field.type)
        if field.type is msgspec.Raw or read_keys is not None:
            yield _ReducedField(path, field.name, read_keys)
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _find_fields_to_reduce(field.type, (*path, field.name))


def _drop_unread_entries(part: Any, name: str, entries: dict[str, str], read_keys: ReadKeys) -> None:
    """Keep the read entries of a dict, whose keys are then the same objects in all structs."""
    kept = {key: entries[key] for key in read_keys.keys if key in entries}
    if read_keys.prefixes:
        kept |= {key: value for key, value in entries.items() if key.startswith(read_keys.prefixes)}
    if len(kept) < len(entries) and read_keys.bytes_field:
        size_bytes = sum(len(key.encode()) + len(value.encode()) for key, value in entries.items())
        msgspec.structs.force_setattr(part, read_keys.bytes_field, size_bytes)
    msgspec.structs.force_setattr(part, name, kept)
