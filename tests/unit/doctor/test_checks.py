"""The findings of each check, from facts."""

import re
import shlex
from datetime import timedelta
from typing import Any

import pytest
import yaml

from nodewise.base import cooperative_scheduling
from nodewise.doctor.check_runner import examine
from nodewise.doctor.facts import (
    AccessRight,
    AdmissionPolicy,
    Descheduler,
    Facts,
    GpuNodeInfo,
    KubeletConfiguration,
    MetricCoverage,
    MetricsApiStatus,
    MissingRights,
    NodeRestriction,
    NodewiseWorkload,
    PodAdmission,
    PodAdmissionPolicy,
    ProbedServer,
    ReplicaMetrics,
    SchedulerInfo,
    SelectedSourcePod,
    UnavailableFact,
    UnmatchedSelector,
    UsageSamples,
)
from nodewise.doctor.findings import CATALOGUE, kubectl
from nodewise.doctor.parsing import certificates, scheduler_configuration
from nodewise.doctor.parsing.objects import VolumeMount
from nodewise.install import scheduler_versions
from nodewise.install.scheduler_versions import SchedulerVersion
from nodewise.metrics import missing_values
from nodewise.metrics.missing_values import Cause, NodesWithoutValues
from nodewise.policies import policy_status, policy_status_fields
from nodewise.tls.x509_certificates import CertificateIssuer, public_key_of_private_key
from tests.unit.doctor import facts_factory
from tests.unit.doctor.facts_factory import (
    ACCOUNT,
    ADMISSION,
    AUTHORITY,
    CLIENT,
    CLUSTER_CA,
    CONFIGURATION,
    CONTROLLER,
    COOL,
    ENTRY,
    EXTENDER,
    HOST,
    KUBE_SCHEDULER,
    LEASE,
    NATIVE,
    NATIVE_POLICIES,
    NODEWISE,
    NOW,
    OWN,
    POD,
    POLICY,
    SOUND,
    STATIC,
    STRANGER,
    WAITING,
    YEAR,
    certificates_of,
    config,
    entry,
    extender,
    pod,
    policy,
    scheduler,
    server,
    service,
    signed,
    tls,
    waiting,
)

LONG_AGO = CertificateIssuer("old", NOW - 2 * YEAR, YEAR)
SOON = CertificateIssuer("soon", NOW - timedelta(days=350), timedelta(days=352))
STRANGE = certificates.parse_pem(STRANGER.server([HOST], "nodewise").cert)
OTHER_HOST = certificates.parse_pem(AUTHORITY.server(["other.example"], "other").cert)
OVER = certificates.parse_pem(LONG_AGO.server([HOST], "nodewise").cert)
CA_CERT = certificates.parse_pem(AUTHORITY.cert)
DIFFER = "the custom metrics API: 2 values of one node differ"
AGGREGATE = "set aggregate: max or give the source one value"
UNAVAILABLE = policy_status_fields.missing_metrics_text(
    {"heat": Cause("SeveralValuesPerNode", DIFFER, AGGREGATE)}, policy_status_fields.RULES_REJECT
)
METRICS = ReplicaMetrics("Pod/nodewise/nodewise-1", calls=5, uptime_s=3600.0)
PLAIN = {key: value for key, value in ENTRY.items() if key not in ("enableHTTPS", "tlsConfig")}
TRIMARAN = {"score": {"enabled": [{"name": "TargetLoadPacking"}]}}
KOORDINATOR = {"multiPoint": {"enabled": [{"name": "LoadAwareScheduling"}]}}
COUNTED = [{"name": "telemetry/scheduling"}, {"name": "gpu.intel.com/i915"}]
MARK = frozenset({"telemetry/scheduling"})
FORBIDDEN = UnavailableFact("nodes", "forbidden", "list nodes")


FORK = STATIC._replace(
    containers=(KUBE_SCHEDULER._replace(image="koord-scheduler:v1.6.0", command=("koord-scheduler",)),)
)
"""A fork of kube-scheduler."""


def with_replica_metrics(**changed: Any) -> Facts:
    return SOUND._replace(replica_metrics=(METRICS._replace(**changed),))


def with_profile_plugins(plugins: Any, **settings: str) -> Facts:
    facts = config(profiles=[{"schedulerName": "default-scheduler", "plugins": plugins}])
    return facts._replace(extenders=(EXTENDER._replace(settings={**EXTENDER.settings, **settings}),))


def with_rejected_nodes(rejected: int | None, nodes: int = 5000, **changed: Any) -> Facts:
    return policy(rejected_nodes=rejected, **changed)._replace(node_count=nodes)


BY_SELECTOR = POD._replace(policy="", selected_by=("PlacementPolicy/web/cool",), age_s=30.0)


def selected_pod(not_enforced: str = "", **changed: Any) -> Facts:
    """Facts with a pod that a PlacementPolicy selects."""
    cool = COOL._replace(not_enforced=not_enforced)
    return SOUND._replace(policies=(POLICY, cool), pods=(POD, BY_SELECTOR._replace(**changed)))


def with_several_hosts(*hosts: Any) -> Facts:
    """Facts with one scheduler per configuration, each on its own host."""
    places = [f"Pod/{number}" for number in range(len(hosts))]
    schedulers = [
        scheduler(configuration, STATIC._replace(where=place))._replace(where=place)
        for configuration, place in zip(hosts, places, strict=True)
    ]
    return SOUND._replace(schedulers=tuple(schedulers))


def without_scores(**changed: Any) -> Facts:
    """Facts with another policy, and an entry that requests no scores."""
    return entry(prioritizeVerb=None)._replace(policies=policy(**changed).policies)


OTHERS = scheduler({**CONFIGURATION, "profiles": [{"schedulerName": "other"}], "extenders": []}, None)
ELSEWHERE = SOUND._replace(schedulers=(scheduler(), OTHERS), pods=(POD._replace(scheduler_name="other"),))
IGNORED = with_replica_metrics(calls=0)._replace(pods=(POD._replace(age_s=600.0),))
KUBELET = KubeletConfiguration("c", "none", "none")
OTHER_PLUGIN = Descheduler("d", ("RemoveDuplicates",))


def with_client_name(name: str, **settings: str) -> Facts:
    """Facts with a name in kube-scheduler's certificate, and settings of nodewise."""
    facts = certificates_of(signed(AUTHORITY.client(name)))
    return facts._replace(extenders=(EXTENDER._replace(settings={"agents": "telemetry,gpu", **settings}),))


def without_bind_verb(name: str, **settings: str) -> Facts:
    """The facts of `with_client_name` for an entry without bindVerb."""
    facts, certificates_ = entry(bindVerb=None), {0: signed(AUTHORITY.client(name))}
    schedulers = tuple(scheduler._replace(certificates=certificates_) for scheduler in facts.schedulers)
    return with_client_name(name, **settings)._replace(schedulers=schedulers)


NO_RIGHT = MissingRights("ServiceAccount/nodewise/nodewise", (AccessRight("list", "", "nodes"),))


def with_admission_policies(*admission: AdmissionPolicy, **settings: str) -> Facts:
    """Facts with these admission policies, and settings of the replicas."""
    configured = EXTENDER._replace(settings={**EXTENDER.settings, **settings})
    return SOUND._replace(admission_policies=admission, extenders=(configured,))


