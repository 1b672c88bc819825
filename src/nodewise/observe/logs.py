"""Log lines on stderr with structlog. Each line is an event of the table `EVENTS`.

`docs/reference/observability.md` is generated from the table; emitting an event that is not in it is an error.
"""

import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from nodewise.base.errors import visible

Level = Literal["debug", "info", "warning", "error"]


class LogEvent(NamedTuple):
    """Level and meaning of a log event. The meaning includes the remedy, if there is one."""

    level: Level
    meaning: str


_INFO: Final = {
    "started": "The extender serves requests at `address`.",
    "stopping": (
        "The process received a signal. After SIGTERM it is not ready, serves for `--shutdown-delay`, and"
        " then ends."
    ),
    "ready": "Stores are synced and every metric that a policy names was requested.",
    "log_level_set": "`LOG_LEVEL`, a variable of an older program, sets the log level from now on.",
    "metric_back": "A metric that could not be fetched is available again.",
    "metric_resumed": "A metric that kept timing out responded again, and is requested as usual.",
    "metric_in_two_sources": (
        "A metric is available from `used` and `unused`; the order of `--metrics` decides. Logged once per"
        " metric."
    ),
    "labels_taken_over": "nodewise now owns labels of Telemetry Aware Scheduling.",
    "woken": "Another node became feasible for a pending pod: an annotation of a node triggers a retry.",
    "annotated": "Statistics of `nodes` nodes were written as annotations.",
    "bound": "A pod was bound to the node that kube-scheduler selected; `holds` names its GPUs.",
    "ledger_deleted": "The allocation record of a deleted node was deleted; it had no valid reservations.",
    "objects_reread": "Objects from files (`--objects-from`) were reread after a change.",
    "kube_back": "Objects of a kind can be listed and watched again.",
    "kube_kind_left_out": (
        "The API server does not serve an optional kind, or refuses it: nodes with GPUs of a DRA driver count"
        " as without GPUs, and without MutatingAdmissionPolicy native mode is off by default. It is listed"
        " again every 30 s."
    ),
    "native_mode_changed": (
        "Native mode is `on` or `off` from now on, by the settings or its admission policies."
    ),
    "kube_answers": "The API server responds again, after `away_s` seconds.",
    "leading": "This process leads: its controllers run.",
    "shard_acquired": "This replica holds the shard `shard` from now on.",
    "shard_released": "This replica does not write to nodes of the shard `shard` any more; `holder` held it last.",
    "shard_lease_closed": (
        "The leader has written the Lease of a shard for another number of shards; replicas with the former"
        " number cannot acquire it."
    ),
    "lease_duration": (
        "The duration of the Lease changes: 5 s, or 30 s if the API server takes seconds to respond, by the"
        " latency `latency_s`."
    ),
    "cpu_cores_asked": "`nodewise cpu init` requests `exclusive` exclusive and `shared` shared cores.",
    "cpu_isolated": (
        "The CPUs that the kernel isolates, and the cores all of whose CPUs are; pools are made from these."
    ),
    "cpu_not_isolated": "The kernel isolates no core; pools are made from all.",
    "cpu_fast": "CPUs of higher base frequency (SST-BF); they are taken first.",
    "cpu_power": "Classes of core power (SST-CP) in their order; pools are made by them.",
    "cpu_labels_unknown": "The node's labels could not be read, so SST-BF and SST-CP count as off.",
    "cpu_pool": "The pool `pool` of the node gets the CPU lists `lists`.",
    "cpu_huge_pages_unknown": "The kernel does not report the number of free huge pages.",
    "cpu_pools_kept": "The node already has these pools; nothing is written.",
    "cpu_node_patched": "The label, taint or resources of the node were written; `patch` is the change.",
    "cpu_advertised": "The label, taint and resources of the node are already correct; nothing is written.",
    "cpu_feature_written": (
        "The file from which Node Feature Discovery reads classes of core power (SST-CP) was changed."
    ),
    "cpu_reclaimed": "A task has ended, and its CPU list was released.",
    "cpu_webhook_mutual": (
        "The webhook requires a client certificate of `cafile`; `nodewise cpu webhook"
        " --print-admission-config` configures the API server for it."
    ),
    "cpu_pod_mutated": "The webhook mutated a pod in `namespace` that requests cores.",
    "cpu_mutations_read": "The mutations changed, and pods get the new ones from now on.",
    "cpu_waiting": "The seconds until the next round (`--interval`).",
    "cpu_enforced": "A container's cpuset was set to the CPUs of its tasks, or to its previous CPUs.",
    "cpu_kubelet_instead": (
        "The kubelet settings that could replace this pool, if the kubelet and the pools conflict."
    ),
    "cpu_chore_back": "A task of the node agent that failed before succeeds again.",
    "listening": "The server listens on `url`.",
    "tls_reloaded": "Certificate files have changed, and the new content is in use.",
}
_WARNING: Final = {
    "option_ignored": "An option of an older program is ignored, because it has no effect in nodewise.",
    "any_client_implied": (
        "A flag of TAS or GAS implies `--any-client`: every certificate of the client CA may call filter,"
        " prioritize and preempt. Set `--client-name` to the name in kube-scheduler's certificate."
    ),
    "memory_failed": "The learned state of agents could not be read or written. It is tried again.",
    "memory_unreadable": (
        "The stored state of an agent cannot be read. The agent starts without it and overwrites it."
    ),
    "nodes_unknown": (
        "A request has node names, and there is no cluster to read the nodes from: all their statistics are"
        " missing. Set nodeCacheCapable to false in this entry. Logged once."
    ),
    "option_deprecated": "An option is deprecated; use `instead`.",
    "all_namespaces_trusted": (
        "`--trust-all-namespaces` is set: the policies of every namespace can label nodes and disable GPUs."
    ),
    "option_limited": "An option of an older program is larger than `limit`, which is used instead.",
    "traces_unavailable": (
        "Spans cannot be sent to OTEL_EXPORTER_OTLP_ENDPOINT. If the SDK of OpenTelemetry is missing: `pip"
        " install 'nodewise[traces]'`."
    ),
    "variable_unknown": (
        "A variable that begins with NODEWISE_ is no setting; `closest` is the most similar one."
    ),
    "agent_settings_ignored": (
        "The settings file has settings of an agent that cannot be used; `why` names its package."
    ),
    "variable_ignored": (
        "An environment variable of an older program has an invalid value; the default is used."
    ),
    "metric_failed": "A metric could not be fetched; its last values stay in use and age.",
    "metric_paused": (
        "A metric did not respond `timeouts` times in a row, while its source answered other requests, and is"
        " not requested before `until`. Use a cheaper query in the policies of `namespaces`."
    ),
    "metric_values_bad": "Some values of a metric are invalid; they count as missing.",
    "metric_series_unmatched": (
        "Series of a metric match no node, such as `example`. Set `--prometheus-node-label` to the label that"
        " names the node."
    ),
    "metric_warning": (
        "Prometheus, Thanos or VictoriaMetrics returned warnings, or a part of the series (isPartial). Nodes"
        " may be missing, and keep their last verdicts, unless the warnings are hints about the query. Logged"
        " once."
    ),
    "policy_problem": "A policy, or a node with GPUs, has invalid parts, which `problems` names.",
    "status_failed": "The status of a policy could not be written. It is tried again in a minute.",
    "controller_failed": "The leader could not write to the API server. The next step tries again.",
    "controller_slow": "A step of a controller takes more than ten periods. Other controllers continue.",
    "deleted_policies_failed": (
        "The Lease with the deleted policies cannot be read or written. A new leader removes their labels."
    ),
    "device_tainted": "A device met the rules `reason` of a policy and got the taint `effect`, by a DeviceTaintRule.",
    "device_taint_removed": "The DeviceTaintRule of a device that healed, or whose policy is gone, was deleted.",
    "label_conflict": (
        "Another field manager owns a label of a policy. It is not changed; see the policy's status."
    ),
    "requeueing_limited": (
        "Filtering the `demands` different waiting pods again takes longer than `limit_s`, so `left` of them"
        " are filtered later. `namespace` has the most, `demands_of_namespace`: limit its pods by"
        " ResourceQuota. At most one line per minute."
    ),
    "annotations_failed": "Statistics of `nodes` nodes could not be written. The next period tries again.",
    "usage_unknown": (
        "The usage of nodes is not available; their annotations keep the previous values and times."
    ),
    "bind_failed": "A pod could not be bound. kube-scheduler received `error` and schedules the pod again.",
    "claims_left": "Reservations of pods that were not bound could not be removed; the leader removes them.",
    "claim_dropped": (
        "The leader removed a reservation: its process ended before it bound the pod, or the pod was deleted."
    ),
    "deschedule_label_failed": (
        "The label of a pod for the descheduler could not be written. It is tried again in 5 s."
    ),
    "books_unchecked": "The state of GPUs could not be compared with a new list. It is tried again.",
    "objects_unreadable": "Files of `--objects-from` cannot be read; the last valid content stays in use.",
    "recording_stopped": "Recording (`--record`) has stopped. The extender continues to serve.",
    "kube_lost": "Objects of a kind cannot be listed or watched; the stored objects age.",
    "kube_kind_not_served": (
        "The API server has not served a kind for 60 s, or at the start for 3 s: apply `deploy/crds`. It is"
        " listed again at least every 30 s."
    ),
    "kube_silent": (
        "The API server has not responded for ten seconds. Stored nodes and policies stay in use; metrics"
        " from the API server age, and labels are not changed."
    ),
    "object_unreadable": "An object has an invalid field, or is too large; the object counts as absent.",
    "not_leading": "This process no longer leads; its controllers have stopped.",
    "lease_failed": "The Lease cannot be read or written; a leader stops leading at its deadline.",
    "event_lost": "A Kubernetes event could not be recorded. Logged once until an event is recorded.",
    "cpu_warning": "A problem of the machine or of the requested pools; `what` describes it.",
    "cpu_huge_pages": "No huge page is free; workloads that need some will not start.",
    "cpu_elsewhere": (
        "A task may run on CPUs outside of its list: the task changed its affinity (use `isolate"
        " --no-affinity` for this), or another program did."
    ),
    "cpu_doubtful": (
        "The wrapper of a task has ended, but its processes may still run, so its CPU list is not released."
        " Run `reconcile` as root with the capability SYS_PTRACE, or run the node agent."
    ),
    "cpu_webhook_any_client": (
        "The webhook serves every client that reaches its port (`--insecure`). `nodewise cpu webhook"
        " --print-admission-config` configures a certificate for the API server."
    ),
    "cpu_pod_refused": (
        "The API server sent an object that cannot be mutated. If it is not a pod, restrict the rules of the"
        " MutatingWebhookConfiguration."
    ),
    "cpu_mutations_failed": (
        "The mutations are invalid; pods that request cores get an error until they are valid."
    ),
    "cpu_round_failed": "A round of `--interval` failed; the next one tries again.",
    "cpu_report_skipped": (
        "A report could not be published: its namespace is missing, or its kind (`deploy/crds`)."
    ),
    "cpu_report_undefined": (
        "The definition of reports could not be made: apply `deploy/crds`, or grant the right to create it."
    ),
    "cpu_intent_recovered": (
        "A reconfiguration of the node was interrupted and has been reverted: tasks run on their previous"
        " CPUs."
    ),
    "cpu_intent_left": (
        "An interrupted reconfiguration could not be reverted here. No core is allocated until the node"
        " agent, or `nodewise cpu reconcile` as root with hostPID, reverts it."
    ),
    "cpu_claim_refused": (
        "The node agent refused a request for CPUs. At most one line in ten seconds; `unlogged` counts the"
        " others."
    ),
    "cpu_requests_delayed": (
        "The requests of a pod or user to the node agent use much CPU time, so they are answered with delays."
        " At most one line in ten seconds."
    ),
    "cpu_unchecked": (
        "The node agent does not check whether pods requested their exclusive CPUs, because there is no API"
        " server (`--conf-dir`) or because of `--allow-unrequested`."
    ),
    "cpu_enforcing_failed": (
        "The cpuset of a container could not be set to the CPUs of its tasks. It is tried again."
    ),
    "cpu_kubelet_conflict": (
        "The kubelet's CPU manager (`cpuManagerPolicy: static`) conflicts with the pools: `what` is `seen`,"
        " expected `wanted`."
    ),
    "cpu_manager_conflict": (
        "Another CPU manager (the DRA driver for CPUs, an NRI resource policy, systemd) or a cgroup partition"
        " conflicts with the pools: `what` is `seen`, expected `wanted`."
    ),
    "cpu_chore_failed": (
        "A garbage collection of the node agent, or a task after it, failed; it is tried again, and logged"
        " once for each reason."
    ),
    "connection_ended": (
        "The server refused or closed a connection; see `remedy`. At most one line per reason in ten seconds;"
        " `unlogged` counts the others."
    ),
    "ca_client": "A client presents the certificate of a CA. Use a client certificate.",
    "unpinned_client": (
        "A client is served because of `--any-client`; `missing` names what its certificate lacks. Bind and"
        " the paths for users are refused. Logged once per names of a certificate, for at most 64 of them."
    ),
    "tls_reload_failed": (
        "Certificate files have changed and cannot be used. The previous content stays in use."
    ),
    "certificate_expires_soon": (
        "A certificate in use expires in less than a week. Renew it. Logged once a day."
    ),
}
_ERROR: Final = {
    "books_differ": (
        "The state of `nodes` nodes differs from a new list; `what` is the difference. Everything is listed"
        " again. Please report it."
    ),
    "agent_failed": (
        "An agent has a defect. Its pods stay pending; other pods are scheduled. Please report it."
    ),
    "outside_agent_failed": (
        "A third-party agent of `package` raised an exception or returned an invalid result. Its pods stay"
        " pending, and scores are computed without it. At most one line per kind of failure and minute;"
        " `unlogged` counts the others."
    ),
    "request_failed": (
        "A call failed with status 500, or its decision was not stored, because of a defect. Please report it."
    ),
    "task_failed": "A background task failed because of a defect and was restarted.",
    "native_mode_off": (
        "Native mode is off by `--no-native-mode`, and its admission policies are installed: new pods of"
        " `policies` policies wait with a scheduling gate. Remove the option or the admission policies."
    ),
    "identity_duplicate": (
        "Another running process has the `--identity` of this one and holds the Lease, so this process does"
        " not lead. Give each replica its own identity, such as the name of its pod."
    ),
    "cpu_report_blocked": "A report could not be published: the API server does not allow it.",
    "accept_failed": "New connections cannot be accepted for now. Raise the limit of open files.",
    "certificate_expired": "A certificate in use has expired. Renew it. Logged once a day.",
}
EVENTS: Final = {
    **{event: LogEvent("info", meaning) for event, meaning in _INFO.items()},
    **{event: LogEvent("warning", meaning) for event, meaning in _WARNING.items()},
    **{event: LogEvent("error", meaning) for event, meaning in _ERROR.items()},
}


