"""`--watch`: shows the answer of a command again whenever it changes, as `kubectl get --watch` does."""

from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from nodewise.base.clock import Clock
from nodewise.base.errors import Unavailable
from nodewise.cli import terminal_output

T = TypeVar("T")

Show = Callable[[T], None]


async def show_changes(
    compute: Callable[[], Awaitable[T]],
    comparable: Callable[[T], object],
    show: Show[T],
    period_s: float,
    clock: Clock,
) -> NoReturn:
    """Compute an answer once per period, and show the first one and each that differs from the last one shown.

    `comparable` returns the part of an answer that counts. A server that does not respond is reported once on stderr,
    and tried again; at the first answer it is an error, because the command line may be wrong. Ctrl-C ends the command.
    """
    answer = await compute()
    while True:
        show(answer)
        shown = comparable(answer)
        reported = ""
        while comparable(answer) == shown:
            await clock.sleep(period_s)
            try:
                answer = await compute()
                reported = ""
            except Unavailable as error:
                if str(error) != reported:
                    terminal_output.print_message(str(error))
                reported = str(error)
