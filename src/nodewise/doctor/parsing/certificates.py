"""Certificates as values. Of a private key only the public key is kept."""

import ipaddress
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from nodewise.server.client_authorizer import parse_client_certificate
from nodewise.tls.x509_certificates import (
    UNREADABLE_CERTIFICATE,
    certificate_names,
    is_ca,
    is_issued_by,
    public_key_as_der,
)

_MAX_CERTIFICATES: Final = 50
_ERRORS: Final = (*UNREADABLE_CERTIFICATE, TypeError, UnsupportedAlgorithm)


class ParsedCertificate(NamedTuple):
    """The fields of a certificate that checks read."""

    names: tuple[str, ...]
    """The common name, then the alternative names."""
    not_before: datetime
    not_after: datetime
    is_ca: bool
    public_key: bytes
    """DER."""
    for_client: bool
    der: bytes = b""


Chain = tuple[ParsedCertificate, ...]


def parse_pem(pem: bytes) -> Chain:
    """The certificates of a PEM text, in their order; empty if it contains none that can be read."""
    try:
        return tuple(map(_parse_certificate, x509.load_pem_x509_certificates(pem)[:_MAX_CERTIFICATES]))
    except _ERRORS:
        return ()


def parse_der(certificates: Iterable[bytes]) -> Chain:
    """The certificates of a handshake."""
    try:
        return tuple(_parse_certificate(x509.load_der_x509_certificate(der)) for der in certificates)
    except _ERRORS:
        return ()


def is_signed_by(
    leaf: ParsedCertificate, intermediates: Sequence[ParsedCertificate], authorities: Chain
) -> bool:
    """Whether a certificate leads to one of the authorities, directly or by the given intermediates."""
    current, remaining = leaf, list(intermediates)
    for _ in range(len(intermediates) + 1):
        if any(ca.der == current.der or _is_issued_by(current, ca) for ca in authorities):
            return True
        issuer = next((candidate for candidate in remaining if _is_issued_by(current, candidate)), None)
        if issuer is None:
            return False
        remaining.remove(issuer)
        current = issuer
    return False


def is_valid_for(certificate: ParsedCertificate, host: str) -> bool:
    """Whether a certificate is for a host name or an address; a wildcard stands for one label."""

    def matches(name: str) -> bool:
        try:
            return ipaddress.ip_address(name) == ipaddress.ip_address(host)
        except ValueError:
            pattern, expected = name.lower().rstrip("."), host.lower().rstrip(".")
        if pattern.startswith("*."):
            return expected.partition(".")[2] == pattern[2:] and bool(pattern[2:])
        return pattern == expected

    return any(map(matches, certificate.names))


def _is_issued_by(certificate: ParsedCertificate, issuer: ParsedCertificate) -> bool:
    if not issuer.is_ca:
        return False
    return is_issued_by(*(x509.load_der_x509_certificate(each.der) for each in (certificate, issuer)))


def _parse_certificate(certificate: x509.Certificate) -> ParsedCertificate:
    der = certificate.public_bytes(Encoding.DER)
    return ParsedCertificate(
        names=_certificate_names(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        is_ca=is_ca(certificate),
        public_key=public_key_as_der(certificate.public_key()),
        for_client=parse_client_certificate(der).for_client,
        der=der,
    )


def _certificate_names(certificate: x509.Certificate) -> tuple[str, ...]:
    attributes = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names = [str(attribute.value) for attribute in attributes]
    if not names and certificate.subject:
        names = [certificate.subject.rfc4514_string()]
    return tuple(dict.fromkeys([*names, *certificate_names(certificate)]))
