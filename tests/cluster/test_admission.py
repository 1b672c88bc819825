"""The admission policies that ship: what each account may not write, although RBAC would allow it."""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from tests.cluster import access, admission, extender_process, objects, rights
from tests.cluster.access import User
from tests.cluster.api import JSON_PATCH, MERGE, ApiError, Object
from tests.cluster.audit import AuditLog
from tests.cluster.controlplane import ControlPlane
from tests.cluster.rights import Right
from tests.cluster.test_namespaces import wait

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


class Write(NamedTuple):
    """One request that changes something."""

    path: str
    body: Any
    kind: str = MERGE
    """Content type of a patch; `POST` and `PUT` stand for these methods."""
    force: bool = False
    """Of a server-side apply."""

    def send(self, user: User, *, dry_run: bool = False) -> Object:
        method, headers = "PATCH", {"Content-Type": self.kind}
        if self.kind in {"POST", "PUT"}:
            method, headers = self.kind, {}
        params = admission.DRY_RUN if dry_run else {}
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
    """A node with something of everything that other programs write."""
    made = objects.node("n1")
    made["metadata"]["labels"] = {
        "kubernetes.io/hostname": "n1",
        "node-role.kubernetes.io/worker": "",
        "team": "a",
        "cool": "violating",
        f"{OURS}p/gas-disable-card0": "true",
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
    made = objects.pod("web", labels={"app": "web"})
    made["metadata"]["annotations"] = {"owner": "somebody"}
    return made | {"metadata": made["metadata"] | {"namespace": "tenant"}}


def ephemeral() -> Object:
    return {"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}}


OWNER: Final = {"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"}

NODE_FORBIDDEN: Final = {
    "another's label": Write(NODE, labels(team="b")),
    "a new label": Write(NODE, labels(zone="a")),
    "another's label removed": Write(NODE, labels(team=None)),
    "another's label overwritten with violating": Write(NODE, labels(team="violating")),
    "a violating label with another value": Write(NODE, labels(cool="healthy")),
    "a new label with an empty value": Write(NODE, labels(team="")),
    "violating with a domain": Write(NODE, label("example.org/cool", "violating")),
    "a label of Kubernetes": Write(NODE, label("kubernetes.io/os", "violating")),
    "a label below kubernetes.io": Write(NODE, label("topology.kubernetes.io/region", "r")),
    "another zone": Write(NODE, label(ZONE, "z2")),
    "a label below k8s.io": Write(NODE, label("node.k8s.io/x", "violating")),
    "a role": Write(NODE, label("node-role.kubernetes.io/control-plane", "")),
    "a role removed": Write(NODE, label("node-role.kubernetes.io/worker", None)),
    "a domain that ends like ours": Write(NODE, label("x.telemetry.aware.scheduling.p/y", "1")),
    "a domain that starts like ours": Write(NODE, label("telemetry.aware.schedulingp/y", "1")),
    "all labels removed": Write(NODE, meta(labels=None)),
    "all labels replaced": Write(
        NODE, meta(labels={"$patch": "replace", f"{OURS}p/gas-disable-card0": "1"}), STRATEGIC
    ),
    "a label removed by a JSON patch": Write(
        NODE, [{"op": "remove", "path": "/metadata/labels/team"}], JSON_PATCH
    ),
    "labels moved by a JSON patch": Write(
        NODE, [{"op": "move", "from": "/metadata/labels/team", "path": "/metadata/labels/crew"}], JSON_PATCH
    ),
    "a forced apply": Write(NODE, applied("n1", labels={"team": "violating"}), APPLY, force=True),
    "a label by way of the status": Write(STATUS, labels(zone="a")),
    "an annotation by way of the status": Write(STATUS, annotation("a", "b")),
    "a finalizer by way of the status": Write(STATUS, meta(finalizers=["a.example/b"])),
    "an annotation": Write(NODE, annotation("cluster-autoscaler.kubernetes.io/scale-down-disabled", "true")),
    "another's annotation": Write(NODE, annotation("owner", "nodewise")),
    "another's annotation removed": Write(NODE, annotation("owner", None)),
    "an annotation that people write for nodewise": Write(NODE, annotation("nodewise.io/gpu-cards", "[1]")),
    "all annotations removed": Write(NODE, meta(annotations=None)),
    "a finalizer": Write(NODE, meta(finalizers=["example.org/keep", "a.example/b"])),
    "finalizers removed": Write(NODE, meta(finalizers=None)),
    "an owner": Write(NODE, meta(ownerReferences=[OWNER])),
    "a name's prefix": Write(NODE, meta(generateName="n")),
    "a taint": Write(NODE, {"spec": {"taints": [{"key": "nodewise.io/x", "effect": "NoExecute"}]}}),
    "taints removed": Write(NODE, {"spec": {"taints": None}}),
    "unschedulable": Write(NODE, {"spec": {"unschedulable": True}}),
    "a provider's id": Write(NODE, {"spec": {"providerID": "x://y"}}),
    "addresses of pods": Write(NODE, {"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
    "more memory": Write(STATUS, {"status": {"capacity": {"memory": "999Gi"}}}),
    "another extended resource": Write(STATUS, {"status": {"capacity": {"gpu.intel.com/i915": "9"}}}),
    "a resource that looks like ours": Write(STATUS, {"status": {"capacity": {"telemetry/other": "9"}}}),
    "less room": Write(STATUS, {"status": {"allocatable": {"pods": None}}}),
    "no capacity": Write(STATUS, {"status": {"capacity": None}}),
    "conditions": Write(STATUS, {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
    "no conditions": Write(STATUS, {"status": {"conditions": None}}),
    "an address": Write(STATUS, {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.66"}]}}),
    "images": Write(STATUS, {"status": {"images": [{"names": ["registry.example/evil:1"], "sizeBytes": 1}]}}),
    "no images": Write(STATUS, {"status": {"images": None}}),
    "volumes": Write(STATUS, {"status": {"volumesInUse": None}}),
    "what runs there": Write(STATUS, {"status": {"nodeInfo": {"kernelVersion": "0"}}}),
    "the kubelet's port": Write(STATUS, {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}),
}
"""What nodewise's account may not change of a Node."""

NODE_ALLOWED: Final = {
    "a violation": Write(NODE, labels(warm="violating")),
    "the end of a violation": Write(NODE, labels(cool=None)),
    "labels of a policy": Write(NODE, label(f"{OURS}p/gas-disable-card1", "true")),
    "another value of a policy's label": Write(NODE, label(f"{OURS}p/gas-disable-card0", "PCI_GROUP")),
    "the end of a policy's label": Write(NODE, label(f"{OURS}p/gas-disable-card0", None)),
    "a server-side apply": Write(NODE, applied("n1", labels={"warm": "violating", f"{OURS}p/x": "1"}), APPLY),
    "a waking": Write(NODE, annotation("nodewise.io/woken", "2026-01-01T00:00:00Z")),
    "statistics": Write(
        NODE, meta(annotations={"free-cpu": "2", "nodewise.io/annotated-at": "2026-01-01T00:00:00Z"})
    ),
    "the end of statistics": Write(NODE, annotation("free-cpu", None)),
    "the advertised resource": Write(
        STATUS,
        {
            "status": {
                "capacity": {"telemetry/scheduling": "1000"},
                "allocatable": {"telemetry/scheduling": "1000"},
            }
        },
    ),
    "nothing": Write(NODE, {}),
    "nothing of the status": Write(STATUS, {}),
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
    "a label": Write(POD, labels(app="other")),
    "a label removed": Write(POD, labels(app=None)),
    "all labels removed": Write(POD, meta(labels=None)),
    "the label of descheduling with another value": Write(POD, label(DESCHEDULE, "yes")),
    "an annotation": Write(POD, annotation("owner", "nodewise")),
    "an annotation removed": Write(POD, annotation("owner", None)),
    "all annotations removed": Write(POD, meta(annotations=None)),
    "cards without a Binding": Write(POD, annotation("gas-container-cards", "card0")),
    "cards of a container without a Binding": Write(POD, annotation("cards.nodewise.io/c", "0")),
    "a finalizer": Write(POD, meta(finalizers=["a.example/b"])),
    "an owner": Write(POD, meta(ownerReferences=[OWNER])),
    "a name's prefix": Write(POD, meta(generateName="w")),
    "an image": Write(
        POD, [{"op": "replace", "path": "/spec/containers/0/image", "value": "evil"}], JSON_PATCH
    ),
    "a toleration": Write(
        POD, [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}], JSON_PATCH
    ),
    "a deadline": Write(POD, {"spec": {"activeDeadlineSeconds": 1}}),
    "a label by the Binding": Write(f"{POD}/binding", binding(labels={"app": "other"}), "POST"),
    "the label of descheduling by the Binding": Write(
        f"{POD}/binding", binding(labels={DESCHEDULE: "gpu"}), "POST"
    ),
    "an annotation by the Binding": Write(f"{POD}/binding", binding(annotations={"owner": "x"}), "POST"),
    "an annotation of AppArmor by the Binding": Write(
        f"{POD}/binding",
        binding(annotations={"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}),
        "POST",
    ),
}
"""What nodewise's account may not change of a Pod."""

POD_ALLOWED: Final = {
    "the label of descheduling": Write(POD, label(DESCHEDULE, "gpu")),
    "that a bind was dropped": Write(POD, annotation("nodewise.io/claim-dropped", "2026-01-01T00:00:00Z")),
    "nothing": Write(POD, {}),
    "a Binding": Write(f"{POD}/binding", binding(), "POST"),
    "a Binding with cards": Write(
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
    "a Node": Write("/api/v1/nodes", objects.node("n9"), "POST"),
    "a Node by an apply": Write("/api/v1/nodes/n9", applied("n9"), APPLY),
    "a Pod": Write(PODS, objects.pod("other"), "POST"),
    "a Pod by an apply": Write(
        f"{PODS}/other",
        {"apiVersion": "v1", "kind": "Pod", **objects.pod("other")},
        APPLY,
    ),
    "a Pod's status": Write(f"{POD}/status", {"status": {"phase": "Failed"}}),
    "a label by way of a Pod's status": Write(f"{POD}/status", labels(app="other")),
    "an ephemeral container": Write(f"{POD}/ephemeralcontainers", ephemeral(), STRATEGIC),
    "an eviction": Write(
        f"{POD}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web", "namespace": "tenant"}},
        "POST",
    ),
    "a Binding of the old kind": Write("/api/v1/namespaces/tenant/bindings", binding(), "POST"),
}
"""What RBAC refuses as it ships, and the policies refuse whatever RBAC says."""


class Cluster(NamedTuple):
    plane: ControlPlane
    log: AuditLog
    nodewise: User
    annotator: User

    def version(self, path: str) -> str:
        return str(self.plane.api.get(path)["metadata"]["resourceVersion"])

    def expect_forbidden(self, user: User, write: Write) -> str:
        """A policy refuses the write, and nothing has changed; the message."""
        before = self.version(NODE), self.version(POD)
        with pytest.raises(ApiError) as refused:
            write.send(user)
        assert admission.DENIED in str(refused.value), refused.value
        assert "resulted in error" not in str(refused.value), "an expression fails"
        assert (self.version(NODE), self.version(POD)) == before
        return str(refused.value)


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane, audit_log: AuditLog) -> Cluster:
    for name in MANIFESTS:
        plane.kubectl("apply", "-f", str(extender_process.ROOT / "deploy" / name))
    plane.api.create(objects.namespace("tenant"))
    plane.api.create(node())
    plane.api.patch(STATUS, {"status": IN_STATUS})
    plane.api.create(pod())
    accounts = [plane.service_account(name, NAMESPACE) for name in ("nodewise", "nodewise-annotator")]
    cluster = Cluster(plane, audit_log, *accounts)
    wait_enforced(cluster)
    return cluster


def wait_enforced(cluster: Cluster) -> None:
    """All policies are enforced, each for somebody whom it concerns."""
    tool = cluster.plane.user("enforced", [access.rule("patch", "namespaces")])
    for user, write in (
        (cluster.nodewise, NODE_FORBIDDEN["a taint"]),
        (cluster.nodewise, POD_FORBIDDEN["an image"]),
        (cluster.annotator, NODE_FORBIDDEN["a taint"]),
        (tool, Write("/api/v1/namespaces/tenant", label(TRUSTED, "true"))),
    ):
        admission.wait_denied(lambda user=user, write=write: write.send(user, dry_run=True))  # type: ignore[misc]


@pytest.mark.parametrize("what", NODE_FORBIDDEN)
def test_nodewise_does_not_change_of_a_node(cluster: Cluster, what: str) -> None:
    assert "nodewise-nodes" in cluster.expect_forbidden(cluster.nodewise, NODE_FORBIDDEN[what])


def test_the_audit_log_tells_a_denial(cluster: Cluster) -> None:
    """By this the tests of rights know that no policy refused anything of a whole run."""
    cluster.expect_forbidden(cluster.nodewise, NODE_FORBIDDEN["a taint"])
    *_, last = cluster.log.requests(f"system:serviceaccount:{NAMESPACE}:nodewise")
    assert last.is_refused


@pytest.mark.parametrize("what", NODE_ALLOWED)
def test_nodewise_changes_of_a_node(cluster: Cluster, what: str) -> None:
    NODE_ALLOWED[what].send(cluster.nodewise, dry_run=True)


@pytest.mark.parametrize("what", ANNOTATOR_FORBIDDEN)
def test_the_annotator_does_not_change_of_a_node(cluster: Cluster, what: str) -> None:
    assert "nodewise-annotator" in cluster.expect_forbidden(cluster.annotator, ANNOTATOR_FORBIDDEN[what])


@pytest.mark.parametrize("what", ANNOTATOR_ALLOWED)
def test_the_annotator_changes_of_a_node(cluster: Cluster, what: str) -> None:
    ANNOTATOR_ALLOWED[what].send(cluster.annotator, dry_run=True)


@pytest.mark.parametrize("what", POD_FORBIDDEN)
def test_nodewise_does_not_change_of_a_pod(cluster: Cluster, what: str) -> None:
    assert "nodewise-pods" in cluster.expect_forbidden(cluster.nodewise, POD_FORBIDDEN[what])


@pytest.mark.parametrize("what", POD_ALLOWED)
def test_nodewise_changes_of_a_pod(cluster: Cluster, what: str) -> None:
    POD_ALLOWED[what].send(cluster.nodewise, dry_run=True)


def test_the_label_of_descheduling_is_removed_again(cluster: Cluster) -> None:
    cluster.plane.api.patch(POD, label(DESCHEDULE, "gpu"))
    Write(POD, label(DESCHEDULE, None)).send(cluster.nodewise)
    assert DESCHEDULE not in cluster.plane.api.get(POD)["metadata"]["labels"]


def test_the_owner_of_a_field_gains_no_right_to_it(cluster: Cluster) -> None:
    """managedFields may say that nodewise owns another's label; an apply without it removes it all the same not."""
    own = {
        "manager": "nodewise-telemetry",
        "operation": "Apply",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}},
    }
    patch = [{"op": "replace", "path": "/metadata/managedFields", "value": [own]}]
    Write(NODE, patch, JSON_PATCH).send(cluster.nodewise)
    message = cluster.expect_forbidden(cluster.nodewise, Write(NODE, applied("n1", labels={}), APPLY))
    assert "labels of Nodes: team" in message


@pytest.fixture
def wider(cluster: Cluster) -> Iterator[None]:
    """The account with every right to Nodes and Pods."""
    name = "wider"
    cluster.plane.api.create(
        {
            "apiVersion": f"{access.RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": [
                access.rule("*", "nodes nodes/status pods bindings */status */ephemeralcontainers */eviction")
            ],
        }
    )
    account = f"system:serviceaccount:{NAMESPACE}:nodewise"
    access.bind(cluster.plane.api, account, name)
    right = Right("create", "", "pods")
    wait("the right is granted", lambda: rights.holds(cluster.plane.api, account, right) or None)
    yield
    group = f"/apis/{access.RBAC}/v1"
    cluster.plane.api.delete(f"{group}/clusterrolebindings/{name}-{account.replace(':', '-')}")
    cluster.plane.api.delete(f"{group}/clusterroles/{name}")
    wait("the right is gone", lambda: not rights.holds(cluster.plane.api, account, right) or None)


@pytest.mark.parametrize("what", BEYOND_RBAC)
def test_rbac_refuses(cluster: Cluster, what: str) -> None:
    with pytest.raises(ApiError, match=r"cannot (create|patch) resource"):
        BEYOND_RBAC[what].send(cluster.nodewise)


def test_the_policies_do_not_depend_on_rbac(cluster: Cluster, wider: None) -> None:
    for write in BEYOND_RBAC.values():
        cluster.expect_forbidden(cluster.nodewise, write)
    whole = cluster.plane.api.get(NODE)
    whole["spec"]["unschedulable"] = True
    cluster.expect_forbidden(cluster.nodewise, Write(NODE, whole, "PUT"))


def test_others_write_as_before(cluster: Cluster) -> None:
    for write in [*NODE_FORBIDDEN.values(), *POD_FORBIDDEN.values()]:
        if write.body != NODE_FORBIDDEN["an owner"].body:
            _send_leniently(cluster.plane.admin, write)


def _send_leniently(user: User, write: Write) -> None:
    """The API server may have reasons of its own against a write; a policy may have none."""
    assert not _is_denied(user, write), write


def _is_denied(user: User, write: Write) -> bool:
    try:
        write.send(user, dry_run=True)
    except ApiError as error:
        return admission.DENIED in str(error)
    return False


def test_a_node_with_thousands_of_labels_stays_within_the_cost_limit(cluster: Cluster) -> None:
    big = objects.node("big")
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
        Write("/api/v1/nodes/big", body).send(user, dry_run=True)


def test_the_expressions_have_no_type_errors(cluster: Cluster) -> None:
    """The API server's own check of every expression against the types that a policy matches."""
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
def space(cluster: Cluster) -> Iterator[str]:
    """A namespace that is trusted."""
    made = objects.namespace("team")
    made["metadata"]["labels"] = {TRUSTED: "true"}
    cluster.plane.api.ensure(made)
    yield "team"
    cluster.plane.api.patch(SPACE, label(TRUSTED, "true"))


@pytest.fixture(scope="module")
def tool(cluster: Cluster) -> User:
    """A self-service tool: it may do everything with namespaces, but lacks the verb `trust`."""
    verbs = access.rule(
        "get list create update patch delete", "namespaces namespaces/status namespaces/finalize"
    )
    return cluster.plane.user("tool", [verbs])


def new(name: str = "fresh", **values: str) -> Object:
    made = objects.namespace(name)
    made["metadata"]["labels"] = values
    return made


def trusted(value: str) -> Object:
    made = new("fresh")
    made["metadata"]["labels"] = {TRUSTED: value}
    return made


NAMESPACES: Final = "/api/v1/namespaces"
TENANT: Final = f"{NAMESPACES}/tenant"
TRUST_FORBIDDEN: Final = {
    "the label": Write(TENANT, label(TRUSTED, "true")),
    "the label with any value": Write(TENANT, label(TRUSTED, "false")),
    "the label without a value": Write(TENANT, label(TRUSTED, "")),
    "another value": Write(SPACE, label(TRUSTED, "yes")),
    "a new namespace with the label": Write(NAMESPACES, trusted("true"), "POST"),
    "the label by way of the status": Write(f"{TENANT}/status", label(TRUSTED, "true")),
    "the label by an apply": Write(
        TENANT,
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "tenant", "labels": {TRUSTED: "true"}},
        },
        APPLY,
        force=True,
    ),
    "a new namespace by an apply": Write(f"{NAMESPACES}/fresh", trusted("true"), APPLY),
    "the label by finalizing": Write(f"{TENANT}/finalize", new("tenant"), "PUT"),
}


@pytest.mark.parametrize("what", TRUST_FORBIDDEN)
def test_without_the_verb_nobody_trusts(cluster: Cluster, tool: User, space: str, what: str) -> None:
    write = TRUST_FORBIDDEN[what]
    if write.kind == "PUT":
        whole = cluster.plane.api.get(TENANT)
        whole["metadata"]["labels"][TRUSTED] = "true"
        write = write._replace(body=whole)
    with pytest.raises(ApiError, match=r"needs the verb trust on namespaces\.nodewise\.io") as refused:
        write.send(tool)
    assert refused.value.code == 403


def test_a_role_binding_in_a_namespace_grants_no_trust(cluster: Cluster) -> None:
    user = cluster.plane.user("tenant-admin", [access.rule("patch", "namespaces")])
    cluster.plane.api.create(
        {
            "apiVersion": f"{access.RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "trust", "namespace": "tenant"},
            "roleRef": {"apiGroup": access.RBAC, "kind": "ClusterRole", "name": "nodewise-trust"},
            "subjects": [{"apiGroup": access.RBAC, "kind": "User", "name": user.name}],
        }
    )
    with pytest.raises(ApiError, match="needs the verb trust"):
        Write(TENANT, label(TRUSTED, "true")).send(user)


@pytest.mark.parametrize("role", ["nodewise-trust", "cluster-admin"])
def test_with_the_verb_namespaces_are_trusted(cluster: Cluster, role: str) -> None:
    user = cluster.plane.user(f"by-{role}", [access.rule("create patch", "namespaces")])
    access.bind(cluster.plane.api, user.name, role)
    write = Write(TENANT, label(TRUSTED, "true"))
    admission.wait_allowed(lambda: write.send(user, dry_run=True))
    Write(NAMESPACES, trusted("true"), "POST").send(user, dry_run=True)


def test_who_may_trust_may_do_nothing_else(cluster: Cluster) -> None:
    user = cluster.plane.user("only-trust")
    access.bind(cluster.plane.api, user.name, "nodewise-trust")
    with pytest.raises(ApiError, match="cannot patch resource"):
        Write(TENANT, label(TRUSTED, "true")).send(user)


def test_no_other_write_of_a_namespace_needs_the_verb(cluster: Cluster, tool: User, space: str) -> None:
    """Trust may be taken away by whoever may write the namespace."""
    Write(NAMESPACES, new(team="a"), "POST").send(tool)
    for path in (f"{NAMESPACES}/fresh", SPACE):
        Write(path, labels(team="b")).send(tool)
        Write(path, meta(annotations={"a": "b"})).send(tool)
        whole = tool.api.get(path)
        Write(path, whole, "PUT").send(tool)
        Write(f"{path}/status", labels(team="c")).send(tool)
        Write(f"{path}/finalize", tool.api.get(path), "PUT").send(tool)
    Write(SPACE, label(TRUSTED, None)).send(tool)
    assert TRUSTED not in cluster.plane.api.get(SPACE)["metadata"]["labels"]
    Write(f"{NAMESPACES}/fresh", meta(labels=None)).send(tool)
    tool.api.delete(f"{NAMESPACES}/fresh")
