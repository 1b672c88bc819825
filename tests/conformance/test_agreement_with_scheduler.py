"""`explain` and `decide` agree with kube-scheduler's decisions for random policies and clusters.

The scheduler is the simulated one, which passes the real one's suite (tests/cluster/test_scheduler_extender_calls.py).
"""

import itertools
import json
import re
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import structlog
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nodewise.cli import demo
from nodewise.cli.demo import ExtenderProcess
from nodewise.cli.main import command
from nodewise.scheduling_model.simulated_cluster import Cluster
from tests.cluster import kubernetes_objects
from tests.cluster.extender_process import tas_policy
from tests.filter_responses import rejected_nodes

Json = dict[str, Any]
TOGETHER = 10
"""Clusters in one extender at a time: most of the time is spent waiting until it has read them."""

_numbers = itertools.count(1)
_http = httpx2.Client(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False)
"""Without the system's certificates, because reading them takes longer than any response here."""

RULE = st.fixed_dictionaries(
    {
        "metricname": st.sampled_from("ab"),
        "operator": st.sampled_from(["LessThan", "GreaterThan", "Equals"]),
        "target": st.integers(0, 6),
    },
    optional={"when_missing": st.sampled_from(["pass", "reject"])},
)
VALUES = st.lists(st.none() | st.integers(0, 6) | st.sampled_from(["1500m", "2.25"]), min_size=5, max_size=5)


class DrawnCluster(NamedTuple):
    """The drawn contents of one cluster."""

    nodes: int
    rules: list[Json]
    logical: str
    prefers: Json | None
    values: dict[str, list[Any]]
    """The values of each node, by metric. A metric that is left out was never fetched."""
    exists: bool
    """Whether the policy that the pods name exists."""
    pods: int


DRAWS = st.builds(
    DrawnCluster,
    nodes=st.integers(1, 5),
    rules=st.lists(RULE, max_size=3),
    logical=st.sampled_from(["anyOf", "allOf"]),
    prefers=st.none() | RULE.filter(lambda rule: rule["operator"] != "Equals"),
    values=st.fixed_dictionaries({"a": VALUES}, optional={"b": VALUES}),
    exists=st.sampled_from([True] * 9 + [False]),
    pods=st.integers(1, 2),
)


class PrefixedCluster:
    """A drawn cluster with unique names, so that one extender can read many of them, and its files."""

    def __init__(self, draw: DrawnCluster, folder: Path) -> None:
        self.namespace = f"w{next(_numbers)}"
        self.draw = draw
        self.nodes = [f"{self.namespace}-n{number}" for number in range(draw.nodes)]
        self.pods = [self._pod(f"p{number}") for number in range(draw.pods)]
        self._files = [folder / f"{self.namespace}-{name}" for name in ("objects.json", "values.csv")]

    def metric(self, name: str) -> str:
        return f"{self.namespace}_{name}"

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """The values of each metric by node. Metrics without values are left out."""
        values_by_node = {
            self.metric(name): {n: v for n, v in zip(self.nodes, values, strict=False) if v is not None}
            for name, values in self.draw.values.items()
        }
        return {name: values for name, values in values_by_node.items() if values}

    @property
    def named(self) -> set[str]:
        """The metrics that the policy names."""
        rules = [*self.draw.rules, *([self.draw.prefers] if self.draw.prefers else [])]
        return {self.metric(rule["metricname"]) for rule in rules} if self.draw.exists else set()

    def policy(self, number: int = -1, **fields: Any) -> Json:
        """The policy, with some fields of one rule changed."""
        rules = [rule | {"metricname": self.metric(rule["metricname"])} for rule in self.draw.rules]
        if fields:
            rules[number] |= fields
        strategies: Json = {}
        if rules:
            strategies["dontschedule"] = {"rules": rules, "logicalOperator": self.draw.logical}
        if prefers := self.draw.prefers:
            named = prefers | {"metricname": self.metric(prefers["metricname"])}
            strategies["scheduleonmetric"] = {"rules": [named]}
        return tas_policy("pol", strategies, self.namespace)

    def _pod(self, name: str) -> Json:
        pod = kubernetes_objects.pod(
            name, labels={"telemetry-policy": "pol"}, limits={"telemetry/scheduling": "1"}
        )
        return pod | {"metadata": pod["metadata"] | {"namespace": self.namespace}}

    @property
    def cluster(self) -> list[Json]:
        return [kubernetes_objects.node(name) for name in self.nodes]

    def write(self) -> list[str]:
        """Write the files of this cluster. The extender reads them with those of others, `decide` reads them alone."""
        listed = [*self.cluster, *self.pods, *([self.policy()] if self.draw.exists else [])]
        self._files[0].write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": listed}))
        rows = [f"{n},{metric},{v}\n" for metric, values in self.metrics.items() for n, v in values.items()]
        self._files[1].write_text("".join(rows))
        return [str(file) for file in self._files]

    def remove(self) -> None:
        for file in self._files:
            file.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("worlds")
    structlog.reset_defaults()  # the commands of the tests ran in this process
    _http.close()


