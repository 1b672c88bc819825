"""Checks of nodes with GPUs, and of kubelets on nodes with CPU pools."""

from collections.abc import Iterator, Sequence
from typing import Final

from nodewise.doctor.facts import GpuNodeInfo, KubeletConfiguration
from nodewise.doctor.findings import Finding, check, finding

_MAX_LISTED: Final = 3
_REJECTING: Final = frozenset({"restricted", "single-numa-node"})
"""Topology manager policies by which a kubelet rejects pods."""


@check("gpu-node-without-labels")
def check_gpu_labels(gpu_nodes: tuple[GpuNodeInfo, ...]) -> Iterator[Finding]:
    """Nodes whose device plugin offers GPUs that the gpu agent does not find, or not completely."""
    id_ = "gpu-node-without-labels"
    without = [node for node in gpu_nodes if not node.gpus]
    if without:
        actual = (
            f"{without[0].resource} is allocatable, and no GPU is named{_format_gpu_label_reason(without)}"
        )
        yield finding(id_, _format_nodes(without), actual, "labels or an annotation with GPUs")
    incomplete = [node for node in gpu_nodes if node.gpus and node.problems]
    if incomplete:
        actual = f"not everything is known of their GPUs{_format_gpu_label_reason(incomplete)}"
        expected = "labels or an annotation that describe each GPU"
        yield finding(id_, _format_nodes(incomplete), actual, expected, severity="warning")


def _format_gpu_label_reason(nodes: Sequence[GpuNodeInfo]) -> str:
    problem = next((node.problems[0] for node in nodes if node.problems), "")
    return f": {problem}" if problem else ""


@check("kubelet-policy-conflict")
def check_kubelet_policies(kubelets: tuple[KubeletConfiguration, ...]) -> Iterator[Finding]:
    """Kubelets that assign the CPUs of pools, one finding for each combination of policies."""
    by_policies: dict[str, list[KubeletConfiguration]] = {}
    for kubelet in kubelets:
        if policies := _conflicting_policies(kubelet):
            by_policies.setdefault(policies, []).append(kubelet)
    for policies, nodes in sorted(by_policies.items()):
        actual = f"{policies}, and the node has pools"
        yield finding("kubelet-policy-conflict", _format_nodes(nodes), actual, "none on nodes with pools")


def _conflicting_policies(kubelet: KubeletConfiguration) -> str:
    policies = [
        ("cpuManagerPolicy", kubelet.cpu_manager, kubelet.cpu_manager == "static"),
        ("topologyManagerPolicy", kubelet.topology_manager, kubelet.topology_manager in _REJECTING),
        ("memoryManagerPolicy", kubelet.memory_manager, kubelet.memory_manager == "Static"),
    ]
    return ", ".join(f"{name}: {policy}" for name, policy, conflicts in policies if conflicts)


def _format_nodes(nodes: Sequence[GpuNodeInfo | KubeletConfiguration]) -> str:
    more = f" and {len(nodes) - _MAX_LISTED} more" if len(nodes) > _MAX_LISTED else ""
    return ", ".join(f"Node/{node.node}" for node in nodes[:_MAX_LISTED]) + more
