"""The requests of pods. `tests/cluster/test_pod_request_law.py` compares them with Kubernetes' own function."""

from typing import Any

import msgspec
import pytest

from nodewise.base import quantity
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus, PodRequest

Object = dict[str, Any]
GIB = 2**30


class HeldMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str


class HeldPod(msgspec.Struct, frozen=True):
    metadata: HeldMetadata
    spec: HoldingSpec
    status: HoldingStatus


def container(name: str = "c", *, sidecar: bool = False, limits: Any = None, **requests: Any) -> Object:
    resources = {"requests": requests or None, "limits": limits}
    return {"name": name, "resources": resources, "restartPolicy": "Always" if sidecar else None}


def allocation(name: str, allocated: Any = None, effective: Any = None) -> Object:
    """The status of a container."""
    resources = None if effective is None else {"requests": effective}
    return {"name": name, "allocatedResources": allocated, "resources": resources}


def amounts(spec: Object, status: Object | None = None) -> PodRequest:
    parsed_status = None if status is None else msgspec.convert(status, HoldingStatus)
    parsed = msgspec.convert(spec, HoldingSpec)
    return PodRequest(*pod_requests.whole_requests(parsed, ("cpu", "memory"), parsed_status))


SPECS: dict[str, tuple[Object, PodRequest]] = {
    "nothing": ({}, PodRequest()),
    "nulls": ({"containers": None, "initContainers": None, "resources": None}, PodRequest()),
    "containers without resources": ({"containers": [{"resources": None}, {"name": "d"}]}, PodRequest()),
    "a sum of containers": (
        {"containers": [container(cpu="500m", memory="1Gi"), container(cpu="0.25")]},
        PodRequest(750, GIB),
    ),
    "a fraction that is rounded once": (
        {"containers": [container(cpu="300u"), container(cpu="300u")]},
        PodRequest(1),
    ),
    "a larger init container": (
        {
            "containers": [container(cpu="1", memory="2Ki")],
            "initContainers": [container(cpu="100m"), container(cpu="2", memory="1Ki")],
        },
        PodRequest(2000, 2048),
    ),
    "a sidecar": (
        {"containers": [container(cpu="1")], "initContainers": [container(sidecar=True, cpu="500m")]},
        PodRequest(1500),
    ),
    "an init container beside an earlier sidecar": (
        {
            "containers": [container(cpu="300m")],
            "initContainers": [container(sidecar=True, cpu="200m"), container(cpu="700m")],
        },
        PodRequest(900),
    ),
    "an init container before a later sidecar": (
        {
            "containers": [container(cpu="300m")],
            "initContainers": [container(cpu="700m"), container(sidecar=True, cpu="200m")],
        },
        PodRequest(700),
    ),
    "overhead": (
        {"containers": [container(cpu="1")], "overhead": {"cpu": "120m", "memory": "70Mi"}},
        PodRequest(1120, 70 * 2**20),
    ),
    "pod-level requests instead of larger ones": (
        {"containers": [container(cpu="3", memory="1Gi")], "resources": {"requests": {"cpu": "1500m"}}},
        PodRequest(1500, GIB),
    ),
    "pod-level requests and overhead": (
        {"containers": [container()], "resources": {"requests": {"cpu": "6"}}, "overhead": {"cpu": "250m"}},
        PodRequest(6250),
    ),
    "pod-level requests of other resources": (
        {"containers": [container(cpu="2")], "resources": {"requests": {"example.com/fpga": "1"}}},
        PodRequest(2000),
    ),
    "a pod-level limit that no container requests": (
        {"containers": [container(cpu="2")], "resources": {"limits": {"cpu": "5", "memory": "3Gi"}}},
        PodRequest(2000, 3 * GIB),
    ),
    "a limit without a request": (
        {"containers": [container(limits={"cpu": "2", "memory": "1Gi"}, cpu="1")]},
        PodRequest(1000, GIB),
    ),
    "a limit and null as the request": (
        {"containers": [container(limits={"cpu": "2"}, cpu=None)]},
        PodRequest(2000),
    ),
    "sums that are too large": (
        {"containers": [container(cpu="8E", memory="8E")] * 9},
        PodRequest(quantity.MAX_AMOUNT, quantity.MAX_AMOUNT),
    ),
}


@pytest.mark.parametrize(("spec", "expected"), SPECS.values(), ids=SPECS)
def test_request_of_a_pod_that_is_to_be_placed(spec: Object, expected: PodRequest) -> None:
    assert amounts(spec) == expected
    assert amounts(spec, {}) == expected


