"""The pre-commit hooks and the workflow action in a repository of a user, with the real pre-commit."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nodewise.cli import main
from tests.docs_page_code_blocks import ROOT

pytestmark = pytest.mark.cluster

HOOKS: Any = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
ACTION: Any = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
OTHER_FILES = {
    "deployment.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n",
    "chart/templates/pod.yaml": "{{- if .Values.x }}\nmetadata: {annotations: {nodewise.io/woken: x}}\n{{ end }}\n",
    ".venv/examples/broken-suite.yaml": "tests: []\n",
}


class Repository:
    """A git repository with a policy of the library, its suite, and other files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run("git", "init", "--quiet")
        words = ["policy", "new", "--preset=disk-wear", "-lapp=db", f"--folder={folder / 'disks'}"]
        assert CliRunner().invoke(main.command, words).exit_code == 0
        for name, text in OTHER_FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.policy = folder / "disks/policy.yaml"
        self.text = self.policy.read_text()
        self.run("git", "add", "--all")

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*map(str, command)],
            cwd=self.folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def edit(self, before: str, after: str) -> None:
        assert before in self.text
        self.policy.write_text(self.text.replace(before, after))
        self.run("git", "add", "--all")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "repository").mkdir()
    return Repository(tmp_path / "repository")


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """The files of nodewise's repository that an installation needs, without the large rest."""
    folder = tmp_path / "nodewise"
    ignored = shutil.ignore_patterns("__pycache__", "chart", "kustomize")
    for name in ("src", "examples", "deploy"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml", "action.yml"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.long
def test_pre_commit_finds_problems_and_failing_tests(
    repository: Repository, released: Path, tmp_path: Path
) -> None:
    uv = Path(sys.executable).with_name("uv")
    python = tmp_path / "environment/bin/python"
    repository.run(uv, "venv", "--quiet", "--python", sys.executable, python.parents[1])
    installed = repository.run(uv, "pip", "install", "--quiet", "--python", python, "pre-commit")
    assert installed.returncode == 0, installed.stdout
    git = ("git", "-C", released, "-c", "user.name=test", "-c", "user.email=test@example.org")
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=test"]):
        repository.run(*git, *command)
    revision = repository.run(*git, "rev-parse", "HEAD").stdout.strip()
    repo = {"repo": str(released), "rev": revision, "hooks": [{"id": name} for name in HOOKS]}
    (repository.folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [repo]}))
    repository.run("git", "add", "--all")

    def run_hooks() -> tuple[int, str]:
        done = repository.run(
            python.with_name("pre-commit"), "run", "--verbose", PRE_COMMIT_HOME=str(tmp_path / "cache")
        )
        return done.returncode, done.stdout

    code, output = run_hooks()
    assert code == 0, output
    assert "1 policy, no problem" in output
    assert "2 tests, none failed" in output
    repository.edit("above: 90", "abvoe: 90")
    code, output = run_hooks()
    assert code == 1
    assert "disks/policy.yaml:" in output
    assert 'did you mean "above"?' in output
    repository.edit("above: 90", "above: 95")
    code, output = run_hooks()
    assert code == 1
    assert "1 policy, no problem" in output
    assert "2 tests, 1 failed" in output


def test_the_hooks_find_problems_and_failing_tests(repository: Repository) -> None:
    """The entries of the hooks as pre-commit runs them, with the files that git has."""
    lint, test = HOOKS.values()
    files = [name for name in repository.run("git", "ls-files").stdout.split() if name.endswith(".yaml")]
    chosen = [name for name in files if not re.search(lint["exclude"], name)]
    assert chosen == ["chart/templates/pod.yaml", "deployment.yaml", "disks/policy.yaml"]
    words = (sys.executable, "-m", *lint["entry"].split(), *chosen)
    assert repository.run(*words).stdout == "1 policy, no problem\n"
    words = (sys.executable, "-m", *test["entry"].split(), *test["args"])
    assert repository.run(*words).stdout.endswith("2 tests, none failed\n")
    repository.edit("above: 90", "above: 95")
    assert repository.run(*words).returncode == 1


def run_step(
    repository: Repository, temporary: Path, name: str, action: Path = ROOT, **inputs: str
) -> tuple[int, str]:
    """The exit code and the output of a step, started as a runner starts steps with `shell: bash`."""
    step = STEPS[name]
    values = {key: entry["default"] for key, entry in ACTION["inputs"].items()} | inputs
    variables = {
        variable: values[text.removeprefix("${{ inputs.").removesuffix(" }}")]
        for variable, text in step.get("env", {}).items()
    }
    variables |= {"GITHUB_ACTION_PATH": str(action), "RUNNER_TEMP": str(temporary)}
    command = ("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"])
    done = repository.run(*command, **variables)
    return done.returncode, done.stdout


def test_the_action_finds_problems_and_failing_tests(repository: Repository, tmp_path: Path) -> None:
    # in place of the first step, which the next test runs
    (tmp_path / "nodewise").symlink_to(sys.prefix)

    def run(name: str, **inputs: str) -> tuple[int, str]:
        return run_step(repository, tmp_path, f"nodewise policy {name}", **inputs)

    code, output = run("lint")
    assert code == 0, output
    begin, *lines, end = output.splitlines()
    assert lines == ["1 policy, no problem"]
    assert begin == f"::stop-commands::{end.strip(':')}"
    for inputs in ({}, {"suites": "disks/tests/suite.yaml\n"}):
        code, output = run("test", **inputs)
        assert code == 0, output
        assert "2 tests, none failed" in output
    repository.edit("above: 90", "above: hot")
    code, output = run("lint")
    assert code != 0
    assert "disks/policy.yaml:" in output
    assert run("lint", policies="deployment.yaml")[0] == 0
    repository.edit("above: 90", "above: 95")
    code, output = run("test")
    assert code != 0
    assert "2 tests, 1 failed" in output


@pytest.mark.long
def test_the_action_installs_nodewise(repository: Repository, released: Path, tmp_path: Path) -> None:
    assert run_step(repository, tmp_path, "Install nodewise", released) == (0, "")
    code, output = run_step(repository, tmp_path, "nodewise policy lint")
    assert code == 0, output


def test_the_action_needs_no_token_and_no_other_action() -> None:
    for step in STEPS.values():
        assert "uses" not in step
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "inputs would be part of the script"
        assert "token" not in str(step.get("env", {}))
