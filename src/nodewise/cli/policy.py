"""`nodewise policy`: checks policies without a cluster."""

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from nodewise import safe_yaml_loader
from nodewise.agents.telemetry.placement_policy import PolicyKey
from nodewise.agents.telemetry.policy_objects import RESOURCES, PolicyObject
from nodewise.cli import terminal_output
from nodewise.cli.exit_codes import DONE, NO
from nodewise.cli.options_from_settings import output_option
from nodewise.errors import BadInput, Problem
from nodewise.kube import object_files, yaml_json_documents


class LintedPolicy(NamedTuple):
    """A policy and its problems, each with its line in the source; 0 if the line is unknown."""

    policy: PolicyKey
    source: str
    problems: Sequence[tuple[int, Problem]]


@click.group()
def command() -> None:
    """Check policies before you apply them.

    \b
    Example:
      nodewise policy lint examples/health-metric
    """


@command.command(params=[output_option(["text", "json"])])
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.pass_context
def lint(ctx: click.Context, paths: Sequence[str], output: str) -> None:
    """List every problem of the policies in files or folders (- is standard input).

    Policies are PlacementPolicies, ClusterPlacementPolicies and TASPolicies. Problems are everything for which the API
    server rejects a policy: wrong types, unknown fields, values that do not match. They are also parts without effect,
    such as rules of a TASPolicy without a target. In a cluster, a policy with an unknown field rejects its pods.

    \b
    Examples:
      nodewise policy lint examples/health-metric
      kubectl get plp,cplp -A -o yaml | nodewise policy lint - -o json

    \b
    Exit codes:
      0  no problem
      1  a file cannot be read, or contains no policy
      2  the command line or a setting is invalid
      3  problems
    """
    stdin = sys.stdin.buffer.read() if "-" in paths else b""
    objects = object_files.read(paths, io.BytesIO(stdin))
    sources = _LineFinder(stdin)
    checked = [_lint_policy(key, entry, sources) for key, entry in _policies(objects)]
    if not checked:
        kinds = " or ".join(RESOURCES)
        raise BadInput("policy lint", [Problem(" ".join(paths), "no policy", f"at least one {kinds}")])
    if output == "json":
        click.echo(msgspec.json.encode({"policies": [_policy_document(entry) for entry in checked]}))
    else:
        _print_problems(checked)
    ctx.exit(NO if any(entry.problems for entry in checked) else DONE)


def _policies(objects: object_files.FileObjects) -> Iterator[tuple[PolicyKey, object_files.FileObject]]:
    """The policies of all kinds, in the order of the kinds and of the files."""
    for kind, resource in RESOURCES.items():
        entries = objects.entries(resource.group, resource.kind)
        for policy, entry in zip(objects.of(resource, PolicyObject), entries, strict=True):
            namespace = policy.metadata.namespace if resource.namespaced else ""
            yield PolicyKey(kind, namespace, policy.metadata.name), entry


class _LineFinder:
    """Finds the lines of fields in files, which it reads again for that."""

    def __init__(self, stdin: bytes) -> None:
        self._stdin = stdin
        self._documents: dict[str, list[Any]] = {}

    def line(self, location: object_files.ObjectLocation, field: str) -> int:
        """The line of an object's field; 0 if it is not known."""
        source, document, items = location
        if source not in self._documents:
            text = self._stdin if source == object_files.STDIN else Path(source).read_bytes()
            try:
                self._documents[source] = safe_yaml_loader.compose_all(text, source)
            except BadInput:  # several JSON documents in a row, for example, which are no YAML together
                self._documents[source] = []
        if document > len(self._documents[source]):
            return 0
        path = ".".join([*(f"items[{position}]" for position in items), field])
        return yaml_json_documents.line_of_field(self._documents[source][document - 1], path)


def _lint_policy(key: PolicyKey, entry: object_files.FileObject, sources: _LineFinder) -> LintedPolicy:
    from nodewise.agents.telemetry import policy_lint  # start-up time: no other command needs it

    problems = [
        (sources.line(entry.location, problem.field), problem)
        for problem in policy_lint.lint(entry.data, key.kind)
    ]
    return LintedPolicy(key, entry.location.source, sorted(problems, key=lambda numbered: numbered[0]))


def _policy_document(checked: LintedPolicy) -> dict[str, Any]:
    problems = [
        {**problem.to_dict(), "file": checked.source, "line": line or None}
        for line, problem in checked.problems
    ]
    return {"policy": checked.policy.path, "kind": checked.policy.kind, "problems": problems}


def _print_problems(checked: Sequence[LintedPolicy]) -> None:
    for entry in checked:
        for line, problem in entry.problems:
            at = f"{entry.source}:{line}" if line else entry.source
            expected = f", expected {problem.expected}" if problem.expected else ""
            terminal_output.print_line(
                f"{at}: {entry.policy.path}: {problem.field}: found {problem.found}{expected}"
            )
    bad = sum(bool(entry.problems) for entry in checked)
    counted = "1 policy" if len(checked) == 1 else f"{len(checked)} policies"
    click.echo(f"{counted}, {bad} with problems" if bad else f"{counted}, no problem")
