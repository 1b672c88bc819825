from typing import Any

import pytest
from structlog.testing import capture_logs

from nodewise.base.errors import Unavailable
from nodewise.kube import leader_election
from nodewise.kube.leader_election import (
    ApiServerLiveness,
    Elector,
    LeaseAccess,
    LeaseLock,
    LeaseSpec,
    ObservedLease,
)
from nodewise.kube.resource_kinds import LEASES
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.manual_clock import ManualClock
from tests.unit.server.raw_http_client import metric_value

LOCK = LeaseLock("ns", "nodewise", "us")
OURS = LeaseSpec("us", 15, acquire_time="then", renew_time="then", lease_transitions=4)
THEIRS = LeaseSpec("them", 15, acquire_time="then", renew_time="then", lease_transitions=4)


@pytest.mark.parametrize(
    ("seen", "wait_s"),
    [
        pytest.param(None, 0.0, id="there is none: it may be made"),
        pytest.param(ObservedLease(LeaseSpec(), 100.0), 0.0, id="an empty one may be taken"),
        pytest.param(ObservedLease(LeaseSpec(""), 100.0), 0.0, id="a released one may be taken"),
        pytest.param(ObservedLease(OURS, 100.0), 0.0, id="our own may be renewed"),
        pytest.param(ObservedLease(THEIRS, 100.0), 15.0, id="another's is left alone from when it was seen"),
        pytest.param(ObservedLease(THEIRS, 90.0), 5.0, id="for what is left of its time"),
        pytest.param(ObservedLease(THEIRS, 85.0), 0.0, id="and may then be taken"),
        pytest.param(ObservedLease(LeaseSpec("them"), 97.0), 2.0, id="one without a duration has ours"),
        pytest.param(
            ObservedLease(LeaseSpec("them", 60), 90.0), 50.0, id="the duration is the one its holder wrote"
        ),
    ],
)
def test_how_long_a_lease_is_anothers(seen: ObservedLease | None, wait_s: float) -> None:
    assert leader_election.wait_s(seen, LOCK, 100.0) == wait_s


def test_time_counts_from_when_a_content_was_first_seen() -> None:
    first = leader_election.observe(None, THEIRS, "", LOCK, 10.0)
    assert leader_election.observe(first, THEIRS, "", LOCK, 20.0) == ObservedLease(THEIRS, 10.0)
    assert leader_election.observe(first, OURS, "", LOCK, 20.0) == ObservedLease(OURS, 20.0)


NOW = "2023-11-14T22:13:20.500000Z"


@pytest.mark.parametrize(
    ("seen", "claimed"),
    [
        pytest.param(None, LeaseSpec("us", 5, NOW, NOW, 0), id="the first"),
        pytest.param(
            ObservedLease(OURS, 0), LeaseSpec("us", 5, "then", NOW, 4), id="renewing keeps when it began"
        ),
        pytest.param(ObservedLease(THEIRS, 0), LeaseSpec("us", 5, NOW, NOW, 5), id="taking is a transition"),
        pytest.param(
            ObservedLease(LeaseSpec(), 0), LeaseSpec("us", 5, NOW, NOW, 1), id="taking an empty one"
        ),
    ],
)
def test_acquired_lease_has_the_holder_and_times(seen: ObservedLease | None, claimed: LeaseSpec) -> None:
    assert leader_election.lease_after_acquire_or_renew(seen, LOCK, 5.0, 1_700_000_000.5) == claimed


def test_released_lease_has_no_holder_and_a_duration_of_one_second() -> None:
    assert leader_election.release(ObservedLease(OURS, 0), 1_700_000_000.5) == LeaseSpec("", 1, NOW, NOW, 4)


