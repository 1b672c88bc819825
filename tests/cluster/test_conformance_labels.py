"""The stories of `tests/conformance/tas`, told to a real process on a real API server: labels, metrics, policies."""

from collections.abc import Iterator

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.conformance.tas import stories, story_environment, story_rounds
from tests.conformance.tas.story_environment import Stage
from tests.conformance.tas.story_runner import Telling

STORIES = stories.every()


class Told:
    """The stage after the end, and every story in the order of the tables."""

    def __init__(self, stage: Stage, tellings: list[Telling]) -> None:
        self.stage, self.tellings = stage, tellings


@pytest.fixture(scope="module")
def told(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with story_environment.opened(plane, tmp_path_factory.mktemp("stories")) as opened:
        yield Told(opened, story_rounds.tell(STORIES, opened))


@pytest.mark.parametrize(
    "number", range(len(STORIES)), ids=[f"{story.number} {story.name}".strip() for story in STORIES]
)
def test_stories(told: Told, number: int) -> None:
    assert told.tellings[number].failures == []


def test_no_write_of_a_node_was_idle(told: Told) -> None:
    assert told.stage.between.idle == []


def test_a_metric_is_one_plain_request(told: Told) -> None:
    asked = [one for one in told.stage.between.requests if "/nodes/" in one.path and "metrics" in one.path]
    assert asked
    assert {one.query for one in asked} == {""}
    assert {one.path.rpartition("/")[0] for one in asked} == {"/apis/custom.metrics.k8s.io/v1beta2/nodes/%2A"}


def test_nodes_are_not_listed_once_a_period(told: Told) -> None:
    gets = [one for one in told.stage.between.requests if (one.method, one.path) == ("GET", "/api/v1/nodes")]
    # a list of one, for its version, is how a watch that ended is seen to have missed nothing
    lists = [one for one in gets if "watch=" not in one.query and one.query != "limit=1"]
    assert len(lists) < 12, lists
