"""The defects of native mode that `nodewise doctor` has to find, and how their remedies are followed."""

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from tests.cluster import (
    child_processes,
    fake_custom_metrics_server,
    followed_remedies,
    healthy_cluster,
    healthy_native_cluster,
    misconfigurations,
    placement_policy_specs,
)
from tests.cluster.api_client import ApiError, Object, path_of
from tests.cluster.doctor_cases import ADMISSION, RBAC, DoctorCase
from tests.cluster.followed_remedies import Follow, ReadRemedy
from tests.cluster.healthy_cluster import NODES, TENANT, HealthyCluster
from tests.cluster.healthy_native_cluster import DEPLOYMENT
from tests.cluster.misconfigurations import Defect
from tests.cluster.namespace_sandboxes import wait

_REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
_MUTATING: Final = f"{_REGISTRATION}/mutatingadmissionpolicies/nodewise-native"


def _policy(name: str, *avoid: Object, **spec: Any) -> Object:
    """A policy of the tenant for the pods with the label app=NAME."""
    whole = {"podSelector": {"matchLabels": {"app": name}}, "avoid": list(avoid), **spec}
    return placement_policy_specs.policy(whole, name=name, namespace=TENANT)


def _heat(above: int) -> Object:
    return {"metric": "heat", "above": above}


def _with_pod(policy: Object, kind: str = "", status: str = "True") -> Defect:
    """A policy with a pod that was created later; waits for a condition of the policy if `kind` is given."""
    name = policy["metadata"]["name"]

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        try:
            healthy_native_cluster.create_policy(cluster.api, policy)
            cluster.api.create(healthy_native_cluster.pod(name, name))
            if kind:
                wait(f"{kind} is {status}", lambda: _has_status(cluster, policy, kind, status))
            yield
        finally:
            cluster.api.delete(f"{healthy_native_cluster.PODS}/{name}")
            cluster.api.delete(path_of(policy))

    return apply


def _has_status(cluster: HealthyCluster, policy: Object, kind: str, status: str) -> bool | None:
    return healthy_native_cluster.condition(cluster.api, policy, kind).get("status") == status or None


def _measured(metric: str, *names: str) -> Defect:
    """A policy with a metric that has values for these names."""
    policy = _policy("measured", {"metric": metric, "above": 80})

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        if names:
            cluster.metrics.set(metric, dict.fromkeys(names, 20))
        with _with_pod(policy, "MetricsAvailable", "False")(cluster):
            yield
        cluster.metrics.forget(metric)

    return apply


@contextlib.contextmanager
def _suspended(cluster: HealthyCluster) -> Iterator[None]:
    """A policy whose metric most nodes lose."""
    policy = _policy("fading", {"metric": "fading", "above": 80})
    cluster.metrics.set("fading", dict.fromkeys(NODES, 20))
    with _with_pod(policy, "MetricsAvailable")(cluster):
        cluster.metrics.set("fading", {NODES[0]: 20})
        wait("the rule is suspended", lambda: _has_status(cluster, policy, "Suspended", "True"))
        yield
    cluster.metrics.forget("fading")


def _changed(path: str, patch: Object) -> Defect:
    """An object with other fields in its spec."""

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        spec = cluster.api.get(path)["spec"]
        cluster.api.patch(path, {"spec": patch})
        yield
        cluster.api.patch(path, {"spec": spec})

    return apply


@contextlib.contextmanager
def _old_expression(cluster: HealthyCluster) -> Iterator[None]:
    """The admission policy of another version of nodewise."""
    spec = cluster.api.get(_MUTATING)["spec"]
    first, *others = spec["variables"]
    variables = [first | {"expression": f"({first['expression']})"}, *others]
    with _changed(_MUTATING, {"variables": variables})(cluster):
        yield


def _flag(flag: str) -> Defect:
    """A flag in the arguments of the controller's Deployment."""
    return misconfigurations.flagged(DEPLOYMENT, flag)


@contextlib.contextmanager
def _ended(cluster: HealthyCluster) -> Iterator[None]:
    """The controller ended."""
    cluster.controller.stop()
    wait(
        "nobody leads",
        lambda: not cluster.api.get(healthy_native_cluster.LEASE)["spec"].get("holderIdentity"),
    )
    yield


@contextlib.contextmanager
def _without_native_mode(cluster: HealthyCluster) -> Iterator[None]:
    """The controller runs with a flag that turns native mode off."""
    cluster.controller.stop()
    healthy_native_cluster.start_controller(cluster, "--no-native-mode")
    with _flag("--no-native-mode")(cluster):
        yield


def _restart(cluster: HealthyCluster, _: ReadRemedy) -> None:
    """The kubelet starts the container with the flags of the Deployment."""
    cluster.controller.stop()
    healthy_native_cluster.start_controller(cluster)