def native(**changed: Any) -> Facts:
    """Facts of native mode with other values."""
    return NATIVE._replace(**changed)


def native_pod(**changed: Any) -> Facts:
    """Facts of native mode with a pod whose node affinity does not name its policy."""
    return native(pods=(NATIVE.pods[0]._replace(verdict_keys=frozenset(), **changed),))


def pod_admission(*, is_served: bool = True, is_current: bool | None = None) -> PodAdmission:
    """An API server with the policies of native mode, or without them."""
    names = () if is_current is None else NATIVE_POLICIES
    return PodAdmission(
        is_served, tuple(PodAdmissionPolicy(name, name, is_current is True) for name in names)
    )


def with_leftovers(*names: str) -> PodAdmission:
    """The policies of a sound extender, and these of native mode."""
    assert isinstance(SOUND.pod_admission, PodAdmission)
    leftovers = tuple(PodAdmissionPolicy(name, name, is_current=True) for name in names)
    return SOUND.pod_admission._replace(policies=(*SOUND.pod_admission.policies, *leftovers))


def not_sent(**changed: Any) -> Facts:
    """Facts with a PlacementPolicy, and no admission policy that has its pods sent to the extender."""
    return SOUND._replace(policies=(POLICY, COOL._replace(**changed)), pod_admission=pod_admission())


def with_lease(**changed: Any) -> Facts:
    return native(leases=(LEASE._replace(**changed),))


def with_controller(*, ready: int = 2, **settings: str) -> Facts:
    """Facts with a controller that has only these settings."""
    workload = CONTROLLER.workload._replace(ready=ready)
    return native(controllers=(CONTROLLER._replace(workload=workload, settings=settings),))


def key_in_entry(image: str, cluster_version: SchedulerVersion | None = None) -> Facts:
    """Facts with keyData in the entry of a kube-scheduler with this image."""
    facts = tls(keyFile=None, keyData="c2VjcmV0")._replace(cluster_version=cluster_version)
    workload = STATIC._replace(containers=(KUBE_SCHEDULER._replace(image=image),))
    return facts._replace(
        schedulers=tuple(scheduler._replace(workload=workload) for scheduler in facts.schedulers)
    )


NODES_LIMITED, PODS_LIMITED, TRUST_LIMITED = ADMISSION
OTHER_ACCOUNT = NODES_LIMITED._replace(conditions=(ACCOUNT[0].replace(":nodewise'", ":nodewise-annotator'"),))
SHARED = EXTENDER._replace(workload=EXTENDER.workload._replace(containers=(NODEWISE, KUBE_SCHEDULER)))


def with_configuration_text(text: str) -> Facts:
    parsed = scheduler_configuration.parse(text.encode())
    return SOUND._replace(schedulers=(scheduler()._replace(configuration=parsed),))


def with_unparsed_configuration() -> Facts:
    unreadable = scheduler()._replace(configuration=UnavailableFact("file", "no YAML"), refusal="no YAML")
    return SOUND._replace(schedulers=(unreadable,))


def without_values(nodes: int) -> Facts:
    """Facts of 20 nodes of which so many have no value of a metric that doctor cannot read."""
    names = tuple(f"n{number}" for number in range(nodes))
    without = NodesWithoutValues(names, nodes)
    text = policy_status_fields.nodes_without_values_text(
        [cooperative_scheduling.run_without_pauses(missing_values.describe("heat", without))]
    )
    conditions = (("NodesWithoutValues", text),)
    return SOUND._replace(policies=(POLICY._replace(true_conditions=conditions),), metrics={})


