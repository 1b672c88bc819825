"""A real kube-scheduler follows nodewise, with policies and metrics from a real API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import child_processes, extender_process, kubernetes_objects, namespace_sandboxes
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import COOLEST, HOT, ExtenderProcess, heated, pod, policy
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait

pytestmark = pytest.mark.kubernetes_versions

FORMS = pytest.mark.parametrize("cached", [True, False], ids=["names", "whole nodes"])


@pytest.fixture
def nodewise(plane: ControlPlane, metrics: FakeCustomMetricsApi, tmp_path: Path) -> Iterator[ExtenderProcess]:
    with extender_process.extender(plane, tmp_path) as running:
        yield running


def schedule(plane: ControlPlane, nodewise: ExtenderProcess, **fields: Any) -> child_processes.Process:
    """Starts a kube-scheduler with nodewise as its extender."""
    return plane.start_scheduler({"extenders": [nodewise.entry(**fields)]})


@FORMS
def test_pods_go_where_the_policy_says(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    nodewise: ExtenderProcess,
    *,
    cached: bool,
) -> None:
    heat = {"a": 90, "b": 30, "c": 60}
    heated(sandbox, metrics, heat, dontschedule=[HOT], scheduleonmetric=[COOLEST])
    nodewise.wait_fetched("heat")
    with schedule(plane, nodewise, nodeCacheCapable=cached):
        sandbox.pods(*(pod(f"web-{number}") for number in range(4)))
        assert {sandbox.expect_bound(f"web-{number}") for number in range(4)} == {"b"}
        metrics.set("heat", {"a": 10, "b": 90, "c": 95})
        wait("b is hot", lambda: nodewise.rejects(sandbox.namespace, "b") or None)
        sandbox.pods(pod("late"))
        assert sandbox.expect_bound("late") == "a"
    rejected = nodewise.decisions("late")[-1]["rejected"]
    assert set(rejected) == {"b", "c"}


def test_when_every_node_is_rejected_the_pod_waits_and_its_event_says_why(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, nodewise: ExtenderProcess
) -> None:
    heated(sandbox, metrics, {"a": 90, "b": "81500m"})
    nodewise.wait_fetched("heat")
    with schedule(plane, nodewise):
        sandbox.pods(pod("web"))
        message = sandbox.expect_event("web")
        assert f"2 telemetry policy {sandbox.namespace}/pol: heat GreaterThan 80" in message
        assert message.startswith("0/2 nodes are available")
        ours = wait("nodewise writes an event", lambda: sandbox.events("web", "NoNodePasses") or None)
        assert ours[0].endswith("heat GreaterThan 80"), "no measured values"
        sandbox.pods(kubernetes_objects.pod("plain"))
        assert sandbox.expect_bound("plain") in {"a", "b"}


@pytest.mark.parametrize("case", ["no such policy", "a metric that was never fetched"])
def test_no_answer_never_means_yes_even_where_the_scheduler_would_ignore_us(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, nodewise: ExtenderProcess, case: str
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    if case == "a metric that was never fetched":
        policy(sandbox, dontschedule=[HOT | {"metricname": "absent"}])
        nodewise.wait_events("metric_failed")
    with schedule(plane, nodewise, ignorable=True):
        sandbox.pods(pod("web"))
        message = sandbox.expect_event("web")
        sandbox.expect_stays_unbound("web", 1)
    name = f"{sandbox.namespace}/pol"
    assert (f"policy {name} does not exist" in message) or (
        f"policy {name}: metric absent was never fetched: the custom metrics API has" in message
    )


def test_before_readiness_nothing_is_placed_by_a_policy(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """The API server refuses to list policies, so nodewise never becomes ready. A policy may select any pod."""
    heated(sandbox, metrics, {"a": 1, "b": 1})
    certificates = extender_process.CertificateFiles(tmp_path)
    blind = plane.user(f"blind-{child_processes.number()}", [extender_process.rules()[0]])
    with extender_process.started(
        tmp_path, extender_process.arguments(blind, certificates), certificates
    ) as running:
        with schedule(plane, running, ignorable=True):
            sandbox.pods(pod("web"), kubernetes_objects.pod("plain", limits=extender_process.LIMITS))
            for name in ("web", "plain"):
                assert "nodewise: starting, policies are not read yet" in sandbox.expect_event(name)
                sandbox.expect_stays_unbound(name, 0.5)
        assert not running.is_ready()
        assert "taspolicies" in str(running.wait_events("kube_lost"))


@FORMS
def test_no_pod_is_evicted_from_a_node_that_the_policy_rejects(
    plane: ControlPlane,
    sandbox: Sandbox,
    metrics: FakeCustomMetricsApi,
    nodewise: ExtenderProcess,
    *,
    cached: bool,
) -> None:
    heated(sandbox, metrics, {"a": 90})
    sandbox.pods(kubernetes_objects.running_on("a", kubernetes_objects.pod("small", cpu="3")))
    nodewise.wait_fetched("heat")
    with schedule(plane, nodewise, nodeCacheCapable=cached):
        sandbox.pods(pod("large", cpu="3", priority=100))
        sandbox.expect_rejected("large")
        sandbox.expect_stays_unbound("large", 1)
        assert not namespace_sandboxes.is_leaving(sandbox.pod("small"))
        metrics.set("heat", {"a": 10})
        wait("a is cool", lambda: not nodewise.rejects(sandbox.namespace, "a") or None)
        sandbox.pods(pod("later", cpu="3", priority=100))
        assert sandbox.expect_bound("later") == "a"
        sandbox.expect_gone("small")


def test_one_metric_that_hangs_or_lies_delays_no_other(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, nodewise: ExtenderProcess
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b c"))
    metrics.set("heat", {"a": 90, "b": 10, "c": 90, "ghost": 1})
    metrics.set("dust", {"a": "NaN", "b": "12 apples", "c": 0})
    metrics.set("noise", {"a": 1})
    metrics.hang("noise")
    policy(
        sandbox,
        dontschedule=[HOT, {"metricname": "dust", "operator": "GreaterThan", "target": 1}],
        scheduleonmetric=[{"metricname": "noise", "operator": "LessThan"}],
    )
    nodewise.wait_events("metric_values_bad")
    with schedule(plane, nodewise):
        sandbox.pods(pod("web"))
        assert sandbox.expect_bound("web") == "b"
    states = {
        (value["node"], value["metric"]): value["state"] for value in nodewise.decisions("web")[-1]["values"]
    }
    assert states[("a", "dust")] == states[("b", "dust")] == "invalid"
    assert nodewise.is_ready(), "somebody's metric that hangs must not take the extender from the others"


def test_the_flags_of_the_older_system_serve_its_scheduler_unchanged(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """The command line and extender entry of the older system: whole nodes, ignorable, no CA file, no preempt verb."""
    heated(sandbox, metrics, {"a": 90, "b": 10})
    certificates = extender_process.CertificateFiles(tmp_path)
    user = plane.user(f"tas-{child_processes.number()}", extender_process.rules())
    port = child_processes.free_port()
    old = ["-kubeConfig", str(user.kubeconfig), "-port", str(port), "-cert", str(certificates.server.cert)]
    old += [
        "-key",
        str(certificates.server.key),
        "-cacert",
        str(certificates.authority.ca_file),
        "-syncPeriod",
        "2s",
        "-v=2",
    ]
    with extender_process.started(tmp_path, [*old, "--health-port=0"], certificates) as running:
        running.process.wait_ready(running.is_ready)
        tls = {"certFile": str(certificates.client.cert), "keyFile": str(certificates.client.key)}
        entry = {
            "urlPrefix": f"https://127.0.0.1:{port}",
            "prioritizeVerb": "scheduler/prioritize",
            "filterVerb": "scheduler/filter",
            "weight": 1,
            "enableHTTPS": True,
            "managedResources": extender_process.MANAGED,
            "ignorable": True,
            "tlsConfig": {"insecure": False} | tls,
        }
        with plane.start_scheduler({"extenders": [entry]}):
            sandbox.pods(pod("web"))
            assert sandbox.expect_bound("web") == "b"


def test_the_status_of_a_policy_names_its_fault(
    sandbox: Sandbox, metrics: FakeCustomMetricsApi, nodewise: ExtenderProcess
) -> None:
    """Without deploy/policy-fields.yaml the API server stores unknown fields."""
    policy(sandbox, dontschedule=[HOT | {"whenMissing": "reject"}])
    nodewise.wait_leading()
    wait("the status is written", lambda: extender_process.condition(sandbox, "Valid")["status"] or None)
    condition = extender_process.condition(sandbox, "Valid")
    assert condition["status"] == "False"
    assert "whenMissing: an unknown field" in condition["message"]
    assert 'did you mean "when_missing"?' in condition["message"]
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies/pol"
    sandbox.api.patch(path, {"spec": {"strategies": {"dontschedule": {"rules": [HOT]}}}})
    wait(
        "the status is good", lambda: extender_process.condition(sandbox, "Valid")["status"] == "True" or None
    )
    assert len(nodewise.wait_events("policy_problem")) == 1
