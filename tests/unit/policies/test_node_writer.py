"""Writes to nodes: failures, conflicts, and how many nodes native mode may label while pods wait."""

import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise import agents
from nodewise.agent import Snapshot
from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, Unavailable
from nodewise.engine import object_feed
from nodewise.kube.api_server_interface import NONE, Params, Patch
from nodewise.kube.resource_kinds import NODES, Resource
from nodewise.kube.shard_election import Tenure
from nodewise.kube.store import StoreWriter
from nodewise.metrics.node_index import NodeIndex
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import taspolicy_parser as policies
from nodewise.policies.controller.node_writer import ExaminationBudget, LabelWriter
from nodewise.policies.controller.policy_status_writer import StatusWriter
from nodewise.policies.node_labels import (
    POLICY_LABELS,
    VERDICT_LABEL_PREFIX,
    VERDICT_LABELS,
    LabelColumn,
    LabelOwner,
)
from nodewise.policies.placement_policy import Policy
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policies.state import POLICIES, PolicyState
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.manual_clock import ManualClock
from tests.unit.agents.fake_controller_handle import build_handle
from tests.unit.policies.policy_snapshot_builders import tas_key

LABEL = {"pol": "violating"}
TASPOLICIES = Resource("telemetry.intel.com", "v1alpha1", "taspolicies", "TASPolicy")
DOWN = Unavailable("connection refused")


class ResponseLosingApi(FakeApi):
    """An API server that carries out some writes without a response."""

    def __init__(self) -> None:
        super().__init__(TASPOLICIES)
        self.lost = 0
        self.refused_key = ""
        """Patches that contain this text are refused."""
        self.takes_s = 0.0
        self.clock = ManualClock(1000.0)
        self.patched = 0

    async def patch(
        self, path: str, body: object, kind: Patch, params: Params = NONE, *, timeout_s: float = 10.0
    ) -> bytes:
        self.patched += 1
        self.clock.advance(self.takes_s)
        if self.refused_key and self.refused_key in msgspec.json.encode(body).decode():
            raise BadInput(f"patch {path}: the API server refuses {self.refused_key}")
        answer = await super().patch(path, body, kind, params, timeout_s=timeout_s)
        if self.lost:
            self.lost -= 1
            raise Unavailable("no answer within 10 s")
        return answer


class LeaseOfShard:
    """The ownership of all nodes, for `left_s`."""

    shards = 2

    def __init__(self) -> None:
        self.left_s = 10.0

    def own_shards(self) -> frozenset[int]:
        return frozenset(range(self.shards))

    def is_whole(self, _: float) -> bool:
        return True

    def live_annotations(self) -> dict[int, dict[str, str]]:
        return {}

    def tenure(self) -> Tenure:
        return Tenure()

    def write_timeout_s(self, _uid: str, _at: float) -> float:
        return self.left_s


class ApiServerFixture:
    """Nodes in an API server, the store of a watch, and the label writer of a leader."""

    def __init__(self, count: int = 1, owner: LabelOwner = POLICY_LABELS) -> None:
        self.key = "pol" if owner == POLICY_LABELS else f"{VERDICT_LABEL_PREFIX}uid"
        self.api = ResponseLosingApi()
        self.names = tuple(f"n{number}" for number in range(count))
        self.clock = self.api.clock
        self.metrics_registry = MetricsRegistry()
        self.store: StoreWriter[Any] = StoreWriter()
        self.policies: StoreWriter[PolicyObject] = StoreWriter()
        stores = {POLICIES: self.policies.store}
        self.handle = build_handle(self.api, stores, self.store.store, self.clock, self.metrics_registry)
        self.writer = LabelWriter(self.handle, owner)
        for name in self.names:
            self.api.put(NODES, {"metadata": {"name": name, "labels": {"rack": "1"}}})
        self.watch()
        self.writer.begin()

    def watch(self) -> None:
        """Bring the store up to date with the API server."""
        kind = object_feed.merge_node_types([agents.load("telemetry")])
        items = (msgspec.json.encode(item) for item in self.api.objects(NODES).values())
        self.store.replace(msgspec.json.decode(item, type=kind) for item in items)

    async def step(self, *violating: str, waiting_pods: int = 0) -> None:
        """Run one step with a snapshot in which these nodes violate the policy."""
        codes = np.array([name in violating for name in (*self.names, "")], np.int16)
        column = LabelColumn("pol", ("violating",), codes, np.zeros(len(codes), bool))
        snapshot = Snapshot(NodeIndex(self.names), {}, 0.0, 1)
        await self.writer.step(snapshot, {"pol": column}, waiting_pods=waiting_pods)

    async def step_of_namespaces(self, **violating: Iterable[str]) -> None:
        """Run one step; by namespace, the nodes that violate its policy, which has the namespace's name."""
        columns = {}
        for namespace, nodes in violating.items():
            codes = np.array([name in set(nodes) for name in (*self.names, "")], np.int16)
            hold = np.zeros(len(codes), bool)
            columns[namespace] = LabelColumn(
                namespace, ("violating",), codes, hold, namespaces=frozenset([namespace])
            )
        await self.writer.step(Snapshot(NodeIndex(self.names), {}, 0.0, 1), columns)

    def labelled(self, key: str = "pol") -> set[str]:
        """The nodes that carry the label in the API server."""
        node_objects = self.api.objects(NODES)
        return {name for (_, name), node in node_objects.items() if key in node["metadata"]["labels"]}

    def left(self) -> float:
        """The gauge of nodes that are still to be written."""
        [line] = [
            line
            for line in self.metrics_registry.exposition().splitlines()
            if line.startswith(b"nodewise_nodes_to_label ")
        ]
        return float(line.split()[1])