IN_NATIVE_MODE = LEASE._replace(native_mode=True)
OUTSIDE = native(controllers=(), leases=(IN_NATIVE_MODE,))
"""Native mode by a controller outside of the cluster."""
GATED = NATIVE.pods[0]._replace(waits_for_labels=True, is_gated=True, node="")
CASES: dict[str, dict[str, Facts]] = {
    "": {
        "no admission policy of pods, and no GPUs": with_admission_policies(
            NODES_LIMITED, TRUST_LIMITED, agents="telemetry"
        ),
        "no admission policies, and an account that kube-scheduler shares": with_admission_policies()._replace(
            extenders=(SHARED,)
        ),
        "a sound set-up": SOUND,
        "most nodes without a value": SOUND._replace(
            metrics={"heat": MetricCoverage(8, missing=("c",) * 12)}
        ),
        "most nodes without a value, by the status": without_values(14),
        "nodes that are not ready": without_values(2)._replace(nodes_not_measured=frozenset({"n0", "n1"})),
        "many nodes that are not ready": without_values(5)._replace(
            nodes_not_measured=frozenset(f"n{number}" for number in range(5))
        ),
        "a node that is not ready, and that a rule rejects without a value": SOUND._replace(
            policies=(POLICY._replace(rejected_without_value=(("heat > 80", 1),)),),
            metrics={},
            nodes_not_measured=frozenset({"n0"}),
        ),
        "no status": SOUND._replace(policies=(POLICY._replace(has_status=False),), metrics={}),
        "native mode": NATIVE,
        "a controller that follows the admission policies": with_controller()._replace(
            leases=(IN_NATIVE_MODE,)
        ),
        "a controller outside of the cluster": OUTSIDE,
        "an older controller outside of the cluster": OUTSIDE._replace(leases=(LEASE,)),
        "a pod with a new gate": OUTSIDE._replace(pods=(GATED._replace(age_s=50),)),
        "an old gate that a tenant wrote": OUTSIDE._replace(
            pods=(*NATIVE.pods, GATED._replace(age_s=90, selected_by=()))
        ),
        "an old gate in a large cluster": OUTSIDE._replace(pods=(GATED._replace(age_s=90),), node_count=5000),
        "no right to try whether kubelets can write labels": native(
            node_restriction=UnavailableFact("a kubelet's rights", "forbidden", is_minor=True)
        ),
        "all shards are held": with_lease(shards=(LEASE, LEASE)),
        "a Lease that is renewed late": with_lease(renewed=NOW - timedelta(seconds=29)),
        "a leader that evaluates": with_lease(evaluated=NOW - timedelta(seconds=299)),
        "an admission policy that only denies": SOUND._replace(
            pod_admission=with_leftovers("ValidatingAdmissionPolicy/nodewise-native-gate")
        ),
        "a pod outside of a canary": native_pod(observed_by=(COOL.where,)),
        "a pod of a policy without a label": native_pod()._replace(policies=(COOL._replace(node_label=""),)),
        "no policies": native(pod_admission=pod_admission(), policies=(), pods=()),
        "a policy without rules": not_sent(strategies=()),
        "selected pods with a request": not_sent()._replace(
            pods=(POD, POD._replace(policy="", selected_by=(COOL.where,)))
        ),
        "the DNS policy ClusterFirst, and calls come": with_replica_metrics()._replace(
            schedulers=pod(dns_policy="ClusterFirst").schedulers
        ),
        "both hosts": with_several_hosts(CONFIGURATION, CONFIGURATION),
        "kube-scheduler's name by default": with_client_name("system:kube-scheduler"),
        "a flag of TAS and a name": with_client_name("a", cacert="/ca", client_name="a"),
        "an empty key": tls(keyData=""),
        "a key that 1.38 does not log": key_in_entry("registry.k8s.io/kube-scheduler:v1.38.0"),
        "5,000 nodes, 400 rejected": with_rejected_nodes(400),
        "5,000 nodes, all rejected": with_rejected_nodes(5000),
        "90 nodes, 80 rejected": with_rejected_nodes(80, nodes=90),
        "pods avoid the rejected nodes": with_rejected_nodes(600)._replace(
            pods=(POD._replace(avoids_violating=True),)
        ),
        "a policy that filters nothing": with_rejected_nodes(600, strategies=("scheduleonmetric",)),
        "a field of a fork": SOUND._replace(
            schedulers=(scheduler(CONFIGURATION | {"koordinator": {}}, FORK),)
        ),
        "a managed resource that nodes have": entry(managedResources=COUNTED)._replace(node_resources=MARK),
        "a managed resource, and no nodes": entry(managedResources=COUNTED)._replace(node_count=0),
        "rules that flap are only noted": policy(true_conditions=(("Flapping", "why"),)),
        "usage of the last minute": SOUND._replace(usage_samples=UsageSamples(60, 90)),
        "a pod that filters by its affinity": SOUND._replace(
            pods=(POD._replace(resources=(), avoids_violating=True),)
        ),
        "a selected pod": selected_pod(),
        "GPUs with labels": SOUND._replace(gpu_nodes=(GpuNodeInfo("g", 8, "gpu.intel.com/i915"),)),
        "nothing to deschedule": policy(strategies=("dontschedule",))._replace(deschedulers=()),
        "another plugin in native mode": NATIVE._replace(deschedulers=(OTHER_PLUGIN,)),
        "one identity for one replica": extender(settings={"identity": "nodewise"}, replicas=1, ready=1),
        "the name of the pod": extender(settings={"identity": "$(POD_NAME)"}),
        "an identity from a field of the pod": extender(settings={"identity": ""}),
        "a pod that waits for a second": waiting(age_s=1.0),
        "a gated pod": waiting(is_gated=True),
        "a pod that a scheduler has rejected": waiting(message="Unschedulable: 0/20 nodes"),
        "an older Kubernetes is a note": SOUND._replace(cluster_version=SchedulerVersion(29)),
        "the oldest tested Kubernetes": SOUND._replace(cluster_version=SchedulerVersion(36)),
        "no scores of policies that avoid": without_scores(strategies=("avoid",)),
    },
    "kind-not-served": {
        "a missing definition": SOUND._replace(kinds_not_served=("placementpolicies.nodewise.io",)),
    },
    "admission-policy-missing": {
        "no admission policies": with_admission_policies(),
        "no policy of nodes": with_admission_policies(PODS_LIMITED, TRUST_LIMITED),
        "no policy of pods": with_admission_policies(NODES_LIMITED, TRUST_LIMITED),
        "no policy of namespaces": with_admission_policies(NODES_LIMITED, PODS_LIMITED),
        "a policy of another account": with_admission_policies(OTHER_ACCOUNT, PODS_LIMITED, TRUST_LIMITED),
        "native mode without limits": native(admission_policies=(NODES_LIMITED, TRUST_LIMITED)),
    },
    "not-looked-at": {
        "policies that may not be listed": SOUND._replace(admission_policies=FORBIDDEN),
        "no schedulers and no calls": SOUND._replace(schedulers=()),
        "no schedulers, but calls come": with_replica_metrics()._replace(schedulers=()),
        "refused here, and ready there": server(certificates=(), address="", rejection=None, is_refused=True),
        "no handshake": server(certificates=(), address="", rejection=None),
        "rejected nodes are not counted": with_rejected_nodes(None),
        "no right to list nodes": SOUND._replace(
            node_count=FORBIDDEN, node_resources=FORBIDDEN, gpu_nodes=FORBIDDEN, kubelets=FORBIDDEN
        ),
        "no right to read schedulers": SOUND._replace(schedulers=FORBIDDEN),
    },
    "nodes-without-values": {
        "a node without a value": SOUND._replace(metrics={"heat": MetricCoverage(19, missing=("c",))}),
        "a node without a value, by the status": without_values(4),
        "a node without a value among many that are not ready": without_values(5)._replace(
            nodes_not_measured=frozenset(f"n{number}" for number in range(4))
        ),
        "a node that a rule rejects without a value": SOUND._replace(
            policies=(POLICY._replace(rejected_without_value=(("heat > 80", 1),)),), metrics={}
        ),
    },
    "selector-without-pods": {
        "a selector without pods": SOUND._replace(
            unmatched_selectors=(UnmatchedSelector(COOL.where, "app=wbe", "app=web"),)
        ),
        "a selector without pods in a large cluster": policy(
            true_conditions=(("NoPodsSelected", "the selectors match no pod"),)
        )._replace(unmatched_selectors=UnavailableFact("pods", "too many", is_minor=True)),
    },
    "gpu-node-without-labels": {
        "GPUs without a resource": SOUND._replace(
            gpu_nodes=(GpuNodeInfo("g", 0, "", label="nvidia.com/gpu.count"),)
        ),
        "GPUs without labels": SOUND._replace(gpu_nodes=(GpuNodeInfo("g", 0, "gpu.intel.com/i915"),)),
    },
    "bind-verb-missing": {
        "no bind outside of the cluster": entry(bindVerb=None)._replace(extenders=()),
        "no bind": entry(bindVerb=None),
        "no preempt": entry(preemptVerb=None),
    },
    "native-mode-off": {
        "a controller that does not follow the admission policies": with_controller(),
        "a leader without native mode": with_lease(native_mode=False),
        "a leader without native mode outside of the cluster": OUTSIDE._replace(
            leases=(LEASE._replace(native_mode=False),)
        ),
        "a pod with an old gate": OUTSIDE._replace(pods=(GATED._replace(age_s=90),)),
    },
    "replicas-not-ready": {
        "a controller that is not ready": with_controller(ready=0, native_mode="true"),
        "one of two replicas ready": extender(ready=1, problems=("nodewise: CrashLoopBackOff",)),
        "no replica ready": extender(ready=0),
        "no replica wanted": extender(replicas=0, ready=0),
    },
    "labels-frozen": {
        "no replica leads": native(leases=()),
        "a Lease without a holder": with_lease(holder=""),
        "a shard without a holder": with_lease(shards=(LEASE, LEASE._replace(holder=""))),
        "a shard without a Lease": with_lease(shards=(None, LEASE)),
        "a Lease that has expired": with_lease(renewed=NOW - timedelta(seconds=31)),
        "a leader that does not evaluate": with_lease(evaluated=NOW - timedelta(seconds=301)),
        "labels that nothing updates": policy(strategies=("dontschedule",))._replace(
            deschedulers=(), nodes_with_verdicts=3
        ),
        "admission policies of native mode that nothing follows": SOUND._replace(
            pod_admission=with_leftovers(*NATIVE_POLICIES)
        ),
        "the admission policy for pods that name a TASPolicy, which nothing follows": SOUND._replace(
            pod_admission=with_leftovers("MutatingAdmissionPolicy/nodewise-native-named")
        ),
    },
    "verdict-labels-writable": {
        "labels that kubelets can write": native(
            node_restriction=NodeRestriction(False, "a dry run may write it")
        ),
    },
    "policy-without-effect": {
        "a policy that only prefers": native_pod()._replace(policies=(COOL._replace(only_prefers=True),)),
        "a pod without a requirement": native_pod(),
        "problems in a policy": policy(problems=("spec: x",)),
        "no telemetry agent": extender(settings={"agents": "gpu"}),
        "a pod without the managed resource": SOUND._replace(pods=(POD._replace(resources=()),)),
        "a selected pod without a request": selected_pod(resources=()),
        "a policy that is not enforced": policy(not_enforced="51 policies"),
        "pods of a policy that is not enforced": selected_pod(resources=(), not_enforced="51 policies"),
        "a pod of another scheduler's": ELSEWHERE,
    },
    "pod-admission-missing": {
        "native mode without its policies": native(pod_admission=pod_admission()),
        "policies of another version": native(pod_admission=pod_admission(is_current=False)),
        "an older API server": native(pod_admission=pod_admission(is_served=False)),
        "selected pods that are not sent": not_sent(),
    },
    "metric-source-selected": {
        "a policy that selects Prometheus": SOUND._replace(
            selected_source_pods=(
                SelectedSourcePod("ClusterPlacementPolicy/all", "Pod/m/prometheus-0", "Service/m/prometheus"),
            )
        ),
    },
    "all-nodes-rejected": {
        "policies that reject every node": policy(all_rejected=policy_status.REJECTS_EVERY_NODE),
    },
    "extender-not-registered not-looked-at": {
        "no schedulers, no calls, and pods came": IGNORED._replace(schedulers=()),
    },
    "extender-not-registered": {
        "no extenders": config(extenders=[]),
        "somebody else's extender": entry(urlPrefix="http://other:80/x"),
        "one host of two": with_several_hosts(CONFIGURATION, {**CONFIGURATION, "extenders": []}),
    },
    "extender-not-reached": {
        "no Service": service(ports=None),
        "another port": service(ports=(443,), ready_endpoints=2),
        "no endpoint": service(ports=(9001,), ready_endpoints=0),
        "the DNS policy ClusterFirst": pod(dns_policy="ClusterFirst"),
        "a pod's message names an unknown host": waiting(
            message="SchedulerError: extender: dial tcp: no such host"
        ),
        "no calls for an hour": with_replica_metrics(calls=0)._replace(
            pods=(WAITING._replace(message="0/1"),)
        ),
    },
    "extender-not-reached server-certificate-wrong": {
        "no address": entry(urlPrefix="/scheduler"),
    },
    "names-not-used": {
        "whole nodes": entry(nodeCacheCapable=False),
    },
    "no-ca-file": {
        "no CA": tls(caFile=None),
        "TLS without verification": tls(insecure=True),
        "plain HTTP": config(extenders=[{**PLAIN, "urlPrefix": f"http://{HOST}:9001/scheduler"}]),
    },
    "ca-key-as-client-key": {
        "a CA's certificate": certificates_of(
            signed(OWN)._replace(client=CA_CERT, key=CA_CERT[0].public_key)
        ),
        "clients with a CA's certificate": with_replica_metrics(ca_clients=3),
    },
    "ca-key-as-client-key client-certificate-wrong": {
        "the cluster CA's key": certificates_of(
            signed(OWN)._replace(key=certificates.parse_pem(CLUSTER_CA.cert)[0].public_key)
        ),
    },
    "client-certificate-wrong": {
        "an expired certificate": certificates_of(signed(LONG_AGO.client(CLIENT))),
        "a certificate for servers": certificates_of(signed(AUTHORITY.server([CLIENT], CLIENT))),
        "the key of another certificate": certificates_of(
            signed(OWN)._replace(key=public_key_of_private_key(SOON.client("x").key))
        ),
        "a certificate of another client": certificates_of(signed(AUTHORITY.client("kubelet"))),
        "a client name other than the default": with_client_name("kubelet"),
        "no client certificate": tls(certFile=None, keyFile=None),
        "a file without a certificate": certificates_of(signed(OWN)._replace(client=())),
        "refused by name": with_replica_metrics(refused={"client_name": 4}),
        "answered with 403": server(refusal="Forbidden: client certificate"),
    },
    "certificate-expires-soon": {
        "a certificate that expires soon": certificates_of(signed(SOON.client(CLIENT))),
    },
    "any-client client-certificate-wrong": {
        "any client, with the bind verb": with_client_name("kubelet", any_client="true"),
    },
    "any-client bind-verb-missing": {
        "any client without bind": without_bind_verb("kubelet", any_client="true"),
        "any client by a flag of TAS": without_bind_verb("kubelet", cacert="/ca"),
    },
    "key-in-configuration": {
        "a key in the entry": tls(keyFile=None, keyData="c2VjcmV0"),
        "a key beside a file": tls(keyData="bm8ga2V5"),
        "a key that 1.37 logs": key_in_entry("registry.k8s.io/kube-scheduler:v1.37.2"),
        "a key, and no version": key_in_entry("mirror/kube-scheduler@sha256:0"),
    },
    "kubernetes-version-untested": {
        "a key, and the version of the API server alone": key_in_entry(
            "mirror/kube-scheduler@sha256:0", SchedulerVersion(38)
        ),
        "a newer Kubernetes": SOUND._replace(cluster_version=SchedulerVersion(scheduler_versions.NEWEST + 1)),
    },
    "key-in-configuration kubernetes-version-untested": {
        "a key, and an image that is older than the API server": key_in_entry(
            "kube-scheduler:v1.37.4", SchedulerVersion(38)
        ),
    },
    "unknown-ca": {
        "a handshake that ends with unknown CA": server(rejection="tlsv1 alert unknown ca"),
        "a server certificate of another CA": server(certificates=STRANGE),
        "a pod's message names an unknown authority": waiting(
            message="Post: x509: certificate signed by unknown authority"
        ),
    },
    "server-certificate-wrong": {
        "a server certificate for another host": server(certificates=OTHER_HOST),
    },
    "server-certificate-wrong unknown-ca": {
        "an expired server certificate": server(certificates=OVER),
    },
    "sample-too-small": {
        "5,000 nodes, 600 rejected": with_rejected_nodes(600),
    },
    "http-timeout-missing": {
        "no timeout": entry(httpTimeout=None),
        "a timeout of 0s": entry(httpTimeout="0s"),
    },
    "scheduler-configuration-refused": {
        "an invalid timeout": entry(httpTimeout="soon"),
        "a misspelt field": entry(nodeCacheCapabel=True),
        "a duplicate key": with_configuration_text(
            f"parallelism: 1\n{yaml.safe_dump(CONFIGURATION)}parallelism: 1"
        ),
    },
    "plugin-name-misspelt": {
        "a misspelt plugin is disabled": with_profile_plugins(
            {"score": {"disabled": [{"name": "NodeResourceFit"}]}}
        ),
        "a misspelt plugin is configured": config(
            profiles=[
                {"schedulerName": "default-scheduler", "pluginConfig": [{"name": "PodTopologySpreads"}]}
            ]
        ),
    },
    "scheduler-configuration-refused not-looked-at": {
        "no configuration": with_unparsed_configuration(),
    },
    "http-timeout-short": {
        "a timeout too short for binds": entry(httpTimeout="1s"),
    },
    "http-timeout-long": {
        "a timeout of a minute": entry(httpTimeout="60s"),
    },
    "wrong-ignorable": {
        "an ignorable extender": entry(ignorable=True),
    },
    "filters-own-pods bind-verb-missing": {
        "an entry without managed resources": entry(managedResources=None),
    },
    "resource-not-ignored": {
        "a managed resource that kube-scheduler counts": entry(managedResources=COUNTED),
        "a waiting pod with a resource of a DeviceClass": waiting(
            message="0/2 nodes are available: 2 cannot fit resource.", resources=(*MARK, "example.com/nic")
        ),
    },
    "weight-zero": {
        "no weight": entry(weight=None),
        "weight 0": entry(weight=0),
        "no prioritize verb": entry(prioritizeVerb=None),
        "scores of policies that prefer": without_scores(strategies=("prefer",)),
        "scores of policies that only prefer": without_scores(strategies=("avoid",), only_prefers=True),
    },
    "metric-missing": {
        "a metric without values": SOUND._replace(metrics={"heat": MetricCoverage(0, (), "404")}),
        "a metric that was never fetched": policy(missing_metrics=("heat",))._replace(metrics={}),
        "several values of a node": SOUND._replace(metrics={"heat": MetricCoverage(0, (), DIFFER)}),
        "replicas count no node with a value, and the status says why": policy(
            unavailable_metrics=UNAVAILABLE
        )._replace(replica_metrics=with_replica_metrics(metric_nodes={"heat": 0}).replica_metrics),
        "a query without values": policy(metrics=(), unavailable_metrics="never fetched: heat by x > 0"),
        "replicas count no node with a value": with_replica_metrics(metric_nodes={"heat": 0}),
    },
    "namespace-not-trusted": {
        "a namespace without trust": policy(not_trusted="namespace web is not trusted"),
    },
    "namespace-over-budget": {
        "a namespace over its budget": policy(over_budget="33 metrics"),
    },
    "all-namespaces-trusted": {
        "all namespaces trusted": with_client_name("a", client_name="a", trust_all_namespaces="true"),
    },
    "metric-names-mismatch": {
        "values of names that are no nodes": SOUND._replace(
            metrics={"heat": MetricCoverage(0, ("10.0.0.1:9100",))}
        ),
        "replicas count values without a node": with_replica_metrics(
            metric_nodes={"heat": 0}, unmatched={"heat": 9}
        ),
    },
    "metrics-api-unavailable": {
        "no API": SOUND._replace(metrics_apis=(MetricsApiStatus("x", exists=False, available=False),)),
        "an API down": SOUND._replace(metrics_apis=(MetricsApiStatus("x", exists=True, available=False),)),
    },
    "usage-late": {
        "usage of a long window": SOUND._replace(usage_samples=UsageSamples(90, 60)),
        "old usage": SOUND._replace(usage_samples=UsageSamples(15, 200)),
    },
    "policy-without-effect bind-verb-missing": {
        "no filter": entry(filterVerb=None, bindVerb=None),
    },
    "policy-unknown": {
        "a policy of another kind with the name in a pod's label": SOUND._replace(
            policies=(POLICY._replace(kind="PlacementPolicy"),)
        ),
        "no such policy": SOUND._replace(pods=(POD._replace(policy="ghost"),)),
        "a policy of another namespace": SOUND._replace(pods=(POD._replace(namespace="shop"),)),
    },
    "policy-label-misspelt": {
        "a misspelt label": SOUND._replace(
            pods=(POD._replace(misspelled_label="telemetry-polcy", policy=""),)
        ),
    },
    "kubelet-policy-conflict": {
        "the CPU manager policy static": SOUND._replace(
            kubelets=(KubeletConfiguration("c", "static", "none"),)
        ),
        "the topology manager policy restricted": SOUND._replace(
            kubelets=(KUBELET._replace(topology_manager="restricted"),)
        ),
    },
    "two-load-aware-scorers": {
        "Trimaran and a policy": with_profile_plugins(TRIMARAN),
    },
    "two-load-aware-scorers policy-without-effect": {
        "Koordinator and safe": with_profile_plugins(KOORDINATOR, agents="safe"),
    },
    "descheduler-missing": {
        "no descheduler": SOUND._replace(deschedulers=()),
        "another plugin": SOUND._replace(deschedulers=(OTHER_PLUGIN,)),
    },
    "native-mode-evictions": {
        "evictions in native mode": NATIVE._replace(deschedulers=SOUND.deschedulers),
    },
    "rights-missing": {
        "a missing right": SOUND._replace(missing_rights=(NO_RIGHT,)),
    },
    "identity-shared": {
        "one identity for two replicas": extender(settings={"identity": "nodewise"}),
    },
    "controller-beside-extender": {
        "a controller beside an extender, without the admission policies of native mode": SOUND._replace(
            controllers=(CONTROLLER._replace(settings={}),), leases=(LEASE._replace(native_mode=False),)
        ),
    },
    "scheduler-not-running": {
        "a pod of a scheduler that does not run": waiting(scheduler_name="my-scheduler"),
        "the default scheduler does not run": waiting(),
        "a scheduler that crashes": pod(ready=0),
    },
    "controller-beside-extender not-looked-at": {
        "an extender beside a controller, with one agent by default": native(
            extenders=(EXTENDER._replace(settings={"client_name": CLIENT}),)
        ),
    },
    "native-mode-off policy-without-effect": {
        f"a controller with {name} {value}": with_controller(**{name: value})
        for name, value in (("native_mode", "false"), ("no_native_mode", "true"))
    },
    "policy-condition": {
        f"the condition {kind}": policy(true_conditions=((kind, "why"),))
        for kind in ("Suspended", "SteppedBack", "LabelConflict")
    },
}
"""Facts by name, by the findings that they have: errors and warnings."""


