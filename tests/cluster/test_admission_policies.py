"""The shipped admission policies: writes that each account may not make, although RBAC allows them."""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from tests.cluster import (
    admission_policy_waits,
    api_user_kubeconfigs,
    extender_process,
    kubernetes_objects,
    rbac_rights_comparison,
)
from tests.cluster.api_client import JSON_PATCH, MERGE, ApiError, Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.audit_log_reader import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.rbac_rights_comparison import ApiRight

pytestmark = pytest.mark.kubernetes_versions

NAMESPACE: Final = "nodewise"
MANIFESTS: Final = ("rbac.yaml", "gpu.yaml", "annotator.yaml", "trust.yaml")
APPLY: Final = "application/apply-patch+yaml"
STRATEGIC: Final = "application/strategic-merge-patch+json"
NODE: Final = "/api/v1/nodes/n1"
STATUS: Final = f"{NODE}/status"
PODS: Final = "/api/v1/namespaces/tenant/pods"
POD: Final = f"{PODS}/web"
ZONE: Final = "topology.kubernetes.io/zone"
OURS: Final = "telemetry.aware.scheduling."
DESCHEDULE: Final = "gpu.aware.scheduling/deschedule-pod"
TRUSTED: Final = "nodewise.io/trusted"
GATED: Final = f"{PODS}/gated"
GATES: Final = "/spec/schedulingGates"
VERDICT: Final = "policy.nodewise.node-restriction.kubernetes.io/uid"


class WriteRequest(NamedTuple):
    """A write request."""

    path: str
    body: Any
    kind: str = MERGE
    """The content type of a patch; `POST` and `PUT` mean these methods."""
    force: bool = False
    """The parameter `force` of a server-side apply."""

    def send(self, user: User, *, dry_run: bool = False) -> Object:
        method, headers = "PATCH", {"Content-Type": self.kind}
        if self.kind in {"POST", "PUT"}:
            method, headers = self.kind, {}
        params = admission_policy_waits.DRY_RUN if dry_run else {}
        if self.kind == APPLY:
            params = {**params, "fieldManager": "nodewise-telemetry", "force": str(self.force).lower()}
        answer: Object = user.api.request(
            method, self.path, json=self.body, headers=headers, params=params
        ).json()
        return answer


def meta(**fields: Any) -> Object:
    return {"metadata": fields}


def labels(**values: str | None) -> Object:
    return meta(labels=values)


def label(key: str, value: str | None) -> Object:
    return meta(labels={key: value})


def annotation(key: str, value: str | None) -> Object:
    return meta(annotations={key: value})


def applied(name: str, **fields: Any) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **fields}}


def binding(**fields: Any) -> Object:
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "web", **fields}, "target": target}


def node() -> Object:
    """A node with an example of each field that other programs write."""
    made = kubernetes_objects.node("n1")
    made["metadata"]["labels"] = {
        "kubernetes.io/hostname": "n1",
        "node-role.kubernetes.io/worker": "",
        "team": "a",
        "cool": "violating",
        f"{OURS}p/gas-disable-card0": "true",
        f"{VERDICT}2": "ok",
        ZONE: "z1",
    }
    made["metadata"]["annotations"] = {"owner": "somebody", "nodewise.io/gpu-cards": "[]", "free-cpu": "1"}
    made["metadata"]["finalizers"] = ["example.org/keep"]
    made["spec"] = {"taints": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]}
    return made


IN_STATUS: Final = {
    "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}],
    "images": [{"names": ["registry.example/web:1"], "sizeBytes": 1}],
    "volumesInUse": ["kubernetes.io/csi/a"],
}


def pod() -> Object:
    made = kubernetes_objects.pod("web", labels={"app": "web"})
    made["metadata"]["annotations"] = {"owner": "somebody"}
    return made | {"metadata": made["metadata"] | {"namespace": "tenant"}}


EXCLUDING: Final = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}
            ]
        }
    }
}
"""Node affinity that excludes a node by name."""


def gated_pod() -> Object:
    """A pod with a gate of its own and the one of native mode."""
    made = kubernetes_objects.pod("gated")
    gates = [{"name": "example.org/wait"}, {"name": "nodewise.io/policy-not-active"}]
    return made | {
        "metadata": {"name": "gated", "namespace": "tenant"},
        "spec": made["spec"] | {"schedulingGates": gates},
    }


def ephemeral() -> Object:
    return {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}}


