"""The scoring agents: prioritize with names, for each agent separately, with complete inputs.

All nodes have the statistics that `nodewise annotate` writes; the state of agents with memory is full. Consecutive
calls have different pods with different requests.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import (
    alternating_rounds,
    benchmark_servers,
    generated_cluster_objects,
    requests_with_node_names,
    results,
)
from bench.generated_cluster_objects import Object
from bench.load_clients import HttpLoad
from bench.progress_lines import report_progress_line
from bench.results import SCORED, SCORING_AGENTS, Measurement
from nodewise.base.clock import SystemClock, format_rfc3339
from nodewise_scorers.pigeon.options import NAMES
from nodewise_scorers.pigeon.scored_pod_statistics import MAX_PODS, DemandMemory
from nodewise_scorers.statistics import load_annotations

TYPES: Final = 10
"""Number of pod types; each ran on every node, which fills the learned agent: 50,000 pairs."""
POD_VARIANTS: Final = 256
"""Number of different pods in requests."""
NAMESPACE: Final = "shop"
_CPU_MILLI, _MEMORY = 31_850, 127_926_272 * 1024
_LEARNED_S: Final = 1800.0  # age of the learned agent's state; the status of pods shows later events
_LEAST_SCORES: Final[Mapping[str, int]] = {"load": 5, "safe": 5, "congestion": 10, "pigeon": 5, "learned": 2}
"""Minimum number of different scores in a response; fewer mean that the inputs are incomplete."""


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Measure rounds of prioritize calls of each agent."""
    nodes, requests = context.scale.nodes, context.scale.requests
    folder = context.folder / "cluster"
    folder.mkdir()
    report_progress_line(f"writing {nodes} nodes and {nodes * TYPES} pods")
    now = SystemClock().now()
    (folder / "all.json").write_text(
        json.dumps({"kind": "List", "apiVersion": "v1", "items": list(_items(nodes, now))})
    )
    (context.folder / "state.json").write_text(json.dumps(_agent_memories(now)))
    bodies = requests_with_node_names.write(
        context.folder / "scoring",
        generated_cluster_objects.requests(
            generated_cluster_objects.names(nodes), POD_VARIANTS, _pod_variant
        ),
    )
    words = benchmark_servers.extender_words(
        context.certificates,
        f"--agents={','.join(SCORING_AGENTS)}",
        f"--objects-from={folder}",
        f"--state={context.folder / 'state.json'}",
        "--sync-period=1h",
    )
    with benchmark_servers.serving(
        benchmark_servers.PROGRAM, words, context.folder / "scoring.log"
    ) as extender:
        asks, client = {}, ""
        for agent in SCORING_AGENTS:
            url = f"{extender.url}/agents/{agent}/prioritize"
            load = HttpLoad(url, bodies, warmup=requests // 5, requests=requests)
            client = _checked(agent, context, load)
            asks[SCORED + agent] = partial(context.client.ask, load)
        measured = alternating_rounds.alternate(context.scale.rounds, asks, report_progress_line)
    return Measurement(results.figures_of_scoring(measured), measured, client)


def _checked(agent: str, context: benchmark_servers.BenchContext, load: HttpLoad) -> str:
    """Call the agent once and return the name of the client. RuntimeError if the scores are wrong."""
    saved: Path = context.folder / f"score-{agent}.json"
    taken = context.client.ask(load._replace(save=saved, requests=1, warmup=0))
    scores = {host_score["Score"] for host_score in json.loads(saved.read_bytes())}
    report_progress_line(f"{agent} gives scores {sorted(scores)}")
    if len(scores) < _LEAST_SCORES[agent]:
        raise RuntimeError(f"{agent} gives only the scores {sorted(scores)}: the measurement is invalid")
    return taken.client


def _items(nodes: int, now: float) -> Iterator[Object]:
    random = np.random.default_rng(1)
    for number, name in enumerate(generated_cluster_objects.names(nodes)):
        yield _node(name, number, now, random)
        yield _usage(name, now, random)
        for type_ in range(TYPES):
            yield _pod(f"p-{number}-{type_}", type_, name, now, fails=bool(random.uniform() < 0.5))


def _node(name: str, number: int, now: float, random: np.random.Generator) -> Object:
    """A node with all annotations that agents read."""
    cpu, memory, requested = random.uniform(0.05, 0.95), random.uniform(0.2, 0.9), random.uniform(0.1, 0.9)
    requested_cpu, requested_memory, requested_pods, *_ = load_annotations.REQUESTED_KEYS
    texts = {
        load_annotations.MEAN_FREE_CPU: f"{(1 - cpu) * _CPU_MILLI:.3f}",
        load_annotations.STD_FREE_CPU: f"{random.uniform(0.01, 0.25) * _CPU_MILLI:.3f}",
        load_annotations.FORECAST_FREE_CPU: f"{(1 - cpu) * 0.9 * _CPU_MILLI:.3f}",
        load_annotations.MEAN_FREE_MEMORY: f"{(1 - memory) * _MEMORY:.0f}",
        load_annotations.STD_FREE_MEMORY: f"{random.uniform(0.001, 0.1) * _MEMORY:.0f}",
        load_annotations.FORECAST_FREE_MEMORY: f"{(1 - memory) * _MEMORY:.0f}",
        load_annotations.CONGESTION_FACTOR: str(round(100 * cpu)),
        requested_cpu: f"{requested * _CPU_MILLI:.0f}",
        requested_memory: f"{requested * random.uniform(0.5, 1.0) * _MEMORY:.0f}",
        requested_pods: "30",
        load_annotations.ANNOTATED_AT: format_rfc3339(now),
    }
    node = generated_cluster_objects.node(name, number)
    metadata: dict[str, Any] = node["metadata"] | {"annotations": texts}
    status = node["status"] | {"images": []}
    return node | {"metadata": metadata, "status": status}


def _usage(name: str, now: float, random: np.random.Generator) -> Object:
    """What metrics-server reports of a node."""
    cpu, memory = random.uniform(0.05, 0.95), random.uniform(0.2, 0.9)
    return {
        "kind": "NodeMetrics",
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": name},
        "timestamp": format_rfc3339(now + 3600),  # it stays fresh during the measurement
        "window": "30s",
        "usage": {"cpu": f"{cpu * _CPU_MILLI:.0f}m", "memory": f"{memory * _MEMORY:.0f}"},
    }


def _pod(name: str, type_: int, node: str, now: float, *, fails: bool) -> Object:
    """A bound pod that failed twice in a row, or runs."""
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


def _agent_memories(now: float) -> Object:
    """State of the agents: pigeon has its maximum number of pods, learned only what the existing pods show."""
    random = np.random.default_rng(2)
    memory = DemandMemory()
    for number in range(MAX_PODS):
        wanted = np.array([random.uniform(50, 4000), random.uniform(64, 8192), 1, 0, 0])
        memory.count(f"counted-{number}", wanted[: len(NAMES)])
    kept = memory.keep(None)
    assert kept is not None
    return {"pigeon": json.loads(kept), "learned": {"version": 1, "until": now - _LEARNED_S, "types": {}}}


def _pod_variant(number: int) -> Object:
    """A pod whose type and requests depend on its number."""
    pod = generated_cluster_objects.pod(number)
    requests = {"cpu": f"{100 + 13 * number}m", "memory": f"{128 + 17 * number}Mi"}
    pod["metadata"]["labels"] = {"app": f"type-{number % TYPES}"}
    pod["spec"]["containers"][0]["resources"] = {"requests": requests}
    return pod
