"""Requests to the gpu agent: where the GPUs of a pod fit, which ones it gets, and what its annotations contain."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from nodewise.agent import Snapshot, is_unresolvable
from nodewise.agent.bind_plugin_interface import BindPlan, Refusal
from nodewise.agents.gpu import gpu_arrays
from nodewise.agents.gpu import vendor_resource_names as profiles
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.allocation_record import Reservation, max_record_bytes
from nodewise.agents.gpu.gpu_arrays import GpuLayout
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.gpu_rejection_reasons import GpuStateNotReady, UnknownNode
from nodewise.agents.gpu.options import GpuOptions
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    PREFIX,
    agent_state,
    cluster_state,
    entry,
    lease,
    lease_of,
    node,
    pod,
)

NODES = {"plain": node("", ""), "n1": node("i915=20 mc=2000 t=4"), "n2": node("i915=20 mc=2000 t=4")}
PREFER = {"telemetry.aware.scheduling.p/gas-prefer-gpu": "card1"}
NOW = 1_700_000_000.5
COUNT = "Not enough GPU-resources for deployment: "


def agent(**options: Any) -> GpuAgent:
    made = GpuOptions(**options)
    return GpuAgent(made, profiles.load_profile(made.gpu_profile))


def snapshot(
    pods: Iterable[AllocatedPod] = (), allocation_record: Any = (), nodes: Any = NODES, version: str = "50"
) -> Snapshot:
    cluster = cluster_state(nodes, pods, allocation_record, version=version)
    return Snapshot(cluster.nodes, {"gpu": agent_state(cluster)}, NOW)


def new(name: str, *requests: str, **annotations: str) -> AllocatedPod:
    """A pending pod; `gas_ts="1"` is the annotation gas-ts."""
    made = pod(name, requests=requests)
    notes = {key.replace("_", "-"): value for key, value in annotations.items()}
    meta = msgspec.structs.replace(made.metadata, annotations=notes, resourceVersion="40")
    return msgspec.structs.replace(made, metadata=meta)


def texts(
    gpu_pod: AllocatedPod, cluster_snapshot: Snapshot, names: str = "plain n1 n2 x", **options: Any
) -> list[str]:
    """The rejection reason of each node, or an empty text if it passes."""
    verdict = agent(**options).filter(gpu_pod, cluster_snapshot.nodes.named(names.split()), cluster_snapshot)
    assert verdict is not None
    return [verdict.reasons[code - 1].text() if code else "" for code in verdict.codes.tolist()]


def plan(gpu_pod: AllocatedPod, cluster_snapshot: Snapshot, on: str = "n1", **options: Any) -> BindPlan:
    bind_plan = agent(**options).bind(gpu_pod, on, cluster_snapshot, NOW)
    assert isinstance(bind_plan, BindPlan)
    return bind_plan


class TestFilter:
    def test_a_pod_without_cards_passes_untouched(self) -> None:
        for gpu_pod in (new("p", ""), new("p", "i915=0")):
            assert agent().filter(gpu_pod, snapshot().nodes.named(["n1"]), snapshot()) is None

    def test_nodes_are_rejected_in_words(self) -> None:
        full = [pod("a", "n1", "card0", ["i915=1 mc=600"]), pod("b", "n1", "card1", ["i915=1 mc=600"])]
        reasons = texts(new("p", "i915=1 mc=600"), snapshot(full))
        assert [text.startswith(COUNT + "will not fit") for text in reasons] == [True, True, False, False]
        assert reasons[2:] == ["", "Couldn't retrieve node's information"]

    def test_without_books_nothing_passes(self) -> None:
        gpu_pod, bare = new("p", "i915=1"), Snapshot(snapshot().nodes, {}, NOW)
        verdict = agent().filter(gpu_pod, bare.nodes.named(["n1", "n2"]), bare)
        assert verdict is not None
        assert (verdict.codes.tolist(), verdict.reasons) == ([1, 1], (GpuStateNotReady(),))

    def test_where_a_preferred_card_fits_only_such_nodes_pass(self) -> None:
        nodes = NODES | {"n2": node("i915=20 mc=2000", **PREFER)}
        reasons = texts(new("p", "i915=1"), snapshot(nodes=nodes), "n1 n2")
        assert reasons == ["nodewise: a node with a preferred GPU fits", ""]

    def test_a_balanced_placement_asks_for_no_preference(self) -> None:
        nodes = NODES | {"n2": node("i915=20 mc=2000", **PREFER)}
        reasons = texts(new("p", "i915=1"), snapshot(nodes=nodes), "n1 n2", balanced_resource="millicores")
        assert reasons == ["", ""]


class TestPreempt:
    def passed_nodes(self, gpu_pod: AllocatedPod, cluster_snapshot: Snapshot, **victims: str) -> list[str]:
        names = cluster_snapshot.nodes.named(list(victims))
        uids = {name: frozenset(text.split()) for name, text in victims.items()}
        verdict = agent().preempt(gpu_pod, names, cluster_snapshot, uids)
        assert verdict is not None
        return names[verdict.codes == 0].tolist()

    def test_a_node_stays_only_if_its_cards_fit_without_the_victims(self) -> None:
        there = [
            pod(f"{name}-{gpu}", name, gpu, ["i915=1 mc=600"])
            for name in ("n1", "n2")
            for gpu in ("card0", "card1")
        ]
        cluster_snapshot = snapshot(there)
        uid = {holder.metadata.name: holder.metadata.uid for holder in there}
        gpu_pod = new("p", "i915=2 mc=1800")
        assert self.passed_nodes(
            gpu_pod, cluster_snapshot, n1=f"{uid['n1-card0']} {uid['n1-card1']}", n2=uid["n2-card0"]
        ) == ["n1"]

    def test_a_pod_without_cards_has_no_opinion(self) -> None:
        assert agent().preempt(new("p", ""), snapshot().nodes.named(["n1"]), snapshot(), {}) is None

    def test_preempt_lays_out_the_resources_of_the_pod(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If each node had its own resources, arrays over those of all candidates would be unbounded."""
        laid_out: list[GpuLayout] = []
        build, cluster_snapshot = gpu_arrays.build_layout, snapshot()

        def building(*arguments: Any) -> GpuLayout:
            laid_out.append(build(*arguments))
            return laid_out[-1]

        monkeypatch.setattr(gpu_arrays, "build_layout", building)
        agent().preempt(new("p", "i915=1"), cluster_snapshot.nodes.named(["n1", "n2"]), cluster_snapshot, {})
        assert list(laid_out[0].capacity) == [f"{PREFIX}i915", f"{PREFIX}tiles"]


