"""The status of PlacementPolicies and ClusterPlacementPolicies: conditions, counts, events, and the watch of pods."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from nodewise.agent import ClusterState, NodeIndex, Snapshot
from nodewise.agents.telemetry import KIND
from nodewise.base import cooperative_scheduling
from nodewise.kube.resource_kinds import EVENTS, PODS
from nodewise.kube.store import StoreWriter
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.missing_values import Cause
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import policy_status
from nodewise.policies.device_taints import DeviceReport
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject, StepBack
from nodewise.policies.policy_status import StatusFacts
from nodewise.policies.policy_status_fields import DeviceStateGroup, PlacementPolicyStatus, RuleCounts
from nodewise.policies.state import POLICY_KINDS, PolicyState, TelemetryStateBuilder
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.unit.agents.fake_controller_handle import build_handle
from tests.unit.kube import virtual_time
from tests.unit.kube.api_suite import run_in_background
from tests.unit.kube.virtual_time import VirtualClock
from tests.unit.policies.policy_snapshot_builders import NOW, metrics_snapshot, series

RESOURCES = {watched.name: watched.resource for watched in KIND.watched(TelemetryOptions())}
STORES = {kind: name for name, kind in POLICY_KINDS.items()}
HOT, BUSY = {"metric": "heat", "above": 80}, {"metric": "load", "atLeast": "0.5", "whenMissing": "Reject"}
LOADED = {"metric": "load", "above": 0}
METRICS = metrics_snapshot(series("heat", n1=90, n2=70, n3=85), series("load", n1=1, n3=0))


def policy(kind: str = "PlacementPolicy", name: str = "pol", **spec: Any) -> tuple[str, PolicyObject]:
    """The name of a store, and a policy for it. It selects pods with the label app=web."""
    namespace = "" if kind.startswith("Cluster") else "web"
    default: Any = {"podSelector": {"matchLabels": {"app": "web"}}}
    if kind.startswith("Cluster"):
        default["namespaceSelector"] = {}
    metadata = PolicyMetadata(name, namespace, "uid-of-" + name, 7)
    raw = msgspec.Raw(msgspec.json.encode(default | spec))
    return STORES[kind], PolicyObject(metadata, raw)  # type: ignore[index]


def states(*policies: tuple[str, PolicyObject], metrics: MetricsSnapshot = METRICS) -> Snapshot:
    objects: dict[str, Any] = {name: {} for name in (*POLICY_KINDS, NAMESPACES)}
    for name, item in policies:
        objects[name][item.metadata.namespace, item.metadata.name] = item
    cluster = ClusterState(NodeIndex(["n1", "n2", "n3"]), objects, metrics, NOW)
    builder = TelemetryStateBuilder(TelemetryOptions(), 60.0)
    state = cooperative_scheduling.run_without_pauses(builder.build(cluster))
    return Snapshot(cluster.nodes, {"telemetry": state}, NOW, 1)


def only_state(*policies: tuple[str, PolicyObject], metrics: MetricsSnapshot = METRICS) -> PolicyState:
    (state,) = states(*policies, metrics=metrics).agent_states["telemetry"].policies.values()
    return state  # type: ignore[no-any-return]


def status(
    state: PolicyState, before: PlacementPolicyStatus | None = None, **facts: Any
) -> PlacementPolicyStatus:
    known = before or PlacementPolicyStatus()
    return policy_status.desired_status(state, StatusFacts(7, **facts), known, "2026-05-01T00:00:00Z")


def conditions(status: PlacementPolicyStatus) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, condition.reason) for condition in status.conditions}


def ready_of(status: Any) -> Any:
    """The condition Ready of a status in the API server."""
    return next(part for part in status["conditions"] if part["type"] == "Ready")


def ready_message(status: PlacementPolicyStatus) -> str:
    """The column MESSAGE of `kubectl get`."""
    return status.conditions_by_type()["Ready"].message


DEVICE_RULE = {"metric": "temp", "above": 90, "driver": "gpu.example.com", "deviceLabel": "UUID"}
LABELED = {"metric": "temp", "above": 90, "labels": {"gpu.nodewise.io/hot": "true"}}
WELL = {"Ready": ("True", "AsExpected"), "MetricsAvailable": ("True", "AsExpected")}


def test_the_counts_of_each_rule() -> None:
    state = only_state(policy(avoid=[HOT, {"all": [HOT, BUSY]}]))
    written = msgspec.to_builtins(status(state, selected_pods=4))
    assert [*written["rules"]] == [
        {"rule": "avoid[0]", "expression": "heat above 80", "nodes": 2, "missing": 0},
        {"rule": "avoid[1]", "expression": "heat above 80 and load atLeast 0.5", "nodes": 1},
        {"rule": "avoid[1].all[0]", "expression": "heat above 80", "nodes": 2, "missing": 0},
        {"rule": "avoid[1].all[1]", "expression": "load atLeast 0.5", "nodes": 1, "missing": 1},
    ]
    del written["rules"], written["conditions"]
    assert written == {"observedGeneration": 7, "mode": "Enforce", "selectedPods": 4, "rejectedNodes": 2}


def test_the_counts_of_preferences_and_of_rules_for_node_labels() -> None:
    labels = {"labels": {"gpu.nodewise.io/suspect": "true"}}
    power = {"metric": "load", "order": "Ascending"}
    hottest = {"query": "max(heat)", "order": "Descending"}
    spec = {"prefer": [power, hottest], "nodeLabels": [HOT | labels, {"all": [HOT, LOADED], **labels}]}
    values = metrics_snapshot(*METRICS.series.values(), series("query by max(heat)", n1=1))
    state = only_state(policy("ClusterPlacementPolicy", **spec), metrics=values)
    assert [*msgspec.to_builtins(status(state))["rules"]] == [
        {"rule": "prefer[0]", "expression": "load Ascending", "missing": 1},
        {"rule": "prefer[1]", "expression": "max(heat) Descending", "missing": 2},
        {"rule": "nodeLabels[0]", "expression": "heat above 80", "nodes": 2, "missing": 0},
        {"rule": "nodeLabels[1]", "expression": "heat above 80 and load above 0", "nodes": 1},
        {"rule": "nodeLabels[1].all[0]", "expression": "heat above 80", "nodes": 2, "missing": 0},
        {"rule": "nodeLabels[1].all[1]", "expression": "load above 0", "nodes": 1, "missing": 1},
    ]


def test_a_healthy_policy() -> None:
    assert conditions(status(only_state(policy(avoid=[HOT])), selected_pods=1)) == WELL


def test_nodes_that_pass_for_lack_of_a_value_are_named() -> None:
    values = metrics_snapshot(series("heat", n1=90, n2=70), METRICS.series["load"])
    state = only_state(policy(avoid=[HOT, {"all": [HOT, LOADED]}]), metrics=values)
    condition = status(state, selected_pods=1).conditions_by_type()["NodesWithoutValues"]
    assert (condition.status, condition.reason) == ("True", "NoValueOnNodes")
    assert condition.message == (
        "no series of heat on 1 node: n3; no series of load on 1 node: n2; a node without a value passes these rules,"
        " unless whenMissing is Reject"
    )
    again = status(only_state(policy(avoid=[HOT])), status(state), selected_pods=1)
    assert conditions(again)["NodesWithoutValues"] == ("False", "AsExpected")


def test_other_nodes_without_a_value_do_not_change_the_conditions() -> None:
    before, after, all_measured = (
        status(only_state(policy(avoid=[HOT]), metrics=metrics_snapshot(series("heat", **values))))
        for values in ({"n1": 70, "n2": 70}, {"n1": 70, "n3": 70}, {"n1": 70, "n2": 70, "n3": 70})
    )
    messages = {each.conditions_by_type()["NodesWithoutValues"].message for each in (before, after)}
    assert len(messages) == 2
    assert after.has_same_conditions(before)
    assert not all_measured.has_same_conditions(before)


def test_nodes_that_are_rejected_for_lack_of_a_value_are_not_named() -> None:
    state = only_state(policy(avoid=[HOT, BUSY]))
    assert "NodesWithoutValues" not in conditions(status(state, selected_pods=1))


def with_distance(distance_s: float | None) -> MetricsSnapshot:
    heat = msgspec.structs.replace(METRICS.series["heat"], sample_distance_s=distance_s)
    return metrics_snapshot(heat, METRICS.series["load"])


@pytest.mark.parametrize(
    ("distance_s", "max_age", "message"),
    [
        (
            60.0,
            "60s",
            "samples of heat are 1m apart, and a value counts for 1m: set maxAge to at least 2m30s",
        ),
        (
            30.0,
            "20s",
            "samples of heat are 30s apart, and a value counts for 20s: set maxAge to at least 1m15s",
        ),
        (480.0, None, "samples of heat are 8m apart, and a value counts for 10m: set maxAge to at least 20m"),
    ],
)
def test_samples_that_are_too_far_apart_are_reported(
    distance_s: float, max_age: str | None, message: str
) -> None:
    rule = HOT | ({"maxAge": max_age} if max_age else {})
    state = only_state(policy(avoid=[rule, BUSY]), metrics=with_distance(distance_s))
    condition = status(state, selected_pods=1).conditions_by_type()["SamplesTooSparse"]
    assert (condition.status, condition.reason) == ("True", "DistanceNearMaxAge")
    assert condition.message.startswith(message)
    again = status(only_state(policy(avoid=[HOT])), status(state), selected_pods=1)
    assert conditions(again)["SamplesTooSparse"] == ("False", "AsExpected")


@pytest.mark.parametrize(("distance_s", "max_age"), [(60.0, None), (60.0, "3m"), (300.0, None), (None, "5s")])
def test_samples_that_are_close_enough_are_not_reported(
    distance_s: float | None, max_age: str | None
) -> None:
    rule = HOT | ({"maxAge": max_age} if max_age else {})
    state = only_state(policy(avoid=[rule]), metrics=with_distance(distance_s))
    assert "SamplesTooSparse" not in conditions(status(state, selected_pods=1))


def test_a_policy_that_only_labels_nodes_counts_no_pods() -> None:
    rule = HOT | {"labels": {"gpu.nodewise.io/suspect": "true"}}
    state = only_state(policy("ClusterPlacementPolicy", podSelector=None, nodeLabels=[rule]))
    state = state._replace(policy=msgspec.structs.replace(state.policy, selection=None, problems=()))
    written = status(state, selected_pods=0)
    assert (written.selected_pods, written.rejected_nodes) == (None, None)
    assert conditions(written) == WELL


def test_a_policy_that_native_mode_does_not_enforce_keeps_its_mode() -> None:
    """An extender enforces it."""
    written = status(only_state(policy(avoid=[HOT])), selected_pods=1, no_node_label="it is policy 11")
    expected = WELL | {"Ready": ("False", "NotEnforced"), "NotEnforced": ("True", "NotEnforced")}
    assert conditions(written) == expected
    assert written.mode == "Enforce"


@pytest.mark.parametrize(
    ("change", "reason", "mode"),
    [
        ({"not_enforced": "this is policy 51 of 50"}, "NotEnforced", "NotEnforced"),
        ({"over_budget": "129 of 128 rules"}, "BudgetExceeded", "Enforce"),
        ({"not_trusted": "metric"}, "NotTrusted", "Enforce"),
    ],
)
def test_a_policy_that_is_not_ready(change: dict[str, str], reason: str, mode: str) -> None:
    state = only_state(policy(avoid=[HOT]))
    state = state._replace(policy=msgspec.structs.replace(state.policy, **change))
    written = status(state, selected_pods=0)
    assert written.selected_pods == (None if mode == "NotEnforced" else 0)
    ready = written.conditions_by_type()["Ready"]
    assert (ready.status, ready.reason, ready.message) == ("False", reason, *change.values())
    assert written.mode == mode
    assert ("NotEnforced" in conditions(written)) == (mode == "NotEnforced")
    assert ("NoPodsSelected" in conditions(written)) == (mode != "NotEnforced")


def test_problems_of_fields() -> None:
    written = status(only_state(policy(avoid=[{"metric": "heat", "abov": 80}])))
    ready = written.conditions_by_type()["Ready"]
    assert (ready.status, ready.reason) == ("False", "Invalid")
    assert "abov" in ready.message
    assert (written.rejected_nodes, written.rules) == (3, ())


def test_metrics_that_were_never_fetched() -> None:
    written = status(only_state(policy(avoid=[HOT]), metrics=metrics_snapshot()))
    expected = {"Ready": ("False", "MetricsUnavailable"), "MetricsAvailable": ("False", "NeverFetched")}
    assert conditions(written) == expected
    assert written.conditions_by_type()["MetricsAvailable"].message == (
        "no node has a value of heat: no source has responded yet. Rules of avoid with these metrics reject every node"
    )
    assert ready_message(written).startswith("avoid[0] (heat above 80): no node has a value of heat")
    assert written.rules[0].missing == 3
    prefers = policy(prefer=[{"metric": "heat", "order": "Ascending"}])
    written = status(only_state(prefers, metrics=metrics_snapshot()))
    assert written.conditions_by_type()["MetricsAvailable"].message == (
        "no node has a value of heat: no source has responded yet"
    )


def test_a_suspended_rule() -> None:
    state = only_state(policy(avoid=[HOT]))
    written = status(state._replace(suspended=tuple(state.policy.avoided())))
    assert conditions(written) == {
        "Ready": ("False", "MetricsUnavailable"),
        "MetricsAvailable": ("False", "LostNodes"),
        "Suspended": ("True", "LostNodes"),
    }
    assert [rule.suspended for rule in written.rules] == [True]
    assert ready_message(written).startswith(
        "avoid[0] (heat above 80): more than half of the nodes lost their"
    )


def test_metrics_that_cannot_be_fetched_any_more_are_unavailable_while_their_last_values_apply() -> None:
    """One request may fail."""
    labels = {"labels": {"gpu.nodewise.io/suspect": "true"}}
    spec = {
        "avoid": [BUSY, HOT],
        "prefer": [{"metric": "heat", "order": "Ascending"}],
        "nodeLabels": [HOT | labels],
    }
    cause = Cause("SourceUnreachable", "Prometheus cannot be reached")
    seen = []
    for age_s in (14.0, 16.0):
        values = msgspec.structs.replace(METRICS.series["heat"], fetched_at=NOW - age_s)
        metrics = METRICS.with_series(values).with_failure("heat", "refused", cause)
        seen.append(
            status(only_state(policy("ClusterPlacementPolicy", **spec), metrics=metrics), selected_pods=1)
        )
    early, late = seen
    assert conditions(early)["Ready"] == WELL["Ready"]
    expected = {"Ready": ("False", "MetricsUnavailable"), "MetricsAvailable": ("False", "SourceUnreachable")}
    assert conditions(late) == expected
    assert ready_message(late) == (
        "avoid[1] (heat above 80), nodeLabels[0] (heat above 80), prefer[0] (heat Ascending): the last values of heat"
        " apply until they are too old: Prometheus cannot be reached"
    )
    assert late.rejected_nodes == early.rejected_nodes


@pytest.mark.parametrize(
    ("guard", "end"),
    [
        ({"maxRejectedShare": "0.5"}, "until its spec is edited"),
        (
            {"maxRejectedShare": "0.5", "resumeAfter": "1h"},
            "until its spec is edited or guard.resumeAfter has passed",
        ),
    ],
)
def test_a_policy_that_stepped_back_is_not_ready(guard: dict[str, str], end: str) -> None:
    message = "it rejected 3 of 4 nodes, more than the share 0.5 for 2m"
    state = only_state(policy(avoid=[HOT], guard=guard))
    written = status(state, step_back=StepBack(7, "2026-05-01T00:00:00Z", message))
    expected = WELL | {"Ready": ("False", "SteppedBack"), "SteppedBack": ("True", "GuardExceeded")}
    assert conditions(written) == expected
    assert ready_message(written) == f"the guard is exceeded: {message}; it only observes now, {end}"


def test_message_of_a_ready_policy_has_the_other_conditions() -> None:
    state = only_state(policy(avoid=[HOT]))
    assert ready_message(status(state, selected_pods=1)) == "every rule applies"
    assert ready_message(status(only_state(policy(avoid=[HOT], mode="Shadow")))) == "the policy only observes"
    none = status(state, selected_pods=0)
    assert conditions(none)["Ready"] == WELL["Ready"]
    assert ready_message(none).startswith("the selectors match no pod of namespace web")
    both = status(state, selected_pods=0, label_conflict="pol belongs to kubectl")
    assert ready_message(both).startswith("pol belongs to kubectl; the selectors match no pod")


def test_selectors_that_match_no_pod() -> None:
    state = only_state(policy(avoid=[HOT]))
    none = status(state, selected_pods=0)
    assert conditions(none)["NoPodsSelected"] == ("True", "NoPods")
    assert "NoCanaryPods" not in conditions(none)
    later = status(state, none, selected_pods=3)
    assert conditions(later) == WELL | {"NoPodsSelected": ("False", "AsExpected")}
    assert "NoPodsSelected" not in conditions(status(state)), "pods have not been counted"


def test_policies_that_together_reject_every_node_are_named() -> None:
    own, wide = PolicyKey("PlacementPolicy", "web", "pol"), PolicyKey("ClusterPlacementPolicy", "", "wide")
    state = only_state(policy(avoid=[HOT]))
    together = status(state, selected_pods=1, rejecting_policies=(own, wide))
    message = together.conditions_by_type()["AllNodesRejected"].message
    assert "placement policy web/pol, cluster placement policy wide reject every node" in message
    alone = status(state, selected_pods=1, rejecting_policies=(own,))
    message = alone.conditions_by_type()["AllNodesRejected"].message
    assert message == policy_status.REJECTS_EVERY_NODE
    many = status(state, selected_pods=1, rejecting_policies=(own, *[wide] * 9))
    assert "and 5 more" in many.conditions_by_type()["AllNodesRejected"].message


def test_a_long_query_is_cut() -> None:
    rules = [{"query": "q" * length, "above": 1} for length in (3, 4096)]
    written = status(only_state(policy("ClusterPlacementPolicy", avoid=rules)))
    assert [counts.expression for counts in written.rules] == ["qqq above 1", "q" * 255 + "…"]


class Cluster:
    """A controller with a fake API server, and policies and pods in it."""

    def __init__(self, *policies: tuple[str, PolicyObject]) -> None:
        self.api = FakeApi(*RESOURCES.values())
        self.clock = VirtualClock()
        self.stores: dict[str, StoreWriter[Any]] = {name: StoreWriter() for name in RESOURCES}
        self.set_policies(*policies)
        objects = {name: writer.store for name, writer in self.stores.items()}
        nodes: StoreWriter[Any] = StoreWriter()
        self.handle = build_handle(self.api, objects, nodes.store, self.clock, MetricsRegistry())
        self.controller = KIND.controller(TelemetryOptions(), self.handle)

    def set_policies(self, *policies: tuple[str, PolicyObject]) -> None:
        self.policies = [(name, self._stored(name, item)) for name, item in policies]
        for name, writer in self.stores.items():
            writer.replace([item for store, item in self.policies if store == name])

    def _stored(self, name: str, item: PolicyObject) -> PolicyObject:
        metadata = msgspec.to_builtins(item.metadata)
        body = {"metadata": metadata, "spec": msgspec.json.decode(item.spec)}
        stored = self.api.put(RESOURCES[name], body)
        return msgspec.json.decode(msgspec.json.encode(stored), type=PolicyObject)

    def put_pod(self, name: str, **labels: str) -> None:
        self.api.put(PODS, {"metadata": {"name": name, "namespace": "web", "labels": labels}})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        watch_selected, watch_waiting, _ = self.controller.tasks()
        async with run_in_background(watch_selected()), run_in_background(watch_waiting()):
            yield

    async def step(self, metrics: MetricsSnapshot = METRICS) -> None:
        """A step for a new snapshot, and time for the watch."""
        await self.controller.step(states(*self.policies, metrics=metrics))
        await asyncio.sleep(0.5)

    def status(self, name: str = "pol") -> Any:
        written = [item for resource in RESOURCES.values() for item in self.api.objects(resource).values()]
        return next(item["status"] for item in written if item["metadata"]["name"] == name)

    def follow(self) -> None:
        """Another replica takes over."""
        for name, writer in self.stores.items():
            items = (msgspec.json.encode(item) for item in self.api.objects(RESOURCES[name]).values())
            writer.replace(msgspec.json.decode(item, type=PolicyObject) for item in items)
        self.controller = KIND.controller(TelemetryOptions(), self.handle)
        self.controller.begin()

    def watches(self) -> int:
        return self.api.calls.count(("watch", PODS.path()))


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test whose sleeps take no time."""

    @functools.wraps(test)
    def run() -> None:
        virtual_time.run(test())

    return run


