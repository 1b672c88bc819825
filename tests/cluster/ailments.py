"""The faults that `nodewise doctor` has to find: how each is planted in a sound cluster, and what is said of it."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from tests.cluster import custom_metrics, gpu, loopback, objects, processes, served, shipping, sound
from tests.cluster.api import Object, path_of
from tests.cluster.certificates import Authority, Pair
from tests.cluster.loopback import Tls
from tests.cluster.sandbox import wait
from tests.cluster.sound import Cluster

ENTRY: Final = "/scheduler"
"""How the URL of the extender's entry ends."""
Plant = Callable[[Cluster], AbstractContextManager[None]]
Change = Callable[[Cluster, Object, Object], None]
"""Of a scheduler's configuration, and the first of its extenders."""

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
CROWD: Final = 150
"""Nodes, of which kube-scheduler looks at 100."""


class Ailment(NamedTuple):
    """A fault."""

    finding: str
    """The id that it is found by."""
    name: str
    """The fact in words."""
    plant: Plant
    about: str
    """What has to stand in the name of the object; `entry` is the URL of the extender's entry."""
    remedy: tuple[str, ...]
    """Words that have to stand in the remedy."""
    follows: frozenset[str] = frozenset()
    """Other errors that really follow from it."""


def configured(change: Change) -> Plant:
    """Another configuration of the scheduler than the sound one."""

    @contextlib.contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        sound_one = cluster.config
        cluster.config = copy.deepcopy(sound_one)
        change(cluster, cluster.config, cluster.config["extenders"][0])
        try:
            yield
        finally:
            cluster.config = sound_one

    return plant


def entry(**fields: object) -> Plant:
    """Other fields in the extender's entry; None: without."""

    def change(cluster: Cluster, config: Object, entry: Object) -> None:
        entry |= fields
        for name in [name for name, value in entry.items() if value is None]:
            del entry[name]

    return configured(change)


def client(pair: Callable[[Cluster], Pair]) -> Plant:
    """kube-scheduler with another client certificate."""

    def change(cluster: Cluster, config: Object, entry: Object) -> None:
        cert, key = pair(cluster)
        entry["tlsConfig"] |= {"certFile": str(cert), "keyFile": str(key)}

    return configured(change)


def created(*made: Object) -> Plant:
    """Objects that are not in the sound cluster."""

    @contextlib.contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        try:
            for one in made:
                cluster.api.create(one)
            yield
        finally:
            for one in reversed(made):
                cluster.api.delete(path_of(one))

    return plant


def deleted(*paths: str) -> Plant:
    """Without objects of the sound cluster."""

    @contextlib.contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        kept = [cluster.api.get(path) for path in paths]
        try:
            for path in paths:
                cluster.api.delete(path)
            yield
        finally:
            for one in kept:
                for field in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
                    one["metadata"].pop(field, None)
                cluster.api.ensure(one)
                if "status" in one:
                    sound.status(cluster.api, path_of(one), one["status"])

    return plant


def both(*plants: Plant) -> Plant:
    """Several at once."""

    @contextlib.contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in plants:
                stack.enter_context(one(cluster))
            yield

    return plant


def waiting(name: str, scheduler: str = "", **more: object) -> Object:
    """A pod of the tenant that no node has."""
    pod = objects.pod(name, labels=more.pop("labels", None), limits=served.LIMITS)  # type: ignore[arg-type]
    pod["metadata"]["namespace"] = sound.TENANT
    pod["spec"] |= more | ({"schedulerName": scheduler} if scheduler else {})
    return pod


def asking_for(policy: str) -> Plant:
    """A pod that names a policy, beyond what the scheduler has to place."""
    pod = waiting(
        f"asks-{policy}", labels={"telemetry-policy": policy}, schedulingGates=[{"name": "tests/held"}]
    )
    return created(pod)


def measured(policy: str, metric: str, names: tuple[str, ...] = ()) -> Plant:
    """A policy, a pod of it, and its metric under these names."""
    rule = {"metricname": metric, "operator": "GreaterThan", "target": 80}

    @contextlib.contextmanager
    def plant(cluster: Cluster) -> Iterator[None]:
        if names:
            cluster.metrics.set(metric, dict.fromkeys(names, 20))
        with created(sound.policy(policy, dontschedule=[rule]))(cluster), asking_for(policy)(cluster):
            yield
        cluster.metrics.forget(metric)

    return plant


