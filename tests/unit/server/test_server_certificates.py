import asyncio
import datetime as dt
import socket
import ssl
import time

import anyio.to_thread
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID
from structlog.testing import capture_logs

from nodewise.base.errors import BadSettings
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server import server_certificates
from nodewise.server.server_certificates import ServerCertificates
from tests.unit.server.certificate_files import NAMES, issue
from tests.unit.server.raw_http_client import (
    ECHO,
    BlockingHandler,
    RefusedError,
    count_ended,
    count_reloads,
    counted_close_reasons,
    encode_request,
    is_reload_failing,
    metric_value,
    open_client,
    run_server,
    send_request,
    wait_until,
)

PATIENCE_S = 60.0


async def rejection_of(tls_files, context: ssl.SSLContext, **changes) -> tuple[str, str]:
    """The close reason that the server counted, and the client's error."""
    metrics_registry = MetricsRegistry()
    async with run_server(tls_files.options(**changes), metrics_registry=metrics_registry) as server:
        with pytest.raises(RefusedError) as caught:
            await send_request(server, context)
        await wait_until(lambda: counted_close_reasons(metrics_registry))
        assert (await send_request(server, tls_files.context())).status == 200
    (reason,) = counted_close_reasons(metrics_registry)
    return reason, str(caught.value)


# accepted clients


async def test_a_certificate_of_the_client_ca_is_served(tls_files):
    async with run_server(tls_files.options()) as server:
        assert (await send_request(server, tls_files.context())).status == 200


async def test_no_certificate_is_asked_of_any_client(tls_files, metrics_registry):
    """A server without client certificates also reloads its own certificate."""
    async with run_server(
        tls_files.options(client_ca=""), metrics_registry=metrics_registry, verify_clients=False
    ) as server:
        assert (await send_request(server, tls_files.trusting())).status == 200
        assert (await send_request(server, tls_files.context())).status == 200
        other = trustme.CA()
        tls_files.write(other.issue_cert(*NAMES))
        await wait_until(lambda: count_reloads(metrics_registry, "serving") == 1)
        assert (await send_request(server, tls_files.trusting(other))).status == 200


def tls_1_1(tls_files) -> ssl.SSLContext:
    context = tls_files.context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


def tls_1_2_with(cipher: str):
    def make(tls_files) -> ssl.SSLContext:
        context = tls_files.context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(cipher)
        return context

    return make


def offering_h2(tls_files) -> ssl.SSLContext:
    context = tls_files.context()
    context.set_alpn_protocols(["h2"])
    return context


REJECTED = {
    "no certificate": (lambda files: files.trusting(), "no_certificate", "CERTIFICATE_REQUIRED"),
    "another CA": (
        lambda files: files.context(trustme.CA().issue_cert("scheduler.example")),
        "unknown_ca",
        "UNKNOWN_CA",
    ),
    "only for servers": (
        lambda files: files.odd_client(usage=ExtendedKeyUsageOID.SERVER_AUTH),
        "purpose",
        "CERTIFICATE",
    ),
    "expired": (lambda files: files.odd_client(days=-1), "expired", "EXPIRED"),
    "TLS 1.1": (tls_1_1, "protocol_version", "PROTOCOL_VERSION"),
    "AES-128-GCM": (tls_1_2_with("ECDHE-ECDSA-AES128-GCM-SHA256"), "cipher", ""),
    "ChaCha20": (tls_1_2_with("ECDHE-ECDSA-CHACHA20-POLY1305"), "cipher", ""),
    "AES-256-CBC": (tls_1_2_with("ECDHE-ECDSA-AES256-SHA384"), "cipher", ""),
    "only h2": (offering_h2, "alpn", "no application protocol"),
}


@pytest.mark.parametrize(("make", "reason", "error"), REJECTED.values(), ids=REJECTED)
async def test_a_client_is_rejected_with_the_reason(tls_files, make, reason, error):
    counted, text = await rejection_of(tls_files, make(tls_files))
    assert counted == reason
    assert error in text


