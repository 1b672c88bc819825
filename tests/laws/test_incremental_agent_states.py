"""Incrementally built agent states equal states that are built from scratch, after any history."""

import asyncio
from collections.abc import Callable, Generator, Mapping
from typing import Any

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.agent import ClusterState, Inputs, MetricRequest, NodeIndex
from nodewise.agent.state import NODES
from nodewise.base import cooperative_scheduling
from nodewise.engine.cluster_state_changes import Override
from nodewise.engine.snapshot_cache import SnapshotCache, Stores
from nodewise.kube import struct_type_merge
from nodewise.kube.store import Key, StoreWriter
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise_scorers import pigeon
from nodewise_scorers.pigeon.agent import PODS, HoldingPod, PigeonStateBuilder
from nodewise_scorers.pigeon.options import PigeonOptions
from scorers_tests.unit.pigeon.cluster_notation import node
from tests.manual_clock import ManualClock
from tests.unit.incremental_agent_states import built

Thing = struct_type_merge.merge("Thing")
NAMES = st.sampled_from("abc")
KINDS = st.sampled_from([NODES, "things", "ledgers"])


def thing(name: str, uid: int) -> Any:
    return Thing(metadata=struct_type_merge.ObjectMeta(name=name, uid=str(uid)))


class MirrorBuilder:
    """A builder that applies changes to a copy of the objects, which is its state. Tests can make it fail."""

    def __init__(self, *objects: str, node_objects: bool) -> None:
        self.inputs = Inputs(frozenset(objects), node_objects=node_objects, metrics=False)
        self.fails_at = -1
        self.meanwhile: Callable[[], None] = lambda: None
        self.is_out_of_step = False
        self._kinds = [*objects, *([NODES] if node_objects else [])]
        self._copies: dict[str, dict[Key, Any]] = {}

    def metric_requests(self, _: Any) -> frozenset[MetricRequest]:
        return frozenset()

    def problems(self, _: Any) -> dict[str, tuple[str, ...]]:
        return {}

    def build(self, cluster_state: ClusterState) -> Generator[None, None, Mapping[str, Mapping[Key, Any]]]:
        if cluster_state.changes is None:
            self._copies = {kind: {} for kind in self._kinds}
        steps = 0
        self.meanwhile()
        for kind in self._kinds:
            copy = self._copies[kind]
            for key, (old, new) in cluster_state.changes_of(kind):
                steps += 1
                if steps == self.fails_at:
                    raise ZeroDivisionError
                self.is_out_of_step |= copy.get(key) is not old
                if new is None:
                    copy.pop(key, None)
                else:
                    copy[key] = new
                yield
            self.is_out_of_step |= not same(copy, objects_of(cluster_state, kind))
        return {kind: dict(copy) for kind, copy in self._copies.items()}


def objects_of(cluster_state: ClusterState, kind: str) -> Mapping[Key, Any]:
    return cluster_state.node_objects if kind == NODES else cluster_state.objects[kind]


def same(first: Mapping[Key, Any], other: Mapping[Key, Any]) -> bool:
    return first.keys() == other.keys() and all(first[key] is other[key] for key in first)


