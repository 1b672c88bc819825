"""How many nodes native mode may label while pods wait."""

import pytest

from nodewise.policies.controller.node_writer import ExaminationBudget


def changes(budget: ExaminationBudget, now_s: float, pods: int, *, urgent: int = 0) -> int:
    """The number of nodes that may be changed at once, after some urgent changes."""
    assert all(budget.take(now_s, pods, is_urgent=True) for _ in range(urgent))
    count = 0
    while count < 10_000 and budget.take(now_s, pods, is_urgent=False):
        count += 1
    return count


@pytest.mark.parametrize(
    ("pods", "at_once", "per_second"),
    [(0, 10_000, 10_000), (500, 250, 50), (2_500, 50, 10), (5_000, 25, 5), (1_000_000, 25, 5)],
)
def test_the_more_pods_wait_the_fewer_nodes_are_changed(pods: int, at_once: int, per_second: int) -> None:
    budget = ExaminationBudget()
    assert changes(budget, 100.0, pods) == pytest.approx(at_once, abs=1)
    assert changes(budget, 101.0, pods) == pytest.approx(per_second, abs=1)
    assert changes(budget, 1000.0, pods) == pytest.approx(at_once, abs=1)


def test_urgent_changes_are_always_allowed_and_delay_others() -> None:
    budget = ExaminationBudget()
    assert changes(budget, 0.0, 2_500, urgent=1000) == 0
    assert changes(budget, 4.9, 2_500) == 0, "at most five seconds of the budget are owed"
    assert changes(budget, 6.0, 2_500) == pytest.approx(10, abs=1)
    assert changes(budget, 6.0, 0) == 10_000, "no pod waits any more"
