"""The gpu agent: filter with names and 20,000 allocated pods, and the bind rate of two replicas.

For filter, the extender reads nodes and pods from a file, because the agent reads nothing else. Binding uses a control
plane with a real kube-scheduler and two replicas behind one address.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
from tests.cluster import (
    controlplane,
    extender_process,
    gpu_cluster,
    load_balancer,
    namespace_sandboxes,
    program_cache,
)
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess
from tests.cluster.load_balancer import BalancedEndpoint
from tests.cluster.namespace_sandboxes import Sandbox, wait

from bench import (
    alternating_rounds,
    benchmark_servers,
    generated_cluster_objects,
    requests_with_node_names,
    scheduler_bind_rounds,
)
from bench.alternating_rounds import Rounds
from bench.benchmark_servers import MeasuredServer
from bench.generated_cluster_objects import Object
from bench.load_clients import HttpLoad
from bench.progress_lines import report_progress_line
from bench.results import GPU_FILTER, Measurement

GPUS_PER_NODE: Final = 8
PODS_PER_NODE: Final = 4
"""Each has two GPUs, so that all GPUs are allocated: 20,000 pods."""
MILLICORES: Final = 1000
"""Millicores of a GPU."""
MEMORY: Final = 16384
HELD_MILLICORES: Final = (500, 700)
"""Allocated millicores of each GPU, on even and odd nodes: half of the nodes have 400 or more free."""
REQUESTED_MILLICORES: Final = 400
PATH: Final = "/scheduler/filter"
POD_VARIANTS: Final = 16
"""Number of different pods in requests."""

BIND_NODES: Final = 50
DEADLINE_S: Final = 120


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Measure rounds of filter calls, and of binds."""
    filtered, client = _filter(context)
    rates = _bind(context)
    figures = {
        "gpu_filter_names_5000_p50_ms": alternating_rounds.median(filtered[GPU_FILTER], "p50_ms"),
        "gpu_filter_names_5000_p99_ms": alternating_rounds.median(filtered[GPU_FILTER], "p99_ms"),
        "gpu_bind_rate": alternating_rounds.of_rounds(rates, 1),
    }
    return Measurement(figures, filtered, client, more={"gpu_bind_rates": rates})


def _filter(context: benchmark_servers.BenchContext) -> tuple[Rounds, str]:
    words, load = prepare_filter(context)
    log = context.folder / "gpu.log"
    with benchmark_servers.serving(benchmark_servers.PROGRAM, words, log) as extender:
        load = load._replace(url=extender.url + PATH)
        client = check_filter(context, load)
        asks = {GPU_FILTER: partial(context.client.ask, load)}
        return alternating_rounds.alternate(context.scale.rounds, asks, report_progress_line), client


