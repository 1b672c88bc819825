"""The measure of Weng et al. for numbers that can be calculated by hand."""

import numpy as np
import pytest

from nodewise.agents.gpu import fragmentation
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.gpu_arrays import CandidateGpus
from nodewise.agents.gpu.typical_pods import PodClass
from tests.unit.agents.gpu.gpu_fragmentation_layouts import COUNT, board, share


def measured(classes, *nodes, cpu_milli=None, models=None):
    """The fragmentation by node."""
    known = fragmentation.build_fragmentation_tables(classes, (COUNT,))
    candidate_gpus = CandidateGpus(board(*nodes, models=models), np.arange(len(nodes)))
    cpu = None if cpu_milli is None else np.array(cpu_milli)
    hosts = fragmentation.node_cells(known, cpu, len(nodes))
    return (
        fragmentation.fragmentation_of(known, fragmentation.gpu_cells(known, candidate_gpus), hosts)
        .round(9)
        .tolist()
    )


def test_of_no_workload_nothing_is_a_fragment() -> None:
    assert measured({}, (1000, 300)) == [0.0]


@pytest.mark.parametrize(
    ("classes", "free", "wanted"),
    [
        pytest.param({share(500): 1}, (1000, 1000), 0.0, id="every card is of use"),
        pytest.param({share(500): 1}, (1000, 300), 0.3, id="one card is too small"),
        pytest.param({share(500): 1, share(200): 3}, (1000, 300), 0.075, id="for a quarter of the pods"),
        pytest.param({share(1000, gpus=2): 1}, (1000, 900, 1000), 0.9, id="two whole cards are of use"),
        pytest.param({share(1000, gpus=2): 1}, (1000, 900), 1.9, id="one whole card is of no use to a pair"),
        pytest.param({share(1000, gpus=4): 1, share(100): 1}, (1000, 1000), 1.0, id="to one of two classes"),
        pytest.param({share(500): 1}, (), 0.0, id="no cards"),
    ],
)
def test_fragment_is_the_share_that_a_class_cannot_use(classes, free, wanted) -> None:
    assert measured(classes, free) == [wanted]


def test_where_too_little_cpu_is_left_all_cards_are_a_fragment() -> None:
    classes = {share(500, cpu_milli=8000): 1, share(500, cpu_milli=2000): 1}

    assert measured(classes, *[(1000,)] * 3, cpu_milli=[8000, 7999, 0]) == [0.0, 0.5, 1.0]


def test_unknown_cpu_is_sufficient() -> None:
    assert measured({share(500, cpu_milli=8000): 1}, (1000,)) == [0.0]


def test_cards_of_another_model_are_a_fragment() -> None:
    classes = {share(500, models=["A"]): 1, share(500, models=["A", "B"]): 1, share(500): 2}
    models = {0: ["A"], 1: ["B"], 2: ["C"], 3: [""]}

    assert measured(classes, *[(1000,)] * 4, models=models) == [0.0, 0.25, 0.5, 0.5]


def test_classes_beyond_the_size_of_the_table_are_left_out() -> None:
    many = {PodClass(1, Amounts({f"r{number}": number}), number): number for number in range(1, 100)}

    known = fragmentation.build_fragmentation_tables(many)

    assert 0 < known.single.size <= 1 << 20
    assert "r99" in known.resources
    assert "r1" not in known.resources
