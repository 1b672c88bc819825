"""Risk, the predicate and both priorities of the safe agent in a real process."""

import json
from collections.abc import Iterator

import pytest
from tests.filter_responses import rejected_nodes

from scorers_tests.conformance import case_table_rows, extender_processes
from scorers_tests.conformance.case_table_rows import CongestionRow, NodeRow, NumberedRow, RiskRow
from scorers_tests.conformance.extender_processes import ExtenderPool, Object, RunningExtender

RISKS = case_table_rows.read("risk", RiskRow)
NODES = case_table_rows.read("endtoend", NodeRow)
CONGESTION = case_table_rows.read("congestion", CongestionRow)
PREDICATE = "/scheduler/predicates/safe-overload"


def process(extenders: ExtenderPool, row: NumberedRow, **more: str) -> RunningExtender:
    """The process with the row's environment. Its log must have the row's warning and no other."""
    extender = extenders.extender_with(row.environment | more)
    warned = {event["variable"] for event in extender.events("variable_ignored")}
    assert warned == ({row.warned} if row.warned else set())
    return extender


def passes(extender: RunningExtender, body: Object) -> bool:
    answer = extender.ask(PREDICATE, body)
    passed = [node["metadata"]["name"] for node in answer["Nodes"]["items"]]
    assert (not passed) == bool(rejected_nodes(answer))
    return bool(passed)


def risky(name: str, row: RiskRow) -> Object:
    """A node with 4 CPUs, annotated with the CPU statistics of a row."""
    free, deviation = 4000 * (1 - row.mean), 4000 * row.deviation
    annotations = {"mean-free-cpu": f"{free:.12g}", "std-free-cpu": f"{deviation:.12g}"}
    return extender_processes.node(name, {"cpu": 4, "memory": "8Gi"}, annotations)


def annotated(name: str, row: NodeRow) -> Object:
    """A node with the annotations of a row."""
    annotations = {"forcasted-free-cpu": row.forecast, "forcasted-free-memory": row.memory_forecast}
    for resource, statistics in (("cpu", row.cpu), ("memory", row.memory)):
        annotations |= dict(zip((f"mean-free-{resource}", f"std-free-{resource}"), statistics, strict=False))
    return extender_processes.node(name, row.allocatable, annotations)


@pytest.mark.parametrize("row", RISKS, ids=lambda row: row.id)
def test_risk(extenders: ExtenderPool, row: RiskRow) -> None:
    environment = {"SAFEUTILIZATION": str(row.threshold), "SAFEPERCENTILE": str(row.percentile)}
    extender = process(extenders, row, **environment)
    pod = extender_processes.pod({})
    body = extender_processes.request(pod, [risky("n1", row)])
    assert passes(extender, body) == row.passes
    assert extender.scores("safe-overload", body) == {"n1": row.overload}
    assert extender.numbers("safe", pod["metadata"]["name"])["n1"]["cpu"]["risk"] == pytest.approx(
        row.risk, abs=1e-5
    )
    if row.balance is not None:
        assert extender.scores("safe-balance", body) == {"n1": row.balance}


@pytest.mark.parametrize("row", NODES, ids=lambda row: row.id)
def test_node(extenders: ExtenderPool, row: NodeRow) -> None:
    extender = process(extenders, row)
    pod = extender_processes.pod(*(row.requests or [row.request]))
    body = extender_processes.request(pod, [annotated("n1", row)])
    assert passes(extender, body) == row.passes
    assert extender.scores("safe-overload", body) == {"n1": row.overload}
    if row.balance is not None:
        assert extender.scores("safe-balance", body) == {"n1": row.balance}
    numbers = extender.numbers("safe", pod["metadata"]["name"])["n1"]
    actual = {
        "means": {name: numbers[name]["mean_share"] for name in row.means},
        "risks": {name: numbers[name]["risk"] for name in row.risks},
    }
    assert actual["means"] == pytest.approx(row.means, abs=1e-9)
    assert actual["risks"] == pytest.approx(row.risks, abs=1e-5)
    if row.missing:
        assert [name for name in numbers if numbers[name].get("missing")] == row.missing


@pytest.mark.parametrize("row", CONGESTION, ids=lambda row: row.id)
def test_congestion(extenders: ExtenderPool, row: CongestionRow) -> None:
    extender = process(extenders, row)
    names = [f"n{number}" for number in range(len(row.factors))]
    nodes = [
        extender_processes.node(name, {"cpu": 4}, {"congestion-factor": factor})
        for name, factor in zip(names, row.factors, strict=True)
    ]
    scores = extender.scores("congestion", {"pod": extender_processes.pod({}), "nodes": {"items": nodes}})
    assert scores == dict(zip(names, row.scores, strict=True))


# the same rows with a cluster in a file: the process knows all nodes, and requests name them

KNOWN = {
    **{f"risk-{at}": row for at, row in enumerate(RISKS) if (row.threshold, row.percentile) == (90, 30)},
    **{f"node-{at}": row for at, row in enumerate(NODES) if not row.environment},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExtender]:
    folder = tmp_path_factory.mktemp("cluster")
    made = [
        risky(name, row) if isinstance(row, RiskRow) else annotated(name, row) for name, row in KNOWN.items()
    ]
    items = [{"apiVersion": "v1", "kind": "Node", **node} for node in made]
    (folder / "cluster.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    with extender_processes.running(folder, {}, "--agents=safe", "--objects-from=cluster.json") as extender:
        yield extender


@pytest.mark.parametrize("name", KNOWN)
def test_names(cluster: RunningExtender, name: str) -> None:
    row = KNOWN[name]
    requests = (row.requests or [row.request]) if isinstance(row, NodeRow) else [{}]
    body = {"pod": extender_processes.pod(*requests), "nodenames": [name]}
    answer = cluster.ask(PREDICATE, body)
    assert answer["NodeNames"] == ([name] if row.passes else [])
    assert set(rejected_nodes(answer)) == (set() if row.passes else {name})
    assert cluster.scores("safe-overload", body) == {name: row.overload}
    if row.balance is not None:
        assert cluster.scores("safe-balance", body) == {name: row.balance}
