"""A certificate authority of a test's own, and the files that servers and clients want from it."""

import ssl
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Pair(NamedTuple):
    """The files of a certificate and of its private key, both PEM."""

    cert: Path
    key: Path


class Authority:
    """A CA that issues into a folder; `ca_file` is what the other side has to trust."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA(organization_name="nodewise tests", organization_unit_name=name)
        self._folder = folder
        self.ca_file = folder / f"{name}.crt"
        self._ca.cert_pem.write_to_path(str(self.ca_file))

    @property
    def ca_pem(self) -> bytes:
        return self._ca.cert_pem.bytes()

    def issue(self, name: str, *hosts: str, group: str = "") -> Pair:
        """A certificate for the common name `name` and for `hosts`; to Kubernetes `group` is the user's
        group.

        A client gets a host name too: Go refuses a certificate whose list of names is empty.
        """
        file = name.replace(":", "-").replace("/", "-")
        leaf = self._ca.issue_cert(*(hosts or [file]), common_name=name, organization_name=group or None)
        pair = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        leaf.cert_chain_pems[0].write_to_path(str(pair.cert))
        leaf.private_key_pem.write_to_path(str(pair.key))
        return pair

    def client_context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this CA and shows `pair`, or nothing."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if pair:
            context.load_cert_chain(pair.cert, pair.key)
        return context


def signing_key(folder: Path, name: str) -> Pair:
    """A bare key pair, as service-account tokens are signed and checked with; `cert` is the public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    pair = Pair(folder / f"{name}.pub", folder / f"{name}.key")
    pair.key.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    pair.cert.write_bytes(public)
    return pair
