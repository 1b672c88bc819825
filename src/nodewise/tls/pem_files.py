"""Reads and validates certificate files. Independent of time."""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from nodewise.base.errors import BadSettings, Problem

CERTIFICATE_FILES: Final = "certificate files"

Paths = Mapping[str, str]
"""The path of each file, by the name of its setting."""


class _UnreadableFile(NamedTuple):
    why: str


Contents = Mapping[str, bytes | _UnreadableFile]
"""The content of each file, by the name of its setting."""


class X509KeyPair(NamedTuple):
    """A certificate followed by its chain, and its key, both PEM."""

    certificate: bytes
    key: bytes
    chain: tuple[x509.Certificate, ...]

    def begin_s(self) -> float:
        """The start of its validity, in seconds since 1970."""
        return self.chain[0].not_valid_before_utc.timestamp()

    def end_s(self, _now_s: float) -> float:
        """The end of its validity. Certificates of the chain may have expired, such as old cross-signatures."""
        return self.chain[0].not_valid_after_utc.timestamp()


class CertificateBundle(NamedTuple):
    """Trusted certificates, decoded and as PEM."""

    pem: bytes
    authorities: tuple[x509.Certificate, ...]

    def begin_s(self) -> float:
        """The earliest start of validity, in seconds since 1970."""
        return min(certificate.not_valid_before_utc.timestamp() for certificate in self.authorities)

    def end_s(self, now_s: float) -> float:
        """The next end of validity; the last one if all have expired."""
        ends = [certificate.not_valid_after_utc.timestamp() for certificate in self.authorities]
        return min((end for end in ends if end > now_s), default=max(ends))


def read_contents(paths: Paths) -> Contents:
    """The current content of the files."""
    contents: dict[str, bytes | _UnreadableFile] = {}
    for field, path in paths.items():
        try:
            contents[field] = Path(path).read_bytes() if path else b""
        except OSError as error:
            contents[field] = _UnreadableFile(error.strerror or str(error))
    return contents


def read_certificate_and_key(paths: Paths, held: Contents) -> X509KeyPair:
    """The certificate of the first path with the key of the second. BadSettings names every problem."""
    problems: list[Problem] = []
    (cert_field, cert_path), (key_field, key_path) = paths.items()
    certificate = _content_or_problem(cert_field, cert_path, held[cert_field], problems)
    chain = (
        _parse_certificates(cert_field, cert_path, certificate, problems) if certificate is not None else []
    )
    key = _content_or_problem(key_field, key_path, held[key_field], problems)
    if key is not None and (actual := _private_key_problem(key, chain, cert_path)):
        problems.append(
            Problem(key_field, f"{key_path} {actual}", "the private key of the certificate, in PEM")
        )
    if problems or certificate is None or key is None:
        raise BadSettings(CERTIFICATE_FILES, problems)
    try:
        load_pair_into_ssl_context(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
    except (ssl.SSLError, OSError) as error:
        problem = Problem(cert_field, f"{cert_path} with {key_path}: {error}", "a pair that OpenSSL takes")
        raise BadSettings(CERTIFICATE_FILES, [problem]) from error
    return X509KeyPair(certificate, key, tuple(chain))


def read_trusted_certificates(paths: Paths, held: Contents) -> CertificateBundle:
    """The trusted certificates of one path. BadSettings if there are none or they cannot be read."""
    problems: list[Problem] = []
    ((field, path),) = paths.items()
    text = _content_or_problem(field, path, held[field], problems)
    authorities = _parse_certificates(field, path, text, problems) if text is not None else []
    if problems or text is None:
        raise BadSettings(CERTIFICATE_FILES, problems)
    try:
        add_trusted_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authorities)
    except ssl.SSLError as error:
        problem = Problem(field, f"{path}: {error}", "certificates that OpenSSL takes")
        raise BadSettings(CERTIFICATE_FILES, [problem]) from error
    return CertificateBundle(text, tuple(authorities))


def load_pair_into_ssl_context(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a PEM pair into a context, which takes pairs from files only. ssl.SSLError where it is none."""
    with _temporary_file_path(certificate) as cert_path, _temporary_file_path(key) as key_path:
        # an empty password, as without one OpenSSL would ask for it on the terminal and wait
        context.load_cert_chain(cert_path, key_path, password="")


def add_trusted_certificates(context: ssl.SSLContext, authorities: Sequence[x509.Certificate]) -> None:
    """Add trusted certificates to a context. ssl.SSLError if OpenSSL rejects them."""
    ders = (authority.public_bytes(serialization.Encoding.DER) for authority in authorities)
    context.load_verify_locations(cadata=b"".join(ders))


@contextlib.contextmanager
def _temporary_file_path(content: bytes) -> Iterator[str]:
    """A path of a temporary file with these bytes, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("nodewise"), "w+b") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            yield file.name


def _content_or_problem(
    field: str, path: str, content: bytes | _UnreadableFile, problems: list[Problem]
) -> bytes | None:
    """The content of the file; None with an entry in `problems` if it is not set or cannot be read."""
    if not path:
        problems.append(Problem(field, "is not given", "the path of a PEM file"))
    elif isinstance(content, _UnreadableFile):
        problems.append(Problem(field, f"{path}: {content.why}", "a readable PEM file"))
    else:
        return content
    return None


def _parse_certificates(field: str, path: str, pem: bytes, problems: list[Problem]) -> list[x509.Certificate]:
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError:
        problems.append(Problem(field, f"{path} holds no certificate that can be read", "PEM certificates"))
        return []
    # The parser skips a block without an end, so that a file would lose its last authority while it is being written.
    begun = pem.count(b"-----BEGIN CERTIFICATE") + pem.count(b"-----BEGIN X509 CERTIFICATE")
    last_line = pem.rstrip().rpartition(b"\n")[2]
    if begun == len(certificates) and last_line and b"-----BEGIN CERTIFICAT".startswith(last_line):
        begun += 1
    if len(certificates) < begun:
        actual = f"{path} begins {begun} certificates, of which {len(certificates)} are complete"
        problems.append(Problem(field, actual, "complete PEM certificates"))
    return certificates


def _private_key_problem(pem: bytes, chain: Sequence[x509.Certificate], cert_path: str) -> str:
    """The problem of a key: invalid, encrypted, or not the key of the first certificate. Empty if there is none."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        return "is encrypted"
    except (ValueError, UnsupportedAlgorithm):
        return "holds no private key that can be read"
    try:
        matches = not chain or _public_key_bytes(key.public_key()) == _public_key_bytes(chain[0].public_key())
    except (ValueError, UnsupportedAlgorithm):
        return f"cannot be compared with the public key of {cert_path}"
    return "" if matches else f"does not match {cert_path}"


def _public_key_bytes(key: object) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.DER, form)  # type: ignore[attr-defined, no-any-return]
