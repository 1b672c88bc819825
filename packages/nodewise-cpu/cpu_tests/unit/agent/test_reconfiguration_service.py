"""The authorization of reconfigurations."""

import pytest

from nodewise.base.errors import Refused
from nodewise_cpu.agent.allocation_service import ReconfigurationAuthorizer
from nodewise_cpu.agent.socket_server import PeerProcess
from nodewise_cpu.cluster.api_server import Object
from nodewise_cpu.pool_allocations import Task

HOST, POD = Task(17, 5, "boot"), Task(17, 5, "boot", "uid-1", "container")


class FakePodLookup:
    """A node with one pod, in this namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def pod(self, uid: str) -> Object | None:
        return {"metadata": {"namespace": self._namespace}} if uid == POD.pod else None


def test_root_on_the_host_may() -> None:
    ReconfigurationAuthorizer(None, "").check(PeerProcess(HOST, 0))


def test_root_in_a_pod_of_the_agents_own_namespace_may() -> None:
    ReconfigurationAuthorizer(FakePodLookup("ours"), "ours").check(PeerProcess(POD, 0))


@pytest.mark.parametrize(
    ("guard", "peer"),
    [
        (ReconfigurationAuthorizer(FakePodLookup("ours"), "ours"), PeerProcess(HOST, 1000)),
        (ReconfigurationAuthorizer(FakePodLookup("ours"), "ours"), PeerProcess(POD, 1000)),
        (ReconfigurationAuthorizer(FakePodLookup("theirs"), "ours"), PeerProcess(POD, 0)),
        (
            ReconfigurationAuthorizer(FakePodLookup("ours"), "ours"),
            PeerProcess(POD._replace(pod="another"), 0),
        ),
        (ReconfigurationAuthorizer(FakePodLookup(""), ""), PeerProcess(POD, 0)),
        (ReconfigurationAuthorizer(None, "ours"), PeerProcess(POD, 0)),
    ],
    ids=["a user", "a user in our pod", "a tenant's root", "nobody's pod", "no namespace", "no API server"],
)
def test_other_processes_are_not_authorized(guard: ReconfigurationAuthorizer, peer: PeerProcess) -> None:
    with pytest.raises(Refused, match="cannot reconfigure the node"):
        guard.check(peer)