TWO = {"containers": [container("web", cpu="1", memory="1Gi"), container("log", cpu="2", memory="3Gi")]}
INFEASIBLE = {"type": "PodResizePending", "reason": "Infeasible"}
DEFERRED = {"type": "PodResizePending", "reason": "Deferred"}
STATUSES: dict[str, tuple[Object, Object, PodRequest]] = {
    "nothing allocated yet": (TWO, {"containerStatuses": [{"name": "web"}]}, PodRequest(3000, 4 * GIB)),
    "a smaller spec than what is allocated": (
        TWO,
        {"containerStatuses": [allocation("web", {"cpu": "7"})]},
        PodRequest(9000, 4 * GIB),
    ),
    "a smaller spec than what is in effect": (
        TWO,
        {
            "containerStatuses": [
                allocation("web", {"cpu": "1", "memory": "1Gi"}, {"cpu": "1500m", "memory": "2Gi"})
            ]
        },
        PodRequest(3500, 5 * GIB),
    ),
    "the larger of two sums, not the sum of larger ones": (
        TWO,
        {
            "containerStatuses": [
                allocation("web", {"cpu": "2"}, {"cpu": "2"}),
                allocation("log", {"cpu": "1500m"}, {"cpu": "1500m"}),
            ]
        },
        PodRequest(3500, 4 * GIB),
    ),
    "an infeasible resize": (
        {"containers": [container("web", cpu="40")]},
        {"conditions": [INFEASIBLE], "containerStatuses": [allocation("web", {"cpu": "3"}, {"cpu": "3"})]},
        PodRequest(3000),
    ),
    "an infeasible resize of a container without a status": (TWO, {"conditions": [INFEASIBLE]}, PodRequest()),
    "a deferred resize": (
        {"containers": [container("web", cpu="40")]},
        {"conditions": [DEFERRED], "containerStatuses": [allocation("web", {"cpu": "3"}, {"cpu": "3"})]},
        PodRequest(40_000),
    ),
    "a first condition that counts": (
        {"containers": [container("web", cpu="5")]},
        {
            "conditions": [{"type": "Ready", "reason": "Infeasible"}, DEFERRED, INFEASIBLE],
            "containerStatuses": [allocation("web", {"cpu": "3"})],
        },
        PodRequest(5000),
    ),
    "a sidecar that is resized": (
        {
            "containers": [container("web", cpu="1")],
            "initContainers": [container("log", sidecar=True, cpu="1")],
        },
        {"initContainerStatuses": [allocation("log", {"cpu": "4"}, {"cpu": "2"})]},
        PodRequest(5000),
    ),
    "pod-level requests that were larger": (
        {"containers": [container("web", cpu="1")], "resources": {"requests": {"cpu": "2"}}},
        {"allocatedResources": {"cpu": "6"}, "resources": {"requests": {"cpu": "5"}}},
        PodRequest(6000),
    ),
    "pod-level requests without effective ones": (
        {"containers": [container("web", cpu="1")], "resources": {"requests": {"cpu": "2"}}},
        {"allocatedResources": {"cpu": "6"}},
        PodRequest(2000),
    ),
    "an infeasible resize of a pod": (
        {"containers": [container("web")], "resources": {"requests": {"cpu": "64"}}},
        {
            "conditions": [INFEASIBLE],
            "allocatedResources": {"cpu": "6"},
            "resources": {"requests": {"cpu": "5"}},
        },
        PodRequest(6000),
    ),
    "amounts of the pod instead of those of its containers": (
        TWO,
        {
            "allocatedResources": {"cpu": "4", "memory": "2Gi"},
            "resources": {"requests": {"cpu": "3500m", "memory": "5Gi"}},
            "containerStatuses": [allocation("web", {"cpu": "90"})],
        },
        PodRequest(4000, 5 * GIB),
    ),
}


@pytest.mark.parametrize(("spec", "status", "expected"), STATUSES.values(), ids=STATUSES)
def test_request_of_a_pod_that_is_resized(spec: Object, status: Object, expected: PodRequest) -> None:
    assert amounts(spec, status) == expected


@pytest.mark.parametrize(("spec", "status", "expected"), STATUSES.values(), ids=STATUSES)
def test_a_reduced_pod_requests_the_same_amounts(spec: Object, status: Object, expected: PodRequest) -> None:
    pod = msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "team"},
            "spec": {**spec, "nodeName": "n1"},
            "status": {**status, "phase": "Running"},
        },
        HeldPod,
    )
    reduced = pod_requests.reduce_to_requests(pod, ("cpu", "memory"))
    assert reduced.spec.nodeName == "n1"
    assert reduced.status == HoldingStatus()
    assert pod_requests.whole_requests(reduced.spec, ("cpu", "memory"), reduced.status) == expected
    assert pod_requests.reduce_to_requests(reduced, ("cpu", "memory")) == reduced


def test_every_named_resource_is_requested() -> None:
    spec = {
        "containers": [container("web", **{"example.com/a": "1"}, limits={"example.com/b": "1"})],
        "initContainers": [container("set-up", **{"example.com/c": "1"})],
        "resources": {"requests": {"hugepages-2Mi": "4Mi"}},
        "overhead": {"example.com/d": "1"},
    }
    status = {"containerStatuses": [allocation("web", {"example.com/e": "1"}, {"example.com/f": "1"})]}
    parsed, parsed_status = msgspec.convert(spec, HoldingSpec), msgspec.convert(status, HoldingStatus)
    names = tuple(sorted(pod_requests.named_resources(parsed, parsed_status)))
    assert names == (*(f"example.com/{letter}" for letter in "abcdef"), "hugepages-2Mi")
    assert pod_requests.whole_requests(parsed, names, parsed_status) == (1, 1, 1, 1, 1, 1, 4 * 2**20)


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
        ("9E", quantity.MAX_AMOUNT, quantity.MAX_AMOUNT),
        (True, 0, 0),
        ([], 0, 0),
    ],
)
def test_quantities_are_rounded_up_and_bounded(text: Any, milli: int, units: int) -> None:
    assert (quantity.milli(text), quantity.units(text)) == (milli, units)
