"""Finds the replicas of a running extender, and queries their decisions about a pod."""

import asyncio
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from nodewise.errors import UNREADABLE, BadInput, BadSettings, NodewiseError, Problem, Refused, Unavailable
from nodewise.extender import decision_endpoint
from nodewise.extender.decision import Decision
from nodewise.extender.decision_endpoint import DecisionPage
from nodewise.kube.api_server_interface import Api
from nodewise.kube.resource_kinds import Resource, selector

SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
PORT: Final = 9001
"""The extender's default port."""
_MAX_DECISIONS: Final = "30"
"""Decisions requested from each replica: a few attempts of three calls."""


class ReplicaService(NamedTuple):
    """The Service in front of the replicas."""

    namespace: str
    name: str

    @property
    def host(self) -> str:
        """The name in the replicas' certificate: kube-scheduler calls them by this name."""
        return f"{self.name}.{self.namespace}.svc"


class ReplicaEndpoint(NamedTuple):
    """A process of `nodewise extender`; `host` is the name in its certificate, empty: the host of the URL."""

    url: str
    host: str = ""


class ClientCertificate(NamedTuple):
    """PEM files: the client's certificate and key, and the CA of the replicas' certificate; empty for none."""

    cert: str = ""
    key: str = ""
    ca: str = ""

    def context(self) -> ssl.SSLContext:
        """The TLS context. `BadSettings` names files that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            # like the API server's client: accept a CA that every other client accepts
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if self.cert or self.key:
                context.load_cert_chain(self.cert, self.key or None)
        except (OSError, ssl.SSLError) as error:
            files = " ".join(filter(None, self))
            expected = "PEM files: a certificate, its key, and the CA of the extender's certificate"
            raise BadSettings(
                "settings", [Problem("--cert, --key, --ca", f"{files}: {error}", expected)]
            ) from error
        return context


class ReplicaResponse(NamedTuple):
    """A replica's page with its decisions, or the error."""

    replica: ReplicaEndpoint
    page: DecisionPage | None
    decisions: Sequence[Decision] = ()
    error: str = ""


class _Conditions(msgspec.Struct, frozen=True):
    ready: bool | None = None


class _Endpoint(msgspec.Struct, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: _Conditions = _Conditions()


class _Port(msgspec.Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class _Slice(msgspec.Struct, frozen=True):
    endpoints: tuple[_Endpoint, ...] | None = None
    ports: tuple[_Port, ...] | None = None


class _Slices(msgspec.Struct, frozen=True):
    items: tuple[_Slice, ...] | None = None


async def find_replicas(api: Api, service: ReplicaService) -> list[ReplicaEndpoint]:
    """The ready replicas behind a Service. `Unavailable` if there is none."""
    of_service = {"labelSelector": selector("kubernetes.io/service-name", service.name)}
    body = await api.get(SLICES.path(service.namespace), of_service)
    replicas = parse_endpoint_slices(body, service)
    if not replicas:
        problem = Problem(f"Service {service.namespace}/{service.name}", "no ready endpoint", "at least one")
        remedy = "--service and --service-namespace select another Service, --server a replica"
        raise Unavailable("looking for nodewise", [problem], remedy=remedy)
    return replicas


def parse_endpoint_slices(body: bytes, service: ReplicaService) -> list[ReplicaEndpoint]:
    """The replicas in a list of EndpointSlices. An endpoint that does not say whether it is ready counts as ready."""
    try:
        slices = msgspec.json.decode(body, type=_Slices).items or ()
    except UNREADABLE as error:
        raise BadInput("EndpointSlices", [Problem("", str(error), "a list of them")]) from error
    urls = (url for endpoint_slice in slices for url in _endpoint_urls(endpoint_slice))
    return [ReplicaEndpoint(url, service.host) for url in dict.fromkeys(urls)]


def _endpoint_urls(endpoint_slice: _Slice) -> Iterator[str]:
    port = _select_https_port(endpoint_slice.ports or ())
    for endpoint in endpoint_slice.endpoints or ():
        if endpoint.conditions.ready is not False and port:
            for address in endpoint.addresses[:1]:
                yield f"https://[{address}]:{port}" if ":" in address else f"https://{address}:{port}"


def _select_https_port(ports: Iterable[_Port]) -> int | None:
    """The port named https, else the default port, else the first."""
    numbers = {port.port: port.name for port in ports if port.port}
    named = [number for number, name in numbers.items() if name == "https"]
    usual = [number for number in numbers if number == PORT]
    return next(iter([*named, *usual, *numbers]), None)


async def query_replicas(
    replicas: Sequence[ReplicaEndpoint],
    certificate: ClientCertificate,
    namespace: str,
    pod: str,
    timeout_s: float,
) -> list[ReplicaResponse]:
    """The decisions of each replica about a pod, requested concurrently. A failure affects only its own replica."""
    query = {"namespace": namespace, "pod": pod, "limit": _MAX_DECISIONS, "form": "arrays"}
    secure = any(replica.url.startswith("https:") for replica in replicas)
    # reading the system's CAs takes longer than a replica's response
    context = certificate.context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with httpx2.AsyncClient(verify=context, timeout=timeout_s, trust_env=False) as client:
        return list(
            await asyncio.gather(*(_query_replica_or_error(client, replica, query) for replica in replicas))
        )


async def _query_replica_or_error(
    client: httpx2.AsyncClient, replica: ReplicaEndpoint, query: Mapping[str, str]
) -> ReplicaResponse:
    try:
        page, decisions = decision_endpoint.decode_page(await _request_decisions(client, replica, query))
    except NodewiseError as error:
        return ReplicaResponse(replica, None, (), str(error))
    return ReplicaResponse(replica, page, decisions)


async def _request_decisions(
    client: httpx2.AsyncClient, replica: ReplicaEndpoint, query: Mapping[str, str]
) -> bytes:
    parameters = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
    url = f"{replica.url.rstrip('/')}/decisions?{parameters}"
    names = {"sni_hostname": replica.host} if replica.host else {}
    try:
        response = await client.get(url, extensions=names)
    except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable(
            "no answer", [Problem("", reason, "")], remedy=_replica_failure_remedy(replica, reason)
        ) from error
    if not response.is_success:
        raise Refused(
            f"HTTP status {response.status_code}", remedy=_STATUS_REMEDIES.get(response.status_code, "")
        )
    return response.content


_STATUS_REMEDIES: Final = {
    404: "/decisions is on the admin port where that is loopback, and on the mutual-TLS port, nowhere else",
}


def _replica_failure_remedy(replica: ReplicaEndpoint, reason: str) -> str:
    if urlsplit(replica.url).scheme != "https":
        return "is kubectl port-forward still running?"
    if "certificate" in reason.lower() or "ssl" in reason.lower():
        return f"--ca must be the CA of its certificate, for the name {replica.host or urlsplit(replica.url).hostname}"
    return ""
