"""The GPUs and units of nodes by the labels, annotations and amounts of several vendors."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest

from nodewise.agents.gpu import node_gpus, vendor_resource_names
from nodewise.agents.gpu.node_gpus import GpuNode, NodeGpus
from nodewise.agents.gpu.vendor_resource_names import AMD, GENERIC, INTEL, NVIDIA, ResourceProfile

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


class Described(NamedTuple):
    """A node, and the units of its GPUs in the order of their names."""

    allocatable: dict[str, Any]
    tags: dict[str, str]
    units: dict[str, tuple[int, ...]]
    problem: str = ""
    """A part of its only problem; empty for none."""
    profile: ResourceProfile = GENERIC
    annotations: Mapping[str, str] = MappingProxyType({})


TWO_KINDS = vendor_resource_names.parse_profile(
    {"prefix": "example.com/", "counts": ["big", "small"], "count_label": "example.com/devices"}, "p.yaml"
)
NODES = {
    "five of six are healthy": Described(
        {GPU: 5}, {f"{GPU}.count": "6"}, {GPU: (1, 1, 1, 1, 1, 0)}, "assumed without: card5"
    ),
    "two of four are in MIG mode": Described(
        {GPU: "2", "nvidia.com/mig-3g.20gb": 4},
        {f"{GPU}.count": "4", f"{GPU}.product": "NVIDIA-A100-80GB-PCIe", f"{GPU}.replicas": "1"},
        {GPU: (1, 1, 0, 0)},
        "assumed without: card2, card3",
    ),
    "three models": Described(
        {GPU: 7},
        {f"{GPU}.count": "3", f"{GPU}.product": "Tesla-P4"},
        {GPU: (1,) * 7},
        "which are 7: GPUs of several",
    ),
    "two models, and a sick GPU": Described(
        {GPU: 5},
        {f"{GPU}.count": "4", f"{GPU}.product": "Tesla-P4"},
        {GPU: (1,) * 5},
        "which are 5: GPUs of several",
    ),
    "an intel GPU is sick": Described(
        {"gpu.intel.com/xe": 2, "gpu.intel.com/millicores": 3000},
        {"gpu.intel.com/gpu-numbers": "3.1.7"},
        {"gpu.intel.com/xe": (1, 1, 0), "gpu.intel.com/millicores": (1000,) * 3},
        "assumed without: card7",
        INTEL,
    ),
    "intel GPUs of two drivers": Described(
        {"gpu.intel.com/xe": 1, "gpu.intel.com/i915": 3},
        {"gpu.intel.com/gpu-numbers": "0.1.2.3"},
        {"gpu.intel.com/i915": (1, 1, 1, 0), "gpu.intel.com/xe": (0, 0, 0, 1)},
        "gpu.intel.com/i915: card0, card1, card2; gpu.intel.com/xe: card3",
        INTEL,
    ),
    "counted intel GPUs of two drivers": Described(
        {"gpu.intel.com/xe": 1, "gpu.intel.com/i915": 2},
        {"gpu.intel.com/device.count": "3"},
        {"gpu.intel.com/i915": (1, 1, 0), "gpu.intel.com/xe": (0, 0, 1)},
        "gpu.intel.com/xe: card2",
        INTEL,
    ),
    "each counted intel GPU is offered five times": Described(
        {"gpu.intel.com/xe": "15"},
        {"gpu.intel.com/device.count": "3"},
        {"gpu.intel.com/xe": (5, 5, 5)},
        "",
        INTEL,
    ),
    "two kinds of a vendor's profile": Described(
        {"example.com/big": 1, "example.com/small": 2},
        {},
        {"example.com/big": (1, 0, 0), "example.com/small": (0, 1, 1)},
        "example.com/big: card0; example.com/small: card1, card2",
        TWO_KINDS,
    ),
    "a sick GPU of a vendor's profile": Described(
        {"example.com/small": 2},
        {"example.com/devices": "3"},
        {"example.com/small": (1, 1, 0)},
        "assumed without: card2",
        TWO_KINDS,
    ),
    "a sick GPU among annotated ones": Described(
        {GPU: 1},
        {},
        {GPU: (1, 0)},
        "assumed without: b",
        annotations={node_gpus.GPUS: json.dumps([{"name": "b", "model": "H200"}, {"name": "a"}])},
    ),
    "amounts that a division makes 0": Described(
        {GPU: 4, "nvidia.com/gpumem": 3, "nvidia.com/gpucores": 400},
        {},
        {GPU: (1,) * 4, "nvidia.com/gpucores": (100,) * 4},
        "allocatable nvidia.com/gpumem is 3 for 4 GPUs, so each has 0",
    ),
    "112 MIG slices": Described({GPU: 112}, {f"{GPU}.count": "112"}, {GPU: (1,) * 112}),
    "a replica of each GPU is 1": Described(
        {GPU: 3}, {f"{GPU}.replicas": "1", f"{GPU}.count": "3"}, {GPU: (1, 1, 1)}
    ),
    "time slicing": Described(
        {GPU: 21},
        {f"{GPU}.count": "3", f"{GPU}.replicas": "7", f"{GPU}.product": "L4-SHARED"},
        {GPU: (7, 7, 7)},
    ),
    "time slicing without a count": Described({GPU: 21}, {f"{GPU}.replicas": "7"}, {GPU: (7, 7, 7)}),
    "time slicing with a sick GPU": Described(
        {GPU: 14},
        {f"{GPU}.count": "3", f"{GPU}.replicas": "7", f"{GPU}.product": "L4-SHARED"},
        {GPU: (7, 7, 0)},
        "assumed without: card2",
    ),
    "time slicing of an unknown number": Described(
        {GPU: 10},
        {f"{GPU}.product": "L4-SHARED"},
        {},
        "is a number of shares by label nvidia.com/gpu.product",
    ),
    "time slicing of some GPUs, with another name": Described(
        {GPU: 2, f"{GPU}.shared": 20},
        {f"{GPU}.count": "4", f"{GPU}.replicas": "10", f"{GPU}.product": "Tesla-T4"},
        {GPU: (1, 1, 0, 0)},
        "assumed without: card2, card3",
    ),
    "GKE": Described({GPU: "16"}, {"cloud.google.com/gke-max-shared-clients-per-gpu": "8"}, {GPU: (8, 8)}),
    "HAMi": Described(
        {GPU: 30},
        {},
        {GPU: (10, 10, 10)},
        annotations={HAMI: "".join(f"GPU-{gpu},10,49140,100,NVIDIA-NVIDIA L40,0,true:" for gpu in "abc")},
    ),
    "HAMi with GPUs that differ": Described(
        {GPU: 6},
        {},
        {GPU: (2, 0, 4)},
        annotations={
            HAMI: json.dumps(
                [{"count": 2}, {"count": 8, "health": False}, {"count": 4, "type": "NVIDIA-H20"}]
            )
        },
    ),
    "HAMi and another number of shares": Described(
        {GPU: 15},
        {},
        {GPU: (10, 5)},
        "annotation hami.io/node-nvidia-register: 20 shares, but nvidia.com/gpu 15 is allocatable",
        annotations={HAMI: json.dumps([{"count": 10}, {"count": 10}])},
    ),
    "HAMi without GPUs": Described(
        {GPU: 10}, {}, {}, "'[]'; expected 1 to 1024 GPUs", annotations={HAMI: "[]"}
    ),
}


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_gpus_and_units_of_a_node(node: Described) -> None:
    gpus = parse(node.profile, node.allocatable, node.tags, **node.annotations)
    assert gpus.capacity == node.units
    assert len(gpus.names) == len(next(iter(node.units.values()), ()))
    assert any(node.problem in problem for problem in gpus.problems) if node.problem else gpus.problems == ()


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


MISSING: dict[str, tuple[ResourceProfile, dict[str, Any], dict[str, str], str, str]] = {
    "another vendor": (
        INTEL,
        {GPU: 2},
        {},
        "found nvidia.com/gpu, expected gpu.intel.com/xe or gpu.intel.com/i915; use --gpu-profile nvidia",
        "use --gpu-profile nvidia",
    ),
    "intel instead of NVIDIA": (
        GENERIC,
        {"gpu.intel.com/xe": 2},
        {},
        "found gpu.intel.com/xe, expected nvidia.com/gpu; use --gpu-profile intel",
        "use --gpu-profile intel",
    ),
    "no labels": (
        INTEL,
        {"gpu.intel.com/xe": 1},
        {"gpu.intel.com/product": "B60"},
        (
            "found gpu.intel.com/xe, but neither label gpu.intel.com/gpu-numbers or gpu.intel.com/device.count nor"
            " annotation nodewise.io/gpu-cards; or use --gpu-profile FILE"
        ),
        "set one of them",
    ),
    "no device plugin": (
        GENERIC,
        {GPU: "0", "cpu": "4"},
        {f"{GPU}.count": "4"},
        "found no resource of GPUs despite label nvidia.com/gpu.count, expected nvidia.com/gpu",
        "device plugin",
    ),
    "nothing": (
        INTEL,
        {"cpu": "4"},
        {},
        "found no resource of GPUs, expected gpu.intel.com/xe",
        "device plugin",
    ),
    "partitions": (
        GENERIC,
        {"amd.com/cpx_nps4": 8, "amd.com/spx_nps1": "7", "cpu": 1},
        {},
        "found amd.com/cpx_nps4, amd.com/spx_nps1, expected nvidia.com/gpu; pods have to request amd.com/cpx_nps4",
        "pods have to request",
    ),
    "too many": (GENERIC, {GPU: 200}, {}, "found more than are supported, at most 127", "fewer shares"),
    "a label of another form": (
        GENERIC,
        {GPU: 2},
        {f"{GPU}.count": "two"},
        "label nvidia.com/gpu.count does not say how many; correct it",
        "/state/gpu",
    ),
    "a label of no GPUs": (
        INTEL,
        {"gpu.intel.com/i915": 2},
        {"gpu.intel.com/gpu-numbers": ""},
        "label gpu.intel.com/gpu-numbers does not say how many",
        "/state/gpu",
    ),
}


@pytest.mark.parametrize(("profile", "allocatable", "tags", "words", "remedy"), MISSING.values(), ids=MISSING)
def test_reason_of_a_node_without_gpus_names_expected_and_actual_resources_and_remedy(
    profile: ResourceProfile, allocatable: dict[str, Any], tags: dict[str, str], words: str, remedy: str
) -> None:
    gpus = parse(profile, allocatable, tags)
    assert gpus.names == ()
    assert words in gpus.missing.words
    assert remedy in gpus.missing.remedy


def test_resources_of_unknown_vendors_are_not_named_in_reasons() -> None:
    missing = parse(INTEL, {"tenant.example/gpu": 3, "nvidia.com/gpu.custom": 2}, {}).missing
    assert "tenant" not in missing.words
    assert "custom" not in missing.words


MEMORY = "nvidia.com/gpumem"
MODELS: dict[
    str, tuple[ResourceProfile, dict[str, Any], dict[str, str], tuple[str, ...], dict[str, tuple[int, ...]]]
] = {
    "NVIDIA": (
        NVIDIA,
        {GPU: 2},
        {f"{GPU}.count": "2", f"{GPU}.product": "NVIDIA-L40S", f"{GPU}.memory": "46068"},
        ("NVIDIA-L40S",) * 2,
        {GPU: (1, 1), MEMORY: (46068, 46068)},
    ),
    "NVIDIA, time slicing": (
        NVIDIA,
        {GPU: 6},
        {
            f"{GPU}.count": "2",
            f"{GPU}.product": "Tesla-T4-SHARED",
            f"{GPU}.memory": "15360",
            f"{GPU}.replicas": "3",
        },
        ("Tesla-T4",) * 2,
        {GPU: (3, 3), MEMORY: (15360, 15360)},
    ),
    "NVIDIA, MIG slices": (
        NVIDIA,
        {GPU: 3},
        {
            f"{GPU}.count": "3",
            f"{GPU}.product": "NVIDIA-A30-MIG-1g.6gb",
            f"{GPU}.memory": "5952",
            f"{GPU}.replicas": "0",
        },
        ("NVIDIA-A30-MIG-1g.6gb",) * 3,
        {GPU: (1, 1, 1), MEMORY: (5952,) * 3},
    ),
    "NVIDIA, two models": (
        NVIDIA,
        {GPU: 3},
        {f"{GPU}.count": "1", f"{GPU}.product": "NVIDIA-A2", f"{GPU}.memory": "15356"},
        ("",) * 3,
        {GPU: (1, 1, 1)},
    ),
    "no models in the profile generic": (
        GENERIC,
        {GPU: 1},
        {f"{GPU}.count": "1", f"{GPU}.product": "NVIDIA-A2", f"{GPU}.memory": "15356"},
        ("",),
        {GPU: (1,)},
    ),
    "AMD": (
        AMD,
        {"amd.com/gpu": 2},
        {
            "amd.com/gpu.product-name": "AMD_Instinct_MI210",
            "amd.com/gpu.vram": "64G",
            "amd.com/gpu.family": "AI",
        },
        ("AMD_Instinct_MI210",) * 2,
        {"amd.com/gpu": (1, 1), "amd.com/gpumem": (65536, 65536)},
    ),
    "AMD, older labels, and a sick GPU": (
        AMD,
        {"amd.com/gpu": 2},
        {"beta.amd.com/gpu.device-id.6860": "3", "beta.amd.com/gpu.vram.16G": "3"},
        ("",) * 3,
        {"amd.com/gpu": (1, 1, 0), "amd.com/gpumem": (16384,) * 3},
    ),
    "AMD, partitions": (
        AMD,
        {"amd.com/gpu": 16},
        {
            "amd.com/compute-memory-partition": "cpx_nps4",
            "amd.com/gpu.device-id": "74a1",
            "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM",
            "amd.com/gpu.vram": "48G",
        },
        ("AMD_Instinct_MI300X_OAM",) * 2,
        {"amd.com/gpu": (8, 8)},
    ),
    "Intel": (
        INTEL,
        {"gpu.intel.com/i915": 2},
        {
            "gpu.intel.com/device.count": "2",
            "gpu.intel.com/product": "Max_1100",
            "gpu.intel.com/family": "Max_Series",
        },
        ("Max_1100",) * 2,
        {"gpu.intel.com/i915": (1, 1)},
    ),
    "Intel, an integrated GPU": (
        INTEL,
        {"gpu.intel.com/xe": 1},
        {"gpu.intel.com/device-id.0300-7d51.count": "1", "gpu.intel.com/device-id.0300-7d51.present": "true"},
        ("",),
        {"gpu.intel.com/xe": (1,)},
    ),
    "Intel, two devices": (
        INTEL,
        {"gpu.intel.com/i915": 2},
        {
            "gpu.intel.com/device.count": "1",
            "gpu.intel.com/product": "Flex_140",
            "gpu.intel.com/device-id.0380-56c1.count": "1",
            "gpu.intel.com/device-id.0300-4680.count": "1",
        },
        ("",) * 2,
        {"gpu.intel.com/i915": (1, 1)},
    ),
    "Intel, numbers and a family": (
        INTEL,
        {"gpu.intel.com/xe": 2},
        {
            "gpu.intel.com/gpu-numbers": "1.4",
            "gpu.intel.com/family": "Flex_Series",
            "gpu.intel.com/device.count": "x",
        },
        ("Flex_Series",) * 2,
        {"gpu.intel.com/xe": (1, 1)},
    ),
}


@pytest.mark.parametrize(("profile", "allocatable", "tags", "models", "units"), MODELS.values(), ids=MODELS)
def test_models_and_memory_are_those_of_the_vendors_labels(
    profile: ResourceProfile,
    allocatable: dict[str, Any],
    tags: dict[str, str],
    models: tuple[str, ...],
    units: dict[str, tuple[int, ...]],
) -> None:
    gpus = parse(profile, allocatable, tags)
    assert (gpus.models, gpus.capacity) == (models, units)


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
    assert [problem.partition(": ")[2] for problem in gpus.problems] == [
        "70 GPUs; NUMA nodes count for at most 64",
        "70 GPUs; links count for at most 64",
    ]