@pytest.fixture(scope="module")
def extender(folder: Path) -> Iterator[ExtenderProcess]:
    first = PrefixedCluster(DrawnCluster(1, [], "anyOf", None, {}, True, 1), folder)
    first.write()
    with demo.extender([f"--objects-from={folder}", "--sync-period=100ms"]) as running:
        running.wait_ready()
        yield running


def command_output(*arguments: str) -> tuple[int, Json]:
    """The exit code and the JSON output of a command."""
    done = CliRunner().invoke(command, [*arguments, "-o", "json"])
    return done.exit_code, json.loads(done.stdout)


def decide_all(files: list[str], *more: str) -> dict[str, Json]:
    """The decisions of `nodewise decide`, by pod."""
    code, report = command_output("decide", *files, *more)
    by_pod = {decision["pod"]: decision for decision in report["decisions"]}
    assert code == (0 if all(decision["feasible"] for decision in by_pod.values()) else 3)
    return by_pod


def until_read(extender: ExtenderProcess, clusters: list[PrefixedCluster]) -> None:
    """Wait until the extender's snapshot holds the policies and metrics of all these clusters."""
    wanted = {
        metric for cluster_state in clusters for metric in cluster_state.named & cluster_state.metrics.keys()
    }
    end = time.monotonic() + 60
    while not all(
        _knows_policy(extender, cluster_state) for cluster_state in clusters if cluster_state.draw.exists
    ):
        assert time.monotonic() < end, "policies are not read"
        time.sleep(0.02)
    while not wanted <= set(re.findall(r'nodewise_metric_age_seconds\{metric="(\w+)"', _metrics(extender))):
        assert time.monotonic() < end, "metrics are not fetched"
        time.sleep(0.02)
    seen = _generation(extender)
    while _generation(extender) < seen + 2:
        assert time.monotonic() < end, "no new view"
        time.sleep(0.02)


def _metrics(extender: ExtenderProcess) -> str:
    return _http.get(f"{extender.health_url}/metrics").text


def _generation(extender: ExtenderProcess) -> float:
    return float(re.findall(r"^nodewise_view_generation (\S+)", _metrics(extender), re.MULTILINE)[0])


def _knows_policy(extender: ExtenderProcess, cluster_state: PrefixedCluster) -> bool:
    probe = cluster_state.pods[0] | {"metadata": cluster_state.pods[0]["metadata"] | {"name": "probe"}}
    body = {"Pod": probe, "NodeNames": cluster_state.nodes}
    answer = _http.post(f"{extender.url}/scheduler/filter", json=body).json()
    return "does not exist" not in str(rejected_nodes(answer))