@in_virtual_time
async def test_the_status_of_both_kinds_is_written() -> None:
    cluster = Cluster(policy(avoid=[HOT]), policy("ClusterPlacementPolicy", "wide", avoid=[BUSY]))
    cluster.put_pod("a", app="web")
    cluster.put_pod("b", app="db")
    async with cluster.running():
        await cluster.step()
        assert "selectedPods" not in cluster.status()
        await cluster.step()
        assert (cluster.status()["selectedPods"], cluster.status()["rejectedNodes"]) == (1, 2)
        assert cluster.status("wide")["selectedPods"] == 1
        types = {condition["type"]: condition["status"] for condition in cluster.status("wide")["conditions"]}
        assert types == {"Ready": "True", "MetricsAvailable": "True", "AllNodesRejected": "True"}
    assert cluster.watches() == 1


@in_virtual_time
async def test_changes_of_conditions_are_events() -> None:
    cluster = Cluster(policy(avoid=[HOT]))
    async with cluster.running():
        await cluster.step()
        await cluster.step()
        cluster.put_pod("a", app="web")
        await asyncio.sleep(0.5)
        await cluster.step()
    await cluster.handle.recorder.flush()
    events = list(cluster.api.objects(EVENTS).values())
    expected = [("NoPods", "Warning"), ("AsExpected", "Normal")]
    assert [(event["reason"], event["type"]) for event in events] == expected
    assert {event["regarding"]["kind"] for event in events} == {"PlacementPolicy"}


