"""Kubernetes objects for certificates: Secrets, objects of cert-manager, a CertificateSigningRequest; and the systemd
units that renew certificate files.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from nodewise.install.certificate_renewal import CertificateSpec, ConnectionCertificates, PeerCertificates
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
    """A word quoted for a systemd command line."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if not plain or set(plain) & set(" \t'\";") else plain


def _format_duration_in_hours(span: timedelta) -> str:
    return f"{max(1, round(span.total_seconds() / _HOUR_S))}h"


def _decode_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (TypeError, ValueError):
        return b""
