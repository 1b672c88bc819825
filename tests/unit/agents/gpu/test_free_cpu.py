"""The CPU that no pod requests: the fields of pods that are kept, and the free CPU of nodes."""

from typing import Any

import msgspec
import pytest

from nodewise.agent import ClusterState
from nodewise.agents.gpu import KIND, gpu_pod_fields
from nodewise.agents.gpu import state as states
from nodewise.agents.gpu.gpu_pod_fields import MOST_CPU_MILLI, AllocatedPod, cpu_milli
from nodewise.agents.gpu.node_allocations import GPUS
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import PODS, GpuStateBuilder
from nodewise.agents.gpu.vendor_resource_names import INTEL
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    agent_state,
    cluster_state,
    cpu_free,
    decode,
    entry,
    lease,
    node,
    pod,
)

NODES = {"plain": node("", "", cpu="8"), "n1": node(cpu="8"), "n2": node(cpu="7500m")}
PLAIN = ("",)


def with_pods(before: ClusterState, *pods: AllocatedPod) -> ClusterState:
    by_key = {(pod.metadata.namespace, pod.metadata.name): pod for pod in pods}
    return msgspec.structs.replace(before, objects={**before.objects, PODS: by_key})


class TestKept:
    def test_of_a_plain_pod_its_cpu_is_kept(self) -> None:
        allocated_pod = pod("a", "n1", requests=PLAIN, cpu="1500m")
        assert allocated_pod.metadata.annotations == {}
        kept = states.reduce_non_gpu_pod_to_cpu(allocated_pod)
        assert kept is not None
        assert (kept.metadata.name, kept.metadata.uid, kept.spec.nodeName) == ("a", "uid-a", "n1")
        assert kept.metadata.annotations is None
        assert states.cpu_milli_on_node(kept) == 1500

    def test_pods_with_equal_requests_share_one_object(self) -> None:
        first, second = (
            states.reduce_non_gpu_pod_to_cpu(pod(name, "n1", requests=PLAIN, cpu=cpu))
            for name, cpu in (("a", "2"), ("b", "2000m"))
        )
        assert first is not None
        assert second is not None
        assert first.spec.containers is second.spec.containers
        assert first.spec.nodeName is second.spec.nodeName

    @pytest.mark.parametrize(
        "allocated_pod",
        [
            pod("a", "n1", requests=PLAIN),
            pod("a", "", requests=PLAIN, cpu="1"),
            pod("a", "n1", requests=PLAIN, cpu="1", phase="Succeeded"),
            pod("a", "n1", requests=PLAIN, cpu="1", phase="Failed"),
            pod("a", "n1", requests=PLAIN, cpu="-1"),
            pod("a", "n1", requests=PLAIN, cpu="much"),
        ],
        ids=["no cpu", "on no node", "succeeded", "failed", "negative", "garbage"],
    )
    def test_nothing_is_kept_of_one_that_takes_nothing(self, allocated_pod: AllocatedPod) -> None:
        assert states.reduce_non_gpu_pod_to_cpu(allocated_pod) is None
        assert states.keep_gpu_pod(allocated_pod) is None

    @pytest.mark.parametrize(
        "allocated_pod", [pod("a"), pod("a", "n1", "card0", PLAIN)], ids=["asks", "says so"]
    )
    def test_all_is_kept_of_one_that_may_hold_cards(self, allocated_pod: AllocatedPod) -> None:
        for kept in (states.reduce_non_gpu_pod_to_cpu(allocated_pod), states.keep_gpu_pod(allocated_pod)):
            assert kept is not None
            assert kept.metadata == allocated_pod.metadata
            assert gpu_pod_fields.container_amounts(kept, INTEL) == gpu_pod_fields.container_amounts(
                allocated_pod, INTEL
            )

    @pytest.mark.parametrize(
        ("options", "kept"),
        [
            (GpuOptions(gpu_placement="fragmentation"), True),
            (GpuOptions(), False),
            (GpuOptions(gpu_placement="pack"), False),
            (GpuOptions(balanced_resource="millicores"), False),
        ],
    )
    def test_plain_pods_are_kept_where_the_placement_asks_for_cpu(
        self, options: GpuOptions, kept: bool
    ) -> None:
        keep = next(watch.keep for watch in KIND.watched(options) if watch.name == PODS)
        assert keep is not None
        assert (keep(pod("a", "n1", requests=PLAIN, cpu="1")) is not None) is kept
        assert keep(pod("b", "n1")) is not None