OWNER: Final = {"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}

NODE_FORBIDDEN: Final = {
    "another's label": WriteRequest(NODE, labels(team="b")),
    "a new label": WriteRequest(NODE, labels(zone="a")),
    "another's label removed": WriteRequest(NODE, labels(team=None)),
    "another's label overwritten with violating": WriteRequest(NODE, labels(team="violating")),
    "a violating label with another value": WriteRequest(NODE, labels(cool="healthy")),
    "a new label with an empty value": WriteRequest(NODE, labels(team="")),
    "violating with a domain": WriteRequest(NODE, label("example.org/cool", "violating")),
    "a label of Kubernetes": WriteRequest(NODE, label("kubernetes.io/os", "violating")),
    "a label below kubernetes.io": WriteRequest(NODE, label("topology.kubernetes.io/region", "r")),
    "another zone": WriteRequest(NODE, label(ZONE, "z2")),
    "a label below k8s.io": WriteRequest(NODE, label("node.k8s.io/x", "violating")),
    "a role": WriteRequest(NODE, label("node-role.kubernetes.io/control-plane", "")),
    "a role removed": WriteRequest(NODE, label("node-role.kubernetes.io/worker", None)),
    "a verdict with another domain": WriteRequest(NODE, label(f"x.{VERDICT}", "violating")),
    "a domain that ends like ours": WriteRequest(NODE, label("x.telemetry.aware.scheduling.p/y", "1")),
    "a label of nodewise itself": WriteRequest(NODE, label("nodewise.io/x", "1")),
    "a domain that ends like a policy's": WriteRequest(NODE, label("gpunodewise.io/x", "1")),
    "a domain that contains a policy's": WriteRequest(NODE, label("gpu.nodewise.io.example.org/x", "1")),
    "a domain that starts like ours": WriteRequest(NODE, label("telemetry.aware.schedulingp/y", "1")),
    "all labels removed": WriteRequest(NODE, meta(labels=None)),
    "all labels replaced": WriteRequest(
        NODE, meta(labels={"$patch": "replace", f"{OURS}p/gas-disable-card0": "1"}), STRATEGIC
    ),
    "a label removed by a JSON patch": WriteRequest(
        NODE, [{"op": "remove", "path": "/metadata/labels/team"}], JSON_PATCH
    ),
    "labels moved by a JSON patch": WriteRequest(
        NODE, [{"op": "move", "from": "/metadata/labels/team", "path": "/metadata/labels/crew"}], JSON_PATCH
    ),
    "a forced apply": WriteRequest(NODE, applied("n1", labels={"team": "violating"}), APPLY, force=True),
    "a label by way of the status": WriteRequest(STATUS, labels(zone="a")),
    "an annotation by way of the status": WriteRequest(STATUS, annotation("a", "b")),
    "a finalizer by way of the status": WriteRequest(STATUS, meta(finalizers=["a.example/b"])),
    "an annotation": WriteRequest(
        NODE, annotation("cluster-autoscaler.kubernetes.io/scale-down-disabled", "true")
    ),
    "another's annotation": WriteRequest(NODE, annotation("owner", "nodewise")),
    "another's annotation removed": WriteRequest(NODE, annotation("owner", None)),
    "an annotation that people write for nodewise": WriteRequest(
        NODE, annotation("nodewise.io/gpu-cards", "[1]")
    ),
    "all annotations removed": WriteRequest(NODE, meta(annotations=None)),
    "a finalizer": WriteRequest(NODE, meta(finalizers=["example.org/keep", "a.example/b"])),
    "finalizers removed": WriteRequest(NODE, meta(finalizers=None)),
    "an owner": WriteRequest(NODE, meta(ownerReferences=[OWNER])),
    "a name's prefix": WriteRequest(NODE, meta(generateName="n")),
    "a taint": WriteRequest(NODE, {"spec": {"taints": [{"key": "nodewise.io/x", "effect": "NoExecute"}]}}),
    "taints removed": WriteRequest(NODE, {"spec": {"taints": None}}),
    "unschedulable": WriteRequest(NODE, {"spec": {"unschedulable": True}}),
    "a provider's id": WriteRequest(NODE, {"spec": {"providerID": "x://y"}}),
    "addresses of pods": WriteRequest(
        NODE, {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}
    ),
    "more memory": WriteRequest(STATUS, {"status": {"capacity": {"memory": "999Gi"}}}),
    "another extended resource": WriteRequest(STATUS, {"status": {"capacity": {"gpu.intel.com/i915": "9"}}}),
    "a resource that looks like ours": WriteRequest(
        STATUS, {"status": {"capacity": {"telemetry/other": "9"}}}
    ),
    "less room": WriteRequest(STATUS, {"status": {"allocatable": {"pods": None}}}),
    "no capacity": WriteRequest(STATUS, {"status": {"capacity": None}}),
    "conditions": WriteRequest(STATUS, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
    "conditions by a JSON patch": WriteRequest(
        STATUS, [{"op": "replace", "path": "/status/conditions/0/status", "value": "False"}], JSON_PATCH
    ),
    "conditions by a strategic patch": WriteRequest(
        STATUS, {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}, STRATEGIC
    ),
    "memory by a forced apply": WriteRequest(
        STATUS, applied("n1") | {"status": {"allocatable": {"memory": "999Gi"}}}, APPLY, force=True
    ),
    "no conditions": WriteRequest(STATUS, {"status": {"conditions": None}}),
    "an address": WriteRequest(
        STATUS, {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.66"}]}}
    ),
    "images": WriteRequest(
        STATUS, {"status": {"images": [{"names": ["registry.example/evil:1"], "sizeBytes": 1}]}}
    ),
    "no images": WriteRequest(STATUS, {"status": {"images": None}}),
    "volumes": WriteRequest(STATUS, {"status": {"volumesInUse": None}}),
    "what runs there": WriteRequest(STATUS, {"status": {"nodeInfo": {"kernelVersion": "0"}}}),
    "the kubelet's port": WriteRequest(
        STATUS, {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}
    ),
}
"""Changes of a Node that nodewise's account may not make."""

NODE_ALLOWED: Final = {
    "a violation": WriteRequest(NODE, labels(warm="violating")),
    "a label of a cluster policy": WriteRequest(NODE, label("gpu.nodewise.io/suspect", "true")),
    "the end of a violation": WriteRequest(NODE, labels(cool=None)),
    "labels of a policy": WriteRequest(NODE, label(f"{OURS}p/gas-disable-card1", "true")),
    "another value of a policy's label": WriteRequest(NODE, label(f"{OURS}p/gas-disable-card0", "PCI_GROUP")),
    "the end of a policy's label": WriteRequest(NODE, label(f"{OURS}p/gas-disable-card0", None)),
    "a verdict": WriteRequest(NODE, label(VERDICT, "violating")),
    "another verdict": WriteRequest(NODE, label(f"{VERDICT}2", "violating")),
    "the end of a verdict": WriteRequest(NODE, label(f"{VERDICT}2", None)),
    "a server-side apply": WriteRequest(
        NODE, applied("n1", labels={"warm": "violating", f"{OURS}p/x": "1"}), APPLY
    ),
    "a waking": WriteRequest(NODE, annotation("nodewise.io/woken", "2026-01-01T00:00:00Z")),
    "statistics": WriteRequest(
        NODE, meta(annotations={"free-cpu": "2", "nodewise.io/annotated-at": "2026-01-01T00:00:00Z"})
    ),
    "the end of statistics": WriteRequest(NODE, annotation("free-cpu", None)),
    "the advertised resource": WriteRequest(
        STATUS,
        {
            "status": {
                "capacity": {"telemetry/scheduling": "1000"},
                "allocatable": {"telemetry/scheduling": "1000"},
            }
        },
    ),
    "nothing": WriteRequest(NODE, {}),
    "nothing of the status": WriteRequest(STATUS, {}),
}

ANNOTATOR_FORBIDDEN: Final = {
    name: NODE_FORBIDDEN[name]
    for name in (
        "a new label",
        "another's label removed",
        "an annotation",
        "another's annotation removed",
        "an annotation that people write for nodewise",
        "all annotations removed",
        "a finalizer",
        "an owner",
        "a taint",
        "unschedulable",
    )
} | {
    "a violation": NODE_ALLOWED["a violation"],
    "labels of a policy": NODE_ALLOWED["labels of a policy"],
    "a waking": NODE_ALLOWED["a waking"],
}
ANNOTATOR_ALLOWED: Final = {name: NODE_ALLOWED[name] for name in ("statistics", "the end of statistics")}

POD_FORBIDDEN: Final = {
    "a label": WriteRequest(POD, labels(app="other")),
    "a label removed": WriteRequest(POD, labels(app=None)),
    "all labels removed": WriteRequest(POD, meta(labels=None)),
    "the label of descheduling with another value": WriteRequest(POD, label(DESCHEDULE, "yes")),
    "an annotation": WriteRequest(POD, annotation("owner", "nodewise")),
    "an annotation removed": WriteRequest(POD, annotation("owner", None)),
    "all annotations removed": WriteRequest(POD, meta(annotations=None)),
    "cards without a Binding": WriteRequest(POD, annotation("gas-container-cards", "card0")),
    "cards of a container without a Binding": WriteRequest(POD, annotation("cards.nodewise.io/c", "0")),
    "a finalizer": WriteRequest(POD, meta(finalizers=["a.example/b"])),
    "an owner": WriteRequest(POD, meta(ownerReferences=[OWNER])),
    "a name's prefix": WriteRequest(POD, meta(generateName="w")),
    "an image": WriteRequest(
        POD, [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}], JSON_PATCH
    ),
    "a toleration": WriteRequest(
        POD, [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}], JSON_PATCH
    ),
    "a deadline": WriteRequest(POD, {"spec": {"activeDeadlineSeconds": 1}}),
    "another gate removed": WriteRequest(GATED, [{"op": "remove", "path": f"{GATES}/0"}], JSON_PATCH),
    "all gates removed": WriteRequest(GATED, [{"op": "remove", "path": GATES}], JSON_PATCH),
    "the gate removed and a toleration": WriteRequest(
        GATED,
        [
            {"op": "remove", "path": f"{GATES}/1"},
            {"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}},
        ],
        JSON_PATCH,
    ),
    "the gate removed and a node selector": WriteRequest(
        GATED,
        [
            {"op": "remove", "path": f"{GATES}/1"},
            {"op": "add", "path": "/spec/nodeSelector", "value": {"zone": "z"}},
        ],
        JSON_PATCH,
    ),
    "node affinity of a pod whose other gate waits": WriteRequest(
        f"{PODS}/foreign-gate", [{"op": "add", "path": "/spec/affinity", "value": EXCLUDING}], JSON_PATCH
    ),
    "a label by the Binding": WriteRequest(f"{POD}/binding", binding(labels={"app": "other"}), "POST"),
    "the label of descheduling by the Binding": WriteRequest(
        f"{POD}/binding", binding(labels={DESCHEDULE: "gpu"}), "POST"
    ),
    "an annotation by the Binding": WriteRequest(
        f"{POD}/binding", binding(annotations={"owner": "x"}), "POST"
    ),
    "an annotation of AppArmor by the Binding": WriteRequest(
        f"{POD}/binding",
        binding(annotations={"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}),
        "POST",
    ),
}
"""Changes of a Pod that nodewise's account may not make."""

POD_ALLOWED: Final = {
    "the label of descheduling": WriteRequest(POD, label(DESCHEDULE, "gpu")),
    "that a bind was dropped": WriteRequest(
        POD, annotation("nodewise.io/claim-dropped", "2026-01-01T00:00:00Z")
    ),
    "the gate of native mode removed": WriteRequest(
        GATED, [{"op": "remove", "path": f"{GATES}/1"}], JSON_PATCH
    ),
    "the gate of native mode removed and a node excluded": WriteRequest(
        GATED,
        [
            {"op": "add", "path": "/spec/affinity", "value": EXCLUDING},
            {"op": "remove", "path": f"{GATES}/1"},
        ],
        JSON_PATCH,
    ),
    "nothing": WriteRequest(POD, {}),
    "a Binding": WriteRequest(f"{POD}/binding", binding(), "POST"),
    "a Binding with cards": WriteRequest(
        f"{POD}/binding",
        binding(
            annotations={
                "gas-ts": "1",
                "gas-container-cards": "card0",
                "gas-container-tiles": "card0:gt0",
                "cards.nodewise.io/c": "0",
            }
        ),
        "POST",
    ),
}

BEYOND_RBAC: Final = {
    "a Node": WriteRequest("/api/v1/nodes", kubernetes_objects.node("n9"), "POST"),
    "a Node by an apply": WriteRequest("/api/v1/nodes/n9", applied("n9"), APPLY),
    "a Pod": WriteRequest(PODS, kubernetes_objects.pod("other"), "POST"),
    "a Pod by an apply": WriteRequest(
        f"{PODS}/other",
        {"apiVersion": "v1", "kind": "Pod", **kubernetes_objects.pod("other")},
        APPLY,
    ),
    "a Pod's status": WriteRequest(f"{POD}/status", {"status": {"phase": "Failed"}}),
    "a label by way of a Pod's status": WriteRequest(f"{POD}/status", labels(app="other")),
    "an ephemeral container": WriteRequest(f"{POD}/ephemeralcontainers", ephemeral(), STRATEGIC),
    "an eviction": WriteRequest(
        f"{POD}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web", "namespace": "tenant"}},
        "POST",
    ),
    "a Binding of the old kind": WriteRequest("/api/v1/namespaces/tenant/bindings", binding(), "POST"),
}
"""Writes that the shipped RBAC rules refuse, and that the policies refuse independent of RBAC."""


class GuardedCluster(NamedTuple):
    plane: ControlPlane
    log: AuditLog
    nodewise: User
    annotator: User

    def version(self, path: str) -> str:
        return str(self.plane.api.get(path)["metadata"]["resourceVersion"])

    def expect_forbidden(self, user: User, write: WriteRequest) -> str:
        """Checks that a policy refuses the write and that nothing has changed. Returns the message."""
        before = self.version(NODE), self.version(POD)
        with pytest.raises(ApiError) as refused:
            write.send(user)
        assert admission_policy_waits.DENIED in str(refused.value), refused.value
        assert "resulted in error" not in str(refused.value), "an expression fails"
        assert (self.version(NODE), self.version(POD)) == before
        return str(refused.value)


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, audit_log: AuditLog) -> GuardedCluster:
    for name in MANIFESTS:
        plane.kubectl("apply", "-f", str(extender_process.ROOT / "deploy" / name))
    plane.api.create(kubernetes_objects.namespace("tenant"))
    plane.api.create(node())
    plane.api.patch(STATUS, {"status": IN_STATUS})
    plane.api.create(pod())
    plane.api.create(gated_pod())
    foreign = kubernetes_objects.pod("foreign-gate")
    gate = {"schedulingGates": [{"name": "example.org/wait"}]}
    metadata = {"name": "foreign-gate", "namespace": "tenant"}
    plane.api.create(foreign | {"metadata": metadata, "spec": foreign["spec"] | gate})
    accounts = [plane.service_account(name, NAMESPACE) for name in ("nodewise", "nodewise-annotator")]
    cluster = GuardedCluster(plane, audit_log, *accounts)
    wait_enforced(cluster)
    return cluster


def wait_enforced(cluster: GuardedCluster) -> None:
    """Waits until every policy is enforced for an account that it applies to."""
    tool = cluster.plane.user("enforced", [api_user_kubeconfigs.rule("patch", "namespaces")])
    for user, write in (
        (cluster.nodewise, NODE_FORBIDDEN["a taint"]),
        (cluster.nodewise, POD_FORBIDDEN["an image"]),
        (cluster.annotator, NODE_FORBIDDEN["a taint"]),
        (tool, WriteRequest("/api/v1/namespaces/tenant", label(TRUSTED, "true"))),
    ):
        admission_policy_waits.wait_denied(lambda user=user, write=write: write.send(user, dry_run=True))  # type: ignore[misc]


@pytest.mark.parametrize("what", NODE_FORBIDDEN)
def test_nodewise_does_not_change_of_a_node(cluster: GuardedCluster, what: str) -> None:
    assert "nodewise-nodes" in cluster.expect_forbidden(cluster.nodewise, NODE_FORBIDDEN[what])


def test_nodewise_changes_nothing_else_of_a_node_together_with_own_labels(cluster: GuardedCluster) -> None:
    """Writes of nothing but own labels skip the comparisons."""
    added = {f"{OURS}p/gas-disable-card7": "true", VERDICT: "violating"}
    for what, write in NODE_FORBIDDEN.items():
        body: Any = write.body
        if isinstance(body, list):
            path = f"/metadata/labels/{VERDICT.replace('/', '~1')}"
            body = [*body, {"op": "add", "path": path, "value": "violating"}]
        else:
            metadata = body.get("metadata", {})
            own = dict.fromkeys(node()["metadata"]["labels"]) if metadata.get("labels", 0) is None else {}
            own |= (metadata.get("labels") or {}) | added
            body = body | {"metadata": metadata | {"labels": own}}
        assert "nodewise-nodes" in cluster.expect_forbidden(cluster.nodewise, write._replace(body=body)), what


@pytest.mark.parametrize(
    "what",
    [what for what, write in NODE_FORBIDDEN.items() if write.path == STATUS and "metadata" not in write.body]
    + ["memory by a forced apply"],
)
def test_a_write_to_the_node_itself_leaves_its_status_as_it_is(cluster: GuardedCluster, what: str) -> None:
    """The policy compares the status only in writes to the subresource."""
    before = cluster.plane.api.get(NODE)["status"]
    assert NODE_FORBIDDEN[what]._replace(path=NODE).send(cluster.nodewise)["status"] == before


def test_the_audit_log_tells_a_denial(cluster: GuardedCluster) -> None:
    """The tests of rights rely on this to check that no policy refused a request of a run."""
    cluster.expect_forbidden(cluster.nodewise, NODE_FORBIDDEN["a taint"])
    *_, last = cluster.log.requests(f"system:serviceaccount:{NAMESPACE}:nodewise")
    assert last.is_refused


@pytest.mark.parametrize("what", NODE_ALLOWED)
def test_nodewise_changes_of_a_node(cluster: GuardedCluster, what: str) -> None:
    NODE_ALLOWED[what].send(cluster.nodewise, dry_run=True)


@pytest.mark.parametrize("what", ANNOTATOR_FORBIDDEN)
def test_the_annotator_does_not_change_of_a_node(cluster: GuardedCluster, what: str) -> None:
    assert "nodewise-annotator" in cluster.expect_forbidden(cluster.annotator, ANNOTATOR_FORBIDDEN[what])


@pytest.mark.parametrize("what", ANNOTATOR_ALLOWED)
def test_the_annotator_changes_of_a_node(cluster: GuardedCluster, what: str) -> None:
    ANNOTATOR_ALLOWED[what].send(cluster.annotator, dry_run=True)


@pytest.mark.parametrize("what", POD_FORBIDDEN)
def test_nodewise_does_not_change_of_a_pod(cluster: GuardedCluster, what: str) -> None:
    assert "nodewise-pods" in cluster.expect_forbidden(cluster.nodewise, POD_FORBIDDEN[what])


@pytest.mark.parametrize("what", POD_ALLOWED)
def test_nodewise_changes_of_a_pod(cluster: GuardedCluster, what: str) -> None:
    POD_ALLOWED[what].send(cluster.nodewise, dry_run=True)


def test_the_label_of_descheduling_is_removed_again(cluster: GuardedCluster) -> None:
    cluster.plane.api.patch(POD, label(DESCHEDULE, "gpu"))
    WriteRequest(POD, label(DESCHEDULE, None)).send(cluster.nodewise)
    assert DESCHEDULE not in cluster.plane.api.get(POD)["metadata"]["labels"]


def test_the_owner_of_a_field_gains_no_right_to_it(cluster: GuardedCluster) -> None:
    """managedFields may name nodewise as the owner of a foreign label; an apply without it is still refused."""
    own = {
        "manager": "nodewise-telemetry",
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}},
    }
    patch = [{"op": "replace", "path": "/metadata/managedFields", "value": [own]}]
    WriteRequest(NODE, patch, JSON_PATCH).send(cluster.nodewise)
    message = cluster.expect_forbidden(cluster.nodewise, WriteRequest(NODE, applied("n1", labels={}), APPLY))
    assert "labels of Nodes: team" in message


