"""`nodewise extender --no-cluster`: the components of an extender whose requests contain the nodes."""

from nodewise.annotator.options import AnnotatorOptions
from nodewise.cli import extender_components
from nodewise.cli.extender_components import ClockAndMetrics, ExtenderConfig, Readiness, WiredExtender
from nodewise.cli.extender_options import ExtenderOptions
from nodewise.errors import BadSettings, Problem
from nodewise.extender import clusterless_snapshots
from nodewise.extender.clusterless_snapshots import ClusterlessSnapshots
from nodewise.extender.decision import DecisionRing
from nodewise.extender.request_handler import RequestHandler
from nodewise.extender.routes import Extender
from nodewise.extender.score_weights import ChainOptions
from nodewise.observe import event_loop_lag


def wire_clusterless(config: ExtenderConfig, tools: ClockAndMetrics) -> WiredExtender:
    """An extender that is ready immediately. `BadSettings` names agents that need a cluster."""
    own: ExtenderOptions = config.settings[ExtenderOptions]
    annotates = config.settings[AnnotatorOptions].annotate != "off"
    others = {"--objects-from": own.objects_from, "--record": own.record, "--annotate": annotates}
    problems = [
        Problem("--no-cluster", f"{flag} beside it", "one of the two")
        for flag, set_ in others.items()
        if set_
    ]
    if problems:
        raise BadSettings("settings", problems)
    clusterless_snapshots.check_objects(config.agents, config.agent_options)
    states = extender_components.create_states(config)
    clusterless_snapshots.check_metrics(states)
    request_handler = RequestHandler(
        config.agents, config.agent_options, states, config.settings[ChainOptions]
    )
    ring = DecisionRing(own.decisions_bytes)
    snapshots = ClusterlessSnapshots(config.agents, states)
    extender = Extender(request_handler, snapshots.snapshot, ring, *tools)

    async def watch_loop() -> None:
        await event_loop_lag.measure_lag(*tools)

    memory = extender_components.create_memory(own.state, None, states, lambda: True, tools)
    tasks = [watch_loop, *(agent_memory.run for agent_memory in memory)]
    readiness = Readiness(tuple, tools.registry)
    tools.registry.set("ready", 1.0)
    servers = extender_components.create_servers(
        config, extender, extender.refusing_routes(), readiness, tools
    )
    return WiredExtender(servers, tasks, [agent_memory.close for agent_memory in memory], readiness)