@pytest.mark.parametrize(
    ("facts", "expected"),
    [pytest.param(facts, ids, id=name) for ids, cases in CASES.items() for name, facts in cases.items()],
)
def test_each_defect_has_its_findings(facts: Facts, expected: str) -> None:
    report = examine(facts)
    grave = {finding.id for finding in report.findings if finding.severity != "note"}
    assert grave == set(expected.split()), report.findings
    assert report.has_no_errors_or_warnings == (not expected)
    assert all(
        finding.object and finding.found and finding.expected and finding.remedy
        for finding in report.findings
    )
    for finding in report.findings:
        assert not re.search(
            r"deploy/[\w*]+|docs/|[.]md\b", f"{finding.expected} {finding.remedy} {finding.command}"
        )
        assert shlex.split(finding.command) or not finding.command


def test_a_selected_pod_without_a_request_is_named_with_its_policy() -> None:
    (finding,) = examine(selected_pod(resources=(), age_s=30.0)).findings
    assert finding.object == "Pod/web/shop"
    assert finding.found.startswith("is selected by PlacementPolicy/web/cool, and does not request ")


def test_admission_policies_of_the_remedy_leave_out_the_namespace_of_nodewise() -> None:
    facts = selected_pod(resources=(), age_s=30.0)
    workload = EXTENDER.workload._replace(namespace="scheduling")
    facts = facts._replace(extenders=(EXTENDER._replace(workload=workload),))
    [command] = [item.command for item in examine(facts).findings if item.id == "policy-without-effect"]
    assert command.startswith("nodewise configure manifests extender-pods --namespace=scheduling | ")


