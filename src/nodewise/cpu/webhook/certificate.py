"""The certificate of a webhook inside a cluster: made, and looked at whether it still serves."""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from nodewise.serve.issuing import Issuer, is_by

SERVICE: Final = "cmk-webhook-service"
VALID: Final = timedelta(days=3650)
"""Nobody could renew it in silence: no key is left to sign another one with. `renewed` says when it is time."""
_SOON: Final = timedelta(days=365)
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
    issuer = Issuer("cmk-webhook-ca", now, VALID)
    host = names(namespace)[-1]
    leaf = issuer.server(names(namespace), host if len(host) <= _LONGEST_NAME else SERVICE)
    return Certificate(leaf.cert, leaf.key, issuer.cert)


def serves(cert: bytes, authorities: bytes, namespace: str, now: datetime) -> bool:
    """Whether a certificate that is there already does for another year: for these names, by one of these."""
    try:
        leaf, trusted = x509.load_pem_x509_certificate(cert), x509.load_pem_x509_certificates(authorities)
        told = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    is_whole = set(names(namespace)) <= set(told.get_values_for_type(x509.DNSName))
    lasts = leaf.not_valid_before_utc <= now and now + _SOON <= leaf.not_valid_after_utc
    return is_whole and lasts and any(is_by(leaf, one) for one in trusted)


def trusting(made: Certificate, before: bytes, now: datetime) -> bytes:
    """What the API server has to trust while pods still serve the certificate before this one: both, in PEM."""
    try:
        held = x509.load_pem_x509_certificates(before)
    except ValueError:
        held = []
    pem = serialization.Encoding.PEM
    kept = [one.public_bytes(pem) for one in held if one.not_valid_after_utc > now]
    return made.authorities + b"".join(one for one in kept[:1] if one != made.authorities)
