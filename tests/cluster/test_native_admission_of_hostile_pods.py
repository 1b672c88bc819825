"""`deploy/native.yaml` on a real API server, and pods that try to avoid their policies or to cost the server time."""

from typing import Any, Final, NamedTuple

import msgspec
import pytest

from nodewise.policies import policy_selection
from nodewise.policies.policy_selection import PodFields
from tests.cluster import admission_policy_waits, kubernetes_objects, native_mode
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import JSON_PATCH, MERGE, ApiError, ClusterApi, Object, path_of
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT, tas_policy
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.placement_policy_specs import policy

NAMESPACE: Final = "hostile"
OTHER_NAMESPACE: Final = "hostile-other"
ACTIVE: Final = {"active": True, "mode": "Enforce"}
AVOID: Final = {"metric": "temp", "above": 80}
WEB: Final = {"app": "web"}
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
ZONE: Final = {"key": "zone", "operator": "Exists"}
PINNED: Final = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
DELETED: Final = f"{native_mode.LABEL_PREFIX}00000000-0000-4000-8000-000000000000"
"""The key of the label of a policy that does not exist."""


def _namespaced(selector: Object, *rules: Object, namespace: str = NAMESPACE, **spec: Any) -> Object:
    return policy({"podSelector": selector, "avoid": [*rules]} | spec, namespace=namespace)


def _wide(selector: Object) -> Object:
    by_name = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAMESPACE, OTHER_NAMESPACE]}
    spec = {"namespaceSelector": {"matchExpressions": [by_name]}, "podSelector": selector, "avoid": [AVOID]}
    return policy(spec, "ClusterPlacementPolicy")


def _tas(namespace: str = NAMESPACE) -> Object:
    return tas_policy("", {"dontschedule": {"rules": [HOT]}}, namespace)


POLICIES: Final = {
    **{f"web-{number}": _namespaced({"matchLabels": WEB}, AVOID) for number in range(5)},
    "strict": _namespaced({"matchLabels": {"app": "strict"}}, AVOID | {"whenMissing": "Reject"}),
    "preferred": _namespaced({"matchLabels": {"app": "preferred"}}, AVOID, enforcement="Preferred"),
    "gated": _namespaced({"matchLabels": {"app": "gated"}}, AVOID),
    **{f"hostile-wide-{number}": _wide({"matchLabels": {"wide": ""}}) for number in range(3)},
    "named": _tas(),
    "other": _tas(),
    "elsewhere": _tas(OTHER_NAMESPACE),
}


class Cluster(NamedTuple):
    """An API server with the policies, their uids by name, and a tenant with the role `edit` of Kubernetes."""

    plane: ControlPlane
    uids: dict[str, str]
    tenant: User

    def key(self, name: str) -> str:
        return native_mode.LABEL_PREFIX + self.uids[name]

    def admit(self, pod: Object, user: str = "") -> Object:
        """The pod that the API server would create, for the tenant or a user that the administrator impersonates."""
        api = self.plane.api if user else self.tenant.api
        headers = {"Impersonate-User": user} if user else {}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        admitted: Object = api.request("POST", path, json=pod, params=DRY_RUN, headers=headers).json()
        return admitted

    def requires(self, pod: Object, name: str) -> bool:
        return native_mode.requires(pod, self.uids[name])


def _pod(
    labels: Object, annotations: Object | None = None, owners: list[Object] | None = None, **spec: Any
) -> Object:
    made = kubernetes_objects.pod("probe", labels=labels)
    metadata = made["metadata"] | {"annotations": annotations or {}, "ownerReferences": owners or []}
    return made | {"metadata": metadata, "spec": made["spec"] | spec}


def _terms(*terms: Object) -> Object:
    return {"affinity": {"nodeAffinity": {native_mode.REQUIRED: {"nodeSelectorTerms": [*terms]}}}}


def _preferences(*terms: Object) -> Object:
    weighted = [{"weight": 1, "preference": term} for term in terms]
    return {"affinity": {"nodeAffinity": {PREFERRED: weighted}}}


