"""Laws of the CPU manager's core."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nodewise.cpu import core_lists, cpulist, pools, topology
from nodewise.cpu.pools import Ask, Plan
from nodewise.cpu.topology import Topology
from nodewise.errors import BadInput

CPUS = st.sets(st.integers(0, 300), max_size=80)
MODES = st.sampled_from(["packed", "spread"])


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Up to three sockets of cores with up to three threads, numbered in any order, some offline or isolated."""
    places = [
        (socket, core)
        for socket in range(draw(st.integers(1, 3)))
        for core in range(draw(st.integers(1, 5)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    at = dict(enumerate(draw(st.permutations(places))))
    online = draw(st.sets(st.sampled_from(sorted(at)), min_size=1)) if draw(st.booleans()) else set(at)
    isolated = draw(st.sets(st.sampled_from(sorted({*at.values()}))))
    texts = {
        f"{topology.CPUS}/present": f"0-{len(at) - 1}",
        f"{topology.CPUS}/online": cpulist.format_ranges(online),
        f"{topology.CPUS}/isolated": cpulist.format_ranges(cpu for cpu in at if at[cpu] in isolated),
    }
    for cpu in online:
        folder = f"{topology.CPUS}/cpu{cpu}/topology"
        texts[f"{folder}/physical_package_id"] = str(at[cpu][0])
        texts[f"{folder}/core_id"] = str(at[cpu][1])
        texts[f"{folder}/thread_siblings_list"] = cpulist.format_ranges(
            one for one in at if at[one] == at[cpu]
        )
    return topology.parse(texts)


def asks(machine: Topology) -> st.SearchStrategy[Ask]:
    counts = st.integers(0, len(machine.cores))
    off = st.just(core_lists.OFF)
    return st.builds(
        Ask, exclusive=counts, shared=counts, exclusive_mode=MODES, shared_mode=MODES, non_isolcpus=off
    )


def planned(machine: Topology, ask: Ask, fast: set[int]) -> Plan | None:
    """None if the machine cannot be divided so."""
    try:
        return pools.plan(machine, ask, fast)
    except BadInput:
        return None


@given(machines())
def test_every_online_cpu_is_in_one_core(machine: Topology) -> None:
    cpus = Counter(cpu for core in machine.cores for cpu in core.cpus)
    assert set(cpus) == machine.online
    assert set(cpus.values()) == {1}
    assert [core.core for core in machine.cores] == list(range(len(machine.cores)))


@given(st.data(), machines())
def test_no_core_is_in_two_pools_and_none_is_divided(data: st.DataObject, machine: Topology) -> None:
    ask = data.draw(asks(machine))
    plan = planned(machine, ask, data.draw(st.sets(st.sampled_from(sorted(machine.online)))))
    if plan is None:
        return
    core_of = {cpu: core for core in machine.cores for cpu in core.cpus}
    isolated = {core.core for core in machine.cores if set(core.cpus) <= machine.isolated}
    seen: Counter[int] = Counter()
    sizes: Counter[str] = Counter()
    for pool, sockets in plan.pools.items():
        assert set(sockets) == set(machine.sockets)
        for socket, lists in sockets.items():
            for text in lists:
                cpus = cpulist.parse_list(text)
                cores = {core_of[cpu] for cpu in cpus}
                assert sorted(cpus) == sorted(cpu for core in cores for cpu in core.cpus)
                assert {core.socket for core in cores} == {socket}
                assert len(cores) == 1 or not pools.IS_EXCLUSIVE[pool]
                assert not isolated or {core.core in isolated for core in cores} == {pool != "infra"}
                seen.update(cpus)
                sizes[pool] += len(cores)
    assert set(seen.values()) <= {1}
    assert (sizes["exclusive"], sizes["shared"]) == (ask.exclusive, ask.shared)
    assert sizes["infra"] == len(machine.cores) - (len(isolated) or ask.exclusive + ask.shared)


@given(st.data(), machines())
def test_a_machine_is_divided_wherever_the_counts_allow_it(data: st.DataObject, machine: Topology) -> None:
    ask = data.draw(asks(machine))
    isolated = sum(set(core.cpus) <= machine.isolated for core in machine.cores)
    wanted = ask.exclusive + ask.shared
    possible = wanted < len(machine.cores) if not isolated else wanted <= isolated < len(machine.cores)
    assert (planned(machine, ask, set()) is not None) == possible


@given(st.data(), machines())
def test_packed_takes_the_first_cores_and_spread_takes_sockets_in_turn(
    data: st.DataObject, machine: Topology
) -> None:
    ask = data.draw(asks(machine))
    plan = planned(machine, ask, set())
    isolated = [core for core in machine.cores if set(core.cpus) <= machine.isolated]
    there = Counter(core.socket for core in isolated or machine.cores)
    if plan is None:
        return
    got = {socket: len(lists) for socket, lists in plan.pools["exclusive"].items()}
    if ask.exclusive_mode == "packed":
        assert all(got[low] == there[low] or got[high] == 0 for low, high in pairwise(sorted(there)))
    else:
        most = max(got.values())
        assert all(got[socket] >= min(most - 1, there[socket]) for socket in there)


@given(st.data(), machines())
def test_faster_cores_are_exclusive_first(data: st.DataObject, machine: Topology) -> None:
    fast = data.draw(st.sets(st.sampled_from(sorted(machine.online))))
    ask = data.draw(asks(machine))
    plan = planned(machine, ask, fast)
    if plan is None:
        return
    among = [core for core in machine.cores if set(core.cpus) <= machine.isolated] or machine.cores
    quick = {core.text for core in among if set(core.cpus) <= fast}
    exclusive = {text for lists in plan.pools["exclusive"].values() for text in lists}
    assert quick <= exclusive or exclusive <= quick


@given(CPUS)
def test_a_list_of_ranges_reads_as_what_it_was_written_from(cpus: set[int]) -> None:
    assert cpulist.parse_list(cpulist.format_ranges(cpus)) == tuple(sorted(cpus))


@given(st.lists(st.integers(0, 300), unique=True))
def test_a_list_keeps_its_order(cpus: list[int]) -> None:
    assert list(cpulist.parse_list(cpulist.format_list(cpus))) == cpus


@given(CPUS)
def test_a_mask_reads_as_what_it_was_written_from(cpus: set[int]) -> None:
    assert cpulist.parse_mask(cpulist.format_mask(cpus)) == cpus
    assert cpulist.parse_mask(cpulist.format_kernel_mask(cpus)) == cpus
