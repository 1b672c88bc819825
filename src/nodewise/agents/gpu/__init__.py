"""The gpu agent: books for each card, so that a pod goes only where its cards fit, and is told which ones it has.

| file | what lives there |
|---|---|
| `options.py` | settings |
| `profile.py` | whose cards they are: names of resources, and how a node says which cards it has |
| `amounts.py` | amounts of resources, exact or a problem |
| `labels.py` | the grammars of node labels |
| `marks.py` | what telemetry policies say of cards and tiles |
| `cards.py` | a node's cards |
| `pods.py` | the fields of a pod that are read |
| `demand.py` | what a pod wants of cards |
| `ledger.py` | the entries of a node's Lease |
| `limits.py` | limits of pods and ledgers, the same for filter and bind |
| `books.py` | who holds what |
| `processors.py` | the CPU of nodes that no pod requests |
| `layout.py`, `rations.py` | the cards of all nodes as arrays, and how many resources these hold at most |
| `fit.py` | whether a pod fits, and on which cards |
| `choosing.py`, `working.py`, `links.py`, `rejections.py` | the parts of a fit |
| `score.py`, `fragmentation.py`, `typical.py` | which cards first, which nodes are liked; what pods usually come |
| `tiles.py` | which tiles of a card, at bind |
| `details.py` | which cards a pod would get on a node, or what is lacking there, in words |
| `reasons.py` | why a node is rejected, in words |
| `state.py` | nodes, pods and ledgers in, the slot of the snapshot out |
| `showing.py` | the books as `/state/gpu` shows them |
| `agent.py` | answers a request, and plans a bind |
| `descheduling.py` | which pods are told to go |
| `sweeping.py` | what of a ledger is to be cleared away |
| `census.py` | the count of the pods that come, in a ConfigMap |
| `checking.py` | whether the books are those of a fresh list |
| `gauges.py` | the books as numbers for Prometheus |
| `controller.py` | does all that, in the leader or in every replica |

Takes over from GPU Aware Scheduling 0.5.6.
"""

from collections.abc import Iterable
from typing import Any, Final

from nodewise.agent import Resource, Watched
from nodewise.agents.gpu import demand, demand_histogram, free_cpu, node_gpus, resource_profile
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.controller import GpuController
from nodewise.agents.gpu.demand_histogram import DemandConfigMap
from nodewise.agents.gpu.node_gpus import GpuNode
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.pods import AllocatedPod, GpuPod
from nodewise.agents.gpu.state import ALLOCATION_RECORDS, DEMAND_CONFIGMAP, PODS, GpuStateBuilder
from nodewise.binder import LEDGER, LedgerLease
from nodewise.controllers import ControllerKind, Handle

_PODS: Final = Resource("", "v1", "pods", "Pod")
_CONFIGMAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
_LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")


class GpuKind(ControllerKind):
    """The row of the registry."""

    name = "gpu"
    summary = "give pods cards that fit, with books for each card (GPU)"
    options = GpuOptions
    pod_fields = GpuPod
    node_fields = GpuNode

    def watched(self, options: GpuOptions) -> tuple[Watched, ...]:
        """Of pods without cards only their CPU, and only where the placement asks for it."""
        keep = free_cpu.with_cpu if options.placement == "fragmentation" else free_cpu.with_gpus
        return (
            Watched(PODS, _PODS, AllocatedPod, keep=keep),
            Watched(
                ALLOCATION_RECORDS,
                _LEASES,
                LedgerLease,
                own_namespace=True,
                selectors={"labelSelector": f"{LEDGER}={GpuAgent.name}"},
            ),
            Watched(
                DEMAND_CONFIGMAP,
                _CONFIGMAPS,
                DemandConfigMap,
                keep=lambda configmap: (
                    configmap if configmap.metadata.name == demand_histogram.NAME else None
                ),
                own_namespace=True,
                selectors={"fieldSelector": f"metadata.name={demand_histogram.NAME}"},
            ),
        )

    def resources(self, options: GpuOptions) -> dict[str, bool]:
        """Those that count cards: a pod that wants a card asks for one of them."""
        return dict.fromkeys(resource_profile.load(options.gpu_profile).counts, False)

    def concerns(self, options: GpuOptions, nodes: Iterable[Any], pods: Iterable[Any]) -> bool:
        """Whether any node has cards, or any pod asks for one."""
        chosen = resource_profile.load(options.gpu_profile)
        requested = any(demand.is_concerned(pod, chosen) for pod in pods)
        return requested or any(node_gpus.read(node, chosen).names for node in nodes)

    def state(self, options: GpuOptions, sync_period_s: float) -> GpuStateBuilder:  # noqa: ARG002
        return GpuStateBuilder(resource_profile.load(options.gpu_profile))

    def agent(self, options: GpuOptions) -> GpuAgent:
        return GpuAgent(options, resource_profile.load(options.gpu_profile))

    def controller(self, options: GpuOptions, handle: Handle) -> GpuController:
        return GpuController(options, resource_profile.load(options.gpu_profile), handle)


KIND: Final = GpuKind()
