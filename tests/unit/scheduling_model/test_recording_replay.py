"""Replays of recordings: unchanged, with other policies and settings, and with gaps."""

import json
from typing import Any

import pytest

from nodewise import agents
from nodewise.agent import ClusterState, NodeIndex
from nodewise.base.errors import BadInput
from nodewise.engine import recording_file
from nodewise.engine.recording_file import GapEntry, Record, RequestEntry, SnapshotEntry
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.policies import policy_rejection_reasons
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.state import POLICIES, TelemetryStateBuilder
from nodewise.scheduling_model import recording_replay
from nodewise.scheduling_model.recording_replay import (
    ExtenderResponse,
    NodeChange,
    Player,
    PodChange,
    ReplayAgents,
)
from nodewise_scorers.learned import LearnedOptions
from tests.unit.extender.recording_extender import RecordedExtender, body, records, replay
from tests.unit.policies.policy_snapshot_builders import (
    NOW,
    cluster_state,
    metrics_snapshot,
    policy,
    rule,
    series,
)

TOO_HOT = "telemetry policy d/pol: heat GreaterThan {}"
ASK = body("pol", "n1 n2 n3", NodeNameToMetaVictims={"n1": {}, "n2": {}, "n3": {}})


def strict(target: int) -> Any:
    ranking = [rule("heat", "LessThan")]
    return policy(dontschedule=[rule("heat", target=target)], scheduleonmetric=ranking)


def recorded(*verbs: str) -> list[Record]:
    """A recording in which n1 is cool, n2 is warm, and n3 is hot and rejected."""
    made = RecordedExtender()
    made.see(cluster_state([strict(8)], metrics_snapshot(series("heat", n1=1, n2=5, n3=9))))
    for verb in verbs:
        made.ask(f"/scheduler/{verb}", ASK)
    return records(made.finish())


STRICTER = {POLICIES: {("d", "pol"): strict(4)}}


class TestAnotherPolicy:
    def test_filter(self) -> None:
        [difference] = replay(recorded("filter"), objects=STRICTER).differences
        expected = ("d/p", "/scheduler/filter", 1, "")
        assert (difference.pod, difference.path, difference.snapshot, difference.text) == expected
        assert difference.nodes == (
            NodeChange("n2", "kept", TOO_HOT.format(4)),
            NodeChange("n3", TOO_HOT.format(8), TOO_HOT.format(4)),
        )

    def test_preempt(self) -> None:
        [difference] = replay(recorded("preempt"), objects=STRICTER).differences
        assert difference.nodes == (NodeChange("n2", "kept", "rejected"),)

    def test_prioritize(self) -> None:
        warmest = policy(scheduleonmetric=[rule("heat", "GreaterThan")])
        [difference] = replay(recorded("prioritize"), objects={POLICIES: {("d", "pol"): warmest}}).differences
        assert difference.nodes == (NodeChange("n1", 10, 8), NodeChange("n3", 8, 10))

    def test_the_pods_that_fare_otherwise_are_counted(self) -> None:
        replayed = replay(recorded("filter", "filter", "prioritize", "preempt"), objects=STRICTER)
        assert replayed.player.tally.pods == {"d/p": PodChange(requests=3, kept=0, rejected=3, scored=0)}
        assert (replayed.player.tally.same, replayed.player.tally.different) == (1, 3)

    def test_one_beside_the_others_changes_nothing_for_them(self) -> None:
        beside = {POLICIES: {("d", "other"): strict(0)}}
        assert replay(recorded("filter"), objects=beside).differences == []

    def test_its_metric_may_not_be_in_the_recording(self) -> None:
        noise = policy(dontschedule=[rule("noise", target=1)])
        replayed = replay(recorded("filter"), objects={POLICIES: {("d", "pol"): noise}})
        assert replayed.player.unrecorded() == ["noise"]
        assert {change.replayed for change in replayed.differences[0].nodes} == {
            "telemetry policy d/pol: metric noise was never fetched: no source has responded yet"
        }


def test_other_settings() -> None:
    made = RecordedExtender()
    made.see(cluster_state([strict(8)], metrics_snapshot(series("heat", n1=1))))
    made.ask("/scheduler/filter", ASK)
    [difference] = replay(records(made.finish()), TelemetryOptions(when_missing="reject")).differences
    assert [(change.node, change.replayed) for change in difference.nodes] == [
        ("n2", "telemetry policy d/pol: no fresh value of heat"),
        ("n3", "telemetry policy d/pol: no fresh value of heat"),
    ]


