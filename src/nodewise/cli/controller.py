"""`nodewise controller`: labels nodes and writes the status of policies until SIGTERM or SIGINT."""

from typing import Annotated, Any, Final, cast

import msgspec

from nodewise import agents
from nodewise.base.clock import SystemClock
from nodewise.cli import server_components
from nodewise.cli.extender_options import InputAndLogOptions
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.server_components import (
    ClockAndMetrics,
    InputPaths,
    Readiness,
    ServerConfig,
    WiredServer,
)
from nodewise.engine import object_feed
from nodewise.engine.agent_chain import ChainOptions
from nodewise.engine.request_recorder import ReplaySettings
from nodewise.kube.api_client_creation import connect
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.shard_election import MOST_SHARDS
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import native_mode_admission
from nodewise.policies.shard_reports import ShardReports
from nodewise.policies.state import TelemetryStateBuilder
from nodewise.server.application import Application
from nodewise.server.options import AdminOptions
from nodewise.server.server import admin_routes, admin_server, restrict_to_loopback

TELEMETRY: Final = agents.load("telemetry")


class ControllerKubeOptions(KubeOptions, frozen=True, kw_only=True):
    """Connection to the cluster."""

    kube_qps: Annotated[float, msgspec.Meta(gt=0)] = 250.0
    """Most writes to the API server per second, on average. Reads are not limited, because there are few. The rate
    begins at 50, rises while responses take up to 25 ms on average, and falls after the statuses 429 and 5xx and after
    timeouts. With 50 it never exceeds that of earlier versions."""

    kube_burst: Annotated[int, msgspec.Meta(ge=1)] = 200
    """Burst of writes to the API server. The default is enough to label some racks of nodes without delay."""


class ShardOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Division of the nodes among replicas."""

    shards: Annotated[int, msgspec.Meta(ge=1, le=MOST_SHARDS)] = 1
    """Number of shards. Each replica watches, evaluates and labels the nodes of its shards; run as many replicas as
    shards, for 20,000 nodes and more each. With 1, one replica leads and does all work."""


GROUPS: Final = (
    InputAndLogOptions,
    AdminOptions,
    ControllerKubeOptions,
    ShardOptions,
    RefreshOptions,
    PrometheusOptions,
)


@settings_command(
    "controller", *GROUPS, kinds=[TELEMETRY], short_help="Label nodes and write the status of policies."
)
def command(command_line: CommandLine) -> None:
    """Label nodes and write the status of policies, without serving kube-scheduler.

    This is the work of the leader among the replicas of `nodewise extender --agents telemetry`, for clusters whose
    kube-scheduler does not call nodewise. It needs no Service and no certificates. Run two replicas: one leads, and the
    other takes over when the leader ends. Do not run it beside an extender with the agent telemetry.

    Native mode is on while the admission policies of deploy/native.yaml are installed, unless --native-mode or
    --no-native-mode is set.

    \b
    Examples:
      nodewise controller --health-address 0.0.0.0
      nodewise controller --prometheus-url http://prometheus.monitoring:9090

    \b
    Exit codes:
      0  ended by SIGTERM or SIGINT
      1  it cannot run: a port is in use, or there is no cluster
      2  the command line or a setting is invalid
    """
    settings: dict[type, Any] = {group: command_line.settings(group) for group in GROUPS}
    settings[KubeOptions] = settings[ControllerKubeOptions]
    own: InputAndLogOptions = settings[InputAndLogOptions]
    logs.configure(own.log_level, own.log_format)
    server_components.return_freed_blocks()
    config = ServerConfig(settings, [TELEMETRY], {TELEMETRY.name: command_line.agent_options(TELEMETRY)})
    server_components.run_until_signal(
        lambda: wire_controller(config, ClockAndMetrics(SystemClock(), MetricsRegistry()))
    )


def wire_controller(config: ServerConfig, tools: ClockAndMetrics) -> WiredServer:
    """The controller of a configuration: the tasks of an extender's leader, and the admin server."""
    api = connect(config.settings[KubeOptions], tools.registry, small_receive_buffer=True)
    config = server_components.set_namespace_of_agents(config, api.namespace)
    needs = object_feed.data_requirements(config.agents, config.agent_options)
    if config.agent_options[TELEMETRY.name].native_mode is not True:
        # off by default only while its admission policies are absent, and never right while they are installed
        needs = needs._replace(watched=[*needs.watched, *native_mode_admission.WATCHED])
    paths = InputPaths(config.settings[InputAndLogOptions].metrics)
    shards = config.settings[ShardOptions].shards
    sharding = server_components.create_sharding(config, api, shards, tools)
    snapshots = server_components.create_snapshot_components(
        config, api, paths, needs, tools, sharding.nodes if shards > 1 else None
    )
    if shards > 1:
        state = cast("TelemetryStateBuilder", snapshots.states[TELEMETRY.name])
        state.values_elsewhere = ShardReports(sharding.nodes).has_values
    leader = server_components.create_leader_tasks(config, api, snapshots, tools, sharding)
    readiness = Readiness(snapshots.cache.waiting_for, tools.registry)
    general = ReplaySettings(config.settings[RefreshOptions].sync_period_s, ChainOptions())
    private = [
        server_components.create_metric_values_route(config, snapshots, general, tools),
        *server_components.create_evaluation_routes(config, api, snapshots, leader.leads, sharding.nodes),
    ]
    routes = [*admin_routes(readiness.waiting_for, tools.registry), *map(restrict_to_loopback, private)]
    app = Application(routes, tools.registry, max_body_bytes=2**16)
    admin = admin_server(app, config.settings[AdminOptions], tools.registry)
    tasks = [*snapshots.tasks(), server_components.create_event_loop_lag_task(tools), *leader.tasks]
    return WiredServer([admin], tasks, [*leader.closing, *snapshots.closing()], readiness)
