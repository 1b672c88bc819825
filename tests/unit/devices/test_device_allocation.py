"""The search of kube-scheduler for devices: its order, and where its result is unknown."""

import itertools
from typing import Any

import msgspec
import pytest

from nodewise.devices import device_allocation
from nodewise.devices.device_allocation import (
    DeviceUse,
    NotPredicted,
    Prediction,
    SearchBudget,
    blocked_devices,
    claim_of_extended_resources,
    predict_devices,
)
from nodewise.devices.device_selectors import device_matches
from nodewise.devices.resource_claims import (
    ClaimRequest,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    ResourceClaim,
)
from nodewise.devices.resource_slices import (
    CapacityPolicy,
    CounterConsumption,
    Device,
    DeviceCapacity,
    DeviceId,
    DeviceObjectMetadata,
    DeviceTaint,
    NodeDevicePool,
    NodeScope,
    ResourceSlice,
    group_pool,
)
from nodewise.kube.pod_requests import RequestedResources, RequestingContainer, RequestingSpec

CLASSES = {"gpu": DeviceClass(metadata=DeviceObjectMetadata(name="gpu"))}


def pool(name: str, *devices: Device, slices: int = 1, **fields: Any) -> NodeDevicePool:
    item = ResourceSlice(
        metadata=DeviceObjectMetadata(name=name),
        driver="d",
        pool=name,
        generation=1,
        slice_count=slices,
        scope=NodeScope("n"),
        devices=devices,
        **fields,
    )
    of_node = group_pool([item]).for_node("n", {})
    assert of_node is not None
    return of_node


def device(name: str, in_pool: str = "p", **fields: Any) -> Device:
    return Device(driver="d", pool=in_pool, name=name, **fields)


def claim(*forms: DeviceRequest) -> ResourceClaim:
    requests = tuple(ClaimRequest(form.name, (form,)) for form in forms)
    return ResourceClaim(metadata=DeviceObjectMetadata(name="c"), requests=requests)


def gpus(count: int = 1, **fields: Any) -> DeviceRequest:
    return DeviceRequest("r", "gpu", count=count, **fields)


NOTHING_IN_USE = DeviceUse()


def names(prediction: Prediction) -> list[str]:
    assert prediction is not None
    assert not isinstance(prediction, NotPredicted)
    return [each.device.name for each in prediction]


def predict(
    pools: list[NodeDevicePool], *forms: DeviceRequest, use: DeviceUse = NOTHING_IN_USE
) -> Prediction:
    return predict_devices(pools, [claim(*forms)], CLASSES, use, device_matches)


def test_first_free_devices_are_taken_in_the_order_of_their_slice() -> None:
    pools = [pool("p", device("b"), device("a"), device("c"), device("e"))]
    use = DeviceUse(
        {DeviceId("d", "p", "b")}, taints={DeviceId("d", "p", "a"): (DeviceTaint("k", "NoSchedule"),)}
    )
    assert names(predict(pools, gpus(2), use=use)) == ["c", "e"]
    assert predict(pools, gpus(3), use=use) is None


def test_request_without_an_amount_consumes_a_default_of_zero() -> None:
    """The NVIDIA driver limits the shares of a GPU, of which a request takes 1, and memory only if it is requested."""
    memory = DeviceCapacity(8, CapacityPolicy(0, minimum=0, maximum=8, step=1))
    shares = DeviceCapacity(4, CapacityPolicy(1, minimum=1, maximum=4, step=1))
    shared = device("a", allow_multiple_allocations=True, capacity={"d/memory": memory, "d/shares": shares})
    for used, expected in (({"d/memory": 8, "d/shares": 3}, ["a"]), ({"d/memory": 0, "d/shares": 4}, None)):
        predicted = predict([pool("p", shared)], gpus(), use=DeviceUse(shared={shared.id: used}))
        assert predicted is None if expected is None else names(predicted) == expected


def test_device_that_is_no_longer_shared_is_not_free_while_a_claim_has_a_part_of_it() -> None:
    former = device("a", capacity={"d/memory": DeviceCapacity(8)})
    for used, expected in (({"d/memory": 2}, None), ({}, ["a"])):
        predicted = predict([pool("p", former)], gpus(), use=DeviceUse(shared={former.id: used}))
        assert predicted is None if expected is None else names(predicted) == expected


def test_claim_that_may_fit_an_incomplete_pool_is_not_predicted() -> None:
    pools = [pool("o", device("a", "o")), pool("p", device("b"), slices=2)]
    assert names(predict(pools, gpus())) == ["a"]
    unknown = predict(pools, gpus(2))
    assert unknown == NotPredicted("pool d/p: found 1 of 2 slices of generation 1")


def test_selector_that_cannot_be_evaluated_is_not_a_rejection() -> None:
    unknown = predict([pool("p", device("a"))], gpus(selectors=("device.unknown() == 1",)))
    assert unknown == NotPredicted("selector of request r cannot be evaluated")


