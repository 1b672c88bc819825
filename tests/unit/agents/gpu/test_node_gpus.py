"""The GPUs of a node from labels, counts and the annotation; numbers are those of the specification's cases."""

import json
from typing import Any

import pytest

from nodewise.agents.gpu import gpu_node_labels, node_gpus
from nodewise.agents.gpu.gpu_node_labels import Link
from nodewise.agents.gpu.node_gpus import GpuNode, NodeGpus
from nodewise.agents.gpu.vendor_resource_names import GENERIC, INTEL
from tests.unit.agents.gpu.gpu_node_and_pod_builders import node, raw_node
from tests.unit.agents.gpu.table_cases import cases

CASES = "node_gpus.yaml"


def parse(tags: str = "", allocatable: str = "") -> NodeGpus:
    return node_gpus.parse_node_gpus(node(tags, allocatable), INTEL)


def capacity_of(gpus: NodeGpus) -> dict[str, list[int]]:
    return {INTEL.short(name): [*row] for name, row in gpus.capacity.items()}


@cases(CASES, "names")
def test_names_of_gpus(tags: str, names: str, problem: str) -> None:
    gpus = parse(tags)
    assert gpus.names == tuple(names.split())
    assert len(gpus.problems) == bool(problem)
    assert problem in "".join(gpus.problems)


@pytest.mark.parametrize(("gpus", "resources"), [(128, 0), (1, 65)])
def test_node_above_the_limits_has_no_gpus(gpus: int, resources: int) -> None:
    numbers = ".".join(map(str, range(gpus)))
    node_with_many = parse(f"gn={numbers}", " ".join(f"r{number}=1" for number in range(resources)))
    assert (node_with_many.names, node_with_many.capacity) == ((), {})
    problem = f"{gpus} GPUs of {resources} resources; at most 127 of 64 count"
    assert node_with_many.problems == (problem,)


@cases(CASES, "capacity")
def test_capacity_of_each_gpu(tags: str, allocatable: str, capacity: dict[str, list[int]]) -> None:
    assert capacity_of(parse(tags, allocatable)) == capacity


@pytest.mark.parametrize("amount", ["1500m", "0.5", "-3", "many", "", "10E"])
def test_invalid_amount_is_absent(amount: str) -> None:
    gpus = parse("gn=0", f"i915={amount} mc=5")
    assert capacity_of(gpus) == {"millicores": [5]}
    assert f"allocatable gpu.intel.com/i915: {amount!r} is not a whole number" in gpus.problems[0]


def test_resources_without_names_of_gpus_are_a_problem() -> None:
    assert parse("", "i915=2").problems == (
        (
            "gpu.intel.com/i915 is allocatable, but nothing names the GPUs of the node: neither label"
            " gpu.intel.com/gpu-numbers or gpu.intel.com/device.count nor annotation nodewise.io/gpu-cards"
        ),
    )


@cases(CASES, "unusable")
def test_gpus_that_policies_exclude(tags: str, names: str) -> None:
    assert parse(tags).unusable == frozenset(names.split())


def test_47_names_of_gpus_are_compared_exactly() -> None:
    gpus = parse("gn=0.10 D:gas-disable-card10= D:gas-disable-xcard0=")
    assert gpus.unusable == {"card10"}
    assert gpus.problems == ("gas-disable-'xcard0': the node has no such GPU",)


def test_pods_of_a_removed_gpu_are_descheduled() -> None:
    gpus = parse("gn=0 D:gas-deschedule-pods-card3= D:gas-tile-deschedule-card3_gt7=")
    assert (gpus.descheduled, gpus.unusable) == ({"card3"}, frozenset())
    assert (gpus.subdevices_descheduled, gpus.subdevices_off) == ({"card3": {7}}, {})


@cases(CASES, "preferred")
def test_gpu_that_a_policy_prefers(tags: str, name: str) -> None:
    assert parse(tags).preferred == name


@cases(CASES, "subdevices_off")
def test_sub_devices_that_policies_exclude(tags: str, allocatable: str, off: dict[str, list[int]]) -> None:
    assert parse(tags, allocatable).subdevices_off == {gpu: {*numbers} for gpu, numbers in off.items()}


@pytest.mark.parametrize(
    ("tags", "preferred"),
    [
        ("D:gas-tile-preferred-card0=gt3", (3,)),
        ("D:gas-tile-preferred-card0=3", None),
        ("D(b):gas-tile-preferred-card0=gt1 D(a):gas-tile-preferred-card0=gt3", (3, 1)),
        ("D(b):gas-tile-preferred-card0=gt1 D(a):gas-tile-preferred-card0=gt1", (1,)),
    ],
    ids=["126", "133 a value that is none", "135 two policies, by name", "twice the same"],
)
def test_sub_devices_that_policies_prefer(tags: str, preferred: tuple[int, ...] | None) -> None:
    assert parse(f"gn=0 {tags}", "t=4").subdevices_preferred == ({"card0": preferred} if preferred else {})


@cases(CASES, "numa")
def test_gpus_by_numa_node(tags: str, groups: list[list[str]]) -> None:
    gpus = parse(f"gn=0.1.2.3 {tags}")
    assert (gpus.numa, gpus.numa_problem) == (tuple(map(frozenset, groups)), "")


@pytest.mark.parametrize("text", ["0-0.1_2.3", "0-0-1", "_", "0-0_", "-1", "0-", "0-0 numa2=1"])
def test_111_invalid_numa_map_is_a_problem(text: str) -> None:
    gpus = parse(f"gn=0.1.2.3 numa={text}")
    assert gpus.numa == ()
    assert gpus.numa_problem
    assert gpus.names == ("card0", "card1", "card2", "card3")


