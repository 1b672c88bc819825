"""Recording rules of Prometheus for the metrics of policies, and the same policies with the recorded metrics. No I/O.

A rule of a policy about a metric with millions of series makes Prometheus read all of them in each refresh period of
nodewise. A recording rule reads them once per interval, and stores one series for each node.

The verdicts are those of the original policy, at most one interval later:

- A recorded series keeps the labels that identify nodes, clusters and replicas, so nodewise finds the nodes of recorded
  series as of the original ones. Only a label that names nodes without being a default or in the options is lost where
  series are combined: an exporter that reports about other nodes needs `--prometheus-node-label`. Series are combined
  as `node_matching` does: those that have ended count only for a node that has no others, and infinities do not count
  for `max` and `min`.
- The time of a recorded sample is that of the evaluation, not of the scrape. So a sample is recorded while it is no
  older than two intervals, and the maximum age of the recorded series is that of the rule less two intervals: a node
  loses its value at the same age as before, or up to one interval earlier.
- The results of an expression have no times. The changed policy reads them by an expression as well, which has no
  series that Prometheus has marked as ended.
- With `emptyMeans: Healthy`, no series means that all nodes are healthy, and a rule that is not evaluated must not mean
  that. So the recording rule adds a series of no node, and the changed policy has a result of no node without it, which
  fails.

Names are `node:METRIC:nodewise_AGGREGATION`, and `device:METRIC:nodewise_AGGREGATION:LABEL` for device rules. A name
that does not fit into this form, and a query, are replaced by a digest after the aggregation, so that no tenant can
choose a metric whose recorded name is that of another rule.
"""

import hashlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from nodewise.base import clock, distributions
from nodewise.metrics import resource_metrics_api
from nodewise.metrics.metrics_source import MetricRequest, default_max_age_s
from nodewise.metrics.prometheus.node_matching import CLUSTER_LABELS, SeriesLabels
from nodewise.metrics.prometheus.source import instant_query, is_selector, promql_duration
from nodewise.metrics.series import derived_max_age_s, sufficient_max_age_s
from nodewise.policies.placement_policy import PolicyKey

_PREFIX: Final = "node:"
_DEVICE_PREFIX: Final = "device:"
_OPERATION: Final = "nodewise_"  # before the aggregation, so that the names are not those of rules of others
_PLAIN_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,199}")
_RECORDED_NAME: Final = re.compile(
    rf"(?:{_PREFIX}|{_DEVICE_PREFIX})([a-zA-Z_][a-zA-Z0-9_]*):{_OPERATION}(last|max|min|sum|avg)(_[0-9a-f]{{16}})?"
    r"(?::([a-zA-Z_][a-zA-Z0-9_]*))?"
)
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NAME_IN_MATCHERS: Final = re.compile(r"""\{.*["']?__name__["']?\s*=\s*["'`]""", re.DOTALL)
_LAST: Final = "last"  # in the name of a rule without an aggregation
_WINDOW_INTERVALS: Final = 2
"""How old a recorded sample is at most, in intervals: each scrape is in at least one evaluation, also if it is stored
late."""
_MARKER: Final = ("nodewise_rule", "evaluated")  # the label of the series of no node
_FINITE: Final = {"max": " < +Inf", "min": " > -Inf"}
"""The comparison that removes the infinities that would be the result. It removes NaN as well."""
SERIES_LIMIT: Final = 200_000
"""Series of one recording rule, above which Prometheus refuses its result: a tenant's rule must not fill Prometheus."""


