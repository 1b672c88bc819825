"""The webhook's HTTPS server, which has one path."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from nodewise.base.errors import BadSettings
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server.application import Application, ConcurrencyLimit, Request, Response, Route
from nodewise.server.options import ServeOptions
from nodewise.server.server import HttpServer
from nodewise_cpu.webhook import admission_review
from nodewise_cpu.webhook.admission_review import ReviewResponse
from nodewise_cpu.webhook.pod_mutation import Mutations
from nodewise_cpu.webhook.webhook_config_files import LiveMutations

LONGEST_BYTES: Final = 3 * 2**20
"""A review contains a pod, whose size the API server limits to about 1.5 MiB; this leaves a margin."""


_LARGE_BYTES: Final = 2**16
_MOST_LARGE: Final = 8
"""The number of large reviews in memory at once."""


def create_webhook_server(
    mutations: LiveMutations, options: ServeOptions, metrics_registry: MetricsRegistry, *, any_client: bool
) -> HttpServer:
    """The server, not started yet: for clients with a certificate of `options.client_ca`, or for `any_client`."""
    aside = ThreadPoolExecutor(1, thread_name_prefix="large-reviews")

    def log_and_render(request: Request, answer: ReviewResponse) -> Response:
        metrics_registry.count("cpu_reviews_total", outcome=answer.outcome)
        if answer.outcome == "mutated":
            logs.emit("cpu_pod_mutated", namespace=answer.detail)
        elif answer.outcome == "refused":
            logs.emit("cpu_pod_refused", error=answer.detail, peer=request.peer)
        return Response(200, answer.body)

    async def mutate(request: Request) -> Response:
        """Respond to a review. Large ones are processed in another thread, one at a time, and delay no others."""
        if len(request.body) < _LARGE_BYTES:
            return log_and_render(request, admission_review.respond_to_review(request.body, mutations))
        try:
            valid_mutations = mutations()
        except BadSettings as error:  # an error only if the pod requests cores
            get_mutations = _raise_when_called(error)
        else:
            get_mutations = lambda: valid_mutations  # noqa: E731
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(
            aside, admission_review.respond_to_review, request.body, get_mutations
        )
        return log_and_render(request, answer)

    limit = ConcurrencyLimit(_MOST_LARGE, _LARGE_BYTES)
    app = Application(
        [Route("POST", admission_review.PATH, mutate, limit)], metrics_registry, max_body_bytes=LONGEST_BYTES
    )
    return HttpServer(app, options, metrics_registry, verify_clients=not any_client)


def _raise_when_called(error: BadSettings) -> Callable[[], Mutations]:
    def fail() -> Mutations:
        raise error

    return fail
