"""Published load-aware schedulers decide on a real API server, and our formulas must have the same best nodes.

    python -m bench.load_schedulers [--decisions N] [--no-write]

Builds Trimaran's scheduler, koord-scheduler and Volcano from their Go modules, once, which takes minutes each. Those
that build run as schedulers of their own pods, one plugin at a time and no other score. A fake load watcher serves the
usage of the nodes to Trimaran; koord-scheduler reads NodeMetric objects. Each pod may use eight nodes at random. The
figures are the shares of pods whose node is one of the best by `published_formulas`.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import yaml
from tests.cluster import child_processes, controlplane, go_toolchain, kubernetes_objects, program_cache
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import wait

from bench import report
from bench.progress_lines import report_progress_line
from bench.results import LOAD_SCHEDULERS, MachineLoad, Measurement
from nodewise_scorers.load.bound_pods import PodAmounts
from nodewise_scorers.load.published_formulas import (
    FORMULAS,
    CandidateUsage,
    Floats,
    PowerModel,
    PublishedFormula,
)

NODES: Final = 40
_CANDIDATES: Final = 8
_MEMORY_BYTES: Final = 64 * 2**30
_NAMESPACE: Final = "default"
_SCHEDULER_API: Final = "kubescheduler.config.k8s.io/v1"


class SchedulerSource(NamedTuple):
    """A scheduler that is built from a Go module."""

    module: str
    version: str
    package: str
    replaced: Mapping[str, str]
    """Versions of other modules that replace those of its go.mod."""


SOURCES: Final[Mapping[str, SchedulerSource]] = {
    "trimaran": SchedulerSource(
        # public proxies do not have v0.34.7 of this library, which concerns volumes only
        "sigs.k8s.io/scheduler-plugins", "v0.34.7", "./cmd/scheduler", {"k8s.io/csi-translation-lib": "v0.34.5"}
    ),
    "koordinator": SchedulerSource("github.com/koordinator-sh/koordinator", "v1.8.0", "./cmd/koord-scheduler", {}),
    # a folder of its repository, which is not part of its module, replaces this one
    "volcano": SchedulerSource("volcano.sh/volcano", "v1.15.1", "./cmd/scheduler", {"volcano.sh/apis": "v1.15.1"}),
}  # fmt: skip


class BuildError(Exception):
    """A scheduler cannot be built; the text is the first error."""


def source_folder(source: SchedulerSource) -> Path:
    """The folder of a Go module in the module cache, downloaded if necessary."""
    words = ["go", "mod", "download", "-json", f"{source.module}@{source.version}"]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, env=go_toolchain.environment())
    if ended.returncode:
        raise BuildError(ended.stdout[-300:] + ended.stderr[-300:])
    return Path(json.loads(ended.stdout)["Dir"])


def build(name: str) -> Path:
    """The program of a scheduler, built at the first call. Raises BuildError."""
    source = SOURCES[name]
    program = go_toolchain.cache() / "load-schedulers" / f"{name}-{source.version}"
    if program.exists():
        return program
    report_progress_line(f"building {name}, which takes minutes")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "module")
        shutil.copytree(source_folder(source), folder, copy_function=shutil.copyfile)
        for directory, _, _ in os.walk(folder):
            Path(directory).chmod(0o755)
        edits = [f"-replace={module}={module}@{version}" for module, version in source.replaced.items()]
        commands = [["go", "build", "-mod=mod", "-ldflags=-s -w", "-o", str(program), source.package]]
        if edits:
            commands.insert(0, ["go", "mod", "edit", *edits])
        for command in commands:
            ended = subprocess.run(
                ["nice", "-n", "15", *command],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                env=go_toolchain.environment(),
            )
            if ended.returncode:
                errors = [line for line in ended.stderr.splitlines() if "downloading" not in line]
                raise BuildError("; ".join(errors)[:300])
    return program


class NodeStatistics(NamedTuple):
    """Usage in per cent, by node; fixed while pods are placed."""

    names: Sequence[str]
    cores: Floats
    cpu_pct: Floats
    cpu_deviation_pct: Floats
    memory_pct: Floats
    memory_deviation_pct: Floats


def random_statistics(chance: random.Random) -> NodeStatistics:
    def column(low: float, high: float) -> Floats:
        return np.array([round(chance.uniform(low, high), 2) for _ in range(NODES)])

    cores = np.array([float(chance.choice((4, 8, 16))) for _ in range(NODES)])
    names = [f"node-{number:02d}" for number in range(NODES)]
    return NodeStatistics(names, cores, column(5, 60), column(1, 15), column(10, 50), column(1, 10))


def random_pod(chance: random.Random) -> PodAmounts:
    cpu, memory = chance.randrange(50, 1000, 10), 2**20 * chance.randrange(64, 1024, 8)
    factor = 2 if chance.random() < 0.5 else inf
    return PodAmounts((float(cpu), float(memory)), (factor * cpu, factor * memory))


class Cluster:
    """Usage and the pods that were bound since, by node number; what the formulas need."""

    def __init__(self, statistics: NodeStatistics) -> None:
        self.statistics = statistics
        capacity = np.array([1000 * statistics.cores, np.full(NODES, float(_MEMORY_BYTES))])
        used = np.array([statistics.cpu_pct, statistics.memory_pct]) / 100 * capacity
        deviation = np.array([statistics.cpu_deviation_pct, statistics.memory_deviation_pct]) / 100
        in_flight, requested, limits = (np.zeros((2, NODES)) for _ in range(3))
        self._usage = CandidateUsage(used, in_flight, deviation, requested, limits, capacity)

    def usage(self, nodes: Sequence[int]) -> CandidateUsage:
        """That of the candidates."""
        return CandidateUsage(*(values[:, nodes] for values in self._usage))

    def bind(self, pod: PodAmounts, node: int, estimate: tuple[float, float]) -> None:
        self._usage.requested[:, node] += pod.requests
        self._usage.limits[:, node] += [
            request if limit == inf else limit
            for request, limit in zip(pod.requests, pod.limits, strict=True)
        ]
        self._usage.in_flight[:, node] += estimate


class Plugin(NamedTuple):
    """A score plugin, and our formula for it."""

    source: str
    name: str
    formula: PublishedFormula


PLUGINS: Final[Mapping[str, Plugin]] = {
    formula.replace("-", "_"): Plugin(source, name, FORMULAS[formula])
    for source, name, formula in (
        ("trimaran", "TargetLoadPacking", "target-load-packing"),
        ("trimaran", "LoadVariationRiskBalancing", "load-variation-risk-balancing"),
        ("trimaran", "LowRiskOverCommitment", "low-risk-over-commitment"),
        ("trimaran", "Peaks", "peaks"),
        ("koordinator", "LoadAwareScheduling", "koordinator"),
    )
}
"""By the key of `LOAD_PLUGINS`."""


@contextlib.contextmanager
def load_watcher(statistics: NodeStatistics) -> Iterator[str]:
    """The address of a fake load watcher, whose window ended two minutes ago."""
    end = int(time.time()) - 120
    columns = (
        ("CPU", "AVG", statistics.cpu_pct),
        ("CPU", "STD", statistics.cpu_deviation_pct),
        ("Memory", "AVG", statistics.memory_pct),
        ("Memory", "STD", statistics.memory_deviation_pct),
    )
    nodes = {
        name: {
            "metrics": [
                {"name": "usage", "type": kind, "operator": operator, "rollup": operator, "value": float(values[at])}
                for kind, operator, values in columns
            ]
        }
        for at, name in enumerate(statistics.names)
    }  # fmt: skip
    window = {"duration": "15m", "start": end - 900, "end": end}
    document = {"timestamp": end, "window": window, "source": "fake", "data": {"NodeMetricsMap": nodes}}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def _plugin_arguments(plugin: Plugin, watcher: str, statistics: NodeStatistics) -> dict[str, Any]:
    """The default arguments, except where they have no effect or depend on the place."""
    arguments: dict[str, Any] = {"apiVersion": _SCHEDULER_API, "kind": f"{plugin.name}Args"}
    if plugin.source == "koordinator":
        return arguments | {"usageThresholds": {"cpu": 0, "memory": 0}}  # no filter
    if plugin.name == "Peaks":  # its fields have the names of Go, because its JSON tags are malformed
        model = PowerModel()
        models = {node: {"k0": 0, "k1": model.k1, "k2": model.k2} for node in statistics.names}
        return arguments | {"WatcherAddress": watcher, "NodePowerModel": models}
    return arguments | {"watcherAddress": watcher}


@contextlib.contextmanager
def running_scheduler(
    plane: ControlPlane, plugin: Plugin, program: Path, watcher: str, statistics: NodeStatistics
) -> Iterator[Process]:
    """The scheduler of one plugin, which is the name of its pods' scheduler."""
    enabled = {
        "queueSort": "PrioritySort",
        "filter": "NodeAffinity",
        "preFilter": "NodeAffinity",
        "score": plugin.name,
        "bind": "DefaultBinder",
    }
    plugins: dict[str, Any] = {point: {"enabled": [{"name": name}]} for point, name in enabled.items()}
    if plugin.source == "koordinator":
        plugins["preFilter"]["enabled"].append({"name": plugin.name})
        plugins["reserve"] = {"enabled": [{"name": plugin.name}]}
    profile = {
        "schedulerName": plugin.name.lower(),
        "plugins": {"multiPoint": {"disabled": [{"name": "*"}]}, **plugins},
        "pluginConfig": [{"name": plugin.name, "args": _plugin_arguments(plugin, watcher, statistics)}],
    }
    config = controlplane.SCHEDULER | {
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(plane.admin.kubeconfig)},
        "profiles": [profile],
    }
    number, port = child_processes.number(), child_processes.free_port()
    file = plane.folder / f"load-scheduler-{number}.json"
    file.write_text(json.dumps(config))
    serving = plane.authority.issue("load-scheduler", "127.0.0.1")
    words = [program, f"--config={file}", f"--secure-port={port}", "--bind-address=127.0.0.1", "--v=2"]
    words += [f"--tls-cert-file={serving.cert}", f"--tls-private-key-file={serving.key}"]
    with Process(words, plane.folder / f"load-scheduler-{number}.log") as process:
        process.wait_ready(lambda: plane.api.answers(f"https://127.0.0.1:{port}/healthz"))
        yield process


