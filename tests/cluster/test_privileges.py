"""The rights that ship are those that a run with everything on needed: the API server's audit log tells.

And a right that is missing costs what it is for and nothing else, and nodewise names it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster import (
    access,
    controlplane,
    custom_metrics,
    looking,
    objects,
    processes,
    resource_metrics,
    rights,
    sandbox,
    served,
)
from tests.cluster.access import User
from tests.cluster.api import JSON_PATCH, Object
from tests.cluster.audit import AuditLog, Request
from tests.cluster.controlplane import ControlPlane
from tests.cluster.custom_metrics import CustomMetrics
from tests.cluster.sandbox import Sandbox, wait
from tests.cluster.served import Papers, Served

NAMESPACE = "nodewise"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:nodewise"
READER = "reader"
ADVERTISED = "telemetry/scheduling"
ALL_ON = (f"--namespace={NAMESPACE}", f"--advertise-resource={ADVERTISED}=1000")
EVERYBODYS = "system:discovery"
"""The ClusterRole by which every user may ask which APIs there are."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("privileges")


@pytest.fixture(scope="module")
def log(folder: Path) -> AuditLog:
    return AuditLog(folder)


@pytest.fixture(scope="module")
def plane(control_plane_programs: Path, folder: Path, log: AuditLog) -> Iterator[ControlPlane]:
    """A control plane of this file's own, which records who asks for what, with the manifests as they ship."""
    with controlplane.running(control_plane_programs, folder, log.flags) as running:
        served.define(running.api)
        for name in ("rbac.yaml", "reader.yaml"):
            running.kubectl("apply", "-f", str(served.ROOT / "deploy" / name))
        yield running


@pytest.fixture(scope="module")
def metrics(plane: ControlPlane, folder: Path) -> Iterator[CustomMetrics]:
    """Both metrics APIs of the control plane."""
    with (
        sandbox.sandbox(plane) as own,
        custom_metrics.behind(own, folder) as custom,
        resource_metrics.behind(plane.api, folder) as resource,
    ):
        resource.cpu = {"a": "1", "b": "2", "c": "500m"}
        yield custom


@pytest.fixture(scope="module")
def papers(folder: Path) -> Papers:
    return Papers(folder, f"{served.SERVICE}.{NAMESPACE}.svc", processes.own_address())


@pytest.fixture(scope="module")
def account(plane: ControlPlane) -> User:
    """The service account that the manifest makes and binds."""
    return plane.service_account("nodewise", NAMESPACE)


def policy(name: str, metric: str, *strategies: str) -> Object:
    """Nodes with more than 80 of a metric break the rule of each strategy; the idlest is preferred."""
    rule = {"metricname": metric, "operator": "GreaterThan", "target": 80}
    given = {strategy: {"rules": [rule]} for strategy in strategies}
    idlest = {"metricname": "cpu_usage", "operator": "LessThan"}
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name},
        "spec": {"strategies": given | {"scheduleonmetric": {"rules": [idlest]}}},
    }


def pod(name: str, policy: str) -> Object:
    return objects.pod(name, labels={"telemetry-policy": policy}, limits=served.LIMITS)


def labels(plane: ControlPlane, node: str) -> dict[str, str]:
    found: dict[str, str] = plane.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return found


def advertised(plane: ControlPlane, node: str) -> bool:
    return ADVERTISED in plane.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"]


def conditions(corner: Sandbox, policy: str) -> list[Object]:
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{corner.namespace}/taspolicies/{policy}"
    found: list[Object] = corner.api.get(path).get("status", {}).get("conditions", [])
    return found


def label_as_the_older_system(plane: ControlPlane, node: str, key: str) -> None:
    patch = [{"op": "add", "path": f"/metadata/labels/{key}", "value": "violating"}]
    headers = {"Content-Type": JSON_PATCH}
    plane.api.request(
        "PATCH", f"/api/v1/nodes/{node}", json=patch, headers=headers, params={"fieldManager": "extender"}
    )


class Replicas(NamedTuple):
    """Two of them: the scheduler asks one to filter, the other to score."""

    one: Served
    other: Served

    def entries(self) -> list[Object]:
        tls = {"serverName": f"{served.SERVICE}.{NAMESPACE}.svc"}
        filters, scores = (
            each.entry(tlsConfig=each.entry()["tlsConfig"] | tls, httpTimeout="5s") for each in self
        )
        return [
            filters | {"prioritizeVerb": ""},
            scores | {"filterVerb": "", "preemptVerb": "", "managedResources": []},
        ]

    def told(self, event: str) -> list[Object]:
        return [*self.one.events(event), *self.other.events(event)]