class RecordingSettings(NamedTuple):
    """How rules are recorded."""

    labels: SeriesLabels
    interval_s: float = 15.0
    """Between two evaluations."""
    sync_period_s: float = 5.0
    max_age_s: float = 0.0
    """Of rules without their own, as in the settings of the agent; 0 for the default."""
    scrape_interval_s: float = 30.0
    """Of metrics whose distance of samples is not known; the maximum age of such rules follows from it."""
    has_quoted_labels: bool = False
    """Whether Prometheus parses names of labels in quotes, from version 3."""

    @property
    def window_s(self) -> float:
        """How old a recorded sample is at most."""
        return _WINDOW_INTERVALS * self.interval_s

    @property
    def least_max_age_s(self) -> float:
        """The least maximum age of a rule whose metric can be recorded: a failed evaluation leaves no node without a
        value.
        """
        return self.window_s + sufficient_max_age_s(self.interval_s)

    def by(self, device_label: str = "") -> str:
        """The labels that a recorded series keeps."""
        of_nodes = [*self.labels.node, *CLUSTER_LABELS, *sorted(self.labels.replica)]
        names = dict.fromkeys([*of_nodes, *filter(None, [device_label])])
        has_quotes = self.has_quoted_labels or not all(map(_LABEL.fullmatch, self.labels.added))
        quoted = (
            name if _LABEL.fullmatch(name) else '"{}"'.format(name.replace("\\", "\\\\").replace('"', '\\"'))
            for name in names
            if has_quotes or _LABEL.fullmatch(name)
        )
        return ", ".join(quoted)


class RecordedSource(NamedTuple):
    """What a rule of a policy compares: the identity of a recording rule."""

    metric: str
    """Empty for a query."""
    query: str = ""
    aggregate: str = ""
    empty_is_healthy: bool = False
    device_label: str = ""
    """The label that identifies a device, of a rule of `deviceTaints`."""

    @classmethod
    def of_request(cls, request: MetricRequest) -> "RecordedSource":
        """The source of a request that a policy makes."""
        metric = "" if request.query else request.metric
        return cls(
            metric, request.query.strip(), request.aggregate, request.empty_is_healthy, request.device_label
        )

    @property
    def request(self) -> MetricRequest:
        return MetricRequest(
            self.metric,
            self.query,
            0.0,
            self.aggregate,
            self.empty_is_healthy,
            device_label=self.device_label,
        )

    @property
    def expression(self) -> str:
        return instant_query(self.request)

    @property
    def has_sample_times(self) -> bool:
        """Whether nodewise reads the samples with their times, instead of the results of an expression."""
        return is_selector(self.expression)

    @property
    def record(self) -> str:
        """The name of the recorded metric."""
        operation = _OPERATION + (self.aggregate or _LAST)
        label = self.device_label
        prefix = _DEVICE_PREFIX if label else _PREFIX
        if self.metric and _PLAIN_NAME.fullmatch(self.metric) and (not label or _LABEL.fullmatch(label)):
            return f"{prefix}{self.metric}:{operation}" + (f":{label}" if label else "")
        of_device = (label,) if label else ()
        identity = repr((self.metric, self.query, self.aggregate, self.empty_is_healthy, *of_device))
        digest = hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:16]
        # a reason of a rejection has the metric's name, and must not reveal a query
        title = re.sub(r"[^a-zA-Z0-9_]", "_", self.metric)[:80] if self.metric else "query"
        return f"{prefix}{title if _PLAIN_NAME.match(title) else '_' + title}:{operation}_{digest}"

    def why_not_recorded(self) -> str:  # complexity: each reason
        """Why there is no recording rule; empty if there is one."""
        if _RECORDED_NAME.search(self.metric or self.query):
            return "it has a recorded metric whose name does not tell its query: keep the recording rule"
        if not self.query and self.metric in resource_metrics_api.METRICS:
            return "its values are those of metrics-server"
        computed = distributions.own_entry_points(distributions.COMPUTED_METRICS)
        if not self.query and any(entry.name == self.metric for entry in computed):
            return "nodewise computes its values"
        if not self.has_sample_times:
            return ""
        if self.aggregate == "avg":
            return "a mean needs all series: use max, min or sum, or a query such as avg by (node) (…)"
        if self.query and self.query.startswith("{") and not _NAME_IN_MATCHERS.match(self.query):
            return "the query selects series of several metrics"
        return ""


def original_source(metric: str) -> RecordedSource | None:
    """What a recorded metric records, by its name; None for any other metric, and if the name has a digest."""
    match = _RECORDED_NAME.fullmatch(metric)
    if match is None or match[3]:
        return None
    aggregate = "" if match[2] == _LAST else match[2]
    source = RecordedSource(match[1], aggregate=aggregate, device_label=match[4] or "")
    return None if source.why_not_recorded() else source


