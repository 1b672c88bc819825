"""results.json: its keys with meanings and targets, and where each part was measured."""

import json
import os
import platform
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import alternating_rounds
from bench.alternating_rounds import RoundFigure, Rounds

PATH: Final = Path(__file__).parent / "results.json"
PROGRAMS: Final = ("nodewise", "msgspec", "numpy", "uvicorn", "uvloop", "httptools", "httpx2")
FILTER, PRIORITIZE, REFRESH = "filter", "prioritize", "filter, metrics refresh"
GPU_FILTER: Final = "gpu filter"
SCORING_AGENTS: Final = ("load", "safe", "congestion", "pigeon", "learned")
ISOLATED, PLAIN = "a command by isolate: to its first word", "the same command without"
SCORED: Final = "prioritize by "
"""Prefix of an agent's name: the series of prioritize calls of that agent."""
WHOLE: Final = "whole nodes: "
"""Prefix of a series with whole nodes."""
NOTHING: Final = "nothing: "
"""Prefix of a series: the same load on the no-op server."""

Results = dict[str, Any]


class Figure(NamedTuple):
    """A key of results.json."""

    part: str
    """The part of the benchmark that measures it."""
    meaning: str
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    """Targets of the design."""


class Measurement(NamedTuple):
    """Result of a part of the benchmark."""

    figures: Mapping[str, float]
    rounds: Rounds
    client: str
    """Name of the load client; empty if no requests were timed."""
    more: Mapping[str, Any] = {}
    """Other values for results.json, by key."""
    programs: Mapping[str, str] = {}
    """Versions of other programs."""


NAMES, WHOLE_NODES, GPU, GROWTH, START = "names", "whole", "gpu", "growth", "start"
SCORING, ISOLATE, CLUSTER, TENANTS = "scoring", "isolate", "cluster", "tenants"
NATIVE, NATIVE_RAISED, NATIVE_LABELS, NATIVE_WAITING, NATIVE_TENANTS = (
    "native",
    "native_raised",
    "native_labels",
    "native_waiting",
    "native_tenants",
)
LABEL_WRITES: Final = "label_writes"
NOVEMBER, SHARDS = "november", "shards"
BACKTEST, BACKTEST_REAL, MUTANTS, COMMANDS = "backtest", "backtest_real", "mutants", "commands"
RECORDING: Final = "recording"
GPU_BINDS: Final = "gpu_binds"
DEVICES, DEVICES_BOUND = "devices", "devices_bound"
DEVICES_SIMULATED, DEVICES_LISTED = "devices_simulated", "devices_listed"
LOAD, LOAD_SCHEDULERS = "load", "load_schedulers"
PARTS: Final[Mapping[str, str]] = {
    NAMES: "filter and prioritize, names",
    WHOLE_NODES: "filter and prioritize, whole nodes",
    GPU: "the gpu agent: filter, names, 20,000 allocated pods",
    GPU_BINDS: "the gpu agent: binds on a real API server",
    SCORING: "the scoring agents: prioritize, names, statistics on all nodes, full agent state",
    START: "start and memory, on a real API server with 50,000 pods",
    GROWTH: "growth",
    SHARDS: "shards of `nodewise controller`, 100,000 nodes",
    NOVEMBER: "this build and that of 21 November 2026 (`ea8d466d`), in alternating rounds",
    COMMANDS: "processor time of short commands beside promtool",
    RECORDING: "a metric with 40 series on each of 5,000 nodes, as it is and recorded, a real Prometheus",
    LOAD: "load-aware placements on PlanetLab traces, simulated (`python -m bench.load_placements`);"
    " independent of the machine",
    LOAD_SCHEDULERS: "published load-aware schedulers on a real API server (`python -m bench.load_schedulers`)",
    ISOLATE: "the CPU manager: the installed program in a busybox image, its node agent, one exclusive core",
    CLUSTER: "a real kube-scheduler with raised client limits (`make bench-cluster`)",
    NATIVE: "native mode, a real kube-scheduler with its default client limits (`make bench-cluster`)",
    NATIVE_RAISED: "native mode, a real kube-scheduler with raised client limits (`make bench-cluster`)",
    NATIVE_LABELS: "labels of native mode (`make bench-cluster`)",
    LABEL_WRITES: "labels of 5,000 nodes at once on a real API server (`python -m bench.label_writes`)",
    NATIVE_WAITING: "native mode while rejected pods wait and labels change (`make bench-cluster`)",
    NATIVE_TENANTS: "a tenant in native mode beside 1,500 policies (`python -m bench.native_tenants`)",
    TENANTS: "a tenant beside a hostile one at every limit (`python -m bench.hostile_tenant`)",
    BACKTEST: "7 days of 1,000 nodes, a step per minute, three rules (`python -m bench.policy_backtest`)",
    BACKTEST_REAL: "the same with a real Prometheus (`python -m bench.policy_backtest --real`)",
    DEVICES: "DRA devices, a real kube-scheduler and the trace openb (`python -m bench.devices`)",
    DEVICES_BOUND: "pods with claims on equal nodes, a real kube-scheduler (`python -m bench.devices --binds`)",
    DEVICES_SIMULATED: "the trace openb as DRA devices, simulated; independent of the machine",
    DEVICES_LISTED: "`nodewise devices` with 5,000 nodes, 8 devices each, of a real API server",
    MUTANTS: "suites of the shipped policies (`python -m bench.policy_mutants`); independent of the machine",
}

