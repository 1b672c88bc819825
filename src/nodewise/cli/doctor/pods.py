"""Which pods and workloads there are that matter: schedulers, deschedulers, nodewise, and pods that wait."""

import asyncio
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import clock
from nodewise.agents.telemetry.agent import POLICY_LABEL, misspelt_label
from nodewise.cli.doctor.asking import Asker, anything
from nodewise.cli.doctor.kinds import WORKLOADS
from nodewise.configure.doctor import settings, workloads
from nodewise.configure.doctor.facts import Container, Pod, Unread, Waiting
from nodewise.configure.doctor.objects import at, items, labels, text, texts
from nodewise.kube.resources import PODS, selector
from nodewise.visible import short

SYSTEM: Final = "kube-system"
_MOST_PODS: Final = 20_000
"""More than so many pods are not all read to find bare ones that run a scheduler."""
_WAITING: Final = {"fieldSelector": "spec.nodeName=,status.phase!=Succeeded,status.phase!=Failed"}
_OF_POLICIES: Final = {"labelSelector": POLICY_LABEL}


class _Metadata(msgspec.Struct, frozen=True):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct, frozen=True):
    """The labels of a pod, for those of all pods are looked at."""

    metadata: _Metadata = _Metadata()


class Programs(NamedTuple):
    """Pods and workloads by what they run."""

    schedulers: tuple[Pod, ...]
    deschedulers: tuple[Pod, ...]
    extenders: tuple[Pod, ...]
    elsewhere: tuple[Pod, ...] = ()
    """Whatever of it runs in other namespaces: a tenant can call anything a scheduler, so nobody looks into it."""


def container_of(pod: Pod, wanted: str) -> Container | None:
    """The container that is a scheduler, a descheduler or an extender."""
    return next((one for one in pod.containers if _PROGRAMS[wanted](one)), None)


def _is_scheduler(one: Container) -> bool:
    names = [workloads.runs(one, name) for name in ("kube-scheduler", "koord-scheduler", "crane-scheduler")]
    return any(names) or (workloads.runs(one, "scheduler") and workloads.flag(one, "config") is not None)


_PROGRAMS: Final = {
    "scheduler": _is_scheduler,
    "descheduler": lambda one: workloads.runs(one, "descheduler"),
    "extender": settings.is_extender,
}


async def programs(ask: Asker, homes: Collection[str]) -> Programs | Unread:
    """Workloads, and pods that no workload made; those of these namespaces by what they are."""
    found = await asyncio.gather(
        *(ask.listed(kind, partial(_workload, kind.kind)) for kind in WORKLOADS), _bare(ask)
    )
    missed = [one for one in found if isinstance(one, Unread)]
    if missed:
        return (
            missed[0]
            if len(missed) == 1
            else missed[0]._replace(
                what=", ".join(one.what for one in missed),
                right="; ".join(dict.fromkeys(one.right for one in missed if one.right)),
            )
        )
    everywhere = [pod for part in found if not isinstance(part, Unread) for pod in part]
    every = [pod for pod in everywhere if pod.namespace in homes]
    by_program = {
        name: tuple(pod for pod in every if any(is_one(container) for container in pod.containers))
        for name, is_one in _PROGRAMS.items()
    }
    others = tuple(pod for pod in everywhere if pod.namespace not in homes)
    return Programs(by_program["scheduler"], by_program["descheduler"], by_program["extender"], others)


async def _bare(ask: Asker) -> list[Pod] | Unread:
    """Pods without a controller, and mirrors of static ones; of a large cluster only those of kube-system."""
    found = await ask.listed(PODS, _single, most=_MOST_PODS)
    if isinstance(found, Unread) and found.is_minor:
        return await ask.listed(PODS, _single, namespace=SYSTEM)
    return found


def _workload(kind: str, body: bytes) -> Pod | None:
    pod = workloads.read(kind, anything(body))
    return pod if _matters(pod) else None


def _single(body: bytes) -> Pod | None:
    if not _may_matter(body):
        return None
    value = anything(body)
    owners = [text(one, "kind") for one in items(value, "metadata", "ownerReferences")]
    pod = workloads.read("Pod", value)
    return pod if _matters(pod) and all(one == "Node" for one in owners) and pod.wanted else None


