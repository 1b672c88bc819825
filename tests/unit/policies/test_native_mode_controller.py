"""Native mode in the leader, with a failing API server: labels, and the status that the admission policies read."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise import agents
from nodewise.agent import Snapshot
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Problem, Refused, Unavailable
from nodewise.engine import object_feed
from nodewise.kube.api_server_interface import NONE, NotFound, Params, Patch
from nodewise.kube.resource_kinds import EVENTS, LEASES, NODES, PODS
from nodewise.kube.store import StoreWriter
from nodewise.metrics.node_index import NodeIndex
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies.controller.native_mode import NativeMode, NativeStatusReset
from nodewise.policies.native_mode_admission import GATE
from nodewise.policies.placement_policy import (
    AvoidRule,
    Canary,
    Comparison,
    LabelSelector,
    Mode,
    PodSelection,
    Policy,
    PolicyKey,
)
from nodewise.policies.policy_objects import RESOURCES, PolicyObject
from nodewise.policies.policy_rejection_reasons import RuleBroken
from nodewise.policies.policy_selection import SelectionIndex
from nodewise.policies.rule_evaluation import AvoidVerdict
from nodewise.policies.shard_reports import PolicyShardReport, ShardReport, ShardReports
from nodewise.policies.state import POLICY_KINDS, PolicyState, TelemetryState
from nodewise.policies.verdict_labels import label_key
from tests.manual_clock import ManualClock
from tests.unit.agents.fake_controller_handle import build_handle
from tests.unit.kube.failing_api import FailingApi

KEY = PolicyKey("PlacementPolicy", "web", "cool")
POLICIES = RESOURCES["PlacementPolicy"]
RULE = Comparison("temp", "above", 80)
REFUSAL = BadInput("patch node", [Problem("", "refused", "")])


class SlowApi(FailingApi):
    """An API server whose patches take some time of a manual clock."""

    def __init__(self) -> None:
        super().__init__(*RESOURCES.values())
        self.clock = ManualClock(1000.0)
        self.takes_s = 0.0

    def refuse(self, *nodes: str, error: NodewiseError = REFUSAL) -> None:
        """Refuse the patches of these nodes only."""
        self.errors = {("patch", f"/{node}"): error for node in nodes}

    async def patch(
        self, path: str, body: object, kind: Patch, params: Params = NONE, *, timeout_s: float = 10.0
    ) -> bytes:
        self.clock.advance(self.takes_s)
        if kind == "json":  # only gates of pods
            self.calls.append(("patch", path))
            return b"{}"
        return await super().patch(path, body, kind, params, timeout_s=timeout_s)

    def patches(self) -> int:
        return sum(verb == "patch" for verb, _ in self.calls)


class FixedReports(ShardReports):
    """The reports of other replicas."""

    def __init__(self) -> None:
        self.known: list[ShardReport] | None = None

    def others(self) -> list[ShardReport] | None:
        return self.known


class NativeModeFixture:
    """Nodes and a policy in an API server, the stores of watches, and native mode of a leader."""

    def __init__(self, count: int, reports: ShardReports | None = None) -> None:
        self.api = SlowApi()
        self.names = tuple(f"n{number}" for number in range(count))
        self.nodes: StoreWriter[Any] = StoreWriter()
        self.registry = MetricsRegistry()
        self.stores: dict[str, StoreWriter[PolicyObject]] = {name: StoreWriter() for name in POLICY_KINDS}
        for name in self.names:
            self.api.put(NODES, {"metadata": {"name": name, "labels": {"rack": "1"}}})
        made = self.api.put(POLICIES, {"metadata": {"name": KEY.name, "namespace": KEY.namespace}})
        self.uid: str = made["metadata"]["uid"]
        self.label = label_key(self.uid)
        objects = {name: writer.store for name, writer in self.stores.items()}
        handle = build_handle(self.api, objects, self.nodes.store, self.api.clock, self.registry)
        self.recorder = handle.recorder
        self.native = NativeMode(handle, reports)
        self.reset = NativeStatusReset(handle)
        self.native.begin()
        self.watch()

    def watch(self) -> None:
        """Bring the stores up to date with the API server."""
        kind = object_feed.merge_node_types([agents.load("telemetry")])
        items = (msgspec.json.encode(item) for item in self.api.objects(NODES).values())
        self.nodes.replace(msgspec.json.decode(item, type=kind) for item in items)
        policies = (msgspec.json.encode(item) for item in self.api.objects(POLICIES).values())
        self.stores[POLICIES.plural].replace(
            msgspec.json.decode(policy, type=PolicyObject) for policy in policies
        )

    def put_foreign_label(self, node: str, value: str) -> None:
        """Somebody else writes our label."""
        fields = {"f:metadata": {"f:labels": {f"f:{self.label}": {}}}}
        entry = {"manager": "kubectl", "operation": "Update", "fieldsV1": fields}
        self.api.put(
            NODES,
            {"metadata": {"name": node, "labels": {self.label: value}, "managedFields": [entry]}},
        )

    async def step(
        self,
        *violating: str,
        avoids: bool = True,
        awaits_metrics: bool = False,
        mode: Mode = "Enforce",
        canary: Canary | None = None,
        selects: bool = False,
        is_on: bool = True,
        stepped_back: bool = False,
    ) -> None:
        """Run one step with a snapshot in which these nodes violate the policy."""
        codes = np.array([name in violating for name in (*self.names, "")], np.int16)
        avoid = (AvoidRule((RULE,)),) if avoids else ()
        selection = PodSelection() if selects else None
        policy = Policy(
            KEY, "", selection, mode, canary, avoid=avoid, uid=self.uid, stepped_back=stepped_back
        )
        verdict = AvoidVerdict(codes, (RuleBroken(KEY, (RULE,)),)) if avoids else None
        state = PolicyState(policy, verdict, (), None, None, awaits_metrics=awaits_metrics)
        agent_state = TelemetryState({KEY: state}, SelectionIndex([policy], {}), is_on)
        await self.native.step(Snapshot(NodeIndex(self.names), {}, 0.0, 1), agent_state)

    async def activate(self, *violating: str) -> None:
        """Let the policy become active with labels on these nodes, and the watch show it."""
        await self.step(*violating)
        self.api.clock.advance(2)
        await self.step(*violating)
        self.watch()

    async def step_without_policies(self) -> None:
        """Run one step after all policies were deleted."""
        snapshot = Snapshot(NodeIndex(self.names), {}, 0.0, 1)
        await self.native.step(snapshot, TelemetryState({}, SelectionIndex((), {})))

    async def put_pods(self, *pods: dict[str, Any]) -> None:
        """Create pods, and let the watch deliver them."""
        for pod in pods:
            self.api.put(PODS, pod)
        for _ in range(1000 + len(pods)):
            await asyncio.sleep(0)

    async def notes(self) -> list[str]:
        """The notes of all Events."""
        await self.recorder.flush()
        return [event["note"] for event in self.api.objects(EVENTS).values()]

    def status_with(self, *, active: bool, **fields: Any) -> dict[str, Any]:
        """The expected status of a policy with a label."""
        return {"nodeLabel": self.label, "active": active, **fields}

    async def step_without_native_mode(self) -> None:
        """Run one step of a leader that does not run in native mode."""
        state = PolicyState(Policy(KEY, "", None, uid=self.uid), None, (), None, None)
        snapshot = Snapshot(NodeIndex(self.names), {}, 0.0, 1)
        await self.reset.step(snapshot, TelemetryState({KEY: state}, SelectionIndex((), {})))

    def labelled(self) -> dict[str, str]:
        """The value of the label of each node that has it."""
        nodes = ((name, node["metadata"]["labels"]) for (_, name), node in self.api.objects(NODES).items())
        return {name: labels[self.label] for name, labels in nodes if self.label in labels}

    def status(self) -> Any:
        return self.api.objects(POLICIES)[KEY.namespace, KEY.name].get("status")

    def counted(self, metric: str) -> float:
        lines = self.registry.exposition().decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith(f"nodewise_{metric} "))


@contextlib.asynccontextmanager
async def native_mode(
    count: int = 3, reports: ShardReports | None = None
) -> AsyncIterator[NativeModeFixture]:
    """Native mode that has listed the pods."""
    fixture = NativeModeFixture(count, reports)
    (watch_pods,) = fixture.native.tasks()
    watching = asyncio.create_task(watch_pods())
    while ("watch", PODS.path()) not in fixture.api.calls:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        yield fixture
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_policy_is_active_once_every_node_is_labelled() -> None:
    async with native_mode(100) as fixture:
        fixture.api.takes_s = 0.1
        await fixture.step(*fixture.names)
        assert 10 < len(fixture.labelled()) < 40
        assert fixture.status() is None or fixture.status() == fixture.status_with(active=False)
        fixture.api.takes_s = 0.0
        await fixture.step(*fixture.names)
        assert len(fixture.labelled()) == 100
        assert fixture.status() == fixture.status_with(active=False)
        # kube-scheduler, which watches nodes and pods by separate requests, may not have seen the labels yet
        fixture.api.clock.advance(1.9)
        await fixture.step(*fixture.names)
        assert fixture.status() == fixture.status_with(active=False)
        fixture.api.clock.advance(0.1)
        await fixture.step(*fixture.names)
        assert fixture.status() == fixture.status_with(active=True)


async def test_an_active_policy_stays_active_and_nothing_is_written_at_rest() -> None:
    async with native_mode() as fixture:
        await fixture.activate("n1")
        assert fixture.labelled() == {"n1": "violating"}
        before = fixture.api.patches()
        await fixture.step("n1")
        fixture.native.begin()
        await fixture.step("n1")
        assert fixture.api.patches() == before
        fixture.api.fail(Unavailable("connection refused"), 1)
        with pytest.raises(NodewiseError):
            await fixture.step("n2")
        await fixture.step("n2")
        assert fixture.labelled() == {"n2": "violating"}
        assert fixture.status() == fixture.status_with(active=True)


async def test_a_leader_without_native_mode_resets_the_status_of_native_mode_once() -> None:
    async with native_mode() as fixture:
        await fixture.activate("n1")
        fixture.api.fail(Unavailable("connection refused"), 1)
        with pytest.raises(NodewiseError):
            await fixture.step_without_native_mode()
        await fixture.step_without_native_mode()
        assert fixture.status() == {"active": False}
        fixture.watch()
        # a controller in native mode begins, and has to label the nodes first
        fixture.native.begin()
        fixture.api.clock.advance(60)
        await fixture.step("n0", "n1")
        assert fixture.status() == fixture.status_with(active=False)
        fixture.api.clock.advance(2)
        await fixture.step("n0", "n1")
        fixture.watch()
        assert fixture.status() == fixture.status_with(active=True)
        # the same leader does not overwrite it, and the next one does
        await fixture.step_without_native_mode()
        assert fixture.status() == fixture.status_with(active=True)
        fixture.reset.begin()
        await fixture.step_without_native_mode()
        assert fixture.status() == {"active": False}


@pytest.mark.parametrize("error", [Conflict("changed"), Refused("patch"), NotFound("gone")], ids=repr)
async def test_a_status_that_cannot_be_reset_is_not_tried_again(error: NodewiseError) -> None:
    async with native_mode() as fixture:
        await fixture.step("n1")
        fixture.watch()
        fixture.api.fail(error, 1)
        before = fixture.api.patches()
        await fixture.step_without_native_mode()
        await fixture.step_without_native_mode()
        assert fixture.api.patches() == before + 1


async def test_nothing_is_written_to_a_policy_that_never_was_in_native_mode() -> None:
    async with native_mode() as fixture:
        before = fixture.api.patches()
        await fixture.step_without_native_mode()
        assert fixture.api.patches() == before
        assert fixture.status() is None


async def test_a_policy_without_values_yet_is_not_active() -> None:
    async with native_mode() as fixture:
        await fixture.step("n0", "n1", "n2", awaits_metrics=True)
        assert fixture.labelled() == {}
        assert fixture.status() == fixture.status_with(active=False)
        await fixture.step("n0")
        fixture.api.clock.advance(2)
        await fixture.step("n0")
        assert fixture.status() == fixture.status_with(active=True)


DENIED = [Problem("", "admission webhook denied the request", "")]
REFUSALS = [
    *(error("patch node", DENIED) for error in (BadInput, Refused, Conflict, NotFound)),
    Unavailable("patch node", [Problem("", "etcdserver: request is too large", "")]),
    Unavailable("patch node", [Problem("", "timeout", "")], timeout_s=10.0),
]
"""Answers to the patch of one node: all of them can come from a webhook, and 500 from etcd."""


@pytest.mark.parametrize(
    "error", REFUSALS, ids=lambda error: f"{type(error).__name__}-{error.problems[0].found[:9]}"
)
async def test_a_policy_excludes_a_node_that_refuses_its_label_by_name(error: NodewiseError) -> None:
    if isinstance(error, Unavailable) and not error.timeout_s:
        error.http_status = 500
    async with native_mode() as fixture:
        fixture.api.refuse("n1", error=error)
        for _ in range(2):  # a node that seems to be replaced is tried once more
            await fixture.step("n0", "n1")
        assert fixture.labelled() == {"n0": "violating"}
        excluding = fixture.status_with(active=False, excludedNodes=["n1"])
        assert fixture.status() == excluding
        fixture.api.clock.advance(2)
        await fixture.step("n0", "n1")
        assert fixture.status() == excluding | {"active": True}
        assert fixture.native.findings.refusals == {
            fixture.uid: f"node n1 refuses the node label of the policy: {error.problems[0].found}; new pods of the"
            " policy exclude it by its name; pods that were created before may be placed there"
        }
        fixture.api.refuse()
        fixture.watch()
        fixture.api.clock.advance(60)
        await fixture.step("n0", "n1")
        assert fixture.labelled() == {"n0": "violating", "n1": "violating"}
        assert fixture.status() == fixture.status_with(active=True)
        assert fixture.native.findings.refusals == {}


async def test_nodes_of_another_shard_stay_excluded_while_its_report_is_missing() -> None:
    reports = FixedReports()
    async with native_mode(reports=reports) as native:
        refusing = PolicyShardReport(1, labelled_s=9.0, excluded_nodes=("m0",))
        reports.known = [ShardReport((1,), 1, {}, {native.uid: refusing})]
        await native.activate()
        assert native.status() == native.status_with(active=True, excludedNodes=["m0"])
        reports.known = None
        await native.step()
        assert native.status() == native.status_with(active=True, excludedNodes=["m0"])


async def test_a_node_that_refused_a_label_stays_excluded_while_it_may_be_replaced() -> None:
    async with native_mode() as fixture:
        fixture.api.refuse("n1")
        await fixture.step("n0", "n1")
        excluding = fixture.status_with(active=False, excludedNodes=["n1"])
        assert fixture.status() == excluding
        fixture.api.refuse("n1", error=NotFound("patch node", [Problem("", "not found", "")]))
        await fixture.step("n0", "n1")
        assert fixture.status() == excluding


async def test_a_new_leader_reports_no_refusals_of_its_earlier_time() -> None:
    async with native_mode() as fixture:
        fixture.api.refuse("n1")
        await fixture.step("n0", "n1")
        assert fixture.native.findings.refusals.keys() == {fixture.uid}
        fixture.native.begin()
        assert fixture.native.findings.refusals == {}


async def test_an_active_policy_excludes_a_node_that_begins_to_violate_it_and_refuses_the_label() -> None:
    async with native_mode() as fixture:
        await fixture.activate("n0")
        fixture.api.refuse("n1")
        await fixture.step("n0", "n1")
        assert fixture.status() == fixture.status_with(active=True, excludedNodes=["n1"])
        fixture.watch()
        await fixture.step("n0")
        assert fixture.status() == fixture.status_with(active=True)


async def test_a_refused_label_of_a_node_that_the_policy_accepts_excludes_nothing() -> None:
    async with native_mode() as fixture:
        await fixture.step("n0", "n1")
        fixture.watch()
        fixture.api.refuse("n1")
        await fixture.step("n0")
        assert fixture.labelled() == {"n0": "violating", "n1": "violating"}
        assert "excludedNodes" not in fixture.status()
        assert "its label differs from the verdict" in fixture.native.findings.refusals[fixture.uid]


async def test_a_policy_waits_while_more_nodes_refuse_its_label_than_it_can_exclude() -> None:
    async with native_mode(30) as fixture:
        fixture.api.refuse("n1", *(f"n{number}" for number in range(10, 20)))
        with pytest.raises(BadInput):
            await fixture.step(*fixture.names)
        fixture.api.clock.advance(2)
        with pytest.raises(BadInput):
            await fixture.step(*fixture.names)
        assert len(fixture.labelled()) == 19
        assert fixture.status() == fixture.status_with(active=False)
        assert "at most 10 nodes can be excluded by name" in fixture.native.findings.refusals[fixture.uid]


async def test_nodes_that_join_later_do_not_delay_a_policy() -> None:
    """Nodes are replaced all the time, and there is always one without a label."""
    async with native_mode(100) as fixture:
        fixture.api.takes_s = 0.1
        for number in range(12):
            await fixture.step(*fixture.names)
            if (fixture.status() or {}).get("active"):
                break
            for name in fixture.names[:15]:
                fixture.api.objects(NODES).pop(("", name), None)
            joined = tuple(f"j{number}-{place}" for place in range(15))
            for name in joined:
                fixture.api.put(NODES, {"metadata": {"name": name, "labels": {}}})
            fixture.names = fixture.names[15:] + joined
            fixture.watch()
        assert fixture.status()["active"]
        assert len(fixture.labelled().keys() & set(fixture.names)) < 100


async def test_a_policy_is_not_active_before_its_first_nodes_have_had_their_label() -> None:
    async with native_mode(100) as fixture:
        fixture.api.takes_s = 0.1
        for _ in range(3):
            await fixture.step(*fixture.names)
            fixture.watch()
        assert len(fixture.labelled()) < 100
        assert not (fixture.status() or {}).get("active")


async def test_a_policy_that_rejects_no_node_needs_no_label() -> None:
    async with native_mode() as fixture:
        await fixture.step(avoids=False)
        assert fixture.status() == {"nodeLabel": "", "active": True}
        # with rules, its nodes have to be labelled first
        fixture.watch()
        await fixture.step("n0", awaits_metrics=True)
        assert fixture.status() == fixture.status_with(active=False)


async def test_a_policy_in_the_mode_shadow_has_no_labels_and_is_new_when_it_is_enforced() -> None:
    async with native_mode() as fixture:
        await fixture.step("n0", mode="Shadow")
        assert (fixture.labelled(), fixture.status()) == ({}, None)
        await fixture.step("n0")
        assert fixture.labelled() == {"n0": "violating"}
        fixture.watch()
        await fixture.step("n0", mode="Shadow")
        assert (fixture.labelled(), fixture.status()["active"]) == ({}, False)
        fixture.watch()
        await fixture.step("n0", awaits_metrics=True)
        assert fixture.status() == fixture.status_with(active=False)


async def test_a_policy_is_new_when_native_mode_is_installed_after_the_controller() -> None:
    async with native_mode(100) as fixture:
        fixture.api.takes_s = 0.1
        for _ in range(3):
            await fixture.step(*fixture.names, is_on=False)
            fixture.api.clock.advance(5)
        assert (fixture.labelled(), fixture.status()) == ({}, None)
        await fixture.step(*fixture.names)
        assert 0 < len(fixture.labelled()) < 100
        assert fixture.status() == fixture.status_with(active=False)


async def test_labels_go_a_moment_after_native_mode_was_removed() -> None:
    async with native_mode() as fixture:
        await fixture.activate("n0")
        fixture.api.clock.advance(9)
        await fixture.step("n0", is_on=False)  # an update deletes and creates the admission policies
        actual = (fixture.labelled(), fixture.status())
        assert actual == ({"n0": "violating"}, fixture.status_with(active=True))
        fixture.api.clock.advance(2)
        await fixture.step("n0", is_on=False)
        assert (fixture.labelled(), fixture.status()["active"]) == ({}, False)


@pytest.mark.parametrize("namespace", ["web", "other"])
async def test_pods_that_wait_when_native_mode_is_removed_keep_the_labels_of_their_policies_and_lose_the_gate(
    namespace: str,
) -> None:
    """The policy of another namespace is not the pod's own: it keeps no label, and the pod does not wait for it."""
    async with native_mode() as fixture:
        pod = _waiting_pod("waits", fixture.label, namespace=namespace)
        await fixture.put_pods(pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": GATE}]}})
        await fixture.step("n0", awaits_metrics=True)
        fixture.watch()
        for _ in range(3):
            fixture.api.clock.advance(11)
            await fixture.step("n0", is_on=False)
            fixture.watch()
        assert fixture.labelled() == ({"n0": "violating"} if namespace == "web" else {})
        assert ("patch", PODS.path(namespace, "waits")) in fixture.api.calls


async def test_a_canary_by_percent_has_no_labels_and_is_reported() -> None:
    async with native_mode() as fixture:
        await fixture.step("n0", mode="Canary", canary=Canary(LabelSelector()))
        assert (fixture.labelled(), fixture.native.findings.not_enforced) == ({"n0": "violating"}, {})
        await fixture.step("n0", mode="Canary", canary=Canary(percent=10))
        assert fixture.labelled() == {}
        assert "needs an extender" in fixture.native.findings.not_enforced[fixture.uid]


@pytest.mark.parametrize("canary", [Canary(LabelSelector()), Canary(percent=10)], ids=["labels", "percent"])
async def test_a_canary_that_stepped_back_is_not_reported_as_one_that_needs_an_extender(
    canary: Canary,
) -> None:
    async with native_mode() as fixture:
        await fixture.step("n0", mode="Canary", canary=canary, stepped_back=True)
        assert (fixture.labelled(), fixture.native.findings.not_enforced) == ({}, {})


@pytest.mark.parametrize(("node", "value"), [("n0", "ok"), ("n1", "violating")])
@pytest.mark.parametrize("is_followed", [False, True], ids=["same_leader", "new_leader"])
async def test_a_label_of_another_manager_is_overwritten_or_removed(
    node: str, value: str, is_followed: bool
) -> None:
    async with native_mode() as fixture:
        await fixture.step("n0")
        fixture.put_foreign_label(node, value)
        fixture.watch()
        if is_followed:
            fixture.native.begin()
        await fixture.step("n0")
        assert fixture.labelled() == {"n0": "violating"}
        if not is_followed:
            assert fixture.counted("foreign_verdict_labels_total") == 1


async def test_a_new_leader_writes_without_reading_the_nodes_first() -> None:
    async with native_mode(50) as fixture:
        await fixture.step(*fixture.names)
        fixture.watch()
        fixture.native.begin()
        fixture.api.calls.clear()
        await fixture.step(*fixture.names[1:])
        assert [call for call in fixture.api.calls if "nodes" in call[1]] == [
            ("patch", NODES.path(name="n0"))
        ]
        assert fixture.labelled().keys() == set(fixture.names[1:])


async def test_a_node_that_is_recreated_while_the_nodes_stay_the_same_is_labelled() -> None:
    async with native_mode() as fixture:
        await fixture.step("n0")
        fixture.watch()
        fixture.nodes.remove(("", "n0"))
        await fixture.step("n0")
        fixture.api.put(NODES, {"metadata": {"name": "n0", "labels": {}, "uid": "new"}})
        fixture.watch()
        await fixture.step("n0")
        assert fixture.labelled() == {"n0": "violating"}


async def test_labels_of_a_deleted_policy_are_removed_once_pods_would_have_been_seen() -> None:
    async with native_mode() as fixture:
        await fixture.step("n0")
        await fixture.step_without_policies()
        assert fixture.labelled() == {"n0": "violating"}
        fixture.api.clock.advance(3.0)
        await fixture.step_without_policies()
        assert fixture.labelled() == {}


def _waiting_pod(name: str, *keys: str, namespace: str = "web") -> dict[str, Any]:
    """A pod without a node that requires labels."""
    expressions = [{"key": key, "operator": "NotIn", "values": ["violating"]} for key in keys]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"affinity": affinity}, "status": {"phase": "Pending"}}


