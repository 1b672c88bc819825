"""Client authorization: decides once per connection what the client's certificate permits.

A verified signature is not sufficient: the CA of a cluster also signs the certificates of kubelets and users. A client
is pinned if its certificate has a name of `--client-name` and the extended key usage clientAuth. Only a pinned client
may call the routes that are marked `pinned_only` (bind, /decisions, /state); `--any-client` opens the others to every
certificate of the client CA.
"""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodewise.base.errors import Problem, shown
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server import application
from nodewise.server.application import Response
from nodewise.server.connection_close_reasons import CloseReasons
from nodewise.server.http_connection import Authorization
from nodewise.server.options import ServeOptions
from nodewise.server.server_certificates import ServerCertificates
from nodewise.tls.x509_certificates import UNREADABLE_CERTIFICATE, UNREADABLE_EXTENSIONS


class CertificateIdentity(NamedTuple):
    """The parts of a client certificate that decide about access."""

    names: tuple[str, ...]
    """The common name, then the subject alternative names."""
    is_ca: bool
    for_client: bool = False
    """Whether the extended key usage contains clientAuth."""


PINNED: Final = Authorization()
_NOT_A_CA: Final = "a client certificate of its own, not a CA's"
_MOST_WARNINGS: Final = 64
"""Any user of a CA can have certificates with many names: they must fill neither memory nor the log."""
_UNREADABLE: Final = CertificateIdentity((), is_ca=False)


@lru_cache(maxsize=64)
def parse_client_certificate(der: bytes) -> CertificateIdentity:
    """Read a certificate. An unreadable one has no names, so that it matches no pin.

    Of several common names none counts: programs differ in which one they take, and Go, which decides for the API
    server who may get a certificate, looks at the last one only. A certificate without the extension extended key
    usage is not a client certificate: Go and OpenSSL accept it for any usage, which is more than its issuer said.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        common_names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        extensions = {extension.oid: extension.value for extension in certificate.extensions}
    except (*UNREADABLE_CERTIFICATE, *UNREADABLE_EXTENSIONS):
        return _UNREADABLE
    names = [str(name.value) for name in common_names] if len(common_names) == 1 else []
    alternatives = extensions.get(x509.SubjectAlternativeName.oid)
    if isinstance(alternatives, x509.SubjectAlternativeName):
        kinds = (x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier, x509.IPAddress)
        names.extend(str(name.value) for name in alternatives if isinstance(name, kinds))
    constraints = extensions.get(x509.BasicConstraints.oid)
    usage = extensions.get(x509.ExtendedKeyUsage.oid)
    return CertificateIdentity(
        tuple(names),
        is_ca=isinstance(constraints, x509.BasicConstraints) and constraints.ca,
        for_client=isinstance(usage, x509.ExtendedKeyUsage) and ExtendedKeyUsageOID.CLIENT_AUTH in usage,
    )


class ClientAuthorizer:
    """Authorizes each new connection once.

    A refused client gets 403 with the reason for every request, and its connection is closed with that response:
    kube-scheduler logs the status of a response and curl shows its text; a closed connection shows neither.
    """

    def __init__(
        self,
        options: ServeOptions,
        tls: ServerCertificates,
        close_reasons: CloseReasons,
        metrics_registry: MetricsRegistry,
    ) -> None:
        self._options = options
        self._tls = tls
        self._close_reasons = close_reasons
        self._metrics_registry = metrics_registry
        self._warned: set[tuple[str, CertificateIdentity]] = set()

    def examine(
        self,
        transport: asyncio.BaseTransport,
        chain: Sequence[bytes],
        peer: str,
        verified: Sequence[bytes] = (),
    ) -> Authorization:
        """What the client may call. `chain`, DER, begins with its own certificate."""
        client = parse_client_certificate(chain[0] if chain else b"")
        secured = transport.get_extra_info("ssl_object")
        # a TLS 1.2 session that is resumed by its id proves only that it is the same client
        verified_by = None if secured.session_reused else transport.get_extra_info("sslcontext")
        if not self._tls.admits(chain, verified_by, verified):
            # the CA was replaced during the handshake, or the certificate has expired
            expected = "a certificate of the present client CA"
            return self._refuse_client("client_ca_changed", peer, client, expected)
        if client.is_ca and self._options.refuse_ca_client:
            return self._refuse_client("ca_certificate", peer, client, _NOT_A_CA)
        mismatch = _describe_pin_mismatch(client, self._options.client_name)
        if mismatch and not self._options.any_client:
            return self._refuse_client("client_name", peer, client, mismatch)
        if client.is_ca:
            self._metrics_registry.count("ca_clients_total")
            self._warn_once_per_client("ca_client", peer, client)
        if not mismatch:
            return PINNED
        self._warn_once_per_client("unpinned_client", peer, client, missing=mismatch)
        return Authorization(pinned_only_refusal=_refusal_response(client, mismatch))

    def _warn_once_per_client(
        self, event: str, peer: str, client: CertificateIdentity, **fields: str
    ) -> None:
        if (event, client) not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add((event, client))
            logs.emit(event, peer=peer, names=client.names, **fields)

    def _refuse_client(
        self, reason: str, peer: str, client: CertificateIdentity, expected: str
    ) -> Authorization:
        detail = f"certificate of {_describe_client(client)}; expected {expected}"
        self._close_reasons.record(reason, peer, detail)
        refusal = _refusal_response(client, expected)
        return Authorization(refusal, refusal)


def _describe_pin_mismatch(client: CertificateIdentity, pins: Sequence[str]) -> str:
    """What a certificate lacks to be pinned, with the remedy; empty if it is pinned."""
    has_name = not set(pins).isdisjoint(client.names)
    if has_name and client.for_client:
        return ""
    if client.is_ca:
        return f"{_NOT_A_CA}, with a name of --client-name ({', '.join(pins)})"
    missing = [] if has_name else [f"a name of --client-name ({', '.join(pins)})"]
    if not client.for_client:
        missing.append("the extended key usage clientAuth in the certificate")
    elif client.names:
        missing.append(f"or nodewise started with --client-name {shown(client.names[0])}")
    return ", ".join(missing)


def _describe_client(client: CertificateIdentity) -> str:
    return ", ".join(map(shown, client.names)) or "no names"


def _refusal_response(client: CertificateIdentity, expected: str) -> Response:
    return application.refusal_response(
        403, Problem("client certificate", _describe_client(client), expected)
    )
