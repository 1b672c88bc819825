"""Native mode in `bench.cluster`: bind rates with node labels instead of an extender.

`nodewise controller` runs with its default options: it fetches metrics every 5 s, and writes 50 to 250 labels per
second.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

import httpx2
from tests.cluster import (
    api_client,
    child_processes,
    controlplane,
    extender_process,
    fake_custom_metrics_server,
    kubernetes_objects,
    namespace_sandboxes,
    native_mode,
    program_cache,
)
from tests.cluster.api_client import ClusterApi, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import policy

from bench import benchmark_servers, etcd_population, scheduler_bind_rounds
from bench.compared_extenders import NEVER, NONE
from bench.generated_cluster_objects import ERRORS, HALF_LABEL, POWER, TEMPERATURE
from bench.progress_lines import report_progress_line
from bench.scheduler_bind_rounds import BindBench, BindSummary, BindWatch, Rounds

SELECTOR, NATIVE, ADMITTING = "node selector", "native mode", "native mode, no node rejected"
DEFAULT_ORDER: Final = (NONE, NATIVE)
RAISED_ORDER: Final = (NONE, SELECTOR, NATIVE, ADMITTING)
PERIOD_S: Final = 5.0
"""The controller's default."""
CHANGING_NODES: Final = 250
"""Nodes of which a label changes in every period: 50 labels a second."""
FLAPPING: Final = "node_flapping"
WEB: Final = {"app": "web"}
WAITING: Final = {"app": "waiting"}
HALF_RULES: Final = ({"metric": TEMPERATURE, "above": 80}, {"metric": ERRORS, "above": 0})
"""They reject half of the nodes."""
NONE_RULE: Final = {"metric": POWER, "above": 0}
"""It rejects all nodes."""
_DEADLINE_S: Final = 120.0
UNLIMITED: Final = ("--kube-qps=5000", "--kube-burst=5000")
"""Labels are written as fast as the API server permits."""


class NativeCluster(NamedTuple):
    """A cluster in native mode."""

    bench: BindBench
    sandbox: Sandbox
    """The namespace of the measured pods, whose policy rejects half of the nodes."""
    admitting: Sandbox
    """The namespace of measured pods whose policy rejects no node."""
    waiting: Sandbox
    """The namespace of the waiting pods, whose policy rejects all nodes. The labels of another policy change."""
    account: User


class RunningController:
    """A running `nodewise controller`."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def metrics(self) -> dict[str, float]:
        """The values of its metrics; empty if it does not serve yet."""
        lines = [line for line in self.process.log.read_text().splitlines() if line.startswith("{")]
        started = next((event for event in map(json.loads, lines) if event["event"] == "started"), None)
        if started is None:
            return {}
        try:
            text = httpx2.get(f"{started['health']}/metrics", timeout=30.0).text
        except httpx2.TransportError:
            return {}
        pairs = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def label_writes(self) -> float:
        return self.metrics().get("nodewise_label_writes_total", 0.0)

    def wait_settled(self, *wanted: str) -> None:
        """Wait until it leads, has values of these metrics, and no label is left to be written."""
        wanted = wanted or (TEMPERATURE, ERRORS, POWER, FLAPPING)

        def is_settled() -> bool | None:
            values = self.metrics()
            fetched = all(f'nodewise_metric_age_seconds{{metric="{metric}"}}' in values for metric in wanted)
            return (fetched and values.get("nodewise_native_nodes_to_label") == 0) or None

        wait("all labels are written", is_settled, _DEADLINE_S, self.metrics)


@contextlib.contextmanager
def cluster_of_equal_nodes(
    folder: Path, names: Sequence[str], metric: str
) -> Iterator[tuple[ControlPlane, Sandbox, FakeCustomMetricsApi, User]]:
    """A control plane with native mode, a namespace, nodes whose metric is 10, and the controller's account."""
    report_progress_line("starting a control plane with native mode")
    with (
        controlplane.running(program_cache.folder(), folder) as plane,
        namespace_sandboxes.created(plane) as sandbox,
        fake_custom_metrics_server.behind(sandbox, folder, ("v1beta2",)) as metrics,
    ):
        etcd_population.fill(plane.etcd, etcd_population.nodes(names), lambda _: None)
        metrics.set(metric, dict.fromkeys(names, 10))
        yield plane, sandbox, metrics, native_mode.install_with_account(plane)


