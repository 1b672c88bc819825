"""Findings as values, the report, and the declaration of checks, which name the facts that they need."""

import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from nodewise.base.errors import short
from nodewise.doctor.facts import DERIVED, Facts, UnavailableFact
from nodewise.doctor.parsing import objects
from nodewise.doctor.parsing.objects import Workload

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""`error`: pods are placed wrongly, or not at all. `warning`: that can happen. `note`: nothing needs to be done."""
NOT_CHECKED: Final = "not-looked-at"
"""The id of the finding that reports what could not be read."""


class FindingKind(NamedTuple):
    """An entry of the catalogue."""

    severity: Severity
    title: str
    remedy: str


CATALOGUE: Final[Mapping[str, FindingKind]] = {
    "extender-not-registered": FindingKind(
        "error",
        "No scheduler calls nodewise",
        "run nodewise configure on each host of the control plane. On a managed control plane, install"
        " native mode for policies (nodewise configure --mode native, from Kubernetes 1.36), otherwise a"
        " second scheduler (--mode second-scheduler)",
    ),
    "extender-not-reached": FindingKind(
        "error",
        "kube-scheduler cannot reach nodewise",
        "set urlPrefix to an address at which nodewise listens and that kube-scheduler's host reaches",
    ),
    "scheduler-configuration-refused": FindingKind(
        "error",
        "kube-scheduler refuses its configuration",
        "correct what is found: kube-scheduler does not start with unknown fields, duplicate keys or values of"
        " another type",
    ),
    "plugin-name-misspelt": FindingKind(
        "warning",
        "kube-scheduler's configuration disables or configures a plugin that does not exist",
        "correct the name of the plugin: kube-scheduler ignores the entry",
    ),
    "names-not-used": FindingKind(
        "warning",
        "kube-scheduler sends whole nodes with each call",
        "set nodeCacheCapable: true in the entry",
    ),
    "no-ca-file": FindingKind(
        "error",
        "kube-scheduler does not verify nodewise",
        "set tlsConfig.caFile to a file with the CA of nodewise's serving certificate, and remove"
        " insecure: true",
    ),
    "ca-key-as-client-key": FindingKind(
        "error",
        "kube-scheduler's client key is a CA's key",
        "issue a client certificate with a key of its own: nodewise certs --apply, or nodewise certs"
        " --host DIR on the control plane. Set tlsConfig.certFile and keyFile to it, and remove the copy of"
        " the CA's key from the host",
    ),
    "key-in-configuration": FindingKind(
        "warning",
        "An entry contains kube-scheduler's private key",
        "write the key to a file that only root can read, set tlsConfig.keyFile to it and remove keyData;"
        " then replace the key, which may be in logs: nodewise certs --apply --renew",
    ),
    "client-certificate-wrong": FindingKind(
        "error",
        "nodewise rejects kube-scheduler's client certificate",
        "issue another with its own key: nodewise certs --apply, or nodewise certs --host DIR on the"
        " control plane; then set tlsConfig.certFile and keyFile to it",
    ),
    "certificate-expires-soon": FindingKind(
        "warning",
        "A certificate between kube-scheduler and nodewise expires soon",
        "renew it before that time: nodewise certs --apply, or nodewise certs --host DIR on the control plane",
    ),
    "any-client": FindingKind(
        "warning",
        "Every certificate of the client CA may call nodewise",
        "give kube-scheduler a certificate by nodewise certs, or set --client-name to the name in its"
        " certificate; then remove --any-client and the flags of TAS and GAS",
    ),
    "server-certificate-wrong": FindingKind(
        "error",
        "nodewise's certificate is not for this address, or has expired",
        "issue another for the host of urlPrefix: nodewise certs --apply --name HOST, or nodewise certs"
        " --host DIR --name HOST",
    ),
    "unknown-ca": FindingKind(
        "error",
        "caFile is not the CA of nodewise's certificate",
        "write the CA that signed nodewise's certificate to caFile and restart kube-scheduler",
    ),
    "sample-too-small": FindingKind(
        "warning",
        "A policy can reject every node that kube-scheduler considers",
        "have kube-scheduler filter first: required node affinity `<policy> NotIn [violating]` with the"
        " strategy deschedule; or set percentageOfNodesToScore: 100 in a profile of its own",
    ),
    "http-timeout-missing": FindingKind(
        "warning",
        "An entry has no httpTimeout",
        "set httpTimeout: 1s in the entry; 5s with whole nodes or a bindVerb",
    ),
    "http-timeout-short": FindingKind(
        "warning",
        "An entry's httpTimeout is shorter than a response may take",
        "set httpTimeout: 1s in the entry; 5s with whole nodes or a bindVerb",
    ),
    "http-timeout-long": FindingKind(
        "warning",
        "An entry's httpTimeout is very long",
        "set httpTimeout: 1s in the entry; 5s with whole nodes or a bindVerb",
    ),
    "wrong-ignorable": FindingKind(
        "error",
        "While nodewise does not respond, pods are placed without it",
        "set ignorable: false in an entry with filterVerb; managedResources keep other pods out of it",
    ),
    "filters-own-pods": FindingKind(
        "warning",
        "nodewise's own pods wait for nodewise",
        "add managedResources to the entry, or set another schedulerName in nodewise's pods",
    ),
    "bind-verb-missing": FindingKind(
        "error",
        "An entry lacks a verb or a resource of its agents",
        "add what is missing to the entry. nodewise configure render-scheduler prints an entry with"
        " bindVerb, preemptVerb and managedResources",
    ),
    "resource-not-ignored": FindingKind(
        "error",
        "Pods request a resource that no node has, and kube-scheduler counts it",
        "set ignoredByScheduler: true beside the resource's name in managedResources",
    ),
    "weight-zero": FindingKind(
        "warning", "Scores have no effect", "set prioritizeVerb: prioritize and weight: 10 in the entry"
    ),
    "metric-missing": FindingKind(
        "error",
        "A policy names a metric that no node has",
        "check that the metric's exporters run and are scraped, and its name in the policy: the condition"
        " MetricsAvailable of the policy (MetricsFetched of a TASPolicy) has the cause",
    ),
    "metric-names-mismatch": FindingKind(
        "error",
        "A metric's values have names that are no nodes",
        "with Prometheus as the source, set --prometheus-node-label to a label that names nodes; with"
        " prometheus-adapter, relabel instance to the node's name",
    ),
    "nodes-without-values": FindingKind(
        "warning",
        "Some nodes have no value of a metric that others have",
        "restore the exporter on these nodes, or its scraping: the command lists the pods of one. If only some nodes"
        " can have the metric, use a query with emptyMeans: Healthy, or --skip nodes-without-values",
    ),
    "metrics-api-unavailable": FindingKind(
        "error",
        "The metrics API does not respond",
        "start the adapter that the APIService names, or correct the APIService, whose condition Available"
        " has the cause; or take metrics from Prometheus: --prometheus-url",
    ),
    "usage-late": FindingKind(
        "warning",
        "metrics-server measures usage too slowly for the agents that score by it",
        "set --metric-resolution=15s in the arguments of metrics-server, or take usage from Prometheus:"
        " --prometheus-url",
    ),
    "policy-without-effect": FindingKind(
        "warning",
        "A policy, or a part of it, has no effect",
        "correct what is named; nodewise policy lint FILE reports which parts of a policy can be read",
    ),
    "selector-without-pods": FindingKind(
        "warning",
        "The selectors of a policy match no pod",
        "correct the selector, or the labels in the template of the pods; policies never select pods of DaemonSets and"
        " of kube-system",
    ),
    "metric-source-selected": FindingKind(
        "warning",
        "A policy selects the pods of its source of metrics",
        "exclude the pods by podSelector or namespaceSelector, such as {key: kubernetes.io/metadata.name, operator:"
        " NotIn, values: [monitoring]}; or add guard.maxRejectedShare, with which the policy steps back",
    ),
    "all-nodes-rejected": FindingKind(
        "error",
        "Policies leave no node for the pods that they select",
        "relax a rule of one of the policies. nodewise explain shows for a waiting pod which change"
        " suffices; pods need not be created again",
    ),
    "policy-condition": FindingKind(
        "warning",
        "The status of a policy reports a problem",
        "the message of the condition names the cause",
    ),
    "pod-admission-missing": FindingKind(
        "error",
        "Selected pods are not changed when they are created",
        "apply the admission policies, which need Kubernetes 1.36, and create the selected pods again",
    ),
    "labels-frozen": FindingKind(
        "error",
        "No controller updates the node labels of native mode",
        "start a controller, or correct why none leads: the status and the log of the controller show it",
    ),
    "native-mode-off": FindingKind(
        "error",
        "Nothing removes the scheduling gates that native mode adds to pods",
        "run nodewise controller without --no-native-mode, an older one with --native-mode; if native mode is not"
        " wanted, delete its admission policies",
    ),
    "verdict-labels-writable": FindingKind(
        "warning",
        "Kubelets can write the node labels of native mode",
        "add NodeRestriction to --enable-admission-plugins of kube-apiserver, whose --authorization-mode"
        " has Node",
    ),
    "kind-not-served": FindingKind(
        "warning",
        "A kind of policies is not defined",
        "apply the definitions; nodewise reads the kind within 30 s",
    ),
    "namespace-not-trusted": FindingKind(
        "warning",
        "A policy needs a trusted namespace",
        "have an administrator of the cluster trust the namespace, or remove these strategies and queries",
    ),
    "namespace-over-budget": FindingKind(
        "warning",
        "A policy exceeds a budget of its namespace",
        "remove policies, rules or labels from the namespace, or raise the option that the message names",
    ),
    "all-namespaces-trusted": FindingKind(
        "warning",
        "The policies of every namespace are trusted",
        "label the namespaces that need it with nodewise.io/trusted=true, then remove --trust-all-namespaces",
    ),
    "policy-unknown": FindingKind(
        "error",
        "Pods name a policy that does not exist",
        "create the TASPolicy in the pod's namespace, or correct the label",
    ),
    "policy-label-misspelt": FindingKind(
        "warning",
        "Pods have a label that is nearly telemetry-policy",
        "rename the label in the pod's template, and create the pods again. The admission policy of"
        " nodewise configure manifests pod-admission warns of such pods",
    ),
    "gpu-node-without-labels": FindingKind(
        "error",
        "Nodes have GPUs, and no labels that name them",
        "have node feature discovery write gpu.intel.com/gpu-numbers (the GPU plugin's rules), or number"
        " the GPUs yourself, two of them by: kubectl label node NODE gpu.intel.com/gpu-numbers=0.1",
    ),
    "kubelet-policy-conflict": FindingKind(
        "warning",
        "The kubelet assigns the CPUs of pools",
        "set cpuManagerPolicy: none, topologyManagerPolicy: none and memoryManagerPolicy: None in the"
        " kubelet's configuration of nodes with pools, remove its cpu_manager_state and restart it; or"
        " remove the pools",
    ),
    "two-load-aware-scorers": FindingKind(
        "warning",
        "Two scorers score by load",
        "disable one of them: the plugin in the scheduler's profile, or nodewise's scoring agents",
    ),
    "descheduler-missing": FindingKind(
        "warning",
        "No descheduler evicts pods from the nodes that a policy labels",
        "install the descheduler with RemovePodsViolatingNodeAffinity for"
        " requiredDuringSchedulingIgnoredDuringExecution",
    ),
    "native-mode-evictions": FindingKind(
        "warning",
        "The descheduler evicts running pods in native mode",
        "disable RemovePodsViolatingNodeAffinity, or its nodeAffinityType"
        " requiredDuringSchedulingIgnoredDuringExecution, if running pods shall stay",
    ),
    "rights-missing": FindingKind(
        "error",
        "nodewise lacks a right",
        "grant the rights of the agents that run",
    ),
    "admission-policy-missing": FindingKind(
        "warning",
        "No admission policy limits nodewise's writes",
        "apply the admission policies; with the chart, set admissionPolicies.enabled=true",
    ),
    "replicas-not-ready": FindingKind(
        "error",
        "Replicas of nodewise are not ready",
        "the status and the log of the pods (kubectl logs --previous) have the reason",
    ),
    "identity-shared": FindingKind(
        "warning",
        "Replicas share an identity",
        "remove --identity, or set NODEWISE_IDENTITY from the field metadata.name of the pod",
    ),
    "controller-beside-extender": FindingKind(
        "warning",
        "A controller runs beside an extender with the agent telemetry",
        "delete the controller, or the extender if kube-scheduler does not call it; an extender with other agents can"
        " stay without telemetry in --agents",
    ),
    "kubernetes-version-untested": FindingKind(
        "warning",
        "The tests of nodewise do not run on this version of Kubernetes",
        "use a release of nodewise that was tested with this version, or a cluster of a tested version",
    ),
    "scheduler-not-running": FindingKind(
        "error",
        "Pods wait for a scheduler that does not run",
        "start that scheduler, or correct the pods' schedulerName",
    ),
    NOT_CHECKED: FindingKind(
        "warning",
        "Something could not be read",
        "grant the right: the command creates roles with all rights of doctor for the account nodewise-doctor. Bind"
        " them to the user who runs doctor; or leave the check out with --skip",
    ),
}
"""By id, in the order of reports."""


PAGE: Final = "docs/how-to/doctor.md"
"""The page that describes each finding."""
_MAX_LENGTH: Final = 500  # characters of a text: values of objects have any length
_MAX_COMMAND_LENGTH: Final = 2000


class Finding(NamedTuple):
    """One problem. `object` is kind/namespace/name, or a file."""

    id: str
    object: str
    found: str
    expected: str
    severity: Severity
    remedy: str
    command: str = ""
    """A shell command that applies the remedy, or begins it; empty if there is none."""

    @property
    def title(self) -> str:
        return CATALOGUE[self.id].title

    @property
    def doc(self) -> str:
        return f"{PAGE}#{self.id}"

    def document(self) -> dict[str, Any]:
        """As `-o json` prints it."""
        return {
            "id": self.id,
            "severity": self.severity,
            "object": self.object,
            "seen": self.found,
            "wanted": self.expected,
            "remedy": self.remedy,
            "command": self.command,
            "doc": self.doc,
        }


class NotChecked(NamedTuple):
    """A check that could not be made, and the missing fact."""

    id: str
    unavailable: UnavailableFact


Result = Finding | NotChecked


class Report(NamedTuple):
    """The result of an examination."""

    findings: Sequence[Finding]
    checked: Sequence[str]
    """Ids that were checked everywhere."""
    not_checked: Sequence[tuple[str, str]]
    """Ids that were not, or not everywhere, each with the reason."""
    examined: Sequence[str] = ()
    """What was examined, in words."""

    @property
    def has_no_errors_or_warnings(self) -> bool:
        """Whether there is no error and no warning. A fact that could not be read is a warning."""
        return all(finding.severity == "note" for finding in self.findings)


def finding(
    id_: str,
    object_: str,
    actual: str,
    expected: str,
    *,
    remedy: str = "",
    command: str = "",
    severity: Severity | None = None,
) -> Finding:
    """A finding; remedy and severity default to those of the catalogue. An unprintable command is left out."""
    kind = CATALOGUE[id_]
    texts = (short(object_, _MAX_LENGTH), short(actual, _MAX_LENGTH), short(expected, _MAX_LENGTH))
    remedy = short(remedy or kind.remedy, _MAX_LENGTH)
    if len(command) > _MAX_COMMAND_LENGTH or not command.isprintable():
        command = ""
    return Finding(id_, *texts, severity or kind.severity, remedy, command)


def kubectl(verb: str, where: str, *more: str) -> str:
    """A command for one object, as `Deployment/nodewise/nodewise` or `Node/a`; words are quoted."""
    kind, *namespace, name = where.split("/")
    scope = [f"--namespace={space}" for space in namespace]
    return shlex.join(["kubectl", *verb.split(), f"{kind.lower()}/{name}", *scope, *more])


def change_setting(workload: Workload, setting: str) -> str:
    """A command that opens the object with a setting of nodewise: the workload, or the ConfigMap of its settings file.

    Flags and variables win over the file, which nodewise reads when it starts.
    """
    for container in workload.containers:
        mount = objects.find_mount(container, objects.settings_file_path(container))
        if mount and mount[0].kind == "configMap" and setting not in objects.settings(container):
            restart = kubectl("rollout restart", workload.where)
            return f"{kubectl('edit', f'ConfigMap/{workload.namespace}/{mount[0].name}')} && {restart}"
    return kubectl("edit", workload.where)


def apply_parts(
    *parts: str, namespace: str = "nodewise", name: str = "nodewise", keeps_changes: bool = False
) -> str:
    """A command that creates parts of an installation again (`nodewise configure manifests`). `name` is the account.

    Fields of Helm or another manager are taken over, unless it `keeps_changes` of objects that exist.
    """
    words = ["nodewise", "configure", "manifests", *parts]
    words += [f"--namespace={namespace}"] if namespace != "nodewise" else []
    words += [f"--name={name}"] if name != "nodewise" else []
    force = "" if keeps_changes else " --force-conflicts"
    return f"{shlex.join(words)} | kubectl apply --server-side{force} -f -"


Function = Callable[..., Iterable[Result]]


class Check(NamedTuple):
    """A check, and what it declares."""

    ids: tuple[str, ...]
    """The findings that it can have."""
    function: Function
    needs: frozenset[str]
    uses: frozenset[str]

    @property
    def fields(self) -> frozenset[str]:
        """The fields of `Facts` that have to be collected for it."""
        names = self.needs | self.uses
        return frozenset().union(*(DERIVED.get(name, frozenset({name})) for name in names))

    def run(self, facts: Facts) -> Iterator[Result]:
        """Findings, and what could not be checked. Parts that are unavailable are taken out of needed tuples."""
        needed, used = _values(facts, self.needs), _values(facts, self.uses)
        available = {name: value for name, value in used.items() if _is_available(value)}
        missing = _missing_parts(needed.values())
        if not (needed or available):  # there is nothing to examine
            missing = list(used.values())
        yield from (NotChecked(id_, part) for part in missing for id_ in self.ids)
        if all(map(_is_available, needed.values())):
            yield from self.function(**available, **{name: _readable(needed[name]) for name in needed})


def _values(facts: Facts, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in names}


def _missing_parts(values: Iterable[Any]) -> list[UnavailableFact]:
    """Facts that are unavailable, and unavailable parts of tuples; a NamedTuple is one fact."""
    parts = (part for value in values for part in (value if type(value) is tuple else (value,)))
    return [part for part in parts if isinstance(part, UnavailableFact)]


def _readable(value: Any) -> Any:
    return tuple(filter(_is_available, value)) if type(value) is tuple else value


def _is_available(value: Any) -> bool:
    return not isinstance(value, UnavailableFact)


def check(*ids: str) -> Callable[[Function], Check]:
    """Declare a function as the check of these findings."""
    assert set(ids) <= CATALOGUE.keys(), ids

    def declare(function: Function) -> Check:
        parameters = inspect.signature(function).parameters.values()
        unknown = {parameter.name for parameter in parameters} - {*Facts._fields, *DERIVED}
        assert not unknown, f"{function.__name__} needs facts that do not exist: {unknown}"
        needs = frozenset(parameter.name for parameter in parameters if parameter.default is parameter.empty)
        return Check(ids, function, needs, frozenset(parameter.name for parameter in parameters) - needs)

    return declare
