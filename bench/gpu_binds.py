"""Binds of pods with GPUs on a control plane with a real kube-scheduler: the rate, and the processor time per bind.

Two replicas of nodewise behind one address, and then one replica in rounds that alternate with a floor: the Go program
in `bind_floor/` performs the two writes per bind of GPU Aware Scheduling, and decides nothing. With `--gas PATH`, GPU
Aware Scheduling itself takes turns with them. All have the same limit of requests to the API server.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
from tests.cluster import (
    child_processes,
    controlplane,
    extender_process,
    gpu_cluster,
    load_balancer,
    namespace_sandboxes,
    program_cache,
)
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.extender_process import CertificateFiles
from tests.cluster.go_builds import GoModule
from tests.cluster.load_balancer import BalancedEndpoint
from tests.cluster.namespace_sandboxes import Sandbox, wait

from bench import benchmark_servers, scheduler_bind_rounds
from bench.alternating_rounds import of_rounds
from bench.benchmark_servers import MeasuredServer
from bench.generated_cluster_objects import Object
from bench.progress_lines import report_progress_line
from bench.results import Measurement

NODES: Final = 50
GPUS_PER_NODE: Final = 8
DEADLINE_S: Final = 120
QPS: Final = 1000
"""Limit of requests to the API server per second, and of a burst; GPU Aware Scheduling accepts no more."""
ROUNDS_TO_FLOOR: Final = 2
"""Rounds of one replica and the floor, for each round of two replicas: ratios need more rounds than a rate."""
ALL_VERBS: Final[Object] = {"prioritizeVerb": "prioritize", "preemptVerb": "preempt", "weight": 5}
NODEWISE, FLOOR, GAS = "nodewise", "floor", "gas"
FLOOR_MODULE: Final = GoModule(
    "bind-floor", "the floor of binds", "1", Path(__file__).parent / "bind_floor", {"bind-floor": "."}
)


class BindRound(NamedTuple):
    """A round of binds."""

    rate: float
    """Bound pods per second, without the first ones."""
    cpu_ms: float
    """CPU time of the extender per bound pod, filter and the watch on pods included."""


class BindCluster(NamedTuple):
    """A control plane with nodes that have GPUs, and the user of the extenders."""

    sandbox: Sandbox
    folder: Path
    certificates: CertificateFiles
    user: User


class BindingExtender(NamedTuple):
    """A running extender, which may have several replicas, and its entry in a scheduler configuration."""

    processes: Sequence[Process]
    entry: Object
    is_free: Callable[[], bool]
    """Whether the extender knows that no pod has a GPU."""

    def cpu_s(self) -> float:
        return sum(map(benchmark_servers.cpu_s, self.processes))


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Measure rounds of two replicas, and of one replica and the floor."""
    scale = context.scale
    programs = {NODEWISE: benchmark_servers.PROGRAM, FLOOR: FLOOR_MODULE.built() / "bind-floor"}
    if context.gas is not None:
        programs[GAS] = context.gas
    with bind_cluster(context.folder) as cluster:
        with replicas(cluster, benchmark_servers.PROGRAM, 2) as running:
            rates = [bind_round(cluster, running, scale.bound_pods).rate for _ in range(scale.rounds)]
        rounds: dict[str, list[BindRound]] = {name: [] for name in programs}
        for number in range(scale.rounds * ROUNDS_TO_FLOOR):
            for name in list(programs) if number % 2 == 0 else list(programs)[::-1]:
                with _contender(cluster, name, programs[name]) as extender:
                    report_progress_line(f"round {number + 1}: {name}")
                    rounds[name].append(bind_round(cluster, extender, scale.bound_pods))
    figures = {
        "gpu_bind_rate": of_rounds(rates, 1),
        "gpu_bind_cpu_ms": of_rounds((each.cpu_ms for each in rounds[NODEWISE]), 2),
        **{
            f"gpu_bind_ratio_{name}": of_rounds(_ratios(rounds, name), 2)
            for name in programs
            if name != NODEWISE
        },
    }
    more = {"gpu_bind_rates": rates, "gpu_bind_rounds": rounds}
    return Measurement(figures, {}, "", more)


def _ratios(rounds: Mapping[str, Sequence[BindRound]], other: str) -> list[float]:
    return [ours.rate / its.rate for ours, its in zip(rounds[NODEWISE], rounds[other], strict=True)]


@contextlib.contextmanager
def bind_cluster(folder: Path) -> Iterator[BindCluster]:
    report_progress_line(f"starting a control plane with {NODES} nodes")
    with (
        controlplane.running(program_cache.folder(), folder) as plane,
        namespace_sandboxes.created(plane) as sandbox,
    ):
        extender_process.define(plane.api)
        sandbox.nodes(
            *(
                gpu_cluster.node(f"n{number}", GPUS_PER_NODE, shares=2, millicores=1000)
                for number in range(NODES)
            )
        )
        yield BindCluster(sandbox, folder, CertificateFiles(folder), gpu_cluster.user(plane))