def _all(*expressions: Object) -> Object:
    return {"matchExpressions": [*expressions]}


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Cluster:
    api = plane.api
    native_mode.install(api)
    for name in (native_mode.NAMESPACE, NAMESPACE, OTHER_NAMESPACE):
        api.ensure(kubernetes_objects.namespace(name))
    rules = [
        {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["*"]},
        {"apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": ["nodewise.io", "telemetry.intel.com"], "resources": ["*"], "verbs": ["*"]},
    ]
    made = Cluster(plane, {}, plane.user("tenant-of-hostile", rules, NAMESPACE))
    for name, obj in POLICIES.items():
        created = api.create(obj | {"metadata": obj["metadata"] | {"name": name}})
        made.uids[name] = created["metadata"]["uid"]
        if name != "gated":
            api.patch(f"{path_of(created)}/status", {"status": ACTIVE}, MERGE)
    wait("the policies have an effect", lambda: _have_effect(made) or None)
    return made


def _have_effect(cluster: Cluster) -> bool:
    """Whether the API server uses all admission policies, and the last policy of each kind with its status."""
    checks = (
        lambda: cluster.admit(_pod({"telemetry-policy": "none"}, {native_mode.POLICY_ANNOTATION: "x"})),
        lambda: cluster.admit(_pod(WEB, **_terms(*[_all(ZONE)] * 51))),
    )
    if not all(map(admission_policy_waits.is_denied, checks)):
        return False
    pods = (
        cluster.admit(_pod({"app": "preferred"})),
        cluster.admit(_pod({"wide": ""})),
        cluster.admit(_pod({"telemetry-policy": "other"})),
    )
    return all("affinity" in pod["spec"] and "schedulingGates" not in pod["spec"] for pod in pods)


# --- limits ---


class Excess(NamedTuple):
    """Fields of a pod, and the message of the denial."""

    spec: Object
    found: str


EXCESSES: Final = {
    "terms": Excess(_terms(*[_all(ZONE)] * 51), "found 51 node selector terms, expected at most 50"),
    "thousands of terms": Excess(
        _terms(*[_all(ZONE)] * 4000), "found 4000 node selector terms, expected at most 50"
    ),
    "preferred terms": Excess(
        _preferences(*[_all(ZONE)] * 101), "found 101 preferred node selector terms, expected at most 100"
    ),
    "expressions": Excess(
        _terms(_all(*[ZONE] * 2001)), "found 2001 expressions in node selector terms, expected at most 2000"
    ),
    "thousands of expressions": Excess(
        _terms(_all(*[ZONE] * 20_000)),
        "found 20000 expressions in node selector terms, expected at most 2000",
    ),
    "expressions of preferred terms": Excess(
        _preferences(_all(*[ZONE] * 2001)),
        "found 2001 expressions in node selector terms, expected at most 2000",
    ),
    "labels": Excess(
        {"nodeSelector": {f"label-{number}": "" for number in range(1001)}},
        "found 1001 labels in the node selector, expected at most 1000",
    ),
    "scheduling gates": Excess(
        {"schedulingGates": [{"name": f"example.com/{number}"} for number in range(101)]},
        "found 101 scheduling gates, expected at most 100",
    ),
    # the API server itself adds two
    "tolerations": Excess(
        {"tolerations": [{"key": f"t-{number}", "operator": "Exists"} for number in range(1001)]},
        "found 1003 tolerations, expected at most 1000",
    ),
    "containers": Excess(
        {"containers": [{"name": f"c{number}", "image": "none"} for number in range(1001)]},
        "found 1001 containers, expected at most 1000",
    ),
}


