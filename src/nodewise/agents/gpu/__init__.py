"""The gpu agent: allocates GPUs to pods, so that a pod only lands where its GPUs fit and knows which ones it has.

`node_gpus` parses the GPUs of a node, `pod_gpu_requests` the demand of a pod, and `node_allocations` which pod holds
which GPUs. `state` lays them out as arrays of all nodes (`gpu_arrays`), on which `fit` places a pod. `agent` answers
requests and plans binds; only `controller` calls the API server. Replaces GPU Aware Scheduling 0.5.6.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from nodewise.agent import DeferredType, Watched
from nodewise.agent.bind_plugin_interface import ALLOCATION_RECORD_LABEL, AllocationRecordLease
from nodewise.agent.controller_interface import ControllerKind, Handle
from nodewise.agents.gpu import vendor_resource_names
from nodewise.agents.gpu.options import GpuOptions
from nodewise.kube import resource_kinds

if TYPE_CHECKING:
    # imported when a kind is used: commands declare the options of all agents
    from nodewise.agents.gpu.agent import GpuAgent
    from nodewise.agents.gpu.controller import GpuController
    from nodewise.agents.gpu.state import GpuStateBuilder


def watched_devices() -> tuple[Watched, ...]:
    """The kinds that the devices of DRA drivers and their holders depend on."""
    from nodewise.devices import device_inventory, resource_claims, resource_slices
    from nodewise.devices.device_taint_rules import DeviceTaintRule

    return (
        Watched(
            device_inventory.DEVICE_CLASSES,
            resource_kinds.DEVICE_CLASSES,
            resource_claims.DeviceClassObject,
            resource_claims.parse_device_class,
            is_optional=True,
        ),
        Watched(
            device_inventory.RESOURCE_SLICES,
            resource_kinds.RESOURCE_SLICES,
            resource_slices.ResourceSliceObject,
            resource_slices.parse_resource_slice,
            is_optional=True,
        ),
        Watched(
            device_inventory.RESOURCE_CLAIMS,
            resource_kinds.RESOURCE_CLAIMS,
            resource_claims.ResourceClaimObject,
            resource_claims.parse_resource_claim,
            is_optional=True,
        ),
        Watched(
            device_inventory.DEVICE_TAINT_RULES,
            resource_kinds.DEVICE_TAINT_RULES,
            DeviceTaintRule,
            is_optional=True,
        ),
    )


class GpuKind(ControllerKind):
    name = "gpu"
    summary = "place pods on nodes whose GPUs fit, and track the allocations of each GPU"
    options = GpuOptions
    entry_weight = 20
    """The placement on GPUs outweighs two of the default plugins."""

    pod_fields = DeferredType("nodewise.agents.gpu.gpu_pod_fields", "RequestedGpuPod")
    node_fields = DeferredType("nodewise.agents.gpu.node_gpus", "GpuNode")

    def watched(self, options: GpuOptions) -> tuple[Watched, ...]:
        """Nodes, pods, allocation records, and devices of DRA drivers with the claims that have them.

        Pods without GPUs only for their CPU, if the placement needs it.
        """
        from nodewise.agents.gpu import state, typical_pods
        from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod

        keep = state.reduce_non_gpu_pod_to_cpu if options.placement == "fragmentation" else state.keep_gpu_pod
        return (
            Watched(state.PODS, resource_kinds.PODS, AllocatedPod, keep=keep),
            Watched(
                state.ALLOCATION_RECORDS,
                resource_kinds.LEASES,
                AllocationRecordLease,
                own_namespace=True,
                selectors={"labelSelector": f"{ALLOCATION_RECORD_LABEL}={self.name}"},
            ),
            Watched(
                state.DEMAND_CONFIGMAP,
                resource_kinds.CONFIG_MAPS,
                typical_pods.DemandConfigMap,
                keep=lambda configmap: configmap if configmap.metadata.name == typical_pods.NAME else None,
                own_namespace=True,
                selectors={"fieldSelector": f"metadata.name={typical_pods.NAME}"},
            ),
            *watched_devices(),
        )

    def resources(self, options: GpuOptions) -> dict[str, bool]:
        """The resources that count GPUs; every pod with GPUs requests one of them."""
        return dict.fromkeys(vendor_resource_names.load_profile(options.gpu_profile).counts, False)

    def concerns(self, options: GpuOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:
        """Whether any node has GPUs, or any pod requests one or has claims."""
        from nodewise.agents.gpu import gpu_pod_fields, node_gpus

        chosen = vendor_resource_names.load_profile(options.gpu_profile)
        requested = any(
            pod.spec.resource_claims or gpu_pod_fields.requests_gpu_resources(pod, chosen) for pod in pods
        )
        return requested or any(node_gpus.parse_node_gpus(node, chosen).names for node in nodes)

    def state(self, options: GpuOptions, sync_period_s: float) -> "GpuStateBuilder":  # noqa: ARG002
        from nodewise.agents.gpu.state import GpuStateBuilder

        return GpuStateBuilder(vendor_resource_names.load_profile(options.gpu_profile))

    def agent(self, options: GpuOptions) -> "GpuAgent":
        from nodewise.agents.gpu.agent import GpuAgent

        return GpuAgent(options, vendor_resource_names.load_profile(options.gpu_profile))

    def controller(self, options: GpuOptions, handle: Handle) -> "GpuController":
        from nodewise.agents.gpu.controller import GpuController

        return GpuController(options, vendor_resource_names.load_profile(options.gpu_profile), handle)


KIND: Final = GpuKind()