@pytest.fixture
def wider(cluster: GuardedCluster) -> Iterator[None]:
    """Grants the account every right to Nodes and Pods."""
    name = "wider"
    cluster.plane.api.create(
        {
            "apiVersion": f"{api_user_kubeconfigs.RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [
                api_user_kubeconfigs.rule(
                    "*", "nodes nodes/status pods bindings */status */ephemeralcontainers */eviction"
                )
            ],
        }
    )
    account = f"system:serviceaccount:{NAMESPACE}:nodewise"
    api_user_kubeconfigs.bind(cluster.plane.api, account, name)
    right = ApiRight("create", "", "pods")
    wait(
        "the right is granted",
        lambda: rbac_rights_comparison.holds(cluster.plane.api, account, right) or None,
    )
    yield
    group = f"/apis/{api_user_kubeconfigs.RBAC}/v1"
    cluster.plane.api.delete(f"{group}/clusterrolebindings/{name}-{account.replace(':', '-')}")
    cluster.plane.api.delete(f"{group}/clusterroles/{name}")
    wait(
        "the right is gone",
        lambda: not rbac_rights_comparison.holds(cluster.plane.api, account, right) or None,
    )


@pytest.mark.parametrize("what", BEYOND_RBAC)
def test_rbac_refuses(cluster: GuardedCluster, what: str) -> None:
    with pytest.raises(ApiError, match=r"cannot (create|patch) resource"):
        BEYOND_RBAC[what].send(cluster.nodewise)


