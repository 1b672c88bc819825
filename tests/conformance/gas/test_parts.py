"""The numbered cases of GPU Aware Scheduling that are about a part of the whole."""

import pytest

from tests.conformance.gas import parts, rows
from tests.conformance.gas.rows import PartRow


@pytest.mark.parametrize("row", rows.parts(), ids=str)
def test_parts(row: PartRow) -> None:
    if row.refuses:
        with pytest.raises((ValueError, OverflowError)) as caught:
            parts.asked(row)
        assert row.refuses in str(caught.value)
    else:
        assert parts.asked(row) == row.gives
