"""Load-aware placements on small clusters and made traces."""

import functools
import gzip
import json
import os
import subprocess
import sys
from typing import Final

import numpy as np
import pytest
from click.testing import CliRunner

from nodewise.base.errors import BadInput, BadSettings
from nodewise.scheduling_model import simulated_cluster
from nodewise_scorers.cli import load as command
from nodewise_scorers.load.published_formulas import FORMULAS
from nodewise_scorers.load_simulation import simulation, workload
from nodewise_scorers.load_simulation.simulation import PLACEMENTS, LoadResult, Nodes


@pytest.fixture(scope="module")
def traces() -> list[np.ndarray]:
    """Machines that differ in their level, with phases of an hour."""
    random = np.random.default_rng(5)
    levels = random.beta(0.5, 4.0, 200)
    phases = random.uniform(0.5, 1.5, (200, 24)).repeat(12, axis=1)
    return list(np.clip(levels[:, None] * phases, 0, 1))


@pytest.fixture(scope="module")
def folder(traces, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("traces")
    text = "\n".join(",".join(f"{100 * value:.0f}" for value in trace) for trace in traces)
    (path / "20110303.csv.gz").write_bytes(gzip.compress(text.encode()))
    (path / "20110306.csv").write_text(text[: len(text) // 2].rpartition("\n")[0])
    (path / "._20110306.csv").write_text("hidden")
    (path / "dangling.csv").symlink_to("nowhere")
    (path / "folder.csv").mkdir()
    return str(path)


@pytest.fixture
def small_cluster(monkeypatch) -> None:
    """The command simulates 8 nodes, which takes less time."""
    monkeypatch.setattr(workload, "planetlab", functools.partial(workload.planetlab, nodes=8))


def result(overloaded_pct: float) -> LoadResult:
    return LoadResult("", "", 1, overloaded_pct, 0.0, 50.0, 10, 0)


@pytest.mark.parametrize(
    ("text", "traces"),
    [
        ("10,20,30\n", [[0.1, 0.2, 0.3]]),
        ("10,20,\n30\n", [[0.1, 0.2], [0.3]]),  # lines of different length, a comma at the end
        ("\ufeff10\r\n20\r\n", [[0.1], [0.2]]),  # as Windows programs save it
        ("10,,30\nnan,50,-\n,,\n", [[0.1, 0.2, 0.3], [0.5, 0.5, 0.5]]),  # missing values, a line without any
    ],
)
def test_traces_are_read(tmp_path, text, traces) -> None:
    (tmp_path / "day.csv").write_text(text)
    assert [trace.tolist() for trace in workload.read_traces(str(tmp_path), "day")] == [
        pytest.approx(trace) for trace in traces
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10,20\n10,many\n", "line 2: .?many.?; expected a number from 0 to 100"),
        ("10,101\n", "line 1: .?101.?; expected a number from 0 to 100"),
        ("10,-1\n", "line 1: .?-1"),
        ("", "no values; expected per cent of CPU"),
    ],
)
def test_invalid_traces_are_refused_with_their_place(tmp_path, text, words) -> None:
    (tmp_path / "day.csv").write_text(text)
    with pytest.raises(BadInput, match=words):
        workload.read_traces(str(tmp_path), "day")


def test_a_damaged_file_is_refused(tmp_path) -> None:
    (tmp_path / "day.csv.gz").write_bytes(gzip.compress(b"10,20\n" * 1000)[:-12])
    with pytest.raises(BadInput, match=r"day\.csv\.gz"):
        workload.read_traces(str(tmp_path), "day")


def test_the_same_seed_makes_the_same_pods_and_placements(traces) -> None:
    first, other, another = (workload.planetlab(traces, seed, nodes=4) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert first.usage.shape != another.usage.shape or not np.array_equal(first.usage, another.usage)
    assert simulation.run(first, "load", 3) == simulation.run(other, "load", 3)


_RUN: Final = """
import numpy as np
from nodewise_scorers.load.published_formulas import FORMULAS
from nodewise_scorers.load_simulation import simulation, workload
random = np.random.default_rng(5)
traces = list(np.clip(random.beta(0.5, 4.0, 200)[:, None] * random.uniform(0.5, 1.5, (200, 288)), 0, 1))
print(simulation.run(workload.planetlab(traces, 1, nodes=15), "load", 1))
"""


def test_the_same_seed_makes_the_same_placements_on_other_cpus() -> None:
    """BLAS and numpy choose other code for CPUs without vector extensions, which may round differently."""
    old_cpu = {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4"}
    results = [
        subprocess.run(
            [sys.executable, "-c", _RUN], env=os.environ | cpu, capture_output=True, check=True
        ).stdout
        for cpu in ({}, old_cpu)
    ]
    assert results[0] == results[1]


def test_batches_arrive_while_requests_are_below_the_share(traces) -> None:
    pods = workload.planetlab(traces, 1, nodes=10)
    for step in (0, 100, 287):
        there = (pods.arrival <= step) & (pods.end > step)
        share = pods.request_milli[there].sum() / (10 * workload.CORES * 1000)
        assert 0.97 <= share < 0.97 + 0.12  # up to a batch of large pods
    assert set(pods.limit_milli.tolist()) == {1000, 2000, 4000}
    assert (pods.request_milli == pods.limit_milli // 5).all()
    assert np.mean(pods.end - pods.arrival) == pytest.approx(workload.LIFE_STEPS, rel=0.1)


def test_replicas_use_their_line_with_offset_and_noise(traces) -> None:
    pods = workload.planetlab(traces, 2, nodes=4)
    for pod in range(0, len(pods.arrival), 97):
        steps = np.arange(pods.arrival[pod], min(pods.end[pod], pods.steps))
        used = pods.usage[pod, steps] / (pods.limit_milli[pod] / 1000)
        trace = traces[pods.application[pod]]
        errors = [np.abs(used - trace[(steps + offset) % 288]).mean() for offset in range(13)]
        assert min(errors) <= 0.2 * used.mean()
        assert not pods.usage[pod, : steps[0]].any()


def test_without_images_every_batch_is_an_application_of_its_own(traces) -> None:
    shared = workload.planetlab(traces, 1, nodes=20)
    distinct = workload.planetlab(traces, 1, nodes=20, distinct_images=True)
    assert len(set(shared.application.tolist())) <= 200 < len(set(distinct.application.tolist()))
    assert np.array_equal(shared.usage, distinct.usage)


def test_default_scores_are_those_of_the_simulated_scheduler(traces) -> None:
    """The same filter, and the same differences between nodes."""
    pods = workload.planetlab(traces, 7, nodes=5)
    nodes = Nodes(pods)
    random = np.random.default_rng(1)

    def pod_object(number: int) -> dict:
        milli = int(pods.request_milli[number])
        requests = {"cpu": f"{milli}m", "memory": str(milli * 2**32 // 1000)}  # 4 GiB per core
        return {
            "metadata": {"name": f"pod-{number}"},
            "spec": {"containers": [{"name": "main", "resources": {"requests": requests}}]},
        }

    allocatable = {"cpu": "16", "memory": "64Gi", "pods": "1000"}
    cluster = [
        simulated_cluster.parse_node(
            {"metadata": {"name": f"n{number}"}, "status": {"allocatable": allocatable}}
        )
        for number in range(5)
    ]
    for number in range(160):
        at = int(random.integers(5))
        pod = simulated_cluster.parse_pod(pod_object(number))
        fits = [simulated_cluster.check_resources(pod, node) is None for node in cluster]
        free = nodes.capacity_milli - nodes.requested_milli
        assert fits == (free >= pods.request_milli[number]).tolist()
        if all(fits):
            theirs = np.array([simulated_cluster.score(pod, node) for node in cluster])
            ours = nodes.default_scores(number, np.arange(5))
            assert np.abs((theirs - theirs[0]) - (ours - ours[0])).max() <= 1  # both resources are truncated
        if fits[at]:
            cluster[at].pods[pod.key] = pod
            nodes.requested_milli[at] += pods.request_milli[number]


def test_bound_pods_count_until_the_next_statistics(traces) -> None:
    pods = workload.planetlab(traces, 1, nodes=3)
    nodes = Nodes(pods)
    placement = PLACEMENTS["target-load-packing"](nodes)
    candidates = np.arange(3)
    empty = placement.scores(0, candidates)
    placement.add(0, 1)
    placement.add(1, 1)
    assert (placement.scores(0, candidates) != empty).tolist() == [False, True, False]
    nodes.usage.append(np.zeros(3))
    nodes.step = 1
    placement.take_statistics(candidates)
    assert placement.scores(0, candidates).tolist() == empty.tolist()


def test_all_placements_place_all_pods(traces) -> None:
    pods = workload.planetlab(traces, 1, nodes=4)
    for name in PLACEMENTS:
        if name in ("safe", "low-risk-over-commitment"):
            pytest.importorskip("scipy")
        run = simulation.run(pods, name, 1)
        assert run.pods == len(pods.arrival)
        assert 0 <= run.overloaded_pct <= 100
        assert run.used_pct > 20
        assert run.waited_steps < 0.05 * run.pods * workload.LIFE_STEPS


def test_known_usage_reduces_overload(traces) -> None:
    workloads = [workload.planetlab(traces, seed, nodes=20) for seed in (1, 2)]
    runs = {
        name: [simulation.run(pods, name, seed) for seed, pods in enumerate(workloads)]
        for name in ("default", "target-load-packing", "load", "oracle")
    }
    overload = {name: simulation.mean(results)["overloaded_pct"] for name, results in runs.items()}
    assert overload["load"] < 0.68 * overload["target-load-packing"], overload
    assert max(overload["load"], overload["oracle"]) < 0.6 * overload["default"], overload


def test_a_herd_does_not_overload_nodes() -> None:
    pods = workload.herd(1, nodes=20, pods=560)
    runs = {name: simulation.run(pods, name, 1) for name in PLACEMENTS}
    assert {run.waited_steps for run in runs.values()} == {0}
    assert runs["oracle"].overloaded_pct <= runs["load"].overloaded_pct < 0.5
    assert all(runs[name].overloaded_pct > 5 for name in FORMULAS)


def test_the_bound_of_the_ratio_is_above_the_ratio() -> None:
    ours, theirs = [result(1.0), result(2.0), result(0.5)], [result(2.0), result(3.0), result(1.5)]
    assert 3.5 / 6.5 < simulation.paired_ratio_bound(ours, theirs) < 1
    assert simulation.paired_ratio_bound(theirs, theirs) == 1
    assert simulation.paired_ratio_bound(ours, [result(0.0)] * 3) == float("inf")


@pytest.mark.parametrize(
    ("overload_by_ratio", "ratio"),
    [
        (lambda ratio: 10 - 40 * ratio, 0.175),  # 2 at 0.2, accepted 3
        (lambda ratio: 40 - 100 * ratio, 0.37),  # 20 at 0.2
        (lambda ratio: 3.0, 0.2),
        (lambda ratio: 2.0, None),
        (lambda ratio: 4.0, None),
    ],
)
def test_usable_cpu_is_where_the_overload_is_the_accepted_one(overload_by_ratio, ratio) -> None:
    def figures(ratio: float) -> dict[str, float]:
        return {"overloaded_pct": overload_by_ratio(ratio), "used_pct": 10 / ratio}

    pct = command._usable_pct(figures, figures(0.2), 0.2, 3.0)
    assert pct == (None if ratio is None else pytest.approx(10 / ratio, rel=0.01))


def invoke(*arguments: str) -> str:
    outcome = CliRunner().invoke(command.command, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


@pytest.mark.usefixtures("small_cluster")
def test_the_command_compares_placements(folder) -> None:
    arguments = ("planetlab", "--traces", folder, "--day", "20110306", "--placement", "default,load")
    document = json.loads(invoke(*arguments, "--runs", "2", "-o", "json"))
    expected = [("default", 1), ("default", 2), ("load", 1), ("load", 2)]
    assert [(run["placement"], run["seed"]) for run in document["runs"]] == expected
    assert (document["request_ratio"], document["distinct_images"]) == (0.2, False)
    assert document["mean"]["default"]["load_ratio"] <= document["mean"]["default"]["load_ratio_bound"] < 1
    table = invoke(*arguments).splitlines()
    assert table[0].split()[:2] == ["PLACEMENT", "ABOVE"]
    assert [line.split()[0] for line in table[1:-1]] == ["default", "load"]
    assert [line.split()[-1] for line in table[1:-1]] == ["-", "-"], "no bound of a single run"
    assert table[-1].startswith("note: a line of the traces counts as the image of its pods")
    assert "note" not in invoke(*arguments, "--distinct-images")


@pytest.mark.usefixtures("small_cluster")
def test_usable_cpu_is_relative_to_the_default_plugins(folder) -> None:
    arguments = ("planetlab", "--traces", folder, "--day", "20110306", "--placement", "load", "--usable")
    mean = json.loads(invoke(*arguments, "-o", "json"))["mean"]
    assert list(mean) == ["default", "load"]
    assert mean["default"]["usable_pct"] == mean["default"]["used_pct"], "its overload is the accepted one"
    assert mean["load"]["usable_pct"] > mean["default"]["usable_pct"]
    assert "USABLE" in invoke(*arguments).splitlines()[0]


@pytest.mark.usefixtures("small_cluster")
def test_all_days_are_the_default_and_csv_has_the_runs(folder, tmp_path) -> None:
    days = tmp_path
    for name in ("20110303.csv.gz", "20110306.csv"):
        (tmp_path / name).symlink_to(f"{folder}/{name}")
    lines = invoke("planetlab", "--traces", str(days), "--placement", "random", "-o", "csv").splitlines()
    assert lines[0].startswith("placement,day,seed,overloaded_pct,")
    expected = [["random", "20110303", "1"], ["random", "20110306", "1"]]
    assert [line.split(",")[:3] for line in lines[1:]] == expected


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["planetlab"], BadSettings, "--traces: no folder; expected a folder"),
        (["planetlab", "--traces", "/nowhere"], BadInput, "/nowhere"),
        (
            ["planetlab", "--traces", "FOLDER", "--day", "20110304"],
            BadInput,
            "one of 20110303, 20110306, dang",
        ),
        (["planetlab", "--traces", "FOLDER", "--day", "dangling"], BadInput, "dangling.csv: No such file"),
        (["planetlab", "--traces", "FOLDER", "--day", "folder"], BadInput, "folder.csv: Is a directory"),
        (["planetlab", "--traces", "FOLDER", "--usable", "-o", "csv"], BadSettings, "text or json together"),
        (["herd", "--usable"], BadSettings, "--usable: used with herd"),
        (["herd", "--request-ratio", "0.3"], BadSettings, "--request-ratio: used with herd"),
        (["planetlab", "--traces", "FOLDER", "--day", "../20110303"], BadInput, "no such file"),
        (["herd", "--placement", "target-load"], BadSettings, 'oracle; did you mean "target-load-packing"'),
        (
            ["herd", "--placement", "laod"],
            BadSettings,
            'one of all, [^;]*, load, oracle; did you mean "load"',
        ),
    ],
)
def test_invalid_arguments_are_named(folder, arguments, error, words) -> None:
    with pytest.raises(error, match=words):
        CliRunner().invoke(
            command.command,
            [folder if argument == "FOLDER" else argument for argument in arguments],
            catch_exceptions=False,
        )


@pytest.mark.parametrize(
    "option", [("--request-ratio", "nan"), ("--runs", "-1"), ("--runs", "101"), ("--seed", "-1")]
)
def test_a_number_out_of_range_is_a_usage_error(folder, option) -> None:
    outcome = CliRunner().invoke(command.command, ["planetlab", "--traces", folder, *option])
    assert outcome.exit_code == 2
    assert f"Invalid value for '{option[0]}'" in outcome.output
