"""Environment variables `NODEWISE_…` that are no settings."""

import click
import pytest
from click.testing import CliRunner

from nodewise.cli import doctor, extender
from nodewise.cli.main import command
from nodewise.cli.options_from_settings import find_unknown_variables

OF_SERVICES = {
    "NODEWISE_SERVICE_HOST": "10.96.0.40",
    "NODEWISE_SERVICE_PORT_HTTPS": "9001",
    "NODEWISE_PORT": "tcp://10.96.0.40:9001",
    "NODEWISE_PORT_9001_TCP": "tcp://10.96.0.40:9001",
    "NODEWISE_PORT_9001_TCP_ADDR": "10.96.0.40",
    "NODEWISE_METRICS_SERVICE_HOST": "10.96.0.41",
    "NODEWISE_METRICS_PORT": "tcp://10.96.0.41:9002",
}


def unknown(command: click.Command, **environment: str) -> dict[str, str]:
    return find_unknown_variables(click.Context(command), environment)


def test_a_misspelled_setting_is_found_with_the_closest_one() -> None:
    assert unknown(extender.command, NODEWISE_SYNC_PERIODE="5s", NODEWISE_SYNC_PERIOD="5s", HOME="/") == {
        "NODEWISE_SYNC_PERIODE": "NODEWISE_SYNC_PERIOD"
    }
    assert unknown(extender.command, NODEWISE_XYZZY="1") == {"NODEWISE_XYZZY": ""}


def test_settings_of_other_commands_and_variables_of_services_are_known() -> None:
    assert unknown(doctor.command, NODEWISE_GPU_PLACEMENT="", NODEWISE_WHAT="", NODEWISE_CONFIG="") == {}
    assert unknown(doctor.command, **OF_SERVICES) == {}


def test_a_command_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEWISE_CONTXT", "x")
    done = CliRunner().invoke(command, ["decide", "examples/health-metric"])
    assert done.exit_code == 0
    warning = 'nodewise: Warning: NODEWISE_CONTXT: an unknown variable; did you mean "NODEWISE_CONTEXT"?'
    assert warning in done.stderr.splitlines()
