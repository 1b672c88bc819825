"""The files for hosted CI and for contributors agree with the rest of the repository."""

import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nodewise.base import safe_yaml_loader

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def load(path: str) -> Any:
    return safe_yaml_loader.load((ROOT / path).read_text(), path)


def ci_jobs() -> dict[str, Any]:
    return load(".github/workflows/ci.yml")["jobs"]


def test_jobs_of_hosted_ci_run_the_commands_of_ci_run() -> None:
    """The last step of each job runs commands of `.ci/run`; together the jobs run all of them, in this order."""
    lines = (ROOT / ".ci/run").read_text().splitlines()
    expected = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    steps = [job["steps"][-1] for job in ci_jobs().values()]
    assert [line for step in steps for line in step["run"].splitlines()] == expected


def test_hosted_ci_tests_each_version_of_python_that_make_test_long_does() -> None:
    versions = re.findall(r"for version in ((?:3\.\d+ ?)+)", (ROOT / "Makefile").read_text())
    assert versions == [" ".join(ci_jobs()["test"]["strategy"]["matrix"]["python"])]
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert least == f">={versions[0].split()[0]}"


PERMISSIONS = {
    "check": {"contents": "read"},
    "test": {"contents": "read"},
    "cluster": {"contents": "read"},
    "tested": {"actions": "read"},
    "plugin": {"contents": "read"},
    "files": {"contents": "read"},
    "attestations": {"attestations": "write", "id-token": "write"},
    "registry": {"packages": "write"},
    "wheels": {"contents": "read", "id-token": "write"},
    "release": {"contents": "write"},
}
"""The permissions of each job, of all workflows."""


def test_jobs_have_a_timeout_and_the_permissions_that_they_need() -> None:
    permissions = {}
    for path in WORKFLOWS:
        workflow = safe_yaml_loader.load(path.read_text(), path.name)
        for name, job in workflow["jobs"].items():
            assert job["timeout-minutes"] > 0, name
            permissions[name] = job.get("permissions", workflow["permissions"])
    assert permissions == PERMISSIONS


def test_jobs_that_publish_run_no_code_of_the_checkout() -> None:
    """They publish the files of jobs that have no permission to write, and wait for the approval of the environment."""
    jobs = load(".github/workflows/release.yml")["jobs"]
    publishing = {name for name, permissions in PERMISSIONS.items() if "write" in permissions.values()}
    assert {name for name, job in jobs.items() if job.get("environment") == "release"} == publishing
    for name in publishing:
        commands = [step["run"] for step in jobs[name]["steps"] if "run" in step]
        assert not [command for command in commands if "make " in command], name


def test_files_of_a_release_are_made_by_make_release_of_the_tag() -> None:
    jobs = load(".github/workflows/release.yml")["jobs"]
    commands = [step.get("run", "") for step in jobs["files"]["steps"]]
    (command,) = [line for text in commands for line in text.splitlines() if line.startswith("make release")]
    options = set(re.findall(r"--[a-z]+", command))
    text = (ROOT / "tools/release.py").read_text()
    assert options == {"--tag", "--url", "--registry", "--plugins"}
    assert [option for option in options if f'"{option}"' not in text] == []


def test_actions_are_pinned_by_the_hash_of_a_commit_and_name_their_version() -> None:
    uses = [line.strip() for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    pinned = re.compile(r"(?:- )?uses: [\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")
    assert [line for line in uses if not pinned.fullmatch(line)] == []
    assert len(uses) > 1


def test_jobs_in_containers_run_in_the_base_image_of_the_containerfile() -> None:
    (base,) = re.findall(r"^ARG BASE=(\S+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    jobs = ci_jobs() | load(".github/workflows/release.yml")["jobs"]
    images = {name: job["container"]["image"] for name, job in jobs.items() if "container" in job}
    assert images == dict.fromkeys(("cluster", "plugin", "files"), base)


def test_code_owners_are_teams_of_the_owner_of_the_repository() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    owner = urlsplit(project["urls"]["Repository"]).path.split("/")[1]
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    rules = [line.split() for line in lines if line and not line.startswith("#")]
    teams = {team.partition("/")[0] for _, *names in rules for team in names}
    assert teams == {f"@{owner}"}


def test_hooks_before_a_commit_run_programs_of_make_check() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    hooks = load(".pre-commit-config.yaml")["repos"][0]["hooks"]
    commands = [hook["entry"].partition(" --")[0].replace(".venv/bin/", "$(BIN)/") for hook in hooks]
    assert [command for command in commands if command not in recipe] == []
    assert len(commands) > 1
