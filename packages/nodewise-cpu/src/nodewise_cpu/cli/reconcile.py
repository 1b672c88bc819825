"""`nodewise cpu reconcile`: releases the CPU lists of ended tasks."""

from dataclasses import dataclass
from pathlib import Path

from nodewise.base.errors import NodewiseError
from nodewise.observe import logs
from nodewise_cpu.allocation_store import AllocationStore, Intent
from nodewise_cpu.cli import common_options
from nodewise_cpu.cluster import report_custom_resources
from nodewise_cpu.ended_tasks import KnownProcesses
from nodewise_cpu.node import task_garbage_collection
from nodewise_cpu.node.task_garbage_collection import CollectionLog
from nodewise_cpu.reconfiguration import execution


@dataclass(frozen=True, kw_only=True)
class ReconcileOptions(
    common_options.StoreOptions, common_options.ProcessOptions, common_options.IntervalOptions
):
    """Options of `reconcile`."""


def run(options: ReconcileOptions) -> None:
    """Release the CPU lists of ended tasks, and print them.

    A task has ended when its wrapper and all processes that it started have ended. Tasks that may run on other CPUs
    than allocated are reported, and not changed. An interrupted reconfiguration is rolled back if this command runs as
    root with the host's process ids. The report is printed after the state is written.

    \b
    Examples:
      nodewise cpu reconcile --conf-dir /etc/cmk
      nodewise cpu reconcile --interval 5 --publish --namespace cmk

    \b
    Exit codes:
      0  done; the report says what was freed
      1  the state could not be read or written
      2  the command line or a setting is invalid
    """
    common_options.start_cmk_logging()
    proc = common_options.host_proc_path(options)
    store = common_options.open_allocation_store(options)
    known: KnownProcesses | None = None
    log = CollectionLog()

    def once() -> None:
        nonlocal known
        collection = task_garbage_collection.collect_garbage(
            store, proc, known, common_options.sleep_before_store_retry
        )
        known = collection.known
        if collection.stored.intent:
            _roll_back_ended_reconfiguration(store, proc, collection.stored.intent, known)
        log.log(collection)
        common_options.print_json(collection.as_report())
        if options.publish:
            common_options.publish_report(
                options, report_custom_resources.RECONCILE_REPORT, collection.as_report()
            )

    common_options.run_at_interval(once, options.interval)


def _roll_back_ended_reconfiguration(
    store: AllocationStore, proc: Path, intent: Intent, known: KnownProcesses
) -> None:
    """Roll back a reconfiguration whose process has ended. Without permission this is logged."""
    try:
        if execution.recover(store, proc, known=known):
            logs.emit("cpu_intent_recovered", pid=intent.by.pid, since=intent.since)
    except NodewiseError as error:
        logs.emit("cpu_intent_left", pid=intent.by.pid, since=intent.since, why=str(error))


command = common_options.create_click_command(
    "reconcile",
    run,
    ReconcileOptions,
    "Release the CPUs of ended tasks.",
    [*common_options.click_parameters(*common_options.STORE, "proc_fs"), *common_options.interval_options()],
)