@pytest.mark.parametrize(
    ("labels", "selecting"),
    [
        (WEB, "placement policy hostile/web-"),
        ({"app": "preferred"}, "placement policy hostile/preferred"),
        ({"wide": ""}, "cluster placement policy hostile-wide-"),
        ({"telemetry-policy": "named"}, "TASPolicy hostile/named"),
    ],
)
@pytest.mark.parametrize("excess", EXCESSES.values(), ids=EXCESSES)
def test_pod_that_exceeds_a_limit_is_denied_if_a_policy_selects_it(
    cluster: Cluster, excess: Excess, labels: Object, selecting: str
) -> None:
    with pytest.raises(ApiError) as denied:
        cluster.admit(_pod(labels, **excess.spec))
    assert f"denied request: {excess.found}, because {selecting}" in str(denied.value)


@pytest.mark.parametrize("excess", EXCESSES.values(), ids=EXCESSES)
def test_pod_that_exceeds_a_limit_is_created_if_no_policy_selects_it(
    cluster: Cluster, excess: Excess
) -> None:
    pod = _pod({"app": "other"}, **excess.spec)
    admitted = cluster.admit(pod)
    assert "annotations" not in admitted["metadata"]
    for field, value in excess.spec.items():
        assert len(admitted["spec"][field]) >= len(value)


def test_thousands_of_owner_references_are_denied_if_a_policy_selects_the_pod(cluster: Cluster) -> None:
    owners = [_owner(uid=str(number)) for number in range(10_000)]
    assert len(cluster.admit(_pod({}, owners=owners))["metadata"]["ownerReferences"]) == 10_000
    with pytest.raises(ApiError, match="found 10000 owner references, expected at most 100, because"):
        cluster.admit(_pod(WEB, owners=owners))


LONG_VALUES: Final = {
    "key": "zone",
    "operator": "In",
    "values": [f"zone-{number}" for number in range(10_000)],
}
WITHIN: Final = {
    "terms": _terms(*[_all(ZONE)] * 50),
    "expressions in few terms": _terms(*[_all(*[ZONE] * 180)] * 10),
    "expressions in many terms": _terms(*[_all(*[ZONE] * 30)] * 50),
    "values": _terms(*[_all(LONG_VALUES)] * 5),
    "preferred terms": _preferences(*[_all(*[ZONE] * 19)] * 100),
    "labels and gates": {
        "nodeSelector": {f"label-{number}": "" for number in range(980)},
        "schedulingGates": [{"name": f"example.com/{number}"} for number in range(99)],
    },
    "containers": {"containers": [{"name": f"c{number}", "image": "none"} for number in range(1000)]},
    "tolerations": {"tolerations": [{"key": f"t-{number}", "operator": "Exists"} for number in range(998)]},
}


@pytest.mark.parametrize("spec", WITHIN.values(), ids=WITHIN)
def test_largest_pods_within_the_limits_get_every_requirement(cluster: Cluster, spec: Object) -> None:
    """The API server ignores a mutation that exceeds the cost budget of expressions."""
    labels = WEB | {"wide": "", "telemetry-policy": "named"}
    labels |= {f"label-{number}": "x" * 63 for number in range(2000)}
    owners = [_owner(uid=str(number)) for number in range(100)]
    selecting = [
        "named",
        *(f"web-{number}" for number in range(5)),
        *(f"hostile-wide-{number}" for number in range(3)),
    ]
    admitted = cluster.admit(_pod(labels, owners=owners, **spec))
    assert [name for name in selecting if not cluster.requires(admitted, name)] == []


def test_largest_pod_within_the_limits_gets_the_preference(cluster: Cluster) -> None:
    admitted = cluster.admit(_pod({"app": "preferred"}, **_preferences(*[_all(*[ZONE] * 19)] * 99)))
    *_, last = admitted["spec"]["affinity"]["nodeAffinity"][PREFERRED]
    [requirement] = last["preference"]["matchExpressions"]
    assert requirement["key"] == cluster.key("preferred")


# --- copies of other pods, and forged annotations ---


