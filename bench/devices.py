"""Placement of pods with DRA devices, with a real kube-scheduler.

    python -m bench.devices --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv

The published trace openb becomes ResourceSlices and ResourceClaims: a GPU is a device that claims share by thousandths,
and an accepted model is a CEL selector. Pods are drawn from the trace until they request as many GPUs as there are. The
allocated share of all GPUs is measured with kube-scheduler's default profile, with MostAllocated, and with nodewise, on
a part of the nodes, as the mean of all `--seeds`, each with its own pods; with `--simulate` the same part and all nodes
are simulated. All pods are sent to nodewise.

On equal nodes with eight devices, pods with one device each are bound by kube-scheduler with nodewise, which predicts
the device, and with an extender that does nothing.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
import numpy as np
from tests.cluster import (
    controlplane,
    device_objects,
    extender_process,
    gpu_cluster,
    kubernetes_objects,
    namespace_sandboxes,
    program_cache,
)
from tests.cluster.api_client import Object
from tests.cluster.extender_process import LIMITS, CertificateFiles
from tests.cluster.namespace_sandboxes import Sandbox, wait

from bench import benchmark_servers, device_traces, gpu_traces, report, results, scheduler_bind_rounds
from bench.alternating_rounds import of_rounds
from bench.device_traces import ENTRY_WEIGHT
from bench.gpu_traces import GPU_MILLI, Trace, TraceNode, TracePod
from bench.progress_lines import report_progress_line
from bench.results import DEVICES, DEVICES_BOUND, DEVICES_SIMULATED, MachineLoad, Measurement
from nodewise.agents.gpu.options import Placement

DEFAULT, MOST_ALLOCATED, NODEWISE, NOTHING = "default", "most_allocated", "nodewise", "nothing"
MANAGED: Final = [{"name": next(iter(LIMITS)), "ignoredByScheduler": True}]
EQUAL_NODES: Final = 64
DEVICES_PER_NODE: Final = 8
BOUND_PODS: Final = 500
EQUAL_ROUNDS: Final = 8
QUIET_S: Final = 10.0
"""A round ends when no pod was bound or rejected for this time."""


class Setting(NamedTuple):
    """The control plane of all rounds."""

    sandbox: Sandbox
    folder: Path
    certificates: CertificateFiles


class TraceRound(NamedTuple):
    """A round on the trace."""

    allocated_pct: float
    """Allocated share of all GPUs."""
    pods: int
    bound: int
    rate: float


class EqualRound(NamedTuple):
    """A round on equal nodes."""

    rate: float
    """Bound pods per second, without the first ones."""
    bound: int
    predicted: int
    """Pods whose predicted device is the allocated one."""


def part_of(trace: Trace, nodes: int) -> Trace:
    """Nodes in equal distances."""
    return Trace(trace.nodes[:: max(len(trace.nodes) // nodes, 1)][:nodes], trace.pods)


def draw(trace: Trace, seed: int) -> list[TracePod]:
    """Pods of the trace that request as many GPUs as there are."""
    random, requested = np.random.default_rng(seed), 0
    drawn: list[TracePod] = []
    while requested < trace.gpus_milli:
        drawn.append(trace.pods[int(random.integers(len(trace.pods)))])
        requested += drawn[-1].total_gpu_demand_milli
    return drawn


def node_objects(node: TraceNode) -> list[Object]:
    """The Node and the ResourceSlice."""
    cpu, memory = f"{node.cpu_milli}m", f"{node.memory_mib}Mi"
    return [
        kubernetes_objects.node(node.name, cpu=cpu, memory=memory, pods=1000),
        device_traces.slice_document(node),
    ]


def pod_objects(name: str, pod: TracePod, limits: Mapping[str, str]) -> list[Object]:
    """The ResourceClaim, for a pod with GPUs, and the Pod. With the limits, kube-scheduler calls an extender."""
    cpu, memory = f"{pod.cpu_milli}m", f"{pod.memory_mib}Mi"
    if not pod.gpus:
        return [kubernetes_objects.pod(name, cpu=cpu, memory=memory, limits=limits)]
    return [
        device_traces.claim_document(name, pod),
        device_objects.claiming_pod(name, name, cpu=cpu, memory=memory, limits=limits),
    ]


@contextlib.contextmanager
def contender(setting: Setting, name: str, placement: str = "fragmentation") -> Iterator[tuple[Object, str]]:
    """The scheduler configuration of a contender, and the address of nodewise's decisions; empty without nodewise."""
    strategy = {"type": "MostAllocated" if name == MOST_ALLOCATED else "LeastAllocated"}
    strategy |= {"resources": [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]}
    plugin = {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}
    config: Object = {"profiles": [{"schedulerName": "default-scheduler", "pluginConfig": [plugin]}]}
    with contextlib.ExitStack() as stack:
        health = ""
        if name == NODEWISE:
            words = [f"--gpu-placement={placement}", "--gpu-profile=nvidia"]
            running = stack.enter_context(
                gpu_cluster.extender(
                    setting.sandbox.plane, setting.folder, *words, certificates=setting.certificates
                )
            )
            health = running.health
            entry = running.entry(managedResources=MANAGED, weight=ENTRY_WEIGHT)
            config["extenders"] = [entry]
        elif name == NOTHING:
            config["extenders"] = [stack.enter_context(_do_nothing(setting))]
        yield config, health