def unresolvable(gpu_pod: AllocatedPod, cluster_snapshot: Snapshot, names: str, **options: Any) -> list[str]:
    """The nodes that the pod does not fit whichever pods are evicted."""
    candidates = cluster_snapshot.nodes.named(names.split())
    verdict = agent(**options).filter(gpu_pod, candidates, cluster_snapshot)
    assert verdict is not None
    return candidates[verdict.unresolvable()].tolist()


class TestEvictability:
    def test_a_node_that_is_full_can_be_freed_and_one_that_is_too_small_cannot(self) -> None:
        """Both lack millicores for the same reason, in the same words."""
        nodes = {"full": node("i915=10 mc=2000"), "small": node("i915=10 mc=1000"), "none": node("", "")}
        holders = [pod(f"h{number}", "full", f"card{number}", ["i915=1 mc=700"]) for number in (0, 1)]
        cluster_snapshot, gpu_pod = snapshot(holders, nodes=nodes), new("p", "i915=1 mc=800")
        assert len(set(texts(gpu_pod, cluster_snapshot, "full small"))) == 1
        assert unresolvable(gpu_pod, cluster_snapshot, "full small none x") == ["small", "none", "x"]

    def test_later_container_respects_amounts_of_the_first(self) -> None:
        nodes = {"two": node("i915=2 mc=2000"), "one": node("i915=2 mc=1000", "0")}
        holder = pod("h", "two", "card0", ["i915=1 mc=900"])
        cluster_snapshot = snapshot([holder], nodes=nodes)
        assert unresolvable(new("p", "i915=1 mc=600", "i915=1 mc=600"), cluster_snapshot, "two one") == [
            "one"
        ]

    def test_a_disabled_subdevice_stays_disabled_without_pods(self) -> None:
        off = {"telemetry.aware.scheduling.p/gas-tile-disable-card0_gt0": "true"}
        nodes = {
            "off": node("i915=4 mc=2000 t=2", "0", **off),
            "on": node("i915=4 mc=2000 t=2", "0"),
        }
        holder = pod("h", "on", "card0", ["i915=1 mc=10 t=1"], subdevices="card0:gt1")
        assert unresolvable(new("p", "i915=1 mc=10 t=2"), snapshot([holder], nodes=nodes), "off on") == [
            "off"
        ]

    def test_gpus_that_the_pod_may_not_use_do_not_become_usable(self) -> None:
        """Also where pods hold the others."""
        nodes = {"n1": node("i915=20 mc=2000", **{"telemetry.aware.scheduling.p/gas-disable-card0": "true"})}
        holder = pod("h", "n1", "card1", ["i915=1 mc=900"])
        cluster_snapshot = snapshot([holder], nodes=nodes)
        assert unresolvable(new("p", "i915=1 mc=500"), cluster_snapshot, "n1") == []
        assert unresolvable(new("p", "i915=2 mc=500"), cluster_snapshot, "n1") == ["n1"]

    def test_a_node_that_only_loses_to_a_preferred_gpu_needs_no_eviction(self) -> None:
        nodes = {"n1": node("i915=2 mc=2000"), "n2": node("i915=2 mc=2000", **PREFER)}
        assert unresolvable(new("p", "i915=1 mc=500"), snapshot(nodes=nodes), "n1 n2") == ["n1"]

    def test_a_full_record_becomes_free_with_its_pods(self) -> None:
        gpu_pod = new("p", "i915=1 mc=100")
        room = max_record_bytes(agent().demand_of(gpu_pod).containers, "t")
        cluster = cluster_state(NODES, [], [lease_of("n1", " " * (room + 1))])
        cluster_snapshot = Snapshot(cluster.nodes, {"gpu": agent_state(cluster)}, NOW)
        assert "no room" in texts(gpu_pod, cluster_snapshot, "n1")[0]
        assert unresolvable(gpu_pod, cluster_snapshot, "n1") == []

    def test_without_a_state_no_eviction_helps(self) -> None:
        cluster_snapshot = Snapshot(snapshot().nodes, {}, NOW)
        assert unresolvable(new("p", "i915=1"), cluster_snapshot, "n1 n2") == ["n1", "n2"]

    @pytest.mark.parametrize("placement", ["pack", "spread", "balanced", "fragmentation", "first-fit"])
    def test_a_rejected_node_is_resolvable_exactly_if_preempt_accepts_it_without_its_pods(
        self, placement: str
    ) -> None:
        nodes = {
            f"n{size}{held}": node(f"i915=8 mc={1000 * size} t={size}", "0.1.2"[: 2 * size - 1], cpu="8")
            for size in (1, 2, 3)
            for held in (0, 600)
        }
        holders = [
            pod(f"h{name}{gpu}", name, f"card{gpu}", [f"i915=1 mc={held}"])
            for name in nodes
            if (held := int(name[2:]))
            for gpu in range(int(name[1]))
        ]
        cluster_snapshot = snapshot(holders, nodes=nodes)
        uids = {name: frozenset(h.metadata.uid for h in holders if h.spec.nodeName == name) for name in nodes}
        candidates = cluster_snapshot.nodes.named(list(nodes))
        for requests in ("i915=1 mc=500",), ("i915=2 mc=1000",), ("i915=1 mc=500", "i915=1 mc=700", "i915=1"):
            tested = agent(gpu_placement=placement)
            filtered = tested.filter(new("p", *requests), candidates, cluster_snapshot)
            preempted = tested.preempt(new("p", *requests), candidates, cluster_snapshot, uids)
            assert filtered is not None
            assert preempted is not None
            rejected = filtered.codes != 0
            assert rejected.any()
            assert (filtered.unresolvable() == (rejected & (preempted.codes != 0))).all()


