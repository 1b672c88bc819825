"""Every log event of the program, one row each. `docs/reference/observability.md` is printed from here, and to emit
what has no row is an error.
"""

from typing import Final, Literal, NamedTuple

Level = Literal["debug", "info", "warning", "error"]


class LogEvent(NamedTuple):
    """A log line's name is its row's key; `meaning` says what to do about it where something can be done."""

    level: Level
    meaning: str


EVENTS: Final[dict[str, LogEvent]] = {
    "started": LogEvent("info", "The extender serves; `address` is where."),
    "stopping": LogEvent(
        "info",
        "A signal asked us to end; with SIGTERM we serve on for `--shutdown-delay`, not ready, then end.",
    ),
    "ready": LogEvent("info", "Stores are synced and every metric that a policy names was asked for."),
    "option_ignored": LogEvent(
        "warning", "An option of an older program that has no meaning here was given."
    ),
    "any_client_implied": LogEvent(
        "warning",
        "A flag of TAS or GAS implies `--any-client`: every certificate of the client CA may call filter, prioritize"
        " and preempt. Set `--client-name` to the name in kube-scheduler's certificate; bind needs it in any case.",
    ),
    "memory_failed": LogEvent(
        "warning",
        "What agents learnt could not be read or kept (`--state`, or the ConfigMap nodewise-memory); it is tried"
        " again.",
    ),
    "memory_unreadable": LogEvent(
        "warning",
        "What an agent kept cannot be read; it begins anew, and what stands there is written over.",
    ),
    "nodes_unknown": LogEvent(
        "warning",
        "A request had names and no nodes, and there is no cluster to know them from: agents take all their statistics"
        " for missing. Set nodeCacheCapable to false in this entry of the scheduler's configuration. Told once.",
    ),
    "option_deprecated": LogEvent("warning", "An option is deprecated; `instead` says what to use."),
    "all_namespaces_trusted": LogEvent(
        "warning",
        "`--trust-all-namespaces` is set: the policies of every namespace can label nodes, disable GPUs and ask"
        " Prometheus any query.",
    ),
    "option_limited": LogEvent(
        "warning", "An option of an older program is larger than `limit`, which is used."
    ),
    "variable_ignored": LogEvent(
        "warning",
        "An environment variable of an older program has a value that cannot be used; the default holds.",
    ),
    "log_level_set": LogEvent(
        "info", "`LOG_LEVEL`, an older program's variable, sets the level from here on."
    ),
    "metric_failed": LogEvent(
        "warning", "A metric could not be fetched; its last values age. `error` says why."
    ),
    "metric_back": LogEvent("info", "A metric that failed is fetched again."),
    "metric_values_bad": LogEvent(
        "warning", "Some values of a metric cannot be read; those nodes count as missing."
    ),
    "metric_in_two_sources": LogEvent(
        "info",
        "A metric comes from `used` although `unused` has it too; the order of `--metrics` decides. One line each.",
    ),
    "metric_series_unmatched": LogEvent(
        "warning",
        "Series of a metric belong to no node, such as `example`; `--prometheus-node-label` says which label names it.",
    ),
    "metric_warning": LogEvent(
        "warning",
        "Prometheus answered with a warning, such as a partial result; nodes may be missing. Told once.",
    ),
    "policy_problem": LogEvent(
        "warning", "A policy, or a node with cards, has something that cannot be used; `problems` names each."
    ),
    "status_failed": LogEvent(
        "warning", "A policy's status could not be written; it is tried again in a minute."
    ),
    "controller_failed": LogEvent(
        "warning", "The leader could not write to the API server; the next step tries again."
    ),
    "controller_slow": LogEvent(
        "warning",
        "A step of a controller takes more than ten periods; the controller does nothing else until it ends. The other"
        " controllers go on.",
    ),
    "label_conflict": LogEvent(
        "warning", "Somebody else owns a label that a policy wants; it is left alone, and the policy says so."
    ),
    "labels_taken_over": LogEvent("info", "Labels of Telemetry Aware Scheduling are ours from now on."),
    "woken": LogEvent(
        "info", "A waiting pod fits since a metric healed: one node annotation has pods tried again."
    ),
    "annotated": LogEvent("info", "Statistics of nodes were written as annotations, of so many `nodes`."),
    "annotations_failed": LogEvent(
        "warning",
        "Statistics of so many `nodes` could not be written; `error` is the first reason. The next burst tries again.",
    ),
    "usage_unknown": LogEvent(
        "warning",
        "What nodes use could not be measured; their annotations keep what they had, with its time. `error` says why.",
    ),
    "bound": LogEvent(
        "info", "A pod is on the node that kube-scheduler chose; `holds` says which cards it got."
    ),
    "bind_failed": LogEvent(
        "warning", "A pod could not be bound; kube-scheduler was told `error` and places it again."
    ),
    "claims_left": LogEvent(
        "warning",
        "Entries of pods that were not bound could not be taken out of the node's ledger; the leader does it soon.",
    ),
    "claim_dropped": LogEvent(
        "warning",
        "A process wrote what a pod is to hold and ended before it bound the pod, or the pod went; the leader took the"
        " entry out of the node's ledger. `why`: the pod is unbound, or unknown.",
    ),
    "ledger_deleted": LogEvent(
        "info", "A node is gone, and so is its ledger, in which nothing counted any more."
    ),
    "deschedule_label_failed": LogEvent(
        "warning", "A pod's label for the descheduler could not be written; it is tried again in 5 s."
    ),
    "books_differ": LogEvent(
        "error",
        "What we hold of a node is not what a fresh list says, `what` tells where; all is listed and computed anew."
        " Please report it. `nodes` is how many differ.",
    ),
    "books_unchecked": LogEvent(
        "warning",
        "What we hold of cards could not be compared with a fresh list; the next time it is tried again.",
    ),
    "agent_failed": LogEvent(
        "error", "A defect of an agent: the pods that it judges wait, others go on. Please report it."
    ),
    "outside_agent_failed": LogEvent(
        "error",
        "An agent of another `package` raised an exception or returned an invalid result, `why` says which."
        " The pods that it judges wait, and scores are made without it. One line a kind of failure in a minute,"
        " `unlogged` counts those before it.",
    ),
    "request_failed": LogEvent("error", "A defect of ours: the call was answered 500. Please report it."),
    "task_failed": LogEvent("error", "A background task ended by a defect of ours and was started again."),
    "objects_reread": LogEvent(
        "info", "Objects served from files (`--from`) were read again after a change."
    ),
    "objects_unreadable": LogEvent(
        "warning", "Files served with `--from` cannot be read; the last good ones hold."
    ),
    "recording_stopped": LogEvent(
        "warning", "Nothing more is recorded (`--record`); `why` says the reason. The extender serves on."
    ),
    "kube_lost": LogEvent(
        "warning", "Objects of a kind cannot be listed or watched; what we hold of them ages."
    ),
    "kube_back": LogEvent(
        "info", "Objects of a kind that could not be listed or watched are up to date again."
    ),
    "kube_silent": LogEvent(
        "warning",
        "The API server has not answered for ten seconds. Calls of kube-scheduler are answered from what we hold of"
        " nodes and policies; metrics that come through it grow old, and no label changes.",
    ),
    "kube_answers": LogEvent("info", "The API server answers again; it did not for `away_s`."),
    "object_unreadable": LogEvent(
        "warning", "An object has a field that cannot be read; it counts as absent."
    ),
    "leading": LogEvent("info", "This process leads: its controllers run."),
    "not_leading": LogEvent(
        "warning", "This process led and does so no longer; its controllers stand still."
    ),
    "lease_failed": LogEvent(
        "warning", "The Lease cannot be read or written; a leader stops at its deadline."
    ),
    "event_lost": LogEvent(
        "warning",
        "A Kubernetes event could not be recorded; `error` says why. Told once until one is recorded again.",
    ),
    "cpu_cores_asked": LogEvent(
        "info", "`nodewise cpu init`: so many cores are to be `exclusive` and `shared`."
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
        "The node's labels could not be read, so SST-BF and SST-CP count as off; `why` says the reason.",
    ),
    "cpu_pool": LogEvent("info", "A pool of the node, and the CPU lists that it gets."),
    "cpu_warning": LogEvent(
        "warning", "Something of the machine or of what was asked for that an operator should know, in words."
    ),
    "cpu_huge_pages": LogEvent("warning", "No huge page is free; workloads that need some will not start."),
    "cpu_huge_pages_unknown": LogEvent("info", "The kernel does not tell how many huge pages are free."),
    "cpu_pools_kept": LogEvent("info", "The node has these very pools already; nothing is written."),
    "cpu_node_patched": LogEvent("info", "What a node says of its cores was written; `patch` is what."),
    "cpu_advertised": LogEvent(
        "info", "The node says what it should of its cores already; nothing is written."
    ),
    "cpu_feature_written": LogEvent(
        "info",
        "The file by which Node Feature Discovery hears of classes of core power (SST-CP) was changed.",
    ),
    "cpu_reclaimed": LogEvent("info", "A task is over, and its CPU list free."),
    "cpu_elsewhere": LogEvent(
        "warning",
        "A task may run on other CPUs than those of its list: it changed its affinity (`isolate --no-affinity` is for"
        " that), or somebody else did, such as a kubelet with the static policy.",
    ),
    "cpu_doubtful": LogEvent(
        "warning",
        "A task's wrapper is gone, and processes may be left of it that we may not look at, so its CPU list is not"
        " freed. Run `reconcile` as root with the capability SYS_PTRACE, or leave it to the node agent.",
    ),
    "cpu_webhook_mutual": LogEvent(
        "info",
        "The webhook serves who shows a certificate of `cafile`. The API server shows one only if its"
        " --admission-control-config-file says so: `nodewise cpu webhook --print-admission-config` writes it.",
    ),
    "cpu_webhook_any_client": LogEvent(
        "warning",
        "The webhook serves everybody who reaches its port (`--insecure`): it shows a certificate and asks for none, as"
        " the API server has none to show unless `nodewise cpu webhook --print-admission-config` was made use of.",
    ),
    "cpu_pod_mutated": LogEvent("info", "A pod that asks for cores in `namespace` was given what it lacked."),
    "cpu_pod_refused": LogEvent(
        "warning",
        "A review of the API server has an object that cannot be mutated; it was told `error`. If it is no pod, the"
        " rules of the MutatingWebhookConfiguration send too much.",
    ),
    "cpu_mutations_read": LogEvent("info", "The mutations changed, and pods get the new ones from now on."),
    "cpu_mutations_failed": LogEvent(
        "warning", "The mutations changed and cannot be used; pods get the last good ones. `error` says why."
    ),
    "cpu_waiting": LogEvent("info", "So many seconds until the next round (`--interval`)."),
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
        "Who reconfigured the node ended in the middle of it: tasks are back on the CPUs that they hold, and nodes can"
        " be reconfigured again.",
    ),
    "cpu_intent_left": LogEvent(
        "warning",
        "A reconfiguration was begun by a process that is gone, and could not be undone here: nobody gets a core until"
        " it is. The node agent does it, or `nodewise cpu reconcile` or `reconfigure` as root with hostPID.",
    ),
    "cpu_claim_refused": LogEvent(
        "warning",
        "A process may not have the CPUs that it asked the node agent for; it was told `error`. One line in ten"
        " seconds, `unlogged` counts the others.",
    ),
    "cpu_unchecked": LogEvent(
        "warning",
        "Nobody checks whether pods requested the exclusive CPUs that they claim: there is no API server"
        " (`--conf-dir`), or `--allow-unrequested`.",
    ),
    "cpu_enforcing_failed": LogEvent(
        "warning",
        "A container's cpuset could not be set to the CPUs of its tasks; the next sweep tries again. `error` says why.",
    ),
    "cpu_enforced": LogEvent(
        "info",
        "A container's cpuset was set: the CPUs of its tasks, or all that it had before, where it has no task left.",
    ),
    "cpu_kubelet_conflict": LogEvent(
        "warning",
        "The kubelet's own CPU manager (`cpuManagerPolicy: static`) and the pools are at odds: `what` is or has `seen`;"
        " `wanted` is what would be well.",
    ),
    "cpu_kubelet_instead": LogEvent(
        "info", "What of the kubelet's own would replace this pool; told where the two are at odds."
    ),
    "cpu_chore_failed": LogEvent(
        "warning",
        "Something that the node agent does after each sweep failed, or the sweep itself, `what` says which; it is"
        " tried again, and told once for each reason.",
    ),
    "cpu_chore_back": LogEvent("info", "What failed before is done again."),
    "listening": LogEvent("info", "A port is open; `url` is where."),
    "accept_failed": LogEvent(
        "error", "No connection can be accepted for now: raise the limit of open files."
    ),
    "connection_ended": LogEvent(
        "warning",
        "A connection was refused, or ended by us; `remedy` says what to do. One line a reason in ten"
        " seconds, `unlogged` counts the others.",
    ),
    "ca_client": LogEvent(
        "warning",
        "A client presents a CA's certificate, with whose key anybody can be let in. Give it one of its own.",
    ),
    "unpinned_client": LogEvent(
        "warning",
        "A client is served because of `--any-client`; `missing` says what its certificate lacks. Bind, `/decisions`"
        " and `/state` are refused to it. Logged once for each certificate's names, for at most 64 of them.",
    ),
    "tls_reloaded": LogEvent("info", "Certificate files changed and what they hold is in use."),
    "tls_reload_failed": LogEvent(
        "warning",
        "Certificate files changed and cannot be used, `error` says why; what they held before stays in use, and"
        " they are tried again.",
    ),
    "certificate_expires_soon": LogEvent(
        "warning", "A certificate in use has less than a week left: renew it. One line a day."
    ),
    "certificate_expired": LogEvent("error", "A certificate in use is over: renew it. One line a day."),
}
