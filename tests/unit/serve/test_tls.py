import asyncio
import socket
import ssl
import time

import anyio.to_thread
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID
from structlog.testing import capture_logs

from nodewise.errors import BadSettings
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve import tls
from nodewise.serve.tls import ServerCertificates
from tests.unit.serve.certificate_files import NAMES, issue
from tests.unit.serve.raw_client import (
    ECHO,
    RefusedError,
    Slow,
    called,
    calling,
    counted,
    reasons_counted,
    request,
    serving,
    until,
)

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


async def refused_because(papers, context: ssl.SSLContext, **changes) -> tuple[str, str]:
    """The close reason that the server counted, and the client's error."""
    metrics_registry = MetricsRegistry()
    async with serving(papers.options(**changes), metrics_registry=metrics_registry) as server:
        with pytest.raises(RefusedError) as caught:
            await called(server, context)
        await until(lambda: reasons_counted(metrics_registry))
        assert (await called(server, papers.context())).status == 200
    (reason,) = reasons_counted(metrics_registry)
    return reason, str(caught.value)


# accepted clients


async def test_a_certificate_of_the_client_ca_is_served(papers):
    async with serving(papers.options()) as server:
        assert (await called(server, papers.context())).status == 200


async def test_no_certificate_is_asked_of_any_client(papers):
    """A server without client certificates also reloads its own certificate."""
    metrics_registry = MetricsRegistry()
    async with serving(
        papers.options(client_ca=""), metrics_registry=metrics_registry, verify_clients=False
    ) as server:
        assert (await called(server, papers.trusting())).status == 200
        assert (await called(server, papers.context())).status == 200
        other = trustme.CA()
        papers.write(other.issue_cert(*NAMES))
        await until(
            lambda: counted(metrics_registry, "tls_reloads_total", certificate="serving", outcome="done") == 1
        )
        assert (await called(server, papers.trusting(other))).status == 200


async def test_no_certificate(papers):
    reason, error = await refused_because(papers, papers.trusting())
    assert reason == "no_certificate"
    assert "CERTIFICATE_REQUIRED" in error


async def test_a_certificate_of_another_ca(papers):
    stranger = trustme.CA().issue_cert("scheduler.example")
    reason, error = await refused_because(papers, papers.context(stranger))
    assert reason == "unknown_ca"
    assert "UNKNOWN_CA" in error


async def test_a_certificate_for_servers_only(papers):
    reason, error = await refused_because(papers, papers.odd_client(usage=ExtendedKeyUsageOID.SERVER_AUTH))
    assert reason == "purpose"
    assert "CERTIFICATE" in error


async def test_an_expired_certificate(papers):
    reason, error = await refused_because(papers, papers.odd_client(days=-1))
    assert reason == "expired"
    assert "EXPIRED" in error


