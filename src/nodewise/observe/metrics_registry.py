"""Registry of the Prometheus metrics in the table `METRICS`.

`docs/reference/observability.md` is generated from the table; using a metric that is not in it is an error.
"""

import contextlib
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """A Prometheus metric, without the prefix `nodewise_`. Labels have few values: never names of pods, and only as
    many names of nodes as an option allows.
    """

    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Of a histogram; empty for a counter or a gauge."""


_CALL_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

METRICS: Final[dict[str, Metric]] = {
    "requests_total": Metric("Calls answered, by route and HTTP status.", ("route", "status")),
    "request_seconds": Metric("Time from the complete request to the response.", ("route",), _CALL_S),
    "verdicts_total": Metric("Verdicts of filter calls on candidate nodes.", ("agent", "verdict")),
    "policy_would_reject_total": Metric(
        "Candidate nodes of filter calls that policies would have rejected for pods that they only observe;"
        " of 20 policies per namespace and 500 in total, the others share an empty `policy`.",
        ("policy",),
    ),
    "agent_failures_total": Metric(
        "Failures of third-party agents: exception or shape (an invalid result).", ("agent", "kind")
    ),
    "bind_total": Metric("Bind calls, by outcome: bound, already, refused, failed.", ("outcome",)),
    "bind_seconds": Metric("Time from a bind call to its response.", (), _CALL_S),
    "ledger_writes_total": Metric(
        "Writes of allocation records of nodes; a conflict means that another replica wrote first.",
        ("outcome",),
    ),
    "claims_dropped_total": Metric(
        "Reservations that the leader removed from allocation records: of an unbound or unknown pod, or"
        " stale.",
        ("why",),
    ),
    "deschedule_labels_total": Metric(
        "Labels for the descheduler that the leader wrote to pods or removed.", ("what",)
    ),
    "gpu_checks_total": Metric(
        "Comparisons of the state of GPUs with a new list: same, different, or undecided.", ("outcome",)
    ),
    "dra_devices": Metric(
        "Devices of DRA drivers, by driver, first DeviceClass and state: free, shared, allocated, blocked"
        " (another partition has its counters), unknown (its pool is incomplete or invalid), or tainted as"
        " well. 200 series at most; other devices have an empty `driver`.",
        ("driver", "class", "state"),
    ),
    "gpu_nodes": Metric("Nodes with GPUs."),
    "gpu_cards": Metric("GPUs, by whether they can be allocated: usable or unusable.", ("state",)),
    "gpu_pods": Metric("Pods with allocated GPUs."),
    "gpu_held_share": Metric(
        "Allocated share of the counting resource of all GPUs, 0 to 1, including unusable GPUs."
    ),
    "gpu_nodes_with_problems": Metric("Nodes with problems, which `GET /state/gpu` names."),
    "gpu_fullest_record_share": Metric(
        "Size of the largest allocation record of a node, as a share of the accepted size, 0 to 1."
    ),
    "gpu_card_held_share": Metric(
        "Allocated share of the counting resource of a GPU, 0 to 1. Only up to `--gpu-card-metrics` GPUs.",
        ("node", "card"),
    ),
    "gpu_node_problems": Metric(
        "Problems of a node; only for nodes with problems, up to the same limit.", ("node",)
    ),
    "view_generation": Metric("Number of snapshots of the scheduler's inputs so far."),
    "view_timestamp_seconds": Metric(
        "Time of the inputs of the newest snapshot, at least once per `--sync-period`; Unix time."
    ),
    "evaluation_timestamp_seconds": Metric(
        "Time of the newest snapshot whose results the leader has written as labels and statuses; only of"
        " the leader. Unix time."
    ),
    "view_seconds": Metric("Time to compute the state of an agent.", ("agent",), _CALL_S),
    "decisions_bytes": Metric("Size of the decisions that are stored for /decisions and explain."),
    "recording_bytes": Metric("Size of the file of `--record`."),
    "recording_lost_total": Metric(
        "Requests and snapshots that were not recorded, because the rate was too high.", ("what",)
    ),
    "metric_fetches_total": Metric(
        "Fetches of node metrics, by source and outcome: good, not_there, failed, or paused (not sent,"
        " because the metric kept timing out).",
        ("source", "outcome"),
    ),
    "metric_requests_paused": Metric("Metrics that keep timing out and are requested less often."),
    "metric_nodes": Metric(
        "Nodes with a valid value of a metric; 0 if no source has ever responded with one.", ("metric",)
    ),
    "metric_series_unmatched": Metric(
        "Series of the last response for a metric that match no node.", ("metric",)
    ),
    "metric_incomplete": Metric(
        "1 if the last response for a metric lacks a part of its series; else 0.",
        ("metric",),
    ),
    "metric_age_seconds": Metric("Age of the last successful response for a metric.", ("metric",)),
    "metric_names_not_exported": Metric("Metrics without series labelled `metric` in /metrics."),
    "policies_with_problems": Metric("Policies and nodes with GPUs that have invalid parts."),
    "pods_waiting": Metric("Unschedulable pods that an agent filters or rejected; only of the leader."),
    "native_pods_waiting": Metric(
        "Pods that wait because of policies in native mode: with the scheduling gate of nodewise, or"
        " without a node that their policies accept; only of the leader."
    ),
    "wakes_total": Metric("Node annotations written to make the scheduler retry pending pods."),
    "node_annotations_total": Metric(
        "Nodes whose statistics were to be written: done, failed, or gone (deleted meanwhile).", ("outcome",)
    ),
    "node_annotations_lacking": Metric(
        "Nodes that keep their previous statistics: nodes that are not ready, and nodes without"
        " measurements.",
        ("why",),
    ),
    "nodes_to_label": Metric("Nodes whose labels differ from those of policies; only of the leader."),
    "native_nodes_to_label": Metric(
        "Nodes whose labels differ from the verdicts of policies, in native mode; only of the leader."
    ),
    "foreign_verdict_labels_total": Metric(
        "Labels with a verdict that another field manager had written, and that are overwritten."
    ),
    "policies_stepped_back": Metric(
        "Policies that only observe because they exceeded a limit of their guard; only of the leader."
    ),
    "policies_without_nodes": Metric(
        "Policies that leave no node to some of their pods (the condition AllNodesRejected); only of the leader."
    ),
    "label_conflicts": Metric(
        "Policies with a node label that another field manager owns, or another policy sets; only of the"
        " leader."
    ),
    "device_taints": Metric("Devices that policies taint by DeviceTaintRules; only of the leader."),
    "label_writes_total": Metric("Writes of node labels; only of the leader."),
    "rules_suspended": Metric("Suspended rules, which lost most of their nodes at once; only of the leader."),
    "loop_lag_seconds": Metric("Longest delay of the event loop in the last period."),
    "ready": Metric("1 when ready."),
    "kube_requests_total": Metric("Calls to the API server, by outcome.", ("verb", "outcome")),
    "kube_write_rate": Metric(
        "Writes to the API server that nodewise permits itself per second, up to `--kube-qps`."
    ),
    "kube_objects": Metric("Stored objects of a kind.", ("kind",)),
    "kube_lists_total": Metric("Complete lists started, by reason.", ("kind", "reason")),
    "kube_contact_timestamp_seconds": Metric(
        "Time of the API server's last response for a kind; Unix time.", ("kind",)
    ),
    "kube_connected": Metric(
        "1 if the API server responds to lists and watches of a kind; for `Lease`, 0 after ten seconds"
        " without a response to any call of the leader election.",
        ("kind",),
    ),
    "kube_silent_seconds": Metric("Time since the API server's last response to a call for the Lease."),
    "kube_unreadable_total": Metric("Objects that are ignored because they are invalid.", ("kind",)),
    "leading": Metric("1 if this replica is the leader, whose controllers run."),
    "shards": Metric("Number of shards of this replica's settings."),
    "shard_held": Metric("1 if this replica holds the shard, and so labels its nodes.", ("shard",)),
    "identity_duplicate": Metric(
        "1 if another running process has the identity of this replica, which therefore does not lead."
    ),
    "events_total": Metric("Kubernetes events to be recorded, by outcome.", ("outcome",)),
    "connections": Metric("Open connections after their handshake.", ("port",)),
    "connections_ended_total": Metric("Connections that the server refused or closed.", ("reason",)),
    "ca_clients_total": Metric("Connections of clients that present the certificate of a CA."),
    "tls_reloads_total": Metric("Reloads of changed certificate files.", ("certificate", "outcome")),
    "tls_reload_failing": Metric(
        "1 while certificate files cannot be used and the old content is in use.", ("certificate",)
    ),
    "tls_certificate_expires_seconds": Metric(
        "Expiry of a certificate in use, of a CA bundle the earliest; Unix time. `certificate` is serving,"
        " client_ca, kube_client, kube_ca, prometheus_client, prometheus_ca, or clients (the earliest of"
        " open connections).",
        ("certificate",),
    ),
    "cpu_reviews_total": Metric(
        "Pods that the API server sent to the webhook: mutated, untouched or refused.", ("outcome",)
    ),
    "cpu_mutations_failing": Metric(
        "1 while the mutations of the webhook are invalid and pods that request cores get an error."
    ),
    "cpu_claims_total": Metric(
        "Requests for CPUs that the node agent answered, by outcome: given, refused or unavailable.",
        ("outcome",),
    ),
    "cpu_reclaimed_total": Metric("CPU lists that garbage collection freed, by pool.", ("pool",)),
    "cpu_lists": Metric("CPU lists of a pool: held or free.", ("pool", "state")),
    "cpu_tasks": Metric("Tasks on the CPU lists of a pool.", ("pool",)),
    "cpu_sweep_seconds": Metric("Duration of garbage collection on a node.", (), _CALL_S),
    "cpu_connections": Metric("Connections to the node agent's socket."),
    "cpu_failures_total": Metric(
        "Failures of the node agent's garbage collection and of the publishers that run after it.", ("what",)
    ),
}


PREFIX: Final = "nodewise_"


def metric_kind(name: str) -> Kind:
    """The kind of a metric of the table. As Prometheus recommends, only the names of counters end in `_total`."""
    if METRICS[name].buckets:
        return "histogram"
    return "counter" if name.endswith("_total") else "gauge"


class MetricsRegistry:
    """The metrics of one process. KeyError for a name that is not in the table.

    A gauge has no series until it is set: processes that have no such value do not report 0.
    """

    def __init__(self) -> None:
        import prometheus_client  # brings an HTTP server, and most commands count nothing

        self._client: Any = prometheus_client
        self._client.disable_created_metrics()  # unused additional series per metric
        self.content_type: str = prometheus_client.CONTENT_TYPE_LATEST
        """The media type of `exposition`."""
        self._registry = prometheus_client.CollectorRegistry()
        self._metrics: dict[str, Any] = {name: self._make_metric(name, row) for name, row in METRICS.items()}
        self._series: dict[tuple[str, ...], Any] = {}
        """Cache by name and labels: prometheus_client takes four times as long to look up a series."""
        self._excluded: dict[str, frozenset[str]] = {}
        """By label: the values that are not exported."""

    def _make_metric(self, name: str, row: Metric) -> Any:
        # prometheus_client adds the suffix of a counter itself
        full = PREFIX + name.removesuffix("_total")
        kind = metric_kind(name)
        if kind == "counter":
            return self._client.Counter(full, row.help, row.labels, registry=self._registry)
        if kind == "gauge":
            # without labels it would show 0 before it is set; `_metric_with_labels` registers it
            return self._client.Gauge(
                full, row.help, row.labels, registry=self._registry if row.labels else None
            )
        return self._client.Histogram(
            full, row.help, row.labels, registry=self._registry, buckets=row.buckets
        )

    def _metric_with_labels(self, name: str, labels: dict[str, str]) -> Any:
        key = _metric_series_key(name, labels)
        series = self._series.get(key)
        if series is None:
            metric = self._metrics[name]
            if not labels and metric_kind(name) == "gauge":
                self._registry.register(metric)
            series = self._series[key] = metric.labels(**labels) if labels else metric
        return series

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        self._metric_with_labels(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        if self._excluded and any(labels.get(label) in values for label, values in self._excluded.items()):
            return
        self._metric_with_labels(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._metric_with_labels(name, labels).observe(value)

    def forget(self, name: str, **labels: str) -> None:
        """Remove one series of a metric with labels, so that deleted objects are not exposed forever."""
        self._series.pop(_metric_series_key(name, labels), None)
        with contextlib.suppress(KeyError):
            self._metrics[name].remove(*(labels[label] for label in METRICS[name].labels))

    def exclude(self, label: str, values: frozenset[str]) -> None:
        """From now on, export no gauge with one of these values of a label. Replaces the values that were excluded."""
        before, self._excluded[label] = self._excluded.get(label, frozenset()), values
        names = [
            name for name, row in METRICS.items() if metric_kind(name) == "gauge" and row.labels == (label,)
        ]
        for value in values - before:
            for name in names:
                self.forget(name, **{label: value})

    def exposition(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        exposition: bytes = self._client.generate_latest(self._registry)
        return exposition


class UncountedMetrics(MetricsRegistry):
    """The registry of a command that exposes no metrics. It counts nothing and starts sooner."""

    def __init__(self) -> None:
        self.content_type = ""

    def count(self, name: str, amount: float = 1.0, **labels: str) -> None:
        pass

    def set(self, name: str, value: float, **labels: str) -> None:
        pass

    def observe(self, name: str, value: float, **labels: str) -> None:
        pass

    def forget(self, name: str, **labels: str) -> None:
        pass

    def exclude(self, label: str, values: frozenset[str]) -> None:
        pass

    def exposition(self) -> bytes:
        return b""


def _metric_series_key(name: str, labels: dict[str, str]) -> tuple[str, ...]:
    return (name, *[labels[label] for label in METRICS[name].labels])