@pytest.mark.parametrize("is_followed", [False, True], ids=["same_leader", "new_leaders"])
async def test_labels_of_a_deleted_policy_stay_for_its_waiting_pods_for_an_hour(is_followed: bool) -> None:
    async with native_mode() as fixture:
        await fixture.step("n0", selects=True)
        await fixture.put_pods(_waiting_pod("waits", fixture.label))
        await fixture.step_without_policies()
        for seconds, labelled in ((1800.0, {"n0": "violating"}), (1799.0, {"n0": "violating"}), (1.0, {})):
            fixture.watch()
            fixture.api.clock.advance(seconds)
            if is_followed:
                fixture.native.begin()
            await fixture.step_without_policies()
            assert fixture.labelled() == labelled


async def test_labels_of_a_deleted_policy_go_with_its_last_waiting_pod() -> None:
    async with native_mode() as fixture:
        await fixture.step("n0", selects=True)
        await fixture.put_pods(_waiting_pod("waits", fixture.label))
        await fixture.step_without_policies()
        assert fixture.labelled() == {"n0": "violating"}
        await fixture.api.delete(PODS.path("web", "waits"))
        await fixture.put_pods()
        fixture.api.clock.advance(3.0)
        await fixture.step_without_policies()
        assert fixture.labelled() == {}
        await fixture.put_pods(_waiting_pod("later", fixture.label))
        await fixture.step_without_policies()
        assert fixture.labelled() == {}
        (lease,) = fixture.api.objects(LEASES).values()
        assert lease["metadata"]["annotations"]["nodewise.io/deleted-policies"] == "{}"


