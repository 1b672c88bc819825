"""A small trace, placed by the gpu agent."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from nodewise.agents.gpu.options import PLACEMENTS
from nodewise.base.errors import BadInput
from nodewise.cli import simulate
from nodewise.scheduling_model import gpu_trace_replay
from nodewise.scheduling_model.gpu_trace_replay import TraceNode, TracePod

NODES = """sn,cpu_milli,memory_mib,gpu,model
n1,64000,262144,2,P100
n2,64000,262144,8,G2
n3,32000,131072,0,
"""
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
a,4000,8192,1,460,
b,8000,16384,2,1000,P100|V100M16
c,2000,4096,0,0,
d,1000,4096,1,1000,
"""
GIVEN = gpu_trace_replay.Trace(
    [TraceNode("n1", 64000, 262144, 2, "A"), TraceNode("n2", 96000, 262144, 4, "B")],
    [TracePod(2000, 1024, 1, 460, ()), TracePod(4000, 1024, 2, 1000, ("B",)), TracePod(8000, 1024, 0, 0, ())],
)


def written(folder: Path, text: str, name: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_lists_are_read(tmp_path) -> None:
    assert gpu_trace_replay.nodes(written(tmp_path, NODES, "nodes.csv"))[::2] == [
        TraceNode("n1", 64000, 262144, 2, "P100"),
        TraceNode("n3", 32000, 131072, 0, ""),
    ]
    assert gpu_trace_replay.pods(written(tmp_path, PODS, "pods.csv"))[:3] == [
        TracePod(4000, 8192, 1, 460, ()),
        TracePod(8000, 16384, 2, 1000, ("P100", "V100M16")),
        TracePod(2000, 4096, 0, 0, ()),
    ]


def test_a_published_pod_list_without_models_is_read(tmp_path) -> None:
    """Some published lists lack the column gpu_spec."""
    text = PODS.replace(",gpu_spec", "").replace(",P100|V100M16\n", "\n").replace(",\n", "\n")
    assert {pod.models for pod in gpu_trace_replay.pods(written(tmp_path, text, "pods.csv"))} == {()}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("gpu,model", "gpus,model", "nodes.csv: line 1"),
        ("n2,64000", "n2,64 000", "nodes.csv: line 3: cpu_milli: '64 000'; expected a whole number"),
        ("262144,8", "262144,65", "nodes.csv: line 3: gpu: '65'; expected a whole number from 0 to 64"),
        ("n2,", ",", "nodes.csv: line 3: sn: ''; expected a name"),
        ("n2,", "n1,", "nodes.csv: sn: 'n1'; expected each name once"),
        ("n2,64000,262144,8,G2", "n2", "nodes.csv: line 3: cpu_milli: ''"),
        ("n2,64000,262144,8,G2", '"n2', "nodes.csv"),
    ],
)
def test_problems_of_a_node_list_name_line_and_column(tmp_path, old, new, words) -> None:
    with pytest.raises(BadInput) as error:
        gpu_trace_replay.nodes(written(tmp_path, NODES.replace(old, new), "nodes.csv"))

    assert words in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("1,460", "1,0", "line 2: gpu_milli: '0'; expected 1 to 1000"),
        ("1,460", "1,1001", "line 2: gpu_milli: '1001'; expected a whole number from 0 to 1000"),
        ("8192", "-1", "line 2: memory_mib: '-1'"),
    ],
)
def test_problems_of_a_pod_list_name_line_and_column(tmp_path, old, new, words) -> None:
    with pytest.raises(BadInput) as error:
        gpu_trace_replay.pods(written(tmp_path, PODS.replace(old, new), "pods.csv"))

    assert words in str(error.value)


def test_missing_list_is_an_error(tmp_path) -> None:
    with pytest.raises(BadInput, match=r"none\.csv"):
        gpu_trace_replay.pods(str(tmp_path / "none.csv"))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_run_tells_of_each_per_cent(placement) -> None:
    result = gpu_trace_replay.run(GIVEN, placement, 1, 1.5)

    assert list(result.allocated_gpu_pct) == list(result.fragmented_gpu_pct) == list(range(151))
    shares = list(result.allocated_gpu_pct.values())
    assert shares == sorted(shares)
    assert 60 < shares[-1] <= 100
    assert result.failed_pods > 0
    assert all(0 <= share + shares[pct] <= 100 + 1e-3 for pct, share in result.fragmented_gpu_pct.items()), (
        "fragments are free"
    )


