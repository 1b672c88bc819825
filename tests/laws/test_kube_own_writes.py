"""Responses to own writes are applied before the watch delivers them, with a watch that lags and relists."""

from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from nodewise.kube import struct_type_merge
from nodewise.kube.store import Changes, Key, StoreWriter

Thing = struct_type_merge.merge("Thing")
NAMES = "abc"


class WatchedChange(NamedTuple):
    """A change of an object. Its version is its position in the history, from 1."""

    name: str
    is_there: bool


HISTORIES = st.lists(st.builds(WatchedChange, st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=15)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("watch")),
        st.tuples(st.just("relist"), st.integers(0, 15), st.integers(0, 15), st.integers(0, 3)),
        st.tuples(st.just("learn"), st.integers(1, 15)),
        st.tuples(st.just("bookmark")),
    ),
    max_size=40,
)


class WatchReader:
    def __init__(self, history: list[WatchedChange]) -> None:
        self.history = history
        self.at = 0
        self.writer: StoreWriter[Any] = StoreWriter()
        self.writer.finish("0")
        self.learnt = dict.fromkeys(NAMES, 0)

    def thing(self, version: int) -> Any:
        metadata = struct_type_merge.ObjectMeta(name=self.history[version - 1].name, uid=str(version))
        return Thing(metadata=metadata)

    def newest(self, name: str, version: int) -> Any:
        """The object with this name at a version of the server, or None."""
        places = [at for at, change in enumerate(self.history[:version], 1) if change.name == name]
        return self.thing(places[-1]) if places and self.history[places[-1] - 1].is_there else None

    def watch(self) -> None:
        if self.at == len(self.history):
            return
        self.at += 1
        name, is_there = self.history[self.at - 1]
        if is_there:
            self.writer.apply(self.thing(self.at), str(self.at))
        else:
            self.writer.remove(("", name), str(self.at))

    def bookmark(self) -> None:
        self.writer.advance_resource_version(str(self.at))

    def relist(self, ahead: int, learnt: int, place: int) -> None:
        """Receive a list page by page, and the response to a write between two pages."""
        before, self.at = self.at, min(self.at + ahead, len(self.history))
        self.writer.restart()
        for number, name in enumerate((*NAMES, "")):
            if number == place and learnt > 0:
                at, self.at = self.at, before
                self.learn(learnt)
                self.at = at
            item = self.newest(name, self.at) if name else None
            if item is not None:
                self.writer.add(item)
        self.writer.finish(str(self.at))

    def learn(self, version: int) -> None:
        if version > len(self.history) or not self.history[version - 1].is_there:
            return
        name = self.history[version - 1].name
        self.learnt[name] = max(self.learnt[name], version)
        stands = self.writer.apply_response(self.thing(version), str(version))
        assert stands == self.expected()[name]

    def expected(self) -> dict[str, Any]:
        return {name: self.newest(name, max(self.at, self.learnt[name])) for name in NAMES}

    def held(self) -> dict[str, Any]:
        return {name: self.writer.store.get("", name) for name in NAMES}


@given(HISTORIES, STEPS)
def test_every_object_has_the_newest_received_version(
    history: list[WatchedChange], steps: list[tuple[Any, ...]]
) -> None:
    reader = WatchReader(history)
    objects: dict[Key, Any] = {}

    def follow(changes: Changes[Any] | None) -> None:
        if changes is None:
            objects.update(reader.writer.store.snapshot())
            return
        for key, (old, new) in changes.items():
            assert objects.get(key) is old
            if new is None:
                del objects[key]
            else:
                objects[key] = new

    reader.writer.store.subscribe(follow)
    for kind, *rest in steps:
        getattr(reader, kind)(*rest)
        assert reader.held() == reader.expected()
        assert objects == reader.writer.store.snapshot()
    while reader.at < len(history):
        reader.watch()
    assert reader.held() == {name: reader.newest(name, len(history)) for name in NAMES}
