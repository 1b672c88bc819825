import datetime as dt
import ssl
import time

import pytest
import trustme
from cryptography.x509.oid import ExtendedKeyUsageOID
from structlog.testing import capture_logs

from nodewise.server.application import Route
from nodewise.server.client_authorizer import (
    PINNED,
    CertificateIdentity,
    ClientAuthorizer,
    parse_client_certificate,
)
from nodewise.server.connection_close_reasons import CloseReasons
from nodewise.server.options import ServeOptions
from nodewise.server.server_certificates import ServerCertificates
from tests.manual_clock import ManualClock
from tests.unit.server.raw_http_client import (
    ECHO,
    RefusedError,
    counted_close_reasons,
    echo,
    metric_value,
    open_client,
    run_server,
    send_request,
)

DEFAULT = ServeOptions().client_name
ROUTES = (
    ECHO,
    Route("POST", "/pinned", echo, pinned_only=True),
    Route("GET", "/shown", echo, pinned_only=True),
)


@pytest.mark.parametrize(
    "name", ["system:kube-scheduler", "scheduler.example"], ids=["common name", "alternative name"]
)
async def test_a_client_with_one_of_the_names_is_served(tls_files, name):
    async with run_server(tls_files.options(client_name=("somebody else", name))) as server:
        assert (await send_request(server, tls_files.context())).status == 200


async def test_client_without_a_permitted_name_is_refused_and_closed(tls_files, metrics_registry):
    options = tls_files.options(client_name=("kube-scheduler", "example"))
    async with (
        run_server(options, metrics_registry=metrics_registry) as server,
        open_client(server, tls_files.context()) as caller,
    ):
        with capture_logs() as lines:
            answer = await caller.ask("/echo", b"{}" * 50_000)
        assert (answer.status, answer.field()) == (403, "client certificate")
        assert "'system:kube-scheduler', 'scheduler.example'" in answer.json()["problems"][0]["seen"]
        assert answer.headers["connection"] == "close"
        assert await caller.rest() == b""
    assert counted_close_reasons(metrics_registry) == ["client_name"]
    assert lines == [] or lines[0]["reason"] == "client_name"
    assert metric_value(metrics_registry, "requests_total", route="/echo", status="200") == 0


async def test_h19_a_ca_certificate_as_client_is_served_with_a_warning(tls_files, metrics_registry):
    with capture_logs() as lines:
        async with run_server(
            tls_files.options(any_client=True), metrics_registry=metrics_registry
        ) as server:
            assert (await send_request(server, tls_files.ca_as_client())).status == 200
            assert (await send_request(server, tls_files.ca_as_client())).status == 200
    (line,) = (line for line in lines if line["event"] == "ca_client")
    assert line["log_level"] == "warning"
    assert metric_value(metrics_registry, "ca_clients_total") == 2


async def test_a_ca_certificate_as_client_is_refused_on_demand(tls_files, metrics_registry):
    async with run_server(
        tls_files.options(refuse_ca_client=True), metrics_registry=metrics_registry
    ) as server:
        assert (await send_request(server, tls_files.ca_as_client())).status == 403
        assert (await send_request(server, tls_files.context())).status == 200
    assert counted_close_reasons(metrics_registry) == ["ca_certificate"]


async def test_a_ca_certificate_as_client_is_refused_without_any_client(tls_files):
    async with run_server(tls_files.options(client_name=DEFAULT)) as server:
        answer = await send_request(server, tls_files.ca_as_client())
    assert (answer.status, answer.field()) == (403, "client certificate")
    assert "a client certificate of its own, not a CA's" in answer.json()["problems"][0]["wanted"]


@pytest.mark.parametrize("name", ["system:kube-scheduler", "nodewise-scheduler-client"])
async def test_by_default_kube_scheduler_and_the_certificates_of_nodewise_may_call(tls_files, name):
    async with run_server(tls_files.options(client_name=DEFAULT)) as server:
        assert (await send_request(server, tls_files.odd_client(name))).status == 200


STRANGERS = {
    "another name of the same CA": (("system:node:evil",), ExtendedKeyUsageOID.CLIENT_AUTH),
    "no extended key usage": (("system:kube-scheduler",), None),
    "any extended key usage is not clientAuth": (
        ("system:kube-scheduler",),
        ExtendedKeyUsageOID.CODE_SIGNING,
    ),
    "two common names, the right one first": (
        ("system:kube-scheduler", "system:node:evil"),
        ExtendedKeyUsageOID.CLIENT_AUTH,
    ),
    "two common names, the right one last": (
        ("system:node:evil", "system:kube-scheduler"),
        ExtendedKeyUsageOID.CLIENT_AUTH,
    ),
    "a name that begins alike": (("system:kube-scheduler-2",), ExtendedKeyUsageOID.CLIENT_AUTH),
    "a name in other case": (("System:kube-scheduler",), ExtendedKeyUsageOID.CLIENT_AUTH),
}


