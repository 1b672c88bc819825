from random import Random
from typing import Any

import pytest

from nodewise.scheduling_model import (
    extender_client,
    parsed_nodes_and_pods,
    scheduler_plugins,
    scheduling_cycle,
)
from nodewise.scheduling_model.extender_client import ExtenderClient
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo, Pod
from nodewise.scheduling_model.scheduler_plugins import Rejection
from nodewise.scheduling_model.scheduling_cycle import Preemption, PreemptionContext
from tests.cluster import kubernetes_objects as made
from tests.unit.scheduling_model import fake_extender

NOT_NOW = Rejection(("Insufficient cpu",))
PREFIX = "preemption: "


def running(name: str, node: str, cpu: str = "3", priority: int = 0, started_s: float = 100) -> Pod:
    pod = parsed_nodes_and_pods.pod(made.running_on(node, made.pod(name, cpu=cpu, priority=priority)))
    return parsed_nodes_and_pods.bound(
        parsed_nodes_and_pods.pod_as_stored(pod, f"uid-{name}", 0), node, started_s
    )


def full(name: str, *pods: Pod) -> NodeInfo:
    """A node with four cores and these pods."""
    return parsed_nodes_and_pods.node_info_with_pods(parsed_nodes_and_pods.node(made.node(name)), pods)


def attempt(*infos: NodeInfo, extenders: list[ExtenderClient] | None = None, **fields: Any) -> Preemption:
    """The preemption attempt of a pod with priority 100 that requests three cores.

    `fields` may contain the `spec`, the `status` and the `rejections`.
    """
    spec, rejections = fields.get("spec", {}), fields.get("rejections")
    obj = made.pod("large", cpu="3", priority=100)
    pod = parsed_nodes_and_pods.pod(obj | {"spec": obj["spec"] | spec, "status": fields.get("status", {})})
    nodes = {info.name: info for info in infos}
    standard = scheduler_plugins.standard()
    seen = PreemptionContext(
        nodes,
        dict.fromkeys(nodes, NOT_NOW) if rejections is None else rejections,
        lambda info: scheduler_plugins.judge(standard, pod, info),
    )
    return scheduling_cycle.attempt(pod, seen, extenders or [], Random(0))


def names(preempted: Preemption) -> list[str]:
    return [pod.name for pod in preempted.victims]


def test_lesser_pods_go() -> None:
    preempted = attempt(full("a", running("small", "a")))
    assert (preempted.nominated, names(preempted)) == ("a", ["small"])
    placement = "found a potential placement for pod on node a, preempting 1 victims"
    assert preempted.message == f"{PREFIX}{placement}"


def test_no_more_go_than_have_to() -> None:
    small, tiny = running("small", "a", cpu="2"), running("tiny", "a", cpu="1")
    assert names(attempt(full("a", tiny, small))) == ["small"]


def test_the_more_important_stay_where_there_is_a_choice() -> None:
    old, young = running("old", "a", cpu="2"), running("young", "a", cpu="2", started_s=200)
    assert names(attempt(full("a", young, old))) == ["old", "young"]
    higher = running("higher", "a", cpu="1", priority=50)
    assert names(attempt(full("a", higher, running("lower", "a", cpu="3")))) == ["lower"]


CHOICES = {
    "the lowest of the highest priorities": (running("x", "a", priority=50), running("y", "b")),
    "the youngest work": (running("x", "a", started_s=100), running("y", "b", started_s=200)),
}


@pytest.mark.parametrize(("in_a", "in_b"), CHOICES.values(), ids=CHOICES)
def test_the_node_is_chosen_where_the_least_is_lost(in_a: Pod, in_b: Pod) -> None:
    assert attempt(full("a", in_a), full("b", in_b)).nominated == "b"
    assert attempt(full("b", in_b), full("a", in_a)).nominated == "b"


def test_fewer_victims_are_better() -> None:
    two = full("a", running("x", "a", cpu="2"), running("y", "a", cpu="2"))
    assert attempt(two, full("b", running("z", "b"))).nominated == "b"


def test_a_node_that_is_out_for_good_is_none() -> None:
    preempted = attempt(full("a", running("small", "a")), rejections={"a": NOT_NOW._replace(for_good=True)})
    no_help = "0/1 nodes are available: 1 Preemption is not helpful for scheduling."
    assert preempted == Preemption(f"{PREFIX}{no_help}", nominated="")


def test_nobody_of_no_lesser_priority_goes() -> None:
    preempted = attempt(full("a", running("peer", "a", priority=100)))
    assert (
        preempted.message
        == f"{PREFIX}0/1 nodes are available: 1 No preemption victims found for incoming pod."
    )


def test_where_it_would_not_fit_without_them_nobody_goes() -> None:
    both = full("a", running("peer", "a", cpu="2", priority=100), running("small", "a", cpu="1"))
    assert attempt(both).message == f"{PREFIX}0/1 nodes are available: 1 Insufficient cpu."


def test_a_pod_may_not_want_to_preempt() -> None:
    preempted = attempt(full("a", running("small", "a")), spec={"preemptionPolicy": "Never"})
    assert preempted == Preemption(f"{PREFIX}not eligible due to preemptionPolicy=Never.")


def test_who_waits_for_victims_to_go_takes_no_others() -> None:
    going = parsed_nodes_and_pods.pod_with_deletion_timestamp(running("small", "a"), end_s=130)
    preempted = attempt(full("a", going), full("b", running("other", "b")), status={"nominatedNodeName": "a"})
    assert preempted == Preemption(f"{PREFIX}not eligible due to a terminating pod on the nominated node.")


def test_kube_scheduler_cannot_make_sense_of_a_node_that_only_an_extender_rejected() -> None:
    room = full("a", running("small", "a", cpu="1"))
    preempted = attempt(room)
    assert preempted == Preemption('preemption: expected at least one victim pod on node "a"')
    assert attempt(room, full("b", running("other", "b"))).nominated == "b"


def asked(fake: fake_extender.FakeExtender, **fields: Any) -> ExtenderClient:
    (entry,) = extender_client.entries([{**fake_extender.ENTRY, **fields}])
    return ExtenderClient(entry, fake.transport)


def test_an_extender_has_a_word_in_it() -> None:
    fake = fake_extender.FakeExtender()
    node = full("a", running("small", "a"))
    with asked(fake) as extender:
        assert attempt(node, extenders=[extender]).nominated == "a"
        fake.broken = {"preempt"}
        failed = "failed preempt with extender at URL http://extender/scheduler/preempt, code 500"
        assert attempt(node, extenders=[extender]) == Preemption(f"preemption: {failed}")
    with asked(fake, ignorable=True) as extender:
        assert attempt(node, extenders=[extender]).nominated == "a"


@pytest.mark.parametrize(
    ("ignorable", "message"),
    [
        (False, 'preemption: expected at least one victim pod on node "a"'),
        (True, f"{PREFIX}no candidate node for preemption"),
    ],
)
def test_an_extender_that_names_no_victims_leaves_no_candidate(message: str, *, ignorable: bool) -> None:
    (entry,) = extender_client.entries([{**fake_extender.ENTRY, "ignorable": ignorable}])
    nobody = fake_extender.answering(body={"NodeNameToMetaVictims": {"a": {"Pods": None}}})
    with ExtenderClient(entry, nobody) as extender:
        assert attempt(full("a", running("small", "a")), extenders=[extender]).message == message


def test_a_hundred_candidates_are_enough() -> None:
    infos = [full(f"n{i}", running(f"p{i}", f"n{i}")) for i in range(150)]
    assert attempt(*infos).nominated in {f"n{i}" for i in range(150)}
