"""The requests of pods are those that k8s.io/component-helpers of Kubernetes 1.37 computes, for any pod."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewise.base import quantity
from nodewise.kube import pod_requests
from nodewise.kube.pod_requests import HoldingSpec, HoldingStatus
from nodewise.scheduling_model import simulated_cluster
from tests import short_and_long_case_counts
from tests.cluster import program_cache
from tests.cluster.conftest import get_or_skip

Object = dict[str, Any]
Upstream = Callable[[Object], Mapping[str, Mapping[str, str]]]

RESOURCES: Final = ("cpu", "memory", "hugepages-2Mi", "ephemeral-storage", "example.com/gpu")
DEFAULTS: Final = {"cpu": 100 * quantity.NANO // 1000, "memory": 200 * 2**20 * quantity.NANO}
"""Those of the Go program."""
EXAMPLES: Final = short_and_long_case_counts.of(300, 3000)

QUANTITIES = st.sampled_from(["0", "1", "3", "250m", "1500m", "100u", "0.3", "2Ki", "1Mi", "7M", "1e3", "4G"])
LISTS = st.dictionaries(st.sampled_from(RESOURCES), QUANTITIES, max_size=4)
ANY_LIST = st.none() | LISTS
NAMES = ("web", "log", "db")


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    """Objects that have some of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


def containers(names: tuple[str, ...], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Object]]:
    container = objects(resources=objects(requests=ANY_LIST), **fields)
    return st.lists(container, max_size=len(names)).map(
        lambda fields: [{"name": name, **own} for name, own in zip(names, fields, strict=False)]
    )


def statuses(names: tuple[str, ...]) -> st.SearchStrategy[list[Object]]:
    status = objects(allocatedResources=ANY_LIST, resources=st.none() | objects(requests=ANY_LIST))
    named = st.tuples(st.sampled_from(names), status).map(lambda pair: {"name": pair[0], **pair[1]})
    return st.lists(named, max_size=4)


INIT_NAMES = ("set-up", "mesh", "warm")
CONDITIONS = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["PodResizePending", "PodResizeInProgress", "Ready"]),
            "reason": st.sampled_from(["Infeasible", "Deferred", ""]),
        }
    ),
    max_size=2,
)
PODS = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"nodeName": st.just("n1"), "containers": containers(NAMES)},
            optional={
                "initContainers": containers(INIT_NAMES, restartPolicy=st.sampled_from(["Always", "Never"])),
                "resources": st.none() | objects(requests=ANY_LIST),
                "overhead": ANY_LIST,
            },
        ),
        "status": objects(
            conditions=CONDITIONS,
            containerStatuses=statuses((*NAMES, *INIT_NAMES)),
            initContainerStatuses=statuses((*INIT_NAMES, NAMES[0])),
            resources=st.none() | objects(requests=ANY_LIST),
            allocatedResources=ANY_LIST,
        ),
    }
)


@pytest.fixture(scope="module")
def upstream(request: pytest.FixtureRequest) -> Iterator[Upstream]:
    """Sends a pod to the Go program."""
    program = get_or_skip(request, program_cache.pod_requests)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def ask(pod: Object) -> Mapping[str, Mapping[str, str]]:
            stdin.write(json.dumps(pod) + "\n")
            stdin.flush()
            answer: Mapping[str, Mapping[str, str]] = json.loads(stdout.readline())
            return answer

        yield ask
        stdin.close()


def parsed(pod: Object) -> tuple[HoldingSpec, HoldingStatus]:
    return msgspec.convert(pod["spec"], HoldingSpec), msgspec.convert(pod["status"], HoldingStatus)


def nano(amounts: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(quantity.parse(amounts.get(resource, "0")) for resource in RESOURCES)


@settings(max_examples=EXAMPLES, deadline=None)
@given(PODS)
def test_requests_are_those_of_component_helpers(upstream: Upstream, pod: Object) -> None:
    answer, (spec, status) = upstream(pod), parsed(pod)
    assert pod_requests.nano_requests(spec, RESOURCES, status) == nano(answer["requests"])
    assert pod_requests.nano_requests(spec, RESOURCES, status, DEFAULTS) == nano(answer["scored"])
    assert pod_requests.nano_requests(spec, RESOURCES) == nano(answer["spec"])


@settings(max_examples=EXAMPLES // 10, deadline=None)
@given(PODS)
def test_simulated_requests_are_those_of_component_helpers(upstream: Upstream, pod: Object) -> None:
    steps = {"cpu": quantity.NANO // 1000}
    expected = {
        resource: -(-quantity.parse(amount) // steps.get(resource, quantity.NANO))
        for resource, amount in upstream(pod)["requests"].items()
    }
    assert simulated_cluster.requests_that_must_fit(pod) == {
        resource: amount for resource, amount in expected.items() if amount
    }


def test_a_limit_is_no_request_after_the_api_server_has_set_defaults(upstream: Upstream) -> None:
    """Only the API server, or nodewise for objects from files, sets the request that a limit stands for."""
    container = {"name": "web", "resources": {"limits": {"cpu": "2"}}}
    assert upstream({"spec": {"containers": [container]}})["requests"] == {}
    container["resources"]["requests"] = {"cpu": "2"}
    assert upstream({"spec": {"containers": [container]}})["requests"] == {"cpu": "2"}