async def test_a_client_that_does_not_trust_our_certificate(tls_files, metrics_registry):
    context = tls_files.trusting(trustme.CA())

    def call(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as raw, pytest.raises(ssl.SSLError):
            context.wrap_socket(raw, server_hostname="localhost")

    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        await anyio.to_thread.run_sync(call, server.port)
        await wait_until(lambda: counted_close_reasons(metrics_registry) == ["distrusted"])


async def test_a_client_that_leaves_in_the_middle_of_the_handshake(tls_files, metrics_registry):
    """asyncio's client does this when it rejects the server's certificate. It sends no alert."""
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        with pytest.raises(RefusedError):
            await send_request(server, tls_files.trusting(trustme.CA()))
        await wait_until(lambda: counted_close_reasons(metrics_registry) == ["abandoned"])


@pytest.mark.parametrize(
    ("version", "suite"), [("TLSv1_2", "ECDHE-ECDSA-AES256-GCM-SHA384"), ("TLSv1_3", "")]
)
async def test_negotiated_version_cipher_and_protocol(tls_files, version, suite):
    context = tls_files.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with run_server(tls_files.options()) as server, open_client(server, context) as caller:
        secured = caller.writer.get_extra_info("ssl_object")
        assert secured.version().replace(".", "_") == version
        assert secured.selected_alpn_protocol() == "http/1.1"
        assert suite in secured.cipher()[0]
        assert (await caller.ask("/echo")).status == 200


async def test_an_rsa_certificate_is_served_with_the_rsa_suite(tls_files):
    tls_files.write(tls_files.server_ca.issue_cert(*NAMES, key_type=trustme.KeyType.RSA))
    context = tls_files.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with run_server(tls_files.options()) as server, open_client(server, context) as caller:
        cipher = caller.writer.get_extra_info("ssl_object").cipher()[0]
        assert cipher == "ECDHE-RSA-AES256-GCM-SHA384"
        assert (await caller.ask("/echo")).status == 200


# reading the files again


async def served_serial(tls_files, server) -> int:
    """The serial number of the certificate that the server presents."""
    async with open_client(server, tls_files.context()) as caller:
        shown = caller.writer.get_extra_info("ssl_object").getpeercert()
        assert (await caller.ask("/echo")).status == 200
        return int(shown["serialNumber"], 16)


async def test_a_new_server_certificate_is_shown_and_old_connections_go_on(tls_files, metrics_registry):
    async with (
        run_server(tls_files.options(), metrics_registry=metrics_registry) as server,
        open_client(server, tls_files.context()) as old,
    ):
        before = await served_serial(tls_files, server)
        tls_files.write(tls_files.server_ca.issue_cert(*NAMES))
        await wait_until(lambda: count_reloads(metrics_registry, "serving") == 1)
        assert await served_serial(tls_files, server) != before
        answer = await old.ask("/echo")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await old.rest() == b""


async def test_a_connection_is_closed_with_the_next_answer_when_it_is_old(tls_files, metrics_registry):
    """A renewed client certificate is also used if calls follow each other without a pause."""
    options = tls_files.options(connection_age_s=0.1)
    async with (
        run_server(options, metrics_registry=metrics_registry) as server,
        open_client(server, tls_files.context()) as old,
    ):
        answers = [await old.ask("/echo")]
        async with asyncio.timeout(PATIENCE_S):
            while "connection" not in answers[-1].headers:
                answers.append(await old.ask("/echo"))
        assert {answer.status for answer in answers} == {200}
        assert await old.rest() == b""


async def test_the_first_end_of_the_clients_certificates_is_a_metric(tls_files, metrics_registry):
    name, label = "tls_certificate_expires_seconds", {"certificate": "clients"}
    early = tls_files.odd_client(days=1)
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        async with open_client(server, tls_files.context()), open_client(server, early):
            await wait_until(lambda: 0 < metric_value(metrics_registry, name, **label) < time.time() + 86400)
        await wait_until(lambda: metric_value(metrics_registry, name, **label) == 0)


async def test_a_swapped_folder_is_noticed_as_with_a_mounted_secret(tls_files, tmp_path, metrics_registry):
    """Kubernetes swaps the symbolic link `..data` to a new folder; the files' own paths stay."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        tls_files.folder = tmp_path / name
        tls_files.write(tls_files.server_ca.issue_cert(*NAMES))
        tls_files.write_client_ca(tls_files.client_ca)
    tls_files.folder = tmp_path / "..data"
    tls_files.folder.symlink_to(tmp_path / "first")
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        before = await served_serial(tls_files, server)
        fresh = tmp_path / "..data_tmp"
        fresh.symlink_to(tmp_path / "second")
        fresh.rename(tls_files.folder)
        await wait_until(lambda: count_reloads(metrics_registry, "serving") == 1)
        assert await served_serial(tls_files, server) != before


async def test_a_rotation_caught_halfway_keeps_the_old_pair_until_it_is_whole(tls_files, metrics_registry):
    fresh = tls_files.server_ca.issue_cert(*NAMES)
    with capture_logs() as lines:
        async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
            before = await served_serial(tls_files, server)
            tls_files.cert.write_bytes(fresh.cert_chain_pems[0].bytes())
            await wait_until(lambda: is_reload_failing(metrics_registry, "serving") == 1)
            assert await served_serial(tls_files, server) == before
            tls_files.key.write_bytes(fresh.private_key_pem.bytes())
            await wait_until(lambda: is_reload_failing(metrics_registry, "serving") == 0)
            assert await served_serial(tls_files, server) != before
    failed = [line for line in lines if line["event"] == "tls_reload_failed"]
    assert len(failed) == 1
    assert f"{tls_files.key} does not match {tls_files.cert}" in failed[0]["error"]


async def test_a_ca_that_was_taken_away_is_not_trusted_even_while_the_pair_cannot_be_used(
    tls_files, metrics_registry
):
    fresh = trustme.CA()
    async with (
        run_server(tls_files.options(), metrics_registry=metrics_registry) as server,
        open_client(server, tls_files.context()) as old,
    ):
        assert (await old.ask("/echo")).status == 200
        tls_files.key.write_text("")
        tls_files.write_client_ca(fresh)
        assert await old.rest() == b""
        await wait_until(lambda: is_reload_failing(metrics_registry, "serving") == 1)
        with pytest.raises(RefusedError):
            await send_request(server, tls_files.context())
        assert (
            await send_request(server, tls_files.context(fresh.issue_cert("scheduler.example")))
        ).status == 200


async def test_files_that_vanish_and_come_back(tls_files, metrics_registry):
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        kept = tls_files.ca.read_bytes()
        tls_files.ca.unlink()
        await wait_until(lambda: is_reload_failing(metrics_registry, "client_ca") == 1)
        assert (await send_request(server, tls_files.context())).status == 200
        tls_files.ca.write_bytes(kept)
        await wait_until(lambda: is_reload_failing(metrics_registry, "client_ca") == 0)


def test_key_with_a_passphrase_is_refused_without_a_prompt(tls_files):
    key = serialization.load_pem_private_key(tls_files.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    tls_files.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    with pytest.raises(BadSettings, match="is encrypted"):
        ServerCertificates(tls_files.options(), MetricsRegistry())


def test_a_key_that_is_no_key(tls_files):
    tls_files.key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(BadSettings, match="holds no private key"):
        ServerCertificates(tls_files.options(), MetricsRegistry())


def test_the_end_of_the_certificate_is_a_metric(tls_files, metrics_registry):
    ServerCertificates(tls_files.options(), metrics_registry)
    assert metric_value(metrics_registry, "tls_certificate_expires_seconds", certificate="serving") > 1.7e9


# certificates that remain valid


def certificates(*authorities: trustme.CA) -> tuple[x509.Certificate, ...]:
    return tuple(x509.load_pem_x509_certificate(authority.cert_pem.bytes()) for authority in authorities)


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem[pem.index(b"-----BEGIN CERTIFICATE") :].decode())


def admits(authorities: tuple[x509.Certificate, ...], *chain: bytes) -> bool:
    return server_certificates.admits(authorities, chain, time.time())


def test_a_certificate_holds_as_long_as_its_ca_is_in_the_bundle(tls_files):
    leaf = der(tls_files.client.cert_chain_pems[0].bytes())
    assert admits(certificates(tls_files.client_ca), leaf)
    assert admits(certificates(trustme.CA(), tls_files.client_ca), leaf)
    assert not admits(certificates(trustme.CA()), leaf)
    assert not admits((), leaf)


def test_a_certificate_with_nothing_but_a_common_name_holds(tls_files):
    """Certificates of kubeadm and openssl have no alternative names and one extended key usage."""
    usage = ExtendedKeyUsageOID.CLIENT_AUTH
    assert admits(certificates(tls_files.client_ca), der(issue(tls_files.client_ca, usage, days=1)))
    assert not admits(certificates(tls_files.client_ca), der(issue(tls_files.client_ca, usage, days=-1)))


def test_an_rsa_certificate_holds(tls_files):
    leaf = tls_files.client_ca.issue_cert("scheduler.example", key_type=trustme.KeyType.RSA)
    assert admits(certificates(tls_files.client_ca), der(leaf.cert_chain_pems[0].bytes()))


def test_a_ca_certificate_as_client_holds_as_long_as_it_is_in_the_bundle(tls_files):
    own = der(tls_files.client_ca.cert_pem.bytes())
    assert admits(certificates(tls_files.client_ca), own)
    assert not admits(certificates(trustme.CA()), own)


def test_invalid_certificate_is_not_admitted(tls_files):
    assert not admits(certificates(tls_files.client_ca), b"rubbish")


def test_an_ed25519_certificate_holds(tls_files):
    own = issue(
        tls_files.client_ca, ExtendedKeyUsageOID.CLIENT_AUTH, days=1, key=ed25519.Ed25519PrivateKey.generate()
    )
    assert admits(certificates(tls_files.client_ca), der(own))
    assert not admits(certificates(trustme.CA()), der(own))


def test_a_chain_holds_as_long_as_its_root_is_in_the_bundle(tls_files):
    between = tls_files.client_ca.create_child_ca()
    leaf, authority = (der(pem.bytes()) for pem in between.issue_cert("scheduler.example").cert_chain_pems)
    assert admits(certificates(tls_files.client_ca), leaf, authority)
    assert not admits(certificates(tls_files.client_ca), leaf)
    assert not admits(certificates(tls_files.client_ca), leaf, leaf)
    assert not admits(certificates(trustme.CA()), leaf, authority)


def test_a_chain_with_a_cross_signed_authority_holds_with_either_root(tls_files):
    """The client sends the certificates that both roots signed for one authority, in any order."""
    old, new = tls_files.client_ca, trustme.CA()
    between = old.create_child_ca()
    first = x509.load_pem_x509_certificate(between.cert_pem.bytes())
    leaf = der(between.issue_cert("scheduler.example").cert_chain_pems[0].bytes())
    (root,) = certificates(new)
    second = (
        x509.CertificateBuilder()
        .subject_name(first.subject)
        .issuer_name(root.subject)
        .public_key(first.public_key())
        .serial_number(1)
        .not_valid_before(first.not_valid_before_utc)
        .not_valid_after(first.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(serialization.load_pem_private_key(new.private_key_pem.bytes(), None), hashes.SHA256())
    )
    crosses = [authority.public_bytes(serialization.Encoding.DER) for authority in (first, second)]
    for chain in (crosses, crosses[::-1]):
        assert admits(certificates(old), leaf, *chain)
        assert admits(certificates(new), leaf, *chain)
        assert not admits(certificates(trustme.CA()), leaf, *chain)


def test_issuer_that_is_no_ca_is_not_accepted(tls_files):
    """A client certificate in the bundle authenticates only that client."""
    signer = tls_files.client_ca.issue_cert("scheduler.example")
    key = serialization.load_pem_private_key(signer.private_key_pem.bytes(), None)
    parent = x509.load_pem_x509_certificate(signer.cert_chain_pems[0].bytes())
    forged = (
        x509.CertificateBuilder()
        .subject_name(parent.subject)
        .issuer_name(parent.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(parent.not_valid_before_utc)
        .not_valid_after(parent.not_valid_after_utc)
        .sign(key, hashes.SHA256())
    )
    forgery = forged.public_bytes(serialization.Encoding.DER)
    own = parent.public_bytes(serialization.Encoding.DER)
    assert admits((parent,), own)
    assert not admits((parent,), forgery)
    assert not admits(certificates(tls_files.client_ca), forgery, own)


def test_issuer_with_unreadable_extensions_is_not_accepted(tls_files):
    """OpenSSL reads an alternative name of the form ediPartyName, cryptography does not."""
    (root,) = certificates(tls_files.client_ca)
    name = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, bytes.fromhex("3004a5028100"))
    own = (
        x509.CertificateBuilder()
        .subject_name(root.subject)
        .issuer_name(root.subject)
        .public_key(root.public_key())
        .serial_number(1)
        .not_valid_before(root.not_valid_before_utc)
        .not_valid_after(root.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(name, critical=False)
        .sign(
            serialization.load_pem_private_key(tls_files.client_ca.private_key_pem.bytes(), None),
            hashes.SHA256(),
        )
    )
    leaf = der(tls_files.client.cert_chain_pems[0].bytes())
    assert not admits((own,), leaf)
    assert admits((own, root), leaf)
    assert not admits(certificates(trustme.CA()), leaf, own.public_bytes(serialization.Encoding.DER))


async def test_a_bundle_may_hold_an_intermediate_authority_alone(tls_files):
    between = tls_files.client_ca.create_child_ca()
    client = between.issue_cert("scheduler.example")
    tls_files.write_client_ca(between)
    assert admits(certificates(between), der(client.cert_chain_pems[0].bytes()))
    async with run_server(tls_files.options()) as server:
        assert (await send_request(server, tls_files.context(client))).status == 200


async def test_a_client_with_a_chain_stays_when_its_root_does(tls_files, metrics_registry):
    """Certificates of Vault or cert-manager have such a chain: root, authority, client."""
    client = tls_files.client_ca.create_child_ca().issue_cert("scheduler.example")
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = tls_files.context(client)
        context.minimum_version = context.maximum_version = version
        async with (
            run_server(tls_files.options(), metrics_registry=metrics_registry) as server,
            open_client(server, context) as old,
        ):
            assert (await old.ask("/echo")).status == 200

            def reloads() -> float:
                return count_reloads(metrics_registry, "client_ca")

            before = reloads()
            tls_files.write_client_ca(trustme.CA(), tls_files.client_ca)
            await wait_until(lambda: reloads() > before)  # noqa: B023
            assert (await old.ask("/echo")).status == 200


# another client CA


async def test_after_a_swap_of_the_client_ca_only_the_new_one_is_let_in(tls_files, metrics_registry):
    fresh = trustme.CA()
    newcomer = fresh.issue_cert("scheduler.example")
    async with (
        run_server(tls_files.options(), metrics_registry=metrics_registry) as server,
        open_client(server, tls_files.context()) as old,
    ):
        assert (await old.ask("/echo")).status == 200
        with pytest.raises(RefusedError):
            await send_request(server, tls_files.context(newcomer))
        tls_files.write_client_ca(fresh)
        assert await old.rest() == b""
        assert (await send_request(server, tls_files.context(newcomer))).status == 200
        with pytest.raises(RefusedError):
            await send_request(server, tls_files.context())
    assert count_ended(metrics_registry, "client_ca_changed") == 1


async def test_swap_of_the_client_ca_closes_connections_beside_one_with_an_unknown_version_in_its_chain(
    tls_files, tmp_path, metrics_registry
):
    """OpenSSL ignores a certificate of the chain that it does not need, cryptography cannot decode it."""
    other = der(trustme.CA().cert_pem.bytes())
    version_100 = other.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020163"))
    pair = tmp_path / "pair.pem"
    pair.write_bytes(
        tls_files.client.private_key_and_cert_chain_pem.bytes()
        + ssl.DER_cert_to_PEM_cert(version_100).encode()
    )
    hostile = tls_files.trusting()
    hostile.load_cert_chain(pair)
    async with (
        run_server(tls_files.options(), metrics_registry=metrics_registry) as server,
        open_client(server, hostile) as first,
        open_client(server, tls_files.context()) as second,
    ):
        for client in (first, second):
            assert (await client.ask("/echo")).status == 200
        tls_files.write_client_ca(trustme.CA())
        for client in (first, second):
            assert await asyncio.wait_for(client.rest(), 5.0) == b""
    assert count_ended(metrics_registry, "client_ca_changed") == 2


async def test_added_ca_closes_no_connection(tls_files, metrics_registry):
    fresh = trustme.CA()
    async with (
        run_server(tls_files.options(), metrics_registry=metrics_registry) as server,
        open_client(server, tls_files.context()) as old,
    ):
        assert (await old.ask("/echo")).status == 200
        tls_files.write_client_ca(tls_files.client_ca, fresh)
        await wait_until(lambda: count_reloads(metrics_registry, "client_ca") == 1)
        for _ in range(2):
            answer = await old.ask("/echo")
            assert (answer.status, answer.headers.get("connection")) == (200, None)
        assert (
            await send_request(server, tls_files.context(fresh.issue_cert("other.example")))
        ).status == 200


async def test_a_new_serving_certificate_and_then_another_client_ca_keep_an_idle_connection(
    tls_files, metrics_registry
):
    """The client sends its first request later than a header must end, as on connections that Go opens ahead."""
    options = tls_files.options(header_timeout_s=0.3)

    def reloads(certificate: str) -> float:
        return count_reloads(metrics_registry, certificate)

    async with (
        run_server(options, metrics_registry=metrics_registry) as server,
        open_client(server, tls_files.context()) as old,
    ):
        tls_files.write(tls_files.server_ca.issue_cert(*NAMES))
        await wait_until(lambda: reloads("serving") == 1)
        tls_files.write_client_ca(tls_files.client_ca, trustme.CA())
        await wait_until(lambda: reloads("client_ca") == 1)
        await asyncio.sleep(0.5)
        answer = await old.ask("/echo")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert counted_close_reasons(metrics_registry) == []


async def test_a_connection_stays_while_the_certificate_that_openssl_trusted_is_in_the_bundle(
    tls_files, metrics_registry
):
    """OpenSSL compares names of issuers without their encoding, and accepts what a comparison of bytes does not."""
    authority, client = ca_with_another_encoding_of_its_name(tls_files)
    other = trustme.CA().cert_pem.bytes()
    contents = [other + authority, authority, authority + other, other]
    tls_files.ca.write_bytes(authority)
    async with (
        run_server(tls_files.options(), metrics_registry=metrics_registry) as server,
        open_client(server, client) as old,
    ):
        assert (await old.ask("/echo")).status == 200
        for number, content in enumerate(contents, 1):
            tls_files.ca.write_bytes(content)
            await wait_until(lambda: count_reloads(metrics_registry, "client_ca") == number)  # noqa: B023
            if authority in content:
                assert (await old.ask("/echo")).status == 200
        assert await old.rest() == b""


def ca_with_another_encoding_of_its_name(tls_files) -> tuple[bytes, ssl.SSLContext]:
    """The PEM certificate of a CA whose name is a PrintableString, and a client's context. The issuer in the client's
    certificate is a UTF8String.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)

    def signed(subject: x509.Name, public_key, extension) -> bytes:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clients")]))
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(extension, critical=True)
            .sign(key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    printable = x509.NameAttribute(NameOID.COMMON_NAME, "clients", _ASN1Type.PrintableString)
    authority = signed(
        x509.Name([printable]), key.public_key(), x509.BasicConstraints(ca=True, path_length=None)
    )
    own = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:kube-scheduler")])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    pair = tls_files.folder / "client.pem"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    pair.write_bytes(
        own.private_bytes(encoding, form, serialization.NoEncryption())
        + signed(subject, own.public_key(), usage)
    )
    context = tls_files.trusting()
    context.load_cert_chain(pair)
    return authority, context


