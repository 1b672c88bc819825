"""Reads and writes certificates as Secrets of a cluster, and requests a certificate from a signer of the cluster."""

import base64
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.base.clock import Clock
from nodewise.base.errors import BadInput, NodewiseError, Problem, Refused, Unavailable
from nodewise.install.certificate_renewal import CertificateSpec, ConnectionCertificates, PeerCertificates
from nodewise.kube.api_server_interface import Api, NotFound
from nodewise.kube.resource_kinds import CONFIG_MAPS, SECRETS, Resource
from nodewise.tls.x509_certificates import is_ip_address

Object = Mapping[str, Any]

MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "nodewise-certs"
SIGNER_ANNOTATION: Final = "nodewise.io/signer-name"
TLS_TYPE: Final = "kubernetes.io/tls"
CERT_MANAGER_CA: Final = "nodewise-ca"
_KEYS: Final = {
    "cert": "tls.crt",
    "key": "tls.key",
    "trusted": "ca.crt",
    "next_cert": "next.crt",
    "next_key": "next.key",
}
_CSR_USAGES: Final = ("digital signature", "client auth")
_HOUR_S: Final = 3600


def build_secret(name: str, namespace: str, peer: PeerCertificates) -> dict[str, Any]:
    """A Secret with the certificates of one peer, of type `kubernetes.io/tls` with additional keys."""
    values = peer._asdict()
    data = {key: base64.b64encode(values[field]).decode() for field, key in _KEYS.items() if values[field]}
    annotations = {"annotations": {SIGNER_ANNOTATION: peer.signer}} if peer.signer else {}
    labels = {MANAGED_BY_LABEL: MANAGED_BY, "app.kubernetes.io/part-of": "nodewise"}
    metadata = {"name": name, "namespace": namespace, "labels": labels, **annotations}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": TLS_TYPE, "data": data}


def parse_secret(secret_object: Object | None) -> PeerCertificates:
    """The certificates in a Secret; a missing or unreadable key is empty."""
    data = (secret_object or {}).get("data") or {}
    values = {field: _decode_base64(data.get(key)) for field, key in _KEYS.items()}
    annotations = ((secret_object or {}).get("metadata") or {}).get("annotations") or {}
    return PeerCertificates(**values, signer=annotations.get(SIGNER_ANNOTATION, ""))


