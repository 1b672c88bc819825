"""`nodewise policy`: writes policies, and checks, tests and converts them without a cluster."""

import io
import itertools
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import click
import msgspec

from nodewise.base.errors import BadInput, NodewiseError, Problem, Unavailable, counted, did_you_mean, shown
from nodewise.base.option import Argument, Option
from nodewise.cli import terminal_output
from nodewise.cli.main import CommandTable
from nodewise.cli.options_from_settings import CommandLine, settings_command
from nodewise.cli.parameter_types import FilePath
from nodewise.cli.setting_declarations import CommandOptions
from nodewise.cli.terminal_output import DONE, NO
from nodewise.kube import object_files
from nodewise.kube.object_files import SUFFIXES, ObjectLineFinder
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.policies.placement_policy import PolicyKey
from nodewise.policies.policy_objects import RESOURCES, PolicyObject

if TYPE_CHECKING:
    from nodewise.metrics.prometheus.client import PrometheusClient
    from nodewise.policy_tools.query_lint import PrometheusFacts


class LintedPolicy(NamedTuple):
    """A policy, its problems and its notes, each with its line in the source; 0 if the line is unknown."""

    policy: PolicyKey
    source: str
    problems: Sequence[tuple[int, Problem]]
    notes: Sequence[tuple[int, Problem]] = ()
    """Of a policy without problems."""


_NAMES_RANGE_S: Final = 3600.0  # metrics that ended longer ago are unknown
_LABEL_NAME: Final = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")
_GROUPS: Final = frozenset(resource.group for resource in RESOURCES.values())
"""The API groups of all kinds of policies."""
_MAX_FOLDERS: Final = 1000
"""Folders that are searched for policies. A folder with the sources of many programs takes more than a minute."""
_MAX_MANIFEST_BYTES: Final = 2**20
"""Larger files in subfolders are data."""
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"  # the annotation of `kubectl apply`


@click.group(
    cls=CommandTable,
    commands_of={
        "convert": ("nodewise.cli.policy:convert", "Convert TASPolicies in files."),
        "lint": ("nodewise.cli.policy:lint", "List problems of policies in files."),
        # most of these need the sources of metrics
        "backtest": ("nodewise.cli.policy_backtest", "Evaluate policies over the history of their metrics."),
        "diff": ("nodewise.cli.policy_diff", "Show what changes if policies replace others."),
        "library": ("nodewise.cli.policy_library", "List policies to begin with."),
        "new": ("nodewise.cli.policy_new", "Print a policy with a threshold that fits a metric."),
        "recording-rules": (
            "nodewise.cli.policy_recording_rules",
            "Print rules with which Prometheus records the metrics of policies.",
        ),
        "test": ("nodewise.cli.policy_test", "Run tests of policies."),
    },
)
def command() -> None:
    """Write policies, check and test them before you apply them, and convert those of Telemetry Aware Scheduling.

    \b
    Examples:
      nodewise policy new --metric health_metric --above 0
      nodewise policy lint examples/health-metric
      nodewise policy test examples/health-metric
      nodewise policy convert examples/taspolicy/policy.yaml
      nodewise policy backtest policy.yaml --prometheus-url http://localhost:9090
    """


class LintOptions(CommandOptions, frozen=True, kw_only=True):
    """Options of `nodewise policy lint`."""

    paths: Annotated[tuple[str, ...], Argument(metavar="FILE...", is_required=True, type=FilePath())] = ()

    output: Annotated[Literal["text", "json"], Option("-o --output")] = "text"
    """Output format."""

    ignore_other_files: bool = False
    """Ignore files without policies, also if they are no valid YAML."""


