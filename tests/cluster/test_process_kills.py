"""SIGKILL at random moments for every program of the pipeline: etcd, kube-apiserver, Prometheus, adapter, nodewise.

The test checks the following, with a period (`--sync-period`) of 10 s and default settings otherwise:

- While programs are killed and restarted, every response of nodewise follows from one consistent set of values, which
  is not older than the values from before the storm, or reports missing values. The same holds for the labels of each
  node. A call gets no response only between a kill of nodewise and its next response.
- Within two periods after the storm, labels and decisions follow from the newest values. The periods begin when every
  program passes its health check and the new values can be read from the custom metrics API through the API server.
  The scrape interval and the adapter delay values before that and are independent of nodewise. The first period is
  the longest time until the next refresh. The second contains a tenth of a period until the leader checks, and 2.5 s
  to write 100 nodes (50 at once, then 20 per second).
- Policies, nodes and foreign fields of nodes are not lost. nodewise does not end by itself, is the leader, and logs
  no traceback and not too many lines.

`TESTS_FAULTS_SEED` selects other random storms, `TESTS_FAULTS` sets the number of faults.
"""

import contextlib
import os
import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests import plain_http, short_and_long_case_counts
from tests.cluster import (
    child_processes,
    controlplane,
    debian_packages,
    extender_process,
    kubernetes_objects,
    metric_history,
    metrics_pipeline,
    process_kills,
    prometheus_and_exporters,
)
from tests.cluster.api_client import ApiError, ClusterApi, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.metric_history import BUSY, HOT, POLICY, MetricHistory
from tests.cluster.metrics_pipeline import PrometheusAdapter
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.process_kills import (
    NAMESPACE,
    DecisionChecker,
    LabelPoller,
    ProcessKiller,
    RepeatingThread,
    SupervisedProcess,
)
from tests.cluster.prometheus_and_exporters import Monitoring
from tests.filter_responses import rejected_nodes

NODES = tuple(f"n{number:03}" for number in range(100))
FOREIGN = {"rack": "7", "owner.example.com/team": "blue"}
FAULTS = int(os.environ.get("TESTS_FAULTS", short_and_long_case_counts.of("12", "100")))
SEED = int(os.environ.get("TESTS_FAULTS_SEED", "20261121"))
KILLS = 6
"""Number of faults in a storm, after which everything must recover."""
STORM_S = 5.0
PERIOD_S = 10.0
CROSSING = 50
"""Maximum number of nodes that cross a threshold with one change. A storm has two changes."""
METRICS = f"/apis/{metrics_pipeline.GROUP}/v1beta2/nodes/*"
POLICIES = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{NAMESPACE}/taspolicies"
EXPORTER = "all"
"""One exporter has the series of all nodes, so that a scrape reads consistent values."""
JOB = {**prometheus_and_exporters.JOB, "honor_labels": True}
MAX_AGE_S = 60.0
"""The default maximum age of values. Older values are not used."""
MOST_WARNINGS = 40
"""Maximum average number of log lines above level info per storm."""


