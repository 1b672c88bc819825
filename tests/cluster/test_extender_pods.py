"""`deploy/extender-pods.yaml` on a real API server: selected pods get the resource, other pods are unchanged."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.cluster import extender_process, kubernetes_objects
from tests.cluster.admission_policy_waits import DRY_RUN
from tests.cluster.api_client import ClusterApi, Object, folder_of, path_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_scheduler_extender import FakeExtenderServer, entry
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_specs import GROUP, HOT, LABEL, PLURALS, RANK, policy
from tests.label_selector_cases import SELECTOR_CASES, SelectorCase

RESOURCE: Final = "telemetry/scheduling"
MARK: Final = {RESOURCE: "1"}
CPU: Final = {"cpu": "100m"}
KINDS: Final = tuple(PLURALS)
NAMESPACES: Final = {case.name: f"case-{number}" for number, case in enumerate(SELECTOR_CASES)}
"""The namespace of a policy with the selector of each case; `<namespace>-wide` is that of a cluster policy."""
ALL_PODS: Final = "all-pods"
"""A namespace with a policy that selects all of its pods, and that enforces only `avoid`."""


def pod(namespace: str, labels: dict[str, str] | None = None, **spec: Any) -> Object:
    """A pod with one container without resources."""
    metadata = {"name": "p", "namespace": namespace} | ({} if labels is None else {"labels": labels})
    default = {"containers": [{"name": "main", "image": "none"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": default | spec}


def created(api: ClusterApi, obj: Object) -> Object:
    """A pod as the API server would store it."""
    stored: Object = api.request("POST", folder_of(obj), json=obj, params=DRY_RUN).json()
    return stored


def resources(api: ClusterApi, obj: Object) -> list[Object]:
    """The resources of each container of a pod as the API server would store it."""
    spec = created(api, obj)["spec"]
    return [container["resources"] for container in (*spec["containers"], *spec.get("initContainers", ()))]


def is_marked(api: ClusterApi, obj: Object) -> bool:
    return any(RESOURCE in part.get("limits", {}) for part in resources(api, obj))


def cluster_policy(name: str, namespaces: Object, pods: Object) -> Object:
    spec = {"namespaceSelector": namespaces, "podSelector": pods, "avoid": [HOT]}
    return policy(spec, "ClusterPlacementPolicy", name)


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[ClusterApi]:
    """An API server with the admission policies, and a policy of each kind for each case of a selector."""
    extender_process.define(plane.api)
    made = [plane.api.create(document) for document in extender_process.manifest("extender-pods.yaml")]
    for case in SELECTOR_CASES:
        namespace = NAMESPACES[case.name]
        for name in (namespace, f"{namespace}-wide", f"{namespace}-by-labels"):
            labelled = kubernetes_objects.namespace(name)
            labels = {"space": namespace} | (case.labels or {}) if name.endswith("labels") else {}
            labelled["metadata"]["labels"] |= labels
            plane.api.create(labelled)
        plane.api.create(policy({"podSelector": case.selector, "avoid": [HOT]}, namespace=namespace))
        by_name = {"matchLabels": {"kubernetes.io/metadata.name": f"{namespace}-wide"}}
        plane.api.create(cluster_policy(namespace, by_name, case.selector))
        in_space = {"key": "space", "operator": "In", "values": [namespace]}
        expressions = [*case.selector.get("matchExpressions", ()), in_space]
        by_labels = case.selector | {"matchExpressions": expressions}
        plane.api.create(cluster_policy(f"{namespace}-labels", by_labels, {}))
    plane.api.create(kubernetes_objects.namespace(ALL_PODS))
    for name, rules in (("a", {"avoid": [HOT]}), ("b", {"prefer": [RANK]})):
        spec = {"podSelector": {"matchLabels": {"policy": name}}} | rules
        plane.api.create(policy(spec, name=name, namespace=ALL_PODS))
    last = pod(ALL_PODS, {"policy": "b"})
    # the API server learns the policies of each kind in the order of their creation
    selected = [case for case in SELECTOR_CASES if case.is_selected][-1]
    last_of_cluster_policies = pod(f"{NAMESPACES[selected.name]}-by-labels")
    for example in (last, last_of_cluster_policies):
        wait("the policies have an effect", lambda pod=example: is_marked(plane.api, pod) or None)  # type: ignore[misc]
    yield plane.api
    for document in reversed(made):
        plane.api.delete(path_of(document))
    wait("the policies have no effect", lambda: None if is_marked(plane.api, last) else True)


@pytest.mark.parametrize("case", SELECTOR_CASES, ids=lambda case: case.name)
def test_selectors(api: ClusterApi, case: SelectorCase) -> None:
    namespace = NAMESPACES[case.name]
    assert is_marked(api, pod(namespace, case.labels)) == case.is_selected
    assert is_marked(api, pod(f"{namespace}-wide", case.labels)) == case.is_selected
    assert is_marked(api, pod(f"{namespace}-by-labels")) == case.is_selected


SELECTED: Final = {"policy": "a"}


@pytest.mark.parametrize("namespace", [ALL_PODS, f"{NAMESPACES[SELECTOR_CASES[0].name]}-wide"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, {"requests": MARK, "limits": MARK}),
        ({}, {"requests": MARK, "limits": MARK}),
        ({"requests": CPU}, {"requests": CPU | MARK, "limits": MARK}),
        ({"limits": CPU}, {"requests": CPU | MARK, "limits": CPU | MARK}),
        ({"requests": CPU, "limits": CPU}, {"requests": CPU | MARK, "limits": CPU | MARK}),
        ({"requests": {}, "limits": {}}, {"requests": MARK, "limits": MARK}),
        ({"requests": MARK}, {"requests": MARK, "limits": MARK}),
        ({"limits": {RESOURCE: "2"}}, {"requests": {RESOURCE: "2"}, "limits": {RESOURCE: "2"}}),
    ],
)
def test_resources_of_the_first_container(
    api: ClusterApi, namespace: str, before: Object | None, after: Object
) -> None:
    """Every branch of the mutation: an error in one of them would keep pods from being created."""
    container = {"name": "main", "image": "none"} | ({} if before is None else {"resources": before})
    containers = [container, {"name": "other", "image": "none"}]
    assert resources(api, pod(namespace, SELECTED, containers=containers)) == [after, {}]


def test_a_request_of_an_init_container_suffices(api: ClusterApi) -> None:
    first = {"name": "first", "image": "none", "resources": {"limits": MARK}}
    assert resources(api, pod(ALL_PODS, SELECTED, initContainers=[first])) == [
        {},
        {"requests": MARK, "limits": MARK},
    ]


@pytest.mark.parametrize(
    "obj",
    [
        pod("default", SELECTED),
        pod("kube-system", SELECTED),
        pod(ALL_PODS),
        pod(ALL_PODS, {"policy": "c"}),
        pod(ALL_PODS, SELECTED, nodeName="n"),
    ],
    ids=["other namespace", "kube-system", "no labels", "other labels", "with a node"],
)
def test_pods_that_no_policy_selects_are_unchanged(api: ClusterApi, obj: Object) -> None:
    assert resources(api, obj) == [{}]


DAEMON: Final = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
DAEMON_SET_CONTROLLER: Final = {"Impersonate-User": "system:serviceaccount:kube-system:daemon-set-controller"}


@pytest.mark.parametrize(
    ("owner", "headers", "is_selected"),
    [
        (DAEMON, DAEMON_SET_CONTROLLER, False),
        (DAEMON, {}, True),
        (DAEMON | {"controller": False}, DAEMON_SET_CONTROLLER, True),
        (DAEMON | {"apiVersion": "example.com/v1"}, DAEMON_SET_CONTROLLER, True),
    ],
    ids=["DaemonSet controller", "another user", "not the controller of the pod", "another group"],
)
def test_only_the_daemonset_controller_creates_pods_that_no_policy_selects(
    api: ClusterApi, owner: Object, headers: dict[str, str], is_selected: bool
) -> None:
    obj = pod(ALL_PODS, SELECTED)
    obj["metadata"]["ownerReferences"] = [owner]
    answer = api.request("POST", folder_of(obj), json=obj, params=DRY_RUN, headers=headers).json()
    assert (RESOURCE in str(answer["spec"]["containers"])) == is_selected


def test_pod_with_thousands_of_containers_or_owners_gets_the_resource(api: ClusterApi) -> None:
    """The API server ignores a mutation that exceeds the cost budget of expressions."""
    containers = [{"name": f"c{number}", "image": "none"} for number in range(1500)]
    assert resources(api, pod(ALL_PODS, SELECTED, containers=containers))[0] == {
        "requests": MARK,
        "limits": MARK,
    }
    obj = pod(ALL_PODS, SELECTED)
    obj["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": str(number)}
        for number in range(3000)
    ]
    assert is_marked(api, obj)


LARGE: Final = [
    {
        "name": f"c{number}",
        "image": "none",
        # a pod may name a variable twice, which server-side apply cannot merge
        "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
        "ports": [{"containerPort": 80}, {"containerPort": 80}],
    }
    for number in range(300)
]


@pytest.mark.parametrize("namespace", [ALL_PODS, "default"])
@pytest.mark.parametrize(
    "spec",
    [
        {"containers": LARGE},
        {"resources": {"requests": CPU, "limits": CPU}},
        {"affinity": {"nodeAffinity": {}}, "schedulingGates": [{"name": "g/g"}], "tolerations": []},
        {"hostNetwork": True, "overhead": None, "schedulerName": "another"},
    ],
    ids=["300 containers", "resources of the pod", "empty lists", "host network"],
)
def test_unusual_pods_are_created(api: ClusterApi, namespace: str, spec: Object) -> None:
    labels = SELECTED | {f"label-{number}": "v" for number in range(1000)}
    assert is_marked(api, pod(namespace, labels, **spec)) == (namespace == ALL_PODS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_that_is_not_enforced_adds_nothing(api: ClusterApi, sandbox: Sandbox, kind: str) -> None:
    """Nor does a policy that only labels nodes."""
    name = sandbox.namespace
    selector = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    spec = {"podSelector": {}, "avoid": [HOT]}
    spec |= {} if kind == "PlacementPolicy" else {"namespaceSelector": selector}
    path = path_of(sandbox.create(policy(spec, kind, name, name)))
    sandbox.create(policy({"nodeLabels": [LABEL]}, "ClusterPlacementPolicy", f"{name}-labels"))
    example = pod(name)
    wait("the policy has an effect", lambda: is_marked(api, example) or None)
    api.patch(f"{path}/status", {"status": {"mode": "NotEnforced"}})
    wait("the policy has no effect", lambda: None if is_marked(api, example) else True)
    api.patch(f"{path}/status", {"status": {"mode": "Enforce"}})
    wait("the policy has an effect", lambda: is_marked(api, example) or None)


def test_only_selected_pods_reach_the_extender(
    plane: ControlPlane, api: ClusterApi, sandbox: Sandbox, fake_extender: FakeExtenderServer
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    sandbox.put(policy({"podSelector": {"matchLabels": {"app": "web"}}, "avoid": [HOT]}))
    example = pod(sandbox.namespace, {"app": "web"})
    wait("the policy has an effect", lambda: is_marked(api, example) or None)
    fake_extender.reject = {"a": "hot"}
    configuration = {"extenders": [entry(fake_extender.url, managedResources=extender_process.MANAGED)]}
    scheduler = plane.start_scheduler(configuration)
    try:
        sandbox.pods(
            kubernetes_objects.pod("selected", labels={"app": "web"}), kubernetes_objects.pod("other")
        )
        assert sandbox.expect_bound("selected") == "b"
        sandbox.expect_bound("other")
    finally:
        scheduler.stop()
    assert {call.pod for call in fake_extender.calls} == {"selected"}


def test_pods_are_created_without_the_definitions(api: ClusterApi, plane: ControlPlane) -> None:
    """The last test of this file: it deletes the definitions."""
    for plural in PLURALS.values():
        api.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.nodewise.io")
    path = f"/apis/{GROUP}/placementpolicies"
    wait("the kinds are not served", lambda: None if api.answers(path) else True)
    assert resources(api, pod(ALL_PODS, SELECTED)) == [{}]
