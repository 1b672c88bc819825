"""Settings of traces that are wrong, secret or lead nowhere affect neither requests nor the log."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

PROGRAM: Final = """
import time
from nodewise.observe import traces
traces.configure()
context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
begun = time.monotonic()
for _ in range(100):
    with traces.start_request_span("/scheduler/filter", context):
        pass
served = time.monotonic()
traces.flush()
# One write with its own line ends, as a thread may be printing a log line.
print(f"\\nserved {served - begun} flushed {time.monotonic() - served}\\n", end="")
"""
SECRET: Final = "hunter2"
REFUSING: Final = "http://127.0.0.1:1"


@pytest.fixture
def silent_collector() -> Iterator[str]:
    """The address of a collector that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def run(**variables: str) -> tuple[float, float, str]:
    """The seconds of the requests and of the flush at the end, and everything that was printed."""
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [line] = [line for line in completed.stdout.splitlines() if line.startswith("served ")]
    _, served, _, flushed = line.split()
    return float(served), float(flushed), completed.stdout + completed.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x"),
    ],
)
def test_a_variable_that_the_sdk_cannot_use_is_logged_and_stops_nothing(variable: str, value: str) -> None:
    _, _, output = run(OTEL_EXPORTER_OTLP_ENDPOINT=REFUSING, **{variable: value})
    assert "traces_unavailable" in output
    assert "must be" in output


@pytest.mark.parametrize("value", ["nonsense", "http://[", "ftp://127.0.0.1:1", "http://127.0.0.1:99999999"])
def test_an_invalid_endpoint_stops_nothing(value: str) -> None:
    run(OTEL_EXPORTER_OTLP_ENDPOINT=value)


def test_credentials_are_not_logged() -> None:
    """Each process waits three seconds for a collector that cannot be reached."""
    secrets = [
        {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization: Bearer {SECRET}"},
        {"OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"{SECRET}"},
        {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%0d%0a{SECRET}"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://user:{SECRET}@127.0.0.1:1"},
    ]
    with ThreadPoolExecutor() as runs:
        ended = runs.map(lambda secret: run(**{"OTEL_EXPORTER_OTLP_ENDPOINT": REFUSING, **secret}), secrets)
        outputs = [output for _, _, output in ended]
    assert [secret for secret, output in zip(secrets, outputs, strict=True) if SECRET in output] == []


def test_a_collector_that_does_not_respond_delays_neither_requests_nor_the_end(silent_collector: str) -> None:
    """Requests do not wait for it at all, and the end of the process waits for three seconds instead of ten."""
    served, flushed, _ = run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://{silent_collector}")
    assert served < 3
    assert flushed < 8
