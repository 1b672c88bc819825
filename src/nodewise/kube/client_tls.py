"""TLS of connections to the API server: trusted authorities and client certificate."""

import ssl
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from nodewise.base.clock import Clock, format_rfc3339
from nodewise.base.errors import BadSettings, Problem
from nodewise.kube.kubeconfig import KubeconfigContext
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.tls import certificate_files
from nodewise.tls.certificate_files import CertificateReloader, ReloadableFiles

_REMEDY: Final = "renew the credentials in the kubeconfig"


def context(kubeconfig_context: KubeconfigContext) -> ssl.SSLContext:
    """A context with the trusted authorities and the client certificate. `BadSettings` if a file is missing or
    invalid.
    """
    what = f"kubeconfig {kubeconfig_context.source}, context {kubeconfig_context.name}"
    made = _create_verifying_ssl_context(kubeconfig_context, what)
    pair = _read_client_key_pair(kubeconfig_context.user, what)
    if pair is not None:
        load_client_key_pair(made, *pair, what)
    return made


def load_client_key_pair(context: ssl.SSLContext, certificate: bytes, key: bytes, what: str) -> None:
    """Load a PEM pair into a context; new connections present it."""
    try:
        certificate_files.load_pair_into_ssl_context(context, certificate, key)
    except (ssl.SSLError, ValueError) as error:
        problem = Problem(
            "client-certificate, client-key", _openssl_reason(error), "an unencrypted pair in PEM"
        )
        raise BadSettings(what, [problem], remedy="is the key the one of this certificate?") from error


class TlsCredentials:
    """Trusted authorities and client certificate. Files are reread when they change; inline data do not change."""

    def __init__(
        self, kubeconfig_context: KubeconfigContext, metrics_registry: MetricsRegistry, clock: Clock
    ) -> None:
        """BadSettings if a file cannot be used."""
        self._chosen = kubeconfig_context
        self._shown: tuple[bytes, bytes] | None = None
        pair = _certificate_file_paths(kubeconfig_context.user, "client-certificate", "client-key")
        bundle = _certificate_file_paths(kubeconfig_context.cluster, "certificate-authority")
        now_s = clock.now()
        self._pair = (
            ReloadableFiles(
                "kube_client", pair, certificate_files.read_certificate_and_key, metrics_registry, now_s
            )
            if pair
            else None
        )
        self._bundle = (
            ReloadableFiles(
                "kube_ca", bundle, certificate_files.read_trusted_certificates, metrics_registry, now_s
            )
            if bundle
            else None
        )
        self._reloader = CertificateReloader([files for files in (self._pair, self._bundle) if files], clock)

    def has_changed(self) -> bool:
        """Whether the content of the files has changed since the last call."""
        return self._reloader.poll()

    def set_client_certificate(self, certificate: bytes, key: bytes, what: str) -> bool:
        """Present this PEM pair from now on. Returns False if it is already in use. BadSettings, with `what`, if it is
        invalid.
        """
        load_client_key_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key, what)
        before, self._shown = self._shown, (certificate, key)
        return before != self._shown

    def context(self) -> ssl.SSLContext:
        """A new context with the current authorities and certificate."""
        user, cluster = dict(self._chosen.user), dict(self._chosen.cluster)
        shown = self._shown or (self._pair.value[:2] if self._pair else None)
        if shown:
            names = ("client-certificate-data", "client-key-data")
            user |= {name: b64encode(text).decode() for name, text in zip(names, shown, strict=True)}
        if self._bundle:
            cluster["certificate-authority-data"] = b64encode(self._bundle.value.pem).decode()
        return context(self._chosen._replace(user=user, cluster=cluster))


def _certificate_file_paths(section: Mapping[str, Any], *fields: str) -> Mapping[str, str]:
    """The path of each field, if all fields are given as files and none inline; else empty."""
    files = {
        field: section[field] for field in fields if section.get(field) and not section.get(f"{field}-data")
    }
    return files if len(files) == len(fields) else {}


def client_certificate_expiry_hint(kubeconfig_context: KubeconfigContext, now_s: float) -> str:
    """The remedy if the client certificate has expired; empty if it has not."""
    try:
        pair = _read_client_key_pair(kubeconfig_context.user, "")
        ends = x509.load_pem_x509_certificate(pair[0]).not_valid_after_utc.timestamp() if pair else now_s
    except (BadSettings, ValueError):
        return ""
    if ends >= now_s:
        return ""
    return (
        f"the client certificate of {kubeconfig_context.source} expired at {format_rfc3339(ends)}: {_REMEDY}"
    )


def read_ca_certificates(kubeconfig_context: KubeconfigContext) -> bytes:
    """The authorities, in PEM, that the server is verified against; empty for those of the system."""
    what = f"kubeconfig {kubeconfig_context.source}, context {kubeconfig_context.name}"
    return _read_tls_field(kubeconfig_context.cluster, "certificate-authority", what)


def _create_verifying_ssl_context(kubeconfig_context: KubeconfigContext, what: str) -> ssl.SSLContext:
    trusted = read_ca_certificates(kubeconfig_context)
    try:
        made = ssl.create_default_context(cadata=trusted.decode("ascii") if trusted else None)
    except (ssl.SSLError, ValueError) as error:
        problem = Problem("certificate-authority", _openssl_reason(error), "certificates in PEM")
        raise BadSettings(what, [problem]) from error
    if kubeconfig_context.cluster.get("insecure-skip-tls-verify"):
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    # Python 3.13 is stricter than Go: it would reject CAs without an Authority Key Identifier, which exist in
    # clusters and which all other clients accept
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return made


def _read_client_key_pair(user: Mapping[str, Any], what: str) -> tuple[bytes, bytes] | None:
    certificate, key = (
        _read_tls_field(user, "client-certificate", what),
        _read_tls_field(user, "client-key", what),
    )
    if bool(certificate) != bool(key):
        missing = "client-key" if certificate else "client-certificate"
        raise BadSettings(what, [Problem(missing, "not set", "certificate and key, or neither")])
    return (certificate, key) if certificate else None


def _read_tls_field(section: Mapping[str, Any], field: str, what: str) -> bytes:
    """The value of a field: inline (`-data`, which takes precedence as in client-go) or from a file; empty if unset."""
    try:
        if inline := section.get(f"{field}-data"):
            return b64decode(inline, validate=True)
        return Path(path).read_bytes() if (path := section.get(field)) else b""
    except (OSError, Base64Error, ValueError, TypeError) as error:
        expected = "base64 in -data, or a file that can be read"
        raise BadSettings(what, [Problem(field, str(error), expected)]) from error


def _openssl_reason(error: Exception) -> str:
    """OpenSSL's reason without its numbers and source lines: `KEY_VALUES_MISMATCH`."""
    return getattr(error, "reason", None) or str(error)
