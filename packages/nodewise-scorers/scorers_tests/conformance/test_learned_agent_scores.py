"""Scores of the learned agent from stored rewards, in real processes with a cluster in files."""

import json
import time
from pathlib import Path

import pytest
from tests.cluster.namespace_sandboxes import wait

from scorers_tests.conformance import case_table_rows, extender_processes
from scorers_tests.conformance.case_table_rows import StoredRewardsRow
from scorers_tests.conformance.extender_processes import RunningExtender

NODES = ["n1", "n2", "n3"]
PATIENCE_S = 60


def write(folder: Path, row: StoredRewardsRow) -> None:
    """Write a cluster of three nodes, and the stored rewards of pods of type D."""
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in NODES]
    (folder / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    now = int(time.time())
    pairs = {name: [reward, 1, 1, now] for name, reward in row.rewards.items()}
    kept = {"version": 1, "until": now, "types": {"d/D": pairs} if pairs else {}}
    (folder / "memory.json").write_text(json.dumps({"learned": kept}))


@pytest.mark.parametrize("row", case_table_rows.read("kept", StoredRewardsRow), ids=lambda row: row.id)
def test_rewards_that_were_kept(tmp_path: Path, row: StoredRewardsRow) -> None:
    write(tmp_path, row)
    flags = [
        "--agents=learned",
        "--objects-from=cluster.json",
        "--state=memory.json",
        "--learned-half-life=0s",
    ]
    with extender_processes.running(tmp_path, {}, *flags) as extender:
        wait("scores", lambda: scores(extender) == row.scores, PATIENCE_S)


def scores(extender: RunningExtender) -> list[int]:
    body = {"pod": extender_processes.pod({}, metadata={"labels": {"podtype": "D"}}), "nodenames": NODES}
    scores_by_node = extender.scores("rl-priority", body)
    return [scores_by_node[name] for name in NODES]
