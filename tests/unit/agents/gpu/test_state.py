"""The state of the gpu agent is recomputed only where inputs changed, with the same result as a new computation."""

from typing import Any

import msgspec
import pytest

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agents.gpu import gpu_arrays
from nodewise.agents.gpu import state as states
from nodewise.agents.gpu.state import GpuState, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.base import cooperative_scheduling
from tests.unit.agents.gpu import gpu_node_and_pod_builders
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    PREFIX,
    agent_state,
    charged_amounts,
    cluster_state,
    entry,
    laid_out,
    lease,
    lease_of,
    node,
    pod,
)
from tests.unit.incremental_agent_states import changed

I915 = f"{PREFIX}i915"
NODES = {"plain": node("", ""), "n1": node(), "n2": node(numbers="0.1.2", allocatable="i915=3")}


class CountingStateBuilder:
    """A state builder that counts the nodes that it computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = GpuStateBuilder(INTEL)
        self.computed: list[str] = []
        of_node = states.node_allocations.allocations_of_node

        def counted(name: str, *arguments: Any) -> Any:
            self.computed.append(name)
            return of_node(name, *arguments)

        monkeypatch.setattr(states.node_allocations, "allocations_of_node", counted)

    def build(self, cluster: ClusterState) -> GpuState:
        self.computed.clear()
        return agent_state(cluster, self.state)


@pytest.fixture
def counting_builder(monkeypatch: pytest.MonkeyPatch) -> CountingStateBuilder:
    return CountingStateBuilder(monkeypatch)


def of_objects(before: ClusterState, **changes: Any) -> ClusterState:
    """The same cluster state with other objects. Mappings that are not passed remain identical."""
    objects = {**before.objects, **{name: value for name, value in changes.items() if name in before.objects}}
    rest = {name: value for name, value in changes.items() if name not in before.objects}
    return msgspec.structs.replace(before, objects=objects, **rest)


def free(gpu_state: GpuState, name: str) -> dict[str, int]:
    """By GPU, the free units; GPUs without units are omitted."""
    return {gpu: amounts[I915] for gpu, amounts in laid_out(gpu_state)[name].items() if I915 in amounts}


def test_nodes_with_cards_are_laid_out() -> None:
    gpu_state = agent_state(cluster_state(NODES, [pod("a", "n1", "card1")]))
    assert free(gpu_state, "n1") == {"card0": 2, "card1": 1}
    assert free(gpu_state, "n2") == {"card0": 1, "card1": 1, "card2": 1}
    assert list(gpu_state.rows) == ["n1", "n2"]
    assert gpu_state.layout.rows.tolist() == [2, 0, 1, 2]


def test_an_empty_world() -> None:
    gpu_state = agent_state(cluster_state({}))
    assert (gpu_state.nodes, gpu_state.layout.size, gpu_state.layout.rows.tolist()) == ({}, 0, [0])


def test_a_node_without_cards_on_which_a_pod_has_some_is_shown() -> None:
    gpu_state = agent_state(cluster_state(NODES, [pod("a", "plain", "card0")]))
    assert charged_amounts(gpu_state, "plain") == {"card0": {"i915": 1, "millicores": 100}}
    assert "plain" not in gpu_state.rows


class TestOnlyWhatChanged:
    def test_nothing_is_computed_where_nothing_changed(self, counting_builder: CountingStateBuilder) -> None:
        cluster = cluster_state(
            NODES, [pod("a", "n1", "card1")], [lease("n2", uid_b=entry("b", "card0", "11"))]
        )
        first = counting_builder.build(cluster)
        assert sorted(counting_builder.computed) == ["n1", "n2"]
        second = counting_builder.build(cluster)
        assert counting_builder.computed == []
        assert second.layout is first.layout

    def test_a_pod_concerns_its_node_and_the_nodes_whose_ledgers_name_it(
        self, counting_builder: CountingStateBuilder
    ) -> None:
        before = cluster_state(
            NODES, [pod("a"), pod("x", "n2", "card0")], [lease("n1", uid_a=entry("a", "card1"))]
        )
        counting_builder.build(before)
        key = ("d", "a")
        gpu_state = counting_builder.build(
            of_objects(before, pods={**before.objects["pods"], key: pod("a", "n2", "card2")})
        )
        assert sorted(counting_builder.computed) == ["n1", "n2"]
        assert charged_amounts(gpu_state) == {}
        assert free(gpu_state, "n2") == {"card0": 0, "card1": 1, "card2": 0}

    def test_a_newer_version_of_the_pods_concerns_only_entries_of_pods_not_seen(
        self, counting_builder: CountingStateBuilder
    ) -> None:
        before = cluster_state(
            NODES, [pod("x", "n2", "card0")], [lease("n1", uid_a=entry("a", "card1", "12"))]
        )
        assert free(counting_builder.build(before), "n1") == {"card0": 2, "card1": 1}
        for version, left in (("11", 1), ("12", 2), ("13", 2)):
            gpu_state = counting_builder.build(of_objects(before, versions={"pods": version}))
            assert free(gpu_state, "n1")["card1"] == left
        assert counting_builder.computed == []

    def test_a_ledger_concerns_its_node(self, counting_builder: CountingStateBuilder) -> None:
        before = cluster_state(NODES, [pod("x", "n2", "card0")])
        counting_builder.build(before)
        record = lease("n1", uid_a=entry("a", "card1", "12"))
        gpu_state = counting_builder.build(of_objects(before, ledgers={("nw", "gpu-n1"): record}))
        assert counting_builder.computed == ["n1"]
        assert free(gpu_state, "n1")["card1"] == 1
        gpu_state = counting_builder.build(of_objects(before, ledgers={}))
        assert free(gpu_state, "n1")["card1"] == 2

    def test_other_leases_are_no_allocation_records(self) -> None:
        record = lease("n1", uid_a=entry("a", "card1", "12"))
        cluster = cluster_state(NODES, leases=[record])
        other = {("nw", "nodewise-extender"): record}
        assert charged_amounts(agent_state(of_objects(cluster, ledgers=other))) == {}

    def test_a_node_whose_labels_change(self, counting_builder: CountingStateBuilder) -> None:
        before = cluster_state(NODES, [pod("x", "n2", "card0")])
        counting_builder.build(before)
        nodes = {**before.node_objects, ("", "n1"): node(numbers="0.1.2.3")}
        gpu_state = counting_builder.build(of_objects(before, node_objects=nodes))
        assert counting_builder.computed == ["n1"]
        assert free(gpu_state, "n1") == dict.fromkeys(("card0", "card1", "card2", "card3"), 1)

    def test_cards_come_and_go_with_the_nodes(self) -> None:
        state = GpuStateBuilder(INTEL)
        pods = [pod("a", "n1", "card0"), pod("b", "n2", "card0")]
        for names in (["n2", "n1"], ["n1"], [], ["plain", "n2", "n1"], ["n1", "plain"]):
            gpu_state = agent_state(cluster_state({name: NODES[name] for name in names}, pods), state)
            assert laid_out(gpu_state) == laid_out(
                agent_state(cluster_state({name: NODES[name] for name in names}, pods))
            )
            assert sorted(gpu_state.nodes) == sorted({*names} - {"plain"})
        gone = agent_state(cluster_state({"n1": node("", "")}, pods), state)
        assert gone.rows == {}

    def test_numbers_of_nodes_change_and_the_cards_stay(self, counting_builder: CountingStateBuilder) -> None:
        before = cluster_state(NODES)
        first = counting_builder.build(before)
        gpu_state = counting_builder.build(of_objects(before, nodes=NodeIndex(["n2", "x", "n1", "plain"])))
        assert counting_builder.computed == []
        assert gpu_state.layout.free is first.layout.free
        assert gpu_state.layout.rows.tolist() == [1, 2, 0, 2, 2]

    def test_a_slot_that_was_given_up_half_way_costs_nothing_but_time(self) -> None:
        worlds = [
            cluster_state(NODES, [pod("a", "n1", "card0")]),
            cluster_state(NODES, [pod("a", "n2", "card1")], [lease("n1", uid_b=entry("b", "card1", "11"))]),
            cluster_state(NODES, [pod("c", "n1", "card1")]),
        ]
        for steps in range(30):
            state = GpuStateBuilder(INTEL)
            agent_state(worlds[0], state)
            half = state.build(changed(worlds[0], worlds[1]))
            for _, _ in zip(range(steps), half, strict=False):
                pass
            half.close()
            assert laid_out(cooperative_scheduling.run_without_pauses(state.build(worlds[2]))) == laid_out(
                agent_state(worlds[2])
            )

    def test_a_slot_given_away_never_changes(self) -> None:
        state = GpuStateBuilder(INTEL)
        first = agent_state(cluster_state(NODES, [pod("a", "n1", "card0")]), state)
        shown = laid_out(first)
        agent_state(cluster_state(NODES, [pod("a", "n1", "card1")]), state)
        state.apply_allocation_record(first, "n1", lease("n1", uid_b=entry("b", "card1", "11")))
        assert laid_out(first) == shown
        assert charged_amounts(first) == {"card0": {"i915": 1, "millicores": 100}}


class TestAmended:
    def test_an_entry_counts_at_once(self) -> None:
        cluster = cluster_state(NODES, [pod("a", phase="Pending"), pod("b", "n1", "card0")])
        record = lease("n1", uid_a=entry("a", "card1"))
        state = GpuStateBuilder(INTEL)
        gpu_state = state.apply_allocation_record(agent_state(cluster, state), "n1", record)
        computed = agent_state(of_objects(cluster, ledgers={("nw", "gpu-n1"): record}))
        assert laid_out(gpu_state) == laid_out(computed)
        assert free(gpu_state, "n1") == {"card0": 1, "card1": 1}
        assert gpu_state.nodes["n1"] == computed.nodes["n1"]

    def test_the_same_ledger_gives_the_same_slot(self) -> None:
        record = lease("n1", uid_a=entry("a", "card1", "11"))
        state = GpuStateBuilder(INTEL)
        first = agent_state(cluster_state(NODES, leases=[record]), state)
        assert state.apply_allocation_record(first, "n1", record) is first
        assert state.apply_allocation_record(first, "n2", None) is first
        assert free(state.apply_allocation_record(first, "n1", None), "n1") == {"card0": 2, "card1": 2}

    def test_record_of_an_unknown_node_changes_nothing(self) -> None:
        state = GpuStateBuilder(INTEL)
        first = agent_state(cluster_state(NODES), state)
        assert (
            state.apply_allocation_record(first, "nosuch", lease("nosuch", uid_a=entry("a", "card1")))
            is first
        )

    def test_the_next_slot_is_computed_from_its_world_alone(self) -> None:
        state = GpuStateBuilder(INTEL)
        cluster = cluster_state(NODES)
        state.apply_allocation_record(
            agent_state(cluster, state), "n1", lease("n1", uid_a=entry("a", "card1", "11"))
        )
        assert free(agent_state(cluster, state), "n1") == {"card0": 2, "card1": 2}


class TestProblems:
    def test_they_are_those_of_the_newest_slot(self) -> None:
        state = GpuStateBuilder(INTEL)
        agent_state(cluster_state(NODES, [pod("a", "n1", "card7")], [lease_of("n2", "{")]), state)
        problems = state.problems({})
        assert sorted(problems) == ["node n1", "node n2"]
        assert problems["node n1"] == ("d/a hold 'card7', which the node does not have",)
        agent_state(cluster_state(NODES), state)
        assert state.problems({}) == {}

    def test_no_metric_is_wanted(self) -> None:
        assert GpuStateBuilder(INTEL).metric_requests({}) == frozenset()


def test_an_entry_that_a_version_ended_counts_again_when_versions_begin_anew() -> None:
    state, cluster = (
        GpuStateBuilder(INTEL),
        cluster_state(NODES, leases=[lease("n1", uid_a=entry("a", "card1", "8"))]),
    )
    for version, left in (("7", 1), ("8", 2), ("", 1), ("9", 2), ("3", 1), ("x", 1), ("9", 2)):
        gpu_state = agent_state(of_objects(cluster, versions={"pods": version}), state)
        assert free(gpu_state, "n1")["card1"] == left


class TestInventedResources:
    """A node may declare any resources and names. Those that come and go must leave nothing behind, because the arrays
    of all nodes grow."""

    def test_names_that_came_and_went_are_not_kept(self) -> None:
        state = GpuStateBuilder(INTEL)
        plain = {f"n{number}": node() for number in range(100)}
        for number in range(50):
            gpus = [{"name": f"c{number}-{at}"} for at in range(64)]
            odd = invented(f"i915=64 x{number}=64", msgspec.json.encode(gpus).decode())
            gpu_state = agent_state(cluster_state({**plain, "odd": odd}), state)
            assert f"{PREFIX}x{number}" in gpu_state.layout.capacity
            assert len(gpu_state.layout.capacity) <= 4
            assert len(gpu_state.layout.names) < 1500

    def test_beyond_a_bound_they_count_as_absent_and_are_a_problem(self) -> None:
        nodes = {
            f"n{number}": invented(
                " ".join(f"x{number}-{at}=1" for at in range(60)) + " i915=1", '[{"name":"card0"}]'
            )
            for number in range(30)
        }
        state = GpuStateBuilder(INTEL)
        gpu_state = agent_state(cluster_state(nodes), state)
        assert len(gpu_state.layout.capacity) == gpu_arrays.MOST
        assert f"{PREFIX}i915" in gpu_state.layout.capacity
        assert any("count as absent" in text for texts in state.problems({}).values() for text in texts)
        few = {name: gpu_node for name, gpu_node in nodes.items() if name in ("n28", "n29")}
        assert laid_out(agent_state(cluster_state(few), state)) == laid_out(agent_state(cluster_state(few)))
        assert not state.problems({})


def invented(allocatable: str, gpus: str) -> Any:
    return gpu_node_and_pod_builders.node("", allocatable, gpus=gpus)


def test_pods_on_a_node_with_a_sick_gpu_hold_healthy_ones() -> None:
    """Which of four GPUs is sick is not known, but not one that a pod holds; the total is that of the device plugin."""
    nodes = {"n1": node("i915=3", numbers="0.1.2.3")}
    gpu_state = agent_state(cluster_state(nodes, [pod("a", "n1", "card3", ["i915=1"])]))
    assert free(gpu_state, "n1") == {"card0": 1, "card1": 1, "card3": 0}
    (problem,) = gpu_state.nodes["n1"].problems
    assert problem.endswith("assumed without: card2")


def test_a_sick_gpu_is_another_one_once_a_reservation_holds_it() -> None:
    builder = GpuStateBuilder(INTEL)
    cluster = cluster_state({"n1": node("i915=1", numbers="0.1")}, [pod("a")])
    gpu_state = agent_state(cluster, builder)
    assert free(gpu_state, "n1") == {"card0": 1}
    record = lease("n1", uid_a=entry("a", "card1", "3", ["i915=1"]))
    gpu_state = builder.apply_allocation_record(gpu_state, "n1", record)
    assert free(gpu_state, "n1") == {"card1": 0}
