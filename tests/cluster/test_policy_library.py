"""The presets of the library with a real Prometheus, which scrapes their samples and has their history."""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from nodewise.cli import main
from nodewise.policy_tools import library, policy_library
from nodewise.policy_tools.policy_library import PresetRule
from tests.cluster import debian_packages
from tests.cluster.namespace_sandboxes import wait
from tests.cluster.prometheus_process import PrometheusProcess

PRESETS = library.preset_names()
HISTORY_S = 40 * 60
STEP_S = 30
JOB = "samples"


class Target(NamedTuple):
    """The exporter of one preset on one node."""

    preset: str
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
        lines = policy_library.sample_lines(policy_library.load(self.preset), self.rule, elapsed_s)
        return [re.sub(r'Hostname="[^"]*"', f'Hostname="{self.node}"', line) for line in lines]

    def history(self, until_s: float) -> Iterator[str]:
        """The samples that Prometheus has of the exporter, in the OpenMetrics format."""
        for elapsed_s in range(0, HISTORY_S + 1, STEP_S):
            for line in self.lines(elapsed_s):
                if not line.startswith("#"):
                    series, _, value = line.rpartition(" ")
                    name, brace, labels = series.partition("{")
                    own = f'{{instance="{self.instance}",job="{JOB}"{"," if brace else "}"}'
                    yield f"{name}{own}{labels} {value} {until_s - HISTORY_S + elapsed_s:.3f}"


def targets() -> Iterator[Target]:
    for number, name in enumerate(PRESETS):
        rules: list[PresetRule | None] = [None, *policy_library.load(name).rules]
        for position, rule in enumerate(rules):
            node = f"rejected-{position}" if rule else "accepted"
            yield Target(name, node, f"10.{number}.0.{position + 1}", rule)


class Exporters:
    """One server on loopback with the exporters of all targets, each with its own path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = texts[self.path].encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture(scope="module")
def prometheus(
    prometheus_programs: debian_packages.PrometheusPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a Prometheus that scrapes the samples of all presets, and has their history."""
    texts = {f"/{target.instance}": "\n".join(target.lines(HISTORY_S)) + "\n" for target in targets()}
    exporters = Exporters(texts)
    labels = [{"__metrics_path__": f"/{each.instance}", "instance": each.instance} for each in targets()]
    configs = [{"targets": [exporters.address], "labels": own} for own in labels]
    job = {"job_name": JOB, "static_configs": configs}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    server = PrometheusProcess(prometheus_programs, tmp_path_factory.mktemp("library"), config)
    until_s = time.time()
    server.hold_samples(line for target in targets() for line in target.history(until_s))
    server.start()
    try:
        wait("all exporters are scraped", lambda: len(server.ask("up == 1")) == len(labels) or None)
        assert {error for _, error in server.targets()} == {""}
        yield server.url
    finally:
        server.stop()
        exporters.server.shutdown()
        exporters.server.server_close()


@pytest.mark.parametrize("name", PRESETS)
def test_each_rule_rejects_exactly_the_node_of_its_sample(prometheus: str, name: str, tmp_path: Path) -> None:
    own = [target for target in targets() if target.preset == name]
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
    words = ["new", f"--preset={name}", "-lapp=web", "--metrics=prometheus", *files]
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
