"""Every log event and every metric of the program, one row each. `docs/reference/observability.md` is printed
from here, and emitting what has no row is an error.
"""

from typing import Final, Literal, NamedTuple

Level = Literal["debug", "info", "warning", "error"]
Kind = Literal["counter", "gauge", "histogram"]


class Event(NamedTuple):
    """A log line's name is its row's key; `meaning` says what to do about it where something can be done."""

    level: Level
    meaning: str


class Metric(NamedTuple):
    """A Prometheus metric, without the prefix `nodewise_`. Labels have few values: never a pod's name, and
    nodes' names only as many as an option allows.
    """

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_CALL_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

EVENTS: Final[dict[str, Event]] = {
    "started": Event("info", "The extender serves; `address` is where."),
    "stopping": Event(
        "info",
        "A signal asked us to end; with SIGTERM we serve on for `--shutdown-delay`, not ready, then end.",
    ),
    "ready": Event("info", "Stores are synced and every metric that a policy names was asked for."),
    "option_ignored": Event("warning", "An option of an older program that has no meaning here was given."),
    "memory_failed": Event(
        "warning",
        "What agents learnt could not be read or kept (`--state`, or the ConfigMap nodewise-memory); it is tried"
        " again.",
    ),
    "memory_unreadable": Event(
        "warning",
        "What an agent kept cannot be read; it begins anew, and what stands there is written over.",
    ),
    "nodes_unknown": Event(
        "warning",
        "A request had names and no nodes, and there is no cluster to know them from: agents take all their statistics"
        " for missing. Set nodeCacheCapable to false in this entry of the scheduler's configuration. Told once.",
    ),
    "option_limited": Event(
        "warning", "An option of an older program is larger than `limit`, which is used."
    ),
    "variable_ignored": Event(
        "warning",
        "An environment variable of an older program has a value that cannot be used; the default holds.",
    ),
    "log_level_set": Event("info", "`LOG_LEVEL`, an older program's variable, sets the level from here on."),
    "metric_failed": Event(
        "warning", "A metric could not be fetched; its last values age. `error` says why."
    ),
    "metric_back": Event("info", "A metric that failed is fetched again."),
    "metric_values_bad": Event(
        "warning", "Some values of a metric cannot be read; those nodes count as missing."
    ),
    "metric_in_two_sources": Event(
        "info",
        "A metric comes from `used` although `unused` has it too; the order of `--metrics` decides. One line each.",
    ),
    "metric_series_unmatched": Event(
        "warning",
        "Series of a metric belong to no node, such as `example`; `--prometheus-node-label` says which label names it.",
    ),
    "metric_warning": Event(
        "warning",
        "Prometheus answered with a warning, such as a partial result; nodes may be missing. Told once.",
    ),
    "policy_problem": Event(
        "warning", "A policy, or a node with cards, has something that cannot be used; `problems` names each."
    ),
    "status_failed": Event(
        "warning", "A policy's status could not be written; it is tried again in a minute."
    ),
    "controller_failed": Event(
        "warning", "The leader could not write to the API server; the next step tries again."
    ),
    "label_conflict": Event(
        "warning", "Somebody else owns a label that a policy wants; it is left alone, and the policy says so."
    ),
    "labels_taken_over": Event("info", "Labels of Telemetry Aware Scheduling are ours from now on."),
    "woken": Event(
        "info", "A waiting pod fits since a metric healed: one node annotation has pods tried again."
    ),
    "annotated": Event("info", "Statistics of nodes were written as annotations, of so many `nodes`."),
    "annotations_failed": Event(
        "warning",
        "Statistics of so many `nodes` could not be written; `error` is the first reason. The next burst tries again.",
    ),
    "usage_unknown": Event(
        "warning",
        "What nodes use could not be measured; their annotations keep what they had, with its time. `error` says why.",
    ),
    "bound": Event(
        "info", "A pod is on the node that kube-scheduler chose; `holds` says which cards it got."
    ),
    "bind_failed": Event(
        "warning", "A pod could not be bound; kube-scheduler was told `error` and places it again."
    ),
    "claims_left": Event(
        "warning",
        "Entries of pods that were not bound could not be taken out of the node's ledger; the leader does it soon.",
    ),
    "claim_dropped": Event(
        "warning",
        "A process wrote what a pod is to hold and ended before it bound the pod, or the pod went; the leader took the"
        " entry out of the node's ledger. `why`: the pod is unbound, or unknown.",
    ),
    "ledger_deleted": Event(
        "info", "A node is gone, and so is its ledger, in which nothing counted any more."
    ),
    "deschedule_label_failed": Event(
        "warning", "A pod's label for the descheduler could not be written; it is tried again in 5 s."
    ),
    "books_differ": Event(
        "error",
        "What we hold of a node is not what a fresh list says, `what` tells where; all is listed and computed anew."
        " Please report it. `nodes` is how many differ.",
    ),
    "books_unchecked": Event(
        "warning",
        "What we hold of cards could not be compared with a fresh list; the next time it is tried again.",
    ),
    "agent_failed": Event(
        "error", "A defect of an agent: the pods that it judges wait, others go on. Please report it."
    ),
    "outside_agent_failed": Event(
        "error",
        "An agent of another `package` crashed, took too long or gave an answer that cannot be used, `why` says which."
        " The pods that it judges wait, and scores are made without it. One line a kind of failure in a minute,"
        " `unlogged` counts those before it.",
    ),
    "request_failed": Event("error", "A defect of ours: the call was answered 500. Please report it."),
    "task_failed": Event("error", "A background task ended by a defect of ours and was started again."),
    "objects_reread": Event("info", "Objects served from files (`--from`) were read again after a change."),
    "objects_unreadable": Event(
        "warning", "Files served with `--from` cannot be read; the last good ones hold."
    ),
    "recording_stopped": Event(
        "warning", "Nothing more is recorded (`--record`); `why` says the reason. The extender serves on."
    ),
    "kube_lost": Event(
        "warning", "Objects of a kind cannot be listed or watched; what we hold of them ages."
    ),
    "kube_back": Event("info", "Objects of a kind that could not be listed or watched are up to date again."),
    "kube_silent": Event(
        "warning",
        "The API server has not answered for ten seconds. Calls of kube-scheduler are answered from what we hold of"
        " nodes and policies; metrics that come through it grow old, and no label changes.",
    ),
    "kube_answers": Event("info", "The API server answers again; it did not for `away_s`."),
    "object_unreadable": Event("warning", "An object has a field that cannot be read; it counts as absent."),
    "leading": Event("info", "This process leads: its controllers run."),
    "not_leading": Event("warning", "This process led and does so no longer; its controllers stand still."),
    "lease_failed": Event("warning", "The Lease cannot be read or written; a leader stops at its deadline."),
    "event_lost": Event(
        "warning",
        "A Kubernetes event could not be recorded; `error` says why. Told once until one is recorded again.",
    ),
    "cpu_cores_asked": Event(
        "info", "`nodewise cpu init`: so many cores are to be `exclusive` and `shared`."
    ),
    "cpu_isolated": Event(
        "info",
        "The CPUs that the kernel isolates, and the cores all of whose CPUs are; pools are made from these.",
    ),
    "cpu_not_isolated": Event("info", "The kernel isolates no core; pools are made from all."),
    "cpu_fast": Event("info", "CPUs of higher base frequency (SST-BF); they are taken first."),
    "cpu_power": Event("info", "Classes of core power (SST-CP) in their order; pools are made by them."),
    "cpu_labels_unknown": Event(
        "info",
        "The node's labels could not be read, so SST-BF and SST-CP count as off; `why` says the reason.",
    ),
    "cpu_pool": Event("info", "A pool of the node, and the CPU lists that it gets."),
    "cpu_warning": Event(
        "warning", "Something of the machine or of what was asked for that an operator should know, in words."
    ),
    "cpu_huge_pages": Event("warning", "No huge page is free; workloads that need some will not start."),
    "cpu_huge_pages_unknown": Event("info", "The kernel does not tell how many huge pages are free."),
    "cpu_pools_kept": Event("info", "The node has these very pools already; nothing is written."),
    "cpu_node_patched": Event("info", "What a node says of its cores was written; `patch` is what."),
    "cpu_advertised": Event("info", "The node says what it should of its cores already; nothing is written."),
    "cpu_feature_written": Event(
        "info",
        "The file by which Node Feature Discovery hears of classes of core power (SST-CP) was changed.",
    ),
    "cpu_reclaimed": Event("info", "A task is over, and its CPU list free."),
    "cpu_elsewhere": Event(
        "warning",
        "A task may run on other CPUs than those of its list: it changed its affinity (`isolate --no-affinity` is for"
        " that), or somebody else did, such as a kubelet with the static policy.",
    ),
    "cpu_doubtful": Event(
        "warning",
        "A task's wrapper is gone, and processes may be left of it that we may not look at, so its CPU list is not"
        " freed. Run `reconcile` as root with the capability SYS_PTRACE, or leave it to the node agent.",
    ),
    "cpu_webhook_mutual": Event(
        "info",
        "The webhook serves who shows a certificate of `cafile`. The API server shows one only if its"
        " --admission-control-config-file says so: `nodewise cpu webhook --print-admission-config` writes it.",
    ),
    "cpu_webhook_any_client": Event(
        "warning",
        "The webhook serves everybody who reaches its port (`--insecure`): it shows a certificate and asks for none, as"
        " the API server has none to show unless `nodewise cpu webhook --print-admission-config` was made use of.",
    ),
    "cpu_pod_mutated": Event("info", "A pod that asks for cores in `namespace` was given what it lacked."),
    "cpu_pod_refused": Event(
        "warning",
        "A review of the API server has an object that cannot be mutated; it was told `error`. If it is no pod, the"
        " rules of the MutatingWebhookConfiguration send too much.",
    ),
    "cpu_mutations_read": Event("info", "The mutations changed, and pods get the new ones from now on."),
    "cpu_mutations_failed": Event(
        "warning", "The mutations changed and cannot be used; pods get the last good ones. `error` says why."
    ),
    "cpu_waiting": Event("info", "So many seconds until the next round (`--interval`)."),
    "cpu_round_failed": Event("warning", "A round of `--interval` failed; the next one tries again."),
    "cpu_report_skipped": Event(
        "warning", "A report could not be published: its namespace is missing, or its kind (`deploy/crds`)."
    ),
    "cpu_report_blocked": Event(
        "error", "A report could not be published: the API server does not allow it."
    ),
    "cpu_report_undefined": Event(
        "warning",
        "The definition of reports could not be made: apply `deploy/crds`, or grant the right to create it.",
    ),
    "cpu_intent_recovered": Event(
        "warning",
        "Who reconfigured the node ended in the middle of it: tasks are back on the CPUs that they hold, and nodes can"
        " be reconfigured again.",
    ),
    "cpu_intent_left": Event(
        "warning",
        "A reconfiguration was begun by a process that is gone, and could not be undone here: nobody gets a core until"
        " it is. The node agent does it, or `nodewise cpu reconcile` or `reconfigure` as root with hostPID.",
    ),
    "cpu_claim_refused": Event(
        "warning",
        "A process may not have the CPUs that it asked the node agent for; it was told `error`. One line in ten"
        " seconds, `unlogged` counts the others.",
    ),
    "cpu_unchecked": Event(
        "warning",
        "Nobody checks whether pods requested the exclusive CPUs that they claim: there is no API server"
        " (`--conf-dir`), or `--allow-unrequested`.",
    ),
    "cpu_enforcing_failed": Event(
        "warning",
        "A container's cpuset could not be set to the CPUs of its tasks; the next sweep tries again. `error` says why.",
    ),
    "cpu_enforced": Event(
        "info",
        "A container's cpuset was set: the CPUs of its tasks, or all that it had before, where it has no task left.",
    ),
    "cpu_kubelet_conflict": Event(
        "warning",
        "The kubelet's own CPU manager (`cpuManagerPolicy: static`) and the pools are at odds: `what` is or has `seen`;"
        " `wanted` is what would be well.",
    ),
    "cpu_kubelet_instead": Event(
        "info", "What of the kubelet's own would replace this pool; told where the two are at odds."
    ),
    "cpu_chore_failed": Event(
        "warning",
        "Something that the node agent does after each sweep failed, or the sweep itself, `what` says which; it is"
        " tried again, and told once for each reason.",
    ),
    "cpu_chore_back": Event("info", "What failed before is done again."),
    "listening": Event("info", "A port is open; `url` is where."),
    "accept_failed": Event("error", "No connection can be accepted for now: raise the limit of open files."),
    "connection_ended": Event(
        "warning",
        "A connection was refused, or ended by us; `remedy` says what to do. One line a reason in ten"
        " seconds, `unlogged` counts the others.",
    ),
    "ca_client": Event(
        "warning",
        "A client presents a CA's certificate, with whose key anybody can be let in. Give it one of its own.",
    ),
    "tls_reloaded": Event("info", "Certificate files changed and what they hold is in use."),
    "tls_reload_failed": Event(
        "warning",
        "Certificate files changed and cannot be used, `error` says why; what they held before stays in use, and"
        " they are tried again.",
    ),
    "certificate_expires_soon": Event(
        "warning", "A certificate in use has less than a week left: renew it. One line a day."
    ),
    "certificate_expired": Event("error", "A certificate in use is over: renew it. One line a day."),
}

