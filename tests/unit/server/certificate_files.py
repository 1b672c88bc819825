"""Certificates for tests: a server certificate of one CA, client certificates of another, and unusual ones."""

import datetime as dt
import ssl
from collections.abc import Sequence
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodewise.server.options import ServeOptions

NAMES = ("localhost", "127.0.0.1")


class ServerCertificateFiles:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server_ca = trustme.CA()
        self.client_ca = trustme.CA()
        self.client = self.client_ca.issue_cert("scheduler.example", common_name="system:kube-scheduler")
        self.write(self.server_ca.issue_cert(*NAMES))
        self.write_client_ca(self.client_ca)

    @property
    def cert(self) -> Path:
        return self.folder / "tls.crt"

    @property
    def key(self) -> Path:
        return self.folder / "tls.key"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def write(self, leaf: trustme.LeafCert) -> None:
        """Write the server's certificate chain and its private key."""
        self.cert.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
        self.key.write_bytes(leaf.private_key_pem.bytes())

    def write_client_ca(self, *authorities: trustme.CA) -> None:
        self.ca.write_bytes(b"".join(authority.cert_pem.bytes() for authority in authorities))

    def options(self, **changes) -> ServeOptions:
        settings = {
            "address": "127.0.0.1",
            "port": 0,
            "cert": str(self.cert),
            "key": str(self.key),
            "client_ca": str(self.ca),
            "client_name": ("system:kube-scheduler", "scheduler.example", "other.example", "a.example"),
            "reload_period_s": 0.02,
            "handshake_timeout_s": 60.0,
            "header_timeout_s": 60.0,
            "body_idle_timeout_s": 60.0,
        }
        return ServeOptions(**settings | changes)

    def trusting(self, *authorities: trustme.CA) -> ssl.SSLContext:
        """A client's TLS context without a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for authority in authorities or (self.server_ca,):
            authority.configure_trust(context)
        return context

    def context(self, client: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """A client's TLS context with a certificate. The default certificate is kube-scheduler's."""
        context = self.trusting()
        (client or self.client).configure_cert(context)
        return context

    def ca_as_client(self) -> ssl.SSLContext:
        context = self.trusting()
        pair = self.folder / "ca-with-key.pem"
        pair.write_bytes(self.client_ca.private_key_pem.bytes() + self.client_ca.cert_pem.bytes())
        context.load_cert_chain(pair)
        return context

    def odd_client(self, *names: str, usage=ExtendedKeyUsageOID.CLIENT_AUTH, days: int = 1) -> ssl.SSLContext:
        """The TLS context of a client with an unusual certificate.

        The certificate has these common names (`odd` by default) and one extended key usage, or no such extension if
        `usage` is None. It expires in `days`.
        """
        pair = self.folder / "odd.pem"
        pair.write_bytes(issue(self.client_ca, usage, days, names=names or ("odd",)))
        context = self.trusting()
        context.load_cert_chain(pair)
        return context


def issue(
    authority: trustme.CA,
    usage: x509.ObjectIdentifier | None,
    days: int,
    key=None,
    names: Sequence[str] = ("odd",),
) -> bytes:
    """A key, and a certificate without alternative names that expires in `days`. `usage` is its extended key usage."""
    signer = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    key = key or ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=30))
        .not_valid_after(now + dt.timedelta(days=days))
    )
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    certificate = builder.sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(pem, form, serialization.NoEncryption()) + certificate.public_bytes(pem)
