"""The numbered cases of GPU Aware Scheduling, asked of real processes over mutual TLS, on a real API server.

Every row of where pods go is asked twice, of cards of the i915 driver and of the xe driver.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.conformance.gas import case_requests
from tests.conformance.gas import story_environment as stages
from tests.conformance.gas.story_environment import GasEnvironment
from tests.conformance.gas.table_rows import GasHttpRow, PlacementCase


@pytest.fixture(scope="module")
def stage(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GasEnvironment]:
    with stages.on(plane) as ground:
        yield from case_requests.staged(ground, tmp_path_factory.mktemp("gas"))


@pytest.mark.parametrize("case", case_requests.CASES, ids=str)
def test_where_a_pod_goes(stage: GasEnvironment, case: PlacementCase) -> None:
    case_requests.place(stage, case)


@pytest.mark.parametrize("row", case_requests.REQUESTS, ids=str)
def test_requests(stage: GasEnvironment, row: GasHttpRow) -> None:
    case_requests.call(stage, row)
