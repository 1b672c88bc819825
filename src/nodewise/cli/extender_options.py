"""Settings of `nodewise extender`, and all groups of its settings file."""

from functools import cache
from typing import Annotated, Literal

import msgspec

from nodewise.agent.controller_interface import LeaderTask
from nodewise.base import distributions
from nodewise.base.option import Option
from nodewise.cli.parameter_types import AgentNames
from nodewise.engine.agent_chain import ChainOptions
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.metrics import source_table
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.server.options import AdminOptions, ServeOptions


class InputAndLogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics and logs."""

    metrics: Annotated[tuple[str, ...], Option(metavar="SOURCE", help=source_table.option_help())] = ("auto",)
    """Values of `source_table.SYNTAX`."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log lines."""

    log_format: Literal["text", "json"] = "text"
    """Format of log lines: text for people, json for collectors."""


class ExtenderOptions(InputAndLogOptions, frozen=True, kw_only=True):
    """Agents, inputs and logs of the extender."""

    agents: Annotated[str, Option(metavar="NAMES", type=AgentNames())] = "telemetry"
    """Agents to call, separated by commas, in this order. `nodewise agents list` shows them."""

    objects_from: Annotated[tuple[str, ...], Option(metavar="PATH")] = ()
    """Read nodes, policies and metrics from these files or folders instead of a cluster, and read them again when
    they change. For tests: nothing is written anywhere."""

    no_cluster: bool = False
    """Serve without an API server: each request contains whole nodes (nodeCacheCapable: false), and agents see
    nothing else. Agents that read other objects cannot be used."""

    state: Annotated[str, Option(metavar="FILE")] = ""
    """File for what agents learn, such as the demand statistics of pigeon. Empty: the ConfigMap nodewise-memory in
    nodewise's namespace; without a cluster, it is lost when the process ends."""

    shutdown_delay_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """Delay between SIGTERM and the end. Meanwhile /readyz fails, requests are still served, and each response
    closes its connection. Longer than a cluster needs to remove an endpoint of a Service, shorter than the pod's
    terminationGracePeriodSeconds. SIGINT, or a second signal, ends the process immediately."""

    agent_deadline_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Deprecated: has no effect. Third-party agents run without a deadline."""

    bind_timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    """Time limit of a bind call. Shorter than the httpTimeout of the extender's entry, by default 5 s:
    kube-scheduler must not place a pod again that is still being bound."""

    decisions_bytes: Annotated[int, msgspec.Meta(ge=0)] = 64 * 2**20
    """Memory for the decisions that /decisions shows; the oldest of the namespace with the most are dropped."""

    record: Annotated[str, Option(metavar="FILE")] = ""
    """Record every request, every change of the inputs and every response in this file, for `nodewise simulate
    replay`. It contains every tenant's pods with their environment, and no Secrets; only its owner can read it. An
    existing file is kept as FILE.old."""

    record_max_bytes: Annotated[int, msgspec.Meta(ge=1)] = 2**30
    """Size at which the recording ends; the extender continues to serve."""


@cache
def leader_tasks() -> tuple[LeaderTask, ...]:
    """The tasks of the extender's leader that nodewise's other distributions add."""
    return tuple(entry.load() for entry in distributions.own_entry_points(distributions.LEADER_TASKS))


@cache
def setting_groups() -> tuple[type[msgspec.Struct], ...]:
    """All groups of the extender. Other commands accept its settings file, and use the settings that they have."""
    return (
        ExtenderOptions,
        ChainOptions,
        ServeOptions,
        AdminOptions,
        KubeOptions,
        RefreshOptions,
        PrometheusOptions,
        *(group for task in leader_tasks() for group in task.options),
    )