def test_conditions_with_a_finding_are_types_that_policies_have() -> None:
    """The others are healthy if they are True, or have findings of their own."""
    reported = {
        kind
        for kind in policy_status.GOOD_STATUSES
        for finding in examine(policy(true_conditions=((kind, "why"),))).findings
        if finding.id == "policy-condition"
    }
    kinds = "Suspended SteppedBack LabelConflict LabelRefused Flapping IncompleteAnswers SamplesTooSparse"
    assert reported == {*kinds.split(), "DevicesUnmatched", "DeviceLimitReached", "DeviceTaintsRefused"}


def test_policies_that_reject_every_node_together_are_one_finding() -> None:
    message = "no node is left: together, placement policy web/cool, TASPolicy web/pol reject every node"
    alone = [
        COOL._replace(name=name, all_rejected=policy_status.REJECTS_EVERY_NODE)
        for name in ("alone", "alone-2")
    ]
    policies = (POLICY._replace(all_rejected=message), COOL._replace(all_rejected=message), *alone)
    report = examine(native(policies=policies))
    findings = [finding for finding in report.findings if finding.id == "all-nodes-rejected"]
    assert [finding.object for finding in findings] == [
        "PlacementPolicy/web/alone",
        "PlacementPolicy/web/alone-2",
        "TASPolicy/web/pol, PlacementPolicy/web/cool",
    ]
    assert "together, placement policy web/cool" in findings[2].found