@settings_command("lint", LintOptions, PrometheusOptions, short_help="List problems of policies in files.")
def lint(command_line: CommandLine) -> None:
    """List every problem of the policies in files or folders (- is standard input).

    Policies are PlacementPolicies, ClusterPlacementPolicies and TASPolicies. Problems are everything for which the API
    server rejects a policy: wrong types, unknown fields, values that do not match. They are also parts without effect,
    such as rules of a TASPolicy without a target, and queries with unbalanced brackets or whose results never meet the
    rule. In a cluster, a policy with an unknown field rejects its pods. Notes name fields of a PlacementPolicy that
    never apply, queries whose results have no label of a node, shares that are compared with a percentage, misspelled
    metrics of nodewise, and attributes of devices that no ResourceSlice in FILE has; they are no problems. With
    --prometheus-url, Prometheus parses the queries, and its errors are problems; notes name metrics, and labels of
    devices, that it does not have.

    \b
    Examples:
      nodewise policy lint examples/health-metric
      nodewise policy lint policies --prometheus-url http://localhost:9090
      kubectl get plp,cplp -A -o yaml | nodewise policy lint - -o json

    \b
    Exit codes:
      0  no problem
      1  no policy, an unknown kind, or a file or Prometheus that cannot be read
      2  the command line or a setting is invalid
      3  problems
    """
    own, prometheus = command_line.settings(LintOptions), command_line.settings(PrometheusOptions)
    stdin = sys.stdin.buffer.read() if "-" in own.paths else b""
    sources = ObjectLineFinder(stdin)
    _report_unread_subfolders(own.paths, _GROUPS)
    policies, objects = _read_policies(own, stdin)
    facts = _prometheus_facts([entry for _, entry in policies], prometheus)
    checked = [_lint_policy(key, entry, sources, facts, objects) for key, entry in policies]
    if own.output == "json":
        click.echo(msgspec.json.encode({"policies": [_policy_document(entry) for entry in checked]}))
    else:
        _print_problems(checked)
    click.get_current_context().exit(NO if any(entry.problems for entry in checked) else DONE)


def _read_policies(
    own: LintOptions, stdin: bytes
) -> tuple[list[tuple[PolicyKey, object_files.FileObject]], object_files.FileObjects]:
    """The policies of all paths, and all objects. `BadInput` if there are none and other files are not ignored."""
    paths: Sequence[str | Path] = own.paths
    if own.ignore_other_files:
        files = [file for path in own.paths for file in object_files.list_files(Path(path), [])]
        paths = [file for file in files if _may_contain_policy(file, _GROUPS)]
    objects = object_files.read(paths, io.BytesIO(stdin))
    _check_kinds(objects)
    policies = list(_policies(objects))
    if not policies and not own.ignore_other_files:
        kinds = " or ".join(RESOURCES)
        raise BadInput("policy lint", [Problem(" ".join(own.paths), "no policy", f"at least one {kinds}")])
    return policies, objects


def _check_kinds(objects: object_files.FileObjects) -> None:
    """`BadInput` names each object of a group of policies whose kind is unknown."""
    misspelt = [
        Problem(
            entry.where,
            f"the kind {shown(kind)}",
            f"{' or '.join(RESOURCES)}{did_you_mean(kind, list(RESOURCES))}",
        )
        for group, kind in objects.kinds()
        if group in _GROUPS and kind not in RESOURCES
        for entry in objects.entries(group, kind)
    ]
    if misspelt:
        raise BadInput("policy lint", misspelt)


def _may_contain_policy(file: Path, groups: Iterable[str]) -> bool:
    """Whether a file has the apiVersion of a policy of these API groups; true for no file, and if it cannot be read."""
    if not _is_file(file):
        return True
    pattern = rf"""apiVersion["']?\s*:\s*["']?({"|".join(map(re.escape, groups))})/"""
    try:
        return re.search(pattern.encode(), file.read_bytes()) is not None
    except OSError:
        return True


def _is_file(path: Path) -> bool:
    """`Path.is_file` raises OSError if a name is too long, or a folder must not be searched."""
    return os.path.isfile(path)  # noqa: PTH113


def _report_unread_subfolders(paths: Iterable[str], groups: Iterable[str]) -> None:
    """Name a subfolder with policies of each folder that is read: the files in subfolders are not."""
    for path in paths:
        if folder := _find_subfolder_with_policies(path, groups):
            terminal_output.print_message(
                f"Note: {path}: policies in subfolders are not read, such as those in {folder}"
            )


def _find_subfolder_with_policies(path: str, groups: Iterable[str]) -> str:
    """Empty if there is none among the first subfolders, or the path is no folder."""
    for folder, subfolders, names in itertools.islice(os.walk(path), _MAX_FOLDERS):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        files = [Path(folder, name) for name in names if Path(name).suffix in SUFFIXES]
        manifests = [file for file in files if _is_file(file) and file.stat().st_size <= _MAX_MANIFEST_BYTES]
        if folder != path and any(_may_contain_policy(file, groups) for file in manifests):
            return folder
    return ""


