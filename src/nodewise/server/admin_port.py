"""The admin port: health, readiness and metrics, in plain HTTP. On loopback by default."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from nodewise.base.errors import Refused
from nodewise.observe.metrics_registry import CONTENT_TYPE, MetricsRegistry
from nodewise.server.application import Application, Request, Response, Route
from nodewise.server.options import AdminOptions, ServeOptions, is_loopback
from nodewise.server.server import HttpServer


def admin_routes(waiting_for: Callable[[], Sequence[str]], metrics_registry: MetricsRegistry) -> list[Route]:
    """/healthz, /readyz and /metrics. `waiting_for` returns what is missing for readiness."""

    def healthz(_request: Request) -> Response:
        return Response(200, b'{"alive": true}\n')

    def readyz(_request: Request) -> Response:
        missing = list(waiting_for())
        body = {"ready": not missing, "waiting_for": missing}
        return Response(503 if missing else 200, msgspec.json.encode(body) + b"\n")

    def metrics(_request: Request) -> Response:
        return Response(200, metrics_registry.exposition(), CONTENT_TYPE)

    return [
        Route("GET", "/healthz", healthz),
        Route("GET", "/readyz", readyz),
        Route("GET", "/metrics", metrics),
    ]


def restrict_to_loopback(route: Route) -> Route:
    """The route for clients that connect to a loopback address, whatever addresses the port listens on: processes of
    this machine or pod, and `kubectl port-forward`. `Refused` for all others.
    """

    def handler(request: Request) -> Response | Awaitable[Response]:
        if not is_loopback(request.local):
            raise Refused(
                f"{route.path} shows every tenant's pods: call it on loopback, as kubectl port-forward does"
            )
        return route.handler(request)

    return route._replace(handler=handler)


_FLAGS: Final = {"address": "--health-address", "port": "--health-port"}


def admin_server(
    application: Application, options: AdminOptions, metrics_registry: MetricsRegistry
) -> HttpServer:
    """A separate server for these routes. An address beyond loopback is the operator's choice: a kubelet's probes come
    from outside the pod, and the routes show only counts.
    """
    address = options.health_address
    serve_options = ServeOptions(
        address=address, port=options.health_port, unsafe=True, unsafe_address=address, max_body_bytes=65536
    )
    return HttpServer(application, serve_options, metrics_registry, flags=_FLAGS)
