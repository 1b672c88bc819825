"""Recordings: written entries, gaps, the end, and damaged files."""

import asyncio
import gzip
import io
import stat
from pathlib import Path
from typing import Any

import pytest

from nodewise.agent import ClusterState, NodeIndex
from nodewise.base.errors import BadInput, BadSettings
from nodewise.engine import recording_file, request_recorder
from nodewise.engine.recording_file import EndEntry, GapEntry, Header, Record, RequestEntry, SeriesEntry
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.state import POLICIES
from tests.unit.extender.recording_extender import Disk, RecordedExtender, body, records
from tests.unit.policies.policy_snapshot_builders import (
    NOW,
    cluster_state,
    metrics_snapshot,
    policy,
    rule,
    series,
)

HEAT = policy(dontschedule=[rule("heat", target=5)])
HEADER = Header(format=recording_file.FORMAT, nodewise="1", agents=(), sync_period_s=5.0, at=1.0)


def kinds(file: bytes) -> list[str]:
    return [type(record.entry).__name__ for record in records(file)]


def entries(file: bytes, kind: type) -> list[Any]:
    return [record.entry for record in records(file) if isinstance(record.entry, kind)]


def recording_of(*contents: Record) -> bytes:
    disk = Disk()
    writer = recording_file.RecordingWriter(disk)
    for record in contents:
        writer.write(record)
    writer.close()
    return disk.contents


class TestTape:
    def test_bytes_come_back_as_they_were(self) -> None:
        exchange = recording_file.record(RequestEntry(path="/x", at=0.1, generation=3), b"\n{\xff\x00", b"")
        assert records(recording_of(Record(HEADER), exchange)) == [Record(HEADER), exchange]

    def test_a_person_can_read_it(self) -> None:
        exchange = recording_file.record(RequestEntry(path="/x", at=0.5, generation=3), b'{"Pod":1}', b"[]")
        text = gzip.decompress(recording_of(Record(HEADER), exchange)).splitlines()
        expected = [b'{"kind":"request","path":"/x","at":0.5,"generation":3,"sizes":[9,2]}', b'{"Pod":1}[]']
        assert text[1:] == expected

    @pytest.mark.parametrize(
        ("file", "message"),
        [
            (b"", "header: no header"),
            (b"no gzip", "entry 1"),
            (gzip.compress(b"{}\n"), "entry 1"),
            (gzip.compress(b'{"kind":"end","why":"full"}\n'), "header: no header"),
            (recording_of(Record(HEADER))[:-8] + bytes(8), "CRC check failed"),
            (gzip.compress(b'{"kind":"recording","format":9,"nodewise":"7","agents":[],"sync_period_s":5,"at":1}\n'),
             "format: 9, by nodewise 7; expected 1"),
            (2 * recording_of(Record(HEADER), Record(EndEntry(why="stopped"))), "header: a second recording"),
            (recording_of(Record(HEADER)) + b"more", "Not a gzipped file"),
        ],
        ids=["empty", "no gzip", "no kind", "no header", "wrong checksum", "of a later format", "two recordings",
             "bytes after the end"],
    )  # fmt: skip
    def test_invalid_recordings_are_rejected(self, file: bytes, message: str) -> None:
        with pytest.raises(BadInput, match=message):
            records(file)

    def test_a_recording_is_readable_up_to_any_cut(self) -> None:
        exchanges = [
            recording_file.record(RequestEntry(path="/x", at=0.1, generation=number), b"body", b"\n")
            for number in range(3)
        ]
        written = [Record(HEADER), *exchanges, Record(EndEntry(why="stopped"))]
        disk = Disk()
        writer = recording_file.RecordingWriter(disk)
        flushed = []
        for record in written:
            writer.write(record)
            writer.flush()
            flushed.append(writer.size_bytes)
        writer.close()
        for cut in range(flushed[0], len(disk.contents) + 1):
            complete = sum(size <= cut for size in flushed)
            # the last bytes of a flush are a mark without content
            assert records(disk.contents[:cut]) in (written[:complete], written[: complete + 1])


class TestEntries:
    def test_unchanged_parts_are_recorded_once(self) -> None:
        recorded = RecordedExtender()
        heat = metrics_snapshot(series("heat", n1=1, n2=9))
        state = cluster_state([HEAT], heat, "n1 n2")
        recorded.see(state)
        recorded.see(ClusterState(state.nodes, state.objects, heat, NOW + 1))
        assert kinds(recorded.finish()) == [
            "Header",
            *(
                "NodesEntry",
                "ObjectEntry",
                *(["ObjectEntry"] * len(state.objects[NAMESPACES])),
                "SeriesEntry",
                "MetricsEntry",
                "SnapshotEntry",
            ),
            "SnapshotEntry",
            "EndEntry",
        ]

    def test_only_changed_columns_of_a_metric_are_recorded(self) -> None:
        recorded = RecordedExtender()
        nodes = NodeIndex([f"n{n}" for n in range(100)])
        first = {name: Sample(7, 1.0) for name in nodes.known}
        second = {**first, "n3": Sample(8, 1.0)}
        third = {name: Sample(sample.value, 2.0) for name, sample in second.items()}
        for samples in (first, second, third, third):
            heat = series("heat")
            recorded.see(
                ClusterState(nodes, {POLICIES: {}}, metrics_snapshot(with_samples(heat, samples)), NOW)
            )
        columns = [(entry.nodes is None, entry.columns) for entry in entries(recorded.finish(), SeriesEntry)]
        assert columns[1:] == [
            (True, {"value": recording_file.ColumnDelta(at=[3], to=[8])}),
            (True, {"at": recording_file.ColumnDelta(one=2.0)}),
            (True, {}),
        ]


