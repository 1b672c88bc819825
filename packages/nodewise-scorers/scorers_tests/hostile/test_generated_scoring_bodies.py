"""Generated bodies with hostile statistics and requests for the scoring agents.

For every body, the response is well-formed or a refusal.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests import short_and_long_case_counts
from tests.hostile import response_checks
from tests.hostile.extender_process import RawConnection
from tests.hostile.json_strategies import anything, encoded, mostly

from scorers_tests.hostile import scoring_extender
from scorers_tests.hostile.scoring_inputs import AGE, AMOUNTS, RESOURCES, ROOM, STATISTICS, TEXTS, VERBS, body

BODIES = short_and_long_case_counts.of(400, 10_000)
PER_EXAMPLE = 20
GENERATED = settings(
    max_examples=BODIES // PER_EXAMPLE,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),  # as in test_generated_request_bodies
)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawConnection]:
    """A connection to a separate extender.

    The extender remembers the nodes of requests, and every request by name evaluates all of them: after requests with
    thousands of nodes, these small ones would take ten times as long.
    """
    folder = tmp_path_factory.mktemp("scoring-bodies")
    with (
        scoring_extender.running(folder, *scoring_extender.CLUSTERLESS) as target,
        scoring_extender.connected(target) as opened,
    ):
        yield opened


keys = st.sampled_from(
    (
        "metadata", "name", "annotations", "labels", "status", "allocatable", "spec", "containers", "initContainers",
        "resources", "requests", "restartPolicy", "cpu", "memory", "uid", "namespace", "items", *STATISTICS, AGE,
    )
)  # fmt: skip
MAX_LENGTH = 1000
"""Characters of a text: longer ones are slow, and `test_malformed_scoring_inputs` sends each of them."""
texts = (
    st.sampled_from([text.text for text in TEXTS.values() if len(text.text) <= MAX_LENGTH])
    | st.floats().map(str)
    | st.integers().map(str)
)
amounts = st.sampled_from(
    [
        amount
        for amount in AMOUNTS
        if not isinstance(amount, bool | list | dict) and len(str(amount)) <= MAX_LENGTH
    ]
)
names = st.sampled_from(("n1", "n2", "n3")) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9
)
Strategy = st.SearchStrategy[Any]
Mostly = Callable[[Strategy], Strategy]


def requests_of(distort: Mostly) -> Strategy:
    """A path, a pod and nodes with hostile values; `distort` may also change their shapes."""
    annotated = st.dictionaries(st.sampled_from((*STATISTICS, AGE)), distort(texts), max_size=8)
    allocatable = st.dictionaries(st.sampled_from((*RESOURCES, "x")), distort(amounts), max_size=5)
    requests = distort(st.fixed_dictionaries({"requests": distort(allocatable)}))
    more = {"restartPolicy": distort(st.just("Always")), "name": distort(names)}
    container = st.fixed_dictionaries({"resources": requests}, optional=more)
    containers = distort(st.lists(distort(container), max_size=3))
    spec = st.fixed_dictionaries({"containers": containers}, optional={"initContainers": containers})
    about_pod = st.fixed_dictionaries(
        {"name": distort(names)}, optional={key: distort(names) for key in ("uid", "namespace")}
    )
    status = st.fixed_dictionaries({"allocatable": allocatable | st.just(ROOM) | anything(keys)})
    about = st.fixed_dictionaries({"name": names}, optional={"annotations": distort(annotated)})
    node = st.fixed_dictionaries(
        {"metadata": about}, optional={"status": distort(status), "spec": anything(keys)}
    )
    pod = st.fixed_dictionaries({"metadata": about_pod}, optional={"spec": distort(spec)})
    return st.tuples(st.sampled_from(sorted(VERBS)), pod, st.lists(node, max_size=5))


def several(strategy: Strategy) -> Strategy:
    return st.lists(strategy, min_size=PER_EXAMPLE, max_size=PER_EXAMPLE)


def check(line: RawConnection, path: str, pod: Any, nodes: list[Any]) -> int:
    """Checks a response and returns its status."""
    verb = VERBS[path]
    sent = encoded(body(pod, nodes, verb))
    answer = line.ask(path, sent)
    node_names = [node["metadata"]["name"] for node in nodes]
    try:
        response_checks.check(verb, answer, node_names if answer.status == 200 else None)
    except Exception as error:
        raise AssertionError(f"{path} {sent!r}: {error!r}; answered {answer.body!r}") from error
    return answer.status


@GENERATED
@given(several(requests_of(lambda usual: usual)))
def test_any_values(line: RawConnection, bodies: list[tuple[str, Any, list[Any]]]) -> None:
    assert {check(line, *request) for request in bodies} == {200}


@GENERATED
@given(several(requests_of(lambda usual: mostly(usual, keys))))
def test_any_shapes(line: RawConnection, bodies: list[tuple[str, Any, list[Any]]]) -> None:
    for request in bodies:
        check(line, *request)
