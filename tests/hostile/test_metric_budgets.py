"""Tenants whose queries never end, and a neighbour whose metric stays fresh."""

import asyncio
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from nodewise.kube.resource_kinds import NAMESPACES
from nodewise.policies.options import TelemetryOptions
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.cluster import asgi_server_thread
from tests.cluster.asgi_server_thread import Receive, Scope, Send
from tests.hostile import malformed_metrics_api_server, three_node_cluster_objects
from tests.hostile.extender_process import AttackedExtender

PERIOD_S = 0.5
SLOTS = 16
QUERIES = TelemetryOptions().queries_per_namespace


class HangingPrometheus:
    """A Prometheus that never answers queries with `hang`; every other query has the value 1 on each node."""

    def __init__(self) -> None:
        self.hanging = 0
        """The number of queries that hang now."""
        self.answered: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode())["query"][0]
        if "hang" in query:
            self.hanging += 1
            await _disconnection(receive)
            self.hanging -= 1
            return
        self.answered[query] += 1
        nodes = three_node_cluster_objects.NODES
        series = [{"metric": {"node": node}, "value": [time.time(), "1"]} for node in nodes]
        data = {"resultType": "vector", "result": series}
        await asgi_server_thread.answer(send, 200, {"status": "success", "data": data})


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        await asyncio.sleep(0)


def policy(namespace: str, *queries: str) -> dict[str, Any]:
    rules = [
        {"metricname": "m", "query": query, "operator": "GreaterThan", "target": 80} for query in queries
    ]
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": "slow", "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"strategies": {"dontschedule": {"rules": rules}}},
    }


def create_trusted_policy(made: dict[str, Any], api: FakeApi) -> None:
    namespace = {"name": made["metadata"]["namespace"], "labels": {"nodewise.io/trusted": "true"}}
    api.put(NAMESPACES, {"metadata": namespace})
    api.put(malformed_metrics_api_server.TASPOLICIES, made)


def test_queries_that_never_end_do_not_delay_the_metric_of_another_namespace(tmp_path: Path) -> None:
    """The timeout is an hour, so that a slot that a hanging query holds is never free again."""
    prometheus = HangingPrometheus()
    with malformed_metrics_api_server.serving() as server, asgi_server_thread.serving(prometheus) as url:
        options: dict[str, object] = {
            "--kubeconfig": server.kubeconfig(tmp_path),
            "--sync-period": f"{PERIOD_S * 1000:g}ms",
            "--metrics-timeout": "1h",
            "--prometheus-timeout": "1h",
            "--metrics-concurrency": SLOTS,
            "--prometheus-url": url,
        }
        with AttackedExtender(tmp_path, [part for pair in options.items() for part in pair]) as target:
            for number in range(3):
                queries = (f"hang_{number}_{rule} > 0" for rule in range(QUERIES))
                server.call(partial(create_trusted_policy, policy(f"attacker-{number}", *queries)))
            target.until("queries of all attackers hang", lambda: prometheus.hanging >= SLOTS * 3 // 4)
            server.call(partial(create_trusted_policy, policy("d", "good > 0")))
            target.until("the neighbour's metric is fetched", lambda: prometheus.answered["good > 0"] >= 5)
            assert prometheus.hanging < SLOTS