class KillTestCluster:
    """The running programs, the current metric values, and the threads that check decisions and labels."""

    def __init__(
        self, plane: ControlPlane, scraping: Monitoring, adapter: PrometheusAdapter, nodewise: ExtenderProcess
    ) -> None:
        self._api = plane.api
        self._data = plane.folder / "etcd"
        self._scraping = scraping
        self._served = nodewise
        self._chance = random.Random(SEED)
        self._late = 0
        self.took_s: list[float] = []
        self.history = MetricHistory(metric_history.initial_values(NODES, self._chance))
        self.parts = _parts(plane, scraping, adapter, nodewise)
        self.storm = ProcessKiller(self.parts, self._chance)
        self.caller = DecisionChecker(nodewise.url, self._client(), self.history, self.parts[-1])
        context = plane.authority.client_context(plane.admin.pair)
        looking = httpx2.Client(base_url=plane.url, verify=context, timeout=60, trust_env=False)
        self.labels = LabelPoller(looking, self.history, FOREIGN)
        self._probe = DecisionChecker(nodewise.url, self._client(), self.history, self.parts[-1])
        self._expose()

    def _client(self) -> httpx2.Client:
        certificates = self._served.certificates
        context = certificates.authority.client_context(certificates.client)
        return httpx2.Client(verify=context, timeout=60, trust_env=False)

    def change(self) -> None:
        """Changes the metric values."""
        truth = self.history.newest.changed(self._chance, CROSSING)
        self.history.add(truth)
        self._expose()
        self.storm.note(f"truth {len(self.history.truths) - 1}")

    def _expose(self) -> None:
        folder = self._scraping.exporter(EXPORTER).folder
        part = folder / "truth.part"
        part.write_text(self.history.newest.exposition())
        part.rename(folder / "truth.prom")

    def recover(self) -> None:
        """Checks that everything is correct within two periods after the newest values can be read."""
        wait("the newest truth can be read", self._is_readable, 120, self.storm.diary_tail)
        began_s = time.monotonic()
        self._hand_in()
        self.storm.note("readable")
        while amiss := self._amiss():
            took_s = time.monotonic() - began_s
            assert took_s <= 2 * PERIOD_S, f"after {took_s:.1f} s {amiss}\n{self.status_text()}"
            time.sleep(0.1)
        self.took_s.append(time.monotonic() - began_s)
        self.storm.note(f"right after {self.took_s[-1]:.1f} s")
        self.history.settled()
        assert self.wrong() == [], self.status_text()

    def wrong(self) -> list[str]:
        """Wrong responses and labels that the threads have found so far."""
        return [*self.caller.wrong, *self.labels.wrong][:10]

    def status_text(self) -> str:
        """A report for error messages: wrong results, the end of the diary, and nodewise's log and metrics."""
        shown = []
        with contextlib.suppress(httpx2.TransportError):
            shown = plain_http.get(f"{self._served.health}/metrics").text.splitlines()
        kube = [line for line in shown if line.startswith("nodewise_kube")]
        return "\n".join([*self.wrong(), self.storm.diary_tail(), self.parts[-1].process.tail(40), *kube])

    def _is_readable(self) -> bool | None:
        truth = self.history.newest
        try:
            self._api.get(POLICIES)
            values = {name: self._measured(name) for name in ("heat", "load")}
        except (ApiError, httpx2.TransportError):
            return None
        return values == {"heat": truth.heat, "load": truth.load} or None

    def _measured(self, metric: str) -> dict[str, int]:
        items = self._api.get(f"{METRICS}/{metric}")["items"]
        return {item["describedObject"]["name"]: int(item["value"]) for item in items}

    def _hand_in(self) -> None:
        """Creates a policy and deletes another one, which nodewise learns only if it watches again."""
        self._late += 1
        self._api.create(policy(f"late-{self._late}", dontschedule=[TOO_HOT]))
        self._api.delete(f"{POLICIES}/late-{self._late - 1}")

    def _amiss(self) -> str:
        """A description of what is still wrong; empty if everything is correct."""
        truth = self.history.newest
        labels = {
            node: process_kills.split(node_labels)[0] for node, node_labels in self.labels.read().items()
        }
        wanted = {node: truth.labels(node) for node in NODES}
        if labels != wanted:
            unlike = [node for node in NODES if labels.get(node) != wanted[node]]
            return f"labels of {len(unlike)} nodes are not right: {unlike[:5]}"
        try:
            return self._misjudged()
        except httpx2.TransportError as error:
            return f"no answer: {error!r}"

    def _misjudged(self) -> str:
        truth = self.history.newest
        for name in (POLICY, f"late-{self._late}"):
            if not self.is_judged(name):
                return f"policy {name} is not judged by the newest truth"
        if process_kills.scores(self._probe.ask("prioritize")) != truth.scores():
            return "scores are not those of the newest truth"
        gone = rejected_nodes(self._probe.ask("filter", f"late-{self._late - 1}").json())
        return "" if "does not exist" in str(gone) else "a policy that went is still known"

    def back_up(self) -> Path:
        """Copies the data of etcd."""
        copy = self._data.with_name("backup")
        self.parts[0].kill(0.0)
        shutil.copytree(self._data, copy)
        self.storm.wait_live()
        return copy

    def put_back(self, copy: Path) -> None:
        """Restores the data of etcd, whose revisions continue from there, and restarts the API server."""
        for part in self.parts[:2]:
            part.kill(0.0)
        shutil.rmtree(self._data)
        copy.rename(self._data)
        self.storm.note("etcd was put back")
        self.labels.forget()
        self.storm.wait_live()

    @property
    def newest_policy(self) -> str:
        """The name of the policy that was created last."""
        return f"late-{self._late}"

    def is_judged(self, name: str) -> bool:
        """Whether nodewise decides by a policy of this name and by the newest values."""
        return process_kills.failed(self._probe.ask("filter", name)) == self.history.newest.rejected()

    def check_end(self) -> None:
        """Checks that nothing is lost, and checks the log."""
        kept = {item["metadata"]["name"] for item in self._api.get(POLICIES)["items"]}
        assert kept == {POLICY, f"late-{self._late}"}
        assert self.labels.read().keys() == set(NODES)
        assert self.parts[-1].collapses == 0, "nodewise ended by itself"
        assert self.caller.oldest_s < MAX_AGE_S + 2 * PERIOD_S
        wait(
            "the policy's status is right",
            self._is_status_current,
            60,
            lambda: self._api.get(f"{POLICIES}/{POLICY}"),
        )
        self._check_log()

    def _is_status_current(self) -> bool | None:
        status = self._api.get(f"{POLICIES}/{POLICY}")["status"]
        well = {condition["type"]: condition["status"] for condition in status["conditions"]}
        count = len(self.history.newest.labelled())
        return (well["MetricsFetched"] == "True" and status["violatingNodes"] == count) or None

    def _check_log(self) -> None:
        """Checks the log: no traceback, not too many lines, and each error logged once."""
        assert "Traceback" not in self.parts[-1].process.log.read_text()
        loud = self._loud()
        assert loud.total() <= MOST_WARNINGS * len(self.took_s), loud.most_common()
        known: dict[str, str] = {}
        for line in self._served.events():
            if line["event"] == "started":
                known = {}
            if line["event"].startswith(("kube_", "metric_")):
                message = f"{line['event']} {line.get('error')}"
                about = line.get("kind") or line.get("metric") or ""
                assert known.get(about) != message, f"told twice: {line}"
                known[about] = message

    def _loud(self) -> Counter[str]:
        return Counter(event["event"] for event in self._served.events() if event["level"] != "info")

    def report(self) -> str:
        """A summary of the run in numbers."""
        killed = Counter(line.split()[3] for line in self.storm.diary if " fault " in line)
        took = f"{statistics.median(self.took_s):.1f} s in the median, {max(self.took_s):.1f} s at most"
        caller = self.caller
        return "\n".join(
            [
                f"seed {SEED}: {self.storm.faults} faults, {dict(killed)}",
                f"right after {took}; {len(self.history.truths)} truths",
                f"{caller.answers} answers, {caller.refusals} refusals, {caller.unanswered} calls without an answer",
                f"the most outdated answer was so by {caller.oldest_s:.1f} s",
                f"{self.labels.looks} looks at all labels",
                f"log: {dict(self._loud())}",
            ]
        )


