"""The version of the API server, the admission policies that change the pods of policies, and the Leases of nodewise's
leader elections.
"""

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from nodewise.base import clock
from nodewise.base.errors import BadInput
from nodewise.doctor.collectors.cluster_reader import (
    ADMISSION_BINDINGS,
    ADMISSION_POLICIES,
    MUTATING_BINDINGS,
    MUTATING_POLICIES,
    ClusterReader,
    parse_json,
)
from nodewise.doctor.collectors.collection_session import Session
from nodewise.doctor.facts import LeaderLease, PodAdmission, PodAdmissionPolicy, UnavailableFact
from nodewise.doctor.parsing.admission_policy_digest import expressions_digest
from nodewise.doctor.parsing.object_fields import get_number, get_text
from nodewise.doctor.parsing.shipped_admission_policies import SHIPPED_POLICIES
from nodewise.install import scheduler_versions
from nodewise.install.scheduler_versions import SchedulerVersion
from nodewise.kube.leader_election import CONTROLLER_LEASE, EVALUATION_ANNOTATION, EXTENDER_LEASE
from nodewise.kube.resource_kinds import LEASES

_DEFAULT_DURATION_S: Final = 15
_PREFIX: Final = "nodewise"
"""The beginning of the shipped names, which the chart replaces by the name of the release."""


async def collect_cluster_version(session: Session) -> SchedulerVersion | UnavailableFact:
    """The version that the API server states."""
    what = "version of the API server"
    response: Any = await session.reader.get(what, "get the non-resource URL /version", "/version")
    if isinstance(response, UnavailableFact):
        return response
    try:
        return scheduler_versions.parse_cluster_version(get_text(response, "gitVersion"))
    except BadInput as error:
        return UnavailableFact(what, str(error))


async def collect_pod_admission(session: Session) -> PodAdmission | UnavailableFact:
    """The policies with a binding that are, or are named like, those that nodewise ships."""
    is_served = await session.reader.is_served(MUTATING_POLICIES)
    if isinstance(is_served, UnavailableFact):
        return is_served
    kinds = [(ADMISSION_POLICIES, ADMISSION_BINDINGS)]
    if is_served:
        kinds.append((MUTATING_POLICIES, MUTATING_BINDINGS))
    lists = await asyncio.gather(
        *(session.reader.get_list(resource, parse_json) for pair in kinds for resource in pair)
    )
    read: list[list[Any]] = []
    for part in lists:
        if isinstance(part, UnavailableFact):
            return part
        read.append(part)
    policies = (
        policy
        for (resource, _), listed, bindings in zip(kinds, read[::2], read[1::2], strict=True)
        for policy in _shipped_policies(resource.kind, listed, bindings)
    )
    return PodAdmission(is_served, tuple(policies))


def _shipped_policies(
    kind: str, policies: Sequence[Any], bindings: Sequence[Any]
) -> Iterator[PodAdmissionPolicy]:
    bound = {get_text(binding, "spec", "policyName") for binding in bindings}
    by_digest = {digest: shipped for shipped, digest in SHIPPED_POLICIES.items()}
    for policy in policies:
        name = get_text(policy, "metadata", "name")
        digest = expressions_digest(policy)
        shipped = by_digest.get(digest) or _find_by_name(kind, name)
        if name in bound and shipped:
            yield PodAdmissionPolicy(shipped, f"{kind}/{name}", digest in by_digest)


def _find_by_name(kind: str, name: str) -> str:
    """The shipped policy that has this name in an installation with any name; empty if there is none."""
    endings = {shipped: shipped.removeprefix(f"{kind}/{_PREFIX}") for shipped in SHIPPED_POLICIES}
    return next(
        (shipped for shipped, ending in endings.items() if ending != shipped and name.endswith(ending)), ""
    )


async def collect_leases(session: Session) -> tuple[LeaderLease, ...] | UnavailableFact:
    """The Leases of the extender and of the controller, in the namespaces of nodewise."""
    read = await asyncio.gather(
        *(
            _read_lease(session.reader, namespace, name)
            for namespace in session.target.namespaces
            for name in (CONTROLLER_LEASE, EXTENDER_LEASE)
        )
    )
    leases: list[LeaderLease] = []
    for lease in read:
        if isinstance(lease, UnavailableFact):
            return lease
        leases += [lease] if lease else []
    return tuple(leases)


async def _read_lease(
    reader: ClusterReader, namespace: str, name: str
) -> LeaderLease | UnavailableFact | None:
    where = f"Lease/{namespace}/{name}"
    right = f"get leases.{LEASES.group} {name} in namespace {namespace}"
    lease: Any = await reader.get(where, right, LEASES.path(namespace, name))
    if lease is None or isinstance(lease, UnavailableFact):
        return lease
    duration_s = get_number(lease, "spec", "leaseDurationSeconds") or _DEFAULT_DURATION_S
    holder = get_text(lease, "spec", "holderIdentity")
    return LeaderLease(
        where,
        holder,
        _parse_time(get_text(lease, "spec", "renewTime")),
        duration_s,
        _parse_time(get_text(lease, "metadata", "annotations", EVALUATION_ANNOTATION)),
    )


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(clock.parse_rfc3339(text), UTC)
    except ValueError:
        return None
