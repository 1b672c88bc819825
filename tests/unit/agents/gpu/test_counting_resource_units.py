"""The units of resources that count GPUs: how many GPUs there are, and which one has how many units."""

import pytest

from nodewise.agents.gpu import allocatable_gpus
from nodewise.agents.gpu.gpu_node_labels import NOT_DESCRIBED, GpuSharing

WHOLE = GpuSharing(1, "label p")
FOUR = GpuSharing(4, "label r", is_shared=True)
UNKNOWN = GpuSharing(0, "label s", is_shared=True)

COUNTS: dict[str, tuple[int | None, dict[str, int], GpuSharing, int, str]] = {
    "no label": (None, {"gpu": 3}, NOT_DESCRIBED, 3, ""),
    "one of five is sick": (5, {"gpu": 4}, NOT_DESCRIBED, 5, ""),
    "all are offered three times": (2, {"gpu": 6}, NOT_DESCRIBED, 2, ""),
    "whole GPUs of two models": (2, {"gpu": 6}, WHOLE, 6, "the label says that there are 2 GPUs, but gpu 6"),
    "no multiple of the label": (3, {"gpu": 8}, NOT_DESCRIBED, 8, "GPUs of several models"),
    "shares of a known number": (None, {"gpu": 12}, FOUR, 3, ""),
    "shares of a sick GPU": (3, {"gpu": 8}, FOUR, 3, ""),
    "shares of two models": (1, {"gpu": 12}, FOUR, 3, "the label says that there are 1 GPUs"),
    "shares of an unknown number": (None, {"gpu": 12}, UNKNOWN, 0, "is a number of shares by label s"),
    "shares that the label divides": (3, {"gpu": 12}, UNKNOWN, 3, ""),
    "shares that the label does not divide": (5, {"gpu": 12}, UNKNOWN, 0, "the number of GPUs is not known"),
    "a label of none": (0, {"gpu": 2}, NOT_DESCRIBED, 0, "the label says that there are no GPUs, but gpu 2"),
    "two kinds": (None, {"a": 1, "b": 3}, NOT_DESCRIBED, 4, ""),
    "two kinds of several units": (3, {"a": 10, "b": 20}, NOT_DESCRIBED, 3, ""),
    "an absurd amount": (None, {"gpu": 2**62}, NOT_DESCRIBED, 2**62, ""),
}


@pytest.mark.parametrize(("labelled", "amounts", "sharing", "gpus", "problem"), COUNTS.values(), ids=COUNTS)
def test_the_number_of_gpus_is_that_of_the_label_or_of_whole_devices(
    labelled: int | None, amounts: dict[str, int], sharing: GpuSharing, gpus: int, problem: str
) -> None:
    count = allocatable_gpus.count_gpus(labelled, amounts, dict.fromkeys(amounts, sharing))
    assert count.gpus == gpus
    assert bool(count.problem) == bool(problem)
    assert problem in count.problem


DISTRIBUTIONS: dict[str, tuple[int, dict[str, int], dict[str, int], dict[str, list[int]], bool]] = {
    "one each": (3, {"gpu": 3}, {}, {"gpu": [1, 1, 1]}, False),
    "fewer devices than GPUs": (4, {"gpu": 3}, {}, {"gpu": [1, 1, 1, 0]}, True),
    "several units each": (2, {"gpu": 20}, {}, {"gpu": [10, 10]}, False),
    "what remains is lost": (2, {"gpu": 5}, {}, {"gpu": [2, 2]}, False),
    "units that are known": (3, {"gpu": 20}, {"gpu": 10}, {"gpu": [10, 10, 0]}, True),
    "no multiple of the units": (3, {"gpu": 25}, {"gpu": 10}, {"gpu": [10, 10, 5]}, True),
    "more units than GPUs have": (2, {"gpu": 5}, {"gpu": 1}, {"gpu": [2, 2]}, False),
    "two kinds": (3, {"xe": 2, "i915": 1}, {}, {"i915": [1, 0, 0], "xe": [0, 1, 1]}, True),
    "two kinds of ten units": (3, {"xe": 20, "i915": 10}, {}, {"i915": [10, 0, 0], "xe": [0, 10, 10]}, True),
    "two kinds, one sick": (4, {"xe": 2, "i915": 1}, {}, {"i915": [1, 0, 0, 0], "xe": [0, 1, 1, 0]}, True),
    "two kinds on each GPU": (2, {"xe": 4, "i915": 4}, {}, {"i915": [2, 2], "xe": [2, 2]}, False),
    "more kinds than GPUs": (1, {"a": 1, "b": 1, "c": 1}, {}, {"a": [1], "b": [1], "c": [1]}, False),
}


