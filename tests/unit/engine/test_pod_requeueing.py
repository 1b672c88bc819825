"""Requeueing of waiting pods: fair by namespace, and only of pods that an agent filters."""

import asyncio
import itertools
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from nodewise.agent import AgentKind, FilterPlugin, Names, NodeIndex, Snapshot, Verdict
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import Problem, Unavailable
from nodewise.engine import object_feed
from nodewise.engine.agent_chain import AgentChain
from nodewise.engine.leader_controller_loop import LeaderLoop
from nodewise.engine.pod_requeueing import (
    ANNOTATION,
    NAMESPACE_EVENTS,
    NAMESPACE_PAUSE_S,
    PASS_S,
    PAUSE_S,
    TRIES,
    Requeuer,
    WaitingPods,
)
from nodewise.kube.reflector import Reflector
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.unit.agents.fake_controller_handle import build_handle
from tests.unit.kube import virtual_time
from tests.unit.kube.virtual_time import VirtualClock, VirtualLoop

PERIOD_S = 5.0
MANY = 1200
REJECTED = "0/1 nodes are available: 1 nodewise: policy says no."
NO_CPU = "0/1 nodes are available: 1 Insufficient cpu."
VICTIM = "victim"


@pytest.fixture
def anyio_backend() -> object:
    return virtual_time.BACKEND


class LabelledMetadata(msgspec.Struct, frozen=True):
    namespace: str = ""
    labels: dict[str, str] | None = None


class LabelledPod(msgspec.Struct, frozen=True):
    metadata: LabelledMetadata = LabelledMetadata()


class Demands(FilterPlugin[LabelledPod, Any]):
    """Rejects pods by the label `demand`; a pod without it does not concern the agent."""

    name = "demands"

    def __init__(self) -> None:
        self.fitting: set[str] = set()
        """The demands for which all nodes pass."""
        self.passing: dict[str, set[str]] = {}
        """The nodes that pass for other demands."""
        self.seconds: dict[str, float] = {}
        """The computing time of a demand."""
        self.default_s = 0.0
        self.filtered: Counter[str] = Counter()

    def equivalence_key(self, pod: LabelledPod, snapshot: Snapshot) -> str | None:
        demand = (pod.metadata.labels or {}).get("demand")
        return None if demand in (self.state(snapshot) or ()) else demand

    def equivalence_version(self, snapshot: Snapshot) -> object:
        """The state: demands that do not concern the agent now."""
        return self.state(snapshot)

    def filter(self, pod: LabelledPod, candidates: Names, snapshot: Snapshot) -> Verdict | None:
        demand = self.equivalence_key(pod, snapshot)
        if demand is None:
            return None
        self.filtered[demand] += 1
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.compute(self.seconds.get(demand, self.default_s))
        passing = candidates.tolist() if demand in self.fitting else self.passing.get(demand, ())
        return Verdict(np.array([name not in passing for name in candidates], np.int16), ())


class DemandsKind(AgentKind):
    name = "demands"
    pod_fields = LabelledPod

    def state(self, options: Any, sync_period_s: float) -> Any:
        raise NotImplementedError

    def agent(self, options: Any) -> Any:
        raise NotImplementedError


def pod(name: str, namespace: str, demand: str | None, message: str = REJECTED, **status: Any) -> Any:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    labels = {} if demand is None else {"demand": demand}
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}/{name}", "labels": labels}
    return {
        "metadata": metadata,
        "spec": {},
        "status": {"phase": "Pending", "conditions": [condition], **status},
    }


