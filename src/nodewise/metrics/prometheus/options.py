"""Settings of Prometheus as a source of metrics."""

from typing import Annotated, Final

import msgspec

from nodewise.base.option import Option

NODE_LABELS: Final = (
    "exported_node",
    "node",
    "kubernetes_node",
    "nodename",
    "node_name",
    "k8s_node_name",
    "k8s.node.name",
    "host_name",
    "host.name",
    "Hostname",
    "hostname",
    "instance",
)
"""The labels whose values identify nodes, which options add to."""


class PrometheusOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Prometheus as a source of node metrics."""

    prometheus_url: Annotated[tuple[str, ...], Option(metavar="URL")] = ()
    """URL of Prometheus, such as http://prometheus.monitoring:9090, with any path before /api/v1. Repeat the option for
    replicas or several servers: the first one that has a metric is used. All servers get the same credentials."""

    prometheus_node_label: Annotated[tuple[str, ...], Option(metavar="LABEL")] = NODE_LABELS
    """Label whose value identifies the node of a series: name or address, with or without a port. It adds to the
    default labels, and comes before them. Repeat the option for several labels: of those that identify a node in a
    response, the first one of a series is used; before a label, that with the prefix exported_."""

    prometheus_replica_label: Annotated[tuple[str, ...], Option(metavar="LABEL")] = ()
    """Label in which the same series of several replicas of Prometheus differ, in addition to prometheus_replica,
    replica, __replica__ and receive_replica. Such series count once, the newest of them."""

    prometheus_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    """Timeout per query, which is also sent to Prometheus. Should be less than --metrics-timeout, so that the error of
    Prometheus is received."""

    prometheus_token_file: Annotated[str, Option(metavar="FILE")] = ""
    """Path of a file with a bearer token. Read at every query."""

    prometheus_user: Annotated[str, Option(metavar="NAME")] = ""
    """User name for basic authentication."""

    prometheus_password_file: Annotated[str, Option(metavar="FILE")] = ""
    """Path of a file with the password for basic authentication. Read at every query."""

    prometheus_header: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE", is_secret=True)] = ()
    """Header of each request, for a tenant of Mimir or Cortex, such as X-Scope-OrgID=team-a, or for a gateway. Messages
    hide the value. Repeat the option for several headers; the variable has one in each line."""

    prometheus_header_file: Annotated[tuple[str, ...], Option(metavar="NAME=FILE", is_secret=True)] = ()
    """Header whose value is the content of a file, such as Authorization=/etc/nodewise/gateway/authorization. Read at
    every query. Repeat the option for several headers; the variable has one in each line."""

    prometheus_ca: Annotated[str, Option(metavar="FILE")] = ""
    """Path of the PEM certificates of the authorities that Prometheus' certificate is verified against. Empty: those of
    the system. Reread when the file changes."""

    prometheus_cert: Annotated[str, Option(metavar="FILE")] = ""
    """Path of a client certificate in PEM. Reread with its key when the files change."""

    prometheus_key: Annotated[str, Option(metavar="FILE")] = ""
    """Path of the private key of the client certificate."""