@pytest.mark.parametrize(
    ("admission", "severity", "remedy"),
    [
        (pod_admission(), "error", "apply the admission policies"),
        (pod_admission(is_current=False), "warning", "of this version"),
        (pod_admission(is_served=False), "error", "Kubernetes 1.36"),
    ],
)
def test_the_remedy_for_pods_that_are_not_changed(
    admission: PodAdmission, severity: str, remedy: str
) -> None:
    finding = examine(native(pod_admission=admission)).findings[0]
    assert (finding.severity, remedy in finding.remedy) == (severity, True)


def test_leftovers_of_native_mode_are_to_be_removed() -> None:
    admission = with_leftovers(*NATIVE_POLICIES)
    finding = next(
        finding
        for finding in examine(SOUND._replace(pod_admission=admission, nodes_with_verdicts=7)).findings
        if finding.id == "labels-frozen"
    )
    assert finding.object == "MutatingAdmissionPolicy/nodewise-native"
    assert "7 nodes" in finding.found
    assert finding.command == "nodewise configure manifests native | kubectl delete --ignore-not-found -f -"
    labels_only = examine(SOUND._replace(nodes_with_verdicts=7)).findings
    commands = {finding.id: finding.command for finding in labels_only}
    assert commands["labels-frozen"].endswith("| xargs kubectl label nodes --all")


@pytest.mark.parametrize(
    ("what", "facts"),
    [
        ("labels-frozen", SOUND._replace(pod_admission=with_leftovers(*NATIVE_POLICIES))),
        ("labels-frozen", SOUND._replace(nodes_with_verdicts=7)),
        ("replicas-not-ready", native(extenders=(), controllers=(), leases=())),
    ],
)
def test_nothing_is_deleted_or_installed_twice_while_nodewise_may_run_in_another_namespace(
    what: str, facts: Facts
) -> None:
    elsewhere = facts._replace(programs_elsewhere=("Deployment/platform/nodewise-controller",))
    commands = {finding.id: finding.command for finding in examine(elsewhere).findings}
    assert commands[what] == "nodewise doctor --nodewise-namespace platform"


@pytest.mark.parametrize(
    ("changed", "is_checked"),
    [
        ({"settings": {"agents": "gpu"}}, True),
        ({"workload": EXTENDER.workload._replace(replicas=0)}, True),
        ({"unread_settings": UnavailableFact("ConfigMap/nodewise/nodewise", "forbidden")}, False),
    ],
)
def test_an_extender_without_the_agent_telemetry_may_run_beside_a_controller(
    changed: dict[str, Any], *, is_checked: bool
) -> None:
    report = examine(native(extenders=(EXTENDER._replace(**changed),)))
    assert "controller-beside-extender" not in {finding.id for finding in report.findings}
    assert ("controller-beside-extender" in report.checked) == is_checked


REFUSED = ProbedServer(attempts=("10.0.0.7:9001: connection refused",), is_refused=True)


def without_nodes(**changed: Any) -> Facts:
    """Facts of native mode with a policy that rejects every node."""
    return native(policies=(COOL._replace(all_rejected=policy_status.REJECTS_EVERY_NODE, **changed),))


def not_called(error: str) -> Facts:
    return waiting(message=f"failed calling extender: dial tcp 10.0.0.7:9001: {error}")


REMEDIES: dict[str, dict[str, tuple[Facts, str]]] = {
    "extender-not-reached": {
        "no process listens": (
            SOUND._replace(schedulers=(scheduler()._replace(servers={0: REFUSED}, services={}),)),
            "no process listens at this port",
        ),
        "kube-scheduler was refused": (
            not_called("connect: connection refused"),
            "no process listens at this port",
        ),
        "kube-scheduler got no response": (not_called("i/o timeout"), "firewalls"),
    },
    "all-nodes-rejected": {
        "by a threshold": (without_nodes(), "relax a rule"),
        "for lack of a value": (
            without_nodes(unavailable_metrics="no node has a value of heat"),
            "need not be relaxed",
        ),
        "by a policy over its budget": (without_nodes(over_budget="18 metrics"), "need not be relaxed"),
    },
    "metric-missing": {
        "unknown cause": (policy(missing_metrics=("heat",))._replace(metrics={}), "exporters run"),
    },
    "policy-without-effect": {
        "a canary by percent": (
            native(
                policies=(COOL._replace(not_enforced="native mode does not enforce a canary by percent"),)
            ),
            "canary.podSelector",
        ),
        "too many policies": (
            policy(not_enforced="at most 50 are enforced, and older policies come first"),
            "remove policies that are not needed",
        ),
        "a pod without a requirement": (native_pod(age_s=30.0), "native mode selects pods when"),
        "a pod that is older than its policy": (native_pod(age_s=90.0), "the policy is newer"),
        "a new pod without a request": (
            selected_pod(resources=(), age_s=30.0),
            "apply the admission policies",
        ),
        "an old pod without a request": (
            selected_pod(resources=(), age_s=90.0),
            "the policy is newer than the pod: create the pod again",
        ),
    },
}


@pytest.mark.parametrize(
    ("id_", "facts", "text"),
    [pytest.param(id_, *case, id=name) for id_, cases in REMEDIES.items() for name, case in cases.items()],
)
def test_a_remedy_fits_the_cause(id_: str, facts: Facts, text: str) -> None:
    findings = [finding for finding in examine(facts).findings if finding.id == id_]
    assert findings
    assert all(text in finding.remedy for finding in findings), findings


DIFFERING: dict[str, Facts] = {
    "read by doctor": SOUND._replace(metrics={"heat": MetricCoverage(0, (), DIFFER, AGGREGATE)}),
    "counted by replicas": policy(unavailable_metrics=UNAVAILABLE)._replace(
        replica_metrics=with_replica_metrics(metric_nodes={"heat": 0}).replica_metrics
    ),
    "in the status": policy(unavailable_metrics=UNAVAILABLE, metrics=())._replace(metrics={}),
}