def test_the_reason_of_a_small_node_has_the_same_text_and_remedy() -> None:
    gpu_pod, nodes = new("p", "i915=1 mc=9000"), {"n1": node("i915=1 mc=10", "0")}
    cluster_snapshot = snapshot(nodes=nodes)
    verdict = agent().filter(gpu_pod, cluster_snapshot.nodes.named(["n1"]), cluster_snapshot)
    assert verdict is not None
    resolvable, marked = verdict.reasons[-2:]
    assert (is_unresolvable(resolvable), is_unresolvable(marked)) == (False, True)
    assert (resolvable.text(), resolvable.remedy()) == (marked.text(), marked.remedy())


class TestBind:
    def test_annotations_name_the_gpus_of_the_pod(self) -> None:
        bind_plan = plan(new("p", "i915=2 mc=600", "", "i915=1"), snapshot())
        assert bind_plan.annotations == {
            "gas-ts": "1700000000500000000",
            "gas-container-cards": "card0,card1||card0",
            "gas-container-tiles": "||",
            "cards.nodewise.io/c0": "0,1",
            "cards.nodewise.io/c2": "0",
        }
        assert bind_plan.description == "c0: card0, card1; c2: card0"
        written = msgspec.convert(bind_plan.reservation, Reservation)
        assert (written.gpus, written.seen, written.at) == ("card0,card1|card0", "40", NOW)
        expected = ({"gpu.intel.com/i915": 1, "gpu.intel.com/millicores": 300}, {"gpu.intel.com/i915": 1})
        assert written.charged == expected

    def test_an_entry_does_not_grow_with_containers_that_request_nothing(self) -> None:
        alone, among = new("p", "i915=1 t=1"), new("p", *[""] * 31, "i915=1 t=1", *[""] * 32)
        entries = [plan(gpu_pod, snapshot()).reservation for gpu_pod in (alone, among)]
        assert entries[0] == entries[1]
        annotations = plan(among, snapshot()).annotations
        assert annotations["gas-container-cards"] == "|" * 31 + "card0" + "|" * 32
        assert annotations["gas-container-tiles"] == "|" * 31 + "card0:gt0" + "|" * 32

    @pytest.mark.parametrize(
        "gpus", ["card1", "|card1"], ids=["as it is now", "with a part for each container"]
    )
    def test_repeated_bind_names_gpus_by_container(self, gpus: str) -> None:
        gpu_pod = new("p", "", "i915=1")
        record = lease("n1", uid_p=entry("p", gpus, charged=["i915=1"] * len(gpus.split("|"))))
        bind_plan = plan(gpu_pod, snapshot([gpu_pod], [record]))
        assert bind_plan.annotations["gas-container-cards"] == "|card1"

    def test_tiles_are_named(self) -> None:
        bind_plan = plan(new("p", "i915=1 t=2", "i915=1"), snapshot())
        assert bind_plan.annotations["gas-container-tiles"] == "card0:gt0+gt1|"
        assert bind_plan.description.startswith("c0: card0 gt0+gt1; c1: ")

    def test_one_container_without_tiles_has_no_word_of_them(self) -> None:
        assert "gas-container-tiles" not in plan(new("p", "i915=1"), snapshot()).annotations

    def test_tiles_that_somebody_wrote_before_are_overwritten(self) -> None:
        bind_plan = plan(new("p", "i915=1", gas_container_tiles="card1:gt1"), snapshot())
        assert bind_plan.annotations["gas-container-tiles"] == ""

    def test_a_pod_that_asks_for_no_card_needs_no_entry(self) -> None:
        assert agent().bind(new("p", "i915=0"), "n1", snapshot(), NOW) is None

    @pytest.mark.parametrize(
        ("gpu_pod", "on", "error"),
        [
            (new("p", "i915=3"), "n1", "will not fit"),
            (new("p", "i915=1"), "plain", "will not fit"),
            (new("p", "mc=5"), "n1", "bad args"),
            (new("p", "i915=1", gas_same_gpu="c0"), "n1", "malformed annotation"),
            (new("p", "i915=1"), "x", 'error reading node x: node fetch error: node "x" not found'),
        ],
    )
    def test_a_refusal_is_in_the_older_systems_words(
        self, gpu_pod: AllocatedPod, on: str, error: str
    ) -> None:
        refusal = agent().bind(gpu_pod, on, snapshot(), NOW)
        assert isinstance(refusal, Refusal)
        assert refusal.error == error
        assert (on == "x") == isinstance(refusal.reason, UnknownNode)

    def test_a_pod_keeps_the_cards_of_its_entry(self) -> None:
        """This holds even if the pod would get other GPUs now, as in a repeated bind."""
        gpu_pod = new("p", "i915=1 mc=600")
        mine = entry("p", "card1", seen="40")
        bind_plan = plan(gpu_pod, snapshot([gpu_pod], [lease("n1", uid_p=mine)]))
        assert bind_plan.annotations["gas-container-cards"] == "card1"
        assert msgspec.convert(bind_plan.reservation, Reservation) == mine

    def test_an_entry_of_an_earlier_version_is_written_anew(self) -> None:
        gpu_pod = new("p", "i915=1 mc=600")
        mine = entry("p", "card1", seen="30")
        reservation = msgspec.convert(
            plan(gpu_pod, snapshot([gpu_pod], [lease("n1", uid_p=mine)])).reservation, Reservation
        )
        assert (reservation.gpus, reservation.seen, reservation.at) == ("card1", "40", NOW)

    def test_an_entry_never_goes_back_to_an_older_version_of_the_pod(self) -> None:
        """A check that rules out a Binding of the older version would otherwise remove it although the pod is bound."""
        gpu_pod = new("p", "i915=1 mc=600")
        mine = entry("p", "card1", seen="50")
        reservation = msgspec.convert(
            plan(gpu_pod, snapshot([gpu_pod], [lease("n1", uid_p=mine)])).reservation, Reservation
        )
        assert (reservation.gpus, reservation.seen) == ("card1", "50")

    def test_entries_that_do_not_count_any_more_are_named(self) -> None:
        gone = lease("n1", u_gone=entry("gone", "card0", seen="10"))
        bind_plan = plan(new("p", "i915=1"), snapshot(allocation_record=[gone]))
        assert bind_plan.stale == {"u-gone"}

    def test_gpus_with_other_names_are_annotated_by_name(self) -> None:
        gpus = msgspec.json.encode([{"name": "left"}, {"name": "card7"}]).decode()
        made = msgspec.json.decode(
            msgspec.json.encode(
                {
                    "metadata": {"annotations": {"nodewise.io/gpu-cards": gpus}},
                    "status": {"allocatable": {"gpu.intel.com/i915": "2"}},
                }
            ),
            type=type(node()),
        )
        bind_plan = plan(new("p", "i915=2"), snapshot(nodes={"n1": made}))
        assert bind_plan.annotations["cards.nodewise.io/c0"] == "7,left"