def _write_node_metrics(plane: ControlPlane, statistics: NodeStatistics) -> None:
    """NodeMetric objects of now: koord-scheduler does not use those that are older than three minutes."""
    kind = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric"}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for at, name in enumerate(statistics.names):
        usage = {
            "cpu": f"{round(10 * statistics.cpu_pct[at] * statistics.cores[at])}m",
            "memory": str(round(statistics.memory_pct[at] / 100 * _MEMORY_BYTES)),
        }
        plane.api.ensure({**kind, "metadata": {"name": name}, "spec": {}})
        status = {"updateTime": now, "nodeMetric": {"nodeUsage": {"resources": usage}}}
        plane.api.patch(f"/apis/{kind['apiVersion']}/nodemetrics/{name}/status", {"status": status})


def _decide(
    plane: ControlPlane, plugin: Plugin, cluster: Cluster, decisions: int, chance: random.Random
) -> float:
    """The share of pods whose node is among the best by our formula."""
    agreed = 0
    pods = f"/api/v1/namespaces/{_NAMESPACE}/pods"
    for number in range(decisions):
        amounts, candidates = random_pod(chance), sorted(chance.sample(range(NODES), _CANDIDATES))
        pod = kubernetes_objects.pod(f"{plugin.name.lower()}-{number}")
        pod["metadata"]["namespace"] = _NAMESPACE
        requests, limits = (
            {"cpu": f"{cpu:.0f}m", "memory": f"{memory:.0f}"} if cpu < inf else {}
            for cpu, memory in (amounts.requests, amounts.limits)
        )
        pod["spec"]["containers"][0]["resources"] = {"requests": requests, "limits": limits}
        names = [cluster.statistics.names[node] for node in candidates]
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": names}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        pod["spec"] |= {"schedulerName": plugin.name.lower(), "affinity": {"nodeAffinity": required}}
        scores = plugin.formula.scores(cluster.usage(candidates), amounts)
        plane.api.create(pod)
        path = f"{pods}/{pod['metadata']['name']}"
        bound = wait("a pod is bound", lambda path=path: plane.api.get(path)["spec"].get("nodeName"))
        node = cluster.statistics.names.index(bound)
        agreed += bool(scores[candidates.index(node)] == scores.max())
        cluster.bind(amounts, node, plugin.formula.estimate(amounts))
    plane.api.delete(f"{pods}?gracePeriodSeconds=0")
    return agreed / decisions


