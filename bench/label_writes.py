"""`python -m bench.label_writes`: the labels of all nodes change at once, while another client writes.

It runs a real API server and `nodewise controller` with its default options. In each round, the metric of a policy
begins to reject all nodes at a random moment of the period, and to accept them in the next one; the time until no label
is left to be written is measured, and the duration of the writes of another client before and during the change. The
metrics of the controller count the labels, because a watch of all nodes would take a part of the machine; a list checks
them afterwards. Updates results.json.
"""

import argparse
import json
import random
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.cluster import (
    api_user_kubeconfigs,
    native_mode,
)
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox

from bench import (
    alternating_rounds,
    benchmark_servers,
    generated_cluster_objects,
    load_clients,
    native_mode_rounds,
    report,
    results,
)
from bench.load_clients import HttpLoad, LoadClient
from bench.native_mode_rounds import RunningController
from bench.progress_lines import report_progress_line
from bench.results import LABEL_WRITES

METRIC: Final = "node_changing"
OTHER_S: Final = 12.0
"""The time in which the writes of the other client are measured: before the change, and from its first label on."""
INTERVAL_S: Final = 0.02
_OBJECT: Final = "other"
_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.5

Round = dict[str, float]


def main() -> None:
    options = _arguments()
    machine_load = results.MachineLoad()
    with tempfile.TemporaryDirectory(prefix="nodewise-bench-") as name:
        rounds = _measure(Path(name), options)
    share = machine_load.others_share()
    figures = {key: alternating_rounds.of_rounds((each[key] for each in rounds), 2) for key in rounds[0]}
    report.print_and_update(LABEL_WRITES, figures, share, options.write)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.label_writes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the figures only")
    parser.add_argument("controller", nargs="*", help="options of the controller, for comparison")
    options = parser.parse_args()
    options.write = options.write and not options.controller
    return options


def _measure(folder: Path, options: argparse.Namespace) -> list[Round]:
    names = generated_cluster_objects.names(options.nodes)
    program = load_clients.build(folder)
    cluster = native_mode_rounds.cluster_of_equal_nodes(folder, names, METRIC)
    with cluster as (plane, sandbox, metrics, account):
        rule = {"metric": METRIC, "above": 50}
        policy = native_mode_rounds.put_policy(sandbox, "pol", {"app": "web"}, rule)
        client, load = _other_client(plane, sandbox, program, folder)
        chance, rounds = random.Random(1), list[Round]()
        key = native_mode.LABEL_PREFIX + plane.api.get(policy)["metadata"]["uid"]
        with (
            native_mode_rounds.controller(account, folder, *options.controller) as running,
            ThreadPoolExecutor(1) as pool,
        ):
            native_mode_rounds.wait_active(plane.api, [policy])
            running.wait_settled(METRIC)
            for number in range(options.rounds):
                before = client.ask(load).micros
                time.sleep(chance.uniform(0, native_mode_rounds.PERIOD_S))
                cpu_s, done = benchmark_servers.cpu_s(running.process), running.label_writes()
                metrics.set(METRIC, dict.fromkeys(names, (90, 10)[number % 2]))
                began_s = time.monotonic()
                _wait_for_labels(running, done + 1)
                first_s, during = time.monotonic() - began_s, pool.submit(client.ask, load)
                _wait_for_labels(running, done + len(names))
                all_s = time.monotonic() - began_s
                rejected = plane.api.get("/api/v1/nodes", labelSelector=f"{key}=violating", limit="1")
                if bool(rejected["items"]) != (number % 2 == 0):
                    raise RuntimeError("the labels do not have the value of the policy")
                cpu_s = benchmark_servers.cpu_s(running.process) - cpu_s
                p99_ms = [
                    alternating_rounds.percentile(micros, 0.99) / 1000
                    for micros in (before, during.result().micros)
                ]
                rounds.append(
                    {
                        "labels_5000_s": all_s,
                        "labels_5000_other_writes_before_ms": p99_ms[0],
                        "labels_5000_other_writes_ms": p99_ms[1],
                        "labels_5000_other_writes_ratio": p99_ms[1] / p99_ms[0],
                        "labels_5000_cpu_ms": 1000 * cpu_s / len(names),
                    }
                )
                rate = running.metrics()["nodewise_kube_write_rate"]
                shown = ", ".join(f"{key} {value:.2f}" for key, value in rounds[-1].items())
                report_progress_line(f"first label {first_s:.1f} s, rate {rate:g}/s, {shown}")
    return rounds


def _wait_for_labels(running: RunningController, writes: float) -> None:
    until_s = time.monotonic() + _DEADLINE_S
    while running.label_writes() < writes:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{running.label_writes():g} of {writes:g} labels were written")
        time.sleep(_POLL_S)


def _other_client(
    plane: ControlPlane, sandbox: Sandbox, program: Path, folder: Path
) -> tuple[LoadClient, HttpLoad]:
    """A client that replaces a ConfigMap, 50 times a second at most, with the rights and priority of any user."""
    rule = api_user_kubeconfigs.rule("get create update", "configmaps")
    user = plane.user(_OBJECT, [rule], sandbox.namespace)
    assert user.pair is not None
    bodies = folder / "bodies"
    bodies.mkdir()
    metadata = {"name": _OBJECT, "namespace": sandbox.namespace}
    for number in "01":
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"number": number}}
        (bodies / number).write_text(json.dumps(made))
    sandbox.put(made)
    url = f"{plane.url}/api/v1/namespaces/{sandbox.namespace}/configmaps/{_OBJECT}"
    load = HttpLoad(url, bodies, warmup=20, seconds=OTHER_S, method="PUT", interval_s=INTERVAL_S)
    return LoadClient(program, plane.ca_file, user.pair), load


if __name__ == "__main__":
    main()