@contextlib.contextmanager
def _scaled_to_zero(cluster: HealthyCluster) -> Iterator[None]:
    cluster.api.patch(DEPLOYMENT, {"spec": {"replicas": 0}})
    yield
    cluster.api.patch(DEPLOYMENT, {"spec": {"replicas": 2}})


@contextlib.contextmanager
def _older_pod(cluster: HealthyCluster) -> Iterator[None]:
    """A pod that was created before the policy that selects it."""
    name, policy = "early", _policy("early", _heat(80))
    try:
        cluster.api.create(healthy_native_cluster.pod(name, name))
        healthy_native_cluster.create_policy(cluster.api, policy)
        yield
    finally:
        cluster.api.delete(f"{healthy_native_cluster.PODS}/{name}")
        cluster.api.delete(path_of(policy))


_WEBHOOK: Final[Object] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "nodes-of-another-team"},
    "webhooks": [
        {
            "name": "nodes.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{child_processes.free_port()}/"},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
            ],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1,
        }
    ],
}


@contextlib.contextmanager
def _refusing_webhook(cluster: HealthyCluster) -> Iterator[None]:
    """A webhook without a server, which makes the API server refuse all changes of nodes."""
    policy = _policy("labelled", {"metric": "load", "above": 80})
    cluster.metrics.set("load", dict.fromkeys(NODES, 20) | {NODES[0]: 90})
    with misconfigurations.created(_WEBHOOK)(cluster):
        wait("changes of nodes are refused", lambda: _is_refused(cluster))
        with _with_pod(policy, "LabelRefused")(cluster):
            yield
    cluster.metrics.forget("load")


def _is_refused(cluster: HealthyCluster) -> bool | None:
    patch = {"metadata": {"annotations": {"tests/probe": str(child_processes.number())}}}
    try:
        cluster.api.patch(f"/api/v1/nodes/{NODES[0]}", patch)
    except ApiError:
        return True
    return None


def _delete_webhook(cluster: HealthyCluster, remedy: ReadRemedy) -> None:
    assert "webhook" in remedy.text
    cluster.api.delete(path_of(_WEBHOOK))


@contextlib.contextmanager
def _without_trust(cluster: HealthyCluster) -> Iterator[None]:
    """A TASPolicy that labels nodes, in a namespace without trust."""
    path = f"/api/v1/namespaces/{TENANT}"
    rule = {"metricname": "heat", "operator": "GreaterThan", "target": 80, "labels": ["hot=yes"]}
    policy = healthy_cluster.policy("labels", labeling=[rule])
    cluster.api.patch(path, {"metadata": {"labels": {"nodewise.io/trusted": None}}})
    with misconfigurations.created(policy)(cluster):
        wait("it is not trusted", lambda: _has_status(cluster, policy, "NotTrusted", "True"))
        yield
    cluster.api.patch(path, {"metadata": {"labels": {"nodewise.io/trusted": "true"}}})


@contextlib.contextmanager
def _over_budget(cluster: HealthyCluster) -> Iterator[None]:
    """A policy with more metrics than its namespace may have."""
    names = [f"metric-{number}" for number in range(17)]
    for name in names:
        cluster.metrics.set(name, dict.fromkeys(NODES, 1))
    policy = _policy("wide", *({"metric": name, "above": 80} for name in names))
    with _with_pod(policy, "Ready", "False")(cluster):
        yield
    for name in names:
        cluster.metrics.forget(name)


def _shorten(policy: str) -> Follow:
    """The policy keeps its first rule."""

    def follow(cluster: HealthyCluster, _: ReadRemedy) -> None:
        path = f"/apis/{placement_policy_specs.GROUP}/namespaces/{TENANT}/placementpolicies/{policy}"
        cluster.api.patch(path, {"spec": {"avoid": cluster.api.get(path)["spec"]["avoid"][:1]}})

    return follow


@contextlib.contextmanager
def _unserved_metrics(cluster: HealthyCluster) -> Iterator[None]:
    """No server is behind the custom metrics API."""
    paths = [
        f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{fake_custom_metrics_server.GROUP}"
        for version in fake_custom_metrics_server.VERSIONS
    ]
    for path in paths:
        cluster.api.patch(path, {"spec": {"service": {"port": child_processes.free_port()}}})

    def is_unavailable() -> bool | None:
        conditions = [item for path in paths for item in cluster.api.get(path)["status"]["conditions"]]
        return all(item["status"] == "False" for item in conditions) or None

    wait("the custom metrics API is unavailable", is_unavailable)
    yield


