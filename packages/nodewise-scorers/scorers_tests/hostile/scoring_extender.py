"""A clusterless extender with the scoring agents, and its scores."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.hostile import response_checks
from tests.hostile.extender_process import AttackedExtender, RawConnection
from tests.hostile.json_strategies import encoded

from scorers_tests.hostile import scoring_inputs
from scorers_tests.hostile.scoring_inputs import RESOURCES, body, node, pod

GOOD: Final = {
    "mean-free-cpu": "3000", "std-free-cpu": "100", "mean-free-memory": str(6 * 2**30), "std-free-memory": "1000",
    "congestion-factor": "20", **{f"requested-{resource}": "1" for resource in RESOURCES},
}  # fmt: skip
CLUSTERLESS: Final = ("--no-cluster", "--agents", scoring_inputs.AGENTS, "--num-resources", "5")


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[AttackedExtender]:
    """Runs an extender with these flags, and checks at the end that no request, agent or task failed."""
    with AttackedExtender(folder, options) as target:
        yield target
        assert target.process.is_running
        for event in ("request_failed", "agent_failed", "task_failed"):
            assert not target.events(event)


@contextlib.contextmanager
def connected(target: AttackedExtender) -> Iterator[RawConnection]:
    """One connection for all bodies; no response closes it, and at the end the extender still scores correctly."""
    with target.line() as line:
        yield line
        nodes = [node("n1", GOOD), node("n2", {**GOOD, "congestion-factor": "55"})]
        assert scores(line, "/scheduler/priorities/congestion", pod(), nodes) == [8, 5]


def scores(line: RawConnection, path: str, pod: Any, nodes: Sequence[Any]) -> list[int]:
    """The scores of nodes in their order, after a check of the response."""
    answer = line.ask(path, encoded(body(pod, nodes)))
    assert answer.status == 200, answer.body[:300]
    names = [node["metadata"]["name"] for node in nodes]
    response_checks.check_scored(answer, names)
    priorities = json.loads(answer.body)
    assert [priority["Host"] for priority in priorities] == names
    return [priority["Score"] for priority in priorities]
