"""A small trace, placed by the gpu agent."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import gpu_traces
from bench.gpu_traces import TraceNode, TracePod

from nodewise.agents.gpu.options import PLACEMENTS

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
TRACE = gpu_traces.Trace(
    [TraceNode("n1", 64000, 262144, 2, "A"), TraceNode("n2", 96000, 262144, 4, "B")],
    [TracePod(2000, 1024, 1, 460, ()), TracePod(4000, 1024, 2, 1000, ("B",)), TracePod(8000, 1024, 0, 0, ())],
)


def written(folder: Path, text: str, name: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_node_and_pod_lists_are_read(tmp_path) -> None:
    expected = [TraceNode("n1", 64000, 262144, 2, "P100"), TraceNode("n3", 32000, 131072, 0, "")]
    assert gpu_traces.nodes(written(tmp_path, NODES, "nodes.csv"))[::2] == expected
    assert gpu_traces.pods(written(tmp_path, PODS, "pods.csv"))[:3] == [
        TracePod(4000, 8192, 1, 460, ()),
        TracePod(8000, 16384, 2, 1000, ("P100", "V100M16")),
        TracePod(2000, 4096, 0, 0, ()),
    ]


def test_a_published_pod_list_without_models_is_read(tmp_path) -> None:
    """Some published lists lack the column gpu_spec."""
    text = PODS.replace(",gpu_spec", "").replace(",P100|V100M16\n", "\n").replace(",\n", "\n")
    assert {pod.models for pod in gpu_traces.pods(written(tmp_path, text, "pods.csv"))} == {()}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_run_has_the_shares_of_each_per_cent(placement) -> None:
    result = gpu_traces.run(TRACE, placement, 1, 1.5)

    assert list(result.allocated_gpu_pct) == list(result.fragmented_gpu_pct) == list(range(151))
    shares = list(result.allocated_gpu_pct.values())
    assert shares == sorted(shares)
    assert 60 < shares[-1] <= 100
    assert result.failed_pods > 0
    assert all(0 <= share + shares[pct] <= 100 + 1e-3 for pct, share in result.fragmented_gpu_pct.items()), (
        "fragments are free"
    )


def test_same_seed_draws_the_same_pods() -> None:
    first, other, third = (gpu_traces.run(TRACE, "first-fit", seed, 1.2) for seed in (5, 5, 6))

    assert first.allocated_gpu_pct == other.allocated_gpu_pct
    assert (first.arrived_pods, first.failed_pods) == (other.arrived_pods, other.failed_pods)
    assert first.allocated_gpu_pct != third.allocated_gpu_pct


def test_pods_are_placed_only_where_model_cpu_and_memory_fit() -> None:
    """Of two nodes with two GPUs each, one has the wrong model, so 2 of 4 GPUs are allocated."""
    nodes = [TraceNode("n1", 9000, 9000, 2, "A"), TraceNode("n2", 3000, 9000, 2, "B")]
    model = gpu_traces.Trace(nodes, [TracePod(1000, 1000, 1, 1000, ("B",))])
    cpu = gpu_traces.Trace(nodes, [TracePod(3000, 1000, 1, 1000, ())])
    memory = gpu_traces.Trace(nodes, [TracePod(1000, 9000, 2, 1000, ())])

    assert gpu_traces.run(model, "pack", 1, 2.0).allocated_gpu_pct[200] == 50
    assert gpu_traces.run(cpu, "pack", 1, 2.0).allocated_gpu_pct[200] == 75
    assert gpu_traces.run(memory, "pack", 1, 2.0).allocated_gpu_pct[200] == 100


@pytest.fixture
def run_command(tmp_path, monkeypatch) -> Callable[..., None]:
    def run(*options: str, nodes: str = NODES, pods: str = PODS) -> None:
        files = [
            f"--nodes={written(tmp_path, nodes, 'nodes.csv')}",
            f"--pods={written(tmp_path, pods, 'pods.csv')}",
        ]
        monkeypatch.setattr(sys, "argv", ["gpu_traces", *files, *options])
        gpu_traces.main()

    return run


def test_command_prints_means_and_plots_published_curves(tmp_path, run_command, capsys) -> None:
    published = written(tmp_path, '{"pods": {"FGD": {"100": {"mean": 95.2}}}}', "published.json")
    svg = tmp_path / "out.svg"
    options = ["--placement=pack", "--placement=spread", "--seeds=2", "--arrivals=1.1"]
    run_command(*options, f"--published={published}", f"--svg={svg}")

    means = json.loads(capsys.readouterr().out)
    assert list(means) == ["pack", "spread"]
    assert means["pack"]["allocated_gpu_pct"]["110"] > 50
    assert "published: FGD" in svg.read_text()
    assert "spread" in svg.read_text()


def test_run_that_ends_before_placements_differ_is_plotted(tmp_path, run_command) -> None:
    svg = tmp_path / "out.svg"
    run_command("--placement=pack", "--arrivals=0.3", f"--svg={svg}")
    assert "pack" in svg.read_text()


@pytest.mark.parametrize(
    "files",
    [
        {"nodes": NODES.splitlines()[0] + "\nn3,32000,131072,0,\n"},
        {"pods": PODS.splitlines()[0] + "\nc,1,1,0,0,\n"},
    ],
)
def test_trace_without_gpus_is_refused(run_command, capsys, files) -> None:
    with pytest.raises(SystemExit):
        run_command(**files)
    assert "found no GPUs" in capsys.readouterr().err
