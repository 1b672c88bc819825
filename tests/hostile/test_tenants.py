"""Two tenants on a real API server: neither can change objects of the other.

See `tenant_cluster.py` for the cluster. A test creates what a tenant may create, calls `cluster.settle()` and
compares. Attacks that need another cluster are in files of their own; `docs/security.md` lists all of them.
"""

from collections.abc import Iterator

import pytest

from tests.cluster import (
    api_user_kubeconfigs,
    extender_process,
    kubernetes_objects,
    placement_policy_specs,
    read_only_commands,
)
from tests.cluster.api_client import ApiError, Object, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import OWN_NAMESPACE
from tests.cluster.namespace_sandboxes import wait
from tests.hostile import tenant_cluster
from tests.hostile.tenant_cluster import HOT, NODES, Tenant, TenantCluster


@pytest.fixture(scope="module")
def shared_cluster(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantCluster]:
    with tenant_cluster.running(plane, tmp_path_factory.mktemp("tenants")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: TenantCluster) -> Iterator[TenantCluster]:
    """The cluster with the victim's GPU pod on the first node; policies and pods are removed afterwards."""
    shared_cluster.victim.gpu_pod("victim", NODES[0], "card0")
    yield shared_cluster
    for tenant in (shared_cluster.attacker, shared_cluster.victim):
        tenant.delete_policies()
        tenant.sandbox.api.delete(f"/api/v1/namespaces/{tenant.namespace}/pods")
    shared_cluster.settle()


GPU_RULES = {
    "all GPUs disabled": [f"gas-disable-card{number}=true" for number in range(2)],
    "pods marked for eviction": ["gas-deschedule-pods-card0=PCI_GROUP", "gas-deschedule-pods-card1=true"],
}


@pytest.mark.parametrize("labels", GPU_RULES.values(), ids=list(GPU_RULES))
def test_a_policy_of_a_tenant_does_not_reach_gpus(cluster: TenantCluster, labels: list[str]) -> None:
    with cluster.unchanged():
        cluster.attacker.policy("evil", labeling=[HOT | {"labels": labels}])
        cluster.settle()


def test_a_policy_of_a_tenant_does_not_label_nodes(cluster: TenantCluster) -> None:
    """The attacker's policies have a name of their own and the name of the other tenant's policy."""
    cluster.victim.policy("shared", dontschedule=[HOT])
    with cluster.unchanged():
        cluster.attacker.policy("evil", deschedule=[HOT])
        cluster.attacker.policy("shared", deschedule=[HOT], labeling=[HOT | {"labels": ["a=b"]}])
        cluster.settle()


def test_a_policy_of_a_tenant_reads_no_series_of_another_tenant(cluster: TenantCluster) -> None:
    """64 policies, each with a query for one bit of the other tenant's series, which `violatingNodes` would reveal."""
    names = [f"bit-{number}" for number in range(64)]
    for number, name in enumerate(names):
        query = f"floor(victim_secret / 2^{number}) % 2"
        rule = {"metricname": name, "query": query, "operator": "Equals", "target": 1}
        cluster.attacker.policy(name, dontschedule=[rule])
    seen = []
    for value in (0x5EC2E75EC2E75EC2, ~0x5EC2E75EC2E75EC2 & 2**64 - 1):
        cluster.prometheus.value = value
        wait("every policy has a status", lambda: all(map(cluster.attacker.status, names)) or None)
        cluster.settle()
        seen.append([_without_times(cluster.attacker.status(name)) for name in names])
    assert seen[0] == seen[1]
    assert {status["violatingNodes"] for status in seen[0]} == {len(NODES)}, (
        "no node passes, whatever the bit"
    )
    assert not [query for query in cluster.prometheus.asked if "victim_secret" in query]
    assert "victim_secret" not in str(seen)
    not_trusted = cluster.attacker.condition("NotTrusted", names[0])
    assert not_trusted["status"] == "True"
    assert (
        f"kubectl label namespace {cluster.attacker.namespace} nodewise.io/trusted=true"
        in not_trusted["message"]
    )


def _without_times(status: Object) -> Object:
    conditions = [{**condition, "lastTransitionTime": ""} for condition in status["conditions"]]
    return {**status, "conditions": conditions}


@pytest.mark.parametrize(
    "name",
    ['up"} or victim_secret #', "victim_secret[5m])", "a/../../../api/v1/secrets", "..", "a%2fb", "a\nb"],
)
def test_a_metric_name_is_neither_promql_nor_a_path(cluster: TenantCluster, name: str) -> None:
    """The API server refuses these names. nodewise also refuses a stored one
    (`tests/unit/policies/test_taspolicy_parser.py`)."""
    with pytest.raises(ApiError, match="metricname"):
        cluster.attacker.policy("named", dontschedule=[HOT | {"metricname": name}])


