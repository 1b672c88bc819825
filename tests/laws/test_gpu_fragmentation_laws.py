"""Laws of placements: the fragmentation equals a direct calculation, for any GPUs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agents.gpu import fragmentation, placement_strategies
from nodewise.agents.gpu.fit import fit
from nodewise.agents.gpu.gpu_arrays import CandidateGpus
from nodewise.agents.gpu.placement_strategies import PlacementInputs
from tests.unit.agents.gpu.gpu_fragmentation_layouts import COUNT, MILLI, WHOLE, board, demand, plain, share

MODELS = ["A", "B", ""]
GPU = st.tuples(st.integers(0, WHOLE), st.sampled_from(MODELS))
NODE = st.tuples(st.lists(GPU, max_size=5), st.integers(0, 20))
NODES = st.lists(NODE, min_size=1, max_size=5)
CLASS = st.builds(
    share,
    st.integers(1, WHOLE),
    st.integers(1, 4),
    st.integers(0, 20),
    st.none() | st.lists(st.sampled_from(MODELS[:2]), min_size=1),
)
CLASSES = st.dictionaries(CLASS, st.integers(1, 9), max_size=6)


def _laid_out(nodes):
    frees = [[free for free, _ in gpus] for gpus, _ in nodes]
    models = {at: [model for _, model in gpus] for at, (gpus, _) in enumerate(nodes)}
    return board(*frees, models=models), np.array([cpu for _, cpu in nodes])


def _measured(known, candidate_gpus, cpu):
    hosts = fragmentation.node_cells(known, cpu, len(candidate_gpus))
    return fragmentation.fragmentation_of(known, fragmentation.gpu_cells(known, candidate_gpus), hosts)


@given(NODES, CLASSES)
def test_fragmentation_equals_the_plain_formula_and_is_at_most_the_free_capacity(nodes, classes) -> None:
    laid_out, cpu = _laid_out(nodes)
    known = fragmentation.build_fragmentation_tables(classes, (COUNT,))

    measured = _measured(known, CandidateGpus(laid_out, np.arange(len(nodes))), cpu)

    for (gpus, cpu_milli), amount in zip(nodes, measured.tolist(), strict=True):
        free, models = [free for free, _ in gpus], [model for _, model in gpus]
        assert -1e-9 <= amount <= sum(free) / WHOLE + 1e-9
        assert abs(amount - (plain(classes, free, cpu_milli, models) if classes else 0)) < 1e-9


@given(NODES, CLASSES, st.integers(1, WHOLE))
def test_fragmentation_by_an_allocation_is_the_difference_of_before_and_after(nodes, classes, milli) -> None:
    laid_out, cpu = _laid_out(nodes)
    known = fragmentation.build_fragmentation_tables(classes, (COUNT,))
    before, after = (
        CandidateGpus(laid_out, np.arange(len(nodes))),
        CandidateGpus(laid_out, np.arange(len(nodes))),
    )
    after.take(np.ones((laid_out.most_gpus, len(nodes)), bool), {MILLI: milli})
    hosts = fragmentation.node_cells(known, cpu, len(nodes))

    spoiled = fragmentation.fragmentation_growth(
        known, fragmentation.gpu_cells(known, before), fragmentation.gpu_cells(known, after), hosts
    )

    for position in range(laid_out.most_gpus):
        alone = CandidateGpus(laid_out, np.arange(len(nodes)))
        taken = np.zeros((laid_out.most_gpus, len(nodes)), bool)
        taken[position] = True
        alone.take(taken, {MILLI: milli})
        difference = _measured(known, alone, cpu) - _measured(known, before, cpu)
        assert np.abs(spoiled[position] - difference).max() < 1e-9


@given(NODES, st.integers(1, WHOLE), st.sampled_from(["pack", "spread"]))
def test_pack_takes_the_fullest_card_that_fits_and_spread_the_emptiest(nodes, milli, placement) -> None:
    laid_out, _ = _laid_out(nodes)
    requested = demand(milli)

    fitted = fit(
        laid_out,
        np.arange(len(nodes)),
        requested,
        placement_strategies.gpu_order(PlacementInputs(placement, (COUNT,)), requested),
    )

    for at, (gpus, _) in enumerate(nodes):
        able = [free for free, _ in gpus if free >= milli]
        assert (fitted.codes[at] == 0) == bool(able)
        if able:
            taken = gpus[fitted.gpus(at)[0][0]][0]
            assert taken == (min(able) if placement == "pack" else max(able))


@given(
    NODES, CLASSES, st.integers(1, WHOLE), st.sampled_from(["pack", "spread", "balanced", "fragmentation"])
)
def test_points_are_ten_for_one_node_and_nothing_where_the_pod_does_not_fit(
    nodes, classes, milli, placement
) -> None:
    laid_out, cpu = _laid_out(nodes)
    requested, rows = demand(milli), np.arange(len(nodes))
    known = fragmentation.build_fragmentation_tables(classes, (COUNT,))
    going_by = PlacementInputs(placement, (COUNT,), (MILLI,), known, np.append(cpu, 0))
    fitted = fit(laid_out, rows, requested, placement_strategies.gpu_order(going_by, requested))

    points = placement_strategies.node_points(going_by, laid_out, rows, requested, fitted)

    fits = int((fitted.codes == 0).sum())
    assert sorted(points.tolist(), reverse=True)[:fits] == list(range(10, 10 - fits, -1))
    assert not points[fitted.codes != 0].any()
