import pytest
from structlog.testing import capture_logs

from nodewise.base.clock import ManualClock
from nodewise.kube.leader_election import ApiServerLiveness
from nodewise.observe.metrics_registry import MetricsRegistry
from tests.unit.server.raw_http_client import metric_value


class LivenessFixture:
    """An `ApiServerLiveness` that is checked every second."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.metrics_registry = MetricsRegistry()
        self.liveness = ApiServerLiveness(self.clock, self.metrics_registry)

    def pass_time(self, seconds: int, *, answers: bool) -> list[dict]:
        """Let time pass while the API server responds or does not respond. Returns the log lines."""
        with capture_logs() as lines:
            for _ in range(seconds):
                self.clock.advance(1.0)
                if answers:
                    self.liveness.record_response()
                self.liveness.check()
        return lines

    def shown(self) -> tuple[float, float]:
        connected = metric_value(self.metrics_registry, "kube_connected", kind="Lease")
        return connected, metric_value(self.metrics_registry, "kube_silent_seconds")


@pytest.fixture
def watched() -> LivenessFixture:
    return LivenessFixture()


def test_while_it_answers_nothing_is_said(watched):
    assert watched.pass_time(60, answers=True) == []
    assert watched.shown() == (1.0, 0.0)


def test_two_looks_that_fail_are_no_silence_yet(watched):
    watched.pass_time(1, answers=True)
    assert watched.pass_time(9, answers=False) == []
    assert watched.shown() == (1.0, 9.0)


def test_a_silence_is_said_once_and_so_is_its_end(watched):
    watched.pass_time(5, answers=True)
    [silent] = watched.pass_time(60, answers=False)
    assert (silent["event"], silent["silent_s"]) == ("kube_silent", 10)
    assert watched.shown() == (0.0, 60.0)
    [back] = watched.pass_time(5, answers=True)
    assert (back["event"], back["away_s"]) == ("kube_answers", 61)
    assert watched.shown() == (1.0, 0.0)


def test_one_that_never_answered_is_silent_too(watched):
    assert [line["event"] for line in watched.pass_time(20, answers=False)] == ["kube_silent"]


def test_time_in_which_we_did_not_run_ourselves_is_no_silence(watched):
    watched.pass_time(5, answers=True)
    watched.clock.advance(300.0)
    assert watched.pass_time(5, answers=False) == []
    assert [line["event"] for line in watched.pass_time(10, answers=False)] == ["kube_silent"]