def test_the_policies_do_not_depend_on_rbac(cluster: GuardedCluster, wider: None) -> None:
    for write in BEYOND_RBAC.values():
        cluster.expect_forbidden(cluster.nodewise, write)
    whole = cluster.plane.api.get(NODE)
    whole["spec"]["unschedulable"] = True
    cluster.expect_forbidden(cluster.nodewise, WriteRequest(NODE, whole, "PUT"))


def test_others_write_as_before(cluster: GuardedCluster) -> None:
    for write in [*NODE_FORBIDDEN.values(), *POD_FORBIDDEN.values()]:
        if write.body != NODE_FORBIDDEN["an owner"].body:
            _send_leniently(cluster.plane.admin, write)


def _send_leniently(user: User, write: WriteRequest) -> None:
    """Sends a write that no policy may refuse. The API server may refuse it for other reasons."""
    assert not _is_denied(user, write), write


def _is_denied(user: User, write: WriteRequest) -> bool:
    try:
        write.send(user, dry_run=True)
    except ApiError as error:
        return admission_policy_waits.DENIED in str(error)
    return False


def test_a_node_with_thousands_of_labels_stays_within_the_cost_limit(cluster: GuardedCluster) -> None:
    big = kubernetes_objects.node("big")
    big["metadata"]["labels"] = {f"example.org/feature-number-{number}": "x" * 60 for number in range(5000)}
    big["metadata"]["annotations"] = {f"example.org/note-{number}": "x" * 100 for number in range(2000)}
    cluster.plane.api.create(big)
    images = [{"names": [f"registry.example/{number}@{'0' * 64}"], "sizeBytes": 1} for number in range(500)]
    cluster.plane.api.patch("/api/v1/nodes/big/status", {"status": {"images": images}})
    for user, body in (
        (cluster.nodewise, labels(warm="violating")),
        (cluster.nodewise, annotation("nodewise.io/woken", "x")),
        (cluster.annotator, annotation("free-cpu", "2")),
    ):
        WriteRequest("/api/v1/nodes/big", body).send(user, dry_run=True)


