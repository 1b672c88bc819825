"""The webhook's serving certificate, and the API server's configuration of a client certificate for the webhook."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from nodewise.tls.x509_certificates import CertificateIssuer, is_issued_by

SERVICE: Final = "cmk-webhook-service"
VALID: Final = timedelta(days=3650)
"""Long, because nothing can renew it: the key of its authority is not kept. `is_certificate_valid_for_service`
tells when to replace it."""
_RENEW_BEFORE: Final = timedelta(days=365)
_MAX_COMMON_NAME: Final = 64  # RFC 5280

ADMISSION_CONFIGURATION: Final = "admission-control.yaml"
"""The file for `--admission-control-config-file` of kube-apiserver."""
KUBECONFIG: Final = "webhook-kubeconfig.yaml"
DEFAULT_ADMISSION_FOLDER: Final = "/etc/kubernetes/admission"


class WebhookCertificate(NamedTuple):
    """A certificate in PEM."""

    cert: bytes
    key: bytes
    authorities: bytes
    """The CA bundle that the API server has to trust."""


class ApiServerCertificate(NamedTuple):
    """Paths on the API server's machine, by default those of kubeadm. The CA is that of the cluster."""

    certificate: str = "/etc/kubernetes/pki/apiserver-kubelet-client.crt"
    key: str = "/etc/kubernetes/pki/apiserver-kubelet-client.key"


def service_dns_names(namespace: str) -> tuple[str, str, str]:
    """The host names of the webhook's Service."""
    return SERVICE, f"{SERVICE}.{namespace}", f"{SERVICE}.{namespace}.svc"


def create(namespace: str, now: datetime) -> WebhookCertificate:
    """A certificate for the Service, signed by an authority that signs nothing else and whose key is not kept."""
    issuer = CertificateIssuer("cmk-webhook-ca", now, VALID)
    host = service_dns_names(namespace)[-1]
    leaf = issuer.server(service_dns_names(namespace), host if len(host) <= _MAX_COMMON_NAME else SERVICE)
    return WebhookCertificate(leaf.cert, leaf.key, issuer.cert)


def is_certificate_valid_for_service(cert: bytes, authorities: bytes, namespace: str, now: datetime) -> bool:
    """Whether a certificate is valid for another year and the Service's names, and signed by an authority."""
    try:
        leaf, trusted = x509.load_pem_x509_certificate(cert), x509.load_pem_x509_certificates(authorities)
        alternative = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    has_names = set(service_dns_names(namespace)) <= set(alternative.get_values_for_type(x509.DNSName))
    lasts = leaf.not_valid_before_utc <= now and now + _RENEW_BEFORE <= leaf.not_valid_after_utc
    return has_names and lasts and any(is_issued_by(leaf, authority) for authority in trusted)


def ca_bundle_of_both_certificates(new: WebhookCertificate, before: bytes, now: datetime) -> bytes:
    """The CA bundle while pods still serve the previous certificate: the authorities of both, in PEM."""
    try:
        previous = x509.load_pem_x509_certificates(before)
    except ValueError:
        previous = []
    pem = serialization.Encoding.PEM
    kept = [authority.public_bytes(pem) for authority in previous if authority.not_valid_after_utc > now]
    return new.authorities + b"".join(authority for authority in kept[:1] if authority != new.authorities)


def admission_configuration_files(
    folder: str, namespace: str, client: ApiServerCertificate
) -> Mapping[str, str]:
    """The files, by name, that make the API server present a certificate to the webhook.

    `folder` is their folder on the API server's machine; it has to be an absolute path.
    """
    folder = folder.rstrip("/")
    webhook = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": f"{folder}/{KUBECONFIG}",
    }
    configuration = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "MutatingAdmissionWebhook", "configuration": webhook}],
    }
    host = service_dns_names(namespace)[-1]
    user = {"client-certificate": client.certificate, "client-key": client.key}
    config = {"apiVersion": "v1", "kind": "Config", "users": [{"name": host, "user": user}]}
    comment = f"# kube-apiserver --admission-control-config-file={folder}/{ADMISSION_CONFIGURATION}\n"
    return {
        ADMISSION_CONFIGURATION: comment + yaml.safe_dump(configuration, sort_keys=False),
        KUBECONFIG: yaml.safe_dump(config, sort_keys=False),
    }
