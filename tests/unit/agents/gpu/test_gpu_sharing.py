"""How many units of a counting resource one physical GPU has, by the labels and annotations of several vendors."""

import json
from typing import Any

import pytest

from nodewise.agents.gpu import gpu_node_labels
from nodewise.agents.gpu.gpu_node_labels import GpuSharing, RegisteredGpu

GPU = "nvidia.com/gpu"
GKE = "cloud.google.com/gke-max-shared-clients-per-gpu"


def parse(
    tags: dict[str, str], register: str | None = None, resource: str = GPU, **resources: Any
) -> GpuSharing:
    return gpu_node_labels.parse_gpu_sharing(resource, tags, register, {GPU: "8", **resources})


def units(sharing: GpuSharing) -> tuple[int, bool]:
    return sharing.units_per_gpu, sharing.is_shared


NVIDIA: dict[str, tuple[dict[str, str], tuple[int, bool]]] = {
    "no label": ({}, (0, False)),
    "a count alone": ({f"{GPU}.count": "2"}, (0, False)),
    "whole GPUs": ({f"{GPU}.product": "NVIDIA-L40S", f"{GPU}.replicas": "1"}, (1, False)),
    "no replicas label": ({f"{GPU}.product": "Tesla-V100"}, (1, False)),
    "replicas of a node without sharing": ({f"{GPU}.product": "A30", f"{GPU}.replicas": "0"}, (1, False)),
    "time slicing": ({f"{GPU}.product": "NVIDIA-A10-SHARED", f"{GPU}.replicas": "5"}, (5, True)),
    "MPS": ({f"{GPU}.sharing-strategy": "mps", f"{GPU}.replicas": "3"}, (3, True)),
    "shared, and the replicas are missing": ({f"{GPU}.product": "NVIDIA-A10-SHARED"}, (0, True)),
    "shared, and the replicas are 1": ({f"{GPU}.product": "A10-SHARED", f"{GPU}.replicas": "1"}, (0, True)),
    "a strategy without replicas": ({f"{GPU}.sharing-strategy": "time-slicing"}, (0, True)),
    "replicas of another form": ({f"{GPU}.replicas": "many"}, (0, True)),
    "GKE": ({GKE: "6"}, (6, True)),
    "GKE without sharing": ({GKE: "1"}, (1, False)),
    "GKE of another form": ({GKE: "x"}, (0, True)),
}


@pytest.mark.parametrize(("tags", "expected"), NVIDIA.values(), ids=NVIDIA)
def test_units_per_gpu_by_labels(tags: dict[str, str], expected: tuple[int, bool]) -> None:
    sharing = parse(tags)
    assert units(sharing) == expected
    assert bool(sharing.problem) == (tags.get(GKE) == "x" or tags.get(f"{GPU}.replicas") == "many")


def test_gpus_are_whole_where_their_shares_have_a_resource_of_their_own() -> None:
    tags = {f"{GPU}.product": "Tesla-T4", f"{GPU}.replicas": "10", f"{GPU}.sharing-strategy": "time-slicing"}
    assert units(parse(tags, **{f"{GPU}.shared": "20"})) == (1, False)
    assert units(parse(tags)) == (10, True)


def hami(*fields: str) -> str:
    return "".join(f"{part}:" for part in fields)


HAMI_TEXT = hami(
    "GPU-a1,4,24576,100,NVIDIA-NVIDIA A10,0,true",
    "GPU-b2,4,24576,100,NVIDIA-NVIDIA A10,1,false",
    "GPU-c3,2,81920,100,NVIDIA-NVIDIA H100,1,true,2,hami-core",
)
HAMI_JSON = json.dumps(
    [
        {
            "id": "GPU-a1",
            "index": 0,
            "count": 4,
            "devmem": 24576,
            "type": "NVIDIA-NVIDIA A10",
            "health": True,
        },
        {
            "id": "GPU-b2",
            "index": 1,
            "count": 4,
            "devmem": 24576,
            "type": "NVIDIA-NVIDIA A10",
            "health": False,
        },
        {"id": "GPU-c3", "count": 2, "devcore": 100, "type": "NVIDIA-NVIDIA H100", "mode": "hami-core"},
    ]
)


