"""Reads and writes certificates as Secrets of a cluster, and requests a certificate from a signer of the cluster."""

import base64
import binascii
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base.clock import Clock
from nodewise.base.errors import BadInput, NodewiseError, Problem, Refused, Unavailable
from nodewise.install import certificate_manifests
from nodewise.install.certificate_renewal import ConnectionCertificates, PeerCertificates
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.resource_kinds import CONFIG_MAPS, SECRETS, Resource

_SIGNING_REQUESTS: Final = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    namespaced=False,
)
API_CLIENT: Final = "kubernetes.io/kube-apiserver-client"
_PAUSE_S: Final = 1.0


class SecretLocation(NamedTuple):
    """Namespace and names of the two Secrets: the one of nodewise and the one of kube-scheduler."""

    namespace: str
    names: Sequence[str]

    def path(self, name: str | None = None) -> str:
        return SECRETS.path(self.namespace, name)


class StoredSecrets(NamedTuple):
    """The two Secrets as the API server returned them; None for a missing one."""

    secrets: Sequence[dict[str, Any] | None]

    @property
    def certificates(self) -> ConnectionCertificates:
        return ConnectionCertificates(*map(certificate_manifests.parse_secret, self.secrets))

    @property
    def foreign(self) -> tuple[str, ...]:
        """Names of Secrets that `nodewise certs` did not write."""
        return tuple(
            secret["metadata"]["name"]
            for secret in self.secrets
            if secret is not None and not certificate_manifests.is_written_by_nodewise(secret)
        )


async def read_secrets(api: Api, location: SecretLocation) -> StoredSecrets:
    return StoredSecrets([await _read_secret(api, location.path(name)) for name in location.names])


async def _read_secret(api: Api, path: str) -> dict[str, Any] | None:
    try:
        secret_object: dict[str, Any] = msgspec.json.decode(await api.get(path))
    except NotFound:
        return None
    return secret_object


def check_ownership(location: SecretLocation, existing: StoredSecrets) -> None:
    """BadInput if a Secret exists that `nodewise certs` did not write."""
    if existing.foreign:
        problems = [
            Problem(
                f"Secret {location.namespace}/{name}",
                "was not written by nodewise certs",
                "--replace, or another name by --secret and --client-secret",
            )
            for name in existing.foreign
        ]
        raise BadInput("Secrets", problems)


async def write_secrets(
    api: Api, location: SecretLocation, existing: StoredSecrets, after: ConnectionCertificates
) -> None:
    """Write the Secrets that differ, nodewise's first. Conflict if a Secret changed since it was read."""
    for name, before, peer in zip(location.names, existing.secrets, after, strict=True):
        if peer == PeerCertificates() or (
            before is not None
            and certificate_manifests.is_written_by_nodewise(before)
            and certificate_manifests.parse_secret(before) == peer
        ):
            continue
        made = certificate_manifests.build_secret(name, location.namespace, peer)
        if before is not None and before.get("type") == made["type"]:
            await api.replace(location.path(name), _build_replacement_secret(before, made))
            continue
        if before is not None:  # the type of a Secret cannot be changed
            await api.delete(location.path(name), {"preconditions": {"uid": before["metadata"]["uid"]}})
        await api.create(location.path(), made)


def _build_replacement_secret(before: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The new Secret with the resource version of the old one, and with the labels and annotations of others."""
    was, own = before["metadata"], made["metadata"]
    kept = {
        key: {
            **{name: text for name, text in (was.get(key) or {}).items() if name not in _DROPPED_ANNOTATIONS},
            **own.get(key, {}),
        }
        for key in ("annotations", "labels")
    }
    return {**made, "metadata": {**own, **kept, "resourceVersion": was["resourceVersion"]}}


_DROPPED_ANNOTATIONS: Final = frozenset(
    {certificate_manifests.SIGNER_ANNOTATION, "kubectl.kubernetes.io/last-applied-configuration"}
)
"""The second is a copy of the applied Secret, including its key."""


async def read_signer_authorities(api: Api, signer: str) -> bytes:
    """The authorities of the built-in signer of client certificates, PEM. BadInput for any other signer."""
    if signer != API_CLIENT:
        problem = Problem("--signer-ca", f"not given, and the CA of {signer} is unknown", "a PEM file")
        raise BadInput("signer", [problem])
    path = CONFIG_MAPS.path("kube-system", "extension-apiserver-authentication")
    config_map = msgspec.json.decode(await api.get(path))
    return str((config_map.get("data") or {}).get("client-ca-file", "")).encode()


class SigningRequest(NamedTuple):
    """The content of a CertificateSigningRequest."""

    name: str
    signer: str
    pem: bytes
    lifetime: timedelta


async def request_certificate(
    api: Api, request: SigningRequest, timeout_s: float, clock: Clock, created: Callable[[], None]
) -> bytes:
    """Create a CertificateSigningRequest and return its certificate, PEM, once it is approved and signed.

    `created` is called when the request exists. Refused if the request is denied or fails; Unavailable after the
    timeout. An unsuccessful request is deleted.
    """
    made = certificate_manifests.build_signing_request(
        request.name, request.signer, request.pem, request.lifetime
    )
    await api.create(_SIGNING_REQUESTS.path(), made)
    path = _SIGNING_REQUESTS.path(name=request.name)
    try:
        created()
        return await _poll_for_certificate(
            lambda: _read_certificate(api, path), request.name, timeout_s, clock
        )
    except BaseException:
        with contextlib.suppress(NodewiseError):
            await api.delete(path)
        raise


async def _poll_for_certificate(
    read_once: Callable[[], Awaitable[bytes | None]], name: str, timeout_s: float, clock: Clock
) -> bytes:
    end_s = clock.monotonic() + timeout_s
    while (certificate := await read_once()) is None:
        if clock.monotonic() >= end_s:
            problem = Problem(
                "",
                f"not approved and signed after {timeout_s:g} s",
                "kubectl certificate approve",
            )
            raise Unavailable(f"CertificateSigningRequest {name}", [problem])
        await clock.sleep(_PAUSE_S)
    return certificate


async def _read_certificate(api: Api, path: str) -> bytes | None:
    request = msgspec.json.decode(await api.get(path))
    status = request.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] in {"Denied", "Failed"}:
            why = condition.get("message") or condition.get("reason") or "no reason given"
            name = request["metadata"]["name"]
            raise Refused(f"CertificateSigningRequest {name}", [Problem(condition["type"], why, "")])
    try:
        return base64.b64decode(status.get("certificate") or "", validate=True) or None
    except binascii.Error:
        return None
