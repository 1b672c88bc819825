"""`nodewise policy recording-rules`: rules with which Prometheus records the metrics of policies by node."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec

from nodewise.agents.telemetry import KIND
from nodewise.base import cooperative_scheduling
from nodewise.base.errors import BadInput, BadSettings, Problem, Unavailable, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import ClusterOptions, CommandLine, settings_command
from nodewise.cli.parameter_types import FilePath
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.engine import object_feed
from nodewise.kube import object_files
from nodewise.kube.api_client_creation import open_api
from nodewise.metrics.metrics_source import RefreshOptions
from nodewise.metrics.prometheus import query_responses
from nodewise.metrics.prometheus.client import PrometheusClient, PrometheusConnection
from nodewise.metrics.prometheus.node_matching import series_labels
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.metrics.prometheus.source import promql_duration
from nodewise.metrics.series import LOOKBACK_S, typical_distance_s
from nodewise.observe import logs
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.policy_objects import RESOURCES, PolicyMetadata, PolicyObject
from nodewise.policies.state import POLICY_KINDS
from nodewise.policy_tools import policy_timeline, policy_writer, query_lint, recording_rules
from nodewise.policy_tools.policy_timeline import Objects
from nodewise.policy_tools.recording_rules import (
    ChangedRule,
    PolicyRecorder,
    RecordedSource,
    RecordingSettings,
)

_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_GROUPS_PER_OBJECT: Final = 200  # the operator of Prometheus refuses objects of more than half a MiB


class RecordingRulesOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise policy recording-rules`."""

    paths: Annotated[tuple[str, ...], Argument(metavar="[FILE]...", is_required=False, type=FilePath())] = ()

    cluster: bool = False
    """Read the policies of the cluster."""

    output: Annotated[Literal["rules", "prometheusrule", "policies"], Option("-o --output")] = "rules"
    """What to print: a rule file of Prometheus, PrometheusRule objects of its operator, or the policies with the
    recorded metrics."""

    interval_s: Annotated[float, Option("--interval", metavar="DURATION"), msgspec.Meta(ge=1)] = 15.0
    """Time between two evaluations of a rule. Verdicts follow a metric so much later."""

    scrape_interval_s: Annotated[
        float, Option("--scrape-interval", metavar="DURATION"), msgspec.Meta(ge=1)
    ] = 30.0
    """Distance of samples, from which the maximum age of a rule without maxAge follows, for metrics whose distance is
    not measured with --prometheus-url."""

    name: Annotated[str, Option(metavar="NAME")] = "nodewise-recording"
    """Name of the PrometheusRule objects."""

    label: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE")] = ()
    """Label of the PrometheusRule objects, for the ruleSelector of Prometheus; repeat it for several."""


class _DocumentMetadata(PolicyMetadata, frozen=True):
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None


class _PolicyDocument(PolicyObject, frozen=True):
    """A policy with the metadata that is written again."""

    metadata: _DocumentMetadata = _DocumentMetadata()


class _PrometheusFacts(NamedTuple):
    """What Prometheus says about the sources of rules."""

    has_quoted_labels: bool = False
    distances_s: Mapping[RecordedSource, float] = {}
    refusals: Mapping[RecordedSource, str] = {}