async def test_a_connection_that_is_being_answered_is_closed_after_the_answer(tls_files, metrics_registry):
    slow = BlockingHandler()
    async with (
        run_server(tls_files.options(), [slow.route], metrics_registry) as server,
        open_client(server, tls_files.context()) as busy,
    ):
        await busy.send(encode_request("/slow"))
        await slow.begun.wait()
        tls_files.write_client_ca(trustme.CA())
        await wait_until(lambda: count_ended(metrics_registry, "client_ca_changed") == 1)
        slow.go.set()
        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"at last", "close")
        assert await busy.rest() == b""


async def test_a_request_behind_the_back_of_the_swap_is_not_acted_upon(tls_files, metrics_registry):
    """The client does not read, so it does not notice the closed connection, and sends another request."""
    requests = []

    def handler(encode_request):
        requests.append(encode_request)
        return ECHO.handler(encode_request)

    routes = [ECHO._replace(handler=handler)]
    async with (
        run_server(tls_files.options(), routes, metrics_registry) as server,
        open_client(server, tls_files.context()) as caller,
    ):
        assert (await caller.ask("/echo")).status == 200
        caller.writer.transport.pause_reading()
        tls_files.write_client_ca(trustme.CA())
        await wait_until(lambda: count_ended(metrics_registry, "client_ca_changed") == 1)
        caller.writer.write(encode_request("/echo"))
        await asyncio.sleep(0.05)
        assert len(requests) == 1
        caller.writer.transport.resume_reading()
        assert await caller.rest() == b""