@pytest.mark.parametrize("facts", DIFFERING.values(), ids=DIFFERING)
def test_several_values_of_a_node_are_reported_with_the_remedy_of_the_source(facts: Facts) -> None:
    [finding] = [finding for finding in examine(facts).findings if finding.id == "metric-missing"]
    assert DIFFER in finding.found
    assert finding.remedy == AGGREGATE


def test_a_policy_that_stepped_back_is_reported_by_its_condition_only() -> None:
    stepped_back = COOL._replace(
        not_enforced="native mode does not enforce a canary",
        true_conditions=(("SteppedBack", "0.7 is above 0.5"),),
    )
    ids = {finding.id for finding in examine(native(policies=(stepped_back,))).findings}
    assert "policy-condition" in ids
    assert "policy-without-effect" not in ids


def test_commands_name_the_namespace_and_the_account_of_an_installation() -> None:
    workload = EXTENDER.workload._replace(namespace="mine", account="sun")
    missing = MissingRights("ServiceAccount/mine/sun", (AccessRight("list", "", "nodes"),), ("gpu", "rbac"))
    report = examine(
        SOUND._replace(extenders=(EXTENDER._replace(workload=workload),), missing_rights=(missing,))
    )
    commands = {finding.command for finding in report.findings if finding.id == "rights-missing"}
    apply = "kubectl apply --server-side --force-conflicts -f -"
    assert commands == {f"nodewise configure manifests gpu rbac --namespace=mine --name=sun | {apply}"}


def test_commands_quote_names() -> None:
    command = kubectl("edit", "PlacementPolicy/web/$(reboot)")
    assert shlex.split(command) == ["kubectl", "edit", "placementpolicy/$(reboot)", "--namespace=web"]


def test_policies_are_counted_by_kind() -> None:
    assert "1 PlacementPolicy" in examine(selected_pod()).examined
    assert "1 TASPolicy" in examine(selected_pod()).examined
    assert "0 policies" in examine(SOUND._replace(policies=())).examined


def test_nodes_with_gpus_are_counted_by_form() -> None:
    """A node with both forms counts for each, and a DRA driver's node needs no labels of GPUs."""
    plugin, drivers = GpuNodeInfo("a", 8, "nvidia.com/gpu"), ("gpu.example.com",)
    both = plugin._replace(node="b", drivers=(*drivers, "nic.example.com"))
    only = [GpuNodeInfo(node, 0, "", label="nvidia.com/gpu.count", drivers=drivers) for node in "cd"]
    report = examine(SOUND._replace(gpu_nodes=(plugin, both, *only)))
    assert [text for text in report.examined if " with " in text] == [
        "2 nodes with GPUs of a device plugin",
        "3 nodes with devices of the DRA driver gpu.example.com",
        "1 node with devices of the DRA driver nic.example.com",
        "1 node with both",
    ]
    assert not report.findings


def test_many_drivers_are_counted_together() -> None:
    node = GpuNodeInfo("a", 0, "", drivers=tuple(f"d{at}.example.com" for at in range(5)))
    examined = examine(SOUND._replace(gpu_nodes=(node,))).examined
    assert len([text for text in examined if "the DRA driver" in text]) == 3
    assert "devices of 2 more DRA drivers" in examined


@pytest.mark.parametrize(("age_s", "expected"), [(2.4, "2s"), (90, "1m30s"), (-3, "1s")])
def test_the_age_of_the_last_evaluation_is_reported(age_s: float, expected: str) -> None:
    """By the newest of the Leases; a clock that is behind that of the leader gives no negative age."""
    text = f"the last evaluation of policies ({expected} ago)"
    newest, older = (LEASE._replace(evaluated=NOW - timedelta(seconds=s)) for s in (age_s, age_s + 600))
    assert text in examine(native(leases=(older, LEASE, newest))).examined


def test_without_a_known_evaluation_no_age_is_reported() -> None:
    assert not [text for text in examine(native()).examined if "evaluation" in text]


def test_every_finding_has_a_case() -> None:
    assert {id_ for ids in CASES for id_ in ids.split()} == set(CATALOGUE)


def test_an_unreadable_fact_is_reported_once_with_the_missing_right() -> None:
    facts = SOUND._replace(
        node_count=FORBIDDEN, node_resources=FORBIDDEN, gpu_nodes=FORBIDDEN, kubelets=FORBIDDEN
    )
    report = examine(facts)
    (finding,) = report.findings
    assert (finding.object, finding.expected) == ("nodes", "the right to list nodes")
    names = [id_ for id_, _ in report.not_checked]
    assert names == [
        "sample-too-small",
        "resource-not-ignored",
        "nodes-without-values",
        "gpu-node-without-labels",
        "kubelet-policy-conflict",
    ]
    assert not set(names) & set(report.checked)


@pytest.mark.parametrize("agents", ["telemetry,gpu", "gpu"])
def test_entries_that_filter_all_pods_lack_no_verb(agents: str) -> None:
    every = {**ENTRY, "bindVerb": None, "managedResources": []}
    bind = {
        **dict.fromkeys(("filterVerb", "prioritizeVerb", "preemptVerb"), ""),
        "urlPrefix": f"https://{HOST}:9001/agents/gpu",
        "managedResources": [{"name": "gpu.intel.com/i915"}],
    }
    marks = {"urlPrefix": f"https://{HOST}:9001/agents/telemetry", "managedResources": COUNTED[:1]}
    extenders = [every, {**ENTRY, **bind}, {**ENTRY, **bind, "bindVerb": "", **marks}]
    facts = config(extenders=extenders[: 3 if "telemetry" in agents else 2])
    facts = facts._replace(extenders=(EXTENDER._replace(settings={"agents": agents}),))
    ids = {finding.id for finding in examine(facts).findings}
    assert not ids & {"bind-verb-missing", "weight-zero", "wrong-ignorable"}


def test_skipped_findings_are_neither_reported_nor_listed_as_unchecked() -> None:
    facts = entry(httpTimeout=None)._replace(gpu_nodes=FORBIDDEN)
    report = examine(facts, {"http-timeout-missing", "gpu-node-without-labels"})
    assert report.has_no_errors_or_warnings
    assert not report.findings
    assert not {"http-timeout-missing", "gpu-node-without-labels"} & {
        *report.checked,
        *dict(report.not_checked),
    }


def test_the_gravest_come_first() -> None:
    facts = entry(httpTimeout=None, ignorable=True)._replace(programs_elsewhere=("Pod/web/scheduler",))
    assert [finding.severity for finding in examine(facts).findings] == ["error", "warning", "note"]


def test_the_ca_is_read_from_the_secret_that_the_replicas_mount() -> None:
    mount = VolumeMount("/tls", "secret", "own-tls")
    workload = EXTENDER.workload._replace(containers=(NODEWISE._replace(mounts=(mount,)),))
    settings = {**EXTENDER.settings, "cert": "/tls/tls.crt"}
    serving = certificates.parse_pem(AUTHORITY.cert)
    replica = EXTENDER._replace(workload=workload, settings=settings, serving=serving)
    [finding] = examine(tls(caFile=None)._replace(extenders=(replica,))).findings
    assert finding.command.startswith("kubectl -n=nodewise get secret own-tls ")


