"""The gpu agent: filter with names and 20,000 allocated pods. The other part is `gpu_binds`.

The extender reads nodes and pods from a file, because the agent reads nothing else.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.cluster import gpu_cluster

from bench import (
    alternating_rounds,
    benchmark_servers,
    generated_cluster_objects,
    requests_with_node_names,
)
from bench.alternating_rounds import Rounds
from bench.generated_cluster_objects import Object
from bench.load_clients import HttpLoad
from bench.progress_lines import report_progress_line
from bench.results import GPU_FILTER, NOTHING, Measurement

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


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Measure rounds of filter calls."""
    filtered, client = _filter(context)
    series = filtered[GPU_FILTER]
    figures = {
        "gpu_filter_names_5000_p50_ms": alternating_rounds.median(series, "p50_ms"),
        "gpu_filter_names_5000_p99_ms": alternating_rounds.median(series, "p99_ms"),
        "gpu_filter_names_5000_ratio": alternating_rounds.ratio(
            series, filtered[NOTHING + GPU_FILTER], "p50_ms"
        ),
    }
    return Measurement(figures, filtered, client)


def _filter(context: benchmark_servers.BenchContext) -> tuple[Rounds, str]:
    words, load = prepare_filter(context)
    log = context.folder / "gpu.log"
    with benchmark_servers.serving(benchmark_servers.PROGRAM, words, log) as extender:
        client, answer = check_filter(context, load._replace(url=extender.url + PATH))
        with benchmark_servers.null_server(
            context.folder, context.certificates, {PATH: answer}
        ) as null_server:
            asks = {
                prefix + GPU_FILTER: partial(context.client.ask, load._replace(url=at + PATH))
                for prefix, at in ((NOTHING, null_server), ("", extender.url))
            }
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


def check_filter(context: benchmark_servers.BenchContext, load: HttpLoad) -> tuple[str, Path]:
    """Verify a response. Returns the name of the client, and the file of the response. RuntimeError if the response is
    wrong."""
    saved = context.folder / "gpu-answer.json"
    taken = context.client.ask(load._replace(save=saved, requests=1, warmup=0))
    _check(json.loads(saved.read_bytes()), context.scale.nodes)
    return taken.client, saved


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
