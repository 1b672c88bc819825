"""The gpu agent: filter with names and 20,000 allocated pods, and the bind rate of two replicas.

For filter, the extender reads nodes and pods from a file, because the agent reads nothing else. Binding uses a control
plane with a real kube-scheduler and two replicas behind one address.
"""

import json
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from tests.cluster import controlplane, gpu_agent_replicas, gpu_cluster, namespace_sandboxes, program_cache
from tests.cluster.gpu_agent_replicas import GpuReplicas
from tests.cluster.namespace_sandboxes import Sandbox, wait

from bench import (
    alternating_rounds,
    benchmark_servers,
    generated_cluster_objects,
    requests_with_node_names,
    scheduler_bind_rounds,
)
from bench.alternating_rounds import Rounds
from bench.generated_cluster_objects import Object
from bench.load_clients import HttpLoad
from bench.progress_lines import report_progress_line
from bench.results import GPU_FILTER, Measurement
from bench.scheduler_bind_rounds import BindWatch

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
        "gpu_bind_rate": round(statistics.median(rates), 1),
    }
    return Measurement(figures, filtered, client, more={"gpu_bind_rates": rates})


def _filter(context: benchmark_servers.BenchContext) -> tuple[Rounds, str]:
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
    settings = ["--address=127.0.0.1", "--port=0", "--health-port=0", "--log-format=json"]
    arguments = [
        "--agents=gpu",
        f"--objects-from={folder}",
        "--sync-period=1h",
        "--shutdown-delay=0s",
        *settings,
        f"--cert={context.certificates.server.cert}",
        f"--key={context.certificates.server.key}",
        f"--client-ca={context.certificates.client_ca}",
    ]
    with benchmark_servers.serving(
        benchmark_servers.PROGRAM, arguments, context.folder / "gpu.log"
    ) as extender:
        saved = context.folder / "gpu-answer.json"
        load = HttpLoad(extender.url + PATH, bodies, warmup=requests // 5, requests=requests)
        taken = context.client.ask(load._replace(save=saved, requests=1, warmup=0))
        _check(json.loads(saved.read_bytes()), nodes)
        asks = {GPU_FILTER: partial(context.client.ask, load)}
        return alternating_rounds.alternate(context.scale.rounds, asks, report_progress_line), taken.client


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
    report_progress_line(f"starting a control plane, {BIND_NODES} nodes and two replicas")
    with (
        controlplane.running(program_cache.folder(), context.folder) as plane,
        namespace_sandboxes.created(plane) as sandbox,
        gpu_agent_replicas.behind_a_service(plane, context.folder, 2) as made,
    ):
        sandbox.nodes(
            *(
                gpu_cluster.node(f"n{number}", GPUS_PER_NODE, shares=2, millicores=1000)
                for number in range(BIND_NODES)
            )
        )
        return [
            _round(sandbox, made, number, context.scale.bound_pods) for number in range(context.scale.rounds)
        ]


def _round(sandbox: Sandbox, made: GpuReplicas, number: int, count: int) -> float:
    """Create pods, start a scheduler, wait for all bindings, and delete the pods."""
    place = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    pods = [gpu_cluster.pod(f"p-{number}-{place}", 1, millicores=600) for place in range(count)]
    scheduler_bind_rounds.run_concurrently(lambda pod: sandbox.api.request("POST", place, json=pod), pods)
    config = {"clientConnection": scheduler_bind_rounds.RAISED_LIMITS, "extenders": [made.entry()]}
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
    wait(
        "all GPUs are free",
        lambda: not any(map(gpu_agent_replicas.held_gpus, made.running)) or None,
        DEADLINE_S,
    )
    summary = _summary(watch)
    report_progress_line(
        f"round {number + 1}: {summary:.1f} pods bound per second, {len(watch.rejected)} rejected at first"
    )
    return summary


def _summary(watch: BindWatch) -> float:
    return scheduler_bind_rounds.summary(watch).rate