def measure(decisions: int) -> Measurement:
    """Build the schedulers, and compare the decisions of each plugin with our formula."""
    programs = dict[str, Path]()
    for name in SOURCES:
        try:
            programs[name] = build(name)
        except BuildError as error:
            report_progress_line(f"{name} does not build: {error}")
    chance, figures = random.Random(1), dict[str, float]()
    with (
        tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder,
        controlplane.running(program_cache.folder(), Path(folder)) as plane,
    ):
        statistics = random_statistics(chance)
        for name, cores in zip(statistics.names, statistics.cores, strict=True):
            memory = str(_MEMORY_BYTES)
            plane.api.create(kubernetes_objects.node(name, cpu=str(int(cores)), memory=memory, pods=500))
        if "koordinator" in programs:
            definitions = source_folder(SOURCES["koordinator"]) / "config/crd/bases"
            for path in sorted(definitions.glob("*.yaml")):
                plane.api.ensure(yaml.safe_load(path.read_text()))
        with load_watcher(statistics) as watcher:
            for key, plugin in PLUGINS.items():
                if plugin.source not in programs:
                    continue
                if plugin.source == "koordinator":
                    wait("NodeMetric is served", lambda: plane.api.find("/apis/slo.koordinator.sh/v1alpha1"))
                    _write_node_metrics(plane, statistics)
                program = programs[plugin.source]
                with running_scheduler(plane, plugin, program, watcher, statistics):
                    share = _decide(plane, plugin, Cluster(statistics), decisions, chance)
                figures[f"load_scheduler_{key}_pct"] = round(100 * share, 1)
                report_progress_line(f"{plugin.name}: {share:.1%} of {decisions} decisions")
    versions = {SOURCES[name].module: SOURCES[name].version for name in programs}
    return Measurement(figures, {}, "", programs=versions)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--decisions", type=int, default=300, help="pods per plugin")
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the figures only")
    options = parser.parse_args()
    machine_load = MachineLoad()
    measured = measure(options.decisions)
    print(json.dumps(measured.figures, indent=2))
    if options.write:
        report.update(LOAD_SCHEDULERS, measured, machine_load.others_share())


if __name__ == "__main__":
    main()
