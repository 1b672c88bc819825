"""`nodewise policy library`: lists the presets of `nodewise policy new`, and shows one of them."""

import click
import msgspec

from nodewise.base.errors import BadSettings, Problem, shown
from nodewise.cli import terminal_output
from nodewise.cli.options_from_settings import output_option
from nodewise.cli.parameter_types import PresetName
from nodewise.policy_tools import library, policy_library, policy_writer
from nodewise.policy_tools.policy_library import Preset
from nodewise.policy_tools.policy_writer import NewPolicy


@click.command("library", params=[output_option(["text", "json"])], short_help="List policies to begin with.")
@click.argument("preset", default="", metavar="[PRESET]", type=PresetName())
def command(preset: str, output: str) -> None:
    """List the policies of the library, or print one of them with its comments.

    A preset has rules for the metrics of a common exporter in Prometheus, and a sample: lines as the exporter writes
    them, and what differs on a node that a rule rejects. nodewise policy new --preset writes such a policy with tests,
    for your pods and with your thresholds.

    \b
    Examples:
      nodewise policy library
      nodewise policy library disk-wear
      nodewise policy new --preset disk-wear -l app=db --folder disks

    \b
    Exit codes:
      0  printed
      2  the command line is invalid, or there is no such preset
    """
    if preset and output == "json":
        raise BadSettings("policy library", [Problem("-o", shown(output), "text for one preset")])
    if preset:
        for line in _preset_lines(preset, policy_library.load(preset)):
            terminal_output.print_line(line)
        return
    presets = {name: policy_library.load(name) for name in library.preset_names()}
    if output == "json":
        documents = [
            {
                "name": name,
                "subject": entry.subject,
                "exporter": entry.exporter,
                "needs": entry.needs,
                "metrics": entry.metrics(),
                "sources": entry.sources,
            }
            for name, entry in presets.items()
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(documents)))
        return
    rows = [
        (name, entry.subject, entry.exporter, ", ".join(entry.metrics())) for name, entry in presets.items()
    ]
    terminal_output.print_table(("PRESET", "REJECTS NODES WITH", "EXPORTER", "METRICS"), rows)


def _preset_lines(name: str, preset: Preset) -> list[str]:
    """The policy for all pods, in the mode Shadow, with the sample as comments."""
    rules = preset.new_rules()
    policy = NewPolicy(
        rules,
        labels={},
        name=policy_writer.default_name(name),
        namespace="",
        is_cluster_wide=any(rule.request.query for rule in rules),
        enforcement="Required",
        mode="Shadow",
        guard=preset.guard,
        comments=preset.comments(name),
    )
    lines = [*policy_writer.policy_lines(policy, [None for _ in rules], "policy library")]
    lines += ["", "# A sample, of a node that the policy accepts:"]
    lines += [f"# {line}" if not line.startswith("#") else line for line in preset.sample.splitlines()]
    for rule in preset.rules:
        lines += ["#", f"# It is rejected by the {rule.title} with"]
        lines += [f"# {series} {value}" for series, value in rule.rejects.items()]
    return [*lines, "#", *(f"# Source: {source}" for source in preset.sources)]
