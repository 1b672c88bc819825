"""A missing right disables its own feature only, and nodewise names the right."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.cluster import (
    api_user_kubeconfigs,
    child_processes,
    extender_process,
    fake_port_forward,
    kubernetes_objects,
    namespace_sandboxes,
    rbac_rights_comparison,
    read_only_commands,
    shipped_installation,
)
from tests.cluster.api_client import ClusterApi, path_of
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.rbac_rights_comparison import ApiRight
from tests.cluster.shipped_installation import NAMESPACE, ShippedInstallation, pod, policy


class MissingRight(NamedTuple):
    """The effects of a missing right."""

    event: str
    """The log event that names the right."""
    lost: frozenset[str]
    """The disabled features of `FEATURES`."""


CORE, EVENTS, METRICS = "", "events.k8s.io", "metrics.k8s.io"
LEASES, POLICIES, CUSTOM = "coordination.k8s.io", "telemetry.intel.com", "custom.metrics.k8s.io"
PLACEMENT, DEVICES = "nodewise.io", "resource.k8s.io"
LEASE = "nodewise-extender"
LEADERS = frozenset(
    {"labels", "new trust", "status", "placement status", "cluster status", "advertise", "wake"}
)
FEATURES = LEADERS | {"ready", "filter", "new nodes", "new policies", "usage", "events", "event counts"}
NOTHING = FEATURES - {"events", "event counts"}
"""All features except events: nodewise rejects all pods."""

WITHOUT = {
    ApiRight("list", CORE, "nodes"): MissingRight("kube_lost", NOTHING),
    ApiRight("watch", CORE, "nodes"): MissingRight("kube_lost", frozenset({"new nodes"})),
    ApiRight("get", CORE, "nodes"): MissingRight("controller_failed", frozenset({"labels", "new trust"})),
    ApiRight("patch", CORE, "nodes"): MissingRight(
        "controller_failed", frozenset({"labels", "new trust", "wake"})
    ),
    ApiRight("patch", CORE, "nodes/status"): MissingRight("controller_failed", frozenset({"advertise"})),
    ApiRight("list", CORE, "pods"): MissingRight("kube_lost", frozenset({"wake"})),
    ApiRight("watch", CORE, "pods"): MissingRight("kube_lost", frozenset({"wake"})),
    ApiRight("list", CORE, "namespaces"): MissingRight("kube_lost", NOTHING),
    ApiRight("watch", CORE, "namespaces"): MissingRight("kube_lost", frozenset({"new trust"})),
    ApiRight("create", EVENTS, "events"): MissingRight("event_lost", frozenset({"events", "event counts"})),
    ApiRight("patch", EVENTS, "events"): MissingRight("event_lost", frozenset({"event counts"})),
    ApiRight("list", POLICIES, "taspolicies"): MissingRight("kube_lost", NOTHING),
    ApiRight("watch", POLICIES, "taspolicies"): MissingRight("kube_lost", frozenset({"new policies"})),
    ApiRight("patch", POLICIES, "taspolicies/status"): MissingRight("status_failed", frozenset({"status"})),
    ApiRight("list", PLACEMENT, "placementpolicies"): MissingRight("kube_lost", NOTHING),
    ApiRight("watch", PLACEMENT, "placementpolicies"): MissingRight("kube_lost", frozenset()),
    ApiRight("list", PLACEMENT, "clusterplacementpolicies"): MissingRight("kube_lost", NOTHING),
    ApiRight("watch", PLACEMENT, "clusterplacementpolicies"): MissingRight("kube_lost", frozenset()),
    ApiRight("patch", PLACEMENT, "placementpolicies/status"): MissingRight(
        "status_failed", frozenset({"placement status"})
    ),
    ApiRight("patch", PLACEMENT, "clusterplacementpolicies/status"): MissingRight(
        "status_failed", frozenset({"cluster status"})
    ),
    ApiRight("list", METRICS, "nodes"): MissingRight("metric_failed", frozenset({"usage"})),
    ApiRight("get", CUSTOM, "*"): MissingRight(
        "metric_failed", frozenset({"filter", "labels", "new trust", "wake", "new nodes", "new policies"})
    ),
    ApiRight("create", LEASES, "leases", namespace=NAMESPACE): MissingRight("lease_failed", LEADERS),
    ApiRight("get", LEASES, "leases", LEASE, NAMESPACE): MissingRight("lease_failed", LEADERS),
    ApiRight("update", LEASES, "leases", LEASE, NAMESPACE): MissingRight("lease_failed", LEADERS),
}


USAGE_OF_PODS: Final = ApiRight("list", METRICS, "pods")
"""It improves the predicted load, which no feature here uses; without it the load is predicted from nodes."""
CLAIM_OF_POD: Final = ApiRight("get", DEVICES, "resourceclaims")
"""With it `explain` shows the devices of a pod with claims; `tests/cluster/test_device_placement.py` uses it."""


def test_every_right_has_its_row() -> None:
    granted = rbac_rights_comparison.granted(extender_process.manifest("rbac.yaml"))
    assert WITHOUT.keys() | {USAGE_OF_PODS} == granted


def lease(api: ClusterApi, *, there: bool) -> None:
    """Deletes the Lease, and creates it without a holder if `there` is set."""
    metadata = {"name": LEASE, "namespace": NAMESPACE}
    free = {"apiVersion": f"{LEASES}/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
    api.delete(path_of(free))
    if there:
        api.create(free)


class FeatureCluster(NamedTuple):
    """A cluster in which every feature has an observable effect."""

    shipped: ShippedInstallation
    sandbox: Sandbox
    running: ExtenderProcess
    other: Sandbox
    """A namespace with the policy `granted`, at first without trust."""

    def enter(self) -> None:
        """Changes that nodewise learns only from a watch."""
        self.sandbox.nodes(kubernetes_objects.node("late"))
        self.other.trust()
        self.sandbox.put(policy("second", "heat", "dontschedule"))
        self.sandbox.pods(pod("waits", "pol"))
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        condition = refused | {"message": "0/2 nodes are available: 2 nodewise: starting"}
        path = f"/api/v1/namespaces/{self.sandbox.namespace}/pods/waits/status"
        self.sandbox.api.patch(path, {"status": {"conditions": [condition]}})

    def seen(self) -> set[str]:
        """The features that work now."""
        shipped, sandbox, running, _ = self
        space = sandbox.namespace
        a, b, late = (running.rejects(space, node, "pol") for node in ("a", "b", "late"))
        placed, wide = shipped_installation.placement_policy_statuses(sandbox)
        known = sandbox.api.get(f"/apis/{EVENTS}/v1/namespaces/{space}/events")["items"]
        features = {
            "labels": shipped.labels("a").get("pol") == "violating",
            "new trust": shipped.labels("a").get("granted") == "violating",
            "status": bool(extender_process.status(sandbox, "pol")),
            "placement status": bool(placed),
            "cluster status": bool(wide),
            "advertise": shipped.advertises("b"),
            "wake": bool(running.events("woken")),
            "ready": running.is_ready(),
            "filter": a and not b,
            "new nodes": late and not b,
            "new policies": not running.rejects(space, "b", "second"),
            "usage": running.fetched("cpu_usage"),
            "events": any(event["reason"] == "NoNodePasses" for event in known),
            # several before the first write are counted in the event as it is created, which needs no right to patch
            "event counts": any(event.get("series") for event in known) and running.repeats_events(),
        }
        return {feature for feature, works in features.items() if works}


def refusal_message(right: ApiRight) -> str:
    """A part of the API server's message for a refused right."""
    return f'cannot {right.verb} resource "{right.resource.replace("*", "nodes/heat")}" in API group "{right.group}"'


