"""The state of the agent load follows changes of nodes and pods as if it were computed anew from the last of them."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agent import NodeIndex
from nodewise.agent.state import NODES, Change
from nodewise_scorers.load.projected_load import OTHERS
from scorers_tests.unit.load import load_clusters
from scorers_tests.unit.load.load_clusters import LoadCluster, bound_pod

NODE_NAMES = ["n1", "n2", "n3", "n4"]
SOME_NODES = st.lists(st.sampled_from(NODE_NAMES), unique=True)
POD_NAMES = st.sampled_from("abcdef")


class ChangingCluster(LoadCluster):
    """Nodes come and go, and tell their capacity late. The statistics know all nodes from the beginning."""

    def __init__(self) -> None:
        super().__init__(*NODE_NAMES[:2])
        self.measure({name: 1.0 + number for number, name in enumerate(NODE_NAMES)})

    def keep_nodes(self, names: list[str]) -> None:
        for key in [key for key in self.nodes if key[1] not in names]:
            self._change(NODES, key, Change(self.nodes.pop(key), None))
        for name in names:
            if ("", name) not in self.nodes:
                self.nodes["", name] = load_clusters.node(name)
                self._change(NODES, ("", name), Change(None, self.nodes["", name]))
        if self.index.known != tuple(names):
            self.index = NodeIndex(names)

    def tell_capacity(self, name: str, cpu: str) -> None:
        if ("", name) in self.nodes:
            self.set_capacity(name, cpu)

    def bind_new(self, name: str, node: str, cpu: str, owner: str) -> None:
        """A pod that the statistics do not include."""
        if ("default", name) not in self.pods:
            self.bind(bound_pod(name, node, cpu=cpu, owner=owner, bound=0))

    def end(self, name: str) -> None:
        if ("default", name) in self.pods:
            self.delete(name)


STEPS: st.SearchStrategy[tuple[str, tuple[Any, ...]]] = st.one_of(
    st.tuples(st.just("keep_nodes"), st.tuples(SOME_NODES)),
    st.tuples(st.just("tell_capacity"), st.tuples(st.sampled_from(NODE_NAMES), st.sampled_from(["0", "10"]))),
    st.tuples(
        st.just("bind_new"),
        st.tuples(
            POD_NAMES,
            st.sampled_from([*NODE_NAMES, "unknown"]),
            st.sampled_from(["1", "2"]),
            st.sampled_from(["Job/x", "Job/y"]),
        ),
    ),
    st.tuples(st.just("end"), st.tuples(POD_NAMES)),
    st.tuples(st.just("read_again"), st.just(())),
    st.tuples(st.just("state"), st.just((1.0,))),
)


@given(st.lists(STEPS, max_size=25))
def test_the_state_after_changes_equals_a_fresh_one(steps: list[tuple[str, tuple[Any, ...]]]) -> None:
    cluster = ChangingCluster()
    for name, arguments in steps:
        getattr(cluster, name)(*arguments)
    changed = cluster.state(2.0)
    cluster.restart()
    fresh = cluster.state(2.0)
    for field in ("predicted", "used", "capacity", "in_flight", "requested", "limits"):
        assert np.allclose(getattr(changed, field), getattr(fresh, field), equal_nan=True), field
    known = np.flatnonzero(fresh.capacity[0] > 0)
    for request in (0.5, 3.0):
        costs, expected = (
            state.projected.costs(state.numbers[known], OTHERS, request) for state in (changed, fresh)
        )
        assert np.allclose(costs, expected)
