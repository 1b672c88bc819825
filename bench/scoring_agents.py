"""The scoring agents: prioritize with names, asked of each by itself, with all that they go by in place.

Statistics stand on all nodes, as `nodewise annotate` writes them; the memories of the agents that remember are full.
Calls that follow one another are about other pods, with other requests.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import alternating_rounds, bench_processes, cluster_data, node_names, results
from bench.cluster_data import Object
from bench.load_clients import HttpLoad
from bench.progress_lines import told
from bench.results import SCORED, SCORING_AGENTS, Measured
from nodewise.agents.pigeon import resources
from nodewise.agents.pigeon.pod_statistics import MAX_PODS, DemandMemory
from nodewise.clock import SystemClock, format_rfc3339
from nodewise.statistics import load_annotations

NODES: Final = 5000
TYPES: Final = 10
"""Of pods; each was seen on every node, which is all that the learned agent holds: 50,000 pairs."""
ASKED: Final = 256
"""Different pods that ask."""
NAMESPACE: Final = "shop"
_CPU_MILLI, _MEMORY = 31_850, 127_926_272 * 1024
_LEARNED_S: Final = 1800.0
"""What the pods show happened since then."""
_LEAST_SCORES: Final[Mapping[str, int]] = {"safe": 5, "congestion": 10, "pigeon": 5, "learned": 2}
"""How many different scores an answer must have at least; else this is not the world that was written."""


def measure(ground: bench_processes.Ground, times: int, requests: int) -> Measured:
    """`times` rounds of so many prioritize calls of each agent."""
    folder = ground.folder / "cluster"
    folder.mkdir()
    told(f"writing {NODES} nodes and {NODES * TYPES} pods")
    now = SystemClock().now()
    (folder / "all.json").write_text(
        json.dumps({"kind": "List", "apiVersion": "v1", "items": list(_items(now))})
    )
    (ground.folder / "state.json").write_text(json.dumps(_memories(now)))
    bodies = node_names.write(
        ground.folder / "scoring", cluster_data.requests(cluster_data.names(NODES), ASKED, _asking)
    )
    arguments = [
        f"--agents={','.join(SCORING_AGENTS)}",
        f"--objects-from={folder}",
        f"--state={ground.folder / 'state.json'}",
        "--sync-period=1h",
        "--shutdown-delay=0s",
        "--address=127.0.0.1",
        "--port=0",
        "--health-port=0",
        "--log-format=json",
        f"--cert={ground.papers.server.cert}",
        f"--key={ground.papers.server.key}",
        f"--client-ca={ground.papers.client_ca}",
    ]
    with bench_processes.serving(
        bench_processes.PROGRAM, arguments, ground.folder / "scoring.log"
    ) as extender:
        asks, client = {}, ""
        for agent in SCORING_AGENTS:
            url = f"{extender.url}/agents/{agent}/prioritize"
            load = HttpLoad(url, bodies, warmup=requests // 5, requests=requests)
            client = _checked(agent, ground, load)
            asks[SCORED + agent] = partial(ground.client.ask, load)
        measured = alternating_rounds.alternate(times, asks, told)
    return Measured(results.figures_of_scoring(measured), measured, client)


def _checked(agent: str, ground: bench_processes.Ground, load: HttpLoad) -> str:
    """Ask once, and return which client asked. RuntimeError if the scores are not those of this world."""
    saved: Path = ground.folder / f"score-{agent}.json"
    taken = ground.client.ask(load._replace(save=saved, requests=1, warmup=0))
    scores = {host_score["Score"] for host_score in json.loads(saved.read_bytes())}
    told(f"{agent} gives scores {sorted(scores)}")
    if len(scores) < _LEAST_SCORES[agent]:
        raise RuntimeError(f"{agent} gives no scores but {sorted(scores)}: there is nothing to measure")
    return taken.client


def _items(now: float) -> Iterator[Object]:
    random = np.random.default_rng(1)
    for number, name in enumerate(cluster_data.names(NODES)):
        yield _node(name, number, now, random)
        for type_ in range(TYPES):
            yield _pod(f"p-{number}-{type_}", type_, name, now, fails=bool(random.uniform() < 0.5))


def _node(name: str, number: int, now: float, random: np.random.Generator) -> Object:
    """With all annotations that agents read."""
    cpu, memory, requested = random.uniform(0.05, 0.95), random.uniform(0.2, 0.9), random.uniform(0.1, 0.9)
    texts = {
        load_annotations.MEAN_FREE_CPU: f"{(1 - cpu) * _CPU_MILLI:.3f}",
        load_annotations.STD_FREE_CPU: f"{random.uniform(0.01, 0.25) * _CPU_MILLI:.3f}",
        load_annotations.FORECAST_FREE_CPU: f"{(1 - cpu) * 0.9 * _CPU_MILLI:.3f}",
        load_annotations.MEAN_FREE_MEMORY: f"{(1 - memory) * _MEMORY:.0f}",
        load_annotations.STD_FREE_MEMORY: f"{random.uniform(0.001, 0.1) * _MEMORY:.0f}",
        load_annotations.FORECAST_FREE_MEMORY: f"{(1 - memory) * _MEMORY:.0f}",
        load_annotations.CONGESTION_FACTOR: str(round(100 * cpu)),
        load_annotations.REQUESTED_CPU: f"{requested * _CPU_MILLI:.0f}",
        load_annotations.REQUESTED_MEMORY: f"{requested * random.uniform(0.5, 1.0) * _MEMORY:.0f}",
        load_annotations.REQUESTED_PODS: "30",
        load_annotations.ANNOTATED_AT: format_rfc3339(now),
    }
    node = cluster_data.node(name, number)
    metadata: dict[str, Any] = node["metadata"] | {"annotations": texts}
    status = node["status"] | {"images": []}
    return node | {"metadata": metadata, "status": status}


def _pod(name: str, type_: int, node: str, now: float, *, fails: bool) -> Object:
    """On its node; it failed twice in a row, or it runs."""
    ended = {"startedAt": format_rfc3339(now - 300), "finishedAt": format_rfc3339(now - 240)}
    container = {
        "name": "main",
        "restartCount": 2 if fails else 0,
        "state": {"running": {"startedAt": format_rfc3339(now - 200)}},
        "lastState": {"terminated": ended} if fails else {},
    }
    metadata = {"name": name, "namespace": NAMESPACE, "uid": name, "labels": {"app": f"type-{type_}"}}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "containerStatuses": [container]},
    }


def _memories(now: float) -> Object:
    """What the agents know: pigeon of as many pods as it counts, learned of nothing before the pods that there are."""
    random = np.random.default_rng(2)
    memory = DemandMemory()
    for number in range(MAX_PODS):
        wanted = np.array([random.uniform(50, 4000), random.uniform(64, 8192), 1, 0, 0])
        memory.count(f"counted-{number}", wanted[: len(resources.NAMES)])
    kept = memory.keep(None)
    assert kept is not None
    return {"pigeon": json.loads(kept), "learned": {"version": 1, "until": now - _LEARNED_S, "types": {}}}


def _asking(number: int) -> Object:
    """Another pod each time: of another type, with other requests."""
    pod = cluster_data.pod(number)
    requests = {"cpu": f"{100 + 13 * number}m", "memory": f"{128 + 17 * number}Mi"}
    pod["metadata"]["labels"] = {"app": f"type-{number % TYPES}"}
    pod["spec"]["containers"][0]["resources"] = {"requests": requests}
    return pod
