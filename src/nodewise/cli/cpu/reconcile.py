"""`nodewise cpu reconcile`: frees what tasks held that are over."""

from pathlib import Path
from typing import Any

import click

from nodewise.cli.cpu import rounds, shared
from nodewise.cpu.agent.telling import Told
from nodewise.cpu.book import Book, Intent
from nodewise.cpu.cluster import reports
from nodewise.cpu.move import moving
from nodewise.cpu.node import sweeping
from nodewise.cpu.sweep import Known
from nodewise.errors import NodewiseError
from nodewise.observe import logs


def run(*, interval: int, publish: bool, **given: Any) -> None:
    """Free the CPU lists of tasks that are over, and print which they were.

    A task is over when its wrapper and all that this started are gone. Tasks that may run on other CPUs than those of
    their lists are told as well, and left alone. What a reconfiguration left whose process is gone is undone, where
    this runs as root with the host's process ids. The report is printed after the state was written.

    \b
    Examples:
      nodewise cpu reconcile --conf-dir /etc/cmk
      nodewise cpu reconcile --interval 5 --publish --namespace cmk

    \b
    Exit codes:
      0  done; the report says what was freed
      1  the state could not be read or written
      2  the command line or a setting is wrong
    """
    shared.start_logs()
    proc = shared.proc(given)
    book = shared.book(given)
    known: Known | None = None
    told = Told()

    def once() -> None:
        nonlocal known
        done = sweeping.carry_out(book, proc, known, rounds.wait)
        known = done.known
        if done.stored.intent:
            _take_back(book, proc, done.stored.intent, known)
        told.tell(done)
        shared.print_json(done.as_report())
        if publish:
            shared.publish(given, reports.RECONCILE_REPORT, done.as_report())

    rounds.go(once, interval)


def _take_back(book: Book, proc: Path, intent: Intent, known: Known) -> None:
    """Undo a reconfiguration whose process is gone; where we may not, say who can."""
    try:
        if moving.recover(book, proc, known=known):
            logs.emit("cpu_intent_recovered", pid=intent.by.pid, since=intent.since)
    except NodewiseError as error:
        logs.emit("cpu_intent_left", pid=intent.by.pid, since=intent.since, why=str(error))


command = click.Command(
    "reconcile",
    callback=run,
    help=run.__doc__,
    short_help="Free what tasks held that are over.",
    params=[*shared.options(*shared.PLACE, "proc_fs"), *rounds.options()],
)