async def test_a_client_that_does_not_trust_our_certificate(papers):
    context = papers.trusting(trustme.CA())
    metrics_registry = MetricsRegistry()

    def call(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as raw, pytest.raises(ssl.SSLError):
            context.wrap_socket(raw, server_hostname="localhost")

    async with serving(papers.options(), metrics_registry=metrics_registry) as server:
        await anyio.to_thread.run_sync(call, server.port)
        await until(lambda: reasons_counted(metrics_registry) == ["distrusted"])


async def test_a_client_that_leaves_in_the_middle_of_the_handshake(papers):
    """Like asyncio's client when it rejects the server's certificate: it sends no reason."""
    metrics_registry = MetricsRegistry()
    async with serving(papers.options(), metrics_registry=metrics_registry) as server:
        with pytest.raises(RefusedError):
            await called(server, papers.trusting(trustme.CA()))
        await until(lambda: reasons_counted(metrics_registry) == ["abandoned"])


async def test_tls_1_1(papers):
    context = papers.context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    reason, error = await refused_because(papers, context)
    assert reason == "protocol_version"
    assert "PROTOCOL_VERSION" in error


@pytest.mark.parametrize(
    "cipher", ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES256-SHA384"]
)
async def test_a_tls_1_2_client_without_our_suites(papers, cipher):
    context = papers.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(cipher)
    reason, _ = await refused_because(papers, context)
    assert reason == "cipher"


@pytest.mark.parametrize(
    ("version", "suite"), [("TLSv1_2", "ECDHE-ECDSA-AES256-GCM-SHA384"), ("TLSv1_3", "")]
)
async def test_what_is_negotiated(papers, version, suite):
    context = papers.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with serving(papers.options()) as server, calling(server, context) as caller:
        secured = caller.writer.get_extra_info("ssl_object")
        assert secured.version().replace(".", "_") == version
        assert secured.selected_alpn_protocol() == "http/1.1"
        assert suite in secured.cipher()[0]
        assert (await caller.ask("/echo")).status == 200


async def test_an_rsa_certificate_is_served_with_the_rsa_suite(papers):
    papers.write(papers.server_ca.issue_cert(*NAMES, key_type=trustme.KeyType.RSA))
    context = papers.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(papers.options()) as server, calling(server, context) as caller:
        cipher = caller.writer.get_extra_info("ssl_object").cipher()[0]
        assert cipher == "ECDHE-RSA-AES256-GCM-SHA384"
        assert (await caller.ask("/echo")).status == 200


async def test_a_client_that_offers_only_h2(papers):
    context = papers.context()
    context.set_alpn_protocols(["h2"])
    reason, error = await refused_because(papers, context)
    assert reason == "alpn"
    assert "no application protocol" in error


# reading the files again


async def serial_seen(papers, server) -> int:
    """The serial number of the certificate that the server shows."""
    async with calling(server, papers.context()) as caller:
        shown = caller.writer.get_extra_info("ssl_object").getpeercert()
        assert (await caller.ask("/echo")).status == 200
        return int(shown["serialNumber"], 16)


async def test_a_new_server_certificate_is_shown_and_old_connections_go_on(papers):
    metrics_registry = MetricsRegistry()
    async with (
        serving(papers.options(), metrics_registry=metrics_registry) as server,
        calling(server, papers.context()) as old,
    ):
        before = await serial_seen(papers, server)
        papers.write(papers.server_ca.issue_cert(*NAMES))
        await until(
            lambda: counted(metrics_registry, "tls_reloads_total", certificate="serving", outcome="done") == 1
        )
        assert await serial_seen(papers, server) != before
        answer = await old.ask("/echo")
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await old.rest() == b""


async def test_a_connection_is_closed_with_the_next_answer_when_it_is_old(papers):
    """A renewed client certificate is seen also where calls come one after another."""
    metrics_registry = MetricsRegistry()
    options = papers.options(connection_age_s=0.1)
    async with (
        serving(options, metrics_registry=metrics_registry) as server,
        calling(server, papers.context()) as old,
    ):
        answers = [await old.ask("/echo")]
        async with asyncio.timeout(PATIENCE_S):
            while "connection" not in answers[-1].headers:
                answers.append(await old.ask("/echo"))
        assert {answer.status for answer in answers} == {200}
        assert await old.rest() == b""


async def test_the_first_end_of_the_clients_certificates_is_a_metric(papers):
    name, label = "tls_certificate_expires_seconds", {"certificate": "clients"}
    metrics_registry = MetricsRegistry()
    early = papers.odd_client(days=1)
    async with serving(papers.options(), metrics_registry=metrics_registry) as server:
        async with calling(server, papers.context()), calling(server, early):
            await until(lambda: 0 < counted(metrics_registry, name, **label) < time.time() + 86400)
        await until(lambda: counted(metrics_registry, name, **label) == 0)


async def test_a_swapped_folder_is_noticed_as_with_a_mounted_secret(papers, tmp_path):
    """Kubernetes swaps the symbolic link `..data` to a new folder; the files' own paths stay."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        papers.folder = tmp_path / name
        papers.write(papers.server_ca.issue_cert(*NAMES))
        papers.write_client_ca(papers.client_ca)
    papers.folder = tmp_path / "..data"
    papers.folder.symlink_to(tmp_path / "first")
    metrics_registry = MetricsRegistry()
    async with serving(papers.options(), metrics_registry=metrics_registry) as server:
        before = await serial_seen(papers, server)
        fresh = tmp_path / "..data_tmp"
        fresh.symlink_to(tmp_path / "second")
        fresh.rename(papers.folder)
        await until(
            lambda: counted(metrics_registry, "tls_reloads_total", certificate="serving", outcome="done") == 1
        )
        assert await serial_seen(papers, server) != before


async def test_a_rotation_caught_halfway_keeps_the_old_pair_until_it_is_whole(papers):
    metrics_registry = MetricsRegistry()
    fresh = papers.server_ca.issue_cert(*NAMES)
    with capture_logs() as lines:
        async with serving(papers.options(), metrics_registry=metrics_registry) as server:
            before = await serial_seen(papers, server)
            papers.cert.write_bytes(fresh.cert_chain_pems[0].bytes())
            await until(lambda: counted(metrics_registry, "tls_reload_failing", certificate="serving") == 1)
            assert await serial_seen(papers, server) == before
            papers.key.write_bytes(fresh.private_key_pem.bytes())
            await until(lambda: counted(metrics_registry, "tls_reload_failing", certificate="serving") == 0)
            assert await serial_seen(papers, server) != before
    failed = [line for line in lines if line["event"] == "tls_reload_failed"]
    assert len(failed) == 1
    assert f"{papers.key} does not match {papers.cert}" in failed[0]["error"]


async def test_a_ca_that_was_taken_away_is_not_trusted_even_while_the_pair_cannot_be_used(papers):
    fresh = trustme.CA()
    metrics_registry = MetricsRegistry()
    async with (
        serving(papers.options(), metrics_registry=metrics_registry) as server,
        calling(server, papers.context()) as old,
    ):
        assert (await old.ask("/echo")).status == 200
        papers.key.write_text("")
        papers.write_client_ca(fresh)
        assert await old.rest() == b""
        await until(lambda: counted(metrics_registry, "tls_reload_failing", certificate="serving") == 1)
        with pytest.raises(RefusedError):
            await called(server, papers.context())
        assert (await called(server, papers.context(fresh.issue_cert("scheduler.example")))).status == 200


async def test_files_that_vanish_and_come_back(papers):
    metrics_registry = MetricsRegistry()
    async with serving(papers.options(), metrics_registry=metrics_registry) as server:
        kept = papers.ca.read_bytes()
        papers.ca.unlink()
        await until(lambda: counted(metrics_registry, "tls_reload_failing", certificate="client_ca") == 1)
        assert (await called(server, papers.context())).status == 200
        papers.ca.write_bytes(kept)
        await until(lambda: counted(metrics_registry, "tls_reload_failing", certificate="client_ca") == 0)


def test_a_key_with_a_pass_phrase_is_refused_and_nobody_is_asked_for_it(papers):
    key = serialization.load_pem_private_key(papers.key.read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    papers.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    with pytest.raises(BadSettings, match="is encrypted"):
        ServerCertificates(papers.options(), MetricsRegistry())


def test_a_key_that_is_no_key(papers):
    papers.key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    with pytest.raises(BadSettings, match="holds no private key"):
        ServerCertificates(papers.options(), MetricsRegistry())


def test_the_end_of_the_certificate_is_a_metric(papers):
    metrics_registry = MetricsRegistry()
    ServerCertificates(papers.options(), metrics_registry)
    assert counted(metrics_registry, "tls_certificate_expires_seconds", certificate="serving") > 1.7e9


# whose certificate still holds


def certificates(*authorities: trustme.CA) -> tuple[x509.Certificate, ...]:
    return tuple(x509.load_pem_x509_certificate(authority.cert_pem.bytes()) for authority in authorities)


def der(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem[pem.index(b"-----BEGIN CERTIFICATE") :].decode())


def admits(authorities: tuple[x509.Certificate, ...], *chain: bytes) -> bool:
    return tls.admits(authorities, chain, time.time())


def test_a_certificate_holds_as_long_as_its_ca_is_in_the_bundle(papers):
    leaf = der(papers.client.cert_chain_pems[0].bytes())
    assert admits(certificates(papers.client_ca), leaf)
    assert admits(certificates(trustme.CA(), papers.client_ca), leaf)
    assert not admits(certificates(trustme.CA()), leaf)
    assert not admits((), leaf)


def test_a_certificate_with_nothing_but_a_common_name_holds(papers):
    """As kubeadm's and openssl's are: no alternative names, and one extended key usage."""
    usage = ExtendedKeyUsageOID.CLIENT_AUTH
    assert admits(certificates(papers.client_ca), der(issue(papers.client_ca, usage, days=1)))
    assert not admits(certificates(papers.client_ca), der(issue(papers.client_ca, usage, days=-1)))


def test_an_rsa_certificate_holds(papers):
    leaf = papers.client_ca.issue_cert("scheduler.example", key_type=trustme.KeyType.RSA)
    assert admits(certificates(papers.client_ca), der(leaf.cert_chain_pems[0].bytes()))


def test_a_ca_certificate_as_client_holds_as_long_as_it_is_in_the_bundle(papers):
    own = der(papers.client_ca.cert_pem.bytes())
    assert admits(certificates(papers.client_ca), own)
    assert not admits(certificates(trustme.CA()), own)


def test_what_is_no_certificate_does_not_hold(papers):
    assert not admits(certificates(papers.client_ca), b"rubbish")


def test_an_ed25519_certificate_holds(papers):
    own = issue(
        papers.client_ca, ExtendedKeyUsageOID.CLIENT_AUTH, days=1, key=ed25519.Ed25519PrivateKey.generate()
    )
    assert admits(certificates(papers.client_ca), der(own))
    assert not admits(certificates(trustme.CA()), der(own))


def test_a_chain_holds_as_long_as_its_root_is_in_the_bundle(papers):
    between = papers.client_ca.create_child_ca()
    leaf, authority = (der(pem.bytes()) for pem in between.issue_cert("scheduler.example").cert_chain_pems)
    assert admits(certificates(papers.client_ca), leaf, authority)
    assert not admits(certificates(papers.client_ca), leaf)
    assert not admits(certificates(papers.client_ca), leaf, leaf)
    assert not admits(certificates(trustme.CA()), leaf, authority)


def test_who_is_no_authority_signs_nobody_in(papers):
    """A client certificate in the bundle authenticates only that client."""
    signer = papers.client_ca.issue_cert("scheduler.example")
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
    assert not admits(certificates(papers.client_ca), forgery, own)


async def test_a_bundle_may_hold_an_intermediate_authority_alone(papers):
    between = papers.client_ca.create_child_ca()
    client = between.issue_cert("scheduler.example")
    papers.write_client_ca(between)
    assert admits(certificates(between), der(client.cert_chain_pems[0].bytes()))
    async with serving(papers.options()) as server:
        assert (await called(server, papers.context(client))).status == 200


async def test_a_client_with_a_chain_stays_when_its_root_does(papers):
    """As certificates of Vault or cert-manager have one: root, authority, client."""
    client = papers.client_ca.create_child_ca().issue_cert("scheduler.example")
    metrics_registry = MetricsRegistry()
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = papers.context(client)
        context.minimum_version = context.maximum_version = version
        async with (
            serving(papers.options(), metrics_registry=metrics_registry) as server,
            calling(server, context) as old,
        ):
            assert (await old.ask("/echo")).status == 200

            def reloads() -> float:
                return counted(metrics_registry, "tls_reloads_total", certificate="client_ca", outcome="done")

            before = reloads()
            papers.write_client_ca(trustme.CA(), papers.client_ca)
            await until(lambda: reloads() > before)  # noqa: B023
            assert (await old.ask("/echo")).status == 200


# another client CA


async def test_after_a_swap_of_the_client_ca_only_the_new_one_is_let_in(papers):
    metrics_registry = MetricsRegistry()
    fresh = trustme.CA()
    newcomer = fresh.issue_cert("scheduler.example")
    async with (
        serving(papers.options(), metrics_registry=metrics_registry) as server,
        calling(server, papers.context()) as old,
    ):
        assert (await old.ask("/echo")).status == 200
        with pytest.raises(RefusedError):
            await called(server, papers.context(newcomer))
        papers.write_client_ca(fresh)
        assert await old.rest() == b""
        assert (await called(server, papers.context(newcomer))).status == 200
        with pytest.raises(RefusedError):
            await called(server, papers.context())
    assert counted(metrics_registry, "connections_ended_total", reason="client_ca_changed") == 1


async def test_a_ca_added_to_the_bundle_closes_nobody(papers):
    metrics_registry = MetricsRegistry()
    fresh = trustme.CA()
    async with (
        serving(papers.options(), metrics_registry=metrics_registry) as server,
        calling(server, papers.context()) as old,
    ):
        assert (await old.ask("/echo")).status == 200
        papers.write_client_ca(papers.client_ca, fresh)
        await until(
            lambda: (
                counted(metrics_registry, "tls_reloads_total", certificate="client_ca", outcome="done") == 1
            )
        )
        assert (await old.ask("/echo")).status == 200
        assert (await called(server, papers.context(fresh.issue_cert("other.example")))).status == 200


async def test_a_connection_that_is_being_answered_is_closed_after_the_answer(papers):
    slow = Slow()
    metrics_registry = MetricsRegistry()
    async with (
        serving(papers.options(), [slow.route], metrics_registry) as server,
        calling(server, papers.context()) as busy,
    ):
        await busy.send(request("/slow"))
        await slow.begun.wait()
        papers.write_client_ca(trustme.CA())
        await until(
            lambda: counted(metrics_registry, "connections_ended_total", reason="client_ca_changed") == 1
        )
        slow.go.set()
        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"at last", "close")
        assert await busy.rest() == b""


async def test_a_request_behind_the_back_of_the_swap_is_not_acted_upon(papers):
    """The client does not read, so it does not know that we closed, and asks again."""
    requests = []

    def handler(request):
        requests.append(request)
        return ECHO.handler(request)

    metrics_registry = MetricsRegistry()
    routes = [ECHO._replace(handler=handler)]
    async with (
        serving(papers.options(), routes, metrics_registry) as server,
        calling(server, papers.context()) as caller,
    ):
        assert (await caller.ask("/echo")).status == 200
        caller.writer.transport.pause_reading()
        papers.write_client_ca(trustme.CA())
        await until(
            lambda: counted(metrics_registry, "connections_ended_total", reason="client_ca_changed") == 1
        )
        caller.writer.write(request("/echo"))
        await asyncio.sleep(0.05)
        assert len(requests) == 1
        caller.writer.transport.resume_reading()
        assert await caller.rest() == b""


def _two_calls(port: int, context: ssl.SSLContext, between) -> tuple[bytes, bool, bytes]:
    """A call, then another with the first one's session: answer, whether it was resumed, answer."""

    def call(session=None):
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as raw:
            try:
                with context.wrap_socket(raw, server_hostname="localhost", session=session) as secured:
                    secured.sendall(request("/echo"))
                    return secured.recv(12), secured.session, secured.session_reused
            except OSError:
                return b"", None, False

    first, session, _ = call()
    between()
    second, _, reused = call(session)
    return first, bool(reused), second


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("swapped", [False, True])
async def test_a_session_that_ended_in_the_middle_is_judged_by_the_newest_ca(papers, version, swapped):
    """Whether OpenSSL resumes such a session of TLS 1.2 depends on its version; 3.5 does."""
    context = papers.context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    metrics_registry = MetricsRegistry()
    async with serving(papers.options(), metrics_registry=metrics_registry) as server:

        def swap():
            if swapped:
                papers.write_client_ca(trustme.CA())
                while not counted(
                    metrics_registry, "tls_reloads_total", certificate="client_ca", outcome="done"
                ):
                    pass

        first, reused, second = await anyio.to_thread.run_sync(
            _two_calls, server.port, context, swap, abandon_on_cancel=True
        )
    assert first == b"HTTP/1.1 200"
    assert version == "TLSv1_2" or not reused
    assert second == (b"" if swapped else b"HTTP/1.1 200")


async def test_a_client_without_a_server_name_gets_the_new_certificate_and_the_new_ca_as_well(papers):
    fresh = trustme.CA()
    newcomer = papers.context(fresh.issue_cert("scheduler.example"))
    newcomer.check_hostname = False
    metrics_registry = MetricsRegistry()
    async with serving(papers.options(), metrics_registry=metrics_registry) as server:
        papers.write(papers.server_ca.issue_cert(*NAMES))
        papers.write_client_ca(fresh)
        await until(
            lambda: (
                counted(metrics_registry, "tls_reloads_total", certificate="client_ca", outcome="done") >= 1
            )
        )

        def call() -> bytes:
            with (
                socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as raw,
                newcomer.wrap_socket(raw, server_hostname=None) as secured,
            ):
                secured.sendall(request("/echo"))
                return secured.recv(12)

        assert await anyio.to_thread.run_sync(call) == b"HTTP/1.1 200"
        assert (await called(server, newcomer)).status == 200


async def test_a_handshake_begun_before_the_swap_gains_nothing(papers):
    """Half of the handshake is done under the old CA, the rest after it was taken away."""
    metrics_registry = MetricsRegistry()
    async with serving(papers.options(), metrics_registry=metrics_registry) as server:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = papers.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        writer.write(outgoing.read())
        incoming.write(await reader.read(65536))
        papers.write_client_ca(trustme.CA())
        await until(
            lambda: (
                counted(metrics_registry, "tls_reloads_total", certificate="client_ca", outcome="done") == 1
            )
        )
        client.do_handshake()
        client.write(request("/echo"))
        writer.write(outgoing.read())
        incoming.write(await reader.read(65536))
        assert client.read(65536).startswith(b"HTTP/1.1 403 ")
        writer.close()