@in_virtual_time
async def test_nothing_is_written_before_the_first_response_about_a_metric() -> None:
    """A new policy, or a new leader: the status of the earlier one stays."""
    cluster = Cluster(policy(avoid=[HOT]))
    cluster.put_pod("a", app="web")
    async with cluster.running():
        await cluster.step()
        before = cluster.status()
        for _ in range(3):
            await cluster.step(metrics_snapshot())
            assert cluster.status() == before
        await asyncio.sleep(30.0)
        await cluster.step(metrics_snapshot())
        ready = ready_of(cluster.status())
        assert (ready["status"], ready["reason"]) == ("False", "MetricsUnavailable")


@in_virtual_time
async def test_a_new_policy_has_no_event_before_the_first_response() -> None:
    cluster = Cluster(policy(avoid=[HOT]))
    cluster.put_pod("a", app="web")
    async with cluster.running():
        for _ in range(3):
            await cluster.step(metrics_snapshot())
        await cluster.step()
    await cluster.handle.recorder.flush()
    assert not cluster.api.objects(EVENTS)
    ready = ready_of(cluster.status())
    assert (ready["status"], ready["message"]) == ("True", "every rule applies")


@in_virtual_time
async def test_only_counts_are_written_rarely() -> None:
    cluster = Cluster(policy(avoid=[HOT]))
    cluster.put_pod("a", app="web")
    async with cluster.running():
        await cluster.step()
        await cluster.step()
        cluster.put_pod("b", app="web")
        await cluster.step()
        await cluster.step()
        assert cluster.status()["selectedPods"] == 1
        await asyncio.sleep(31.0)
        await cluster.step()
        assert cluster.status()["selectedPods"] == 2


