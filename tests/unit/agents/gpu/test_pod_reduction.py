"""What is stored of pods that may hold GPUs, at the largest size and one byte beyond."""

from typing import Any

import msgspec
import pytest

from nodewise.agents.gpu import gpu_pod_fields, pod_gpu_requests, state
from nodewise.agents.gpu.gpu_pod_fields import (
    ALLOW,
    DENY,
    GPUS,
    MOST_BYTES,
    MOST_PENDING_BYTES,
    AllocatedPod,
    annotation_bytes,
    cpu_milli,
    gpu_field_bytes,
)
from nodewise.agents.gpu.gpu_rejection_reasons import RejectionKind
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.kube.pod_requests import RequestingContainer
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    agent_state,
    charged_amounts,
    cluster_state,
    decode,
    entry,
    lease,
    node,
)

DEVICE = {"gpu.intel.com/i915": "1"}


def gpu_pod(on: str = "", *, annotations: Any = None, containers: Any = None) -> AllocatedPod:
    own = {
        "name": "main",
        "resources": {"limits": DEVICE | {"cpu": "2", "memory": "1Gi"}, "requests": DEVICE},
    }
    metadata = {"name": "a", "namespace": "d", "uid": "uid-a", "resourceVersion": "5"}
    pod: AllocatedPod = decode(
        AllocatedPod,
        {
            "metadata": metadata | {"annotations": annotations},
            "spec": {"nodeName": on, "containers": [own, *(containers or ())]},
            "status": {"phase": "Running" if on else "Pending"},
        },
    )
    return pod


def of_size(size: int, on: str = "") -> AllocatedPod:
    """A pod whose fields for GPUs have this many bytes, by the annotation `gas-allow`."""
    rest = size - gpu_field_bytes(gpu_pod(annotations={ALLOW: ""}))
    return gpu_pod(on, annotations={ALLOW: "x" * rest})


def demand(pod: AllocatedPod) -> pod_gpu_requests.Demand:
    return pod_gpu_requests.parse_demand(pod, INTEL, GpuOptions(enable_allowlist=True, enable_denylist=True))


