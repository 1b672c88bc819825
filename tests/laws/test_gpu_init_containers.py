"""Laws of GPUs for init containers and sidecars, for any pods and nodes, in a simulation of binds and ends of pods.

The agent, its state and its reservations are the real ones. kube-scheduler's accounting is that of
`nodewise.scheduling_model`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agent import Snapshot
from nodewise.agent.bind_plugin_interface import BindPlan, Refusal
from nodewise.agents.gpu import allocation_record, pod_gpu_requests
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.options import PLACEMENTS, GpuOptions
from nodewise.agents.gpu.pod_gpu_requests import ContainerDemand, InitContainerDemand
from nodewise.agents.gpu.state import GpuState
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.scheduling_model import simulated_cluster
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    PREFIX,
    agent_state,
    amounts,
    charged_amounts,
    cluster_state,
    decode,
    laid_out,
    lease,
    node,
)

NOW = 7.0
NUMBERS = "cards.nodewise.io/"
COUNT, MILLI, TILES = f"{PREFIX}i915", f"{PREFIX}millicores", f"{PREFIX}tiles"
NODES = {
    "n1": node("i915=12 mc=3000 t=6", "0.1.2", **{f"{PREFIX}numa-gpu-map": "0-0.1_1-2"}),
    "n2": node("i915=4 mc=4000 t=8", "0.1.2.3", **{f"{PREFIX}xe-links": "0.0-1.0_2.0-3.0_0.1-2.1"}),
}
Spec = Mapping[str, Any]


@st.composite
def requests(draw: Any) -> str:
    """Amounts that can be divided among the GPUs."""
    count = draw(st.sampled_from([0, 1, 1, 1, 2, 2, 3]))
    if not count:
        return ""
    milli, tiles = draw(st.sampled_from([0, 100, 300, 600])), draw(st.sampled_from([0, 0, 0, 1]))
    return f"i915={count} mc={count * milli} t={count * tiles}"


@st.composite
def specs(draw: Any) -> Spec:
    containers = [
        _container(f"c{at}", text)
        for at, text in enumerate(draw(st.lists(requests(), min_size=1, max_size=3)))
    ]
    init = [
        _container(f"i{at}", draw(requests())) | ({"restartPolicy": "Always"} if draw(st.booleans()) else {})
        for at in range(draw(st.integers(0, 3)))
    ]
    return {"containers": containers, "initContainers": init}


def _container(name: str, text: str) -> dict[str, Any]:
    wanted = {name: str(amount) for name, amount in amounts(text).items() if amount}
    return {"name": name, "resources": {"requests": wanted}}


ANNOTATIONS = st.sampled_from(
    [{}, {}, {}, {"gas-allocate-single-numa": ""}, {"gas-allocate-xelink": ""}, {"gas-same-gpu": "c0,i0"}]
)


def pod(
    name: str, spec: Spec, annotations: Mapping[str, str], on: str = "", phase: str = "Pending"
) -> AllocatedPod:
    meta = {"name": name, "namespace": "d", "uid": f"uid-{name}", "resourceVersion": "40"}
    made: AllocatedPod = decode(
        AllocatedPod,
        {
            "metadata": meta | {"annotations": dict(annotations)},
            "spec": {**spec, "nodeName": on},
            "status": {"phase": phase},
        },
    )
    return made


class SimulatedCluster:
    """Two nodes, their pods and their allocation records."""

    def __init__(self, agent: GpuAgent) -> None:
        self.agent = agent
        self.pods: dict[str, AllocatedPod] = {}
        self.records: dict[str, dict[str, Any]] = {name: {} for name in NODES}

    def state(self) -> GpuState:
        leases = [lease(name, **entries) for name, entries in self.records.items()]
        return agent_state(cluster_state(NODES, self.pods.values(), leases))

    def snapshot(self) -> Snapshot:
        state = self.state()
        return Snapshot(cluster_state(NODES).nodes, {"gpu": state}, NOW)

    def bind(self, name: str, spec: Spec, annotations: Mapping[str, str]) -> tuple[str, BindPlan] | None:
        """Bind the pod to the first node that passes filter; None if there is none. Other nodes must refuse it."""
        made, snapshot = pod(name, spec, annotations), self.snapshot()
        verdict = self.agent.filter(made, snapshot.nodes.named([*NODES]), snapshot)
        if verdict is None:
            assert self.agent.bind(made, "n1", snapshot, NOW) is None
            return None
        plans = {on: self.agent.bind(made, on, snapshot, NOW) for on in NODES}
        for plan, code in zip(plans.values(), verdict.codes.tolist(), strict=True):
            assert isinstance(plan, Refusal if code else BindPlan)
            if code:
                assert verdict.reasons[code - 1].text()
        for at, (on, bind_plan) in enumerate(plans.items()):
            if isinstance(bind_plan, BindPlan):
                if verdict.details is not None and verdict.details.text(at):
                    assert _without_subdevices(verdict.details.text(at)) == _without_subdevices(
                        bind_plan.description
                    )
                self.records[on][f"uid_{name}"] = msgspec.convert(bind_plan.reservation, Reservation)
                self.pods[name] = pod(name, spec, bind_plan.annotations | annotations, on)
                return on, bind_plan
        return None


def _without_subdevices(text: str) -> str:
    return re.sub(r" gt[\d+gt]*", "", text)


def gpus_by_container(bind_plan: BindPlan) -> dict[str, tuple[str, ...]]:
    return {
        key.removeprefix(NUMBERS): allocation_record.parse_gpu_numbers(value)
        for key, value in bind_plan.annotations.items()
        if key.startswith(NUMBERS)
    }


def wanted_amounts(container: Mapping[str, Any]) -> dict[str, int]:
    return {name: int(amount) for name, amount in container["resources"]["requests"].items()}


def check_placement(spec: Spec, on: str, bind_plan: BindPlan) -> Counter[tuple[str, str]]:
    """Check the GPUs of every container. The amounts that the pod holds, by GPU and resource."""
    gpus, names = gpus_by_container(bind_plan), charged_names(on)
    containers = [*spec["containers"], *spec["initContainers"]]
    for container in containers:
        wanted = wanted_amounts(container)
        taken = gpus.get(container["name"], ())
        assert len(set(taken)) == len(taken) == wanted.get(COUNT, 0)
        assert set(taken) <= names
    held: Counter[tuple[str, str]] = Counter()
    for at, container in reversed([*enumerate(spec["initContainers"])]):
        if container.get("restartPolicy") == "Always":
            held.update(shares(container, gpus))
            continue
        later = held + sum((shares(other, gpus) for other in spec["containers"]), Counter())
        for share, amount in shares(container, gpus).items():
            assert later[share] >= amount, (at, share)
    return held + sum((shares(container, gpus) for container in spec["containers"]), Counter())


def charged_names(on: str) -> set[str]:
    return set(agent_state(cluster_state(NODES)).nodes[on].gpus.names)


def shares(container: Mapping[str, Any], gpus: Mapping[str, Sequence[str]]) -> Counter[tuple[str, str]]:
    wanted = wanted_amounts(container)
    return Counter(
        {
            (gpu, resource): amount // wanted[COUNT]
            for gpu in gpus.get(container["name"], ())
            for resource, amount in wanted.items()
        }
    )


@given(st.lists(st.tuples(specs(), ANNOTATIONS), min_size=1, max_size=5), st.sampled_from(PLACEMENTS))
def test_every_container_gets_gpus_that_it_may_use_and_ended_pods_free_all(
    arrivals: list[tuple[Spec, Mapping[str, str]]], placement: Any
) -> None:
    cluster = SimulatedCluster(GpuAgent(GpuOptions(gpu_placement=placement), INTEL))
    empty = laid_out(cluster.state())
    held: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in NODES}
    for number, (spec, annotations) in enumerate(arrivals):
        outcome = cluster.bind(f"p{number}", spec, annotations)
        if outcome is None:
            continue
        on, bind_plan = outcome
        held[on] += check_placement(spec, on, bind_plan)
        # nothing is charged for plain init containers, and no GPU is overcommitted
        charged = charged_amounts(cluster.state(), on)
        assert {
            (gpu, PREFIX + name): amount for gpu, of_gpu in charged.items() for name, amount in of_gpu.items()
        } == dict(held[on])
        assert min(min(free.values()) for free in laid_out(cluster.state())[on].values()) >= 0
        # a repeated bind derives the same from the reservation
        again = cluster.agent.bind(pod(f"p{number}", spec, annotations), on, cluster.snapshot(), NOW)
        assert isinstance(again, BindPlan)
        assert (again.annotations, again.description) == (bind_plan.annotations, bind_plan.description)
        check_kubernetes_total(spec)
    for name, bound in cluster.pods.items():
        status = msgspec.structs.replace(bound.status, phase="Succeeded")
        cluster.pods[name] = msgspec.structs.replace(bound, status=status)
    assert laid_out(cluster.state()) == empty


def check_kubernetes_total(spec: Spec) -> None:
    """The total of kube-scheduler is that of the containers and sidecars, which the agent charges."""
    sidecars = [container for container in spec["initContainers"] if "restartPolicy" in container]
    total = simulated_cluster.requests_that_must_fit({"spec": spec})
    without_init = {"spec": {**spec, "initContainers": sidecars}}
    assert total == simulated_cluster.requests_that_must_fit(without_init)


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=4, unique=True), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6), st.integers(0, 3)), min_size=1, max_size=3),
)
def test_all_candidates_at_once_have_enough_where_each_has_gpus_for_it(
    taken: list[list[int]], milli: list[int], wanted: list[tuple[int, int, int]]
) -> None:
    """The later containers become fewer from one init container to the next, because of sidecars between them."""
    containers = [
        ContainerDemand(f"c{at}", len(gpus), {COUNT: 1, MILLI: milli[at]} if gpus else {})
        for at, gpus in enumerate(taken)
    ]
    with_gpus = [at for at, gpus in enumerate(taken) if gpus]
    inits = []
    for count, amount, started in sorted(wanted, key=lambda init: init[2]):
        if with_gpus[started:]:
            per_gpu = {COUNT: 1} | ({MILLI: amount} if amount else {})
            inits.append(InitContainerDemand("i", count, per_gpu, tuple(with_gpus[started:])))
    if not inits:
        return
    masks = {at: np.isin(np.arange(5), taken[at])[:, None] for at in with_gpus}
    names = [[f"card{gpu}" for gpu in gpus] for gpus in taken]
    reused = pod_gpu_requests.reused_gpus(inits, containers, names)
    enough = pod_gpu_requests.candidates_with_enough(inits, containers, masks)
    assert [mask.tolist() for mask in enough] == [[bool(gpus)] for gpus in reused]
    for init, gpus in zip(inits, reused, strict=True):
        assert pod_gpu_requests.reused_gpus([init], containers, names) == [gpus]
        held = Counter(
            {gpu: sum(milli[at] for at in init.later if int(gpu[-1]) in taken[at]) for gpu in gpus}
        )
        assert len(set(gpus)) == len(gpus) in {0, init.count}
        assert all(held[gpu] >= init.per_gpu.get(MILLI, 0) for gpu in gpus)
        assert not gpus or pod_gpu_requests.invalid_demand(init, containers) is None