def rule_expression(source: RecordedSource, settings: RecordingSettings) -> str:
    """The expression of the recording rule of a source that can be recorded."""
    original, by, aggregate = source.expression, settings.by(source.device_label), source.aggregate
    finite = _FINITE.get(aggregate, "")
    if source.has_sample_times:
        newest = f"last_over_time({original}[{promql_duration(settings.window_s)}])"
        if aggregate:
            current = f"{aggregate} by ({by}) ({newest} and {original}{finite})"
            recorded = f"{current}\nor\n{aggregate} by ({by}) ({newest}{finite})"
        else:
            recorded = f"({newest} and {original})\nor\n({newest} unless on ({by}) {original})"
    else:
        # a comment may end the query, so the bracket is in a line of its own
        recorded = f"(\n{original}\n)"
        if aggregate in ("max", "min", "sum"):
            recorded = f"{aggregate} by ({by}) ({recorded}{finite})"
    if source.empty_is_healthy:
        name, value = _MARKER
        recorded = f'{recorded}\nor\nlabel_replace(vector(0), "{name}", "{value}", "", "")'
    return recorded


def recording_groups(
    sources: Collection[RecordedSource], settings: RecordingSettings
) -> list[dict[str, Any]]:
    """The groups of a rule file, by name. Each rule has its own, so that no rule delays or fails another."""
    return [
        {
            "name": source.record,
            "interval": promql_duration(settings.interval_s),
            "limit": SERIES_LIMIT,
            "rules": [{"record": source.record, "expr": rule_expression(source, settings)}],
        }
        for source in sorted(sources, key=lambda source: source.record)
    ]


class ChangedRule(NamedTuple):
    """A rule of a policy, and what happened to it."""

    policy: PolicyKey
    path: str
    source: RecordedSource
    why_not: str = ""
    """Why it is unchanged; empty if it uses the recorded metric."""


