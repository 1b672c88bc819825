"""How many units of a counting resource one physical GPU has, by the labels and annotations of several vendors."""

import json
from typing import Any

import pytest

from nodewise.agents.gpu import gpu_node_labels
from nodewise.agents.gpu.gpu_node_labels import GpuSharing, RegisteredGpu
from tests.unit.agents.gpu.table_cases import cases

GPU = "nvidia.com/gpu"
GKE = "cloud.google.com/gke-max-shared-clients-per-gpu"


def parse(
    tags: dict[str, str], register: str | None = None, resource: str = GPU, **resources: Any
) -> GpuSharing:
    return gpu_node_labels.parse_gpu_sharing(resource, tags, register, {GPU: "8", **resources})


def units(sharing: GpuSharing) -> tuple[int, bool]:
    return sharing.units_per_gpu, sharing.is_shared


@cases("gpu_sharing.yaml", "nvidia")
def test_units_per_gpu_by_labels(labels: dict[str, str], units: int, is_shared: bool) -> None:
    sharing = parse(labels)
    assert (sharing.units_per_gpu, sharing.is_shared) == (units, is_shared)
    assert bool(sharing.problem) == (labels.get(GKE) == "x" or labels.get(f"{GPU}.replicas") == "many")


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
A10 = {"count": 4, "devmem": 24576, "type": "NVIDIA-NVIDIA A10"}
H100 = {"id": "GPU-c3", "count": 2, "devcore": 100, "type": "NVIDIA-NVIDIA H100", "mode": "hami-core"}
HAMI_JSON = json.dumps([A10 | {"health": True}, A10 | {"health": False}, H100])


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


@cases("gpu_sharing.yaml", "amd")
def test_partitions_of_amd_gpus(labels: dict[str, str], resource: str, units: int, is_shared: bool) -> None:
    sharing = parse(labels, resource=resource)
    assert (sharing.units_per_gpu, sharing.is_shared) == (units, is_shared)
    assert bool(sharing.problem) == (units == 0 and is_shared)


def test_other_vendors_describe_no_sharing() -> None:
    expected = gpu_node_labels.NOT_DESCRIBED
    assert parse({f"{GPU}.replicas": "3", GKE: "3"}, "[]", resource="example.com/gpu") == expected