def test_a_policy_of_a_tenant_does_not_lengthen_the_requests_for_a_metric(cluster: TenantCluster) -> None:
    """A metric is requested once for all policies, with the longest age of their rules."""
    for name, age in (("short", "15m"), ("long", "8784h")):
        cluster.attacker.policy(name, dontschedule=[HOT | {"metricname": "shared", "max_age": age}])
    wait("the metric is requested", lambda: '{__name__="shared"}[900s]' in cluster.prometheus.asked or None)
    cluster.settle()
    assert {query for query in cluster.prometheus.asked if "shared" in query} == {'{__name__="shared"}[900s]'}
    assert "max_age above 15m" in cluster.attacker.condition("NotTrusted", "long")["message"]


def test_trust_is_granted_and_taken_away(cluster: TenantCluster) -> None:
    """A policy labels nodes while its namespace is trusted. Without trust, its labels are removed and its status tells
    this.
    """
    tenant = cluster.attacker
    tenant.policy("own", deschedule=[HOT], labeling=[HOT | {"labels": ["gas-disable-card0=true"]}])
    wait("the policy lacks trust", lambda: tenant.condition("NotTrusted", "own")["status"] == "True" or None)
    tenant.sandbox.trust()
    keys = {"own", "telemetry.aware.scheduling.own/gas-disable-card0"}
    wait("nodes are labelled", lambda: all(keys <= cluster.node_labels(n).keys() for n in NODES) or None)
    wait("the policy has trust", lambda: tenant.condition("NotTrusted", "own")["status"] == "False" or None)
    tenant.sandbox.trust(granted=False)
    wait("the labels are gone", lambda: not any(keys & cluster.node_labels(n).keys() for n in NODES) or None)
    wait("trust is missing again", lambda: tenant.condition("NotTrusted", "own")["status"] == "True" or None)


def test_a_tenant_cannot_grant_trust(cluster: TenantCluster) -> None:
    labels = {"metadata": {"labels": {"nodewise.io/trusted": "true"}}}
    with pytest.raises(ApiError, match="forbidden"):
        cluster.attacker.api.patch(f"/api/v1/namespaces/{cluster.attacker.namespace}", labels)


def test_pods_of_a_tenant_without_trust_are_placed_by_its_policy(cluster: TenantCluster) -> None:
    """Metric names work without trust, for pods of the policy's namespace."""
    cluster.metrics.set("heat", {NODES[0]: 90, NODES[1]: 10})
    try:
        cluster.attacker.policy("cool", dontschedule=[HOT])
        space = cluster.attacker.namespace
        wait("the hot node is rejected", lambda: cluster.served.rejects(space, NODES[0], "cool") or None)
        wait("the cool node passes", lambda: not cluster.served.rejects(space, NODES[1], "cool") or None)
    finally:
        cluster.metrics.set("heat", dict.fromkeys(NODES, 90))


def test_explain_shows_a_tenant_the_rules_for_its_pods_and_nothing_of_others(cluster: TenantCluster) -> None:
    """The user has Kubernetes' own ClusterRole `edit` in one namespace, and no right in that of nodewise."""
    own, other = cluster.attacker, cluster.victim
    user = cluster.plane.user(f"edit-{own.namespace}")
    api_user_kubeconfigs.bind_cluster_role(cluster.plane.api, user.name, "edit", own.namespace)
    manager = cluster.plane.start_controller_manager("clusterrole-aggregation-controller")
    pods = f"/api/v1/namespaces/{own.namespace}/pods"
    wait("the role is aggregated", lambda: user.api.answers(pods) or None)
    manager.stop()
    for tenant, policy, pod in ((own, "hot", "waits"), (other, "victims-policy", "victims-pod")):
        tenant.policy(policy, dontschedule=[HOT])
        waiting = kubernetes_objects.pod(
            pod, labels={tenant_cluster.POLICY_LABEL: policy}, limits=extender_process.LIMITS
        )
        tenant.create(waiting)
    with cluster.plane.start_scheduler({"extenders": [cluster.served.entry()]}):
        for tenant, pod in ((own, "waits"), (other, "victims-pod")):
            tenant.sandbox.expect_event(pod, "NoNodePasses")
    place = [f"--kubeconfig={user.kubeconfig}", f"--nodewise-namespace={OWN_NAMESPACE}"]
    rule = f"telemetry policy {own.namespace}/hot: heat GreaterThan 80"
    for form in ("text", "json"):
        done = read_only_commands.run("explain", f"{own.namespace}/waits", *place, "-o", form)
        assert done.returncode == 0, done.stderr
        assert f"none of {len(NODES)} candidates passes: {len(NODES)} {rule}" in done.stdout
        assert f"to reach the replicas in namespace {OWN_NAMESPACE} you need the rights" in done.stdout
        for hidden in ("victims-policy", "victims-pod", other.namespace, "heat 90"):
            assert hidden not in done.stdout + done.stderr
    denied = read_only_commands.run("explain", f"{other.namespace}/victims-pod", *place)
    assert (denied.returncode, denied.stdout) == (1, "")
    assert "victims-policy" not in denied.stderr