@contextlib.contextmanager
def _descheduler(cluster: HealthyCluster) -> Iterator[None]:
    """A descheduler that evicts pods from nodes that a policy rejects."""
    cluster.metrics.set("heat", dict.fromkeys(NODES, 20) | {NODES[0]: 90})
    system = healthy_cluster.SYSTEM
    try:
        healthy_cluster.put_descheduler(cluster)
        yield
    finally:
        cluster.metrics.set("heat", dict.fromkeys(NODES, 20))
        for path in (
            f"/apis/apps/v1/namespaces/{system}/deployments/descheduler",
            f"/api/v1/namespaces/{system}/pods/descheduler-0",
            f"/api/v1/namespaces/{system}/configmaps/descheduler-policy",
        ):
            cluster.api.delete(path)


@contextlib.contextmanager
def _deleted_taspolicy(cluster: HealthyCluster) -> Iterator[None]:
    """A pod names a policy that was deleted since."""
    policy = healthy_cluster.policy(
        "ghost", dontschedule=[{"metricname": "heat", "operator": "GreaterThan", "target": 80}]
    )
    pod = healthy_native_cluster.pod("asks", "none")
    pod["metadata"]["labels"] = {"telemetry-policy": "ghost"}
    cluster.api.create(policy)

    def is_admitted() -> bool | None:
        with contextlib.suppress(ApiError):
            cluster.api.create(pod)
            return True
        return None

    wait("the pod is created", is_admitted)
    cluster.api.delete(path_of(policy))
    try:
        yield
    finally:
        cluster.api.delete(path_of(pod))