def test_nodewise_is_installed_in_the_first_namespace_that_is_examined() -> None:
    facts = SOUND._replace(extenders=(), schedulers=(), namespaces=("scheduling", "kube-system"))
    [command] = [item.command for item in examine(facts).findings if item.id == "replicas-not-ready"]
    assert command.startswith("nodewise configure --mode native --namespace=scheduling | kubectl apply ")


def test_programs_of_other_namespaces_are_a_note() -> None:
    report = examine(SOUND._replace(programs_elsewhere=("Pod/web/kube-scheduler",)))
    (finding,) = report.findings
    assert (finding.id, finding.severity, report.has_no_errors_or_warnings) == ("not-looked-at", "note", True)
    assert "--nodewise-namespace web" in finding.remedy


def test_only_the_first_of_many_equal_findings_are_listed() -> None:
    many = tuple(POD._replace(policy=f"ghost-{at}") for at in range(100))
    report = examine(SOUND._replace(pods=many))
    assert len(report.findings) == 11
    assert report.findings[-1].object == "90 more"


def test_a_scheduler_beside_an_extender_without_a_cluster_sends_whole_nodes() -> None:
    beside = STATIC._replace(where="Deployment/kube-system/my", is_static=False, host_network=False)
    fields = {**PLAIN, "urlPrefix": "http://127.0.0.1:9001/scheduler", "bindVerb": ""}
    clusterless = NodewiseWorkload(beside, {"agents": "safe", "no_cluster": "true"})
    for names, expected in ((True, {"names-not-used"}), (False, set())):
        local = scheduler({**CONFIGURATION, "extenders": [{**fields, "nodeCacheCapable": names}]}, beside)
        facts = SOUND._replace(
            schedulers=(local._replace(services={}),), extenders=(clusterless,), policies=(), pods=()
        )
        assert {finding.id for finding in examine(facts).findings} == expected


def test_two_entries_may_share_the_verbs_of_their_agents() -> None:
    """This occurs after a migration from two systems: one entry for policies, and one for GPUs."""
    telemetry = {
        **ENTRY,
        "bindVerb": "",
        "managedResources": ENTRY["managedResources"][:1],
        "httpTimeout": "1s",
    }
    cards = {**ENTRY, "prioritizeVerb": "", "managedResources": ENTRY["managedResources"][1:]}
    base = scheduler({**CONFIGURATION, "extenders": [telemetry, cards]})
    both = base._replace(
        certificates=dict.fromkeys((0, 1), base.certificates[0]),
        servers=dict.fromkeys((0, 1), base.servers[0]),
        services=dict.fromkeys((0, 1), base.services[0]),
    )
    report = examine(SOUND._replace(schedulers=(both,)))
    assert report.findings == []


def test_an_entry_for_its_own_pod_needs_no_scores_of_other_replicas() -> None:
    beside = STATIC._replace(where="Deployment/kube-system/my", is_static=False, host_network=False)
    fields = {
        **PLAIN,
        "urlPrefix": "http://127.0.0.1:9001/scheduler",
        "bindVerb": "",
        "nodeCacheCapable": False,
    }
    profiles = [{"schedulerName": "mine"}]
    mine = scheduler({**CONFIGURATION, "profiles": profiles, "extenders": [fields]}, beside)
    clusterless = NodewiseWorkload(beside, {"agents": "safe", "no_cluster": "true"})
    facts = SOUND._replace(
        schedulers=(scheduler(), mine._replace(services={})), extenders=(*SOUND.extenders, clusterless)
    )
    assert examine(facts).findings == []


def test_a_hidden_configuration_beside_one_that_asks_nodewise_is_a_note() -> None:
    hidden = UnavailableFact(
        "/etc/kubernetes/s.yaml of Pod/kube-system/kube-scheduler-b", "it lies on host b"
    )
    other = SchedulerInfo("Pod/b", hidden, STATIC._replace(where="Pod/b"))
    report = examine(SOUND._replace(schedulers=(scheduler(), other)))
    assert [(finding.id, finding.severity) for finding in report.findings] == [("not-looked-at", "note")]
    assert "no-ca-file" in dict(report.not_checked)


def test_native_mode_needs_no_configuration_of_kube_scheduler() -> None:
    (result,) = examine(NATIVE).findings
    assert (result.severity, result.object) == ("note", "kube-scheduler's configuration")
    assert result.remedy.startswith("none is needed, unless kube-scheduler still calls an extender")


def test_loopback_without_nodewise_beside_it_leads_nowhere() -> None:
    beside = STATIC._replace(where="Deployment/kube-system/my", is_static=False, host_network=False)
    fields = {**PLAIN, "urlPrefix": "http://127.0.0.1:9001/scheduler"}
    sending = scheduler({**CONFIGURATION, "extenders": [fields]}, beside)
    report = examine(SOUND._replace(schedulers=(sending._replace(services={}),)))
    assert "extender-not-reached" in {finding.id for finding in report.findings}


def test_the_certificate_in_the_replicas_secret_stands_for_a_handshake() -> None:
    away = server(certificates=(), address="", rejection=None, attempts=("nodewise: no such host",))
    for chain, expected in (
        (certificates.parse_pem(facts_factory.SERVER.cert), set()),
        (STRANGE, {"unknown-ca"}),
    ):
        facts = away._replace(extenders=(EXTENDER._replace(serving=chain),))
        assert {finding.id for finding in examine(facts).findings} == expected


def test_a_client_ca_in_the_replicas_secret_stands_for_a_call() -> None:
    facts = server(rejection=None)._replace(
        extenders=(EXTENDER._replace(client_ca=certificates.parse_pem(STRANGER.cert)),)
    )
    (finding,) = examine(facts).findings
    assert (finding.id, "--client-ca" in finding.remedy) == ("unknown-ca", True)


def test_a_configuration_that_cannot_be_read_is_not_sound() -> None:
    hidden = UnavailableFact(
        "/etc/kubernetes/s.yaml of Pod/kube-system/kube-scheduler-a", "it lies on host a"
    )
    report = examine(SOUND._replace(schedulers=(SchedulerInfo("Pod/a", hidden, STATIC),)))
    assert not report.has_no_errors_or_warnings
    assert "extender-not-registered" in dict(report.not_checked)


def test_checks_of_a_workload_that_is_not_found_are_not_counted() -> None:
    report = examine(OUTSIDE)
    not_checked = {id_ for id_, _ in report.not_checked}
    assert not_checked >= {"any-client", "rights-missing", "admission-policy-missing", "identity-shared"}
    assert not_checked.isdisjoint(report.checked)
    assert report.has_no_errors_or_warnings


def test_a_check_of_optional_facts_is_not_counted_if_none_is_available() -> None:
    unread = UnavailableFact("pods", "there are too many", is_minor=True)
    report = examine(SOUND._replace(all_pods=unread))
    assert dict(report.not_checked).keys() == {"policy-label-misspelt", "policy-without-effect"}
    report = examine(SOUND._replace(replica_metrics=unread))
    assert {id_ for id_, _ in report.not_checked} == {"ca-key-as-client-key", "client-certificate-wrong"}