def _may_matter(body: bytes) -> bool:
    return b"scheduler" in body or b"nodewise" in body


def _matters(pod: Pod) -> bool:
    return any(is_one(container) for container in pod.containers for is_one in _PROGRAMS.values())


class Running(NamedTuple):
    """A pod of a workload."""

    name: str
    address: str
    troubles: tuple[str, ...]


async def of_workload(ask: Asker, pod: Pod) -> list[Running]:
    """The pods that a workload made, as far as they can be told by its labels."""
    if pod.where.startswith("Pod/"):
        return []
    wanted = ",".join(selector(key, value) for key, value in sorted(pod.labels.items()))
    if not wanted:
        return []
    found = await ask.listed(PODS, _running, namespace=pod.namespace, selectors={"labelSelector": wanted})
    return [] if isinstance(found, Unread) else found


def _running(body: bytes) -> Running | None:
    value = anything(body)
    if text(value, "status", "phase") in ("Succeeded", "Failed"):
        return None
    read = workloads.read("Pod", value)
    return Running(text(value, "metadata", "name"), text(value, "status", "podIP"), read.troubles)


async def waiting(ask: Asker) -> tuple[Waiting, ...] | Unread:
    """Pods that wait for a node, that name a policy, or that nearly do: of the last kind none in a large cluster."""
    now = clock.SystemClock().now()
    both = await asyncio.gather(
        ask.listed(PODS, partial(_waiting, now), selectors=_WAITING),
        ask.listed(PODS, partial(_waiting, now), selectors=_OF_POLICIES),
        ask.listed(PODS, partial(_mislabelled, now), most=_MOST_PODS),
    )
    found: dict[tuple[str, str], Waiting] = {}
    for part in both:
        if isinstance(part, Unread):
            if part.is_minor:
                continue
            return part
        found |= {(one.namespace, one.name): one for one in part}
    return tuple(found.values())


def _mislabelled(now: float, body: bytes) -> Waiting | None:
    try:
        keys = msgspec.json.decode(body, type=_Labelled).metadata.labels or ()
    except msgspec.MsgspecError:
        return None
    return _waiting(now, body) if misspelt_label(keys) else None


def _waiting(now: float, body: bytes) -> Waiting | None:
    value = anything(body)
    if text(value, "status", "phase") in ("Succeeded", "Failed"):
        return None
    spec = at(value, "spec")
    own = labels(value, "metadata", "labels")
    policy = own.get(POLICY_LABEL, "")
    said = next(
        (
            f"{text(one, 'reason')}: {text(one, 'message')}"
            for one in items(value, "status", "conditions")
            if text(one, "type") == "PodScheduled" and text(one, "status") == "False"
        ),
        "",
    )
    return Waiting(
        name=text(value, "metadata", "name"),
        namespace=text(value, "metadata", "namespace"),
        policy=policy,
        scheduler=text(spec, "schedulerName") or "default-scheduler",
        node=text(spec, "nodeName"),
        age_s=now - _created(value, now),
        asks=tuple(sorted(_asks(spec))),
        message=short(said, 500),
        avoids_violating=_avoids(spec, policy),
        is_gated=bool(items(spec, "schedulingGates")),
        misspelt=misspelt_label(own),
    )


def _created(value: Any, now: float) -> float:
    try:
        return clock.parse_rfc3339(text(value, "metadata", "creationTimestamp"))
    except ValueError:
        return now


def _asks(spec: Any) -> Iterable[str]:
    """Extended resources that its containers ask for."""
    for one in (*items(spec, "containers"), *items(spec, "initContainers")):
        for kind in ("requests", "limits"):
            found = at(one, "resources", kind)
            yield from (name for name in (found if isinstance(found, dict) else {}) if "/" in name)


def _avoids(spec: Any, policy: str) -> bool:
    """Whether every way of its required node affinity leaves out nodes that its policy marks."""
    terms = items(
        spec,
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    )
    return bool(policy and terms) and all(
        any(
            text(one, "key") == policy
            and (
                (text(one, "operator") == "NotIn" and "violating" in texts(one, "values"))
                or text(one, "operator") == "DoesNotExist"
            )
            for one in items(term, "matchExpressions")
        )
        for term in terms
    )
