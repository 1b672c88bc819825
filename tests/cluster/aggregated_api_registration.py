"""Registers a server on loopback as an aggregated API of the API server."""

import contextlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import httpx2

from tests.cluster import kubernetes_objects, namespace_sandboxes
from tests.cluster.api_client import ApiError, ClusterApi, Object, path_of
from tests.cluster.certificates import CertificateAuthority, CertificatePair


class AggregatedApiBackend(NamedTuple):
    """The backend of an aggregated API: a Service that forwards to a port on localhost."""

    namespace: str
    name: str
    port: int
    authority: CertificateAuthority

    def certificate(self) -> CertificatePair:
        """Issues a serving certificate for the DNS name by which the API server calls the Service."""
        return self.authority.issue(self.name, f"{self.name}.{self.namespace}.svc", "localhost", "127.0.0.1")

    def service(self) -> Object:
        """The ExternalName Service. Without endpoint routing the API server connects to `localhost` itself."""
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": self.port}]},
        }

    def api_service(self, group: str, version: str) -> Object:
        """The APIService of one version. A higher version number has a higher priority."""
        service = {"name": self.name, "namespace": self.namespace, "port": self.port}
        return {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group,
                "version": version,
                "service": service,
                "caBundle": b64encode(self.authority.ca_pem).decode(),
                "groupPriorityMinimum": 100,
                "versionPriority": 100 + int(version[-1]),
            },
        }


@contextlib.contextmanager
def registered(
    api: ClusterApi, backend: AggregatedApiBackend, versions: Mapping[str, Sequence[str]]
) -> Iterator[None]:
    """Registers the backend for these versions of API groups while the context is open."""
    api.ensure(kubernetes_objects.namespace(backend.namespace))
    service = backend.service()
    ones = [backend.api_service(group, version) for group in versions for version in versions[group]]
    try:
        for manifest in (service, *ones):
            api.create(manifest)
        for manifest in ones:
            wait_available(api, manifest)
        yield
    finally:
        for manifest in (*ones, service):
            api.delete(path_of(manifest))


def wait_available(api: ClusterApi, service: Object) -> None:
    """Waits until the API server forwards requests to an APIService, a moment after its status is Available."""
    path, spec = path_of(service), service["spec"]

    def available() -> bool | None:
        conditions = api.get(path).get("status", {}).get("conditions", [])
        if not any(c["type"] == "Available" and c["status"] == "True" for c in conditions):
            return None
        try:
            api.request("GET", f"/apis/{spec['group']}/{spec['version']}")
        except ApiError as error:
            return None if error.code == httpx2.codes.SERVICE_UNAVAILABLE else True
        return True

    namespace_sandboxes.wait(f"{path} is available", available, show=lambda: api.get(path).get("status"))