def test_the_expressions_have_no_type_errors(cluster: GuardedCluster) -> None:
    """The API server checks every expression against the types that a policy matches."""
    names = [
        manifest["metadata"]["name"]
        for name in (*MANIFESTS, "cpu-agent.yaml")
        for manifest in extender_process.manifest(name)
        if manifest["kind"] == "ValidatingAdmissionPolicy"
    ]
    shipped = [
        manifest
        for manifest in extender_process.manifest("cpu-agent.yaml")
        if manifest["kind"] == "ValidatingAdmissionPolicy"
    ]
    for manifest in shipped:
        cluster.plane.api.ensure(manifest)
    root = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    process = cluster.plane.start_controller_manager("validatingadmissionpolicy-status-controller")
    try:
        for name in names:
            path = f"{root}/{name}"
            checked = wait(
                f"{name} is checked",
                lambda path=path: cluster.plane.api.get(path).get("status", {}).get("typeChecking"),  # type: ignore[misc]
            )
            assert checked.get("expressionWarnings", []) == [], json.dumps(checked, indent=1)
    finally:
        process.stop()
        for manifest in shipped:
            cluster.plane.api.delete(f"{root}/{manifest['metadata']['name']}")


SPACE: Final = "/api/v1/namespaces/team"


@pytest.fixture
def space(cluster: GuardedCluster) -> Iterator[str]:
    """A trusted namespace."""
    made = kubernetes_objects.namespace("team")
    made["metadata"]["labels"] = {TRUSTED: "true"}
    cluster.plane.api.ensure(made)
    yield "team"
    cluster.plane.api.patch(SPACE, label(TRUSTED, "true"))