class TestScore:
    def test_first_fit_likes_all_nodes_the_same(self) -> None:
        assert agent().score(new("p", "i915=1"), snapshot().nodes.named(["n1"]), snapshot()) is None

    def test_pack_likes_the_fuller_node(self) -> None:
        cluster_snapshot = snapshot([pod("a", "n2", "card0", ["i915=1 mc=100"])])
        scores = agent(gpu_placement="pack").score(
            new("p", "i915=1 mc=100"), cluster_snapshot.nodes.named(["n1", "n2"]), cluster_snapshot
        )
        assert scores is not None
        assert scores.points.tolist() == [9, 10]

    def test_a_pod_says_otherwise_for_itself(self) -> None:
        cluster_snapshot = snapshot([pod("a", "n2", "card0", ["i915=1 mc=100"])])
        gpu_pod = new("p", "i915=1 mc=100")
        notes = {"nodewise.io/gpu-placement": "spread"}
        gpu_pod = msgspec.structs.replace(
            gpu_pod, metadata=msgspec.structs.replace(gpu_pod.metadata, annotations=notes)
        )
        scores = agent(gpu_placement="pack").score(
            gpu_pod, cluster_snapshot.nodes.named(["n1", "n2"]), cluster_snapshot
        )
        assert scores is not None
        assert scores.points.tolist() == [10, 9]