def _prometheus_facts(
    policies: Sequence[object_files.FileObject], options: PrometheusOptions
) -> "PrometheusFacts":
    """The labels of nodes and, with a URL, the errors of Prometheus' parser, the names of metrics, and the labels of
    series of device rules. All servers parse each query.
    """
    # start-up time: no other command needs them
    from nodewise.policy_tools.query_lint import PrometheusFacts, device_rules, rules_with_query

    if not options.prometheus_url:
        return PrometheusFacts(options.prometheus_node_label)
    import asyncio

    from nodewise.metrics.prometheus.client import MAX_METRIC_NAMES, PrometheusClient, PrometheusConnection
    from nodewise.observe.metrics_registry import MetricsRegistry

    specs = [msgspec.json.decode(entry.data).get("spec") for entry in policies]
    labels: dict[str, set[str]] = {}
    for spec in specs:
        for _, label, query in device_rules(spec):
            labels.setdefault(query, set()).add(label)
    queries = dict.fromkeys(rule["query"] for spec in specs for _, rule in rules_with_query("spec", spec))

    async def ask() -> tuple[dict[str, str], set[str], dict[str, set[str]]]:
        errors: dict[str, str] = {}
        names: set[str] = set()
        result_labels: dict[str, set[str]] = {}
        is_complete = True
        for url in options.prometheus_url:
            connection = PrometheusConnection(url, options, MetricsRegistry())
            try:
                client = PrometheusClient(connection, options.prometheus_timeout_s)
                errors |= {query: error for query in queries if (error := await client.parse_error(query))}
                for query, expected in labels.items():
                    if query not in errors:
                        result_labels.setdefault(query, set()).update(
                            await _result_labels(client, query, expected)
                        )
                try:
                    own_names = await client.metric_names(time.time() - _NAMES_RANGE_S)
                except Unavailable:
                    raise
                except NodewiseError as error:  # a gateway may allow only queries
                    terminal_output.print_message(f"Warning: the names of metrics are not known: {error}")
                    is_complete = False
                    continue
            finally:
                await connection.http.aclose()
            names.update(own_names)
            is_complete &= len(own_names) < MAX_METRIC_NAMES
        return errors, names if is_complete else set(), result_labels

    return PrometheusFacts(options.prometheus_node_label, *asyncio.run(ask()))


async def _result_labels(client: "PrometheusClient", query: str, labels: Iterable[str]) -> set[str]:
    """The labels of some results of a query, and those of `labels` that any result has or may have."""
    from nodewise.metrics.prometheus.query_responses import newest_values  # start-up time

    queries = [f"topk(20, {query}\n)"]
    queries += [
        f"bottomk(2, count by ({label}) ({query}\n))"
        for label in sorted(labels)
        if _LABEL_NAME.fullmatch(label)
    ]
    names: set[str] = set()
    try:
        for each in queries:
            names.update(*(value.labels for value in newest_values(await client.query(each))))
    except NodewiseError:  # lint names invalid queries, and missing values are no problem of the policy
        return set(labels)
    return names - {"__name__"}


def _policies(objects: object_files.FileObjects) -> Iterator[tuple[PolicyKey, object_files.FileObject]]:
    """The policies of all kinds, in the order of the kinds and of the files."""
    for kind, resource in RESOURCES.items():
        entries = objects.entries(resource.group, resource.kind)
        for policy, entry in zip(objects.of(resource, PolicyObject), entries, strict=True):
            namespace = policy.metadata.namespace if resource.namespaced else ""
            yield PolicyKey(kind, namespace, policy.metadata.name), entry