class RequeueingCluster:
    """A leader with requeueing and one node, in virtual time."""

    def __init__(self) -> None:
        self.api, self.agent, self.registry = FakeApi(), Demands(), MetricsRegistry()
        self.api.put(NODES, {"metadata": {"name": "a", "annotations": {}}})
        chain, clock = AgentChain([self.agent]), VirtualClock()
        self.snapshot = Snapshot(NodeIndex(["a"]), {}, 0.0, 1)
        waiting = object_feed.waiting_pods_target([DemandsKind()], chain)
        self.pods = Reflector(self.api, waiting, clock, self.registry, random.random)
        self.handle = build_handle(self.api, {}, self.pods.store, clock, self.registry)
        self.requeuer = Requeuer(chain, self.pods.store, self.handle, PERIOD_S)
        self.leading = LeaderLoop([self.requeuer], lambda: self.snapshot, lambda: True, clock)

    def put(self, *pods: Any) -> None:
        for item in pods:
            self.api.put(PODS, item)

    def name_nodes(self, *names: str) -> None:
        """Set the nodes of the following snapshots."""
        for name in names:
            self.api.put(NODES, {"metadata": {"name": name, "annotations": {}}})
        self.snapshot = msgspec.structs.replace(self.snapshot, nodes=NodeIndex(names))

    def publish(self) -> None:
        self.snapshot = msgspec.structs.replace(self.snapshot, generation=self.snapshot.generation + 1)
        self.leading.notify()

    def events(self) -> int:
        """The number of requeue events so far."""
        written = [new for _, new in self.api.changes(NODES) if new is not None]
        return len({item["metadata"]["annotations"].get(ANNOTATION) for item in written} - {None})

    async def passes(self, count: int) -> None:
        """Run passes one after another, each with a new snapshot."""
        for _ in range(count):
            self.publish()
            await self.requeuer.step(self.snapshot)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """The store of waiting pods is up to date."""
        task = asyncio.create_task(self.pods.run())
        await self.pods.wait_until_synced()
        yield
        task.cancel()
        await asyncio.wait([task])

    @asynccontextmanager
    async def leader(self) -> AsyncIterator[None]:
        async with self.watching():
            task = asyncio.create_task(self.leading.run(PERIOD_S))
            yield
            task.cancel()
            await asyncio.wait([task])

    async def seconds_until_event(self) -> float:
        """Heal the victim and publish snapshots ten times a period until there is an event."""
        loop = asyncio.get_running_loop()
        began_s, before = loop.time(), self.events()
        self.agent.fitting.add(VICTIM)
        while self.events() == before and loop.time() < began_s + 60:
            self.publish()
            await asyncio.sleep(PERIOD_S / 10)
        return loop.time() - began_s


@pytest.fixture
def cluster() -> RequeueingCluster:
    return RequeueingCluster()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The log lines `requeueing_limited`."""
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(
        logs, "emit", lambda event, **fields: lines.append(fields) if event == "requeueing_limited" else None
    )
    return lines


def unrelated() -> list[Any]:
    return [pod(f"p{number}", "attacker", None, NO_CPU) for number in range(MANY)]


def different_demands(count: int = MANY, namespace: str = "attacker") -> list[Any]:
    return [pod(f"p{number}", namespace, f"{namespace}-{number}") for number in range(count)]


ATTACKS: dict[str, Callable[[], list[Any]]] = {
    "no pods": list,
    "pods that concern no agent": unrelated,
    "pods with different demands": different_demands,
    "pods with one demand": lambda: [pod(f"p{number}", "attacker", "same") for number in range(MANY)],
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
async def test_a_healed_pod_is_requeued_within_5_s_beside_a_hostile_namespace(
    cluster: RequeueingCluster, attack: Callable[[], list[Any]]
) -> None:
    """The store has the attacker's pods first; each of their demands takes as long as the most expensive one."""
    cluster.put(*attack(), pod("web", "shop", VICTIM))
    cluster.agent.default_s, cluster.agent.seconds = 0.07, {VICTIM: 0.0004}

    async def main() -> float:
        async with cluster.leader():
            await asyncio.sleep(PERIOD_S)
            return await cluster.seconds_until_event()

    assert (await main()) < 5.0


