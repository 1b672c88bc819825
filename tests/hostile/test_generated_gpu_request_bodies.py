# ruff: noqa: E501 - rows of a table
"""Generated request bodies about GPUs: the running process answers each of them correctly."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nodewise.kube.resource_kinds import PODS
from tests import short_and_long_case_counts
from tests.hostile import gpu_cluster, json_strategies, response_checks, three_node_cluster_objects
from tests.hostile.extender_process import RawConnection
from tests.hostile.gpu_cluster import GOOD, PREFIX, GpuCluster
from tests.hostile.json_strategies import encoded, mostly

VERBS = ("filter", "prioritize", "preempt", "bind")
BODIES = short_and_long_case_counts.of(500, 10_000)
PER_EXAMPLE = 25
GENERATED = settings(
    max_examples=BODIES // PER_EXAMPLE,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)

keys = st.sampled_from(("containers", "initContainers", "resources", "requests", "limits", "name", "annotations", "metadata", "spec", "uid", "restartPolicy"))  # fmt: skip
resources = st.sampled_from(
    ("i915", "xe", "millicores", "tiles", "memory.max", "i915_monitoring", "odd")
).map(PREFIX.__add__)
amounts = (
    st.sampled_from(("1", "2", "100", 1, "0", str(10**18)))
    | st.sampled_from((*json_strategies.QUANTITIES, *json_strategies.NUMBERS))
    | st.none()
)
requests = st.dictionaries(resources, mostly(amounts, keys), max_size=4)
containers = st.lists(
    mostly(
        st.fixed_dictionaries(
            {"name": mostly(st.sampled_from(("c0", "c1", "c2")), keys)},
            optional={
                "resources": mostly(
                    st.fixed_dictionaries(
                        {}, optional={"requests": mostly(requests, keys), "limits": mostly(requests, keys)}
                    ),
                    keys,
                ),
                "restartPolicy": mostly(st.just("Always"), keys),
            },
        ),
        keys,
    ),
    max_size=4,
)
notes = st.dictionaries(
    st.sampled_from(("gas-allow", "gas-deny", "gas-same-gpu", "gas-allocate-xelink", "gas-allocate-single-numa", "gas-container-cards", "gas-container-tiles", "nodewise.io/gpu-models", "nodewise.io/gpu-placement")),
    mostly(st.sampled_from(("c0,c1", "card0", "pack", "spread", "balanced", "fragmentation", *json_strategies.TEXTS)), keys),
    max_size=4,
)  # fmt: skip
meta = st.fixed_dictionaries(
    {"name": mostly(st.just("p"), keys)},
    optional={
        "namespace": mostly(st.just("d"), keys),
        "uid": mostly(st.just("u"), keys),
        "annotations": mostly(notes, keys),
    },
)
pods = st.fixed_dictionaries(
    {"metadata": mostly(meta, keys)},
    optional={
        "spec": mostly(
            st.fixed_dictionaries(
                {"containers": mostly(containers, keys)},
                optional={"initContainers": mostly(containers, keys)},
            ),
            keys,
        )
    },
)
names = st.sampled_from((*GOOD, *three_node_cluster_objects.NODES, *json_strategies.TEXTS))
candidates = st.lists(names, max_size=5)
victims = st.dictionaries(
    names, mostly(st.just({"Pods": [{"UID": "u"}], "NumPDBViolations": 0}), keys), max_size=4
)
binds = st.fixed_dictionaries(
    {},
    optional={
        "PodName": mostly(st.just("held") | names, keys),
        "PodNamespace": mostly(st.just("d") | names, keys),
        "PodUID": mostly(st.just("u") | names, keys),
        "Node": mostly(names, keys),
    },
)


def _body(verb: str) -> st.SearchStrategy[tuple[str, Any]]:
    if verb == "bind":
        return st.tuples(st.just(verb), mostly(binds, keys))
    about = {"Pod": mostly(pods, keys)}
    nodes = {"NodeNameToMetaVictims": victims} if verb == "preempt" else {"NodeNames": candidates}
    return st.tuples(st.just(verb), st.fixed_dictionaries({**about, **nodes}))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuCluster]:
    with gpu_cluster.running_cluster(tmp_path_factory.mktemp("gpu-bodies")) as made:
        made.put(PODS, gpu_cluster.one_gpu_pod("held"))
        yield made
        made.check_others()


@pytest.fixture(scope="module")
def line(cluster: GpuCluster) -> Iterator[RawConnection]:
    """The connection for all bodies. No response may close it."""
    with cluster.target.line() as opened:
        yield opened


@GENERATED
@given(st.lists(st.sampled_from(VERBS).flatmap(_body), min_size=PER_EXAMPLE, max_size=PER_EXAMPLE))
def test_any_pod(line: RawConnection, bodies: list[tuple[str, Any]]) -> None:
    for verb, body in bodies:
        answer = line.ask(f"/scheduler/{verb}", encoded(body))
        try:
            _check(verb, answer, body)
        except Exception as error:
            raise AssertionError(f"{verb} {body!r}: {error!r}; answered {answer.body[:500]!r}") from error


def _check(verb: str, answer: Any, body: Any) -> None:
    if verb != "bind":
        candidates = body.get("NodeNames") if answer.status == 200 and verb == "filter" else None
        response_checks.check(verb, answer, candidates)
        return
    assert answer.status in (200, 400)
    if answer.status == 200:
        assert json.loads(answer.body)["Error"]  # the only pod has another UID