@in_virtual_time
async def test_pods_are_not_watched_without_selectors() -> None:
    cluster = Cluster()
    async with cluster.running():
        await cluster.step()
        await cluster.step()
    assert cluster.watches() == 0


@in_virtual_time
async def test_the_watch_of_pods_ends_when_another_replica_leads() -> None:
    cluster = Cluster(policy(avoid=[HOT]))
    async with cluster.running():
        await cluster.step()
        assert cluster.watches() == 1
        await asyncio.sleep(300.0)
        cluster.api.cut()
        await asyncio.sleep(10.0)
        assert cluster.watches() == 1
        cluster.put_pod("a", app="web")
        await cluster.step()
        await cluster.step()
        assert cluster.watches() == 2
        assert cluster.status()["selectedPods"] == 1


@in_virtual_time
async def test_a_policy_that_was_replaced_gets_a_status_of_its_own() -> None:
    created = policy(avoid=[HOT])
    cluster = Cluster(created)
    async with cluster.running():
        await cluster.step()
        assert cluster.status()["mode"] == "Enforce"
        cluster.api.remove(RESOURCES[created[0]], "pol", "web")
        cluster.set_policies(created)
        await cluster.step()
        assert cluster.status()["mode"] == "Enforce"


@pytest.mark.parametrize(
    ("canary", "pods", "is_empty"),
    [({"podSelector": {}}, 0, True), ({"podSelector": {}}, 1, False), ({"percent": 1}, 0, False)],
)
def test_a_canary_without_pods(canary: dict[str, object], pods: int, is_empty: bool) -> None:
    written = status(
        only_state(policy(avoid=[HOT], mode="Canary", canary=canary)), selected_pods=3, canary_pods=pods
    )
    assert written.mode == "Canary"
    assert conditions(written) == WELL | ({"NoCanaryPods": ("True", "NoCanaryPods")} if is_empty else {})


