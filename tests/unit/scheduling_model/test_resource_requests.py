from typing import Any

import pytest

from nodewise.base.errors import BadInput
from nodewise.scheduling_model import parsed_nodes_and_pods

Spec = dict[str, Any]


def container(*, restart: str = "", limits: dict[str, str] | None = None, **requests: str) -> Spec:
    made: Spec = {"resources": {"requests": requests, "limits": limits or {}}}
    return made | ({"restartPolicy": restart} if restart else {})


def cpus(*amounts: str) -> list[Spec]:
    return [container(cpu=amount) for amount in amounts]


SPECS: dict[str, tuple[Spec, dict[str, int]]] = {
    "a pod that asks for nothing": ({"containers": [{}]}, {}),
    "containers add up": ({"containers": cpus("1", "250m")}, {"cpu": 1250}),
    "what is finer than a milli-core is rounded up, once": ({"containers": cpus("100u", "100u")}, {"cpu": 1}),
    "memory is in bytes": ({"containers": [container(memory="1Ki")]}, {"memory": 1024}),
    "a limit stands for a missing request": (
        {"containers": [container(cpu="1", limits={"cpu": "2", "telemetry/scheduling": "1"})]},
        {"cpu": 1000, "telemetry/scheduling": 1},
    ),
    "init containers run one after the other, before the others": (
        {"containers": cpus("1", "1"), "initContainers": cpus("3", "1")},
        {"cpu": 3000},
    ),
    "a small init container costs nothing": (
        {"containers": cpus("1"), "initContainers": cpus("500m")},
        {"cpu": 1000},
    ),
    "a sidecar runs on beside all that follow it": (
        {"containers": cpus("1"), "initContainers": [container(cpu="2", restart="Always"), *cpus("3")]},
        {"cpu": 5000},
    ),
    "requests of the pod stand above those of its containers": (
        {"containers": cpus("1"), "resources": {"requests": {"cpu": "3", "example.com/card": "1"}}},
        {"cpu": 3000},
    ),
    "limits of the pod count where nobody requests": (
        {"containers": cpus("1"), "resources": {"limits": {"cpu": "3", "memory": "5"}}},
        {"cpu": 1000, "memory": 5},
    ),
    "overhead comes on top": (
        {"containers": cpus("1"), "overhead": {"cpu": "100m", "memory": "1k"}},
        {"cpu": 1100, "memory": 1000},
    ),
}


@pytest.mark.parametrize(("spec", "amounts"), SPECS.values(), ids=SPECS)
def test_requests_are_counted_as_kube_scheduler_counts_them(spec: Spec, amounts: dict[str, int]) -> None:
    assert parsed_nodes_and_pods.requests_that_must_fit({"spec": spec}) == amounts


def test_scores_count_something_for_a_container_that_asks_for_nothing() -> None:
    assert parsed_nodes_and_pods.scored({"spec": {"containers": [{}, container(cpu="2")]}}) == (
        2100,
        400 * 2**20,
    )


def test_a_pod_that_is_not_placed_yet_is_scored_by_its_containers() -> None:
    pod = {"spec": {"containers": cpus("1"), "resources": {"requests": {"cpu": "3"}}}}
    assert parsed_nodes_and_pods.scored(pod)[0] == 3000
    assert parsed_nodes_and_pods.container_requests_for_scoring(pod)[0] == 1000


def test_a_node_without_allocatable_offers_its_capacity() -> None:
    assert parsed_nodes_and_pods.allocatable({"capacity": {"cpu": "2", "pods": "9"}}) == {
        "cpu": 2000,
        "pods": 9,
    }
    assert parsed_nodes_and_pods.allocatable({"capacity": {"cpu": "2"}, "allocatable": {"cpu": "1"}}) == {
        "cpu": 1000
    }


def test_problem_names_an_invalid_quantity() -> None:
    with pytest.raises(
        BadInput, match=r"spec.containers\[0\].resources.requests.cpu: 'much'; expected a Kub"
    ):
        parsed_nodes_and_pods.requests_that_must_fit({"spec": {"containers": cpus("much")}})


def resized(node: str) -> dict[str, Any]:
    main = {"name": "main", **container(cpu="1", memory="2Gi")}
    allocation = {"name": "main", "allocatedResources": {"cpu": "4", "memory": "1Gi"}}
    spec = {"nodeName": node, "containers": [main]}
    return {"metadata": {"name": "p"}, "spec": spec, "status": {"containerStatuses": [allocation]}}


def test_pod_on_a_node_holds_allocated_resources_during_a_resize() -> None:
    assert parsed_nodes_and_pods.pod(resized("n1")).requests == {"cpu": 4000, "memory": 2 * 2**30}
    assert parsed_nodes_and_pods.pod(resized("")).requests == {"cpu": 1000, "memory": 2 * 2**30}


def test_resources_keep_the_order_of_the_containers() -> None:
    names = [f"example.com/{number}" for number in (7, 3, 9, 1, 5)]
    spec = {"overhead": {"cpu": "1"}, "containers": [container(**{name: "1"}) for name in names]}
    assert [*parsed_nodes_and_pods.requests_that_must_fit({"spec": spec})] == [*names, "cpu"]


def test_preemption_finds_no_room_that_is_allocated_to_a_resized_pod() -> None:
    node = parsed_nodes_and_pods.node({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "5"}}})
    info = parsed_nodes_and_pods.node_info_with_pods(node, [parsed_nodes_and_pods.pod(resized("n1"))])
    assert info.requested["cpu"] == 4000


def test_requests_of_the_pod_itself_replace_defaults_for_scores() -> None:
    spec = {"containers": [{}, container(memory="1Gi")], "resources": {"requests": {"cpu": "2"}}}
    assert parsed_nodes_and_pods.scored({"spec": spec}) == (2000, 2**30)


def test_an_invalid_amount_in_the_status_is_named() -> None:
    pod = resized("n1")
    pod["status"]["containerStatuses"][0]["allocatedResources"]["cpu"] = "lots"
    with pytest.raises(BadInput, match=r"status.containerStatuses\[0\].allocatedResources.cpu: 'lots'"):
        parsed_nodes_and_pods.requests_that_must_fit(pod)


def test_containers_of_another_shape_are_named() -> None:
    with pytest.raises(BadInput, match="containers"):
        parsed_nodes_and_pods.requests_that_must_fit({"spec": {"containers": "web"}})
