"""The wired extender against an in-memory API server: every component exists, and a pod goes from filter to bind."""

import asyncio
import contextlib
import json
import urllib.request
from pathlib import Path
from typing import Any

from nodewise import agents
from nodewise.base.clock import SystemClock
from nodewise.cli import extender as extender_wiring
from nodewise.cli.extender_options import setting_groups
from nodewise.cli.server_components import ClockAndMetrics, ServerConfig, WiredServer
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.leader_election import EXTENDER_LEASE
from nodewise.kube.resource_kinds import LEASES, NODES, PODS, Resource
from nodewise.metrics.refresher import RefreshOptions
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.server.options import AdminOptions, ServeOptions

NAMESPACE = "nodewise"
TASPOLICIES = Resource("telemetry.intel.com", "v1alpha1", "taspolicies", "TASPolicy")
GPU = "gpu.intel.com/i915"
POD = {
    "metadata": {"name": "train", "namespace": "default"},
    "spec": {"containers": [{"name": "main", "resources": {"requests": {GPU: "1"}, "limits": {GPU: "1"}}}]},
}


def config(kubeconfig: Path) -> ServerConfig:
    """The defaults, on free ports and without TLS, with the agent that binds and one that has a controller."""
    settings: dict[type, Any] = {group: group() for group in setting_groups()}
    settings[KubeOptions] = KubeOptions(kubeconfig=str(kubeconfig), namespace=NAMESPACE)
    settings[ServeOptions] = ServeOptions(unsafe=True, port=0)
    settings[AdminOptions] = AdminOptions(health_port=0)
    settings[RefreshOptions] = RefreshOptions(sync_period_s=0.5)
    kinds = [agents.load(name) for name in ("telemetry", "gpu")]
    return ServerConfig(settings, kinds, {kind.name: kind.options() for kind in kinds})


@contextlib.asynccontextmanager
async def running(extender: WiredServer) -> Any:
    """Run the tasks and servers within the block, until the extender is ready."""
    tasks = [asyncio.create_task(task()) for task in extender.tasks]
    try:
        for server in extender.servers:
            await server.start()
        async with asyncio.timeout(20):
            while extender.readiness.waiting_for():
                await asyncio.sleep(0.02)
        yield extender.servers[0].url
    finally:
        for server in extender.servers:
            await server.stop()
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await extender.close()
        assert not ended, "a task ended by itself"


async def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with await asyncio.to_thread(urllib.request.urlopen, request, timeout=10) as response:
        return json.load(response)


def test_a_pod_is_filtered_and_bound(tmp_path: Path) -> None:
    api = FakeApi(TASPOLICIES)
    labels = {"gpu.intel.com/gpu-numbers": "0"}
    api.put(NODES, {"metadata": {"name": "n1", "labels": labels}, "status": {"allocatable": {GPU: "1"}}})
    api.put(NODES, {"metadata": {"name": "n2"}, "status": {"allocatable": {}}})
    pod = api.put(PODS, POD)

    async def filter_and_bind(url: str) -> tuple[Any, Any]:
        candidates = {"Pod": pod, "NodeNames": ["n1", "n2"]}
        filtered = await post(f"{url}/scheduler/filter", candidates)
        meta = pod["metadata"]
        binding = {
            "PodName": meta["name"],
            "PodNamespace": meta["namespace"],
            "PodUID": meta["uid"],
            "Node": "n1",
        }
        return filtered, await post(f"{url}/scheduler/bind", binding)

    async def main(kubeconfig: Path) -> tuple[Any, Any]:
        tools = ClockAndMetrics(SystemClock(), MetricsRegistry())
        async with running(extender_wiring.wire_extender(config(kubeconfig), tools)) as url:
            return await filter_and_bind(url)

    with in_memory_api_http_server.serving(api) as server:
        filtered, bound = asyncio.run(main(server.kubeconfig(tmp_path)))
        assert filtered["NodeNames"] == ["n1"]
        assert bound == {"Error": ""}
        pods, leases = server.call(lambda api: (api.objects(PODS), api.objects(LEASES)))
    assert pods["default", "train"]["spec"]["nodeName"] == "n1"
    assert {
        (NAMESPACE, "gpu-n1"),
        (NAMESPACE, EXTENDER_LEASE),
    } <= leases.keys()
