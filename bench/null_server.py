"""The no-op server: the extender's HTTP stack with a fixed response for every request.

    python -m bench.null_server --cert FILE --key FILE --client-ca FILE /scheduler/filter=FILE …

With `PATH=` the response names all nodes of the request, as a filter that rejects none.

Its time is the cost of TLS, HTTP and copying the bytes; the rest of an extender's time is its own.
"""

import asyncio
from pathlib import Path

import msgspec
import uvloop

from bench import server_command_line
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application, Handler, Request, Response, Route
from nodewise.server.options import ServeOptions
from nodewise.server.server import HttpServer


def _fixed_response(body: bytes) -> Handler:
    response = Response(200, body)
    return lambda _request: response


class _Candidates(msgspec.Struct):
    names: msgspec.Raw = msgspec.field(name="NodeNames")


def _accept_all(request: Request) -> Response:
    names = msgspec.json.decode(request.body, type=_Candidates).names
    return Response(200, b'{"NodeNames":' + bytes(names) + b"}")


async def _serve(options: ServeOptions, routes: list[Route]) -> None:
    metrics_registry = MetricsRegistry()
    server = HttpServer(
        Application(routes, metrics_registry, max_body_bytes=options.max_body_bytes),
        options,
        metrics_registry,
    )
    await server.start()
    server_command_line.announce(server.port)
    await asyncio.Event().wait()


def main() -> None:
    parser = server_command_line.argument_parser(__doc__)
    parser.add_argument("--client-ca", required=True)
    parser.add_argument("answers", nargs="+", metavar="PATH=FILE")
    arguments = parser.parse_args()
    pairs = (answer.split("=", 1) for answer in arguments.answers)
    routes = [
        Route("POST", path, _fixed_response(Path(file).read_bytes()) if file else _accept_all)
        for path, file in pairs
    ]
    options = ServeOptions(
        address="127.0.0.1", port=0, cert=arguments.cert, key=arguments.key, client_ca=arguments.client_ca
    )
    uvloop.run(_serve(options, routes))


if __name__ == "__main__":
    main()
