"""Runs the real descheduler against a control plane."""

import re
from pathlib import Path
from typing import NamedTuple

from tests.cluster import child_processes, health_example_manifests, namespace_sandboxes
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane

RIGHTS = [
    rule("get list watch", "nodes namespaces pods persistentvolumeclaims"),
    rule("create", "pods/eviction"),
    rule("create update patch", "events", "events.k8s.io"),
    rule("get list watch", "priorityclasses", "scheduling.k8s.io"),
    rule("get list watch", "poddisruptionbudgets", "policy"),
]


class DeschedulerPass(NamedTuple):
    """The result of one pass of the descheduler: the number of evictions, and the log."""

    evicted: int
    log: str


def once(
    plane: ControlPlane, program: Path, policy: Path = health_example_manifests.DESCHEDULER_POLICY
) -> DeschedulerPass:
    """Runs one pass over all nodes. The descheduler does nothing in a cluster of fewer than two ready nodes."""
    port = child_processes.free_port()
    user = plane.user(f"descheduler-{port}", RIGHTS)
    arguments = [
        program,
        f"--kubeconfig={user.kubeconfig}",
        f"--policy-config-file={policy}",
        "--descheduling-interval=0s",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={plane.folder}",
        "--disable-metrics",
        "-v=4",
    ]
    with Process(arguments, plane.folder / f"{user.name}.log") as process:
        namespace_sandboxes.wait(
            "the descheduler ends", lambda: None if process.is_running else True, 60, process.tail
        )
    log = process.log.read_text()
    evictions = re.search(r'"Number of evictions/requests" totalEvicted=(\d+)', log)
    assert evictions, f"the descheduler did not get to the end of its pass:\n{process.tail()}"
    return DeschedulerPass(int(evictions[1]), log)
