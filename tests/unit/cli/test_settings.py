"""One declaration makes a flag, a variable, a key of the file, and a line of help."""

from pathlib import Path
from typing import Annotated, Any, Literal

import click
import msgspec
import pytest
from click.testing import CliRunner

from nodewise.cli import legacy, settings
from nodewise.errors import BadSettings
from nodewise.kube.options import KubeOptions


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Some settings."""

    wait_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """How long."""

    room_bytes: int = 2**20
    """How much."""

    where: tuple[str, ...] = ("here",)
    """Which places."""

    how: Literal["well", "badly"] = "well"
    """In what way."""

    dry: bool = False
    """Whether at all."""


def told(*arguments: str, file: Path | None = None, **environment: str) -> Options:
    """What a command line makes of the settings."""
    seen: list[Options] = []

    def callback(**given: Any) -> None:
        seen.append(settings.build(Options, given))

    command = click.Command("x", callback=callback, params=settings.options(Options))
    given = [*(["--config", str(file)] if file else []), *arguments]
    done = CliRunner().invoke(command, given, env=environment, standalone_mode=False)
    if done.exception:
        raise done.exception
    return seen[0]


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("wait: 2s\nhow: badly\n")
    assert told().wait_s == 5
    assert told(file=file).wait_s == 2
    assert told(file=file, NODEWISE_WAIT="3s").wait_s == 3
    assert told("--wait", "500ms", file=file, NODEWISE_WAIT="3s").wait_s == 0.5
    assert told(file=file).how == "badly"


def test_sizes_lists_and_switches() -> None:
    found = told("--room-bytes", "64Mi", "--where", "a", "--where", "b", "--dry")
    assert (found.room_bytes, found.where, found.dry) == (64 * 2**20, ("a", "b"), True)


@pytest.mark.parametrize("text", ["0s", "-1s"])
def test_a_value_out_of_bounds_names_the_flag(text: str) -> None:
    with pytest.raises(BadSettings, match="--wait"):
        told("--wait", text)


@pytest.mark.parametrize("arguments", [["--wait", "5"], ["--room-bytes", "much"], ["--how", "so-so"]])
def test_a_value_that_cannot_be_read_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        told(*arguments)


@pytest.mark.parametrize("text", ["- a list\n", "{", "nowhere: 1\n"])
def test_a_file_that_cannot_be_used_says_why(text: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    with pytest.raises(BadSettings):
        told(file=file)


def test_help_and_pages_come_from_the_docstrings() -> None:
    rows = {one.flag: (one.variable, one.shown_default(), one.help) for one in settings.settings(Options)}
    assert rows["--wait"] == ("NODEWISE_WAIT", "5s", "How long.")
    assert rows["--room-bytes"] == ("NODEWISE_ROOM_BYTES", "1Mi", "How much.")
    assert rows["--dry"][1] == ""


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


@pytest.mark.parametrize(("given", "ours"), LEGACY.values(), ids=LEGACY)
def test_flags_of_the_older_systems(given: list[str], ours: list[str]) -> None:
    assert legacy.translate(given, legacy.EXTENDER) == ours


@pytest.mark.parametrize("given", [{"kube_qps": 0.0}, {"kube_qps": -1.0}, {"kube_burst": 0}])
def test_a_limit_under_which_nothing_could_ever_be_written_is_refused(given: dict[str, float]) -> None:
    defaults = {one.field: one.default for one in settings.settings(KubeOptions)}
    with pytest.raises(BadSettings, match="--kube-"):
        settings.build(KubeOptions, defaults | given)
