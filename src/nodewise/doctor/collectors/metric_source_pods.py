"""Pods of the sources of metrics that policies select: Prometheus, prometheus-adapter or metrics-server."""

import asyncio
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from nodewise.doctor.collectors.policies import (
    API_SERVICES,
    PolicySelectors,
    collect_metric_names,
    collect_metric_sources,
    collect_policy_objects,
    collect_selectors,
)
from nodewise.doctor.collectors.session import ClusterReader, Session, attempt, parse_json, read_all
from nodewise.doctor.collectors.workloads import MAX_PODS, collect_nodewise_workloads
from nodewise.doctor.facts import SelectedSourcePod, UnavailableFact
from nodewise.doctor.parsing import objects
from nodewise.doctor.parsing.objects import get_text, get_text_mapping
from nodewise.kube.resource_kinds import PODS, SERVICES
from nodewise.metrics import custom_metrics_api, resource_metrics_api
from nodewise.policies.placement_policy import Policy
from nodewise.policies.policy_selection import SYSTEM_NAMESPACE, PodFields

_NAME: Final = re.compile(r"[a-z0-9-]+")
"""A name of a namespace or a Service. The API server does not check those of an APIService."""


class ServiceName(NamedTuple):
    """The namespace and the name of a Service."""

    namespace: str
    name: str


async def collect_selected_source_pods(session: Session) -> tuple[SelectedSourcePod | UnavailableFact, ...]:
    """One pod for each policy and Service of a source. Pods of `kube-system` and of nodewise are never selected."""
    read = await session.require(collect_policy_objects)
    if not any(map(_rejects_without_metrics, read.policies.values())):
        return ()
    excluded = {SYSTEM_NAMESPACE, *session.target.namespaces[:1]}
    services = [
        service for service in await _collect_source_services(session) if service.namespace not in excluded
    ]
    selectors = await session.require(collect_selectors)
    parts = await asyncio.gather(
        *(attempt(_read_selected_pods(session.reader, service, selectors)) for service in services)
    )
    listed = ([part] if isinstance(part, UnavailableFact) else part for part in parts)
    return tuple(chain.from_iterable(listed))


def _rejects_without_metrics(policy: Policy) -> bool:
    """Whether a policy rejects every node while its metrics cannot be fetched. A guard of the share of rejected nodes
    ends that.
    """
    has_guard = policy.guard is not None and bool(policy.guard.max_rejected_share)
    return bool(policy.avoid) and not (policy.only_prefers or policy.not_enforced or has_guard)


async def _collect_source_services(session: Session) -> list[ServiceName]:
    """The Services that nodewise reads metrics of: those of --prometheus-url, or of the metrics APIs."""
    listed = await session.get_or(collect_nodewise_workloads, ())
    urls = {url for workload in listed for url in workload.values("prometheus_url")}
    if urls:
        return sorted(set(_services_of_urls(urls)))
    names = set(await session.require(collect_metric_names))
    sources = await session.require(collect_metric_sources)
    usage = names & set(resource_metrics_api.METRICS)
    versions = []
    if sources.custom and names - usage:
        versions += [f"{version}.{custom_metrics_api.GROUP}" for version in ("v1beta1", "v1beta2")]
    if sources.resource and usage:
        versions.append(f"v1beta1.{resource_metrics_api.GROUP}")
    services = await read_all(map(partial(_read_api_service, session.reader), versions))
    return sorted({service for service in services if all(map(_NAME.fullmatch, service))})


def _services_of_urls(urls: Iterable[str]) -> Iterator[ServiceName]:
    """The Services in other namespaces that URLs may name: `prometheus.monitoring`, or with `.svc` after that."""
    for url in urls:
        try:
            host = urlsplit(url).hostname or ""
        except ValueError:
            continue
        labels = host.removesuffix(".").split(".")
        if "svc" in labels[2:]:
            # a pod of a headless Service has its own name before that of the Service
            labels = labels[: labels.index("svc", 2)][-2:]
        if len(labels) == 2 and all(map(_NAME.fullmatch, labels)):  # noqa: PLR2004 - name and namespace
            yield ServiceName(labels[1], labels[0])


async def _read_api_service(reader: ClusterReader, name: str) -> ServiceName:
    """The Service of an API of metrics; with empty names if there is none."""
    right = f"get {API_SERVICES.plural}.{API_SERVICES.group}"
    api = await reader.get(f"APIService/{name}", right, API_SERVICES.path(name=name))
    return ServiceName(*(get_text(api, "spec", "service", field) for field in ServiceName._fields))


async def _read_selected_pods(
    reader: ClusterReader, service: ServiceName, selectors: PolicySelectors
) -> list[SelectedSourcePod]:
    """The first pod of a Service that each policy selects."""
    namespace, name = service
    where, right = f"Service/{namespace}/{name}", f"get services {name} in namespace {namespace}"
    value = await reader.get(where, right, SERVICES.path(namespace, name))
    labels = get_text_mapping(value, "spec", "selector")
    if not labels:
        return []

    def select_policies(body: bytes) -> list[SelectedSourcePod] | None:
        try:
            pod = msgspec.json.decode(body, type=PodFields)
        except msgspec.MsgspecError:
            return None
        value = parse_json(body)
        if objects.is_finished(value) or not labels.items() <= (pod.metadata.labels or {}).items():
            return None
        place = f"Pod/{namespace}/{get_text(value, 'metadata', 'name')}"
        return [
            SelectedSourcePod(f"{key.kind}/{key.path}", place, where)
            for key in selectors.selection.select(pod)
            if key in selectors.policies
            and _rejects_without_metrics(selectors.policies[key])
            and selectors.is_enforced_for(key, pod)
        ]

    pods = await reader.get_list(PODS, select_policies, namespace=namespace, limit=MAX_PODS)
    selected: dict[str, SelectedSourcePod] = {}
    for pod in chain.from_iterable(pods):
        selected.setdefault(pod.policy, pod)
    return list(selected.values())
