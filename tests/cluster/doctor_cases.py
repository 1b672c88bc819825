"""The defects that `nodewise doctor` has to find: how each is made in a healthy cluster, and what is reported."""

from typing import Final, NamedTuple

from tests.cluster import custom_metrics, defects, healthy_cluster
from tests.cluster.defects import Defect

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"

ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


class DoctorCase(NamedTuple):
    """A fault."""

    finding: str
    """The id that it is found by."""
    name: str
    """The fact in words."""
    defect: Defect
    about: str
    """What has to stand in the name of the object; `entry` is the URL of the extender's entry."""
    remedy: tuple[str, ...]
    """Words that have to stand in the remedy."""
    follows: frozenset[str] = frozenset()
    """Other errors that really follow from it."""


_POD_OF_DESCHEDULER = f"/api/v1/namespaces/{healthy_cluster.SYSTEM}/pods/descheduler-0"
_DESCHEDULER = f"/apis/apps/v1/namespaces/{healthy_cluster.SYSTEM}/deployments/descheduler"

DOCTOR_CASES: Final = (
    DoctorCase(
        "extender-not-registered",
        "no extender is configured",
        defects.configured(defects.no_extender),
        "configuration-",
        ("nodewise configure",),
        frozenset({"policy-without-effect"}),
    ),
    DoctorCase(
        "extender-not-reached",
        "nobody listens at the address",
        defects.configured(defects.elsewhere),
        "entry",
        (),
    ),
    DoctorCase(
        "extender-not-reached",
        "there is no such Service",
        defects.entry(urlPrefix="https://old.nodewise.svc:9001/scheduler"),
        "entry",
        (),
        frozenset({"server-certificate-wrong"}),
    ),
    DoctorCase(
        "extender-not-reached",
        "the Service has another port",
        defects.entry(urlPrefix=f"{defects.SERVICE}:9443/scheduler"),
        "entry",
        (),
    ),
    DoctorCase(
        "extender-not-reached",
        "nobody behind the Service is ready",
        defects.nobody_ready,
        "entry",
        (),
    ),
    DoctorCase(
        "names-not-used",
        "whole nodes are sent",
        defects.entry(nodeCacheCapable=False),
        "entry",
        ("nodeCacheCapable",),
    ),
    DoctorCase(
        "no-ca-file",
        "the server is not verified",
        defects.configured(defects.no_ca),
        "entry",
        ("caFile",),
    ),
    DoctorCase(
        "no-ca-file",
        "the server need not be verified",
        defects.configured(defects.insecure),
        "entry",
        ("caFile",),
    ),
    DoctorCase(
        "ca-key-as-client-key",
        "the key of a CA is kube-scheduler's",
        defects.client(defects.ca_pair),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "expired",
        defects.client(defects.lasting(-1)),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "expires soon",
        defects.client(defects.lasting(2)),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "for servers",
        defects.client(defects.for_servers),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "not of this key",
        defects.client(defects.mixed_up),
        "entry",
        ("key",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "of another name",
        defects.client(defects.other_client),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "any-client",
        "every client of the CA",
        defects.any_client,
        "nodewise/nodewise",
        ("nodewise certs",),
    ),
    DoctorCase(
        "unknown-ca",
        "another CA is trusted",
        defects.configured(defects.other_ca),
        "entry",
        ("caFile",),
    ),
    DoctorCase(
        "unknown-ca",
        "the client's CA is not trusted",
        defects.client(defects.strangers_client),
        "entry",
        ("--client-ca",),
    ),
    DoctorCase(
        "http-timeout-missing",
        "the default of 5 s is hidden",
        defects.entry(httpTimeout=None),
        "entry",
        ("httpTimeout",),
    ),
    DoctorCase(
        "http-timeout-short",
        "shorter than an answer",
        defects.entry(httpTimeout="5ms"),
        "entry",
        ("httpTimeout",),
    ),
    DoctorCase(
        "server-certificate-wrong",
        "it is another host's",
        defects.configured(defects.other_name),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "server-certificate-wrong",
        "it is over",
        defects.expired_server,
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "http-timeout-long",
        "two minutes",
        defects.entry(httpTimeout="2m"),
        "entry",
        ("httpTimeout",),
    ),
    DoctorCase(
        "filters-own-pods",
        "nobody places nodewise without nodewise",
        defects.entry(managedResources=None),
        "entry",
        ("managedResources",),
        frozenset({"bind-verb-missing"}),
    ),
    DoctorCase(
        "wrong-ignorable",
        "no answer means yes",
        defects.entry(ignorable=True),
        "entry",
        ("ignorable: false",),
    ),
    DoctorCase(
        "bind-verb-missing",
        "cards are not booked",
        defects.entry(bindVerb=None),
        "entry",
        ("bindVerb",),
    ),
    DoctorCase(
        "bind-verb-missing",
        "preemption is not asked about",
        defects.entry(preemptVerb=None),
        "entry",
        ("preemptVerb",),
    ),
    DoctorCase(
        "bind-verb-missing",
        "no card is managed",
        defects.configured(defects.no_cards),
        "entry",
        ("managedResources",),
    ),
    DoctorCase(
        "resource-not-ignored",
        "kube-scheduler counts a mark that no node has",
        defects.configured(defects.counted),
        "entry",
        ("ignoredByScheduler",),
    ),
    DoctorCase(
        "weight-zero",
        "scores count nothing",
        defects.configured(defects.unweighted),
        "entry",
        ("weight",),
    ),
    DoctorCase(
        "weight-zero",
        "nobody asks for scores",
        defects.entry(prioritizeVerb=None),
        "entry",
        ("prioritizeVerb",),
    ),
    DoctorCase(
        "two-load-aware-scorers",
        "one of Trimaran beside ours",
        defects.configured(defects.load_aware_beside_ours),
        "configuration-",
        (),
    ),
    DoctorCase(
        "two-load-aware-scorers",
        "both of Trimaran",
        defects.configured(defects.load_aware),
        "configuration-",
        (),
    ),
    DoctorCase(
        "sample-too-small",
        "of 150 nodes all but few are rejected",
        defects.crowd,
        "web/busy",
        ("NotIn",),
    ),
    DoctorCase(
        "metric-missing",
        "nobody measures it",
        defects.measured("lost", "nowhere"),
        "web/lost",
        ("nowhere",),
    ),
    DoctorCase(
        "metric-names-mismatch",
        "the values are of other names",
        defects.measured("named", "power", ("a.example.com", "b.example.com")),
        "web/named",
        (),
    ),
    DoctorCase("metrics-api-unavailable", "nobody serves it", defects.unserved, custom_metrics.GROUP, ()),
    DoctorCase(
        "policy-without-effect",
        "no strategy",
        defects.created(healthy_cluster.policy("idle")),
        "web/idle",
        (),
    ),
    DoctorCase(
        "policy-without-effect",
        "its pod is not sent to us",
        defects.created(defects.unsent()),
        "web/unsent",
        (),
    ),
    DoctorCase(
        "namespace-not-trusted",
        "a policy that labels nodes in a namespace without trust",
        defects.without_trust,
        "web/pol",
        ("kubectl label namespace web nodewise.io/trusted=true",),
    ),
    DoctorCase(
        "all-namespaces-trusted",
        "every namespace is trusted",
        defects.trusting_all,
        "nodewise/nodewise",
        ("nodewise.io/trusted=true",),
    ),
    DoctorCase(
        "policy-label-misspelt",
        "a pod's label is nearly the one that names a policy",
        defects.created(defects.mislabelled()),
        "web/mislabelled",
        ("rename the label",),
    ),
    DoctorCase(
        "policy-unknown",
        "a pod names one that is not there",
        defects.asking_for("ghost"),
        "ghost",
        (),
    ),
    DoctorCase(
        "gpu-node-without-labels",
        "cards without numbers",
        defects.created(defects.bare_node()),
        "bare",
        ("gpu-numbers",),
    ),
    DoctorCase(
        "kubelet-policy-conflict",
        "the kubelet hands out CPUs",
        defects.static_cpus,
        healthy_cluster.POOLS,
        ("cpuManagerPolicy",),
    ),
    DoctorCase(
        "kubelet-policy-conflict",
        "the kubelet counts NUMA nodes",
        defects.single_numa_node,
        healthy_cluster.POOLS,
        ("topologyManagerPolicy",),
    ),
    DoctorCase(
        "descheduler-missing",
        "there is none",
        defects.deleted(_DESCHEDULER, _POD_OF_DESCHEDULER),
        "web/pol",
        ("RemovePodsViolatingNodeAffinity",),
    ),
    DoctorCase(
        "descheduler-missing",
        "it runs another plugin",
        defects.other_plugin,
        "descheduler",
        ("RemovePodsViolatingNodeAffinity",),
    ),
    DoctorCase(
        "rights-missing",
        "a binding is gone",
        defects.deleted(f"{RBAC}/clusterrolebindings/nodewise"),
        "nodewise/nodewise",
        ("deploy/rbac.yaml",),
    ),
    DoctorCase(
        "rights-missing",
        "those for cards are gone",
        defects.deleted(f"{RBAC}/clusterrolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    DoctorCase(
        "rights-missing",
        "no ledger may be kept",
        defects.deleted(f"{RBAC}/namespaces/{healthy_cluster.NAMESPACE}/rolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "what is written to nodes is not limited",
        defects.deleted(f"{ADMISSION}/nodewise-nodes"),
        "nodewise/nodewise",
        ("deploy/rbac.yaml",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "what is written to pods is not limited",
        defects.deleted(f"{ADMISSION}/nodewise-pods"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "everybody may trust",
        defects.deleted(f"{ADMISSION}/nodewise-trust"),
        "nodewise-trust",
        ("deploy/trust.yaml",),
    ),
    DoctorCase("replicas-not-ready", "scaled to nothing", defects.no_replica, "nodewise/nodewise", ()),
    DoctorCase("replicas-not-ready", "one of two crashes", defects.one_down, "nodewise/nodewise", ("logs",)),
    DoctorCase(
        "scheduler-not-running",
        "a pod waits for another one",
        defects.created(defects.waiting("alone", "my-scheduler")),
        "my-scheduler",
        (),
    ),
)
