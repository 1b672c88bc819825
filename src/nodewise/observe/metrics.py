"""Every Prometheus metric of the program, one row each. `docs/reference/observability.md` is printed from here, and to
count what has no row is an error.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """A Prometheus metric, without the prefix `nodewise_`. Labels have few values: never a pod's name, and
    nodes' names only as many as an option allows.
    """

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_CALL_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

METRICS: Final[dict[str, Metric]] = {
    "requests_total": Metric("counter", "Calls answered, by route and HTTP status.", ("route", "status")),
    "request_seconds": Metric(
        "histogram", "From the whole body read to the answer made.", ("route",), _CALL_S
    ),
    "verdicts_total": Metric("counter", "Candidate nodes judged by filter calls.", ("agent", "verdict")),
    "agent_failures_total": Metric(
        "counter",
        "Failures of third-party agents: exception or shape (an invalid result).",
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