LOAD_PLUGINS: Final[Mapping[str, str]] = {
    "target_load_packing": "Trimaran's TargetLoadPacking",
    "load_variation_risk_balancing": "Trimaran's LoadVariationRiskBalancing",
    "low_risk_over_commitment": "Trimaran's LowRiskOverCommitment",
    "peaks": "Trimaran's Peaks",
    "koordinator": "Koordinator's LoadAwareScheduling",
}
"""Plugins that decide on a real API server, by the end of their key."""
LOAD_RIVALS: Final = (
    "target-load-packing",
    "load-variation-risk-balancing",
    "low-risk-over-commitment",
    "peaks",
    "koordinator",
    "volcano",
)
"""The published formulas among the placements of `nodewise simulate load`."""


FIGURES: Final[Mapping[str, Figure]] = {
    "devices_allocated_nodewise_pct": Figure(
        DEVICES, "part of openb: allocated GPUs at 100 % demand, placement `fragmentation`", "%", at_least=95
    ),
    "devices_allocated_default_pct": Figure(DEVICES, "the same with kube-scheduler's default profile", "%"),
    "devices_allocated_most_allocated_pct": Figure(DEVICES, "the same with MostAllocated", "%"),
    "devices_simulated_nodewise_pct": Figure(
        DEVICES_SIMULATED, "the same part simulated: `fragmentation`", "%"
    ),
    "devices_simulated_default_pct": Figure(
        DEVICES_SIMULATED, "the same part simulated: default profile", "%"
    ),
    "devices_simulated_most_allocated_pct": Figure(
        DEVICES_SIMULATED, "the same part simulated: MostAllocated", "%"
    ),
    "devices_simulated_all_nodewise_pct": Figure(
        DEVICES_SIMULATED, "all nodes simulated: `fragmentation`", "%"
    ),
    "devices_simulated_all_default_pct": Figure(
        DEVICES_SIMULATED, "all nodes simulated: default profile", "%"
    ),
    "devices_simulated_all_most_allocated_pct": Figure(
        DEVICES_SIMULATED, "all nodes simulated: MostAllocated", "%"
    ),
    "devices_predicted_pct": Figure(
        DEVICES_BOUND, "predicted device is the allocated one, 500 pods on equal nodes", "%", at_least=95
    ),
    "devices_bind_rate": Figure(DEVICES_BOUND, "pods with claims bound per second", "1/s"),
    "devices_bind_ratio": Figure(
        DEVICES_BOUND, "the same, ratio to an extender that does nothing", at_least=0.9
    ),
    "devices_5000_s": Figure(
        DEVICES_LISTED, "`nodewise devices`, 40,000 devices, 20,000 claims: time, median", "s", 2.0
    ),
    "devices_5000_mib": Figure(DEVICES_LISTED, "the same: peak of the resident memory", "MiB", 300.0),
    "devices_file_5000_s": Figure(
        DEVICES_LISTED, "the same from a file with the output of kubectl: time", "s", 2.0
    ),
    "devices_file_5000_mib": Figure(DEVICES_LISTED, "the same: peak of the resident memory", "MiB", 300.0),
    "filter_names_5000_p50_ms": Figure(NAMES, "filter, names: median", "ms", 1.5),
    "filter_names_5000_p99_ms": Figure(NAMES, "filter, names: 99th percentile", "ms"),
    "filter_names_5000_ratio": Figure(NAMES, "filter, names: median, ratio to the no-op server", at_most=1.5),
    "prioritize_names_5000_p50_ms": Figure(NAMES, "prioritize, names: median", "ms", 1.5),
    "prioritize_names_5000_p99_ms": Figure(NAMES, "prioritize, names: 99th percentile", "ms"),
    "prioritize_names_5000_ratio": Figure(
        NAMES, "prioritize, names: median, ratio to the no-op server", at_most=1.5
    ),
    "filter_names_5000_p50_refresh_ms": Figure(
        NAMES, "filter while ten metrics refresh every 2 s: median", "ms"
    ),
    "filter_names_5000_p99_refresh_ms": Figure(NAMES, "the same: 99th percentile", "ms", 5.0),
    "filter_names_5000_max_refresh_ms": Figure(NAMES, "the same: slowest of all", "ms"),
    "filter_names_5000_refresh_ratio": Figure(NAMES, "the same: 99th percentile, ratio to the no-op server"),
    "nothing_filter_5000_p50_ms": Figure(NAMES, "no-op server, same number of bytes as filter: median", "ms"),
    "nothing_filter_5000_p99_ms": Figure(NAMES, "no-op server, as filter: 99th percentile", "ms"),
    "nothing_prioritize_5000_p50_ms": Figure(
        NAMES, "no-op server, same number of bytes as prioritize: median", "ms"
    ),
    "nothing_prioritize_5000_p99_ms": Figure(NAMES, "no-op server, as prioritize: 99th percentile", "ms"),
    "rss_mib": Figure(NAMES, "resident memory of the extender after these rounds", "MiB"),
    "filter_full_5000_ratio": Figure(
        WHOLE_NODES, "filter, whole nodes: median, ratio to the no-op server", at_most=1.3
    ),
    "prioritize_full_5000_ratio": Figure(
        WHOLE_NODES, "prioritize, whole nodes: median, ratio to the no-op server", at_most=1.3
    ),
    "filter_full_5000_p50_ms": Figure(WHOLE_NODES, "filter, whole nodes: median", "ms"),
    "prioritize_full_5000_p50_ms": Figure(WHOLE_NODES, "prioritize, whole nodes: median", "ms"),
    "gpu_filter_names_5000_p50_ms": Figure(
        GPU, "gpu filter, names, 20,000 pods with GPUs: median", "ms", 5.0
    ),
    "gpu_filter_names_5000_p99_ms": Figure(GPU, "the same: 99th percentile", "ms"),
    "gpu_filter_names_5000_ratio": Figure(GPU, "the same: median, ratio to the no-op server", at_most=2.5),
    "gpu_bind_rate": Figure(GPU_BINDS, "pods with GPUs bound per second, two replicas", "1/s", at_least=80.0),
    "gpu_bind_ratio_floor": Figure(
        GPU_BINDS,
        "the same, one replica, ratio to a Go program that performs the two writes of GAS and decides nothing",
        at_least=0.9,
    ),
    "gpu_bind_ratio_gas": Figure(
        GPU_BINDS, "the same, ratio to GPU-aware scheduling with raised client limits", at_least=1.1
    ),
    "gpu_bind_cpu_ms": Figure(GPU_BINDS, "processor time of nodewise per bind", "ms"),
    **{
        f"{name}_5000_november": Figure(
            NOVEMBER, f"{title}: median, ratio to the build of 21 November", at_most=0.8
        )
        for name, title in {
            "filter_names": "filter, names",
            "prioritize_names": "prioritize, names",
            "gpu_filter_names": "gpu filter, names",
        }.items()
    },
    **{
        f"score_{agent}_names_5000_p50_ms": Figure(SCORING, f"{agent} prioritizes, names: median", "ms", most)
        for agent, most in {
            "load": 3.0,
            "congestion": 2.0,
            "learned": 2.0,
            "safe": 3.0,
            "pigeon": 4.0,
        }.items()
    },
    "score_load_names_5000_safe_ratio": Figure(
        SCORING, "load prioritizes, names: median, ratio to safe", at_most=1.1
    ),
    **{
        f"score_{agent}_names_5000_p99_ms": Figure(SCORING, f"{agent} prioritizes: 99th percentile", "ms")
        for agent in SCORING_AGENTS
    },
    "ready_s": Figure(START, "start to ready, 5,000 nodes and 50,000 pods", "s", 20.0),
    "rss_50000_pods_mib": Figure(START, "resident memory when ready or three periods later", "MiB", 400.0),
    "rss_50000_pods_peak_mib": Figure(START, "peak resident memory until then", "MiB"),
    "rss_gpu_50000_pods_mib": Figure(
        START,
        "resident memory with the gpu agent and a PlacementPolicy as well, until ten periods later",
        "MiB",
    ),
    "rss_hostile_namespace_mib": Figure(START, "the same with a hostile namespace at its limits", "MiB"),
    "rss_hostile_namespace_ratio": Figure(START, "the same, ratio to without", at_most=1.2),
    "filter_names_50000_p50_ms": Figure(GROWTH, "filter, 5,000 names of 50,000 nodes: median", "ms"),
    "filter_names_50000_ratio": Figure(GROWTH, "the same, ratio to 5,000 names of 5,000 nodes", at_most=1.2),
    "filter_names_50000_all_p50_ms": Figure(GROWTH, "filter, all names of 50,000 nodes: median", "ms", 10.0),
    "refresh_50000_cpu_share": Figure(
        GROWTH, "processor time of ten metrics of 50,000 nodes, period 5 s, share of a core", at_most=0.2
    ),
    "ready_50000_s": Figure(GROWTH, "start to ready, 50,000 nodes and 100,000 pods", "s", 20.0),
    "rss_50000_mib": Figure(GROWTH, "resident memory with 50,000 nodes and 100,000 pods", "MiB", 600.0),
    "shards_4_memory_ratio": Figure(
        SHARDS, "memory of one of four shards, ratio to one process", at_most=0.35
    ),
    "shards_4_watched_ratio": Figure(
        SHARDS, "bytes that one of four shards receives, ratio to one process", at_most=0.3
    ),
    "shards_4_label_rate_ratio": Figure(
        SHARDS, "label writes per second of four shards, ratio to one process", at_least=3.5
    ),
    "load_default_ratio": Figure(
        LOAD, "node-steps above 90 %: load, ratio to the default plugins", at_most=0.5
    ),
    "load_rival_ratio": Figure(LOAD, "the same, ratio to the best published formula", at_most=0.68),
    "load_unmet_ratio": Figure(
        LOAD, "unmet CPU demand: load, ratio to the best published formula", at_most=0.35
    ),
    "load_bound": Figure(
        LOAD,
        "upper 95 % bound of the first ratio to a published formula, the largest of all",
        at_most=1.0,
    ),
    "load_usable_ratio": Figure(LOAD, "usable CPU: load, ratio to the default plugins", at_least=1.16),
    "load_distinct_default_ratio": Figure(
        LOAD, "with an image per batch: node-steps above 90 %, ratio to the default plugins", at_most=0.5
    ),
    "load_distinct_rival_ratio": Figure(
        LOAD, "with an image per batch: the same, ratio to the best published formula", at_most=0.68
    ),
    "load_distinct_unmet_ratio": Figure(
        LOAD, "with an image per batch: unmet CPU demand, ratio to the best published formula", at_most=0.35
    ),
    "load_distinct_bound": Figure(
        LOAD, "with an image per batch: upper 95 % bound, the largest of all", at_most=1.0
    ),
    "load_left_out_default_ratio": Figure(
        LOAD, "load, ratio to the default plugins, constants chosen on the other days", at_most=0.5
    ),
    "load_herd_rival_ratio": Figure(
        LOAD,
        "a burst: node-minutes above 90 %, ratio to the better of TargetLoadPacking and Koordinator",
        at_most=0.5,
    ),
    "load_herd_excess_pct": Figure(
        LOAD, "a burst: node-minutes above 90 % minus 1.1 times those of the oracle", "%", at_most=0.0
    ),
    **{
        f"load_scheduler_{key}_pct": Figure(
            LOAD_SCHEDULERS, f"decisions of {title} for a best node of our formula", "%", at_least=95.0
        )
        for key, title in LOAD_PLUGINS.items()
    },
    "isolate_overhead_ms": Figure(ISOLATE, "`isolate`: start to exec, minus plain exec: median", "ms", 100.0),
    "jitter_exclusive_p999_us": Figure(
        ISOLATE,
        "a loop in the pool exclusive beside a loaded core: 99.9th percentile of an iteration minus the median",
        "µs",
    ),
    "jitter_unpinned_p999_us": Figure(ISOLATE, "the same loop, unpinned", "µs"),
    "jitter_without_pools_p999_us": Figure(ISOLATE, "the same, with unpinned load", "µs"),
    "cluster_bind_rate_none": Figure(CLUSTER, "pods bound per second, no extender", "1/s"),
    "cluster_bind_rate_nothing": Figure(CLUSTER, "the same, no-op extender", "1/s"),
    "cluster_bind_rate_5000": Figure(CLUSTER, "the same, nodewise", "1/s"),
    "cluster_bind_ratio_5000": Figure(CLUSTER, "nodewise, ratio to the no-op extender", at_least=0.95),
    "cluster_bind_ratio_admitting_5000": Figure(CLUSTER, "the same, nodewise rejects no node", at_least=0.92),
    "native_bind_rate_none": Figure(NATIVE, "pods bound per second, no policy", "1/s"),
    "native_bind_rate_5000": Figure(NATIVE, "the same, native mode rejects half of the nodes", "1/s"),
    "native_bind_ratio_none_5000": Figure(NATIVE, "native mode, ratio to no policy", at_least=0.95),
    "native_cpu_none_ms": Figure(NATIVE, "CPU time of kube-scheduler per pod, no policy", "ms"),
    "native_cpu_5000_ms": Figure(NATIVE, "the same, native mode", "ms"),
    "native_raised_bind_rate_none": Figure(NATIVE_RAISED, "pods bound per second, no policy", "1/s"),
    "native_raised_bind_rate_5000": Figure(
        NATIVE_RAISED, "the same, native mode rejects half of the nodes", "1/s"
    ),
    "native_raised_bind_ratio_none_5000": Figure(NATIVE_RAISED, "native mode, ratio to no policy"),
    "native_raised_bind_ratio_selector_5000": Figure(
        NATIVE_RAISED, "native mode, ratio to a node selector that rejects the same nodes", at_least=0.95
    ),
    "native_raised_bind_ratio_admitting_5000": Figure(
        NATIVE_RAISED, "native mode that rejects no node, ratio to no policy", at_least=0.95
    ),
    "native_raised_cpu_none_ms": Figure(NATIVE_RAISED, "CPU time of kube-scheduler per pod, no policy", "ms"),
    "native_raised_cpu_selector_5000_ms": Figure(NATIVE_RAISED, "the same, node selector", "ms"),
    "native_raised_cpu_5000_ms": Figure(NATIVE_RAISED, "the same, native mode", "ms"),
    "native_raised_cpu_admitting_5000_ms": Figure(
        NATIVE_RAISED, "the same, native mode that rejects no node", "ms"
    ),
    "native_waiting_bind_rate_quiet_5000": Figure(
        NATIVE_WAITING,
        "pods bound per second while required node affinity rejects 5,000 pods, no policy",
        "1/s",
    ),
    "native_waiting_bind_rate_none_5000": Figure(
        NATIVE_WAITING,
        "pods bound per second while labels change and node selectors reject 5,000 pods, no policy",
        "1/s",
    ),
    "native_waiting_bind_rate_affinity_5000": Figure(
        NATIVE_WAITING, "the same, required node affinity rejects them", "1/s"
    ),
    "native_waiting_bind_rate_5000": Figure(
        NATIVE_WAITING,
        "the same, native mode rejects them, and half of the nodes for others; missing values allowed",
        "1/s",
    ),
    "native_waiting_bind_ratio_quiet_5000": Figure(
        NATIVE_WAITING, "the same, ratio to no policy while no labels change"
    ),
    "native_waiting_bind_ratio_affinity_5000": Figure(
        NATIVE_WAITING,
        "the same, ratio to node affinity without a policy, where more labels change",
        at_least=0.95,
    ),
    "native_waiting_bind_ratio_none_5000": Figure(
        NATIVE_WAITING,
        "the same, ratio to node selectors without a policy, where more labels change",
        at_least=0.95,
    ),
    "native_waiting_strict_bind_rate_5000": Figure(
        NATIVE_WAITING, "pods bound per second, the same policies with whenMissing: Reject", "1/s"
    ),
    "native_waiting_strict_bind_ratio_quiet_5000": Figure(
        NATIVE_WAITING, "the same, ratio to no policy while no labels change"
    ),
    "native_waiting_strict_bind_ratio_none_5000": Figure(
        NATIVE_WAITING,
        "the same, ratio to node selectors without a policy, where more labels change",
        at_least=0.95,
    ),
    "native_waiting_equal_bind_rate_5000": Figure(
        NATIVE_WAITING,
        "pods bound per second in native mode while another client changes labels, missing values allowed",
        "1/s",
    ),
    "native_waiting_equal_bind_ratio_affinity_5000": Figure(
        NATIVE_WAITING, "the same, ratio to node affinity without a policy, where as many labels change"
    ),
    "native_waiting_equal_bind_ratio_none_5000": Figure(
        NATIVE_WAITING,
        "the same, ratio to node selectors without a policy, where as many labels change",
        at_least=0.95,
    ),
    "native_waiting_equal_strict_bind_rate_5000": Figure(
        NATIVE_WAITING, "pods bound per second, the same policies with whenMissing: Reject", "1/s"
    ),
    "native_waiting_equal_strict_bind_ratio_none_5000": Figure(
        NATIVE_WAITING,
        "the same, ratio to node selectors without a policy, where as many labels change",
        at_least=0.95,
    ),
    "native_waiting_label_rate_none_5000": Figure(
        NATIVE_WAITING, "labels that another client changes per second in the rounds without a policy", "1/s"
    ),
    "native_waiting_label_rate_5000": Figure(
        NATIVE_WAITING,
        "labels that native mode writes while the verdicts of 50 nodes change per second",
        "1/s",
    ),
    "native_waiting_cpu_none_5000_ms": Figure(
        NATIVE_WAITING, "CPU time of kube-scheduler per bound pod, no policy, node selectors", "ms"
    ),
    "native_waiting_cpu_affinity_5000_ms": Figure(
        NATIVE_WAITING, "the same, no policy, required node affinity", "ms"
    ),
    "native_waiting_cpu_5000_ms": Figure(
        NATIVE_WAITING, "the same, native mode, missing values allowed", "ms"
    ),
    "native_waiting_strict_cpu_5000_ms": Figure(
        NATIVE_WAITING, "the same, native mode, whenMissing: Reject", "ms"
    ),
    "native_label_p50_s": Figure(
        NATIVE_LABELS, "from a change of ten metrics on 100 nodes to a label, period 5 s: median", "s"
    ),
    "native_label_p99_s": Figure(NATIVE_LABELS, "the same: 99th percentile", "s", 10.0),
    "native_label_max_s": Figure(NATIVE_LABELS, "the same: slowest of all", "s"),
    "native_recovery_max_s": Figure(
        NATIVE_LABELS, "from that change to the binding of a waiting pod: slowest of all", "s", 8.0
    ),
    "native_writes_at_rest": Figure(
        NATIVE_LABELS, "writes to the API server in 30 s in which no verdict changes", at_most=0.0
    ),
    "labels_5000_s": Figure(
        LABEL_WRITES, "from a metric's change on all 5,000 nodes to the last label, period 5 s", "s", 25.0
    ),
    "labels_5000_other_writes_ratio": Figure(
        LABEL_WRITES,
        "99th percentile of another client's writes meanwhile, ratio to that before",
        at_most=1.5,
    ),
    "labels_5000_other_writes_before_ms": Figure(
        LABEL_WRITES, "99th percentile of the other client's writes before", "ms"
    ),
    "labels_5000_other_writes_ms": Figure(LABEL_WRITES, "the same meanwhile", "ms"),
    "labels_5000_cpu_ms": Figure(LABEL_WRITES, "processor time of the controller per label", "ms"),
    "native_tenant_label_alone_s": Figure(
        NATIVE_TENANTS, "from a metric's change to the labels of all nodes, slowest round", "s"
    ),
    "native_tenant_label_s": Figure(NATIVE_TENANTS, "the same beside 150 namespaces of ten policies", "s"),
    "native_tenant_label_ratio": Figure(NATIVE_TENANTS, "mean of these rounds, ratio to alone", at_most=3.0),
    "native_tenant_label_bytes": Figure(
        NATIVE_TENANTS, "labels of nodewise on a node, most in a round", "bytes", at_most=16384.0
    ),
    "tenant_metric_age_alone_s": Figure(TENANTS, "largest age of a tenant's metric", "s"),
    "tenant_metric_age_s": Figure(TENANTS, "the same beside a hostile tenant", "s", 10.0),
    "tenant_label_alone_s": Figure(TENANTS, "from a metric's change to ten labels, slowest of all", "s"),
    "tenant_label_s": Figure(TENANTS, "the same beside a hostile tenant", "s", 10.0),
    "tenant_requeue_alone_s": Figure(
        TENANTS, "from a passing node to the requeue event, slowest of all", "s"
    ),
    "tenant_requeue_s": Figure(TENANTS, "the same beside a hostile tenant", "s", 5.0),
    "backtest_1000_nodes_7d_s": Figure(BACKTEST, "`policy backtest` with a page, whole command", "s", 60.0),
    "backtest_1000_nodes_7d_mib": Figure(BACKTEST, "the same: peak resident memory", "MiB", 500.0),
    "backtest_prometheus_s": Figure(
        BACKTEST_REAL, "`policy backtest` of a Prometheus with a page, whole command", "s", at_most=60
    ),
    "backtest_prometheus_mib": Figure(
        BACKTEST_REAL, "the same: peak resident memory, without Prometheus", "MiB", 500.0
    ),
    "command_version_ms": Figure(COMMANDS, "`nodewise --version`: processor time, median", "ms", 100.0),
    "command_help_ms": Figure(COMMANDS, "`--help` of the slowest of all commands: the same", "ms", 300.0),
    "command_completion_ms": Figure(
        COMMANDS,
        "the slowest completion of commands, options and values by bash, zsh or fish: the same",
        "ms",
        200.0,
    ),
    "command_lint_ms": Figure(COMMANDS, "`policy lint` of an example: the same", "ms", 300.0),
    "command_decide_ms": Figure(COMMANDS, "`decide` of an example: the same", "ms"),
    "command_promtool_version_ms": Figure(COMMANDS, "`promtool --version`: the same", "ms"),
    "command_promtool_help_ms": Figure(COMMANDS, "`promtool --help`: the same", "ms"),
    "command_promtool_check_ms": Figure(COMMANDS, "`promtool check rules` of the alerts: the same", "ms"),
    "recording_raw_prometheus_ms": Figure(
        RECORDING, "200,000 series of a metric: processor time of Prometheus for a request", "ms"
    ),
    "recording_raw_nodewise_ms": Figure(RECORDING, "the same: processor time of nodewise", "ms"),
    "recording_prometheus_ms": Figure(
        RECORDING, "the recorded metric: processor time of Prometheus for a request", "ms"
    ),
    "recording_nodewise_ms": Figure(RECORDING, "the same: processor time of nodewise", "ms"),
    "recording_ratio": Figure(RECORDING, "recorded, ratio to the 200,000 series: both processor times"),
    "recording_rule_ms": Figure(
        RECORDING, "one evaluation of the rule, every 15 s: processor time of Prometheus", "ms"
    ),
    "policy_mutants_detected_pct": Figure(
        MUTANTS, "mutants of the shipped policies that a test detects", "%", at_least=95.0
    ),
}


