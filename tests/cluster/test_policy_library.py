"""The presets of the library with a real Prometheus, which scrapes their samples and has their history."""

import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from nodewise.cli import main, policy_new
from nodewise.policy_tools import library, policy_library
from nodewise.policy_tools.policy_library import Preset, PresetRule
from tests import policy_library_samples
from tests.cluster import child_processes, debian_packages, kubernetes_objects, placement_policy_server
from tests.cluster.child_processes import Process
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.prometheus_process import PrometheusProcess

PRESETS = library.preset_names()
HISTORY_S = 40 * 60
STEP_S = 30
JOB = "samples"


class Target(NamedTuple):
    """The exporter of one preset on one node."""

    name: str
    preset: Preset
    node: str
    address: str
    """The internal IP of the node."""
    rule: PresetRule | None
    """The rule that rejects the node."""

    @property
    def instance(self) -> str:
        return f"{self.address}:9100"

    def lines(self, elapsed_s: float) -> list[str]:
        """What the exporter writes, with the name of the node where the exporter has one."""
        lines = policy_library_samples.sample_lines(self.preset, self.rule, elapsed_s)
        return [re.sub(r'Hostname="[^"]*"', f'Hostname="{self.node}"', line) for line in lines]

    def history(self, begun_s: float) -> Iterator[str]:
        """The samples that Prometheus has of the exporter, in the OpenMetrics format."""
        for elapsed_s in range(0, HISTORY_S + 1, STEP_S):
            for line in self.lines(elapsed_s):
                if not line.startswith("#"):
                    series, _, value = line.rpartition(" ")
                    name, brace, labels = series.partition("{")
                    own = f'{{instance="{self.instance}",job="{JOB}"{"," if brace else "}"}'
                    yield f"{name}{own}{labels} {value} {begun_s + elapsed_s:.3f}"


def _targets() -> Iterator[Target]:
    for number, name in enumerate(PRESETS):
        preset = policy_library.load(name)
        for position, rule in enumerate([None, *preset.rules]):
            node = f"rejected-{position}" if rule else "accepted"
            yield Target(name, preset, node, f"10.{number}.0.{position + 1}", rule)


TARGETS = [*_targets()]


def write_samples(folder: Path, elapsed_s: float) -> None:
    """The text of each exporter. A file is replaced by a rename, so that no scrape reads half of it."""
    for target in TARGETS:
        part = folder / f"{target.address}.part"
        part.write_text("\n".join(target.lines(elapsed_s)) + "\n")
        part.rename(part.with_suffix(".txt"))


@pytest.fixture(scope="module")
def prometheus(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a Prometheus that scrapes the samples of all presets, and has their history."""
    folder = tmp_path_factory.mktemp("library")
    begun_s = time.time() - HISTORY_S
    ended = threading.Event()

    def keep_counters_growing() -> None:
        while not ended.wait(1):
            write_samples(folder, time.time() - begun_s)

    write_samples(folder, HISTORY_S)
    threading.Thread(target=keep_counters_growing, daemon=True).start()
    # a process of its own: this one is busy with commands, and a scrape that takes too long ends the series
    port = child_processes.free_port()
    server_words = [
        sys.executable,
        "-m",
        "http.server",
        str(port),
        "--bind=127.0.0.1",
        f"--directory={folder}",
    ]
    exporters = Process(server_words, folder / "exporters.log")
    labels = [{"__metrics_path__": f"/{each.address}.txt", "instance": each.instance} for each in TARGETS]
    configs = [{"targets": [f"127.0.0.1:{port}"], "labels": own} for own in labels]
    job = {"job_name": JOB, "static_configs": configs}
    config = {"global": {"scrape_interval": "5s", "scrape_timeout": "5s"}, "scrape_configs": [job]}
    server = PrometheusProcess(prometheus_programs, folder / "prometheus", config)
    server.hold_samples(line for target in TARGETS for line in target.history(begun_s))
    server.start()
    try:
        wait("all exporters are scraped", lambda: len(server.ask("up == 1")) == len(labels) or None)
        assert {error for _, error in server.targets()} == {""}
        yield server.url
    finally:
        server.stop()
        ended.set()
        exporters.stop()


@pytest.mark.parametrize("name", PRESETS)
def test_each_rule_rejects_exactly_the_node_of_its_sample(prometheus: str, name: str, tmp_path: Path) -> None:
    own = [target for target in TARGETS if target.name == name]
    addresses = {target.node: target.address for target in own} | {"without-exporter": "10.99.0.1"}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        }
        for node, address in addresses.items()
    ]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(nodes))
    files = [str(tmp_path / "nodes.yaml"), f"--prometheus-url={prometheus}"]
    words = ["new", f"--preset={name}", "-lapp=web", *files]
    made = CliRunner().invoke(main.command, ["policy", *words], catch_exceptions=False)
    assert (made.exit_code, made.stderr) == (0, "")
    rejected = re.findall(r"^  # (.* nodes? now.*)$", made.stdout, re.MULTILINE)
    sick = [target.node for target in own if target.rule]
    assert rejected == [f"1 of {len(nodes)} nodes now: {node}" for node in sick]

    (tmp_path / "policy.yaml").write_text(made.stdout)
    words = ["backtest", str(tmp_path / "policy.yaml"), *files, "--since=30m", "-ojson"]
    tested = CliRunner().invoke(main.command, ["policy", *words], catch_exceptions=False)
    assert tested.exit_code == 0, tested.output
    [policy] = msgspec.json.decode(tested.stdout)["policies"]
    assert [{entry["node"] for entry in rule["rejections"]} for rule in policy["rules"]] == [
        {node} for node in sick
    ]


def test_the_api_server_accepts_every_preset(plane: ControlPlane) -> None:
    with placement_policy_server.defining_both_kinds(plane.api):
        for name in PRESETS:
            made = CliRunner().invoke(
                main.command, ["policy", "new", f"--preset={name}", "-ndefault", "-lapp=web"]
            )
            document = yaml.safe_load(made.stdout)
            assert placement_policy_server.refusal(plane.api, document) == "", name


def test_the_selector_is_proposed_from_the_pods_of_the_cluster(
    plane: ControlPlane, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_new, "is_interactive", lambda: True)
    for number, app in enumerate(["web", "db", "web"]):
        sandbox.pods(kubernetes_objects.pod(f"p{number}", labels={"app": app}))
    words = ["new", "--preset=psi", f"--namespace={sandbox.namespace}"]

    def ask(kubeconfig: Path | str, answer: str) -> str:
        made = CliRunner().invoke(
            main.command, ["policy", *words, f"--kubeconfig={kubeconfig}"], input=answer
        )
        assert made.exit_code == 0, made.output
        selector = yaml.safe_load(made.stdout)["spec"]["podSelector"]
        return f"{selector} {made.stderr}"

    output = ask(plane.admin.kubeconfig, "\n")
    assert output.startswith("{'matchLabels': {'app': 'web'}} ")
    assert "app=web (2), app=db (1)" in output
    assert ask("/nonexistent", "{}\n").startswith("{} Labels of the pods")
    nobody = plane.user(f"nobody-{sandbox.namespace}", [])
    assert ask(nobody.kubeconfig, "{}\n").startswith("{} Labels of the pods")