async def test_nodes_that_recover_are_labelled_later_while_many_pods_wait() -> None:
    fixture = ApiServerFixture(250)
    await fixture.step(*fixture.names, waiting_pods=2500)
    assert len(fixture.labelled()) == 250, "nodes that begin to violate a policy do not wait"
    fixture.watch()
    await fixture.step(waiting_pods=2500)
    assert len(fixture.labelled()) == 250
    fixture.clock.advance(7.5)
    await fixture.step(waiting_pods=2500)
    left = len(fixture.labelled())
    assert left == pytest.approx(225, abs=1), (
        "10 nodes a second, after five seconds that the first labels cost"
    )
    assert fixture.left() == left
    await fixture.step(waiting_pods=0)
    assert not fixture.labelled()


async def test_a_node_is_written_once_for_all_policies_that_change_on_it() -> None:
    fixture = ApiServerFixture(20)
    await fixture.step_of_namespaces(a=fixture.names, b=fixture.names, c=fixture.names[:5])
    assert fixture.api.patched == 20
    assert fixture.labelled("a") == fixture.labelled("b") == set(fixture.names)
    await fixture.step_of_namespaces(a=[], b=[], c=fixture.names)
    assert fixture.api.patched == 40
    assert not fixture.labelled("a")
    assert fixture.labelled("c") == set(fixture.names)


async def test_a_label_of_a_write_without_response_is_removed_when_the_node_recovers() -> None:
    fixture = ApiServerFixture()
    fixture.api.lost = 1
    with pytest.raises(Unavailable):
        await fixture.step("n0")
    assert fixture.labelled() == {"n0"}
    await fixture.step()
    assert fixture.labelled() == set()


async def test_a_label_of_another_leader_that_the_watch_shows_late_is_removed() -> None:
    fixture = ApiServerFixture()
    await fixture.step()
    other = LabelWriter(fixture.handle)
    other.begin()
    ours, fixture.writer = fixture.writer, other
    await fixture.step("n0")
    fixture.writer = ours
    await fixture.step()
    assert fixture.labelled() == {"n0"}, "the watch has not shown it yet"
    fixture.watch()
    await fixture.step()
    assert fixture.labelled() == set()


async def test_a_label_that_another_client_removed_is_written_again() -> None:
    fixture = ApiServerFixture()
    await fixture.step("n0")
    fixture.watch()
    fixture.api.put(NODES, {"metadata": {"name": "n0", "labels": {}}})
    fixture.watch()
    await fixture.step("n0")
    assert fixture.labelled() == {"n0"}


