"""The snapshot cache: which agent states are built again and when, and amendments."""

import asyncio
import itertools
from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from nodewise.agent import ClusterState, Inputs, MetricRequest, Snapshot, StateBuilder
from nodewise.engine.snapshot_cache import SnapshotCache, Stores
from nodewise.kube.store import StoreWriter
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.manual_clock import ManualClock

PERIOD_S = 5.0


class CountingBuilder(StateBuilder[Any]):
    """A builder whose agent state is the number of nodes."""

    inputs = Inputs(frozenset({"things"}))

    def __init__(self) -> None:
        self.computed = 0
        self.read = 0

    def metric_requests(self, objects: Any) -> frozenset[MetricRequest]:
        self.read += 1
        return frozenset(MetricRequest(name) for _, name in objects["things"])

    def problems(self, objects: Any) -> dict[str, tuple[str, ...]]:
        return {name: ("odd",) for _, name in objects["things"] if name == "odd"}

    def build(self, cluster_state: ClusterState) -> Generator[None, None, int]:
        yield
        self.computed += 1
        return len(cluster_state.nodes)


class Sizes(StateBuilder[Any]):
    """A builder whose agent state has the sizes of allocation records and nodes by name.

    `meanwhile` is called between the parts of a build.
    """

    inputs = Inputs(frozenset({"records"}), node_objects=True, metrics=False)

    def __init__(self) -> None:
        self.cluster_states: list[ClusterState] = []
        self.meanwhile: Any = lambda: None

    def metric_requests(self, _: Any) -> frozenset[MetricRequest]:
        return frozenset()

    def problems(self, _: Any) -> dict[str, tuple[str, ...]]:
        return {}

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Mapping[str, int]]:
        self.cluster_states.append(cluster_state)
        sizes = {name: item.size for (_, name), item in cluster_state.objects["records"].items()}
        yield
        self.meanwhile()
        return sizes | {name: node.size for (_, name), node in cluster_state.node_objects.items()}


def named(*names: str, size: int = 0) -> list[Any]:
    return [SimpleNamespace(metadata=SimpleNamespace(namespace="", name=name), size=size) for name in names]


class Parts:
    def __init__(self) -> None:
        self.nodes, self.things, self.records = (StoreWriter[Any]() for _ in range(3))
        self.counting, self.sizes = CountingBuilder(), Sizes()
        self.clock, self.metrics_registry = ManualClock(50.0), MetricsRegistry()
        self.refresher = MetricsRefresher((), RefreshOptions(), self.clock, self.metrics_registry)
        stores = Stores(
            self.nodes.store,
            {"things": self.things.store, "records": self.records.store},
            {"records": self._learn},
        )
        states: Any = {"t": self.counting, "s": self.sizes}
        self.snapshot_cache = SnapshotCache(
            states, stores, self.refresher, self.clock, self.metrics_registry, PERIOD_S
        )

    def _learn(self, answer: bytes) -> Any:
        name, size, version = answer.decode().split()
        return self.records.apply_response(named(name, size=int(size))[0], version)

    async def full(self, *metrics: str) -> None:
        self.nodes.replace(named("a", "b"))
        self.things.replace(named(*metrics))
        self.records.finish("10")
        await self.snapshot_cache.publish()

    def learn(self, name: str, size: int, version: str) -> None:
        """Apply the response of a write, as a bind does."""
        item = self.snapshot_cache.apply_response("records", f"{name} {size} {version}".encode())
        self.snapshot_cache.amend(name, "s", lambda agent_state: {**agent_state, name: item.size})
        self.snapshot_cache.withdraw_amendment(name)


@pytest.fixture
def parts() -> Parts:
    return Parts()


