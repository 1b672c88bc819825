"""The wiring of servers: the extender with an in-memory API server, the settings of the controller, waiting pods."""

import asyncio
import contextlib
import json
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodewise import agents
from nodewise.base.clock import SystemClock
from nodewise.cli import controller, server_components
from nodewise.cli import extender as extender_wiring
from nodewise.cli.controller import ControllerKubeOptions
from nodewise.cli.extender_options import setting_groups
from nodewise.cli.options_from_settings import CommandLine
from nodewise.cli.server_components import ClockAndMetrics, ServerConfig, WiredServer
from nodewise.engine import object_feed
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.object_feed import MOST_WAITING_POD_BYTES
from nodewise.kube.kubeconfig import KubeOptions
from nodewise.kube.leader_election import EXTENDER_LEASE
from nodewise.kube.resource_kinds import LEASES, NODES, PODS, Resource
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.node_index import NodeIndex
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies.options import TelemetryOptions
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


KINDS = [agents.load("telemetry"), agents.load("gpu")]


def config(kubeconfig: Path) -> ServerConfig:
    """The defaults, on free ports and without TLS, with the agent that binds and one that has a controller."""
    settings: dict[type, Any] = {group: group() for group in setting_groups()}
    settings[KubeOptions] = KubeOptions(kubeconfig=str(kubeconfig), namespace=NAMESPACE)
    settings[ServeOptions] = ServeOptions(unsafe=True, port=0)
    settings[AdminOptions] = AdminOptions(health_port=0)
    settings[RefreshOptions] = RefreshOptions(sync_period_s=0.5)
    return ServerConfig(settings, KINDS, {kind.name: kind.options() for kind in KINDS})


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


def test_table_of_node_names_is_built_before_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, created = FakeApi(TASPOLICIES), []
    api.put(NODES, {"metadata": {"name": "n1"}, "status": {"allocatable": {}}})
    create = server_components.create_snapshot_components

    def create_and_keep(*arguments: Any) -> server_components.SnapshotComponents:
        created.append(create(*arguments))
        return created[-1]

    monkeypatch.setattr(server_components, "create_snapshot_components", create_and_keep)

    async def main(kubeconfig: Path) -> NodeIndex:
        tools = ClockAndMetrics(SystemClock(), MetricsRegistry())
        async with running(extender_wiring.wire_extender(config(kubeconfig), tools)):
            return created[0].cache.snapshot.nodes

    with in_memory_api_http_server.serving(api) as server:
        nodes = asyncio.run(main(server.kubeconfig(tmp_path)))
    assert nodes.known == ("n1",)
    assert "table" in vars(nodes)


@pytest.mark.parametrize(
    ("flag", "connected", "own"),
    [
        ("", "nodewise", "nodewise"),
        ("", "default", ""),
        ("default", "default", "default"),
        ("nodewise", "default", "nodewise"),
        ("", "", ""),
    ],
)
def test_the_fallback_namespace_is_not_trusted(flag: str, connected: str, own: str) -> None:
    options = {kind.name: kind.options() for kind in KINDS}
    placed = server_components.set_namespace_of_agents(
        ServerConfig({KubeOptions: KubeOptions(namespace=flag)}, KINDS, options), connected
    )
    assert placed.agent_options == options | {"telemetry": TelemetryOptions(own_namespace=own)}


def parse_controller_options(*arguments: str) -> CommandLine:
    return CommandLine(controller.command.make_context("controller", list(arguments)).params)


def test_more_writes_than_of_an_extender_are_allowed() -> None:
    kube = parse_controller_options().settings(ControllerKubeOptions)
    assert (kube.kube_qps, kube.kube_burst) == (250.0, 200)
    assert kube.kube_qps > KubeOptions().kube_qps


def test_the_settings_file_of_an_extender_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "nodewise.yaml"
    file.write_text(
        "agents: telemetry,gpu\nport: 9001\nkube_qps: 30\nsync_period: 2s\ngpu: {placement: pack}\n"
        "telemetry: {max_age: 2m}\n"
    )
    command_line = parse_controller_options(f"--config={file}")
    assert command_line.settings(ControllerKubeOptions).kube_qps == 30
    assert command_line.settings(RefreshOptions).sync_period_s == 2
    assert command_line.agent_options(controller.TELEMETRY).max_age_s == 120


@pytest.mark.parametrize(
    "flag", ["--port=9001", "--agents=gpu", "--cert=tls.crt", "--objects-from=nodes.yaml"]
)
def test_options_for_serving_and_for_other_agents_do_not_exist(flag: str) -> None:
    with pytest.raises(Exception, match="No such option"):
        parse_controller_options(flag)


def test_the_largest_waiting_pod() -> None:
    """A larger one is not stored, whichever of the fields that agents read are large."""
    kind = agents.load("gpu")
    chain = AgentChain([kind.agent(kind.options())])
    target = object_feed.waiting_pods_target([kind], chain)
    assert target.keep is not None

    def waiting_pod(allowed: str) -> Any:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        device = {"resources": {"limits": {"gpu.intel.com/i915": "1"}}}
        document = {
            "metadata": {"name": "a", "annotations": {"gas-allow": allowed}},
            "spec": {"containers": [device]},
            "status": {"conditions": [condition]},
        }
        return msgspec.convert(document, target.type)

    rest = MOST_WAITING_POD_BYTES - len(msgspec.json.encode(waiting_pod("")))
    for size in (rest, rest + 1):
        pod = waiting_pod("x" * size)
        if size == rest:
            assert target.keep(pod) is pod
            continue
        with pytest.raises(
            ValueError, match=f"have {MOST_WAITING_POD_BYTES + 1} bytes, and only a pod with at most"
        ):
            target.keep(pod)
