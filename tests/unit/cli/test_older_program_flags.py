"""Translation of the flags and variables of older programs."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec
import pytest
import structlog
from click.testing import CliRunner

from nodewise.cli import agent_selection, extender, older_program_flags, options_from_settings
from nodewise.cli.options_from_settings import KnownSettings
from nodewise.doctor.checks import certificates
from nodewise.observe import logs


@pytest.fixture(autouse=True)
def _logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Delayed log events do not leak into other tests. A settings file has the settings of the command alone."""
    monkeypatch.setattr(agent_selection, "known_settings", KnownSettings)
    yield
    logs._early.clear()
    logs._early_whatever_level.clear()
    structlog.reset_defaults()


LEGACY = {
    "go's single dash": (["-port", "9001"], ["--port", "9001"]),
    "an equals sign": (["-syncPeriod=2s"], ["--sync-period", "2s"]),
    "two dashes": (["--cacert=a"], ["--client-ca", "a"]),
    "other case is another flag": (["--kubeconfig", "f"], ["--kubeconfig", "f"]),
    "the kubeconfig": (["-kubeConfig", "f"], ["--kubeconfig", "f"]),
    "klog's level": (["-v=4"], ["--log-level", "debug"]),
    "a lower level": (["-v", "2"], ["--log-level", "info"]),
    "klog's family is dropped": (["-logtostderr", "-log_dir=/x", "-stderrthreshold", "2", "-port=1"], ["--port", "1"]),
    "a boolean by itself": (["-enableAllowlist", "-port=1"], ["--enable-allowlist", "--port", "1"]),
    "a boolean and its value": (["-enableAllowlist=true", "-enableDenylist=F"], ["--enable-allowlist"]),
    "its value beside it": (["--enableAllowlist", "true", "-qps=7"], ["--enable-allowlist", "--kube-qps", "7"]),
    "false as an argument of its own": (["--enableDenylist", "false", "--qps", "7"], ["--kube-qps", "7"]),
    "what is no boolean": (["--enableDenylist=no"], ["--enable-denylist=no"]),
    "a limit that is 0 is client-go's own": (["-qps=0", "-burst", "0"], ["--kube-qps", "5", "--kube-burst", "10"]),
    "a limit that is too high": (["-qps=2000", "-burst=1000"], ["--kube-qps", "1000", "--kube-burst", "1000"]),
    "a limit that is no number": (["-qps=-1", "-burst=x"], ["--kube-qps", "-1", "--kube-burst", "x"]),
    "a value that is missing": (["-balancedResource"], ["--balanced-resource", ""]),
    "what is ours stays": (["--unsafe", "--metrics", "file:x"], ["--unsafe", "--metrics", "file:x"]),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "ours"), LEGACY.values(), ids=LEGACY)
def test_flags_of_the_older_systems(arguments: list[str], ours: list[str]) -> None:
    assert older_program_flags.translate_older_flags(arguments, older_program_flags.EXTENDER) == ours


ANY_CLIENT: dict[str, tuple[list[str], dict[str, str], bool]] = {
    "TAS's own flags": (["-cacert=a", "-port=1"], {}, True),
    "GAS's own flags": (["--balancedResource", "r"], {}, True),
    "flags of nodewise": (["--client-ca=a", "--port=1", "--cert=c", "--key=k"], {}, False),
    "klog's level alone": (["--client-ca=a", "-v=4"], {}, False),
    "a name on the command line": (["-cacert=a", "--client-name=x"], {}, False),
    "a name in the environment": (["-cacert=a"], {"NODEWISE_CLIENT_NAME": "x"}, False),
    "the flag itself": (["--client-ca=a", "--any-client"], {}, True),
}


