"""Findings as values, the report, and the declaration of checks, which name the facts that they need."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from nodewise.base.errors import short
from nodewise.doctor.facts import DERIVED, Facts, UnavailableFact

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
        "run nodewise configure on each host of the control plane. On a managed control plane, install native mode for"
        " policies (nodewise configure --mode native, from Kubernetes 1.36), otherwise a second scheduler"
        " (--mode second-scheduler)",
    ),
    "extender-not-reached": FindingKind(
        "error",
        "kube-scheduler cannot reach nodewise",
        "make the urlPrefix an address that kube-scheduler's own host reaches: the Service's cluster IP, or"
        " its name with dnsPolicy: ClusterFirstWithHostNet",
    ),
    "scheduler-configuration-refused": FindingKind(
        "error",
        "kube-scheduler refuses its configuration",
        "correct what is found: kube-scheduler does not start with unknown fields, duplicate keys or values of"
        " another type",
    ),
    "names-not-used": FindingKind(
        "warning", "kube-scheduler sends whole nodes with each call", "nodeCacheCapable: true"
    ),
    "no-ca-file": FindingKind(
        "error",
        "kube-scheduler does not verify nodewise",
        "tlsConfig.caFile: the CA of nodewise's serving certificate, and no insecure: true",
    ),
    "ca-key-as-client-key": FindingKind(
        "error",
        "kube-scheduler's client key is a CA's key",
        "a client certificate of its own: nodewise certs; then remove the copy of the CA's key from the host",
    ),
    "key-in-configuration": FindingKind(
        "warning",
        "An entry contains kube-scheduler's private key",
        "write the key to a file that only root can read, and name it by tlsConfig.keyFile; then replace the key:"
        " nodewise certs",
    ),
    "client-certificate-wrong": FindingKind(
        "error",
        "nodewise rejects kube-scheduler's client certificate",
        "make another with its own key: nodewise certs, or nodewise certs --host on the control plane",
    ),
    "certificate-expires-soon": FindingKind(
        "warning",
        "A certificate between kube-scheduler and nodewise expires soon",
        "renew it before that time: nodewise certs, or nodewise certs --host on the control plane",
    ),
    "any-client": FindingKind(
        "warning",
        "Every certificate of the client CA may call nodewise",
        "give kube-scheduler a certificate by nodewise certs, or set --client-name to the name in its certificate;"
        " then remove --any-client and the flags of TAS and GAS",
    ),
    "server-certificate-wrong": FindingKind(
        "error",
        "nodewise's certificate is not for this address, or has expired",
        "nodewise certs --name with the host of the urlPrefix, or renew it",
    ),
    "unknown-ca": FindingKind(
        "error",
        "caFile is not the CA of nodewise's certificate",
        "put the CA that signed nodewise's certificate into caFile and restart kube-scheduler",
    ),
    "sample-too-small": FindingKind(
        "warning",
        "A policy can reject every node that kube-scheduler considers",
        "have kube-scheduler filter first: required node affinity `<policy> NotIn [violating]` with the"
        " strategy deschedule; or a larger percentageOfNodesToScore in a profile of its own",
    ),
    "http-timeout-missing": FindingKind(
        "warning", "An entry has no httpTimeout", "httpTimeout: 1s; 5s with whole nodes or a bindVerb"
    ),
    "http-timeout-short": FindingKind(
        "warning",
        "An entry's httpTimeout is shorter than a response may take",
        "httpTimeout: 1s; 5s with whole nodes or a bindVerb",
    ),
    "http-timeout-long": FindingKind(
        "warning", "An entry's httpTimeout is very long", "httpTimeout: 1s; 5s with whole nodes or a bindVerb"
    ),
    "wrong-ignorable": FindingKind(
        "error",
        "While nodewise does not respond, pods are placed without it",
        "ignorable: false in an entry with filterVerb; managedResources keep other pods out of it",
    ),
    "filters-own-pods": FindingKind(
        "warning",
        "nodewise's own pods wait for nodewise",
        "managedResources in the entry, or another schedulerName for nodewise's pods",
    ),
    "bind-verb-missing": FindingKind(
        "error",
        "An entry lacks a verb or a resource of its agents",
        "bindVerb: bind, preemptVerb: preempt and the GPUs' managedResources: nodewise configure"
        " render-scheduler prints them",
    ),
    "resource-not-ignored": FindingKind(
        "error",
        "Pods request a resource that no node has, and kube-scheduler counts it",
        "ignoredByScheduler: true beside the resource's name in managedResources",
    ),
    "weight-zero": FindingKind(
        "warning", "Scores have no effect", "prioritizeVerb: prioritize and a weight of 5 or more"
    ),
    "metric-missing": FindingKind(
        "error",
        "A policy names a metric that no node has",
        "correct the metric's name in the policy, or have its source export it: the condition MetricsAvailable of the"
        " policy (MetricsFetched of a TASPolicy) has the cause",
    ),
    "metric-names-mismatch": FindingKind(
        "error",
        "A metric's values have names that are no nodes",
        "with Prometheus as the source, set --prometheus-node-label; with prometheus-adapter, relabel instance to the"
        " node's name, as deploy/metrics does",
    ),
    "metrics-api-unavailable": FindingKind(
        "error",
        "The metrics API does not respond",
        "look at the APIService's condition and the adapter's pods; or take metrics from Prometheus:"
        " --prometheus-url",
    ),
    "policy-without-effect": FindingKind(
        "warning",
        "A policy, or a part of it, has no effect",
        "nodewise policy lint reports which parts of a policy can be read",
    ),
    "all-nodes-rejected": FindingKind(
        "error",
        "Policies leave no node for the pods that they select",
        "relax a rule of one of the policies: nodewise explain shows for a waiting pod which change suffices",
    ),
    "policy-condition": FindingKind(
        "warning",
        "The status of a policy reports a problem",
        "kubectl describe the policy: the message of the condition names the cause",
    ),
    "pod-admission-missing": FindingKind(
        "error",
        "Selected pods are not changed when they are created",
        "kubectl apply -f deploy/extender-pods.yaml, in native mode -f deploy/native.yaml; both need Kubernetes 1.36",
    ),
    "labels-frozen": FindingKind(
        "error",
        "No controller updates the node labels of native mode",
        "kubectl -n nodewise get lease nodewise-controller and kubectl -n nodewise logs deploy/nodewise-controller show"
        " why no replica leads",
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
        "add NodeRestriction to --enable-admission-plugins of kube-apiserver, whose --authorization-mode has Node",
    ),
    "kind-not-served": FindingKind(
        "warning",
        "A kind of policies is not defined",
        "kubectl apply --server-side -f deploy/crds; nodewise reads the kind within 30 s",
    ),
    "namespace-not-trusted": FindingKind(
        "warning",
        "A policy needs a trusted namespace",
        "kubectl label namespace NAME nodewise.io/trusted=true, or remove these strategies and queries",
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
        "rename the label in the pod's template; podAdmission of the chart (deploy/pod-admission.yaml) reports it at"
        " kubectl apply",
    ),
    "gpu-node-without-labels": FindingKind(
        "error",
        "Nodes have GPUs, and no labels that name them",
        "have node feature discovery write gpu.intel.com/gpu-numbers (the GPU plugin's rules), or annotate"
        " nodes with nodewise.io/gpu-cards",
    ),
    "kubelet-policy-conflict": FindingKind(
        "warning",
        "The kubelet assigns the CPUs of pools",
        "cpuManagerPolicy: none and topologyManagerPolicy: none on nodes with pools, or no pools there:"
        " docs/cpu.md",
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
        "apply deploy/rbac.yaml, with the controller deploy/controller.yaml, with the gpu agent deploy/gpu.yaml, with"
        " pigeon and learned deploy/memory.yaml",
    ),
    "admission-policy-missing": FindingKind(
        "warning",
        "No admission policy limits nodewise's writes",
        "apply deploy/rbac.yaml, deploy/trust.yaml, with the gpu agent deploy/gpu.yaml, in native mode"
        " deploy/controller.yaml, with the account's name in"
        " matchConditions; or set admissionPolicies.enabled=true in the chart",
    ),
    "replicas-not-ready": FindingKind(
        "error",
        "Replicas of nodewise are not ready",
        "kubectl describe and kubectl logs --previous of the pods show the reason",
    ),
    "identity-shared": FindingKind(
        "warning",
        "Replicas share an identity",
        "set NODEWISE_IDENTITY from metadata.name, as in deploy/controller.yaml, or remove it",
    ),
    "kubernetes-version-untested": FindingKind(
        "warning",
        "The tests of nodewise do not run on this version of Kubernetes",
        "use a release of nodewise that was tested with this version: docs/reference/supported-versions.md lists the"
        " versions of each feature",
    ),
    "scheduler-not-running": FindingKind(
        "error",
        "Pods wait for a scheduler that does not run",
        "start that scheduler, or correct the pods' schedulerName",
    ),
    NOT_CHECKED: FindingKind(
        "warning",
        "Something could not be read",
        "grant the right, as deploy/doctor.yaml does for the namespaces nodewise and kube-system; or leave the check"
        " out with --skip",
    ),
}
"""By id, in the order of reports."""


PAGE: Final = "docs/how-to/doctor.md"
"""The page that describes each finding."""
_MAX_LENGTH: Final = 500
"""Characters of a text: values of objects have any length."""


class Finding(NamedTuple):
    """One problem. `object` is kind/namespace/name, or a file."""

    id: str
    object: str
    found: str
    expected: str
    severity: Severity
    remedy: str

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
    id_: str, object_: str, actual: str, expected: str, *, remedy: str = "", severity: Severity | None = None
) -> Finding:
    """A finding; remedy and severity default to those of the catalogue."""
    kind = CATALOGUE[id_]
    texts = (short(object_, _MAX_LENGTH), short(actual, _MAX_LENGTH), short(expected, _MAX_LENGTH))
    return Finding(id_, *texts, severity or kind.severity, short(remedy or kind.remedy, _MAX_LENGTH))


def list_first(names: Sequence[str], most: int = 3, separator: str = ", ") -> str:
    """The first texts of a list, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


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
        needed = {name: getattr(facts, name) for name in self.needs}
        arguments: dict[str, Any] = {}
        for name, value in needed.items():
            is_tuple = type(value) is tuple  # a NamedTuple is one fact
            for part in value if is_tuple else (value,):
                if isinstance(part, UnavailableFact):
                    yield from (NotChecked(id_, part) for id_ in self.ids)
            arguments[name] = tuple(filter(_is_available, value)) if is_tuple else value
        if all(map(_is_available, needed.values())):
            used = {name: getattr(facts, name) for name in self.uses}
            arguments |= {name: value for name, value in used.items() if _is_available(value)}
            yield from self.function(**arguments)


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