@contextlib.contextmanager
def controller(
    account: User, folder: Path, *more: str, program: Path = extender_process.NODEWISE
) -> Iterator[RunningController]:
    """Run the controller with its default options."""
    words = [program, "controller", "--native-mode", "--log-format=json"]
    words += [f"--kubeconfig={account.kubeconfig}", f"--namespace={native_mode.NAMESPACE}", "--health-port=0"]
    with Process([*words, *more], folder / f"controller-{child_processes.number()}.log") as process:
        yield RunningController(process)


@contextlib.contextmanager
def prepared(bench: BindBench) -> Iterator[NativeCluster]:
    """Install native mode, create the policies, label all nodes, and remove everything after the block.

    The admission policies add a scheduling gate to the pods of each new policy, also to those of an extender, and only
    native mode removes it.
    """
    with (
        namespace_sandboxes.created(bench.plane) as sandbox,
        namespace_sandboxes.created(bench.plane) as admitting,
        namespace_sandboxes.created(bench.plane) as waiting,
    ):
        account = native_mode.install_with_account(bench.plane)
        bench.metrics.set(FLAPPING, dict.fromkeys(bench.names[:CHANGING_NODES], 0))
        policies = [
            put_policy(sandbox, "half", WEB, *HALF_RULES),
            put_policy(admitting, "all", WEB, {"metric": TEMPERATURE, "above": NEVER}),
            put_policy(waiting, "none", WAITING, NONE_RULE),
            put_policy(waiting, "flapping", {"app": "absent"}, {"metric": FLAPPING, "above": 50}),
        ]
        cluster = NativeCluster(bench, sandbox, admitting, waiting, account)
        label_nodes(cluster, policies)
        yield cluster
        uninstall(bench, account)


def uninstall(bench: BindBench, account: User) -> None:
    """Delete all policies, their labels and the admission policies, in the order of docs/native.md."""
    report_progress_line("uninstalling native mode")
    api = bench.plane.api
    policies = api.get("/apis/nodewise.io/v1alpha1/placementpolicies")["items"]
    for policy_object in policies:
        api.delete(api_client.path_of(policy_object))
    with controller(account, bench.folder, *UNLIMITED):
        for policy_object in policies:
            key = native_mode.LABEL_PREFIX + policy_object["metadata"]["uid"]
            wait(
                f"no node has the label {key}",
                functools.partial(_is_unused, api, key),
                _DEADLINE_S,
            )
    native_mode.uninstall(api)


def _is_unused(api: ClusterApi, key: str) -> bool | None:
    return not api.get("/api/v1/nodes", labelSelector=key, limit="1")["items"] or None


def label_nodes(cluster: NativeCluster, policies: Sequence[str]) -> None:
    """Label all nodes for these policies, given by path, as fast as the API server permits."""
    report_progress_line("labelling the nodes")
    with controller(cluster.account, cluster.bench.folder, *UNLIMITED) as running:
        wait_active(cluster.bench.plane.api, policies)
        running.wait_settled()


def put_policy(sandbox: Sandbox, name: str, selector: Mapping[str, str], *avoid: Object) -> str:
    """Create a policy for pods with these labels, and return its path."""
    spec = {"podSelector": {"matchLabels": dict(selector)}, "avoid": list(avoid)}
    return api_client.path_of(sandbox.put(policy(spec, name=name)))


def wait_active(api: ClusterApi, policies: Sequence[str]) -> None:
    """Wait until all nodes have the labels of these policies."""
    for path in policies:
        wait(
            f"{path} is active",
            functools.partial(_is_active, api, path),
            _DEADLINE_S,
            functools.partial(api.get, path),
        )


def _is_active(api: ClusterApi, path: str) -> bool | None:
    return api.get(path).get("status", {}).get("active") or None


