"""The settings and metric values of a running nodewise, which commands read from its replicas."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise import agents
from nodewise.base import clock
from nodewise.base.errors import BadInput, Problem, Unavailable
from nodewise.cli.options_from_settings import CommandLine
from nodewise.engine import metric_values_endpoint
from nodewise.engine.metric_values_endpoint import MetricValuesPage
from nodewise.engine.recording_file import AgentHeader
from nodewise.kube import replicas
from nodewise.kube.http_client import HttpApi
from nodewise.kube.replicas import Replica
from nodewise.metrics.metrics_snapshot import MetricsSnapshot

TIMEOUT_S: Final = 10.0
_COMPONENTS: Final = (replicas.EXTENDER, replicas.CONTROLLER)
_SOURCE_FIELDS: Final = (
    "metrics",
    "prometheus_url",
    "prometheus_node_label",
    "prometheus_replica_label",
)
"""Parameters of a command that select other sources than those of the running nodewise."""
_SOURCES_OF_THE_API_SERVER: Final = {"auto", "custom", "resource"}
"""The sources that a user can read with the rights of a kubeconfig. The URL of Prometheus is one inside of the cluster,
and files are those of the replica."""


class RunningConfiguration(NamedTuple):
    """What the decisions of a running nodewise depend on besides objects."""

    replicas: Sequence[Replica]
    """Those that were read: one of the extender, one of the controller, or both."""
    agents: Sequence[AgentHeader]
    """In the order of the chain."""
    settings: Mapping[str, Any]
    """Other settings by field."""
    sources: Sequence[str]
    """As `--metrics` names them."""
    metrics: MetricsSnapshot
    at: float
    """The time of the values, by the clock of the replica."""

    def source_text(self) -> str:
        """Which replicas were read, and how old the values are."""
        names = " and ".join(map(str, self.replicas))
        oldest = min((series.fetched_at for series in self.metrics.series.values()), default=None)
        if oldest is None:
            return f"{names}, which has no metric values"
        return f"{names}, fetched at most {clock.format_duration(max(round(self.at - oldest, 1), 0.0))} ago"


async def read_running_configuration(api: HttpApi, namespace: str) -> RunningConfiguration:
    """The configuration of the nodewise that runs in a namespace.

    In native mode the controller has the agent telemetry and an extender may have others, so one replica of each is
    read. A `NodewiseError` if there is no replica, or none can be read.
    """
    running_replicas = await replicas.find_replicas(api, namespace, TIMEOUT_S)
    by_component = [
        [replica for replica in running_replicas if replica.component == component]
        for component in _COMPONENTS
    ]
    return _combine([await _read_first_replica(api, group) for group in by_component if group])


async def _read_first_replica(
    api: HttpApi, running_replicas: Sequence[Replica]
) -> tuple[Replica, list[MetricValuesPage]]:
    """The pages of the first replica that responds."""
    problems = []
    for replica in running_replicas:
        try:
            return replica, await _read_pages(api, replica)
        except (Unavailable, BadInput) as error:
            problems.append(Problem(str(replica), str(error), ""))
    raise Unavailable("no replica of nodewise answers", problems)


async def _read_pages(api: HttpApi, replica: Replica) -> list[MetricValuesPage]:
    pages: list[MetricValuesPage] = []
    after = ""
    while True:
        query = {"after": after} if after else {}
        [answer] = await replicas.ask(api, [replica], metric_values_endpoint.PATH, query, TIMEOUT_S)
        if answer.body is None:
            raise Unavailable(f"{metric_values_endpoint.PATH}: {answer.error}")
        page = metric_values_endpoint.decode_page(answer.body)
        pages.append(page)
        keys = page.metrics.series.keys() | page.metrics.failures.keys()
        if page.is_last or not keys:
            return pages
        after = max(keys)


def _combine(read: Sequence[tuple[Replica, list[MetricValuesPage]]]) -> RunningConfiguration:
    """One configuration. An extender comes first, and a controller adds its agents and metrics."""
    by_agent: dict[str, AgentHeader] = {}
    sources: dict[str, None] = {}
    metrics = MetricsSnapshot()
    for _, pages in read:
        for agent in pages[0].header.agents:
            by_agent.setdefault(agent.name, agent)
        sources |= dict.fromkeys(pages[0].header.metrics)
        for page in pages:
            metrics = page.metrics.with_older(metrics)
    header = read[0][1][0].header
    settings = {"sync_period_s": header.sync_period_s, "weights": header.weights}
    at = max(page.at for _, pages in read for page in pages)
    return RunningConfiguration(
        [replica for replica, _ in read], list(by_agent.values()), settings, list(sources), metrics, at
    )


def apply_to_command_line(running: RunningConfiguration, command_line: CommandLine) -> CommandLine:
    """The command line with the settings of the running nodewise where the user has given none."""
    names = set(agents.names())
    by_agent = {agent.name: agent.options for agent in running.agents if agent.name in names}
    sources = tuple(name for name in running.sources if name in _SOURCES_OF_THE_API_SERVER)
    return command_line.with_running_settings({**running.settings, "metrics": sources}, by_agent)


def selects_other_sources(command_line: CommandLine) -> bool:
    """Whether the user names sources of metrics, whose values are then used instead of those of the replica."""
    return any(command_line.is_given(field) for field in _SOURCE_FIELDS)