# configuration of kube-scheduler


def _no_extender(cluster: Cluster, config: Object, entry: Object) -> None:
    del config["extenders"]


def _elsewhere(cluster: Cluster, config: Object, entry: Object) -> None:
    entry["urlPrefix"] = f"https://{processes.own_address()}:{processes.free_port()}/scheduler"


def _no_ca(cluster: Cluster, config: Object, entry: Object) -> None:
    del entry["tlsConfig"]["caFile"]


def _other_ca(cluster: Cluster, config: Object, entry: Object) -> None:
    entry["tlsConfig"]["caFile"] = str(_stranger(cluster).ca_file)


def _other_name(cluster: Cluster, config: Object, entry: Object) -> None:
    entry["tlsConfig"]["serverName"] = "other.example"


def _unweighted(cluster: Cluster, config: Object, entry: Object) -> None:
    del entry["weight"]


def _insecure(cluster: Cluster, config: Object, entry: Object) -> None:
    del entry["tlsConfig"]["caFile"]
    entry["tlsConfig"]["insecure"] = True


def _no_cards(cluster: Cluster, config: Object, entry: Object) -> None:
    entry["managedResources"] = served.MANAGED


def _load_aware_beside_ours(cluster: Cluster, config: Object, entry: Object) -> None:
    plugins = {"score": {"enabled": [{"name": "LoadVariationRiskBalancing", "weight": 5}]}}
    config["profiles"][0]["plugins"] = plugins


def _load_aware(cluster: Cluster, config: Object, entry: Object) -> None:
    enabled = [{"name": "TargetLoadPacking", "weight": 5}, {"name": "LowRiskOverCommitment", "weight": 5}]
    config["profiles"][0]["plugins"] = {"score": {"enabled": enabled}}


def _stranger(cluster: Cluster) -> Authority:
    return Authority(cluster.folder, f"stranger-{processes.number()}")


def _strangers_client(cluster: Cluster) -> Pair:
    return cluster.papers.leaf(sound.CLIENT, _stranger(cluster))


def _ca_pair(cluster: Cluster) -> Pair:
    return Pair(cluster.papers.authority.ca_file, cluster.papers.authority.key_file())


def _lasting(days: int) -> Callable[[Cluster], Pair]:
    return lambda cluster: cluster.papers.leaf(sound.CLIENT, cluster.papers.authority, days=days)


def _for_servers(cluster: Cluster) -> Pair:
    return cluster.papers.leaf(sound.CLIENT, cluster.papers.authority, use=sound.SERVER)


def _other_client(cluster: Cluster) -> Pair:
    return cluster.papers.leaf("kubelet", cluster.papers.authority)


def _mixed_up(cluster: Cluster) -> Pair:
    return Pair(cluster.papers.client.cert, _strangers_client(cluster).key)


# the cluster


@contextlib.contextmanager
def expired_server(cluster: Cluster) -> Iterator[None]:
    """Somebody answers whose certificate was over yesterday."""
    host = processes.own_address()
    pair = cluster.papers.leaf("late", cluster.papers.authority, host, use=sound.SERVER, days=-1)
    with (
        loopback.serving(sound.Kubelet(), Tls(pair), host=host) as url,
        entry(urlPrefix=f"{url}/scheduler")(cluster),
    ):
        yield


@contextlib.contextmanager
def crowd(cluster: Cluster) -> Iterator[None]:
    """Many nodes, nearly all of which a policy rejects, and a pod of it that does not say so by an affinity."""
    names = [f"crowd-{number}" for number in range(CROWD)]
    heat = dict.fromkeys((*sound.NODES, *names), 20)
    with measured("busy", "load", (*sound.NODES, *names))(cluster):
        cluster.metrics.set("heat", heat)
        cluster.metrics.set("load", heat | dict.fromkeys(names[:-5], 95))
        try:
            for name in names:
                cluster.api.create(objects.node(name, labels={"crowd": ""}))
            yield
        finally:
            cluster.api.request("DELETE", "/api/v1/nodes", params={"labelSelector": "crowd"})
            cluster.metrics.set("heat", dict.fromkeys(sound.NODES, 20))


