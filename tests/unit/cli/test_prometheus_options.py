"""The options of Prometheus are the same in all commands that read from it, and no output shows a header's value."""

import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from nodewise.cli import main
from tests.unit.metrics.fake_prometheus import PrometheusDouble, run_prometheus

COMMANDS = (
    "extender",
    "controller",
    "annotate",
    "decide",
    "metrics",
    "policy backtest",
    "policy diff",
    "policy new",
)
NODE = "{apiVersion: v1, kind: Node, metadata: {name: a}}"


def command_of(words: str) -> click.Command:
    command: Any = main.command
    for word in words.split():
        command = command.get_command(click.Context(command), word)
    assert isinstance(command, click.Command)
    return command


def run(*words: str, **environment: str) -> Result:
    environment = {"PATH": os.environ["PATH"], "COLUMNS": "80"} | environment
    return CliRunner(env=environment).invoke(main.command, words)


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_have_the_flags_of_headers(words: str) -> None:
    options = {option.name: option for option in command_of(words).params}
    for field, metavar in (("prometheus_header", "NAME=VALUE"), ("prometheus_header_file", "NAME=FILE")):
        assert options[field].metavar == metavar
        assert options[field].envvar == f"NODEWISE_{field.upper()}"


@pytest.mark.parametrize("words", COMMANDS)
def test_help_shows_no_value_of_a_variable_or_file(words: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("prometheus_header: [X-Org=hunter2]\n")
    done = run(
        *words.split(),
        f"--config={tmp_path}/settings.yaml",
        "--help" if words == "metrics" else "--help-all",
        NODEWISE_PROMETHEUS_HEADER="X-Org=hunter2",
    )
    assert done.exit_code == 0
    assert "--prometheus-header NAME=VALUE" in done.output
    assert "hunter2" not in done.output


def test_header_reaches_the_server(tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(NODE)
    with run_prometheus(PrometheusDouble({'temp{node="a"}': "1"})) as server:
        source = ("--metrics=prometheus", f"--prometheus-url={server.url}")
        file = str(tmp_path / "node.yaml")
        run("policy", "new", file, "--metric=temp", *source, "--prometheus-header=X-Scope-OrgID=lab")
        run(
            "policy",
            "new",
            file,
            "--metric=temp",
            *source,
            NODEWISE_PROMETHEUS_HEADER="X-Scope-OrgID=lab 2\nA=b",
        )
    assert {headers.get("x-scope-orgid") for headers in server.headers} == {"lab", "lab 2"}


@pytest.mark.parametrize("header", ["X-Scope-OrgID: hunter2", "Host=hunter2", "=hunter2"])
def test_invalid_header_is_an_error_without_its_value(tmp_path: Path, header: str) -> None:
    (tmp_path / "node.yaml").write_text(NODE)
    source = ("--metrics=prometheus", "--prometheus-url=http://127.0.0.1:1")
    arguments = (str(tmp_path / "node.yaml"), "--metric=temp", *source, f"--prometheus-header={header}")
    done = run("policy", "new", *arguments)
    text = f"{done.output}{done.exception}"
    assert "--prometheus-header" in text
    assert "hunter2" not in text
