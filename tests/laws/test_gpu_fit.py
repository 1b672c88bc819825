"""Laws of fitting: the vectorised fit of all nodes equals the reference fit of each node."""

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agents.gpu import agent, gpu_arrays
from nodewise.agents.gpu.agent import EmptyNodeFits, SubdeviceRequest
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.fit import FitResult, fit
from nodewise.agents.gpu.fragmentation import NO_WORKLOAD
from nodewise.agents.gpu.gpu_node_labels import Link
from nodewise.agents.gpu.gpu_selection import Balanced, FirstFit, GpuOrder
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.placement_strategies import PlacementInputs
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand
from tests.laws import gpu_reference_fit as scalar
from tests.laws.gpu_reference_fit import SUBDEVICES, NodeDoesNotFit, ReferenceUsage
from tests.unit.agents.gpu.gpu_fragmentation_layouts import layout_of

NAMES = ("card0", "card1", "card10", "card2", "card3")
COUNT, MEMORY = "gpu.intel.com/i915", "gpu.intel.com/memory.max"
RESOURCES = (COUNT, MEMORY, SUBDEVICES)
NAME = st.sampled_from(NAMES)
NUMBERS = st.frozensets(st.integers(0, 3), max_size=2)
HUGE = 2**63 - 1
Given = tuple[NodeGpus, ReferenceUsage]


def seldom(what: st.SearchStrategy[Any], otherwise: Any) -> st.SearchStrategy[Any]:
    """A strategy that draws the special value in one of six cases, so that most pods fit some node."""
    return st.sampled_from([*[False] * 5, True]).flatmap(
        lambda is_drawn: what if is_drawn else st.just(otherwise)
    )


SOME = st.frozensets(NAME, max_size=2)
GROUP = st.frozensets(NAME, min_size=2, max_size=4)


@st.composite
def nodes(draw: Any) -> Given:
    names = NAMES[: draw(st.sampled_from([0, 1, 2, 3, 4, 5, 5]))]
    every = st.tuples(*[st.sampled_from([6, 4, 3, 2, 6, 4, 0])] * len(names))
    capacity = {name: draw(every) for name in RESOURCES if not draw(seldom(st.just(True), False))}
    if draw(seldom(st.just(True), False)):
        capacity[MEMORY] = (HUGE,) * len(names)
    counts = capacity.get(SUBDEVICES, (0,) * len(names))
    off = draw(seldom(st.dictionaries(NAME, NUMBERS, max_size=2), {}))
    gpus = NodeGpus(
        names=names,
        capacity=capacity,
        models=draw(st.tuples(*[st.sampled_from(["", "A", "B"])] * len(names))),
        unusable=draw(seldom(SOME, frozenset())),
        subdevices_off={
            gpu: frozenset(subdevice for subdevice in off[gpu] if subdevice < count)
            for gpu, count in zip(names, counts, strict=True)
            if gpu in off
        },
        subdevices_preferred=draw(st.dictionaries(NAME, st.tuples(st.integers(0, 3)), max_size=1)),
        preferred=draw(st.sampled_from(["", *names])),
        numa=draw(st.just(()) | st.tuples(GROUP, GROUP, SOME)),
        numa_problem=draw(seldom(st.just("bad"), "")),
        links=tuple(draw(st.just([]) | st.lists(links(names), min_size=4, max_size=12))),
    )
    amounts = draw(st.dictionaries(NAME, st.dictionaries(st.sampled_from(RESOURCES), held()), max_size=3))
    return gpus, ReferenceUsage(amounts, draw(seldom(st.dictionaries(NAME, NUMBERS, max_size=2), {})))


def held() -> st.SearchStrategy[int]:
    return st.sampled_from([0, 1, 1, 2, 2, 3, 4]).flatmap(
        lambda few: seldom(st.sampled_from([HUGE - 2, HUGE, 2**70]), few)
    )


def links(names: tuple[str, ...]) -> st.SearchStrategy[Link]:
    gpu = st.sampled_from(names or NAMES)
    return st.builds(Link, gpu, st.sampled_from([0, 1, 0, 1, 2]), gpu, st.integers(0, 1))


