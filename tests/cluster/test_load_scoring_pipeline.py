"""Real load through the whole pipeline: node exporter, Prometheus, `nodewise annotate`, the API server, the agents'
scores, and kube-scheduler's placement. The nodes are virtual machines, so that each has its own metrics.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster import (
    child_processes,
    debian_packages,
    extender_process,
    kubernetes_objects,
    monitored_machine,
)
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.conftest import get_or_skip
from tests.cluster.controlplane import ControlPlane
from tests.cluster.debian_packages import MachinePackages
from tests.cluster.extender_process import NODEWISE
from tests.cluster.monitored_machine import MonitoredMachine
from tests.cluster.namespace_sandboxes import Sandbox, node_of, wait
from tests.cluster.prometheus_process import PrometheusProcess

WINDOW_S = 20
SCRAPED_S = 2
NODES = ("calm", "busy")
PATIENCE_S = 120
"""Deadline in seconds for the statistics window to contain only current samples, on a loaded machine."""


class MeasuredMachines(NamedTuple):
    """The machines by node name, and the Prometheus that scrapes them."""

    machines: dict[str, MonitoredMachine]
    prometheus: PrometheusProcess


@pytest.fixture(scope="module")
def machine_packages(request: pytest.FixtureRequest) -> MachinePackages:
    """The packages for virtual machines."""
    return get_or_skip(request, debian_packages.machine)


@pytest.fixture(scope="module")
def measured(
    machine_packages: MachinePackages,
    prometheus_programs: debian_packages.PrometheusPrograms,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MeasuredMachines]:
    folder = tmp_path_factory.mktemp("machines")
    with contextlib.ExitStack() as stack:
        machines = {
            name: stack.enter_context(
                monitored_machine.running(machine_packages, prometheus_programs.node_exporter, folder / name)
            )
            for name in NODES
        }
        targets = [
            {"targets": [machine.exporter], "labels": {"node": name}} for name, machine in machines.items()
        ]
        job = {"job_name": "node-exporter", "scrape_interval": f"{SCRAPED_S}s", "static_configs": targets}
        server = PrometheusProcess(prometheus_programs, folder / "prometheus", {"scrape_configs": [job]})
        stack.callback(server.stop)
        server.start()
        rates = f'count by (node) (rate(node_cpu_seconds_total{{mode="idle"}}[{3 * SCRAPED_S}s]))'
        wait(
            "all are scraped",
            lambda: len(server.ask(rates)) == len(NODES) or None,
            PATIENCE_S,
            server.targets,
        )
        yield MeasuredMachines(machines, server)


class AnnotatorCommand:
    """`nodewise annotate` as a user with its shipped rights."""

    def __init__(self, plane: ControlPlane, measured: MeasuredMachines) -> None:
        role = next(
            manifest
            for manifest in extender_process.manifest("annotator.yaml")
            if manifest["kind"] == "ClusterRole"
        )
        self._plane = plane
        self._user: User = plane.user(f"annotator-{child_processes.number()}", role["rules"])
        self._url = measured.prometheus.url

    def once(self) -> Object:
        """Annotates the nodes once and returns the report."""
        command = [
            *(NODEWISE, "annotate", "--once", "-o", "json", f"--kubeconfig={self._user.kubeconfig}"),
            *(f"--prometheus-url={self._url}", f"--statistics-window={WINDOW_S}s"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout, done.stderr
        report: Object = json.loads(done.stdout)
        assert report["written"]["failed"] == 0
        return report

    def annotations(self, node: str) -> dict[str, str]:
        annotations: dict[str, str] = self._plane.api.get(f"/api/v1/nodes/{node}")["metadata"].get(
            "annotations", {}
        )
        return annotations

    def free_share(self, node: str) -> float:
        """The free share of a node's CPUs according to its annotation."""
        return float(self.annotations(node)["mean-free-cpu"]) / 1000 / monitored_machine.CPUS

    def until_bound(self, sandbox: Sandbox, pod: str) -> str:
        """Annotates the nodes repeatedly until a pod is bound, and returns its node."""

        def node() -> str | None:
            self.once()
            time.sleep(1)
            return node_of(sandbox.pod(pod))

        what = f"pod {pod} is bound"
        return wait(what, node, PATIENCE_S, lambda: {name: self.annotations(name) for name in NODES})

    def until(self, node: str, low: float, high: float) -> None:
        """Annotates the nodes repeatedly until the free share of a node's CPUs is in this range."""

        def is_so() -> bool | None:
            time.sleep(1)  # Prometheus scrapes every other second
            with contextlib.suppress(KeyError):
                self.once()
                return low <= self.free_share(node) <= high or None
            return None

        what = f"{low:.0%} to {high:.0%} of {node} are free"
        wait(what, is_so, PATIENCE_S, lambda: {name: self.annotations(name) for name in NODES})


