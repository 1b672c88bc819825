import ipaddress
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import DNSName, IPAddress, Name
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from nodewise.doctor.parsing import certificates
from nodewise.tls import x509_certificates
from nodewise.tls.x509_certificates import CertificateIssuer

NOW = datetime(2026, 7, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = ("nodewise.nodewise.svc", "10.0.0.1", "::1")


@pytest.fixture(scope="module")
def issuer() -> CertificateIssuer:
    return CertificateIssuer("nodewise-ca-1", NOW, 30 * DAY)


def policy(issuer: CertificateIssuer, at: datetime = NOW) -> PolicyBuilder:
    return PolicyBuilder().store(Store(x509.load_pem_x509_certificates(issuer.cert))).time(at)


@pytest.mark.parametrize("name", NAMES)
def test_a_servers_certificate_is_verified_for_each_of_its_names(
    issuer: CertificateIssuer, name: str
) -> None:
    leaf = x509.load_pem_x509_certificate(issuer.server(NAMES, NAMES[0]).cert)
    subject = (
        IPAddress(ipaddress.ip_address(name)) if x509_certificates.is_ip_address(name) else DNSName(name)
    )
    assert policy(issuer).build_server_verifier(subject).verify(leaf, [])[0] == leaf
    with pytest.raises(VerificationError):
        policy(issuer).build_server_verifier(DNSName("other.nodewise.svc")).verify(leaf, [])
    with pytest.raises(VerificationError):
        policy(issuer, NOW + 31 * DAY).build_server_verifier(subject).verify(leaf, [])
    with pytest.raises(VerificationError):
        policy(CertificateIssuer("nodewise-ca-1", NOW, DAY)).build_server_verifier(subject).verify(leaf, [])


def test_a_clients_certificate_is_verified_as_a_clients_and_as_no_servers(issuer: CertificateIssuer) -> None:
    leaf = x509.load_pem_x509_certificate(issuer.client("nodewise-scheduler-client").cert)
    verified = policy(issuer).build_client_verifier().verify(leaf, [])
    assert verified.subjects == [DNSName("nodewise-scheduler-client")]
    with pytest.raises(VerificationError):
        policy(issuer).build_server_verifier(DNSName("nodewise-scheduler-client")).verify(leaf, [])
    server = x509.load_pem_x509_certificate(issuer.server(NAMES, NAMES[0]).cert)
    with pytest.raises(VerificationError):
        policy(issuer).build_client_verifier().verify(server, [])


def test_a_name_that_no_host_has_stands_in_the_subject_alone(issuer: CertificateIssuer) -> None:
    made = issuer.client("system:kube-scheduler")
    leaf = x509.load_pem_x509_certificate(made.cert)
    assert leaf.subject == Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:kube-scheduler")])
    assert x509.SubjectAlternativeName not in {type(extension.value) for extension in leaf.extensions}
    uses = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert serialization.load_pem_private_key(made.key, None).public_key() == leaf.public_key()


@pytest.mark.parametrize(
    ("name", "is_host"),
    [
        ("a.b", True),
        ("A-1", True),
        ("-a", False),
        ("a..b", False),
        ("a_b", False),
        ("", False),
        ("a" * 64, False),
    ],
)
def test_valid_host_names(name: str, is_host: bool) -> None:
    assert x509_certificates.is_host(name) is is_host


def test_duplicate_extension_is_treated_as_unreadable(issuer: CertificateIssuer) -> None:
    """OpenSSL and cryptography load such a certificate; only its extensions cannot be read."""
    pem = issuer.client("a").cert
    key_usage, alternative_name = (bytes.fromhex(f"0603551d{last}") for last in ("0f", "11"))
    der = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    twice = x509.load_der_x509_certificate(der.replace(alternative_name, key_usage))
    with pytest.raises(x509.DuplicateExtension):
        _ = twice.extensions
    assert x509_certificates.is_ca(twice)
    assert not x509_certificates.is_marked_as_ca(twice)
    assert x509_certificates.certificate_names(twice) == []
    [parsed] = certificates.parse_pem(twice.public_bytes(serialization.Encoding.PEM))
    assert parsed.names == ("a",)
    assert not parsed.for_client