def forgetful() -> list[Record]:
    """A recording in which a rule loses the values of three of its four nodes at once, so its last verdicts hold."""
    made = RecordedExtender()
    policy, nodes = strict(8), NodeIndex(["n1", "n2", "n3", "n4"])
    whole = metrics_snapshot(series("heat", n1=1, n2=9, n3=9, n4=9))
    rest = metrics_snapshot(series("heat", n1=1))
    for metrics, after_s in ((whole, 0.0), (rest, 10.0)):
        made.see(ClusterState(nodes, {POLICIES: {("d", "pol"): policy}}, metrics, NOW + after_s))
    made.ask("/scheduler/filter", ASK)
    return records(made.finish())


class TestMemory:
    def test_a_rule_that_holds_its_verdicts_holds_them_again(self) -> None:
        replayed = replay(forgetful())
        assert json.loads(_answers(forgetful())[0])["NodeNames"] == ["n1"]
        assert replayed.differences == []

    def test_lost_snapshots_are_counted(self) -> None:
        whole = forgetful()
        moments = [n for n, record in enumerate(whole) if isinstance(record.entry, SnapshotEntry)]
        whole[moments[0]] = Record(GapEntry(snapshots=1))
        replayed = replay(whole)
        assert replayed.player.tally.lost.snapshots == 1
        assert [change.node for change in replayed.differences[0].nodes] == ["n2", "n3"]


class TestRecalling:
    """A replay restores the memory that an agent restored in the recording."""

    LEARNED = agents.load("learned")

    def player(self) -> Player:
        return Player(ReplayAgents([self.LEARNED], {"learned": LearnedOptions()}, 5.0))

    @staticmethod
    def exchange(score: int) -> Record:
        arguments = {
            "Pod": {"metadata": {"name": "p", "namespace": "d", "labels": {"app": "web"}}},
            "NodeNames": ["n1"],
        }
        answer = f'[{{"Host":"n1"   ,"Score":{score}}} ]\n'.encode()
        request = RequestEntry(path="/scheduler/prioritize", at=NOW, generation=1)
        return recording_file.record(request, json.dumps(arguments).encode(), answer)

    def test_scores_are_those_of_kept_nodes(self) -> None:
        kept = b'{"version":1,"until":0,"types":{"d/web":{"n1":[0.5,9,9,1000]}}}'
        player = self.player()
        player.replay_record(recording_file.record(recording_file.MemoryEntry(agent="learned"), kept))
        player.replay_record(Record(recording_file.NodesEntry(added=("n1",))))
        player.replay_record(Record(SnapshotEntry(generation=1, now=NOW)))
        difference = player.replay_record(self.exchange(7))
        assert difference is not None
        assert [(change.recorded, change.replayed) for change in difference.nodes] == [(7, 5)]

    @pytest.mark.parametrize(("agent", "kept"), [("learned", b"{}"), ("pigeon", b"{}"), ("nobody", b"")])
    def test_unreadable_memory_is_omitted(self, agent: str, kept: bytes) -> None:
        player = self.player()
        assert (
            player.replay_record(recording_file.record(recording_file.MemoryEntry(agent=agent), kept)) is None
        )


def _answers(records: list[Record]) -> list[bytes]:
    return [record.blobs[1] for record in records if isinstance(record.entry, RequestEntry)]


class TestHoles:
    def test_a_request_whose_view_is_lost_is_not_compared(self) -> None:
        whole = [
            record for record in recorded("filter", "filter") if not isinstance(record.entry, SnapshotEntry)
        ]
        tally = replay(whole).player.tally
        assert (tally.unanswered, tally.requests, tally.same) == (2, 2, 0)

    def test_request_of_an_unknown_path_is_unanswered(self) -> None:
        old = recording_file.record(RequestEntry(path="/scheduler/guess", at=1.0, generation=1), b"{}", b"{}")
        assert replay([*recorded(), old]).player.tally.unanswered == 1

    def test_requests_before_the_first_view(self) -> None:
        made = RecordedExtender()
        made.ask("/scheduler/filter", ASK)
        tally = replay(records(made.finish())).player.tally
        assert (tally.same, tally.cluster_states) == (1, 0)

    def test_without_an_end_it_was_cut_off(self) -> None:
        assert replay(recorded("filter")[:-1]).player.tally.end == "cut off"

    @pytest.mark.parametrize(
        "entry",
        [
            Record(recording_file.NodesEntry(gone=("nobody",))),
            Record(recording_file.ObjectsEntry(of=POLICIES, order=(("d", "x"),))),
            recording_file.record(recording_file.ObjectEntry(of=POLICIES, key=("d", "x")), b"[]"),
            recording_file.record(recording_file.SeriesEntry(metric="m", nodes=("a", "b")), b"{}"),
            Record(recording_file.SeriesEntry(metric="m")),
        ],
        ids=["a node that was not there", "no such object", "no object", "no samples", "no series"],
    )
    def test_an_entry_that_does_not_follow_is_bad_input(self, entry: Record) -> None:
        with pytest.raises(BadInput, match="expected an entry that fits"):
            replay([recorded()[0], entry])

    def test_objects_of_an_agent_that_is_off_are_left_out(self) -> None:
        other = recording_file.record(recording_file.ObjectEntry(of="cards", key=("", "n1")), b"{}")
        whole = recorded("filter")
        assert replay([whole[0], other, *whole[1:]]).differences == []


