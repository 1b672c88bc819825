"""`nodewise policy`: check policies before a cluster does."""

from collections.abc import Sequence

import click
import msgspec

from nodewise.agents.telemetry import TASPOLICIES
from nodewise.agents.telemetry import policy as policies
from nodewise.agents.telemetry.policy import PolicyObject
from nodewise.cli import forms, lines
from nodewise.cli.exits import DONE, NO
from nodewise.errors import BadInput, Problem
from nodewise.kube import files


@click.group()
def command() -> None:
    """Check policies before a cluster does.

    \b
    Example:
      nodewise policy lint examples/health-metric
    """


@command.command(params=[forms.option(["text", "json"])])
@click.argument("paths", nargs=-1, required=True, metavar="FILE...")
@click.pass_context
def lint(ctx: click.Context, paths: Sequence[str], output: str) -> None:
    """Name every problem of the TASPolicies in these files or folders (- is standard input).

    An extender reads such policies all the same, as laxly as Telemetry Aware Scheduling did; a rule that cannot be
    evaluated rejects every node.

    \b
    Examples:
      nodewise policy lint examples/health-metric
      kubectl get taspolicies -A -o yaml | nodewise policy lint - -o json

    \b
    Exit codes:
      0  no problem
      1  a file cannot be read, or holds no TASPolicy
      2  the command line or a setting is wrong
      3  problems
    """
    read = [policies.read(one) for one in files.read(paths).of(TASPOLICIES, PolicyObject)]
    if not read:
        raise BadInput("policy lint", [Problem(" ".join(paths), "no TASPolicy", "at least one")])
    rows = [
        {"policy": f"{one.namespace}/{one.name}", "problems": [problem._asdict() for problem in one.problems]}
        for one in read
    ]
    if output == "json":
        click.echo(msgspec.json.encode({"policies": rows}))
    else:
        for one in read:
            for problem in one.problems:
                lines.say(f"{one.namespace}/{one.name}: {problem}")
        bad = sum(bool(one.problems) for one in read)
        counted = "1 policy" if len(read) == 1 else f"{len(read)} policies"
        click.echo(f"{counted}, {bad} with problems" if bad else f"{counted}, no problem")
    ctx.exit(NO if any(one.problems for one in read) else DONE)
