"""Tests of every `Api`, the fake one and the real one. Subclasses of the suites define the fixtures.

`api` is the API server, `space` an empty namespace, and `watch_s` how long to wait for the event of a watch.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from nodewise.base.clock import SystemClock
from nodewise.base.errors import BadInput, Conflict
from nodewise.kube import struct_type_merge
from nodewise.kube.api_server_interface import Api, Expired, NotFound
from nodewise.kube.event_recorder import EventRecorder, EventReporter, ObjectReference
from nodewise.kube.leader_election import Elector, LeaseAccess, LeaseLock, LeaseTimings
from nodewise.kube.reflector import Reflector, ReflectorTarget
from nodewise.kube.resource_kinds import EVENTS, LEASES, PODS
from nodewise.kube.store import Changes, Key
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import CONFIGMAPS


class DataFields(msgspec.Struct, frozen=True):
    data: dict[str, str] = {}


CONFIGMAP = struct_type_merge.merge("ConfigMap", DataFields)


def item(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def unbound(name: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod without a node."""
    spec = {"containers": [{"name": "c", "image": "none"}], "automountServiceAccountToken": False}
    return {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}


def bound(pod: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    """The path and the body of a Binding of this version of a pod to the node `n1`."""
    meta = pod["metadata"]
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    named = {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")} | more
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": named, "target": target}
    return PODS.path(meta["namespace"], meta["name"], "binding"), body


def decode(body: bytes) -> Any:
    return msgspec.json.decode(body)


PATIENCE_S = 60.0


async def eventually(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not what():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def run_in_background(work: Awaitable[None]) -> AsyncIterator[None]:
    """Run a task until the block ends."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class ApiSuite:
    """Tests of reads, writes and watches."""

    async def test_created_object_can_be_read(self, api: Api, space: str) -> None:
        made = decode(await api.create(CONFIGMAPS.path(space), item("a", k="v")))
        configmap = decode(await api.get(CONFIGMAPS.path(space, "a")))
        assert configmap["data"] == {"k": "v"}
        assert configmap["metadata"]["uid"] == made["metadata"]["uid"]
        assert configmap["metadata"]["namespace"] == space

    async def test_a_list_keeps_to_its_selector(self, api: Api, space: str) -> None:
        for name in "abc":
            await api.create(CONFIGMAPS.path(space), item(name))
        selector = {"fieldSelector": "metadata.name!=b,metadata.name!=c,metadata.name!=kube-root-ca.crt"}
        page = decode(await api.get(CONFIGMAPS.path(space), selector))
        assert [item["metadata"]["name"] for item in page["items"]] == ["a"]

    async def test_another_list_leaves_the_pages_of_this_one_alone(self, api: Api, space: str) -> None:
        for name in "ab":
            await api.create(CONFIGMAPS.path(space), item(name))
        page = {"limit": "1", "fieldSelector": "metadata.name!=kube-root-ca.crt"}
        first = decode(await api.get(CONFIGMAPS.path(space), page))
        await api.get(LEASES.path(space), {"limit": "1"})
        rest = decode(
            await api.get(CONFIGMAPS.path(space), {**page, "continue": first["metadata"]["continue"]})
        )
        assert [item["metadata"]["name"] for item in [*first["items"], *rest["items"]]] == ["a", "b"]

    async def test_a_list_by_another_selector_leaves_the_pages_of_this_one_alone(
        self, api: Api, space: str
    ) -> None:
        for name in "ab":
            await api.create(CONFIGMAPS.path(space), item(name))
        page = {"limit": "1", "fieldSelector": "metadata.name!=kube-root-ca.crt"}
        first = decode(await api.get(CONFIGMAPS.path(space), page))
        await api.get(CONFIGMAPS.path(space), {"limit": "1", "fieldSelector": "metadata.name=a"})
        token = first["metadata"]["continue"]
        rest = decode(await api.get(CONFIGMAPS.path(space), {**page, "continue": token}))
        assert [item["metadata"]["name"] for item in [*first["items"], *rest["items"]]] == ["a", "b"]

    async def test_creating_twice_is_a_conflict(self, api: Api, space: str) -> None:
        await api.create(CONFIGMAPS.path(space), item("a"))
        with pytest.raises(Conflict, match='"a" already exists'):
            await api.create(CONFIGMAPS.path(space), item("a"))

    async def test_a_body_that_is_no_json_is_bad_input(self, api: Api, space: str) -> None:
        with pytest.raises(BadInput):
            await api.create(CONFIGMAPS.path(space), b"{")

    async def test_missing_object_is_not_found(self, api: Api, space: str) -> None:
        path = CONFIGMAPS.path(space, "none")
        for call in (
            api.get(path),
            api.delete(path),
            api.replace(path, item("none")),
            api.patch(path, {}, "merge"),
        ):
            with pytest.raises(NotFound, match='"none" not found'):
                await call

    async def test_only_the_body_of_a_successful_response_waits(self, api: Api, space: str) -> None:
        bodies: list[str] = []

        async def before_body() -> None:
            bodies.append("begins")

        path = CONFIGMAPS.path(space, "a")
        with pytest.raises(NotFound):
            await api.get(path, before_body=before_body)
        assert bodies == []
        await api.create(CONFIGMAPS.path(space), item("a"))
        await api.get(path, before_body=before_body)
        assert bodies == ["begins"]

    async def test_a_kind_that_does_not_exist_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound, match="could not find the requested resource"):
            await api.get("/api/v1/things")

    async def test_a_group_that_does_not_exist_is_not_found(self, api: Api) -> None:
        with pytest.raises(NotFound, match="404 page not found"):
            await api.get("/apis/telemetry.example.com/v1/things")

    async def test_a_write_with_an_old_version_is_a_conflict(self, api: Api, space: str) -> None:
        path = CONFIGMAPS.path(space, "a")
        old = decode(await api.create(CONFIGMAPS.path(space), item("a", k="1")))
        new = decode(await api.replace(path, old | {"data": {"k": "2"}}))
        assert new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]
        with pytest.raises(Conflict):
            await api.replace(path, old | {"data": {"k": "3"}})

    async def test_merge_patch_changes_only_its_fields(self, api: Api, space: str) -> None:
        path = CONFIGMAPS.path(space, "a")
        await api.create(CONFIGMAPS.path(space), item("a", stays="1", goes="1"))
        new = decode(await api.patch(path, {"data": {"goes": None, "comes": "1"}}, "merge"))
        assert new["data"] == {"stays": "1", "comes": "1"}

    async def test_a_patch_with_another_version_is_a_conflict(self, api: Api, space: str) -> None:
        path = CONFIGMAPS.path(space, "a")
        old = decode(await api.create(CONFIGMAPS.path(space), item("a")))
        await api.patch(path, {"data": {"k": "1"}}, "merge")
        with pytest.raises(Conflict):
            await api.patch(
                path, {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}, "merge"
            )

    async def test_a_patch_cannot_give_another_uid(self, api: Api, space: str) -> None:
        path = CONFIGMAPS.path(space, "a")
        await api.create(CONFIGMAPS.path(space), item("a"))
        with pytest.raises(BadInput) as caught:
            await api.patch(path, {"metadata": {"uid": "of-its-predecessor"}, "data": {"k": "1"}}, "merge")
        assert {problem.field for problem in caught.value.problems} == {"metadata.uid"}
        assert not decode(await api.get(path)).get("data")

    async def test_a_replacement_with_another_uid_is_a_conflict(self, api: Api, space: str) -> None:
        old = decode(await api.create(CONFIGMAPS.path(space), item("a")))
        old["metadata"]["uid"] = "of-its-predecessor"
        with pytest.raises(Conflict):
            await api.replace(CONFIGMAPS.path(space, "a"), old)

    async def test_a_binding_puts_the_pod_on_the_node_and_adds_its_annotations(
        self, api: Api, space: str
    ) -> None:
        pod = decode(await api.create(PODS.path(space), unbound("p", {"a": "1", "b": "1"})))
        await api.create(*bound(pod, annotations={"b": "2", "c": "2"}))
        now = decode(await api.get(PODS.path(space, "p")))
        assert now["spec"]["nodeName"] == "n1"
        assert now["metadata"]["annotations"] == {"a": "1", "b": "2", "c": "2"}
        with pytest.raises(Conflict, match='pod p is already assigned to node "n1"'):
            await api.create(*bound(now))

    @pytest.mark.parametrize("field", ["uid", "resourceVersion"])
    async def test_a_binding_is_for_the_very_pod_that_it_names(
        self, api: Api, space: str, field: str
    ) -> None:
        pod = decode(await api.create(PODS.path(space), unbound("p")))
        now = decode(
            await api.patch(PODS.path(space, "p"), {"metadata": {"annotations": {"a": "1"}}}, "merge")
        )
        with pytest.raises(Conflict):
            await api.create(*bound(pod if field == "resourceVersion" else now, uid="of-its-predecessor"))
        with pytest.raises(NotFound, match='"none" not found'):
            await api.create(*bound({"metadata": {**now["metadata"], "name": "none"}}))
        await api.create(*bound(now))

    async def test_deleting_another_object_of_the_name_is_a_conflict(self, api: Api, space: str) -> None:
        await api.create(CONFIGMAPS.path(space), item("a"))
        with pytest.raises(Conflict):
            await api.delete(CONFIGMAPS.path(space, "a"), {"preconditions": {"uid": "of-its-predecessor"}})

    async def test_pages_give_every_object_once(self, api: Api, space: str) -> None:
        for name in "abcdefg":
            await api.create(CONFIGMAPS.path(space), item(name))
        names, params = [], {"limit": "3"}
        for _ in range(3):
            page = decode(await api.get(CONFIGMAPS.path(space), params))
            names += [entry["metadata"]["name"] for entry in page["items"]]
            params["continue"] = page["metadata"].get("continue", "")
        assert names == list("abcdefg")
        assert params["continue"] == ""

    async def test_watch_has_the_events_since_a_version(self, api: Api, space: str) -> None:
        begun = decode(await api.get(CONFIGMAPS.path(space)))["metadata"]["resourceVersion"]
        await api.create(CONFIGMAPS.path(space), item("a", k="1"))
        await api.patch(CONFIGMAPS.path(space, "a"), {"data": {"k": "2"}}, "merge")
        await api.delete(CONFIGMAPS.path(space, "a"))
        params = {"resourceVersion": begun, "timeoutSeconds": "60"}
        seen = []
        async with aclosing(api.watch(CONFIGMAPS.path(space), params)) as lines:
            async for line in lines:
                event = decode(line)
                seen.append((event["type"], event["object"]["data"]["k"]))
                if len(seen) == 3:
                    break
        assert seen == [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")]

    async def test_a_watch_keeps_to_its_selector(self, api: Api, space: str) -> None:
        params = {"fieldSelector": "metadata.name=b", "timeoutSeconds": "60", "resourceVersion": ""}
        params["resourceVersion"] = decode(await api.get(CONFIGMAPS.path(space)))["metadata"][
            "resourceVersion"
        ]
        for name in "abc":
            await api.create(CONFIGMAPS.path(space), item(name))
        async with aclosing(api.watch(CONFIGMAPS.path(space), params)) as lines:
            event = decode(await anext(lines))
        assert event["object"]["metadata"]["name"] == "b"

    async def test_a_page_that_is_no_longer_kept_is_expired(self, api: Api, space: str) -> None:
        path, token = await self.old_page(api, space)
        with pytest.raises(Expired):
            await api.get(path, {"limit": "1", "continue": token})

    async def old_page(self, api: Api, space: str) -> tuple[str, str]:
        """The path of a collection, and a continue token that has expired on the server."""
        raise NotImplementedError


class ReflectorSuite:
    """Tests that a store stays equal to the state of the server."""

    def reflector(self, api: Api, space: str, **selectors: str) -> Reflector[Any]:
        target = ReflectorTarget(CONFIGMAPS, CONFIGMAP, space, selectors)
        return Reflector(api, target, SystemClock(), MetricsRegistry(), random.random)

    async def test_store_has_listed_and_watched_objects(self, api: Api, space: str) -> None:
        await api.create(CONFIGMAPS.path(space), item("before", k="1"))
        reflector = self.reflector(api, space)
        async with run_in_background(reflector.run()):
            await reflector.wait_until_synced()
            assert [(i.metadata.name, i.data) for i in reflector.store.values()] == [("before", {"k": "1"})]
            await api.create(CONFIGMAPS.path(space), item("later", k="1"))
            await eventually(lambda: len(reflector.store) == 2)
            await api.patch(CONFIGMAPS.path(space, "before"), {"data": {"k": "2"}}, "merge")
            await eventually(lambda: "2" in str(reflector.store.get(space, "before")))
            before_s = SystemClock().monotonic()
            await api.delete(CONFIGMAPS.path(space, "before"))
            await eventually(lambda: list(reflector.store.snapshot()) == [(space, "later")])
            assert reflector.age_s() < SystemClock().monotonic() - before_s

    async def test_subscribers_get_each_change(self, api: Api, space: str) -> None:
        reflector = self.reflector(api, space)
        reported: list[tuple[Any, Any]] = []

        def note(changes: Changes[Any] | None) -> None:
            assert changes is not None
            reported.extend((old and old.data, new and new.data) for old, new in changes.values())

        async with run_in_background(reflector.run()):
            await reflector.wait_until_synced()
            reflector.store.subscribe(note)
            await api.create(CONFIGMAPS.path(space), item("a", k="1"))
            await api.patch(CONFIGMAPS.path(space, "a"), {"data": {"k": "2"}}, "merge")
            await api.delete(CONFIGMAPS.path(space, "a"))
            await eventually(lambda: len(reported) == 3)
        assert reported == [(None, {"k": "1"}), ({"k": "1"}, {"k": "2"}), ({"k": "2"}, None)]

    async def test_an_object_that_leaves_the_selection_leaves_the_store(self, api: Api, space: str) -> None:
        reflector = self.reflector(api, space, labelSelector="on=yes")
        labelled = {"metadata": {"name": "a", "labels": {"on": "yes"}}}
        await api.create(CONFIGMAPS.path(space), labelled)
        async with run_in_background(reflector.run()):
            await reflector.wait_until_synced()
            assert len(reflector.store) == 1
            await api.patch(CONFIGMAPS.path(space, "a"), {"metadata": {"labels": {"on": "no"}}}, "merge")
            await eventually(lambda: len(reflector.store) == 0)

    async def test_many_pages_make_one_store(self, api: Api, space: str) -> None:
        names = [f"n{number:03}" for number in range(230)]
        for name in names:
            await api.create(CONFIGMAPS.path(space), item(name))
        reflector = self.reflector(api, space)
        sizes: list[int] = []
        reflector.store.subscribe(lambda _: sizes.append(len(reflector.store)))
        async with run_in_background(reflector.run()):
            await reflector.wait_until_synced()
        keys: list[Key] = list(reflector.store.snapshot())
        assert keys == [(space, name) for name in names]
        assert sizes == [230], "readers never saw a half-filled store"


QUICK = LeaseTimings(duration_s=1.0, renew_s=0.6, retry_s=0.05)
LONG = LeaseTimings(duration_s=600.0, renew_s=400.0, retry_s=0.05)
"""Timings of a Lease that does not expire during a test, even on a slow machine."""


class ElectionSuite:
    """Tests that one replica leads, and another one after it stops."""

    def elector(
        self, api: Api, space: str, identity: str, timings: LeaseTimings = LONG, process: str = ""
    ) -> Elector:
        lock = LeaseLock(space, "nodewise", identity, timings, process=process)
        return Elector(LeaseAccess(api, lock, SystemClock(), MetricsRegistry(), random.random))

    async def test_one_leads_and_the_lease_says_who(self, api: Api, space: str) -> None:
        a, b = self.elector(api, space, "a"), self.elector(api, space, "b")
        async with run_in_background(a.run()):
            await eventually(lambda: a.leading)
            async with run_in_background(b.run()):
                await eventually(lambda: b.holder == "a")
                assert not b.leading
        spec = decode(await api.get(LEASES.path(space, "nodewise")))["spec"]
        assert spec["holderIdentity"] == "a"
        assert spec["leaseDurationSeconds"] == 600
        assert spec["leaseTransitions"] == 0

    async def test_stopped_leader_is_replaced_at_once(self, api: Api, space: str) -> None:
        a, b = self.elector(api, space, "a"), self.elector(api, space, "b")
        async with run_in_background(a.run()):
            await eventually(lambda: a.leading)
        await a.stop()
        assert not a.leading
        async with run_in_background(b.run()):
            await eventually(lambda: b.leading)
        spec = decode(await api.get(LEASES.path(space, "nodewise")))["spec"]
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)

    async def test_dead_leader_is_replaced_when_the_lease_expires(self, api: Api, space: str) -> None:
        a, b = (self.elector(api, space, name, QUICK) for name in "ab")
        async with run_in_background(a.run()):
            await eventually(lambda: a.leading)
        async with run_in_background(b.run()):
            await eventually(lambda: b.leading)
        assert not a.leading

    @pytest.mark.parametrize(
        "processes", [("", ""), ("pod_1", "pod_2"), ("", "pod_2")], ids=["unnamed", "same pod", "upgrade"]
    )
    async def test_restarted_leader_with_its_identity_does_not_wait(
        self, api: Api, space: str, processes: tuple[str, str]
    ) -> None:
        died, again = (self.elector(api, space, "a", process=process) for process in processes)
        async with run_in_background(died.run()):
            await eventually(lambda: died.leading)
        async with run_in_background(again.run()):
            await eventually(lambda: again.leading)
        spec = decode(await api.get(LEASES.path(space, "nodewise")))["spec"]
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("a", 0)

    @pytest.mark.parametrize("host", ["pod", "other-pod"], ids=["same host", "other host"])
    async def test_one_of_two_replicas_with_one_identity_leads(
        self, api: Api, space: str, host: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []
        monkeypatch.setattr("nodewise.observe.logs.emit", lambda event, **_: events.append(event))
        a = self.elector(api, space, "same", process="pod_1")
        b = self.elector(api, space, "same", process=f"{host}_2")
        async with run_in_background(a.run()):
            await eventually(lambda: a.leading)
            async with run_in_background(b.run()):
                await eventually(lambda: "identity_duplicate" in events)
                await eventually(lambda: a.leading != b.leading)
                leader = a if a.leading else b
                assert leader is (b if host == "pod" else a)
                for _ in range(20):
                    await asyncio.sleep(0.02)
                    assert leader.leading
                    assert a.leading != b.leading
        assert events.count("identity_duplicate") == 1, "the other replica reports it once"

    async def test_labels_of_others_on_the_lease_stay(self, api: Api, space: str) -> None:
        a = self.elector(api, space, "a")
        path = LEASES.path(space, "nodewise")
        async with run_in_background(a.run()):
            await eventually(lambda: a.leading)
            await api.patch(path, {"metadata": {"labels": {"team": "x"}}}, "merge")
            before = decode(await api.get(path))["spec"]["renewTime"]

            async def renewed() -> Any:
                while (lease := decode(await api.get(path)))["spec"]["renewTime"] == before:
                    await asyncio.sleep(0.02)
                return lease

            lease = await asyncio.wait_for(renewed(), PATIENCE_S)
            assert lease["metadata"]["labels"] == {"team": "x"}
            assert a.leading


class EventSuite:
    """Tests that recorded events can be read from the API server."""

    async def test_repeats_become_one_event_with_a_count(self, api: Api, space: str) -> None:
        recorder = EventRecorder(
            api, EventReporter("nodewise.io/test", "replica-1"), SystemClock(), MetricsRegistry()
        )
        about = ObjectReference(CONFIGMAPS, space, "a", "uid-of-a")
        recorder.record(about, "Warning", "TooHot", "80 degrees", "Filtering")
        await recorder.flush()
        for _ in range(3):
            recorder.record(about, "Warning", "TooHot", "80 degrees", "Filtering")
        await recorder.flush()
        (event,) = decode(await api.get(EVENTS.path(space)))["items"]
        assert event["series"]["count"] == 4
        assert (event["note"], event["reason"], event["type"]) == ("80 degrees", "TooHot", "Warning")
        assert event["regarding"]["name"] == "a"
        assert event["regarding"]["uid"] == "uid-of-a"
        assert event["reportingController"] == "nodewise.io/test"

    async def test_an_event_that_the_server_has_dropped_begins_anew(self, api: Api, space: str) -> None:
        recorder = EventRecorder(
            api, EventReporter("nodewise.io/test", "replica-1"), SystemClock(), MetricsRegistry()
        )
        about = ObjectReference(CONFIGMAPS, space, "a")
        for _ in range(2):
            recorder.record(about, "Normal", "Fine", "all is well")
            await recorder.flush()
            (event,) = decode(await api.get(EVENTS.path(space)))["items"]
            await api.delete(EVENTS.path(space, event["metadata"]["name"]))
        assert "series" not in event

    async def test_texts_are_truncated_to_the_limits_of_the_server(self, api: Api, space: str) -> None:
        recorder = EventRecorder(
            api, EventReporter("nodewise.io/test", "r" * 300), SystemClock(), MetricsRegistry()
        )
        recorder.record(
            ObjectReference(CONFIGMAPS, space, "a" * 253), "Normal", "R" * 200, "ü" * 2000, "A" * 200
        )
        await recorder.flush()
        (event,) = decode(await api.get(EVENTS.path(space)))["items"]
        assert event["note"].startswith("üü")
        assert event["note"].endswith("…")
