"""What commands do with `--interval`: the same thing over and over."""

import random
import signal
import threading
import time
from collections.abc import Callable

import click

from nodewise.errors import Conflict, Unavailable
from nodewise.observe import logs


def options() -> list[click.Parameter]:
    """`--interval` and `--publish`."""
    return [
        click.Option(
            ["--interval"], type=int, default=0, show_default=True, metavar="SECONDS",
            help="Do it over and over; 0: once.",
        ),
        click.Option(["--publish"], is_flag=True, help="Keep the report in the API server as well."),
    ]  # fmt: skip


def go(act: Callable[[], None], interval_s: int) -> None:
    """Once, or until SIGTERM; then a round that fails because somebody does not answer is followed by the next."""
    if interval_s <= 0:
        act()
        return
    over = threading.Event()
    # the first process of a container is not ended by a signal that it does not handle
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    while not over.is_set():
        try:
            act()
        except (Unavailable, Conflict) as error:
            logs.emit("cpu_round_failed", error=str(error))
        logs.emit("cpu_waiting", seconds=interval_s)
        over.wait(interval_s)


def wait(number: int) -> None:
    """Before another try to write what somebody wrote first."""
    time.sleep(random.uniform(0, min(1.0, 0.05 * number)))  # noqa: S311 - who waits how long is no secret