@pytest.fixture(scope="module")
def tool(cluster: GuardedCluster) -> User:
    """A self-service tool: it has all rights to namespaces, except the verb `trust`."""
    verbs = api_user_kubeconfigs.rule(
        "get list create update patch delete", "namespaces namespaces/status namespaces/finalize"
    )
    return cluster.plane.user("tool", [verbs])


def new(name: str = "fresh", **values: str) -> Object:
    made = kubernetes_objects.namespace(name)
    made["metadata"]["labels"] = values
    return made


def trusted(value: str) -> Object:
    made = new("fresh")
    made["metadata"]["labels"] = {TRUSTED: value}
    return made


NAMESPACES: Final = "/api/v1/namespaces"
TENANT: Final = f"{NAMESPACES}/tenant"
TRUST_FORBIDDEN: Final = {
    "the label": WriteRequest(TENANT, label(TRUSTED, "true")),
    "the label with any value": WriteRequest(TENANT, label(TRUSTED, "false")),
    "the label without a value": WriteRequest(TENANT, label(TRUSTED, "")),
    "another value": WriteRequest(SPACE, label(TRUSTED, "yes")),
    "a new namespace with the label": WriteRequest(NAMESPACES, trusted("true"), "POST"),
    "the label by way of the status": WriteRequest(f"{TENANT}/status", label(TRUSTED, "true")),
    "the label by an apply": WriteRequest(
        TENANT,
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "tenant", "labels": {TRUSTED: "true"}},
        },
        APPLY,
        force=True,
    ),
    "a new namespace by an apply": WriteRequest(f"{NAMESPACES}/fresh", trusted("true"), APPLY),
    "the label by finalizing": WriteRequest(f"{TENANT}/finalize", new("tenant"), "PUT"),
}


