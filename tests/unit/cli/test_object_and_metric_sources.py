"""The pods that wait for a feasible node."""

from typing import Any

import msgspec
import pytest

from nodewise import agents
from nodewise.cli import object_and_metric_sources
from nodewise.cli.object_and_metric_sources import (
    MOST_WAITING_POD_BYTES,
)
from nodewise.engine.agent_chain import AgentChain


def test_the_largest_waiting_pod() -> None:
    """A larger one is not stored, whichever of the fields that agents read are large."""
    kind = agents.load("gpu")
    chain = AgentChain([kind.agent(kind.options())])
    target = object_and_metric_sources.waiting_pods_target([kind], chain)
    assert target.keep is not None

    def waiting_pod(allowed: str) -> Any:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        device = {"resources": {"limits": {"gpu.intel.com/i915": "1"}}}
        document = {
            "metadata": {"name": "a", "annotations": {"gas-allow": allowed}},
            "spec": {"containers": [device]},
            "status": {"conditions": [condition]},
        }
        return msgspec.convert(document, target.type)

    rest = MOST_WAITING_POD_BYTES - len(msgspec.json.encode(waiting_pod("")))
    for size in (rest, rest + 1):
        pod = waiting_pod("x" * size)
        if size == rest:
            assert target.keep(pod) is pod
            continue
        with pytest.raises(
            ValueError, match=f"have {MOST_WAITING_POD_BYTES + 1} bytes, and only a pod with at most"
        ):
            target.keep(pod)