@in_virtual_time
async def test_a_new_leader_changes_no_condition_before_it_knows_the_pods() -> None:
    cluster = Cluster(policy(avoid=[HOT]))
    async with cluster.running():
        await cluster.step()
        await cluster.step()
        before = cluster.status()
        assert ready_of(before)["message"].startswith("the selectors match no pod")
    cluster.follow()
    async with cluster.running():
        await cluster.step()
        assert cluster.status()["conditions"] == before["conditions"]
        await cluster.step()
        assert cluster.status()["conditions"] == before["conditions"]
    await cluster.handle.recorder.flush()
    assert [event["reason"] for event in cluster.api.objects(EVENTS).values()] == ["NoPods"]


@pytest.mark.parametrize("spec", [{"deviceTaints": [DEVICE_RULE]}, {"nodeLabels": [LABELED]}])
def test_tainted_devices_stay_in_the_status_until_device_rules_are_evaluated(spec: Any) -> None:
    state = only_state(policy("ClusterPlacementPolicy", **spec))
    states = (DeviceStateGroup("Pending", "2026-05-01T00:00:00Z", ("gpu.example.com/n1/gpu-0",)),)
    has_rules = "deviceTaints" in spec
    device_rules = (RuleCounts("deviceTaints[0]", devices=1, device_states=states),) * has_rules
    before = status(state, devices=DeviceReport(device_rules, 2))
    for devices in (None, DeviceReport(refused="the API server cannot be read")):
        after = status(state, before, devices=devices)
        assert after.tainted_devices == 2
        assert [rule for rule in after.rules if rule.devices is not None] == [*device_rules]
    assert status(state, before, devices=DeviceReport((), 0)).tainted_devices == (0 if has_rules else None)


