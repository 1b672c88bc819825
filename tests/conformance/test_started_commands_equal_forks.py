"""One real start of each command gives the same result as the fork of `tests.forked_commands` that other tests use."""

import subprocess
from pathlib import Path

import pytest

from nodewise.cli.main import COMMANDS
from tests import forked_commands

ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/health-metric"
STARTS = {
    "extender": ["--unsafe", "--no-cluster", "--agents=nothing"],
    "controller": ["--kubeconfig=nowhere"],
    "decide": [EXAMPLE, "-o", "json"],
    "devices": ["--objects-from=nowhere"],
    "explain": ["a/b", "--server=http://127.0.0.1:1"],
    "simulate": ["replay", f"{EXAMPLE}/pods.yaml"],
    "demo": ["--help"],
    "annotate": ["--once", "--usage-from=file:nowhere"],
    "cpu": ["topology", "--sysfs=nowhere"],
    "configure": ["--mode=second-scheduler", "--kubernetes-version=1.36"],
    "certs": ["--help"],
    "doctor": ["--kubeconfig=nowhere"],
    "metrics": ["--kubeconfig=nowhere"],
    "policy": ["lint", EXAMPLE],
    "agents": ["list"],
    "completion": ["bash"],
}


def test_every_command_is_started() -> None:
    assert STARTS.keys() == COMMANDS.keys()


@pytest.mark.parametrize(
    "command",
    [[forked_commands.NODEWISE, name, *words] for name, words in STARTS.items()]
    + [[forked_commands.CMK, "--help"]],
    ids=lambda words: f"{words[0].name} {words[1]}",
)
def test_a_start(command: list[str | Path]) -> None:
    real = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in real.stderr
    fork = forked_commands.run(command, cwd=ROOT)
    assert (real.returncode, real.stdout, real.stderr) == (fork.returncode, fork.stdout, fork.stderr)