class TestRequested:
    @pytest.mark.parametrize(
        ("containers", "init", "milli"),
        [
            (["1", "250m"], [], 1250),
            (["1"], [("500m", "Always")], 1500),
            (["1"], [("1500m", None)], 1500),
            (["1"], [("500m", None)], 1000),
            (["1"], [("500m", "Always"), ("600m", None)], 1500),
            (["1"], [("500m", "Always"), ("1100m", None)], 1600),
            (["1"], [("1100m", None), ("500m", "Always")], 1500),
            (["0.0001"], [], 1),
            (["1e30", "1"], [], MOST_CPU_MILLI),
            ([], [], 0),
        ],
    )
    def test_cpu_is_the_larger_of_running_containers_and_init_container(
        self, containers: list[str], init: list[tuple[str, str | None]], milli: int
    ) -> None:
        def container(cpu: str, policy: str | None = None) -> dict[str, Any]:
            return {"resources": {"requests": {"cpu": cpu}}, "restartPolicy": policy}

        spec = {
            "containers": [*map(container, containers)],
            "initContainers": [container(*arguments) for arguments in init],
        }
        assert cpu_milli(decode(AllocatedPod, {"metadata": {"name": "a"}, "spec": spec})) == milli

    @pytest.mark.parametrize(
        ("spec", "status", "milli"),
        [
            ({"resources": {"requests": {"cpu": "5"}}}, {}, 5000),
            ({"overhead": {"cpu": "30m"}}, {}, 1030),
            ({}, {"containerStatuses": [{"name": "c0", "allocatedResources": {"cpu": "3"}}]}, 3000),
            ({}, {"containerStatuses": [{"name": "c0", "resources": {"requests": {"cpu": "2"}}}]}, 2000),
        ],
        ids=["pod-level", "overhead", "allocated", "in effect"],
    )
    @pytest.mark.parametrize("device", [{}, {"gpu.intel.com/i915": "1"}], ids=["no GPU", "a GPU"])
    def test_a_stored_pod_takes_as_much_cpu_as_kube_scheduler_counts(
        self, device: dict[str, str], spec: dict[str, Any], status: dict[str, Any], milli: int
    ) -> None:
        container = {"name": "c0", "resources": {"requests": {"cpu": "1"} | device}}
        on_node = {"nodeName": "n1", "containers": [container]}
        document = {"metadata": {"name": "a"}, "spec": on_node | spec, "status": status}
        kept = states.reduce_non_gpu_pod_to_cpu(decode(AllocatedPod, document))
        assert kept is not None
        assert states.cpu_milli_on_node(kept) == milli
        assert kept.status.containerStatuses is None
        assert states.reduce_non_gpu_pod_to_cpu(kept) == kept


class TestAllocatable:
    @pytest.mark.parametrize(
        ("allocatable", "milli"),
        [
            ({"cpu": "7910m"}, 7910),
            ({"cpu": 8}, 8000),
            ({"cpu": "0.0019"}, 1),
            ({"cpu": "-1"}, 0),
            ({"cpu": "1e30"}, states.UNLIMITED),
            ({"cpu": "many"}, states.UNLIMITED),
            ({"cpu": ["8"]}, states.UNLIMITED),
            ({"memory": "1Gi"}, states.UNLIMITED),
            (None, states.UNLIMITED),
            ("x", states.UNLIMITED),
        ],
    )
    def test_a_node_that_does_not_say_has_no_limit(self, allocatable: Any, milli: int) -> None:
        assert states.allocatable_cpu(decode(GpuNode, {"status": {"allocatable": allocatable}})) == milli

    def test_a_node_without_status(self) -> None:
        assert states.allocatable_cpu(GpuNode()) == states.UNLIMITED