def figures(measured: Rounds) -> dict[str, float]:
    """All figures that are calculated from rounds."""
    return figures_of_names(measured) | figures_of_whole(measured) | figures_of_scoring(measured)


def figures_of_names(measured: Rounds) -> dict[str, float]:
    figures: dict[str, float] = {}
    for verb in (FILTER, PRIORITIZE):
        series, nothing = measured[verb], measured[NOTHING + verb]
        for field in ("p50_ms", "p99_ms"):
            figures[f"{verb}_names_5000_{field}"] = alternating_rounds.median(series, field)
            figures[f"nothing_{verb}_5000_{field}"] = alternating_rounds.median(nothing, field)
        figures[f"{verb}_names_5000_ratio"] = alternating_rounds.ratio(series, nothing, "p50_ms")
    refresh, nothing = measured[REFRESH], measured[NOTHING + REFRESH]
    for field in ("p50", "p99"):
        figures[f"filter_names_5000_{field}_refresh_ms"] = alternating_rounds.median(refresh, f"{field}_ms")
    figures["filter_names_5000_max_refresh_ms"] = alternating_rounds.of_rounds(
        (each["max_ms"] for each in refresh), 3, max
    )
    figures["filter_names_5000_refresh_ratio"] = alternating_rounds.ratio(refresh, nothing, "p99_ms")
    return figures


