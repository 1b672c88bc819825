"""Facts of a sound installation, and of installations with one problem."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from nodewise.doctor.facts import (
    AdmissionPolicy,
    Descheduler,
    EntryCertificates,
    Facts,
    KubeletConfiguration,
    LeaderLease,
    MetricCoverage,
    MetricsApiStatus,
    NodewiseWorkload,
    PodAdmission,
    PodAdmissionPolicy,
    PodInfo,
    PolicyEvaluation,
    ProbedServer,
    SchedulerInfo,
    Service,
)
from nodewise.doctor.parsing import certificates, scheduler_configuration
from nodewise.doctor.parsing.objects import Container, Workload
from nodewise.tls.x509_certificates import CertificateIssuer, SignedCertificate, public_key_of_private_key

NOW = datetime(2026, 5, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
HOST = "nodewise.nodewise.svc"
FILE = "scheduler.yaml"
CLIENT = "nodewise-scheduler-client"
AUTHORITY, STRANGER = CertificateIssuer("nodewise-ca", NOW, YEAR), CertificateIssuer("stranger", NOW, YEAR)
CLUSTER_CA = CertificateIssuer("kubernetes", NOW, YEAR)
SERVER = AUTHORITY.server([HOST], "nodewise")
OWN = AUTHORITY.client(CLIENT)
ENTRY: dict[str, Any] = {
    "urlPrefix": f"https://{HOST}:9001/scheduler",
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "preemptVerb": "preempt",
    "bindVerb": "bind",
    "weight": 10,
    "nodeCacheCapable": True,
    "httpTimeout": "5s",
    "ignorable": False,
    "enableHTTPS": True,
    "tlsConfig": {"caFile": "/ca", "certFile": "/cert", "keyFile": "/key"},
    "managedResources": [
        {"name": "telemetry/scheduling", "ignoredByScheduler": True},
        {"name": "gpu.intel.com/i915"},
    ],
}
CONFIGURATION: dict[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"schedulerName": "default-scheduler"}],
    "extenders": [ENTRY],
}
NODEWISE = Container("nodewise", "nodewise:1", ("nodewise", "extender"))
KUBE_SCHEDULER = Container(
    "kube-scheduler", "kube-scheduler:v1.36.3", ("kube-scheduler", "--config=/etc/s.yaml")
)
STATIC = Workload(
    "Pod/kube-system/kube-scheduler-a",
    "kube-system",
    (KUBE_SCHEDULER,),
    host_network=True,
    dns_policy="ClusterFirstWithHostNet",
    is_static=True,
    node="a",
    ready=1,
)
EXTENDER = NodewiseWorkload(
    Workload(
        "Deployment/nodewise/nodewise", "nodewise", (NODEWISE,), account="nodewise", replicas=2, ready=2
    ),
    {"agents": "telemetry,gpu", "client_name": CLIENT},
)
CONTROLLER = NodewiseWorkload(
    Workload(
        "Deployment/nodewise/nodewise-controller",
        "nodewise",
        (Container("controller", "nodewise:1", ("nodewise", "controller", "--native-mode")),),
        account="nodewise",
        replicas=2,
        ready=2,
    ),
    {"native_mode": "true"},
    is_controller=True,
)
POLICY = PolicyEvaluation(
    "web", "pol", ("dontschedule", "scheduleonmetric", "deschedule"), ("heat",), rejected_nodes=1
)
ACCOUNT = ("request.userInfo.username == 'system:serviceaccount:nodewise:nodewise'",)
ADMISSION = (
    AdmissionPolicy("nodewise-nodes", frozenset({"nodes", "nodes/*"}), ACCOUNT),
    AdmissionPolicy("nodewise-pods", frozenset({"pods", "pods/*"}), ACCOUNT),
    AdmissionPolicy("nodewise-trust", frozenset({"namespaces"}), ("?'nodewise.io/trusted'",)),
)
POD = PodInfo("shop", "web", "pol", node="a", resources=("telemetry/scheduling",))
WAITING = PodInfo(
    "waits", "web", scheduler_name="default-scheduler", age_s=300.0, resources=("telemetry/scheduling",)
)


def signed(leaf: SignedCertificate, authority: CertificateIssuer = AUTHORITY) -> EntryCertificates:
    """The certificate files of kube-scheduler with this client certificate."""
    return EntryCertificates(
        certificates.parse_pem(authority.cert),
        certificates.parse_pem(leaf.cert),
        public_key_of_private_key(leaf.key),
    )


def scheduler(configuration: Any = CONFIGURATION, workload: Workload | None = STATIC) -> SchedulerInfo:
    return SchedulerInfo(
        FILE,
        scheduler_configuration.read(configuration),
        workload,
        {0: signed(OWN)},
        {
            0: ProbedServer(
                f"{HOST}:9001",
                certificates=certificates.parse_pem(SERVER.cert),
                source="a handshake",
                rejection="",
            )
        },
        {0: Service("Service/nodewise/nodewise", (9001,), 2)},
    )


LEASE = LeaderLease("Lease/nodewise/nodewise-controller", "controller-0", NOW, 15)
COOL = PolicyEvaluation(
    "web",
    "cool",
    ("avoid",),
    ("heat",),
    rejected_nodes=1,
    kind="PlacementPolicy",
    age_s=60.0,
    node_label="key",
)
EXTENDER_POLICY = "MutatingAdmissionPolicy/nodewise-extender-pods"
NATIVE_POLICY = "MutatingAdmissionPolicy/nodewise-native"
NATIVE_POLICIES = (
    NATIVE_POLICY,
    "MutatingAdmissionPolicy/nodewise-native-reset",
    "ValidatingAdmissionPolicy/nodewise-native-size",
    "ValidatingAdmissionPolicy/nodewise-native-gate",
)
"""What native mode needs for PlacementPolicies."""
NATIVE = Facts(
    NOW,
    controllers=(CONTROLLER,),
    pods=(PodInfo("shop", "web", node="a", selected_by=(COOL.where,), verdict_keys=frozenset({"key"})),),
    policies=(COOL,),
    node_count=20,
    nodes_with_verdicts=3,
    metrics={"heat": MetricCoverage(20)},
    cluster_ca=certificates.parse_pem(CLUSTER_CA.cert),
    admission_policies=ADMISSION,
    pod_admission=PodAdmission(
        is_served=True, policies=tuple(PodAdmissionPolicy(name, name, True) for name in NATIVE_POLICIES)
    ),
    leases=(LEASE,),
    namespaces=("nodewise", "kube-system"),
)
"""A sound installation of native mode on a control plane that cannot be seen."""

SOUND = Facts(
    NOW,
    schedulers=(scheduler(),),
    extenders=(EXTENDER,),
    pods=(POD,),
    policies=(POLICY,),
    node_count=20,
    metrics={"heat": MetricCoverage(20)},
    metrics_apis=(MetricsApiStatus("v1beta1.custom.metrics.k8s.io", exists=True, available=True),),
    deschedulers=(Descheduler("Deployment/kube-system/descheduler", ("RemovePodsViolatingNodeAffinity",)),),
    kubelets=(KubeletConfiguration("c", "none", "none"),),
    cluster_ca=certificates.parse_pem(CLUSTER_CA.cert),
    admission_policies=ADMISSION,
    pod_admission=PodAdmission(
        is_served=True, policies=(PodAdmissionPolicy(EXTENDER_POLICY, EXTENDER_POLICY, is_current=True),)
    ),
    namespaces=("nodewise", "kube-system"),
)


def entry(**changed: Any) -> Facts:
    """Facts with other fields in the entry; None removes a field."""
    config = copy.deepcopy(CONFIGURATION)
    fields = {key: value for key, value in {**ENTRY, **changed}.items() if value is not None}
    config["extenders"] = [fields]
    return SOUND._replace(schedulers=(scheduler(config),))


def tls(**changed: Any) -> Facts:
    """Facts with other fields in the entry's tlsConfig."""
    fields = {key: value for key, value in {**ENTRY["tlsConfig"], **changed}.items() if value is not None}
    return entry(tlsConfig=fields)