@contextlib.contextmanager
def _do_nothing(setting: Setting) -> Iterator[Object]:
    """The entry of an extender that accepts all nodes, and prefers none."""
    made = setting.certificates
    certificates = benchmark_servers.Certificates(
        made.authority.ca_file, made.authority.ca_file, made.server, made.client
    )
    prioritized = setting.folder / "prioritized.json"
    prioritized.write_text("[]")
    answers = {"/scheduler/filter": "", "/scheduler/prioritize": str(prioritized)}
    with benchmark_servers.null_server(setting.folder, certificates, answers) as url:
        template = extender_process.ExtenderProcess.entry
        yield template(_Address(url, made), managedResources=MANAGED, weight=ENTRY_WEIGHT)  # type: ignore[arg-type]


class _Address(NamedTuple):
    """What `ExtenderProcess.entry` reads."""

    url: str
    certificates: CertificateFiles


def bind(
    setting: Setting, config: Object, wanted: Sequence[Sequence[Object]]
) -> tuple[float, dict[str, str]]:
    """Create claims and pods, and let kube-scheduler bind what fits.

    Returns pods per second without the first ones, and the node of each bound pod.
    """
    plane, path = setting.sandbox.plane, f"/api/v1/namespaces/{setting.sandbox.namespace}/pods"
    for objects in ([each[0] for each in wanted if len(each) > 1], [each[-1] for each in wanted]):
        scheduler_bind_rounds.run_concurrently(setting.sandbox.put, objects)
    with (
        scheduler_bind_rounds.watching(plane, path) as watch,
        plane.start_scheduler(
            {"clientConnection": scheduler_bind_rounds.RAISED_LIMITS} | config, verbosity=0
        ),
    ):
        seen, since = -1, time.monotonic()
        while len(watch.at_s) < len(wanted) and time.monotonic() - since < QUIET_S:
            if (now := len(watch.at_s) + len(watch.rejected)) != seen:
                seen, since = now, time.monotonic()
            time.sleep(0.1)
    rate = scheduler_bind_rounds.rate(watch.at_s.values(), scheduler_bind_rounds.EXCLUDED_SHARE)
    return rate, dict(watch.node_of)


def allocated_claims(setting: Setting) -> dict[str, Object]:
    """The claims with devices, by name."""
    path = f"/apis/{device_objects.VERSION}/namespaces/{setting.sandbox.namespace}/resourceclaims"
    items = setting.sandbox.plane.api.get(path)["items"]
    return {each["metadata"]["name"]: each for each in items if device_objects.allocated(each)}


