"""The gpu agent: filter with names, the books full of pods, and how many pods a second two replicas bind.

Filter is asked of an extender that has nodes and pods from a file, as it reads nothing else. Binding is on a control
plane of its own, by a real kube-scheduler, with two replicas behind one address.
"""

import json
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.cluster import controlplane, gpu, programs, replicas, test_namespaces
from tests.cluster.replicas import GpuReplicas
from tests.cluster.test_namespaces import Sandbox, wait

from bench import alternating_rounds, bench_processes, bind_rounds, cluster_data, node_names
from bench.alternating_rounds import Rounds
from bench.bind_rounds import Bindings
from bench.cluster_data import Object
from bench.load_clients import HttpLoad
from bench.progress_lines import told
from bench.results import GPU_FILTER, Measured

NODES: Final = 5000
CARDS: Final = 8
PODS_OF_A_NODE: Final = 4
"""Each holds two cards, so that all cards are held by somebody: 20,000 pods."""
MILLICORES: Final = 1000
"""Of a card."""
MEMORY: Final = 16384
HELD: Final = (500, 700)
"""Of the millicores of a card, on every other node in turn: half of the nodes have room for 400 more."""
WANTED: Final = 400
PATH: Final = "/scheduler/filter"
ASKED: Final = 16
"""Different pods that ask."""

BIND_NODES, BIND_PODS = 50, 200
DEADLINE_S: Final = 120


def measure(ground: bench_processes.Ground, times: int, requests: int) -> Measured:
    """`times` rounds of so many filter calls, and of `BIND_PODS` binds."""
    filtered, client = _filter(ground, times, requests)
    rates = _bind(ground.folder, times)
    figures = {
        "gpu_filter_names_5000_p50_ms": alternating_rounds.median(filtered[GPU_FILTER], "p50_ms"),
        "gpu_filter_names_5000_p99_ms": alternating_rounds.median(filtered[GPU_FILTER], "p99_ms"),
        "gpu_bind_rate": round(statistics.median(rates), 1),
    }
    return Measured(figures, filtered, client, more={"gpu_bind_rates": rates})


def _filter(ground: bench_processes.Ground, times: int, requests: int) -> tuple[Rounds, str]:
    folder = ground.folder / "cluster"
    folder.mkdir()
    told(f"writing {NODES} nodes and {NODES * PODS_OF_A_NODE} pods")
    (folder / "all.json").write_text(
        json.dumps({"kind": "List", "apiVersion": "v1", "items": list(_items())})
    )
    bodies = node_names.write(ground.folder / "gpu", [_request(number) for number in range(ASKED)])
    settings = ["--address=127.0.0.1", "--port=0", "--health-port=0", "--log-format=json"]
    arguments = [
        "--agents=gpu",
        f"--objects-from={folder}",
        "--sync-period=1h",
        "--shutdown-delay=0s",
        *settings,
        f"--cert={ground.papers.server.cert}",
        f"--key={ground.papers.server.key}",
        f"--client-ca={ground.papers.client_ca}",
    ]
    with bench_processes.serving(bench_processes.PROGRAM, arguments, ground.folder / "gpu.log") as extender:
        saved = ground.folder / "gpu-answer.json"
        load = HttpLoad(extender.url + PATH, bodies, warmup=requests // 5, requests=requests)
        taken = ground.client.ask(load._replace(save=saved, requests=1, warmup=0))
        _check(json.loads(saved.read_bytes()))
        asks = {GPU_FILTER: partial(ground.client.ask, load)}
        return alternating_rounds.alternate(times, asks, told), taken.client


def _check(answer: Object) -> None:
    """RuntimeError if the answer is not that of these nodes: then there is nothing to measure."""
    rejected = len(answer["FailedNodes"] or ())
    if rejected != NODES // 2:
        raise RuntimeError(f"{rejected} nodes of {NODES} rejected, not half of them")


def _items() -> Iterator[Object]:
    """Nodes, and the pods on them as the older system told what they hold."""
    for number, name in enumerate(cluster_data.names(NODES)):
        yield gpu.node(name, CARDS, shares=10, millicores=MILLICORES, **{"memory.max": MEMORY})
        for place in range(PODS_OF_A_NODE):
            pod = gpu.pod(f"p-{number}-{place}", 2, millicores=2 * HELD[number % 2])
            cards = f"card{2 * place},card{2 * place + 1}"
            pod["metadata"] |= {"namespace": "shop", "uid": f"u-{number}-{place}"}
            pod["metadata"]["annotations"] = {gpu.CARDS: cards}
            pod["spec"]["nodeName"] = name
            yield pod


def _request(number: int) -> bytes:
    """A pod of two containers, two cards each."""
    pod = gpu.pod(f"asks-{number}", 2, millicores=2 * WANTED, **{"memory.max": 2048})
    first: dict[str, Any] = pod["spec"]["containers"][0]
    pod["spec"]["containers"] = [first, first | {"name": "side"}]
    pod["metadata"] |= {"namespace": "shop", "uid": f"asks-{number}"}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": cluster_data.names(NODES)}).encode()


def _bind(folder: Path, times: int) -> list[float]:
    """Pods bound a second, round by round."""
    told(f"starting a control plane, {BIND_NODES} nodes and two replicas")
    with (
        controlplane.running(programs.folder(), folder) as plane,
        test_namespaces.created(plane) as sandbox,
        replicas.behind_a_service(plane, folder, 2) as made,
    ):
        sandbox.nodes(
            *(gpu.node(f"n{number}", CARDS, shares=2, millicores=1000) for number in range(BIND_NODES))
        )
        return [_round(sandbox, made, number) for number in range(times)]


def _round(sandbox: Sandbox, made: GpuReplicas, number: int) -> float:
    """Pods wait, a scheduler starts, and they are taken away again."""
    place = f"/api/v1/namespaces/{sandbox.namespace}/pods"
    pods = [gpu.pod(f"p-{number}-{count}", 1, millicores=600) for count in range(BIND_PODS)]
    bind_rounds.at_once(lambda pod: sandbox.api.request("POST", place, json=pod), pods)
    config = {"clientConnection": bind_rounds.CONNECTION, "extenders": [made.entry()]}
    with (
        bind_rounds.watching(sandbox.plane, place) as seen,
        sandbox.plane.start_scheduler(config, verbosity=0),
    ):
        wait("all pods are bound", lambda: seen.is_done(BIND_PODS) or None, DEADLINE_S, seen.told)
    sandbox.api.delete(place)
    wait("all cards are free", lambda: not any(map(replicas.held, made.running)) or None, DEADLINE_S)
    summary = _summary(seen)
    told(
        f"round {number + 1}: {summary:.1f} pods bound a second, {len(seen.turned_down)} turned down at first"
    )
    return summary


def _summary(seen: Bindings) -> float:
    return bind_rounds.summary(seen).rate
