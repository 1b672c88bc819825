"""Misconfigurations of a healthy cluster. Each exists while its context is open, and is reverted afterwards."""

import base64
import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from tests.cluster import (
    asgi_server_thread,
    child_processes,
    extender_process,
    fake_custom_metrics_server,
    fake_metrics_server,
    gpu_cluster,
    healthy_cluster,
    kubernetes_objects,
    native_mode,
    shipped_installation,
    single_purpose_certificates,
)
from tests.cluster.api_client import Object, path_of
from tests.cluster.asgi_server_thread import ServerTls
from tests.cluster.certificates import CertificateAuthority, CertificatePair
from tests.cluster.healthy_cluster import HealthyCluster
from tests.cluster.namespace_sandboxes import wait

ENTRY: Final = "/scheduler"
"""The path of the URL in the extender's entry."""
Defect = Callable[[HealthyCluster], AbstractContextManager[None]]
Change = Callable[[HealthyCluster, Object, Object], None]
"""A change of a scheduler configuration and of its first extender."""

CROWD: Final = 150
"""The number of nodes, of which kube-scheduler examines 100."""


def configured(change: Change) -> Defect:
    """A change of the scheduler configuration."""

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        sound_one = cluster.config
        cluster.config = copy.deepcopy(sound_one)
        change(cluster, cluster.config, cluster.config["extenders"][0])
        try:
            yield
        finally:
            cluster.config = sound_one

    return apply


def entry(**fields: object) -> Defect:
    """Other fields in the extender's entry; None removes a field."""

    def change(cluster: HealthyCluster, config: Object, entry: Object) -> None:
        entry |= fields
        for name in [name for name, value in entry.items() if value is None]:
            del entry[name]

    return configured(change)


def client(pair: Callable[[HealthyCluster], CertificatePair]) -> Defect:
    """Another client certificate for kube-scheduler."""

    def change(cluster: HealthyCluster, config: Object, entry: Object) -> None:
        cert, key = pair(cluster)
        entry["tlsConfig"] |= {"certFile": str(cert), "keyFile": str(key)}

    return configured(change)


def together(*defects: Defect) -> Defect:
    """Several defects at the same time."""

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for defect in defects:
                stack.enter_context(defect(cluster))
            yield

    return apply


def undefined(name: str) -> Defect:
    """Without a definition that has no objects."""

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
        definition = cluster.api.get(path)
        plural, _, group = name.partition(".")
        version = definition["spec"]["versions"][0]["name"]
        folder = f"/apis/{group}/{version}/{plural}"
        cluster.api.delete(path)
        wait(f"{name} is deleted", lambda: cluster.api.find(path) is None or None)
        try:
            yield
        finally:
            metadata = {"name": name}
            cluster.api.ensure({**definition, "metadata": metadata, "status": None})
            wait(f"{name} is served", lambda: cluster.api.answers(folder) or None)

    return apply


def created(*made: Object) -> Defect:
    """Additional objects, which are deleted afterwards."""

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        try:
            for manifest in made:
                cluster.api.create(manifest)
            yield
        finally:
            for manifest in reversed(made):
                cluster.api.delete(path_of(manifest))

    return apply


def deleted(*paths: str) -> Defect:
    """Deletes objects of the healthy cluster, and creates them again afterwards."""

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        kept = [cluster.api.get(path) for path in paths]
        try:
            for path in paths:
                cluster.api.delete(path)
            yield
        finally:
            for stored in kept:
                for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
                    stored["metadata"].pop(field, None)
                cluster.api.ensure(stored)
                if "status" in stored:
                    healthy_cluster.status(cluster.api, path_of(stored), stored["status"])

    return apply


def waiting(name: str, scheduler: str = "", **more: object) -> Object:
    """A pending pod of the tenant."""
    pod = kubernetes_objects.pod(name, labels=more.pop("labels", None), limits=extender_process.LIMITS)  # type: ignore[arg-type]
    pod["metadata"]["namespace"] = healthy_cluster.TENANT
    pod["spec"] |= more | ({"schedulerName": scheduler} if scheduler else {})
    return pod