def with_samples(fetched: Any, samples: dict[str, Sample]) -> Any:
    return type(fetched)(fetched.metric, fetched.source, fetched.fetched_at, samples)


class TestRecording:
    def test_written_entries_are_readable_without_an_end(self) -> None:
        recorded = RecordedExtender()
        recorded.see(cluster_state([], MetricsSnapshot()))
        recorded.ask("/scheduler/filter", body(None, "n1"))
        recorded.recording.write()
        assert kinds(recorded.disk.getvalue())[-1] == "RequestEntry"

    def test_a_request_that_cannot_be_read_is_recorded_with_its_error(self) -> None:
        recorded = RecordedExtender()
        recorded.ask("/scheduler/filter", b"garbage")
        exchange = records(recorded.finish())[1]
        assert (exchange.entry.error, exchange.blobs[0]) == ("BadInput", b"garbage")  # type: ignore[union-attr]
        assert b"expected an ExtenderArgs object" in exchange.blobs[1]

    def test_it_ends_at_its_limit_and_says_so_once(self, capsys: Any) -> None:
        recorded = RecordedExtender(max_bytes=400)
        for _ in range(50):
            recorded.ask("/scheduler/filter", body(None, "n1 n2"))
            recorded.recording.write()
        file = recorded.finish()
        assert entries(file, EndEntry) == [EndEntry(why="full")]
        assert 400 < len(file) < 1000
        assert "".join(capsys.readouterr()).count("recording_stopped") == 1

    def test_items_that_do_not_fit_are_counted_in_the_file(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(request_recorder, "_QUEUE_BYTES", 1500)
        recorded = RecordedExtender()
        ask = ("/scheduler/filter", body(None, "n1"))
        for _ in range(4):
            recorded.ask(*ask)
        recorded.see(cluster_state([], MetricsSnapshot()))
        recorded.recording.write()
        recorded.ask(*ask)
        file = recorded.finish()
        expected = ["Header", "RequestEntry", "RequestEntry", "GapEntry", "RequestEntry", "EndEntry"]
        assert kinds(file) == expected
        assert entries(file, GapEntry) == [GapEntry(requests=2, snapshots=1)]
        counted = recorded.metrics_registry.exposition()
        assert b'nodewise_recording_lost_total{what="request"} 2.0' in counted
        assert b'nodewise_recording_lost_total{what="world"} 1.0' in counted

    def test_the_last_lost_items_are_counted(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(request_recorder, "_QUEUE_BYTES", 1)
        recorded = RecordedExtender()
        for _ in range(2):
            recorded.ask("/scheduler/filter", body(None, "n1"))
        assert kinds(recorded.finish()) == ["Header", "RequestEntry", "GapEntry", "EndEntry"]

    def test_a_full_disk_ends_the_recording_and_nothing_else(self, capsys: Any) -> None:
        disk = FullDisk()
        recorded = RecordedExtender(disk=disk)
        disk.is_full = True
        for _ in range(3):
            assert recorded.ask("/scheduler/filter", body(None, "n1"))
            recorded.recording.write()
        recorded.recording.finish()
        assert "".join(capsys.readouterr()).count("No space left") == 1

    async def test_a_task_writes_and_ends(self) -> None:
        recorded = RecordedExtender()
        task = asyncio.create_task(recorded.recording.run())
        recorded.ask("/scheduler/filter", body(None, "n1"))
        while len(records(recorded.disk.getvalue())) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        await recorded.recording.close()
        assert kinds(recorded.disk.contents) == ["Header", "RequestEntry", "EndEntry"]


class FullDisk(Disk):
    is_full = False

    def write(self, data: Any) -> int:
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(data)


class TestFile:
    def test_only_its_owner_reads_it(self, tmp_path: Path) -> None:
        request_recorder.create_file(tmp_path / "r.gz").close()
        assert stat.S_IMODE((tmp_path / "r.gz").stat().st_mode) == 0o600

    def test_one_that_is_there_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "r.gz").write_bytes(b"before")
        request_recorder.create_file(tmp_path / "r.gz").close()
        assert (tmp_path / "r.gz").read_bytes() == b""
        assert (tmp_path / "r.gz.old").read_bytes() == b"before"

    @pytest.mark.parametrize("name", ["", "nowhere/r.gz"])
    def test_one_that_cannot_be_made_is_a_wrong_setting(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(BadSettings, match="--record"):
            request_recorder.create_file(tmp_path / name)


def test_reading_needs_no_whole_file() -> None:
    file = recording_of(
        Record(HEADER), *[recording_file.record(RequestEntry(path="/x", at=1.0, generation=1), b"a" * 99)] * 9
    )
    lengths = [len(list(recording_file.read(io.BytesIO(file[:size])))) for size in range(len(file), 120, -1)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 10