def right_name(right: ApiRight) -> str:
    return f"{right.verb} {right.resource}.{right.group}".rstrip(".")


@pytest.mark.parametrize("right", WITHOUT, ids=right_name)
def test_a_missing_right_is_named_and_disables_only_its_feature(
    shipped: ShippedInstallation, sandbox: Sandbox, tmp_path: Path, right: ApiRight
) -> None:
    event, lost = WITHOUT[right]
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    shipped.label_as_the_older_system("a", "old")
    shipped.metrics.set("heat", {"a": 90, "b": 10, "late": 90})
    sandbox.put(policy("pol", "heat", "dontschedule", "deschedule"))
    lease(sandbox.api, there=right.verb == "update")
    with namespace_sandboxes.created(shipped.plane, trusted=False) as other, shipped.missing(right):
        # before the start, because without the watch only the first list contains the policy
        other.put(policy("granted", "heat", "deschedule"))
        shipped_installation.placement_policies(sandbox)
        with shipped.started(tmp_path) as running:
            if "ready" not in lost:
                running.process.wait_ready(running.is_ready)
            scene = FeatureCluster(shipped, sandbox, running, other)
            scene.enter()
            wait(
                "the rest works",
                lambda: scene.seen() >= FEATURES - lost or None,
                show=lambda: FEATURES - lost - scene.seen(),
            )

            def is_logged() -> bool | None:
                scene.seen()  # each feature is used again: events are patched only if they are repeated
                return refusal_message(right) in str(running.events(event)) or None

            wait("the right is logged", is_logged, show=running.events)
            assert scene.seen() == FEATURES - lost


