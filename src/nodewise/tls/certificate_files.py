"""Reads and validates certificate files, reloads them when they change, and warns before certificates expire.

Unusable content never replaces the content in use: a certificate whose key has not been written yet, an empty file, an
expired certificate. It is logged, counted in a metric, and tried again.
"""

import contextlib
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from nodewise.base.clock import Clock, format_rfc3339
from nodewise.base.errors import BadSettings, Problem
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry

if TYPE_CHECKING:
    from cryptography import x509
# memory: cryptography takes 10 MiB and is imported where a certificate is decoded. A controller in a pod usually
# decodes none: those of the cluster's authorities are read by `read_authorities`

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
    chain: "tuple[x509.Certificate, ...]"

    def begin_s(self) -> float:
        """The start of its validity, in seconds since 1970."""
        return self.chain[0].not_valid_before_utc.timestamp()

    def end_s(self, _now_s: float) -> float:
        """The end of its validity. Certificates of the chain may have expired, such as old cross-signatures."""
        return self.chain[0].not_valid_after_utc.timestamp()


class ValidityPeriod(NamedTuple):
    """The time in which a certificate is valid, in seconds since 1970."""

    begin_s: float
    end_s: float


class CertificateBundle(NamedTuple):
    """Trusted certificates as PEM, with their validity."""

    pem: bytes
    periods: tuple[ValidityPeriod, ...]

    def authorities(self) -> "tuple[x509.Certificate, ...]":
        """The decoded certificates."""
        return _decode_certificates(self.pem)

    def begin_s(self) -> float:
        """The earliest start of validity, in seconds since 1970."""
        return min(period.begin_s for period in self.periods)

    def end_s(self, now_s: float) -> float:
        """The next end of validity; the last one if all have expired."""
        ends = [period.end_s for period in self.periods]
        return min((end for end in ends if end > now_s), default=max(ends))


def read_contents(paths: Paths) -> Contents:
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
    validity = ((each.not_valid_before_utc, each.not_valid_after_utc) for each in authorities)
    return CertificateBundle(
        text, tuple(ValidityPeriod(begin.timestamp(), end.timestamp()) for begin, end in validity)
    )


def read_authorities(paths: Paths, held: Contents) -> CertificateBundle:
    """The trusted certificates of one path for a client, which needs only PEM and validity. OpenSSL reads a file with
    nothing but complete certificates of different authorities, which is usual; others are read as above.
    """
    pem = held[next(iter(paths))]
    if isinstance(pem, bytes) and (periods := _read_periods_with_openssl(pem)):
        return CertificateBundle(pem, periods)
    return read_trusted_certificates(paths, held)


def _read_periods_with_openssl(pem: bytes) -> tuple[ValidityPeriod, ...]:
    """The validity of each certificate; empty if OpenSSL does not read all of them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        text = pem.decode("ascii")
        context.load_verify_locations(cadata=text)
        certificates = context.get_ca_certs()
        # OpenSSL queues an error for a certificate with invalid extensions, with which the next use of TLS would fail.
        # Reading PEM again clears the queue.
        context.load_verify_locations(cadata=text)
        periods = tuple(
            ValidityPeriod(*(ssl.cert_time_to_seconds(str(each[key])) for key in ("notBefore", "notAfter")))
            for each in certificates
        )
    except (ValueError, ssl.SSLError):
        return ()
    begun, is_complete = pem.count(b"-----BEGIN"), pem.rstrip().endswith(b"-----END CERTIFICATE-----")
    counts = {begun, pem.count(b"-----BEGIN CERTIFICATE-----"), context.cert_store_stats()["x509"]}
    return periods if is_complete and counts == {len(periods)} else ()


def load_pair_into_ssl_context(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a PEM pair into a context, which takes pairs from files only. ssl.SSLError where it is none."""
    with _temporary_file_path(certificate) as cert_path, _temporary_file_path(key) as key_path:
        # an empty password, as without one OpenSSL would ask for it on the terminal and wait
        context.load_cert_chain(cert_path, key_path, password="")


def add_trusted_certificates(context: ssl.SSLContext, authorities: "Sequence[x509.Certificate]") -> None:
    """Add trusted certificates to a context. ssl.SSLError if OpenSSL rejects them."""
    from cryptography.hazmat.primitives import serialization

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


@lru_cache(maxsize=8)
def _decode_certificates(pem: bytes) -> "tuple[x509.Certificate, ...]":
    from cryptography import x509

    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from error


def _parse_certificates(
    field: str, path: str, pem: bytes, problems: list[Problem]
) -> "Sequence[x509.Certificate]":
    try:
        certificates = _decode_certificates(pem)
    except ValueError:
        problems.append(Problem(field, f"{path} holds no certificate that can be read", "PEM certificates"))
        return ()
    # The parser skips a block without an end, so that a file would lose its last authority while it is being written.
    begun = pem.count(b"-----BEGIN CERTIFICATE") + pem.count(b"-----BEGIN X509 CERTIFICATE")
    last_line = pem.rstrip().rpartition(b"\n")[2]
    if begun == len(certificates) and last_line and b"-----BEGIN CERTIFICAT".startswith(last_line):
        begun += 1
    if len(certificates) < begun:
        actual = f"{path} begins {begun} certificates, of which {len(certificates)} are complete"
        problems.append(Problem(field, actual, "complete PEM certificates"))
    return certificates


