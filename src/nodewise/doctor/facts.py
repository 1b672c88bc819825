"""The facts that checks are made of, as values. No fact contains a private key.

Each field of `Facts` is read by one collector (`collectors.COLLECTORS`). A fact that could not be read is an
`UnavailableFact`; a tuple may contain an `UnavailableFact` for each part that could not be read.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from nodewise.doctor.parsing.certificates import Chain
from nodewise.doctor.parsing.objects import Workload
from nodewise.doctor.parsing.scheduler_configuration import ExtenderEntry, Profile, SchedulerConfiguration
from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER
from nodewise.install.scheduler_versions import SchedulerVersion


class PodInfo(NamedTuple):
    """A pod that a policy selects, that names a policy or nearly names one, or that waits for a node."""

    name: str
    namespace: str
    policy: str = ""
    """The TASPolicy that it names, unless another policy replaces that one."""
    scheduler_name: str = DEFAULT_SCHEDULER
    node: str = ""
    age_s: float = 0.0
    resources: tuple[str, ...] = ()
    """The extended resources that it requests."""
    message: str = ""
    """Why kube-scheduler did not place it."""
    avoids_violating: bool = False
    """Whether its required node affinity excludes the nodes that its policy labels."""
    is_gated: bool = False
    waits_for_labels: bool = False
    """Whether it has the scheduling gate that native mode removes when all nodes have the labels of its policies."""
    misspelled_label: str = ""
    """A label key that is nearly the one that names a policy."""
    selected_by: tuple[str, ...] = ()
    """The policies whose selectors select it, as in `PolicyEvaluation.where`."""
    observed_by: tuple[str, ...] = ()
    """Those of `selected_by` that have no effect on it, by their mode or because they have stepped back."""
    verdict_keys: frozenset[str] = frozenset()
    """The keys of labels of native mode that it requires."""

    @property
    def where(self) -> str:
        return f"Pod/{self.namespace}/{self.name}"

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that apply to it, as in `PolicyEvaluation.where`: by its label, and by their selectors."""
        named = (f"TASPolicy/{self.namespace}/{self.policy}",) if self.policy else ()
        return (*named, *self.selected_by)


Pods = tuple[PodInfo, ...]


class PolicyEvaluation(NamedTuple):
    """A policy as the telemetry agent reads and evaluates it."""

    namespace: str
    """Empty for a ClusterPlacementPolicy."""
    name: str
    strategies: tuple[str, ...] = ()
    """The parts of its spec that have rules: `dontschedule`, or `avoid`."""
    metrics: tuple[str, ...] = ()
    """The metrics of its rules, without those of a query."""
    problems: tuple[str, ...] = ()
    missing_metrics: tuple[str, ...] = ()
    """Metrics that were never fetched, from the status that replicas wrote."""
    unavailable_metrics: str = ""
    """The message of its condition MetricsAvailable, or MetricsFetched of a TASPolicy, if that is False."""
    rejected_nodes: int | None = None
    """How many nodes it rejects now; None if that is unknown."""
    source: str = ""
    """Where `rejected_nodes` comes from."""
    not_trusted: str = ""
    """The message of its condition NotTrusted, if that is True."""
    over_budget: str = ""
    """The message of its condition BudgetExceeded, if that is True."""
    kind: str = "TASPolicy"
    not_enforced: str = ""
    """Why the whole policy has no effect; empty if it has."""
    age_s: float = 0.0
    all_rejected: str = ""
    """The message of its condition AllNodesRejected, if that is True."""
    node_label: str = ""
    """The key of its label in native mode."""
    only_prefers: bool = False
    """Whether its pods may be on nodes that it avoids."""
    true_conditions: tuple[tuple[str, str], ...] = ()
    """Type and message of its conditions that are True."""
    has_status: bool = True
    """Whether replicas have written its status."""
    rejected_without_value: tuple[tuple[str, int], ...] = ()
    """Rules that reject nodes without a value, and how many, by the status."""

    @property
    def where(self) -> str:
        return "/".join(filter(None, (self.kind, self.namespace, self.name)))

    @property
    def avoids_nodes(self) -> bool:
        """Whether it rejects nodes, or prefers others to them."""
        return bool({"dontschedule", "avoid"} & {*self.strategies})

    @property
    def scores_nodes(self) -> bool:
        """Whether nodewise scores nodes by it, so that kube-scheduler must request scores."""
        return self.only_prefers or bool({"scheduleonmetric", "prefer"} & {*self.strategies})

    @property
    def rejecting_part(self) -> str:
        """The part of its spec that rejects nodes; empty if it has none."""
        if self.only_prefers:
            return ""
        return next((part for part in ("dontschedule", "avoid") if part in self.strategies), "")


