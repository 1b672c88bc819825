"""What the gpu agent's leader does, done: nothing is left to do, and nobody lost what he holds."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from nodewise import cooperative
from nodewise.agents.gpu import books, checking, descheduling, sweeping
from nodewise.agents.gpu import ledger as ledgers
from nodewise.agents.gpu.checking import Told
from nodewise.agents.gpu.pods import BookedLabels, BookedPod
from nodewise.agents.gpu.state import Slot
from tests.laws.test_gpu_books import NODES, SOME_LEDGERS, SOME_PODS, VERSIONS
from tests.unit.agents.gpu.facts import agent_state, cluster_state, lease, node

HOT = "telemetry.aware.scheduling.hot/gas-"
MARKS = st.dictionaries(
    st.sampled_from(
        [f"{HOT}deschedule-pods-card0", f"{HOT}tile-deschedule-card0_gt0", f"{HOT}disable-card1"]
    ),
    st.sampled_from(["true", "PCI_GROUP"]),
)
MARKED = st.fixed_dictionaries(
    {name: MARKS.map(lambda marks: node("i915=4 mc=2000 t=8", "0.1", **marks)) for name in NODES}
)


def told(pod: BookedPod, value: str | None) -> BookedPod:
    metadata = msgspec.structs.replace(pod.metadata, labels=BookedLabels(value))
    return msgspec.structs.replace(pod, metadata=metadata)


LABELLED = st.builds(told, SOME_PODS, st.sampled_from([None, "gpu", "somebody"]))


def by_name(pods: list[BookedPod]) -> list[BookedPod]:
    return list({pod.metadata.name: pod for pod in pods}.values())


PODS = st.lists(LABELLED, max_size=4).map(by_name)
LEDGERS = st.lists(SOME_LEDGERS, max_size=2).map(
    lambda all_: {one.metadata.name: one for one in all_}.values()
)


@given(MARKED, PODS, LEDGERS)
def test_labels_that_were_written_leave_nothing_to_write(nodes: Any, pods: Any, leases: Any) -> None:
    def changes(of: list[BookedPod]) -> list[descheduling.Change]:
        return cooperative.run_at_once(descheduling.changes(agent_state(cluster_state(nodes, of, leases))))

    wanted = {one.pod.metadata.uid: one.is_wanted for one in changes(pods)}
    after = [
        told(pod, "gpu" if wanted[pod.metadata.uid] else None) if pod.metadata.uid in wanted else pod
        for pod in pods
    ]
    assert changes(after) == []
    for pod, now in zip(pods, after, strict=True):
        if now is not pod and now.metadata.labels and now.metadata.labels.deschedule:
            assert now.spec.nodeName in nodes
            assert not books.has_ended(now)


@given(PODS, LEDGERS, VERSIONS)
def test_what_is_loose_can_go_without_anybody_on_a_node_losing_what_he_holds(
    pods: Any, leases: Any, version: str
) -> None:
    nodes = {name: node() for name in NODES}
    given_world = cluster_state(nodes, pods, leases, version)
    found = agent_state(given_world)
    loose = cooperative.run_at_once(sweeping.loose(found, given_world.objects["ledgers"]))
    gone = {(one.node, one.uid) for one in loose}
    left = [_without(one, gone) for one in leases]
    after = agent_state(cluster_state(nodes, pods, left, version))
    on_node = {(pod.spec.nodeName, pod.metadata.uid) for pod in pods}
    for name in NODES:
        before = _held(found, name)
        kept = {
            uid: held for uid, held in before.items() if held.source == "ledger" and (name, uid) in on_node
        }
        assert kept.items() <= _held(after, name).items()
        assert not (after.nodes[name].books.stale if name in after.nodes else ())
    left_world = cluster_state(nodes, pods, left, version)
    assert cooperative.run_at_once(sweeping.loose(after, left_world.objects["ledgers"])) == []


@given(MARKED, PODS, LEDGERS, VERSIONS)
def test_a_fresh_list_of_the_same_differs_nowhere(nodes: Any, pods: Any, leases: Any, version: str) -> None:
    ours = agent_state(cluster_state(nodes, pods, leases, version))
    fresh = agent_state(cluster_state(nodes, reversed(pods), leases, version))
    texts = {name: one.holdings for name, one in ours.nodes.items()}
    differences = checking.differences(ours, fresh, Told(set(), set()), lambda name: texts[name])
    assert cooperative.run_at_once(differences) == []


def _held(found: Slot, name: str) -> dict[str, books.Held]:
    return dict(found.nodes[name].books.held) if name in found.nodes else {}


def _without(one: Any, gone: set[tuple[str, str]]) -> Any:
    name = one.metadata.name.removeprefix("gpu-")
    entries = ledgers.read(one).entries
    kept = {uid.replace("-", "_"): entry for uid, entry in entries.items() if (name, uid) not in gone}
    return lease(name, **kept)
