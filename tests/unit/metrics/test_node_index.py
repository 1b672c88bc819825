"""The table of node names, in sizes and forms that the laws do not draw."""

import json
import random
from unittest import mock

import pytest

from nodewise.metrics import node_index
from nodewise.metrics.node_index import NodeIndex

CHANCE = random.Random(7)
RANDOM = [f"gke-pool-{n % 9}-{CHANCE.randrange(16**8):08x}-{CHANCE.randrange(36**4)}" for n in range(20_000)]
ORDERED = [f"ip-10-0-{n >> 8}-{n & 255}.eu-central-1.compute.internal" for n in range(20_000)]


@pytest.mark.parametrize("names", [RANDOM, ORDERED], ids=["random", "ordered"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["go", "python"])
def test_a_table_of_many_names_finds_all_of_them(names: list[str], separators: tuple[str, str]) -> None:
    index = NodeIndex(dict.fromkeys(names))
    chosen = CHANCE.sample(index.known, 15_000)
    candidates = index.find(json.dumps(chosen, separators=separators).encode())
    assert candidates is not None
    assert candidates.tolist() == chosen


@pytest.mark.parametrize(
    "listed",
    [
        '["a-1","a-2",]',
        '["a-1",,"a-2"]',
        '[,"a-1"]',
        '["a-1" "a-2"]',
        '["a-1","a-2"',
        '["a-1";"a-2"]',
        '["a-1",x"a-2"]',
        '["a-1","a-2" ]',
        '["a-1",\0"a-2"]',
        '["a-1", "a-2",x"a-1"]',
        '["a-1",a-2]',
        "[a-1]",
        "[,]",
        "[",
        "]",
        "",
        '["a-3"]',
        '["a-1"],["a-2"]',
    ],
)
def test_other_text_than_a_list_of_known_names_is_left_to_the_decoder(listed: str) -> None:
    with mock.patch.object(node_index, "_SHORT_BYTES", 0):
        assert NodeIndex(["a-1", "a-2"]).find(listed.encode()) is None


@pytest.mark.parametrize("odd", ["x", '"', ",", "]", ""])
def test_a_list_that_is_read_in_parts_is_left_to_the_decoder_if_a_separator_is_odd(odd: str) -> None:
    names = ["a-1", "a-2"] * 3
    listed = json.dumps(names)
    index = NodeIndex(names)
    for part_bytes in range(8, 40):
        with mock.patch.multiple(node_index, _PART_BYTES=part_bytes, _SHORT_BYTES=0):
            assert index.find(listed.encode()) is not None
            for position in (at for at, char in enumerate(listed) if char == " "):
                assert index.find(f"{listed[:position]}{odd}{listed[position + 1 :]}".encode()) is None