async def test_pods_that_heal_and_sicken_all_the_time_do_not_delay_others(cluster: RequeueingCluster) -> None:
    """The attacker's pods cause events with growing pauses, and each serves all pods."""
    attackers = different_demands(100)
    cluster.put(*attackers, pod("web", "shop", VICTIM))

    async def main() -> tuple[float, int]:
        async def flap() -> None:
            while True:
                await asyncio.sleep(PERIOD_S / 10)
                cluster.agent.fitting ^= {item["metadata"]["labels"]["demand"] for item in attackers}
                cluster.publish()

        async with cluster.leader():
            flapping = asyncio.create_task(flap())
            await asyncio.sleep(10.0)
            cluster.agent.fitting.add(VICTIM)
            healed_s, events = asyncio.get_running_loop().time(), cluster.events()
            while cluster.events() == events:
                await asyncio.sleep(0.01)
            flapping.cancel()
            return asyncio.get_running_loop().time() - healed_s, events

    took_s, events = await main()
    assert took_s < 5.0
    assert 0 < events <= 6


async def run_passes(cluster: RequeueingCluster, count: int) -> None:
    async with cluster.watching():
        await cluster.passes(count)


async def test_pods_with_equal_demands_are_filtered_once(cluster: RequeueingCluster) -> None:
    cluster.put(*(pod(f"p{number}", namespace, "same") for number in range(50) for namespace in ("a", "b")))
    await run_passes(cluster, 1)
    assert cluster.agent.filtered == {"same": 1}
    assert "nodewise_pods_waiting 100" in cluster.registry.exposition().decode()


async def test_namespaces_have_equal_shares_of_a_pass(cluster: RequeueingCluster) -> None:
    """Shares are of time: a namespace with cheap demands has more of them filtered."""
    cluster.put(*different_demands(100, "cheap"), *different_demands(100, "costly"))
    cluster.agent.seconds = {f"cheap-{number}": PASS_S / 64 for number in range(100)}
    cluster.agent.default_s = PASS_S / 8
    await run_passes(cluster, 1)
    filtered = Counter(demand.partition("-")[0] for demand in cluster.agent.filtered)
    assert filtered == {"cheap": 32, "costly": 4}


async def test_the_share_of_a_namespace_that_needs_less_is_left_to_others(cluster: RequeueingCluster) -> None:
    cluster.put(*different_demands(1, "small"), *different_demands(100, "large"))
    cluster.agent.default_s = PASS_S / 8
    await run_passes(cluster, 1)
    filtered = Counter(demand.partition("-")[0] for demand in cluster.agent.filtered)
    assert filtered == {"small": 1, "large": 7}


@pytest.mark.parametrize(("namespaces", "demands"), [(2, 40), (7, 13), (40, 3)])
async def test_every_pod_is_filtered_within_a_bounded_number_of_passes(
    cluster: RequeueingCluster, namespaces: int, demands: int
) -> None:
    filter_s = PASS_S / 5
    small = different_demands(demands, "small")
    others = [
        item for number in range(namespaces - 1) for item in different_demands(2 * demands, f"other{number}")
    ]
    cluster.put(*others, *small)
    cluster.agent.default_s = filter_s
    await run_passes(cluster, math.ceil(namespaces * (demands * filter_s + filter_s) / PASS_S))
    assert all(cluster.agent.filtered[f"small-{number}"] for number in range(demands))


@pytest.mark.parametrize("demands", [8, 9])
async def test_a_pass_has_a_limit_which_is_logged_with_the_largest_namespace(
    cluster: RequeueingCluster, lines: list[dict[str, Any]], demands: int
) -> None:
    cluster.put(*different_demands(demands - 2, "large"), *different_demands(2, "small"))
    cluster.agent.default_s = PASS_S / 8
    await run_passes(cluster, 3)
    limited = {"limit_s": PASS_S, "demands": 9, "left": 1, "namespace": "large", "demands_of_namespace": 7}
    assert lines == ([] if demands == 8 else [limited])


