"""A certificate authority for tests, and certificate files for servers and clients."""

import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


class CertificatePair(NamedTuple):
    """The PEM files of a certificate and of its private key."""

    cert: Path
    key: Path

    def replace(self, issued: "IssuedCertificate") -> None:
        """Replaces both files, each by a rename, the certificate first. Between the two renames they do not match."""
        for path, text in zip(self, issued, strict=True):
            fresh = path.with_name(f".{path.name}.new")
            fresh.write_bytes(text)
            fresh.rename(path)

    def swap(self, issued: "IssuedCertificate") -> None:
        """Replaces both files in one step, as a kubelet does: they are links through a link `..data`, which gets a new
        target.
        """
        folder = self.cert.parent
        timed = folder / f"..{time.monotonic_ns()}"
        timed.mkdir()
        CertificatePair(timed / self.cert.name, timed / self.key.name).write(issued)
        data = folder / f"..data-{self.cert.stem}"
        _link(data, timed.name)
        for path in self:
            if not path.is_symlink():
                _link(path, f"{data.name}/{path.name}")

    def write(self, issued: "IssuedCertificate") -> None:
        """Overwrites both files."""
        for path, text in zip(self, issued, strict=True):
            path.write_bytes(text)


class IssuedCertificate(NamedTuple):
    """A certificate and its private key, both in PEM format."""

    cert: bytes
    key: bytes

    @property
    def serial(self) -> str:
        """The serial number in the format of the module `ssl`."""
        return f"{x509.load_pem_x509_certificate(self.cert).serial_number:X}"


class CertificateAuthority:
    """A CA that writes certificates into a folder; `ca_file` is the file that the other side must trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA(organization_name="nodewise tests", organization_unit_name=name)
        self._folder = folder
        self.ca_file = folder / f"{name}.crt"
        self._ca.cert_pem.write_to_path(str(self.ca_file))

    @property
    def ca_pem(self) -> bytes:
        return self._ca.cert_pem.bytes()

    def key_file(self) -> Path:
        """Writes the CA's private key beside its certificate, for programs that sign with it, and returns the file."""
        file = self.ca_file.with_suffix(".key")
        self._ca.private_key_pem.write_to_path(str(file))
        return file

    def issue(self, name: str, *hosts: str, group: str = "") -> CertificatePair:
        """Issues a certificate for the common name `name` and for `hosts`. Kubernetes takes `group` for the user's
        group.

        A client certificate has a host name too: Go refuses a certificate whose list of names is empty.
        """
        file = _file_of(name)
        pair = CertificatePair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        pair.write(self.issued(name, *hosts, group=group))
        return pair

    def issued(self, name: str, *hosts: str, group: str = "", days: float = 30) -> IssuedCertificate:
        """Issues a certificate in memory, valid for `days` from now; if `days` is negative, the certificate has
        expired.
        """
        leaf = self._ca.issue_cert(
            *(hosts or [_file_of(name)]),
            common_name=name,
            organization_name=group or None,
            not_before=datetime.now(UTC) - timedelta(days=60),
            not_after=datetime.now(UTC) + timedelta(days=days),
        )
        return IssuedCertificate(leaf.cert_chain_pems[0].bytes(), leaf.private_key_pem.bytes())

    def client_context(self, pair: CertificatePair | None = None) -> ssl.SSLContext:
        """The TLS context of a client that trusts this CA and presents `pair`, or no certificate."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if pair:
            context.load_cert_chain(pair.cert, pair.key)
        return context


def _link(path: Path, to: str) -> None:
    """Replaces a path by a symbolic link."""
    fresh = path.with_name(f"{path.name}.link")
    fresh.symlink_to(to)
    fresh.rename(path)


def _file_of(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")


def signing_key(folder: Path, name: str) -> CertificatePair:
    """Creates a key pair to sign and verify service account tokens; `cert` is the public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    pair = CertificatePair(folder / f"{name}.pub", folder / f"{name}.key")
    pair.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair.cert.write_bytes(public)
    return pair