Format = Literal["text", "json", "messages"]
"""`messages` are the sentences of a command on a terminal, without times; the others are the lines of a server."""
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SEVERITIES: Final = {"warning": "Warning: ", "error": "Error: "}


class _BufferedEvent(NamedTuple):
    event: str
    fields: dict[str, Any]


_early: list[_BufferedEvent] = []
_early_whatever_level: list[_BufferedEvent] = []
_to_configure: list[tuple[str, Format]] = []
"""Level and format, until structlog is imported: that takes longer than a short command, which may log nothing."""


def configure(level: str = "info", form: Format = "text") -> None:
    """Set level and format of all lines, and write buffered events. The command line calls it once."""
    if _early_whatever_level:
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
    _to_configure[:] = [(level, form)]
    if "structlog" in sys.modules:
        _import_structlog()


def _import_structlog() -> Any:
    """structlog without rich, which takes a tenth of the start-up time and is used only for pretty tracebacks."""
    hides_rich = not {"rich", "structlog"} & sys.modules.keys()
    if hides_rich:
        sys.modules["rich"] = None  # type: ignore[assignment]  # makes `import rich` fail
    try:
        import structlog
    finally:
        if hides_rich:
            sys.modules.pop("rich", None)
    if _to_configure:
        level, form = _to_configure.pop()
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                *_renderers(structlog, form),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
    return structlog


