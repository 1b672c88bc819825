"""The numbered cases of GPU Aware Scheduling, asked of real processes over mutual TLS, on an API server in memory.

`tests/cluster/test_gas_cases.py` asks them on a real one. Every row of where pods go is asked twice, of cards of the
i915 driver and of the xe driver.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.gas import asking
from tests.conformance.gas import stage as stages
from tests.conformance.gas.rows import Case, HttpRow
from tests.conformance.gas.stage import Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("gas")
    with stages.in_memory(folder) as ground:
        yield from asking.staged(ground, folder)


@pytest.mark.parametrize("case", asking.CASES, ids=str)
def test_where_a_pod_goes(stage: Stage, case: Case) -> None:
    asking.place(stage, case)


@pytest.mark.parametrize("row", asking.REQUESTS, ids=str)
def test_requests(stage: Stage, row: HttpRow) -> None:
    asking.call(stage, row)
