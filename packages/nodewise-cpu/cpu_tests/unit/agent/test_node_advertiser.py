"""The extended resources that the node agent advertises."""

from pathlib import Path

import pytest

from cpu_tests.unit.allocation_factory import create_allocations
from cpu_tests.unit.node.in_memory_api_client import InMemoryApiClient
from nodewise.base.errors import Unavailable
from nodewise_cpu.agent.agent import ClusterNode, NodeAdvertiser
from nodewise_cpu.allocation_store import StoredAllocations
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES
from nodewise_cpu.node.task_garbage_collection import CollectionRound
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.topology import CPUS


def test_free_lists_with_offline_cpus_are_not_advertised(tmp_path: Path) -> None:
    pools = create_allocations({"exclusive": {"0,4": (), "1,5": (), "2,6": [Task(7, 1, "boot")], "3,7": ()}})
    collection = CollectionRound((), (), (), {}, StoredAllocations(pools, "1"))
    advertiser = NodeAdvertiser(ClusterNode(InMemoryApiClient(), "n1", "ns"), tmp_path, taint=False)
    with pytest.raises(Unavailable, match="which CPUs are online"):
        advertiser.key(collection)
    online = tmp_path / CPUS / "online"
    online.parent.mkdir(parents=True)
    for text, count in (("0-7", 4), ("0-4,7", 3), ("0-3", 1)):
        online.write_text(f"{text}\n")
        assert advertiser.key(collection) == {EXCLUSIVE_CORES: count}