class TestFree:
    def test_free_cpu_is_not_requested_by_pods_on_the_node(self) -> None:
        pods = [
            pod("a", "n1", "card0", cpu="1"),
            pod("b", "n1", requests=PLAIN, cpu="2500m"),
            pod("c", "n1", requests=PLAIN, cpu="4", phase="Succeeded"),
            pod("d", "plain", requests=PLAIN, cpu="4"),
            pod("e", "", cpu="4"),
        ]
        assert cpu_free(agent_state(cluster_state(NODES, pods))) == {"n1": 4500, "n2": 7500}

    def test_plain_pods_come_go_and_end(self) -> None:
        state, before = GpuStateBuilder(INTEL), cluster_state(NODES, [pod("a", "n1", "card0", cpu="1")])
        first = agent_state(before, state)
        assert cpu_free(first) == {"n1": 7000, "n2": 7500}
        gpu_pods = list(before.objects[PODS].values())
        for pods, left in (
            ([pod("b", "n1", requests=PLAIN, cpu="2")], {"n1": 5000, "n2": 7500}),
            ([pod("b", "n2", requests=PLAIN, cpu="2")], {"n1": 7000, "n2": 5500}),
            ([pod("b", "n2", requests=PLAIN, cpu="3")], {"n1": 7000, "n2": 4500}),
            ([pod("b", "n2", requests=PLAIN, cpu="3", phase="Failed")], {"n1": 7000, "n2": 7500}),
            ([pod("b", "n2", requests=PLAIN, cpu="9")], {"n1": 7000, "n2": -1500}),
            ([], {"n1": 7000, "n2": 7500}),
        ):
            gpu_state = agent_state(with_pods(before, *gpu_pods, *pods), state)
            assert cpu_free(gpu_state) == left
            assert gpu_state.layout is first.layout
        assert cpu_free(first) == {"n1": 7000, "n2": 7500}

    def test_pods_without_gpus_do_not_count_for_other_placements(self) -> None:
        gpu_state = agent_state(
            cluster_state(
                NODES, [pod("b", "plain", requests=PLAIN, cpu="2"), pod("c", "n1", requests=PLAIN, cpu="2")]
            )
        )
        assert sorted(gpu_state.nodes) == ["n1", "n2"]
        assert gpu_state.nodes["n1"].bound == ()

    def test_nodes_change(self) -> None:
        state, pods = GpuStateBuilder(INTEL), [pod("b", "n1", requests=PLAIN, cpu="2")]
        for nodes, left in (
            (NODES, {"n1": 6000, "n2": 7500}),
            ({**NODES, "n1": node(cpu="16")}, {"n1": 14000, "n2": 7500}),
            ({"n2": NODES["n2"]}, {"n2": 7500}),
            (NODES, {"n1": 6000, "n2": 7500}),
            (
                {"n2": NODES["n2"], "n1": NODES["n1"], "n3": node()},
                {"n2": 7500, "n1": 6000, "n3": states.UNLIMITED},
            ),
        ):
            assert cpu_free(agent_state(cluster_state(nodes, pods), state)) == left

    def test_a_claim_takes_cpu_at_once_and_only_once(self) -> None:
        waiting = pod("a", phase="Pending", cpu="2")
        before, state = cluster_state(NODES, [waiting]), GpuStateBuilder(INTEL)
        first, record = agent_state(before, state), lease("n1", uid_a=entry("a", "card1"))
        claimed = state.apply_allocation_record(first, "n1", record)
        assert cpu_free(claimed) == {"n1": 6000, "n2": 7500}
        assert cpu_free(first) == {"n1": 8000, "n2": 7500}
        assert cpu_free(state.apply_allocation_record(claimed, "n1", record)) == {"n1": 6000, "n2": 7500}
        assert cpu_free(state.apply_allocation_record(claimed, "n1", None)) == {"n1": 8000, "n2": 7500}
        bound = pod("a", "n1", "card1", cpu="2")
        changed = msgspec.structs.replace(
            with_pods(before, bound),
            objects={PODS: {("d", "a"): bound}, "ledgers": {("nw", "gpu-n1"): record}},
        )
        assert bound.metadata.annotations == {GPUS: "card1"}
        assert cpu_free(agent_state(changed, state)) == {"n1": 6000, "n2": 7500}

    def test_garbage_amounts_are_summed_up_without_an_overflow(self) -> None:
        pods = [pod(f"p{number}", "n1", requests=PLAIN, cpu="1e30") for number in range(100)]
        gpu_state = agent_state(cluster_state(NODES, [*pods, pod("a", "n1", "card0", cpu="1e30")]))
        assert cpu_free(gpu_state) == {"n1": 8000 - 101 * MOST_CPU_MILLI, "n2": 7500}
