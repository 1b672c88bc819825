"""Not everybody may have a node reconfigured."""

import pytest

from nodewise.cpu.agent.reconfiguration_service import ReconfigurationAuthorizer
from nodewise.cpu.api_client import Object
from nodewise.cpu.node.peer_credentials import Peer
from nodewise.cpu.pool_allocations import Task
from nodewise.errors import Refused

HOST, POD = Task(17, 5, "boot"), Task(17, 5, "boot", "uid-1", "container")


class Pods:
    """Of a node with one pod, in this namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def pod(self, uid: str) -> Object | None:
        return {"metadata": {"namespace": self._namespace}} if uid == POD.pod else None


def test_root_on_the_host_may() -> None:
    ReconfigurationAuthorizer(None, "").check(Peer(HOST, 0))


def test_root_in_a_pod_of_the_agents_own_namespace_may() -> None:
    ReconfigurationAuthorizer(Pods("ours"), "ours").check(Peer(POD, 0))


@pytest.mark.parametrize(
    ("guard", "peer"),
    [
        (ReconfigurationAuthorizer(Pods("ours"), "ours"), Peer(HOST, 1000)),
        (ReconfigurationAuthorizer(Pods("ours"), "ours"), Peer(POD, 1000)),
        (ReconfigurationAuthorizer(Pods("theirs"), "ours"), Peer(POD, 0)),
        (ReconfigurationAuthorizer(Pods("ours"), "ours"), Peer(POD._replace(pod="another"), 0)),
        (ReconfigurationAuthorizer(Pods(""), ""), Peer(POD, 0)),
        (ReconfigurationAuthorizer(None, "ours"), Peer(POD, 0)),
    ],
    ids=["a user", "a user in our pod", "a tenant's root", "nobody's pod", "no namespace", "no API server"],
)
def test_nobody_else_may(guard: ReconfigurationAuthorizer, peer: Peer) -> None:
    with pytest.raises(Refused, match="cannot reconfigure the node"):
        guard.check(peer)