TOO_HOT: Object = {"metricname": "heat", "operator": "GreaterThan", "target": HOT}
SURGE: Object = {
    "metricname": "load",
    "operator": "GreaterThan",
    "target": BUSY,
    "labels": ["surge=yes"],
}
IDLEST: Object = {"metricname": "load", "operator": "LessThan"}


def policy(name: str, **strategies: list[Object]) -> Object:
    """A TASPolicy in the test's namespace."""
    rules_by_strategy = {strategy: {"rules": rules} for strategy, rules in strategies.items()}
    return extender_process.tas_policy(name, rules_by_strategy, NAMESPACE)


def _parts(
    plane: ControlPlane, scraping: Monitoring, adapter: PrometheusAdapter, nodewise: ExtenderProcess
) -> tuple[SupervisedProcess, ...]:
    """The programs that are killed; nodewise is the last."""
    etcd, api_server = plane.processes[:2]
    probe = ClusterApi(
        f"https://localhost:{adapter.backend.port}", adapter.backend.authority.client_context()
    )
    asking = plane.api.answers
    [client_url] = [argument for argument in etcd.command if argument.startswith("--listen-client-urls=")]
    return (
        SupervisedProcess("etcd", etcd, lambda: asking(f"{client_url.partition('=')[2]}/health")),
        SupervisedProcess("kube-apiserver", api_server, lambda: asking("/readyz")),
        SupervisedProcess(
            "prometheus", scraping.prometheus.process, lambda: asking(f"{scraping.url}/-/ready")
        ),
        SupervisedProcess("prometheus-adapter", adapter.process, lambda: probe.answers("/healthz")),
        SupervisedProcess("nodewise", nodewise.process, lambda: asking(f"{nodewise.health}/healthz")),
    )