def delete_all(setting: Setting) -> None:
    """Delete pods, then claims, which a finalizer protects while they are reserved."""
    api, space = setting.sandbox.plane.api, setting.sandbox.namespace
    for path in (
        f"/api/v1/namespaces/{space}/pods",
        f"/apis/{device_objects.VERSION}/namespaces/{space}/resourceclaims",
    ):
        for item in api.get(path)["items"]:
            if item["metadata"].get("finalizers"):
                api.patch(f"{path}/{item['metadata']['name']}", {"metadata": {"finalizers": None}})
        api.delete(path)
        wait("all are gone", lambda path=path: not api.get(path, limit="1")["items"] or None)  # type: ignore[misc]


def trace_round(setting: Setting, name: str, drawn: Sequence[TracePod], gpus_milli: int) -> TraceRound:
    """Bind the pods of the trace with a contender."""
    wanted = [
        pod_objects(f"pod-{number:05d}", pod, LIMITS if name == NODEWISE else {})
        for number, pod in enumerate(drawn)
    ]
    with contender(setting, name) as (config, _):
        rate, node_of = bind(setting, config, wanted)
    milli = sum(drawn[int(name[4:])].total_gpu_demand_milli for name in allocated_claims(setting))
    delete_all(setting)
    return TraceRound(100 * milli / gpus_milli, len(drawn), len(node_of), round(rate, 1))


def equal_nodes_round(setting: Setting, name: str) -> EqualRound:
    """Bind pods with one device each on equal nodes; with nodewise, compare the predicted devices."""
    whole = TracePod(100, 64, 1, GPU_MILLI, ())
    wanted = [pod_objects(f"pod-{number:05d}", whole, LIMITS) for number in range(BOUND_PODS)]
    with contender(setting, name, "pack") as (config, health):
        rate, node_of = bind(setting, config, wanted)
        predicted = _predicted_devices(health, setting.sandbox.namespace, node_of) if health else {}
    allocated = {
        pod: device
        for pod, claim in allocated_claims(setting).items()
        for *_, device in device_objects.allocated(claim)
    }
    equal = sum(predicted.get(pod) == f"devices gpu: {allocated[pod]}" for pod in node_of)
    delete_all(setting)
    return EqualRound(round(rate, 1), len(node_of), equal)


def _predicted_devices(health: str, namespace: str, node_of: Mapping[str, str]) -> dict[str, str]:
    """By pod, the devices on its node in nodewise's newest decision."""
    predicted: dict[str, str] = {}
    with httpx2.Client(base_url=health, timeout=60, trust_env=False) as client:
        for pod, node in node_of.items():
            query = {"namespace": namespace, "pod": pod, "limit": "1"}
            (newest,) = client.get("/decisions", params=query).json()["decisions"]
            predicted[pod] = newest.get("details", {}).get(node, {}).get("gpu", "")
    return predicted


def measure_trace(setting: Setting, trace: Trace, nodes: int, seeds: int) -> Measurement:
    """Measure the allocated share on a part of the nodes of the trace."""
    part = part_of(trace, nodes)
    for node in part.nodes:
        for each in node_objects(node):
            setting.sandbox.create(each)
    rounds: dict[str, list[TraceRound]] = {DEFAULT: [], MOST_ALLOCATED: [], NODEWISE: []}
    for seed in range(seeds):
        drawn = draw(part, seed)
        for name, made in rounds.items():
            made.append(trace_round(setting, name, drawn, part.gpus_milli))
            report_progress_line(f"seed {seed}, {name}: {made[-1]}")
    figures = {
        f"devices_allocated_{name}_pct": of_rounds((each.allocated_pct for each in made), 2, statistics.mean)
        for name, made in rounds.items()
    }
    for path in ("/api/v1/nodes", device_objects.SLICE_PATH):
        setting.sandbox.plane.api.delete(path)
    return Measurement(figures, {}, "", {"devices_rounds": rounds})