@contextlib.contextmanager
def static_cpus(cluster: Cluster) -> Iterator[None]:
    """The kubelet of a node with pools hands out CPUs itself."""
    kubelet = cluster.kubelets[sound.POOLS]
    before = kubelet.configuration
    kubelet.configuration = before | {"cpuManagerPolicy": "static"}
    yield
    kubelet.configuration = before


@contextlib.contextmanager
def single_numa_node(cluster: Cluster) -> Iterator[None]:
    """The kubelet of a node with pools turns away pods whose CPUs are of several NUMA nodes."""
    kubelet = cluster.kubelets[sound.POOLS]
    before = kubelet.configuration
    kubelet.configuration = before | {"topologyManagerPolicy": "single-numa-node"}
    yield
    kubelet.configuration = before


SERVICE: Final = f"https://{shipping.HOST}"
"""How kube-scheduler calls nodewise where it asks the cluster's DNS."""


@contextlib.contextmanager
def nobody_ready(cluster: Cluster) -> Iterator[None]:
    """A Service whose endpoints are not ready."""
    folder = f"/apis/discovery.k8s.io/v1/namespaces/{sound.NAMESPACE}/endpointslices"
    kept = cluster.api.get(folder)["items"]
    for one in kept:
        unready = [end | {"conditions": {"ready": False}} for end in one["endpoints"]]
        cluster.api.patch(f"{folder}/{one['metadata']['name']}", {"endpoints": unready})
    with entry(urlPrefix=f"{SERVICE}:9001/scheduler")(cluster):
        yield
    for one in kept:
        cluster.api.patch(f"{folder}/{one['metadata']['name']}", {"endpoints": one["endpoints"]})


@contextlib.contextmanager
def no_replica(cluster: Cluster) -> Iterator[None]:
    """nodewise was scaled to nothing."""
    deployment = f"/apis/apps/v1/namespaces/{sound.NAMESPACE}/deployments/nodewise"
    cluster.api.patch(deployment, {"spec": {"replicas": 0}})
    yield
    cluster.api.patch(deployment, {"spec": {"replicas": 2}})


def unsent() -> Object:
    """A pod that names a policy and asks for none of the resources by which nodewise hears of pods."""
    pod = waiting("unsent", labels={"telemetry-policy": "pol"}, schedulingGates=[{"name": "tests/held"}])
    pod["spec"]["containers"][0]["resources"] = {}
    return pod


@contextlib.contextmanager
def other_plugin(cluster: Cluster) -> Iterator[None]:
    """A descheduler that runs another plugin than the one that minds labels."""
    path = f"/api/v1/namespaces/{sound.SYSTEM}/configmaps/descheduler-policy"
    before = cluster.api.get(path)["data"]["policy.yaml"]
    text = "\n".join(line for line in before.splitlines() if not line.startswith("#"))
    other = text.replace("RemovePodsViolatingNodeAffinity", "RemoveDuplicates").partition("    args:")[0]
    other += "  plugins:\n    balance: {enabled: [RemoveDuplicates]}\n"
    cluster.api.patch(path, {"data": {"policy.yaml": other}})
    yield
    cluster.api.patch(path, {"data": {"policy.yaml": before}})