@pytest.mark.parametrize(
    "pod",
    [
        gpu_pod(annotations={ALLOW: "card0", DENY: "card1", GPUS: "card0"}),
        gpu_pod(
            containers=[{"name": "side"}, {"name": "net", "resources": {"requests": {"other.com/x": "3"}}}]
        ),
        gpu_pod(containers=[{"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "3"}}}]),
    ],
)
def test_a_stored_pod_requests_the_same(pod: AllocatedPod) -> None:
    stored = state.keep_gpu_pod(pod)
    assert stored is not None
    assert demand(stored) == demand(pod)
    assert cpu_milli(stored) == cpu_milli(pod)
    assert gpu_field_bytes(stored) == gpu_field_bytes(pod)


def test_fields_without_gpus_are_not_stored() -> None:
    stored = state.keep_gpu_pod(gpu_pod())
    assert stored is not None
    (container,) = stored.spec.containers or ()
    assert container.resources is not None
    assert container.resources.limits is None
    assert container.resources.requests == DEVICE
    assert stored.spec.resources is not None
    assert stored.spec.resources.requests == {"cpu": "2000m"}


def test_pods_that_request_the_same_share_it() -> None:
    first, second = (state.keep_gpu_pod(gpu_pod(on)) for on in ("n1", "n2"))
    assert first is not None
    assert second is not None
    assert (first.spec.containers or ())[0].resources is (second.spec.containers or ())[0].resources


def test_a_pod_of_the_largest_size_is_stored_whole() -> None:
    pod = of_size(MOST_BYTES, on="n1")
    assert gpu_field_bytes(pod) == MOST_BYTES
    assert demand(pod).problem is None
    for whole in (pod, of_size(MOST_PENDING_BYTES)):
        stored = state.keep_gpu_pod(whole)
        assert stored is not None
        assert stored.metadata.oversized_bytes == 0
        assert demand(stored) == demand(whole)


def test_large_pending_pod_is_stored_in_part_and_holds_its_reservation() -> None:
    pod = of_size(MOST_PENDING_BYTES + 1)
    assert demand(pod).problem is None
    stored = state.keep_gpu_pod(pod)
    assert stored is not None
    assert stored.metadata.oversized_bytes == MOST_PENDING_BYTES + 1
    assert stored.metadata.annotations is stored.spec.containers is None
    record = lease("n1", uid_a=entry("a", "card0", charged=["i915=1"]))
    gpu_state = agent_state(cluster_state({"n1": node()}, [stored], [record]))
    assert charged_amounts(gpu_state) == {"card0": {"i915": 1}}


def test_a_larger_pod_is_rejected_and_not_stored() -> None:
    pod = of_size(MOST_BYTES + 1)
    problem = demand(pod).problem
    assert problem is not None
    assert problem.kind == RejectionKind.BAD_ARGS
    assert f"take {MOST_BYTES + 1} bytes of memory; at most {MOST_BYTES}" in problem.text()
    assert state.keep_gpu_pod(pod) is None
    assert state.reduce_non_gpu_pod_to_cpu(pod) is None


def test_texts_beyond_ascii_count_as_the_memory_that_they_take() -> None:
    plain, wide = (gpu_field_bytes(gpu_pod(annotations={ALLOW: text * 100})) for text in "xü")
    assert wide - plain == 3 * (100 + len(ALLOW))


def test_larger_pod_on_a_node_holds_its_reservation() -> None:
    """The pod's annotations can be changed while it runs; that frees no GPU."""
    bound = state.keep_gpu_pod(of_size(MOST_BYTES + 1, on="n1"))
    assert bound is not None
    assert bound.metadata.oversized_bytes == MOST_BYTES + 1
    assert bound.metadata.annotations is bound.spec.containers is None
    record = lease("n1", uid_a=entry("a", "card0", charged=["i915=1"]))
    ordinary = agent_state(cluster_state({"n1": node()}, [gpu_pod("n1")], [record]))
    oversized = agent_state(cluster_state({"n1": node()}, [bound], [record]))
    assert charged_amounts(oversized) == {"card0": {"i915": 1}} == charged_amounts(ordinary)


def test_a_larger_pod_on_a_node_without_a_reservation_is_a_problem() -> None:
    bound = state.keep_gpu_pod(of_size(MOST_BYTES + 1, on="n1"))
    assert bound is not None
    gpu_state = agent_state(cluster_state({"n1": node()}, [bound]))
    (problem,) = gpu_state.nodes["n1"].problems
    assert problem == (
        f"pod d/a: its containers, resources and annotations for GPUs take {MOST_BYTES + 1} bytes of memory,"
        f" more than {MOST_BYTES}; its GPUs do not count"
    )


@pytest.mark.parametrize("kept", [False, True])
def test_the_size_of_all_annotations_counts(kept: bool) -> None:
    """bind adds annotations, also to a pod of which only some are stored."""
    pod = gpu_pod(annotations={ALLOW: "card0", "note": "x" * 2**18})
    if kept:
        annotations = {ALLOW: "card0"}
        metadata = msgspec.structs.replace(pod.metadata, annotations=annotations, annotation_bytes=2**18 + 18)
        pod = msgspec.structs.replace(pod, metadata=metadata)
    problem = demand(pod).problem
    assert problem is not None
    assert f"the pod's annotations have {2**18 + 18} bytes" in problem.text()


def test_the_gpus_of_sidecars_are_stored_and_other_containers_have_no_annotation() -> None:
    """The size of all annotations is stored with them."""
    names = ("main", "setup", "log")
    annotations = {f"cards.nodewise.io/{name}": "0" for name in names} | {"cards.nodewise.io/": "x" * 10_000}
    pod = gpu_pod("n1", annotations=annotations)
    init = (RequestingContainer("setup"), RequestingContainer("log", restartPolicy="Always"))
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, initContainers=init))
    stored = state.keep_gpu_pod(pod)
    assert stored is not None
    assert stored.metadata.annotations == {"cards.nodewise.io/log": "0"}
    assert annotation_bytes(stored.metadata) == annotation_bytes(pod.metadata) > 10_000
    assert gpu_field_bytes(stored) == gpu_field_bytes(pod) < 10_000


def test_devices() -> None:
    names = ("gpu.intel.com/i915", "telemetry/scheduling", "cpu", "hugepages-2Mi", "example.kubernetes.io/x")
    assert [name for name in names if gpu_pod_fields.is_device(name)] == list(names[:2])
