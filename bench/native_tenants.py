"""`python -m bench.native_tenants`: the labels of a tenant in native mode beside many namespaces with many policies.

It runs a real API server and `nodewise controller` with its default period and rate limits. The victim is a namespace
with one policy. Its metric begins to violate the policy on all nodes at a random moment, and the time until every node
has the label is measured: first alone, then beside 150 namespaces with ten policies each, all of which reject every
node. Updates results.json.
"""

import argparse
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster import (
    controlplane,
    extender_process,
    fake_custom_metrics_server,
    kubernetes_objects,
    namespace_sandboxes,
    native_mode,
    program_cache,
)
from tests.cluster.api_client import ClusterApi, Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

from bench import report, results
from bench.alternating_rounds import of_rounds
from bench.progress_lines import report_progress_line
from bench.results import NATIVE_TENANTS

PERIOD_S = 5.0
POLICIES = 10
_POLL_S = 0.02
_DEADLINE_S = 300.0


def main() -> None:
    options = _arguments()
    machine_load = results.MachineLoad()
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as name:
        figures = _measure(Path(name), options)
    report.print_and_update(NATIVE_TENANTS, figures, machine_load.others_share(), options.write)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.native_tenants", description=__doc__)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--namespaces", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the figures only")
    return parser.parse_args()


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    nodes = [f"n{number:03}" for number in range(options.nodes)]
    report_progress_line("starting the control plane")
    with (
        controlplane.running(program_cache.folder(), folder) as plane,
        namespace_sandboxes.created(plane) as victim,
        fake_custom_metrics_server.behind(victim, folder) as metrics,
    ):
        account = native_mode.install_with_account(plane)
        victim.nodes(*map(kubernetes_objects.node, nodes))
        for metric, value in (("calm", 10), ("heat", 90)):
            metrics.set(metric, dict.fromkeys(nodes, value))
        made = victim.put(_avoiding("calm"))
        with extender_process.controller(
            account, folder, "--native-mode", "--namespace=nodewise", f"--sync-period={PERIOD_S:g}s"
        ):
            wait(
                "the policy is active",
                lambda: plane.api.get(path_of(made)).get("status", {}).get("active") or None,
            )
            rounds = _Rounds(plane.api, metrics, nodes, native_mode.LABEL_PREFIX + made["metadata"]["uid"])
            alone = [rounds.measure("alone") for _ in range(options.rounds)]
            with _tenants(plane, options.namespaces):
                beside = [rounds.measure("beside") for _ in range(options.rounds)]
    alone_s = statistics.mean(alone)
    return {
        "native_tenant_label_alone_s": of_rounds(alone, 1, max),
        "native_tenant_label_s": of_rounds(beside, 1, max),
        "native_tenant_label_ratio": of_rounds((each / alone_s for each in beside), 2, statistics.mean),
        "native_tenant_label_bytes": float(rounds.largest_bytes),
    }


class _Rounds:
    """The labels of the victim, which change in each round."""

    def __init__(self, api: ClusterApi, metrics: FakeCustomMetricsApi, nodes: list[str], key: str) -> None:
        self._api = api
        self._metrics = metrics
        self._nodes = nodes
        self._key = key
        self.largest_bytes = 0
        self._random = random.Random(1)

    def measure(self, what: str) -> float:
        """The seconds from the change of the metric until every node has the label; it is removed before."""
        self._metrics.set("calm", dict.fromkeys(self._nodes, 10))
        self._wait(0)
        time.sleep(PERIOD_S + self._random.uniform(0, PERIOD_S))
        began_s = time.monotonic()
        self._metrics.set("calm", dict.fromkeys(self._nodes, 90))
        self._wait(len(self._nodes))
        seconds = time.monotonic() - began_s
        report_progress_line(f"{what}: {seconds:.1f} s, {self.largest_bytes} bytes")
        return seconds

    def _wait(self, count: int) -> None:
        until_s = time.monotonic() + _DEADLINE_S
        while time.monotonic() < until_s:
            items = self._api.get("/api/v1/nodes")["items"]
            for node in items:
                labels: dict[str, str] = node["metadata"].get("labels", {})
                size = sum(
                    len(key) + len(value)
                    for key, value in labels.items()
                    if key.startswith(native_mode.LABEL_PREFIX)
                )
                self.largest_bytes = max(self.largest_bytes, size)
            if sum(self._key in node["metadata"].get("labels", {}) for node in items) == count:
                return
            time.sleep(_POLL_S)
        raise TimeoutError(f"{count} nodes do not have the label after {_DEADLINE_S:g} s")


def _avoiding(metric: str, name: str = "pol") -> Object:
    return policy({"podSelector": {}, "avoid": [{"metric": metric, "above": 50}]}, name=name)


@contextlib.contextmanager
def _tenants(plane: ControlPlane, count: int) -> Iterator[list[Sandbox]]:
    report_progress_line(f"creating {count * POLICIES} policies")
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        tenants = [stack.enter_context(namespace_sandboxes.created(plane)) for _ in range(count)]
        for number in range(POLICIES):
            list(pool.map(lambda tenant, name=f"p{number}": tenant.put(_avoiding("heat", name)), tenants))
        time.sleep(4 * PERIOD_S)
        yield tenants


if __name__ == "__main__":
    main()