def measure_binds(setting: Setting) -> Measurement:
    """Measure the rate of binds and the predicted devices on equal nodes."""
    for number in range(EQUAL_NODES):
        for each in node_objects(TraceNode(f"equal-{number}", 64_000, 262_144, DEVICES_PER_NODE, "X")):
            setting.sandbox.create(each)
    equal: dict[str, list[EqualRound]] = {NODEWISE: [], NOTHING: []}
    for number in range(EQUAL_ROUNDS):
        for name in [*equal][:: 1 if number % 2 == 0 else -1]:
            equal[name].append(equal_nodes_round(setting, name))
            report_progress_line(f"round {number + 1}, {name}: {equal[name][-1]}")
    ratios = [ours.rate / its.rate for ours, its in zip(equal[NODEWISE], equal[NOTHING], strict=True)]
    shares = [100 * each.predicted / each.bound for each in equal[NODEWISE]]
    figures = {
        "devices_predicted_pct": of_rounds(shares, 2),
        "devices_bind_rate": of_rounds([each.rate for each in equal[NODEWISE]], 1),
        "devices_bind_ratio": of_rounds(ratios, 2),
    }
    return Measurement(figures, {}, "", {"devices_bind_rounds": equal})


def simulate(trace: Trace, drawn: list[TracePod], name: str) -> float:
    """The allocated share of all GPUs in per cent."""
    strategy: device_traces.Strategy = "MostAllocated" if name == MOST_ALLOCATED else "LeastAllocated"
    placement: Placement | None = "fragmentation" if name == NODEWISE else None
    return device_traces.run(trace, drawn, strategy, placement)


def measure_simulation(trace: Trace, nodes: int, seeds: int) -> Measurement:
    """Simulate the part that kube-scheduler places, with all seeds, and all nodes, with the first one."""
    figures = {}
    for key, cluster_part, draws in (("", part_of(trace, nodes), seeds), ("all_", trace, 1)):
        for name in (DEFAULT, MOST_ALLOCATED, NODEWISE):
            rounds = [simulate(cluster_part, draw(cluster_part, seed), name) for seed in range(draws)]
            figure = figures[f"devices_simulated_{key}{name}_pct"] = of_rounds(rounds, 2, statistics.mean)
            report_progress_line(f"simulated, {key}{name}: {figure} %")
    return Measurement(figures, {}, "")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__)
    parser.add_argument("--nodes", help="nodes of the trace; not for --binds")
    parser.add_argument("--pods", help="pods of the trace; not for --binds")
    parser.add_argument("--part", type=int, default=202, help="nodes of the part with a real kube-scheduler")
    parser.add_argument(
        "--seeds", type=int, default=1, help="draws of pods, whose mean is the allocated share"
    )
    parser.add_argument("--no-write", dest="write", action="store_false", help="print the figures only")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--simulate", action="store_true", help="only simulate, which needs no cluster")
    only.add_argument("--binds", action="store_true", help="only bind pods on equal nodes")
    options = parser.parse_args()
    if options.binds:
        trace = Trace([], [])
    elif options.nodes and options.pods:
        trace = Trace(gpu_traces.nodes(options.nodes), gpu_traces.pods(options.pods))
    else:
        parser.error("--nodes and --pods are required without --binds")
    machine_load = MachineLoad()
    made: dict[str, Measurement] = {}
    if options.simulate:
        made[DEVICES_SIMULATED] = measure_simulation(trace, options.part, options.seeds)
    else:
        with (
            tempfile.TemporaryDirectory(prefix="nodewise-bench-") as folder,
            cluster(Path(folder)) as setting,
        ):
            if not options.binds:
                made[DEVICES] = measure_trace(setting, trace, options.part, options.seeds)
            made[DEVICES_BOUND] = measure_binds(setting)
    known = results.read()
    for part, measured in made.items():
        print(dict(measured.figures))
        place = results.where(measured, machine_load.others_share())
        known = results.merged(known, part, measured, place)
    if options.write:
        results.write(known)
        report.write(known)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Setting]:
    report_progress_line("starting a control plane")
    with (
        controlplane.running(program_cache.folder(), folder) as plane,
        namespace_sandboxes.created(plane) as sandbox,
    ):
        extender_process.define(plane.api)
        sandbox.create(device_objects.device_class())
        yield Setting(sandbox, folder, CertificateFiles(folder))


if __name__ == "__main__":
    main()
