"""The faults that `nodewise doctor` has to find: how each is planted in a sound cluster, and what is said of it."""

from typing import Final, NamedTuple

from tests.cluster import custom_metrics, planting, sound
from tests.cluster.planting import Plant

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"

ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


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


_POD_OF_DESCHEDULER = f"/api/v1/namespaces/{sound.SYSTEM}/pods/descheduler-0"
_DESCHEDULER = f"/apis/apps/v1/namespaces/{sound.SYSTEM}/deployments/descheduler"

AILMENTS: Final = (
    Ailment(
        "extender-not-registered",
        "no extender is configured",
        planting.configured(planting.no_extender),
        "configuration-",
        ("nodewise configure",),
        frozenset({"policy-without-effect"}),
    ),
    Ailment(
        "extender-not-reached",
        "nobody listens at the address",
        planting.configured(planting.elsewhere),
        "entry",
        (),
    ),
    Ailment(
        "extender-not-reached",
        "there is no such Service",
        planting.entry(urlPrefix="https://old.nodewise.svc:9001/scheduler"),
        "entry",
        (),
        frozenset({"server-certificate-wrong"}),
    ),
    Ailment(
        "extender-not-reached",
        "the Service has another port",
        planting.entry(urlPrefix=f"{planting.SERVICE}:9443/scheduler"),
        "entry",
        (),
    ),
    Ailment("extender-not-reached", "nobody behind the Service is ready", planting.nobody_ready, "entry", ()),
    Ailment(
        "names-not-used",
        "whole nodes are sent",
        planting.entry(nodeCacheCapable=False),
        "entry",
        ("nodeCacheCapable",),
    ),
    Ailment(
        "no-ca-file", "the server is not verified", planting.configured(planting.no_ca), "entry", ("caFile",)
    ),
    Ailment(
        "no-ca-file",
        "the server need not be verified",
        planting.configured(planting.insecure),
        "entry",
        ("caFile",),
    ),
    Ailment(
        "ca-key-as-client-key",
        "the key of a CA is kube-scheduler's",
        planting.client(planting.ca_pair),
        "entry",
        ("nodewise certs",),
    ),
    Ailment(
        "client-certificate-wrong",
        "expired",
        planting.client(planting.lasting(-1)),
        "entry",
        ("nodewise certs",),
    ),
    Ailment(
        "client-certificate-wrong",
        "expires soon",
        planting.client(planting.lasting(2)),
        "entry",
        ("nodewise certs",),
    ),
    Ailment(
        "client-certificate-wrong",
        "for servers",
        planting.client(planting.for_servers),
        "entry",
        ("nodewise certs",),
    ),
    Ailment(
        "client-certificate-wrong", "not of this key", planting.client(planting.mixed_up), "entry", ("key",)
    ),
    Ailment(
        "client-certificate-wrong",
        "of another name",
        planting.client(planting.other_client),
        "entry",
        ("nodewise certs",),
    ),
    Ailment(
        "any-client", "every client of the CA", planting.any_client, "nodewise/nodewise", ("nodewise certs",)
    ),
    Ailment(
        "unknown-ca", "another CA is trusted", planting.configured(planting.other_ca), "entry", ("caFile",)
    ),
    Ailment(
        "unknown-ca",
        "the client's CA is not trusted",
        planting.client(planting.strangers_client),
        "entry",
        ("--client-ca",),
    ),
    Ailment(
        "http-timeout-missing",
        "the default of 5 s is hidden",
        planting.entry(httpTimeout=None),
        "entry",
        ("httpTimeout",),
    ),
    Ailment(
        "http-timeout-short",
        "shorter than an answer",
        planting.entry(httpTimeout="5ms"),
        "entry",
        ("httpTimeout",),
    ),
    Ailment(
        "server-certificate-wrong",
        "it is another host's",
        planting.configured(planting.other_name),
        "entry",
        ("nodewise certs",),
    ),
    Ailment("server-certificate-wrong", "it is over", planting.expired_server, "entry", ("nodewise certs",)),
    Ailment("http-timeout-long", "two minutes", planting.entry(httpTimeout="2m"), "entry", ("httpTimeout",)),
    Ailment(
        "filters-own-pods",
        "nobody places nodewise without nodewise",
        planting.entry(managedResources=None),
        "entry",
        ("managedResources",),
        frozenset({"bind-verb-missing"}),
    ),
    Ailment(
        "wrong-ignorable",
        "no answer means yes",
        planting.entry(ignorable=True),
        "entry",
        ("ignorable: false",),
    ),
    Ailment(
        "bind-verb-missing", "cards are not booked", planting.entry(bindVerb=None), "entry", ("bindVerb",)
    ),
    Ailment(
        "bind-verb-missing",
        "preemption is not asked about",
        planting.entry(preemptVerb=None),
        "entry",
        ("preemptVerb",),
    ),
    Ailment(
        "bind-verb-missing",
        "no card is managed",
        planting.configured(planting.no_cards),
        "entry",
        ("managedResources",),
    ),
    Ailment(
        "resource-not-ignored",
        "kube-scheduler counts a mark that no node has",
        planting.configured(planting.counted),
        "entry",
        ("ignoredByScheduler",),
    ),
    Ailment(
        "weight-zero", "scores count nothing", planting.configured(planting.unweighted), "entry", ("weight",)
    ),
    Ailment(
        "weight-zero",
        "nobody asks for scores",
        planting.entry(prioritizeVerb=None),
        "entry",
        ("prioritizeVerb",),
    ),
    Ailment(
        "two-load-aware-scorers",
        "one of Trimaran beside ours",
        planting.configured(planting.load_aware_beside_ours),
        "configuration-",
        (),
    ),
    Ailment(
        "two-load-aware-scorers",
        "both of Trimaran",
        planting.configured(planting.load_aware),
        "configuration-",
        (),
    ),
    Ailment(
        "sample-too-small", "of 150 nodes all but few are rejected", planting.crowd, "web/busy", ("NotIn",)
    ),
    Ailment(
        "metric-missing", "nobody measures it", planting.measured("lost", "nowhere"), "web/lost", ("nowhere",)
    ),
    Ailment(
        "metric-names-mismatch",
        "the values are of other names",
        planting.measured("named", "power", ("a.example.com", "b.example.com")),
        "web/named",
        (),
    ),
    Ailment("metrics-api-unavailable", "nobody serves it", planting.unserved, custom_metrics.GROUP, ()),
    Ailment(
        "policy-without-effect",
        "no strategy",
        planting.created(sound.policy("idle")),
        "web/idle",
        (),
    ),
    Ailment(
        "policy-without-effect",
        "its pod is not sent to us",
        planting.created(planting.unsent()),
        "web/unsent",
        (),
    ),
    Ailment(
        "namespace-not-trusted",
        "a policy that labels nodes in a namespace without trust",
        planting.without_trust,
        "web/pol",
        ("kubectl label namespace web nodewise.io/trusted=true",),
    ),
    Ailment(
        "all-namespaces-trusted",
        "every namespace is trusted",
        planting.trusting_all,
        "nodewise/nodewise",
        ("nodewise.io/trusted=true",),
    ),
    Ailment(
        "policy-label-misspelt",
        "a pod's label is nearly the one that names a policy",
        planting.created(planting.mislabelled()),
        "web/mislabelled",
        ("rename the label",),
    ),
    Ailment("policy-unknown", "a pod names one that is not there", planting.asking_for("ghost"), "ghost", ()),
    Ailment(
        "gpu-node-without-labels",
        "cards without numbers",
        planting.created(planting.bare_node()),
        "bare",
        ("gpu-numbers",),
    ),
    Ailment(
        "kubelet-policy-conflict",
        "the kubelet hands out CPUs",
        planting.static_cpus,
        sound.POOLS,
        ("cpuManagerPolicy",),
    ),
    Ailment(
        "kubelet-policy-conflict",
        "the kubelet counts NUMA nodes",
        planting.single_numa_node,
        sound.POOLS,
        ("topologyManagerPolicy",),
    ),
    Ailment(
        "descheduler-missing",
        "there is none",
        planting.deleted(_DESCHEDULER, _POD_OF_DESCHEDULER),
        "web/pol",
        ("RemovePodsViolatingNodeAffinity",),
    ),
    Ailment(
        "descheduler-missing",
        "it runs another plugin",
        planting.other_plugin,
        "descheduler",
        ("RemovePodsViolatingNodeAffinity",),
    ),
    Ailment(
        "rights-missing",
        "a binding is gone",
        planting.deleted(f"{RBAC}/clusterrolebindings/nodewise"),
        "nodewise/nodewise",
        ("deploy/rbac.yaml",),
    ),
    Ailment(
        "rights-missing",
        "those for cards are gone",
        planting.deleted(f"{RBAC}/clusterrolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    Ailment(
        "rights-missing",
        "no ledger may be kept",
        planting.deleted(f"{RBAC}/namespaces/{sound.NAMESPACE}/rolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    Ailment(
        "admission-policy-missing",
        "what is written to nodes is not limited",
        planting.deleted(f"{ADMISSION}/nodewise-nodes"),
        "nodewise/nodewise",
        ("deploy/rbac.yaml",),
    ),
    Ailment(
        "admission-policy-missing",
        "what is written to pods is not limited",
        planting.deleted(f"{ADMISSION}/nodewise-pods"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    Ailment(
        "admission-policy-missing",
        "everybody may trust",
        planting.deleted(f"{ADMISSION}/nodewise-trust"),
        "nodewise-trust",
        ("deploy/trust.yaml",),
    ),
    Ailment("replicas-not-ready", "scaled to nothing", planting.no_replica, "nodewise/nodewise", ()),
    Ailment("replicas-not-ready", "one of two crashes", planting.one_down, "nodewise/nodewise", ("logs",)),
    Ailment(
        "scheduler-not-running",
        "a pod waits for another one",
        planting.created(planting.waiting("alone", "my-scheduler")),
        "my-scheduler",
        (),
    ),
)