def bind_round(cluster: NativeCluster, name: str) -> BindSummary:
    """Measure one round. RuntimeError if a pod is on a node that the policy rejects."""
    new_scheduler = scheduler_bind_rounds.new_scheduler(cluster.bench, {})
    if name == NONE:
        return scheduler_bind_rounds.summary(bind(cluster, kubernetes_objects.pod, new_scheduler))
    if name == SELECTOR:
        return half_summary(cluster, bind(cluster, pod_with_selector, new_scheduler))
    with controller(cluster.account, cluster.bench.folder) as running:
        running.wait_settled()
        before_s = benchmark_servers.cpu_s(running.process)
        if name == NATIVE:
            bound = half_summary(cluster, bind(cluster, pod_with_policy, new_scheduler))
        else:
            bound = scheduler_bind_rounds.summary(
                scheduler_bind_rounds.bind_pods(
                    cluster.admitting, cluster.bench.pods, pod_with_policy, new_scheduler
                )
            )
        controller_ms = 1000 * (benchmark_servers.cpu_s(running.process) - before_s) / cluster.bench.pods
        return bound._replace(controller_ms=round(controller_ms, 2))


def bind(
    cluster: NativeCluster, pod: Callable[[str], Object], scheduler: AbstractContextManager[Process]
) -> BindWatch:
    return scheduler_bind_rounds.bind_pods(cluster.sandbox, cluster.bench.pods, pod, scheduler)


def half_summary(cluster: NativeCluster, watch: BindWatch) -> BindSummary:
    """The summary of a round in which half of the nodes are rejected. RuntimeError if a pod is on one of these."""
    if wrong := scheduler_bind_rounds.count_rejected_nodes(watch, cluster.bench.names):
        raise RuntimeError(f"{wrong} pods are on nodes that the policy rejects")
    return scheduler_bind_rounds.summary(watch)


def pod_with_policy(name: str) -> Object:
    return kubernetes_objects.pod(name, labels=WEB)


def pod_with_selector(name: str) -> Object:
    """A pod with a node selector that the same half of the nodes meets."""
    pod = kubernetes_objects.pod(name)
    pod["spec"]["nodeSelector"] = {HALF_LABEL: "accepted"}
    return pod


def figures(rounds: Rounds, nodes: int) -> dict[str, float]:
    """Figures of rounds with kube-scheduler's default client limits."""
    return {
        "native_bind_rate_none": scheduler_bind_rounds.median_rate(rounds, NONE),
        f"native_bind_rate_{nodes}": scheduler_bind_rounds.median_rate(rounds, NATIVE),
        f"native_bind_ratio_none_{nodes}": scheduler_bind_rounds.median_ratio(rounds, NATIVE, NONE),
        "native_cpu_none_ms": scheduler_bind_rounds.median_cpu_ms(rounds, NONE),
        f"native_cpu_{nodes}_ms": scheduler_bind_rounds.median_cpu_ms(rounds, NATIVE),
    }


def raised_figures(rounds: Rounds, nodes: int) -> dict[str, float]:
    """Figures of rounds with raised client limits: the processor limits the rate."""
    rate = functools.partial(scheduler_bind_rounds.median_rate, rounds)
    ratio = functools.partial(scheduler_bind_rounds.median_ratio, rounds)
    cpu_ms = functools.partial(scheduler_bind_rounds.median_cpu_ms, rounds)
    return {
        "native_raised_bind_rate_none": rate(NONE),
        f"native_raised_bind_rate_{nodes}": rate(NATIVE),
        f"native_raised_bind_ratio_none_{nodes}": ratio(NATIVE, NONE),
        f"native_raised_bind_ratio_selector_{nodes}": ratio(NATIVE, SELECTOR),
        f"native_raised_bind_ratio_admitting_{nodes}": ratio(ADMITTING, NONE),
        "native_raised_cpu_none_ms": cpu_ms(NONE),
        f"native_raised_cpu_selector_{nodes}_ms": cpu_ms(SELECTOR),
        f"native_raised_cpu_{nodes}_ms": cpu_ms(NATIVE),
        f"native_raised_cpu_admitting_{nodes}_ms": cpu_ms(ADMITTING),
    }
