"""`nodewise cpu reconcile`: frees what tasks held that are over."""

from typing import Any

import click

from nodewise.cli.cpu import rounds, shared
from nodewise.cpu.cluster import reports
from nodewise.cpu.node import sweeping
from nodewise.cpu.node.sweeping import Round
from nodewise.cpu.sweep import Known
from nodewise.observe import logs


def run(*, interval: int, publish: bool, **given: Any) -> None:
    """Free the CPU lists of tasks that are over, and print which they were.

    A task is over when its wrapper and all that this started are gone. Tasks that may run on other CPUs than those of
    their lists are told as well, and left alone. The report is printed after the state was written.

    \b
    Example:  nodewise cpu reconcile --conf-dir /etc/cmk
              nodewise cpu reconcile --interval 5 --publish --namespace cmk-namespace
    """
    shared.start_logs()
    proc = shared.proc(given)
    book = shared.book(given)
    known: Known | None = None
    told: set[tuple[int, str]] = set()

    def once() -> None:
        nonlocal known
        done = sweeping.carry_out(book, proc, known, rounds.wait)
        known = done.known
        _tell(done, told)
        shared.print_json(done.as_report())
        if publish:
            shared.publish(given, reports.RECONCILE_REPORT, done.as_report())

    rounds.go(once, interval)


def _tell(done: Round, told: set[tuple[int, str]]) -> None:
    """Log what was done, and what is new of what was not as it should be."""
    for one in done.reclaimed:
        logs.emit("cpu_reclaimed", pid=one.task.pid, cpus=one.cpus, pool=one.pool)
    for wrong in done.elsewhere:
        if (wrong["pid"], wrong["cpus"]) not in told:
            logs.emit("cpu_elsewhere", **wrong)
    for task in done.doubtful:
        if (task.pid, "") not in told:
            logs.emit("cpu_doubtful", pid=task.pid, pod=task.pod, container=task.container)
    told.clear()
    told.update((wrong["pid"], wrong["cpus"]) for wrong in done.elsewhere)
    told.update((task.pid, "") for task in done.doubtful)


command = click.Command(
    "reconcile",
    callback=run,
    help=run.__doc__,
    short_help="Free what tasks held that are over.",
    params=[*shared.options(*shared.PLACE, "proc_fs"), *rounds.options()],
)
