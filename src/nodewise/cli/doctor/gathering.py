"""All facts of a cluster, several at once; what cannot be read stops nothing else."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from nodewise.cli.doctor import extenders, measuring, nodes, pods, schedulers
from nodewise.cli.doctor.asking import Asker, anything
from nodewise.cli.doctor.files import Files
from nodewise.cli.doctor.kinds import ADMISSION_BINDINGS, ADMISSION_POLICIES, CONFIG_MAPS
from nodewise.cli.doctor.nodes import NodesRead
from nodewise.cli.doctor.pods import SYSTEM, container_of
from nodewise.cli.doctor.schedulers import Asked, Ground
from nodewise.clock import SystemClock
from nodewise.configure.doctor import admission, deschedulers, papers, workloads
from nodewise.configure.doctor.facts import AdmissionPolicy, Chain, Descheduler, Facts, Kubelet, Pod, Unread
from nodewise.configure.doctor.objects import text
from nodewise.kube.api import Api

_AUTHORITY: Final = "extension-apiserver-authentication"


class Wish(NamedTuple):
    """What to look at."""

    schedulers: Asked
    namespaces: Sequence[str] = ()
    """Where nodewise is, and what belongs to it, besides kube-system."""


async def gather(ask: Asker, api: Api, wish: Wish) -> Facts:
    """The facts. What was asked for by name and cannot be used is `BadSettings`; an API server that is away raises."""
    await ask.reach()
    files = Files(ask)
    programs, waiting, listed, authority, limits = await asyncio.gather(
        pods.programs(ask, {SYSTEM, *wish.namespaces}),
        pods.waiting(ask),
        measuring.policies_of(ask),
        _authority(ask),
        _admission(ask),
    )
    run = programs if isinstance(programs, Unread) else programs.extenders
    scheduling = programs if isinstance(programs, Unread) else programs.schedulers
    known, own = await asyncio.gather(
        schedulers.read(Ground(ask, files), wish.schedulers, scheduling), extenders.read(ask, files, run)
    )
    every = await nodes.read(ask, nodes.profiles_of(own))
    found, own, kubelets, others = await asyncio.gather(
        measuring.read(ask, api, listed, every, own),
        extenders.with_rights(ask, own, measuring.metrics_of(listed)),
        _kubelets(ask, every),
        _deschedulers(files, programs if isinstance(programs, Unread) else programs.deschedulers),
    )
    return Facts(
        now=datetime.fromtimestamp(SystemClock().now(), UTC),
        schedulers=known,
        extenders=own,
        pods=waiting,
        policies=found.policies,
        nodes=every if isinstance(every, Unread) else every.total,
        offered=frozenset() if isinstance(every, Unread) else every.offered,
        measured=found.measured,
        apis=found.apis,
        deschedulers=others,
        cards=every if isinstance(every, Unread) else every.cards,
        kubelets=kubelets,
        authority=authority,
        admission=limits,
        homes=(*wish.namespaces, SYSTEM),
        elsewhere=() if isinstance(programs, Unread) else tuple(one.where for one in programs.elsewhere),
    )


async def _admission(ask: Asker) -> tuple[AdmissionPolicy, ...] | Unread:
    """The admission policies that are enforced; none where the API server does not know the kind."""
    policies, bindings = await asyncio.gather(
        ask.listed(ADMISSION_POLICIES, anything), ask.listed(ADMISSION_BINDINGS, anything)
    )
    if isinstance(policies, Unread):
        return policies
    return bindings if isinstance(bindings, Unread) else admission.read(policies, bindings)


async def _kubelets(ask: Asker, every: NodesRead | Unread) -> tuple[Kubelet | Unread, ...] | Unread:
    if isinstance(every, Unread):
        return every
    return await nodes.kubelets(ask, every.pools)


async def _deschedulers(files: Files, found: tuple[Pod, ...] | Unread) -> tuple[Descheduler, ...] | Unread:
    if isinstance(found, Unread):
        return found
    return tuple(await asyncio.gather(*(_descheduler(files, pod) for pod in found)))


async def _descheduler(files: Files, pod: Pod) -> Descheduler:
    container = container_of(pod, "descheduler")
    assert container is not None, "only pods with one are asked about"
    path = workloads.flag(container, "policy-config-file")
    if not path:
        return Descheduler(pod.where, ())
    data = await files.of_pod(pod, container, path)
    return Descheduler(pod.where, data) if isinstance(data, Unread) else deschedulers.parse(pod.where, data)


async def _authority(ask: Asker) -> Chain | Unread:
    """The CA of the cluster's own clients, whose key nobody else may have."""
    what = f"ConfigMap/{SYSTEM}/{_AUTHORITY}"
    right = f"get configmaps {_AUTHORITY} in namespace {SYSTEM}"
    found = await ask.get(what, right, CONFIG_MAPS.path(SYSTEM, _AUTHORITY))
    if isinstance(found, Unread):
        return found
    return papers.chain(text(found, "data", "client-ca-file").encode())