async def test_labels_are_written_although_the_lease_with_deleted_policies_cannot_be_read() -> None:
    async with native_mode() as fixture:
        lease = LEASES.path("nodewise", "nodewise-deleted-policies")
        fixture.api.errors["get", lease] = Unavailable(f"get {lease}")
        for _ in range(2):
            with pytest.raises(Unavailable):
                await fixture.step("n0")
        assert fixture.labelled() == {}
        await fixture.step("n0")
        assert fixture.labelled() == {"n0": "violating"}


async def test_labels_are_written_although_the_lease_with_deleted_policies_cannot_be_written() -> None:
    async with native_mode() as fixture:
        await fixture.step("n0", selects=True)
        await fixture.put_pods(_waiting_pod("waits", fixture.label))
        fixture.api.errors["create", LEASES.path("nodewise")] = Unavailable("create")
        await fixture.step_without_policies()
        assert fixture.labelled() == {"n0": "violating"}, "this leader remembers the policy"
        fixture.api.errors.clear()
        await fixture.step_without_policies()
        assert fixture.api.objects(LEASES), "the next step writes it"


@pytest.mark.parametrize("namespace", ["web", "db"])
async def test_labels_of_a_deleted_policy_do_not_stay_for_pods_that_it_did_not_select(namespace: str) -> None:
    """Everyone who may create pods can name any label key."""
    async with native_mode() as fixture:
        await fixture.step("n0", selects=namespace != "web")
        await fixture.put_pods(_waiting_pod("waits", fixture.label, namespace=namespace))
        await fixture.step_without_policies()
        fixture.api.clock.advance(3.0)
        await fixture.step_without_policies()
        assert fixture.labelled() == {}
        assert not fixture.api.objects(LEASES), "nothing was recorded"