async def test_a_pod_that_was_not_reached_for_some_passes_is_requeued_when_it_is(
    cluster: RequeueingCluster,
) -> None:
    """What is known of a pod survives passes that do not reach it."""
    cluster.put(*(item for item in different_demands(40, "shop")), pod("web", "shop", VICTIM, NO_CPU))
    cluster.agent.default_s = PASS_S / 4

    events = []
    async with cluster.watching():
        await cluster.passes(11)
        assert cluster.agent.filtered[VICTIM] == 1
        cluster.agent.fitting.add(VICTIM)
        for _ in range(4):
            await cluster.passes(24)
            events.append(cluster.events())
    assert events == [1, 2, 3, 3]


async def test_a_pod_that_still_waits_is_requeued_three_times(cluster: RequeueingCluster) -> None:
    cluster.put(pod("web", "shop", VICTIM))
    cluster.agent.fitting.add(VICTIM)

    seen, loop = [0.0], asyncio.get_running_loop()
    async with cluster.leader():
        while loop.time() < 6 * PERIOD_S:
            await asyncio.sleep(0.1)
            cluster.publish()
            if cluster.events() >= len(seen):
                seen.append(loop.time())
    pauses_s = [later - earlier for earlier, later in itertools.pairwise(seen[1:])]
    assert len(pauses_s) == TRIES - 1
    assert min(pauses_s) >= PERIOD_S


async def test_a_new_pod_with_the_demand_of_pods_that_fit_is_requeued_if_nodewise_rejected_it(
    cluster: RequeueingCluster,
) -> None:
    cluster.put(pod("first", "shop", VICTIM, NO_CPU))
    cluster.agent.fitting.add(VICTIM)

    events = []
    async with cluster.watching():
        for name, message in (("second", NO_CPU), ("third", REJECTED)):
            cluster.put(pod(name, "shop", VICTIM, message))
            await asyncio.sleep(0.1)
            await cluster.passes(1)
            events.append(cluster.events())
    assert events == [0, 1]


async def test_pod_that_is_rejected_although_it_fits_is_requeued_three_times(
    cluster: RequeueingCluster,
) -> None:
    """A replica with an older snapshot rejected it. A pod that is rejected again and again makes no more events."""
    cluster.put(pod("web", "shop", VICTIM, NO_CPU))
    cluster.agent.fitting.add(VICTIM)

    events = []
    async with cluster.watching():
        for number in range(TRIES + 2):
            await cluster.passes(1)
            events.append(cluster.events())
            cluster.put(pod("web", "shop", VICTIM, f"{REJECTED} {number}"))
            await asyncio.sleep(PAUSE_S)
    assert events == [0, 1, 2, 3, 3]


async def settle(cluster: RequeueingCluster) -> int:
    """The number of events when pods that are new have been requeued."""
    for _ in range(TRIES + 1):
        await cluster.passes(1)
        await asyncio.sleep(PERIOD_S)
    return cluster.events()


async def test_a_pod_is_requeued_when_another_node_passes(cluster: RequeueingCluster) -> None:
    """The pod may be unable to use the node that passes all the time, for example by its node selector."""
    cluster.name_nodes("a", "b")
    cluster.put(pod("web", "shop", VICTIM))

    events = []
    async with cluster.watching():
        for passing in ({"b"}, {"b"}, {"a", "b"}, {"a"}, {"a", "b"}):
            cluster.agent.passing = {VICTIM: passing}
            events.append(await settle(cluster))
    assert events == [3, 3, 6, 6, 9]


@pytest.mark.parametrize(
    ("names", "gains"), [("cab", 0), ("bcad", 1), ("c", 0), ("ad", 1)], ids=["order", "new", "fewer", "other"]
)
async def test_a_node_is_gained_by_its_name_and_not_by_its_number(
    cluster: RequeueingCluster, names: str, gains: int
) -> None:
    cluster.name_nodes(*"abc")
    cluster.put(pod("web", "shop", VICTIM))
    cluster.agent.passing = {VICTIM: {"b", "c", "d"}}

    async with cluster.watching():
        before = await settle(cluster)
        cluster.name_nodes(*names)
        await cluster.passes(1)
        assert cluster.events() == before + gains


