"""The defects that `nodewise doctor` has to find: how each is made in a healthy cluster, and what is reported."""

import functools
from typing import Final, NamedTuple

from tests.cluster import (
    extender_process,
    fake_custom_metrics_server,
    followed_remedies,
    gpu_cluster,
    healthy_cluster,
    misconfigurations,
    native_mode,
)
from tests.cluster.followed_remedies import Follow
from tests.cluster.healthy_cluster import Diagnosis, HealthyCluster
from tests.cluster.misconfigurations import Defect
from tests.cluster.namespace_sandboxes import wait

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
    follow: Follow | None = None
    """What the remedy says to do, after its command; None if the command alone ends the defect."""
    edit: str = ""
    """A script of sed for the file that the command `kubectl edit` opens."""


_POD_OF_DESCHEDULER = f"/api/v1/namespaces/{healthy_cluster.SYSTEM}/pods/descheduler-0"
_NATIVE_ADMISSION = [item for item in native_mode.MANIFEST if item["metadata"]["name"] == "nodewise-native"]
_DESCHEDULER = f"/apis/apps/v1/namespaces/{healthy_cluster.SYSTEM}/deployments/descheduler"
OUTSIDE = misconfigurations.deleted(
    f"/apis/apps/v1/namespaces/{healthy_cluster.NAMESPACE}/deployments/nodewise"
)
"""No Deployment of nodewise: the servers that kube-scheduler calls run outside of the cluster."""

