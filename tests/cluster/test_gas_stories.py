"""The numbered cases of GPU Aware Scheduling that tell what happens step by step, on a real API server.

The process reaches the API server through somebody who can keep pods from it and have its writes fail.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.conformance.gas import story_environment as stages
from tests.conformance.gas import table_rows
from tests.conformance.gas.story_environment import Troubled
from tests.conformance.gas.story_runner import Telling
from tests.conformance.gas.table_rows import STORIES, Story

TOLD: list[Story] = [story for table in STORIES for story in table_rows.stories(table)]


@pytest.fixture(scope="module")
def tellings(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Telling]]:
    """All stories begun before the process starts."""
    with stages.on(plane) as ground:
        stage = Troubled(ground, tmp_path_factory.mktemp("gas"), plane)
        try:
            begun = [Telling(story, f"s{number:02}", stage) for number, story in enumerate(TOLD)]
            for telling in begun:
                telling.begin()
            stage.light()
            yield begun
        finally:
            stage.close()


@pytest.mark.parametrize("number", range(len(TOLD)), ids=[str(story) for story in TOLD])
def test_stories(tellings: list[Telling], number: int) -> None:
    tellings[number].tell()
