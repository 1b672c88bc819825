"""The defects that `nodewise doctor` has to find: how each is made in a healthy cluster, and what is reported."""

from typing import Final, NamedTuple

from tests.cluster import fake_custom_metrics_server, healthy_cluster, misconfigurations, native_mode
from tests.cluster.misconfigurations import Defect

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"

ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


class DoctorCase(NamedTuple):
    """A defect of the healthy cluster, and the finding that doctor must report for it."""

    finding: str
    """The id of the finding."""
    name: str
    """A description of the defect."""
    defect: Defect
    about: str
    """A part of the object's name; `entry` is the URL of the extender's entry."""
    remedy: tuple[str, ...]
    """Texts that the remedy must contain."""
    follows: frozenset[str] = frozenset()
    """The ids of other errors that follow from the defect."""


_POD_OF_DESCHEDULER = f"/api/v1/namespaces/{healthy_cluster.SYSTEM}/pods/descheduler-0"
_NATIVE_ADMISSION = [item for item in native_mode.MANIFEST if item["metadata"]["name"] == "nodewise-native"]
_DESCHEDULER = f"/apis/apps/v1/namespaces/{healthy_cluster.SYSTEM}/deployments/descheduler"
_OUTSIDE = misconfigurations.deleted(
    f"/apis/apps/v1/namespaces/{healthy_cluster.NAMESPACE}/deployments/nodewise"
)
"""No Deployment of nodewise: the servers that kube-scheduler calls run outside of the cluster."""

