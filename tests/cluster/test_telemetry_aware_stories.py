"""The stories of `tests/conformance/tas` with a real process on a real API server: labels, metrics, policies."""

from collections.abc import Iterator

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.conformance.tas import story_definitions, story_environment, story_rounds
from tests.conformance.tas.story_environment import TasEnvironment
from tests.conformance.tas.story_runner import TasStoryRun

STORIES = story_definitions.all_stories()


class StoryResults:
    """The environment after all stories, and the run of each story in the order of the tables."""

    def __init__(self, environment: TasEnvironment, story_runs: list[TasStoryRun]) -> None:
        self.environment, self.story_runs = environment, story_runs


@pytest.fixture(scope="module")
def results(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoryResults]:
    with story_environment.open_environment(plane, tmp_path_factory.mktemp("stories")) as opened:
        yield StoryResults(opened, story_rounds.run_stories(STORIES, opened))


@pytest.mark.parametrize(
    "number", range(len(STORIES)), ids=[f"{story.number} {story.name}".strip() for story in STORIES]
)
def test_stories(results: StoryResults, number: int) -> None:
    assert results.story_runs[number].failures == []


def test_no_write_of_a_node_was_idle(results: StoryResults) -> None:
    assert results.environment.proxy.idle == []


def test_a_metric_is_one_plain_request(results: StoryResults) -> None:
    requests = [
        request
        for request in results.environment.proxy.requests
        if "/nodes/" in request.path and "metrics" in request.path
    ]
    assert requests
    assert {request.query for request in requests} == {""}
    assert {request.path.rpartition("/")[0] for request in requests} == {
        "/apis/custom.metrics.k8s.io/v1beta2/nodes/%2A"
    }


def test_nodes_are_not_listed_once_a_period(results: StoryResults) -> None:
    gets = [
        request
        for request in results.environment.proxy.requests
        if (request.method, request.path) == ("GET", "/api/v1/nodes")
    ]
    # nodewise lists with limit 1 for the resource version, to check that an ended watch has missed no change
    lists = [request for request in gets if "watch=" not in request.query and request.query != "limit=1"]
    assert len(lists) < 12, lists
