"""The controller of the gpu agent with an API server in memory, in virtual time."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest

from nodewise.agent import ObjectKey
from nodewise.agent.bind_plugin_interface import ALLOCATION_RECORD_LABEL, RESERVATIONS_ANNOTATION
from nodewise.agent.controller_interface import Handle, WriteCounter
from nodewise.agents.gpu import KIND, allocation_record, controller, node_allocations, typical_pods
from nodewise.agents.gpu.allocation_record import NO_RECORD, RECORD_BYTES
from nodewise.agents.gpu.controller import DESCHEDULE_LABEL
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, Unavailable
from nodewise.engine import object_feed
from nodewise.engine.leader_controller_loop import LeaderLoop
from nodewise.engine.object_feed import StoreRelister
from nodewise.engine.snapshot_cache import SnapshotCache
from nodewise.kube.api_server_interface import NONE, Params
from nodewise.kube.event_recorder import EventRecorder, EventReporter
from nodewise.kube.resource_kinds import LEASES, NODES, PODS
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import CONFIGMAPS, FakeApi
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    agent_state,
    amounts,
    cluster_state,
    entry,
    node,
    pod,
)
from tests.unit.kube import virtual_time
from tests.unit.kube.failing_api import FailingApi
from tests.unit.kube.virtual_time import VirtualClock

OURS = "nodewise"
PERIOD_S = 5.0
HOT = "telemetry.aware.scheduling.hot/gas-deschedule-pods-card0"


class GpuApi(FailingApi):
    """Reports its version every minute."""

    def __init__(self, **pods: str) -> None:
        """The node n1 with these pods, by their GPUs."""
        super().__init__()
        self.node("n1")
        for name, gpus in pods.items():
            self.pod(name, "n1", gpus)

    async def report_progress(self) -> None:
        while True:
            await asyncio.sleep(60.0)
            self.bookmark()

    def node(self, name: str, **labels: str) -> None:
        labels |= {"gpu.intel.com/gpu-numbers": "0.1"}
        allocatable = {key: str(value) for key, value in amounts("i915=4 mc=2000").items()}
        self.put(
            NODES, {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}
        )

    def pod(self, name: str, on: str = "", gpus: str = "", **labels: str) -> dict[str, Any]:
        requests = {key: str(value) for key, value in amounts("i915=1 mc=100").items()}
        meta: dict[str, Any] = {"name": name, "namespace": "d"}
        meta |= {"annotations": {"gas-container-cards": gpus}} if gpus else {}
        meta |= {"labels": labels} if labels else {}
        spec = {"nodeName": on, "containers": [{"name": "c", "resources": {"requests": requests}}]}
        return self.put(
            PODS, {"metadata": meta, "spec": spec, "status": {"phase": "Running" if on else "Pending"}}
        )

    def record(self, on: str, **entries: tuple[str, str, str]) -> None:
        """Entries by pod uid: name, GPUs and version."""
        held = {
            uid: dict(allocation_record.reservation_to_json(entry(*arguments)))
            for uid, arguments in entries.items()
        }
        meta = {"name": f"gpu-{on}", "namespace": OURS, "labels": {ALLOCATION_RECORD_LABEL: "gpu"}}
        self.put(LEASES, {"metadata": {**meta, "annotations": {RESERVATIONS_ANNOTATION: json.dumps(held)}}})

    def entries(self, on: str) -> list[str]:
        lease = self.objects(LEASES)[OURS, f"gpu-{on}"]
        return sorted(json.loads(lease["metadata"]["annotations"][RESERVATIONS_ANNOTATION]))

    def deschedule_labels(self) -> dict[str, str]:
        return {
            name: value
            for (_, name), item in self.objects(PODS).items()
            if (value := item["metadata"].get("labels", {}).get(DESCHEDULE_LABEL)) is not None
        }

    def patches(self, name: str) -> int:
        return self.calls.count(("patch", PODS.path("d", name)))


class FakeReservationCleaner:
    """Records calls, and removes the reservations (`controllers.ReservationCleaner`)."""

    def __init__(self, api: GpuApi) -> None:
        self._api = api
        self.calls: list[tuple[Any, ...]] = []
        self.error: NodewiseError | None = None
        self.is_bound = False

    async def drop(self, node: str, pod: ObjectKey, uid: str, seen: str) -> bool:
        self.calls.append(("drop", node, pod, uid, seen))
        if self.error:
            raise self.error
        if not self.is_bound:
            self._take_out(node, {uid})
        return not self.is_bound

    async def prune(self, node: str, entries: Any) -> None:
        self.calls.append(("prune", node, dict(entries)))
        self._take_out(node, set(entries))

    def _take_out(self, node: str, uids: set[str]) -> None:
        lease = self._api.objects(LEASES)[OURS, f"gpu-{node}"]
        held = json.loads(lease["metadata"]["annotations"][RESERVATIONS_ANNOTATION])
        left = {uid: reservation for uid, reservation in held.items() if uid not in uids}
        meta = {**lease["metadata"], "annotations": {RESERVATIONS_ANNOTATION: json.dumps(left)}}
        self._api.put(LEASES, {**lease, "metadata": meta})


class CountingRelister:
    """Counts relists (`controllers.Relister`)."""

    def __init__(self, lists: StoreRelister, cache: SnapshotCache) -> None:
        self._lists, self._cache, self.count = lists, cache, 0

    async def read(self, name: str) -> Any:
        return await self._lists.read(name)

    def begin(self) -> None:
        self.count += 1
        self._lists.begin()
        self._cache.rebuild()


class LeadingReplica:
    """A replica that leads, with the parts of the program."""

    def __init__(self, api: GpuApi, **options: Any) -> None:
        self.api, self.clock, self.metrics_registry = api, VirtualClock(), MetricsRegistry()
        gpu_options = GpuOptions(**options)
        needs = object_feed.data_requirements([KIND], {"gpu": gpu_options})
        self.feed = object_feed.watch_cluster(api, needs, self.clock, self.metrics_registry, OURS)
        refresher = MetricsRefresher([], RefreshOptions(), self.clock, self.metrics_registry)
        self.state = KIND.state(gpu_options, PERIOD_S)
        stores = self.feed.stores
        self.keeper = SnapshotCache(
            {"gpu": self.state}, stores, refresher, self.clock, self.metrics_registry, PERIOD_S
        )
        assert self.feed.relister is not None
        self.relister = CountingRelister(self.feed.relister, self.keeper)
        self.cleaner = FakeReservationCleaner(api)
        self.controller = KIND.controller(gpu_options, self._handle())
        self.leads = True
        self.leading = LeaderLoop(
            [self.controller], lambda: self.keeper.snapshot, lambda: self.leads, self.clock
        )
        self.keeper.on_publish(self.leading.notify)

    def _handle(self) -> Handle:
        recorder = EventRecorder(self.api, EventReporter("test", "test"), self.clock, self.metrics_registry)
        more = (OURS, lambda: self.keeper.snapshot, self.relister, self.cleaner, self.api)
        stores = (self.feed.objects, self.feed.nodes)
        return Handle(self.api, *stores, recorder, self.clock, self.metrics_registry, WriteCounter(), *more)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        work = [*(task() for task in self.feed.tasks), self.keeper.run(), self.leading.run(PERIOD_S)]
        tasks = [
            asyncio.create_task(coroutine)
            for coroutine in (*work, self.controller.run(), self.api.report_progress())
        ]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    def metric(self, name: str) -> list[str]:
        lines = self.metrics_registry.exposition().decode().splitlines()
        return [line.removeprefix("nodewise_") for line in lines if line.startswith(f"nodewise_{name}")]


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        virtual_time.run(test(*arguments, **named))

    return run


class TestLabels:
    @in_virtual_time
    async def test_they_come_and_go_with_the_nodes_label_within_ten_seconds(self) -> None:
        api = GpuApi(a="card0", b="card1")
        async with LeadingReplica(api).running():
            await asyncio.sleep(20)
            assert api.deschedule_labels() == {}
            api.node("n1", **{HOT: "true"})
            await asyncio.sleep(10)
            assert api.deschedule_labels() == {"a": "gpu"}
            assert api.objects(PODS)["d", "b"]["metadata"].get("labels") is None
            api.node("n1")
            await asyncio.sleep(10)
            assert api.deschedule_labels() == {}
            assert api.patches("a") == 2

    @in_virtual_time
    async def test_one_that_an_earlier_process_left_is_taken_back(self) -> None:
        api = GpuApi()
        api.pod("a", "n1", "card0", **{DESCHEDULE_LABEL: "gpu"})
        async with LeadingReplica(api).running():
            await asyncio.sleep(10)
            assert api.deschedule_labels() == {}

    @pytest.mark.parametrize("error", [Refused("no"), Conflict("other"), BadInput("uid is immutable")])
    @in_virtual_time
    async def test_a_pod_that_cannot_be_written_hinders_no_other(self, error: NodewiseError) -> None:
        api = GpuApi(a="card0", b="card0")
        api.errors["patch", "/a"] = error
        api.node("n1", **{HOT: "true"})
        async with LeadingReplica(api).running():
            await asyncio.sleep(60)
            assert api.deschedule_labels() == {"b": "gpu"}
            assert 2 <= api.patches("a") <= 13, "it is tried again, and not all the time"
            api.errors.clear()
            await asyncio.sleep(15)
            assert api.deschedule_labels() == {"a": "gpu", "b": "gpu"}

    @in_virtual_time
    async def test_without_an_answer_it_is_tried_again(self) -> None:
        api = GpuApi()
        api.errors["patch", "/a"] = Unavailable("no answer")
        api.node("n1", **{HOT: "true"})
        api.pod("a", "n1", "card0")
        async with LeadingReplica(api).running():
            await asyncio.sleep(20)
            api.errors.clear()
            await asyncio.sleep(10)
            assert api.deschedule_labels() == {"a": "gpu"}

    @in_virtual_time
    async def test_other_replicas_than_the_leader_write_nothing(self) -> None:
        api = GpuApi(a="card0")
        async with LeadingReplica(api).running() as leader:
            leader.leads = False
            api.node("n1", **{HOT: "true"})
            await asyncio.sleep(60)
            assert api.deschedule_labels() == {}


class TestLedgers:
    @in_virtual_time
    async def test_an_entry_whose_bind_never_came_goes_within_thirty_seconds(self) -> None:
        api = GpuApi()
        async with LeadingReplica(api).running() as leader:
            made = api.pod("p")["metadata"]
            uid, version = made["uid"], made["resourceVersion"]
            api.record("n1", **{uid: ("p", "card0", version)})
            await asyncio.sleep(4)
            assert leader.cleaner.calls == [], "its bind may be on its way"
            await asyncio.sleep(26)
            assert leader.cleaner.calls == [("drop", "n1", ("d", "p"), uid, version)]
            assert api.entries("n1") == []
            assert leader.metric("claims_dropped_total{") == ['claims_dropped_total{why="unbound"} 1.0']

    @in_virtual_time
    async def test_reservation_of_an_unknown_pod_is_dropped_after_a_check(self) -> None:
        api = GpuApi()
        api.record("n1", u=("p", "card0", "v1"))
        async with LeadingReplica(api).running() as leader:
            await asyncio.sleep(30)
            assert leader.cleaner.calls == [("drop", "n1", ("d", "p"), "u", "v1")]

    @in_virtual_time
    async def test_those_that_do_not_count_go_together(self) -> None:
        api = GpuApi()
        api.record("n1", u=("p", "card0", "1"), v=("q", "card0", "2"))
        async with LeadingReplica(api).running() as leader:
            await asyncio.sleep(30)
            assert leader.cleaner.calls == [("prune", "n1", {"u": "1", "v": "2"})]

    @in_virtual_time
    async def test_those_of_pods_on_the_node_stay(self) -> None:
        api = GpuApi()
        made = api.pod("p", "n1")["metadata"]
        api.record("n1", **{made["uid"]: ("p", "card0", made["resourceVersion"])})
        async with LeadingReplica(api).running() as leader:
            await asyncio.sleep(60)
            assert leader.cleaner.calls == []

    @in_virtual_time
    async def test_a_failure_is_tried_again_and_a_bound_pod_is_not_asked_about_at_every_step(self) -> None:
        api = GpuApi()
        api.record("n1", u=("p", "card0", "v1"))
        async with LeadingReplica(api).running() as leader:
            leader.cleaner.error = Unavailable("no answer")
            await asyncio.sleep(30)
            assert len(leader.cleaner.calls) > 1
            leader.cleaner.error, leader.cleaner.is_bound = None, True
            leader.cleaner.calls.clear()
            await asyncio.sleep(60)
            assert 3 <= len(leader.cleaner.calls) <= 11

    @in_virtual_time
    async def test_the_ledger_of_a_node_that_is_gone_goes_when_nothing_in_it_counts(self) -> None:
        api = GpuApi()
        api.record("n1")
        api.record("gone", u=("q", "card0", "1"))
        made = api.pod("p", "left")["metadata"]
        api.record("left", **{made["uid"]: ("p", "card0", made["resourceVersion"])})
        async with LeadingReplica(api).running():
            await asyncio.sleep(30)
            assert set(api.objects(LEASES)) == {(OURS, "gpu-n1"), (OURS, "gpu-left")}
            api.remove(PODS, "p", "d")
            await asyncio.sleep(30)
            assert set(api.objects(LEASES)) == {(OURS, "gpu-n1")}


class TestCounting:
    @staticmethod
    def counted(api: GpuApi) -> dict[str, int]:
        """The number of pods by millicores of a GPU."""
        data = api.objects(CONFIGMAPS)[OURS, typical_pods.NAME]["data"]
        counts: dict[str, int] = {}
        for key, text in data.items():
            for row in json.loads(text) if key.startswith("day-") else ():
                share = str(row["per_card"]["gpu.intel.com/millicores"])
                counts[share] = counts.get(share, 0) + row["pods"]
        return counts

    @in_virtual_time
    async def test_each_pod_counts_once_whoever_leads(self) -> None:
        api = GpuApi(a="card0", b="card0")
        async with LeadingReplica(api).running() as leader:
            await asyncio.sleep(20)
            assert self.counted(api) == {"100": 2}
            for number in range(3):
                api.pod(f"p{number}", "n1", "card0")
                await asyncio.sleep(1)
                api.pod(f"p{number}", "n1", "card1")
            await asyncio.sleep(1)
            assert self.counted(api) == {"100": 2}, "not written all the time"
            await asyncio.sleep(60)
            assert self.counted(api) == {"100": 5}
            other = LeadingReplica(api)
            leader.leads = False
            async with other.running():
                await asyncio.sleep(20)
                assert self.counted(api) == {"100": 5}
                api.remove(PODS, "p0", "d")
                await asyncio.sleep(10)
                api.pod("p0")
                await asyncio.sleep(70)
                assert self.counted(api) == {"100": 6}
            assert leader.keeper.snapshot.agent_states["gpu"].workload, "every replica has the tables"

    @in_virtual_time
    async def test_histogram_of_a_concurrent_writer_is_kept(self) -> None:
        api = GpuApi(a="card0", b="card0")
        async with LeadingReplica(api).running():
            async with LeadingReplica(api).running():
                await asyncio.sleep(100)
                api.pod("p", "n1", "card0")
                await asyncio.sleep(200)
            assert self.counted(api)["100"] in {3, 4}, "two who lead at once may both count"

    @in_virtual_time
    async def test_while_it_cannot_be_written_only_the_last_ones_are_kept(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(controller, "_MOST_NEW", 3)
        api = GpuApi(a="card0", b="card0")
        async with LeadingReplica(api).running():
            await asyncio.sleep(20)
            for number in range(9):
                api.pod(f"p{number}")
            await asyncio.sleep(60)
            assert self.counted(api) == {"100": 2 + 3}

    @in_virtual_time
    async def test_a_file_makes_it_needless(self) -> None:
        api = GpuApi(a="card0", b="card0")
        async with LeadingReplica(api, gpu_typical_pods="pods.yaml").running():
            await asyncio.sleep(100)
            assert api.objects(CONFIGMAPS) == {}


class TestChecks:
    @in_virtual_time
    async def test_correct_allocations_are_left(self) -> None:
        api = GpuApi(a="card0", b="card1")
        async with LeadingReplica(api).running() as leader:
            for number in range(90):
                await asyncio.sleep(10)
                api.pod(f"p{number}", "n1", "card0")
            assert leader.metric("gpu_checks_total{") == ['gpu_checks_total{outcome="same"} 2.0']
            assert leader.relister.count == 0

    @in_virtual_time
    async def test_an_event_that_never_came_is_found_and_mended(self) -> None:
        api = GpuApi(a="card0", b="card1")
        async with LeadingReplica(api).running() as leader:
            await asyncio.sleep(1)
            assert leader.feed.relister is not None
            for reflector in leader.feed.relister._reflectors:
                if reflector.store is leader.feed.objects["pods"]:
                    reflector._decoder._writer.remove(("d", "a"))
            await asyncio.sleep(10)
            assert self._held(leader) == {"d/b"}
            await asyncio.sleep(300 + 60 + 70)
            assert self._held(leader) == {"d/a", "d/b"}
            await asyncio.sleep(400)
            expected = ['gpu_checks_total{outcome="different"} 1.0', 'gpu_checks_total{outcome="same"} 1.0']
            assert leader.metric("gpu_checks_total{") == expected

    @in_virtual_time
    async def test_books_that_were_computed_wrongly_are_found_and_mended(self) -> None:
        api = GpuApi(a="card0", b="card1")
        async with LeadingReplica(api).running() as leader:
            await asyncio.sleep(1)
            leader.state._nodes["n1"] = leader.state._nodes["n1"]._replace(allocations=node_allocations.EMPTY)
            await asyncio.sleep(10)
            assert self._held(leader) == set()
            await asyncio.sleep(300 + 60 + 70)
            assert self._held(leader) == {"d/a", "d/b"}

    @in_virtual_time
    async def test_a_list_that_cannot_be_had_ends_nothing(self) -> None:
        api = GpuApi(a="card0", b="card1")
        async with LeadingReplica(api).running() as leader:
            await asyncio.sleep(295)
            leader.feed.relister._api = Failing()  # type: ignore[union-attr, assignment]
            await asyncio.sleep(10)
            assert leader.metric("gpu_checks_total{") == ['gpu_checks_total{outcome="undecided"} 1.0']

    @in_virtual_time
    async def test_check_is_off_with_period_zero(self) -> None:
        api = GpuApi(a="card0", b="card1")
        async with LeadingReplica(api, gpu_check_period_s=0.0).running() as leader:
            await asyncio.sleep(3600)
            assert leader.metric("gpu_checks_total{") == []

    def _held(self, leader: LeadingReplica) -> set[str]:
        allocations = leader.keeper.snapshot.agent_states["gpu"].nodes["n1"].allocations
        return {reservation.pod for reservation in allocations.by_uid.values()}


class Failing(FakeApi):
    async def get(self, path: str, params: Params = NONE, *, timeout_s: float = 10.0) -> bytes:
        raise Unavailable("no answer")


def test_a_defect_of_the_check_restarts_the_check_alone() -> None:
    reads: list[str] = []

    async def defect(name: str) -> Any:
        reads.append(name)
        raise ZeroDivisionError(name)

    async def main() -> None:
        leader = LeadingReplica(GpuApi(), gpu_check_period_s=1.0)
        leader.relister.read = defect  # type: ignore[method-assign]
        before = asyncio.all_tasks()
        task = asyncio.create_task(leader.controller.run())
        await asyncio.sleep(9.5)
        assert not task.done()
        assert 2 <= len(reads) <= 10
        task.cancel()
        await asyncio.wait([task])
        assert asyncio.all_tasks() == before

    virtual_time.run(main())


class TestGauges:
    @in_virtual_time
    async def test_they_follow_the_books(self) -> None:
        api = GpuApi(a="card0")
        async with LeadingReplica(api).running() as leader:
            await asyncio.sleep(10)
            assert leader.metric("gpu_card_held_share{") == [
                'gpu_card_held_share{card="card0",node="n1"} 0.5',
                'gpu_card_held_share{card="card1",node="n1"} 0.0',
            ]
            assert leader.metric("gpu_held_share ") == ["gpu_held_share 0.25"]
            assert leader.metric("gpu_nodes ") == ["gpu_nodes 1.0"]
            assert leader.metric("gpu_pods ") == ["gpu_pods 1.0"]
            api.node("n1", **{HOT: "true"})
            await asyncio.sleep(10)
            expected = ['gpu_cards{state="usable"} 1.0', 'gpu_cards{state="unusable"} 1.0']
            assert leader.metric("gpu_cards{") == expected
            api.pod("wild", "n1")
            await asyncio.sleep(10)
            assert leader.metric("gpu_node_problems{") == ['gpu_node_problems{node="n1"} 1.0']
            assert leader.metric("gpu_nodes_with_problems ") == ["gpu_nodes_with_problems 1.0"]
            api.remove(NODES, "n1")
            await asyncio.sleep(10)
            assert leader.metric("gpu_card_held_share{") == leader.metric("gpu_node_problems{") == []

    @pytest.mark.parametrize(("most", "count"), [(4, 4), (3, 0), (0, 0)])
    def test_of_too_many_cards_there_are_totals_only(self, most: int, count: int) -> None:
        gpu_state = agent_state(cluster_state({"n1": node(), "n2": node()}, [pod("a", "n1", "card0")]))
        assert (
            len(cooperative_scheduling.run_without_pauses(controller.gpu_metrics(gpu_state, INTEL, most)))
            == count
        )
        assert controller.total_metrics(gpu_state, INTEL)["gpu_pods", ()] == 1

    def test_the_largest_record_counts(self) -> None:
        gpu_state = agent_state(cluster_state({"n1": node(), "n2": node()}, []))
        sizes = gpu_state.layout.record_bytes.copy()
        sizes[0] = [RECORD_BYTES // 2, NO_RECORD, 0][: sizes.shape[1]]
        filled = gpu_state._replace(layout=gpu_state.layout._replace(record_bytes=sizes))
        assert controller.total_metrics(filled, INTEL)["gpu_fullest_record_share", ()] == 0.5