async def test_labels_of_deleted_policies_of_a_namespace_stay_within_its_limit() -> None:
    """A tenant creates and deletes policies in a loop, and a pod requires the labels of all of them."""
    async with native_mode() as fixture:
        keys: set[str] = set()
        codes = np.array([1, 1, 1, 0], np.int16)
        for number in range(6):
            policies = [
                Policy(
                    KEY._replace(name=f"p{number}-{part}"),
                    selection=PodSelection(),
                    avoid=(AvoidRule((RULE,)),),
                    uid=f"{number}-{part}",
                )
                for part in range(5)
            ]
            states = {
                each.key: PolicyState(each, AvoidVerdict(codes, (RuleBroken(KEY, (RULE,)),)), (), None, None)
                for each in policies
            }
            labels = [label_key(each.uid) for each in policies]
            keys.update(labels)
            snapshot = Snapshot(NodeIndex(fixture.names), {}, 0.0, 1)
            await fixture.native.step(snapshot, TelemetryState(states, SelectionIndex(policies, {})))
            fixture.api.put(PODS, _waiting_pod(f"waits{number}", *labels))
            await fixture.put_pods()
            fixture.api.clock.advance(1.0)
            await fixture.step_without_policies()
            fixture.watch()
        node = fixture.api.objects(NODES)["", "n0"]["metadata"]["labels"]
        newest = {label_key(f"{number}-{part}") for number in (4, 5) for part in range(5)}
        assert node.keys() & keys == newest