@pytest.fixture
def trusted(cluster: TenantCluster) -> Iterator[TenantCluster]:
    """Both tenants may label nodes, each in a namespace of its own."""
    for tenant in (cluster.attacker, cluster.victim):
        tenant.sandbox.trust()
    yield cluster
    for tenant in (cluster.attacker, cluster.victim):
        tenant.sandbox.trust(granted=False)


def _wide_policy(tenant: Tenant, name: str, rules: int) -> Object:
    """A policy with 16 labels in each rule. Its keys contain the name of the policy."""
    labels = [[f"{rule:02}-{place:02}=v" for place in range(16)] for rule in range(rules)]
    return tenant.policy(
        name, labeling=[HOT | {"target": place, "labels": labels[place]} for place in range(rules)]
    )


def test_labels_of_a_tenant_neither_fill_nodes_nor_stop_the_labels_of_others(trusted: TenantCluster) -> None:
    """Three policies request 4,800 labels, a megabyte on each node; then no label could be written any more."""
    for number in range(3):
        _wide_policy(trusted.attacker, f"{number}{'-' * 150}{number}", 100)
    trusted.victim.policy("pol", labeling=[HOT | {"labels": ["victim=yes"]}])
    key = "telemetry.aware.scheduling.pol/victim"
    wait("the victim's labels", lambda: all(key in trusted.node_labels(node) for node in NODES) or None)
    trusted.settle()
    for node in NODES:
        labels = trusted.node_labels(node)
        assert sum(len(name) + len(value) for name, value in labels.items()) < 20_000
    valid = trusted.attacker.condition("Valid", f"0{'-' * 150}0")
    assert valid["status"] == "False"
    assert "1600 different node labels; expected at most 16 per policy" in valid["message"]


def test_a_namespace_has_64_labels_on_a_node(trusted: TenantCluster) -> None:
    for number in range(4):
        _wide_policy(trusted.attacker, f"p{number}", 1)
    prefix = "telemetry.aware.scheduling.p"

    def count() -> int:
        return sum(name.startswith(prefix) for name in trusted.node_labels(NODES[0]))

    wait("all 64 labels", lambda: count() == 64 or None)
    assert trusted.attacker.condition("BudgetExceeded", "p3")["status"] in ("", "False")
    _wide_policy(trusted.attacker, "p4", 1)
    wait(
        "the budget",
        lambda: trusted.attacker.condition("BudgetExceeded", "p4")["status"] == "True" or None,
    )
    trusted.settle()
    assert count() == 64
    message = trusted.attacker.condition("BudgetExceeded", "p4")["message"]
    assert "request 80 labels, at most 64" in message


def test_waiting_pods_of_a_tenant_do_not_end_the_enforcement_of_a_cluster_policy(
    cluster: TenantCluster,
) -> None:
    spec = {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app": "web"}},
        "avoid": [{"metric": "heat", "above": 80}],
        "guard": {"maxWaitingPods": 2, "within": "1s"},
    }
    made = cluster.plane.api.create(placement_policy_specs.policy(spec, "ClusterPlacementPolicy", "guarded"))

    def create_waiting_pods(tenant: Tenant, count: int) -> None:
        pods = [kubernetes_objects.pod(f"waits-{number}", labels={"app": "web"}) for number in range(count)]
        tenant.put_waiting_pods(pods, "0/2 nodes are available: 2 cluster placement policy guarded: no.")

    def message() -> str | None:
        status = cluster.plane.api.get(path_of(made)).get("status", {})
        return status.get("steppedBack", {}).get("message")

    try:
        create_waiting_pods(cluster.attacker, 10)
        cluster.settle()
        assert message() is None
        # pods of others have an effect, and those of the attacker still do not count
        create_waiting_pods(cluster.victim, 3)
        expected = "3 pods waited because of it in all namespaces but one, more than 2 for "
        text = wait("it steps back", message, show=lambda: cluster.plane.api.get(path_of(made)).get("status"))
        assert text.startswith(expected)
    finally:
        cluster.plane.api.delete(path_of(made))