@pytest.mark.parametrize(("arguments", "environment", "any_client"), ANY_CLIENT.values(), ids=ANY_CLIENT)
def test_flags_that_only_tas_or_gas_has_imply_any_client(
    arguments: list[str], environment: dict[str, str], any_client: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    context = extender.command.make_context("extender", arguments)
    warnings = [early.event for early in logs._early if early.event == "any_client_implied"]
    assert context.params["any_client"] is any_client
    assert warnings == (["any_client_implied"] if any_client and "--any-client" not in arguments else [])


class OlderProgramOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options with variables of an older program, with nodewise's bounds."""

    port: int = 9001
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    safe_utilization: Annotated[int, msgspec.Meta(ge=0, le=100)] = 90
    safe_percentile: int = 30
    safe_forecast_weight: int = 20
    safe_print_table: bool = False
    congestion_factor_max: Annotated[int, msgspec.Meta(gt=0)] = 100
    num_resources: int = 2
    policy_objective: str = ""


def parse_options(
    *arguments: str, file: str = "", **environment: str
) -> tuple[OlderProgramOptions, list[dict[str, Any]]]:
    """The settings of a command line and variables, and the log events."""
    seen: list[OlderProgramOptions] = []

    def callback(**values: Any) -> None:
        seen.append(options_from_settings.build_group(OlderProgramOptions, values))
        logs.configure(seen[0].log_level, "json")

    command = click.Command(
        "x", callback=callback, params=options_from_settings.click_parameters(OlderProgramOptions)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.yaml"
        path.write_text(file)
        words = ["--config", str(path), *arguments]
        done = CliRunner().invoke(command, words, env=environment, standalone_mode=False)
    if done.exception:
        raise done.exception
    return seen[0], [json.loads(line) for line in done.stderr.splitlines()]


OLD_VALUES = {
    "HTTP_PORT": ("port", {"5401": 5401, "0": 0, "+80": 80}, ["", "http", "80a", "65536", "-1", "tcp://10.0.0.1:80"]),
    "LOG_LEVEL": (
        "log_level",
        {"TRACE": "debug", "debug": "debug", "Info": "info", "WARNING": "warning", "ERROR": "error", "ALERT": "error"},
        ["bogus", "warn", "4"],
    ),
    "SAFEUTILIZATION": ("safe_utilization", {"0": 0, "85": 85, "100": 100}, ["0.5", "101", "-1", "85%", "x"]),
    "SAFEPERCENTILE": ("safe_percentile", {"5": 5}, ["0.3", "1e1"]),
    "SAFEFORECASTWEIGHT": ("safe_forecast_weight", {"50": 50}, ["\u0665"]),
    "SAFEPRINTTABLE": ("safe_print_table", {"true": True, "false": False}, ["True", "1", "yes"]),
    "CONGESTION_FACTOR_MAX": ("congestion_factor_max", {"10": 10, "1": 1}, ["0", "-3", "12.5", "9" * 30]),
    "NUM_RESOURCES": ("num_resources", {"1": 1, "5": 5}, ["0", "6", "two"]),
    "POLICY_OBJECTIVE": (
        "policy_objective",
        {"A_BINPACK": "A_BINPACK", "LOAD_BALANCE": "LOAD_BALANCE", "CONSOLIDATE": "CONSOLIDATE"},
        ["junk", "a_binpack"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("variable", OLD_VALUES)
def test_a_variable_of_an_older_program_acts_as_the_new_one(variable: str) -> None:
    field, valid, invalid = OLD_VALUES[variable]
    for text, value in valid.items():
        settings, lines = parse_options(**{variable: text})
        assert getattr(settings, field) == value
        assert [line["event"] for line in lines] == (["log_level_set"] if variable == "LOG_LEVEL" else [])
    for text in filter(None, invalid):
        settings, lines = parse_options(**{variable: text})
        assert settings == OlderProgramOptions()
        [line] = lines
        assert (line["event"], line["variable"], line["level"]) == ("variable_ignored", variable, "warning")
        assert text in line["seen"]
        assert line["wanted"]
    assert parse_options(**{variable: ""}) == (OlderProgramOptions(), [])


def test_flags_and_new_variables_win_over_old_ones_and_these_over_the_file() -> None:
    file = "safe_utilization: 70\nsafe_percentile: 71\nport: 1\n"
    settings, lines = parse_options(
        "--port=3", file=file, HTTP_PORT="2", SAFEUTILIZATION="72", SAFEPERCENTILE="x", NODEWISE_NUM_RESOURCES="4",
        NUM_RESOURCES="9",
    )  # fmt: skip
    assert (settings.port, settings.safe_utilization, settings.safe_percentile) == (3, 72, 71)
    assert settings.num_resources == 4
    assert [line["variable"] for line in lines] == ["SAFEPERCENTILE"]


def test_doctor_knows_the_flags_that_imply_any_client() -> None:
    assert certificates.OLDER_FLAGS == older_program_flags.OLDER_ONLY