Policies = tuple[PolicyEvaluation, ...]


class UnmatchedSelector(NamedTuple):
    """A policy whose selectors match no pod and no workload that makes pods."""

    policy: str
    """As in `PolicyEvaluation.where`."""
    labels: str
    """The labels that its selector requires, `app=wbe`."""
    similar: str = ""
    """Labels of pods that are similar, `app=web`; empty if there are none."""


class SelectedSourcePod(NamedTuple):
    """A pod of a source of metrics, and a policy that rejects every node for it while there are no metrics."""

    policy: str
    """As in `PolicyEvaluation.where`."""
    pod: str
    service: str
    """The Service that nodewise reads metrics of, or that a metrics API leads to."""


class MetricCoverage(NamedTuple):
    """Which nodes have a value of a metric."""

    nodes: int
    other_names: tuple[str, ...] = ()
    """Some of the names that are no nodes."""
    error: str = ""
    """Why no node has a value."""
    remedy: str = ""
    """What to do about it, for the source that has no value; empty if that is unknown."""
    missing: tuple[str, ...] = ()
    """The nodes that have no value, without those of `Facts.nodes_not_measured`."""


class MetricsApiStatus(NamedTuple):
    """An API group of metrics, as its APIService describes it."""

    name: str
    exists: bool
    available: bool
    message: str = ""


class UsageSamples(NamedTuple):
    """The usage of nodes by metrics-server: medians of all nodes."""

    window_s: float
    age_s: float


class PodAdmissionPolicy(NamedTuple):
    """An enforced admission policy of the parts `extender-pods` and `native` of an installation."""

    shipped: str
    """Its kind and name in that file: `MutatingAdmissionPolicy/nodewise-native`."""
    where: str
    """Its kind and name in the cluster."""
    is_current: bool
    """Whether its expressions are those that this version of nodewise ships."""

    @property
    def is_native(self) -> bool:
        return "/nodewise-native" in self.shipped


class PodAdmission(NamedTuple):
    """The admission policies that change the pods of policies when they are created."""

    is_served: bool = False
    """Whether the API server has MutatingAdmissionPolicy, which is stable since Kubernetes 1.36."""
    policies: tuple[PodAdmissionPolicy, ...] = ()


class UnavailableFact(NamedTuple):
    """A fact, or a part of one, that could not be read."""

    what: str
    """`ConfigMap/kube-system/my-scheduler`, `nodes`."""
    reason: str
    right: str = ""
    """The missing right, such as `list nodes`; empty if that is not the reason."""
    remedy: str = ""
    is_minor: bool = False
    """Whether nothing needs to be done: the fact was not read to spare the cluster, or another finding explains it."""


def readable(chain: Chain | UnavailableFact | None) -> Chain:
    """The certificates; empty if there are none, or none that could be read."""
    return () if chain is None or isinstance(chain, UnavailableFact) else chain


class EntryCertificates(NamedTuple):
    """What an entry's certificate files contain; None where the entry names no file."""

    ca: Chain | UnavailableFact | None = None
    client: Chain | UnavailableFact | None = None
    key: bytes | UnavailableFact | None = None
    """The public key, DER; empty if the file contains no readable key."""


class ProbedServer(NamedTuple):
    """The result of connecting to an entry's address."""

    address: str = ""
    """The address that responded, as `host:port`; empty if none did."""
    attempts: tuple[str, ...] = ()
    """The result of each failed attempt."""
    certificates: Chain = ()
    """The server's certificates, its own first."""
    source: str = ""
    """Where the certificates come from: a handshake, or a Secret."""
    is_refused: bool = False
    """Whether every attempt ended with `connection refused`."""
    rejection: str | None = None
    """Why it ended the connection with the client certificate of the entry; empty if it answered, None if there was no
    request."""
    refusal: str = ""
    """What it answered with status 403 to a request with the client certificate; empty if it did not."""


class Service(NamedTuple):
    """A Service that an entry's address names."""

    where: str
    ports: tuple[int, ...] | None
    """None if the Service does not exist."""
    ready_endpoints: int | UnavailableFact = 0