def _two_calls(port: int, context: ssl.SSLContext, between) -> tuple[bytes, bool, bytes]:
    """Two calls, the second one with the session of the first. Returns the first response, whether the session was
    resumed, and the second response.
    """

    def call(session=None):
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as raw:
            try:
                with context.wrap_socket(raw, server_hostname="localhost", session=session) as secured:
                    secured.sendall(encode_request("/echo"))
                    return secured.recv(12), secured.session, secured.session_reused
            except OSError:
                return b"", None, False

    first, session, _ = call()
    between()
    second, _, reused = call(session)
    return first, bool(reused), second


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("swapped", [False, True])
async def test_a_session_that_ended_in_the_middle_is_judged_by_the_newest_ca(
    tls_files, version, swapped, metrics_registry
):
    """Whether OpenSSL resumes such a session of TLS 1.2 depends on its version; 3.5 does."""
    context = tls_files.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:

        def swap():
            if swapped:
                tls_files.write_client_ca(trustme.CA())
                while not count_reloads(metrics_registry, "client_ca"):
                    pass

        first, reused, second = await anyio.to_thread.run_sync(
            _two_calls, server.port, context, swap, abandon_on_cancel=True
        )
    assert first == b"HTTP/1.1 200"
    assert version == "TLSv1_2" or not reused
    assert second == (b"" if swapped else b"HTTP/1.1 200")