@pytest.mark.parametrize(("names", "usage"), STRANGERS.values(), ids=STRANGERS)
async def test_a_certificate_of_the_client_ca_is_not_sufficient(tls_files, names, usage):
    async with run_server(tls_files.options(client_name=DEFAULT)) as server:
        try:
            answer = await send_request(server, tls_files.odd_client(*names, usage=usage))
        except RefusedError:
            assert usage is ExtendedKeyUsageOID.CODE_SIGNING  # OpenSSL refuses this usage in the handshake
        else:
            assert (answer.status, answer.field()) == (403, "client certificate")


async def test_a_certificate_for_servers_alone_is_refused_whatever_its_name(tls_files, metrics_registry):
    server_only = tls_files.odd_client("system:kube-scheduler", usage=ExtendedKeyUsageOID.SERVER_AUTH)
    async with run_server(
        tls_files.options(client_name=DEFAULT, any_client=True), metrics_registry=metrics_registry
    ) as server:
        with pytest.raises(RefusedError):
            await send_request(server, server_only)
    assert counted_close_reasons(metrics_registry) == ["purpose"]


ANY_CLIENT = {
    "another name": ("evil", ExtendedKeyUsageOID.CLIENT_AUTH, "nodewise started with --client-name 'evil'"),
    "no usage": ("system:kube-scheduler", None, "extended key usage clientAuth"),
}


@pytest.mark.parametrize(("name", "usage", "remedy"), ANY_CLIENT.values(), ids=ANY_CLIENT)
async def test_with_any_client_an_unpinned_one_may_call_all_but_the_routes_of_pinned_ones(
    tls_files, name, usage, remedy
):
    options = tls_files.options(client_name=DEFAULT, any_client=True)
    with capture_logs() as lines:
        async with run_server(options, ROUTES) as server:
            async with open_client(server, tls_files.odd_client(name, usage=usage)) as caller:
                statuses = [(await caller.ask(path)).status for path in ("/echo", "/pinned", "/echo")]
                refused = await caller.ask("/pinned", b"{}" * 50_000)
                seen = await caller.ask("/shown", b"", "GET")
            async with open_client(server, tls_files.context()) as caller:
                pinned = [(await caller.ask(path)).status for path in ("/echo", "/pinned")]
    assert (statuses, pinned) == ([200, 403, 200], [200, 200])
    assert (refused.status, refused.field(), seen.status) == (403, "client certificate", 403)
    (problem,) = refused.json()["problems"]
    assert name in problem["seen"]
    assert remedy in problem["wanted"]
    assert [line["names"] for line in lines if line["event"] == "unpinned_client"] == [(name,)]


async def test_a_name_that_is_given_replaces_the_default(tls_files):
    async with run_server(tls_files.options(client_name=("ours",))) as server:
        assert (await send_request(server, tls_files.odd_client("ours"))).status == 200
        assert (await send_request(server, tls_files.odd_client("system:kube-scheduler"))).status == 403


async def test_without_names_no_client_is_pinned(tls_files):
    async with run_server(tls_files.options(client_name=())) as server:
        assert (await send_request(server, tls_files.context())).status == 403


def test_all_kinds_of_names_are_read():
    leaf = trustme.CA().issue_cert("a.example", "10.0.0.1", "me@example.com", common_name="me")
    der = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    assert parse_client_certificate(der) == CertificateIdentity(
        ("me", "a.example", "10.0.0.1", "me@example.com"), is_ca=False, for_client=True
    )


def test_a_certificate_that_cannot_be_read_has_no_names():
    assert parse_client_certificate(b"rubbish") == CertificateIdentity((), is_ca=False)


class Resumed:
    """The part of a connection that the authorizer uses."""

    def __init__(self, context: ssl.SSLContext, *, session_reused: bool) -> None:
        self.session_reused = session_reused
        self._known = {"ssl_object": self, "sslcontext": context}

    def get_extra_info(self, name):
        return self._known[name]


def test_a_session_that_is_resumed_is_judged_by_its_certificate_again(tls_files, metrics_registry):
    """OpenSSL stores TLS 1.2 sessions by their id, and does not verify certificates when they are resumed."""
    clock = ManualClock(time.time())
    tls = ServerCertificates(tls_files.options(), metrics_registry, clock)
    authorizer = ClientAuthorizer(
        tls_files.options(), tls, CloseReasons(metrics_registry, clock), metrics_registry
    )
    chain = (
        der_of(
            tls_files.client_ca.issue_cert("a.example", not_after=dt.datetime.now(dt.UTC) + dt.timedelta(1))
        ),
    )
    for reused in (False, True):
        assert authorizer.examine(Resumed(tls.context, session_reused=reused), chain, "peer") == PINNED
    clock.advance(2 * 86400)
    assert authorizer.examine(Resumed(tls.context, session_reused=True), chain, "peer").refusal.status == 403


def der_of(leaf: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