@pytest.fixture(scope="module")
def scene(
    control_plane_programs: Path,
    prometheus_programs: debian_packages.PrometheusPrograms,
    adapter_program: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[KillTestCluster]:
    tmp_path = tmp_path_factory.mktemp("faults")
    with contextlib.ExitStack() as stack:
        plane = stack.enter_context(controlplane.running(control_plane_programs, tmp_path))
        scraping = stack.enter_context(
            prometheus_and_exporters.running(prometheus_programs, tmp_path / "monitoring", [EXPORTER], [JOB])
        )
        adapter = stack.enter_context(metrics_pipeline.running_adapter(plane, adapter_program, scraping.url))
        _populate(plane, adapter)
        ports = [f"--port={child_processes.free_port()}", f"--health-port={child_processes.free_port()}"]
        own = [f"--sync-period={PERIOD_S:g}s", "--identity=nodewise-0"]
        nodewise = stack.enter_context(extender_process.extender(plane, tmp_path, *ports, *own))
        made = KillTestCluster(plane, scraping, adapter, nodewise)
        stack.enter_context(process_kills.stop_restarted(made.parts))
        made.recover()
        for looker in (RepeatingThread(made.caller.look, 0.05), RepeatingThread(made.labels.look, 0.3)):
            stack.callback(looker.end)
        yield made


def _populate(plane: ControlPlane, adapter: PrometheusAdapter) -> None:
    """Creates the nodes, the policy, and the custom metrics API."""
    api = plane.api
    extender_process.define(api)
    for name in (NAMESPACE, adapter.backend.namespace):
        api.create(kubernetes_objects.namespace(name, trusted=name == NAMESPACE))
    for name in NODES:
        api.create(kubernetes_objects.node(name, labels=FOREIGN))
    api.create(adapter.backend.service())
    for version in metrics_pipeline.APIS[metrics_pipeline.GROUP]:
        api.create(adapter.backend.api_service(metrics_pipeline.GROUP, version))
    strategies = {
        "dontschedule": [TOO_HOT],
        "deschedule": [TOO_HOT],
        "labeling": [SURGE],
        "scheduleonmetric": [IDLEST],
    }
    api.create(policy(POLICY, **strategies))


def test_a_hundred_kills_at_random_moments_lose_nothing(scene: KillTestCluster) -> None:
    for begun in range(0, FAULTS, KILLS):
        scene.storm.kill(min(KILLS, FAULTS - begun), STORM_S, [scene.change, scene.change])
        scene.storm.wait_live()
        scene.recover()
    scene.check_end()
    print(scene.report())


def test_an_etcd_that_was_put_back_is_followed(scene: KillTestCluster) -> None:
    """A watch from a revision that the API server has not reached yet sends no events until it reaches it. A client
    that only waits would use outdated objects until as many changes have been made again.
    """
    kept = scene.newest_policy
    copy = scene.back_up()
    for _ in range(3):
        scene.change()
        scene.recover()
    scene.change()
    scene.put_back(copy)
    scene.recover()
    assert scene.is_judged(kept), "a policy that was deleted since is there again"


def test_more_changes_than_the_rate_allows_are_a_backlog_that_falls(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    names = [f"m{number:03}" for number in range(250)]
    sandbox.nodes(*(kubernetes_objects.node(name) for name in names))
    metrics.set("heat", dict.fromkeys(names, 10))
    extender_process.policy(sandbox, deschedule=[TOO_HOT])
    with extender_process.extender(plane, tmp_path, "--kube-qps=20", "--kube-burst=20") as running:
        running.wait_leading()
        wait("the metric is known", lambda: running.fetched("heat") or None)
        metrics.set("heat", dict.fromkeys(names, 90))
        seen: list[float] = []

        def written() -> bool | None:
            seen.append(_gauge(running, "nodewise_nodes_to_label"))
            return (max(seen) > 0 and seen[-1] == 0) or None

        wait("all labels are written", written, 60, lambda: seen)
        assert max(seen) > 100
        assert len({*seen}) > 5, f"the backlog falls as labels are written: {seen}"
        assert {name for name in names if _is_violating(sandbox, name)} == set(names)


def _gauge(running: ExtenderProcess, name: str) -> float:
    lines = plain_http.get(f"{running.health}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def _is_violating(sandbox: Sandbox, node: str) -> bool:
    return sandbox.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"].get("pol") == "violating"