@pytest.fixture(scope="module")
def recorded(
    plane: ControlPlane, metrics: CustomMetrics, account: User, papers: Papers, folder: Path
) -> None:
    """All that nodewise can do, done in two namespaces and on several nodes, so that no right is for one only."""
    given = (*ALL_ON, f"--address={processes.own_address()}")
    with sandbox.sandbox(plane) as corner, sandbox.sandbox(plane) as second:
        corner.nodes(*objects.nodes("a b c"))
        for node in ("a", "b"):
            label_as_the_older_system(plane, node, "cool")
        for metric in ("heat", "power"):
            metrics.set(metric, dict.fromkeys("abc", 90))
        corner.put(policy("cool", "heat", "dontschedule", "deschedule", "labeling"))
        second.put(policy("calm", "power", "dontschedule"))
        with (
            served.extender(plane, folder, *given, papers=papers, by=account) as one,
            served.extender(plane, folder, *given, papers=papers, by=account) as other,
        ):
            replicas = Replicas(one, other)
            see_written(plane, corner, second, replicas)
            with plane.start_scheduler({"extenders": replicas.entries()}):
                see_woken(corner, second, metrics, replicas)
            look(plane, corner, second, replicas)


def see_written(plane: ControlPlane, corner: Sandbox, second: Sandbox, replicas: Replicas) -> None:
    """What the leader writes by itself."""
    for node in ("a", "b", "c"):
        wait(f"{node} is labelled", lambda: labels(plane, node).get("cool") == "violating" or None)  # noqa: B023
        wait(f"{node} has {ADVERTISED}", lambda: advertised(plane, node) or None)  # noqa: B023
    wait("labels were taken over", lambda: len(replicas.told("labels_taken_over")) == 2 or None)
    for at, name in ((corner, "cool"), (second, "calm")):
        wait(f"{name} has a status", lambda: conditions(at, name) or None)  # noqa: B023
        for _ in range(2):  # the second time the event is counted, not made
            wait("a is rejected", lambda: replicas.one.rejects(at.namespace, "a", name) or None)  # noqa: B023


def see_woken(corner: Sandbox, second: Sandbox, metrics: CustomMetrics, replicas: Replicas) -> None:
    """Pods that wait, and go on when their metric heals."""
    corner.pods(pod("web", "cool"))
    second.pods(pod("shop", "calm"))
    corner.expect_event("web", "NoNodePasses")
    second.expect_event("shop", "NoNodePasses")
    metrics.set("power", dict.fromkeys("abc", 10))
    second.expect_bound("shop")
    assert replicas.told("woken")
    metrics.set("heat", dict.fromkeys("abc", 10))
    corner.expect_bound("web")


def look(plane: ControlPlane, corner: Sandbox, second: Sandbox, replicas: Replicas) -> None:
    """The commands that only look, by somebody who is bound to the roles for it."""
    user = plane.user(READER)
    access.bind(plane.api, user.name, "nodewise-reader")
    access.bind(plane.api, user.name, "nodewise-reader", NAMESPACE)
    for name, each in replicas._asdict().items():
        slice_ = served.endpoint(name, each.url)
        corner.create(slice_ | {"metadata": slice_["metadata"] | {"namespace": NAMESPACE}})
    by = f"--kubeconfig={user.kubeconfig}"
    client, authority = replicas.one.papers.client, replicas.one.papers.authority
    shown = [f"--cert={client.cert}", f"--key={client.key}", f"--ca={authority.ca_file}"]
    for named in (f"{corner.namespace}/web", f"{second.namespace}/shop"):
        found = looking.told(looking.run("explain", named, by, *shown, "-o", "json"))
        assert [one["found"] > 0 for one in found["replicas"]] == [True, True]
    found = looking.told(looking.run("decide", "--cluster", "--running", by, "-o", "json"))
    assert {one["stays"] for one in found["decisions"]} == {True}


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(("file", "user"), [("rbac.yaml", ACCOUNT), ("reader.yaml", READER)])
def test_the_rights_that_ship_are_those_that_were_needed(log: AuditLog, file: str, user: str) -> None:
    """Neither more nor less, and none for more names or namespaces than one where one was enough."""
    requests = log.requests(user)
    assert [one for one in requests if one.code in {401, 403}] == []
    discovery = [one for one in requests if not one.resource]
    assert {one.path for one in discovery} == {f"/apis/{custom_metrics.GROUP}"}
    assert all(EVERYBODYS in one.allowed_by for one in discovery)
    rest: list[Request] = [one for one in requests if one.resource]
    assert [one for one in rest if "nodewise" not in one.allowed_by] == []
    assert rights.needed(rest) == rights.granted(served.manifest(file))