METRICS: Final[dict[str, Metric]] = {
    "requests_total": Metric("counter", "Calls answered, by route and HTTP status.", ("route", "status")),
    "request_seconds": Metric(
        "histogram", "From the whole body read to the answer made.", ("route",), _CALL_S
    ),
    "verdicts_total": Metric("counter", "Candidate nodes judged by filter calls.", ("agent", "verdict")),
    "agent_failures_total": Metric(
        "counter",
        "Failures of agents of other packages: exception, deadline, busy (since a deadline passed) or shape.",
        ("agent", "kind"),
    ),
    "bind_total": Metric(
        "counter", "Bind calls by what came of them: bound, already, refused, failed.", ("outcome",)
    ),
    "bind_seconds": Metric("histogram", "From a bind call to its answer.", (), _CALL_S),
    "ledger_writes_total": Metric(
        "counter",
        "Writes of nodes' ledgers; a conflict means that another replica wrote first.",
        ("outcome",),
    ),
    "claims_dropped_total": Metric(
        "counter",
        "Entries taken out of ledgers by the leader: of a pod never bound, of one that nobody knows, or stale.",
        ("why",),
    ),
    "deschedule_labels_total": Metric(
        "counter", "Labels for the descheduler written to pods or removed; the leader's.", ("what",)
    ),
    "gpu_checks_total": Metric(
        "counter",
        "Comparisons of what we hold of cards with a fresh list: same, different, or undecided.",
        ("outcome",),
    ),
    "gpu_nodes": Metric("gauge", "Nodes with cards."),
    "gpu_cards": Metric("gauge", "Cards, by whether a pod may get them: usable or unusable.", ("state",)),
    "gpu_pods": Metric("gauge", "Pods that hold cards."),
    "gpu_held_share": Metric(
        "gauge",
        "How much of all cards' counting resource pods hold, 0 to 1; cards that are not usable included.",
    ),
    "gpu_nodes_with_problems": Metric(
        "gauge", "Nodes of which something cannot be used as it stands; `GET /state/gpu` names it."
    ),
    "gpu_card_held_share": Metric(
        "gauge",
        "How much of a card's counting resource pods hold, 0 to 1. Only up to `--gpu-card-metrics` cards.",
        ("node", "card"),
    ),
    "gpu_node_problems": Metric(
        "gauge", "Problems of a node, likewise; only of nodes that have some.", ("node",)
    ),
    "view_generation": Metric("gauge", "How many times the view of the world was replaced."),
    "view_seconds": Metric("histogram", "Time to compute an agent's slot of the view.", ("agent",), _CALL_S),
    "decisions_bytes": Metric("gauge", "Size of the decisions kept for /decisions and explain."),
    "recording_bytes": Metric("gauge", "Size of the file of `--record`."),
    "recording_lost_total": Metric(
        "counter", "Requests and worlds that came faster than they could be recorded.", ("what",)
    ),
    "metric_fetches_total": Metric(
        "counter", "Fetches of node metrics, by source and outcome.", ("source", "outcome")
    ),
    "metric_nodes": Metric("gauge", "Nodes that have a usable value of a metric.", ("metric",)),
    "metric_series_unmatched": Metric(
        "gauge", "Series of the last answer about a metric that belong to no node.", ("metric",)
    ),
    "metric_age_seconds": Metric("gauge", "Age of a metric's last good answer.", ("metric",)),
    "policies_with_problems": Metric(
        "gauge", "Policies, and nodes with cards, with something that cannot be used as it stands."
    ),
    "pods_waiting": Metric("gauge", "Pods that kube-scheduler found no node for, as the leader sees them."),
    "wakes_total": Metric("counter", "Node annotations written so that waiting pods are tried again."),
    "node_annotations_total": Metric(
        "counter",
        "Nodes whose statistics were to be written: done, failed, or gone meanwhile.",
        ("outcome",),
    ),
    "node_annotations_lacking": Metric(
        "gauge",
        "Nodes that keep statistics of before: those that are not ready, and those that nobody measured.",
        ("why",),
    ),
    "nodes_to_label": Metric(
        "gauge",
        "Nodes whose labels differ from what policies want; the leader's. It falls by `--kube-qps` a second.",
    ),
    "label_writes_total": Metric("counter", "Writes of node labels; the leader's."),
    "rules_suspended": Metric("gauge", "Rules that lost most of their nodes at once and hold; the leader's."),
    "loop_lag_seconds": Metric("gauge", "Longest wait of the event loop in the last period."),
    "ready": Metric("gauge", "1 when ready."),
    "kube_requests_total": Metric("counter", "Calls to the API server, by outcome.", ("verb", "outcome")),
    "kube_objects": Metric("gauge", "Objects held of a kind.", ("kind",)),
    "kube_lists_total": Metric("counter", "Whole lists begun, by what made them needed.", ("kind", "reason")),
    "kube_contact_timestamp_seconds": Metric(
        "gauge", "When the API server last said anything of a kind; Unix time.", ("kind",)
    ),
    "kube_connected": Metric("gauge", "1 while the API server answers, 0 from ten seconds of silence on."),
    "kube_silent_seconds": Metric("gauge", "How long ago the API server last answered a call for the Lease."),
    "kube_unreadable_total": Metric("counter", "Objects left out because they cannot be decoded.", ("kind",)),
    "leading": Metric("gauge", "1 in the replica whose controllers run."),
    "events_total": Metric("counter", "Kubernetes events to be recorded, by outcome.", ("outcome",)),
    "connections": Metric("gauge", "Connections open past the handshake.", ("port",)),
    "connections_ended_total": Metric(
        "counter", "Connections refused, or ended by us before their time.", ("reason",)
    ),
    "ca_clients_total": Metric("counter", "Connections of clients that present a CA's certificate."),
    "tls_reloads_total": Metric(
        "counter", "Readings of changed certificate files.", ("certificate", "outcome")
    ),
    "tls_reload_failing": Metric(
        "gauge", "1 while certificate files on disk cannot be used; the old ones are.", ("certificate",)
    ),
    "tls_certificate_expires_seconds": Metric(
        "gauge",
        "When a certificate in use expires, of a CA bundle the first to do so; Unix time. `certificate` is serving,"
        " client_ca, kube_client, kube_ca, prometheus_client, prometheus_ca, or clients: the first of theirs.",
        ("certificate",),
    ),
    "cpu_reviews_total": Metric(
        "counter",
        "Pods that the API server sent to the webhook: mutated, untouched or refused.",
        ("outcome",),
    ),
    "cpu_mutations_failing": Metric(
        "gauge", "1 while the webhook's mutations changed and cannot be used, and the last good ones are."
    ),
    "cpu_claims_total": Metric(
        "counter", "Claims that the node agent answered: given, refused or unavailable.", ("outcome",)
    ),
    "cpu_reclaimed_total": Metric("counter", "CPU lists that a sweep freed, by pool.", ("pool",)),
    "cpu_lists": Metric("gauge", "CPU lists of a pool: held or free.", ("pool", "state")),
    "cpu_tasks": Metric("gauge", "Tasks on the CPU lists of a pool.", ("pool",)),
    "cpu_sweep_seconds": Metric("histogram", "Time that a sweep takes.", (), _CALL_S),
    "cpu_connections": Metric("gauge", "Connections to the node agent's socket."),
    "cpu_failures_total": Metric(
        "counter", "Failures of what the node agent does after each sweep, and of sweeps.", ("what",)
    ),
}
