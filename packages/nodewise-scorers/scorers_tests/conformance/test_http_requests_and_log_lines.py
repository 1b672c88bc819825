"""HTTP requests and responses, agents of other packages, and log lines, with real processes."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from tests import plain_http
from tests.cluster import child_processes
from tests.cluster.child_processes import Process
from tests.cluster.extender_process import NODEWISE

import nodewise
from scorers_tests.conformance import case_table_rows, extender_processes
from scorers_tests.conformance.case_table_rows import SafeHttpRow
from scorers_tests.conformance.extender_processes import RunningExtender

ENTRY = "[nodewise.agents]\nfoo = nodewise_foo:KIND\n"
METADATA = "Metadata-Version: 2.1\nName: nodewise-foo\nVersion: 1.0\n"


@pytest.fixture(scope="module")
def extender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExtender]:
    """An extender process with the third-party agent `foo` and the congestion agent."""
    folder = tmp_path_factory.mktemp("http")
    subprocess.run(
        [NODEWISE, "agents", "new", "foo", "--folder", folder / "foo"], check=True, capture_output=True
    )
    site = folder / "foo" / "src"
    metadata = site / "nodewise_foo-1.0.dist-info"  # the metadata that pip would install
    metadata.mkdir()
    (metadata / "METADATA").write_text(METADATA)
    (metadata / "entry_points.txt").write_text(ENTRY)
    with extender_processes.running(folder, {"PYTHONPATH": str(site)}, "--agents=foo,congestion") as made:
        yield made
        assert made.process.is_running
        assert not made.events("request_failed")
        assert not made.events("outside_agent_failed")


@pytest.mark.parametrize("row", case_table_rows.http(), ids=lambda row: row.id)
def test_requests(extender: RunningExtender, row: SafeHttpRow) -> None:
    answer = extender.send(row.path, row.body.encode(), row.method)
    assert answer.status_code == row.status, answer.text
    assert answer.headers["content-type"] == row.content_type
    assert answer.headers.get("location", "") == row.to
    if row.text:
        assert answer.text == row.text.replace("VERSION", nodewise.__version__)
    elif row.field:
        assert [problem["field"] for problem in answer.json()["problems"]] == [row.field]
    else:
        assert answer.json() == row.answer


def test_203_an_unknown_log_level_is_reported_and_means_info(tmp_path: Path) -> None:
    with extender_processes.running(tmp_path, {"LOG_LEVEL": "bogus"}, "--agents=congestion") as extender:
        [event] = extender.events("variable_ignored")
        assert (event["variable"], event["seen"], event["level"]) == ("LOG_LEVEL", "bogus", "warning")
        assert extender.events("started")[0]["level"] == "info"


def test_250_at_level_error_the_start_tells_the_level_and_nothing_else(tmp_path: Path) -> None:
    port = child_processes.free_port()
    command = [NODEWISE, "extender", "--no-cluster", "--unsafe", "--agents=congestion"]
    environment = {**os.environ, "LOG_LEVEL": "ERROR", "HTTP_PORT": str(port)}
    command += ["--health-port=0", "--shutdown-delay=0s"]
    process = Process([*command, "--log-format=json"], tmp_path / "log", environment, tmp_path)

    def answers() -> bool:
        with contextlib.suppress(httpx2.TransportError):
            return plain_http.get(f"http://127.0.0.1:{port}/version").is_success
        return False

    try:
        process.wait_ready(answers)
        lines = [json.loads(line) for line in process.log.read_text().splitlines()]
        assert [(line["event"], line["value"]) for line in lines] == [("log_level_set", "ERROR")]
    finally:
        process.stop()
