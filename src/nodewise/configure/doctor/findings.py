"""What can be wrong: the catalogue of findings, and one finding. Ids are stable; docs/how-to/doctor.md has each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from nodewise.configure.doctor.facts import Unread
from nodewise.visible import short

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""`error`: pods are placed wrongly, or not at all. `warning`: that can happen. `note`: good to know."""
PAGE: Final = "docs/how-to/doctor.md"
"""Tells of each finding at length."""
_LONG: Final = 500
"""Characters of a text: what stands in objects may be of any length."""


class Kind(NamedTuple):
    """A thing that can be wrong."""

    severity: Severity
    title: str
    meaning: str
    remedy: str


class Finding(NamedTuple):
    """One thing that is wrong. `object` is kind/namespace/name, or a file."""

    id: str
    object: str
    seen: str
    wanted: str
    severity: Severity
    remedy: str

    @property
    def title(self) -> str:
        return CATALOGUE[self.id].title

    @property
    def doc(self) -> str:
        """Where it is told at length."""
        return f"{PAGE}#{self.id}"

    def document(self) -> dict[str, Any]:
        """As `-o json` has it."""
        return {
            "id": self.id,
            "severity": self.severity,
            "object": self.object,
            "seen": self.seen,
            "wanted": self.wanted,
            "remedy": self.remedy,
            "doc": self.doc,
        }


class Unlooked(NamedTuple):
    """A check that could not be made, and for want of what."""

    id: str
    unread: Unread


Answer = Finding | Unlooked


class Report(NamedTuple):
    """What came of an examination."""

    findings: Sequence[Finding]
    checked: Sequence[str]
    """Ids that were looked for everywhere."""
    not_checked: Sequence[tuple[str, str]]
    """Ids that were not, or not everywhere, each with the reason."""
    looked: Sequence[str] = ()
    """What was looked at, in words."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong. What could not be looked at for want of a right or a file is a warning."""
        return not any(one.severity != "note" for one in self.findings)


def found(
    id_: str, object_: str, seen: str, wanted: str, *, remedy: str = "", severity: Severity | None = None
) -> Finding:
    """A finding; remedy and severity are the catalogue's unless they are given."""
    kind = CATALOGUE[id_]
    texts = (short(object_, _LONG), short(seen, _LONG), short(wanted, _LONG))
    return Finding(id_, *texts, severity or kind.severity, short(remedy or kind.remedy, _LONG))


def unlooked(unread: Unread, *ids: str) -> Iterable[Unlooked]:
    """Checks that want what could not be read."""
    return [Unlooked(one, unread) for one in ids]


