"""The contenders of `bench.cluster`: no extender, a no-op extender, and nodewise with one of two policies.

Both extenders serve the same mutual TLS. Their entries in the scheduler's configuration differ only in the address:
names only, every pod, filter and prioritize.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.cluster import extender_process, fake_scheduler_extender
from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox

from bench import generated_cluster_objects
from bench.generated_cluster_objects import ERRORS, POWER, TEMPERATURE

NONE, NOTHING, NODEWISE, ADMITTING = "none", "nothing", "nodewise", "nodewise, no node rejected"
HALF, ALL = "half", "all"
"""Policies by the share of nodes that they accept."""
NEVER: Final = 10**9
"""A threshold that no value reaches."""
PERIOD_S: Final = 2
"""Interval of nodewise's metric fetches and of changes of the values."""
METRICS: Final = (TEMPERATURE, ERRORS, POWER)
FIELDS: Final = {"weight": 1, "httpTimeout": "5s", "preemptVerb": "", "managedResources": []}
ANSWERS: Final = 5
"""Number of alternating responses per metric."""


def policies(sandbox: Sandbox) -> None:
    """Create two policies with two filter rules and one score rule each: one rejects half of the nodes, one none."""
    extender_process.define(sandbox.api)
    half = next(
        policy
        for policy in generated_cluster_objects.policies()
        if policy["metadata"]["name"] == generated_cluster_objects.POLICY
    )
    strategies = half["spec"]["strategies"]
    loose = [rule | {"target": NEVER} for rule in strategies["dontschedule"]["rules"]]
    for name, kept in ((HALF, strategies), (ALL, strategies | {"dontschedule": {"rules": loose}})):
        sandbox.put(half | {"metadata": {"name": name}, "spec": {"strategies": kept}})


@contextlib.contextmanager
def feeding(
    metrics: FakeCustomMetricsApi, names: Sequence[str], wanted: Sequence[str] = METRICS
) -> Iterator[None]:
    """Publish new values with the current time every period, from prepared responses, until the block ends."""
    made = {
        metric: [generated_cluster_objects.answer(metric, list(names), seed) for seed in range(ANSWERS)]
        for metric in wanted
    }
    for metric in wanted:
        metrics.set(metric, {})  # discovery lists it
    ended = threading.Event()

    def publish(turn: int) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
        for metric, answers in made.items():
            metrics.say(
                metric, answers[turn % ANSWERS].replace(generated_cluster_objects.TIMESTAMP_PLACEHOLDER, now)
            )

    def follow() -> None:
        turn = 1
        while not ended.wait(PERIOD_S):
            publish(turn)
            turn += 1

    publish(0)
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def extenders(name: str, plane: ControlPlane, folder: Path) -> Iterator[list[Object]]:
    """Run a contender until the block ends; yields its entries for the scheduler's configuration."""
    folder.mkdir()
    if name == NONE:
        yield []
    elif name == NOTHING:
        with _no_op_extender(folder) as entry:
            yield [entry]
    else:
        with extender_process.extender(plane, folder, f"--sync-period={PERIOD_S}s") as running:
            for metric in METRICS:  # nodewise is ready after the first response, which may be a failure
                running.wait_fetched(metric)
            yield [running.entry(**FIELDS)]


@contextlib.contextmanager
def _no_op_extender(folder: Path) -> Iterator[Object]:
    certificates = CertificateFiles(folder)
    pair, client_ca = certificates.server, certificates.authority.ca_file
    module = [sys.executable, "-m", "tests.cluster.fake_scheduler_extender", "--port=0"]
    log = folder / "nothing.log"
    with Process(
        [*module, f"--cert={pair.cert}", f"--key={pair.key}", f"--cacert={client_ca}"], log
    ) as process:
        process.wait_ready(lambda: "https://" in log.read_text())
        tls = fake_scheduler_extender.tls_fields(client_ca, certificates.client)
        yield fake_scheduler_extender.entry(log.read_text().strip(), **tls, **FIELDS)