class SchedulerInfo(NamedTuple):
    """A kube-scheduler, or a configuration file for one."""

    where: str
    configuration: SchedulerConfiguration | UnavailableFact
    workload: Workload | None = None
    certificates: Mapping[int, EntryCertificates] = {}
    """By the number of the entry, like the following."""
    servers: Mapping[int, ProbedServer] = {}
    services: Mapping[int, Service | UnavailableFact] = {}
    refusal: str = ""
    """Why neither doctor nor kube-scheduler can decode the text of its configuration."""

    @property
    def is_readable(self) -> bool:
        return not isinstance(self.configuration, UnavailableFact)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Of the configuration; empty if it is unavailable."""
        return () if isinstance(self.configuration, UnavailableFact) else self.configuration.profiles


Schedulers = tuple[SchedulerInfo, ...]


class Registration(NamedTuple):
    """An entry of nodewise in a scheduler's configuration."""

    scheduler: SchedulerInfo
    configuration: SchedulerConfiguration
    entry: ExtenderEntry

    @property
    def where(self) -> str:
        return f"{self.scheduler.where}, {self.entry.url}"

    @property
    def certificates(self) -> EntryCertificates:
        return self.scheduler.certificates.get(self.entry.number, EntryCertificates())

    @property
    def server(self) -> ProbedServer:
        return self.scheduler.servers.get(self.entry.number, ProbedServer())

    @property
    def service(self) -> Service | UnavailableFact | None:
        return self.scheduler.services.get(self.entry.number)


Registrations = tuple[Registration, ...]


class ReplicaMetrics(NamedTuple):
    """Values of a replica's own /metrics."""

    pod: str
    calls: int
    """Requests of kube-scheduler of any kind."""
    uptime_s: float
    ca_clients: int = 0
    refused: Mapping[str, int] = {}
    """Refused connections by reason."""
    metric_nodes: Mapping[str, int] = {}
    """Nodes with a value, by metric."""
    unmatched: Mapping[str, int] = {}
    """Series whose name is no node, by metric."""


class NodewiseWorkload(NamedTuple):
    """A workload that runs `nodewise extender` or `nodewise controller`."""

    workload: Workload
    settings: Mapping[str, str]
    """By the names of a settings file, as far as flags, environment and file are known."""
    unread_settings: UnavailableFact | None = None
    """The settings file, if it could not be read."""
    client_ca: Chain | UnavailableFact = ()
    """The CA whose client certificates it accepts, as far as that is known."""
    serving: Chain | UnavailableFact = ()
    """Its serving certificate, likewise."""
    is_controller: bool = False

    @property
    def agents(self) -> tuple[str, ...]:
        if self.is_controller:  # it may read a settings file of the extender, with other agents
            return ("telemetry",)
        return tuple(self.values("agents") or ["telemetry"])

    def is_set(self, setting: str) -> bool:
        return self.settings.get(setting, "").lower() in ("true", "1", "yes", "on")

    @property
    def may_use_native_mode(self) -> bool:
        """Whether native mode is on. A controller follows the admission policies if no setting says otherwise."""
        if self.is_set("no_native_mode"):
            return False
        return self.is_set("native_mode") or (self.is_controller and not self.settings.get("native_mode"))

    def values(self, setting: str) -> list[str]:
        """The values of a setting that is a list."""
        return [value.strip() for value in self.settings.get(setting, "").split(",") if value.strip()]


Extenders = tuple[NodewiseWorkload, ...]
Controllers = tuple[NodewiseWorkload, ...]


def native_mode_workloads(*listed: tuple[NodewiseWorkload, ...]) -> list[NodewiseWorkload]:
    """The workloads that label nodes with the verdicts of policies."""
    return [workload for workloads in listed for workload in workloads if workload.may_use_native_mode]


