"""nodewise's own pods: what they were told, what they count, and what they may do."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nodewise.cli.doctor import pods
from nodewise.cli.doctor.asking import Asker
from nodewise.cli.doctor.files import Files
from nodewise.cli.doctor.pods import Running, container_of
from nodewise.clock import SystemClock
from nodewise.configure.doctor import counted, replicas, settings
from nodewise.configure.doctor.facts import Extender, Numbers, Pod, Right, Unread
from nodewise.configure.doctor.objects import at
from nodewise.errors import shown
from nodewise.kube.resources import PODS
from nodewise.serve.options import is_loopback

REVIEW: Final = "create subjectaccessreviews.authorization.k8s.io"
_MOST_REPLICAS: Final = 10
_LOOPBACK: Final = "127.0.0.1"
_HEALTH_PORT: Final = "9002"


async def read(ask: Asker, files: Files, found: Sequence[Pod] | Unread) -> tuple[Extender, ...] | Unread:
    """Every workload that runs `nodewise extender`."""
    if isinstance(found, Unread):
        return found
    return tuple(await asyncio.gather(*(_one(ask, files, pod) for pod in found)))


async def _one(ask: Asker, files: Files, pod: Pod) -> Extender:
    container = container_of(pod, "extender")
    assert container is not None, "only pods with one are asked about"
    path, file = settings.config_path(container), b""
    missed = None
    if path:
        data = await files.of_pod(pod, container, path)
        missed, file = (data, b"") if isinstance(data, Unread) else (None, data)
    told = settings.of(container, file)
    running = await pods.of_workload(ask, pod)
    troubles = tuple(dict.fromkeys(text for one in running for text in one.troubles))
    whole = pod._replace(troubles=(*pod.troubles, *troubles))
    own = await asyncio.gather(*(_counted(ask, pod, told, one) for one in running[:_MOST_REPLICAS]))
    authority, serving = [
        await files.chain(pod, container, told[name]) if told.get(name) else ()
        for name in ("client_ca", "cert")
    ]
    return Extender(whole, told, missed, tuple(own), (), authority, serving)


async def _counted(ask: Asker, pod: Pod, told: Mapping[str, str], one: Running) -> Numbers | Unread:
    """A replica's own metrics, by way of the API server; where its admin port is loopback nobody gets them."""
    where = f"Pod/{pod.namespace}/{one.name}"
    if is_loopback(told.get("health_address", _LOOPBACK)) or not one.address:
        return Unread(where, "its metrics cannot be reached", is_minor=True)
    port = told.get("health_port", _HEALTH_PORT)
    if not port.isdecimal():
        return Unread(where, f"--health-port: found {shown(port)}, expected a port number", is_minor=True)
    path = PODS.path(pod.namespace, f"{one.name}:{port}", "proxy") + "/metrics"
    right = f"get pods/proxy in namespace {pod.namespace}"
    found = await ask.raw(f"metrics of {where}", right, path, quick=True)
    if found is None or isinstance(found, Unread):
        return found or Unread(where, "it has no metrics", is_minor=True)
    return counted.read(where, found, SystemClock().now())


async def with_rights(
    ask: Asker, found: tuple[Extender, ...] | Unread, metrics: Iterable[str]
) -> tuple[Extender, ...] | Unread:
    """The same with what their accounts may not do, and need to."""
    if isinstance(found, Unread):
        return found
    named = list(metrics)
    ask.say("asking what nodewise may do")
    return tuple(await asyncio.gather(*(_with_rights(ask, one, named) for one in found)))


async def _with_rights(ask: Asker, one: Extender, metrics: Sequence[str]) -> Extender:
    needed = replicas.needed(one, metrics)
    answers = await asyncio.gather(*(_may(ask, one.pod, right) for right in needed))
    for answer in answers:
        if isinstance(answer, Unread):
            return one._replace(rights=answer)
    return one._replace(rights=tuple(right for right, may in zip(needed, answers, strict=True) if not may))


async def _may(ask: Asker, pod: Pod, right: Right) -> bool | Unread:
    """Whether the account of a pod has a right, as the API server sees it."""
    resource, _, subresource = right.resource.partition("/")
    wanted = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    accounts = "system:serviceaccounts"
    spec = {
        "user": f"system:serviceaccount:{pod.namespace}:{pod.account}",
        "groups": [accounts, f"{accounts}:{pod.namespace}", "system:authenticated"],
        "resourceAttributes": {key: value for key, value in wanted.items() if value},
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer: Any = await ask.review(body, REVIEW)
    return answer if isinstance(answer, Unread) else at(answer, "status", "allowed") is True