_RULE: Final = "{metricname: heat, operator: GreaterThan, target: 90}"
DOCTOR_CASES: Final = (
    DoctorCase(
        "kind-not-served",
        "a definition is missing",
        misconfigurations.undefined("placementpolicies.nodewise.io"),
        "CustomResourceDefinition/placementpolicies.nodewise.io",
        ("manifests crds",),
    ),
    DoctorCase(
        "extender-not-registered",
        "no extender is configured",
        misconfigurations.configured(misconfigurations.no_extender),
        "configuration-",
        ("nodewise configure",),
        frozenset({"policy-without-effect"}),
        follow=followed_remedies.use_rendered_entry,
    ),
    DoctorCase(
        "extender-not-reached",
        "nobody listens at the address",
        misconfigurations.configured(misconfigurations.elsewhere),
        "entry",
        (),
        follow=followed_remedies.correct_address,
    ),
    DoctorCase(
        "extender-not-reached",
        "there is no such Service",
        misconfigurations.entry(urlPrefix="https://old.nodewise.svc:9001/scheduler"),
        "entry",
        (),
        frozenset({"server-certificate-wrong"}),
        follow=followed_remedies.use_listed_service,
    ),
    DoctorCase(
        "extender-not-reached",
        "the Service has another port",
        misconfigurations.entry(urlPrefix=f"{misconfigurations.SERVICE}:9443/scheduler"),
        "entry",
        (),
        follow=followed_remedies.use_port_of_service,
    ),
    DoctorCase(
        "extender-not-reached",
        "nobody behind the Service is ready",
        misconfigurations.nobody_ready,
        "entry",
        (),
        follow=followed_remedies.start_endpoints,
    ),
    DoctorCase(
        "names-not-used",
        "whole nodes are sent",
        misconfigurations.entry(nodeCacheCapable=False),
        "entry",
        ("nodeCacheCapable",),
        follow=followed_remedies.set_fields,
    ),
    DoctorCase(
        "no-ca-file",
        "the server is not verified",
        misconfigurations.configured(misconfigurations.no_ca),
        "entry",
        ("caFile",),
        follow=followed_remedies.use_printed_ca,
    ),
    DoctorCase(
        "no-ca-file",
        "the server need not be verified",
        misconfigurations.configured(misconfigurations.insecure),
        "entry",
        ("caFile",),
        follow=followed_remedies.use_printed_ca,
    ),
    DoctorCase(
        "key-in-configuration",
        "the key of kube-scheduler is in the entry",
        misconfigurations.configured(misconfigurations.key_in_entry),
        "entry",
        ("keyFile",),
        follow=followed_remedies.write_key_to_file,
    ),
    DoctorCase(
        "ca-key-as-client-key",
        "the key of a CA is kube-scheduler's",
        misconfigurations.client(misconfigurations.ca_pair),
        "entry",
        ("nodewise certs",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "client-certificate-wrong",
        "expired",
        misconfigurations.client(misconfigurations.lasting(-1)),
        "entry",
        ("nodewise certs",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "certificate-expires-soon",
        "kube-scheduler's",
        misconfigurations.client(misconfigurations.lasting(2)),
        "entry",
        ("nodewise certs",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "client-certificate-wrong",
        "for servers",
        misconfigurations.client(misconfigurations.for_servers),
        "entry",
        ("nodewise certs",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "client-certificate-wrong",
        "not of this key",
        misconfigurations.client(misconfigurations.mixed_up),
        "entry",
        ("key",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "client-certificate-wrong",
        "of another name",
        misconfigurations.client(misconfigurations.other_client),
        "entry",
        ("nodewise certs",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "any-client",
        "every client of the CA",
        misconfigurations.any_client,
        "nodewise/nodewise",
        ("nodewise certs",),
        edit="/--any-client/d",
    ),
    DoctorCase(
        "any-client",
        "every client of the CA, by the settings file",
        misconfigurations.setting("any_client: true"),
        "nodewise/nodewise",
        ("kubectl edit configmap/nodewise",),
        edit="/any_client/d",
    ),
    DoctorCase(
        "all-namespaces-trusted",
        "every namespace is trusted, by the settings file",
        misconfigurations.setting("trust_all_namespaces: true"),
        "nodewise/nodewise",
        ("kubectl edit configmap/nodewise",),
        edit="/trust_all_namespaces/d",
    ),
    DoctorCase(
        "unknown-ca",
        "another CA is trusted",
        misconfigurations.configured(misconfigurations.other_ca),
        "entry",
        ("caFile",),
        follow=followed_remedies.use_printed_ca,
    ),
    DoctorCase(
        "unknown-ca",
        "the client's CA is not trusted",
        misconfigurations.client(misconfigurations.strangers_client),
        "entry",
        ("--client-ca",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "http-timeout-missing",
        "the default of 5 s is hidden",
        misconfigurations.entry(httpTimeout=None),
        "entry",
        ("httpTimeout",),
        follow=followed_remedies.set_fields,
    ),
    DoctorCase(
        "http-timeout-short",
        "shorter than an answer",
        misconfigurations.entry(httpTimeout="5ms"),
        "entry",
        ("httpTimeout",),
        follow=followed_remedies.set_fields,
    ),
    DoctorCase(
        "server-certificate-wrong",
        "it is another host's",
        misconfigurations.configured(misconfigurations.other_name),
        "entry",
        ("nodewise certs",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "server-certificate-wrong",
        "it is over",
        misconfigurations.expired_server,
        "entry",
        ("nodewise certs",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "http-timeout-long",
        "two minutes",
        misconfigurations.entry(httpTimeout="2m"),
        "entry",
        ("httpTimeout",),
        follow=followed_remedies.set_fields,
    ),
    DoctorCase(
        "filters-own-pods",
        "nobody places nodewise without nodewise",
        misconfigurations.entry(managedResources=None),
        "entry",
        ("managedResources",),
        frozenset({"bind-verb-missing"}),
        follow=followed_remedies.replace_entry(
            managedResources=[*extender_process.MANAGED, *gpu_cluster.MANAGED]
        ),
    ),
    DoctorCase(
        "wrong-ignorable",
        "no answer means yes",
        misconfigurations.entry(ignorable=True),
        "entry",
        ("ignorable: false",),
        follow=followed_remedies.set_fields,
    ),
    DoctorCase(
        "bind-verb-missing",
        "cards are not booked",
        misconfigurations.entry(bindVerb=None),
        "entry",
        ("bindVerb",),
        follow=followed_remedies.use_printed_entry,
    ),
    DoctorCase(
        "bind-verb-missing",
        "preemption is not asked about",
        misconfigurations.entry(preemptVerb=None),
        "entry",
        ("preemptVerb",),
        follow=followed_remedies.use_printed_entry,
    ),
    DoctorCase(
        "bind-verb-missing",
        "no card is managed",
        misconfigurations.configured(misconfigurations.no_cards),
        "entry",
        ("managedResources",),
        follow=followed_remedies.use_printed_entry,
    ),
    DoctorCase(
        "resource-not-ignored",
        "kube-scheduler counts a mark that no node has",
        misconfigurations.configured(misconfigurations.counted),
        "entry",
        ("ignoredByScheduler",),
        follow=followed_remedies.ignore_in_scheduler,
    ),
    DoctorCase(
        "resource-not-ignored",
        "kube-scheduler counts a mark beside a resource of a DeviceClass",
        misconfigurations.marked_beside_devices,
        "web/waits",
        ("--filter-all-pods",),
        follow=followed_remedies.report_unscheduled("waits"),
    ),
    DoctorCase(
        "weight-zero",
        "scores count nothing",
        misconfigurations.configured(misconfigurations.unweighted),
        "entry",
        ("weight",),
        follow=followed_remedies.set_fields,
    ),
    DoctorCase(
        "weight-zero",
        "nobody asks for scores",
        misconfigurations.entry(prioritizeVerb=None),
        "entry",
        ("prioritizeVerb",),
        follow=followed_remedies.set_fields,
    ),
    DoctorCase(
        "two-load-aware-scorers",
        "one of Trimaran beside ours",
        misconfigurations.configured(misconfigurations.load_aware_beside_ours),
        "configuration-",
        (),
        follow=followed_remedies.remove_score_plugins,
    ),
    DoctorCase(
        "two-load-aware-scorers",
        "both of Trimaran",
        misconfigurations.configured(misconfigurations.load_aware),
        "configuration-",
        (),
        follow=followed_remedies.remove_score_plugins,
    ),
    DoctorCase(
        "sample-too-small",
        "of 150 nodes all but few are rejected",
        misconfigurations.crowd,
        "web/busy",
        ("NotIn",),
        follow=followed_remedies.look_at_all_nodes,
    ),
    DoctorCase(
        "metric-missing",
        "nobody measures it",
        misconfigurations.measured("lost", "nowhere"),
        "web/lost",
        ("add a rule for it to prometheus-adapter",),
        follow=followed_remedies.export_metric("nowhere"),
    ),
    DoctorCase(
        "metric-names-mismatch",
        "the values are of other names",
        misconfigurations.measured("named", "power", ("a.example.com", "b.example.com")),
        "web/named",
        (),
        follow=followed_remedies.export_metric("power"),
    ),
    DoctorCase(
        "metrics-api-unavailable",
        "nobody serves it",
        misconfigurations.unserved,
        fake_custom_metrics_server.GROUP,
        (),
        frozenset({"policy-condition"}),
        follow=followed_remedies.correct_api_service,
    ),
    DoctorCase(
        "metric-source-selected",
        "a policy selects the pod of the custom metrics API",
        misconfigurations.selected_adapter,
        "/adapters",
        ("kubernetes.io/metadata.name", "guard.maxRejectedShare"),
        edit="s/^spec:$/spec:\\n  guard: {maxRejectedShare: '0.9'}/",
    ),
    DoctorCase(
        "usage-late",
        "means of two minutes",
        misconfigurations.slow_usage,
        "v1beta1.metrics.k8s.io",
        ("--metric-resolution=15s",),
        follow=followed_remedies.measure_usage_more_often,
    ),
    DoctorCase(
        "policy-without-effect",
        "no strategy",
        misconfigurations.created(healthy_cluster.policy("idle")),
        "web/idle",
        (),
        edit=f"s/strategies: {{}}/strategies: {{dontschedule: {{rules: [{_RULE}]}}}}/",
    ),
    DoctorCase(
        "policy-without-effect",
        "its pod is not sent to us",
        misconfigurations.created(misconfigurations.unsent()),
        "web/unsent",
        (),
        follow=followed_remedies.create_again(
            misconfigurations.waiting(
                "unsent", labels={"telemetry-policy": "pol"}, schedulingGates=[{"name": "tests/held"}]
            )
        ),
    ),
    DoctorCase(
        "namespace-not-trusted",
        "a policy that labels nodes in a namespace without trust",
        misconfigurations.without_trust,
        "web/pol",
        ("kubectl label namespace/web nodewise.io/trusted=true",),
    ),
    DoctorCase(
        "namespace-over-budget",
        "a policy with more metrics than its namespace may have",
        misconfigurations.over_budget,
        "web/wide",
        ("raise the option",),
        follow=followed_remedies.shorten_policy("wide"),
    ),
    DoctorCase(
        "policy-condition",
        "a metric that most nodes lose at once",
        misconfigurations.suspended,
        "web/fading",
        ("restore the values",),
        follow=followed_remedies.export_metric("fading"),
    ),
    DoctorCase(
        "all-namespaces-trusted",
        "every namespace is trusted",
        misconfigurations.trusting_all,
        "nodewise/nodewise",
        ("nodewise.io/trusted=true",),
        edit="/--trust-all-namespaces/d",
    ),
    DoctorCase(
        "policy-label-misspelt",
        "a pod's label is nearly the one that names a policy",
        misconfigurations.created(misconfigurations.mislabelled()),
        "web/mislabelled",
        ("rename the label",),
        follow=followed_remedies.label_pod("mislabelled", telemetry_polcy=None, telemetry_policy="pol"),
    ),
    DoctorCase(
        "policy-unknown",
        "a pod names one that is not there",
        misconfigurations.asking_for("ghost"),
        "ghost",
        (),
        follow=followed_remedies.label_pod("asks-ghost", telemetry_policy="pol"),
    ),
    DoctorCase(
        "gpu-node-without-labels",
        "cards without numbers",
        misconfigurations.bare_node,
        "bare",
        ("gpu-numbers",),
        follow=followed_remedies.run_with_node("bare"),
    ),
    DoctorCase(
        "kubelet-policy-conflict",
        "the kubelet hands out CPUs",
        misconfigurations.kubelet(cpuManagerPolicy="static"),
        healthy_cluster.POOLS,
        ("cpuManagerPolicy",),
        follow=followed_remedies.configure_kubelet,
    ),
    DoctorCase(
        "kubelet-policy-conflict",
        "the kubelet counts NUMA nodes",
        misconfigurations.kubelet(topologyManagerPolicy="single-numa-node"),
        healthy_cluster.POOLS,
        ("topologyManagerPolicy",),
        follow=followed_remedies.configure_kubelet,
    ),
    DoctorCase(
        "kubelet-policy-conflict",
        "the kubelet assigns memory of NUMA nodes",
        misconfigurations.kubelet(memoryManagerPolicy="Static"),
        healthy_cluster.POOLS,
        ("memoryManagerPolicy",),
        follow=followed_remedies.configure_kubelet,
    ),
    DoctorCase(
        "extender-not-reached",
        "kube-scheduler reports a refused connection",
        misconfigurations.refused_call,
        "web/waits",
        ("no process listens at this port",),
        follow=followed_remedies.report_unscheduled("waits"),
    ),
    DoctorCase(
        "descheduler-missing",
        "there is none",
        misconfigurations.deleted(_DESCHEDULER, _POD_OF_DESCHEDULER),
        "web/pol",
        ("RemovePodsViolatingNodeAffinity",),
        follow=followed_remedies.install_descheduler,
    ),
    DoctorCase(
        "descheduler-missing",
        "it runs another plugin",
        misconfigurations.other_plugin,
        "descheduler",
        ("RemovePodsViolatingNodeAffinity",),
        follow=followed_remedies.enable_descheduler_plugin,
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
        ("manifests native | kubectl delete",),
    ),
    DoctorCase(
        "pod-admission-missing",
        "nothing adds the request to the pods of a policy",
        misconfigurations.created(
            misconfigurations.scaled_to_zero("new", {"app": "new"}),
            healthy_cluster.placement_policy("new", {"app": "new"}, above=80),
        ),
        "MutatingAdmissionPolicy/nodewise-extender-pods",
        ("manifests extender-pods",),
    ),
    DoctorCase(
        "all-nodes-rejected",
        "a policy rejects every node for a pod",
        misconfigurations.created(
            healthy_cluster.placement_policy("strict", {"telemetry-policy": "pol"}, above=1)
        ),
        "web/strict",
        ("nodewise explain",),
        edit="s/above: 1$/above: 80/",
    ),
    DoctorCase(
        "rights-missing",
        "a binding is gone",
        misconfigurations.deleted(f"{RBAC}/clusterrolebindings/nodewise"),
        "nodewise/nodewise",
        ("manifests rbac",),
    ),
    DoctorCase(
        "rights-missing",
        "those for cards are gone",
        misconfigurations.deleted(f"{RBAC}/clusterrolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("manifests gpu",),
    ),
    DoctorCase(
        "rights-missing",
        "no ledger may be kept",
        misconfigurations.deleted(f"{RBAC}/namespaces/{healthy_cluster.NAMESPACE}/rolebindings/nodewise-gpu"),
        "nodewise/nodewise",
        ("manifests gpu",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "what is written to nodes is not limited",
        misconfigurations.deleted(f"{ADMISSION}/nodewise-nodes"),
        "nodewise/nodewise",
        ("manifests rbac",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "what is written to pods is not limited",
        misconfigurations.deleted(f"{ADMISSION}/nodewise-pods"),
        "nodewise/nodewise",
        ("manifests gpu",),
    ),
    DoctorCase(
        "admission-policy-missing",
        "everybody may trust",
        misconfigurations.deleted(f"{ADMISSION}/nodewise-trust"),
        "nodewise-trust",
        ("manifests trust",),
    ),
    DoctorCase(
        "identity-shared",
        "one identity for two replicas",
        misconfigurations.shared_identity,
        "nodewise/nodewise",
        ("metadata.name",),
        edit="/--identity=nodewise/d",
    ),
    DoctorCase(
        "controller-beside-extender",
        "a pod runs the controller",
        misconfigurations.created(misconfigurations.controller_pod()),
        "nodewise/controller",
        ("delete the controller",),
        frozenset({"rights-missing"}),
        follow=followed_remedies.delete_pod("controller", healthy_cluster.NAMESPACE),
    ),
    DoctorCase(
        "replicas-not-ready", "scaled to nothing", misconfigurations.no_replica, "nodewise/nodewise", ()
    ),
    DoctorCase(
        "replicas-not-ready",
        "one of two crashes",
        misconfigurations.one_down,
        "nodewise/nodewise",
        ("logs",),
        follow=followed_remedies.repair_replica,
    ),
    DoctorCase(
        "scheduler-not-running",
        "a pod waits for another one",
        misconfigurations.created(misconfigurations.waiting("alone", "my-scheduler")),
        "my-scheduler",
        (),
        follow=followed_remedies.delete_pod("alone"),
    ),
    DoctorCase(
        "not-looked-at",
        "doctor may not read the cluster",
        misconfigurations.deleted(f"{RBAC}/clusterrolebindings/{healthy_cluster.DOCTOR}"),
        "nodes",
        ("manifests doctor",),
    ),
    DoctorCase(
        "not-looked-at",
        "doctor may not read the objects of nodewise",
        misconfigurations.deleted(
            f"{RBAC}/namespaces/{healthy_cluster.NAMESPACE}/rolebindings/{healthy_cluster.DOCTOR}"
        ),
        healthy_cluster.NAMESPACE,
        ("manifests doctor",),
    ),
    DoctorCase(
        "plugin-name-misspelt",
        "a misspelt plugin is disabled",
        misconfigurations.configured(misconfigurations.misspelt_plugin),
        "configuration-",
        (),
        follow=followed_remedies.correct_plugin,
    ),
    DoctorCase(
        "scheduler-configuration-refused",
        "a misspelt field of an entry",
        misconfigurations.entry(nodeCacheCapabel=True),
        "configuration-",
        ("does not start",),
        follow=followed_remedies.replace_entry(nodeCacheCapabel=None),
    ),
    DoctorCase(
        "scheduler-configuration-refused",
        "a version that was removed",
        misconfigurations.configured(misconfigurations.removed_version),
        "configuration-",
        ("does not start",),
        follow=followed_remedies.upgrade_configuration,
    ),
    DoctorCase(
        "client-certificate-wrong",
        "nodewise outside of the cluster answers with 403",
        misconfigurations.together(OUTSIDE, misconfigurations.client(misconfigurations.other_client)),
        "entry",
        ("nodewise certs",),
        follow=followed_remedies.issue_certificates,
    ),
    DoctorCase(
        "nodes-without-values",
        "one exporter of four is dead",
        misconfigurations.dead_exporter,
        "web/pol",
        ("restore the exporter",),
        follow=followed_remedies.export_metric("heat"),
    ),
    DoctorCase(
        "bind-verb-missing",
        "nodewise outside of the cluster does not bind pods with GPUs",
        misconfigurations.together(OUTSIDE, misconfigurations.entry(bindVerb=None)),
        "entry",
        ("render-scheduler",),
        follow=followed_remedies.use_printed_entry,
    ),
    DoctorCase(
        "gpu-node-without-labels",
        "cards without numbers, and nodewise outside of the cluster",
        misconfigurations.together(OUTSIDE, misconfigurations.bare_node),
        "bare",
        ("gpu-numbers",),
        follow=followed_remedies.run_with_node("bare"),
    ),
    DoctorCase(
        "gpu-node-without-labels",
        "a label counts cards, and no device plugin or driver offers them",
        misconfigurations.node_without_plugin,
        "bare",
        ("kubectl describe node/bare",),
        follow=followed_remedies.start_device_plugin,
    ),
    DoctorCase(
        "selector-without-pods",
        "a misspelt value of a label",
        misconfigurations.created(
            healthy_cluster.placement_policy("lost", {"telemetry-policy": "pool"}, above=80)
        ),
        "web/lost",
        ("kubectl edit placementpolicy/lost",),
        frozenset({"pod-admission-missing"}),
        edit="s/telemetry-policy: pool/telemetry-policy: pol/",
    ),
)


def find_and_follow_remedy(cluster: HealthyCluster, case: DoctorCase) -> None:
    """Doctor reports the fault of a case and nothing else; its remedy is followed, and doctor reports nothing."""
    diagnosis = wait("it is found", functools.partial(_diagnosis_with, cluster, case), 30, cluster.diagnose)
    findings = [finding for finding in diagnosis.of(case.finding) if _place(case) in finding["object"]]
    assert findings, diagnosis
    assert (diagnosis.code, diagnosis.sound) == (3, False)
    text = " ".join(finding["remedy"] + finding["command"] for finding in findings)
    assert all(word in text for word in case.remedy), diagnosis
    assert all(
        finding["seen"] and finding["wanted"] and finding["remedy"] for finding in diagnosis.findings
    ), diagnosis
    assert diagnosis.ids("error", "warning") <= {case.finding} | case.follows, diagnosis
    for finding in {finding["command"]: finding for finding in findings}.values():
        followed_remedies.follow_remedy(cluster, finding, case.edit, case.follow)
    wait("the remedy ends it", lambda: cluster.diagnose().sound or None, 30, cluster.diagnose)


def _diagnosis_with(cluster: HealthyCluster, case: DoctorCase) -> Diagnosis | None:
    diagnosis = cluster.diagnose()
    return diagnosis if case.finding in diagnosis.ids() else None


def _place(case: DoctorCase) -> str:
    return misconfigurations.ENTRY if case.about == "entry" else case.about


def case_name(case: DoctorCase) -> str:
    return f"{case.finding}: {case.name}"