@given(st.lists(DRAWS, min_size=TOGETHER, max_size=TOGETHER))
@settings(
    max_examples=50 // TOGETHER,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking a failing case takes minutes
)
def test_reported_placements_equal_those_of_the_scheduler(
    folder: Path, extender: ExtenderProcess, draws: list[DrawnCluster]
) -> None:
    clusters = [PrefixedCluster(draw, folder) for draw in draws]
    files = [cluster_state.write() for cluster_state in clusters]
    try:
        until_read(extender, clusters)
        for cluster_state, given_files in zip(clusters, files, strict=True):
            agree(cluster_state, given_files, extender)
    finally:
        for cluster_state in clusters:
            cluster_state.remove()


def agree(cluster_state: PrefixedCluster, files: list[str], extender: ExtenderProcess) -> None:
    entry = {
        "urlPrefix": f"{extender.url}/scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 100,  # the scores of the extender outweigh all others
        "nodeCacheCapable": True,
        "managedResources": [{"name": "telemetry/scheduling", "ignoredByScheduler": True}],
    }
    decisions = decide_all(files)
    with Cluster(cluster_state.cluster, [entry]) as cluster:
        for pod in cluster_state.pods:
            name = f"{cluster_state.namespace}/{pod['metadata']['name']}"
            node = cluster.submit(pod).node
            code, explained = command_output("explain", name, "--server", extender.health_url)
            assert code == 0
            check_placed(node, decisions[name])
            check_same_decision(explained["attempt"], decisions[name])
            if node is None:
                counted(cluster.outcome(name).message, explained["attempt"])
    changed(cluster_state, files, explained["attempt"])


def check_placed(node: str | None, decision: Json) -> None:
    """Check that the scheduler chose a node with the best score, or none if no node passes."""
    assert (node is None) == (not decision["feasible"])
    if node is not None:
        assert node in decision["feasible"]
        assert decision["scores"][node] == max(decision["scores"].values())


def check_same_decision(attempt: Json, decision: Json) -> None:
    """Check that `explain`, from the extender, and `decide`, from the same files, report the same decision."""
    nodes = {node["node"]: node for node in attempt["nodes"]}
    assert {name for name, node in nodes.items() if node["passes"]} == set(decision["feasible"])
    reasons = {name: node["reasons"] for name, node in nodes.items() if node["reasons"]}
    assert reasons == decision["rejected"]
    if "prioritize" in attempt["calls"]:
        scores = {name: node["score"] or 0 for name, node in nodes.items() if node["passes"]}
        assert scores == decision["scores"]
        measured = {
            (
                name,
                measurement["metric"],
                measurement["operator"],
                measurement["target"],
                measurement["value"],
                measurement["state"],
            )
            for name, node in nodes.items()
            for measurement in node["measured"]
        }
        keys = ("node", "metric", "operator", "target", "value", "state")
        assert measured == {tuple(value[key] for key in keys) for value in decision["values"]}


def counted(event: str, attempt: Json) -> None:
    """Check that the pod's event counts the nodes by the same reasons."""
    groups = Counter({group["reason"]: len(group["nodes"]) for group in attempt["groups"]})
    assert all(f"{count} {reason}" in event for reason, count in groups.items())
    assert sum(groups.values()) == attempt["asked"]


def changed(cluster_state: PrefixedCluster, files: list[str], attempt: Json) -> None:
    """Check that, after each suggested change of the policy, as many more nodes pass as the report says."""
    name = f"{cluster_state.namespace}/{cluster_state.pods[-1]['metadata']['name']}"
    file = Path(files[0]).with_suffix(".tried")
    for change in attempt["changes"]:
        steps = [({"target": str(step["target"])}, step["nodes"]) for step in change["more"][:1]]
        steps += [({"when_missing": "pass"}, change["missing"])] if change["missing"] else []
        for fields, more in steps:
            file.write_text(json.dumps(cluster_state.policy(change["rule"], **fields)))
            again = decide_all(files, "--policy", str(file))[name]
            assert len(again["feasible"]) == attempt["passing"] + more
    file.unlink(missing_ok=True)
