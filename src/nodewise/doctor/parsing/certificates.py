"""Certificates as values. Of a private key only the public key is kept."""

import ipaddress
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodewise.tls.x509_certificates import is_ca, public_key_as_der

_MAX_CERTIFICATES: Final = 50
_ERRORS: Final = (ValueError, TypeError, UnsupportedAlgorithm)
_ANY_USE: Final = ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE


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
    for_server: bool
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


def public_key(pem: bytes) -> bytes:
    """The public key of a private key, DER; empty if there is no key that can be read."""
    try:
        return public_key_as_der(load_pem_private_key(pem, None).public_key())
    except _ERRORS:
        return b""


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
    """Whether a certificate is for a host name or an address."""
    return any(_host_matches_certificate_name(name, host) for name in certificate.names)


def _host_matches_certificate_name(name: str, host: str) -> bool:
    """Whether a certificate's name is that of a host; a wildcard stands for one label."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    except ValueError:
        pattern, expected = name.lower().rstrip("."), host.lower().rstrip(".")
    if pattern.startswith("*."):
        return expected.partition(".")[2] == pattern[2:] and bool(pattern[2:])
    return pattern == expected


def _is_issued_by(certificate: ParsedCertificate, issuer: ParsedCertificate) -> bool:
    if not issuer.is_ca:
        return False
    try:
        parsed, parsed_issuer = (x509.load_der_x509_certificate(each.der) for each in (certificate, issuer))
        parsed.verify_directly_issued_by(parsed_issuer)
    except (*_ERRORS, InvalidSignature):
        return False
    return True


def _parse_certificate(certificate: x509.Certificate) -> ParsedCertificate:
    for_client, for_server = _certificate_usages(certificate)
    return ParsedCertificate(
        names=_certificate_names(certificate),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        is_ca=is_ca(certificate),
        public_key=public_key_as_der(certificate.public_key()),
        for_client=for_client,
        for_server=for_server,
        der=certificate.public_bytes(Encoding.DER),
    )


def _certificate_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """The common name, then the alternative names."""
    attributes = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    names = [str(attribute.value) for attribute in attributes]
    if not names and certificate.subject:
        names = [certificate.subject.rfc4514_string()]
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return tuple(names)
    kinds = (x509.DNSName, x509.IPAddress)
    names += [str(value) for kind in kinds for value in others.get_values_for_type(kind)]
    return tuple(dict.fromkeys(names))


def _certificate_usages(certificate: x509.Certificate) -> tuple[bool, bool]:
    """Whether it is for clients and for servers. Without the extension it is for servers only: nodewise rejects client
    certificates that do not have the extended key usage clientAuth (`server.client_authorizer`).
    """
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return False, True
    is_for_servers = _ANY_USE in usage or ExtendedKeyUsageOID.SERVER_AUTH in usage
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage, is_for_servers
