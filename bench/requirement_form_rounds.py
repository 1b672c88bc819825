"""Forms of the requirement that native mode adds to pods, in `bench.cluster`: what each costs kube-scheduler.

No policy and no controller exist: the pods have the requirement in their manifest, and the nodes have the labels. So
the processor time of kube-scheduler differs only by the form. A CPU profile of each round divides it among the steps of
scheduling.
"""

import contextlib
import functools
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx2
from tests.cluster import child_processes, kubernetes_objects, namespace_sandboxes
from tests.cluster.api_client import Object
from tests.cluster.child_processes import Process
from tests.cluster.namespace_sandboxes import Sandbox

from bench import etcd_population, generated_cluster_objects, scheduler_bind_rounds
from bench.compared_extenders import NONE
from bench.etcd_population import EtcdEntry
from bench.scheduler_bind_rounds import BindBench, BindSummary, Rounds

_PREFIX: Final = "policy.nodewise.node-restriction.kubernetes.io/5b1f8a52-64f0-4a34-9d0e-00000000000"
_HALF, _OK_OR_VIOLATING, _OK = (f"{_PREFIX}{number}" for number in range(3))
"""Keys as of policies: half of the nodes are `violating`, with and without `ok` on the others; all nodes are `ok`."""
_ABSENT: Final = tuple(f"{_PREFIX}{number}" for number in range(3, 7))
"""Keys that no node has: of policies that reject no node."""
_GATE: Final = "node.example/not-active"
GATED: Final = "NotIn, no node rejected, with a scheduling gate that is removed"


def _affinity(*requirements: Mapping[str, Any]) -> Object:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(requirements)}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


def _not_in(key: str) -> Object:
    return {"key": key, "operator": "NotIn", "values": ["violating"]}


_NO_NODE_REJECTED: Final = _affinity(_not_in(_ABSENT[0]))
FORMS: Final[Mapping[str, Object]] = {
    NONE: {},
    "node selector, half": {"nodeSelector": {_OK_OR_VIOLATING: "ok"}},
    "NotIn, half": _affinity(_not_in(_HALF)),
    "DoesNotExist, half": _affinity({"key": _HALF, "operator": "DoesNotExist"}),
    "NotIn of four policies, the first rejects half": _affinity(_not_in(_HALF), *map(_not_in, _ABSENT[:3])),
    "NotIn of four policies, the last rejects half": _affinity(*map(_not_in, _ABSENT[:3]), _not_in(_HALF)),
    "NotIn, no node rejected": _NO_NODE_REJECTED,
    GATED: _NO_NODE_REJECTED | {"schedulingGates": [{"name": _GATE}]},
    "node selector, no node rejected": {"nodeSelector": {_OK: "ok"}},
    "NotIn of four policies, no node rejected": _affinity(*map(_not_in, _ABSENT)),
}
"""The fields of a pod's spec, by contender."""
_PROFILE_S: Final = 3
_STEPS: Final = {
    "filters": "scheduler.(*Scheduler).findNodesThatPassFilters.func1",
    "NodeAffinity": "nodeaffinity.(*NodeAffinity).Filter",
    "scores": "runtime.(*frameworkImpl).RunScorePlugins.func2",
    "garbage collection": "runtime.gcBgMarkWorker",
}
"""Functions of kube-scheduler v1.36 and v1.37. The filters contain NodeAffinity."""


def measure(bench: BindBench, rounds: int) -> Rounds:
    """Measure all forms; the labels of the nodes are removed at the end."""
    _write(bench, _labelled_nodes(bench.names))
    with namespace_sandboxes.created(bench.plane) as sandbox:
        measured = scheduler_bind_rounds.alternate(
            tuple(FORMS), rounds, functools.partial(_bind_round, bench, sandbox)
        )
    _write(bench, etcd_population.nodes(bench.names))
    return measured


def _write(bench: BindBench, nodes: Iterable[EtcdEntry]) -> None:
    etcd_population.fill(bench.plane.etcd, nodes, lambda _: None)


def _labelled_nodes(names: Iterable[str]) -> Iterator[EtcdEntry]:
    for number, name in enumerate(names):
        node = generated_cluster_objects.node(name, number)
        is_rejected = generated_cluster_objects.is_rejected(number)
        node["metadata"]["labels"] |= {_OK: "ok", _OK_OR_VIOLATING: "violating" if is_rejected else "ok"}
        if is_rejected:
            node["metadata"]["labels"][_HALF] = "violating"
        yield EtcdEntry(f"/registry/minions/{name}", etcd_population.stored(node))


def _bind_round(bench: BindBench, sandbox: Sandbox, name: str) -> BindSummary:
    def pod(pod_name: str) -> Object:
        manifest = kubernetes_objects.pod(pod_name)
        return manifest | {"spec": manifest["spec"] | FORMS[name]}

    shares: dict[str, float] = {}
    scheduler = _profiled_scheduler(bench, sandbox, name == GATED, shares)
    watch = scheduler_bind_rounds.bind_pods(sandbox, bench.pods, pod, scheduler)
    return scheduler_bind_rounds.summary(watch)._replace(profile=shares)


@contextlib.contextmanager
def _profiled_scheduler(
    bench: BindBench, sandbox: Sandbox, is_gated: bool, shares: dict[str, float]
) -> Iterator[Process]:
    """Run a kube-scheduler, after the gates of the pods were removed. At the end, `shares` has its profile."""
    if is_gated:
        _remove_gates(sandbox)
    port = child_processes.free_port()
    profile = bench.folder / f"scheduler-{port}.pb"
    flags = {"secure-port": str(port), "authorization-always-allow-paths": "/readyz,/debug/pprof/*"}
    scheduler = bench.plane.start_scheduler({"clientConnection": bench.limits}, verbosity=0, more=flags)
    reader = threading.Thread(target=_save_profile, args=(port, profile), daemon=True)
    reader.start()
    try:
        yield scheduler
        reader.join()
        shares |= _profile_shares(profile)
    finally:
        scheduler.stop()


def _remove_gates(sandbox: Sandbox) -> None:
    path = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": _GATE}]}}
    headers = {"Content-Type": "application/strategic-merge-patch+json"}

    def remove(pod: Object) -> None:
        sandbox.api.request("PATCH", f"{path}/{pod['metadata']['name']}", json=body, headers=headers)

    scheduler_bind_rounds.run_concurrently(remove, sandbox.api.get(path)["items"])


def _save_profile(port: int, file: Path) -> None:
    url = f"https://127.0.0.1:{port}/debug/pprof/profile?seconds={_PROFILE_S}"
    file.write_bytes(httpx2.get(url, verify=False, timeout=60.0).content)


def _profile_shares(file: Path) -> dict[str, float]:
    """By step, its share of the processor time in a profile. Needs Go, which has built kube-scheduler."""
    command = ["go", "tool", "pprof", "-top", "-cum", "-nodefraction=0", "-nodecount=1000", str(file)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    shares = {}
    for step, function in _STEPS.items():
        line = re.search(rf"([\d.]+)% +\S*{re.escape(function)}$", text, re.MULTILINE)
        shares[step] = round(float(line[1]) / 100, 3) if line else 0.0
    return shares