@click.command("convert", short_help="Convert TASPolicies in files.")
@click.option(
    "--when-missing",
    type=click.Choice(["pass", "reject"]),
    default="pass",
    show_default=True,
    help="The setting of the extender, which applies to rules without when_missing.",
)
@click.argument("paths", nargs=-1, required=True, metavar="FILE...", type=FilePath())
@click.pass_context
def convert(ctx: click.Context, paths: Sequence[str], when_missing: Literal["pass", "reject"]) -> None:
    """Convert TASPolicies in files or folders (- is standard input).

    Prints a PlacementPolicy for rules with metric names, and a ClusterPlacementPolicy for node labels and rules with a
    query. Both select the pods that name the TASPolicy, and have the same verdicts and ranks. Comments name every
    difference. Policies that the new kinds cannot express, and parts of policies that have no effect, such as invalid
    labels, are named on stderr and left out.

    \b
    Examples:
      nodewise policy convert examples/taspolicy/policy.yaml
      kubectl get taspolicies -A -o yaml | nodewise policy convert -

    \b
    Exit codes:
      0  every policy is converted as a whole
      1  a file cannot be read, or contains no TASPolicy
      2  the command line or a setting is invalid
      3  a policy, or a part of one, is not converted
    """
    from nodewise.policy_tools import policy_writer, taspolicy_conversion  # start-up time

    stdin = sys.stdin.buffer.read() if "-" in paths else b""
    resource = RESOURCES["TASPolicy"]
    _report_unread_subfolders(paths, {resource.group})
    objects = object_files.read(paths, io.BytesIO(stdin))
    policies = objects.of(resource, PolicyObject)
    if not policies:
        raise BadInput("policy convert", [Problem(" ".join(paths), "no TASPolicy", "at least one TASPolicy")])
    sources = ObjectLineFinder(stdin)
    documents: list[str] = []
    all_converted = True
    for policy, entry in zip(policies, objects.entries(resource.group, resource.kind), strict=True):
        metadata = msgspec.json.decode(entry.data)["metadata"]
        fields = [metadata.get(field) for field in ("labels", "annotations")]
        keys = [key for field in fields if isinstance(field, dict) for key in field if key != _LAST_APPLIED]
        conversion = taspolicy_conversion.convert(policy, when_missing, keys)
        documents += [policy_writer.format_policy(*converted) for converted in conversion.policies]
        key = PolicyKey("TASPolicy", policy.metadata.namespace, policy.metadata.name)
        for problem in (*conversion.problems, *conversion.left_out):
            all_converted = False
            line = sources.line(entry.location, problem.field)
            terminal_output.print_message(
                f"not converted: {_problem_line(key, entry.location.source, line, problem)}"
            )
    click.echo("---\n".join(documents), nl=False)
    ctx.exit(DONE if all_converted else NO)


def _lint_policy(
    key: PolicyKey,
    entry: object_files.FileObject,
    sources: ObjectLineFinder,
    prometheus: "PrometheusFacts",
    objects: object_files.FileObjects,
) -> LintedPolicy:
    # start-up time: no other command needs them
    from nodewise.devices.resource_slices import ResourceSliceObject
    from nodewise.kube.resource_kinds import RESOURCE_SLICES
    from nodewise.metrics.metrics_source import RefreshOptions
    from nodewise.policy_tools import policy_lint

    def with_lines(problems: Iterable[Problem]) -> list[tuple[int, Problem]]:
        numbered = [(sources.line(entry.location, problem.field), problem) for problem in problems]
        return sorted(numbered, key=lambda pair: pair[0])

    problems = with_lines(policy_lint.lint(entry.data, key.kind, prometheus))
    sync_period_s = RefreshOptions().sync_period_s
    has_devices = b'"deviceTaints"' in entry.data
    slices = objects.of(RESOURCE_SLICES, ResourceSliceObject) if has_devices else []
    notes = with_lines(policy_lint.notes(entry.data, key.kind, sync_period_s, prometheus, slices))
    return LintedPolicy(key, entry.location.source, problems, notes)


def _policy_document(checked: LintedPolicy) -> dict[str, Any]:
    def documents(numbered: Sequence[tuple[int, Problem]]) -> list[dict[str, Any]]:
        return [
            {**problem.to_dict(), "file": checked.source, "line": line or None} for line, problem in numbered
        ]

    return {
        "policy": checked.policy.path,
        "kind": checked.policy.kind,
        "problems": documents(checked.problems),
        "notes": documents(checked.notes),
    }


def _problem_line(policy: PolicyKey, source: str, line: int, problem: Problem, severity: str = "") -> str:
    """`policies.yaml:9: web/cool: spec.avoid[0].above: found 0.5, expected …`."""
    at = f"{source}:{line}" if line else source
    expected = f", expected {problem.expected}" if problem.expected else ""
    return f"{at}: {policy.path}: {severity}{problem.field}: found {problem.found}{expected}"


def _print_problems(checked: Sequence[LintedPolicy]) -> None:
    for entry in checked:
        for line, problem in entry.problems:
            terminal_output.print_line(_problem_line(entry.policy, entry.source, line, problem))
        for line, note in entry.notes:
            terminal_output.print_line(_problem_line(entry.policy, entry.source, line, note, "Note: "))
    bad = sum(bool(entry.problems) for entry in checked)
    result = f"{bad} with problems" if bad else "no problem"
    click.echo(f"{counted(len(checked), 'policy', 'policies')}, {result}")
