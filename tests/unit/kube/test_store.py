from typing import Any

import pytest

from nodewise.kube import struct_type_merge
from nodewise.kube.store import Change, ChangeLog, StoreWriter

Thing = struct_type_merge.merge("Thing")


def thing(name: str, uid: str = "1") -> Any:
    return Thing(metadata=struct_type_merge.ObjectMeta(name=name, namespace="n", uid=uid))


def test_an_empty_store_is_not_synced() -> None:
    store = StoreWriter[Any]().store
    assert (len(store), store.synced, store.get("n", "a")) == (0, False, None)


def test_a_list_is_seen_when_it_is_whole_and_not_before() -> None:
    writer = StoreWriter[Any]()
    writer.replace([thing("old")])
    writer.restart()
    writer.add(thing("new"))
    assert list(writer.store.snapshot()) == [("n", "old")]
    writer.finish()
    assert list(writer.store.snapshot()) == [("n", "new")]


def test_an_unfinished_list_leaves_nothing_behind() -> None:
    writer = StoreWriter[Any]()
    writer.restart()
    writer.add(thing("half"))
    writer.restart()
    writer.add(thing("whole"))
    writer.finish()
    assert list(writer.store.snapshot()) == [("n", "whole")]


def test_a_relist_keeps_the_objects_that_have_not_changed() -> None:
    writer = StoreWriter[Any]()
    writer.replace([thing("same"), thing("other")])
    same = writer.store.get("n", "same")
    writer.replace([thing("same"), thing("other", uid="2")])
    assert writer.store.get("n", "same") is same
    assert writer.store.get("n", "other") == thing("other", uid="2")


def test_subscribers_see_changes_in_the_store() -> None:
    writer = StoreWriter[Any]()
    reported: list[tuple[Any, list[Any]]] = []
    writer.store.subscribe(lambda changes: reported.append((changes, writer.store.values())))
    a, b = thing("a", "1"), thing("a", "2")
    writer.apply(a)
    writer.apply(b)
    writer.remove(("n", "a"))
    writer.remove(("n", "a"))
    writer.finish()
    key = ("n", "a")
    assert reported == [
        ({key: Change(None, a)}, [a]),
        ({key: Change(a, b)}, [b]),
        ({key: Change(b, None)}, []),
        (None, []),
    ]


def test_relist_is_reported_as_its_changes() -> None:
    writer = StoreWriter[Any]()
    writer.replace([thing("same"), thing("other"), thing("gone")])
    other, gone = writer.store.get("n", "other"), writer.store.get("n", "gone")
    reported: list[Any] = []
    writer.store.subscribe(reported.append)
    new = [thing("new"), thing("other", uid="2"), thing("same")]
    writer.replace(new)
    assert reported == [
        {
            ("n", "gone"): Change(gone, None),
            ("n", "other"): Change(other, new[1]),
            ("n", "new"): Change(None, new[0]),
        }
    ]
    assert [key for _, key in writer.store.snapshot()] == ["same", "other", "new"], "the order of before"


def test_a_subscription_can_end() -> None:
    writer = StoreWriter[Any]()
    reported: list[Any] = []
    end = writer.store.subscribe(reported.append)
    writer.apply(thing("a"))
    end()
    writer.apply(thing("b"))
    assert len(reported) == 1


def test_a_snapshot_stays_and_is_made_once() -> None:
    writer = StoreWriter[Any]()
    writer.apply(thing("a"))
    snapshot = writer.store.snapshot()
    assert writer.store.snapshot() is snapshot
    writer.apply(thing("b"))
    assert list(snapshot) == [("n", "a")]
    assert list(writer.store.snapshot()) == [("n", "a"), ("n", "b")]
    with pytest.raises(TypeError):
        snapshot["n", "c"] = thing("c")  # type: ignore[index]


