"""A sound set-up as facts, and ways to spoil it."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from nodewise.configure.doctor import configurations, papers
from nodewise.configure.doctor.facts import (
    AdmissionPolicy,
    Container,
    Descheduler,
    Extender,
    Facts,
    Kubelet,
    Measured,
    MetricsApi,
    Papers,
    Pod,
    Policy,
    Scheduler,
    Server,
    Service,
    Waiting,
)
from nodewise.serve.issuing import Issuer, Leaf

NOW = datetime(2026, 5, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
HOST = "nodewise.nodewise.svc"
FILE = "scheduler.yaml"
CLIENT = "nodewise-scheduler-client"
AUTHORITY, STRANGER = Issuer("nodewise-ca", NOW, YEAR), Issuer("stranger", NOW, YEAR)
CLUSTER_CA = Issuer("kubernetes", NOW, YEAR)
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
RUNS = Container("nodewise", "nodewise:1", ("nodewise", "extender"))
SCHEDULES = Container("kube-scheduler", "kube-scheduler:v1.36.3", ("kube-scheduler", "--config=/etc/s.yaml"))
STATIC = Pod(
    "Pod/kube-system/kube-scheduler-a",
    "kube-system",
    (SCHEDULES,),
    host_network=True,
    dns="ClusterFirstWithHostNet",
    is_static=True,
    node="a",
    ready=1,
)
EXTENDER = Extender(
    Pod("Deployment/nodewise/nodewise", "nodewise", (RUNS,), account="nodewise", wanted=2, ready=2),
    {"agents": "telemetry,gpu", "client_name": CLIENT},
)
POLICY = Policy(
    "web", "pol", ("dontschedule", "scheduleonmetric", "deschedule"), ("heat",), ("heat",), rejects=1
)
ACCOUNT = ("request.userInfo.username == 'system:serviceaccount:nodewise:nodewise'",)
ADMISSION = (
    AdmissionPolicy("nodewise-nodes", frozenset({"nodes", "nodes/*"}), ACCOUNT),
    AdmissionPolicy("nodewise-pods", frozenset({"pods", "pods/*"}), ACCOUNT),
    AdmissionPolicy("nodewise-trust", frozenset({"namespaces"}), ("?'nodewise.io/trusted'",)),
)
POD = Waiting("shop", "web", "pol", node="a", asks=("telemetry/scheduling",))
WAITS = Waiting("waits", "web", scheduler="default-scheduler", age_s=300.0, asks=("telemetry/scheduling",))


def signed(leaf: Leaf, authority: Issuer = AUTHORITY) -> Papers:
    """What kube-scheduler has of such a client."""
    return Papers(papers.chain(authority.cert), papers.chain(leaf.cert), papers.public(leaf.key))


def scheduler(config: Any = CONFIGURATION, pod: Pod | None = STATIC) -> Scheduler:
    return Scheduler(
        FILE,
        configurations.read(config),
        pod,
        {0: signed(OWN)},
        {0: Server(f"{HOST}:9001", shown=papers.chain(SERVER.cert), source="a handshake", answer="answered")},
        {0: Service("Service/nodewise/nodewise", (9001,), 2)},
    )


SOUND = Facts(
    NOW,
    schedulers=(scheduler(),),
    extenders=(EXTENDER,),
    pods=(POD,),
    policies=(POLICY,),
    nodes=20,
    measured={"heat": Measured(20)},
    apis=(MetricsApi("v1beta1.custom.metrics.k8s.io", exists=True, available=True),),
    deschedulers=(Descheduler("Deployment/kube-system/descheduler", ("RemovePodsViolatingNodeAffinity",)),),
    kubelets=(Kubelet("c", "none", "none"),),
    authority=papers.chain(CLUSTER_CA.cert),
    admission=ADMISSION,
    homes=("nodewise", "kube-system"),
)


def entry(**changed: Any) -> Facts:
    """With other fields in the entry; None: without."""
    config = copy.deepcopy(CONFIGURATION)
    fields = {key: value for key, value in {**ENTRY, **changed}.items() if value is not None}
    config["extenders"] = [fields]
    return SOUND._replace(schedulers=(scheduler(config),))


def tls(**changed: Any) -> Facts:
    """With other fields in its tlsConfig."""
    fields = {key: value for key, value in {**ENTRY["tlsConfig"], **changed}.items() if value is not None}
    return entry(tlsConfig=fields)


def config(**changed: Any) -> Facts:
    """With other fields in the configuration."""
    return SOUND._replace(schedulers=(scheduler({**CONFIGURATION, **changed}),))


def own(changed: Papers) -> Facts:
    """With other certificates of kube-scheduler's."""
    return _with(lambda one: one._replace(papers={0: changed}))


def server(**changed: Any) -> Facts:
    """With another server at the address."""
    return _with(lambda one: one._replace(servers={0: one.servers[0]._replace(**changed)}))


def service(**changed: Any) -> Facts:
    return _with(lambda one: one._replace(services={0: Service("Service/nodewise/nodewise", **changed)}))


def pod(**changed: Any) -> Facts:
    """With another pod of kube-scheduler's."""
    return _with(lambda one: one._replace(pod=STATIC._replace(**changed)))


def _with(change: Callable[[Scheduler], Scheduler]) -> Facts:
    return SOUND._replace(schedulers=(change(scheduler()),))


def extender(*, told: dict[str, str] | None = None, **changed: Any) -> Facts:
    """With other settings of the replicas, or other facts of their pods."""
    one = EXTENDER._replace(pod=EXTENDER.pod._replace(**changed))
    return SOUND._replace(extenders=(one._replace(settings={**EXTENDER.settings, **(told or {})}),))


def policy(**changed: Any) -> Facts:
    return SOUND._replace(policies=(POLICY._replace(**changed),))


def waits(**changed: Any) -> Facts:
    """With one more pod, which waits."""
    return SOUND._replace(pods=(POD, WAITS._replace(**changed)))
