"""The certificate of a webhook inside a cluster: made, and looked at whether it still serves."""

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVICE: Final = "cmk-webhook-service"
VALID: Final = timedelta(days=3650)
"""Nobody could renew it in silence: no key is left to sign another one with. `renewed` says when it is time."""
_SOON: Final = timedelta(days=365)
_SKEW: Final = timedelta(hours=1)
_LONGEST_NAME: Final = 64  # of a common name, RFC 5280


class Certificate(NamedTuple):
    """All in PEM."""

    cert: bytes
    key: bytes
    authorities: bytes
    """What the API server has to trust: who signed it. Its key is gone."""


def names(namespace: str) -> tuple[str, str, str]:
    """Host names of the webhook's Service."""
    return SERVICE, f"{SERVICE}.{namespace}", f"{SERVICE}.{namespace}.svc"


def make(namespace: str, now: datetime) -> Certificate:
    """A certificate for the Service, by an authority that signs nothing else and whose key is thrown away."""
    host = names(namespace)[-1]
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _named("cmk-webhook-ca")
    root = _signed(
        _begun(authority, authority, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True),
        authority_key,
    )
    leaf = _signed(
        _begun(_named(host if len(host) <= _LONGEST_NAME else SERVICE), authority, key, now)
        .add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names(namespace))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        ),
        authority_key,
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(leaf, private, root)


def serves(cert: bytes, authorities: bytes, namespace: str, now: datetime) -> bool:
    """Whether a certificate that is there already does for another year: for these names, by one of these."""
    try:
        leaf, trusted = x509.load_pem_x509_certificate(cert), x509.load_pem_x509_certificates(authorities)
        told = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    is_whole = set(names(namespace)) <= set(told.get_values_for_type(x509.DNSName))
    lasts = leaf.not_valid_before_utc <= now and now + _SOON <= leaf.not_valid_after_utc
    return is_whole and lasts and any(_is_by(leaf, one) for one in trusted)


def trusting(made: Certificate, before: bytes, now: datetime) -> bytes:
    """What the API server has to trust while pods still serve the certificate before this one: both, in PEM."""
    try:
        held = x509.load_pem_x509_certificates(before)
    except ValueError:
        held = []
    pem = serialization.Encoding.PEM
    kept = [one.public_bytes(pem) for one in held if one.not_valid_after_utc > now]
    return made.authorities + b"".join(one for one in kept[:1] if one != made.authorities)


def _is_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it did not sign this
        return False
    return True


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime
) -> x509.CertificateBuilder:
    now = now.astimezone(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
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


def _signed(begun: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return begun.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