def is_written_by_nodewise(secret_object: Object) -> bool:
    """Whether `nodewise certs` wrote a Secret."""
    return (secret_object["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGED_BY


def build_secrets(
    certificates: ConnectionCertificates, namespace: str, names: Sequence[str]
) -> list[dict[str, Any]]:
    """The Secrets of nodewise and of kube-scheduler, with these names in this order."""
    return [build_secret(name, namespace, peer) for name, peer in zip(names, certificates, strict=True)]


def build_signing_request(name: str, signer: str, request: bytes, lifetime: timedelta) -> dict[str, Any]:
    """A CertificateSigningRequest for a client certificate. `request` is PEM."""
    fields = {
        "request": base64.b64encode(request).decode(),
        "signerName": signer,
        "usages": list(_CSR_USAGES),
        "expirationSeconds": int(lifetime.total_seconds()),
    }
    metadata = {"name": name, "labels": {MANAGED_BY_LABEL: MANAGED_BY}}
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": metadata,
        "spec": fields,
    }


def build_cert_manager_objects(
    spec: CertificateSpec, namespace: str, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Issuers and Certificates for cert-manager, which stores the key of the authority in a Secret of the namespace."""

    def manifest(kind: str, name: str, fields: Object) -> dict[str, Any]:
        metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "nodewise"}}
        return {"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": metadata, "spec": fields}

    def leaf(secret_name: str, more: Object) -> dict[str, Any]:
        times = {
            "duration": _format_duration_in_hours(spec.lifetime),
            "renewBefore": _format_duration_in_hours(spec.renew_before or spec.lifetime / 3),
        }
        key = {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"}
        issuer = {"name": CERT_MANAGER_CA, "kind": "Issuer"}
        fields = {"secretName": secret_name, "issuerRef": issuer, "privateKey": key, **times, **more}
        return manifest("Certificate", secret_name, fields)

    authority = {
        "isCA": True,
        "commonName": CERT_MANAGER_CA,
        "secretName": CERT_MANAGER_CA,
        "duration": _format_duration_in_hours(spec.lifetime * 10),
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Never"},
        "issuerRef": {"name": f"{CERT_MANAGER_CA}-itself", "kind": "Issuer"},
    }
    server, client = names
    addresses = [name for name in spec.names if is_ip_address(name)]
    hosts = {"dnsNames": [name for name in spec.names if not is_ip_address(name)]}
    return [
        manifest("Issuer", f"{CERT_MANAGER_CA}-itself", {"selfSigned": {}}),
        manifest("Certificate", CERT_MANAGER_CA, authority),
        manifest("Issuer", CERT_MANAGER_CA, {"ca": {"secretName": CERT_MANAGER_CA}}),
        leaf(
            server,
            {
                **hosts,
                **({"ipAddresses": addresses} if addresses else {}),
                "usages": ["digital signature", "server auth"],
            },
        ),
        leaf(client, {"commonName": spec.client_name, "usages": list(_CSR_USAGES)}),
    ]


def render_systemd_units(words: Sequence[str], folder: str) -> str:
    """A service and a timer that run a command once a day, as the text of two files."""
    line = " ".join(map(_quote_systemd_word, words)).replace("$", "$$")
    return (
        "# /etc/systemd/system/nodewise-certs.service\n"
        "[Unit]\n"
        "Description=Renew the certificates of nodewise and of kube-scheduler as its client\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        f"ExecStart={line}\n"
        "UMask=0077\n"
        "NoNewPrivileges=yes\n"
        "PrivateTmp=yes\n"
        "ProtectHome=read-only\n"
        "ProtectSystem=strict\n"
        f"ReadWritePaths={_quote_systemd_word(folder)}\n"
        "\n"
        "# /etc/systemd/system/nodewise-certs.timer\n"
        "[Unit]\n"
        "Description=Renew the certificates of nodewise once a day if they are due\n"
        "\n"
        "[Timer]\n"
        "OnCalendar=daily\n"
        "RandomizedDelaySec=1h\n"
        "Persistent=true\n"
        "\n"
        "[Install]\n"
        "WantedBy=timers.target\n"
    )


def _quote_systemd_word(word: str) -> str:
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if not plain or set(plain) & set(" \t'\";") else plain


def _format_duration_in_hours(span: timedelta) -> str:
    return f"{max(1, round(span.total_seconds() / _HOUR_S))}h"


def _decode_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (TypeError, ValueError):
        return b""


_SIGNING_REQUESTS: Final = Resource(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
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
        return ConnectionCertificates(*map(parse_secret, self.secrets))

    @property
    def foreign(self) -> tuple[str, ...]:
        return tuple(
            secret["metadata"]["name"]
            for secret in self.secrets
            if secret is not None and not is_written_by_nodewise(secret)
        )


async def read_secrets(api: Api, location: SecretLocation) -> StoredSecrets:
    secrets: list[dict[str, Any] | None] = []
    for name in location.names:
        try:
            secrets.append(msgspec.json.decode(await api.get(location.path(name))))
        except NotFound:
            secrets.append(None)
    return StoredSecrets(secrets)


def check_ownership(location: SecretLocation, existing: StoredSecrets) -> None:
    """BadInput if a Secret exists that `nodewise certs` did not write."""
    if existing.foreign:
        actual = "was not written by nodewise certs"
        expected = "--replace, or another name by --secret and --client-secret"
        names = [f"Secret {location.namespace}/{name}" for name in existing.foreign]
        raise BadInput("Secrets", [Problem(name, actual, expected) for name in names])


async def write_secrets(
    api: Api, location: SecretLocation, existing: StoredSecrets, after: ConnectionCertificates
) -> None:
    """Write the Secrets that differ, nodewise's first. Conflict if a Secret changed since it was read."""
    for name, before, peer in zip(location.names, existing.secrets, after, strict=True):
        if peer == PeerCertificates() or (
            before is not None and is_written_by_nodewise(before) and parse_secret(before) == peer
        ):
            continue
        made = build_secret(name, location.namespace, peer)
        if before is not None and before.get("type") == made["type"]:
            await api.replace(location.path(name), _build_replacement_secret(before, made))
            continue
        if before is not None:  # the type of a Secret cannot be changed
            await api.delete(location.path(name), {"preconditions": {"uid": before["metadata"]["uid"]}})
        await api.create(location.path(), made)


def _build_replacement_secret(before: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The new Secret with the resource version of the old one, and with the labels and annotations of others."""
    was, own = before["metadata"], made["metadata"]
    kept = {key: (was.get(key) or {}) | own.get(key, {}) for key in ("annotations", "labels")}
    for name in _DROPPED_ANNOTATIONS - own.get("annotations", {}).keys():
        kept["annotations"].pop(name, None)
    return {**made, "metadata": {**own, **kept, "resourceVersion": was["resourceVersion"]}}


_DROPPED_ANNOTATIONS: Final = frozenset(
    {SIGNER_ANNOTATION, "kubectl.kubernetes.io/last-applied-configuration"}
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
    made = build_signing_request(request.name, request.signer, request.pem, request.lifetime)
    await api.create(_SIGNING_REQUESTS.path(), made)
    path, name = _SIGNING_REQUESTS.path(name=request.name), f"CertificateSigningRequest {request.name}"
    try:
        created()
        return await _poll_for_certificate(api, path, name, timeout_s, clock)
    except BaseException:
        with contextlib.suppress(NodewiseError):
            await api.delete(path)
        raise


async def _poll_for_certificate(api: Api, path: str, name: str, timeout_s: float, clock: Clock) -> bytes:
    end_s = clock.monotonic() + timeout_s
    while not (certificate := _issued_certificate(msgspec.json.decode(await api.get(path)), name)):
        if clock.monotonic() >= end_s:
            actual = f"not approved and signed after {timeout_s:g} s"
            raise Unavailable(name, [Problem("", actual, "kubectl certificate approve")])
        await clock.sleep(_PAUSE_S)
    return certificate


def _issued_certificate(request: Mapping[str, Any], name: str) -> bytes:
    """The certificate, PEM; empty until it is issued. Refused if the request is denied or fails."""
    status = request.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] in {"Denied", "Failed"}:
            why = condition.get("message") or condition.get("reason") or "no reason given"
            raise Refused(name, [Problem(condition["type"], why, "")])
    return _decode_base64(status.get("certificate"))
