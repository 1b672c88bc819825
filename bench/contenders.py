"""Who takes turns in `bench.cluster`: no extender, one that does nothing, nodewise with either of two policies.

Both extenders serve the same mutual TLS. Their entries in the scheduler's configuration differ in the address alone:
names only, every pod, filter and prioritize.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.cluster import extender_double, extender_process
from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.custom_metrics import FakeCustomMetricsApi
from tests.cluster.extender_process import CertificateFiles
from tests.cluster.processes import Process
from tests.cluster.test_namespaces import Sandbox

from bench import cluster_data
from bench.cluster_data import ERRORS, POWER, TEMPERATURE

NONE, NOTHING, NODEWISE, ADMITTING = "none", "nothing", "nodewise", "nodewise, no node rejected"
HALF, ALL = "half", "all"
"""Policies, by the nodes that they admit."""
NEVER: Final = 10**9
"""A target that no value reaches."""
PERIOD_S: Final = 2
"""How often nodewise asks for the metrics, and how often their values change."""
METRICS: Final = (TEMPERATURE, ERRORS, POWER)
FIELDS: Final = {"weight": 1, "httpTimeout": "5s", "preemptVerb": "", "managedResources": []}
ANSWERS: Final = 5
"""Different answers of each metric, which take turns."""


def policies(sandbox: Sandbox) -> None:
    """Two of the same form, two rules that reject and one that ranks: one rejects half of the nodes, one none."""
    extender_process.define(sandbox.api)
    half = next(
        policy for policy in cluster_data.policies() if policy["metadata"]["name"] == cluster_data.POLICY
    )
    strategies = half["spec"]["strategies"]
    loose = [rule | {"target": NEVER} for rule in strategies["dontschedule"]["rules"]]
    for name, kept in ((HALF, strategies), (ALL, strategies | {"dontschedule": {"rules": loose}})):
        sandbox.put(half | {"metadata": {"name": name}, "spec": {"strategies": kept}})


@contextlib.contextmanager
def feeding(
    metrics: FakeCustomMetricsApi, names: Sequence[str], wanted: Sequence[str] = METRICS
) -> Iterator[None]:
    """New values with the present time every period, from answers made beforehand, until the block is left."""
    made = {
        metric: [cluster_data.answer(metric, list(names), seed) for seed in range(ANSWERS)]
        for metric in wanted
    }
    for metric in wanted:
        metrics.set(metric, {})  # discovery lists it
    ended = threading.Event()

    def tell(turn: int) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
        for metric, answers in made.items():
            metrics.say(metric, answers[turn % ANSWERS].replace(cluster_data.STAMP, now))

    def follow() -> None:
        turn = 1
        while not ended.wait(PERIOD_S):
            tell(turn)
            turn += 1

    tell(0)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def extenders(name: str, plane: ControlPlane, folder: Path) -> Iterator[list[Object]]:
    """The rival at work, as a scheduler's configuration lists it; ended with the block."""
    folder.mkdir()
    if name == NONE:
        yield []
    elif name == NOTHING:
        with _nothing(folder) as entry:
            yield [entry]
    else:
        with extender_process.extender(plane, folder, f"--sync-period={PERIOD_S}s") as running:
            lacking = [metric for metric in METRICS if not running.fetched(metric)]
            if lacking:
                raise RuntimeError(f"nodewise is ready without {lacking}")
            yield [running.entry(**FIELDS)]


@contextlib.contextmanager
def _nothing(folder: Path) -> Iterator[Object]:
    papers = CertificateFiles(folder)
    pair, client_ca = papers.server, papers.authority.ca_file
    module = [sys.executable, "-m", "tests.cluster.extender_double", "--port=0"]
    log = folder / "nothing.log"
    with Process(
        [*module, f"--cert={pair.cert}", f"--key={pair.key}", f"--cacert={client_ca}"], log
    ) as process:
        process.wait_ready(lambda: "https://" in log.read_text())
        tls = extender_double.tls_fields(client_ca, papers.client)
        yield extender_double.entry(log.read_text().strip(), **tls, **FIELDS)