@contextlib.contextmanager
def one_down(cluster: Cluster) -> Iterator[None]:
    """One of two replicas starts again and again."""
    deployment = f"/apis/apps/v1/namespaces/{sound.NAMESPACE}/deployments/nodewise"
    pod = f"/api/v1/namespaces/{sound.NAMESPACE}/pods/nodewise-1"
    kept = [(path, cluster.api.get(path)["status"]) for path in (deployment, pod)]
    waits = {
        "waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    }
    crashing = [
        one | {"ready": False, "restartCount": 9, "state": waits} for one in kept[1][1]["containerStatuses"]
    ]
    unready = [one | {"status": "False"} for one in kept[1][1]["conditions"] if one["type"] != "PodScheduled"]
    sound.status(
        cluster.api, deployment, {"readyReplicas": 1, "availableReplicas": 1, "unavailableReplicas": 1}
    )
    sound.status(cluster.api, pod, {"conditions": unready, "containerStatuses": crashing})
    yield
    sound.status(cluster.api, deployment, {"unavailableReplicas": None})
    for path, before in kept:
        sound.status(cluster.api, path, before)


@contextlib.contextmanager
def unserved(cluster: Cluster) -> Iterator[None]:
    """Nobody answers for the custom metrics API any more."""
    paths = [
        f"/apis/apiregistration.k8s.io/v1/apiservices/{v}.{custom_metrics.GROUP}"
        for v in custom_metrics.VERSIONS
    ]
    ports = [cluster.api.get(path)["spec"]["service"]["port"] for path in paths]

    def is_available(*, wanted: str) -> bool | None:
        found = [cluster.api.get(path)["status"]["conditions"] for path in paths]
        return all(one["status"] == wanted for conditions in found for one in conditions) or None

    for path in paths:
        cluster.api.patch(path, {"spec": {"service": {"port": processes.free_port()}}})
    wait("it is unavailable", functools.partial(is_available, wanted="False"))
    try:
        yield
    finally:
        for path, port in zip(paths, ports, strict=True):
            cluster.api.patch(path, {"spec": {"service": {"port": port}}})
        wait("it is available", functools.partial(is_available, wanted="True"))


def _bare_node() -> Object:
    made = gpu.node("bare")
    del made["metadata"]["labels"][f"{gpu.PREFIX}gpu-numbers"]
    return made


_POD_OF_DESCHEDULER = f"/api/v1/namespaces/{sound.SYSTEM}/pods/descheduler-0"
_DESCHEDULER = f"/apis/apps/v1/namespaces/{sound.SYSTEM}/deployments/descheduler"

AILMENTS: Final = (
    Ailment(
        "extender-not-registered",
        "no extender is configured",
        configured(_no_extender),
        "configuration-",
        ("nodewise configure",),
        frozenset({"policy-without-effect"}),
    ),
    Ailment("extender-not-reached", "nobody listens at the address", configured(_elsewhere), "entry", ()),
    Ailment(
        "extender-not-reached",
        "there is no such Service",
        entry(urlPrefix="https://old.nodewise.svc:9001/scheduler"),
        "entry",
        (),
        frozenset({"server-certificate-wrong"}),
    ),
    Ailment(
        "extender-not-reached",
        "the Service has another port",
        entry(urlPrefix=f"{SERVICE}:9443/scheduler"),
        "entry",
        (),
    ),
    Ailment("extender-not-reached", "nobody behind the Service is ready", nobody_ready, "entry", ()),
    Ailment(
        "names-not-used",
        "whole nodes are sent",
        entry(nodeCacheCapable=False),
        "entry",
        ("nodeCacheCapable",),
    ),
    Ailment("no-ca-file", "the server is not verified", configured(_no_ca), "entry", ("caFile",)),
    Ailment("no-ca-file", "the server need not be verified", configured(_insecure), "entry", ("caFile",)),
    Ailment(
        "ca-key-as-client-key",
        "the key of a CA is kube-scheduler's",
        client(_ca_pair),
        "entry",
        ("nodewise certs",),
    ),
    Ailment("client-certificate-wrong", "expired", client(_lasting(-1)), "entry", ("nodewise certs",)),
    Ailment("client-certificate-wrong", "expires soon", client(_lasting(2)), "entry", ("nodewise certs",)),
    Ailment("client-certificate-wrong", "for servers", client(_for_servers), "entry", ("nodewise certs",)),
    Ailment("client-certificate-wrong", "not of this key", client(_mixed_up), "entry", ("key",)),
    Ailment(
        "client-certificate-wrong", "of another name", client(_other_client), "entry", ("nodewise certs",)
    ),
    Ailment("unknown-ca", "another CA is trusted", configured(_other_ca), "entry", ("caFile",)),
    Ailment(
        "unknown-ca", "the client's CA is not trusted", client(_strangers_client), "entry", ("--client-ca",)
    ),
    Ailment(
        "http-timeout-missing",
        "the default of 5 s is hidden",
        entry(httpTimeout=None),
        "entry",
        ("httpTimeout",),
    ),
    Ailment(
        "http-timeout-short", "shorter than an answer", entry(httpTimeout="5ms"), "entry", ("httpTimeout",)
    ),
    Ailment(
        "server-certificate-wrong",
        "it is another host's",
        configured(_other_name),
        "entry",
        ("nodewise certs",),
    ),
    Ailment("server-certificate-wrong", "it is over", expired_server, "entry", ("nodewise certs",)),
    Ailment("http-timeout-long", "two minutes", entry(httpTimeout="2m"), "entry", ("httpTimeout",)),
    Ailment(
        "filters-own-pods",
        "nobody places nodewise without nodewise",
        entry(managedResources=None),
        "entry",
        ("managedResources",),
        frozenset({"bind-verb-missing"}),
    ),
    Ailment("wrong-ignorable", "no answer means yes", entry(ignorable=True), "entry", ("ignorable: false",)),
    Ailment("bind-verb-missing", "cards are not booked", entry(bindVerb=None), "entry", ("bindVerb",)),
    Ailment(
        "bind-verb-missing",
        "preemption is not asked about",
        entry(preemptVerb=None),
        "entry",
        ("preemptVerb",),
    ),
    Ailment("bind-verb-missing", "no card is managed", configured(_no_cards), "entry", ("managedResources",)),
    Ailment("weight-zero", "scores count nothing", configured(_unweighted), "entry", ("weight",)),
    Ailment(
        "weight-zero", "nobody asks for scores", entry(prioritizeVerb=None), "entry", ("prioritizeVerb",)
    ),
    Ailment(
        "two-load-aware-scorers",
        "one of Trimaran beside ours",
        configured(_load_aware_beside_ours),
        "configuration-",
        (),
    ),
    Ailment("two-load-aware-scorers", "both of Trimaran", configured(_load_aware), "configuration-", ()),
    Ailment("sample-too-small", "of 150 nodes all but few are rejected", crowd, "web/busy", ("NotIn",)),
    Ailment("metric-missing", "nobody measures it", measured("lost", "nowhere"), "web/lost", ("nowhere",)),
    Ailment(
        "metric-names-mismatch",
        "the values are of other names",
        measured("named", "power", ("a.example.com", "b.example.com")),
        "web/named",
        (),
    ),
    Ailment("metrics-api-unavailable", "nobody serves it", unserved, custom_metrics.GROUP, ()),
    Ailment(
        "policy-without-effect",
        "no strategy",
        created(sound.policy("idle")),
        "web/idle",
        (),
    ),
    Ailment("policy-without-effect", "its pod is not sent to us", created(unsent()), "web/unsent", ()),
    Ailment("policy-unknown", "a pod names one that is not there", asking_for("ghost"), "ghost", ()),
    Ailment(
        "gpu-node-without-labels", "cards without numbers", created(_bare_node()), "bare", ("gpu-numbers",)
    ),
    Ailment(
        "kubelet-policy-conflict",
        "the kubelet hands out CPUs",
        static_cpus,
        sound.POOLS,
        ("cpuManagerPolicy",),
    ),
    Ailment(
        "kubelet-policy-conflict",
        "the kubelet counts NUMA nodes",
        single_numa_node,
        sound.POOLS,
        ("topologyManagerPolicy",),
    ),
    Ailment(
        "descheduler-missing",
        "there is none",
        deleted(_DESCHEDULER, _POD_OF_DESCHEDULER),
        "web/pol",
        ("RemovePodsViolatingNodeAffinity",),
    ),
    Ailment(
        "descheduler-missing",
        "it runs another plugin",
        other_plugin,
        "descheduler",
        ("RemovePodsViolatingNodeAffinity",),
    ),
    Ailment(
        "rights-missing",
        "a binding is gone",
        deleted(f"{RBAC}/clusterrolebindings/nodewise"),
        "nodewise/nodewise",
        ("deploy/rbac.yaml",),
    ),
    Ailment(
        "rights-missing",
        "those for cards are gone",
        deleted(f"{RBAC}/clusterrolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    Ailment(
        "rights-missing",
        "no ledger may be kept",
        deleted(f"{RBAC}/namespaces/{sound.NAMESPACE}/rolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    Ailment("replicas-not-ready", "scaled to nothing", no_replica, "nodewise/nodewise", ()),
    Ailment("replicas-not-ready", "one of two crashes", one_down, "nodewise/nodewise", ("logs",)),
    Ailment(
        "scheduler-not-running",
        "a pod waits for another one",
        created(waiting("alone", "my-scheduler")),
        "my-scheduler",
        (),
    ),
)
