"""Reads certificates in PEM: names, purpose, authorities, and whether the private key belongs to them."""

import ipaddress
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodewise.tls.certificate_issuer import is_ip_address

_PEM: Final = serialization.Encoding.PEM


def merge_authorities(trusted: bytes, more: bytes) -> bytes:
    """A bundle of both lists of authorities in PEM, without duplicates."""
    held = load_certificates(trusted)
    return encode_pem([*held, *(authority for authority in load_certificates(more) if authority not in held)])


def issued_certificate_problem(cert: bytes, key: bytes) -> str:
    """The problem of a client certificate that an external signer issued; empty if there is none."""
    leaf, problem = load_certificate_with_key(cert, key)
    if leaf is None:
        return problem
    try:
        uses = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return "is for any use"
    return "" if ExtendedKeyUsageOID.CLIENT_AUTH in uses else "is not for clients"


def is_ca_bundle(cert: bytes) -> bool:
    """Whether PEM data holds at least one certificate, and all of them are certificates of a CA."""
    certificates = load_certificates(cert)
    return bool(certificates) and all(map(is_marked_as_ca, certificates))


def format_rfc3339_time(when: datetime) -> str:
    """A time as in the Kubernetes API: RFC 3339, seconds, UTC."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def load_certificate_with_key(cert: bytes, key: bytes) -> tuple[x509.Certificate | None, str]:
    """The certificate and an empty text, or None and the problem with the certificate or its key."""
    if not cert or not key:
        return None, "is not there"
    try:
        leaf = x509.load_pem_x509_certificate(cert)
        own = serialization.load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None, "cannot be read"
    if public_key_as_der(own) != public_key_as_der(leaf.public_key()):
        return None, "does not match its key"
    return (None, "is an authority's") if is_marked_as_ca(leaf) else (leaf, "")


def is_marked_as_ca(cert: x509.Certificate) -> bool:
    """Whether the extension marks a CA; False without the extension, while `is_ca` fails closed."""
    try:
        return cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound):
        return False


def normalize_host_name(name: str) -> str:
    return str(ipaddress.ip_address(name)) if is_ip_address(name) else name.lower()


def certificate_names(leaf: x509.Certificate) -> list[str]:
    try:
        alternative_names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = [str(address) for address in alternative_names.get_values_for_type(x509.IPAddress)]
    return [*alternative_names.get_values_for_type(x509.DNSName), *addresses]


def common_name(leaf: x509.Certificate) -> str:
    return next(
        (str(attribute.value) for attribute in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)), ""
    )


def load_certificates(pem: bytes) -> list[x509.Certificate]:
    """The certificates of PEM data; none if it cannot be parsed."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def encode_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(_PEM) for certificate in certificates)


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether this is the certificate of a CA. An unreadable extension counts as one: the check fails closed."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return certificate.issuer == certificate.subject
    except ValueError:
        return True


def public_key_as_der(key: PublicKeyTypes) -> bytes:
    """A public key as DER. A certificate and its private key have the same one."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
