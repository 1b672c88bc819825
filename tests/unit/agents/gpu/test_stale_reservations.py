"""Reservations and allocation records to remove."""

from collections.abc import Iterable
from typing import Any

import pytest

from nodewise.agents.gpu import controller
from nodewise.agents.gpu.controller import UnconfirmedReservation
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.base import cooperative_scheduling
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    agent_state,
    cluster_state,
    entry,
    lease,
    lease_of,
    node,
    pod,
)

NODES = {"n1": node()}


def unconfirmed(
    pods: Iterable[AllocatedPod] = (), leases: Iterable[Any] = (), version: str = "10"
) -> list[UnconfirmedReservation]:
    cluster = cluster_state(NODES, pods, leases, version)
    return cooperative_scheduling.run_without_pauses(
        controller.unconfirmed_reservations(agent_state(cluster), cluster.objects["ledgers"])
    )


def orphaned_records(pods: Iterable[AllocatedPod], leases: Iterable[Any]) -> list[str]:
    cluster = cluster_state(NODES, pods, leases)
    records = cooperative_scheduling.run_without_pauses(
        controller.orphaned_records(agent_state(cluster), cluster.objects["ledgers"], NODES)
    )
    return [record.metadata.name for record in records]


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
def test_an_entry(pods: list[AllocatedPod], seen: str, why: Any, on: str) -> None:
    if on == "gone":
        pods = [
            pod("p", "gone")
            if pod_on_node.spec.nodeName == "n1" and pod_on_node.status.phase == "Running"
            else pod_on_node
            for pod_on_node in pods
        ]
    reservations = unconfirmed(pods, [lease(on, uid_p=entry("p", "card0", seen))])
    assert reservations == ([UnconfirmedReservation(on, "uid-p", ("d", "p"), seen, why)] if why else [])


def test_unreadable_reservations_are_not_removed() -> None:
    assert unconfirmed([], [lease("n1", uid_p=3), lease_of("gone", "{")]) == []


@pytest.mark.parametrize(
    ("record", "goes"),
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
def test_the_ledger_of_a_node_that_is_gone(record: Any, goes: bool) -> None:
    assert orphaned_records([pod("q", "gone", "card0")], [record]) == (["gpu-gone"] if goes else [])
