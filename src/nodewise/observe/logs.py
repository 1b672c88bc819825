"""Log lines on stderr with structlog. Each line is an event of the table `EVENTS`.

`docs/reference/observability.md` is generated from the table; emitting an event that is not in it is an error.
"""

import logging
import os
import sys
from typing import Any, Final, Literal, NamedTuple

from nodewise.base.errors import visible

Level = Literal["debug", "info", "warning", "error"]


class LogEvent(NamedTuple):
    """Level and meaning of a log event. The meaning includes the remedy, if there is one."""

    level: Level
    meaning: str


EVENTS: Final[dict[str, LogEvent]] = {
    "started": LogEvent("info", "The extender serves requests at `address`."),
    "stopping": LogEvent(
        "info",
        "The process received a signal. After SIGTERM it is not ready, serves for `--shutdown-delay`, and then ends.",
    ),
    "ready": LogEvent("info", "Stores are synced and every metric that a policy names was requested."),
    "option_ignored": LogEvent(
        "warning", "An option of an older program is ignored, because it has no effect in nodewise."
    ),
    "any_client_implied": LogEvent(
        "warning",
        "A flag of TAS or GAS implies `--any-client`: every certificate of the client CA may call filter, prioritize"
        " and preempt. Set `--client-name` to the name in kube-scheduler's certificate; bind needs it in any case.",
    ),
    "memory_failed": LogEvent(
        "warning",
        "The learned state of agents could not be read or written (`--state`, or the ConfigMap nodewise-memory). It is"
        " tried again.",
    ),
    "memory_unreadable": LogEvent(
        "warning",
        "The stored state of an agent cannot be read. The agent starts without it and overwrites it.",
    ),
    "nodes_unknown": LogEvent(
        "warning",
        "A request has node names without nodes, and there is no cluster to read the nodes from: all their statistics"
        " are missing. Set nodeCacheCapable to false in this entry of the scheduler's configuration. Logged once.",
    ),
    "option_deprecated": LogEvent("warning", "An option is deprecated; use `instead`."),
    "all_namespaces_trusted": LogEvent(
        "warning",
        "`--trust-all-namespaces` is set: the policies of every namespace can label nodes, disable GPUs and send any"
        " query to Prometheus.",
    ),
    "option_limited": LogEvent(
        "warning", "An option of an older program is larger than `limit`, which is used instead."
    ),
    "traces_unavailable": LogEvent(
        "warning",
        "Spans cannot be sent to OTEL_EXPORTER_OTLP_ENDPOINT; `error` is the reason. If the SDK of OpenTelemetry is"
        " missing: `pip install nodewise[traces]`.",
    ),
    "variable_unknown": LogEvent(
        "warning",
        "A variable whose name begins with NODEWISE_ is no setting and has no effect; `closest` is the most similar"
        " setting.",
    ),
    "agent_settings_ignored": LogEvent(
        "warning",
        "The settings file has settings of an agent that cannot be used; they have no effect. `why` names its package.",
    ),
    "variable_ignored": LogEvent(
        "warning",
        "An environment variable of an older program has an invalid value; the default is used.",
    ),
    "log_level_set": LogEvent(
        "info", "`LOG_LEVEL`, a variable of an older program, sets the log level from now on."
    ),
    "metric_failed": LogEvent(
        "warning",
        "A metric could not be fetched; its last values stay in use and age. `error` is the reason.",
    ),
    "metric_back": LogEvent("info", "A metric that could not be fetched is available again."),
    "metric_paused": LogEvent(
        "warning",
        "A metric did not respond `timeouts` times in a row, while its source answered other requests. It is not"
        " requested from this source before `until`. Use a cheaper query in the policies of `namespaces`.",
    ),
    "metric_resumed": LogEvent(
        "info", "A metric that kept timing out responded again, and is requested as usual."
    ),
    "metric_values_bad": LogEvent("warning", "Some values of a metric are invalid; they count as missing."),
    "metric_in_two_sources": LogEvent(
        "info",
        "A metric is available from `used` and `unused`; the order of `--metrics` decides. Logged once per metric.",
    ),
    "metric_series_unmatched": LogEvent(
        "warning",
        "Series of a metric match no node, such as `example`. Set `--prometheus-node-label` to the label that names the"
        " node.",
    ),
    "metric_warning": LogEvent(
        "warning",
        "Prometheus, Thanos or VictoriaMetrics returned warnings, or a part of the series (isPartial). Nodes may be"
        " missing then, and keep their last verdicts, unless the warnings are hints about the query (`PromQL info`)."
        " Logged once.",
    ),
    "policy_problem": LogEvent(
        "warning", "A policy, or a node with GPUs, has invalid parts, which `problems` names."
    ),
    "status_failed": LogEvent(
        "warning", "The status of a policy could not be written. It is tried again in a minute."
    ),
    "controller_failed": LogEvent(
        "warning", "The leader could not write to the API server. The next step tries again."
    ),
    "controller_slow": LogEvent(
        "warning",
        "A step of a controller takes more than ten periods and blocks the controller. Other controllers continue.",
    ),
    "deleted_policies_failed": LogEvent(
        "warning",
        "The Lease with the deleted policies for whose pods labels stay cannot be read or written. A new leader removes"
        " these labels.",
    ),
    "label_conflict": LogEvent(
        "warning",
        "Another field manager owns a label of a policy. It is not changed; see the policy's status.",
    ),
    "labels_taken_over": LogEvent("info", "nodewise now owns labels of Telemetry Aware Scheduling."),
    "woken": LogEvent(
        "info",
        "A pending pod fits after a change of metrics: a node annotation triggers a retry.",
    ),
    "requeueing_limited": LogEvent(
        "warning",
        "Waiting pods have `demands` different demands. Filtering them again takes longer than `limit_s`, so `left` of"
        " them are filtered after a later snapshot. Namespaces have equal shares. `namespace` has the most,"
        " `demands_of_namespace`: limit its pods by ResourceQuota. At most one line per minute.",
    ),
    "annotated": LogEvent("info", "Statistics of `nodes` nodes were written as annotations."),
    "annotations_failed": LogEvent(
        "warning",
        "Statistics of `nodes` nodes could not be written; `error` is the first reason. The next period tries again.",
    ),
    "usage_unknown": LogEvent(
        "warning",
        "The usage of nodes is not available; their annotations keep the previous values and times. `error` is the"
        " reason.",
    ),
    "bound": LogEvent(
        "info", "A pod was bound to the node that kube-scheduler selected; `holds` names its GPUs."
    ),
    "bind_failed": LogEvent(
        "warning", "A pod could not be bound. kube-scheduler received `error` and schedules the pod again."
    ),
    "claims_left": LogEvent(
        "warning",
        "Reservations of pods that were not bound could not be removed from the allocation record of the node. The"
        " leader removes them.",
    ),
    "claim_dropped": LogEvent(
        "warning",
        "The leader removed a reservation from the allocation record of a node: its process ended before it"
        " bound the pod, or the pod was deleted. `why`: the pod is unbound, or unknown.",
    ),
    "ledger_deleted": LogEvent(
        "info", "The allocation record of a deleted node was deleted; it had no valid reservations."
    ),
    "deschedule_label_failed": LogEvent(
        "warning", "The label of a pod for the descheduler could not be written. It is tried again in 5 s."
    ),
    "books_differ": LogEvent(
        "error",
        "The state of `nodes` nodes differs from a new list; `what` is the difference. All objects are listed again and"
        " the state is computed again. Please report it.",
    ),
    "books_unchecked": LogEvent(
        "warning",
        "The state of GPUs could not be compared with a new list. It is tried again.",
    ),
    "agent_failed": LogEvent(
        "error", "An agent has a defect. Its pods stay pending; other pods are scheduled. Please report it."
    ),
    "outside_agent_failed": LogEvent(
        "error",
        "A third-party agent of `package` raised an exception or returned an invalid result; `why` is the reason. Its"
        " pods stay pending, and scores are computed without it. At most one line per kind of failure and minute;"
        " `unlogged` counts the others.",
    ),
    "request_failed": LogEvent(
        "error", "A call failed with status 500 because of a defect. Please report it."
    ),
    "task_failed": LogEvent("error", "A background task failed because of a defect and was restarted."),
    "objects_reread": LogEvent("info", "Objects from files (`--objects-from`) were reread after a change."),
    "objects_unreadable": LogEvent(
        "warning", "Files of `--objects-from` cannot be read; the last valid content stays in use."
    ),
    "recording_stopped": LogEvent(
        "warning", "Recording (`--record`) has stopped; `why` is the reason. The extender continues to serve."
    ),
    "kube_lost": LogEvent(
        "warning", "Objects of a kind cannot be listed or watched; the stored objects age."
    ),
    "kube_back": LogEvent("info", "Objects of a kind can be listed and watched again."),
    "kube_kind_not_served": LogEvent(
        "warning",
        "The API server has not served a kind for 60 s, or at the start for 3 s, so it has no objects: apply"
        " `deploy/crds`. It is listed again at least every 30 s.",
    ),
    "kube_kind_left_out": LogEvent(
        "info",
        "The API server does not serve an optional kind, or refuses it to this account, so it has no objects: nodes"
        " with GPUs of a DRA driver count as without GPUs. It is listed again every 30 s.",
    ),
    "kube_silent": LogEvent(
        "warning",
        "The API server has not responded for ten seconds. Calls of kube-scheduler are answered from the stored nodes"
        " and policies; metrics from the API server age, and labels are not changed.",
    ),
    "kube_answers": LogEvent("info", "The API server responds again, after `away_s` seconds."),
    "object_unreadable": LogEvent(
        "warning", "An object has an invalid field, or is too large; the object counts as absent."
    ),
    "leading": LogEvent("info", "This process leads: its controllers run."),
    "not_leading": LogEvent("warning", "This process no longer leads; its controllers have stopped."),
    "lease_failed": LogEvent(
        "warning", "The Lease cannot be read or written; a leader stops leading at its deadline."
    ),
    "identity_duplicate": LogEvent(
        "error",
        "Another running process has the `--identity` of this one and holds the Lease. This process does not lead until"
        " the other one has ended: give each replica its own identity, such as the name of its pod.",
    ),
    "lease_duration": LogEvent(
        "info",
        "The API server has become slow or quick, so this process uses another duration of the Lease: 5 s, or 30 s if"
        " it takes seconds to respond. `latency_s` is the last measurement.",
    ),
    "event_lost": LogEvent(
        "warning",
        "A Kubernetes event could not be recorded; `error` is the reason. Logged once until an event is recorded.",
    ),
    "cpu_cores_asked": LogEvent(
        "info", "The numbers of `exclusive` and `shared` cores that `nodewise cpu init` requests."
    ),
    "cpu_isolated": LogEvent(
        "info",
        "The CPUs that the kernel isolates, and the cores all of whose CPUs are; pools are made from these.",
    ),
    "cpu_not_isolated": LogEvent("info", "The kernel isolates no core; pools are made from all."),
    "cpu_fast": LogEvent("info", "CPUs of higher base frequency (SST-BF); they are taken first."),
    "cpu_power": LogEvent("info", "Classes of core power (SST-CP) in their order; pools are made by them."),
    "cpu_labels_unknown": LogEvent(
        "info",
        "The node's labels could not be read, so SST-BF and SST-CP count as off; `why` is the reason.",
    ),
    "cpu_pool": LogEvent("info", "A pool of the node, and the CPU lists that it gets."),
    "cpu_warning": LogEvent(
        "warning", "A problem of the machine or of the requested pools; `what` describes it."
    ),
    "cpu_huge_pages": LogEvent("warning", "No huge page is free; workloads that need some will not start."),
    "cpu_huge_pages_unknown": LogEvent("info", "The kernel does not report the number of free huge pages."),
    "cpu_pools_kept": LogEvent("info", "The node already has these pools; nothing is written."),
    "cpu_node_patched": LogEvent(
        "info", "The label, taint or resources of the node were written; `patch` is the change."
    ),
    "cpu_advertised": LogEvent(
        "info", "The label, taint and resources of the node are already correct; nothing is written."
    ),
    "cpu_feature_written": LogEvent(
        "info",
        "The file from which Node Feature Discovery reads classes of core power (SST-CP) was changed.",
    ),
    "cpu_reclaimed": LogEvent("info", "A task has ended, and its CPU list was released."),
    "cpu_elsewhere": LogEvent(
        "warning",
        "A task may run on CPUs outside of its list: the task changed its affinity (use `isolate --no-affinity` for"
        " this), or another program changed it, such as a kubelet with the static policy.",
    ),
    "cpu_doubtful": LogEvent(
        "warning",
        "The wrapper of a task has ended, but processes of the task that cannot be read may still run, so its CPU list"
        " is not released. Run `reconcile` as root with the capability SYS_PTRACE, or run the node agent.",
    ),
    "cpu_webhook_mutual": LogEvent(
        "info",
        "The webhook requires a client certificate of `cafile`. The API server presents one only if its"
        " --admission-control-config-file configures it: `nodewise cpu webhook --print-admission-config` writes it.",
    ),
    "cpu_webhook_any_client": LogEvent(
        "warning",
        "The webhook serves every client that reaches its port (`--insecure`) and requires no client certificate. To"
        " configure one for the API server, use `nodewise cpu webhook --print-admission-config`.",
    ),
    "cpu_pod_mutated": LogEvent("info", "The webhook mutated a pod in `namespace` that requests cores."),
    "cpu_pod_refused": LogEvent(
        "warning",
        "The API server sent an object that cannot be mutated; the response contains `error`. If the object is not a"
        " pod, restrict the rules of the MutatingWebhookConfiguration.",
    ),
    "cpu_mutations_read": LogEvent("info", "The mutations changed, and pods get the new ones from now on."),
    "cpu_mutations_failed": LogEvent(
        "warning",
        "The mutations are invalid; pods that request cores get an error until they are valid. `error` is the reason.",
    ),
    "cpu_waiting": LogEvent("info", "The seconds until the next round (`--interval`)."),
    "cpu_round_failed": LogEvent("warning", "A round of `--interval` failed; the next one tries again."),
    "cpu_report_skipped": LogEvent(
        "warning", "A report could not be published: its namespace is missing, or its kind (`deploy/crds`)."
    ),
    "cpu_report_blocked": LogEvent(
        "error", "A report could not be published: the API server does not allow it."
    ),
    "cpu_report_undefined": LogEvent(
        "warning",
        "The definition of reports could not be made: apply `deploy/crds`, or grant the right to create it.",
    ),
    "cpu_intent_recovered": LogEvent(
        "warning",
        "A reconfiguration of the node was interrupted and has been reverted: tasks run on their previous CPUs, and the"
        " node can be reconfigured again.",
    ),
    "cpu_intent_left": LogEvent(
        "warning",
        "An interrupted reconfiguration could not be reverted here. No core is allocated until the node agent reverts"
        " it, or `nodewise cpu reconcile` or `reconfigure` as root with hostPID.",
    ),
    "cpu_claim_refused": LogEvent(
        "warning",
        "The node agent refused a request for CPUs; the response contains `error`. At most one line in ten seconds;"
        " `unlogged` counts the others.",
    ),
    "cpu_unchecked": LogEvent(
        "warning",
        "The node agent does not check whether pods requested the exclusive CPUs that they use, because there is no API"
        " server (`--conf-dir`) or because of `--allow-unrequested`.",
    ),
    "cpu_enforcing_failed": LogEvent(
        "warning",
        "The cpuset of a container could not be set to the CPUs of its tasks. `error` is the reason; it is retried.",
    ),
    "cpu_enforced": LogEvent(
        "info",
        "A container's cpuset was set to the CPUs of its tasks, or to its previous CPUs if it has no task left.",
    ),
    "cpu_kubelet_conflict": LogEvent(
        "warning",
        "The kubelet's CPU manager (`cpuManagerPolicy: static`) conflicts with the pools: `seen` is the value of"
        " `what`, and `wanted` is the expected value.",
    ),
    "cpu_kubelet_instead": LogEvent(
        "info", "The kubelet settings that could replace this pool, if the kubelet and the pools conflict."
    ),
    "cpu_manager_conflict": LogEvent(
        "warning",
        "Another CPU manager (the DRA driver for CPUs, an NRI resource policy, systemd) or a cgroup partition conflicts"
        " with the pools: `seen` is the value of `what`, and `wanted` is the expected value.",
    ),
    "cpu_chore_failed": LogEvent(
        "warning",
        "A garbage collection of the node agent failed, or a task after it; `what` names it. It is tried again, and"
        " logged once for each reason.",
    ),
    "cpu_chore_back": LogEvent("info", "A task of the node agent that failed before succeeds again."),
    "listening": LogEvent("info", "The server listens on `url`."),
    "accept_failed": LogEvent(
        "error", "New connections cannot be accepted for now. Raise the limit of open files."
    ),
    "connection_ended": LogEvent(
        "warning",
        "The server refused or closed a connection; see `remedy`. At most one line per reason in ten seconds;"
        " `unlogged` counts the others.",
    ),
    "ca_client": LogEvent(
        "warning",
        "A client presents the certificate of a CA, whose key can sign certificates for any client. Use a client"
        " certificate.",
    ),
    "unpinned_client": LogEvent(
        "warning",
        "A client is served because of `--any-client`; `missing` names what its certificate lacks. Bind, `/decisions`,"
        " `/metric-values` and `/state` are refused. Logged once per names of a certificate, for at most 64 of them.",
    ),
    "tls_reloaded": LogEvent("info", "Certificate files have changed, and the new content is in use."),
    "tls_reload_failed": LogEvent(
        "warning",
        "Certificate files have changed and cannot be used; `error` is the reason. The previous content stays in use,"
        " and the files are tried again.",
    ),
    "certificate_expires_soon": LogEvent(
        "warning", "A certificate in use expires in less than a week. Renew it. Logged once a day."
    ),
    "certificate_expired": LogEvent(
        "error", "A certificate in use has expired. Renew it. Logged once a day."
    ),
}


