"""A few nodes with bursty pods, placed by the real agents."""

import json

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from nodewise.base.errors import BadSettings
from nodewise.scheduling_model.in_process_extender import AgentGroup
from nodewise_scorers import bursts_simulation
from nodewise_scorers.bursts_simulation import (
    CPU_MILLI,
    FILL_MINUTES,
    MEMORY_BYTES,
    START_S,
    AnnotatedNodes,
    PlacedPod,
    Scenario,
)
from nodewise_scorers.cli import bursts as command
from nodewise_scorers.learned import pod_types_and_outcomes
from nodewise_scorers.learned.pod_types_and_outcomes import ObservedPod

SMALL = Scenario(nodes=8, hours=0.5)
NOBODY = AgentGroup("none", (), {})


def found(*arguments: str) -> dict:
    result = CliRunner().invoke(command.command, [*arguments, "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.fixture(scope="module")
def pods() -> list[bursts_simulation.BurstyPod]:
    return bursts_simulation.pods(Scenario(nodes=50, hours=4), seed=3)


def test_pods_come_in_order_and_go_on_coming(pods) -> None:
    times = [pod.at_s for pod in pods]
    assert times == sorted(times)
    assert times[-1] > (FILL_MINUTES + 3.5 * 60) * 60


def test_pods_that_are_there_request_the_share(pods) -> None:
    """This holds at any minute after the first ones, if all pods were placed at once."""
    scenario = Scenario(nodes=50, hours=4)
    for minute in (60, 150, 240):
        there = [pod for pod in pods if pod.at_s / 60 <= minute < pod.at_s / 60 + pod.minutes]
        share = sum(pod.app.cpu_milli for pod in there) / (scenario.nodes * CPU_MILLI)
        assert share == pytest.approx(scenario.requested_share, rel=0.15)


def test_most_pods_use_less_than_they_request_and_some_a_multiple(pods) -> None:
    most = {
        pattern: np.array(
            [pod.use[0].max() / pod.app.cpu_milli for pod in pods if pod.app.usage_pattern == pattern]
        )
        for pattern in ("modest", "hungry", "leaky")
    }
    assert most["modest"].max() < 1
    assert np.median(most["hungry"]) > 2
    assert len(most["modest"]) > 2 * len(most["hungry"])


def test_use_comes_in_bursts(pods) -> None:
    long = next(pod for pod in pods if pod.app.usage_pattern == "hungry" and pod.minutes > 100)
    high = long.use[0] > long.app.cpu_milli
    changes = np.count_nonzero(np.diff(high))
    assert 2 <= changes <= len(high) / 3


def test_leaky_pods_take_more_memory_than_they_request(pods) -> None:
    leaky = [pod for pod in pods if pod.app.usage_pattern == "leaky" and pod.minutes > 240]
    assert leaky
    assert all(pod.use[1][-1] > pod.app.memory_bytes > pod.use[1][0] for pod in leaky)


def test_the_same_seed_draws_the_same() -> None:
    first, other = (bursts_simulation.pods(SMALL, 5) for _ in range(2))
    assert [(pod.name, pod.app, pod.at_s) for pod in first] == [
        (pod.name, pod.app, pod.at_s) for pod in other
    ]
    assert all(np.array_equal(a.use, b.use) for a, b in zip(first, other, strict=True))
    assert [pod.at_s for pod in bursts_simulation.pods(SMALL, 6)] != [pod.at_s for pod in first]


def test_nodes_have_the_annotations_of_the_annotator() -> None:
    annotated = AnnotatedNodes(bursts_simulation.build_node_objects(Scenario(nodes=2)))
    for minute, milli in enumerate((1000.0, 3000.0)):
        use = np.array([[milli, 0.0], [2.0**30, 0.0]])
        annotated.write(use, START_S + 60 * minute)

    texts = annotated.objects["node-000"]["metadata"]["annotations"]
    assert texts["mean-free-cpu"] == str(CPU_MILLI - 2000)
    assert float(texts["std-free-cpu"]) == pytest.approx(np.std([1000, 3000], ddof=1), abs=1e-3)
    assert texts["mean-free-memory"] == str(MEMORY_BYTES - 2**30)
    assert texts["congestion-factor"] == "19"
    assert texts["requested-pods"] == "0"
    assert annotated.objects["node-001"]["metadata"]["annotations"]["congestion-factor"] == "0"


def test_small_changes_are_not_written_again() -> None:
    annotated = AnnotatedNodes(bursts_simulation.build_node_objects(Scenario(nodes=1)))
    first = annotated.write(np.array([[1000.0], [2.0**30]]), START_S)
    annotated.write(np.array([[1000.0], [2.0**30]]), START_S + 60)  # a deviation needs two samples
    third = annotated.write(np.array([[1001.0], [2.0**30]]), START_S + 120)
    assert list(first) == ["node-000"]
    assert third == {}


def test_requests_of_pods_are_written(pods) -> None:
    annotated = AnnotatedNodes(bursts_simulation.build_node_objects(Scenario(nodes=2)))
    annotated.put_pod(PlacedPod(pods[0], "node-001", 0, START_S).obj)
    annotated.write(np.zeros((2, 2)), START_S)
    texts = annotated.objects["node-001"]["metadata"]["annotations"]
    assert texts["requested-cpu"] == str(pods[0].app.cpu_milli)
    assert texts["requested-memory"] == str(pods[0].app.memory_bytes)


def test_a_pod_that_fails_again_soon_counts_as_failed(pods) -> None:
    """The learned agent counts it as failed when it reads the pod."""

    def seen(placed: PlacedPod) -> ObservedPod:
        return msgspec.json.decode(msgspec.json.encode(placed.obj), type=ObservedPod)

    placed = PlacedPod(pods[0], "node-0", minute=0, now=START_S)
    looks = [seen(placed)]
    for minute in (2, 5):
        placed.restart(minute, START_S + 60 * minute)
        looks.append(seen(placed))
    pairs = zip([None, *looks], looks, strict=False)
    results = [pod_types_and_outcomes.outcome_between(before, after, 600.0) for before, after in pairs]
    assert [observed and observed.reward for observed in results] == [
        pod_types_and_outcomes.RUNS,
        pod_types_and_outcomes.SUSPICIOUS,
        pod_types_and_outcomes.FAILED,
    ]


def test_a_pod_that_failed_begins_anew_and_ends_in_time(pods) -> None:
    pod = next(pod for pod in pods if pod.app.usage_pattern == "leaky" and pod.minutes > 60)
    placed = PlacedPod(pod, "node-0", minute=10, now=START_S)
    assert placed.use(40)[1] == pod.use[1][30]
    placed.restart(40, START_S)
    assert placed.use(41)[1] == pod.use[1][0]
    assert placed.end_minute == 10 + pod.minutes


def test_a_run_counts_nodes_minute_by_minute() -> None:
    run = bursts_simulation.run(SMALL, NOBODY, seed=2)
    assert len(run.nodes_by_minute) == 30
    assert sum(run.nodes_by_minute) == run.node_minutes <= run.cpu_node_minutes + run.memory_node_minutes
    assert run.all_node_minutes == 240
    assert 40 < run.requested_pct < 90
    assert 5 < run.used_pct < run.requested_pct


def test_full_nodes_leave_pods_waiting() -> None:
    crowded = bursts_simulation.run(Scenario(nodes=4, hours=0.2, requested_share=1.5), NOBODY, seed=2)
    assert crowded.unplaced_pods > 0
    assert crowded.waited_minutes > crowded.unplaced_pods


@pytest.mark.parametrize("agents", [name for name in command.DEFAULT_AGENT_GROUPS if name != "none"])
def test_every_agent_places_pods_the_same_way_each_time(agents) -> None:
    arguments = ("--nodes", "6", "--hours", "0.1", "--seed", "4", "--agents", agents)
    first, other = found(*arguments), found(*arguments)
    assert first == other
    (run,) = first["runs"]
    assert run["agents"] == agents
    assert run["unplaced_pods"] == 0


def test_agents_may_reject_nodes_as_well() -> None:
    """With so few nodes, there are minutes in which the risk is too high on all of them."""
    arguments = ("--nodes", "3", "--hours", "0.5", "--agents", "safe", "--safe-utilization", "20")
    (scored,), (filtered,) = (found(*arguments, *more)["runs"] for more in ((), ("--filter-all-pods",)))
    assert filtered["waited_minutes"] > 10 * scored["waited_minutes"]


def test_agents_change_where_pods_go() -> None:
    document = found("--nodes", "12", "--hours", "0.5", "--agents", "none", "--agents", "safe,congestion")
    none, agents = document["runs"]
    assert none["pods"] == agents["pods"], "the pods are the same"
    assert none["nodes_by_minute"] != agents["nodes_by_minute"]
    assert document["mean"].keys() == {"none", "safe,congestion"}


def test_the_table_and_the_lines_have_the_runs() -> None:
    arguments = ["--nodes", "4", "--hours", "0.1", "--agents", "none", "--runs", "2"]
    table = CliRunner().invoke(command.command, arguments, catch_exceptions=False).output
    assert table.splitlines()[1].split()[0] == "none"
    lines = CliRunner().invoke(command.command, [*arguments, "-o", "csv"]).output.splitlines()
    assert lines[0] == "agents,seed,minute,nodes"
    assert [line.rpartition(",")[0] for line in lines[1:]] == [
        f"none,{seed},{minute}" for seed in (1, 2) for minute in range(6)
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--agents", "gpu"], "--agents: gpu; expected"),
        (["--agents", "safe", "--statistics", "metrics"], "there are no metrics here"),
        (["--agents", "nobody"], "nobody"),
        (["--agents", "safe", "--weights", "congestion=2"], "congestion=2"),
    ],
)
def test_agents_that_cannot_be_simulated_are_named(arguments, words) -> None:
    with pytest.raises(BadSettings, match=words):
        CliRunner().invoke(
            command.command, ["--nodes", "2", "--hours", "0.1", *arguments], catch_exceptions=False
        )


def test_a_plot_is_drawn(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    svg = tmp_path / "out.svg"
    found("--nodes", "4", "--hours", "0.1", "--agents", "none", "--svg", str(svg))
    assert "node-minutes so far" in svg.read_text()
