"""Certificates like those of `nodewise certs`, with the extended key usage for either servers or clients."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.cluster import child_processes, extender_process, shipped_installation
from tests.cluster.certificates import CertificateAuthority, CertificatePair

SERVER, CLIENT_USE = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
CLIENT: Final = "nodewise-scheduler-client"
"""The common name of kube-scheduler's certificate, which nodewise requires."""


class PurposeCertificates(extender_process.CertificateFiles):
    """The certificates of replicas at an address of this machine and of kube-scheduler; `leaf` issues others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = CertificateAuthority(folder, "nodewise-ca")
        hosts = (child_processes.own_address(), shipped_installation.HOST)
        self.server = self.leaf("server", self.authority, *hosts, use=SERVER)
        self.client = self.leaf(CLIENT, self.authority)

    def leaf(
        self,
        name: str,
        by: CertificateAuthority,
        *hosts: str,
        use: x509.ObjectIdentifier = CLIENT_USE,
        days: int = 365,
    ) -> CertificatePair:
        """Issues a certificate for one key usage that expires in `days`, and writes it with its key."""
        ca = x509.load_pem_x509_certificate(by.ca_pem)
        signing = serialization.load_pem_private_key(by.key_file().read_bytes(), None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) - timedelta(days=90))
            .not_valid_after(datetime.now(UTC) + timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName(list(map(_name, hosts or [name]))), critical=False)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .sign(signing, hashes.SHA256())
        )
        file = self.folder / f"leaf-{child_processes.number()}"
        pair = CertificatePair(file.with_suffix(".crt"), file.with_suffix(".key"))
        form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        pair.cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
        return pair


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
