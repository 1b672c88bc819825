"""One policy with one rule in the running program, over many refresh periods of a clock that a test advances."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from nodewise.agent import ClusterState, NodeIndex
from nodewise.agents.telemetry import KIND
from nodewise.base import cooperative_scheduling
from nodewise.metrics.metrics_source import RefreshOptions, merge_requests
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import PrometheusSettings, PrometheusSource
from nodewise.metrics.refresher import MetricsRefresher
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policy_tools.policy_timeline import TimelineSettings
from tests.manual_clock import ManualClock

PERIOD_S: Final = RefreshOptions().sync_period_s
_URL: Final = "http://127.0.0.1:9"


def objects_of(*avoid: Mapping[str, Any]) -> dict[str, Any]:
    """A policy for all pods with these rules."""
    spec = msgspec.Raw(msgspec.json.encode({"podSelector": {}, "namespaceSelector": {}, "avoid": avoid}))
    return {"clusterplacementpolicies": {("", "p"): PolicyObject(PolicyMetadata("p", "", "uid", 1), spec)}}


def rejections(
    client: Any, clock: ManualClock, names: Sequence[str], rule: Mapping[str, Any], steps: int
) -> list[set[str]]:
    """The nodes that the extender rejects after each of so many refreshes.

    `client` takes the place of `PrometheusClient`, and responds with the samples until the time of `clock`.
    """
    objects, nodes, settings = objects_of(rule), NodeIndex(names), TimelineSettings()
    builder = KIND.state(settings.options, settings.sync_period_s)

    async def lookup() -> NodeAttributes:
        return NodeAttributes({}, {name: name for name in names})

    async def play() -> list[set[str]]:
        options = PrometheusSettings(PrometheusOptions(prometheus_url=(_URL,)), 60.0)
        source = PrometheusSource(_URL, options, lookup, MetricsRegistry())
        source._client = client
        refresher = MetricsRefresher([source], RefreshOptions(), clock, MetricsRegistry())
        requests = merge_requests(builder.metric_requests(objects))
        refresher.set_requests(requests)
        rejected = []
        for _ in range(steps):
            for request in requests:
                refresher._start_fetch(request)
            await refresher.settle()
            cluster = ClusterState(nodes, objects, refresher.snapshot, clock.now())
            state = cooperative_scheduling.run_without_pauses(builder.build(cluster))
            [policy] = state.policies.values()
            assert policy.verdict is not None
            codes = policy.verdict.codes[:-1]
            rejected.append({node for node, code in zip(nodes.known, codes, strict=True) if code})
            clock.advance(PERIOD_S)
        await source.close()
        return rejected

    return asyncio.run(play())
