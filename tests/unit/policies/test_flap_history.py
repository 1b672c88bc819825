"""The history of flaps: its limits, and the flaps that count."""

import numpy as np

from nodewise.agent import NodeIndex
from nodewise.policies.hysteresis import FlapHistory

NODES = NodeIndex(tuple(f"n{number}" for number in range(1000)))


def test_the_history_of_a_rule_that_rejects_other_nodes_each_time_is_limited() -> None:
    """A tenant can have 128 such rules."""
    random = np.random.default_rng(1)
    history, before = FlapHistory(), np.zeros(1001, np.bool_)
    for time in range(50):
        rejected = random.random(1001) < 0.5
        history = history.update(before, rejected, NODES, 5.0 * time)
        before = rejected
    assert len(history.changes) <= 64
    assert len(history.recent(250.0)) == 100


def test_the_newest_flaps_count() -> None:
    history, passes, rejects = FlapHistory(), np.array([False, False]), np.array([True, False])
    nodes = NodeIndex(("a",))
    for time in range(130):
        history = history.update(passes, rejects, nodes, 2.0 * time)
        history = history.update(rejects, passes, nodes, 2.0 * time + 1.0)
    flaps = history.recent(260.0)
    assert [flap.at for flap in flaps] == [2.0 * time for time in range(30, 130)]
    assert {(flap.node, flap.rejected_s) for flap in flaps} == {("a", 1.0)}
