"""The table of node names, with as many names as the largest clusters have."""

import random

import numpy as np
import pytest

from nodewise.metrics.node_index import build_name_table


@pytest.mark.parametrize("count", [1, 5000, 40_000])
def test_a_table_finds_names_whose_hashes_collide(count: int) -> None:
    chance = random.Random(1)
    names = [f"gke-{chance.getrandbits(48):012x}" for _ in range(count)]
    table = build_name_table(names)
    assert table is not None
    shuffled = chance.sample(range(count), count)
    numbers = table.read(('["' + '","'.join(names[number] for number in shuffled) + '"]').encode())
    assert np.array_equal(numbers, shuffled)