@settings_command(
    "recording-rules",
    RecordingRulesOptions,
    ClusterOptions,
    RefreshOptions,
    PrometheusOptions,
    kinds=[KIND],
    short_help="Print rules with which Prometheus records the metrics of policies.",
)
def command(command_line: CommandLine) -> None:
    """Print recording rules of Prometheus for the metrics of policies in files or folders, or in the cluster.

    A recorded metric has one series per node, or per device for deviceTaints, so that Prometheus responds in constant
    time, also with millions of series. -o policies prints the policies with the recorded metrics, whose verdicts are
    the same, at most one --interval later. Apply the rules first. Rules that cannot be recorded are named on stderr and
    stay as they are. With --prometheus-url, Prometheus parses the rules, and the maximum age of values follows from its
    samples.

    \b
    Examples:
      nodewise policy recording-rules policies > recording.yaml
      nodewise policy recording-rules --cluster -o prometheusrule \\
        --label release=prometheus | kubectl apply -n monitoring -f -
      nodewise policy recording-rules policies -o policies \\
        --prometheus-url http://localhost:9090 > recorded-policies.yaml

    \b
    Exit codes:
      0  all rules of the policies are recorded
      1  no policy, or a file, the cluster or Prometheus cannot be read
      2  the command line or a setting is invalid
      3  a rule is not recorded
    """
    logs.configure("error", "messages")
    own = command_line.settings(RecordingRulesOptions)
    if bool(own.paths) == own.cluster:
        actual = "FILE together with --cluster" if own.paths else "no file"
        expected = "either files with policies, or --cluster"
        raise BadSettings("settings", [Problem("FILE", actual, expected)])
    texts = own.label
    labels = dict(text.split("=", 1) for text in texts if "=" in text)
    if len(labels) < len(texts):
        wrong = next((text for text in texts if "=" not in text), texts[0])
        raise BadSettings("settings", [Problem("--label", shown(wrong), "NAME=VALUE, each name once")])
    recorder, policies, not_evaluated = cooperative_scheduling.run_event_loop(_record(own, command_line))
    if own.output == "policies":
        documents = policies
    else:
        groups = recording_rules.recording_groups(recorder.sources, recorder.settings)
        documents = [{"groups": groups}] if own.output == "rules" else _rule_objects(own.name, labels, groups)
    click.echo("---\n".join(map(policy_writer.format_policy, documents)), nl=False)
    unchanged = _describe_unchanged_rules(recorder.rules, not_evaluated)
    for text in unchanged:
        terminal_output.print_message(f"not recorded: {text}")
    click.get_current_context().exit(terminal_output.NO if unchanged else terminal_output.DONE)


def _describe_unchanged_rules(
    rules: Sequence[ChangedRule], not_evaluated: Mapping[PolicyKey, str]
) -> list[str]:
    """Each rule that keeps its metric, then the policies with rules that are not evaluated."""
    kept = [
        f"{rule.policy.text()}: {rule.path}: {shown(rule.source.query or rule.source.metric)}: {rule.why_not}"
        for rule in rules
        if rule.why_not
    ]
    return kept + [f"{key.text()}: rules that are not evaluated: {why}" for key, why in not_evaluated.items()]


async def _record(
    own: RecordingRulesOptions, command_line: CommandLine
) -> tuple[PolicyRecorder, list[dict[str, Any]], dict[PolicyKey, str]]:
    """The recorder of all policies, the changed policies, and why rules of some policies are not evaluated."""
    options = command_line.agent_options(KIND)
    assert isinstance(options, TelemetryOptions)
    objects = await _read_objects(own, command_line.settings(ClusterOptions), options)
    sync_period_s = command_line.settings(RefreshOptions).sync_period_s
    parsed = KIND.state(options, sync_period_s).policies(objects)
    usable = {
        key: frozenset(
            RecordedSource.of_request(comparison.metric_request())
            for comparison in (*policy.usable_comparisons(), *policy.device_comparisons())
        )
        for key, policy in parsed.items()
    }
    not_evaluated = {
        key: why
        for key, policy in parsed.items()
        if (
            why := policy.not_trusted
            or next(filter(None, (each.unusable for each in policy.comparisons())), "")
        )
    }
    sources = frozenset[RecordedSource]().union(*usable.values())
    prometheus = command_line.settings(PrometheusOptions)
    settings = RecordingSettings(
        series_labels(prometheus), own.interval_s, sync_period_s, options.max_age_s, own.scrape_interval_s
    )
    if prometheus.prometheus_url:
        facts = await _ask_prometheus(prometheus, sources, settings)
    else:
        facts = _facts_without_prometheus(sources)
    recorder = PolicyRecorder(
        settings._replace(has_quoted_labels=facts.has_quoted_labels), facts.distances_s, facts.refusals
    )
    policies = [
        _changed_document(PolicyKey(kind, *name), policy, recorder, usable)
        for plural, kind in POLICY_KINDS.items()
        for name, policy in objects[plural].items()
    ]
    return recorder, policies, not_evaluated


async def _read_objects(
    own: RecordingRulesOptions, cluster: ClusterOptions, options: TelemetryOptions
) -> Objects:
    """The policies and namespaces of the files or the cluster, as the agent reads them."""
    watched = [
        each._replace(type=_PolicyDocument) if each.name in POLICY_KINDS else each
        for each in KIND.watched(options)
        if each.name in (*POLICY_KINDS, NAMESPACES)
    ]
    if own.cluster:
        async with open_api(cluster.kube) as api:
            return {each.name: await object_feed.list_once(api, each) for each in watched}
    objects = policy_timeline.select_objects(object_files.read(own.paths), watched)
    if not any(objects[name] for name in POLICY_KINDS):
        expected = f"at least one {' or '.join(RESOURCES)}"
        raise BadInput("policy recording-rules", [Problem(" ".join(own.paths), "no policy", expected)])
    return objects


