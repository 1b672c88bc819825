"""What the certificate files hold: read, checked, made into one TLS context, and read again when they change.

Each reading that can be used makes a new context; one in use is never changed. `load_cert_chain` on a live
context would take the new certificate and then stumble over the old key, in the middle of a rotation. The
listener asks for `context` at each connection, so a client that sends no server name gets the new one like
any other, and sessions of an old context cannot be resumed in a new one.
"""

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import verification

from nodewise.errors import BadSettings, Problem
from nodewise.observe import logs
from nodewise.observe.meters import Meters
from nodewise.serve.hello import PROTOCOL, ServerContext
from nodewise.serve.options import ServeOptions

_CIPHERS: Final = "ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384"  # of TLS 1.2; 1.3 has its own
_FIELDS: Final = ("cert", "key", "client_ca")
_PEM: Final = "a readable PEM file"


class _Unreadable(NamedTuple):
    why: str


_Contents = tuple[bytes | _Unreadable, ...]


class Reading(NamedTuple):
    """One reading of the files that can be used. `expires_s` is wall-clock time, seconds since 1970."""

    context: ServerContext
    authorities: tuple[x509.Certificate, ...]
    expires_s: float


def _contents(options: ServeOptions) -> _Contents:
    """What each file holds. The files are small, and a swap may keep name, size and time: so all of it is
    compared.
    """
    found: list[bytes | _Unreadable] = []
    for field in _FIELDS:
        try:
            found.append(Path(getattr(options, field)).read_bytes())
        except OSError as error:
            found.append(_Unreadable(error.strerror or str(error)))
    return tuple(found)


def _certificates(field: str, path: str, pem: bytes, problems: list[Problem]) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        problems.append(Problem(field, f"{path} holds no certificate that can be read", "PEM certificates"))
        return []


def _public_bytes(key: object) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined, no-any-return]


def _check_key(options: ServeOptions, pem: bytes, chain: list[x509.Certificate]) -> list[Problem]:
    """The key can be read and belongs to the first certificate."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        return [Problem("key", f"{options.key} is encrypted", "a key without a pass phrase")]
    except (ValueError, UnsupportedAlgorithm):
        return [Problem("key", f"{options.key} holds no private key that can be read", "a PEM private key")]
    if chain and _public_bytes(key.public_key()) != _public_bytes(chain[0].public_key()):
        return [Problem("key", f"{options.key} does not match {options.cert}", "the key of that certificate")]
    return []


def _context(options: ServeOptions, authorities: list[x509.Certificate]) -> ServerContext:
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols([PROTOCOL])
    # With a ticket a client would come back in after its CA was taken away: resumption verifies nothing.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED
    # A certificate in the bundle is trusted as it is, so that a bundle of intermediates works as in Go.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(
        cadata=b"".join(authority.public_bytes(serialization.Encoding.DER) for authority in authorities)
    )
    # Without the empty password OpenSSL would ask for one on the terminal.
    context.load_cert_chain(options.cert, options.key, password="")
    return context


def _read(options: ServeOptions, contents: _Contents) -> Reading:
    """A usable reading, or BadSettings that names every problem of the three files."""
    problems: list[Problem] = []
    pems: dict[str, bytes] = {}
    for field, content in zip(_FIELDS, contents, strict=True):
        path = getattr(options, field)
        if not path:
            problems.append(Problem(field, "is not given", "the path of a PEM file"))
        elif isinstance(content, _Unreadable):
            problems.append(Problem(field, f"{path}: {content.why}", _PEM))
        else:
            pems[field] = content
    chains = {
        field: _certificates(field, getattr(options, field), pems[field], problems)
        for field in ("cert", "client_ca")
        if field in pems
    }
    if "key" in pems:
        problems.extend(_check_key(options, pems["key"], chains.get("cert", [])))
    if problems:
        raise BadSettings("TLS cannot be served", problems)
    try:
        context = _context(options, chains["client_ca"])
    except (ssl.SSLError, OSError) as error:
        found = Problem("cert", f"{options.cert} with {options.key}: {error}", "a pair that OpenSSL takes")
        raise BadSettings("TLS cannot be served", [found]) from error
    expires_s = chains["cert"][0].not_valid_after_utc.timestamp()
    return Reading(context, tuple(chains["client_ca"]), expires_s)


def admits(authorities: tuple[x509.Certificate, ...], der: bytes) -> bool:
    """Does a client certificate come from these authorities directly, and is it valid now?

    Stricter than the handshake in corners (no intermediates, no Ed25519), never laxer in who signed:
    whoever is turned away here wrongly connects again and is judged by OpenSSL.
    """
    anything = verification.ExtensionPolicy.permit_all()
    authority = anything.require_present(x509.BasicConstraints, verification.Criticality.AGNOSTIC, None)
    try:
        builder = verification.PolicyBuilder().store(verification.Store(list(authorities)))
        policy = builder.extension_policies(ca_policy=authority, ee_policy=anything)
        policy.build_client_verifier().verify(x509.load_der_x509_certificate(der), [])
    except (verification.VerificationError, ValueError):
        return False
    return True


class Tls:
    """The certificates in use. `poll` is called every second or so; between two calls nothing changes."""

    def __init__(self, options: ServeOptions, meters: Meters) -> None:
        """BadSettings that names every problem of the three files."""
        self._options = options
        self._meters = meters
        self._tried = _contents(options)
        self._reading = _read(options, self._tried)
        self._tell(failing=False)

    @property
    def context(self) -> ServerContext:
        """The context for the next connection."""
        return self._reading.context

    def admits(self, der: bytes) -> bool:
        """Does a client certificate, DER, come from the client CA as it is now?"""
        return admits(self._reading.authorities, der)

    def poll(self) -> bool:
        """Read the files again where they changed; True when the client CA is another one now.

        What cannot be used (a certificate whose new key is not written yet) leaves everything as it was,
        and is tried again at the next change. A file that changes between our reading and OpenSSL's differs
        from what we have seen at the next call, and so is read once more.
        """
        contents = _contents(self._options)
        if contents == self._tried:
            return False
        self._tried = contents
        before = self._reading
        try:
            self._reading = _read(self._options, contents)
        except BadSettings as error:
            self._meters.count("tls_reloads_total", outcome="failed")
            self._tell(failing=True)
            logs.emit("tls_reload_failed", error=str(error))
            return False
        self._meters.count("tls_reloads_total", outcome="done")
        self._tell(failing=False)
        swapped = before.authorities != self._reading.authorities
        logs.emit("tls_reloaded", cert=self._options.cert, client_ca_changed=swapped)
        return swapped

    def _tell(self, *, failing: bool) -> None:
        self._meters.set("tls_reload_failing", int(failing))
        self._meters.set("tls_certificate_expires_seconds", self._reading.expires_s)
