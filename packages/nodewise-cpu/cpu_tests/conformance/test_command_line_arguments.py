"""The numbered cases of CMK about command lines, with the real script."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests import forked_commands

import nodewise
from cpu_tests.conformance import case_cpu_topologies, case_table_rows
from cpu_tests.conformance.case_table_rows import ArgumentsRow

CMK = Path(sys.executable).parent / "cmk"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return forked_commands.run([CMK, *words])


@pytest.mark.parametrize("row", case_table_rows.read("arguments", ArgumentsRow), ids=lambda row: row.id)
def test_command_lines(row: ArgumentsRow, tmp_path: Path) -> None:
    for line in row.runs:
        words = line.words
        if words[:1] == ["init"]:
            words = [*words, f"--conf-dir={tmp_path / 'state'}", f"--sysfs={machine(tmp_path)}"]
        done = run(*words)
        assert done.returncode == line.code, done.stderr
        assert [part for part in line.says if part not in done.stderr] == []
        assert done.stdout == ""


def machine(folder: Path) -> Path:
    root = folder / "machine"
    for name, text in case_cpu_topologies.texts("T4").items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("words", [["--version"], ["init", "--version"], ["isolate", "--version"]])
def test_the_version(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (0, f"nodewise {nodewise.__version__}\n")


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["init", "--hel"], ["--help", "reconcile"]])
def test_help_names_the_called_program(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: cmk ")
    assert "cmk cpu" not in done.stdout


def test_an_ignored_directory_is_reported() -> None:
    """Manifests of old have it."""
    done = run("reconfigure_setup", "--conf-dir=/etc/cmk", "--version")
    assert done.returncode == 0
    done = run("install", "--conf-dir=/etc/cmk", "--mount-path=relative")
    assert done.returncode == 2
    assert "option_ignored" in done.stderr