def figures_of_whole(measured: Rounds) -> dict[str, float]:
    figures: dict[str, float] = {}
    for verb in (FILTER, PRIORITIZE):
        series, nothing = measured[WHOLE + verb], measured[NOTHING + WHOLE + verb]
        figures[f"{verb}_full_5000_p50_ms"] = alternating_rounds.median(series, "p50_ms")
        figures[f"{verb}_full_5000_ratio"] = alternating_rounds.ratio(series, nothing, "p50_ms")
    return figures


def figures_of_scoring(measured: Rounds) -> dict[str, float]:
    figures = {
        f"score_{agent}_names_5000_{field}": alternating_rounds.median(measured[SCORED + agent], field)
        for agent in SCORING_AGENTS
        for field in ("p50_ms", "p99_ms")
    }
    figures["score_load_names_5000_safe_ratio"] = alternating_rounds.ratio(
        measured[f"{SCORED}load"], measured[f"{SCORED}safe"], "p50_ms"
    )
    return figures


def where(measured: Measurement, others_share: float) -> dict[str, Any]:
    """Date, machine and versions of a measurement."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine() | {"others_share": round(others_share, 2)},
        "versions": versions() | dict(measured.programs),
    } | ({"client": measured.client} if measured.client else {})


def merged(known: Results, part: str, measured: Measurement, place: Mapping[str, Any]) -> Results:
    """Update one part of results.json; the others keep their values and places.

    The place of the part `names` is also at the top level. `spread` has the smallest and largest value of the rounds
    of each figure with rounds.
    """
    values = known | dict(measured.figures) | dict(measured.more) | (dict(place) if part == NAMES else {})
    spreads = {
        key: spread for key, spread in known.get("spread", {}).items() if key not in measured.figures
    } | {key: list(value.spread) for key, value in measured.figures.items() if isinstance(value, RoundFigure)}
    parts = known.get("parts", {}) | {part: dict(place)}
    rounds_ = known.get("rounds", {}) | measured.rounds
    heads = [key for key in ("date", "machine", "versions", "client") if key in values]
    own = {key: values[key] for key in (*heads, *FIGURES) if key in values}
    rest = {key: value for key, value in values.items() if key not in own}
    return (
        own
        | {"spread": {key: spreads[key] for key in FIGURES if key in spreads}}
        | {key: value for key, value in rest.items() if key != "spread"}
        | {"parts": {name: parts[name] for name in PARTS if name in parts}, "rounds": rounds_}
    )


def machine() -> dict[str, Any]:
    """This machine."""
    return {"cpu": _cpu(), "cores": os.cpu_count(), "kernel": f"{platform.system()} {platform.release()}"}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def versions() -> dict[str, str]:
    """Versions of the measured programs."""
    versions = {"python": platform.python_version(), "openssl": ssl.OPENSSL_VERSION}
    return versions | {name: metadata.version(name) for name in PROGRAMS}


class MachineLoad:
    """CPU time of this benchmark and of other programs from now on."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of all cores: busy, idle, and busy for this process and its ended children."""
        ours = os.times()
        with Path("/proc/stat").open() as lines:
            user, nice, system, idle, waiting, *rest = (
                float(field) for field in lines.readline().split()[1:9]
            )
        per_s = os.sysconf("SC_CLK_TCK")
        busy = (user + nice + system + sum(rest)) / per_s
        return busy, (idle + waiting) / per_s, sum(ours[:4])

    def others_share(self) -> float:
        """The share of the machine that other programs used. More than a twentieth invalidates the figures."""
        busy, idle, ours = (now - before for now, before in zip(self._now(), self._before, strict=True))
        return max(busy - ours, 0.0) / (busy + idle)


def read() -> Results:
    """The results of the last run that wrote them."""
    stored: Results = json.loads(PATH.read_text())
    return stored


def write(results: Results) -> None:
    PATH.write_text(json.dumps(results, indent=2) + "\n")
