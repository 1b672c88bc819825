import pytest

from nodewise.base.errors import BadSettings, Refused
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application, Request, Response, Route
from nodewise.server.options import AdminOptions
from nodewise.server.server import admin_routes, admin_server, restrict_to_loopback
from tests.unit.server.raw_http_client import open_client


async def test_health_readiness_and_metrics(metrics_registry):
    missing = ["nodes", "metric cpu_temp"]
    app = Application(admin_routes(lambda: missing, metrics_registry), metrics_registry, max_body_bytes=1000)
    server = admin_server(app, AdminOptions(health_port=0), metrics_registry)
    await server.start()
    async with open_client(server) as caller:
        assert (await caller.ask("/healthz", b"", "GET", {})).status == 200
        assert (await caller.ask("/healthz", b"", "HEAD", {})).status == 200
        answer = await caller.ask("/readyz", b"", "GET", {})
        assert (answer.status, answer.json()) == (503, {"ready": False, "waiting_for": missing})
        missing.clear()
        answer = await caller.ask("/readyz", b"", "GET", {})
        assert (answer.status, answer.json()) == (200, {"ready": True, "waiting_for": []})
        answer = await caller.ask("/metrics", b"", "GET", {})
        assert answer.headers["content-type"].startswith("text/plain")
        assert b'nodewise_requests_total{route="/readyz",status="503"} 1.0' in answer.body
        assert (await caller.ask("/decisions", b"", "GET", {})).status == 404
    await server.stop()


async def test_an_address_beyond_loopback_is_a_choice():
    server = admin_server(
        Application([], MetricsRegistry(), max_body_bytes=1),
        AdminOptions(health_address="0.0.0.0", health_port=0),
        MetricsRegistry(),
    )
    await server.start()
    await server.stop()


async def test_loopback_route_serves_loopback_on_any_listening_address():
    def decisions(_request: Request) -> Response:
        return Response(200, b"all")

    app = Application(
        [restrict_to_loopback(Route("GET", "/decisions", decisions))], MetricsRegistry(), max_body_bytes=1
    )
    server = admin_server(app, AdminOptions(health_address="0.0.0.0", health_port=0), MetricsRegistry())
    await server.start()
    async with open_client(server) as caller:
        answer = await caller.ask("/decisions", b"", "GET", {})
        assert (answer.status, answer.body) == (200, b"all")
    await server.stop()


@pytest.mark.parametrize("called", ["10.88.0.3", "", "::", "192.168.1.7"])
async def test_loopback_route_refuses_other_addresses(called):
    route = restrict_to_loopback(Route("GET", "/decisions", lambda _: Response(200)))
    with pytest.raises(Refused, match="port-forward"):
        route.handler(Request("GET", "/decisions", {}, b"", "", "127.0.0.1:4711", called))


async def test_a_port_in_use_is_named(metrics_registry):
    app = Application([], metrics_registry, max_body_bytes=1)
    first = admin_server(app, AdminOptions(health_port=0), metrics_registry)
    await first.start()
    second = admin_server(app, AdminOptions(health_port=first.port), metrics_registry)
    with pytest.raises(
        BadSettings, match=rf"--health-port: {first.port} is in use on 127.0.0.1; expected a free port"
    ):
        await second.start()
    await first.stop()
