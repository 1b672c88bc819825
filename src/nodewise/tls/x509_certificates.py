"""Issues certificates with an authority whose private key exists only in memory, and reads
certificates in PEM: names, purpose, authorities, and whether the private key belongs to them.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW: Final = timedelta(hours=1)
"""Certificates are valid from this long before they are issued, because clocks of machines differ."""
UNREADABLE_CERTIFICATE: Final = (ValueError, x509.InvalidVersion)
"""Errors of cryptography for certificates that cannot be decoded. OpenSSL accepts unknown versions."""
UNREADABLE_EXTENSIONS: Final = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
"""Errors of cryptography for extensions that cannot be read, of certificates that can be decoded."""
_LONGEST_NAME: Final = 64  # of a common name, RFC 5280
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class SignedCertificate(NamedTuple):
    """A certificate and its private key, both PEM."""

    cert: bytes
    key: bytes


class CertificateIssuer:
    """A certificate authority. Its private key exists only in this object."""

    def __init__(self, name: str, now: datetime, valid: timedelta) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject_name(name)
        self._now = now
        self._valid = valid
        begun = _certificate_builder(self._name, self._name, self._key.public_key(), now, valid)
        self.cert = self._sign_certificate(
            begun.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(
                _key_usage_extension(signs_certificates=True), critical=True
            )
        )
        """The certificate of the authority, PEM, which the peer has to trust."""

    def server(self, names: Sequence[str], common_name: str) -> SignedCertificate:
        """Issue a server certificate for host names and IP addresses. A long common name is truncated."""
        return self._issue_certificate(common_name[:_LONGEST_NAME], names, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, name: str) -> SignedCertificate:
        """Issue a client certificate. A name that is a valid host name is also a subject alternative name."""
        return self._issue_certificate(name, [name] if is_host(name) else [], ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue_certificate(
        self, common_name: str, names: Sequence[str], use: x509.ObjectIdentifier
    ) -> SignedCertificate:
        key = ec.generate_private_key(ec.SECP256R1())
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        begun = _certificate_builder(
            _subject_name(common_name), self._name, key.public_key(), self._now, self._valid
        )
        begun = (
            begun.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage_extension(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(identifier, critical=False)
        )
        if names:  # Go rejects an empty list
            alternatives: list[x509.GeneralName] = [
                x509.IPAddress(ipaddress.ip_address(name)) if is_ip_address(name) else x509.DNSName(name)
                for name in names
            ]
            begun = begun.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return SignedCertificate(self._sign_certificate(begun), private_key_as_pem(key))

    def _sign_certificate(self, begun: x509.CertificateBuilder) -> bytes:
        return begun.sign(self._key, hashes.SHA256()).public_bytes(_PEM)


def certificate_request(name: str) -> SignedCertificate:
    """A certificate signing request for a client, in place of the certificate, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = (
        x509.CertificateSigningRequestBuilder().subject_name(_subject_name(name)).sign(key, hashes.SHA256())
    )
    return SignedCertificate(request.public_bytes(_PEM), private_key_as_pem(key))


def private_key_as_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def is_issued_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority signed the certificate; True for a self-signed authority and itself."""
    try:
        leaf.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - any error means that the authority did not sign the certificate
        return False
    return True


def is_host(name: str) -> bool:
    """Whether the name is a valid DNS host name."""
    return len(name) < 254 and all(map(_LABEL.fullmatch, name.lower().split(".")))  # noqa: PLR2004 - RFC 1035


def is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _subject_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    now = now.astimezone(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage_extension(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


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
    except UNREADABLE_EXTENSIONS:
        return "cannot be read"
    return "" if ExtendedKeyUsageOID.CLIENT_AUTH in uses else "is not for clients"


def is_ca_bundle(cert: bytes) -> bool:
    """Whether PEM data holds at least one certificate, and all of them are certificates of a CA."""
    certificates = load_certificates(cert)
    return bool(certificates) and all(map(is_marked_as_ca, certificates))


def format_rfc3339_time(when: datetime) -> str:
    """A time as in the Kubernetes API: RFC 3339, seconds, UTC."""
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


NO_CERTIFICATE: Final = "does not exist"
"""The problem of a pair of certificate and key without a certificate."""


def load_certificate_with_key(cert: bytes, key: bytes) -> tuple[x509.Certificate | None, str]:
    """The certificate and an empty text, or None and the problem with the certificate or its key."""
    if not cert or not key:
        return None, NO_CERTIFICATE
    try:
        leaf = x509.load_pem_x509_certificate(cert)
        own = serialization.load_pem_private_key(key, None).public_key()
    except (*UNREADABLE_CERTIFICATE, TypeError, UnsupportedAlgorithm):
        return None, "cannot be read"
    if public_key_as_der(own) != public_key_as_der(leaf.public_key()):
        return None, "does not match its key"
    return (None, "is an authority's") if is_marked_as_ca(leaf) else (leaf, "")


def is_marked_as_ca(cert: x509.Certificate) -> bool:
    """Whether the extension marks a CA; False without the extension, while `is_ca` fails closed."""
    try:
        return cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, *UNREADABLE_EXTENSIONS):
        return False


def normalize_host_name(name: str) -> str:
    return str(ipaddress.ip_address(name)) if is_ip_address(name) else name.lower()


def certificate_names(leaf: x509.Certificate) -> list[str]:
    """The alternative names, first those of hosts; none if an extension is unreadable."""
    try:
        alternative_names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, *UNREADABLE_EXTENSIONS):
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
    except UNREADABLE_CERTIFICATE:
        return []


def encode_pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(certificate.public_bytes(_PEM) for certificate in certificates)


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether this is the certificate of a CA. An unreadable extension counts as one: the check fails closed."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return certificate.issuer == certificate.subject
    except UNREADABLE_EXTENSIONS:
        return True


def public_key_of_private_key(pem: bytes) -> bytes:
    """The public key of a private key in PEM, as DER; empty if there is no key that can be read."""
    try:
        return public_key_as_der(serialization.load_pem_private_key(pem, None).public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return b""


def public_key_as_der(key: PublicKeyTypes) -> bytes:
    """A public key as DER. A certificate and its private key have the same one."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
