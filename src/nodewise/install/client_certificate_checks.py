"""Checks client certificates. The key of a CA is refused."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodewise.base.errors import Problem, shown
from nodewise.server.client_authorizer import parse_client_certificate
from nodewise.server.options import ISSUED_CLIENT, SCHEDULER
from nodewise.tls.x509_certificates import (
    UNREADABLE_EXTENSIONS,
    is_ca,
    load_certificates,
    public_key_as_der,
    public_key_of_private_key,
)

_EXPIRY_WARNING: Final = dt.timedelta(days=30)


class ClientCredentials(NamedTuple):
    """A client certificate with its key and the CA, in PEM."""

    cert: bytes
    key: bytes
    ca: bytes | None


class CheckResult(NamedTuple):
    problems: Sequence[Problem]
    warnings: Sequence[str]


def check_client_certificate_files(
    credentials: ClientCredentials, others: Mapping[str, bytes], now: dt.datetime, *, allow_ca_key: bool
) -> CheckResult:
    """Problems and warnings of a client certificate. `others`: nearby files that may hold the certificate of a CA."""
    chain, authority = load_certificates(credentials.cert), load_certificates(credentials.ca or b"")
    key = public_key_of_private_key(credentials.key)
    problems = list(_missing_pem_problems(chain, key))
    if credentials.ca is not None and not authority:
        problems.append(Problem("--ca", "no certificate in PEM", "the CA of nodewise's certificate"))
    warnings: list[str] = []
    if chain and key:
        problems += _client_certificate_problems(chain[0], key, now)
        warnings += _client_certificate_warnings(chain[0], now)
        ca_key_problem = _ca_key_problem(
            _files_with_ca_certificate_of_key(chain[0], key, {"--ca": credentials.ca or b"", **others})
        )
        if ca_key_problem is not None and allow_ca_key:
            warnings.append(
                f"-key is {ca_key_problem.found}; anyone who can read it can act as any user of the cluster"
            )
        elif ca_key_problem is not None:
            problems.append(ca_key_problem)
    if authority and not any(map(is_ca, authority)):
        warnings.append("--ca is no CA's certificate")
    return CheckResult(problems, warnings)


def _missing_pem_problems(chain: Sequence[x509.Certificate], key: bytes) -> Iterable[Problem]:
    if not chain:
        yield Problem("-cert", "no certificate in PEM", "a client certificate")
    if not key:
        yield Problem("-key", "no private key in PEM without a password", "that of the certificate")


def _ca_key_problem(owners: Sequence[str]) -> Problem | None:
    if not owners:
        return None
    expected = (
        "a client certificate of its own, as `nodewise certs --host /etc/nodewise/pki` makes one, by -cert and -key; "
        "--allow-ca-key to copy this nevertheless"
    )
    return Problem("-key", f"the key of a CA: {', '.join(owners)}", expected)


def _client_certificate_problems(leaf: x509.Certificate, key: bytes, now: dt.datetime) -> Iterable[Problem]:
    if public_key_as_der(leaf.public_key()) != key:
        yield Problem("-key", "not the key of the certificate", "that of -cert")
    if now > leaf.not_valid_after_utc:
        yield Problem("-cert", f"over since {leaf.not_valid_after_utc:%Y-%m-%d %H:%M}", "one that is valid")
    if now < leaf.not_valid_before_utc:
        yield Problem(
            "-cert", f"valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} on", "one that is valid"
        )
    try:
        usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, *UNREADABLE_EXTENSIONS):
        return
    if (
        ExtendedKeyUsageOID.CLIENT_AUTH not in usage
        and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in usage
    ):
        yield Problem("-cert", "not for client use", "extended key usage clientAuth")


def _client_certificate_warnings(leaf: x509.Certificate, now: dt.datetime) -> Iterable[str]:
    if now <= leaf.not_valid_after_utc < now + _EXPIRY_WARNING:
        yield f"-cert expires on {leaf.not_valid_after_utc:%Y-%m-%d}"
    client = parse_client_certificate(leaf.public_bytes(Encoding.DER))
    if not client.for_client:
        yield (
            "-cert lacks the extended key usage clientAuth: nodewise answers it with 403, or with --any-client only "
            "to filter, prioritize and preempt"
        )
    elif {SCHEDULER, ISSUED_CLIENT}.isdisjoint(client.names):
        named = f"--client-name {shown(client.names[0])}" if client.names else "a certificate with a name"
        yield f"-cert has neither the name {SCHEDULER} nor {ISSUED_CLIENT}: nodewise needs {named}"


def _files_with_ca_certificate_of_key(
    leaf: x509.Certificate, key: bytes, files: Mapping[str, bytes]
) -> list[str]:
    """The files that show that a key belongs to a CA: a certificate of a CA with the same public key, whatever its
    name.
    """
    owners = ["-cert"] if is_ca(leaf) else []
    for name, data in files.items():
        if any(
            is_ca(certificate) and public_key_as_der(certificate.public_key()) == key
            for certificate in load_certificates(data)
        ):
            owners.append(name)
    return owners
