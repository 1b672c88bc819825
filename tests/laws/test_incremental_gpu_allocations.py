"""Incrementally updated GPU allocations equal those of a fresh list, after any history."""

from functools import partial
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agent.state import NODES as KIND_OF_NODES
from nodewise.agents.gpu import extended_resource_amounts
from nodewise.agents.gpu import state as states
from nodewise.agents.gpu.gpu_pod_fields import cpu_milli
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, PODS, GpuState, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.base import cooperative_scheduling
from nodewise.engine.cluster_state_changes import AgentStates
from nodewise.kube.store import Change, ChangeLog, StoreWriter
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    agent_state,
    cluster_state,
    cpu_free,
    entry,
    laid_out,
    lease,
    lease_of,
    node,
    pod,
)

NODES = ("n1", "n2")
PODS_NAMED = ("a", "b")
GPUS = st.sampled_from([None, "card0", "card1", "card0,card1", "card0|card1", "card9", "card0,card0", ""])
REQUESTS = st.sampled_from(
    [("i915=1 mc=100",), ("i915=2 mc=2000 t=4",), ("i915=1", "i915=1"), ("",), ("mc=5",)]
)
SUBDEVICES = st.sampled_from([None, "card0:gt0", "card0:gt0+gt1,card1:gt7", "x"])
VERSIONS = st.sampled_from(["5", "6", "7", "8", "", "x"])

SOME_PODS = st.builds(
    lambda name, *rest, **more: pod(name, *rest, uid=f"uid-{name}-{more.pop('life')}", **more),
    st.sampled_from(PODS_NAMED),
    st.sampled_from(["", *NODES, "nosuch"]),
    GPUS,
    REQUESTS,
    subdevices=SUBDEVICES,
    life=st.integers(0, 1),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    cpu=st.sampled_from(["100m", "2", "x", ""]),
)
LIVES = st.tuples(st.sampled_from(PODS_NAMED), st.integers(0, 1))
"""A pod name, and a number that distinguishes the pods with this name."""
SOME_ENTRIES = st.tuples(
    GPUS.map(lambda text: text or ""), VERSIONS, REQUESTS, SUBDEVICES.map(lambda text: text or "")
)


def record_of(on: str, held: dict[tuple[str, int], Any], odd: list[Any]) -> Any:
    entries = {f"uid_{name}_{life}": entry(name, *rest) for (name, life), rest in held.items()}
    return lease(on, **entries, **{f"odd{number}": entry for number, entry in enumerate(odd)})


SOME_RECORDS = st.builds(
    record_of,
    st.sampled_from(NODES),
    st.dictionaries(LIVES, SOME_ENTRIES, min_size=1, max_size=3),
    st.lists(st.sampled_from([3, {"pod": 1}]), max_size=1),
) | st.builds(lease_of, st.sampled_from(NODES), st.sampled_from(["", "{", "[]"]))
SOME_NODES = st.builds(
    node,
    st.sampled_from(["i915=4 mc=2000 t=8", "i915=2", ""]),
    st.sampled_from(["0.1", "0.1.2", "", "x"]),
    cpu=st.sampled_from(["4", "0", "x", ""]),
)

STEP = st.one_of(
    st.tuples(st.just("pod"), SOME_PODS),
    st.tuples(st.just("pod_gone"), st.sampled_from(PODS_NAMED)),
    st.tuples(st.just("record"), SOME_RECORDS),
    st.tuples(st.just("record_gone"), st.sampled_from(NODES)),
    st.tuples(st.just("node"), st.sampled_from(NODES), SOME_NODES),
    st.tuples(st.just("node_gone"), st.sampled_from(NODES)),
    st.tuples(st.just("pod"), SOME_PODS),
    st.tuples(st.just("record"), SOME_RECORDS),
    st.tuples(st.just("version"), VERSIONS),
    st.tuples(st.just("relist"), st.randoms(use_true_random=False)),
    st.tuples(st.just("version"), VERSIONS),
    # a build that has not begun is only abandoned together with its changes, by `SnapshotCache.publish`
    st.tuples(st.just("give_up"), st.integers(1, 12)),
    st.tuples(st.just("rebuild")),
    st.tuples(st.just("amend"), SOME_RECORDS),
)
HISTORIES = st.lists(st.lists(STEP, min_size=1, max_size=2), min_size=3, max_size=12)
"""Lists of steps. The agent state is computed after each list."""