async def test_pods_that_nodewise_did_not_reject_are_requeued_only_when_the_first_node_passes(
    cluster: RequeueingCluster,
) -> None:
    """All nodes that passed lacked something else, and so does the node that passes now."""
    cluster.name_nodes("a", "b")
    cluster.put(pod("web", "shop", VICTIM, NO_CPU))

    events = []
    async with cluster.watching():
        for passing in ({"a"}, {"a", "b"}, set[str](), {"b"}):
            cluster.agent.passing = {VICTIM: passing}
            await cluster.passes(1)
            events.append(cluster.events())
    assert events == [0, 0, 0, 1]


@pytest.mark.parametrize("demands", [1, 20])
async def test_nodes_that_flap_for_10000_waiting_pods_cause_few_events_and_delay_no_others(
    cluster: RequeueingCluster, demands: int
) -> None:
    """A node is gained every period for twenty minutes."""
    cluster.name_nodes("a", "b", "c")
    cluster.put(*(pod(f"p{number}", "attacker", f"demand-{number % demands}") for number in range(10_000)))
    cluster.put(pod("web", "shop", VICTIM))

    async with cluster.watching():
        for number in range(240):
            flapping = {"a", "bc"[number % 2]}
            cluster.agent.passing = {f"demand-{demand}": flapping for demand in range(demands)}
            await cluster.passes(1)
            await asyncio.sleep(PERIOD_S)
        before = cluster.events()
        assert before <= TRIES * 12
        cluster.agent.passing[VICTIM] = {"c"}
        await cluster.passes(1)
        assert cluster.events() == before + 1


async def test_events_of_a_namespace_are_limited_although_its_pods_are_new_all_the_time(
    cluster: RequeueingCluster,
) -> None:
    cluster.agent.fitting.add("same")

    async with cluster.watching():
        for number in range(100):
            cluster.put(pod(f"p{number}", "attacker", "same"))
            await cluster.passes(1)
            await asyncio.sleep(PAUSE_S)
        assert cluster.events() <= NAMESPACE_EVENTS + 100 / NAMESPACE_PAUSE_S + 1


async def test_pauses_begin_anew_when_a_pod_leaves_or_another_is_rejected(cluster: RequeueingCluster) -> None:
    cluster.name_nodes("a", "b")
    cluster.put(*(pod(name, "shop", VICTIM) for name in ("first", "second")))

    async def events_while_nodes_flap(count: int) -> int:
        before = cluster.events()
        for number in range(count):
            cluster.agent.passing = {VICTIM: {"ab"[number % 2]}}
            await cluster.passes(1)
            await asyncio.sleep(PERIOD_S)
        return cluster.events() - before

    async with cluster.watching():
        counts = [await events_while_nodes_flap(180)]
        counts.append(await events_while_nodes_flap(3))
        cluster.api.remove(PODS, "first", "shop")
        await asyncio.sleep(0.1)
        counts.append(await events_while_nodes_flap(3))
        counts.append(await events_while_nodes_flap(180))
        cluster.put(pod("third", "shop", VICTIM))
        await asyncio.sleep(0.1)
        counts.append(await events_while_nodes_flap(3))
    assert counts[0] <= TRIES * 12
    assert (counts[1], counts[2], counts[4]) == (0, 3, 3)


async def test_node_gained_in_a_pause_has_one_more_event_after_an_event_for_other_pods(
    cluster: RequeueingCluster,
) -> None:
    """kube-scheduler may call a replica with older metrics for these pods, and bind those of the others."""
    cluster.name_nodes("a", "b", "c")
    cluster.put(pod("web", "attacker", "flapping"))

    async with cluster.watching():
        for number in range(180):
            cluster.agent.passing = {"flapping": {"ab"[number % 2]}}
            await cluster.passes(1)
            await asyncio.sleep(PERIOD_S)
        cluster.put(pod("web", "shop", VICTIM))
        await asyncio.sleep(0.1)
        before = cluster.events()
        cluster.agent.passing = {"flapping": {"c"}, VICTIM: {"c"}}
        await cluster.passes(1)
        assert cluster.events() == before + 1
        cluster.api.remove(PODS, "web", "shop")
        assert await settle(cluster) == before + 2