@contextlib.contextmanager
def replicas(cluster: BindCluster, program: Path, count: int) -> Iterator[BindingExtender]:
    """Run nodewise: one replica with the verbs of the floor, or several with all verbs behind one address."""
    words = ["extender", *extender_process.arguments(cluster.user, cluster.certificates), "--agents=gpu"]
    words += [f"--kube-qps={QPS}", f"--kube-burst={QPS}", "--shutdown-delay=0s", "--log-format=json"]
    with contextlib.ExitStack() as stack:
        logs = [cluster.folder / f"replica-{number}.log" for number in range(count)]
        running = [stack.enter_context(benchmark_servers.serving(program, words, log)) for log in logs]
        url = running[0].url
        if count > 1:
            service = stack.enter_context(load_balancer.serving())
            service.set_endpoints(*(BalancedEndpoint(replica.url, replica.health) for replica in running))
            wait("the Service has all replicas", lambda: len(service.ready) == len(running) or None)
            url = service.url
        entry = _entry(cluster, url) | (ALL_VERBS if count > 1 else {})
        processes = [replica.process for replica in running]
        yield BindingExtender(processes, entry, lambda: all(map(_is_free, running)))


def _contender(cluster: BindCluster, name: str, program: Path) -> AbstractContextManager[BindingExtender]:
    if name == NODEWISE:
        return replicas(cluster, program, 1)
    return _go_extender(cluster, name, program)


@contextlib.contextmanager
def _go_extender(cluster: BindCluster, name: str, program: Path) -> Iterator[BindingExtender]:
    """Run the floor or GPU Aware Scheduling, which have the same flags."""
    certificates, port = cluster.certificates, child_processes.free_port()
    flags = {
        "kubeConfig": cluster.user.kubeconfig,
        "cert": certificates.server.cert,
        "key": certificates.server.key,
        "cacert": certificates.authority.ca_file,
        "port": port,
        "qps": QPS,
        "burst": QPS,
    }
    words = [program, *(f"--{flag}={value}" for flag, value in flags.items())]
    with Process(words, cluster.folder / f"{name}.log") as process:
        process.wait_ready(partial(_accepts_connections, port))
        yield BindingExtender([process], _entry(cluster, f"https://127.0.0.1:{port}"), lambda: True)


def _accepts_connections(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _entry(cluster: BindCluster, url: str) -> Object:
    """The entry of a scheduler configuration; GPU Aware Scheduling has no other verbs."""
    tls = {
        "caFile": str(cluster.certificates.authority.ca_file),
        "certFile": str(cluster.certificates.client.cert),
        "keyFile": str(cluster.certificates.client.key),
    }
    return {
        "urlPrefix": f"{url}/scheduler",
        "filterVerb": "filter",
        "bindVerb": "bind",
        "enableHTTPS": True,
        "nodeCacheCapable": True,
        "httpTimeout": "30s",
        "managedResources": gpu_cluster.MANAGED,
        "tlsConfig": tls,
    }


def bind_round(cluster: BindCluster, extender: BindingExtender, count: int) -> BindRound:
    """Create pods, start a scheduler, wait for all bindings, and delete the pods."""
    sandbox = cluster.sandbox
    place = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    round_number = child_processes.number()
    pods = [gpu_cluster.pod(f"p-{round_number}-{index}", 1, millicores=600) for index in range(count)]
    scheduler_bind_rounds.run_concurrently(lambda pod: sandbox.api.request("POST", place, json=pod), pods)
    config = {"clientConnection": scheduler_bind_rounds.RAISED_LIMITS, "extenders": [extender.entry]}
    with scheduler_bind_rounds.watching(sandbox.plane, place) as watch:
        before_s = extender.cpu_s()
        with sandbox.plane.start_scheduler(config, verbosity=0):
            wait("all pods are bound", lambda: watch.is_done(count) or None, DEADLINE_S, watch.progress)
            cpu_ms = 1000 * (extender.cpu_s() - before_s) / count
    sandbox.api.delete(place)
    wait("all pods are gone", lambda: not sandbox.api.get(place, limit="1")["items"] or None, DEADLINE_S)
    wait("all GPUs are free", lambda: extender.is_free() or None, DEADLINE_S)
    rate = scheduler_bind_rounds.summary(watch).rate
    report_progress_line(
        f"{rate:.1f} pods bound per second, CPU {cpu_ms:.2f} ms, {len(watch.rejected)} rejected at first"
    )
    return BindRound(rate, round(cpu_ms, 2))


def _is_free(replica: MeasuredServer) -> bool:
    """Whether no pod has a GPU according to a replica."""
    nodes = httpx2.get(f"{replica.health}/state/gpu", timeout=30).json()["nodes"]
    return not any(node["pods"] for node in nodes.values())