def test_the_same_seed_draws_the_same() -> None:
    first, other, third = (gpu_trace_replay.run(GIVEN, "first-fit", seed, 1.2) for seed in (5, 5, 6))

    assert first.allocated_gpu_pct == other.allocated_gpu_pct
    assert (first.arrived_pods, first.failed_pods) == (other.arrived_pods, other.failed_pods)
    assert first.allocated_gpu_pct != third.allocated_gpu_pct


def test_models_cpu_and_cards_are_obeyed() -> None:
    """Of two nodes with two GPUs each, one has the wrong model, so 2 of 4 GPUs are allocated."""
    nodes = [TraceNode("n1", 9000, 9000, 2, "A"), TraceNode("n2", 3000, 9000, 2, "B")]
    model = gpu_trace_replay.Trace(nodes, [TracePod(1000, 1000, 1, 1000, ("B",))])
    cpu = gpu_trace_replay.Trace(nodes, [TracePod(3000, 1000, 1, 1000, ())])
    memory = gpu_trace_replay.Trace(nodes, [TracePod(1000, 9000, 2, 1000, ())])

    assert gpu_trace_replay.run(model, "pack", 1, 2.0).allocated_gpu_pct[200] == 50
    assert gpu_trace_replay.run(cpu, "pack", 1, 2.0).allocated_gpu_pct[200] == 75
    assert gpu_trace_replay.run(memory, "pack", 1, 2.0).allocated_gpu_pct[200] == 100


def run(tmp_path, *more):
    nodes, pods = written(tmp_path, NODES, "nodes.csv"), written(tmp_path, PODS, "pods.csv")
    arguments = ["openb", "--nodes", nodes, "--pods", pods, "--arrivals", "1.1", *more]
    return CliRunner().invoke(simulate.trace_command, arguments, catch_exceptions=False)


def test_one_run_prints_json(tmp_path) -> None:
    document = json.loads(run(tmp_path, "--placement", "pack", "-o", "json").stdout)

    assert {
        "placement",
        "seed",
        "allocated_gpu_pct",
        "fragmented_gpu_pct",
        "failed_pods",
        "seconds",
    } <= document.keys()
    assert document["allocated_gpu_pct"]["110"] > 50


def test_several_runs_come_with_their_means_and_curves(tmp_path) -> None:
    published = written(tmp_path, '{"pods": {"FGD": {"100": {"mean": 95.2}}}}', "published.json")
    svg = tmp_path / "out.svg"
    arguments = ("--placement", "pack", "--placement", "spread", "--seeds", "2", "--published", published)

    document = json.loads(run(tmp_path, *arguments, "--svg", str(svg), "-o", "json").stdout)
    output = run(tmp_path, *arguments).stdout

    assert [(result["placement"], result["seed"]) for result in document["runs"]] == [
        ("pack", 42),
        ("pack", 43),
        ("spread", 42),
        ("spread", 43),
    ]
    both = [result["allocated_gpu_pct"]["100"] for result in document["runs"][:2]]
    assert document["mean"]["pack"]["allocated_gpu_pct"]["100"] == pytest.approx(sum(both) / 2, abs=1e-3)
    assert "published: FGD" in svg.read_text()
    assert "spread" in svg.read_text()
    assert [line.split("  ")[0] for line in output.splitlines()] == [
        "% allocated at",
        "pack",
        "spread",
        "published: FGD",
    ]


@pytest.mark.parametrize(
    "text", ["[", "[1]", '{"pods": {"FGD": {"x": {"mean": 1}}}}', '{"pods": {"FGD": {"1": 2}}}']
)
def test_unreadable_published_results_are_an_error(tmp_path, text) -> None:
    with pytest.raises(BadInput, match="--published"):
        run(tmp_path, "--published", written(tmp_path, text, "published.json"))