NOT_WAITING: dict[str, Any] = {
    "no agent": pod("p", "shop", None, NO_CPU),
    "not tried yet": pod("p", "shop", VICTIM, conditions=[]),
    "ended": pod("p", "shop", VICTIM, phase="Failed"),
    "on a node": pod("p", "shop", VICTIM) | {"spec": {"nodeName": "a"}},
    "being deleted": msgspec.json.decode(
        msgspec.json.encode(pod("p", "shop", VICTIM)).replace(
            b'"uid"', b'"deletionTimestamp":"2026-01-01T00:00:00Z","uid"'
        )
    ),
}


@pytest.mark.parametrize("other", NOT_WAITING.values(), ids=list(NOT_WAITING))
async def test_other_pods_are_neither_stored_nor_filtered(cluster: RequeueingCluster, other: Any) -> None:
    cluster.put(other)
    cluster.agent.fitting.add(VICTIM)
    await run_passes(cluster, 1)
    assert len(cluster.pods.store) == 0
    assert not cluster.agent.filtered
    assert cluster.events() == 0


async def test_a_pod_that_concerns_the_agent_only_in_some_snapshots(cluster: RequeueingCluster) -> None:
    """A policy selects pods by their labels. Pods that it rejected are stored, also if their labels show nothing."""
    cluster.put(pod("stored", "shop", None), pod("web", "shop", VICTIM))
    cluster.agent.fitting.add(VICTIM)

    counts = []
    async with cluster.watching():
        for ignored in ({VICTIM}, {VICTIM}, set()):
            cluster.snapshot = msgspec.structs.replace(cluster.snapshot, agent_states={"demands": ignored})
            await cluster.passes(1)
            counts.append(cluster.agent.filtered[VICTIM])
    assert counts == [0, 0, 1]
    assert len(cluster.pods.store) == 2
    assert "nodewise_pods_waiting 2" in cluster.registry.exposition().decode()


class CountingChain(AgentChain):
    """Counts the equivalence keys that it computes."""

    keys = 0

    def equivalence_key(self, pod: Any, snapshot: Snapshot) -> Hashable:
        self.keys += 1
        return super().equivalence_key(pod, snapshot)


async def test_a_rejected_pod_that_no_agent_filters_any_more_is_requeued(cluster: RequeueingCluster) -> None:
    """Its policy was deleted, or only observes now. It is forgotten when kube-scheduler has another reason."""
    cluster.put(pod("web", "shop", VICTIM), pod("full", "shop", VICTIM, NO_CPU))
    known = cluster.snapshot

    async def main() -> list[int]:
        events = []
        async with cluster.watching():
            for ignored in (set(), {VICTIM}, {VICTIM}):
                cluster.snapshot = msgspec.structs.replace(known, agent_states={"demands": ignored})
                await cluster.passes(1)
                events.append(cluster.events())
            cluster.put(pod("web", "shop", VICTIM, NO_CPU))
            await asyncio.sleep(PERIOD_S)
            await cluster.passes(1)
            return [*events, cluster.events()]

    assert (await main()) == [0, 1, 1, 1]
    assert "nodewise_pods_waiting 0" in cluster.registry.exposition().decode()


async def test_an_update_computes_the_key_of_a_pod_once(cluster: RequeueingCluster) -> None:
    cluster.put(*(pod(name, "shop", VICTIM) for name in "abc"))
    chain = CountingChain([cluster.agent])

    counts, unchanged = [], set[str]()
    async with cluster.watching():
        waiting = WaitingPods(cluster.pods.store, chain)
        for state in (unchanged, unchanged, {VICTIM}):
            chain.keys = 0
            snapshot = msgspec.structs.replace(cluster.snapshot, agent_states={"demands": state})
            cooperative_scheduling.run_without_pauses(waiting.update(snapshot))
            counts.append(chain.keys)
    assert counts == [3, 0, 3]