class TestPublishing:
    async def test_nothing_is_published_before_every_store_is_full(self, parts: Parts) -> None:
        parts.nodes.replace(named("a"))
        parts.records.replace([])
        await parts.snapshot_cache.publish()
        assert parts.snapshot_cache.snapshot.agent_states == {}
        assert parts.snapshot_cache.waiting_for() == ["the list of things"]

    async def test_a_view_holds_the_slots_of_one_world(self, parts: Parts) -> None:
        await parts.full("heat")
        assert parts.snapshot_cache.waiting_for() == ["a first answer about metric heat"]
        await parts.refresher.settle()
        assert parts.snapshot_cache.waiting_for() == ["a first answer about metric heat"], (
            "the view is still older"
        )
        await parts.snapshot_cache.publish()
        assert parts.snapshot_cache.waiting_for() == []
        snapshot = parts.snapshot_cache.snapshot
        assert (snapshot.agent_states["t"], snapshot.at, snapshot.generation) == (2, 50.0, 2)

    async def test_publishing_builds_no_table_of_node_names(self, parts: Parts) -> None:
        await parts.full()
        assert "table" not in vars(parts.snapshot_cache.snapshot.nodes)

    async def test_the_index_stays_while_the_nodes_do(self, parts: Parts) -> None:
        await parts.full()
        indices = []
        for names in ("ab", "ab", "abc"):
            parts.nodes.replace(named(*names))
            await parts.snapshot_cache.publish()
            indices.append(parts.snapshot_cache.snapshot.nodes)
        first, second, third = indices
        assert first is second
        assert third.known == ("a", "b", "c")

    async def test_a_snapshot_does_not_change(self, parts: Parts) -> None:
        await parts.full()
        before: Snapshot = parts.snapshot_cache.snapshot
        parts.nodes.replace(named("a", "b", "c"))
        await parts.snapshot_cache.publish()
        assert before.agent_states["t"] == 2
        assert parts.snapshot_cache.snapshot.agent_states["t"] == 3

    async def test_a_cluster_state_is_reported_before_states_are_built(self, parts: Parts) -> None:
        reports: list[tuple[int, int, int]] = []

        await parts.full()
        parts.snapshot_cache.subscribe(
            lambda cluster_state, number: reports.append(
                (len(cluster_state.nodes), number, parts.counting.computed)
            )
        )
        parts.nodes.replace(named("a"))
        await parts.snapshot_cache.publish()
        assert reports == [(1, 2, 1)]
        assert parts.snapshot_cache.snapshot.generation == 2

    async def test_all_objects_of_a_world_are_of_one_instant(self, parts: Parts) -> None:
        """Nodes that are added during the preparation of an index are in the next cluster state, with their objects."""

        await parts.full()
        parts.nodes.replace(named("a", "b", "c"))
        publishing = asyncio.create_task(parts.snapshot_cache.publish())
        await asyncio.sleep(0)
        parts.nodes.replace(named("d"))
        parts.records.apply(named("late")[0], "11")
        await publishing
        cluster_state = parts.sizes.cluster_states[-1]
        assert (
            cluster_state.nodes.known
            == tuple(name for _, name in cluster_state.node_objects)
            == ("a", "b", "c")
        )
        assert (list(cluster_state.objects["records"]), cluster_state.versions["records"]) == ([], "10")


class TestWhatIsComputedAgain:
    async def test_a_state_is_not_rebuilt_for_objects_it_does_not_read(self, parts: Parts) -> None:
        await parts.full()
        parts.records.apply(named("a", size=3)[0], "11")
        await parts.snapshot_cache.publish()
        parts.nodes.apply(named("a", size=4)[0])
        await parts.snapshot_cache.publish()
        assert (parts.counting.computed, parts.counting.read) == (1, 1)
        assert parts.snapshot_cache.snapshot.agent_states == {"t": 2, "s": {"a": 4, "b": 0}}
        assert parts.snapshot_cache.snapshot.generation == 3

    async def test_its_own_objects_and_the_set_of_nodes_make_it_another(self, parts: Parts) -> None:
        await parts.full()
        parts.things.apply(named("wind")[0])
        await parts.snapshot_cache.publish()
        parts.nodes.apply(named("c")[0])
        await parts.snapshot_cache.publish()
        assert parts.counting.computed == 3
        assert len(parts.sizes.cluster_states) == 2

    async def test_values_grow_old_by_themselves(self, parts: Parts) -> None:
        await parts.full()
        for _ in range(4):
            parts.clock.advance(PERIOD_S / 2)
            await parts.snapshot_cache.publish()
        assert parts.counting.computed == 3
        assert parts.snapshot_cache.snapshot.at == 60.0

    async def test_snapshots_of_continuous_changes_are_fewer(self, parts: Parts) -> None:
        published: list[float] = []
        await parts.full()
        parts.snapshot_cache.on_publish(lambda: published.append(parts.clock.now()))
        running = asyncio.create_task(parts.snapshot_cache.run())
        for count, pause_s in enumerate((0.0, 0.0, 0.05, 0.07), 1):
            parts.clock.advance(pause_s)
            parts.snapshot_cache.touch()
            while len(published) < count:
                await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        waits = [after - before for before, after in itertools.pairwise([50.0, *published])]
        assert waits == pytest.approx([0.02, 0.06, 0.05 + 0.06, 0.07 + 0.02])

    async def test_the_time_of_the_newest_snapshot_is_exported(self, parts: Parts) -> None:
        await parts.full()
        parts.clock.advance(7)
        await parts.snapshot_cache.publish()
        assert b"nodewise_view_timestamp_seconds 57.0" in parts.metrics_registry.exposition()

    async def test_new_metrics_rebuild_only_states_that_read_metrics(self, parts: Parts) -> None:
        await parts.full("heat")
        await parts.refresher.settle()
        await parts.snapshot_cache.publish()
        assert (parts.counting.computed, len(parts.sizes.cluster_states)) == (2, 1)


