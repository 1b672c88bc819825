"""What was read of a cluster, and what could not be read and why. Values only; no key of anybody is among them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple


class Unread(NamedTuple):
    """What could not be read."""

    what: str
    """`ConfigMap/kube-system/my-scheduler`, `nodes`."""
    why: str
    right: str = ""
    """The right that is missing, such as `list nodes`; empty where that is not the reason."""
    remedy: str = ""
    is_minor: bool = False
    """Whether nobody has to do anything about it: it was left out to spare the cluster, or follows from a finding."""


class Managed(NamedTuple):
    """A resource by which kube-scheduler knows which pods to send."""

    name: str
    is_ignored: bool = False


class Entry(NamedTuple):
    """An extender as kube-scheduler's configuration has it."""

    number: int
    url: str
    filter: str = ""
    prioritize: str = ""
    preempt: str = ""
    bind: str = ""
    weight: int | None = None
    names_only: bool = False
    timeout: str = ""
    """As it is written; empty: not given."""
    ignorable: bool = False
    https: bool = False
    insecure: bool = False
    server_name: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_data: bytes = b""
    cert_data: bytes = b""
    key_data: bytes = b""
    """The public half of the key in the configuration, DER."""
    resources: tuple[Managed, ...] = ()
    agent: str = ""
    """Whose path it is; empty: that of all agents."""
    is_ours: bool = False
    """Whether its paths are nodewise's."""

    @property
    def field(self) -> str:
        return f"extenders[{self.number}]"


class Profile(NamedTuple):
    scheduler: str
    percentage: int | None = None
    """percentageOfNodesToScore; None: that of the configuration."""
    plugins: tuple[str, ...] = ()
    """Those that it switches on, by name."""


class Configuration(NamedTuple):
    """A KubeSchedulerConfiguration, as far as somebody looks at it."""

    profiles: tuple[Profile, ...] = (Profile("default-scheduler"),)
    percentage: int = 0
    entries: tuple[Entry, ...] = ()
    problems: tuple[str, ...] = ()
    """What in it is no such thing as should be there."""


class Mount(NamedTuple):
    """Where a container sees a volume, and what the volume is: kind `configMap`, `secret`, `hostPath`, or empty."""

    path: str
    kind: str
    name: str
    """Of the object, or the host's path."""
    sub_path: str = ""
    items: tuple[tuple[str, str], ...] = ()
    """Keys of the object and their files; empty: every key by its own name."""


class Container(NamedTuple):
    name: str
    image: str = ""
    words: tuple[str, ...] = ()
    """Command and arguments."""
    environment: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()


class Pod(NamedTuple):
    """A pod or a pod template."""

    where: str
    """`Pod/kube-system/kube-scheduler-a`, `Deployment/nodewise/nodewise`."""
    namespace: str = ""
    containers: tuple[Container, ...] = ()
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    account: str = "default"
    scheduler: str = "default-scheduler"
    host_network: bool = False
    dns: str = "ClusterFirst"
    is_static: bool = False
    """Whether it is the mirror of a pod whose manifest lies on a host."""
    node: str = ""
    wanted: int = 1
    """Replicas."""
    ready: int | None = None
    """None where nobody says."""
    troubles: tuple[str, ...] = ()
    """Why pods of it are not ready."""


class Certificate(NamedTuple):
    """What matters of a certificate."""

    names: tuple[str, ...]
    begins: datetime
    ends: datetime
    is_ca: bool
    key: bytes
    """Public key, DER."""
    for_client: bool
    for_server: bool
    der: bytes = b""


Chain = tuple[Certificate, ...]


class Papers(NamedTuple):
    """What an entry's files hold; None where it names none."""

    ca: Chain | Unread | None = None
    client: Chain | Unread | None = None
    key: bytes | Unread | None = None
    """Public half, DER; empty: no key that can be read."""


class Server(NamedTuple):
    """Who answers at an entry's address."""

    reached: str = ""
    """Where, as `host:port`; empty: nobody was reached from here."""
    tried: tuple[str, ...] = ()
    """What came of each address."""
    shown: Chain = ()
    """The certificates that it shows, its own first."""
    source: str = ""
    """Where these come from: a handshake, or a Secret."""
    is_refused: bool = False
    """Whether somebody said that nobody listens, rather than nothing at all."""
    answer: str = ""
    """What became of a call with the client's own certificate: `answered`, why it was turned away, or empty: none."""


class Service(NamedTuple):
    """A Service that an entry's address names. `ports` are None where it does not exist."""

    where: str
    ports: tuple[int, ...] | None
    ready: int | Unread = 0
    """Endpoints."""


class Scheduler(NamedTuple):
    """A kube-scheduler, or a file that one is to read."""

    where: str
    configuration: Configuration | Unread
    pod: Pod | None = None
    papers: Mapping[int, Papers] = {}
    """By the entry's number."""
    servers: Mapping[int, Server] = {}
    services: Mapping[int, Service | Unread] = {}