async def test_keys_that_belong_to_no_policy_take_no_memory_for_each_node() -> None:
    """Whoever may create pods can name any number of such keys."""
    names = [f"n{number}" for number in range(5000)]
    snapshot = Snapshot(NodeIndex(names), {}, 0.0, 1)
    async with native_mode(1) as fixture:
        for number in range(50):
            keys = [label_key(f"{number}-{key}") for key in range(20)]
            await fixture.put_pods(_waiting_pod(f"p{number}", *keys))
        tracemalloc.start()
        try:
            await fixture.native.step(snapshot, TelemetryState({}, SelectionIndex((), {})))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2**21, "1,000 keys; a number for each key and node takes 15 MB"


async def test_a_waiting_pod_that_is_older_than_its_policy_is_named() -> None:
    async with native_mode() as fixture:
        pod = {"metadata": {"name": "old", "namespace": "web"}, "status": {"phase": "Pending"}}
        await fixture.put_pods(pod)
        await fixture.step("n0")
        assert fixture.native.findings.uncovered == {}, "the policy selects no pods"
        await fixture.step("n0", selects=True)
        assert fixture.native.findings.uncovered == {fixture.uid: "web/old"}
        await fixture.step("n0", selects=True, mode="Shadow")
        assert fixture.native.findings.uncovered == {}