def config(**changed: Any) -> Facts:
    """Facts with other fields in the configuration."""
    return SOUND._replace(schedulers=(scheduler({**CONFIGURATION, **changed}),))


def certificates_of(changed: EntryCertificates) -> Facts:
    """Facts with other certificates of kube-scheduler."""
    return _with(lambda base: base._replace(certificates={0: changed}))


def server(**changed: Any) -> Facts:
    """Facts with another result of the connection."""
    return _with(lambda base: base._replace(servers={0: base.servers[0]._replace(**changed)}))


def service(**changed: Any) -> Facts:
    return _with(lambda base: base._replace(services={0: Service("Service/nodewise/nodewise", **changed)}))


def pod(**changed: Any) -> Facts:
    """Facts with another workload of kube-scheduler."""
    return _with(lambda base: base._replace(workload=STATIC._replace(**changed)))


def _with(change: Callable[[SchedulerInfo], SchedulerInfo]) -> Facts:
    return SOUND._replace(schedulers=(change(scheduler()),))


def extender(*, settings: dict[str, str] | None = None, **changed: Any) -> Facts:
    """Facts with other settings of the replicas, or another workload."""
    replica = EXTENDER._replace(workload=EXTENDER.workload._replace(**changed))
    return SOUND._replace(extenders=(replica._replace(settings={**EXTENDER.settings, **(settings or {})}),))


def policy(**changed: Any) -> Facts:
    return SOUND._replace(policies=(POLICY._replace(**changed),))


def waiting(**changed: Any) -> Facts:
    """Facts with an additional waiting pod."""
    return SOUND._replace(pods=(POD, WAITING._replace(**changed)))
