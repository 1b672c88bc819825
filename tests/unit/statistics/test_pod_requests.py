"""The requests of pods."""

import msgspec
import pytest

from nodewise.agents.gpu.gpu_pod_fields import GpuPod
from nodewise.kube import struct_type_merge
from nodewise.statistics import integer_quantities, pod_requests
from nodewise.statistics.pod_requests import PodRequest, RequestingPod

_POD = struct_type_merge.merge("Pod", RequestingPod, GpuPod)


def pod(*containers, init=()):
    def container(fields):
        always = {"restartPolicy": "Always"} if fields.pop("sidecar", False) else {}
        return {"name": "c", "resources": {"requests": fields}, **always}

    spec = {
        "containers": [container(dict(c)) for c in containers],
        "initContainers": [container(dict(c)) for c in init],
    }
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec}, _POD)


def test_containers_add_up():
    request = pod_requests.effective_request(pod({"cpu": "500m", "memory": "1Gi"}, {"cpu": "0.25"}))
    assert request == PodRequest(750, 2**30)


def test_the_largest_init_container_counts_where_it_asks_for_more():
    request = pod_requests.effective_request(
        pod({"cpu": "1", "memory": "2Ki"}, init=({"cpu": "100m"}, {"cpu": "2", "memory": "1Ki"}))
    )
    assert request == PodRequest(2000, 2048)


def test_a_sidecar_runs_beside_the_containers():
    assert pod_requests.effective_request(
        pod({"cpu": "1"}, init=({"cpu": "500m", "sidecar": True},))
    ) == PodRequest(1500, 0)


def test_init_containers_do_not_count_together():
    gpu_pod = pod({"cpu": "1", "gpu": "2"}, {"gpu": 1}, init=({"cpu": "4"},))
    assert pod_requests.sum_of_container_requests(gpu_pod, "cpu") == 1000
    assert pod_requests.sum_of_container_requests(gpu_pod, "gpu") == 3
    assert pod_requests.sum_of_container_requests(gpu_pod, "memory") == 0


@pytest.mark.parametrize(
    ("text", "milli", "units"),
    [
        ("0.0005", 1, 1),
        ("1500m", 1500, 2),
        (1, 1000, 1),
        (0.5, 500, 1),
        (None, 0, 0),
        ("", 0, 0),
        ("lots", 0, 0),
        ("-4", 0, 0),
        ("1e300", 0, 0),
        ("9E", integer_quantities.MAX_AMOUNT, integer_quantities.MAX_AMOUNT),
        (True, 0, 0),
        ([], 0, 0),
    ],
)
def test_quantities_are_rounded_up_and_bounded(text, milli, units):
    assert (integer_quantities.milli(text), integer_quantities.units(text)) == (milli, units)


def test_a_pod_without_requests_asks_for_nothing():
    for fields in ({}, {"spec": {"containers": None, "initContainers": None}}):
        bare = msgspec.convert({"metadata": {"name": "p"}} | fields, _POD)
        assert pod_requests.effective_request(bare) == PodRequest(0, 0)
    assert pod_requests.effective_request(
        msgspec.convert({"spec": {"containers": [{"resources": None}]}}, RequestingPod)
    ) == (
        0,
        0,
    )


def test_many_large_requests_stay_within_bounds():
    assert pod_requests.effective_request(pod(*[{"cpu": "8E", "memory": "8E"}] * 9)) == PodRequest(
        integer_quantities.MAX_AMOUNT, integer_quantities.MAX_AMOUNT
    )