def test_store_has_the_resource_version_of_its_content() -> None:
    writer = StoreWriter[Any]()
    seen: list[str] = []
    writer.store.subscribe(lambda _: seen.append(writer.store.resource_version))
    assert writer.store.resource_version == ""
    writer.finish("10")
    writer.apply(thing("a"), "11")
    writer.apply(thing("a"), "12")
    assert writer.store.resource_version == "12"
    writer.remove(("n", "a"), "13")
    writer.advance_resource_version("20")
    writer.advance_resource_version("")
    assert writer.store.resource_version == "20"
    assert seen == ["10", "11", "13"]


class TestApplyResponse:
    def test_an_answer_counts_before_the_watch_brings_it(self) -> None:
        writer = StoreWriter[Any]()
        writer.finish("10")
        assert writer.apply_response(thing("a", "new"), "15") == thing("a", "new")
        assert writer.store.get("n", "a") == thing("a", "new")
        assert writer.store.resource_version == "10"

    def test_older_watch_event_after_a_response_is_ignored(self) -> None:
        writer = StoreWriter[Any]()
        writer.finish("10")
        writer.apply_response(thing("a", "new"), "15")
        writer.apply(thing("a", "old"), "11")
        writer.remove(("n", "a"), "12")
        assert writer.store.get("n", "a") == thing("a", "new")
        writer.apply(thing("a", "newer"), "16")
        assert writer.store.get("n", "a") == thing("a", "newer")

    def test_a_deletion_that_is_newer_counts(self) -> None:
        writer = StoreWriter[Any]()
        writer.finish("10")
        writer.apply_response(thing("a", "new"), "15")
        writer.remove(("n", "a"), "16")
        assert writer.store.get("n", "a") is None

    @pytest.mark.parametrize("version", ["9", "12", "", "x"])
    def test_an_answer_that_is_no_newer_than_the_watch_is_not_taken(self, version: str) -> None:
        writer = StoreWriter[Any]()
        writer.finish("10")
        writer.apply(thing("a", "seen"), "12")
        assert writer.apply_response(thing("a", "late"), version) == thing("a", "seen")

    def test_a_list_that_was_made_before_keeps_it(self) -> None:
        writer = StoreWriter[Any]()
        writer.finish("10")
        writer.restart()
        writer.add(thing("a", "old"))
        writer.apply_response(thing("a", "new"), "15")
        writer.apply_response(thing("b", "new"), "16")
        writer.finish("15")
        assert writer.store.values() == [thing("a", "old"), thing("b", "new")]

    def test_a_server_that_was_put_back_knows_nothing_of_it(self) -> None:
        writer = StoreWriter[Any]()
        writer.finish("10")
        writer.apply_response(thing("a", "new"), "15")
        writer.restart()
        writer.finish("7")
        assert writer.store.values() == []
        writer.apply(thing("a", "again"), "8")
        assert writer.store.values() == [thing("a", "again")]


class TestChangeLog:
    KEY = ("n", "a")

    def taken(self, *changes: tuple[Any, Any]) -> Any:
        log = ChangeLog()
        log.take()
        for old, new in changes:
            log.add("things", {self.KEY: Change(old, new)})
        taken = log.take()
        assert log.take() == {}
        return (taken or {}).get("things", {}).get(self.KEY)

    def test_everything_is_new_at_first(self) -> None:
        log = ChangeLog()
        log.add("things", {self.KEY: Change(None, thing("a"))})
        assert log.take() is None
        assert log.take() == {}

    def test_changes_of_an_object_are_merged(self) -> None:
        a, b, c = (thing("a", uid) for uid in "123")
        assert self.taken((None, a), (a, b)) == Change(None, b)
        assert self.taken((a, b), (b, c)) == Change(a, c)
        assert self.taken((a, b), (b, None)) == Change(a, None)
        assert self.taken((a, None), (None, b)) == Change(a, b)

    def test_equal_object_is_no_change(self) -> None:
        a, b = thing("a"), thing("a", "2")
        assert self.taken((None, a), (a, None)) is None
        assert self.taken((a, b), (b, a)) is None
        assert self.taken((a, b), (b, a), (a, b)) == Change(a, b)