def test_change_of_the_number_of_tainted_devices_is_more_than_a_count() -> None:
    """After a change of the mode, devices have the same states, and are tainted after the next evaluation."""
    state = only_state(policy("ClusterPlacementPolicy", deviceTaints=[DEVICE_RULE]))
    observed, enforced = (status(state, devices=DeviceReport((), *counts)) for counts in ((0, 2), (2, 0)))
    assert not enforced.has_same_conditions(observed)
    assert enforced.has_same_conditions(enforced)


def test_policy_is_not_ready_while_a_rule_concerns_no_device() -> None:
    state = only_state(policy(avoid=[HOT]))
    text = "deviceTaints[0]: no ResourceSlice has devices of the driver gpu.exmaple.com"
    absent = DeviceReport((), 0, 0, unmatched=text, inapplicable=text)
    unmatched = DeviceReport((), 0, 0, unmatched="deviceTaints[0]: 1 values of the label")
    before = status(state, devices=absent)
    unknown = status(state, before, unknown=frozenset({"DevicesUnmatched"}))
    for each in (before, unknown):
        ready = each.conditions_by_type()["Ready"]
        assert (ready.status, ready.reason, ready.message) == ("False", "NoSuchDevice", text)
    assert status(state, before, devices=unmatched).conditions_by_type()["Ready"].reason != "NoSuchDevice"
