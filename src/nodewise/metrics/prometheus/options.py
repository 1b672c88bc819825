"""Settings of Prometheus as a source of metrics."""

from typing import Annotated

import msgspec

from nodewise.option import Option


class PrometheusOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Prometheus is asked, where node metrics come from it."""

    prometheus_url: Annotated[tuple[str, ...], Option(metavar="URL")] = ()
    """Where Prometheus answers, such as http://prometheus.monitoring:9090; a path before /api/v1 is part of it.
    Repeat it for replicas or for several servers: the first that has a metric wins. All get the same
    credentials."""

    prometheus_node_label: Annotated[tuple[str, ...], Option(metavar="LABEL")] = (
        "node",
        "kubernetes_node",
        "nodename",
        "instance",
    )
    """The label whose value says which node a series belongs to: by name, InternalIP or Hostname, a port does not
    matter. Repeat it for several: of those that name a node in an answer, the first that a series has counts."""

    prometheus_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    """How long one query may take. Prometheus is told, and stops. Less than --metrics-timeout, so that what it
    says of it is not lost."""

    prometheus_token_file: Annotated[str, Option(metavar="FILE")] = ""
    """A file with a bearer token. It is read at every query, so it may be renewed."""

    prometheus_user: Annotated[str, Option(metavar="NAME")] = ""
    """The user for basic authentication."""

    prometheus_password_file: Annotated[str, Option(metavar="FILE")] = ""
    """A file with that user's password, read at every query."""

    prometheus_ca: Annotated[str, Option(metavar="FILE")] = ""
    """Certificates in PEM that Prometheus' own is verified against. Empty: those of the system. Read again when
    the file changes."""

    prometheus_cert: Annotated[str, Option(metavar="FILE")] = ""
    """A client certificate in PEM. It and its key are read again when the files change."""

    prometheus_key: Annotated[str, Option(metavar="FILE")] = ""
    """The key of the client certificate."""
