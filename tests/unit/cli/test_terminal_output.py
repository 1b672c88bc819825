"""No output contains control characters from external text."""

from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from nodewise.cli import agents, explain, policy, tables, terminal_output
from nodewise.cli.configure import host
from nodewise.cli.explain import rendering
from nodewise.cli.explain.explanation import PodExplanation, ReplicaResponse
from nodewise.cli.explain.pod_state import PodReadResult
from nodewise.engine.decision_json import DecisionPage
from nodewise.install import control_plane_file_plan
from nodewise_cpu import configmap_store
from nodewise_cpu.workload import isolate

EVIL = "no\x1b[2J\u202e\x9b31m\rKIND all is well"
SHOWN = r"no\x1b[2J\u202e\x9b31m\rKIND all is well"
HERE = ReplicaResponse(
    "https://here",
    DecisionPage(decisions=[], found=0, tries=0, since=None, kept=0, kept_since=None),
)


def failed_response(why: str) -> ReplicaResponse:
    return ReplicaResponse("https://gone", None, error=why)


def print_messages(lookup: PodReadResult, *responses: ReplicaResponse) -> None:
    for message in explain._messages(PodExplanation("web/shop", lookup, responses, None, 0.0)):
        terminal_output.print_message(message)


OUTPUTS: dict[str, Callable[[str], object]] = {
    "a line": terminal_output.print_line,
    "a line on standard error": terminal_output.print_message,
    "a cell": lambda text: tables.print_table(("A", "B"), [("x", text)]),
    "a story": lambda text: rendering._print_lines(iter([text])),
    "a replica that is left out": lambda text: print_messages(
        PodReadResult(None), HERE, failed_response(text)
    ),
    "why a pod's state is not known": lambda text: print_messages(PodReadResult(None, error=text), HERE),
    "configure": host.print_message,
    "what changes in a file": lambda text: click.echo(
        control_plane_file_plan.unified_diff("x", b"", text.encode()), nl=False
    ),
    "who held a node's book": configmap_store._warn,
    "isolate": lambda text: isolate.print_log_line("error", text),
    "another package's agent": lambda text: click.echo(agents._escape_markup(text)),
}


@pytest.mark.parametrize("show", OUTPUTS.values(), ids=OUTPUTS)
def test_control_characters_are_escaped(
    capsys: pytest.CaptureFixture[str], show: Callable[[str], object]
) -> None:
    show(EVIL)
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed
    assert all(line.isprintable() for line in printed.split("\n"))


def test_control_characters_in_fields_of_policies_are_escaped(tmp_path: Path) -> None:
    rule = {"metricname": "m", "operator": "LessThan", "target": 1, EVIL: 1}
    (tmp_path / "policy.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "telemetry.intel.com/v1alpha1",
                "kind": "TASPolicy",
                "metadata": {"name": "p", "namespace": "default"},
                "spec": {"strategies": {"dontschedule": {"rules": [rule]}}},
            }
        )
    )
    done = CliRunner().invoke(policy.command, ["lint", str(tmp_path)])
    assert SHOWN in done.output
    assert all(line.isprintable() for line in done.output.split("\n"))
