"""Fits of pods to GPUs: reasons, shortfalls, limits. The cases of the specification are in `tests/conformance/gas`."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from nodewise.agents.gpu import agent, gpu_arrays, node_allocations
from nodewise.agents.gpu.agent import SubdeviceRequest
from nodewise.agents.gpu.fit import FitResult, fit
from nodewise.agents.gpu.gpu_arrays import CandidateGpus
from nodewise.agents.gpu.gpu_node_labels import Link
from nodewise.agents.gpu.gpu_rejection_reasons import InvalidDemand, RejectionKind
from nodewise.agents.gpu.gpu_selection import FirstFit, GpuOrder, Keys
from nodewise.agents.gpu.node_allocations import NodeAllocations
from nodewise.agents.gpu.node_gpus import NodeGpus
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, Demand
from tests.conformance.gas import expectation_checks, node_and_pod_notation
from tests.unit.agents.gpu.gpu_fragmentation_layouts import layout_of

MC = "gpu.intel.com/millicores"
SUBDEVICES = "gpu.intel.com/tiles"
COUNT = "gpu.intel.com/i915"


class AllocatedNode(NamedTuple):
    gpus: NodeGpus
    allocations: NodeAllocations


def gpus(count: int = 2, **more: Any) -> NodeGpus:
    fields: dict[str, Any] = {
        "names": tuple(f"card{number}" for number in range(count)),
        "capacity": {COUNT: (8,) * count, MC: (1000,) * count, SUBDEVICES: (2,) * count},
        "models": ("",) * count,
    }
    return NodeGpus(**(fields | more))


def allocations_of(
    gpu: str = "card0", subdevices: frozenset[int] = frozenset(), **amounts: int
) -> NodeAllocations:
    by_name = {node_and_pod_notation.resource(short): amount for short, amount in amounts.items()}
    return node_allocations.EMPTY._replace(amounts={gpu: by_name}, subdevices={gpu: subdevices})


def ask(*containers: str, **more: Any) -> Demand:
    """A demand: `2 mc=100` is two GPUs with this amount each."""
    made = []
    for number, text in enumerate(containers):
        count, *parts = text.split()
        pairs = (part.split("=") for part in parts)
        per_gpu = {COUNT: 1} | {node_and_pod_notation.resource(short): int(amount) for short, amount in pairs}
        made.append(ContainerDemand(f"c{number}", int(count), per_gpu if int(count) else {}))
    return Demand(tuple(made), **more)


def fit_one(
    node: NodeGpus, allocations: NodeAllocations, demand: Demand, order: GpuOrder | None = None
) -> FitResult:
    return fit(
        layout_of([AllocatedNode(node, allocations)], SUBDEVICES),
        np.zeros(1, np.intp),
        demand,
        order or FirstFit(),
    )


def text(fitted: FitResult, at: int = 0) -> str:
    return fitted.reasons[fitted.codes[at] - 1].text().removeprefix(expectation_checks.PREFIX)


def test_node_without_gpus_is_rejected_for_that_before_late_problems() -> None:
    late = InvalidDemand(RejectionKind.MALFORMED, "x", at_once=False)
    for demand in (ask("1"), Demand(problem=late)):
        assert (
            text(fit_one(NodeGpus(), node_allocations.EMPTY, demand)) == "will not fit: the node has no GPUs"
        )
    at_once = Demand(problem=InvalidDemand(RejectionKind.BAD_ARGS, "x"))
    assert text(fit_one(NodeGpus(), node_allocations.EMPTY, at_once)) == "bad args: x"


@pytest.mark.parametrize(
    ("demand", "node", "expected"),
    [
        (ask("1 mc=1001"), gpus(), f"container c0: no GPU has 1001 {MC} left"),
        (ask("2 mc=950"), gpus(), f"container c0: fewer than 2 GPUs have 950 {MC} left"),
        (ask("1 mc=600", "1 mc=600", "1 mc=600"), gpus(), f"container c2: no GPU has 600 {MC} left"),
        (ask("3"), gpus(), "container c0: fewer than 3 GPUs may be used"),
        (ask("1000000000"), gpus(), "container c0: fewer than 1000000000 GPUs may be used"),
        (ask("1", deny=frozenset({"card0", "card1"})), gpus(), "container c0: no GPU may be used"),
        (ask("1 nosuch=1"), gpus(), "container c0: no GPU has 1 gpu.intel.com/nosuch left"),
        (ask("2", linked=True), gpus(), "container c0: no free pair of GPUs with an Xe Link"),
        (
            ask("2", single_numa=True),
            gpus(numa=(frozenset({"card0"}), frozenset({"card1"}))),
            "container c0: no single NUMA node has 2 such GPUs",
        ),
        (
            ask("1 mc=600 t=2"),
            gpus(capacity={COUNT: (8, 8), MC: (1000, 500), SUBDEVICES: (1, 2)}),
            "container c0: no GPU has all that it wants left",
        ),
    ],
)
def test_reason_contains_the_request(demand: Demand, node: NodeGpus, expected: str) -> None:
    assert text(fit_one(node, allocations_of(mc=100), demand)) == f"will not fit: {expected}"


def test_shortfall_is_that_of_the_closest_gpu() -> None:
    fitted = fit_one(gpus(), allocations_of(mc=700), ask("2 mc=500"))
    shortfall = fitted.shortfalls.at(0)
    assert shortfall is not None
    assert shortfall.text() == f"card0 has 300 {MC} left, 500 wanted: 200 too little"
    assert fit_one(gpus(), allocations_of(mc=700), ask("1 mc=500")).shortfalls.at(0) is None


def test_shortfall_if_no_gpu_has_all_amounts() -> None:
    node = gpus(capacity={COUNT: (8, 8), MC: (1000, 500), SUBDEVICES: (1, 2)})
    shortfall = fit_one(node, node_allocations.EMPTY, ask("1 mc=600 t=2")).shortfalls.at(0)
    assert shortfall is not None
    assert shortfall.text() == f"card0 has 1 {SUBDEVICES} left, 2 wanted: 1 too little"


def test_only_gpus_of_requested_models_are_chosen() -> None:
    node = gpus(models=("V100M16", "V100M32"))
    wanted = ask("1", models=frozenset({"V100M32"}))
    assert fit_one(node, node_allocations.EMPTY, wanted).gpus(0) == ((1,),)
    assert fit_one(gpus(), node_allocations.EMPTY, wanted).codes[0]


def test_overcommitted_gpu_has_nothing_free() -> None:
    assert fit_one(gpus(), allocations_of(mc=5000), ask("1")).gpus(0) == ((0,),)
    assert fit_one(gpus(), allocations_of(mc=5000), ask("1 mc=1")).gpus(0) == ((1,),)
    assert fit_one(gpus(), allocations_of(mc=2**80), ask("2 mc=1")).codes[0]


def test_amounts_above_64_bits_overflow() -> None:
    assert text(fit_one(gpus(), node_allocations.EMPTY, ask(f"1 mc={2**63}"))).startswith("integer overflow")
    group = ask(f"1 mc={2**62}", f"1 mc={2**62}", same_gpu=(0, 1))
    assert text(fit_one(gpus(), node_allocations.EMPTY, group)).startswith("integer overflow")
    full = gpus(capacity={COUNT: (8,), MC: (2**63 - 1,)}, names=("card0",))
    assert fit_one(full, allocations_of(mc=1), ask(f"1 mc={2**63 - 2}")).gpus(0) == ((0,),)
    assert fit_one(full, allocations_of(mc=2), ask(f"1 mc={2**63 - 2}")).codes[0]


def test_all_links_of_a_sub_device_are_tried() -> None:
    node = gpus(3, links=(Link("card0", 0, "card1", 0), Link("card0", 0, "card2", 0)))
    fitted = fit_one(node, allocations_of("card1", mc=1000), ask("2 mc=1", linked=True))
    assert (fitted.gpus(0), fitted.subdevices(0)) == (((0, 2),), ((0, 0),))


def test_unsteady_order_respects_gpus_that_were_just_taken() -> None:
    class Emptiest:
        """Prefers GPUs away from the last one taken: all keys depend on what is left of the first GPU."""

        prefers = False
        steady = False

        def keys(self, candidate_gpus: CandidateGpus, container: ContainerDemand) -> Keys:
            del container
            towards = np.where(candidate_gpus.free(MC)[0] < 1000, -1, 1)
            return towards * np.arange(candidate_gpus.layout.most_gpus)[:, None]

    assert fit_one(gpus(4), node_allocations.EMPTY, ask("3 mc=1"), Emptiest()).gpus(0) == ((0, 3, 2),)


def test_candidates_may_be_in_any_order_and_repeated() -> None:
    layout = layout_of(
        [
            AllocatedNode(gpus(), allocations_of(mc=1000)),
            AllocatedNode(gpus(1), node_allocations.EMPTY),
            AllocatedNode(gpus(), allocations_of(mc=1)),
        ],
        SUBDEVICES,
    )
    for selection in ([2, 0, 3, 1, 1, 2], [3], [1, 1, 1, 1, 1, 1, 0], []):
        fitted = fit(layout, np.array(selection, np.intp), ask("1 mc=1000"), FirstFit())
        assert [fitted.gpus(at) for at in range(len(selection))] == [
            {0: ((1,),), 1: ((0,),), 2: ((1,),), 3: ((),)}[row] for row in selection
        ]


def test_empty_layout_fits_nothing() -> None:
    layout = gpu_arrays.build_layout([], np.zeros(1, np.intp), SUBDEVICES)
    assert fit(layout, np.zeros(3, np.intp), ask("1"), FirstFit()).codes.all()


def test_replaced_node_leaves_the_old_layout_unchanged() -> None:
    before = layout_of([AllocatedNode(gpus(), node_allocations.EMPTY)] * 3, SUBDEVICES)
    after = gpu_arrays.replace_node_in_layout(before, 1, gpus(), allocations_of(mc=1000))
    wanted = ask("1 mc=1")
    every = np.arange(3)
    assert [fit(before, every, wanted, FirstFit()).gpus(at) for at in every] == [((0,),)] * 3
    assert [fit(after, every, wanted, FirstFit()).gpus(at) for at in every] == [((0,),), ((1,),), ((0,),)]
    assert after.free[COUNT] is before.free[COUNT]
    assert after.name_codes is before.name_codes


def test_linked_sub_devices_are_reserved_for_later_containers() -> None:
    wanted = [[SubdeviceRequest("card0", 1)], [SubdeviceRequest("card0", 1, linked=0)]]
    assert agent.assign_subdevices(gpus(), node_allocations.EMPTY, SUBDEVICES, wanted) == (
        ((1,),),
        ((0,),),
    )


class CountingFirstFit(FirstFit):
    """First-fit that counts how often GPUs are searched."""

    def __init__(self) -> None:
        self.times = 0

    def keys(self, candidate_gpus: CandidateGpus, container: ContainerDemand) -> Keys | None:
        self.times += 1
        return super().keys(candidate_gpus, container)


def test_many_numa_nodes_of_one_node_do_not_multiply_searches() -> None:
    """Otherwise the labels of one node could delay the scheduling of all pods."""
    plain = AllocatedNode(gpus(2), node_allocations.EMPTY)
    many = gpus(64)._replace(numa=tuple(frozenset({f"card{number}"}) for number in range(64)))
    layout, counting = (
        layout_of([plain, AllocatedNode(many, node_allocations.EMPTY)], SUBDEVICES),
        CountingFirstFit(),
    )
    fitted = fit(layout, layout.rows[:2], ask("2", single_numa=True), counting)
    assert (fitted.codes > 0).tolist() == [False, True]
    assert counting.times == 1


def test_search_ends_when_no_node_is_left() -> None:
    layout, counting = (
        layout_of([AllocatedNode(gpus(2), node_allocations.EMPTY)], SUBDEVICES),
        CountingFirstFit(),
    )
    fitted = fit(layout, layout.rows[:1], ask(*["2 mc=600"] * 4), counting)
    assert (fitted.codes > 0).tolist() == [True]
    assert counting.times == 2