@pytest.mark.parametrize("owner", [POLICY_LABELS, VERDICT_LABELS], ids=lambda owner: owner.field_manager)
@pytest.mark.parametrize("has_step_between", [False, True])
async def test_a_recreated_node_gets_its_labels_whenever_the_watch_shows_it(
    owner: LabelOwner, has_step_between: bool
) -> None:
    """Snapshots may show the deletion and the creation as one change, which does not change their nodes."""
    fixture = ApiServerFixture(3, owner)
    snapshot = Snapshot(NodeIndex(fixture.names), {}, 0.0, 1)
    column = LabelColumn(fixture.key, ("violating",), np.array([1, 1, 0, 0], np.int16), np.zeros(4, bool))
    for _ in range(2):
        await fixture.writer.step(snapshot, {fixture.key: column})
        fixture.watch()
    fixture.api.remove(NODES, "n0")
    fixture.watch()
    if has_step_between:
        await fixture.writer.step(snapshot, {fixture.key: column})
        assert "n0" in (fixture.writer.pending_labels(frozenset([fixture.key])) or {})[fixture.key]
    fixture.api.put(NODES, {"metadata": {"name": "n0", "labels": {}}})
    fixture.watch()
    await fixture.writer.step(snapshot, {fixture.key: column})
    assert fixture.labelled(fixture.key) == {"n0", "n1"}


async def test_a_node_that_may_not_be_written_for_a_moment_gets_its_label_afterwards() -> None:
    """For example while the Lease is about to expire."""
    fixture = ApiServerFixture(2)
    ownership = LeaseOfShard()
    fixture.writer = LabelWriter(fixture.handle._replace(ownership=ownership))
    fixture.writer.begin()
    snapshot = Snapshot(NodeIndex(fixture.names), {}, 0.0, 1)
    column = LabelColumn("pol", ("violating",), np.array([1, 1, 0], np.int16), np.zeros(3, bool))
    for left_s in (0.0, 0.0, 10.0):
        ownership.left_s = left_s
        await fixture.writer.step(snapshot, {"pol": column})
        assert bool(fixture.writer.pending_labels(frozenset(["pol"]))) == (not left_s)
    assert fixture.labelled() == set(fixture.names)


async def test_a_recreated_node_does_not_wait_for_the_pause_of_the_node_before() -> None:
    fixture = ApiServerFixture(20)
    await fixture.step(*fixture.names[1:])
    fixture.api.fail(Unavailable("patch", timeout_s=60.0))
    await fixture.step(*fixture.names)
    await fixture.step(*fixture.names)
    assert "n0" not in fixture.labelled(), "it is in a pause"
    fixture.api.remove(NODES, "n0")
    fixture.api.put(NODES, {"metadata": {"name": "n0", "labels": {}}})
    fixture.watch()
    await fixture.step(*fixture.names)
    assert fixture.labelled() == set(fixture.names)


async def test_no_further_writes_to_an_api_server_that_answers_no_request() -> None:
    fixture = ApiServerFixture(100)
    fixture.api.fail(DOWN, 1000)
    with pytest.raises(Unavailable):
        await fixture.step(*fixture.names)
    assert fixture.api.patched < 20
    assert fixture.left() == 100


async def test_one_node_that_cannot_be_written_stops_no_other() -> None:
    fixture = ApiServerFixture(100)
    fixture.api.fail(DOWN, 3)
    with pytest.raises(NodewiseError):
        await fixture.step(*fixture.names)
    assert len(fixture.labelled()) == 97
    assert fixture.left() == 3
    await fixture.step(*fixture.names)
    assert len(fixture.labelled()) == 100
    assert fixture.left() == 0


async def test_a_step_ends_in_time_for_the_next_snapshot() -> None:
    fixture = ApiServerFixture(100)
    fixture.api.takes_s = 0.1
    await fixture.step(*fixture.names)
    written = fixture.labelled()
    assert 10 < len(written) < 40
    assert fixture.left() == 100 - len(written)
    fixture.api.takes_s = 0.0
    await fixture.step()
    assert fixture.labelled() == set(), "labels of an earlier snapshot are no longer written"


async def test_nodes_that_wait_stay_before_new_ones_after_a_step_that_failed_early() -> None:
    fixture = ApiServerFixture(60)
    fixture.api.takes_s = 0.1
    await fixture.step(*fixture.names)
    changed = min(fixture.labelled())
    fixture.api.put(NODES, {"metadata": {"name": changed, "labels": {}}})
    fixture.watch()
    fixture.api.fail(DOWN, 1)
    with pytest.raises(Unavailable):
        await fixture.step(*fixture.names)
    added = tuple(f"a{number}" for number in range(20))
    for name in added:
        fixture.api.put(NODES, {"metadata": {"name": name, "labels": {}}})
    fixture.names += added
    fixture.watch()
    before = fixture.labelled()
    await fixture.step(*fixture.names)
    assert len(fixture.labelled() - before) > 10
    assert fixture.labelled().isdisjoint(added)


