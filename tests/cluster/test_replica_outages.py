"""Replicas that are stopped or killed, and an API server that is unavailable, under a real kube-scheduler.

An extender cannot change the behavior of kube-scheduler and its Go client: a call is sent once, and a call without a
response fails the scheduling attempt. The pod is retried after its back-off, which is one to ten seconds. Therefore:

- No call fails when a replica is terminated (SIGTERM): it becomes unready, continues to serve, and closes each
  connection after a response.
- When a replica is killed (SIGKILL), calls in progress and calls sent to it before the Service removed it are lost.
  Calls to other replicas are not affected, and no pod is lost.
- kube-scheduler never calls nodewise for pods without a policy, whatever the state of nodewise.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import plain_http, short_and_long_case_counts
from tests.cluster import (
    controlplane,
    debian_packages,
    extender_process,
    fake_custom_metrics_server,
    kubernetes_objects,
    load_balancer,
    namespace_sandboxes,
    prometheus_and_exporters,
    scheduler_calls,
)
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import CertificateFiles, ExtenderProcess, small_pod
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.load_balancer import BalancedEndpoint, LoadBalancer
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.scheduler_calls import FailedCall, PodStream, SchedulerCaller

HOT = {"metricname": "heat", "operator": "GreaterThan", "target": 80}
BUSY = {"metricname": "load", "operator": "GreaterThan", "target": 5, "query": "node_load"}
CALLERS = 6
LEASE_S = 5 + 2.2
"""Seconds after which the Lease of a dead leader changes: it lasts 5 s and is checked at least every 2.2 s."""
SLACK_S = 60
"""Additional seconds for a loaded machine."""
POD_SCHEDULER = {"clientConnection": {"qps": 5000, "burst": 5000}}


def plain(name: str) -> Object:
    return kubernetes_objects.pod(name, cpu="1m", memory="1Mi")


def roomy(name: str) -> Object:
    return kubernetes_objects.node(name, cpu="10000", memory="100Ti", pods=100_000)


def filtered_names(callers: Sequence[scheduler_calls.SchedulerCaller]) -> set[str]:
    """The different lists of node names in the newest responses."""
    return {str(caller.answers["filter"]["NodeNames"]) for caller in callers}


def filter_request(namespace: str, policy: str, *nodes: str) -> Object:
    metadata = {"name": "probe", "namespace": namespace, "labels": {"telemetry-policy": policy}}
    return {"Pod": {"metadata": metadata}, "NodeNames": list(nodes)}


class TelemetryReplicas:
    """Replicas of nodewise behind one Service."""

    def __init__(self, plane: ControlPlane, folder: Path, service: LoadBalancer) -> None:
        extender_process.define(plane.api)
        self.service = service
        self.certificates = CertificateFiles(folder)
        self.running: list[ExtenderProcess] = []
        self._plane = plane
        self._folder = folder
        self._user: User = extender_process.user(plane)
        self._stack = contextlib.ExitStack()

    def start(self) -> ExtenderProcess:
        """Starts a replica and waits until the Service forwards connections to it."""
        replica = self._stack.enter_context(
            extender_process.extender(
                self._plane,
                self._folder,
                "--shutdown-delay=2s",
                certificates=self.certificates,
                by=self._user,
            )
        )
        self.running.append(replica)
        self._publish()
        wait("the Service has it", lambda: endpoint(replica) in self.service.ready or None)
        return replica

    def gone(self, replica: ExtenderProcess) -> None:
        """Removes a replica from the Service."""
        self.running.remove(replica)
        self._publish()

    def leader(self) -> ExtenderProcess:
        """Waits for a leader and returns it."""
        return wait("a replica leads", lambda: next(filter(leads, self.running), None), LEASE_S + SLACK_S)

    def caller(self, body: Object) -> SchedulerCaller:
        return SchedulerCaller(
            self.service.url, self.certificates.authority.client_context(self.certificates.client), body
        )

    def entry(self) -> Object:
        """The entry that `docs/scheduler.md` recommends, with the Service's URL and a timeout for a loaded machine."""
        url = f"{self.service.url}/scheduler"
        return self.running[0].entry(urlPrefix=url, httpTimeout="30s")

    def stop(self) -> None:
        self._stack.close()

    def _publish(self) -> None:
        self.service.set_endpoints(*map(endpoint, self.running))


def endpoint(replica: ExtenderProcess) -> BalancedEndpoint:
    return BalancedEndpoint(replica.url, replica.health)


def leads(replica: ExtenderProcess) -> bool:
    names = [event["event"] for event in replica.events() if event["event"] in {"leading", "not_leading"}]
    return names[-1:] == ["leading"]


