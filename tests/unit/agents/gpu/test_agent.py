"""Requests to the gpu agent: where the GPUs of a pod fit, which ones it gets, and what its annotations contain."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from nodewise.agent import Snapshot
from nodewise.agents.gpu import gpu_arrays
from nodewise.agents.gpu import vendor_resource_names as profiles
from nodewise.agents.gpu.agent import GpuAgent
from nodewise.agents.gpu.allocation_record import Reservation
from nodewise.agents.gpu.gpu_arrays import GpuLayout
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.gpu_rejection_reasons import GpuStateNotReady, UnknownNode
from nodewise.agents.gpu.options import GpuOptions
from nodewise.bind_plugin_interface import BindPlan, Refusal
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    PREFIX,
    agent_state,
    cluster_state,
    entry,
    lease,
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

    def test_nodes_are_laid_out_with_what_the_pod_asks_about(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If each node had its own resources, arrays over those of all candidates would be unbounded."""
        laid_out: list[GpuLayout] = []
        build, cluster_snapshot = gpu_arrays.build_layout, snapshot()

        def building(*arguments: Any) -> GpuLayout:
            laid_out.append(build(*arguments))
            return laid_out[-1]

        monkeypatch.setattr(gpu_arrays, "build_layout", building)
        agent().preempt(new("p", "i915=1"), cluster_snapshot.nodes.named(["n1", "n2"]), cluster_snapshot, {})
        assert list(laid_out[0].capacity) == [f"{PREFIX}i915", f"{PREFIX}tiles"]


class TestBind:
    def test_the_pod_is_told_its_cards(self) -> None:
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
        assert written.charged == (
            {"gpu.intel.com/i915": 1, "gpu.intel.com/millicores": 300},
            {"gpu.intel.com/i915": 1},
        )

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
    def test_an_entry_is_told_again_by_container(self, gpus: str) -> None:
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

    def test_cards_that_are_called_otherwise_are_told_by_name(self) -> None:
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