class TestDefects:
    """An unexpected exception of an agent is recorded as a response, and occurs again in the replay."""

    def test_a_world_that_an_agent_fails_on(self, monkeypatch: Any) -> None:
        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("by zero")

        whole = recorded("filter")
        monkeypatch.setattr(TelemetryStateBuilder, "build", broken)
        replayed = replay(whole)
        assert replayed.player.tally.failed == ["ZeroDivisionError: by zero"]
        [difference] = replayed.differences
        assert {change.replayed for change in difference.nodes} == {
            policy_rejection_reasons.PoliciesNotReady().text()
        }

    def test_an_error_where_there_was_an_answer(self) -> None:
        whole = recorded("filter")
        place = next(n for n, record in enumerate(whole) if isinstance(record.entry, RequestEntry))
        whole[place] = Record(whole[place].entry, (b"garbage", whole[place].blobs[1]))
        [difference] = replay(whole).differences
        assert (difference.pod, difference.nodes) == ("", ())
        assert 'from byte 0 on: \'{"Nodes":null' in difference.text
        assert "-> BadInput 'request: body: JSON is malformed" in difference.text


class TestOlderRecordings:
    """Older versions had all rejected nodes in `FailedNodes`."""

    @staticmethod
    def older(response: bytes) -> bytes:
        body = json.loads(response)
        body["FailedNodes"] |= body["FailedAndUnresolvableNodes"]
        body["FailedAndUnresolvableNodes"] = None
        return json.dumps(body).encode()

    def with_older_response(self) -> list[Record]:
        whole = recorded("filter")
        place = next(n for n, record in enumerate(whole) if isinstance(record.entry, RequestEntry))
        request, response = whole[place].blobs
        whole[place] = Record(whole[place].entry, (request, self.older(response)))
        return whole

    def test_the_same_decision_is_the_same(self) -> None:
        replayed = replay(self.with_older_response())
        assert (replayed.differences, replayed.player.tally.same) == ([], 1)

    def test_another_decision_is_a_difference(self) -> None:
        [difference] = replay(self.with_older_response(), objects=STRICTER).differences
        assert [change.node for change in difference.nodes] == ["n2", "n3"]

    def test_a_newer_recording_with_the_node_in_the_other_map_differs(self) -> None:
        response = ExtenderResponse(
            b'{"NodeNames":[],"FailedNodes":{},"FailedAndUnresolvableNodes":{"a":"x"}}'
        )
        other = ExtenderResponse(b'{"NodeNames":[],"FailedNodes":{"a":"x"},"FailedAndUnresolvableNodes":{}}')
        assert not recording_replay.are_same("filter", response, other)
        assert recording_replay.are_same("filter", response, response)


class TestParting:
    def test_whole_nodes_are_compared_by_name(self) -> None:
        whole = b'{"Nodes":{"items":[{"metadata":{"name":"a"}}]},"FailedNodes":{"b":"hot"}}'
        assert recording_replay.results_by_node("filter", whole) == {"a": "kept", "b": "hot"}

    def test_bytes_that_say_the_same_differ_all_the_same(self) -> None:
        recorded_response, other = (
            ExtenderResponse(b'[{"Host":"a","Score":1}]'),
            ExtenderResponse(b'[{"Host":"a", "Score":1}]'),
        )
        assert recording_replay.changes("prioritize", recorded_response, other) == ()
        assert recording_replay.first_difference(recorded_response, other).startswith("from byte 13 on: ")

    @pytest.mark.parametrize("body", [b"", b"[]", b'{"Nodes":{"items":[{}]}}', b"\xff"])
    def test_invalid_response_names_no_node(self, body: bytes) -> None:
        assert (
            recording_replay.changes(
                "filter", ExtenderResponse(body), ExtenderResponse(b'{"NodeNames":["a"]}')
            )
            == ()
        )


def test_nothing_recorded_is_nothing_replayed() -> None:
    made = RecordedExtender()
    made.see(ClusterState(NodeIndex(), {POLICIES: {}}, MetricsSnapshot(), NOW))
    assert replay(records(made.finish())).player.tally.requests == 0