def test_search_of_a_hostile_claim_ends_without_a_prediction() -> None:
    devices = [device(f"g{at}", attributes={"d/x": at % 2}) for at in range(24)]
    wanted = [DeviceRequest(f"r{at}", "gpu", count=6) for at in range(4)]
    impossible = DeviceRequest("last", "gpu", selectors=("false",))
    result = predict([pool("p", *devices)], *wanted, impossible)
    assert isinstance(result, NotPredicted)
    assert "steps" in result.reason


def test_budget_ends_searches_and_counts_the_time_of_selectors(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [pool("p", *[device(f"g{at}") for at in range(100)])]
    budget = SearchBudget(150)
    slow = DeviceRequest("r", "gpu", selectors=("[1].exists(x, x == 2)",))
    assert predict_devices(pools, [claim(gpus(20))], CLASSES, NOTHING_IN_USE, device_matches, budget)
    assert budget.left == 102
    seconds = itertools.count(0.0, 0.0005)
    monkeypatch.setattr(device_allocation, "thread_time", lambda: next(seconds))
    result = predict_devices(pools, [claim(slow)], CLASSES, NOTHING_IN_USE, device_matches, budget)
    assert isinstance(result, NotPredicted)
    assert budget.left < 0


def test_claims_that_nest_deeper_than_the_search_are_not_predicted() -> None:
    many = [ResourceClaim(metadata=DeviceObjectMetadata(name=f"c{at}")) for at in range(2_000)]
    result = predict_devices([], many, CLASSES, NOTHING_IN_USE, device_matches)
    assert result == NotPredicted("the claims of the pod have more than 100 requests")
    pools = [pool("p", *[device(f"g{at}") for at in range(128)])]
    for count, is_known in ((25, True), (26, False)):
        claims = [claim(gpus(count)) for _ in range(4)]
        result = predict_devices(pools, claims, CLASSES, NOTHING_IN_USE, device_matches)
        assert isinstance(result, NotPredicted) is not is_known


@pytest.mark.parametrize("value", [("a", "b"), None], ids=["list", "newer type"])
@pytest.mark.parametrize("kind", ["match_attribute", "distinct_attribute"])
def test_constraint_on_lists_or_newer_types_is_not_a_rejection(value: Any, kind: str) -> None:
    pools = [pool("p", *(device(name, attributes={"d/roots": value}) for name in "ab"))]
    constrained = msgspec.structs.replace(
        claim(gpus(2)), constraints=(DeviceConstraint(**{kind: "d/roots"}),)
    )
    result = predict_devices(pools, [constrained], CLASSES, NOTHING_IN_USE, device_matches)
    assert isinstance(result, NotPredicted)
    assert "d/roots" in result.reason


def test_constraints_count_as_steps() -> None:
    pools = [pool("p", *[device(f"g{at}", attributes={"d/x": 1}) for at in range(64)])]
    constrained = claim(gpus(20))
    constraints = tuple(DeviceConstraint((), "d/x") for _ in range(300))
    constrained = msgspec.structs.replace(constrained, constraints=constraints)
    result = predict_devices(pools, [constrained], CLASSES, NOTHING_IN_USE, device_matches)
    assert isinstance(result, NotPredicted)


def test_device_whose_counters_are_used_up_is_blocked() -> None:
    parts = [
        device(name, consumes_counters=(CounterConsumption("gpu", {"slices": size}),))
        for name, size in (("half-1", 4), ("half-2", 4), ("whole", 8))
    ]
    pools = [pool("p", *parts, counter_sets={"gpu": {"slices": 8}})]
    use = DeviceUse({DeviceId("d", "p", "half-1")})
    assert [each.device for each in blocked_devices(pools, use)] == ["whole"]
    assert names(predict(pools, gpus(), use=use)) == ["half-2"]
    assert predict(pools, gpus(2), use=use) is None


def test_extended_resources_of_all_containers_become_one_claim() -> None:
    def container(name: str, gpus: str, restart: str | None = None) -> RequestingContainer:
        return RequestingContainer(name, RequestedResources({"cpu": "1"}, {"x/gpu": gpus}), restart)

    classes = {"gpu": DeviceClass(metadata=DeviceObjectMetadata(name="gpu"), extended_resource="x/gpu")}
    spec = RequestingSpec(
        containers=(container("a", "2"), container("b", "1")),
        initContainers=(container("small", "3"), container("big", "5"), container("side", "1", "Always")),
    )
    made = claim_of_extended_resources(spec, classes)
    assert made is not None
    counts = {each.name: each.alternatives[0].count for each in made.requests}
    # the second init container needs one device more than the later containers have together
    assert counts == {
        "container-1-request-1": 1,
        "container-2-request-1": 1,
        "container-3-request-1": 2,
        "container-4-request-1": 1,
    }
    assert claim_of_extended_resources(spec, {}) is None
