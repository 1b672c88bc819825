"""Cores named on the command line."""

import pytest

from cpu_tests.conformance.case_cpu_topologies import texts
from nodewise.base.errors import BadInput
from nodewise_cpu import pool_planning, topology


@pytest.mark.parametrize(
    ("machine", "text", "cores"),
    [
        ("T8", "5", [5]),
        ("T8", "7,0-2", [0, 1, 2, 7]),
        ("T8", " 3 , 3 ", [3]),
        ("T8", "cpu13", [5]),
        ("D8r", "2", [2, 6]),
        ("D8r", "4", [4]),
        ("D8r", "0:2", [2]),
        ("D8r", "1:0", [4]),
        ("D8r", "0:3,1:3", [3, 7]),
        ("SP", "9", [4]),
        ("SP", "2", [2]),
    ],
)
def test_names(machine: str, text: str, cores: list[int]) -> None:
    selected = pool_planning.parse_cores(text, topology.parse(texts(machine)))
    assert [core.core for core in selected] == cores


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("0:9", "0:9"),
        ("2:0", "2:0"),
        ("cpu16", "cpu16"),
        ("8-9", "8, 9"),
        ("1:", "'1:'"),
        ("cpu", "'cpu'"),
        ("0-99999", "up to 65535"),
        ("9999999999", "'9999999999'"),
    ],
)
def test_missing_cores_are_named(text: str, seen: str) -> None:
    with pytest.raises(BadInput, match="--excl-non-isolcpus") as caught:
        pool_planning.parse_cores(text, topology.parse(texts("D8r")))
    assert seen in str(caught.value)