async def test_the_policies_beyond_the_budget_are_named_before_labels_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named: list[Mapping[str, str]] = []
    async with native_mode() as fixture:
        patch = fixture.api.patch

        async def record_patch(*arguments: Any, **options: Any) -> bytes:
            named.append(fixture.native.findings.not_enforced)
            return await patch(*arguments, **options)

        monkeypatch.setattr(fixture.api, "patch", record_patch)
        codes = np.array([1, 0, 0, 0], np.int16)
        states = {}
        for number in range(11):
            policy = Policy(
                KEY._replace(name=f"p{number}"),
                f"2026-01-01T00:00:{number:02}Z",
                avoid=(AvoidRule((RULE,)),),
                uid=f"uid{number}",
                no_verdict_label="no space" if number == 10 else "",
            )
            states[policy.key] = PolicyState(policy, AvoidVerdict(codes, ()), (), None, None)
        snapshot = Snapshot(NodeIndex(fixture.names), {}, 0.0, 1)
        await fixture.native.step(snapshot, TelemetryState(states, SelectionIndex((), {})))
        assert named[0] == fixture.native.findings.not_enforced == {"uid10": "no space"}


def _rejected_pod(name: str, key: str) -> Any:
    """A waiting pod for which kube-scheduler found no node."""
    message = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}]
    return _waiting_pod(name, key) | {"status": {"phase": "Pending", "conditions": conditions}}