# Import structlog without rich, which takes a tenth of the start-up time and is used only for pretty tracebacks.
_rich = sys.modules.get("rich")
if _rich is None:
    sys.modules["rich"] = None  # type: ignore[assignment]  # makes `import rich` fail
try:
    import structlog
finally:
    if _rich is None:
        del sys.modules["rich"]

Format = Literal["text", "json"]
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _BufferedEvent(NamedTuple):
    """An event that was emitted before `configure`."""

    event: str
    fields: dict[str, Any]


_early: list[_BufferedEvent] = []
_early_whatever_level: list[_BufferedEvent] = []


def configure(level: str = "info", form: Format = "text") -> None:
    """Set level and format of all lines, and write buffered events. The command line calls it once."""
    _set_level_and_format("debug", form)
    _write_buffered(_early_whatever_level)
    _set_level_and_format(level, form)
    _write_buffered(_early)
    # Libraries use the standard module `logging`; only their warnings are of interest to an operator.
    logging.basicConfig(stream=sys.stderr, level=max(_LEVELS[level], logging.WARNING), format="%(message)s")


def _write_buffered(early: list[_BufferedEvent]) -> None:
    while early:
        event, fields = early.pop(0)
        emit(event, **fields)


def _set_level_and_format(level: str, form: Format) -> None:
    # plain tracebacks: pretty ones include the values of variables, such as the bodies of requests
    plain = structlog.dev.plain_traceback
    colors = sys.stderr.isatty() and not os.environ.get("NO_COLOR")  # https://no-color.org
    text = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([structlog.processors.JSONRenderer()] if form == "json" else [_escape_fields, text]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


class _Quoted(NamedTuple):
    """A text that structlog renders with its repr, as it does for texts with spaces."""

    text: str

    def __repr__(self) -> str:
        return repr(self.text)


def _escape_fields(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with escaped control characters: they can contain text of tenants and servers."""
    for key, value in fields.items():
        if key == "exception":
            fields[key] = "\n".join(map(visible, value.split("\n")))
        elif isinstance(value, str) and not value.isprintable():
            fields[key] = _Quoted(value)
    return fields


def emit(event: str, **fields: Any) -> None:
    """Write one event. KeyError if it is not in the table."""
    getattr(structlog.get_logger(), EVENTS[event].level)(event, **fields)


def emit_later(event: str, *, whatever_level: bool = False, **fields: Any) -> None:
    """Buffer an event while the command line is parsed; `configure` writes it."""
    (_early_whatever_level if whatever_level else _early).append(_BufferedEvent(event, fields))