class IncrementalGpuState:
    """Stores that change, and a state builder that follows the changes."""

    def __init__(self) -> None:
        self.state = GpuStateBuilder(INTEL)
        self.states = AgentStates({"gpu": self.state}, 5.0)
        self.log = ChangeLog()
        self.pods, self.allocation_record = StoreWriter[Any](), StoreWriter[Any]()
        self.pods.store.subscribe(partial(self.log.add, PODS))
        self.allocation_record.store.subscribe(partial(self.log.add, ALLOCATION_RECORDS))
        self.nodes: dict[tuple[str, str], Any] = {("", name): node() for name in NODES}
        self.index = NodeIndex()
        self.at = "7"

    def cluster_state(self) -> ClusterState:
        objects = {
            PODS: self.pods.store.snapshot(),
            ALLOCATION_RECORDS: self.allocation_record.store.snapshot(),
        }
        names = tuple(name for _, name in self.nodes)
        if names != self.index.known:
            self.index = NodeIndex(names)
        plain = cluster_state({}, version=self.at, index=self.index)
        return msgspec.structs.replace(plain, objects=objects, node_objects=dict(self.nodes))

    def pod(self, pod: Any) -> None:
        self.pods.apply(pod)

    def pod_gone(self, name: str) -> None:
        self.pods.remove(("d", name))

    def record(self, record: Any) -> None:
        self.allocation_record.apply(record)

    def record_gone(self, name: str) -> None:
        self.allocation_record.remove(("nw", f"gpu-{name}"))

    def node(self, name: str, node: Any) -> None:
        self.log.add(KIND_OF_NODES, {("", name): Change(self.nodes.get(("", name)), node)})
        self.nodes["", name] = node

    def node_gone(self, name: str) -> None:
        self.log.add(KIND_OF_NODES, {("", name): Change(self.nodes.pop(("", name), None), None)})

    def relist(self, random: Any) -> None:
        for writer in (self.pods, self.allocation_record):
            items = writer.store.values()
            random.shuffle(items)
            writer.replace(items)

    def version(self, version: str) -> None:
        self.at = version

    def compute(self) -> GpuState:
        state_inputs = self.cluster_state()
        cooperative_scheduling.run_without_pauses(self.states.build("gpu", self.changed(state_inputs)))
        state: GpuState = self.states.newest()["gpu"]
        assert shown(state) == shown(agent_state(state_inputs))
        return state

    def changed(self, cluster_state: ClusterState) -> ClusterState:
        return msgspec.structs.replace(cluster_state, changes=self.log.take())

    def give_up(self, steps: int) -> None:
        half = self.states.build("gpu", self.changed(self.cluster_state()))
        for _, _ in zip(range(steps), half, strict=False):
            pass
        half.close()

    def rebuild(self) -> None:
        self.states.rebuild()

    def amend(self, record: Any) -> None:
        name = record.metadata.name.removeprefix("gpu-")
        amended = self.state.apply_allocation_record(self.compute(), name, record)
        before = self.cluster_state()
        with_it = {**before.objects[ALLOCATION_RECORDS], ("nw", record.metadata.name): record}
        computed = agent_state(
            msgspec.structs.replace(before, objects={**before.objects, ALLOCATION_RECORDS: with_it})
        )
        if name in amended.nodes:
            assert shown(amended) == shown(computed)

    def live(self, history: list[list[tuple[Any, ...]]]) -> GpuState:
        """The agent state after the last step."""
        for steps in history:
            for kind, *rest in steps:
                getattr(self, kind)(*rest)
            self.compute()
        return self.compute()


def shown(state: GpuState) -> Any:
    """The content of an agent state, independent of the order in which pods were added."""
    nodes = {
        name: (*node_state._replace(bound=()), sorted(node_state.bound, key=lambda bound: bound.metadata.uid))
        for name, node_state in state.nodes.items()
    }
    return nodes, laid_out(state), cpu_free(state)


@given(HISTORIES)
def test_any_history_ends_in_the_books_of_a_fresh_list(history: list[list[tuple[Any, ...]]]) -> None:
    scene = IncrementalGpuState()
    state = scene.live(history)
    for name, row in zip((*scene.index.known, ""), state.layout.rows.tolist(), strict=True):
        assert row == state.rows.get(name, len(state.rows))


@given(HISTORIES)
def test_free_cpu_excludes_requests_of_pods_and_claims(
    history: list[list[tuple[Any, ...]]],
) -> None:
    scene = IncrementalGpuState()
    state = scene.live(history)
    pods = scene.pods.store.values()
    for name, free in cpu_free(state).items():
        coming = {
            uid for uid, held in state.nodes[name].allocations.by_uid.items() if held.source == "ledger"
        }
        requested = sum(
            cpu_milli(pod)
            for pod in pods
            if (pod.spec.nodeName == name and pod.status.phase not in ("Succeeded", "Failed"))
            or (not pod.spec.nodeName and pod.metadata.uid in coming)
        )
        assert free == states.allocatable_cpu(scene.nodes["", name]) - requested


@given(SOME_PODS)
def test_a_stored_pod_requests_the_same_cpu(given_pod: Any) -> None:
    kept = states.reduce_non_gpu_pod_to_cpu(given_pod)
    assert states.cpu_milli_on_node(given_pod) == (states.cpu_milli_on_node(kept) if kept is not None else 0)
    assert kept is None or states.reduce_non_gpu_pod_to_cpu(kept) == kept
    if (held := states.keep_gpu_pod(given_pod)) is not None:
        assert kept == held


@given(HISTORIES)
def test_nothing_that_is_held_is_negative_or_beyond_all_amounts(history: list[list[tuple[Any, ...]]]) -> None:
    for node_state in IncrementalGpuState().live(history).nodes.values():
        for held in node_state.allocations.amounts.values():
            assert all(0 < amount <= extended_resource_amounts.LARGEST for amount in held.values())
        assert node_state.allocations.stale.isdisjoint(
            node_state.allocations.by_uid.keys() - {b.metadata.uid for b in node_state.bound}
        )
