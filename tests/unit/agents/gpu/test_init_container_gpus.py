"""GPUs of init containers and sidecars: which ones they get, what they are charged, and when they are rejected."""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from nodewise.agent.bind_plugin_interface import BindPlan, Refusal
from nodewise.agents.gpu import KIND, allocation_record, pod_gpu_requests
from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.gpu_rejection_reasons import LaterContainersTooSmall
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.pod_gpu_requests import Demand
from nodewise.agents.gpu.state import PODS
from nodewise.agents.gpu.vendor_resource_names import INTEL
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    PREFIX,
    agent_state,
    amounts,
    charged_amounts,
    cluster_state,
    decode,
    entry,
    lease,
    node,
)
from tests.unit.agents.gpu.table_cases import cases
from tests.unit.agents.gpu.test_agent import NOW, agent, plan, snapshot, texts

CASES = "init_container_gpus.yaml"
NODE = node("i915=40 mc=4000 mem=4000 t=8", "0.1.2.3")
NODES = {"n1": NODE}


def new(
    *requests: str, init: Sequence[str] = (), on: str = "", phase: str = "Pending", **annotations: str
) -> AllocatedPod:
    """A pod with containers c0, c1, …; an init container is written `name: requests`, a sidecar `*name: requests`."""
    containers = [_container(f"c{number}", text) for number, text in enumerate(requests)]
    before = []
    for text in init:
        name, _, requested = text.partition(":")
        sidecar = {"restartPolicy": "Always"} if name.startswith("*") else {}
        before.append(_container(name.lstrip("*"), requested) | sidecar)
    notes = {key.replace("_", "-"): value for key, value in annotations.items()}
    meta = {"name": "p", "namespace": "d", "uid": "uid-p", "resourceVersion": "40", "annotations": notes}
    spec = {"containers": containers, "initContainers": before, "nodeName": on}
    made: AllocatedPod = decode(AllocatedPod, {"metadata": meta, "spec": spec, "status": {"phase": phase}})
    return made


def _container(name: str, requests: str) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": amounts(requests)}}


def parse(gpu_pod: AllocatedPod) -> Demand:
    return pod_gpu_requests.parse_demand(gpu_pod, INTEL, GpuOptions())


def gpus_of(bind_plan: BindPlan) -> dict[str, str]:
    """The numbers of the GPUs by container."""
    prefix = "cards.nodewise.io/"
    return {
        key.removeprefix(prefix): value
        for key, value in bind_plan.annotations.items()
        if key.startswith(prefix)
    }


def bound(gpu_pod: AllocatedPod, **options: Any) -> dict[str, str]:
    return gpus_of(plan(gpu_pod, snapshot(nodes=NODES), **options))