def _renderers(structlog: Any, form: Format) -> list[Any]:
    if form == "json":
        return [structlog.processors.JSONRenderer()]
    if form == "messages":
        return [_render_message]
    # plain tracebacks: pretty ones include the values of variables, such as the bodies of requests
    plain = structlog.dev.plain_traceback
    on_terminal = sys.stderr.isatty()
    colors = on_terminal and not os.environ.get("NO_COLOR")  # https://no-color.org
    text = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)
    return [_escape_fields, *([_add_meaning] if on_terminal else []), text]


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


def _add_meaning(_logger: Any, _method: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a warning or error with the event's meaning, for a person who starts a server on a terminal."""
    event = fields["event"]
    if event in EVENTS and fields["level"] in _SEVERITIES:
        fields["event"] = f"{event}: {EVENTS[event].meaning}"
    return fields


def _render_message(_logger: Any, _method: str, fields: dict[str, Any]) -> str:
    severity = _SEVERITIES.get(fields["level"], "")
    own = {
        key: value for key, value in fields.items() if key not in {"event", "level", "timestamp", "exception"}
    }
    traceback = "".join(f"\n{visible(line)}" for line in fields.get("exception", "").splitlines())
    return f"nodewise: {severity}{sentence(fields['event'], own)} [{fields['event']}]{traceback}"


_CLAUSE: Final = re.compile(r"(?:(?<=; )|(?<=\. )|^)(.+?)(; |\.(?: |$))")
_FIELD: Final = re.compile(r"`(\w+)`")


def sentence(event: str, fields: Mapping[str, Any]) -> str:
    """An event as a message for a person: its meaning with the values of fields, escaped.

    A name of a field in the meaning is replaced by its value. A part such as "`what` is the difference" is left out,
    and the value follows at the end, as those of `error` and `why`; the other fields are in parentheses.
    """
    values = {name: visible(str(value)) or "none" for name, value in fields.items()}
    reasons, meaning = list[str](), ""
    for clause, end in _CLAUSE.findall(EVENTS[event].meaning):
        first = _FIELD.match(clause)
        if first and first[1] in values:
            reasons.append(values.pop(first[1]))
            meaning = meaning.removesuffix("; ") + (". " if meaning.endswith("; ") and end != "; " else "")
        else:
            meaning += _FIELD.sub(lambda match: values.pop(match[1], match[0]), clause) + end
    reasons += filter(None, (values.pop("error", ""), values.pop("why", "")))
    others = f" ({'; '.join(f'{name}: {value}' for name, value in values.items())})" if values else ""
    return f"{meaning.strip().rstrip('.;')}{others}{''.join(f': {reason}' for reason in reasons)}"


def emit(event: str, **fields: Any) -> None:
    """Write one event. KeyError if it is not in the table."""
    getattr(_import_structlog().get_logger(), EVENTS[event].level)(event, **fields)


def emit_later(event: str, *, whatever_level: bool = False, **fields: Any) -> None:
    """Buffer an event while the command line is parsed; `configure` writes it."""
    (_early_whatever_level if whatever_level else _early).append(_BufferedEvent(event, fields))
