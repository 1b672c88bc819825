import datetime as dt
import ssl
import time

import pytest
import trustme
from structlog.testing import capture_logs

from nodewise.clock import ManualClock
from nodewise.observe.meters import Meters
from nodewise.serve.endings import Endings
from nodewise.serve.gate import Client, Gate, client_of
from nodewise.serve.tls import Tls
from tests.unit.serve.calling import called, calling, counted, reasons_counted, serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "name", ["system:kube-scheduler", "scheduler.example"], ids=["common name", "alternative name"]
)
async def test_a_client_with_one_of_the_names_is_served(papers, name):
    async with serving(papers.options(client_name=("somebody else", name))) as server:
        assert (await called(server, papers.context())).status == 200


async def test_a_client_without_any_of_the_names_is_told_so_and_closed(papers):
    meters = Meters()
    options = papers.options(client_name=("kube-scheduler", "example"))
    async with serving(options, meters=meters) as server, calling(server, papers.context()) as caller:
        with capture_logs() as lines:
            answer = await caller.ask("/echo", b"{}" * 50_000)
        assert (answer.status, answer.field()) == (403, "client certificate")
        assert "'system:kube-scheduler', 'scheduler.example'" in answer.json()["problems"][0]["seen"]
        assert answer.headers["connection"] == "close"
        assert await caller.rest() == b""
    assert reasons_counted(meters) == ["client_name"]
    assert lines == [] or lines[0]["reason"] == "client_name"
    assert counted(meters, "requests_total", route="/echo", status="200") == 0


async def test_h19_a_ca_certificate_as_client_is_served_with_a_warning(papers):
    meters = Meters()
    with capture_logs() as lines:
        async with serving(papers.options(), meters=meters) as server:
            assert (await called(server, papers.ca_as_client())).status == 200
            assert (await called(server, papers.ca_as_client())).status == 200
    (line,) = (line for line in lines if line["event"] == "ca_client")
    assert line["log_level"] == "warning"
    assert counted(meters, "ca_clients_total") == 2


async def test_a_ca_certificate_as_client_is_refused_on_demand(papers):
    meters = Meters()
    async with serving(papers.options(refuse_ca_client=True), meters=meters) as server:
        assert (await called(server, papers.ca_as_client())).status == 403
        assert (await called(server, papers.context())).status == 200
    assert reasons_counted(meters) == ["ca_certificate"]


def test_all_kinds_of_names_are_read():
    leaf = trustme.CA().issue_cert("a.example", "10.0.0.1", "me@example.com", common_name="me")
    der = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    assert client_of(der) == Client(("me", "a.example", "10.0.0.1", "me@example.com"), is_ca=False)


def test_a_certificate_that_cannot_be_read_has_no_names():
    assert client_of(b"rubbish") == Client((), is_ca=False)


class Resumed:
    """A connection, as far as the gate looks at it."""

    def __init__(self, context: ssl.SSLContext, *, session_reused: bool) -> None:
        self.session_reused = session_reused
        self._known = {"ssl_object": self, "sslcontext": context}

    def get_extra_info(self, name):
        return self._known[name]


def test_a_session_that_is_resumed_is_judged_by_its_certificate_again(papers):
    """OpenSSL keeps TLS 1.2 sessions by their id, and verifies nothing when they come back."""
    clock = ManualClock(time.time())
    meters = Meters()
    tls = Tls(papers.options(), meters, clock)
    gate = Gate(papers.options(), tls, Endings(meters, clock), meters)
    chain = (
        der_of(papers.client_ca.issue_cert("a.example", not_after=dt.datetime.now(dt.UTC) + dt.timedelta(1))),
    )
    for reused in (False, True):
        assert gate.examine(Resumed(tls.context, session_reused=reused), chain, "peer") is None
    clock.advance(2 * 86400)
    assert gate.examine(Resumed(tls.context, session_reused=True), chain, "peer").status == 403


def der_of(leaf: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
