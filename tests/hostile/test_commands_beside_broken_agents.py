"""A broken package of an agent affects the commands that use this agent, and no other command."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.cluster.namespace_sandboxes import wait
from tests.hostile import broken_agent_packages
from tests.hostile.broken_agent_packages import BROKEN_PACKAGES, UNREADABLE_NAMES

NODEWISE = Path(sys.executable).with_name("nodewise")
HELP_OF_ALL_COMMANDS = """
import click, contextlib, io, sys
from nodewise.cli import main

def walk(group, words):
    yield words
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from walk(command, [*words, name])
        else:
            yield [*words, name]

for words in walk(main.command, []):
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            main.run([*words, "--help"])
    except SystemExit as end:
        assert not end.code, (words, end.code)
    assert "Usage: " in output.getvalue(), words
    print(*words)
"""
EXTENDERS_WITH_AGENTS = """
import contextlib, io, json, sys
from nodewise.cli import main

for name in sys.argv[1:]:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            main.run(["extender", f"--agents=telemetry,{name}", "--no-cluster", "--unsafe", "--port=0"])
    except SystemExit as end:
        print(json.dumps([name, end.code, errors.getvalue()]))
"""
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "status": {"conditions": []}}
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
METRICS = "n1,temp,50\nn2,temp,60\n"
RUNS: Mapping[str, list[str]] = {
    "annotate": ["annotate", "--once", "--dry-run", "--what=allocation", "--config=settings.yaml"],
    "policy new": ["policy", "new", "metrics.csv", "--metric=temp", "--above=80", "--config=settings.yaml"],
    "policy test": ["policy", "test", "suite.yaml", "--config=settings.yaml"],
    "decide": ["decide", "objects.json", "metrics.csv", "--config=settings.yaml"],
    "render-scheduler": [
        "configure",
        "render-scheduler",
        *("--ca=ca.crt", "--cert=tls.crt", "--key=tls.key", "--config=settings.yaml"),
    ],
    "agents list": ["agents", "list"],
}
SERVERS: Mapping[str, list[str]] = {
    "controller": ["controller", "--health-port=0", "--log-format=json", "--config=settings.yaml"],
    "extender": [
        *("extender", "--agents=telemetry,gpu", "--objects-from=objects.json", "--unsafe", "--port=0"),
        *("--health-port=0", "--log-format=json", "--config=settings.yaml"),
    ],
}
SUITE = """
policies:
- apiVersion: nodewise.io/v1alpha1
  kind: PlacementPolicy
  metadata: {name: cool}
  spec: {podSelector: {}, avoid: [{metric: temp, above: 80}]}
tests:
- name: hot nodes are rejected
  nodes: [a]
  pods: [{name: p}]
  input_series: [{series: 'temp{node="a"}', values: "90"}]
  expect: [{eval_time: 0s, pod: default/p, rejected: {a: temp above 80}}]
