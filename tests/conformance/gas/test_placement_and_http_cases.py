"""The numbered cases of GPU Aware Scheduling with real processes over mutual TLS and an API server in memory.

`tests/cluster/test_gpu_aware_scheduling_cases.py` runs them on a real API server. Every row of a placement table runs
twice, with GPUs of the i915 driver and of the xe driver, unless the row itself names xe resources.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.gas import case_runner, story_environment
from tests.conformance.gas.case_table_rows import GasHttpRow, PlacementCase
from tests.conformance.gas.story_environment import GasEnvironment


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GasEnvironment]:
    folder = tmp_path_factory.mktemp("gas")
    with story_environment.running_in_memory(folder) as api_server:
        yield from case_runner.environment_with_cases(api_server, folder)


@pytest.mark.parametrize("case", case_runner.CASES, ids=str)
def test_where_a_pod_goes(environment: GasEnvironment, case: PlacementCase) -> None:
    case_runner.check_placement(environment, case)


@pytest.mark.parametrize("row", case_runner.REQUESTS, ids=str)
def test_requests(environment: GasEnvironment, row: GasHttpRow) -> None:
    case_runner.check_request(environment, row)