DOCTOR_CASES: Final = (
    DoctorCase(
        "kind-not-served",
        "a definition is missing",
        misconfigurations.undefined("placementpolicies.nodewise.io"),
        "CustomResourceDefinition/placementpolicies.nodewise.io",
        ("kubectl apply --server-side -f deploy/crds",),
    ),
    DoctorCase(
        "extender-not-registered",
        "no extender is configured",
        misconfigurations.configured(misconfigurations.no_extender),
        "configuration-",
        ("nodewise configure",),
        frozenset({"policy-without-effect"}),
    ),
    DoctorCase(
        "extender-not-reached",
        "nobody listens at the address",
        misconfigurations.configured(misconfigurations.elsewhere),
        "entry",
        (),
    ),
    DoctorCase(
        "extender-not-reached",
        "there is no such Service",
        misconfigurations.entry(urlPrefix="https://old.nodewise.svc:9001/scheduler"),
        "entry",
        (),
        frozenset({"server-certificate-wrong"}),
    ),
    DoctorCase(
        "extender-not-reached",
        "the Service has another port",
        misconfigurations.entry(urlPrefix=f"{misconfigurations.SERVICE}:9443/scheduler"),
        "entry",
        (),
    ),
    DoctorCase(
        "extender-not-reached",
        "nobody behind the Service is ready",
        misconfigurations.nobody_ready,
        "entry",
        (),
    ),
    DoctorCase(
        "names-not-used",
        "whole nodes are sent",
        misconfigurations.entry(nodeCacheCapable=False),
        "entry",
        ("nodeCacheCapable",),
    ),
    DoctorCase(
        "no-ca-file",
        "the server is not verified",
        misconfigurations.configured(misconfigurations.no_ca),
        "entry",
        ("caFile",),
    ),
    DoctorCase(
        "no-ca-file",
        "the server need not be verified",
        misconfigurations.configured(misconfigurations.insecure),
        "entry",
        ("caFile",),
    ),
    DoctorCase(
        "key-in-configuration",
        "the key of kube-scheduler is in the entry",
        misconfigurations.configured(misconfigurations.key_in_entry),
        "entry",
        ("keyFile",),
    ),
    DoctorCase(
        "ca-key-as-client-key",
        "the key of a CA is kube-scheduler's",
        misconfigurations.client(misconfigurations.ca_pair),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "expired",
        misconfigurations.client(misconfigurations.lasting(-1)),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "certificate-expires-soon",
        "kube-scheduler's",
        misconfigurations.client(misconfigurations.lasting(2)),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "for servers",
        misconfigurations.client(misconfigurations.for_servers),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "not of this key",
        misconfigurations.client(misconfigurations.mixed_up),
        "entry",
        ("key",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "of another name",
        misconfigurations.client(misconfigurations.other_client),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "any-client",
        "every client of the CA",
        misconfigurations.any_client,
        "nodewise/nodewise",
        ("nodewise certs",),
    ),
    DoctorCase(
        "unknown-ca",
        "another CA is trusted",
        misconfigurations.configured(misconfigurations.other_ca),
        "entry",
        ("caFile",),
    ),
    DoctorCase(
        "unknown-ca",
        "the client's CA is not trusted",
        misconfigurations.client(misconfigurations.strangers_client),
        "entry",
        ("--client-ca",),
    ),
    DoctorCase(
        "http-timeout-missing",
        "the default of 5 s is hidden",
        misconfigurations.entry(httpTimeout=None),
        "entry",
        ("httpTimeout",),
    ),
    DoctorCase(
        "http-timeout-short",
        "shorter than an answer",
        misconfigurations.entry(httpTimeout="5ms"),
        "entry",
        ("httpTimeout",),
    ),
    DoctorCase(
        "server-certificate-wrong",
        "it is another host's",
        misconfigurations.configured(misconfigurations.other_name),
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "server-certificate-wrong",
        "it is over",
        misconfigurations.expired_server,
        "entry",
        ("nodewise certs",),
    ),
    DoctorCase(
        "http-timeout-long",
        "two minutes",
        misconfigurations.entry(httpTimeout="2m"),
        "entry",
        ("httpTimeout",),
    ),
    DoctorCase(
        "filters-own-pods",
        "nobody places nodewise without nodewise",
        misconfigurations.entry(managedResources=None),
        "entry",
        ("managedResources",),
        frozenset({"bind-verb-missing"}),
    ),
    DoctorCase(
        "wrong-ignorable",
        "no answer means yes",
        misconfigurations.entry(ignorable=True),
        "entry",
        ("ignorable: false",),
    ),
    DoctorCase(
        "bind-verb-missing",
        "cards are not booked",
        misconfigurations.entry(bindVerb=None),
        "entry",
        ("bindVerb",),
    ),
    DoctorCase(
        "bind-verb-missing",
        "preemption is not asked about",
        misconfigurations.entry(preemptVerb=None),
        "entry",
        ("preemptVerb",),
    ),
    DoctorCase(
        "bind-verb-missing",
        "no card is managed",
        misconfigurations.configured(misconfigurations.no_cards),
        "entry",
        ("managedResources",),
    ),
    DoctorCase(
        "resource-not-ignored",
        "kube-scheduler counts a mark that no node has",
        misconfigurations.configured(misconfigurations.counted),
        "entry",
        ("ignoredByScheduler",),
    ),
    DoctorCase(
        "weight-zero",
        "scores count nothing",
        misconfigurations.configured(misconfigurations.unweighted),
        "entry",
        ("weight",),
    ),
    DoctorCase(
        "weight-zero",
        "nobody asks for scores",
        misconfigurations.entry(prioritizeVerb=None),
        "entry",
        ("prioritizeVerb",),
    ),
    DoctorCase(
        "two-load-aware-scorers",
        "one of Trimaran beside ours",
        misconfigurations.configured(misconfigurations.load_aware_beside_ours),
        "configuration-",
        (),
    ),
    DoctorCase(
        "two-load-aware-scorers",
        "both of Trimaran",
        misconfigurations.configured(misconfigurations.load_aware),
        "configuration-",
        (),
    ),
    DoctorCase(
        "sample-too-small",
        "of 150 nodes all but few are rejected",
        misconfigurations.crowd,
        "web/busy",
        ("NotIn",),
    ),
    DoctorCase(
        "metric-missing",
        "nobody measures it",
        misconfigurations.measured("lost", "nowhere"),
        "web/lost",
        ("add a rule for it to prometheus-adapter",),
    ),
    DoctorCase(
        "metric-names-mismatch",
        "the values are of other names",
        misconfigurations.measured("named", "power", ("a.example.com", "b.example.com")),
        "web/named",
        (),
    ),
    DoctorCase(
        "metrics-api-unavailable",
        "nobody serves it",
        misconfigurations.unserved,
        fake_custom_metrics_server.GROUP,
        (),
        frozenset({"policy-condition"}),
    ),
    DoctorCase(
        "policy-without-effect",
        "no strategy",
        misconfigurations.created(healthy_cluster.policy("idle")),
        "web/idle",
        (),
    ),
    DoctorCase(
        "policy-without-effect",
        "its pod is not sent to us",
        misconfigurations.created(misconfigurations.unsent()),
        "web/unsent",
        (),
    ),
    DoctorCase(
        "namespace-not-trusted",
        "a policy that labels nodes in a namespace without trust",
        misconfigurations.without_trust,
        "web/pol",
        ("kubectl label namespace web nodewise.io/trusted=true",),
    ),
    DoctorCase(
        "namespace-over-budget",
        "a policy with more metrics than its namespace may have",
        misconfigurations.over_budget,
        "web/wide",
        ("raise the option",),
    ),
    DoctorCase(
        "policy-condition",
        "a metric that most nodes lose at once",
        misconfigurations.suspended,
        "web/fading",
        ("restore the values",),
    ),
    DoctorCase(
        "all-namespaces-trusted",
        "every namespace is trusted",
        misconfigurations.trusting_all,
        "nodewise/nodewise",
        ("nodewise.io/trusted=true",),
    ),
    DoctorCase(
        "policy-label-misspelt",
        "a pod's label is nearly the one that names a policy",
        misconfigurations.created(misconfigurations.mislabelled()),
        "web/mislabelled",
        ("rename the label",),
    ),
    DoctorCase(
        "policy-unknown",
        "a pod names one that is not there",
        misconfigurations.asking_for("ghost"),
        "ghost",
        (),
    ),
    DoctorCase(
        "gpu-node-without-labels",
        "cards without numbers",
        misconfigurations.created(misconfigurations.bare_node()),
        "bare",
        ("gpu-numbers",),
    ),
    DoctorCase(
        "kubelet-policy-conflict",
        "the kubelet hands out CPUs",
        misconfigurations.static_cpus,
        healthy_cluster.POOLS,
        ("cpuManagerPolicy",),
    ),
    DoctorCase(
        "kubelet-policy-conflict",
        "the kubelet counts NUMA nodes",
        misconfigurations.single_numa_node,
        healthy_cluster.POOLS,
        ("topologyManagerPolicy",),
    ),
    DoctorCase(
        "descheduler-missing",
        "there is none",
        misconfigurations.deleted(_DESCHEDULER, _POD_OF_DESCHEDULER),
        "web/pol",
        ("RemovePodsViolatingNodeAffinity",),
    ),
    DoctorCase(
        "descheduler-missing",
        "it runs another plugin",
        misconfigurations.other_plugin,
        "descheduler",
        ("RemovePodsViolatingNodeAffinity",),
    ),
    DoctorCase(
        "native-mode-evictions",
        "a node has a verdict",
        misconfigurations.verdict_label,
        "descheduler",
        ("RemovePodsViolatingNodeAffinity",),
        frozenset({"labels-frozen"}),
    ),
    DoctorCase(
        "labels-frozen",
        "nothing updates the verdict of a node",
        misconfigurations.verdict_label,
        "Node labels",
        ("kubectl label nodes --all",),
        frozenset({"native-mode-evictions"}),
    ),
    DoctorCase(
        "labels-frozen",
        "an admission policy of native mode is left",
        misconfigurations.created(*_NATIVE_ADMISSION),
        "MutatingAdmissionPolicy/nodewise-native",
        ("kubectl delete", "deploy/native.yaml"),
    ),
    DoctorCase(
        "pod-admission-missing",
        "nothing adds the request to the pods of a policy",
        misconfigurations.created(healthy_cluster.placement_policy("new", {"app": "new"}, above=80)),
        "MutatingAdmissionPolicy/nodewise-extender-pods",
        ("deploy/extender-pods.yaml",),
    ),
    DoctorCase(
        "all-nodes-rejected",
        "a policy rejects every node for a pod",
        misconfigurations.created(
            healthy_cluster.placement_policy("strict", {"telemetry-policy": "pol"}, above=1)
        ),
        "web/strict",
        ("nodewise explain",),
    ),
    DoctorCase(
        "rights-missing",
        "a binding is gone",
        misconfigurations.deleted(f"{RBAC}/clusterrolebindings/nodewise"),
        "nodewise/nodewise",
        ("deploy/rbac.yaml",),
    ),
    DoctorCase(
        "rights-missing",
        "those for cards are gone",
        misconfigurations.deleted(f"{RBAC}/clusterrolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    DoctorCase(
        "rights-missing",
        "no ledger may be kept",
        misconfigurations.deleted(f"{RBAC}/namespaces/{healthy_cluster.NAMESPACE}/rolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "what is written to nodes is not limited",
        misconfigurations.deleted(f"{ADMISSION}/nodewise-nodes"),
        "nodewise/nodewise",
        ("deploy/rbac.yaml",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "what is written to pods is not limited",
        misconfigurations.deleted(f"{ADMISSION}/nodewise-pods"),
        "nodewise/nodewise",
        ("deploy/gpu.yaml",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "everybody may trust",
        misconfigurations.deleted(f"{ADMISSION}/nodewise-trust"),
        "nodewise-trust",
        ("deploy/trust.yaml",),
    ),
    DoctorCase(
        "identity-shared",
        "one identity for two replicas",
        misconfigurations.shared_identity,
        "nodewise/nodewise",
        ("metadata.name",),
    ),
    DoctorCase(
        "replicas-not-ready", "scaled to nothing", misconfigurations.no_replica, "nodewise/nodewise", ()
    ),
    DoctorCase(
        "replicas-not-ready", "one of two crashes", misconfigurations.one_down, "nodewise/nodewise", ("logs",)
    ),
    DoctorCase(
        "scheduler-not-running",
        "a pod waits for another one",
        misconfigurations.created(misconfigurations.waiting("alone", "my-scheduler")),
        "my-scheduler",
        (),
    ),
    DoctorCase(
        "scheduler-configuration-refused",
        "a misspelt field of an entry",
        misconfigurations.entry(nodeCacheCapabel=True),
        "configuration-",
        ("does not start",),
    ),
    DoctorCase(
        "scheduler-configuration-refused",
        "a version that was removed",
        misconfigurations.configured(misconfigurations.removed_version),
        "configuration-",
        ("does not start",),
    ),
    DoctorCase(
        "client-certificate-wrong",
        "nodewise outside of the cluster answers with 403",
        misconfigurations.together(_OUTSIDE, misconfigurations.client(misconfigurations.other_client)),
        "entry",
        ("nodewise certs",),
    ),
)