class TestGpus:
    @cases(CASES, "gpus")
    def test_an_init_container_uses_gpus_of_later_containers(
        self, requests: list[str], init: list[str], expected: dict[str, str]
    ) -> None:
        assert bound(new(*requests, init=init)) == expected

    def test_a_container_that_has_enough_alone_is_preferred_to_several(self) -> None:
        gpu_pod = new("i915=1 mc=900", "i915=2 mc=1200", init=["setup: i915=2 mc=200"])
        assert bound(gpu_pod) == {"c0": "0", "c1": "1,2", "setup": "1,2"}

    def test_gpus_of_one_numa_node_stay_together(self) -> None:
        nodes = {"n1": node("i915=40 mc=4000", "0.1.2.3", **{f"{PREFIX}numa-gpu-map": "0-0.2_1-1.3"})}
        gpu_pod = new("i915=1 mc=900", "i915=2 mc=1800", init=["setup: i915=2"], gas_allocate_single_numa="")
        assert gpus_of(plan(gpu_pod, snapshot(nodes=nodes))) == {"c0": "0", "c1": "1,3", "setup": "1,3"}

    def test_linked_gpus_stay_linked(self) -> None:
        links = {f"{PREFIX}xe-links": "0.0-1.0_2.1-3.1"}
        nodes = {"n1": node("i915=40 mc=4000 t=8", "0.1.2.3", **links)}
        gpu_pod = new("i915=4 t=8", init=["setup: i915=2 t=2"], gas_allocate_xelink="")
        cluster_snapshot = snapshot(nodes=nodes)
        bind_plan = plan(gpu_pod, cluster_snapshot)
        assert bind_plan.description.endswith("; setup: card0 gt0, card1 gt0")
        verdict = agent().filter(gpu_pod, cluster_snapshot.nodes.named(["n1"]), cluster_snapshot)
        assert verdict is not None
        assert verdict.details is not None
        assert verdict.details.text(0).endswith("; setup: card0 gt0, card1 gt0")

    def test_sub_devices_are_those_of_the_later_containers(self) -> None:
        gpu_pod = new(
            "i915=1 mc=900", "i915=1 mc=200 t=2", init=["setup: i915=1 t=1", "*log: i915=1 mc=200 t=1"]
        )
        bind_plan = plan(gpu_pod, snapshot(nodes=NODES))
        assert bind_plan.description == "c0: card0; c1: card1 gt0+gt1; log: card2 gt0; setup: card1 gt0"
        assert bind_plan.annotations["gas-container-tiles"] == "|card1:gt0+gt1"

    def test_sub_devices_of_several_containers_are_used_together(self) -> None:
        gpu_pod = new("i915=1 t=1", "i915=1 t=1", init=["setup: i915=1 t=2"])
        bind_plan = plan(gpu_pod, snapshot(nodes=NODES))
        assert bind_plan.description == "c0: card0 gt0; c1: card0 gt1; setup: card0 gt0+gt1"

    def test_a_sidecar_shares_a_gpu_with_a_container(self) -> None:
        gpu_pod = new("i915=1 mc=900", "i915=1 mc=600", init=["*log: i915=1 mc=100"], gas_same_gpu="log,c0")
        assert parse(gpu_pod).same_gpu == (2, 0)
        assert bound(gpu_pod) == {"c0": "0", "c1": "1", "log": "0"}

    def test_filter_names_the_gpus_of_every_container(self) -> None:
        gpu_pod = new("i915=1 mc=600", "i915=1 mc=600", init=["setup: i915=2 mc=1200", "*log: i915=1 mc=500"])
        cluster_snapshot = snapshot(nodes=NODES)
        verdict = agent().filter(gpu_pod, cluster_snapshot.nodes.named(["n1"]), cluster_snapshot)
        assert verdict is not None
        assert verdict.details is not None
        assert verdict.details.text(0) == "c0: card0; c1: card1; log: card2; setup: card0, card1"
        without = agent().filter(new("i915=1"), cluster_snapshot.nodes.named(["n1"]), cluster_snapshot)
        assert without is not None
        assert without.details is not None
        assert verdict.details.nbytes > without.details.nbytes


@cases(CASES, "rejected")
def test_a_pod_that_no_node_can_serve_is_rejected(
    requests: list[str], fitting: list[str], rejected: list[str], annotations: dict[str, str], words: str
) -> None:
    """`fitting` are init containers at the limit, `rejected` some beyond it."""
    assert parse(new(*requests, init=fitting, **annotations)).problem is None
    problem = parse(new(*requests, init=rejected, **annotations)).problem
    assert problem is not None
    assert problem.words == f"init container setup asks for {words}"
    assert "let one of these ask for as much" in problem.remedy()


def test_an_odd_number_of_linked_gpus_of_an_init_container_is_rejected() -> None:
    problem = parse(new("i915=2", init=["setup: i915=1"], gas_allocate_xelink="")).problem
    assert problem is not None
    assert problem.words == "container setup: an odd number of GPUs with gas-allocate-xelink"


def test_an_init_container_cannot_be_named_in_a_group() -> None:
    problem = parse(new("i915=1", init=["setup: i915=1"], gas_same_gpu="c0,setup")).problem
    assert problem is not None
    assert "another init container cannot" in problem.remedy()


