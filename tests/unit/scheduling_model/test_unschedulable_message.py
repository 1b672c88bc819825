import pytest

from nodewise.scheduling_model import scheduler_plugins
from nodewise.scheduling_model.scheduler_plugins import Rejection

HOT, BROKEN = Rejection(("hot",)), Rejection(("broken",))


@pytest.mark.parametrize(
    ("nodes", "rejected", "message"),
    [
        pytest.param(3, [HOT, BROKEN, HOT], " 1 broken, 2 hot.", id="counted by their text"),
        pytest.param(12, [HOT] * 10 + [BROKEN] * 2, " 10 hot, 2 broken.", id="sorted as text"),
        pytest.param(1, [Rejection(("a", "b"))], " 1 a, 1 b.", id="one node may have several"),
        pytest.param(2, [], "", id="nodes without a word"),
    ],
)
def test_reasons(nodes: int, rejected: list[Rejection], message: str) -> None:
    assert scheduler_plugins.text(nodes, rejected) == f"0/{nodes} nodes are available:{message}"


def test_nodes_of_which_nothing_is_said_may_share_a_reason() -> None:
    assert scheduler_plugins.text(3, [HOT], absent="no help").endswith(" 1 hot, 2 no help.")
    assert scheduler_plugins.text(1, [HOT], absent="no help").endswith(" 1 hot.")


def test_an_event_is_cut_by_bytes() -> None:
    assert scheduler_plugins.event("x" * 1024) == "x" * 1024
    assert scheduler_plugins.event("x" * 1025) == "x" * 1020 + " ..."
    assert len(scheduler_plugins.event("é" * 600).encode()) <= 1024
