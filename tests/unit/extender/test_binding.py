"""Binding: no device is allocated twice and no false success is reported, whatever fails, is late or is repeated."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from nodewise.agent import ClusterState
from nodewise.agent.bind_plugin_interface import ALLOCATION_RECORD_LABEL, RESERVATIONS_ANNOTATION
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import Conflict, NodewiseError, Problem, Refused
from nodewise.extender.binding import RESERVATION_DROPPED_ANNOTATION, BindOutcome
from nodewise.kube.resource_kinds import LEASES, NODES, PODS
from tests.unit.extender.binding_replicas import (
    DEVICE_ANNOTATION,
    OURS,
    LossyApi,
    OneDeviceAgent,
    Replica,
    check_no_double_allocation,
    lost_call,
    node_of,
    once,
    pod,
    put_pod,
    raising,
    reservations,
    start_replica,
)
from tests.unit.kube import virtual_time

FORBIDDEN = Refused("create", [Problem("", "pods/binding is forbidden", "")])


@pytest.fixture
def anyio_backend() -> object:
    return virtual_time.BACKEND


@asynccontextmanager
async def one_replica(
    keep: Callable[[Any], Any] | None = None, **made: Any
) -> AsyncIterator[tuple[LossyApi, Replica]]:
    """An API server with two nodes and a pod `p`, and one replica; `keep` is what its store keeps of a pod."""
    api = LossyApi(**made)
    for name in ("n1", "n2"):
        api.put(NODES, {"metadata": {"name": name}})
    put_pod(api, "p", annotations={"kept": "1"})
    async with start_replica(api, keep=keep) as replica:
        api.calls.clear()
        yield api, replica
        await replica.bindings.close()
    check_no_double_allocation(api)


@pytest.fixture
async def started() -> AsyncIterator[tuple[LossyApi, Replica]]:
    async with one_replica() as pair:
        yield pair


@pytest.fixture
def api(started: tuple[LossyApi, Replica]) -> LossyApi:
    return started[0]


@pytest.fixture
def replica(started: tuple[LossyApi, Replica]) -> Replica:
    return started[1]


class TestWell:
    async def test_the_reservation_is_written_before_the_pod_is_bound(
        self, api: LossyApi, replica: Replica
    ) -> None:
        seen = pod(api, "p")["metadata"]["resourceVersion"]
        assert await replica.bind(pod(api, "p")) == BindOutcome("bound", description="a")
        assert api.calls == [("create", LEASES.path(OURS)), ("create", PODS.path("d", "p", "binding"))]
        now = pod(api, "p")
        assert now["spec"]["nodeName"] == "n1"
        assert now["metadata"]["annotations"] == {"kept": "1", DEVICE_ANNOTATION: "a"}
        assert reservations(api)[now["metadata"]["uid"]]["seen"] == seen
        assert replica.held_devices() == {"a": now["metadata"]["uid"]}

    async def test_the_allocation_record_remains_when_its_node_is_recreated(
        self, api: LossyApi, replica: Replica
    ) -> None:
        """A Node may be deleted and register again while its pods keep running."""
        await replica.bind(pod(api, "p"))
        meta = api.objects(LEASES)[OURS, "t-n1"]["metadata"]
        assert "ownerReferences" not in meta
        assert meta["labels"] == {"nodewise.io/ledger": "t"}

    async def test_a_pod_without_gpus_is_bound_by_one_write(self, api: LossyApi, replica: Replica) -> None:
        assert await replica.bind(put_pod(api, "plain")) == BindOutcome("bound")
        assert api.writes() == ["bind"]
        assert node_of(api, "plain") == "n1"

    async def test_a_pod_that_is_not_in_the_store_is_read(self, api: LossyApi, replica: Replica) -> None:
        api._wake_watches = lambda: None  # type: ignore[method-assign]
        assert (await replica.bind(put_pod(api, "new"))).result == "bound"
        assert ("get", PODS.path("d", "new")) in api.calls

    async def test_a_pod_of_which_only_a_part_is_stored_is_read(self) -> None:
        async with one_replica(
            keep=lambda pod: replace(pod, metadata=replace(pod.metadata, oversized_bytes=9000))
        ) as (api, replica):
            assert (await replica.bind(put_pod(api, "large"))).result == "bound"
            assert ("get", PODS.path("d", "large")) in api.calls
            assert reservations(api)[pod(api, "large")["metadata"]["uid"]]["device"] == "a"

    async def test_the_next_filter_request_respects_the_gpu_before_it_is_written(
        self, api: LossyApi, replica: Replica
    ) -> None:
        task = asyncio.create_task(replica.bind(pod(api, "p")))
        for _ in range(10):  # this is shorter than any call
            await asyncio.sleep(0)
        assert list(replica.held_devices()) == ["a"]
        assert api.writes() == []
        await task


class TestAgain:
    async def test_a_repeated_bind_is_a_success_without_a_write(
        self, api: LossyApi, replica: Replica
    ) -> None:
        await replica.bind(pod(api, "p"))
        writes = api.writes()
        assert (await replica.bind(pod(api, "p"))).result == "already"
        assert api.writes() == writes

    async def test_two_calls_at_once_are_one_bind(self, api: LossyApi, replica: Replica) -> None:
        outcomes = await asyncio.gather(*(replica.bind(pod(api, "p")) for _ in range(3)))
        assert {outcome.result for outcome in outcomes} == {"bound"}
        assert api.writes() == ["create", "bind"]

    async def test_a_pod_on_another_node_is_an_error_and_holds_nothing_here(
        self, api: LossyApi, replica: Replica
    ) -> None:
        await replica.bind(pod(api, "p"), "n2")
        outcome = await replica.bind(pod(api, "p"), "n1")
        assert outcome == BindOutcome("failed", 'pod p is already assigned to node "n2"')
        await replica.bindings.close()
        assert reservations(api) == {}
        assert len(reservations(api, "n2")) == 1

    async def test_a_concurrent_bind_of_another_replica_gets_the_same_gpu(
        self, api: LossyApi, replica: Replica
    ) -> None:
        async with start_replica(api) as other:
            outcomes = await asyncio.gather(replica.bind(pod(api, "p")), other.bind(pod(api, "p")))
        assert [outcome.error for outcome in outcomes] == ["", ""]
        assert pod(api, "p")["metadata"]["annotations"][DEVICE_ANNOTATION] == "a"
        assert len(reservations(api)) == 1


class TestWrong:
    async def test_a_pod_that_is_not_there(self, api: LossyApi, replica: Replica) -> None:
        gone = pod(api, "p")
        api.remove(PODS, "p", "d")
        await asyncio.sleep(0.2)
        outcome = await replica.bind(gone)
        assert outcome.error == 'could not retrieve pod p: pod fetch error: pod "p" not found'
        assert api.writes() == []

    @pytest.mark.parametrize(
        ("namespace", "name", "node"),
        [("d", "..", "n1"), ("..", "p", "n1"), ("d", "p/eviction", "n1"), ("d", "", "n1"), ("d", "p", "n/1")],
    )
    async def test_names_that_could_be_another_path_fail_without_a_call(
        self, namespace: str, name: str, node: str, api: LossyApi, replica: Replica
    ) -> None:
        before = len(api.calls)
        outcome = await replica.bind({"metadata": {"namespace": namespace, "name": name, "uid": "u"}}, node)
        assert outcome.error.startswith("segment: ")
        assert len(api.calls) == before

    async def test_another_pod_of_the_name(self, api: LossyApi, replica: Replica) -> None:
        earlier = {"metadata": {**pod(api, "p")["metadata"], "uid": "of-its-predecessor"}}
        assert (await replica.bind(earlier)).error == "provided UID is incorrect"
        assert api.writes() == []

    async def test_a_pod_that_is_being_deleted(self, api: LossyApi, replica: Replica) -> None:
        leaving = put_pod(api, "leaving", deletionTimestamp="2026-01-01T00:00:00Z")
        assert "is being deleted, cannot be assigned to a host" in (await replica.bind(leaving)).error
        await replica.bindings.close()
        assert reservations(api) == {}

    async def test_a_refusal_of_the_agent_is_reported_and_nothing_is_written(
        self, api: LossyApi, replica: Replica
    ) -> None:
        for name in ("a", "b", "c"):
            await replica.bind(put_pod(api, name))
        api.calls.clear()
        outcome = await replica.bind(pod(api, "p"))
        assert (outcome.result, outcome.error) == ("refused", "will not fit")
        assert api.writes() == []

    async def test_a_refused_binding_leaves_no_reservation(self, api: LossyApi, replica: Replica) -> None:
        api.before = lambda verb, path: raising(FORBIDDEN)() if path.endswith("/binding") else None
        assert await replica.bind(pod(api, "p")) == BindOutcome("failed", "pods/binding is forbidden")
        await replica.bindings.close()
        assert reservations(api) == {}
        assert replica.held_devices() == {}
        assert RESERVATION_DROPPED_ANNOTATION in pod(api, "p")["metadata"]["annotations"]
        api.before = lambda verb, path: None
        assert (await replica.bind(pod(api, "p"))).result == "bound"


class TestChanged:
    async def test_a_pod_that_changes_is_bound_in_its_new_state(
        self, api: LossyApi, replica: Replica
    ) -> None:
        def touch() -> None:
            api.put(PODS, {**pod(api, "p"), "metadata": {**pod(api, "p")["metadata"], "labels": {"a": "1"}}})

        api.before = once("create", "/binding", touch)
        assert (await replica.bind(pod(api, "p"))).result == "bound"
        assert api.writes() == ["create", "bind", "replace", "bind"]
        now = pod(api, "p")["metadata"]
        assert now["labels"] == {"a": "1"}
        assert int(reservations(api)[now["uid"]]["seen"]) == int(now["resourceVersion"]) - 2

    async def test_a_plan_respects_the_record_that_another_replica_wrote(
        self, api: LossyApi, replica: Replica
    ) -> None:
        async with start_replica(api) as other:
            outcomes = await asyncio.gather(replica.bind(pod(api, "p")), other.bind(put_pod(api, "q")))
        assert sorted(outcome.description for outcome in outcomes) == ["a", "b"]
        assert len(reservations(api)) == 2

    async def test_an_exception_in_the_second_plan_is_reported_at_once(self) -> None:
        class Defect(OneDeviceAgent):
            plans = 0

            def bind(self, *args: Any) -> Any:
                self.plans += 1
                assert self.plans < 2
                return super().bind(*args)

        api = LossyApi()
        api.put(NODES, {"metadata": {"name": "n1"}})
        put_pod(api, "p")
        meta = {
            "name": "t-n1",
            "namespace": OURS,
            "labels": {ALLOCATION_RECORD_LABEL: "t"},
            "annotations": {RESERVATIONS_ANNOTATION: "{}"},
        }
        async with start_replica(api, Defect()) as replica:
            api.before = once("create", "leases", lambda: api.put(LEASES, {"metadata": meta}) and None)
            assert "a defect of nodewise" in (await replica.bind(pod(api, "p"))).error

    async def test_the_pod_that_loses_the_last_gpu_is_refused(self) -> None:
        api = LossyApi()
        api.put(NODES, {"metadata": {"name": "n1"}})
        pods = [put_pod(api, name) for name in "pq"]
        async with (
            start_replica(api, OneDeviceAgent("a")) as replica,
            start_replica(api, OneDeviceAgent("a")) as other,
        ):
            outcomes = await asyncio.gather(replica.bind(pods[0]), other.bind(pods[1]))
            assert sorted(outcome.result for outcome in outcomes) == ["bound", "refused"]
        check_no_double_allocation(api)

    async def test_a_deleted_allocation_record_is_created_again(self) -> None:
        api = LossyApi()
        api.put(NODES, {"metadata": {"name": "n1"}})
        put_pod(api, "p")
        async with start_replica(api) as replica:
            await replica.bind(put_pod(api, "q"))
            api.before = once("replace", "leases", lambda: api.remove(LEASES, "t-n1", OURS))
            assert (await replica.bind(pod(api, "p"))).result == "bound"
            assert pod(api, "p")["metadata"]["uid"] in reservations(api)

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"u":1}', "null", '{"u":{"seen":1}}'])
    async def test_an_unreadable_allocation_record_stops_no_bind(
        self, text: str, api: LossyApi, replica: Replica
    ) -> None:
        meta = {"name": "t-n1", "namespace": OURS, "labels": {"nodewise.io/ledger": "t"}}
        api.put(LEASES, {"metadata": meta | {"annotations": {"other": text}}})
        await asyncio.sleep(0.2)
        assert (await replica.bind(pod(api, "p"))).result == "bound"


class TestLost:
    """Lost requests and responses: the result of a write is unknown."""

    @pytest.mark.parametrize("part", ["leases", "/binding"])
    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_one_is_made_up_for(self, part: str, moment: str, api: LossyApi, replica: Replica) -> None:
        setattr(api, moment, once("create", part, raising(lost_call())))
        outcome = await replica.bind(pod(api, "p"))
        assert outcome.error == ""
        assert node_of(api, "p") == "n1"
        assert pod(api, "p")["metadata"]["annotations"][DEVICE_ANNOTATION] == "a"

    async def test_bindings_without_a_response_end_in_time_and_leave_no_reservation(
        self, api: LossyApi, replica: Replica
    ) -> None:
        api.before = lambda verb, path: raising(lost_call())() if path.endswith("/binding") else None
        began_s = asyncio.get_running_loop().time()
        outcome = await replica.bind(pod(api, "p"))
        assert outcome == BindOutcome("failed", "no answer")
        assert asyncio.get_running_loop().time() - began_s < 4.5
        await replica.bindings.close()
        assert reservations(api) == {}
        assert replica.held_devices() == {}

    async def test_a_late_binding_conflicts_with_the_changed_pod(
        self, api: LossyApi, replica: Replica
    ) -> None:
        """The reservation is removed only after that. Otherwise another pod could already have the device."""

        late: list[Any] = []
        real = api._bind_pod

        def held_up(*args: Any) -> bytes:
            late.append(partial(real, *args))
            raise lost_call()

        api._bind_pod = held_up  # type: ignore[method-assign]
        assert (await replica.bind(pod(api, "p"))).error
        await replica.bindings.close()
        api._bind_pod = real  # type: ignore[method-assign]
        assert (await replica.bind(put_pod(api, "q"))).description == "a"
        for arrives in late:
            with pytest.raises(Conflict):
                arrives()

    async def test_a_binding_that_arrives_during_the_check_keeps_its_reservation(
        self, api: LossyApi, replica: Replica
    ) -> None:
        late: list[Any] = []
        real = api._bind_pod

        def held_up(*args: Any) -> bytes:
            late.append(partial(real, *args))
            raise lost_call()

        def arrive() -> None:
            late[0]()

        api._bind_pod = held_up  # type: ignore[method-assign]
        api.before = once("patch", "pods", arrive)
        assert (await replica.bind(pod(api, "p"))).error
        await replica.bindings.close()
        assert node_of(api, "p") == "n1"
        assert list(replica.held_devices()) == ["a"]
        assert len(reservations(api)) == 1

    async def test_a_server_without_a_response_is_reported_in_time(
        self, api: LossyApi, replica: Replica
    ) -> None:
        api.before = lambda verb, path: raising(lost_call())()
        outcome = await replica.bind(pod(api, "p"))
        assert outcome == BindOutcome("failed", "no answer")
        api.before = lambda verb, path: None
        await asyncio.sleep(10)
        assert (await replica.bind(pod(api, "p"))).error == ""

    async def test_reading_the_pod_again_takes_no_longer_than_there_is_time(
        self, api: LossyApi, replica: Replica
    ) -> None:
        real = api.create

        async def slow(path: str, body: object, params: Any = None, *, timeout_s: float) -> bytes:
            await asyncio.sleep(1.9)
            return await real(path, body, timeout_s=timeout_s)

        async def hangs(path: str, params: Any = None, *, timeout_s: float) -> bytes:
            await asyncio.sleep(timeout_s)
            raise lost_call()

        api.create, api.get = slow, hangs  # type: ignore[method-assign]
        api.before = once("create", "/binding", raising(Conflict("create", [Problem("", "changed", "")])))
        began_s = asyncio.get_running_loop().time()
        assert (await replica.bind(pod(api, "p"))).error
        assert asyncio.get_running_loop().time() - began_s < 4.1

    async def test_a_reservation_that_is_written_after_its_request_ended_counts(
        self, api: LossyApi, replica: Replica
    ) -> None:
        """The write succeeds after the bind ended with an error. The next bind of the pod uses the reservation."""

        real = api.create

        async def slow(path: str, body: object, params: Any = None, *, timeout_s: float) -> bytes:
            if path == LEASES.path(OURS):
                await asyncio.sleep(6.0)
            return await real(path, body, timeout_s=timeout_s)

        api.create = slow  # type: ignore[method-assign]
        api.before = lambda verb, path: raising(lost_call())() if verb == "patch" else None
        assert (await replica.bind(pod(api, "p"))).error
        assert (await replica.bind(put_pod(api, "q"))).error == ""
        api.before = lambda verb, path: None
        assert (await replica.bind(pod(api, "p"))).error == ""

    @pytest.mark.parametrize("seed", range(8))
    async def test_plans_in_progress_are_in_every_snapshot(self, seed: int) -> None:
        async with one_replica(seed=seed) as (api, replica):
            others = [(put_pod(api, "q"), "n2"), (put_pod(api, "r"), "n1")]
            await asyncio.sleep(0.2)
            binds: list[asyncio.Task[BindOutcome]] = []

            def come() -> None:
                binds.extend(asyncio.create_task(replica.bind(*other)) for other in others)

            def change() -> None:
                api.put(PODS, pod(api, "p") | {"status": {"touched": "1"}})
                api.slow_s = 0.5
                asyncio.get_running_loop().call_later(0.001, come)

            api.before = once("create", "p/binding", change)
            binding = asyncio.create_task(replica.bind(pod(api, "p")))
            shown: set[str] = set()
            while not binds or not all(task.done() for task in (binding, *binds)):
                assert shown <= replica.held_devices().keys(), "what was shown is gone"
                shown |= replica.held_devices().keys()
                await asyncio.sleep(0.001)
            assert shown == {"a", "b"}

    async def test_a_client_that_leaves_does_not_end_the_bind(self, api: LossyApi, replica: Replica) -> None:
        call = asyncio.create_task(replica.bind(pod(api, "p")))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        await replica.bindings.close()
        assert node_of(api, "p") == "n1"


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("part", ["leases", "/binding"])
async def test_another_replica_binds_the_pod_of_a_killed_one(part: str, moment: str) -> None:
    api = LossyApi()
    api.put(NODES, {"metadata": {"name": "n1"}})
    put_pod(api, "p")
    async with start_replica(api) as first:
        hang = asyncio.Event()
        reached = asyncio.Event()

        async def stop(verb: str, path: str, call: Any) -> Any:
            if part in path and moment == "before":
                call.close()
            answer = None if part in path and moment == "before" else await call
            if part in path:
                reached.set()
                await hang.wait()
            return answer

        api._respond = stop  # type: ignore[method-assign]
        call = asyncio.create_task(first.bind(pod(api, "p")))
        await reached.wait()
    call.cancel()
    del api._respond
    async with start_replica(api) as second:
        others = [put_pod(api, name) for name in "qrs"]
        outcomes = await asyncio.gather(
            *(second.bind(waiting_pod) for waiting_pod in [pod(api, "p"), *others])
        )
        assert outcomes[0].error == ""
        assert sorted(outcome.result for outcome in outcomes[1:]) == ["bound", "bound", "refused"]
    assert node_of(api, "p") == "n1"
    check_no_double_allocation(api)


class TestMany:
    async def test_many_binds_to_one_node_are_few_writes_of_its_record(self) -> None:
        api = LossyApi()
        api.put(NODES, {"metadata": {"name": "n1"}})
        devices = " ".join(map(str, range(100)))
        pods = [put_pod(api, f"p{number}") for number in range(100)]
        async with start_replica(api, OneDeviceAgent(devices)) as replica:
            outcomes = await asyncio.gather(*(replica.bind(each) for each in pods))
        assert [outcome.error for outcome in outcomes] == [""] * 100
        assert len(api.writes("leases")) < 5
        check_no_double_allocation(api)

    @pytest.mark.parametrize("seed", range(5))
    async def test_every_state_follows_from_the_objects_of_its_snapshot(self, seed: int) -> None:
        """This includes unwritten reservations, so that a replay gives the recorded responses."""
        cluster_states: dict[int, ClusterState] = {}
        seen: list[int] = []

        def check_snapshot(replica: Replica) -> None:
            snapshot = replica.snapshot_cache.snapshot
            built = cooperative_scheduling.run_without_pauses(
                OneDeviceAgent().build(cluster_states[snapshot.generation])
            )
            assert {node: held for node, held in snapshot.agent_states["t"].items() if held} == built
            seen.append(len(built.get("n1", {})))

        async with one_replica(seed=seed) as (api, replica):
            replica.snapshot_cache.subscribe(
                lambda cluster_state, number: cluster_states.update({number: cluster_state})
            )
            replica.snapshot_cache.touch()
            while replica.snapshot_cache.snapshot.generation not in cluster_states:
                await asyncio.sleep(0.001)
            api.before = once("create", "/binding", raising(FORBIDDEN))
            pods = [put_pod(api, f"p{number}") for number in range(4)]
            binds = [asyncio.create_task(replica.bind(each)) for each in pods]
            while not all(bind.done() for bind in binds) or len(seen) < 1000:
                check_snapshot(replica)
                await asyncio.sleep(0.0003)
            assert {0, 2, 3} <= set(seen)

    @pytest.mark.parametrize("seed", range(20))
    async def test_two_replicas_with_faults_never_allocate_a_gpu_twice(self, seed: int) -> None:
        """Calls are lost, and pods are changed and deleted; every reported success is a bound pod."""

        api = LossyApi(seed)
        for name in ("n1", "n2"):
            api.put(NODES, {"metadata": {"name": name}})
        luck = api._random
        chance = luck.choice([0.0, 0.05, 0.2])

        def trouble(verb: str, path: str) -> None:
            if verb != "watch" and luck.random() < chance:
                raise lost_call()

        async def come_and_go(number: int, replicas: list[Replica]) -> None:
            await asyncio.sleep(luck.random() * 0.02)
            name = f"p{number}"
            made = put_pod(api, name)
            for _ in range(3):
                outcome = await luck.choice(replicas).bind(made, luck.choice(["n1", "n2"]))
                if not outcome.error:
                    assert node_of(api, name)
                    return
                if luck.random() < 0.3:
                    api.put(PODS, pod(api, name) | {"status": {"touched": str(luck.random())}})

        agents = [OneDeviceAgent("a b c d e f g h") for _ in range(2)]
        async with start_replica(api, agents[0]) as replica, start_replica(api, agents[1]) as other:
            api.before, api.after = trouble, trouble
            await asyncio.gather(*(come_and_go(number, [replica, other]) for number in range(24)))
            api.before = api.after = lambda verb, path: None
            await asyncio.sleep(30)
        check_no_double_allocation(api)
        bound = [new for _, new in api.changes(PODS) if new and node_of(api, new["metadata"]["name"])]
        assert bound


async def test_errors_contain_the_message_of_the_server(api: LossyApi, replica: Replica) -> None:
    error = NodewiseError("x", [Problem("", "the server's words", "")])
    api.before = once("create", "leases", raising(error))
    assert (await replica.bind(pod(api, "p"))).error == "the server's words"


class TestReservationsOfEndedProcesses:
    """The leader cleans up after a process that ended (`controllers.ReservationCleaner`)."""

    async def test_a_waiting_pod_is_changed_before_its_reservation_is_removed(
        self, api: LossyApi, replica: Replica
    ) -> None:
        await stopped_before_its_binding(api)
        late = pod(api, "p")
        [(uid, reservation)] = reservations(api).items()
        api.calls.clear()
        assert await replica.bindings.drop("n1", ("d", "p"), uid, reservation["seen"])
        assert api.writes() == ["patch", "replace"]
        assert reservations(api) == {}
        assert RESERVATION_DROPPED_ANNOTATION in pod(api, "p")["metadata"]["annotations"]
        with pytest.raises(Conflict):
            await api.create(PODS.path("d", "p", "binding"), binding_of(late))

    async def test_the_reservation_of_a_bound_pod_remains(self, api: LossyApi, replica: Replica) -> None:
        await replica.bind(pod(api, "p"))
        [(uid, reservation)] = reservations(api).items()
        assert not await replica.bindings.drop("n1", ("d", "p"), uid, reservation["seen"])
        assert list(reservations(api)) == [uid]

    @pytest.mark.parametrize("comes_again", [False, True])
    async def test_the_reservation_of_a_deleted_pod_is_removed(
        self, comes_again: bool, api: LossyApi, replica: Replica
    ) -> None:
        await stopped_before_its_binding(api)
        [(uid, reservation)] = reservations(api).items()
        api.remove(PODS, "p", "d")
        if comes_again:
            put_pod(api, "p")
        assert await replica.bindings.drop("n1", ("d", "p"), uid, reservation["seen"])
        assert reservations(api) == {}
        if comes_again:
            assert RESERVATION_DROPPED_ANNOTATION not in pod(api, "p")["metadata"].get("annotations", {})

    async def test_a_reservation_that_was_replaced_meanwhile_remains(
        self, api: LossyApi, replica: Replica
    ) -> None:
        await stopped_before_its_binding(api)
        [(uid, reservation)] = reservations(api).items()
        await replica.bindings.drop("n1", ("d", "p"), uid, "1")
        assert reservations(api) == {uid: reservation}

    async def test_an_api_server_without_a_response_is_reported(
        self, api: LossyApi, replica: Replica
    ) -> None:
        await stopped_before_its_binding(api)
        [(uid, reservation)] = reservations(api).items()
        api.fail(lost_call())
        with pytest.raises(NodewiseError):
            await replica.bindings.drop("n1", ("d", "p"), uid, reservation["seen"])
        assert reservations(api) == {uid: reservation}

    async def test_reservations_that_no_longer_count_are_removed_in_one_write(
        self, api: LossyApi, replica: Replica
    ) -> None:
        for name in ("x", "y"):
            await replica.bind(put_pod(api, name))
        seen = {uid: reservation["seen"] for uid, reservation in reservations(api).items()}
        api.calls.clear()
        await replica.bindings.prune("n1", seen)
        assert (api.writes(), reservations(api)) == (["replace"], {})
        for name in ("x", "y"):
            api.remove(PODS, name, "d")


async def stopped_before_its_binding(api: LossyApi) -> None:
    """The objects after a process was killed that had written the reservation of `p`."""
    meta = pod(api, "p")["metadata"]
    reservation = {"device": "a", "seen": meta["resourceVersion"], "at": 0.0}
    written = {RESERVATIONS_ANNOTATION: json.dumps({meta["uid"]: reservation})}
    api.put(
        LEASES,
        {
            "metadata": {
                "name": "t-n1",
                "namespace": OURS,
                "labels": {ALLOCATION_RECORD_LABEL: "t"},
                "annotations": written,
            }
        },
    )
    await asyncio.sleep(0.2)


def binding_of(item: dict[str, Any]) -> dict[str, Any]:
    """A Binding of this version of a pod to the node `n1`."""
    meta = {key: item["metadata"][key] for key in ("name", "uid", "resourceVersion")}
    return {"metadata": meta, "target": {"name": "n1"}}
