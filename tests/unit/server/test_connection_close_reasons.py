import ssl

import pytest
from structlog.testing import capture_logs

from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.server import connection_close_reasons
from nodewise.server.connection_close_reasons import CloseReasons
from tests.manual_clock import ManualClock
from tests.unit.server.raw_http_client import metric_value


def test_every_reason_that_is_looked_up_is_in_the_table():
    known = {
        *connection_close_reasons._SSL_REASONS.values(),
        *connection_close_reasons._VERIFY_CODES.values(),
        *connection_close_reasons._SILENT,
    }
    assert known <= set(connection_close_reasons.REASONS)


def _verification(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionAbortedError("SSL handshake is taking longer than 5 seconds"), "handshake_deadline"),
        (TimeoutError(), "handshake_deadline"),
        (ConnectionResetError(), "abandoned"),
        (ssl.SSLError(1, "anything"), "handshake"),
        (_verification(18), "unknown_ca"),
        (_verification(66), "certificate"),
        (connection_close_reasons.ProtocolNotOffered(1, "h2"), "alpn"),
    ],
)
def test_handshake_errors_have_reasons(error, reason):
    assert connection_close_reasons.close_reason_of_error(error) == reason


def test_all_are_counted_and_one_line_a_reason_is_written_in_a_while():
    clock, metrics_registry = ManualClock(), MetricsRegistry()
    recorder = CloseReasons(metrics_registry, clock)
    with capture_logs() as lines:
        for _ in range(5):
            recorder.record("unknown_ca", "10.0.0.1:1")
        recorder.record("expired", "10.0.0.2:1")
        recorder.record("closed_early", "10.0.0.2:1")
        clock.advance(connection_close_reasons.LOG_EVERY_S)
        recorder.record("unknown_ca", "10.0.0.3:1", "detail")
    assert [(line["reason"], line["peer"], line["unlogged"]) for line in lines] == [
        ("unknown_ca", "10.0.0.1:1", 0),
        ("expired", "10.0.0.2:1", 0),
        ("unknown_ca", "10.0.0.3:1", 4),
    ]
    assert all(line["remedy"] and line["log_level"] == "warning" for line in lines)
    assert metric_value(metrics_registry, "connections_ended_total", reason="unknown_ca") == 6
    assert metric_value(metrics_registry, "connections_ended_total", reason="closed_early") == 1


def test_a_reason_that_has_no_row_is_a_mistake():
    with pytest.raises(KeyError):
        CloseReasons(MetricsRegistry(), ManualClock()).record("whim", "10.0.0.1:1")
