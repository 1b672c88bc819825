"""The package of a new agent passes its own tests, and responds like the template of the older system."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hatchling.builders.wheel import WheelBuilder

from nodewise.base.errors import BadSettings
from nodewise.cli import agents
from nodewise.cli.agents import command
from nodewise.extender.agent_testing import AgentTester


def create_agent(name: str, folder: Path) -> str:
    done = CliRunner().invoke(command, ["new", name, "--folder", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


@pytest.fixture
def foo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The kind of a new agent `foo`."""
    create_agent("foo", tmp_path / "made")
    monkeypatch.syspath_prepend(str(tmp_path / "made/src"))
    yield importlib.import_module("nodewise_foo").KIND
    for name in [name for name in sys.modules if name.startswith("nodewise_foo")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["foo", "my-own-agent2"])
def test_a_new_package_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    output = create_agent(name, tmp_path / "made")
    assert f"src/{agents.agent_package_name(name)}/agent.py" in output
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "made",
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_all_files_of_the_template_are_in_the_wheel() -> None:
    wheel = WheelBuilder(str(Path(__file__).parents[3]))
    packed = {Path(file.path) for file in wheel.recurse_included_files()}
    there = {path for path in agents.TEMPLATE.rglob("*") if path.suffix in {".py", ".toml", ".md"}}
    assert len(there) == 7
    assert there - packed == set()


def test_nothing_is_left_of_the_templates_name(tmp_path: Path) -> None:
    create_agent("my-agent", tmp_path / "made")
    written = [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
    assert len(written) == 7
    assert [path for path in written if "emplate" in str(path.relative_to(tmp_path)) + path.read_text()] == []


def test_every_node_passes_and_scores_one(foo: Any) -> None:
    """Cases 125 and 192 of the older system, whose agent `foo` was the one to copy."""
    nodes = [{"metadata": {"name": name}, "status": {"allocatable": {"cpu": "4"}}} for name in ("n1", "n2")]
    pod = {"metadata": {"name": "p", "uid": "u"}}
    judged = AgentTester(foo).call("/scheduler/predicates/foo", pod, nodes)
    assert (judged["Nodes"]["items"], judged["FailedNodes"], judged["Error"]) == (nodes, {}, "")
    expected = [{"Host": "n1", "Score": 1}, {"Host": "n2", "Score": 1}]
    assert AgentTester(foo).call("/scheduler/priorities/foo", pod, nodes) == expected


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "small letters"),
        ("Foo", "small letters"),
        ("my_agent", "small letters"),
        ("2nd", "small letters"),
        ("my--agent", "small letters"),
        ("-agent", "small letters"),
        ("agent-", "small letters"),
        ("../up", "small letters"),
        ("ähnlich", "small letters"),
        ("foo\n", "small letters"),
        ("a" * 41, "at most 40"),
        ("none", "reserved"),
        ("scheduler", "reserved"),
        ("lambda", "reserved"),
        ("telemetry", "there is an agent"),
    ],
)
def test_bad_names_are_refused(name: str, why: str) -> None:
    with pytest.raises(BadSettings, match=why):
        agents.check_new_agent_name(name)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    for folder in (tmp_path, tmp_path / "kept", tmp_path / "kept/below"):
        with pytest.raises(BadSettings, match="--folder"):
            agents.write_agent_package("foo", folder)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