@pytest.mark.parametrize("name", ["none", "elsewhere"])
@pytest.mark.parametrize("uid", ["x", "<named>", "<elsewhere>", "<web-0>"])
def test_forged_annotation_does_not_replace_a_missing_policy(cluster: Cluster, name: str, uid: str) -> None:
    forged = {native_mode.POLICY_ANNOTATION: cluster.uids.get(uid.strip("<>"), uid)}
    with pytest.raises(ApiError, match=f"found the pod label telemetry-policy: {name}, expected the name of"):
        cluster.admit(_pod({"telemetry-policy": name}, forged))


@pytest.mark.parametrize("uid", ["x", "<other>", "<elsewhere>", "<named>"])
def test_stale_annotation_is_replaced(cluster: Cluster, uid: str) -> None:
    stale = {native_mode.POLICY_ANNOTATION: cluster.uids.get(uid.strip("<>"), uid), "kept": "yes"}
    admitted = cluster.admit(_pod({"telemetry-policy": "named"}, stale))
    assert admitted["metadata"]["annotations"] == {
        native_mode.POLICY_ANNOTATION: cluster.uids["named"],
        "kept": "yes",
    }
    assert cluster.requires(admitted, "named")


def test_annotation_of_a_pod_without_the_label_is_removed(cluster: Cluster) -> None:
    admitted = cluster.admit(_pod({}, {native_mode.POLICY_ANNOTATION: cluster.uids["named"], "kept": "yes"}))
    assert admitted["metadata"]["annotations"] == {"kept": "yes"}


OLD: Final = {"key": DELETED, "operator": "NotIn", "values": ["violating"]}


class Copy(NamedTuple):
    """A pod with requirements of a deleted policy, and what remains of its own node affinity and node selector."""

    spec: Object
    terms: list[Object]
    selector: Object | None = None


COPIES: Final = {
    "a node selector": Copy({"nodeSelector": {DELETED: "ok"}}, []),
    "a node selector with other labels": Copy(
        {"nodeSelector": {DELETED: "ok", "zone": "z"}}, [], {"zone": "z"}
    ),
    "a term of its own": Copy(_terms(_all(OLD)), []),
    "a value of earlier versions": Copy(_terms(_all(OLD | {"operator": "In", "values": ["ok"]})), []),
    "other expressions": Copy(_terms(_all(ZONE, OLD), _all(OLD, ZONE)), [_all(ZONE), _all(ZONE)]),
    "fields": Copy(_terms(PINNED | _all(OLD)), [PINNED]),
    "a term that accepts every node": Copy(_terms(_all(OLD), _all(ZONE)), []),
    "an empty term": Copy(_terms({}, _all(OLD, ZONE)), [{}, _all(ZONE)]),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_requirements_of_a_deleted_policy_are_removed_from_new_pods(cluster: Cluster, copy: Copy) -> None:
    """Otherwise a pod of a backup would wait for a label that no node gets."""
    spec = cluster.admit(_pod({"app": "other"}, **copy.spec))["spec"]
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get(native_mode.REQUIRED, {})
    assert required.get("nodeSelectorTerms", []) == copy.terms
    assert spec.get("nodeSelector") == copy.selector


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("name", ["web-0", "strict", "named"])
def test_pods_of_a_backup_require_the_labels_of_todays_policies(
    cluster: Cluster, copy: Copy, name: str
) -> None:
    labels = {"telemetry-policy": "named"} if name == "named" else {"app": name.removesuffix("-0")}
    admitted = cluster.admit(_pod(labels, {native_mode.POLICY_ANNOTATION: "old"}, **copy.spec))
    spec = admitted["spec"]
    assert DELETED not in str(spec)
    if name == "strict":
        assert spec["nodeSelector"] == (copy.selector or {}) | {cluster.key(name): "ok"}
        return
    keys = {item["key"] for term in _terms_of(spec) for item in term.get("matchExpressions", [])}
    assert cluster.key(name) in keys
    assert [term for term in _terms_of(spec) if term and cluster.key(name) not in str(term)] == []


def _terms_of(spec: Object) -> list[Object]:
    terms: list[Object] = spec["affinity"]["nodeAffinity"][native_mode.REQUIRED]["nodeSelectorTerms"]
    return terms


def test_key_of_a_policy_that_does_not_select_the_pod_is_removed(cluster: Cluster) -> None:
    admitted = cluster.admit(_pod(WEB, nodeSelector={cluster.key("strict"): "ok"}))
    assert "nodeSelector" not in admitted["spec"]
    assert cluster.requires(admitted, "web-0")


# --- owner references ---


def _owner(**fields: Any) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": "d",
        "uid": "1",
        "controller": False,
    } | fields