def test_a_node_where_the_later_containers_share_gpus_is_rejected() -> None:
    """first-fit places both containers on card0; other pods use it so much on n2 that they get two GPUs."""
    gpu_pod = new("i915=1 mc=300", "i915=1 mc=300", init=["setup: i915=2"])
    other = entry("other", "card0", charged=["i915=1 mc=600"])
    cluster_snapshot = snapshot(
        nodes={"n1": NODE, "n2": NODE}, allocation_record=[lease("n2", u_x=other)], version="4"
    )
    reason = LaterContainersTooSmall("setup", 2, 2)
    assert texts(gpu_pod, cluster_snapshot, "n1 n2") == [reason.text(), ""]
    assert reason.text().endswith(
        "will not fit: init container setup: fewer than 2 GPUs among the 2 of the containers after it, "
        "which share GPUs here, have all that it wants"
    )
    refusal = agent().bind(gpu_pod, "n1", cluster_snapshot, NOW)
    assert isinstance(refusal, Refusal)
    assert (refusal.error, refusal.reason) == ("will not fit", reason)
    assert gpus_of(plan(gpu_pod, cluster_snapshot, "n2")) == {"c0": "0", "c1": "1", "setup": "0,1"}
    assert bound(gpu_pod, gpu_placement="spread") == {"c0": "0", "c1": "1", "setup": "0,1"}
    for_one = LaterContainersTooSmall("setup", 1, 2)
    assert "no GPU among the 2 of the containers after it, which share GPUs here, has all" in for_one.text()


class TestAllocationRecord:
    GPU_POD = new("i915=1 mc=600", "", init=["*log: i915=1 mc=100", "setup: i915=1"])

    def test_a_reservation_lists_all_containers_and_sidecars(self) -> None:
        bind_plan = plan(self.GPU_POD, snapshot(nodes=NODES))
        written = msgspec.convert(bind_plan.reservation, Reservation)
        assert written.gpus == "card0||card0"
        assert written.charged == (amounts("i915=1 mc=600"), {}, amounts("i915=1 mc=100"))
        assert bind_plan.annotations["gas-container-cards"] == "card0|"
        assert bind_plan.description == "c0: card0; log: card0; setup: card0"

    @pytest.mark.parametrize(
        "requests", [["i915=1", ""], ["", "i915=1"], ["i915=1"], [""], ["", ""], ["i915=1"] * 3]
    )
    def test_a_version_that_does_not_know_sidecars_uses_the_charged_amounts(
        self, requests: list[str]
    ) -> None:
        """It compares the number of parts with its ordinary containers, and with those of them that have GPUs."""
        bind_plan = plan(new(*requests, init=["*log: i915=1"]), snapshot(nodes=NODES))
        written = msgspec.convert(bind_plan.reservation, Reservation)
        parts = allocation_record.parse_gpus(written.gpus)
        assert len(parts) == len(written.charged) > len(requests)

    def test_an_init_container_changes_no_reservation(self) -> None:
        for requests in (["i915=1", "", "i915=2"], ["i915=1"]):
            with_init, without = (
                plan(new(*requests, init=init), snapshot(nodes=NODES)).reservation
                for init in (["setup: i915=1", "none:", "*log:"], [])
            )
            assert with_init == without

    def test_a_repeated_bind_names_the_same_gpus(self) -> None:
        """The reservation is authoritative, even if other pods have ended and the pod would get other GPUs now."""
        gpu_pod = new("i915=1 mc=600", "i915=1 mc=600", init=["setup: i915=2", "*log: i915=1 mc=500 t=1"])
        mine = Reservation(
            "d/p", "card1|card3|card2", "||card2:gt1", NOW, "40", (amounts("i915=1 mc=600"),) * 3
        )
        bind_plan = plan(gpu_pod, snapshot([gpu_pod], [lease("n1", uid_p=mine)], NODES))
        assert gpus_of(bind_plan) == {"c0": "1", "c1": "3", "log": "2", "setup": "1,3"}
        assert msgspec.convert(bind_plan.reservation, Reservation) == mine
        assert bind_plan.annotations["gas-container-cards"] == "card1|card3"
        assert bind_plan.description == "c0: card1; c1: card3; log: card2 gt1; setup: card1, card3"

    def test_a_reservation_of_a_pod_without_sidecars_serves_init_containers(self) -> None:
        gpu_pod = new("", "i915=1 mc=600", init=["setup: i915=1"])
        for gpus in ("card1", "|card1"):
            mine = entry("p", gpus, seen="40", charged=["i915=1"] * len(gpus.split("|")))
            bind_plan = plan(gpu_pod, snapshot([gpu_pod], [lease("n1", uid_p=mine)], NODES))
            assert gpus_of(bind_plan) == {"c1": "1", "setup": "1"}

    def test_a_reservation_of_other_containers_is_refused(self) -> None:
        """The resource profile was changed after the reservation was written."""
        gpu_pod = new("i915=1", init=["setup: i915=1"])
        mine = entry("p", "card1|card0|card0", seen="40", charged=["i915=1"] * 3)
        refusal = agent().bind(gpu_pod, "n1", snapshot([gpu_pod], [lease("n1", uid_p=mine)], NODES), NOW)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == LaterContainersTooSmall("setup", 1, 1)


