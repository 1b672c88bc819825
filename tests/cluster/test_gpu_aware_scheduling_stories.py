"""The numbered cases of GPU Aware Scheduling that have several steps, on a real API server.

The process reaches the API server through a proxy that can withhold pods and fail writes.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.conformance.gas import case_table_rows, story_environment
from tests.conformance.gas.case_table_rows import STORIES, GasStory
from tests.conformance.gas.story_environment import FaultyGasEnvironment
from tests.conformance.gas.story_runner import GasStoryRun

ALL_STORIES: list[GasStory] = [story for table in STORIES for story in case_table_rows.stories(table)]


@pytest.fixture(scope="module")
def story_runs(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GasStoryRun]]:
    """The runs of all stories, which begin before the process starts."""
    with story_environment.on_control_plane(plane) as api_server:
        environment = FaultyGasEnvironment(api_server, tmp_path_factory.mktemp("gas"), plane)
        try:
            begun = [
                GasStoryRun(story, f"s{number:02}", environment) for number, story in enumerate(ALL_STORIES)
            ]
            for story_run in begun:
                story_run.begin()
            environment.light()
            yield begun
        finally:
            environment.close()


@pytest.mark.parametrize("number", range(len(ALL_STORIES)), ids=[str(story) for story in ALL_STORIES])
def test_stories(story_runs: list[GasStoryRun], number: int) -> None:
    story_runs[number].run()