FORGED_OWNERS: Final = {
    "a DaemonSet": _owner(controller=True),
    "not the controller": _owner(),
    "another group": _owner(apiVersion="example.com/v1", controller=True),
    "OpenKruise": _owner(apiVersion="apps.kruise.io/v1alpha1", controller=True),
    "no group": _owner(apiVersion="v1", controller=True),
}


@pytest.mark.parametrize("owner", FORGED_OWNERS.values(), ids=FORGED_OWNERS)
def test_owner_reference_of_a_tenant_avoids_no_policy(cluster: Cluster, owner: Object) -> None:
    admitted = cluster.admit(_pod(WEB | {"wide": ""}, owners=[owner], **_terms(PINNED)))
    assert cluster.requires(admitted, "web-0")
    assert cluster.requires(admitted, "hostile-wide-0")
    with pytest.raises(ApiError, match="expected the name of a TASPolicy"):
        cluster.admit(_pod({"telemetry-policy": "none"}, owners=[owner]))


@pytest.mark.parametrize(
    ("owner", "is_left_alone"),
    [
        (_owner(controller=True), True),
        *((owner, False) for name, owner in FORGED_OWNERS.items() if name != "a DaemonSet"),
    ],
)
def test_daemonset_controller_creates_pods_without_requirements(
    cluster: Cluster, owner: Object, is_left_alone: bool
) -> None:
    admitted = cluster.admit(_pod(WEB, owners=[owner], **_terms(PINNED)), native_mode.DAEMON_SET_CONTROLLER)
    assert cluster.requires(admitted, "web-0") != is_left_alone
    assert (admitted["spec"] | _terms(PINNED) == admitted["spec"]) == is_left_alone


@pytest.mark.parametrize("credentials", ["true", "false"])
def test_pods_of_real_daemonsets_are_left_alone_and_those_of_replicasets_are_not(
    cluster: Cluster, credentials: str
) -> None:
    """Without credentials of its own, each controller of kube-controller-manager is the same user."""
    api = cluster.plane.api
    labels = {"app": "web", "run": f"credentials-{credentials}", "telemetry-policy": "named"}
    template = {"metadata": {"labels": labels}, "spec": kubernetes_objects.pod("any")["spec"]}
    selector = {"matchLabels": {"run": labels["run"]}}
    workloads = [
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {"name": f"{kind.lower()}-{credentials}", "namespace": NAMESPACE},
            "spec": {"selector": selector | {"matchLabels": selector["matchLabels"] | {"kind": kind}}}
            | {"template": template | {"metadata": {"labels": labels | {"kind": kind}}}},
        }
        for kind in ("DaemonSet", "ReplicaSet")
    ]
    node = api.create(kubernetes_objects.node("daemon-node"))
    created = [cluster.tenant.api.create(workload) for workload in workloads]
    flags = {"use-service-account-credentials": credentials}
    if credentials == "false":
        _grant_all(api, "system:kube-controller-manager")
    manager = cluster.plane.start_controller_manager(
        "daemonset-controller,replicaset-controller,serviceaccount-controller", flags
    )
    try:
        api.ensure(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": NAMESPACE},
            }
        )
        pods = {kind: _wait_pod(api, labels["run"], kind) for kind in ("DaemonSet", "ReplicaSet")}
    finally:
        manager.stop()
        for obj in (*created, node):
            api.delete(path_of(obj))
        api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=run={labels['run']}")
    assert native_mode.LABEL_PREFIX not in str(pods["DaemonSet"]["spec"])
    is_recognized = {
        kind: policy_selection.is_of_daemon_set(msgspec.convert(pod, PodFields)) for kind, pod in pods.items()
    }
    assert is_recognized == {"DaemonSet": True, "ReplicaSet": False}
    assert [term for term in _terms_of(pods["DaemonSet"]["spec"]) if "matchFields" not in term] == []
    for name in ("web-0", "named"):
        assert cluster.requires(pods["ReplicaSet"], name)


