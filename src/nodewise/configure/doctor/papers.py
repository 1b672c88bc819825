"""Certificates as values: what of them matters, and nothing of a key but its public half."""

from collections.abc import Iterable
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodewise.configure.certificate_facts import is_ca, public_der
from nodewise.configure.doctor.facts import Certificate, Chain

_MOST: Final = 50
_BAD: Final = (ValueError, TypeError, UnsupportedAlgorithm)
_ANY: Final = ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE


def chain(pem: bytes) -> Chain:
    """The certificates of a PEM text, in their order; none where it holds none that can be read."""
    try:
        return tuple(_certificate(one) for one in x509.load_pem_x509_certificates(pem)[:_MOST])
    except _BAD:
        return ()


def of_der(given: Iterable[bytes]) -> Chain:
    """The certificates of a handshake."""
    try:
        return tuple(_certificate(x509.load_der_x509_certificate(one)) for one in given)
    except _BAD:
        return ()


def public(pem: bytes) -> bytes:
    """The public half of a private key, DER; empty where there is no key that can be read."""
    try:
        return public_der(load_pem_private_key(pem, None).public_key())
    except _BAD:
        return b""


def is_signed_by(leaf: Certificate, between: Chain, trusted: Chain) -> bool:
    """Whether a certificate comes from one of these authorities, at most by those that it brings along."""
    reached, left = leaf, list(between)
    for _ in range(len(between) + 1):
        if any(one.der == reached.der for one in trusted) or any(_signed(reached, one) for one in trusted):
            return True
        issuer = next((one for one in left if _signed(reached, one)), None)
        if issuer is None:
            return False
        left.remove(issuer)
        reached = issuer
    return False


def _signed(certificate: Certificate, issuer: Certificate) -> bool:
    if not issuer.is_ca:
        return False
    try:
        one, other = (x509.load_der_x509_certificate(each.der) for each in (certificate, issuer))
        one.verify_directly_issued_by(other)
    except (*_BAD, InvalidSignature):
        return False
    return True


def _certificate(one: x509.Certificate) -> Certificate:
    client, server = _uses(one)
    return Certificate(
        names=_names(one),
        begins=one.not_valid_before_utc,
        ends=one.not_valid_after_utc,
        is_ca=is_ca(one),
        key=public_der(one.public_key()),
        for_client=client,
        for_server=server,
        der=one.public_bytes(Encoding.DER),
    )


def _names(one: x509.Certificate) -> tuple[str, ...]:
    """The common name, then the alternative names."""
    names = [str(each.value) for each in one.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names and one.subject:
        names = [one.subject.rfc4514_string()]
    try:
        others = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return tuple(names)
    kinds = (x509.DNSName, x509.IPAddress)
    names += [str(value) for kind in kinds for value in others.get_values_for_type(kind)]
    return tuple(dict.fromkeys(names))


def _uses(one: x509.Certificate) -> tuple[bool, bool]:
    """Whether it is for clients and for servers. Without the extension it is for servers: nodewise, as `serve.gate`
    has it, takes nothing for a client certificate that does not say so.
    """
    try:
        usage = one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return False, True
    return ExtendedKeyUsageOID.CLIENT_AUTH in usage, _ANY in usage or ExtendedKeyUsageOID.SERVER_AUTH in usage