"""


class Workplace:
    """A folder with inputs of commands, in which packages with these defects are installed, each of an own agent."""

    def __init__(self, folder: Path, kubeconfig: Path, *defects: str) -> None:
        self.folder = folder
        self.agents = {f"broken{number}": defect for number, defect in enumerate(defects)}
        for name, defect in self.agents.items():
            BROKEN_PACKAGES[defect](folder / "site", name)
        self.named = [name for name, defect in self.agents.items() if defect not in UNREADABLE_NAMES]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("NODEWISE_")},
            "PYTHONPATH": str(folder / "site"),
            "KUBECONFIG": str(kubeconfig),
            "COLUMNS": "200",
        }
        sections = "".join(f"{name}: {{label: a, unknown: [1, 2]}}\n{name}_wait: 5s\n" for name in self.named)
        inputs = {
            "objects.json": json.dumps({"apiVersion": "v1", "kind": "List", "items": [NODE, POD]}),
            "metrics.csv": METRICS,
            "settings.yaml": f"sync_period: 5s\ntelemetry: {{max_age: 2m}}\n{sections}",
            "suite.yaml": SUITE,
        }
        for name, text in inputs.items():
            (folder / name).write_text(text)

    def run(self, *words: str, program: Path = NODEWISE) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [program, *words],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def check_warnings(self, text: str, *, has_settings: bool) -> None:
        """One warning for each agent whose settings are in the file, and no other."""
        lines = [
            line for line in text.splitlines() if "Warning: " in line or "agent_settings_ignored" in line
        ]
        assert len(lines) == len(self.named) * has_settings, text
        for name, line in zip(self.named, sorted(lines, key=_number_of_agent), strict=False):
            assert name in line


def _number_of_agent(line: str) -> int:
    match = re.search(r"(?:agent |agent=|agent: |\"agent\":\s?\")broken(\d+)", line)
    assert match, line
    return int(match[1])


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    api = FakeApi()
    with in_memory_api_http_server.serving(api) as server:
        yield server.kubeconfig(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, kubeconfig: Path) -> Workplace:
    """With all defects."""
    return Workplace(tmp_path_factory.mktemp("packages"), kubeconfig, *BROKEN_PACKAGES)


def test_every_command_prints_its_help(workplace: Workplace) -> None:
    done = workplace.run("-c", HELP_OF_ALL_COMMANDS, program=Path(sys.executable))
    assert done.returncode == 0, done.stderr
    commands = set(done.stdout.splitlines())
    assert {"controller", "annotate", "policy new", "extender", "decide", "doctor"} <= commands
    assert done.stderr == ""


def test_an_extender_with_the_agent_names_its_package(workplace: Workplace) -> None:
    """One process runs one extender after another, because none of them starts."""
    done = workplace.run("-c", EXTENDERS_WITH_AGENTS, *workplace.agents, program=Path(sys.executable))
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(name, code) for name, code, _ in ends] == [(name, 2) for name in workplace.agents], done.stderr
    package = {
        "a default of another type": "'NAME' cannot be used: its options cannot be made flags",
        "an invalid name": "expected one of",
        "no metadata": "'NAME' of nowhere:KIND cannot be used",
    }
    for name, _, errors in ends:
        assert "Traceback" not in errors
        assert package.get(workplace.agents[name], "nodewise_NAME").replace("NAME", name) in errors


@pytest.mark.parametrize("name", RUNS)
def test_commands_run_beside_all_broken_packages(workplace: Workplace, name: str) -> None:
    words = RUNS[name]
    done = workplace.run(*words)
    assert done.returncode == (1 if name == "annotate" else 0), (done.stdout, done.stderr)  # there is no node
    assert "Traceback" not in done.stderr
    workplace.check_warnings(done.stderr, has_settings="--config=settings.yaml" in words)


@pytest.mark.parametrize("name", SERVERS)
def test_servers_start_and_log_each_agent_once(workplace: Workplace, name: str) -> None:
    log = workplace.folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [NODEWISE, *SERVERS[name]],
            env=workplace.environment,
            cwd=workplace.folder,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def listens() -> bool | None:
        assert process.poll() is None, log.read_text()
        return '"event":"listening"' in log.read_text().replace(": ", ":") or None

    try:
        wait("the server listens", listens, show=log.read_text)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert process.returncode == 0
    workplace.check_warnings(log.read_text(), has_settings=True)


def test_a_typing_error_stays_an_error(workplace: Workplace) -> None:
    (workplace.folder / "typing-error.yaml").write_text("sync_perod: 5s\n")
    done = workplace.run("decide", "objects.json", "--config=typing-error.yaml")
    assert (done.returncode, "sync_perod" in done.stderr) == (2, True)


def test_the_template_is_a_sound_agent(tmp_path: Path, kubeconfig: Path) -> None:
    """Otherwise the packages above would be broken in another way than intended."""
    place = Workplace(tmp_path, kubeconfig)
    broken_agent_packages.install(tmp_path / "site", "sound", {})
    rows = json.loads(place.run("agents", "list", "-o", "json").stdout)["agents"]
    assert [row["broken"] for row in rows if row["name"] == "sound"] == [""]
