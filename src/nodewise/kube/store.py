"""The objects of one kind, as the API server last told of them. One writer, any number of readers, no locks.

A reader sees the objects of the last whole list with the changes since: a list that comes in by pages fills a
buffer beside, and takes the place of the old objects in one step. A `Store` cannot write; its `Writer` can.

A write of our own is answered with the object before the watch brings it. Who puts that answer in (`Writer.learn`) is
ahead of the watch for this one object: what the watch tells of it is older and counts for nothing, until it is not.
Versions of one kind are whole numbers that grow (KEP-5504).
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

Key = tuple[str, str]
"""Namespace and name; the namespace is empty for kinds that have none."""


class Metadata(Protocol):
    """What a store has to know of an object."""

    @property
    def name(self) -> str: ...

    @property
    def namespace(self) -> str: ...


class Named(Protocol):
    """An object of any kind."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T")


class Change(NamedTuple, Generic[T]):
    """What happened to an object: `old` is None for a new one, `new` is None for one that went.

    `replaced` stands alone and says that everything may be different: read the store again.
    """

    old: T | None = None
    new: T | None = None
    replaced: bool = False


Subscriber = Callable[[Change[T]], None]


class _Contents(Generic[T]):
    """What a store and its writer share."""

    def __init__(self) -> None:
        self.objects: dict[Key, T] = {}
        self.frozen: Mapping[Key, T] | None = None
        self.subscribers: list[Subscriber[T]] = []
        self.version = 0
        self.resource_version = ""
        self.synced = False

    def tell(self, change: Change[T]) -> None:
        self.frozen = None
        self.version += 1
        for subscriber in tuple(self.subscribers):
            subscriber(change)


class Store(Generic[T]):
    """What readers hold."""

    def __init__(self, contents: _Contents[T]) -> None:
        self._contents = contents

    @property
    def version(self) -> int:
        """Grows with every change: equal versions mean equal contents."""
        return self._contents.version

    @property
    def resource_version(self) -> str:
        """The API server's version of the newest that was told, whether or not it changed anything here.

        All that happened until then is in the contents. Empty before the first list, and for objects of files.
        """
        return self._contents.resource_version

    @property
    def synced(self) -> bool:
        """Whether a whole list has been seen."""
        return self._contents.synced

    def get(self, namespace: str, name: str) -> T | None:
        return self._contents.objects.get((namespace, name))

    def values(self) -> list[T]:
        """All objects, in the order in which they were first told of; a list of the reader's own."""
        return list(self._contents.objects.values())

    def snapshot(self) -> Mapping[Key, T]:
        """All objects by namespace and name. It stays as it is; made once a version, then shared."""
        if self._contents.frozen is None:
            self._contents.frozen = MappingProxyType(dict(self._contents.objects))
        return self._contents.frozen

    def __len__(self) -> int:
        return len(self._contents.objects)

    def subscribe(self, callback: Subscriber[T]) -> Callable[[], None]:
        """Have every later change told, in order and after it is in the store. Call the result to end it.

        The callback runs within the writer's step: it notes what to do, and does it elsewhere.
        """
        self._contents.subscribers.append(callback)
        return lambda: self._contents.subscribers.remove(callback)


N = TypeVar("N", bound=Named)


class Writer(Generic[N]):
    """The one hand that changes a store. Who makes a store's contents holds it, and gives away `store`."""

    def __init__(self) -> None:
        self._contents: _Contents[N] = _Contents()
        self._buffer: dict[Key, N] = {}
        self._ahead: dict[Key, int] = {}
        """What was learnt and the watch has not reached, by version."""
        self.store: Store[N] = Store(self._contents)

    def reach(self, version: str) -> None:
        """The server told of everything until `version`; an empty one says nothing."""
        if not version:
            return
        self._contents.resource_version = version
        if self._ahead and version.isdecimal():
            reached = int(version)
            self._ahead = {key: at for key, at in self._ahead.items() if at > reached}

    def learn(self, new: N, version: str) -> N | None:
        """An object as the server answered a write of ours. The answer is what stands now, which may be newer."""
        key, reached = _key(new), self._contents.resource_version
        if not version.isdecimal():
            return self._contents.objects.get(key)
        at = int(version)
        known = self._ahead.get(key, int(reached) if reached.isdecimal() else -1)
        if at > known:
            self._ahead[key] = at
            self._put(key, new)
        return self._contents.objects.get(key)

    def apply(self, new: N, version: str = "") -> None:
        """An object that is new or changed, at the version that the change made."""
        self.reach(version)
        if _key(new) not in self._ahead:
            self._put(_key(new), new)

    def _put(self, key: Key, new: N) -> None:
        old = self._contents.objects.get(key)
        if old is not None and old == new:
            return  # of what we read nothing changed; a kubelet writes its node's status every few minutes
        self._contents.objects[key] = new
        self._contents.tell(Change(old, new))

    def remove(self, key: Key, version: str = "") -> None:
        """An object that went, likewise; one that is not held is nothing to tell of."""
        self.reach(version)
        if key in self._ahead:
            return
        old = self._contents.objects.pop(key, None)
        if old is not None:
            self._contents.tell(Change(old, None))

    def restart(self) -> None:
        """Begin a new list: what was buffered of an unfinished one is forgotten."""
        self._buffer = {}

    def add(self, item: N) -> None:
        """An object of the list that is being read; nobody sees it yet.

        One that has not changed stays the object that it was, so a relist needs the memory of one list, not two.
        """
        key = _key(item)
        before = self._contents.objects.get(key)
        self._buffer[key] = before if before is not None and before == item else item

    def swap(self, version: str = "") -> dict[Key, N]:
        """The list, made at `version`, is whole: it becomes the contents, in one step.

        The answer are the contents of before: to let go of 50,000 pods at once takes tens of milliseconds, so
        who minds empties it bit by bit.
        """
        before = self._contents.objects
        self._catch_up(version)
        self._buffer.update((key, before[key]) for key in self._ahead)
        self._contents.objects, self._buffer = self._buffer, {}
        self._contents.synced = True
        self._contents.tell(Change(replaced=True))
        return before

    def _catch_up(self, version: str) -> None:
        """Go on from a list. A server that was put back to an older state knows nothing of what we learnt."""
        reached = self._contents.resource_version
        are_numbers = version.isdecimal() and reached.isdecimal()
        if are_numbers and int(version) < int(reached):
            self._ahead = {}
        self.reach(version)

    def replace(self, items: Iterable[N]) -> None:
        """Set the whole contents at once, as from files."""
        self.restart()
        for item in items:
            self.add(item)
        self.swap()


def _key(item: Named) -> Key:
    return item.metadata.namespace, item.metadata.name
