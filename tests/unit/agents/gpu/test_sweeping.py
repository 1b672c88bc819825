"""What is to be cleared out of ledgers."""

from collections.abc import Iterable
from typing import Any

import pytest

from nodewise import cooperative
from nodewise.agents.gpu import sweeping
from nodewise.agents.gpu.pods import BookedPod
from nodewise.agents.gpu.sweeping import Loose
from tests.unit.agents.gpu.facts import agent_state, cluster_state, entry, lease, lease_of, node, pod

NODES = {"n1": node()}


def loose(pods: Iterable[BookedPod] = (), leases: Iterable[Any] = (), version: str = "10") -> list[Loose]:
    given = cluster_state(NODES, pods, leases, version)
    return cooperative.run_at_once(sweeping.loose(agent_state(given), given.objects["ledgers"]))


def abandoned(pods: Iterable[BookedPod], leases: Iterable[Any]) -> list[str]:
    given = cluster_state(NODES, pods, leases)
    found = cooperative.run_at_once(sweeping.abandoned(agent_state(given), given.objects["ledgers"], NODES))
    return [one.metadata.name for one in found]


@pytest.mark.parametrize(
    ("pods", "seen", "why"),
    [
        ([pod("p", "n1")], "5", None),
        ([pod("p")], "5", "unbound"),
        ([], "11", "unknown"),
        ([], "10", "stale"),
        ([], "x", "unknown"),
        ([pod("p", uid="another")], "5", "stale"),
        ([pod("p", "n2")], "5", "stale"),
        ([pod("p", "n1", phase="Failed")], "5", "stale"),
    ],
    ids=["bound", "waiting", "not heard of yet", "gone", "no number", "made anew", "elsewhere", "ended"],
)
@pytest.mark.parametrize("on", ["n1", "gone"])
def test_an_entry(pods: list[BookedPod], seen: str, why: Any, on: str) -> None:
    if on == "gone":
        pods = [
            pod("p", "gone") if one.spec.nodeName == "n1" and one.status.phase == "Running" else one
            for one in pods
        ]
    found = loose(pods, [lease(on, uid_p=entry("p", "card0", seen))])
    assert found == ([Loose(on, "uid-p", ("d", "p"), seen, why)] if why else [])


def test_what_cannot_be_read_is_nobodys() -> None:
    assert loose([], [lease("n1", uid_p=3), lease_of("gone", "{")]) == []


@pytest.mark.parametrize(
    ("ledger", "goes"),
    [
        (lease("gone"), True),
        (lease("gone", uid_p=entry("p", "card0")), True),
        (lease("gone", uid_p=entry("p", "card0", "11")), False),
        (lease("gone", uid_q=entry("q", "card0")), False),
        (lease("gone", uid_p=3), False),
        (lease_of("gone", "{"), False),
        (lease("n1"), False),
    ],
    ids=["empty", "stale", "not heard of yet", "running", "unreadable entry", "unreadable", "node is there"],
)
def test_the_ledger_of_a_node_that_is_gone(ledger: Any, goes: bool) -> None:
    assert abandoned([pod("q", "gone", "card0")], [ledger]) == (["gpu-gone"] if goes else [])
