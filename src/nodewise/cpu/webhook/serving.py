"""The webhook's port: HTTPS, and one path."""

from typing import Final

from nodewise.cpu.webhook import review
from nodewise.cpu.webhook.config import LiveMutations
from nodewise.observe import logs
from nodewise.observe.meters import Meters
from nodewise.serve.application import Application, Request, Response, Route
from nodewise.serve.options import ServeOptions
from nodewise.serve.server import Server

LONGEST_BYTES: Final = 3 * 2**20
"""A review holds a pod, of which the API server takes 1.5 MiB or so at most, with room to spare."""


def served(mutations: LiveMutations, options: ServeOptions, meters: Meters, *, any_client: bool) -> Server:
    """The server, to be started: for clients with a certificate of `options.client_ca`, or for `any_client`."""

    def mutate(request: Request) -> Response:
        answer = review.answer(request.body, mutations)
        meters.count("cpu_reviews_total", outcome=answer.outcome)
        if answer.outcome == "mutated":
            logs.emit("cpu_pod_mutated", namespace=answer.told)
        elif answer.outcome == "refused":
            logs.emit("cpu_pod_refused", error=answer.told, peer=request.peer)
        return Response(200, answer.body)

    app = Application([Route("POST", review.PATH, mutate)], meters, max_body_bytes=LONGEST_BYTES)
    return Server(app, options, meters, any_client=any_client)