async def test_a_waiting_pod_of_a_deleted_policy_gets_an_event() -> None:
    async with native_mode() as fixture:
        await fixture.put_pods(_rejected_pod("waits", fixture.label))
        await fixture.step_without_policies()
        assert not await fixture.notes(), "the watch may show the pod before its policy"
        fixture.api.clock.advance(31.0)
        await fixture.step_without_policies()
        (note,) = await fixture.notes()
        assert "policies that do not exist any more: " + fixture.label in note


async def test_pod_of_another_namespace_learns_nothing_about_a_policy() -> None:
    async with native_mode() as fixture:
        rejected = _rejected_pod("waits", fixture.label)
        await fixture.put_pods(rejected | {"metadata": rejected["metadata"] | {"namespace": "other"}})
        await fixture.step("n0", "n1", "n2")
        (note,) = await fixture.notes()
        assert note == (
            "the pod requires node labels of policies that are not its own; create it again to remove the requirement:"
            " nodewise explain other/waits shows each node"
        )


async def test_waiting_pods_get_events_within_a_limit() -> None:
    async with native_mode() as fixture:
        await fixture.put_pods(*(_rejected_pod(f"p{number}", fixture.label) for number in range(60)))
        await fixture.step("n0", "n1", "n2")
        await fixture.recorder.flush()
        events = list(fixture.api.objects(EVENTS).values())
        assert len(events) == 50
        assert {event["reason"] for event in events} == {"NoNodePasses"}
        assert "placement policy web/cool" in events[0]["note"]
        fixture.api.clock.advance(1.0)
        await fixture.step("n0", "n1", "n2")
        assert len(await fixture.notes()) == 55