def _facts_without_prometheus(sources: Collection[RecordedSource]) -> _PrometheusFacts:
    """One query that Prometheus cannot parse would make it refuse the whole file: those in doubt are refused."""
    why = "the syntax of the query is not known: give --prometheus-url, so that Prometheus parses it"
    queries = [source for source in sources if source.query]
    unknown = [source for source in queries if not query_lint.has_known_syntax(source.query)]
    if len(unknown) < len(queries):
        terminal_output.print_message(
            "Warning: Prometheus has not parsed the queries, and refuses a file with one that it cannot parse: "
            "give --prometheus-url, or check the rules with promtool check rules"
        )
    return _PrometheusFacts(refusals=dict.fromkeys(unknown, why))


async def _ask_prometheus(
    options: PrometheusOptions, sources: Collection[RecordedSource], settings: RecordingSettings
) -> _PrometheusFacts:
    """What the first Prometheus says about rules and metrics. An error of one query affects no other source."""
    [url, *_] = options.prometheus_url
    connection = PrometheusConnection(url, options, MetricsRegistry())
    client = PrometheusClient(connection, options.prometheus_timeout_s)
    distances_s: dict[RecordedSource, float] = {}
    refusals: dict[RecordedSource, str] = {}
    try:
        has_quoted_labels = not await client.parse_error('count by ("a.b") (up)')
        settings = settings._replace(has_quoted_labels=has_quoted_labels)
        for source in sources:
            if source.why_not_recorded() or recording_rules.original_source(source.metric or source.query):
                continue
            # the result of a rule is a vector, which `count` requires
            if error := await client.parse_error(
                f"count(\n{recording_rules.rule_expression(source, settings)}\n)"
            ):
                refusals[source] = f"Prometheus cannot parse its recording rule: {error}"
            elif source.has_sample_times:
                counts = f"count_over_time({source.expression}[{promql_duration(LOOKBACK_S)}])"
                try:
                    answer = await client.query(f"quantile(0.5, {counts})")
                except Unavailable as error:
                    terminal_output.print_message(
                        f"Warning: the distance of samples of {shown(source.expression)} is not measured, and "
                        f"counts as --scrape-interval: {error}"
                    )
                    continue
                count = next((float(item.value) for item in query_responses.newest_values(answer)), 0.0)
                if not count:
                    refusals[source] = "Prometheus has no series of it"
                distance_s = typical_distance_s([LOOKBACK_S / count] if count > 1 else [])
                distances_s[source] = distance_s or LOOKBACK_S
    finally:
        await connection.http.aclose()
    return _PrometheusFacts(has_quoted_labels, distances_s, refusals)


def _changed_document(
    key: PolicyKey,
    policy: _PolicyDocument,
    recorder: PolicyRecorder,
    usable: Mapping[PolicyKey, Collection[RecordedSource]],
) -> dict[str, Any]:
    """The policy as it is applied, with recorded metrics."""
    resource, metadata = RESOURCES[key.kind], policy.metadata
    annotations = {name: text for name, text in (metadata.annotations or {}).items() if name != _LAST_APPLIED}
    fields = {
        "name": metadata.name,
        "namespace": metadata.namespace if resource.namespaced else "",
        "labels": metadata.labels,
        "annotations": annotations,
    }
    spec = msgspec.json.decode(policy.spec)
    return {
        "apiVersion": f"{resource.group}/{resource.version}",
        "kind": key.kind,
        "metadata": {name: value for name, value in fields.items() if value},
        "spec": recorder.change(key, spec, usable.get(key, ())) if isinstance(spec, Mapping) else spec,
    }


def _rule_objects(
    name: str, labels: Mapping[str, str], groups: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The groups as objects of the operator of Prometheus, of limited size."""
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {
                "name": f"{name}-{start // _GROUPS_PER_OBJECT + 1}" if start else name,
                **({"labels": dict(labels)} if labels else {}),
            },
            "spec": {"groups": list(groups[start : start + _GROUPS_PER_OBJECT])},
        }
        for start in range(0, max(len(groups), 1), _GROUPS_PER_OBJECT)
    ]