def node(name: str, machine_: MonitoredMachine) -> Object:
    return kubernetes_objects.node(name, cpu=str(monitored_machine.CPUS), memory=str(machine_.memory_bytes))


def pinned(pod: Object, node_name: str) -> Object:
    """The pod with a selector for this node."""
    return pod | {"spec": pod["spec"] | {"nodeSelector": {"kubernetes.io/hostname": node_name}}}


def test_pods_avoid_the_node_that_is_really_loaded(
    plane: ControlPlane, sandbox: Sandbox, measured: MeasuredMachines, tmp_path: Path
) -> None:
    sandbox.nodes(*(node(name, machine) for name, machine in measured.machines.items()))
    annotator = AnnotatorCommand(plane, measured)
    with contextlib.ExitStack() as stack:
        load = contextlib.ExitStack()
        stack.enter_context(load)
        load.enter_context(measured.machines["busy"].load())
        annotator.until("busy", 0.0, 0.05)
        annotator.until("calm", 0.5, 1.0)
        nodewise = stack.enter_context(extender_process.extender(plane, tmp_path, "--agents=safe,congestion"))
        entry = nodewise.entry(managedResources=[])
        stack.enter_context(plane.start_scheduler({"extenders": [entry]}))

        names = [f"web-{number}" for number in range(6)]
        sandbox.pods(*(kubernetes_objects.pod(name, memory="4Mi") for name in names))
        assert {sandbox.expect_bound(name) for name in names} == {"calm"}
        rejected = nodewise.decisions("web-0")[-1]["rejected"]
        assert {name: [rejection["agent"] for rejection in why] for name, why in rejected.items()} == {
            "busy": ["safe"]
        }
        sandbox.pods(pinned(kubernetes_objects.pod("pinned", memory="4Mi"), "busy"))
        assert "safe: risk of cpu" in sandbox.expect_rejected("pinned")

        load.close()
        assert annotator.until_bound(sandbox, "pinned") == "busy"
        annotator.until("busy", 0.5, 1.0)


def test_annotations_equal_the_values_of_prometheus(
    plane: ControlPlane, sandbox: Sandbox, measured: MeasuredMachines
) -> None:
    sandbox.nodes(*(node(name, machine) for name, machine in measured.machines.items()))
    annotator = AnnotatorCommand(plane, measured)
    wait("both nodes have statistics", lambda: not annotator.once()["failures"] or None, PATIENCE_S)
    for name, machine in measured.machines.items():
        annotations = annotator.annotations(name)
        available = measured.prometheus.ask(f'node_memory_MemAvailable_bytes{{node="{name}"}}')[0]["value"][1]
        assert float(annotations["mean-free-memory"]) == pytest.approx(float(available), rel=0.05)
        assert int(annotations["allocatable_memory"]) == machine.memory_bytes
        assert 0 <= float(annotations["std-free-cpu"]) <= monitored_machine.CPUS * 500
        assert annotations["requested-cpu"] == "0"
        assert annotations["free-cpu"] == str(monitored_machine.CPUS * 1000)
    assert annotator.once()["written"]["failed"] == 0
