"""Collectors: each reads one fact. They do I/O and change nothing. `COLLECTORS` has that of each field of `Facts`."""

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any, Final

from nodewise.clock import SystemClock
from nodewise.doctor.collectors import (
    access_rules,
    deschedulers,
    nodes,
    policies,
    programs,
    replicas,
    schedulers,
)
from nodewise.doctor.collectors.collection_session import Collector, Session
from nodewise.doctor.facts import Facts

COLLECTORS: Final[dict[str, Collector[Any]]] = {
    "schedulers": schedulers.schedulers,
    "extenders": replicas.extenders,
    "replica_metrics": replicas.replica_metrics,
    "missing_rights": access_rules.missing_rights,
    "pods": programs.pods,
    "policies": policies.policies,
    "node_count": nodes.node_count,
    "node_resources": nodes.node_resources,
    "metrics": policies.metrics,
    "metrics_apis": policies.metrics_apis,
    "deschedulers": deschedulers.deschedulers,
    "gpu_nodes": nodes.gpu_nodes,
    "kubelets": nodes.kubelets,
    "cluster_ca": access_rules.cluster_ca,
    "admission_policies": access_rules.admission_policies,
    "programs_elsewhere": programs.programs_elsewhere,
}


async def collect(session: Session, fields: Collection[str]) -> Facts:
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
