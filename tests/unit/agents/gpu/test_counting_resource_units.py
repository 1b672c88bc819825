"""The units of resources that count GPUs: how many GPUs there are, and which one has how many units."""

from nodewise.agents.gpu import node_gpus
from nodewise.agents.gpu.gpu_node_labels import NOT_DESCRIBED, GpuSharing
from tests.unit.agents.gpu.table_cases import cases

CASES = "counting_resource_units.yaml"
SHARING = {
    "none": NOT_DESCRIBED,
    "whole": GpuSharing(1, "label p"),
    "four": GpuSharing(4, "label r", is_shared=True),
    "unknown": GpuSharing(0, "label s", is_shared=True),
}


@cases(CASES, "counts")
def test_number_of_gpus_is_that_of_the_label_or_of_whole_devices(
    labelled: int | None, amounts: dict[str, int], sharing: str, gpus: int, problem: str
) -> None:
    count = node_gpus.count_gpus(labelled, amounts, dict.fromkeys(amounts, SHARING[sharing]))
    assert count.gpus == gpus
    assert bool(count.problem) == bool(problem)
    assert problem in count.problem


@cases(CASES, "distributions")
def test_gpus_have_whole_units(
    gpus: int,
    amounts: dict[str, int],
    per_gpu: dict[str, int],
    expected: dict[str, list[int]],
    is_unplaced: bool,
) -> None:
    names = [f"card{number}" for number in range(gpus)]
    distribution = node_gpus.distribute_units(names, amounts, per_gpu)
    rows = {resource: [row.get(name, 0) for name in names] for resource, row in distribution.units.items()}
    assert rows == expected
    assert distribution.unplaced == (frozenset(amounts) if is_unplaced else frozenset())


def test_the_lowest_numbers_have_the_units() -> None:
    names = node_gpus.natural_order([f"card{number}" for number in range(12)])
    assert names[2:] == [f"card{number}" for number in range(2, 12)]
    units = node_gpus.distribute_units(names, {"gpu": 10}, {}).units
    assert units["gpu"].keys() == {f"card{number}" for number in range(10)}


def test_units_follow_the_gpus_that_pods_hold() -> None:
    names = ("card0", "card1", "card10", "card2")
    again = node_gpus.place_again(names, {"gpu": (1, 1, 0, 1)}, {"card10": ["gpu"]})
    assert again == {"gpu": (1, 1, 1, 0)}
    assert node_gpus.place_again(names, again, {}) == {"gpu": (1, 1, 0, 1)}
    held_everywhere = dict.fromkeys(names, ("gpu",))
    assert node_gpus.place_again(names, again, held_everywhere) == {"gpu": (1, 1, 0, 1)}


def test_a_gpu_that_a_pod_holds_is_of_the_kind_of_the_pod() -> None:
    names, rows = ("card0", "card1", "card2"), {"i915": (1, 0, 0), "xe": (0, 1, 1)}
    again = node_gpus.place_again(names, rows, {"card2": ["i915"], "card0": ["xe"]})
    assert again == {"i915": (0, 0, 1), "xe": (1, 1, 0)}


@cases(CASES, "problems")
def test_problem_names_the_gpus_whose_units_are_assumed(rows: dict[str, list[int]], problem: str) -> None:
    assert node_gpus.describe_unknown_places(("card0", "card1", "card2"), rows) == problem


def test_a_problem_names_few_of_many_gpus() -> None:
    names = tuple(f"card{number}" for number in range(20))
    problem = node_gpus.describe_unknown_places(names, {"gpu": (1,) * 10 + (0,) * 10})
    assert problem.endswith("assumed without: card10, card11, card12, card13 and 6 more")