def prepare_filter(context: benchmark_servers.BenchContext) -> tuple[list[str], HttpLoad]:
    """Write the nodes, pods and requests. Returns the command of the extender, and the load without a URL."""
    nodes, requests = context.scale.nodes, context.scale.requests
    folder = context.folder / "cluster"
    folder.mkdir()
    report_progress_line(f"writing {nodes} nodes and {nodes * PODS_PER_NODE} pods")
    (folder / "all.json").write_text(
        json.dumps({"kind": "List", "apiVersion": "v1", "items": list(_items(nodes))})
    )
    bodies = requests_with_node_names.write(
        context.folder / "gpu", [_request(nodes, number) for number in range(POD_VARIANTS)]
    )
    words = benchmark_servers.extender_words(
        context.certificates, "--agents=gpu", f"--objects-from={folder}", "--sync-period=1h"
    )
    return words, HttpLoad("", bodies, warmup=requests // 5, requests=requests)


def check_filter(context: benchmark_servers.BenchContext, load: HttpLoad) -> str:
    """Verify a response and return the name of the client. RuntimeError if the response is wrong."""
    saved = context.folder / "gpu-answer.json"
    taken = context.client.ask(load._replace(save=saved, requests=1, warmup=0))
    _check(json.loads(saved.read_bytes()), context.scale.nodes)
    return taken.client


def _check(answer: Object, nodes: int) -> None:
    """RuntimeError if the response is wrong: then the measurement is invalid."""
    rejected = len(answer["FailedNodes"] or ()) + len(answer["FailedAndUnresolvableNodes"] or ())
    if rejected != nodes // 2:
        raise RuntimeError(f"{rejected} nodes of {nodes} rejected, not half of them")


def _items(nodes: int) -> Iterator[Object]:
    """Nodes, and their pods with allocations in the annotations of GPU-aware scheduling."""
    for number, name in enumerate(generated_cluster_objects.names(nodes)):
        yield gpu_cluster.node(
            name, GPUS_PER_NODE, shares=10, millicores=MILLICORES, **{"memory.max": MEMORY}
        )
        for place in range(PODS_PER_NODE):
            pod = gpu_cluster.pod(f"p-{number}-{place}", 2, millicores=2 * HELD_MILLICORES[number % 2])
            cards = f"card{2 * place},card{2 * place + 1}"
            pod["metadata"] |= {"namespace": "shop", "uid": f"u-{number}-{place}"}
            pod["metadata"]["annotations"] = {gpu_cluster.CARDS: cards}
            pod["spec"]["nodeName"] = name
            yield pod


def _request(nodes: int, number: int) -> bytes:
    """A request for a pod with two containers and two GPUs each."""
    pod = gpu_cluster.pod(f"asks-{number}", 2, millicores=2 * REQUESTED_MILLICORES, **{"memory.max": 2048})
    first: dict[str, Any] = pod["spec"]["containers"][0]
    pod["spec"]["containers"] = [first, first | {"name": "side"}]
    pod["metadata"] |= {"namespace": "shop", "uid": f"asks-{number}"}
    return json.dumps(
        {"Pod": pod, "Nodes": None, "NodeNames": generated_cluster_objects.names(nodes)}
    ).encode()


def _bind(context: benchmark_servers.BenchContext) -> list[float]:
    """Bound pods per second, by round."""
    scale = context.scale
    with bind_cluster(context.folder) as cluster, replicas(cluster, benchmark_servers.PROGRAM) as running:
        return [bind_round(cluster, running, number, scale.bound_pods) for number in range(scale.rounds)]


class BindCluster(NamedTuple):
    """A control plane with nodes that have GPUs, and the user of nodewise."""

    sandbox: Sandbox
    folder: Path
    certificates: CertificateFiles
    user: User


class Replicas(NamedTuple):
    """Running replicas, and the entry of their Service in a scheduler configuration."""

    running: Sequence[MeasuredServer]
    entry: Object


@contextlib.contextmanager
def bind_cluster(folder: Path) -> Iterator[BindCluster]:
    report_progress_line(f"starting a control plane with {BIND_NODES} nodes")
    with (
        controlplane.running(program_cache.folder(), folder) as plane,
        namespace_sandboxes.created(plane) as sandbox,
    ):
        extender_process.define(plane.api)
        sandbox.nodes(
            *(
                gpu_cluster.node(f"n{number}", GPUS_PER_NODE, shares=2, millicores=1000)
                for number in range(BIND_NODES)
            )
        )
        yield BindCluster(sandbox, folder, CertificateFiles(folder), gpu_cluster.user(plane))


@contextlib.contextmanager
def replicas(cluster: BindCluster, program: Path) -> Iterator[Replicas]:
    """Run two replicas behind one address."""
    words = ["extender", *extender_process.arguments(cluster.user, cluster.certificates), "--agents=gpu"]
    words += [*gpu_cluster.FAST, "--shutdown-delay=0s", "--log-format=json"]
    with load_balancer.serving() as service, contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(benchmark_servers.serving(program, words, cluster.folder / f"{name}.log"))
            for name in ("first", "second")
        ]
        service.set_endpoints(*(BalancedEndpoint(replica.url, replica.health) for replica in running))
        wait("the Service has both replicas", lambda: len(service.ready) == len(running) or None)
        served = ExtenderProcess(running[0].process, cluster.certificates)
        yield Replicas(running, gpu_cluster.entry(served, urlPrefix=f"{service.url}/scheduler"))


def bind_round(cluster: BindCluster, replicas: Replicas, number: int, count: int) -> float:
    """Create pods, start a scheduler, wait for all bindings, and delete the pods. Returns bound pods per second."""
    sandbox = cluster.sandbox
    place = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    pods = [gpu_cluster.pod(f"p-{number}-{index}", 1, millicores=600) for index in range(count)]
    scheduler_bind_rounds.run_concurrently(lambda pod: sandbox.api.request("POST", place, json=pod), pods)
    config = {"clientConnection": scheduler_bind_rounds.RAISED_LIMITS, "extenders": [replicas.entry]}
    with (
        scheduler_bind_rounds.watching(sandbox.plane, place) as watch,
        sandbox.plane.start_scheduler(config, verbosity=0),
    ):
        wait(
            "all pods are bound",
            lambda: watch.is_done(count) or None,
            DEADLINE_S,
            watch.progress,
        )
    sandbox.api.delete(place)
    wait("all GPUs are free", lambda: all(map(_is_free, replicas.running)) or None, DEADLINE_S)
    rate = scheduler_bind_rounds.summary(watch).rate
    report_progress_line(
        f"round {number + 1}: {rate:.1f} pods bound per second, {len(watch.rejected)} rejected at first"
    )
    return rate


def _is_free(replica: MeasuredServer) -> bool:
    """Whether no pod has a GPU according to a replica."""
    nodes = httpx2.get(f"{replica.health}/state/gpu", timeout=30).json()["nodes"]
    return not any(node["pods"] for node in nodes.values())
