"""Start and end of the process, and its responses before its first snapshot: the rows of process.yaml."""

import os
import signal
from pathlib import Path

import httpx2
import pytest

from tests import forked_commands
from tests.cluster import asgi_server_thread, extender_process
from tests.cluster.extender_process import NODEWISE, CertificateFiles, ExtenderProcess
from tests.cluster.namespace_sandboxes import wait
from tests.conformance.tas import case_table_rows
from tests.conformance.tas.non_request_rows import ProcessRow, ProcessTable
from tests.filter_responses import rejected_nodes

ROWS = case_table_rows.read("process", ProcessTable).rows
DEADLINE_S = 60
NOBODY = "http://127.0.0.1:1"
"""Where no API server answers."""


def each(rows: list[ProcessRow]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=lambda row: f"{row.number} {row.name}")


def arguments(row: ProcessRow, certificates: CertificateFiles, folder: Path) -> list[str]:
    return [
        f"--kubeconfig={asgi_server_thread.kubeconfig(folder, NOBODY)}",
        *extender_process.tls_arguments(certificates),
        *(argument.format(nowhere=folder / "nowhere") for argument in row.arguments),
    ]


@each([row for row in ROWS if row.exit is not None and not row.signal])
def test_a_process_that_does_not_start(row: ProcessRow, tmp_path: Path) -> None:
    command = [NODEWISE, "extender", *arguments(row, CertificateFiles(tmp_path), tmp_path)]
    done = forked_commands.run(command)
    assert done.returncode == row.exit, done.stderr
    for words in row.said:
        assert words.format(nowhere=tmp_path / "nowhere") in done.stderr
    assert "Traceback" not in done.stderr


@each([row for row in ROWS if row.signal])
def test_a_process_that_receives_a_signal_to_end(row: ProcessRow, tmp_path: Path) -> None:
    certificates = CertificateFiles(tmp_path)
    with extender_process.started(tmp_path, arguments(row, certificates, tmp_path), certificates) as running:
        os.kill(running.process.pid, getattr(signal, row.signal))
        assert running.process._child.wait(DEADLINE_S) == row.exit
        assert running.events(row.logged)


@each([row for row in ROWS if row.exit is None])
def test_a_process_that_goes_on(row: ProcessRow, tmp_path: Path) -> None:
    certificates = CertificateFiles(tmp_path)
    with extender_process.started(tmp_path, arguments(row, certificates, tmp_path), certificates) as running:
        if row.logged:
            wait(row.logged, lambda: running.events(row.logged) or None)
        assert rejections(running) == {"n1": row.reason}
        assert not running.is_ready()
        assert running.process.is_running


def rejections(running: ExtenderProcess) -> dict[str, str]:
    """The rejection reasons of a node for a pod that names a policy."""
    certificates = running.certificates
    pod = {"metadata": {"name": "p", "namespace": "d", "labels": {"telemetry-policy": "demo"}}}
    with httpx2.Client(
        verify=certificates.authority.client_context(certificates.client), trust_env=False
    ) as client:
        answer = client.post(f"{running.url}/scheduler/filter", json={"Pod": pod, "NodeNames": ["n1"]})
    return rejected_nodes(answer.json())