CATALOGUE: Final[Mapping[str, Kind]] = {
    "extender-not-registered": Kind(
        "error",
        "No scheduler is told of nodewise",
        "kube-scheduler asks only the extenders of its own configuration. As long as no entry leads to"
        " nodewise, pods are placed as if it were not there, and pods that ask for its resources may wait"
        " for ever.",
        "nodewise configure on each host of the control plane, or nodewise configure --mode second-scheduler",
    ),
    "extender-not-reached": Kind(
        "error",
        "kube-scheduler cannot reach nodewise",
        "The entry's address leads to nobody: there is no such Service or port, nothing ready is behind it,"
        " kube-scheduler cannot resolve the name, or it says so itself of pods that wait.",
        "make the urlPrefix an address that kube-scheduler's own host reaches: the Service's cluster IP, or"
        " its name with dnsPolicy: ClusterFirstWithHostNet",
    ),
    "names-not-used": Kind(
        "warning",
        "Whole nodes are sent with each call",
        "With nodeCacheCapable: false kube-scheduler sends every node whole, 800 times as much, and"
        " afterwards its own scores take every node for empty.",
        "nodeCacheCapable: true",
    ),
    "no-ca-file": Kind(
        "error",
        "kube-scheduler takes anybody for nodewise",
        "Without a CA the server's certificate is not verified, and over plain HTTP there is none: who is"
        " on the way can answer in nodewise's place and decide where pods go.",
        "tlsConfig.caFile: the CA of nodewise's serving certificate, and no insecure: true",
    ),
    "ca-key-as-client-key": Kind(
        "error",
        "kube-scheduler's client key is a CA's",
        "Who reads that key can make himself any identity that the CA vouches for; with the cluster's CA"
        " that is the cluster's administrator.",
        "a client certificate of its own: nodewise certs; then take the copy of the CA's key away from the"
        " host",
    ),
    "client-certificate-wrong": Kind(
        "error",
        "kube-scheduler's client certificate is of no use",
        "nodewise lets nobody in without a valid certificate for client use, of its client CA and with a"
        " name that it takes. While it refuses, pods that ask for its resources wait.",
        "make another with its own key: nodewise certs, or nodewise certs --host on the control plane",
    ),
    "any-client": Kind(
        "warning",
        "Every certificate of the client CA may call nodewise",
        "With --any-client, which flags of TAS and GAS imply, nodewise answers filter, prioritize and preempt to every"
        " client of the CA. With the cluster's CA these are all kubelets and users with a certificate.",
        "give kube-scheduler a certificate by nodewise certs, or set --client-name to the name in its certificate;"
        " then remove --any-client and the flags of TAS and GAS",
    ),
    "server-certificate-wrong": Kind(
        "error",
        "nodewise's certificate is not for this address, or over",
        "kube-scheduler verifies name and dates of the server's certificate. When they do not fit, every"
        " call fails.",
        "nodewise certs --name with the host of the urlPrefix, or renew it",
    ),
    "unknown-ca": Kind(
        "error",
        "caFile is not the CA of nodewise's certificate",
        "Every call of kube-scheduler fails with x509: certificate signed by unknown authority."
        " kube-scheduler reads caFile only when it starts.",
        "put the CA that signed nodewise's certificate into caFile and restart kube-scheduler",
    ),
    "sample-too-small": Kind(
        "warning",
        "A policy can reject every node that kube-scheduler looks at",
        "kube-scheduler asks an extender about a sample of the nodes only. Where a policy rejects more"
        " nodes than the sample has, a sample may be all rejected, and the pod waits although good nodes"
        " exist.",
        "have kube-scheduler filter first: required node affinity `<policy> NotIn [violating]` with the"
        " strategy deschedule; or a larger percentageOfNodesToScore in a profile of its own",
    ),
    "http-timeout-missing": Kind(
        "warning",
        "An entry has no httpTimeout",
        "kube-scheduler then waits 5 s for each call. An extender that hangs holds up every pod that"
        " reaches it for as long, twice a pod.",
        "httpTimeout: 1s; 5s with whole nodes or a bindVerb",
    ),
    "http-timeout-short": Kind(
        "warning",
        "An entry's httpTimeout is shorter than an answer may take",
        "A call that takes longer counts as failed, and with bindVerb the pod may be bound after all. Whole"
        " nodes of a large cluster take seconds.",
        "httpTimeout: 1s; 5s with whole nodes or a bindVerb",
    ),
    "http-timeout-long": Kind(
        "warning",
        "An entry's httpTimeout is very long",
        "While nodewise hangs, every pod that reaches it holds up kube-scheduler for as long, twice a pod.",
        "httpTimeout: 1s; 5s with whole nodes or a bindVerb",
    ),
    "wrong-ignorable": Kind(
        "error",
        "While nodewise does not answer, pods are placed without it",
        "With ignorable: true an extender that does not answer means place it without us: policies and"
        " cards are not looked at.",
        "ignorable: false in an entry with filterVerb; managedResources keep other pods out of it",
    ),
    "filters-own-pods": Kind(
        "warning",
        "nodewise's own pods wait for nodewise",
        "The entry filters all pods and is not ignorable. When all replicas are gone at once, as after a"
        " power failure, nobody can place them again.",
        "managedResources in the entry, or another schedulerName for nodewise's pods",
    ),
    "bind-verb-missing": Kind(
        "error",
        "An entry does not ask all that its agent answers",
        "The gpu agent has to bind the pods that ask for cards, or their cards are booked by nobody;"
        " kube-scheduler knows these pods by managedResources. Without preemptVerb pods are evicted from"
        " nodes that are then rejected.",
        "bindVerb: bind, preemptVerb: preempt and the cards' managedResources: nodewise configure"
        " render-scheduler prints them",
    ),
    "resource-not-ignored": Kind(
        "error",
        "Pods ask for a resource that no node has, and kube-scheduler counts it",
        "A managed resource that only marks pods is on no node. Without ignoredByScheduler: true kube-scheduler says"
        " Insufficient of every node, and none of these pods is placed.",
        "ignoredByScheduler: true beside the resource's name in managedResources",
    ),
    "weight-zero": Kind(
        "warning",
        "Scores have no effect",
        "kube-scheduler multiplies an extender's scores by the entry's weight, and asks for them only where"
        " there is a prioritizeVerb. With prioritizeVerb and no weight it does not start.",
        "prioritizeVerb: prioritize and a weight of 5 or more",
    ),
    "metric-missing": Kind(
        "error",
        "A policy names a metric that no node has",
        "A rule that filters by a metric which was never fetched passes no node: pods of the policy wait.",
        "name a metric that is there, or have it exported: kubectl get --raw"
        " /apis/custom.metrics.k8s.io/v1beta1/nodes/*/METRIC shows what there is",
    ),
    "metric-names-mismatch": Kind(
        "error",
        "A metric's values come under names that are no nodes",
        "Values are found by the node's name. Where an address or a pod's name stands there, no node has a"
        " value, and rules by this metric see nothing.",
        "relabel instance to the node's name in Prometheus, as deploy/metrics does",
    ),
    "metrics-api-unavailable": Kind(
        "error",
        "The metrics API does not answer",
        "Policies are judged by values from this API. Without it their metrics are never fetched, or grow"
        " old: pods of such policies wait, or verdicts are held.",
        "look at the APIService's condition and the adapter's pods; or take metrics from Prometheus:"
        " --prometheus-url",
    ),
    "policy-without-effect": Kind(
        "warning",
        "A policy, or a part of it, has no effect",
        "What stands in the policy is not looked at: no agent reads it, no call asks for it, or it cannot"
        " be read. A rule that cannot be read passes no node.",
        "nodewise policy lint tells what of a policy is read",
    ),
    "namespace-not-trusted": Kind(
        "warning",
        "A policy needs a trusted namespace",
        "Node labels (deschedule, labeling) and raw queries affect the whole cluster. nodewise accepts them only from"
        " policies in namespaces that a cluster administrator trusts.",
        "kubectl label namespace NAME nodewise.io/trusted=true, or remove these strategies and queries",
    ),
    "all-namespaces-trusted": Kind(
        "warning",
        "The policies of every namespace are trusted",
        "With --trust-all-namespaces everybody who may create a TASPolicy can label every node, disable GPUs and send"
        " any query to Prometheus.",
        "label the namespaces that need it with nodewise.io/trusted=true, then remove --trust-all-namespaces",
    ),
    "policy-unknown": Kind(
        "error",
        "Pods name a policy that does not exist",
        "A pod finds its policy in its own namespace, by the label telemetry-policy. Where there is none,"
        " no node passes and the pod waits.",
        "create the TASPolicy in the pod's namespace, or correct the label",
    ),
    "policy-label-misspelt": Kind(
        "warning",
        "Pods have a label that is nearly telemetry-policy",
        "The label telemetry-policy names a pod's TASPolicy. A pod with a misspelt key names none, so it is scheduled"
        " as if there were no policy.",
        "rename the label in the pod's template; podAdmission of the chart (deploy/pod-admission.yaml) reports it at"
        " kubectl apply",
    ),
    "gpu-node-without-labels": Kind(
        "error",
        "Nodes have cards, and no labels that name them",
        "The gpu agent gives away cards that it knows by name, from the node's labels. Without them the"
        " node has none and pods that ask for cards do not come there.",
        "have node feature discovery write gpu.intel.com/gpu-numbers (the GPU plugin's rules), or annotate"
        " nodes with nodewise.io/gpu-cards",
    ),
    "kubelet-policy-conflict": Kind(
        "warning",
        "The kubelet gives away the CPUs of pools",
        "With cpuManagerPolicy: static the kubelet gives whole CPUs to pods and writes cpusets by itself,"
        " also of CPUs that are in a pool; a topology manager policy that refuses pods counts the same CPUs.",
        "cpuManagerPolicy: none and topologyManagerPolicy: none on nodes with pools, or no pools there:"
        " docs/cpu.md",
    ),
    "two-load-aware-scorers": Kind(
        "warning",
        "Two scorers go by load at once",
        "Each pulls pods to what it takes for idle nodes by figures of its own age; together they count"
        " load twice, and where they disagree neither has its way.",
        "switch one of them off: the plugin in the scheduler's profile, or nodewise's scoring agents",
    ),
    "descheduler-missing": Kind(
        "warning",
        "Nobody evicts pods from nodes that a policy wants drained",
        "The strategy deschedule labels nodes <policy>=violating and evicts nothing. That is done by a"
        " descheduler with the plugin RemovePodsViolatingNodeAffinity.",
        "install the descheduler with RemovePodsViolatingNodeAffinity for"
        " requiredDuringSchedulingIgnoredDuringExecution",
    ),
    "rights-missing": Kind(
        "error",
        "nodewise lacks a right",
        "The account of nodewise's pods may not do what its agents need; docs/rights.md says what goes on"
        " without it.",
        "apply deploy/rbac.yaml, with the gpu agent deploy/gpu.yaml, with pigeon and learned"
        " deploy/memory.yaml",
    ),
    "admission-policy-missing": Kind(
        "warning",
        "No admission policy limits nodewise's writes",
        "RBAC grants writes of whole objects. Without the policies, a stolen token of nodewise's account can change"
        " taints, images and every label, and everybody who may write namespaces can trust one.",
        "apply deploy/rbac.yaml, deploy/trust.yaml, with the gpu agent deploy/gpu.yaml, with the account's name in"
        " matchConditions; or set admissionPolicies.enabled=true in the chart",
    ),
    "replicas-not-ready": Kind(
        "error",
        "Replicas of nodewise are not ready",
        "Until one is ready no pod that asks for nodewise's resources is placed; with fewer than there"
        " should be, the next failure is an outage.",
        "kubectl describe and kubectl logs --previous of the pods say why",
    ),
    "scheduler-not-running": Kind(
        "error",
        "Pods wait for a scheduler that nobody runs",
        "Nobody looks at a pod whose schedulerName no scheduler serves, and no event says so.",
        "start that scheduler, or correct the pods' schedulerName",
    ),
    "not-looked-at": Kind(
        "warning",
        "Something could not be looked at",
        "What is not read is not known to be sound.",
        "grant the right, as deploy/doctor.yaml does for the namespaces nodewise and kube-system; or leave the check"
        " out with --skip",
    ),
}
"""By id, in the order in which they are told."""
