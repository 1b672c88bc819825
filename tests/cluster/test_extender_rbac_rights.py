"""The shipped rights are exactly those that the audit log shows as used when every feature is enabled."""

from typing import NamedTuple

import pytest

from tests.cluster import (
    api_user_kubeconfigs,
    extender_process,
    fake_custom_metrics_server,
    fake_port_forward,
    kubernetes_objects,
    namespace_sandboxes,
    rbac_rights_comparison,
    read_only_commands,
    shipped_installation,
)
from tests.cluster.api_client import Object
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.rbac_rights_comparison import ApiRight
from tests.cluster.shipped_installation import ACCOUNT, HOST, NAMESPACE, ShippedInstallation, pod, policy

READER = "reader"
CREATE_PORT_FORWARD = ApiRight("create", "", "pods/portforward", "", NAMESPACE)
"""The API server checks this right as a part of `get` and does not log it; `test_missing_rights` shows the need."""
EVERYBODYS = "system:discovery"
"""The ClusterRole that allows every user to discover APIs."""


class RightsScenario(NamedTuple):
    """The recorded scenario, in two namespaces and on several nodes, so that no right is limited to one of them."""

    shipped: ShippedInstallation
    first: Sandbox
    second: Sandbox
    filters: ExtenderProcess
    """The replica that gets the scheduler's filter calls."""
    scores: ExtenderProcess

    def events(self, event: str) -> list[Object]:
        """The logged events of both replicas."""
        return [*self.filters.events(event), *self.scores.events(event)]

    def entries(self) -> list[Object]:
        """The entries of both replicas in a scheduler configuration."""
        filters, scores = (
            replica.entry(tlsConfig=replica.entry()["tlsConfig"] | {"serverName": HOST}, httpTimeout="30s")
            for replica in (self.filters, self.scores)
        )
        no_filter = {"filterVerb": "", "preemptVerb": "", "managedResources": []}
        return [filters | {"prioritizeVerb": ""}, scores | no_filter]

    def is_written(self) -> bool:
        """Whether the leader has written all labels, resources and statuses."""
        nodes = [
            self.shipped.labels(node).get("cool") == "violating" and self.shipped.advertises(node)
            for node in ("a", "b", "c")
        ]
        statuses = [
            extender_process.status(self.first, "cool"),
            extender_process.status(self.second, "calm"),
            *shipped_installation.placement_policy_statuses(self.first),
            *shipped_installation.placement_policy_statuses(self.second),
        ]
        ready = self.filters.is_ready() and self.scores.is_ready()
        return ready and all(nodes) and all(statuses) and len(self.events("labels_taken_over")) == 2

    def rejections(self) -> None:
        """Causes the same rejection twice for each policy. The second time, the count of the event increases."""
        for _ in range(2):
            assert self.filters.rejects(self.first.namespace, "a", "cool")
            assert self.filters.rejects(self.second.namespace, "a", "calm")

    def pods_that_wait_until_their_metric_heals(self) -> None:
        self.first.pods(pod("web", "cool"))
        self.second.pods(pod("shop", "calm"))
        self.first.expect_event("web", "NoNodePasses")
        self.second.expect_event("shop", "NoNodePasses")
        self.shipped.metrics.set("power", dict.fromkeys("abc", 10))
        self.second.expect_bound("shop")
        wait("the pod is requeued", lambda: self.events("woken") or None)
        self.shipped.metrics.set("heat", dict.fromkeys("abc", 10))
        self.first.expect_bound("web")

    def looks(self) -> None:
        """Runs the read-only commands as a user with their roles."""
        plane = self.shipped.plane
        user = plane.user(READER)
        api_user_kubeconfigs.bind(plane.api, user.name, "nodewise-reader")
        api_user_kubeconfigs.bind(plane.api, user.name, "nodewise-reader", NAMESPACE)
        by = f"--kubeconfig={user.kubeconfig}"
        with fake_port_forward.kubelet_of(
            plane.api, "a", plane.authority.issue("kubelet", "127.0.0.1")
        ) as kubelet:
            for replica in (self.filters, self.scores):
                name = f"replica-{replica.process.pid}"
                fake_port_forward.add_replica(plane.api, kubelet, "a", NAMESPACE, name, replica.health)
            for named in (f"{self.first.namespace}/web", f"{self.second.namespace}/shop"):
                done = read_only_commands.run("explain", named, by, "-o", "json")
                answers = read_only_commands.parse_report(done)["replicas"]
                assert [answer["found"] > 0 for answer in answers] == [True, True]
        report = read_only_commands.parse_report(
            read_only_commands.run("decide", "--cluster", "--running", by, "-o", "json")
        )
        assert {decision["stays"] for decision in report["decisions"]} == {True}


@pytest.fixture(scope="module")
def recorded(shipped: ShippedInstallation, tmp_path_factory: pytest.TempPathFactory) -> AuditLog:
    """The audit log of a run in which nodewise used all its features."""
    folder = tmp_path_factory.mktemp("replicas")
    with (
        namespace_sandboxes.created(shipped.plane) as first,
        namespace_sandboxes.created(shipped.plane) as second,
    ):
        first.nodes(*kubernetes_objects.nodes("a b c"))
        for node in ("a", "b"):
            shipped.label_as_the_older_system(node, "cool")
        for metric in ("heat", "power"):
            shipped.metrics.set(metric, dict.fromkeys("abc", 90))
        first.put(policy("cool", "heat", "dontschedule", "deschedule", "labeling"))
        second.put(policy("calm", "power", "dontschedule"))
        for sandbox in (first, second):
            shipped_installation.placement_policies(sandbox)
        with shipped.started(folder) as first_replica, shipped.started(folder) as other:
            run = RightsScenario(shipped, first, second, first_replica, other)
            wait("all is written", lambda: run.is_written() or None)
            run.rejections()
            with shipped.plane.start_scheduler({"extenders": run.entries()}):
                run.pods_that_wait_until_their_metric_heals()
            run.looks()
    return shipped.log


@pytest.mark.parametrize(("file", "user"), [("rbac.yaml", ACCOUNT), ("reader.yaml", READER)])
def test_the_rights_that_ship_are_those_that_were_needed(recorded: AuditLog, file: str, user: str) -> None:
    """The shipped rights are exactly the used ones, limited to a name or namespace where possible."""
    requests = recorded.requests(user)
    assert [request for request in requests if request.is_refused] == []
    discovery = [request for request in requests if not request.resource]
    group = f"/apis/{fake_custom_metrics_server.GROUP}"
    # the version lists the metrics, of which similar names are suggested for one without values
    assert {group} <= {request.path for request in discovery} <= {group, f"{group}/v1beta2"}
    assert all(EVERYBODYS in request.allowed_by for request in discovery)
    rest = [request for request in requests if request.resource]
    assert [request for request in rest if "nodewise" not in request.allowed_by] == []
    # no policy here uses the predicted load, and no pod has claims
    unlogged = (
        {CREATE_PORT_FORWARD, ApiRight("get", "resource.k8s.io", "resourceclaims")}
        if user == READER
        else {ApiRight("list", "metrics.k8s.io", "pods")}
    )
    assert rbac_rights_comparison.needed(rest) | unlogged == rbac_rights_comparison.granted(
        extender_process.manifest(file)
    )