@pytest.mark.parametrize(
    ("violating", "waits_s", "expected"),
    [("n0 n1 n2", 0, 1), ("n0 n1", 0, 0), ("n0 n1", 4, 0), ("n0 n1", 5, 1)],
)
async def test_a_pod_that_fits_somewhere_gets_an_event_only_if_it_still_waits_after_a_period(
    violating: str, waits_s: float, expected: int
) -> None:
    async with native_mode() as fixture:
        await fixture.put_pods(_rejected_pod("waits", fixture.label))
        await fixture.step(*violating.split())
        fixture.api.clock.advance(waits_s)
        await fixture.step(*violating.split())
        assert len(await fixture.notes()) == expected


async def test_a_pod_gets_no_event_when_a_node_recovers_to_which_it_will_be_bound() -> None:
    async with native_mode() as fixture:
        await fixture.put_pods(_rejected_pod("waits", fixture.label))
        await fixture.step(*fixture.names)
        fixture.api.clock.advance(60)
        await fixture.step("n0", "n1")
        assert len(await fixture.notes()) == 1


async def test_pods_get_no_event_about_metrics_that_a_new_leader_has_not_fetched_yet() -> None:
    async with native_mode() as fixture:
        await fixture.put_pods(_rejected_pod("waits", fixture.label))
        for _ in range(3):
            await fixture.step(*fixture.names, awaits_metrics=True)
            fixture.api.clock.advance(10)
        assert await fixture.notes() == []


async def test_nodes_that_recover_are_labelled_later_while_many_pods_wait() -> None:
    async with native_mode(200) as fixture:
        await fixture.put_pods(*(_rejected_pod(f"p{number}", fixture.label) for number in range(2000)))
        await fixture.step(*fixture.names)
        assert len(fixture.labelled()) == 200
        fixture.watch()
        fixture.api.clock.advance(9.0)
        await fixture.step()
        left = len(fixture.labelled())
        assert left == pytest.approx(150, abs=1), "12.5 nodes a second, after five seconds that are owed"
