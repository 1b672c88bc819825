"""Settings of the telemetry agent."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec

from nodewise.base.option import Option
from nodewise.metrics import series
from nodewise.metrics.metrics_source import MetricRequest, default_max_age_s
from nodewise.policies.placement_policy import Comparison


class TelemetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for stale and missing values, trust, and writes to the cluster."""

    max_age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Age at which a value counts as missing. 0: the largest of five refresh periods, 60 s, and 2.5 times the
    distance of the metric's samples, at most 10 minutes. A rule of a policy can override it."""

    when_missing: Literal["pass", "reject"] = "pass"
    """Treatment of a node without a fresh value: it passes, as in the older system, or is rejected. A rule of a
    policy can override it."""

    trust_all_namespaces: bool = False
    """Trust the policies of every namespace, as the older system did: everyone who may create a policy can label
    every node, disable GPUs and send any query to Prometheus. For migrations only; trust single namespaces with:
    kubectl label namespace NAME nodewise.io/trusted=true."""

    own_namespace: Annotated[str, Option(metavar="NAMESPACE")] = ""
    """Namespace of nodewise, which is trusted without a label. The extender uses --namespace, the service account's
    namespace or the context's, but `default` only if --namespace names it."""

    label_policies_from: Annotated[tuple[str, ...], Option(metavar="NAMESPACE")] = ()
    """Deprecated: label the namespaces with nodewise.io/trusted=true instead. Namespaces that are trusted as if they
    had that label; repeat it for several."""

    allowed_metrics: Annotated[str, Option(metavar="REGEX")] = ""
    """Regular expression that must match the whole name of each metric in policies of namespaces without trust, such
    as `node_.*|cpu_usage`. Empty: any metric."""

    rules_per_namespace: Annotated[int, msgspec.Meta(ge=1)] = 128
    """Limit of rules in the policies of one namespace. Policies beyond it reject their pods, and get the condition
    BudgetExceeded; older policies come first. 128 rules use about 13 MB in a cluster of 5,000 nodes."""

    metrics_per_namespace: Annotated[int, msgspec.Meta(ge=1)] = 16
    """Limit of different metrics, including queries, that the rules of one namespace request."""

    queries_per_namespace: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Limit of different queries in the rules of one trusted namespace."""

    native_mode: Annotated[bool | None, Option("--native-mode/--no-native-mode")] = None
    """Label nodes with the verdict of each policy, and release pods that wait for the first labels, for the
    admission policies of deploy/native.yaml. By default, `nodewise controller` does so while these are installed,
    and the extender does not."""

    advertise_resource: Annotated[str, Option(metavar="NAME=AMOUNT")] = ""
    """Extended resource that is added to every node, such as `telemetry/scheduling=1000`, for the descheduler and
    the autoscaler. Empty: none."""


class MaxAges(NamedTuple):
    """How old the values of rules may be."""

    default_s: float
    """For a rule without `maxAge`: that of the settings, or the default for a refresh period."""
    follows_samples: bool
    """Whether the default is longer for metrics with samples at a larger distance: if no setting says otherwise."""

    def of_rule(self, rule: Comparison, distance_s: float | None) -> float:
        """The maximum age of a rule, whose metric has samples at this distance; None if it is not known."""
        if rule.max_age_s is not None:
            return rule.max_age_s
        if not self.follows_samples:
            return self.default_s
        return series.derived_max_age_s(self.default_s, distance_s)

    def requests(
        self, rules: Iterable[Comparison], distances: Mapping[str, float | None]
    ) -> dict[str, MetricRequest]:
        """The requests for metrics with samples at these distances, by key, each with the shortest maximum age of its
        rules.
        """
        requests: dict[str, MetricRequest] = {}
        for rule in rules:
            request = rule.metric_request()
            age_s = self.of_rule(rule, distances.get(request.key))
            known = requests.get(request.key)
            age_s = age_s if known is None else min(age_s, known.max_age_s)
            requests[request.key] = request._replace(max_age_s=age_s)
        return requests


def max_age_s(options: TelemetryOptions, sync_period_s: float) -> float:
    """The default of the maximum age for a refresh period, before the distance of samples is known."""
    return options.max_age_s or default_max_age_s(sync_period_s)