async def test_keys_of_pods_are_computed_again_only_in_namespaces_whose_version_changed(
    cluster: RequeueingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(*(pod(name, namespace, VICTIM) for namespace in ("shop", "hostile") for name in "abc"))
    chain, versions = CountingChain([cluster.agent]), {"shop": object(), "hostile": object()}
    monkeypatch.setattr(
        cluster.agent, "namespace_equivalence_version", lambda _, namespace: versions[namespace]
    )

    counts = []
    async with cluster.watching():
        waiting = WaitingPods(cluster.pods.store, chain)
        for _ in range(3):
            chain.keys = 0
            snapshot = msgspec.structs.replace(cluster.snapshot, agent_states={"demands": set[str]()})
            cooperative_scheduling.run_without_pauses(waiting.update(snapshot))
            counts.append(chain.keys)
            versions["hostile"] = object()
    assert counts == [6, 3, 3]


async def test_pods_that_are_bound_or_deleted_or_have_another_demand_are_forgotten(
    cluster: RequeueingCluster,
) -> None:
    cluster.put(*different_demands(4, "shop"))

    async with cluster.watching():
        await cluster.passes(1)
        cluster.api.remove(PODS, "p0", "shop")
        cluster.put(pod("p1", "shop", "shop-1") | {"spec": {"nodeName": "a"}})
        cluster.put(pod("p2", "shop", "other"))
        renewed = pod("p3", "shop", "other")
        renewed["metadata"]["uid"] = "new"
        cluster.put(renewed)
        await asyncio.sleep(0.1)
        cluster.agent.filtered.clear()
        await cluster.passes(1)
    assert cluster.agent.filtered == {"other": 1}
    assert "nodewise_pods_waiting 2" in cluster.registry.exposition().decode()


def _steps_with(cluster: RequeueingCluster, between: Callable[[], None]) -> Coroutine[Any, Any, int]:
    """The number of events after a first step that fails to make one, and two more."""

    async def main() -> int:
        async with cluster.watching():
            await cluster.passes(1)
            cluster.agent.fitting.add(VICTIM)
            between()
            try:
                await cluster.passes(1)
            except Unavailable:
                assert cluster.events() == 0
            cluster.api.put(NODES, {"metadata": {"name": "a", "annotations": {}}})
            await cluster.passes(1)
            return cluster.events()

    return main()


FAILURES: dict[str, Callable[[RequeueingCluster], None]] = {
    "the node is deleted": lambda cluster: cluster.api.remove(NODES, "a"),
    "the API server does not respond": lambda cluster: cluster.api.fail(
        Unavailable("patch", [Problem("", "no response", "")])
    ),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=list(FAILURES))
async def test_an_event_that_fails_is_tried_again_with_the_next_snapshot(
    cluster: RequeueingCluster, failure: Callable[[RequeueingCluster], None]
) -> None:
    cluster.put(pod("web", "shop", VICTIM))
    assert (await _steps_with(cluster, lambda: failure(cluster))) == 1


async def test_a_write_of_a_node_during_the_pass_is_the_event(cluster: RequeueingCluster) -> None:
    cluster.put(pod("web", "shop", VICTIM))

    async def main() -> int:
        async with cluster.watching():
            await cluster.passes(1)
            cluster.agent.fitting.add(VICTIM)
            step = asyncio.create_task(cluster.requeuer.step(cluster.snapshot))
            await asyncio.sleep(0)
            cluster.handle.node_writes.count += 1
            await step
            return cluster.events()

    assert (await main()) == 0


async def test_a_new_leader_begins_from_nothing(cluster: RequeueingCluster) -> None:
    """Another leader may have requeued pods, or not: pods that nodewise rejected and that fit are requeued."""
    cluster.put(pod("web", "shop", VICTIM), pod("batch", "shop", "batch", NO_CPU))
    cluster.agent.fitting |= {VICTIM, "batch"}

    events = []
    async with cluster.watching():
        for _ in range(2):
            cluster.requeuer.begin()
            await cluster.passes(2)
            events.append(cluster.events())
    assert events == [1, 2]