@st.composite
def demands(draw: Any) -> Demand:
    linked = draw(st.booleans())
    counts = [2, 0, 2, 4] if linked else [1, 1, 0, 2, 2, 3, 6]
    containers = tuple(
        ContainerDemand(f"c{number}", count, Amounts(draw(per_gpu()) if count else {}))
        for number, count in enumerate(draw(st.lists(st.sampled_from(counts), min_size=1, max_size=3)))
    )
    ones = [number for number, container in enumerate(containers) if container.count == 1]
    shared = tuple(draw(st.permutations(ones))) if len(ones) > 1 and draw(st.booleans()) else ()
    return Demand(
        containers,
        same_gpu=shared,
        linked=linked,
        single_numa=draw(st.booleans()),
        allow=draw(seldom(st.frozensets(NAME, min_size=2), None)),
        deny=draw(seldom(SOME, frozenset())),
        models=draw(seldom(st.sampled_from([frozenset({"A"}), frozenset({"", "B"})]), None)),
    )


@st.composite
def per_gpu(draw: Any) -> dict[str, int]:
    wanted = {COUNT: 1}
    if draw(st.booleans()):
        wanted[SUBDEVICES] = draw(st.integers(0, 2))
    if draw(st.booleans()):
        wanted[MEMORY] = draw(seldom(st.just(HUGE // 4), 2)) - draw(st.integers(0, 2))
    return wanted


ORDERS = st.sampled_from(["", "", MEMORY, SUBDEVICES, "gpu.intel.com/nosuch"])
CLUSTERS = st.lists(nodes(), min_size=1, max_size=6)


def order_of(balanced: str) -> GpuOrder:
    return Balanced(balanced) if balanced else FirstFit()


def placement_on(fitted: FitResult, at: int, gpus: NodeGpus) -> Any:
    """The placement in the form of the reference: None, or GPUs and linked sub-devices by container."""
    if fitted.codes[at]:
        return None
    return [[gpus.names[gpu] for gpu in container] for container in fitted.gpus(at)], [
        *map(list, fitted.subdevices(at))
    ]


def reference_placement(node: Given, demand: Demand, balanced: str) -> Any:
    try:
        outcome = scalar.fit(*node, demand, balanced)
    except NodeDoesNotFit:
        return None
    return outcome.gpus, outcome.links


def subdevice_requests(demand: Demand, placement: Any) -> list[list[SubdeviceRequest]]:
    return [
        [
            SubdeviceRequest(gpu, container.per_gpu.get(SUBDEVICES, 0), subdevice)
            for gpu, subdevice in zip(gpus, ends or [-1] * len(gpus), strict=True)
        ]
        for container, gpus, ends in zip(demand.containers, *placement, strict=True)
    ]


@given(CLUSTERS, demands(), ORDERS)
def test_all_nodes_together_get_the_results_of_each_alone(
    cluster: list[Given], demand: Demand, balanced: str
) -> None:
    fitted = fit(layout_of(cluster, SUBDEVICES), np.arange(len(cluster)), demand, order_of(balanced))
    for at, node in enumerate(cluster):
        assert placement_on(fitted, at, node[0]) == reference_placement(node, demand, balanced)
        alone = fit(layout_of([node], SUBDEVICES), np.zeros(1, np.intp), demand, order_of(balanced))
        assert placement_on(alone, 0, node[0]) == placement_on(fitted, at, node[0])
        assert alone.preferred[0] == fitted.preferred[at]
        if not fitted.codes[at]:
            assert fitted.preferred[at] == scalar.fit(*node, demand, balanced).preferred


@given(CLUSTERS, demands(), ORDERS)
def test_a_rejected_node_has_a_true_reason(cluster: list[Given], demand: Demand, balanced: str) -> None:
    fitted = fit(layout_of(cluster, SUBDEVICES), np.arange(len(cluster)), demand, order_of(balanced))
    for at, (gpus, _) in enumerate(cluster):
        record_shortfall = fitted.shortfalls.at(at)
        if fitted.codes[at]:
            assert (
                "will not fit" in (text := fitted.reasons[fitted.codes[at] - 1].text()) or "bad args" in text
            )
        assert record_shortfall is None or (
            fitted.codes[at]
            and record_shortfall.free < record_shortfall.wanted
            and record_shortfall.gpu in gpus.names
        )


@given(CLUSTERS, demands(), ORDERS)
def test_no_card_gives_more_than_it_has_and_no_tile_is_given_twice(
    cluster: list[Given], demand: Demand, balanced: str
) -> None:
    fitted = fit(layout_of(cluster, SUBDEVICES), np.arange(len(cluster)), demand, order_of(balanced))
    for at, (gpus, usage) in enumerate(cluster):
        placement = placement_on(fitted, at, gpus)
        if placement is None:
            continue
        total = {gpu: Counter(usage.amounts.get(gpu, {})) for gpu in gpus.names}
        for container, names in zip(demand.containers, placement[0], strict=True):
            assert len(set(names)) == len(names) == container.count
            for name in names:
                total[name].update(container.per_gpu)
        for container, names in zip(demand.containers, placement[0], strict=True):
            for name in names:
                for resource in container.per_gpu:
                    assert total[name][resource] <= gpus.capacity[resource][gpus.names.index(name)]
        check_subdevices(gpus, usage, subdevice_requests(demand, placement))


def check_subdevices(gpus: NodeGpus, usage: ReferenceUsage, taken: list[list[SubdeviceRequest]]) -> None:
    assigned = agent.assign_subdevices(gpus, usage, SUBDEVICES, taken)
    seen = {gpu: {*usage.subdevices.get(gpu, ())} | {*gpus.subdevices_off.get(gpu, ())} for gpu in gpus.names}
    counts = dict(zip(gpus.names, gpus.capacity.get(SUBDEVICES, (0,) * len(gpus.names)), strict=True))
    for requests, numbers in zip(taken, assigned, strict=True):
        for gpu, subdevice_numbers in zip(requests, numbers, strict=True):
            assert len(subdevice_numbers) == gpu.subdevices
            assert seen[gpu.gpu].isdisjoint(subdevice_numbers)
            assert all(0 <= subdevice < counts[gpu.gpu] for subdevice in subdevice_numbers)
            assert gpu.linked in subdevice_numbers or gpu.linked < 0 or not subdevice_numbers
            seen[gpu.gpu].update(subdevice_numbers)


@given(CLUSTERS, demands(), ORDERS, st.randoms(use_true_random=False))
def test_candidates_in_another_order_get_the_same_answers(
    cluster: list[Given], demand: Demand, balanced: str, chance: Any
) -> None:
    layout, order = layout_of(cluster, SUBDEVICES), order_of(balanced)
    fitted = fit(layout, np.arange(len(cluster)), demand, order)
    candidates = [chance.randrange(len(cluster)) for _ in range(chance.randrange(2 * len(cluster) + 1))]
    again = fit(layout, np.array(candidates, np.intp), demand, order)
    for at, row in enumerate(candidates):
        assert placement_on(again, at, cluster[row][0]) == placement_on(fitted, row, cluster[row][0])
        assert again.shortfalls.at(at) == fitted.shortfalls.at(row)
        if again.codes[at]:
            assert again.reasons[again.codes[at] - 1] == fitted.reasons[fitted.codes[row] - 1]


@given(CLUSTERS, CLUSTERS, demands(), ORDERS)
def test_a_layout_changed_row_by_row_is_one_built_anew(
    before: list[Given], after: list[Given], demand: Demand, balanced: str
) -> None:
    wanted = (after * len(before))[: len(before)]
    changed = layout_of(before, SUBDEVICES)
    for row, (gpus, usage) in enumerate(wanted):
        changed = gpu_arrays.replace_node_in_layout(changed, row, gpus, usage)
    every = np.arange(len(before))
    partial = fit(changed, every, demand, order_of(balanced))
    other = fit(layout_of(wanted, SUBDEVICES), every, demand, order_of(balanced))
    for at, (gpus, _) in enumerate(wanted):
        assert changed.gpus(at) == gpus.names
        assert placement_on(partial, at, gpus) == placement_on(other, at, gpus)
        assert partial.shortfalls.at(at) == other.shortfalls.at(at)


@given(CLUSTERS, st.data(), st.lists(demands(), min_size=1, max_size=2), ORDERS)
def test_a_node_fits_without_pods_exactly_if_it_fits_when_nothing_is_held(
    cluster: list[Given], data: st.DataObject, demands_of_pods: list[Demand], balanced: str
) -> None:
    """Also with results that are kept from earlier pods and candidates."""
    fits, layout, unused = EmptyNodeFits(), layout_of(cluster, SUBDEVICES), ReferenceUsage({}, {})
    placement = "balanced" if balanced else "first-fit"
    inputs = PlacementInputs(placement, (COUNT,), (balanced,) if balanced else (), NO_WORKLOAD)
    for demand in [*demands_of_pods, *demands_of_pods]:
        rows = data.draw(st.lists(st.integers(0, len(cluster) - 1), min_size=1, max_size=8))
        assert fits.fits(layout, np.array(rows), demand, inputs).tolist() == [
            reference_placement((cluster[row][0], unused), demand, balanced) is not None for row in rows
        ]
