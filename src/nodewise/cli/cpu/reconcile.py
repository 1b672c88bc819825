"""`nodewise cpu reconcile`: frees what tasks held that are over."""

from pathlib import Path
from typing import Any

import click

from nodewise.cli.cpu import common_options
from nodewise.cpu.allocation_store import AllocationStore, Intent
from nodewise.cpu.cluster import reports
from nodewise.cpu.ended_tasks import KnownProcesses
from nodewise.cpu.node import garbage_collection
from nodewise.cpu.node.garbage_collection import CollectionLog
from nodewise.cpu.reconfiguration import execution
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
    common_options.start_logs()
    proc = common_options.proc(given)
    store = common_options.store(given)
    known: KnownProcesses | None = None
    told = CollectionLog()

    def once() -> None:
        nonlocal known
        done = garbage_collection.collect_garbage(store, proc, known, common_options.pause_before_retry)
        known = done.known
        if done.stored.intent:
            _take_back(store, proc, done.stored.intent, known)
        told.log(done)
        common_options.print_json(done.as_report())
        if publish:
            common_options.publish(given, reports.RECONCILE_REPORT, done.as_report())

    common_options.run_at_interval(once, interval)


def _take_back(store: AllocationStore, proc: Path, intent: Intent, known: KnownProcesses) -> None:
    """Undo a reconfiguration whose process is gone; where we may not, say who can."""
    try:
        if execution.recover(store, proc, known=known):
            logs.emit("cpu_intent_recovered", pid=intent.by.pid, since=intent.since)
    except NodewiseError as error:
        logs.emit("cpu_intent_left", pid=intent.by.pid, since=intent.since, why=str(error))


command = click.Command(
    "reconcile",
    callback=run,
    help=run.__doc__,
    short_help="Free what tasks held that are over.",
    params=[*common_options.options(*common_options.PLACE, "proc_fs"), *common_options.interval_options()],
)
