"""`nodewise annotate` from the command line: output and exit codes."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import forked_commands
from tests.conformance.test_command_output_and_exit_codes import NODEWISE

from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise.scheduling_model.in_memory_api_http_server import ApiServer
from scorers_tests.unit.annotator.annotator_node_and_pod_builders import Object, node, pod

USES = {"rack1-a": ("1500m", "4Gi"), "rack1-b": ("250m", "2Gi"), "rack2-a": ("1", "1Gi")}


class AnnotateShell:
    """An in-memory cluster, the usage of its nodes, and a shell in which `nodewise annotate` runs."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server = server
        self.folder = folder
        self.kubeconfig = server.kubeconfig(folder)
        self.metrics = folder / "metrics.yaml"
        self.use(USES)

    def use(self, uses: dict[str, tuple[Any, Any]]) -> None:
        """Write the usage of nodes in the form of metrics.k8s.io."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        items = [
            {
                "metadata": {"name": name},
                "timestamp": now,
                "window": "30s",
                "usage": {"cpu": cpu, "memory": memory},
            }
            for name, (cpu, memory) in uses.items()
        ]
        kind = {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetricsList"}
        self.metrics.write_text(json.dumps(kind | {"items": items}))

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [NODEWISE, "annotate", f"--usage-from=file:{self.metrics}", *arguments]
        environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(self.kubeconfig)} | variables
        return forked_commands.run(command, cwd=self.folder, env=environment)

    def annotations(self) -> dict[str, dict[str, str]]:
        nodes = self._server.call(lambda api: api.objects(NODES))
        return {name: node["metadata"]["annotations"] for (_, name), node in nodes.items()}

    def put(self, node: Object) -> None:
        self._server.call(lambda api: api.put(NODES, node))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[AnnotateShell]:
    api = FakeApi()
    for name in USES:
        api.put(NODES, node(name, ready="False" if name == "rack2-a" else "True"))
    api.put(PODS, pod("web", "rack1-a", {"cpu": "500m", "memory": "1.5Gi"}))
    api.put(PODS, pod("done", "rack1-a", {"cpu": "1"}, phase="Succeeded"))
    with in_memory_api_http_server.serving(api) as server:
        yield AnnotateShell(server, tmp_path)


def test_a_dry_run_prints_the_plan_and_writes_nothing(shell: AnnotateShell) -> None:
    done = shell.run("--dry-run")
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["rack1-a", "2.5", "12288", "Mi", "0.5", "1536", "Mi", "1", "14", "annotations"],
        ["rack1-b", "3.75", "14336", "Mi", "0", "0", "Mi", "0", "14", "annotations"],
        ["rack2-a", "-", "-", "-", "-", "-", "nothing:", "it", "is", "not", "ready"],
    ]
    assert "one sample has a mean and no deviation" in done.stderr
    assert set(map(len, shell.annotations().values())) == {0}


def test_once_writes_and_prints_a_summary(shell: AnnotateShell) -> None:
    done = shell.run("--once")
    assert (done.returncode, done.stdout) == (0, "nodes: 2 annotated, 1 not ready\n")
    annotations = shell.annotations()
    assert annotations["rack1-a"]["mean-free-cpu"] == "2500"
    assert annotations["rack1-a"]["requested-cpu"] == "500"
    assert annotations["rack2-a"] == {}
    assert shell.run("--once").stdout == "nodes: 0 annotated, 2 unchanged, 1 not ready\n"


def test_json_has_the_annotations_themselves(shell: AnnotateShell) -> None:
    done = shell.run("--once", "-o", "json", "--what", "usage")
    report = json.loads(done.stdout)
    assert [node["node"] for node in report["nodes"]] == ["rack1-a", "rack1-b"]
    assert report["nodes"][0]["patch"]["mean-free-memory"] == str(12 * 2**30)
    assert report["not_ready"] == ["rack2-a"]
    assert report["written"] == {"done": 2, "failed": 0, "gone": 0, "error": ""}
    assert "requested-cpu" not in shell.annotations()["rack1-a"]


def test_annotations_of_an_older_annotator_are_corrected(shell: AnnotateShell) -> None:
    left = {
        "mean-free-cpu": "NaN",
        "forcasted-free-memory": "N/A",
        "free_memory": "7",
        "requested-memory": "1.5",
    }
    shell.put(node("rack1-a", left))
    assert shell.run("--once").returncode == 0
    annotations = shell.annotations()["rack1-a"]
    assert annotations["mean-free-cpu"] == "2500"
    assert annotations["requested-memory"] == "1610612736"
    assert "forcasted-free-memory" not in annotations, "nobody knows what comes next"
    assert annotations["free_memory"] == "7", "not ours"


@pytest.mark.parametrize(
    "uses", [{}, {"rack1-a": ("NaN", None), "rack1-b": ("much", [1])}, {"stranger": ("1", "1Gi")}]
)
def test_allocation_is_written_without_measurements(
    shell: AnnotateShell, uses: dict[str, tuple[Any, Any]]
) -> None:
    shell.use(uses)
    done = shell.run("--once")
    assert done.returncode == 1
    assert "2 annotated" in done.stdout
    assert "2 not measured" in done.stdout
    assert "mean-free-cpu" not in shell.annotations()["rack1-a"]


@pytest.mark.parametrize(
    ("cpu", "free"), [("1e308", "0"), ("-5", "4000"), ("9" * 40, "0"), ("0", "4000"), ("1n", "4000")]
)
def test_odd_amounts_stay_between_nothing_and_all(shell: AnnotateShell, cpu: str, free: str) -> None:
    shell.use({"rack1-a": (cpu, "1Gi")})
    shell.run("--once")
    assert shell.annotations()["rack1-a"].get("mean-free-cpu", free) == free


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--period=30s"], ["--period", "30", "60"]),
        (["--usage-from=custom"], ["--usage-from", "'custom'", "auto, prometheus, resource or file:PATH"]),
        (["--usage-from=prometheus"], ["--usage-from", "--prometheus-url"]),
        (["--what=everything"], ["--what", "'everything'"]),
        (
            ["--prometheus-url=nowhere", "--usage-from=auto"],
            ["--prometheus-url", "'nowhere'", "http://host:port"],
        ),
        (["--statistics-window=0s"], ["--statistics-window"]),
        (["--statistics-max-age=90s"], ["--statistics-max-age", "1m30s", "2m"]),
        (["--statistics-max-age=5m", "--period=3m"], ["--statistics-max-age", "5m", "6m"]),
    ],
)
def test_settings_that_cannot_be_are_named(
    shell: AnnotateShell, arguments: list[str], words: list[str]
) -> None:
    done = shell.run("--once", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr


def test_the_extenders_file_of_settings_will_do(shell: AnnotateShell) -> None:
    file = shell.folder / "nodewise.yaml"
    file.write_text("agents: safe\nport: 9001\nsafe: {percentile: 20}\nmetrics: [prometheus]\nwhat: usage\n")
    done = shell.run("--once", f"--config={file}")
    assert (done.returncode, done.stdout) == (0, "nodes: 2 annotated, 1 not ready\n")
    assert "requested-cpu" not in shell.annotations()["rack1-a"]
    file.write_text("wat: usage\n")
    done = shell.run("--once", f"--config={file}")
    assert done.returncode == 2
    assert "wat" in done.stderr
    assert "what" in done.stderr


def test_the_older_variables_are_understood(shell: AnnotateShell) -> None:
    done = shell.run("--once", ANNOTATE_FREQ="soon", USE_FORECAST="yes", CLUSTER_CONF="in-cluster")
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "variable_ignored" in line]
    expected = ["ANNOTATE_FREQ", "USE_FORECAST"]
    assert [name for line in lines for name in ("ANNOTATE_FREQ", "USE_FORECAST") if name in line] == expected


def test_prometheus_of_the_older_variables_is_asked(shell: AnnotateShell) -> None:
    done = shell.run("--once", "--usage-from=auto", PROM_IP="127.0.0.1", PROM_PORT="1")
    assert done.returncode == 1
    assert "http://127.0.0.1:1" in done.stderr
    assert "2 not measured" in done.stdout


def test_without_an_api_server_it_says_so(shell: AnnotateShell) -> None:
    config = json.loads(shell.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:1"
    shell.kubeconfig.write_text(json.dumps(config))
    done = shell.run("--once")
    assert done.returncode == 1
    assert "http://127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