def link(text: str) -> Link:
    left, right = (end.split(".") for end in text.split("-"))
    return Link(f"card{left[0]}", int(left[1]), f"card{right[0]}", int(right[1]))


@cases(CASES, "links")
def test_links_between_gpus(tags: str, allocatable: str, links: str) -> None:
    assert parse(tags, allocatable).links == tuple(map(link, links.split()))


def test_one_large_group_is_expanded_once() -> None:
    names = [f"card{number}" for number in range(20_000)]
    groups = gpu_node_labels.parse_groups(".".join(map(str, range(20_000))))
    assert gpu_node_labels.expand_groups(names, groups) == frozenset(names)


def test_number_of_links_is_limited() -> None:
    by_index = tuple(f"card{number}" for number in range(100))
    text = "_".join(f"{number % 99}.{number // 99}-99.0" for number in range(100_000))
    pairs, stopped = gpu_node_labels.parse_links(text, by_index)
    assert (len(pairs), stopped) == (4096, "there are more than 4096 links; the others do not count")


def generic(tags: dict[str, Any], allocatable: dict[str, Any]) -> NodeGpus:
    return node_gpus.parse_node_gpus(raw_node(tags, allocatable), GENERIC)


def test_gpus_are_counted_by_their_resource() -> None:
    gpus = generic({}, {"nvidia.com/gpu": "2", "nvidia.com/gpu-milli": "2k", "nvidia.com/mig-1g.5gb": "7"})
    assert gpus.names == ("card0", "card1")
    assert gpus.capacity == {"nvidia.com/gpu": (1, 1), "nvidia.com/gpu-milli": (1000, 1000)}
    assert gpus.problems == ()


def test_gpus_are_counted_by_a_label_if_each_is_offered_several_times() -> None:
    gpus = generic({"nvidia.com/gpu.count": "2"}, {"nvidia.com/gpu": "20"})
    assert (gpus.names, gpus.capacity) == (("card0", "card1"), {"nvidia.com/gpu": (10, 10)})


@pytest.mark.parametrize(
    ("tags", "allocatable", "problem"),
    [
        ({"nvidia.com/gpu.count": "two"}, {}, "label nvidia.com/gpu.count: 'two' is not a whole number"),
        ({"nvidia.com/gpu.count": "-1"}, {}, "label nvidia.com/gpu.count: '-1' is not a whole number"),
        ({"nvidia.com/gpu.count": "1E"}, {"nvidia.com/gpu": 4}, f"{10**18} GPUs; at most 127 can be kept"),
        ({}, {"nvidia.com/gpu": "128"}, "128 GPUs; at most 127 can be kept"),
    ],
)
def test_invalid_count_has_no_gpus(tags: dict[str, str], allocatable: dict[str, str], problem: str) -> None:
    gpus = generic(tags, allocatable)
    assert gpus.names == ()
    assert problem in gpus.problems[0]


def annotated_gpus(annotation: Any, allocatable: str = "") -> NodeGpus:
    return node_gpus.parse_node_gpus(
        node(
            "gn=0.1.2",
            allocatable,
            gpus=annotation if isinstance(annotation, str) else json.dumps(annotation),
        ),
        INTEL,
    )


def test_annotated_gpus_may_differ() -> None:
    gpus = annotated_gpus(
        [
            {
                "name": "b",
                "model": "Max",
                "capacity": {"gpu.intel.com/i915": 2, "gpu.intel.com/memory.max": "48Gi"},
            },
            {"name": "a", "model": "Flex", "capacity": {"gpu.intel.com/i915": 1}},
        ]
    )
    assert (gpus.names, gpus.models, gpus.problems) == (("a", "b"), ("Flex", "Max"), ())
    assert capacity_of(gpus) == {"i915": [1, 2], "memory.max": [0, 48 * 2**30]}


def test_annotated_gpus_without_a_capacity_have_an_even_share() -> None:
    gpus = annotated_gpus([{"name": "a", "model": "Max"}, {"name": "b", "capacity": None}], "i915=5")
    assert (gpus.models, capacity_of(gpus)) == (("Max", ""), {"i915": [2, 2]})


def check_annotation(annotation: Any, names: str, problem: str) -> None:
    gpus = annotated_gpus(annotation)
    assert gpus.names == tuple(names.split())
    assert len(gpus.problems) == 1
    assert problem in gpus.problems[0]


@cases(CASES, "annotations")
def test_invalid_parts_of_the_annotation_are_omitted(annotation: Any, names: str, problem: str) -> None:
    check_annotation(annotation, names, problem)


def test_too_large_annotations_are_ignored() -> None:
    names = [{"name": f"c{number}"} for number in range(128)]
    check_annotation(names, "", "expected a list of at most 127 GPUs")
    check_annotation("[" * 100_000, "", "annotation nodewise.io/gpu-cards")


@pytest.mark.parametrize("raw", [None, [], 3, "x", {"gpu.intel.com/gpu-numbers": 3}])
def test_labels_and_amounts_of_another_type_are_ignored(raw: Any) -> None:
    assert node_gpus.parse_node_gpus(raw_node(raw, raw), INTEL).names == ()


def test_empty_node_has_no_gpus_and_no_problem() -> None:
    for profile in (INTEL, GENERIC):
        gpus = node_gpus.parse_node_gpus(GpuNode(), profile)
        assert gpus == NodeGpus(missing=gpus.missing)
        assert gpus.missing.words.startswith("found no resource of GPUs, expected ")


def test_number_of_problems_is_limited() -> None:
    gpus = parse(" ".join(f"D:gas-disable-x{number}=" for number in range(40)))
    assert len(gpus.problems) == 17
    assert gpus.problems[-1] == "and 24 more"