class TestDefects:
    async def test_a_failed_metric_request_keeps_the_previous_metrics(
        self, parts: Parts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await parts.full("heat")

        def fail(_: Any) -> frozenset[MetricRequest]:
            raise ZeroDivisionError

        monkeypatch.setattr(parts.counting, "metric_requests", fail)
        parts.things.replace(named("cold"))
        await parts.snapshot_cache.publish()
        assert parts.snapshot_cache.snapshot.generation == 2
        assert parts.refresher._requests == {"heat": MetricRequest("heat")}

    async def test_an_agent_that_fails_has_no_slot_and_the_others_have(self, parts: Parts) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        parts.sizes.meanwhile = fail
        await parts.full()
        assert parts.snapshot_cache.snapshot.agent_states == {"t": 2}
        parts.learn("x", 1, "11")
        parts.sizes.meanwhile = lambda: None
        parts.clock.advance(PERIOD_S)
        await parts.snapshot_cache.publish()
        assert parts.snapshot_cache.snapshot.agent_states == {"t": 2, "s": {"a": 0, "b": 0, "x": 1}}


class TestLearning:
    async def test_an_answer_counts_at_once(self, parts: Parts) -> None:
        await parts.full()
        before = parts.snapshot_cache.snapshot
        parts.learn("x", 7, "15")
        assert parts.snapshot_cache.snapshot.agent_states == {"t": 2, "s": {"a": 0, "b": 0, "x": 7}}
        assert parts.snapshot_cache.snapshot.generation == before.generation + 1
        assert before.agent_states["s"] == {"a": 0, "b": 0}

    async def test_a_publish_that_is_under_way_loses_nothing(self, parts: Parts) -> None:
        await parts.full()
        parts.sizes.meanwhile = lambda: parts.learn("x", 7, "15")
        parts.nodes.replace(named("a", "b", "c"))
        await parts.snapshot_cache.publish()
        assert parts.snapshot_cache.snapshot.agent_states == {"t": 3, "s": {"a": 0, "b": 0, "c": 0, "x": 7}}

    async def test_the_worlds_after_it_have_it_until_the_watch_tells_more(self, parts: Parts) -> None:
        await parts.full()
        parts.learn("x", 7, "15")
        parts.records.apply(named("x", size=1)[0], "12")
        await parts.snapshot_cache.publish()
        assert parts.snapshot_cache.snapshot.agent_states["s"]["x"] == 7
        parts.records.apply(named("x", size=9)[0], "16")
        await parts.snapshot_cache.publish()
        assert parts.snapshot_cache.snapshot.agent_states["s"]["x"] == 9

    async def test_each_view_has_a_number_and_a_world_of_its_own(self, parts: Parts) -> None:
        sizes: dict[int, dict[str, int]] = {}

        def tell(cluster_state: ClusterState, number: int) -> None:
            sizes[number] = {name: item.size for (_, name), item in cluster_state.objects["records"].items()}

        await parts.full()
        parts.snapshot_cache.subscribe(tell)
        parts.learn("x", 1, "15")
        parts.sizes.meanwhile = lambda: parts.learn("y", 2, "16")
        await parts.snapshot_cache.publish()
        assert sizes == {2: {"x": 1}, 3: {"x": 1}, 4: {"x": 1, "y": 2}, 5: {"x": 1, "y": 2}}
        assert parts.snapshot_cache.snapshot.generation == 5

    async def test_an_amendment_lasts_until_it_is_withdrawn(self, parts: Parts) -> None:
        seen: list[int] = []

        def with_x(size: int) -> Any:
            return lambda agent_state: {**agent_state, "x": size}

        def undo() -> None:
            parts.snapshot_cache.amend("key", "s", with_x(0))
            parts.snapshot_cache.withdraw_amendment("key")

        await parts.full()
        parts.snapshot_cache.amend("key", "s", with_x(1))
        for meanwhile in (lambda: None, lambda: parts.snapshot_cache.amend("key", "s", with_x(2)), undo):
            parts.sizes.meanwhile = meanwhile
            parts.records.apply(named("a", size=len(seen))[0], str(11 + len(seen)))
            await parts.snapshot_cache.publish()
            seen.append(parts.snapshot_cache.snapshot.agent_states["s"]["x"])
        parts.sizes.meanwhile = lambda: None
        parts.records.remove(("", "a"), "20")
        await parts.snapshot_cache.publish()
        assert seen == [1, 2, 0]
        assert parts.snapshot_cache.snapshot.agent_states["s"] == {"a": 0, "b": 0}

    def test_before_the_first_view_there_is_nothing_to_amend(self, parts: Parts) -> None:
        parts.snapshot_cache.amend("key", "s", lambda agent_state: agent_state)
        assert parts.snapshot_cache.snapshot.generation == 0