def _grant_all(api: ClusterApi, user: str) -> None:
    api.ensure(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "all-for-controllers"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
    )


def _wait_pod(api: ClusterApi, run: str, kind: str) -> Object:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"

    def find() -> Object | None:
        pods: list[Object] = api.get(path, labelSelector=f"run={run},kind={kind}")["items"]
        return pods[0] if pods else None

    return wait(f"the {kind} has a pod", find)


# --- the scheduling gate ---


def _gated(cluster: Cluster) -> Object:
    made: Object = cluster.tenant.api.create(
        _pod({"app": "gated"})
        | {"metadata": {"name": "gated", "namespace": NAMESPACE, "labels": {"app": "gated"}}}
    )
    return made


def test_tenant_cannot_remove_the_gate_or_the_requirement_of_a_gated_pod(cluster: Cluster) -> None:
    pod = _gated(cluster)
    path = path_of(pod)
    try:
        assert pod["spec"]["schedulingGates"] == [native_mode.GATE]
        removals: list[tuple[Any, str]] = [
            ([{"op": "remove", "path": "/spec/schedulingGates/0"}], JSON_PATCH),
            ({"spec": {"schedulingGates": None}}, MERGE),
            ({"spec": {"schedulingGates": []}}, MERGE),
        ]
        for patch, kind in removals:
            with pytest.raises(ApiError, match="found a change that removes the scheduling gate"):
                cluster.tenant.api.patch(path, patch, kind)
        changed = pod | {
            "spec": {key: value for key, value in pod["spec"].items() if key != "schedulingGates"}
        }
        with pytest.raises(ApiError, match="found a change that removes the scheduling gate"):
            cluster.tenant.api.request("PUT", path, json=changed)
        required = f"/spec/affinity/nodeAffinity/{native_mode.REQUIRED}"
        for patch in (
            [{"op": "remove", "path": required}],
            [{"op": "remove", "path": "/spec/affinity"}],
            [{"op": "remove", "path": f"{required}/nodeSelectorTerms/0/matchExpressions"}],
            [
                {
                    "op": "replace",
                    "path": f"{required}/nodeSelectorTerms/0/matchExpressions/0/values/0",
                    "value": "x",
                }
            ],
            [{"op": "add", "path": f"{required}/nodeSelectorTerms/-", "value": _all(ZONE)}],
        ):
            with pytest.raises(ApiError, match="spec"):
                cluster.tenant.api.patch(path, patch, JSON_PATCH)
        cluster.tenant.api.patch(path, {"metadata": {"labels": {"changed": "yes"}}}, MERGE)
    finally:
        cluster.plane.api.delete(path)


def test_nodewise_removes_its_gate_and_tenants_remove_theirs(cluster: Cluster) -> None:
    account = native_mode.install_with_account(cluster.plane)
    pod = _gated(cluster)
    path = path_of(pod)
    try:
        account.api.patch(path, [{"op": "remove", "path": "/spec/schedulingGates/0"}], JSON_PATCH)
    finally:
        cluster.plane.api.delete(path)
    other = _pod({"app": "other"}, schedulingGates=[{"name": "example.com/own"}])
    path = path_of(cluster.tenant.api.create(other | {"metadata": {"name": "other", "namespace": NAMESPACE}}))
    try:
        cluster.tenant.api.patch(path, {"spec": {"schedulingGates": None}}, MERGE)
    finally:
        cluster.plane.api.delete(path)
