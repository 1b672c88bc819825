from typing import Any

import pytest

from nodewise.kube import fields
from nodewise.kube.store import Change, Writer

Thing = fields.merge("Thing")


def thing(name: str, uid: str = "1") -> Any:
    return Thing(metadata=fields.ObjectMeta(name=name, namespace="n", uid=uid))


def test_an_empty_store_is_not_synced() -> None:
    store = Writer[Any]().store
    assert (len(store), store.synced, store.version, store.get("n", "a")) == (0, False, 0, None)


def test_a_list_is_seen_when_it_is_whole_and_not_before() -> None:
    writer = Writer[Any]()
    writer.replace([thing("old")])
    writer.restart()
    writer.add(thing("new"))
    assert list(writer.store.snapshot()) == [("n", "old")]
    writer.swap()
    assert list(writer.store.snapshot()) == [("n", "new")]


def test_an_unfinished_list_leaves_nothing_behind() -> None:
    writer = Writer[Any]()
    writer.restart()
    writer.add(thing("half"))
    writer.restart()
    writer.add(thing("whole"))
    writer.swap()
    assert list(writer.store.snapshot()) == [("n", "whole")]


def test_a_relist_keeps_the_objects_that_have_not_changed() -> None:
    writer = Writer[Any]()
    writer.replace([thing("same"), thing("other")])
    same = writer.store.get("n", "same")
    writer.replace([thing("same"), thing("other", uid="2")])
    assert writer.store.get("n", "same") is same
    assert writer.store.get("n", "other") == thing("other", uid="2")


def test_changes_are_told_after_they_are_in_the_store() -> None:
    writer = Writer[Any]()
    told: list[tuple[Change[Any], list[Any]]] = []
    writer.store.subscribe(lambda change: told.append((change, writer.store.values())))
    a, b = thing("a", "1"), thing("a", "2")
    writer.apply(a)
    writer.apply(b)
    writer.remove(("n", "a"))
    writer.remove(("n", "a"))
    writer.swap()
    assert told == [
        (Change(None, a), [a]),
        (Change(a, b), [b]),
        (Change(b, None), []),
        (Change(replaced=True), []),
    ]


def test_a_subscription_can_end() -> None:
    writer = Writer[Any]()
    told: list[Change[Any]] = []
    end = writer.store.subscribe(told.append)
    writer.apply(thing("a"))
    end()
    writer.apply(thing("b"))
    assert len(told) == 1


def test_versions_grow_with_changes_only() -> None:
    writer = Writer[Any]()
    writer.apply(thing("a"))
    before = writer.store.version
    writer.remove(("n", "nobody"))
    writer.add(thing("buffered"))
    assert writer.store.version == before
    writer.swap()
    assert writer.store.version > before


def test_a_snapshot_stays_and_is_made_once() -> None:
    writer = Writer[Any]()
    writer.apply(thing("a"))
    snapshot = writer.store.snapshot()
    assert writer.store.snapshot() is snapshot
    writer.apply(thing("b"))
    assert list(snapshot) == [("n", "a")]
    assert list(writer.store.snapshot()) == [("n", "a"), ("n", "b")]
    with pytest.raises(TypeError):
        snapshot["n", "c"] = thing("c")  # type: ignore[index]