class SubscribedCluster:
    """A snapshot cache, and a subscriber that applies the reported changes."""

    def __init__(self) -> None:
        self.writers: dict[str, StoreWriter[Any]] = {
            kind: StoreWriter() for kind in (NODES, "things", "ledgers")
        }
        stores = {kind: writer.store for kind, writer in self.writers.items()}
        clock, metrics = ManualClock(50.0), MetricsRegistry()
        self.builders = {
            "all": MirrorBuilder("things", "ledgers", node_objects=True),
            "things": MirrorBuilder("things", node_objects=False),
        }
        builders: Any = self.builders
        self.cache = SnapshotCache(
            builders,
            Stores(stores.pop(NODES), stores, {"ledgers": self._respond}),
            MetricsRefresher((), RefreshOptions(), clock, metrics),
            clock,
            metrics,
            1e9,
        )
        self.reported: dict[str, dict[Key, Any]] = {}
        self.generations: list[int] = []
        self.cache.subscribe(self._report)
        self.uid = 100
        for writer in self.writers.values():
            writer.finish("1")
        self.publish(0)

    def _report(self, cluster_state: ClusterState, generation: int) -> None:
        self.generations.append(generation)
        if cluster_state.changes is None:
            self.reported = {kind: {} for kind in (NODES, "things", "ledgers")}
        for kind, copy in self.reported.items():
            for key, (old, new) in cluster_state.changes_of(kind):
                assert copy.get(key) is old
                if new is None:
                    del copy[key]
                else:
                    copy[key] = new
            assert same(copy, objects_of(cluster_state, kind))

    def _respond(self, response: bytes) -> Any:
        self.uid += 1
        return self.writers["ledgers"].apply_response(thing(response.decode(), self.uid), str(self.uid))

    def put(self, kind: str, name: str) -> None:
        self.uid += 1
        self.writers[kind].apply(thing(name, self.uid))

    def delete(self, kind: str, name: str) -> None:
        self.writers[kind].remove(("", name))

    def relist(self, kind: str, names: list[str], *, are_same: bool) -> None:
        known = self.writers[kind].store
        self.uid += 1
        items = [(are_same and known.get("", name)) or thing(name, self.uid) for name in names]
        self.writers[kind].restart()
        for item in items:
            self.writers[kind].add(item)
        self.writers[kind].finish(str(self.uid))

    def respond(self, name: str) -> None:
        self.cache.apply_response("ledgers", name.encode())

    def amend(self, key: str, name: str, *, is_there: bool) -> None:
        self.uid += 1
        item = thing(name, self.uid) if is_there else None
        override = Override("ledgers", ("", name), item)
        self.cache.amend(key, "all", lambda state: {**state, "amended": item}, override)

    def withdraw(self, key: str) -> None:
        self.cache.withdraw_amendment(key)

    def rebuild(self) -> None:
        self.cache.rebuild()

    def publish(self, fails_at: int) -> None:
        self.builders["all"].fails_at = fails_at or -1
        self.builders["all"].meanwhile = lambda: None
        asyncio.run(self.cache.publish())
        assert not any(builder.is_out_of_step for builder in self.builders.values())
        current = self.cache.snapshot.agent_states
        stores = {kind: writer.store.snapshot() for kind, writer in self.writers.items()}
        assert same(current["things"]["things"], stores["things"])
        if "all" in current:
            assert all(same(current["all"][kind], objects) for kind, objects in stores.items())
        assert set(self.cache.snapshot.nodes.known) == {name for _, name in stores[NODES]}
        assert self.generations[-1] == self.cache.snapshot.generation

    def publish_while(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Make a change while the first agent state is built, and check that the next snapshot contains it."""
        self.builders["all"].meanwhile = lambda: getattr(self, name)(*arguments, **named)
        asyncio.run(self.cache.publish())
        assert self.generations[-1] == self.cache.snapshot.generation
        self.publish(0)


STEPS = st.one_of(
    st.tuples(st.just("put"), KINDS, NAMES),
    st.tuples(st.just("put"), KINDS, NAMES),
    st.tuples(st.just("delete"), KINDS, NAMES),
    st.tuples(st.just("respond"), NAMES),
    st.tuples(st.just("withdraw"), NAMES),
    st.tuples(st.just("rebuild")),
    st.tuples(st.just("publish"), st.integers(0, 4)),
    st.tuples(st.just("publish"), st.just(0)),
)
NAMED_STEPS = st.one_of(
    st.builds(
        lambda kind, names, are_same: ("relist", (kind, names), {"are_same": are_same}),
        KINDS,
        st.lists(NAMES, unique=True),
        st.booleans(),
    ),
    st.builds(
        lambda key, name, is_there: ("amend", (key, name), {"is_there": is_there}),
        NAMES,
        NAMES,
        st.booleans(),
    ),
)


Step = tuple[str, tuple[Any, ...], dict[str, Any]]
EVERY_STEP: st.SearchStrategy[Step] = STEPS.map(lambda step: (step[0], step[1:], {})) | NAMED_STEPS
MEANWHILE: st.SearchStrategy[Step] = EVERY_STEP.filter(lambda step: step[0] != "publish").map(
    lambda step: ("publish_while", step, {})
)


@settings(deadline=None)
@given(st.lists(EVERY_STEP | MEANWHILE, max_size=30))
def test_states_and_reports_follow_the_stores_by_changes_alone(
    steps: list[Step],
) -> None:
    scene = SubscribedCluster()
    for name, arguments, named in steps:
        getattr(scene, name)(*arguments, **named)
    scene.publish(0)
    scene.cache.rebuild()
    scene.put("things", "a")
    scene.put("ledgers", "a")
    scene.publish(0)


AMOUNTS = st.sampled_from(["1", "250m", "4", "x"])
SOME_NODES = st.builds(
    lambda cpu, requested: node({"cpu": cpu, "memory": "8Gi"}, {"requested-cpu": requested}),
    AMOUNTS,
    st.sampled_from(["100", "2000", "x"]),
)
HISTORIES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["n1", "n2", "n3", "n4"]), unique=True),
        st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), SOME_NODES, max_size=1),
        st.dictionaries(
            st.sampled_from(["a", "b", "c"]),
            st.tuples(st.sampled_from(["n1", "n2", "n9"]), AMOUNTS),
            max_size=2,
        ),
    ),
    max_size=8,
)


@settings(deadline=None)
@given(HISTORIES, st.sampled_from(["pods", "annotations"]), st.sampled_from(["LOAD_BALANCE", "A_BINPACK"]))
def test_pigeon_nodes_equal_a_fresh_list(
    history: list[tuple[list[str], dict[str, Any], dict[str, tuple[str, str]]]], usage: Any, objective: Any
) -> None:
    options = PigeonOptions(pigeon_usage=usage, policy_objective=objective)
    state: PigeonStateBuilder = pigeon.KIND.state(options, 5.0)
    nodes = {
        f"n{number}": node({"cpu": "4", "memory": "8Gi"}, {"requested-cpu": "1"}) for number in range(1, 5)
    }
    index = NodeIndex(nodes)
    for names, changed_nodes, pods in history:
        nodes = {**nodes, **changed_nodes}
        index = index if index.known == tuple(names) else NodeIndex(names)
        held = {("d", name): held_pod(name, on, cpu) for name, (on, cpu) in pods.items()}
        objects = {("", name): nodes[name] for name in names}
        cluster_state = ClusterState(index, {PODS: held}, MetricsSnapshot(), 0.0, objects)
        incremental = built(state, cluster_state)
        fresh = cooperative_scheduling.run_without_pauses(
            pigeon.KIND.state(options, 5.0).build(cluster_state)
        )
        assert np.array_equal(incremental.room, fresh.room)
        assert np.array_equal(incremental.scale, fresh.scale)
        assert np.array_equal(incremental.missing, fresh.missing)


def held_pod(name: str, on: str, cpu: str) -> HoldingPod:
    requests = {"resources": {"requests": {"cpu": cpu}}}
    spec = {"nodeName": on, "containers": [requests]}
    return msgspec.convert({"metadata": {"name": name, "namespace": "d"}, "spec": spec}, HoldingPod)