def asking_for(policy: str) -> Defect:
    """A pod that names a policy, with a scheduling gate, so that the scheduler does not place it."""
    pod = waiting(
        f"asks-{policy}", labels={"telemetry-policy": policy}, schedulingGates=[{"name": "tests/held"}]
    )
    return created(pod)


def measured(policy: str, metric: str, names: tuple[str, ...] = ()) -> Defect:
    """A policy with a metric that has values for these names, and a pod of the policy."""
    rule = {"metricname": metric, "operator": "GreaterThan", "target": 80}

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        if names:
            cluster.metrics.set(metric, dict.fromkeys(names, 20))
        with (
            created(healthy_cluster.policy(policy, dontschedule=[rule]))(cluster),
            asking_for(policy)(cluster),
        ):
            yield
        cluster.metrics.forget(metric)

    return apply


# Changes of the configuration of kube-scheduler


def no_extender(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    del config["extenders"]


def removed_version(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    config["apiVersion"] = "kubescheduler.config.k8s.io/v1beta3"


def elsewhere(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    entry["urlPrefix"] = f"https://{child_processes.own_address()}:{child_processes.free_port()}/scheduler"


def no_ca(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    del entry["tlsConfig"]["caFile"]


def key_in_entry(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    key = Path(entry["tlsConfig"]["keyFile"]).read_bytes()
    entry["tlsConfig"]["keyData"] = base64.b64encode(key).decode()


def other_ca(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    entry["tlsConfig"]["caFile"] = str(stranger(cluster).ca_file)


def other_name(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    entry["tlsConfig"]["serverName"] = "other.example"


def unweighted(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    del entry["weight"]


def counted(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    entry["managedResources"] = [
        {**resource, "ignoredByScheduler": False} if resource in extender_process.MANAGED else resource
        for resource in entry["managedResources"]
    ]


def insecure(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    del entry["tlsConfig"]["caFile"]
    entry["tlsConfig"]["insecure"] = True


def no_cards(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    entry["managedResources"] = extender_process.MANAGED


def load_aware_beside_ours(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    plugins = {"score": {"enabled": [{"name": "LoadVariationRiskBalancing", "weight": 5}]}}
    config["profiles"][0]["plugins"] = plugins


def misspelt_plugin(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    config["profiles"][0]["plugins"] = {"score": {"disabled": [{"name": "ImageLocallity"}]}}


def load_aware(cluster: HealthyCluster, config: Object, entry: Object) -> None:
    enabled = [{"name": "TargetLoadPacking", "weight": 5}, {"name": "LowRiskOverCommitment", "weight": 5}]
    config["profiles"][0]["plugins"] = {"score": {"enabled": enabled}}


def stranger(cluster: HealthyCluster) -> CertificateAuthority:
    return CertificateAuthority(cluster.folder, f"stranger-{child_processes.number()}")


def strangers_client(cluster: HealthyCluster) -> CertificatePair:
    return cluster.certificates.leaf(single_purpose_certificates.CLIENT, stranger(cluster))


def ca_pair(cluster: HealthyCluster) -> CertificatePair:
    return CertificatePair(cluster.certificates.authority.ca_file, cluster.certificates.authority.key_file())


def lasting(days: int) -> Callable[[HealthyCluster], CertificatePair]:
    return lambda cluster: cluster.certificates.leaf(
        single_purpose_certificates.CLIENT, cluster.certificates.authority, days=days
    )


def for_servers(cluster: HealthyCluster) -> CertificatePair:
    return cluster.certificates.leaf(
        single_purpose_certificates.CLIENT,
        cluster.certificates.authority,
        use=single_purpose_certificates.SERVER,
    )


def other_client(cluster: HealthyCluster) -> CertificatePair:
    return cluster.certificates.leaf("kubelet", cluster.certificates.authority)


def mixed_up(cluster: HealthyCluster) -> CertificatePair:
    return CertificatePair(cluster.certificates.client.cert, strangers_client(cluster).key)


# Misconfigurations of the cluster


@contextlib.contextmanager
def without_trust(cluster: HealthyCluster) -> Iterator[None]:
    """Removes the trust that the tenant's policy needs, and waits for the policy's condition."""
    path = f"/api/v1/namespaces/{healthy_cluster.TENANT}"
    cluster.api.patch(path, {"metadata": {"labels": {"nodewise.io/trusted": None}}})
    wait(
        "the policy has the condition NotTrusted",
        functools.partial(_has_condition, cluster, "pol", "NotTrusted", "True"),
    )
    yield
    cluster.api.patch(path, {"metadata": {"labels": {"nodewise.io/trusted": "true"}}})
    wait(
        "the condition NotTrusted is False",
        functools.partial(_has_condition, cluster, "pol", "NotTrusted", "False"),
    )


@contextlib.contextmanager
def over_budget(cluster: HealthyCluster) -> Iterator[None]:
    """Adds a policy with more metrics than a namespace may have, and waits for its condition."""
    rules = [
        {"metricname": f"metric-{number}", "operator": "GreaterThan", "target": 1} for number in range(17)
    ]
    for rule in rules:
        cluster.metrics.set(str(rule["metricname"]), dict.fromkeys(healthy_cluster.NODES, 1))
    with created(healthy_cluster.policy("wide", scheduleonmetric=rules))(cluster):
        wait(
            "the policy exceeds a budget",
            functools.partial(_has_condition, cluster, "wide", "BudgetExceeded", "True"),
        )
        yield
    for rule in rules:
        cluster.metrics.forget(str(rule["metricname"]))


@contextlib.contextmanager
def suspended(cluster: HealthyCluster) -> Iterator[None]:
    """Adds a policy whose metric most nodes lose, and waits for its conditions."""
    cluster.metrics.set("fading", dict.fromkeys(healthy_cluster.NODES, 20))
    rule = {"metricname": "fading", "operator": "GreaterThan", "target": 80}
    with created(healthy_cluster.policy("fading", dontschedule=[rule]))(cluster):
        wait(
            "the metric is available",
            functools.partial(_has_condition, cluster, "fading", "MetricsFetched", "True"),
        )
        cluster.metrics.set("fading", {healthy_cluster.NODES[0]: 20})
        wait(
            "the rule is suspended",
            functools.partial(_has_condition, cluster, "fading", "Suspended", "True"),
        )
        yield
    cluster.metrics.forget("fading")


def _has_condition(cluster: HealthyCluster, policy: str, kind: str, status: str) -> bool | None:
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{healthy_cluster.TENANT}/taspolicies/{policy}"
    conditions = cluster.api.get(path).get("status", {}).get("conditions", [])
    return (kind, status) in [(condition["type"], condition["status"]) for condition in conditions] or None


def flagged(path: str, flag: str) -> Defect:
    """Adds a flag to the arguments in a Deployment."""

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        before = cluster.api.get(path)["spec"]["template"]["spec"]["containers"]
        changed = [container | {"args": [*container.get("args", []), flag]} for container in before]
        cluster.api.patch(path, {"spec": {"template": {"spec": {"containers": changed}}}})
        yield
        cluster.api.patch(path, {"spec": {"template": {"spec": {"containers": before}}}})

    return apply


def controller_pod() -> Object:
    """A pod that runs `nodewise controller` with the account of nodewise."""
    pod = kubernetes_objects.pod("controller")
    pod["metadata"]["namespace"] = healthy_cluster.NAMESPACE
    pod["spec"]["serviceAccountName"] = "nodewise"
    pod["spec"]["containers"][0] |= {"command": ["nodewise", "controller", "--no-native-mode"]}
    return pod


_DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{healthy_cluster.NAMESPACE}/deployments/nodewise"
any_client: Final = flagged(_DEPLOYMENT, "--any-client")
trusting_all: Final = flagged(_DEPLOYMENT, "--trust-all-namespaces")
shared_identity: Final = flagged(_DEPLOYMENT, "--identity=nodewise")
"""Both replicas of nodewise have one identity."""


@contextlib.contextmanager
def slow_usage(cluster: HealthyCluster) -> Iterator[None]:
    """metrics-server reports means of two minutes to the agent load."""
    with (
        fake_metrics_server.behind(cluster.api, cluster.folder) as cluster.usage,
        flagged(_DEPLOYMENT, "--agents=telemetry,gpu,load")(cluster),
    ):
        cluster.usage.cpu = dict.fromkeys(healthy_cluster.NODES, "1")
        cluster.usage.window = "120s"
        yield


@contextlib.contextmanager
def selected_adapter(cluster: HealthyCluster) -> Iterator[None]:
    """A policy selects the pod of the custom metrics API."""
    group, labels = fake_custom_metrics_server.GROUP, {"app": "adapter"}
    api_service = cluster.api.get(f"/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.{group}")
    name, namespace = (api_service["spec"]["service"][field] for field in ("name", "namespace"))
    service = f"/api/v1/namespaces/{namespace}/services/{name}"
    pod = kubernetes_objects.pod("adapter-0", labels=labels, limits=extender_process.LIMITS)
    policy = healthy_cluster.placement_policy("adapters", labels, above=80)
    for manifest in (pod, policy):
        manifest["metadata"]["namespace"] = namespace
    cluster.api.patch(service, {"spec": {"selector": labels}})
    try:
        with created(policy, pod)(cluster):
            yield
    finally:
        cluster.api.patch(service, {"spec": {"selector": None}})


def setting(line: str) -> Defect:
    """Adds a line to the settings file of nodewise's Deployment, which is in a ConfigMap."""
    path = f"/api/v1/namespaces/{healthy_cluster.NAMESPACE}/configmaps/nodewise"

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        text = cluster.api.get(path)["data"]["nodewise.yaml"]
        cluster.api.patch(path, {"data": {"nodewise.yaml": f"{text}{line}\n"}})
        yield
        cluster.api.patch(path, {"data": {"nodewise.yaml": text}})

    return apply


@contextlib.contextmanager
def expired_server(cluster: HealthyCluster) -> Iterator[None]:
    """The extender's address is that of a server whose certificate expired yesterday."""
    host = child_processes.own_address()
    pair = cluster.certificates.leaf(
        "late", cluster.certificates.authority, host, use=single_purpose_certificates.SERVER, days=-1
    )
    with (
        asgi_server_thread.serving(healthy_cluster.KubeletServer(), ServerTls(pair), host=host) as url,
        entry(urlPrefix=f"{url}/scheduler")(cluster),
    ):
        yield


@contextlib.contextmanager
def crowd(cluster: HealthyCluster) -> Iterator[None]:
    """Many nodes, of which a policy rejects nearly all, and a pod of the policy without a matching node affinity."""
    names = [f"crowd-{number}" for number in range(CROWD)]
    heat = dict.fromkeys((*healthy_cluster.NODES, *names), 20)
    with measured("busy", "load", (*healthy_cluster.NODES, *names))(cluster):
        cluster.metrics.set("heat", heat)
        cluster.metrics.set("load", heat | dict.fromkeys(names[:-5], 95))
        try:
            for name in names:
                cluster.api.create(kubernetes_objects.node(name, labels={"crowd": ""}))
            yield
        finally:
            cluster.api.request("DELETE", "/api/v1/nodes", params={"labelSelector": "crowd"})
            cluster.metrics.set("heat", dict.fromkeys(healthy_cluster.NODES, 20))


@contextlib.contextmanager
def verdict_label(cluster: HealthyCluster) -> Iterator[None]:
    """A node has the verdict of a policy, where the descheduler evicts pods that violate their node affinity."""
    key = f"{native_mode.LABEL_PREFIX}uid"
    path = f"/api/v1/nodes/{healthy_cluster.PLAIN[0]}"
    cluster.api.patch(path, {"metadata": {"labels": {key: "violating"}}})
    yield
    cluster.api.patch(path, {"metadata": {"labels": {key: None}}})


def kubelet(**fields: str) -> Defect:
    """The kubelet of a node with CPU pools has other policies."""

    @contextlib.contextmanager
    def apply(cluster: HealthyCluster) -> Iterator[None]:
        server = cluster.kubelets[healthy_cluster.POOLS]
        before = server.configuration
        server.configuration = before | fields
        yield
        server.configuration = before

    return apply


SERVICE: Final = f"https://{shipped_installation.HOST}"
"""The URL of nodewise by the cluster DNS name of its Service."""


@contextlib.contextmanager
def nobody_ready(cluster: HealthyCluster) -> Iterator[None]:
    """A Service whose endpoints are not ready."""
    folder = f"/apis/discovery.k8s.io/v1/namespaces/{healthy_cluster.NAMESPACE}/endpointslices"
    kept = cluster.api.get(folder)["items"]
    for endpoint_slice in kept:
        unready = [end | {"conditions": {"ready": False}} for end in endpoint_slice["endpoints"]]
        cluster.api.patch(f"{folder}/{endpoint_slice['metadata']['name']}", {"endpoints": unready})
    with entry(urlPrefix=f"{SERVICE}:9001/scheduler")(cluster):
        yield
    for endpoint_slice in kept:
        cluster.api.patch(
            f"{folder}/{endpoint_slice['metadata']['name']}", {"endpoints": endpoint_slice["endpoints"]}
        )


@contextlib.contextmanager
def no_replica(cluster: HealthyCluster) -> Iterator[None]:
    """nodewise is scaled to zero replicas."""
    deployment = f"/apis/apps/v1/namespaces/{healthy_cluster.NAMESPACE}/deployments/nodewise"
    cluster.api.patch(deployment, {"spec": {"replicas": 0}})
    yield
    cluster.api.patch(deployment, {"spec": {"replicas": 2}})


@contextlib.contextmanager
def refused_call(cluster: HealthyCluster) -> Iterator[None]:
    """kube-scheduler reports on a pod that nodewise refused the connection."""
    pod = waiting("waits", labels={"telemetry-policy": "pol"}, schedulingGates=[{"name": "tests/held"}])
    with created(pod)(cluster):
        message = "failed calling extender: dial tcp 10.0.0.7:9001: connect: connection refused"
        healthy_cluster.report_unscheduled(cluster.api, path_of(pod), message)
        yield


@contextlib.contextmanager
def marked_beside_devices(cluster: HealthyCluster) -> Iterator[None]:
    """kube-scheduler reports on a pod with a resource of a DeviceClass that it finds another resource on no node."""
    pod = waiting("waits", labels={"telemetry-policy": "pol"}, schedulingGates=[{"name": "tests/held"}])
    with created(pod)(cluster):
        message = "0/2 nodes are available: 2 cannot fit resource."
        healthy_cluster.report_unscheduled(cluster.api, path_of(pod), message)
        yield


def unsent() -> Object:
    """A pod that names a policy and requests no resource that nodewise manages, so kube-scheduler does not call
    nodewise.
    """
    pod = waiting("unsent", labels={"telemetry-policy": "pol"}, schedulingGates=[{"name": "tests/held"}])
    pod["spec"]["containers"][0]["resources"] = {}
    return pod


def mislabelled() -> Object:
    """A pod with a misspelt policy label."""
    return waiting("mislabelled", labels={"telemetry-polcy": "pol"}, schedulingGates=[{"name": "tests/held"}])


@contextlib.contextmanager
def other_plugin(cluster: HealthyCluster) -> Iterator[None]:
    """The descheduler does not run the plugin for node labels, but another one."""
    before = cluster.api.get(healthy_cluster.DESCHEDULER_POLICY)["data"]["policy.yaml"]
    other = healthy_cluster.policy_of_other_plugin()
    cluster.api.patch(healthy_cluster.DESCHEDULER_POLICY, {"data": {"policy.yaml": other}})
    yield
    cluster.api.patch(healthy_cluster.DESCHEDULER_POLICY, {"data": {"policy.yaml": before}})


@contextlib.contextmanager
def one_down(cluster: HealthyCluster) -> Iterator[None]:
    """One of two replicas is in CrashLoopBackOff."""
    deployment = f"/apis/apps/v1/namespaces/{healthy_cluster.NAMESPACE}/deployments/nodewise"
    pod = f"/api/v1/namespaces/{healthy_cluster.NAMESPACE}/pods/nodewise-1"
    kept = [(path, cluster.api.get(path)["status"]) for path in (deployment, pod)]
    waits = {
        "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    }
    crashing = [
        container | {"ready": False, "restartCount": 9, "state": waits}
        for container in kept[1][1]["containerStatuses"]
    ]
    unready = [
        condition | {"status": "False"}
        for condition in kept[1][1]["conditions"]
        if condition["type"] != "PodScheduled"
    ]
    healthy_cluster.status(
        cluster.api, deployment, {"readyReplicas": 1, "availableReplicas": 1, "unavailableReplicas": 1}
    )
    healthy_cluster.status(cluster.api, pod, {"conditions": unready, "containerStatuses": crashing})
    yield
    healthy_cluster.status(cluster.api, deployment, {"unavailableReplicas": None})
    for path, before in kept:
        healthy_cluster.status(cluster.api, path, before)


@contextlib.contextmanager
def unserved(cluster: HealthyCluster) -> Iterator[None]:
    """No server is behind the custom metrics API."""
    paths = [
        f"/apis/apiregistration.k8s.io/v1/apiservices/{v}.{fake_custom_metrics_server.GROUP}"
        for v in fake_custom_metrics_server.VERSIONS
    ]
    ports = [cluster.api.get(path)["spec"]["service"]["port"] for path in paths]

    def is_available(*, wanted: str) -> bool | None:
        conditions_of_pods = [cluster.api.get(path)["status"]["conditions"] for path in paths]
        return (
            all(
                condition["status"] == wanted for conditions in conditions_of_pods for condition in conditions
            )
            or None
        )

    for path in paths:
        cluster.api.patch(path, {"spec": {"service": {"port": child_processes.free_port()}}})
    wait("the custom metrics API is unavailable", functools.partial(is_available, wanted="False"))
    try:
        yield
    finally:
        for path, port in zip(paths, ports, strict=True):
            cluster.api.patch(path, {"spec": {"service": {"port": port}}})
        wait("the custom metrics API is available", functools.partial(is_available, wanted="True"))
        wait(
            "no rule is suspended any more",
            lambda: None if _has_condition(cluster, "pol", "Suspended", "True") else True,
        )


def scaled_to_zero(name: str, labels: Mapping[str, str]) -> Object:
    """A Deployment of the tenant that has no pods now."""
    template = {"metadata": {"labels": labels}, "spec": kubernetes_objects.pod(name)["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": name, "namespace": healthy_cluster.TENANT}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


@contextlib.contextmanager
def dead_exporter(cluster: HealthyCluster) -> Iterator[None]:
    """One node of four has no value of a metric any more."""
    cluster.metrics.set("heat", dict.fromkeys(healthy_cluster.NODES[:-1], 20))
    yield
    cluster.metrics.set("heat", dict.fromkeys(healthy_cluster.NODES, 20))


@contextlib.contextmanager
def bare_node(cluster: HealthyCluster) -> Iterator[None]:
    """A node whose GPUs no label names."""
    made = gpu_cluster.node("bare")
    del made["metadata"]["labels"][f"{gpu_cluster.PREFIX}gpu-numbers"]
    with _measured_node(cluster, made):
        yield


@contextlib.contextmanager
def node_without_plugin(cluster: HealthyCluster) -> Iterator[None]:
    """A node whose labels name GPUs that it does not offer."""
    made = gpu_cluster.node("bare")
    for field in ("capacity", "allocatable"):
        amounts = made["status"][field]
        made["status"][field] = {
            name: amount for name, amount in amounts.items() if not name.startswith(gpu_cluster.PREFIX)
        }
    with _measured_node(cluster, made):
        yield


@contextlib.contextmanager
def _measured_node(cluster: HealthyCluster, made: Object) -> Iterator[None]:
    """A node with values of the metrics that others have, whose name is "bare"."""
    cluster.metrics.set("heat", dict.fromkeys((*healthy_cluster.NODES, "bare"), 20))
    with created(made)(cluster):
        yield
    cluster.metrics.set("heat", dict.fromkeys(healthy_cluster.NODES, 20))