async def test_a_client_without_a_server_name_gets_the_new_certificate_and_the_new_ca_as_well(
    tls_files, metrics_registry
):
    fresh = trustme.CA()
    newcomer = tls_files.context(fresh.issue_cert("scheduler.example"))
    newcomer.check_hostname = False
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        tls_files.write(tls_files.server_ca.issue_cert(*NAMES))
        tls_files.write_client_ca(fresh)
        await wait_until(lambda: count_reloads(metrics_registry, "client_ca") >= 1)

        def call() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as raw,
                newcomer.wrap_socket(raw, server_hostname=None) as secured,
            ):
                secured.sendall(encode_request("/echo"))
                return secured.recv(12)

        assert await anyio.to_thread.run_sync(call) == b"HTTP/1.1 200"
        assert (await send_request(server, newcomer)).status == 200


async def test_a_handshake_begun_before_the_swap_gains_nothing(tls_files, metrics_registry):
    """The handshake begins with the old CA, and ends after the CA was removed."""
    async with run_server(tls_files.options(), metrics_registry=metrics_registry) as server:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = tls_files.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        writer.write(outgoing.read())
        incoming.write(await reader.read(65536))
        tls_files.write_client_ca(trustme.CA())
        await wait_until(lambda: count_reloads(metrics_registry, "client_ca") == 1)
        client.do_handshake()
        client.write(encode_request("/echo"))
        writer.write(outgoing.read())
        incoming.write(await reader.read(65536))
        assert client.read(65536).startswith(b"HTTP/1.1 403 ")
        writer.close()