@pytest.mark.parametrize("register", [HAMI_TEXT, HAMI_JSON], ids=["text", "JSON"])
def test_each_gpu_of_a_hami_register(register: str) -> None:
    sharing = parse({f"{GPU}.count": "9"}, register)
    assert sharing.registered == (
        RegisteredGpu(4, "NVIDIA-NVIDIA A10"),
        RegisteredGpu(0, "NVIDIA-NVIDIA A10"),
        RegisteredGpu(2, "NVIDIA-NVIDIA H100"),
    )
    assert (units(sharing), sharing.problem) == ((4, True), "")


@pytest.mark.parametrize(
    "register",
    ["", "[]", "{}", "[", "[3]", "GPU-a,x,1,1,m,0,true:", "GPU-a,4,1:", '[{"count": 0}]', '[{"count": "4"}]'],
)
def test_a_hami_register_that_cannot_be_read_makes_the_number_of_gpus_unknown(register: str) -> None:
    sharing = parse({f"{GPU}.product": "NVIDIA-A10"}, register)
    assert (units(sharing), sharing.registered) == ((0, True), ())
    assert sharing.problem.startswith("annotation hami.io/node-nvidia-register: ")
    assert len(sharing.problem) < 300


PARTITION = "amd.com/compute-memory-partition"
AMD: dict[str, tuple[dict[str, str], str, tuple[int, bool]]] = {
    "no label": ({}, "amd.com/gpu", (0, False)),
    "whole GPUs": ({PARTITION: "spx_nps1"}, "amd.com/gpu", (1, False)),
    "halves": ({PARTITION: "dpx_nps2"}, "amd.com/gpu", (2, True)),
    "quarters": ({PARTITION: "qpx_nps4"}, "amd.com/gpu", (4, True)),
    "dies of MI300X": ({PARTITION: "cpx_nps4", "amd.com/gpu.device-id": "74a1"}, "amd.com/gpu", (8, True)),
    "dies of MI300A": (
        {PARTITION: "cpx_nps1", "beta.amd.com/gpu.device-id.74A0": "4"},
        "amd.com/gpu",
        (6, True),
    ),
    "dies by product": (
        {PARTITION: "cpx_nps1", "amd.com/gpu.product-name": "AMD_Instinct_MI308X"},
        "amd.com/gpu",
        (4, True),
    ),
    "dies of an unknown device": (
        {PARTITION: "cpx_nps1", "amd.com/gpu.device-id": "9999"},
        "amd.com/gpu",
        (0, True),
    ),
    "dies without labels": ({PARTITION: "cpx_nps1"}, "amd.com/gpu", (0, True)),
    "dies of two devices": (
        {PARTITION: "cpx_nps1", "amd.com/gpu.device-id.74a1": "4", "amd.com/gpu.device-id.74a0": "4"},
        "amd.com/gpu",
        (0, True),
    ),
    "an unknown mode": ({PARTITION: "zpx"}, "amd.com/gpu", (0, True)),
    "the strategy mixed, whole": ({}, "amd.com/spx_nps1", (1, False)),
    "the strategy mixed, dies": ({"amd.com/gpu.device-id": "74a1"}, "amd.com/cpx_nps4", (8, True)),
}


@pytest.mark.parametrize(("tags", "resource", "expected"), AMD.values(), ids=AMD)
def test_partitions_of_amd_gpus(tags: dict[str, str], resource: str, expected: tuple[int, bool]) -> None:
    sharing = parse(tags, resource=resource)
    assert units(sharing) == expected
    assert bool(sharing.problem) == (expected == (0, True))


def test_other_vendors_describe_no_sharing() -> None:
    assert (
        parse({f"{GPU}.replicas": "3", GKE: "3"}, "[]", resource="example.com/gpu")
        == gpu_node_labels.NOT_DESCRIBED
    )
