"""The GPUs and units of nodes by the labels, annotations and amounts of several vendors."""

import json
from typing import Any

import msgspec

from nodewise.agents.gpu import node_gpus, vendor_resource_names
from nodewise.agents.gpu.node_gpus import GpuNode, NodeGpus
from nodewise.agents.gpu.vendor_resource_names import AMD, GENERIC, INTEL, NVIDIA, ResourceProfile
from tests.unit.agents.gpu.table_cases import cases

CASES = "described_gpu_nodes.yaml"
GPU = "nvidia.com/gpu"
HAMI = "hami.io/node-nvidia-register"


def parse(
    profile: ResourceProfile, allocatable: dict[str, Any], tags: dict[str, str], **annotations: str
) -> NodeGpus:
    document = {
        "metadata": {"name": "n", "labels": tags, "annotations": annotations},
        "status": {"allocatable": allocatable},
    }
    return node_gpus.parse_node_gpus(
        msgspec.json.decode(msgspec.json.encode(document), type=GpuNode), profile
    )


def capacity(gpus: NodeGpus) -> dict[str, list[int]]:
    return {resource: [*row] for resource, row in gpus.capacity.items()}


TWO_KINDS = vendor_resource_names.parse_profile(
    {"prefix": "example.com/", "counts": ["big", "small"], "count_label": "example.com/devices"}, "p.yaml"
)
PROFILES = {**vendor_resource_names.PROFILES, "file": TWO_KINDS}
Amounts = dict[str, Any]
Units = dict[str, list[int]]


@cases(CASES, "nodes")
def test_gpus_and_units_of_a_node(
    profile: str,
    allocatable: Amounts,
    labels: dict[str, str],
    annotations: dict[str, str],
    units: Units,
    problem: str,
) -> None:
    """`units` are in the order of the names of GPUs. `problem` is a part of the only problem; empty for none."""
    gpus = parse(PROFILES[profile], allocatable, labels, **annotations)
    assert capacity(gpus) == units
    assert len(gpus.names) == len(next(iter(units.values()), ()))
    assert any(problem in text for text in gpus.problems) if problem else gpus.problems == ()


def test_the_models_are_those_of_the_hami_register() -> None:
    register = json.dumps([{"count": 3, "type": "NVIDIA-A10"}, {"count": 3, "type": "NVIDIA-H100"}])
    assert parse(GENERIC, {GPU: 6}, {}, **{HAMI: register}).models == ("NVIDIA-A10", "NVIDIA-H100")


def test_units_move_to_the_gpus_that_pods_hold() -> None:
    gpus = parse(GENERIC, {GPU: 2, "nvidia.com/gpumem": 4}, {f"{GPU}.count": "4"})
    held = {"card3": {GPU: 1}, "card2": {"nvidia.com/gpumem": 1}, "other": {GPU: 1}}
    moved = node_gpus.place_units_of_held_gpus(gpus, held)
    assert moved.capacity == {GPU: (1, 0, 0, 1), "nvidia.com/gpumem": (1, 1, 1, 1)}
    assert moved.problems == (
        (
            "2 nvidia.com/gpu is allocatable, for 2 of 4 GPUs; which ones is not known, assumed without: card1,"
            " card2"
        ),
    )
    assert node_gpus.place_units_of_held_gpus(moved, {}) == gpus
    known = parse(GENERIC, {GPU: 4}, {})
    assert node_gpus.place_units_of_held_gpus(known, held) is known


@cases(CASES, "missing")
def test_reason_of_a_node_without_gpus_names_expected_and_actual_resources_and_remedy(
    profile: str, allocatable: Amounts, labels: dict[str, str], words: str, remedy: str
) -> None:
    gpus = parse(PROFILES[profile], allocatable, labels)
    assert gpus.names == ()
    assert words in gpus.missing.words
    assert remedy in gpus.missing.remedy


def test_resources_of_unknown_vendors_are_not_named_in_reasons() -> None:
    missing = parse(INTEL, {"tenant.example/gpu": 3, "nvidia.com/gpu.custom": 2}, {}).missing
    assert "tenant" not in missing.words
    assert "custom" not in missing.words


@cases(CASES, "models")
def test_models_and_memory_are_those_of_the_vendors_labels(
    profile: str, allocatable: Amounts, labels: dict[str, str], models: list[str], units: Units
) -> None:
    gpus = parse(PROFILES[profile], allocatable, labels)
    assert ([*gpus.models], capacity(gpus)) == (models, units)


def test_gpus_of_amd_that_differ_have_no_model_and_a_problem() -> None:
    tags = {
        "amd.com/gpu.product-name.MI100": "2",
        "amd.com/gpu.product-name.MI210": "1",
        "amd.com/gpu.vram": "big",
    }
    gpus = parse(AMD, {"amd.com/gpu": 3}, tags)
    assert (gpus.models, gpus.capacity) == (("",) * 3, {"amd.com/gpu": (1, 1, 1)})
    (problem,) = gpus.problems
    assert (
        "the GPUs differ, 'MI100', 'MI210'; annotate each of them; label amd.com/gpu.vram: 'big'" in problem
    )


def test_labels_that_cannot_be_read_are_problems() -> None:
    invalid = parse(NVIDIA, {GPU: 1}, {f"{GPU}.memory": "much", f"{GPU}.product": "x" * 80})
    assert invalid.problems == (f"label {GPU}.memory: 'much' is not a whole number from 0 to {2**63 - 1}",)
    assert len(invalid.models[0]) == 63
    devices = {"gpu.intel.com/device-id.0380-56c0.count": "-1"}
    assert (
        "device-id.0380-56c0.count: '-1' is not" in parse(INTEL, {"gpu.intel.com/xe": 1}, devices).problems[0]
    )


def test_more_gpus_than_numa_nodes_and_links_can_have_are_a_problem() -> None:
    numbers = ".".join(map(str, range(70)))
    chunks = [numbers[at : at + 60] for at in range(0, len(numbers), 60)]
    tags = {
        f"gpu.intel.com/gpu-numbers{at + 1 if at else ''}": f"Z{part}" if at else part
        for at, part in enumerate(chunks)
    }
    gpus = parse(
        INTEL,
        {"gpu.intel.com/xe": 70},
        {**tags, "gpu.intel.com/numa-gpu-map": "0-0.1", "gpu.intel.com/xe-links": "0.0-1.0"},
    )
    assert (len(gpus.names), gpus.numa, gpus.links) == (70, (), ())
    assert gpus.numa_problem == "70 GPUs; NUMA nodes count for at most 64"
    expected = ["70 GPUs; NUMA nodes count for at most 64", "70 GPUs; links count for at most 64"]
    assert [problem.partition(": ")[2] for problem in gpus.problems] == expected