class AccessRight(NamedTuple):
    """A right of the API server's authorization."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {kind}{name}" + (f" in namespace {self.namespace}" if self.namespace else "")


class MissingRights(NamedTuple):
    """The rights that the account of a workload of nodewise needs and does not have."""

    account: str
    """`ServiceAccount/nodewise/nodewise`."""
    rights: tuple[AccessRight, ...] = ()
    parts: tuple[str, ...] = ()
    """The parts of an installation that grant them (`nodewise configure manifests`)."""


class Descheduler(NamedTuple):
    """A descheduler with the enabled plugins of its policy."""

    where: str
    plugins: tuple[str, ...] | UnavailableFact
    affinity_types: tuple[str, ...] = ()
    """The node affinity types that RemovePodsViolatingNodeAffinity checks."""


class GpuNodeInfo(NamedTuple):
    """A node with GPUs, as the gpu agent reads it, or with devices of DRA drivers."""

    node: str
    gpus: int
    resource: str
    """The allocatable resource that shows that the node has GPUs; empty if only a label or a DRA driver does."""
    problems: tuple[str, ...] = ()
    label: str = ""
    """The label that shows it without a resource."""
    drivers: tuple[str, ...] = ()
    """The DRA drivers with devices on the node, sorted."""


class KubeletConfiguration(NamedTuple):
    """The resource manager policies of a kubelet."""

    node: str
    cpu_manager: str
    topology_manager: str
    memory_manager: str = ""


class AdmissionPolicy(NamedTuple):
    """A ValidatingAdmissionPolicy that is enforced."""

    name: str
    resources: frozenset[str] = frozenset()
    """The resources that it matches, without their API groups."""
    conditions: tuple[str, ...] = ()
    """The CEL expressions of its match conditions."""


_MAX_EVALUATION_AGE_S: Final = 300.0  # like the alert NodewiseNoEvaluation


class NodeRestriction(NamedTuple):
    """Whether the API server refuses to let kubelets write the labels of native mode."""

    is_enforced: bool
    evidence: str
    """What shows it."""


class LeaderLease(NamedTuple):
    """The Lease of a leader election of nodewise."""

    where: str
    holder: str
    renewed: datetime | None
    duration_s: float
    evaluated: datetime | None = None
    """When the leader evaluated all policies and wrote the results the last time; None if that is not known."""
    native_mode: bool | None = None
    """Whether the leader labels nodes and removes scheduling gates; None if it is older and does not say so. An older
    leader does not follow the admission policies: native mode is off without --native-mode."""
    shards: tuple["LeaderLease | None", ...] = ()
    """With shards, the Lease of each; None for one that does not exist."""

    def is_held(self, now: datetime) -> bool:
        """Whether a replica leads. The clocks of two hosts may differ by the duration of the Lease."""
        if not self.holder or self.renewed is None:
            return False
        return (now - self.renewed).total_seconds() < 2 * self.duration_s

    def is_evaluating(self, now: datetime) -> bool:
        return self.evaluated is None or (now - self.evaluated).total_seconds() < _MAX_EVALUATION_AGE_S


class Facts(NamedTuple):
    """All facts. A fact that no check needs keeps its default."""

    now: datetime
    schedulers: Schedulers | UnavailableFact = ()
    extenders: Extenders | UnavailableFact = ()
    controllers: Controllers | UnavailableFact = ()
    """The workloads that run `nodewise controller`."""
    replica_metrics: tuple[ReplicaMetrics, ...] | UnavailableFact = ()
    missing_rights: tuple[MissingRights | UnavailableFact, ...] | UnavailableFact = ()
    pods: Pods | UnavailableFact = ()
    all_pods: bool | UnavailableFact = True
    """Available if all pods were read, and not only those that wait or name a policy."""
    unmatched_selectors: tuple[UnmatchedSelector, ...] | UnavailableFact = ()
    selected_source_pods: tuple[SelectedSourcePod | UnavailableFact, ...] | UnavailableFact = ()
    kinds_not_served: tuple[str | UnavailableFact, ...] | UnavailableFact = ()
    """The definitions that are missing of kinds that nodewise reads."""
    policies: tuple[PolicyEvaluation | UnavailableFact, ...] | UnavailableFact = ()
    node_count: int | UnavailableFact = 0
    node_resources: frozenset[str] | UnavailableFact = frozenset()
    """Resources that some node has allocatable."""
    nodes_with_verdicts: int | UnavailableFact = 0
    """How many nodes have labels of native mode."""
    nodes_not_measured: frozenset[str] | UnavailableFact = frozenset()
    """Nodes that are not ready, or take only pods of the control plane: they may have no exporter."""
    metrics: Mapping[str, MetricCoverage | UnavailableFact] | UnavailableFact = {}  # noqa: RUF012 - never changed
    """By metric."""
    metrics_apis: tuple[MetricsApiStatus, ...] | UnavailableFact = ()
    usage_samples: UsageSamples | UnavailableFact | None = None
    """None if no agent reads them."""
    deschedulers: tuple[Descheduler, ...] | UnavailableFact = ()
    gpu_nodes: tuple[GpuNodeInfo | UnavailableFact, ...] | UnavailableFact = ()
    kubelets: tuple[KubeletConfiguration | UnavailableFact, ...] | UnavailableFact = ()
    cluster_ca: Chain | UnavailableFact = ()
    """The CA of the cluster's clients."""
    admission_policies: tuple[AdmissionPolicy, ...] | UnavailableFact = ()
    pod_admission: PodAdmission | UnavailableFact = PodAdmission()
    node_restriction: NodeRestriction | UnavailableFact = NodeRestriction(True, "")
    cluster_version: SchedulerVersion | UnavailableFact | None = None
    """The version of the API server."""
    leases: tuple[LeaderLease, ...] | UnavailableFact = ()
    """Of nodewise's leader elections."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose workloads are examined."""
    programs_elsewhere: tuple[str, ...] | UnavailableFact = ()
    """Workloads of other namespaces that run a scheduler, a descheduler or nodewise, or have such a name."""

    @property
    def uses_native_mode(self) -> bool | UnavailableFact:  # complexity: the evidence in its order
        """Whether node labels have the verdicts of policies, or shall have them: also by a controller outside of the
        cluster.
        """
        leases = () if isinstance(self.leases, UnavailableFact) else self.leases
        if any(lease.native_mode for lease in leases):
            return True
        # beside an extender, a controller without the admission policies of native mode has it off
        is_off = bool(self.extenders) and any(lease.native_mode is False for lease in leases)
        is_off = is_off and not self._shows_native_mode
        for workloads in (self.extenders, self.controllers):
            if isinstance(workloads, UnavailableFact):
                return workloads
            if any(not is_off or item.is_set("native_mode") for item in native_mode_workloads(workloads)):
                return True
        return bool(leases) and not (self.extenders or self.controllers) and self._shows_native_mode

    @property
    def _shows_native_mode(self) -> bool:
        """Whether labels or admission policies show native mode: an older controller outside of the cluster does not
        say so.
        """
        if isinstance(self.nodes_with_verdicts, int) and self.nodes_with_verdicts:
            return True
        admission = () if isinstance(self.pod_admission, UnavailableFact) else self.pod_admission.policies
        return any(policy.is_native for policy in admission)

    @property
    def registrations(self) -> tuple[Registration | UnavailableFact, ...]:
        """nodewise's entries in all configurations, and what may hide further ones."""
        if isinstance(self.schedulers, UnavailableFact):
            return (self.schedulers,)
        registrations: list[Registration] = []
        hidden: list[UnavailableFact] = [] if self.schedulers else [_NO_SCHEDULER]
        for scheduler in self.schedulers:
            configuration = scheduler.configuration
            if isinstance(configuration, UnavailableFact):
                hidden.append(configuration)
            else:
                entries = configuration.nodewise_entries
                registrations += [Registration(scheduler, configuration, entry) for entry in entries]
        # the hidden configurations need not have an entry, too; in native mode none needs one
        is_native = not self.extenders and (bool(self.controllers) or self.uses_native_mode is True)
        changes: dict[str, Any] = {"is_minor": True} if registrations or is_native else {}
        changes |= {"remedy": _NATIVE_MODE_REMEDY} if is_native else {}
        return (*registrations, *(unavailable._replace(**changes) for unavailable in hidden))


_NATIVE_MODE_FIELDS: Final = frozenset(
    {"extenders", "controllers", "leases", "nodes_with_verdicts", "pod_admission"}
)
DERIVED: Final[Mapping[str, frozenset[str]]] = {
    "uses_native_mode": _NATIVE_MODE_FIELDS,
    "registrations": _NATIVE_MODE_FIELDS | {"schedulers"},
}
"""Facts that are computed from others."""

_NATIVE_MODE_REMEDY: Final = (
    "none is needed, unless kube-scheduler still calls an extender of nodewise: native mode does not use the"
    " configuration"
)
_NO_SCHEDULER: Final = UnavailableFact(
    "kube-scheduler's configuration",
    "the cluster shows no kube-scheduler; managed control planes do not",
    remedy="on a managed control plane, native mode needs no configuration of it: nodewise configure --mode native,"
    " from Kubernetes 1.36; otherwise nodewise configure --mode second-scheduler, and --nodewise-namespace with its"
    " namespace. If nodewise is registered: --scheduler-config FILE with a copy of the configuration, or"
    " --scheduler-url",
)
