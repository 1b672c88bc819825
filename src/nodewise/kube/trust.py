"""TLS towards the API server: whom we trust, and the certificate we show."""

import ssl
import tempfile
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from nodewise.clock import format_rfc3339
from nodewise.errors import BadSettings, Problem
from nodewise.kube.kubeconfig import Chosen

_REMEDY: Final = "renew the credentials in the kubeconfig"


def context(chosen: Chosen) -> ssl.SSLContext:
    """What verifies the server and identifies us. `BadSettings` where a file is missing or does not fit."""
    what = f"kubeconfig {chosen.source}, context {chosen.name}"
    made = _verifying(chosen, what)
    pair = _pair(chosen.user, what)
    if pair is not None:
        load(made, *pair, what)
    return made


def load(context: ssl.SSLContext, certificate: bytes, key: bytes, what: str) -> None:
    """Load a PEM pair into a context; new connections show it. The ssl module takes pairs from files only."""
    with tempfile.TemporaryDirectory(prefix="nodewise-") as folder:
        paths = Path(folder, "certificate"), Path(folder, "key")
        for path, text in zip(paths, (certificate, key), strict=True):
            path.touch(mode=0o600)
            path.write_bytes(text)
        try:
            # an empty password, as without one OpenSSL would ask for it on the terminal and wait
            context.load_cert_chain(*paths, password="")
        except (ssl.SSLError, ValueError) as error:
            problem = Problem("client-certificate, client-key", _reason(error), "an unencrypted pair in PEM")
            raise BadSettings(what, [problem], remedy="is the key the one of this certificate?") from error


def expiry(chosen: Chosen, now_s: float) -> str:
    """What to say when our credentials are refused: that the client certificate is over, if it is."""
    try:
        pair = _pair(chosen.user, "")
        ends = x509.load_pem_x509_certificate(pair[0]).not_valid_after_utc.timestamp() if pair else now_s
    except (BadSettings, ValueError):
        return ""
    if ends >= now_s:
        return ""
    return f"the client certificate of {chosen.source} expired at {format_rfc3339(ends)}: {_REMEDY}"


def authority(chosen: Chosen) -> bytes:
    """The certificates, in PEM, that the server is verified against; empty: those of the system."""
    what = f"kubeconfig {chosen.source}, context {chosen.name}"
    return _bytes(chosen.cluster, "certificate-authority", what)


def _verifying(chosen: Chosen, what: str) -> ssl.SSLContext:
    trusted = authority(chosen)
    try:
        made = ssl.create_default_context(cadata=trusted.decode("ascii") if trusted else None)
    except (ssl.SSLError, ValueError) as error:
        problem = Problem("certificate-authority", _reason(error), "certificates in PEM")
        raise BadSettings(what, [problem]) from error
    if chosen.cluster.get("insecure-skip-tls-verify"):
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    # Python 3.13 is stricter than Go: it would refuse the CAs without an Authority Key Identifier that
    # clusters in the field have, and that every other client accepts
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return made


def _pair(user: Mapping[str, Any], what: str) -> tuple[bytes, bytes] | None:
    certificate, key = _bytes(user, "client-certificate", what), _bytes(user, "client-key", what)
    if bool(certificate) != bool(key):
        missing = "client-key" if certificate else "client-certificate"
        raise BadSettings(what, [Problem(missing, "not set", "certificate and key, or neither")])
    return (certificate, key) if certificate else None


def _bytes(section: Mapping[str, Any], field: str, what: str) -> bytes:
    """What a field gives: inline (`-data`, which wins as in client-go), or as a file; empty if not set."""
    try:
        if inline := section.get(f"{field}-data"):
            return b64decode(inline, validate=True)
        return Path(path).read_bytes() if (path := section.get(field)) else b""
    except (OSError, Base64Error, ValueError, TypeError) as error:
        wanted = "base64 in -data, or a file that can be read"
        raise BadSettings(what, [Problem(field, str(error), wanted)]) from error


def _reason(error: Exception) -> str:
    """OpenSSL's own word without its numbers and source lines: `KEY_VALUES_MISMATCH`."""
    return getattr(error, "reason", None) or str(error)
