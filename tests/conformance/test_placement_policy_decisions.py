"""Decisions about a pod that several policies select: `decide`, `explain` and replay, with a real extender on files."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nodewise.cli import demo
from nodewise.cli.demo import ExtenderProcess
from tests import forked_commands, plain_http
from tests.filter_responses import rejected_nodes

NODEWISE = Path(sys.executable).parent / "nodewise"
NODES = ["n1", "n2", "n3"]
COOL, WIDE, RANK = "placement policy web/cool", "cluster placement policy wide", "placement policy web/rank"
TAS = "telemetry policy web/old"

OBJECTS = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Node, metadata: {name: n1}}
- {apiVersion: v1, kind: Node, metadata: {name: n2}}
- {apiVersion: v1, kind: Node, metadata: {name: n3}}
- {apiVersion: v1, kind: Namespace, metadata: {name: web, labels: {team: a}}}
- apiVersion: v1
  kind: Pod
  metadata: {name: shop, namespace: web, labels: {app: shop}}
  spec: {containers: [{name: c, image: i}]}
- apiVersion: v1
  kind: Pod
  metadata: {name: free, namespace: web, labels: {app: other}}
  spec: {containers: [{name: c, image: i}]}
- apiVersion: nodewise.io/v1alpha1
  kind: PlacementPolicy
  metadata: {name: cool, namespace: web}
  spec:
    podSelector: {matchLabels: {app: shop}}
    avoid: [{metric: heat, above: 80}]
- apiVersion: nodewise.io/v1alpha1
  kind: ClusterPlacementPolicy
  metadata: {name: wide}
  spec:
    namespaceSelector: {matchLabels: {team: a}}
    podSelector: {matchLabels: {app: shop}}
    avoid:
    - all: [{metric: dust, atLeast: 5}, {metric: load, above: 1}]
- apiVersion: nodewise.io/v1alpha1
  kind: PlacementPolicy
  metadata: {name: rank, namespace: web}
  spec:
    podSelector: {}
    prefer: [{metric: load, order: Descending, weight: 2}, {metric: heat, order: Ascending}]
"""
METRICS = """node,metric,value
n1,heat,85
n2,heat,70
n3,heat,90
n1,dust,1
n2,dust,5
n3,dust,9
n1,load,0
n2,load,2
n3,load,2
"""
STATUS = """- apiVersion: nodewise.io/v1alpha1
  status:
    rules:
    - rule: avoid[0]
      expression: heat above 80 (release 60)
      nodeStates: [{state: Rejected, since: "2026-11-23T10:00:00Z", nodes: [n2]}]
"""
OLDER = """
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: old, namespace: web}
spec: {strategies: {dontschedule: {rules: [{metricname: heat, operator: LessThan, target: 75}]}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    objects = tmp_path / "objects"
    objects.mkdir()
    (objects / "objects.yaml").write_text(OBJECTS)
    (objects / "metrics.csv").write_text(METRICS)
    return objects


def run(*arguments: Any) -> Any:
    return forked_commands.run([NODEWISE, *arguments])


def body(*, labels: dict[str, str] | None = None) -> bytes:
    metadata = {"name": "shop", "namespace": "web", "uid": "u", "labels": {"app": "shop", **(labels or {})}}
    return json.dumps({"Pod": {"metadata": metadata}, "NodeNames": NODES}).encode()


def ask(extender: ExtenderProcess, verb: str = "filter", **of_pod: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    return plain_http.post(f"{extender.url}/scheduler/{verb}", content=body(**of_pod), headers=headers).json()


def test_decide_names_every_policy_and_the_nodes_it_rejects(folder: Path) -> None:
    done = run("decide", folder, "-o", "json")
    shop, free = (
        next(
            decision for decision in json.loads(done.stdout)["decisions"] if decision["pod"] == f"web/{name}"
        )
        for name in ("shop", "free")
    )
    assert done.returncode == 3
    assert shop["feasible"] == []
    assert shop["policies"] == {
        COOL: {"agent": "telemetry", "rejected": ["n1", "n3"]},
        WIDE: {"agent": "telemetry", "rejected": ["n2", "n3"]},
        RANK: {"agent": "telemetry", "rejected": []},
    }
    assert {value["policy"] for value in shop["values"]} == {COOL, WIDE}
    assert (free["feasible"], free["policies"]) == (NODES, {RANK: {"agent": "telemetry", "rejected": []}})
    expected = {("load", RANK, 2), ("heat", RANK, None)}
    assert {(value["metric"], value["policy"], value.get("weight")) for value in free["values"]} == expected


def test_the_table_of_decide_names_the_policies(folder: Path) -> None:
    (row,) = (line for line in run("decide", folder).stdout.splitlines() if "web/shop" in line)
    assert f"2 {COOL}: heat above 80" in row
    assert f"1 {WIDE}: dust atLeast 5 and load above 1" in row


def test_explain_names_both_policies_that_together_reject_every_node(folder: Path) -> None:
    with demo.extender([f"--objects-from={folder}"]) as extender:
        extender.wait_ready()
        assert ask(extender)["NodeNames"] == []
        done = run("explain", "web/shop", "--server", extender.health_url)
    lines = done.stdout.splitlines()
    assert lines[2:5] == [
        f"{COOL} rejects 2 of the 3 nodes",
        f"{WIDE} rejects 2 of the 3 nodes",
        "no policy alone rejects every node",
    ]
    ending = [line.strip() for line in lines[lines.index("What would have changed it:") + 1 :]]
    assert f"heat above in {COOL}: 1 more node passes at 85 instead of 80" in ending
    assert f"load above in {WIDE}: 1 more node passes at 2 instead of 1" in ending
    assert f"without {COOL}: 1 more node passes" in ending
    assert f"without {WIDE}: 1 more node passes" in ending


def test_explain_names_a_policy_that_only_ranks_nodes(folder: Path) -> None:
    with demo.extender([f"--objects-from={folder}"]) as extender:
        extender.wait_ready()
        for verb in ("filter", "prioritize"):
            ask(extender, verb, labels={"app": "other"})
        wide = run("explain", "web/shop", "--server", extender.health_url, "-o", "wide").stdout
    assert f"{RANK} ranks the nodes and rejects none" in wide.splitlines()
    assert "load Descending (ranks, weight 2)" in wide
    assert "heat Ascending (ranks)" in wide


def test_policies_of_all_kinds_are_replayed(folder: Path, tmp_path: Path) -> None:
    """Also with another policy in place of the recorded one."""
    (folder / "older.yaml").write_text(OLDER)
    file = tmp_path / "recording.gz"
    named = {"telemetry-policy": "old"}
    with demo.extender([f"--objects-from={folder}", f"--record={file}"]) as extender:
        extender.wait_ready()
        for verb in ("filter", "prioritize"):
            for labels in ({}, named, {"telemetry-policy": "absent"}):
                ask(extender, verb, labels=labels)
        failed = rejected_nodes(ask(extender, labels=named))
    assert failed["n2"].startswith(TAS)
    report = json.loads(run("simulate", "replay", file, "-o", "json").stdout)
    assert (report["differences"], report["same"], report["requests"]) == ([], 7, 7)
    lax = tmp_path / "lax.yaml"
    lax.write_text(
        "apiVersion: nodewise.io/v1alpha1\nkind: PlacementPolicy\nmetadata: {name: cool, namespace: web}\n"
        "spec: {podSelector: {matchLabels: {app: shop}}, avoid: [{metric: heat, above: 85}]}\n"
    )
    changed = run("simulate", "replay", file, "-o", "json", "--policy", lax)
    assert changed.returncode == 3
    assert {"node": "n1", "recorded": f"{COOL}: heat above 80", "replayed": "kept"} in [
        node for difference in json.loads(changed.stdout)["differences"] for node in difference["nodes"]
    ]


def test_states_of_nodes_in_the_status_apply_to_every_command(folder: Path, tmp_path: Path) -> None:
    """The heat of n2 is below the threshold and not yet below `release`: only the status says that it is rejected."""
    objects = OBJECTS.replace("above: 80", "above: 80, release: 60")
    (folder / "objects.yaml").write_text(objects.replace("- apiVersion: nodewise.io/v1alpha1\n", STATUS, 1))
    (folder / "metrics.csv").write_text(METRICS.replace("n2,dust,5", "n2,dust,1"))
    text = f"{COOL}: heat above 80 (release 60)"
    done = json.loads(run("decide", folder, "-o", "json").stdout)
    shop = next(decision for decision in done["decisions"] if decision["pod"] == "web/shop")
    assert shop["rejected"]["n2"] == [{"agent": "telemetry", "reason": text}]
    file = tmp_path / "recording.gz"
    with demo.extender([f"--objects-from={folder}", f"--record={file}"]) as extender:
        extender.wait_ready()
        assert rejected_nodes(ask(extender))["n2"].startswith(text)
    report = json.loads(run("simulate", "replay", file, "-o", "json").stdout)
    assert (report["differences"], report["same"], report["requests"]) == ([], 1, 1)