@pytest.mark.parametrize("what", TRUST_FORBIDDEN)
def test_a_namespace_is_trusted_only_with_the_verb(
    cluster: GuardedCluster, tool: User, space: str, what: str
) -> None:
    write = TRUST_FORBIDDEN[what]
    if write.kind == "PUT":
        whole = cluster.plane.api.get(TENANT)
        whole["metadata"]["labels"][TRUSTED] = "true"
        write = write._replace(body=whole)
    with pytest.raises(ApiError, match=r"needs the verb trust on namespaces\.nodewise\.io") as refused:
        write.send(tool)
    assert refused.value.code == 403


def test_a_role_binding_in_a_namespace_grants_no_trust(cluster: GuardedCluster) -> None:
    user = cluster.plane.user("tenant-admin", [api_user_kubeconfigs.rule("patch", "namespaces")])
    cluster.plane.api.create(
        {
            "apiVersion": f"{api_user_kubeconfigs.RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "trust", "namespace": "tenant"},
            "roleRef": {
                "apiGroup": api_user_kubeconfigs.RBAC,
                "kind": "ClusterRole",
                "name": "nodewise-trust",
            },
            "subjects": [{"apiGroup": api_user_kubeconfigs.RBAC, "kind": "User", "name": user.name}],
        }
    )
    with pytest.raises(ApiError, match="needs the verb trust"):
        WriteRequest(TENANT, label(TRUSTED, "true")).send(user)


