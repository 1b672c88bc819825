"""What the writer of DeviceTaintRules does while the API server refuses calls."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest

from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.base.clock import SystemClock
from nodewise.base.errors import NodewiseError, Problem, Refused, Unavailable
from nodewise.kube.resource_kinds import DEVICE_TAINT_RULES, RESOURCE_SLICES
from nodewise.kube.store import StoreWriter
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies.controller.device_taint_writer import DeviceTaintWriter
from nodewise.policies.device_taints import DeviceReport
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.state import POLICY_KINDS, TelemetryStateBuilder
from tests.unit.agents.fake_controller_handle import build_handle
from tests.unit.kube.failing_api import FailingApi

KEY = PolicyKey("ClusterPlacementPolicy", "", "gpus")
STORE = "clusterplacementpolicies"
HOT = {
    "metric": "temp",
    "above": 90,
    "driver": "gpu.example.com",
    "deviceLabel": "UUID",
    "deviceAttribute": "uuid",
}


class Cluster:
    """A node with two devices, one policy, and the writer of a leader."""

    def __init__(self) -> None:
        self.api, self.clock = FailingApi(DEVICE_TAINT_RULES, RESOURCE_SLICES), SystemClock()
        self.policies: StoreWriter[PolicyObject] = StoreWriter()
        self.writer = DeviceTaintWriter(
            build_handle(self.api, {STORE: self.policies.store}, StoreWriter[Any]().store, self.clock)
        )
        devices = [
            {"name": f"gpu-{number}", "attributes": {"uuid": {"string": f"GPU-{number}"}}}
            for number in (0, 1)
        ]
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": HOT["driver"], "nodeName": "n1", "pool": pool, "devices": devices}
        self.api.put(RESOURCE_SLICES, {"metadata": {"name": "n1-gpus", "uid": "s"}, "spec": spec})
        self.values: Mapping[str, int] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(self.writer.run())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def step(self, spec: Mapping[str, Any], *, tainted: int | None = None) -> DeviceReport:
        """The report about the policy, after enough steps for the watches and writes; `tainted` is in its status."""
        status = {} if tainted is None else {"taintedDevices": tainted}
        raw, raw_status = (msgspec.Raw(msgspec.json.encode(part)) for part in (spec, status))
        self.policies.replace([PolicyObject(PolicyMetadata("gpus", "", "uid-of-gpus", 1), raw, raw_status)])
        now = self.clock.now()
        samples = {f"n1/{name}": Sample(value * 10**9, now) for name, value in self.values.items()}
        metric = "temp per UUID"
        metrics = MetricsSnapshot({metric: Series(metric, "test", now, samples, {})})
        objects: dict[str, Any] = {name: {} for name in (*POLICY_KINDS, NAMESPACES)}
        objects[STORE] = {("", "gpus"): self.policies.store.get("", "gpus")}
        nodes = NodeIndex(["n1"])
        builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
        state = cooperative_scheduling.run_without_pauses(
            builder.build(ClusterState(nodes, objects, metrics, now))
        )
        reports: Mapping[PolicyKey, DeviceReport] = {}
        for _ in range(50):
            reports = await self.writer.step(Snapshot(nodes, {"telemetry": state}, now, 1), state)
            await asyncio.sleep(0.001)
        return reports.get(KEY, DeviceReport())

    def tainted(self) -> set[str]:
        rules = self.api.objects(DEVICE_TAINT_RULES).values()
        return {rule["spec"]["deviceSelector"]["device"] for rule in rules}


SPEC = {"deviceTaints": [HOT]}
WITHOUT = {"nodeLabels": [{"metric": "x", "above": 1, "labels": {"gpu.nodewise.io/hot": "true"}}]}


def test_taint_is_written_and_removed() -> None:
    async def run() -> None:
        cluster = Cluster()
        async with cluster.running():
            cluster.values = {"GPU-0": 95, "GPU-1": 20}
            assert (await cluster.step(SPEC)).tainted == 1
            assert cluster.tainted() == {"gpu-0"}
            assert (await cluster.step(WITHOUT, tainted=1)).tainted == 0
            assert cluster.tainted() == set()

    asyncio.run(run())


def test_refused_taints_are_not_counted_as_tainted_devices() -> None:
    async def run() -> None:
        cluster = Cluster()
        cluster.api.errors["create", ""] = Refused("create: 403", [Problem("", "no right", "")])
        async with cluster.running():
            cluster.values = {"GPU-0": 95, "GPU-1": 95}
            report = await cluster.step(SPEC)
            assert report.tainted == 0
            assert "the API server refuses the DeviceTaintRule nodewise-gpus-" in report.refused

    asyncio.run(run())


def test_refused_deletion_is_in_the_report() -> None:
    async def run() -> None:
        cluster = Cluster()
        async with cluster.running():
            cluster.values = {"GPU-0": 95}
            await cluster.step(SPEC)
            cluster.api.errors["delete", ""] = Refused("delete: 403", [Problem("", "no right", "")])
            cluster.values = {"GPU-0": 20}
            report = await cluster.step(SPEC)
            refused = report.refused
            assert report.tainted == 1
            assert "the API server refuses the deletion of the DeviceTaintRule nodewise-gpus-" in refused
            assert "no right" in refused
            assert cluster.tainted() == {"gpu-0"}

    asyncio.run(run())


@pytest.mark.parametrize("error", [Unavailable("503"), Refused("403")])
def test_api_server_that_cannot_be_read_does_not_change_the_number_of_tainted_devices(
    error: NodewiseError,
) -> None:
    """A new leader finds the taints of a policy that has no device rules any more by this number."""

    async def run() -> None:
        cluster = Cluster()
        cluster.api.errors["get", ""] = error
        async with cluster.running():
            for spec in (SPEC, WITHOUT):
                report = await cluster.step(spec, tainted=1)
                assert str(error) in report.refused
                assert report.tainted is None

    asyncio.run(run())
