"""The allocatable resources of nodes."""

import msgspec
import pytest

from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import Capacity


def test_each_resource_in_its_unit():
    stated = (
        b'{"cpu": "3920m", "memory": "7Gi", "pods": "110", "gpu": 2, "ephemeral-storage": "1500m", "x": "y"}'
    )
    assert load_annotations.parse_capacity(msgspec.Raw(stated)) == Capacity(3920, 7 * 2**30, 110, 2, 2)


@pytest.mark.parametrize("stated", [b"null", b"{}", b"[]", b'"4"', b'{"cpu": {}, "memory": true}', b"", b"{"])
def test_absent_amounts_are_0(stated):
    assert load_annotations.parse_capacity(msgspec.Raw(stated)) == Capacity()


def test_one_bad_quantity_spoils_no_other():
    assert load_annotations.parse_capacity(msgspec.Raw(b'{"cpu": "four", "memory": "1Ki"}')) == Capacity(
        0, 1024
    )