@pytest.fixture
def replicas(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> Iterator[TelemetryReplicas]:
    """Two replicas, three nodes of which `a` is hot, and a policy."""
    sandbox.nodes(*map(roomy, "abc"))
    metrics.set("heat", {"a": 90, "b": 10, "c": 10})
    extender_process.policy(sandbox, dontschedule=[HOT], deschedule=[HOT])
    with load_balancer.serving() as service:
        made = TelemetryReplicas(plane, tmp_path, service)
        try:
            made.start()
            made.start()
            yield made
        finally:
            made.stop()


def until_bound(pods: PodStream, more: int) -> None:
    """Waits until `more` additional pods are bound."""
    target = len(pods.bound_s) + more
    wait("pods are bound", lambda: len(pods.bound_s) >= target or None, 60, pods.status_text)


def until_all_bound(pods: PodStream) -> None:
    pods.end()
    wait("all pods are bound", lambda: not pods.unbound() or None, 60, lambda: pods.unbound()[:5])


def failures(sandbox: Sandbox) -> dict[str, str]:
    """The messages of failed scheduling attempts, by pod."""
    path = f"/api/v1/namespaces/{sandbox.namespace}/events"
    events = sandbox.api.get(path, fieldSelector="reason=FailedScheduling")["items"]
    return {event["involvedObject"]["name"]: event["message"] for event in events}


def test_a_rolling_update_fails_no_call_and_delays_no_pod(
    plane: ControlPlane, sandbox: Sandbox, replicas: TelemetryReplicas
) -> None:
    body = filter_request(sandbox.namespace, "pol", "a", "b", "c")
    with (
        plane.start_scheduler(POD_SCHEDULER | {"extenders": [replicas.entry()]}),
        scheduler_calls.continuous_calls(CALLERS, lambda: replicas.caller(body)) as callers,
        scheduler_calls.continuous_pods(sandbox, small_pod, "web", most_unbound=20, pause_s=0.02) as pods,
    ):
        until_bound(pods, 20)
        leader = replicas.leader()
        for old in (leader, next(replica for replica in replicas.running if replica is not leader)):
            replicas.start()
            os.kill(old.process.pid, signal.SIGTERM)
            until_bound(pods, 20)
            wait("the replica has ended", lambda replica=old: not replica.process.is_running or None)
            replicas.gone(old)
            until_bound(pods, 20)
            replicas.leader()
        wait("each caller has called often", lambda: all(caller.calls > 100 for caller in callers) or None)
        until_all_bound(pods)
    assert [failure for caller in callers for failure in caller.failed] == []
    assert failures(sandbox) == {}
    assert all(set(caller.answers["filter"]["NodeNames"]) == {"b", "c"} for caller in callers)


def test_a_leader_that_is_killed_takes_only_its_own_calls_with_it_and_is_followed(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    replicas: TelemetryReplicas,
    record_property: Any,
) -> None:
    leader = replicas.leader()
    body = filter_request(sandbox.namespace, "pol", "a", "b", "c")
    filtering = replicas.entry() | {"prioritizeVerb": ""}  # its failure would not fail the attempt
    replicas.service.only = endpoint(leader)  # kube-scheduler's connection is one of those that break
    with (
        plane.start_scheduler(POD_SCHEDULER | {"extenders": [filtering]}),
        scheduler_calls.continuous_pods(sandbox, small_pod, "web", most_unbound=20) as pods,
    ):
        until_bound(pods, 20)
        of_scheduler = set(replicas.service.taken)
        replicas.service.only = None
        with scheduler_calls.continuous_calls(CALLERS, lambda: replicas.caller(body)) as callers:
            until_bound(pods, 50)
            killed_s = time.monotonic()
            with stopped(leader.process):
                wait(
                    "kube-scheduler has a call in progress",
                    lambda: of_scheduler & replicas.service.unanswered or None,
                    show=pods.status_text,
                )
                leader.process.kill()
            dead = endpoint(leader)
            wait("the Service is updated", lambda: dead not in replicas.service.ready or None)
            known_s = time.monotonic()
            replicas.gone(leader)
            until_bound(pods, 50)
            follower = replicas.leader()
            followed_s = time.monotonic() - killed_s
            metrics.set("heat", {"a": 90, "b": 95, "c": 10})
            wait("the new leader labels", lambda: "pol" in labels(sandbox, "b") or None)
            # the other replica may fetch the metric up to one period later
            wait("all responses are new", lambda: filtered_names(callers) == {"['c']"} or None)
        until_all_bound(pods)
    lost = [failure for caller in callers for failure in caller.failed]
    assert [
        failure for failure in lost if not is_of(failure, dead, replicas.service, killed_s, known_s)
    ] == []
    assert filtered_names(callers) == {"['c']"}
    messages = failures(sandbox)
    assert messages, "kube-scheduler's own call was to break"
    assert all(replicas.service.url in text for text in messages.values()), messages
    waits = [pods.waits_s()[name] for name in messages]
    assert follower is replicas.running[0]
    figures = {
        "calls": sum(caller.calls for caller in callers),
        "calls lost": len(lost),
        "pods": len(pods.bound_s),
        "pods tried again": [round(wait_s, 2) for wait_s in waits],
        "followed after": round(followed_s, 1),
        "the Service knew after": round(known_s - killed_s, 2),
    }
    record_property("figures", figures)
    print(figures)


def is_of(
    failure: FailedCall, dead: BalancedEndpoint, service: LoadBalancer, begin_s: float, end_s: float
) -> bool:
    """Whether a failed call went to the dead replica before the Service removed it."""
    gone = not failure.port or service.taken.get(failure.port) == dead
    return gone and failure.at_s >= begin_s and failure.began_s <= end_s


def labels(sandbox: Sandbox, node: str) -> dict[str, str]:
    labels: dict[str, str] = sandbox.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return labels


@contextlib.contextmanager
def stopped(*processes: Process) -> Iterator[None]:
    """Stops processes with SIGSTOP: connections stay open, but nothing is answered."""
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            if process.is_running:
                os.kill(process.pid, signal.SIGCONT)


def bind_plain_pods(
    plane: ControlPlane,
    sandbox: Sandbox,
    extender: Object,
    name: str,
    first: Callable[[], None] = lambda: None,
) -> None:
    """Binds 200 plain pods, up to 40 at a time. `first` is called after the start of the scheduler."""
    with plane.start_scheduler(POD_SCHEDULER | {"extenders": [extender]}):
        first()
        with scheduler_calls.continuous_pods(sandbox, plain, name, most_unbound=40) as pods:
            until_bound(pods, 200)
            until_all_bound(pods)


def test_pods_without_a_policy_are_bound_without_a_call_while_all_replicas_stand_still(
    plane: ControlPlane, sandbox: Sandbox, replicas: TelemetryReplicas
) -> None:
    waiting = [f"waits-{number}" for number in range(10)]

    def policy_pods() -> None:
        sandbox.pods(*map(small_pod, waiting))
        for name in waiting:
            sandbox.expect_event(name)

    with stopped(*(replica.process for replica in replicas.running)):
        calls = len(replicas.service.taken)
        bind_plain_pods(plane, sandbox, replicas.entry(), "plain")
        assert len(replicas.service.taken) == calls
        wait("the Service is updated", lambda: not replicas.service.ready or None)
        bind_plain_pods(plane, sandbox, replicas.entry(), "beside", policy_pods)
        assert [name for name in waiting if namespace_sandboxes.node_of(sandbox.pod(name))] == []
        messages = failures(sandbox)
        assert set(messages) == set(waiting)
        assert all(replicas.service.url in text for text in messages.values()), messages
    wait("the Service has them again", lambda: len(replicas.service.ready) == 2 or None)
    with plane.start_scheduler({"extenders": [replicas.entry()]}):
        assert {sandbox.expect_bound(name) for name in waiting} <= {"b", "c"}


MAX_AGE_S = short_and_long_case_counts.of(15, 30)
PERIOD_S = 12.0
"""The sync period. Two periods are enough for steps that take seconds on a loaded machine."""


def shown(replica: ExtenderProcess, metric: str) -> float:
    """The value of a gauge; `metric` includes its labels."""
    lines = plain_http.get(f"{replica.health}/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"nodewise_{metric} "))


class AvailabilityCluster:
    """A separate control plane and one nodewise with metrics from the custom metrics API and from Prometheus."""

    def __init__(
        self, plane: ControlPlane, programs: debian_packages.PrometheusPrograms, folder: Path
    ) -> None:
        self._plane = plane
        self._folder = folder
        self._api_server = plane.processes[1]
        self._command = self._api_server.command
        self._restarted = contextlib.ExitStack()
        self._stack = contextlib.ExitStack()
        enter = self._stack.enter_context
        extender_process.define(plane.api)
        self.sandbox = enter(namespace_sandboxes.created(plane))
        self.sandbox.nodes(*map(roomy, "abc"))
        self.metrics = enter(fake_custom_metrics_server.behind(self.sandbox, folder))
        self.scraping = enter(prometheus_and_exporters.running(programs, folder / "prometheus", "abc"))
        self.metrics.set("heat", {"a": 90, "b": 10, "c": 10})
        self.load("b")
        self.scraping.wait_scraped("node_load", {"a": 1, "b": 9, "c": 1})
        for name, rule in (("far", HOT), ("near", BUSY)):
            self.sandbox.put(policy(name, rule))
        self.nodewise = self._start_nodewise()

    def _start_nodewise(self) -> ExtenderProcess:
        more = [
            f"--prometheus-url={self.scraping.url}",
            f"--max-age={MAX_AGE_S}s",
            f"--sync-period={PERIOD_S:g}s",
        ]
        return self._stack.enter_context(extender_process.extender(self._plane, self._folder, *more))

    def load(self, busy: str) -> None:
        """Makes one node busy according to Prometheus."""
        self.scraping.set("node_load", {"a": 1, "b": 1, "c": 1} | {busy: 9})

    def rejects(self, name: str, nodes: str) -> bool | None:
        """Whether nodewise rejects exactly these nodes for a policy; None if not."""
        rejected = [node for node in "abc" if self.nodewise.rejects(self.sandbox.namespace, node, name)]
        return rejected == list(nodes) or None

    def until_rejected(self, name: str, nodes: str, deadline_s: float = 60) -> None:
        wait(f"policy {name} rejects {nodes}", lambda: self.rejects(name, nodes), deadline_s)

    def states(self, metric: str) -> set[str]:
        """The states of a metric's values in the newest decisions."""
        decisions = self.nodewise.decisions("probe")
        return {
            value["state"]
            for decision in decisions
            for value in decision["values"]
            if value["metric"] == metric
        }

    def caller(self, name: str) -> SchedulerCaller:
        certificates = self.nodewise.certificates
        body = filter_request(self.sandbox.namespace, name, *"abc")
        return SchedulerCaller(
            self.nodewise.url, certificates.authority.client_context(certificates.client), body, 0.02
        )

    def stand_still(self) -> contextlib.AbstractContextManager[None]:
        """Stops the API server with SIGSTOP while the context is open."""
        return stopped(self._api_server)

    def kill(self) -> None:
        """Kills the API server."""
        self._api_server.kill()

    def start_again(self) -> None:
        """Restarts the API server and waits until it is ready."""
        again = self._restarted.enter_context(Process(self._command, self._api_server.log))
        again.wait_ready(lambda: self._plane.api.answers("/readyz"))

    def close(self) -> None:
        with self._restarted:  # the cleanup needs a running API server
            self._stack.close()


@pytest.fixture
def scene(
    control_plane_programs: Path, prometheus_programs: debian_packages.PrometheusPrograms, tmp_path: Path
) -> Iterator[AvailabilityCluster]:
    with controlplane.running(control_plane_programs, tmp_path) as plane:
        made = AvailabilityCluster(plane, prometheus_programs, tmp_path)
        try:
            yield made
        finally:
            made.close()


def test_during_an_outage_of_the_api_server_responses_use_the_last_state_and_say_so(
    scene: AvailabilityCluster,
) -> None:
    """The API server is first stopped (SIGSTOP) and then dead. Prometheus continues."""
    nodewise = scene.nodewise
    scene.until_rejected("far", "a")
    scene.until_rejected("near", "b")
    names = iter(("far", "near"))
    with scheduler_calls.continuous_calls(2, lambda: scene.caller(next(names))) as callers:
        with scene.stand_still():
            nodewise.wait_events("kube_silent")
            wait("it is shown", lambda: shown(nodewise, 'kube_connected{kind="Lease"}') == 0 or None)
            wait("it is shown for nodes", lambda: shown(nodewise, 'kube_connected{kind="Node"}') == 0 or None)
            scene.load("a")
            scene.until_rejected("near", "a")
            scene.kill()
        scene.load("c")
        scene.until_rejected("near", "c")
        age = 'metric_age_seconds{metric="heat"}'
        wait("the metric is old", lambda: shown(nodewise, age) > MAX_AGE_S or None, 3 * PERIOD_S + SLACK_S)
        wait("the newest decisions say so", lambda: scene.states("heat") == {"stale"} or None)
        assert scene.rejects("far", "a"), "what was known last holds, as nothing newer can be"
        assert shown(nodewise, "kube_silent_seconds") > MAX_AGE_S / 2
        assert nodewise.is_ready()
        assert "heat" in {event["metric"] for event in nodewise.wait_events("metric_failed")}
        scene.start_again()
        scene.sandbox.api.patch(path(scene.sandbox, "far"), policy("far", HOT | {"target": 5}))
        scene.until_rejected("far", "abc")
        nodewise.wait_events("kube_answers")
        for kind in ("Lease", "Node"):
            series = f'kube_connected{{kind="{kind}"}}'
            wait("it is shown", lambda series=series: shown(nodewise, series) == 1 or None)  # type: ignore[misc]
    for caller in callers:
        assert caller.failed == []
        assert caller.calls > 100


def policy(name: str, rule: Object) -> Object:
    return extender_process.tas_policy(name, {"dontschedule": {"rules": [rule]}})


def path(sandbox: Sandbox, name: str) -> str:
    return f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies/{name}"
