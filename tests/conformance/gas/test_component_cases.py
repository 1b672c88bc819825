"""The numbered cases of GPU Aware Scheduling that are about a single component."""

import pytest

from tests.conformance.gas import case_table_rows, component_calls
from tests.conformance.gas.case_table_rows import GasPartRow


@pytest.mark.parametrize("row", case_table_rows.parts(), ids=str)
def test_parts(row: GasPartRow) -> None:
    if row.refuses:
        with pytest.raises((ValueError, OverflowError)) as caught:
            component_calls.call_component(row)
        assert row.refuses in str(caught.value)
    else:
        assert component_calls.call_component(row) == row.gives
