import pytest

from nodewise.scheduling_model import scheduling_cycle

SIZES = [
    (1, 1),
    (99, 99),
    (100, 100),
    (150, 100),
    (250, 120),
    (1000, 420),
    (5000, 500),
    (5625, 281),
    (6000, 300),
]


@pytest.mark.parametrize(("nodes", "sample"), SIZES)
def test_how_many_feasible_nodes_are_enough(nodes: int, sample: int) -> None:
    assert scheduling_cycle.feasible_nodes_to_find(nodes) == sample


def test_a_percentage_may_be_set() -> None:
    assert scheduling_cycle.feasible_nodes_to_find(5000, percent=100) == 5000
    assert scheduling_cycle.feasible_nodes_to_find(5000, percent=1) == 100