class Numbers(NamedTuple):
    """What a replica counts of itself."""

    pod: str
    calls: int
    """By kube-scheduler, of any kind."""
    up_s: float
    ca_clients: int = 0
    refused: Mapping[str, int] = {}
    """Connections that were refused, by reason."""
    metric_nodes: Mapping[str, int] = {}
    unmatched: Mapping[str, int] = {}


class Extender(NamedTuple):
    """Replicas of `nodewise extender`."""

    pod: Pod
    settings: Mapping[str, str]
    """By their names in a settings file, as far as flags, environment and file are known."""
    unread: Unread | None = None
    """The settings file, where it could not be read."""
    numbers: tuple[Numbers | Unread, ...] = ()
    rights: tuple["Right", ...] | Unread = ()
    """Those that are missing."""
    client_ca: Chain | Unread = ()
    """Whose certificates it lets in, as far as that is known."""
    serving: Chain | Unread = ()
    """The certificate that it shows, likewise."""

    @property
    def agents(self) -> tuple[str, ...]:
        given = self.settings.get("agents", "telemetry")
        return tuple(name.strip() for name in given.split(",") if name.strip())

    def says(self, setting: str) -> bool:
        return self.settings.get(setting, "").lower() in ("true", "1", "yes", "on")


class Right(NamedTuple):
    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        which = f" {self.name}" if self.name else ""
        return f"{self.verb} {kind}{which}" + (f" in namespace {self.namespace}" if self.namespace else "")


class Waiting(NamedTuple):
    """A pod that names a policy, or waits."""

    name: str
    namespace: str
    policy: str = ""
    scheduler: str = "default-scheduler"
    node: str = ""
    age_s: float = 0.0
    asks: tuple[str, ...] = ()
    """Extended resources."""
    message: str = ""
    """kube-scheduler's, of why it waits."""
    avoids_violating: bool = False
    """Whether its own affinity keeps it off nodes that its policy marks."""
    is_gated: bool = False
    misspelt: str = ""
    """A label key that is nearly the one that names a policy."""


class Policy(NamedTuple):
    """A TASPolicy as the telemetry agent reads it."""

    namespace: str
    name: str
    strategies: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    filtering: tuple[str, ...] = ()
    """Of them, those by which it filters."""
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Metrics that were never fetched, as replicas wrote into its status."""
    unfetched: str = ""
    """What its condition MetricsFetched says where it is False."""
    rejects: int | None = None
    """Nodes that it rejects now; None where that is not known."""
    source: str = ""
    """Who says how many."""
    not_trusted: str = ""
    """The message of its condition `NotTrusted`; empty where that is not True."""

    @property
    def where(self) -> str:
        return f"TASPolicy/{self.namespace}/{self.name}"


class Measured(NamedTuple):
    """What a metric's source gives."""

    nodes: int
    others: tuple[str, ...] = ()
    """Names that are no nodes, some of them."""
    error: str = ""


class MetricsApi(NamedTuple):
    """An API group of metrics, as the API server's APIService has it."""

    name: str
    exists: bool
    available: bool
    message: str = ""


class Descheduler(NamedTuple):
    """A descheduler that runs or is to run; its policy's enabled plugins with the node affinity types they have."""

    where: str
    plugins: tuple[str, ...] | Unread
    affinities: tuple[str, ...] = ()


class Cards(NamedTuple):
    """A node with cards, as the gpu agent reads it."""

    node: str
    cards: int
    allocatable: str
    """Which resource says that there are cards."""
    problems: tuple[str, ...] = ()


class Kubelet(NamedTuple):
    node: str
    cpu: str
    topology: str
    memory: str = ""


class AdmissionPolicy(NamedTuple):
    """A ValidatingAdmissionPolicy that is enforced."""

    name: str
    resources: frozenset[str] = frozenset()
    """Those that it matches, without their API groups."""
    conditions: tuple[str, ...] = ()
    """CEL expressions of its match conditions."""


class Facts(NamedTuple):
    """Everything. Each field may be what could not be read."""

    now: datetime
    schedulers: tuple[Scheduler, ...] | Unread = ()
    extenders: tuple[Extender, ...] | Unread = ()
    pods: tuple[Waiting, ...] | Unread = ()
    policies: tuple[Policy, ...] | Unread = ()
    nodes: int | Unread = 0
    offered: frozenset[str] = frozenset()
    """Resources that some node has allocatable."""
    measured: Mapping[str, Measured | Unread] = {}
    """By metric."""
    apis: tuple[MetricsApi, ...] | Unread = ()
    deschedulers: tuple[Descheduler, ...] | Unread = ()
    cards: tuple[Cards, ...] | Unread = ()
    kubelets: Sequence[Kubelet | Unread] | Unread = ()
    authority: Chain | Unread = ()
    """The cluster's own CA."""
    admission: tuple[AdmissionPolicy, ...] | Unread = ()
    homes: tuple[str, ...] = ()
    """Namespaces whose pods were looked into."""
    elsewhere: tuple[str, ...] = ()
    """Pods of other namespaces that run a scheduler, a descheduler or nodewise, or say so."""
