"""Certificates as objects of a cluster: Secrets, cert-manager's objects, a CertificateSigningRequest; and units of
systemd that renew files.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from nodewise.configure.certificate_renewal import Both, Side, Wish
from nodewise.serve.certificate_issuer import is_address

Object = Mapping[str, Any]

MANAGER: Final = "app.kubernetes.io/managed-by"
OURS: Final = "nodewise-certs"
SIGNER: Final = "nodewise.io/signer-name"
TYPE: Final = "kubernetes.io/tls"
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


def secret(name: str, namespace: str, side: Side) -> dict[str, Any]:
    """A Secret with one side's certificates; of type `kubernetes.io/tls`, with further keys."""
    values = side._asdict()
    data = {key: base64.b64encode(values[field]).decode() for field, key in _KEYS.items() if values[field]}
    annotations = {"annotations": {SIGNER: side.signer}} if side.signer else {}
    labels = {MANAGER: OURS, "app.kubernetes.io/part-of": "nodewise"}
    metadata = {"name": name, "namespace": namespace, "labels": labels, **annotations}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": TYPE, "data": data}


def side(secret_object: Object | None) -> Side:
    """What a Secret holds; what cannot be read is not there."""
    data = (secret_object or {}).get("data") or {}
    values = {field: _decoded(data.get(key)) for field, key in _KEYS.items()}
    annotations = ((secret_object or {}).get("metadata") or {}).get("annotations") or {}
    return Side(**values, signer=annotations.get(SIGNER, ""))


def is_ours(secret_object: Object) -> bool:
    return (secret_object["metadata"].get("labels") or {}).get(MANAGER) == OURS


def secrets(both: Both, namespace: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """nodewise's Secret and kube-scheduler's, by these names."""
    return [secret(name, namespace, side) for name, side in zip(names, both, strict=True)]


def signing_request(name: str, signer: str, request: bytes, valid: timedelta) -> dict[str, Any]:
    """A CertificateSigningRequest for a client."""
    spec = {
        "request": base64.b64encode(request).decode(),
        "signerName": signer,
        "usages": list(_CSR_USAGES),
        "expirationSeconds": int(valid.total_seconds()),
    }
    metadata = {"name": name, "labels": {MANAGER: OURS}}
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": metadata,
        "spec": spec,
    }


def cert_manager(wish: Wish, namespace: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Issuers and Certificates for cert-manager, which keeps the authority's key in a Secret of the namespace."""

    def made(kind: str, name: str, spec: Object) -> dict[str, Any]:
        metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "nodewise"}}
        return {"apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": metadata, "spec": spec}

    def leaf(secret_name: str, more: Object) -> dict[str, Any]:
        times = {"duration": _hours(wish.valid), "renewBefore": _hours(wish.renew_before or wish.valid / 3)}
        key = {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"}
        issuer = {"name": CERT_MANAGER_CA, "kind": "Issuer"}
        spec = {"secretName": secret_name, "issuerRef": issuer, "privateKey": key, **times, **more}
        return made("Certificate", secret_name, spec)

    authority = {
        "isCA": True,
        "commonName": CERT_MANAGER_CA,
        "secretName": CERT_MANAGER_CA,
        "duration": _hours(wish.valid * 10),
        "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Never"},
        "issuerRef": {"name": f"{CERT_MANAGER_CA}-itself", "kind": "Issuer"},
    }
    server, client = names
    addresses = [name for name in wish.names if is_address(name)]
    hosts = {"dnsNames": [name for name in wish.names if not is_address(name)]}
    return [
        made("Issuer", f"{CERT_MANAGER_CA}-itself", {"selfSigned": {}}),
        made("Certificate", CERT_MANAGER_CA, authority),
        made("Issuer", CERT_MANAGER_CA, {"ca": {"secretName": CERT_MANAGER_CA}}),
        leaf(
            server,
            {
                **hosts,
                **({"ipAddresses": addresses} if addresses else {}),
                "usages": ["digital signature", "server auth"],
            },
        ),
        leaf(client, {"commonName": wish.client_name, "usages": list(_CSR_USAGES)}),
    ]


def systemd(words: Sequence[str], folder: str) -> str:
    """A service and a timer, as two files one after the other, that run a command once a day."""
    line = " ".join(map(_quoted, words)).replace("$", "$$")
    return (
        "# /etc/systemd/system/nodewise-certs.service\n"
        "[Unit]\n"
        "Description=Renew the certificates of nodewise and of kube-scheduler's client\n"
        "\n"
        "[Service]\n"
        "Type=oneshot\n"
        f"ExecStart={line}\n"
        "UMask=0077\n"
        "NoNewPrivileges=yes\n"
        "PrivateTmp=yes\n"
        "ProtectHome=read-only\n"
        "ProtectSystem=strict\n"
        f"ReadWritePaths={_quoted(folder)}\n"
        "\n"
        "# /etc/systemd/system/nodewise-certs.timer\n"
        "[Unit]\n"
        "Description=Look once a day whether certificates of nodewise are to be renewed\n"
        "\n"
        "[Timer]\n"
        "OnCalendar=daily\n"
        "RandomizedDelaySec=1h\n"
        "Persistent=true\n"
        "\n"
        "[Install]\n"
        "WantedBy=timers.target\n"
    )


def _quoted(word: str) -> str:
    """A word as systemd reads it in a command line."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{plain}"' if not plain or set(plain) & set(" \t'\";") else plain


def _hours(span: timedelta) -> str:
    return f"{max(1, round(span.total_seconds() / _HOUR_S))}h"


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (TypeError, ValueError):
        return b""