class ElectorFixture:
    """An elector with a fake API server, whose steps the test runs."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.clock = ManualClock(1000.0)
        self.transitions: list[bool] = []
        self.annotations: dict[str, str] = {}
        self.elector = Elector(
            LeaseAccess(self.api, LOCK, self.clock, MetricsRegistry(), lambda: 0.0), lambda: self.annotations
        )
        self.elector.on_change(self.transitions.append)

    async def look(self) -> None:
        await self.elector._try_to_lead()
        self.elector._report_change()

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.api.objects(LEASES)["ns", "nodewise"]["spec"]
        return spec

    def others(self, spec: LeaseSpec) -> None:
        """Write the Lease as another replica."""
        item = {
            "metadata": {"name": "nodewise", "namespace": "ns"},
            "spec": spec.__class__.__struct_encode_fields__,
        }
        item["spec"] = {
            "holderIdentity": spec.holder_identity,
            "leaseDurationSeconds": spec.lease_duration_seconds,
        }
        self.api.put(LEASES, item)


@pytest.fixture
def candidate(monkeypatch: pytest.MonkeyPatch) -> ElectorFixture:
    monkeypatch.setattr("nodewise.observe.logs.emit", lambda *_, **__: None)
    return ElectorFixture()


async def test_a_leader_renews_with_one_write(candidate: ElectorFixture) -> None:
    await candidate.look()
    assert candidate.elector.leading
    candidate.api.calls.clear()
    candidate.clock.advance(2.0)
    await candidate.look()
    assert [verb for verb, _ in candidate.api.calls] == ["replace"]
    assert candidate.spec()["leaseTransitions"] == 0


async def test_annotations_of_the_leader_cost_no_write_of_their_own(candidate: ElectorFixture) -> None:
    await candidate.look()
    assert "annotations" not in candidate.api.objects(LEASES)["ns", "nodewise"]["metadata"]
    for expected in ({"a": "1"}, {"a": "2"}, {"b": "3", "a": "2"}):
        candidate.annotations = dict([*expected.items()][:1])
        candidate.clock.advance(2.0)
        candidate.api.calls.clear()
        await candidate.look()
        assert [verb for verb, _ in candidate.api.calls] == ["replace"]
        assert candidate.api.objects(LEASES)["ns", "nodewise"]["metadata"]["annotations"] == expected


async def test_a_leader_that_cannot_renew_stops_at_its_deadline(candidate: ElectorFixture) -> None:
    await candidate.look()
    candidate.api.fail(Unavailable("down"), 100)
    for _ in range(3):
        candidate.clock.advance(1.0)
        await candidate.look()
        assert candidate.elector.leading
    candidate.clock.advance(0.5)
    assert not candidate.elector.leading
    await candidate.look()
    assert candidate.transitions == [True, False]


async def test_a_leader_that_shortens_the_duration_leads_no_longer_than_it_permits(
    candidate: ElectorFixture,
) -> None:
    """The write may arrive although there is no response: then others wait for the shorter duration only."""
    candidate.elector._latency.is_slow = True
    await candidate.look()
    assert candidate.spec()["leaseDurationSeconds"] == 30
    candidate.clock.advance(10.0)
    assert candidate.elector.leading
    candidate.elector._latency.is_slow = False
    candidate.api.fail(Unavailable("no answer", timeout_s=1.75))
    await candidate.look()
    candidate.clock.advance(3.4)
    assert candidate.elector.leading
    candidate.clock.advance(0.2)
    assert not candidate.elector.leading


async def test_a_leader_that_lengthens_the_duration_leads_longer_only_after_the_response(
    candidate: ElectorFixture,
) -> None:
    await candidate.look()
    candidate.elector._latency.is_slow = True
    candidate.clock.advance(1.0)
    candidate.api.fail(Unavailable("no answer", timeout_s=1.75))
    await candidate.look()
    candidate.clock.advance(2.6)
    assert not candidate.elector.leading
    await candidate.look()
    candidate.clock.advance(19.0)
    assert candidate.elector.leading


async def test_a_leader_sees_at_once_that_another_has_taken_it(candidate: ElectorFixture) -> None:
    await candidate.look()
    candidate.others(THEIRS)
    candidate.clock.advance(2.0)
    await candidate.look()
    assert not candidate.elector.leading
    assert candidate.elector.holder == "them"


async def test_a_leader_takes_a_deleted_lease_again(candidate: ElectorFixture) -> None:
    await candidate.look()
    candidate.api.remove(LEASES, "nodewise", "ns")
    candidate.clock.advance(2.0)
    await candidate.look()
    assert candidate.elector.leading
    assert candidate.spec()["holderIdentity"] == "us"


async def test_deleted_lease_is_not_taken_from_its_last_leader(candidate: ElectorFixture) -> None:
    candidate.others(THEIRS)
    await candidate.look()
    candidate.api.remove(LEASES, "nodewise", "ns")
    candidate.clock.advance(14.0)
    await candidate.look()
    assert not candidate.elector.leading
    candidate.clock.advance(1.0)
    await candidate.look()
    assert candidate.elector.leading


async def test_stop_without_leading_writes_nothing(candidate: ElectorFixture) -> None:
    candidate.others(THEIRS)
    await candidate.look()
    candidate.api.calls.clear()
    await candidate.elector.stop()
    assert candidate.api.calls == []


async def test_a_release_that_fails_is_no_error(candidate: ElectorFixture) -> None:
    await candidate.look()
    candidate.api.fail(Unavailable("down"))
    await candidate.elector.stop()
    assert not candidate.elector.leading
    assert candidate.spec()["holderIdentity"] == "us"


async def test_a_lease_that_cannot_be_read_is_left_alone(candidate: ElectorFixture) -> None:
    item = {"metadata": {"name": "nodewise", "namespace": "ns"}, "spec": {"holderIdentity": 7}}
    candidate.api.put(LEASES, item)
    await candidate.look()
    assert not candidate.elector.leading
    assert candidate.spec()["holderIdentity"] == 7


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