def test_preemption_frees_the_gpus_of_sidecars() -> None:
    victim = new("i915=1 mc=600", init=["*log: i915=1 mc=600"], on="n1", phase="Running")
    record = Reservation("d/p", "card0|card1", "", NOW, "5", (amounts("i915=1 mc=600"),) * 2)
    nodes = {"n1": node("i915=4 mc=2000", "0.1")}
    cluster_snapshot = snapshot([victim], [lease("n1", uid_p=record)], nodes)
    urgent = msgspec.structs.replace(
        new("i915=2 mc=2000", init=["setup: i915=2 mc=2000"]),
        metadata=msgspec.structs.replace(victim.metadata, name="urgent", uid="uid-urgent"),
    )
    names = cluster_snapshot.nodes.named(["n1"])
    for victims, is_rejected in ((frozenset[str](), True), (frozenset({"uid-p"}), False)):
        verdict = agent().preempt(urgent, names, cluster_snapshot, {"n1": victims})
        assert verdict is not None
        assert bool(verdict.codes[0]) is is_rejected


class TestAllocations:
    RESERVED = Reservation(
        "d/p", "card0||card0", "", NOW, "5", (amounts("i915=1 mc=600"), {}, amounts("i915=1 mc=100"))
    )
    HELD: ClassVar = {"card0": {"i915": 2, "millicores": 700}}

    def allocations(
        self, *pods: AllocatedPod, records: bool, version: str = "4"
    ) -> dict[str, dict[str, int]]:
        leases = [lease("n1", uid_p=self.RESERVED)] if records else []
        return charged_amounts(agent_state(cluster_state(NODES, pods, leases, version)))

    @pytest.mark.parametrize("on", ["", "n1"])
    def test_a_sidecar_is_charged_until_the_pod_ends(self, on: str) -> None:
        requests, init = ["i915=1 mc=600", ""], ["setup: i915=1 mc=500", "*log: i915=1 mc=100", "*none:"]
        assert self.allocations(new(*requests, init=init, on=on), records=True) == self.HELD
        assert self.allocations(records=True) == self.HELD
        assert self.allocations(records=True, version="5") == {}
        for phase in ("Succeeded", "Failed"):
            ended = new(*requests, init=init, on=on, phase=phase)
            assert self.allocations(ended, records=True) == {}

    def test_the_annotations_of_a_pod_without_a_reservation_count(self) -> None:
        requests, init = ["i915=1 mc=600", ""], ["setup: i915=1 mc=500", "*log: i915=2 mc=200", "*none:"]
        notes = {"gas-container-cards": "card0|", "cards.nodewise.io/log": "1,odd"}
        gpu_pod = new(*requests, init=init, on="n1", **notes)
        (keep,) = (watched.keep for watched in KIND.watched(GpuOptions()) if watched.name == PODS)
        assert keep is not None
        assert self.allocations(keep(gpu_pod), records=False) == {
            "card0": {"i915": 1, "millicores": 600},
            "card1": {"i915": 1, "millicores": 100},
            "odd": {"i915": 1, "millicores": 100},
        }

    @pytest.mark.parametrize("text", ["", ",", "\x00", "x" * 100_000, "0," * 100_000, "0" * 5000, "²"])
    def test_garbage_in_the_annotation_of_a_sidecar_concerns_no_other_pod(self, text: str) -> None:
        notes = {"gas-container-cards": "card1", "cards.nodewise.io/log": text}
        gpu_pod = new("i915=1", init=["*log: i915=1"], on="n1", **notes)
        charged = self.allocations(gpu_pod, records=True)
        assert charged.get("card0", self.HELD["card0"]) == self.HELD["card0"]

    def test_a_sidecar_without_an_annotation_is_reported(self) -> None:
        gpu_pod = new("i915=1", init=["*log: i915=1"], on="n1", gas_container_cards="card0")
        state = agent_state(cluster_state(NODES, [gpu_pod]))
        assert charged_amounts(state) == {"card0": {"i915": 1}}
        assert state.nodes["n1"].problems == (
            "pod d/p: sidecar 'log' requests GPUs, but no annotation names them",
        )


