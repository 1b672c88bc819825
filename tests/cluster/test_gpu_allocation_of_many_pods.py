"""Many pods and two replicas, of which one is killed: no GPU is allocated twice, and none is lost."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import short_and_long_case_counts
from tests.cluster import gpu_agent_replicas, gpu_cluster
from tests.cluster.api_client import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.gpu_agent_replicas import GpuReplicas, PodHistory
from tests.cluster.namespace_sandboxes import Sandbox, wait

NODES, CARDS = short_and_long_case_counts.of(24, 50), 8
TRIPLES, SINGLES = 3 * NODES // 2, 5 * NODES // 2
"""The numbers of pods that request three GPUs and one GPU. Together they use seven of eight GPUs."""
PODS = TRIPLES + SINGLES
MILLICORES = f"{gpu_cluster.PREFIX}millicores"
WANTED = 600
"""Millicores per GPU, of 1000: two pods do not fit on one GPU, although the node's total suffices for 13."""


def wave(name: str) -> list[Object]:
    """The pods of a wave. Those with three GPUs come first, while nodes with three free GPUs exist."""
    triples = [
        gpu_cluster.pod(f"{name}-three-{number}", 3, millicores=3 * WANTED) for number in range(TRIPLES)
    ]
    singles = [gpu_cluster.pod(f"{name}-one-{number}", 1, millicores=WANTED) for number in range(SINGLES)]
    return [*triples, *singles]


class PodWaves:
    """Creates waves of pods and checks their history."""

    def __init__(self, sandbox: Sandbox, made: GpuReplicas, history: PodHistory) -> None:
        self.sandbox = sandbox
        self.replicas = made
        self.history = history

    def submit(self, name: str) -> None:
        for pod in wave(name):
            self.sandbox.api.request("POST", self.history.place, json=pod)

    def delete_all(self, grace_s: int) -> None:
        self.sandbox.api.request("DELETE", self.history.place, params={"gracePeriodSeconds": str(grace_s)})

    def expect_holders(self, count: int) -> None:
        """Waits until each replica knows that this number of pods hold GPUs."""
        for replica in self.replicas.running:
            held = functools.partial(gpu_agent_replicas.held_gpus, replica)
            wait(
                f"{count} pods hold GPUs",
                lambda held=held: sum(map(len, held().values())) == count or None,
                show=held,
            )


@pytest.fixture
def flood(plane: ControlPlane, sandbox: Sandbox, tmp_path: Path) -> Iterator[PodWaves]:
    sandbox.nodes(
        *(gpu_cluster.node(f"n{number}", CARDS, shares=2, millicores=1000) for number in range(NODES))
    )
    with (
        gpu_agent_replicas.behind_a_service(plane, tmp_path, 2) as made,
        gpu_agent_replicas.record_history(sandbox) as history,
        plane.start_scheduler({"extenders": [made.entry()], "podInitialBackoffSeconds": 1}),
    ):
        yield PodWaves(sandbox, made, history)


def test_no_card_is_ever_given_twice_and_none_is_lost(flood: PodWaves) -> None:
    history, made = flood.history, flood.replicas
    flood.submit("killed")
    history.wait_bound(PODS // 4)
    made.kill(made.running[0])
    made.start()
    history.wait_bound(PODS)
    flood.expect_holders(PODS)  # a replica that has not bound a pod learns of it later
    flood.delete_all(30)
    for replica in made.running:
        assert sum(map(len, gpu_agent_replicas.held_gpus(replica).values())) == PODS, (
            "who terminates still uses its cards"
        )
    flood.delete_all(0)
    history.wait_empty()
    flood.expect_holders(0)

    flood.submit("forced")
    history.wait_bound(PODS)
    flood.delete_all(0)
    history.wait_empty()
    flood.expect_holders(0)

    flood.submit("alone")
    history.wait_bound(PODS)
    while made.running:
        made.kill(made.running[0])
    flood.delete_all(0)
    history.wait_empty()
    for _ in range(2):
        made.start()
    flood.expect_holders(0)
    flood.submit("last")
    history.wait_bound(PODS)

    most = history.most_held(MILLICORES)
    assert len(most) > 3 * TRIPLES + SINGLES
    assert set(most.values()) == {WANTED}