def test_a_right_that_is_taken_and_given_back_needs_no_restart(
    shipped: ShippedInstallation, sandbox: Sandbox, tmp_path: Path
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b"))
    shipped.metrics.set("heat", {"a": 90, "b": 10})
    sandbox.put(policy("pol", "heat", "dontschedule", "deschedule"))
    with shipped.started(tmp_path) as running:
        wait("a is labelled", lambda: "pol" in shipped.labels("a") or None)
        patch = ApiRight("patch", CORE, "nodes")
        with shipped.missing(patch):
            shipped.metrics.set("heat", {"a": 90, "b": 90})
            wait(
                "the right is logged",
                lambda: refusal_message(patch) in str(running.events("controller_failed")) or None,
            )
            assert running.rejects(sandbox.namespace, "b", "pol")
        wait("b is labelled", lambda: "pol" in shipped.labels("b") or None)
        get = ApiRight("get", CUSTOM, "*")
        with shipped.missing(get):
            wait("it is logged", lambda: refusal_message(get) in str(running.events("metric_failed")) or None)
            shipped.metrics.set("heat", {"a": 90, "b": 10})
            assert running.rejects(sandbox.namespace, "b", "pol"), "the last value holds"
        wait("b is cool", lambda: not running.rejects(sandbox.namespace, "b", "pol") or None)
        assert running.is_ready()


DECIDE = ("decide", "--cluster", "--running")
WITHOUT_REPLICAS = (*DECIDE, "--nodewise-namespace=default")
"""Reads the metrics with the rights of the user."""
WITH_GPUS = ("decide", "--cluster", "--agents=gpu")
EXPLAIN = ("explain",)
FAILS, WITH_LESS, NO_ANSWER = 1, 0, 3
PORT_FORWARD = [ApiRight(verb, CORE, "pods/portforward", "", NAMESPACE) for verb in ("get", "create")]
READERS = {
    ApiRight("list", CORE, "nodes"): (DECIDE, FAILS),
    ApiRight("list", CORE, "pods"): (DECIDE, FAILS),
    ApiRight("list", POLICIES, "taspolicies"): (DECIDE, FAILS),
    ApiRight("list", PLACEMENT, "placementpolicies"): (DECIDE, FAILS),
    ApiRight("list", PLACEMENT, "clusterplacementpolicies"): (DECIDE, FAILS),
    ApiRight("list", CORE, "namespaces"): (DECIDE, FAILS),
    ApiRight("list", METRICS, "nodes"): (WITHOUT_REPLICAS, WITH_LESS),
    ApiRight("get", CUSTOM, "*"): (WITHOUT_REPLICAS, NO_ANSWER),
    ApiRight("list", DEVICES, "deviceclasses"): (WITH_GPUS, WITH_LESS),
    ApiRight("list", DEVICES, "resourceslices"): (WITH_GPUS, WITH_LESS),
    ApiRight("list", DEVICES, "resourceclaims"): (WITH_GPUS, WITH_LESS),
    ApiRight("list", DEVICES, "devicetaintrules"): (WITH_GPUS, WITH_LESS),
    ApiRight("get", CORE, "pods"): (EXPLAIN, WITH_LESS),
    **dict.fromkeys(PORT_FORWARD, (EXPLAIN, NO_ANSWER)),
}
"""For each missing right, the command that reports it and its exit code; 3 means that a pod fits on no node, or that
nothing is known about it.
"""


def test_every_right_of_a_reader_has_its_row() -> None:
    granted = rbac_rights_comparison.granted(extender_process.manifest("reader.yaml"))
    assert READERS.keys() | {CLAIM_OF_POD} == granted


@pytest.fixture(scope="module")
def decided(shipped: ShippedInstallation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a running pod about which a replica has decided."""
    with namespace_sandboxes.created(shipped.plane) as sandbox:
        sandbox.nodes(*kubernetes_objects.nodes("a b"))
        shipped.metrics.set("heat", {"a": 90, "b": 10})
        sandbox.put(policy("pol", "heat", "dontschedule"))
        sandbox.pods(kubernetes_objects.running_on("b", pod("probe", "pol")))
        with shipped.started(tmp_path_factory.mktemp("decided")) as running:
            wait("heat is known", lambda: not running.rejects(sandbox.namespace, "b", "pol") or None)
            serving = shipped.plane.authority.issue("kubelet", "127.0.0.1")
            with fake_port_forward.kubelet_of(shipped.plane.api, "a", serving) as kubelet:
                fake_port_forward.add_replica(
                    shipped.plane.api, kubelet, "a", NAMESPACE, "decided", running.health
                )
                yield f"{sandbox.namespace}/probe"


@pytest.mark.parametrize("right", READERS, ids=right_name)
def test_a_missing_right_to_read_is_named(
    shipped: ShippedInstallation, decided: str, right: ApiRight
) -> None:
    arguments, code = READERS[right]
    plane = shipped.plane
    user = plane.user(f"reader-{child_processes.number()}")
    for role in extender_process.manifest("reader.yaml"):
        less = rbac_rights_comparison.without(role["rules"], right)
        api_user_kubeconfigs.grant(plane.api, user.name, less, role["metadata"].get("namespace", ""))
    more = (decided,) if arguments is EXPLAIN else ()
    done = read_only_commands.run(*arguments, *more, f"--kubeconfig={user.kubeconfig}")
    if right in PORT_FORWARD:  # explain prints what else is known, and which rights would show more
        assert (done.returncode, "get and create pods/portforward" in done.stdout) == (code, True), (
            done.stdout
        )
    else:
        assert (done.returncode, refusal_message(right) in done.stderr) == (code, True), done.stderr