class TestLimits:
    def test_containers_and_init_containers_with_gpus_are_limited_together(self) -> None:
        most = allocation_record.MOST_CONTAINERS
        for kind in ("", "*"):
            init = [f"{kind}i{number}: i915=1" for number in range(most - 1)]
            assert parse(new("i915=1", init=[*init, "none:", "*mesh:"])).problem is None
            problem = parse(new("i915=1", init=[*init, f"{kind}more: i915=1"])).problem
            assert problem is not None
            assert problem.words == (
                "the pod has 65 containers, with 64 init containers that ask for GPUs; "
                "at most 64 where one asks for GPUs"
            )

    def test_annotations_leave_space_for_those_of_init_containers(self) -> None:
        gpu_pod = new("i915=2", init=["setup: i915=2", "*log: i915=1"])
        demand = parse(gpu_pod)
        space = allocation_record.MOST_ANNOTATION_BYTES - allocation_record.max_annotation_bytes(
            demand.containers, INTEL.subdevices, demand.init_containers
        )
        for size, fits in ((space, True), (space + 1, False)):
            annotated = new("i915=2", init=["setup: i915=2", "*log: i915=1"], a="x" * (size - 1))
            assert (parse(annotated).problem is None) == fits

    def test_annotations_and_reservation_are_no_longer_than_filter_expects(self) -> None:
        name = "x" * 63
        gpu_pod = new(
            *["i915=4 mc=40 t=4"] * 3,
            "",
            init=[f"{name[:-1]}{number}: i915=4 mc=40 t=4" for number in range(4)]
            + [f"*{name[:-1]}{number}: i915=4 mc=40 t=4" for number in range(4, 7)],
        )
        gpus = [{"name": f"{number}{name[:-1]}"} for number in range(4)]
        document = {
            "metadata": {"annotations": {"nodewise.io/gpu-cards": msgspec.json.encode(gpus).decode()}},
            "status": {"allocatable": amounts("i915=400 mc=4000 t=40")},
        }
        bind_plan = plan(gpu_pod, snapshot(nodes={"n1": decode(type(NODE), document)}))
        demand = parse(gpu_pod)
        added = sum(len(key) + len(value) for key, value in bind_plan.annotations.items())
        assert added <= allocation_record.max_annotation_bytes(
            demand.containers, INTEL.subdevices, demand.init_containers
        )
        written = msgspec.json.encode({gpu_pod.metadata.uid: bind_plan.reservation})
        assert len(written) <= allocation_record.max_reservation_bytes(demand.containers, INTEL.subdevices)

    def test_gpus_of_sidecars_count_to_those_of_the_pod(self) -> None:
        most = allocation_record.MOST_GPUS
        init = [f"*i{number}: i915=64" for number in range(3)]
        assert parse(new("i915=64", init=[*init, "setup: i915=64"])).problem is None
        problem = parse(new("i915=64", init=[*init, "*more: i915=1"])).problem
        assert problem is not None
        assert problem.words == f"the containers ask for more than {most} GPUs altogether"