@pytest.mark.parametrize(
    ("gpus", "amounts", "per_gpu", "expected", "unplaced"), DISTRIBUTIONS.values(), ids=DISTRIBUTIONS
)
def test_gpus_have_whole_units(
    gpus: int,
    amounts: dict[str, int],
    per_gpu: dict[str, int],
    expected: dict[str, list[int]],
    unplaced: bool,
) -> None:
    names = [f"card{number}" for number in range(gpus)]
    distribution = allocatable_gpus.distribute_units(names, amounts, per_gpu)
    rows = {resource: [row.get(name, 0) for name in names] for resource, row in distribution.units.items()}
    assert rows == expected
    assert distribution.unplaced == (frozenset(amounts) if unplaced else frozenset())


def test_the_lowest_numbers_have_the_units() -> None:
    names = allocatable_gpus.natural_order([f"card{number}" for number in range(12)])
    assert names[2:] == [f"card{number}" for number in range(2, 12)]
    units = allocatable_gpus.distribute_units(names, {"gpu": 10}, {}).units
    assert units["gpu"].keys() == {f"card{number}" for number in range(10)}


def test_units_follow_the_gpus_that_pods_hold() -> None:
    names = ("card0", "card1", "card10", "card2")
    again = allocatable_gpus.place_again(names, {"gpu": (1, 1, 0, 1)}, {"card10": ["gpu"]})
    assert again == {"gpu": (1, 1, 1, 0)}
    assert allocatable_gpus.place_again(names, again, {}) == {"gpu": (1, 1, 0, 1)}
    held_everywhere = dict.fromkeys(names, ("gpu",))
    assert allocatable_gpus.place_again(names, again, held_everywhere) == {"gpu": (1, 1, 0, 1)}


def test_a_gpu_that_a_pod_holds_is_of_the_kind_of_the_pod() -> None:
    names, rows = ("card0", "card1", "card2"), {"i915": (1, 0, 0), "xe": (0, 1, 1)}
    again = allocatable_gpus.place_again(names, rows, {"card2": ["i915"], "card0": ["xe"]})
    assert again == {"i915": (0, 0, 1), "xe": (1, 1, 0)}


PROBLEMS = {
    "sick": (
        {"gpu": (1, 1, 0)},
        "2 gpu is allocatable, for 2 of 3 GPUs; which ones is not known, assumed without: card2",
    ),
    "kinds": (
        {"i915": (1, 0, 0), "xe": (0, 1, 1)},
        "which of 3 GPUs have which resource is not known, assumed are i915: card0; xe: card1, card2",
    ),
    "rest": (
        {"gpu": (4, 4, 1)},
        "9 gpu is no multiple of the 4 units per GPU; which GPU has 1 is not known, assumed: card2",
    ),
    "nothing": ({}, ""),
}


@pytest.mark.parametrize(("rows", "problem"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_names_the_gpus_whose_units_are_assumed(
    rows: dict[str, tuple[int, ...]], problem: str
) -> None:
    assert allocatable_gpus.describe_unknown_places(("card0", "card1", "card2"), rows) == problem


def test_a_problem_names_few_of_many_gpus() -> None:
    names = tuple(f"card{number}" for number in range(20))
    problem = allocatable_gpus.describe_unknown_places(names, {"gpu": (1,) * 10 + (0,) * 10})
    assert problem.endswith("assumed without: card10, card11, card12, card13 and 6 more")
