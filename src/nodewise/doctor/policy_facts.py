"""Facts about policies, the pods that they apply to, and the metrics that they name, as values (`facts.Facts`)."""

from typing import NamedTuple

from nodewise.install.scheduler_configuration import DEFAULT_SCHEDULER


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


class MetricCoverage(NamedTuple):
    """Which nodes have a value of a metric."""

    nodes: int
    other_names: tuple[str, ...] = ()
    """Some of the names that are no nodes."""
    error: str = ""
    """Why no node has a value."""
    remedy: str = ""
    """What to do about it, for the source that has no value; empty if that is unknown."""


class MetricsApiStatus(NamedTuple):
    """An API group of metrics, as its APIService describes it."""

    name: str
    exists: bool
    available: bool
    message: str = ""


class PodAdmissionPolicy(NamedTuple):
    """An enforced admission policy of `deploy/extender-pods.yaml` or `deploy/native.yaml`."""

    shipped: str
    """Its kind and name in that file: `MutatingAdmissionPolicy/nodewise-native`."""
    where: str
    """Its kind and name in the cluster."""
    is_current: bool
    """Whether its expressions are those that this version of nodewise ships."""


class PodAdmission(NamedTuple):
    """The admission policies that change the pods of policies when they are created."""

    is_served: bool = False
    """Whether the API server has MutatingAdmissionPolicy, which is stable since Kubernetes 1.36."""
    policies: tuple[PodAdmissionPolicy, ...] = ()