def _private_key_problem(pem: bytes, chain: "Sequence[x509.Certificate]", cert_path: str) -> str:
    """The problem of a key: invalid, encrypted, or not the key of the first certificate. Empty if there is none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    from nodewise.tls.x509_certificates import public_key_as_der

    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        return "is encrypted"
    except (ValueError, UnsupportedAlgorithm):
        return "holds no private key that can be read"
    try:
        matches = not chain or public_key_as_der(key.public_key()) == public_key_as_der(chain[0].public_key())
    except (ValueError, UnsupportedAlgorithm):
        return f"cannot be compared with the public key of {cert_path}"
    return "" if matches else f"does not match {cert_path}"


SOON_S: Final = 7 * 86400.0
"""A certificate that expires within this time is logged once a day."""

_DAY_S: Final = 86400.0
_AGAIN_S: Final = 60.0  # unusable content is retried even if unchanged: a certificate may become valid

T = TypeVar("T", X509KeyPair, CertificateBundle)


class ReloadableFiles(Generic[T]):
    """The last usable content of certificate files. It changes only in `poll`."""

    def __init__(
        self,
        name: str,
        paths: Paths,
        read: Callable[[Paths, Contents], T],
        metrics_registry: MetricsRegistry,
        now_s: float,
    ) -> None:
        """`name` is the label of metrics. BadSettings names every problem of the files.

        An expired certificate is accepted at the start: it is better to present it and to reload a renewed one than not
        to run.
        """
        self._name = name
        self._paths = paths
        self._read: Callable[[Paths, Contents], T] = read
        self._metrics_registry = metrics_registry
        self._seen = self._tried = read_contents(paths)
        self._problem = ""
        self._again_at_s = float("-inf")
        self._warn_at_s = float("-inf")
        self.value: T = read(paths, self._tried)
        self._set_metrics(now_s)

    def poll(self, now_s: float) -> bool:
        """Reread changed files. Returns True if they have new usable content.

        A change takes effect when two consecutive calls read the same content: `cat old new > bundle` has only the old
        content for a moment, and two files are written one after the other.
        """
        changed = self._is_due(now_s) and self._reload_changed_files(now_s)
        left_s = self.value.end_s(now_s) - now_s
        if left_s < SOON_S and now_s >= self._warn_at_s:
            self._warn_at_s = now_s + _DAY_S
            event = "certificate_expires_soon" if left_s > 0 else "certificate_expired"
            logs.emit(event, **self._log_fields(now_s))
        return changed

    def _is_due(self, now_s: float) -> bool:
        """Compares the whole content: the files are small, and a replaced file may have the same size and time."""
        before, self._seen = self._seen, read_contents(self._paths)
        if self._seen != before:
            return False
        news = self._seen != self._tried
        self._tried = self._seen
        return news or (bool(self._problem) and now_s >= self._again_at_s)

    def _reload_changed_files(self, now_s: float) -> bool:
        try:
            fresh = self._read(self._paths, self._tried)
            self._check_validity_period(fresh, now_s)
        except BadSettings as error:
            self._record_failed_reload(str(error), now_s)
            return False
        changed = fresh != self.value
        self.value = fresh
        self._problem = ""
        self._warn_at_s = now_s
        self._set_metrics(now_s)
        self._metrics_registry.count("tls_reloads_total", certificate=self._name, outcome="done")
        logs.emit("tls_reloaded", **self._log_fields(now_s))
        return changed

    def _check_validity_period(self, fresh: T, now_s: float) -> None:
        field, path = next(iter(self._paths.items()))
        end_s, begin_s = fresh.end_s(now_s), fresh.begin_s()
        if end_s > now_s >= begin_s:
            return
        actual = f"expired at {format_rfc3339(end_s)}"
        if begin_s > now_s:
            actual = f"is not valid before {format_rfc3339(begin_s)}"
        raise BadSettings.of(CERTIFICATE_FILES, field, f"{path} {actual}", "a certificate that is valid now")

    def _record_failed_reload(self, problem: str, now_s: float) -> None:
        self._again_at_s = now_s + _AGAIN_S
        if problem == self._problem:
            return
        self._problem = problem
        self._set_metrics(now_s)
        self._metrics_registry.count("tls_reloads_total", certificate=self._name, outcome="failed")
        logs.emit("tls_reload_failed", error=problem, **self._log_fields(now_s))

    def _set_metrics(self, now_s: float) -> None:
        self._metrics_registry.set("tls_reload_failing", int(bool(self._problem)), certificate=self._name)
        end_s = self.value.end_s(now_s)
        self._metrics_registry.set("tls_certificate_expires_seconds", end_s, certificate=self._name)

    def _log_fields(self, now_s: float) -> dict[str, str]:
        """The fields of each log line: certificate, files, and expiry of the one in use."""
        end = format_rfc3339(self.value.end_s(now_s))
        return {"certificate": self._name, "files": ", ".join(self._paths.values()), "expires": end}


class CertificateReloader:
    """Polls several certificate files together, at most once in `every_s`."""

    def __init__(
        self,
        files: Sequence[ReloadableFiles[X509KeyPair] | ReloadableFiles[CertificateBundle]],
        clock: Clock,
        every_s: float = 1.0,
    ) -> None:
        self._files = files
        self._clock = clock
        self._every_s = every_s
        self._next_s = float("-inf")

    def poll(self) -> bool:
        """Whether any of them has new content."""
        now_s = self._clock.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self._every_s
        # a list, so that all files are polled even if the first one has changed
        changed = [reloadable.poll(self._clock.now()) for reloadable in self._files]
        return any(changed)
