"""Collectors: each reads one fact. They do I/O and change nothing. `COLLECTORS` has that of each field of `Facts`."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from nodewise.base.clock import SystemClock
from nodewise.doctor.collectors import (
    metric_source_pods,
    nodes,
    policies,
    rights_and_admission_policies,
    schedulers,
    workloads,
)
from nodewise.doctor.collectors.session import Collector, Session
from nodewise.doctor.facts import Facts

COLLECTORS: Final[dict[str, Collector[Any]]] = {
    "schedulers": schedulers.collect_schedulers,
    "extenders": workloads.collect_extenders,
    "controllers": workloads.collect_controllers,
    "replica_metrics": workloads.collect_replica_metrics,
    "missing_rights": rights_and_admission_policies.collect_missing_rights,
    "pods": policies.collect_pending_and_policy_pods,
    "all_pods": policies.collect_whether_all_pods_are_read,
    "unmatched_selectors": policies.collect_unmatched_selectors,
    "selected_source_pods": metric_source_pods.collect_selected_source_pods,
    "kinds_not_served": policies.collect_kinds_not_served,
    "policies": policies.collect_policies,
    "node_count": nodes.collect_node_count,
    "node_resources": nodes.collect_node_resources,
    "nodes_with_verdicts": nodes.collect_nodes_with_verdicts,
    "nodes_not_measured": nodes.collect_nodes_not_measured,
    "metrics": policies.collect_metrics,
    "metrics_apis": policies.collect_metrics_apis,
    "usage_samples": policies.collect_usage_samples,
    "deschedulers": workloads.collect_deschedulers,
    "gpu_nodes": nodes.collect_gpu_nodes,
    "kubelets": nodes.collect_kubelets,
    "cluster_ca": rights_and_admission_policies.collect_cluster_ca,
    "pod_admission": rights_and_admission_policies.collect_pod_admission,
    "cluster_version": rights_and_admission_policies.collect_cluster_version,
    "leases": rights_and_admission_policies.collect_leases,
    "node_restriction": rights_and_admission_policies.collect_node_restriction,
    "admission_policies": rights_and_admission_policies.collect_admission_policies,
    "programs_elsewhere": workloads.collect_programs_elsewhere,
}


async def collect_facts(session: Session, fields: Collection[str]) -> Facts:
    """These fields of `Facts`, several at once. Raises if the API server does not respond, or for `BadSettings`."""
    await session.reader.connect()
    names = [name for name in COLLECTORS if name in fields]
    try:
        values = await asyncio.gather(*(session.get(COLLECTORS[name]) for name in names))
    finally:
        await session.close()
    now = datetime.fromtimestamp(SystemClock().now(), UTC)
    collected: dict[str, Any] = dict(zip(names, values, strict=True))
    return Facts(now, namespaces=session.namespaces, **collected)