class PolicyRecorder:
    """Changes rules of policies so that they use recorded metrics, and collects the recording rules that they need."""

    def __init__(
        self,
        settings: RecordingSettings,
        distances_s: Mapping[RecordedSource, float] = {},
        refusals: Mapping[RecordedSource, str] = {},
    ) -> None:
        """`distances_s` are the distances of the samples of metrics, as far as they are known, and `refusals` say why
        some sources cannot be recorded.
        """
        self.settings = settings
        self._distances_s = distances_s
        self._refusals = refusals
        self.sources: set[RecordedSource] = set()
        """What needs a recording rule."""
        self.rules: list[ChangedRule] = []

    def change(self, key: PolicyKey, spec: Mapping[str, Any], usable: Collection[RecordedSource]) -> Any:
        """The spec of a policy with recorded metrics. `usable` are the sources of its rules that are evaluated."""
        changed = dict(spec)
        for path, section in _sections(key, spec):
            parent = changed
            for name in path[:-1]:
                parent[name] = dict(parent[name])
                parent = parent[name]
            text = ".".join(("spec", *path))
            parent[path[-1]] = [
                self._change_rule(key, f"{text}[{number}]", rule, usable)
                for number, rule in enumerate(section)
            ]
        return changed

    def _change_rule(self, key: PolicyKey, path: str, rule: Any, usable: Collection[RecordedSource]) -> Any:
        if not isinstance(rule, Mapping):
            return rule
        if isinstance(rule.get("all"), list):
            parts = [
                self._change_rule(key, f"{path}.all[{number}]", part, usable)
                for number, part in enumerate(rule["all"])
            ]
            return {**rule, "all": parts}
        source = source_of_rule(rule)
        if source is None or source not in usable:
            return rule
        if (recorded := original_source(source.metric or source.query)) is not None:
            self.sources.add(recorded)  # an earlier run has changed the rule
            return rule
        max_age_s = self._max_age_s(rule, source)
        why_not = self._why_not_recorded(key, source, max_age_s)
        self.rules.append(ChangedRule(key, path, source, why_not))
        if why_not:
            return rule
        self.sources.add(source)
        return self._with_recorded_metric(key, rule, source, max_age_s)

    def _why_not_recorded(self, key: PolicyKey, source: RecordedSource, max_age_s: float) -> str:
        """Why a rule keeps its metric; empty if it is recorded."""
        if why_not := source.why_not_recorded() or self._refusals.get(source, ""):
            return why_not
        label = source.device_label
        if label and not (self.settings.has_quoted_labels or _LABEL.fullmatch(label)):
            return f"the label {label} needs Prometheus 3: give --prometheus-url"
        if key.kind == "TASPolicy" and not source.query:
            return "a TASPolicy cannot name a recorded metric: convert it with nodewise policy convert"
        least_s = self.settings.least_max_age_s
        if not source.has_sample_times or max_age_s >= least_s:
            return ""
        interval_s = math.floor(10 * max_age_s / least_s * self.settings.interval_s) / 10
        return (
            f"its maximum age of {clock.format_duration(max_age_s)} is less than "
            f"{clock.format_duration(least_s)}: give --interval {clock.format_duration(interval_s)}"
        )

    def _max_age_s(self, rule: Mapping[str, Any], source: RecordedSource) -> float:
        """The maximum age of the values of a rule, as nodewise has it."""
        text = rule.get("maxAge", rule.get("max_age"))
        if text is not None:
            return clock.parse_duration(str(text))
        settings = self.settings
        if settings.max_age_s:
            return settings.max_age_s
        distance_s = self._distances_s.get(source, settings.scrape_interval_s)
        return derived_max_age_s(default_max_age_s(settings.sync_period_s), distance_s)

    def _with_recorded_metric(
        self, key: PolicyKey, rule: Mapping[str, Any], source: RecordedSource, max_age_s: float
    ) -> dict[str, Any]:
        left_s = max_age_s - self.settings.window_s
        evaluation_s = sufficient_max_age_s(self.settings.interval_s)
        record = source.record
        if source.has_sample_times and not source.empty_is_healthy:
            age = clock.format_duration(left_s)
            if key.kind == "TASPolicy":
                return {**rule, "query": record, "max_age": age}
            rest = {name: value for name, value in rule.items() if name not in ("metric", "query", "maxAge")}
            return {"metric": record, **rest, "maxAge": age}
        series = f'{record}{{{_MARKER[0]}=""}}' if source.empty_is_healthy else record
        if source.has_sample_times:
            query = f"last_over_time({series}[{promql_duration(left_s)}])"
        else:
            query = f"last_over_time({series}[{promql_duration(evaluation_s)}]) and {series}"
        if source.empty_is_healthy:
            marker = f'{record}{{{_MARKER[0]}="{_MARKER[1]}"}}'
            query = f"{query} or absent_over_time({marker}[{promql_duration(evaluation_s)}])"
        return {**rule, "query": query}


def source_of_rule(  # complexity: each field may have any type
    rule: Mapping[str, Any],
) -> RecordedSource | None:
    """What a rule as written compares; None if it is no valid rule."""
    query, metric = rule.get("query") or "", rule.get("metric") or rule.get("metricname") or ""
    aggregate, label = rule.get("aggregate") or "", rule.get("deviceLabel") or ""
    texts = (query, metric, aggregate, label)
    if not all(isinstance(text, str) for text in texts) or not (query or metric):
        return None
    is_healthy = bool(query) and bool(rule.get("emptyMeans") or rule.get("empty_means"))
    return RecordedSource("" if query else metric, query.strip(), aggregate, is_healthy, label)


def _sections(key: PolicyKey, spec: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Sequence[Any]]]:
    """The path below `spec` of each list of rules, and the list."""
    if key.kind != "TASPolicy":
        paths: list[tuple[str, ...]] = [("avoid",), ("prefer",), ("nodeLabels",), ("deviceTaints",)]
    else:
        strategies = spec.get("strategies")
        paths = (
            [("strategies", name, "rules") for name in strategies] if isinstance(strategies, Mapping) else []
        )
    for path in paths:
        section: Any = spec
        for name in path:
            section = section.get(name) if isinstance(section, Mapping) else None
        if isinstance(section, list):
            yield path, section
