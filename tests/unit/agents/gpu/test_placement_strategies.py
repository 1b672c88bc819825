"""Placements: the order of GPUs and of nodes."""

import numpy as np
import pytest

from nodewise.agents.gpu import fragmentation, placement_strategies
from nodewise.agents.gpu.fit import fit
from nodewise.agents.gpu.placement_strategies import PlacementInputs
from nodewise.agents.gpu.pod_gpu_requests import Demand
from tests.unit.agents.gpu.gpu_fragmentation_layouts import COUNT, MILLI, board, demand, share

TYPICAL = fragmentation.build_fragmentation_tables({share(500): 3, share(1000): 1}, (COUNT,))


def inputs(placement, workload=TYPICAL, cpu_free=None):
    return PlacementInputs(placement, (COUNT,), (MILLI,), workload, cpu_free)


def gpu(placement, free, wanted, **more):
    """The position of the GPU that a pod gets on the only node."""
    pod_demand = demand(wanted)
    fitted = fit(
        board(free),
        np.array([0]),
        pod_demand,
        placement_strategies.gpu_order(inputs(placement, **more), pod_demand),
    )
    return fitted.gpus(0)[0][0]


def points(placement, nodes, pod_demand, **more):
    laid_out, rows = board(*nodes), np.arange(len(nodes))
    going_by = inputs(placement, **more)
    fitted = (
        fit(laid_out, rows, pod_demand, placement_strategies.gpu_order(going_by, pod_demand))
        if pod_demand.wants_gpus
        else None
    )
    node_points = placement_strategies.node_points(going_by, laid_out, rows, pod_demand, fitted)
    return None if node_points is None else node_points.tolist()


@pytest.mark.parametrize(
    ("placement", "free", "wanted", "position"),
    [
        pytest.param("first-fit", (900, 500, 700), 400, 0, id="the first"),
        pytest.param("pack", (900, 500, 700), 400, 1, id="the fullest that fits"),
        pytest.param("pack", (900, 300, 700), 400, 2, id="not one that is too full"),
        pytest.param("spread", (700, 500, 900), 400, 2, id="the emptiest"),
        pytest.param("balanced", (700, 500, 900), 400, 2, id="the least used"),
        pytest.param("fragmentation", (1000, 600, 500), 500, 2, id="half a card stays whole nowhere else"),
        pytest.param("fragmentation", (1000, 550, 700), 200, 2, id="one that is left of use to a half"),
        pytest.param("pack", (1000, 550, 700), 200, 1, id="where pack takes the fullest"),
    ],
)
def test_a_placement_takes(placement, free, wanted, position) -> None:
    assert gpu(placement, free, wanted) == position


def test_without_typical_pods_fragmentation_is_pack() -> None:
    assert gpu("fragmentation", (1000, 550, 700), 200, workload=fragmentation.NO_WORKLOAD) == 1


def test_a_pods_own_placement_wins() -> None:
    pod_demand = demand(200)._replace(placement="spread")

    assert points("pack", [(1000,), (300,)], pod_demand) == [10, 9]


@pytest.mark.parametrize(
    ("placement", "wanted"),
    [
        pytest.param("first-fit", None, id="first-fit likes no node better"),
        pytest.param("pack", [8, 9, 10, 0], id="pack likes the fullest"),
        pytest.param("spread", [10, 9, 8, 0], id="spread the emptiest"),
        pytest.param("balanced", [10, 9, 8, 0], id="balanced the least used"),
    ],
)
def test_nodes_are_liked(placement, wanted) -> None:
    assert points(placement, [(1000, 1000), (1000, 900), (500, 500), (100, 100)], demand(500)) == wanted


def test_fragmentation_likes_the_node_that_it_spoils_least() -> None:
    assert points("fragmentation", [(1000,), (900,), (500,), (100,)], demand(500)) == [9, 8, 10, 0]


def test_among_equal_nodes_one_alone_is_the_best() -> None:
    node_points = points("pack", [(1000,)] * 30, demand(500))

    assert sorted(node_points, reverse=True)[:12] == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]


@pytest.mark.parametrize("placement", ["first-fit", "spread", "balanced"])
def test_nodes_for_pods_without_cards_are_left_to_others(placement) -> None:
    assert points(placement, [(1000,), (100,)], Demand(cpu_milli=4000)) is None


def test_pack_puts_pods_without_cards_where_few_cards_are_free() -> None:
    assert points("pack", [(1000,), (), (100,)], Demand(cpu_milli=4000)) == [8, 10, 9]


@pytest.mark.parametrize("placement", ["pack", "spread", "balanced", "fragmentation"])
def test_where_no_node_has_cards_any_more_none_is_liked(placement) -> None:
    assert points(placement, [(), ()], demand(500)) == [0, 0]


def test_fragmentation_takes_cpu_where_free_cards_do_not_need_it() -> None:
    workload = fragmentation.build_fragmentation_tables({share(500, cpu_milli=6000): 1}, (COUNT,))
    cpu = np.array([8000, 16000, 5000, 0])

    node_points = points(
        "fragmentation", [(1000,)] * 3, Demand(cpu_milli=4000), workload=workload, cpu_free=cpu
    )

    assert node_points[0] == min(node_points)


def test_whether_a_pod_fits_does_not_depend_on_the_order_of_cards() -> None:
    laid_out, pod_demand = board((900, 500, 700), (100, 100)), demand(400, gpus=2)
    quick = fit(
        laid_out,
        np.array([0, 1]),
        pod_demand,
        placement_strategies.cheapest_gpu_order(inputs("fragmentation"), pod_demand),
    )
    whole = fit(
        laid_out,
        np.array([0, 1]),
        pod_demand,
        placement_strategies.gpu_order(inputs("fragmentation"), pod_demand),
    )

    assert (quick.codes == 0).tolist() == (whole.codes == 0).tolist() == [True, False]