async def test_labels_of_one_namespace_that_change_everywhere_do_not_delay_those_of_another() -> None:
    """20 nodes are written in a step. The labels of the hostile namespace change on 1,000 nodes before each step."""
    fixture = ApiServerFixture(1000)
    fixture.api.takes_s = 0.1
    for step in range(3):
        hostile = fixture.names if step % 2 == 0 else ()
        await fixture.step_of_namespaces(hostile=hostile, victim=fixture.names[-10:])
    assert fixture.labelled("victim") == set(fixture.names[-10:])


async def test_a_label_that_the_api_server_refuses_blocks_no_label_of_another_namespace() -> None:
    fixture = ApiServerFixture(2)
    fixture.api.refused_key = "hostile"
    await fixture.step_of_namespaces(hostile=fixture.names, victim=fixture.names)
    assert fixture.labelled("victim") == set(fixture.names)
    column = LabelColumn("hostile", ("violating",), np.ones(3, np.int16), np.zeros(3, bool))
    state = PolicyState(Policy(tas_key("hostile", "hostile")), None, (), (), (column,))
    assert fixture.writer.conflict(state) == (
        "the API server refuses a label on node n0, n1; it is not changed"
    )
    patched = fixture.api.patched
    await fixture.step_of_namespaces(hostile=fixture.names, victim=fixture.names)
    assert fixture.api.patched == patched, "the refused label is not tried again at once"
    fixture.api.refused_key = ""
    fixture.clock.advance(61.0)
    await fixture.step_of_namespaces(hostile=fixture.names, victim=fixture.names)
    assert fixture.labelled("hostile") == set(fixture.names)
    assert fixture.writer.conflict(state) == ""


async def test_a_refusal_of_all_labels_is_an_error() -> None:
    fixture = ApiServerFixture()
    fixture.api.refused_key = "labels"
    with pytest.raises(BadInput):
        await fixture.step_of_namespaces(hostile=fixture.names, victim=fixture.names)


@pytest.mark.parametrize(
    ("error", "pause_s"),
    [
        pytest.param(DOWN, 0.0, id="no answer: with the next step"),
        pytest.param(Refused("no rights yet"), 61.0, id="refused: in a minute"),
        pytest.param(Conflict("another uid"), 2.0, id="deleted and created again: in two seconds"),
    ],
)
async def test_a_status_that_could_not_be_written_is_written_later(
    error: NodewiseError, pause_s: float
) -> None:
    fixture = ApiServerFixture()
    document = {"metadata": {"name": "pol", "namespace": "ns", "uid": "1"}, "spec": {"strategies": {}}}
    stored = fixture.api.put(TASPOLICIES, document)
    obj = msgspec.json.decode(msgspec.json.encode(stored), type=PolicyObject)
    fixture.policies.replace([obj])
    agent_state = {tas_key(namespace="ns"): PolicyState(policies.parse_policy(obj), None, ())}
    writer = StatusWriter(fixture.handle)
    fixture.api.fail(error)
    with contextlib.suppress(Unavailable):
        await writer.step(agent_state, {})
    fixture.clock.advance(pause_s)
    await writer.step(agent_state, {})
    [written] = fixture.api.objects(TASPOLICIES).values()
    assert {condition["type"] for condition in written["status"]["conditions"]} == {"Valid", "MetricsFetched"}


async def test_a_status_that_another_client_removed_is_written_again_within_a_minute() -> None:
    fixture = ApiServerFixture()
    writer = StatusWriter(fixture.handle)
    policy = policy_object(fixture, "pol", 1)
    agent_state = {tas_key(namespace="ns"): PolicyState(policies.parse_policy(policy), None, ())}
    fixture.policies.replace([policy])
    writes = []
    for is_removed in (False, False, True, False):
        if is_removed:
            fixture.api.objects(TASPOLICIES)["ns", "pol"]["status"] = {}
        fixture.policies.replace([policy_object(fixture, "pol", 1)])
        fixture.clock.advance(61.0)
        before = fixture.api.patched
        await writer.step(agent_state, {})
        writes.append(fixture.api.patched - before)
    assert writes == [1, 0, 1, 0]


