"""The admin port of a program that has no event loop: one in a thread of its own."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final

from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.serve.admin import admin_routes, admin_server
from nodewise.serve.application import Application
from nodewise.serve.options import AdminOptions

_MOST_BYTES: Final = 2**16


@contextlib.contextmanager
def served(
    waiting_for: Callable[[], Sequence[str]], options: AdminOptions, meters: MetricsRegistry
) -> Iterator[str]:
    """Health, readiness and metrics for as long as the context lasts; its URL. BadSettings without the port."""
    opened: Future[str] = Future()
    ended = threading.Event()

    async def serve() -> None:
        app = Application(admin_routes(waiting_for, meters), meters, max_body_bytes=_MOST_BYTES)
        server = admin_server(app, options, meters)
        try:
            await server.start()
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            opened.set_exception(error)
            return
        opened.set_result(server.url)
        await asyncio.to_thread(ended.wait)
        await server.stop(1.0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="admin", daemon=True)
    thread.start()
    try:
        yield opened.result()
    finally:
        ended.set()
        thread.join()
