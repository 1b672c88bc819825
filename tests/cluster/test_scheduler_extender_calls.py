"""When kube-scheduler calls extenders, and how it treats responses, errors and timeouts.

Rules that the simulated scheduler follows, too, are tested with both schedulers of the fixture `scheduler`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cluster import fake_scheduler_extender, kubernetes_objects, namespace_sandboxes
from tests.cluster.asgi_server_thread import ServerTls
from tests.cluster.certificates import CertificateAuthority
from tests.cluster.fake_scheduler_extender import FakeExtenderServer
from tests.cluster.scheduler_interface import ScheduledCluster, SchedulerUnderTest, SchedulingOutcome

MANAGED = [{"name": "telemetry/scheduling", "ignoredByScheduler": True}]
ONLY_KUBE_SCHEDULER = pytest.mark.parametrize("scheduler", ["kube-scheduler"], indirect=True)
FORMS = pytest.mark.parametrize("cached", [True, False], ids=["names", "whole nodes"])


def plain(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, names: str = "a b c", **fields: object
) -> AbstractContextManager[ScheduledCluster]:
    """A cluster with empty nodes and only the fake extender, with these fields in its entry."""
    return scheduler.cluster(
        kubernetes_objects.nodes(names), [fake_scheduler_extender.entry(fake_extender.url, **fields)]
    )


@ONLY_KUBE_SCHEDULER
@FORMS
def test_filter_and_then_prioritize_are_asked_of_all_nodes(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, *, cached: bool
) -> None:
    with plain(scheduler, fake_extender, nodeCacheCapable=cached) as cluster:
        assert cluster.submit(kubernetes_objects.pod("web"))["web"].node in {"a", "b", "c"}
    assert [call.verb for call in fake_extender.calls] == ["filter", "prioritize"]
    assert all(sorted(call.nodes) == ["a", "b", "c"] for call in fake_extender.calls)
    assert all(call.whole is not cached for call in fake_extender.calls)


def test_only_nodes_that_every_plugin_passes_are_asked_about(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    mixed = [kubernetes_objects.node("a", cpu="1"), *kubernetes_objects.nodes("b c", cpu="8")]
    with scheduler.cluster(mixed, [fake_scheduler_extender.entry(fake_extender.url)]) as cluster:
        cluster.submit(kubernetes_objects.pod("web", cpu="2"))
    assert [sorted(call.nodes) for call in fake_extender.asked("filter")] == [["b", "c"]]


def test_no_extender_is_asked_when_no_node_fits(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    with plain(scheduler, fake_extender) as cluster:
        assert cluster.submit(kubernetes_objects.pod("web", cpu="99"))["web"].node is None
    assert fake_extender.calls == []


def test_one_node_that_is_left_is_not_scored(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.reject = {"a": "hot", "b": "hot"}
    with plain(scheduler, fake_extender) as cluster:
        assert cluster.submit(kubernetes_objects.pod("web"))["web"].node == "c"
    assert fake_extender.asked("prioritize") == []


@ONLY_KUBE_SCHEDULER
def test_of_more_than_100_nodes_a_sample_is_asked_about(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    """The sample is 50 % minus one percent for each 125 nodes, and at least 100 nodes. For 250 nodes it is 48 %."""
    with plain(scheduler, fake_extender, " ".join(f"n{i}" for i in range(250))) as cluster:
        assert cluster.submit(kubernetes_objects.pod("web"))["web"].node
    assert [len(call.nodes) for call in fake_extender.calls] == [120, 120]


def test_a_pod_without_a_managed_resource_passes_by(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.reject = dict.fromkeys("abc", "hot")
    with plain(scheduler, fake_extender, managedResources=MANAGED) as cluster:
        outcomes = cluster.submit(
            kubernetes_objects.pod("plain"),
            kubernetes_objects.pod("web", limits={"telemetry/scheduling": "1"}),
        )
    assert outcomes["plain"].node
    assert outcomes["web"].node is None
    assert {call.pod for call in fake_extender.calls} == {"web"}


def test_an_extender_receives_the_nodes_that_the_extender_before_it_passed(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.reject = {"a": "hot"}
    with fake_scheduler_extender.serving() as second:
        entries = [
            fake_scheduler_extender.entry(fake_extender.url),
            fake_scheduler_extender.entry(second.url),
        ]
        with scheduler.cluster(kubernetes_objects.nodes("a b c"), entries) as cluster:
            cluster.submit(kubernetes_objects.pod("web"))
        assert [sorted(call.nodes) for call in second.asked("filter")] == [["b", "c"]]


@ONLY_KUBE_SCHEDULER
@FORMS
def test_scores_decide_the_node(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, *, cached: bool
) -> None:
    with plain(scheduler, fake_extender, nodeCacheCapable=cached) as cluster:
        for best in ("c", "a", "b"):
            fake_extender.scores = {"a": 1, "b": 1, "c": 1, best: 10}
            assert cluster.submit(kubernetes_objects.pod(f"likes-{best}"))[f"likes-{best}"].node == best


def test_scores_are_multiplied_by_the_weight_and_not_clamped(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.scores = {"a": 10}
    with fake_scheduler_extender.serving() as second:
        second.scores = {"b": 100, "c": -100}
        entries = [
            fake_scheduler_extender.entry(fake_extender.url, weight=5),
            fake_scheduler_extender.entry(second.url),
        ]
        with scheduler.cluster(kubernetes_objects.nodes("a b c"), entries) as cluster:
            assert cluster.submit(kubernetes_objects.pod("web"))["web"].node == "b"


@ONLY_KUBE_SCHEDULER
@pytest.mark.parametrize(("cached", "chosen"), [(True, "empty"), (False, "large")], ids=["names", "whole"])
def test_with_whole_nodes_the_default_scores_take_every_node_for_empty(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer, *, cached: bool, chosen: str
) -> None:
    large, empty = (
        kubernetes_objects.node("large", cpu="100", memory="1000Gi"),
        kubernetes_objects.node("empty", cpu="4"),
    )
    load = kubernetes_objects.running_on("large", kubernetes_objects.pod("load", cpu="90", memory="900Gi"))
    entry = fake_scheduler_extender.entry(fake_extender.url, nodeCacheCapable=cached)
    with scheduler.cluster([large, empty], [entry], [load]) as cluster:
        assert cluster.submit(kubernetes_objects.pod("web", cpu="1", memory="4Gi"))["web"].node == chosen


def test_an_ignorable_extender_that_fails_is_as_good_as_none(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.fail(500)
    with plain(scheduler, fake_extender, ignorable=True) as cluster:
        assert cluster.submit(kubernetes_objects.pod("web"))["web"].node
    assert [call.verb for call in fake_extender.calls] == ["filter", "prioritize"]


def test_an_ignorable_extender_without_a_server_changes_nothing(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    with plain(scheduler, fake_extender, urlPrefix="http://127.0.0.1:9", ignorable=True) as cluster:
        assert cluster.submit(kubernetes_objects.pod("web"))["web"].node


FAILURES: dict[str, tuple[Callable[[FakeExtenderServer], None], str]] = {
    "a status": (
        lambda fake_extender: fake_extender.fail(503, "filter"),
        "failed filter with extender at URL {url}/filter, code 503",
    ),
    "an error in the answer": (
        lambda fake_extender: setattr(fake_extender, "error", "cannot read the pod"),
        "cannot read the pod",
    ),
    "no answer in time": (
        lambda fake_extender: fake_extender.hang("filter"),
        'Post "{url}/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)',
    ),
}


@pytest.mark.parametrize(("fail", "message"), FAILURES.values(), ids=FAILURES)
def test_without_ignorable_a_filter_that_fails_ends_the_attempt(
    scheduler: SchedulerUnderTest,
    fake_extender: FakeExtenderServer,
    fail: Callable[[FakeExtenderServer], None],
    message: str,
) -> None:
    fail(fake_extender)
    patience = {"httpTimeout": "2s"} if "deadline" in message else {}
    with plain(scheduler, fake_extender, **patience) as cluster:
        outcome = cluster.submit(kubernetes_objects.pod("web"))["web"]
    assert outcome == SchedulingOutcome(None, "SchedulerError", message.format(url=fake_extender.url))


def test_a_prioritize_that_fails_costs_the_scores_and_nothing_else(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.fail(500, "prioritize")
    with plain(scheduler, fake_extender) as cluster:
        assert cluster.submit(kubernetes_objects.pod("web"))["web"].node


def test_a_hang_costs_each_pod_http_timeout_twice(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    """Filter and prioritize time out once each. Pods are scheduled one after another, so all of them wait."""
    fake_extender.hang()
    with plain(scheduler, fake_extender, httpTimeout="1s", ignorable=True) as cluster:
        start_s = time.monotonic()
        outcomes = cluster.submit(kubernetes_objects.pod("one"), kubernetes_objects.pod("two"))
        assert time.monotonic() - start_s >= 4
    assert [(call.pod, call.verb) for call in fake_extender.calls] == [
        (pod, verb) for pod in ("one", "two") for verb in ("filter", "prioritize")
    ]
    assert all(outcome.node for outcome in outcomes.values())


@ONLY_KUBE_SCHEDULER
def test_mutual_tls(scheduler: SchedulerUnderTest, tmp_path: Path) -> None:
    ours = CertificateAuthority(tmp_path)
    tls = ServerTls(ours.issue("server", "127.0.0.1"), clients=ours.ca_file)
    with fake_scheduler_extender.serving(tls) as fake_extender:
        fields = fake_scheduler_extender.tls_fields(ours.ca_file, ours.issue("client"))
        with plain(scheduler, fake_extender, **fields) as cluster:
            assert cluster.submit(kubernetes_objects.pod("web"))["web"].node
        assert [call.verb for call in fake_extender.calls] == ["filter", "prioritize"]


@ONLY_KUBE_SCHEDULER
@pytest.mark.parametrize("verified", [True, False], ids=["with a CA file", "without one"])
def test_a_server_is_verified_only_where_a_ca_file_is_named(
    scheduler: SchedulerUnderTest, tmp_path: Path, *, verified: bool
) -> None:
    ours, theirs = CertificateAuthority(tmp_path), CertificateAuthority(tmp_path, "theirs")
    with fake_scheduler_extender.serving(ServerTls(theirs.issue("server", "127.0.0.1"))) as fake_extender:
        fields = fake_scheduler_extender.tls_fields(ours.ca_file if verified else None, ours.issue("client"))
        with plain(scheduler, fake_extender, **fields) as cluster:
            outcome = cluster.submit(kubernetes_objects.pod("web"))["web"]
    assert outcome.message.endswith("x509: certificate signed by unknown authority" if verified else "")
    assert bool(outcome.node) is not verified


@ONLY_KUBE_SCHEDULER
def test_a_rejected_pod_is_tried_again_at_any_cluster_event_and_not_before(
    scheduler: SchedulerUnderTest, fake_extender: FakeExtenderServer
) -> None:
    fake_extender.reject = dict.fromkeys("abc", "hot")
    with plain(scheduler, fake_extender) as cluster:
        cluster.submit(kubernetes_objects.pod("web"))
        # the pod's new condition is an event that causes one immediate retry
        namespace_sandboxes.wait("a second attempt", lambda: len(fake_extender.asked("filter")) > 1 or None)
        cluster.pass_time(1)
        fake_extender.reject = {}
        cluster.pass_time(3)
        assert cluster.outcome("web").node is None
        cluster.touch("a")
        assert cluster.retried("web", deadline_s=60).node