async def test_policies_that_change_all_the_time_hold_up_neither_labels_nor_the_status_of_others() -> None:
    """Labels are written before status, in the same step."""
    fixture = ApiServerFixture()
    writer = StatusWriter(fixture.handle)
    fixture.api.takes_s = 0.1
    names = [f"busy-{number:03}" for number in range(100)] + ["quiet"]
    for generation in range(1, 8):
        objects = [policy_object(fixture, name, generation if name != "quiet" else 1) for name in names]
        fixture.policies.replace(objects)
        agent_state = {
            tas_key(policy_object.metadata.name, "ns"): PolicyState(
                policies.parse_policy(policy_object), None, ()
            )
            for policy_object in objects
        }
        began_s = fixture.clock.monotonic()
        await writer.step(agent_state, {})
        assert fixture.clock.monotonic() - began_s < 4.0
    assert all(policy_object["status"] for policy_object in fixture.api.objects(TASPOLICIES).values())


def policy_object(fixture: ApiServerFixture, name: str, generation: int) -> PolicyObject:
    """A policy in the API server, as a watch returns it."""
    known = fixture.api.objects(TASPOLICIES).get(("ns", name), {})
    metadata = {"name": name, "namespace": "ns", "uid": name, "generation": generation}
    stored = fixture.api.put(
        TASPOLICIES, {"status": {}, **known, "metadata": metadata, "spec": {"strategies": {}}}
    )
    return msgspec.json.decode(msgspec.json.encode(stored), type=PolicyObject)


async def test_a_step_after_a_complete_one_only_compares() -> None:
    """Labels are laid out by node again only if they, the nodes, or the labels of a node changed."""
    fixture = ApiServerFixture(3)
    snapshot = Snapshot(NodeIndex(fixture.names), {}, 0.0, 1)

    async def step(*codes: int) -> int:
        """Run a step with these codes. Returns the number of patches."""
        before = fixture.api.patched
        column = LabelColumn("pol", ("violating",), np.array([*codes, 0], np.int16), np.zeros(4, bool))
        await fixture.writer.step(snapshot, {"pol": column})
        return fixture.api.patched - before

    assert await step(1, 0, 0) == 1
    fixture.watch()
    assert await step(1, 0, 0) == 0
    assert await step(1, 0, 1) == 1
    fixture.api.put(NODES, {"metadata": {"name": "n0", "labels": {}}})
    fixture.watch()
    assert await step(1, 0, 1) == 1
    assert fixture.labelled() == {"n0", "n2"}
    fixture.writer.begin()
    fixture.watch()
    assert await step(0, 0, 1) == 1
    assert fixture.writer.pending_labels(frozenset(["pol"])) == {}


def changes(budget: ExaminationBudget, now_s: float, pods: int, *, urgent: int = 0) -> int:
    """The number of nodes that may be changed at once, after some urgent changes."""
    assert all(budget.take(now_s, pods, is_urgent=True) for _ in range(urgent))
    count = 0
    while count < 10_000 and budget.take(now_s, pods, is_urgent=False):
        count += 1
    return count


@pytest.mark.parametrize(
    ("pods", "at_once", "per_second"),
    [(0, 10_000, 10_000), (500, 250, 50), (2_500, 50, 10), (5_000, 25, 5), (1_000_000, 25, 5)],
)
def test_the_more_pods_wait_the_fewer_nodes_are_changed(pods: int, at_once: int, per_second: int) -> None:
    budget = ExaminationBudget()
    assert changes(budget, 100.0, pods) == pytest.approx(at_once, abs=1)
    assert changes(budget, 101.0, pods) == pytest.approx(per_second, abs=1)
    assert changes(budget, 1000.0, pods) == pytest.approx(at_once, abs=1)


@pytest.mark.parametrize(
    ("pods", "at_once", "per_second"),
    [(0, 10_000, 10_000), (500, 500, 100), (1_000, 250, 50), (10**6, 250, 50)],
)
def test_urgent_changes_have_a_larger_budget(pods: int, at_once: int, per_second: int) -> None:
    budget = ExaminationBudget()

    def count(now_s: float) -> int:
        return sum(budget.take(now_s, pods, is_urgent=True) for _ in range(10_000))

    assert count(0.0) == pytest.approx(at_once, abs=1)
    assert count(1.0) == pytest.approx(per_second, abs=1)


def test_urgent_changes_delay_others() -> None:
    budget = ExaminationBudget()
    assert changes(budget, 0.0, 2_500, urgent=250) == 0
    assert changes(budget, 4.9, 2_500) == 0, "at most five seconds of the budget are owed"
    assert changes(budget, 6.0, 2_500) == pytest.approx(10, abs=1)
    assert changes(budget, 6.0, 0) == 10_000, "no pod waits any more"