NATIVE_CASES: Final = (
    DoctorCase(
        "kind-not-served",
        "the definition of ClusterPlacementPolicies is missing",
        misconfigurations.undefined("clusterplacementpolicies.nodewise.io"),
        "CustomResourceDefinition/clusterplacementpolicies.nodewise.io",
        ("manifests crds",),
    ),
    DoctorCase(
        "pod-admission-missing",
        "the binding that adds requirements is gone",
        misconfigurations.deleted(f"{_REGISTRATION}/mutatingadmissionpolicybindings/nodewise-native"),
        "MutatingAdmissionPolicy/nodewise-native",
        ("manifests native",),
    ),
    DoctorCase(
        "pod-admission-missing",
        "the binding that protects gates is gone",
        misconfigurations.deleted(f"{ADMISSION}/nodewise-native-gate"),
        "ValidatingAdmissionPolicy/nodewise-native-gate",
        ("manifests native",),
    ),
    DoctorCase(
        "pod-admission-missing",
        "an expression is that of another version",
        _old_expression,
        "MutatingAdmissionPolicy/nodewise-native",
        ("--force-conflicts",),
    ),
    DoctorCase(
        "rights-missing",
        "the controller may not read",
        misconfigurations.deleted(f"{RBAC}/clusterrolebindings/nodewise"),
        "nodewise/nodewise",
        ("manifests rbac",),
    ),
    DoctorCase(
        "rights-missing",
        "the controller may not remove gates",
        misconfigurations.deleted(f"{RBAC}/clusterrolebindings/nodewise-controller"),
        "nodewise/nodewise",
        ("manifests controller",),
    ),
    DoctorCase(
        "rights-missing",
        "the controller may not lead",
        misconfigurations.deleted(
            f"{RBAC}/namespaces/{healthy_cluster.NAMESPACE}/rolebindings/nodewise-controller"
        ),
        "nodewise/nodewise",
        ("manifests controller",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "what the controller writes to nodes is not limited",
        misconfigurations.deleted(f"{_REGISTRATION}/validatingadmissionpolicies/nodewise-nodes"),
        "nodewise/nodewise",
        ("manifests rbac",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "what the controller writes to pods is not limited",
        misconfigurations.deleted(f"{ADMISSION}/nodewise-pods"),
        "nodewise/nodewise",
        ("manifests controller",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "who may trust is only audited",
        _changed(f"{ADMISSION}/nodewise-trust", {"validationActions": ["Audit"]}),
        "nodewise-trust",
        ("manifests trust",),
    ),
    DoctorCase(
        "labels-frozen",
        "the controller ended",
        _ended,
        "nodewise-controller",
        ("start a controller",),
        follow=_restart,
    ),
    DoctorCase(
        "native-mode-off",
        "a flag turns native mode off",
        _without_native_mode,
        "nodewise-controller",
        ("remove --no-native-mode",),
        frozenset({"policy-without-effect", "labels-frozen"}),
        follow=_restart,
        edit="/--no-native-mode/d",
    ),
    DoctorCase(
        "replicas-not-ready",
        "the controller is scaled to zero",
        _scaled_to_zero,
        "nodewise-controller",
        ("kubectl scale",),
    ),
    DoctorCase(
        "identity-shared",
        "one identity for two controllers",
        _flag("--identity=nodewise"),
        "nodewise-controller",
        ("metadata.name",),
        edit="/--identity=nodewise/d",
    ),
    DoctorCase(
        "all-namespaces-trusted",
        "the controller trusts every namespace",
        _flag("--trust-all-namespaces"),
        "nodewise-controller",
        ("nodewise.io/trusted=true",),
        edit="/--trust-all-namespaces/d",
    ),
    DoctorCase(
        "all-nodes-rejected",
        "a policy rejects every node",
        _with_pod(_policy("strict", _heat(1)), "AllNodesRejected"),
        "web/strict",
        ("kubectl edit placementpolicy/strict",),
        edit="s/above: 1$/above: 80/",
    ),
    DoctorCase(
        "policy-without-effect",
        "a pod is older than its policy",
        _older_pod,
        "web/early",
        ("create the pod again",),
        follow=followed_remedies.create_again(healthy_native_cluster.pod("early", "early")),
    ),
    DoctorCase(
        "policy-without-effect",
        "a canary by percent",
        misconfigurations.created(
            _policy("part", _heat(80), mode="Canary", canary={"percent": 10}),
            healthy_native_cluster.pod("part", "part"),
        ),
        "web/part",
        ("canary.podSelector",),
        edit="s/percent: 10/podSelector: {matchLabels: {track: canary}}/",
    ),
    DoctorCase(
        "policy-condition",
        "a canary that stepped back",
        _with_pod(
            _policy(
                "careful",
                _heat(1),
                mode="Canary",
                canary={"podSelector": {"matchLabels": {"app": "careful"}}},
                guard={"maxRejectedShare": "0.5", "within": "1s"},
            ),
            "SteppedBack",
        ),
        "web/careful",
        ("repair the nodes",),
        edit="s/above: 1$/above: 80/",
    ),
    DoctorCase(
        "policy-condition",
        "most nodes lose their value at once",
        _suspended,
        "web/fading",
        ("restore the values",),
        follow=followed_remedies.export_metric("fading"),
    ),
    DoctorCase(
        "policy-condition",
        "a webhook refuses changes of nodes",
        _refusing_webhook,
        "web/labelled",
        ("remove what refuses",),
        follow=_delete_webhook,
    ),
    DoctorCase(
        "namespace-not-trusted",
        "a policy that labels nodes",
        _without_trust,
        "web/labels",
        ("kubectl label namespace/web",),
    ),
    DoctorCase(
        "namespace-over-budget",
        "more metrics than a namespace may have",
        _over_budget,
        "web/wide",
        ("raise the option",),
        frozenset({"all-nodes-rejected"}),
        follow=_shorten("wide"),
    ),
    DoctorCase(
        "metric-missing",
        "no exporter has it",
        _measured("nowhere"),
        "web/measured",
        (),
        frozenset({"all-nodes-rejected"}),
        follow=followed_remedies.export_metric("nowhere"),
    ),
    DoctorCase(
        "metric-names-mismatch",
        "the exporters have other names for nodes",
        _measured("power", "a.example.com", "b.example.com"),
        "web/measured",
        (),
        frozenset({"all-nodes-rejected"}),
        follow=followed_remedies.export_metric("power"),
    ),
    DoctorCase(
        "metrics-api-unavailable",
        "the adapter ended",
        _unserved_metrics,
        fake_custom_metrics_server.GROUP,
        ("the adapter",),
        frozenset({"policy-condition", "metric-missing"}),
        follow=followed_remedies.correct_api_service,
    ),
    DoctorCase(
        "native-mode-evictions",
        "the descheduler evicts pods of policies",
        _descheduler,
        "descheduler",
        ("RemovePodsViolatingNodeAffinity",),
        follow=followed_remedies.disable_descheduler_plugin,
    ),
    DoctorCase(
        "policy-unknown",
        "the policy of a pod was deleted",
        _deleted_taspolicy,
        "web/ghost",
        ("correct the label",),
        follow=followed_remedies.delete_pod("asks"),
    ),
    DoctorCase(
        "policy-label-misspelt",
        "a label that is nearly telemetry-policy",
        misconfigurations.created(misconfigurations.mislabelled()),
        "web/mislabelled",
        ("rename the label",),
        follow=followed_remedies.label_pod("mislabelled", telemetry_polcy=None),
    ),
    DoctorCase(
        "scheduler-not-running",
        "a pod waits for a scheduler that does not run",
        misconfigurations.created(
            healthy_native_cluster.pod("alone", "none", schedulerName="my-scheduler", schedulingGates=[])
        ),
        "my-scheduler",
        ("start that scheduler",),
        follow=followed_remedies.delete_pod("alone"),
    ),
)
