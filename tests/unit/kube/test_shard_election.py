"""Shards of nodes, and which replica holds which."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from nodewise.base.errors import Conflict
from nodewise.kube import shard_election
from nodewise.kube.leader_election import LeaseAccess, LeaseLock
from nodewise.kube.shard_election import (
    CLOSING_ANNOTATION,
    SHARDS_ANNOTATION,
    LeaseAnnotations,
    ShardElection,
    ShardLayout,
)
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock


@pytest.mark.parametrize(
    ("uid", "hashed"),
    [
        pytest.param("test-uid-123", 0xD0BA679834556C0B, id="a text"),
        pytest.param("", 0xCBF29CE484222325, id="nothing"),
        pytest.param("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", 0x93754B7248A00EB9, id="a uid"),
    ],
)
def test_shard_of_an_object_follows_from_the_hash_of_gos_fnv(uid: str, hashed: int) -> None:
    for shards in (1, 2, 3, 5, 16):
        shard = shard_election.shard_of(uid, shards)
        text = shard_election.shard_selector(frozenset([shard]), shards)
        if shards == 1:
            assert text == "", "one shard needs no selector"
            continue
        low, high = (int(part, 16) for part in text.split("'")[1::2])
        assert low <= hashed < high


@pytest.mark.parametrize(
    ("held", "shards", "selector"),
    [
        pytest.param({0, 1}, 2, "", id="all shards need no selector"),
        pytest.param(
            {0},
            2,
            "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
            id="the first of two",
        ),
        pytest.param(
            {1, 3},
            4,
            "shardRange(object.metadata.uid, '0x4000000000000000', '0x8000000000000000')"
            " || shardRange(object.metadata.uid, '0xc000000000000000', '0x10000000000000000')",
            id="two of four",
        ),
        pytest.param(
            set(),
            2,
            "shardRange(object.metadata.uid, '0x0000000000000000', '0x0000000000000001')",
            id="none: hardly any object",
        ),
    ],
)
def test_selector_has_the_ranges_of_the_held_shards(held: set[int], shards: int, selector: str) -> None:
    assert shard_election.shard_selector(frozenset(held), shards) == selector


@pytest.mark.parametrize(
    ("annotations", "layout"),
    [
        pytest.param({}, ShardLayout(1, 0), id="no record: one shard, as earlier versions"),
        pytest.param({SHARDS_ANNOTATION: "4", CLOSING_ANNOTATION: ""}, ShardLayout(4, 0), id="agreed"),
        pytest.param({SHARDS_ANNOTATION: "4", CLOSING_ANNOTATION: "2"}, ShardLayout(4, 2), id="closing"),
        pytest.param(
            {SHARDS_ANNOTATION: "four"}, ShardLayout(0, 16), id="an unreadable one: nothing is agreed"
        ),
    ],
)
def test_record_of_the_leaders_lease_is_parsed(annotations: dict[str, str], layout: ShardLayout) -> None:
    assert shard_election.parse_layout(annotations) == layout


class _NoAnnotations(LeaseAnnotations):
    def of_leader(self) -> Mapping[str, str]:
        return {}

    def of_shard(self, shard: int) -> Mapping[str, str]:
        return {}


class Replica:
    """A replica with its election in virtual time."""

    def __init__(self, api: FakeApi, name: str, shards: int) -> None:
        lock = LeaseLock("ns", "nodewise-controller", name, process=f"{name}_1")
        clock = VirtualClock()
        access = LeaseAccess(api, lock, clock, MetricsRegistry(), random.Random(name).random)
        self.election = ShardElection(access, shards, _NoAnnotations())
        self.tasks = [asyncio.ensure_future(task()) for task in self.election.tasks()]

    def held(self) -> set[int]:
        return {shard for shard, _ in self.election.tenure().shards}

    def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.election.leader._until_s = float("-inf")
        for elector in self.election._electors:
            elector._until_s = float("-inf")

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await self.election.stop()


async def expect_exclusive(replicas: list[Replica], for_s: float) -> None:
    """Checks all the time that no shard has two holders, and that none is held while all nodes are written at once."""
    for _ in range(int(for_s / 0.1)):
        await asyncio.sleep(0.1)
        held = [(replica.election.shards, shard) for replica in replicas for shard in replica.held()]
        held += [(1, 0) for replica in replicas if replica.election.shards == 1 and replica.election.leads]
        assert len(held) == len(set(held)), held
        assert len({shards for shards, _ in held}) <= 1, held


@pytest.mark.parametrize(
    ("shards", "replicas", "counts"),
    [
        pytest.param(4, 1, [4], id="one replica holds all"),
        pytest.param(4, 2, [2, 2], id="two hold half each"),
        pytest.param(4, 3, [1, 1, 2], id="three"),
        pytest.param(2, 3, [0, 1, 1], id="one waits if there are more replicas than shards"),
        pytest.param(16, 4, [4, 4, 4, 4], id="sixteen shards"),
    ],
)
def test_replicas_hold_equal_numbers_of_shards(shards: int, replicas: int, counts: list[int]) -> None:
    async def main() -> None:
        api = FakeApi()
        running = [Replica(api, f"r{number}", shards) for number in range(replicas)]
        await expect_exclusive(running, 90.0)
        assert sorted(len(replica.held()) for replica in running) == counts
        assert set().union(*(replica.held() for replica in running)) == set(range(shards))
        assert sum(replica.election.leads for replica in running) == 1

    virtual_time.run(main())


def test_late_replica_gets_shards_of_the_one_with_the_most() -> None:
    async def main() -> None:
        api = FakeApi()
        first = Replica(api, "first", 4)
        await expect_exclusive([first], 20.0)
        assert len(first.held()) == 4
        second = Replica(api, "second", 4)
        await expect_exclusive([first, second], 20.0)
        assert (len(first.held()), len(second.held())) == (2, 2)

    virtual_time.run(main())


def test_shards_of_a_killed_replica_are_held_within_the_lease_time_and_three_seconds() -> None:
    async def main() -> None:
        api = FakeApi()
        running = [Replica(api, f"r{number}", 4) for number in range(2)]
        await expect_exclusive(running, 30.0)
        killed, other = running
        killed.kill()
        await expect_exclusive(running, 8.0)
        assert other.held() == {0, 1, 2, 3}
        assert other.election.leads

    virtual_time.run(main())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(1, 4, id="from one to four"),
        pytest.param(4, 2, id="from four to two"),
        pytest.param(2, 3, id="from two to three"),
        pytest.param(4, 1, id="back to one"),
    ],
)
def test_number_of_shards_changes_in_a_rolling_restart(before: int, after: int) -> None:
    async def main() -> None:
        api = FakeApi()
        old = [Replica(api, f"old{number}", before) for number in range(2)]
        await expect_exclusive(old, 20.0)
        new: list[Replica] = []
        for replica in old:
            new.append(Replica(api, f"new{len(new)}", after))
            await expect_exclusive([*old, *new], 10.0)
            await replica.stop()
            await expect_exclusive([*old, *new], 10.0)
        await expect_exclusive(new, 20.0)
        if after == 1:
            assert sum(replica.election.leads for replica in new) == 1
        else:
            assert set().union(*(replica.held() for replica in new)) == set(range(after))

    virtual_time.run(main())


def test_one_shard_writes_no_record() -> None:
    async def main() -> None:
        api = FakeApi()
        replica = Replica(api, "r", 1)
        await asyncio.sleep(5.0)
        assert replica.election.leads
        assert SHARDS_ANNOTATION not in replica.election.leader.lease_annotations

    virtual_time.run(main())


def test_replica_that_read_the_old_record_cannot_acquire_a_lease_afterwards() -> None:
    async def main() -> None:
        api = FakeApi()
        old = Replica(api, "old", 2)
        await asyncio.sleep(20.0)
        # it has read a free Lease and the record, and is suspended before it writes the Lease
        elector = old.election._electors[0]
        await elector.stop()
        await elector._read_lease()
        assert await old.election.admit()
        for task in old.tasks:
            task.cancel()
        await old.election.leader.stop()
        await old.election._electors[1].stop()
        new = Replica(api, "new", 4)
        await asyncio.sleep(20.0)
        assert len(new.held()) == 4
        with pytest.raises(Conflict):
            await elector._acquire_or_renew()
        assert not elector.leading

    virtual_time.run(main())