@pytest.mark.parametrize("role", ["nodewise-trust", "cluster-admin"])
def test_with_the_verb_namespaces_are_trusted(cluster: GuardedCluster, role: str) -> None:
    user = cluster.plane.user(f"by-{role}", [api_user_kubeconfigs.rule("create patch", "namespaces")])
    api_user_kubeconfigs.bind(cluster.plane.api, user.name, role)
    write = WriteRequest(TENANT, label(TRUSTED, "true"))
    admission_policy_waits.wait_allowed(lambda: write.send(user, dry_run=True))
    WriteRequest(NAMESPACES, trusted("true"), "POST").send(user, dry_run=True)


def test_the_right_to_trust_grants_no_other_right(cluster: GuardedCluster) -> None:
    user = cluster.plane.user("only-trust")
    api_user_kubeconfigs.bind(cluster.plane.api, user.name, "nodewise-trust")
    with pytest.raises(ApiError, match="cannot patch resource"):
        WriteRequest(TENANT, label(TRUSTED, "true")).send(user)


def test_no_other_write_of_a_namespace_needs_the_verb(
    cluster: GuardedCluster, tool: User, space: str
) -> None:
    """Every user who may write the namespace may revoke trust."""
    WriteRequest(NAMESPACES, new(team="a"), "POST").send(tool)
    for path in (f"{NAMESPACES}/fresh", SPACE):
        WriteRequest(path, labels(team="b")).send(tool)
        WriteRequest(path, meta(annotations={"a": "b"})).send(tool)
        whole = tool.api.get(path)
        WriteRequest(path, whole, "PUT").send(tool)
        WriteRequest(f"{path}/status", labels(team="c")).send(tool)
        WriteRequest(f"{path}/finalize", tool.api.get(path), "PUT").send(tool)
    WriteRequest(SPACE, label(TRUSTED, None)).send(tool)
    assert TRUSTED not in cluster.plane.api.get(SPACE)["metadata"]["labels"]
    WriteRequest(f"{NAMESPACES}/fresh", meta(labels=None)).send(tool)
    tool.api.delete(f"{NAMESPACES}/fresh")
