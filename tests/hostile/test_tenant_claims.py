"""ResourceClaims that tenants write: they cost bounded memory and time, and concern no other namespace."""

import gc
import tracemalloc
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from nodewise.agent import Names, NodeIndex
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.gpu_pod_fields import RequestedGpuPod
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.vendor_resource_names import GENERIC
from nodewise.devices import resource_claims
from nodewise.devices.device_allocation import Prediction, predict_devices
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.resource_claims import ResourceClaim, ResourceClaimObject
from nodewise.devices.resource_slices import Device
from tests.cluster import device_objects
from tests.unit.agents.gpu.test_device_placement import Cluster, claim, pod, slices

LARGE: Final[dict[str, dict[str, Any]]] = {
    "selectors": device_objects.claim(
        "large", *(device_objects.request(f"r{at}", *["true" + " " * 10_000] * 4) for at in range(32))
    ),
    "requests": device_objects.claim(
        "large",
        *(device_objects.request(f"r{at:0>60}", capacity={"requests": {"m" * 60: 1}}) for at in range(99)),
    ),
    "tolerations": device_objects.claim(
        "large", device_objects.request("r", tolerations=[{"key": f"k{at:0>60}"} for at in range(200)])
    ),
    "constraints": device_objects.claim(
        "large", constraints=[{"matchAttribute": f"d/{at:0>60}"} for at in range(200)]
    ),
}


def parse(claim: dict[str, Any]) -> ResourceClaim:
    return resource_claims.parse_resource_claim(
        msgspec.json.decode(msgspec.json.encode(claim), type=ResourceClaimObject)
    )


@pytest.mark.parametrize("kind", LARGE)
def test_large_claim_takes_little_memory(kind: str) -> None:
    parse(LARGE[kind])
    gc.collect()
    tracemalloc.start()
    kept = [parse(LARGE[kind]) for _ in range(20)]
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(each.is_too_large for each in kept)
    assert size / len(kept) < 4_000


@pytest.mark.parametrize("kind", LARGE)
def test_large_claim_is_not_predicted_and_rejects_no_node(kind: str) -> None:
    cluster = Cluster("pack", slices("n0"), slices("n1"), LARGE[kind], claim("small"))
    points, details = cluster.decide(pod("p", "large"))
    assert len(set(points)) == 1
    assert "bytes of requests" in details[0]
    assert "gpu: gpu-0" in cluster.decide(pod("q", "small"))[1][0]


def test_selector_that_is_too_long_to_compile_is_unknown() -> None:
    device = Device(driver="d", pool="p", name="a")
    assert device_matches("true", device) is True
    assert device_matches("true" + " " * 3_000, device) is None


@pytest.mark.parametrize("is_serving", [True, False])
def test_claim_whose_search_is_too_long_is_searched_on_few_nodes(
    monkeypatch: pytest.MonkeyPatch, is_serving: bool
) -> None:
    """Ten requests for nine devices: the search would try their permutations on each node."""
    names = [f"n{at}" for at in range(50)]
    requests = (device_objects.request(f"r{at}") for at in range(10))
    long, small = device_objects.claim("long", *requests), claim("small")
    cluster = Cluster("pack", *(slices(name, 9) for name in names), long, small, nodes=len(names))
    if not is_serving:
        cluster.agent = GpuAgent(GpuOptions(gpu_placement="pack"), GENERIC)
    searches: list[Prediction] = []

    def count_search(*arguments: Any) -> Prediction:
        searches.append(predict_devices(*arguments))
        return searches[-1]

    monkeypatch.setattr("nodewise.agents.gpu.device_placement.predict_devices", count_search)
    points, details = cluster.decide(pod("p", "long"))
    assert len(set(points)) == 1
    assert len(searches) <= 10
    assert details[0] == "devices of claim long not predicted: the search takes more than 4000 steps"
    if not is_serving:
        assert "the search takes more than 4000 steps on 8 other nodes" in details[-1]
    assert "gpu: gpu-0" in cluster.decide(pod("q", "small"))[1][-1]


def test_claim_of_another_namespace_is_not_used() -> None:
    cluster = Cluster("pack", slices("n0"), slices("n1"), claim("theirs"))
    document = msgspec.to_builtins(pod("p", "theirs"))
    document["metadata"]["namespace"] = "tenant"
    stranger = msgspec.convert(document, RequestedGpuPod)
    candidates = Names(NodeIndex(cluster.names), np.arange(len(cluster.names)))
    verdict = cluster.agent.filter(stranger, candidates, cluster.snapshot)
    assert verdict is None or not verdict.codes.any()
    assert cluster.agent.score(stranger, candidates, cluster.snapshot) is None
