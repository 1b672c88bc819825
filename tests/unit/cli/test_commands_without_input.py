"""Commands whose input has nothing to examine do not succeed, and say what is missing."""

import zlib
from pathlib import Path

import pytest

from nodewise.agent import ClusterState
from nodewise.cli import main, server_components
from nodewise.engine import recording_file
from nodewise.engine.recording_file import Header, Record, RecordingWriter, RequestEntry, SnapshotEntry
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.unit.extender.recording_extender import RecordedExtender, body, records
from tests.unit.policies.policy_snapshot_builders import cluster_state, metrics_snapshot, policy, rule, series

ASK = body("pol", "n1 n2 n3")
REQUESTS = 3


def state(hot: int) -> ClusterState:
    return cluster_state(
        [policy(dontschedule=[rule("heat", target=8)])], metrics_snapshot(series("heat", n1=1, n2=5, n3=hot))
    )


@pytest.fixture(scope="module")
def recording() -> bytes:
    extender = RecordedExtender()
    for number in range(REQUESTS):
        extender.see(state(9 + number))
        extender.ask("/scheduler/filter", ASK)
    return extender.finish()


class Outcome:
    """The exit code and the output of a command."""

    def __init__(self, capfd: pytest.CaptureFixture[str], *words: str | Path) -> None:
        with pytest.raises(SystemExit) as ended:
            main.run([str(word) for word in words])
        self.code = ended.value.code or 0
        self.stdout, self.stderr = capfd.readouterr()


def write(path: Path, kept: list[Record]) -> Path:
    writer = RecordingWriter(path.open("wb"))
    for record in kept:
        writer.write(record)
    writer.close()
    return path


def test_a_recording_that_is_cut_off_anywhere_is_equal_only_as_far_as_it_was_compared(
    recording: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The content is cut off behind every entry, in the middle of each, and in the middle of its blobs."""
    text = zlib.decompress(recording, 16 + zlib.MAX_WBITS)
    file = tmp_path / "recording.gz"
    counts = set()
    for length in sorted(
        {0, 1, *range(0, len(text), 97), *(at + 1 for at, byte in enumerate(text) if byte == 10)}
    ):
        deflater = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        file.write_bytes(deflater.compress(text[:length]) + deflater.flush(zlib.Z_SYNC_FLUSH))
        with file.open("rb") as cut:
            entries = [*recording_file.read(cut)] if b"\n" in text[:length] else []
        requests = sum(isinstance(entry, RequestEntry) for entry, _ in entries)
        counts.add(requests)
        outcome = Outcome(capfd, "simulate", "replay", file)
        assert outcome.code == (0 if requests else 1), (length, outcome.stdout, outcome.stderr)
        assert (f"all {requests} responses are equal" in outcome.stdout) == bool(requests)
        if entries and not requests:
            assert "no request before the place where the file is cut off; expected" in outcome.stderr
            assert "no response was compared" in outcome.stdout
    assert counts == set(range(REQUESTS + 1))


def test_a_recording_that_is_cut_off_in_the_middle_of_a_compressed_block(
    recording: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recording.gz"
    for length in range(0, len(recording), 53):
        file.write_bytes(recording[:length])
        outcome = Outcome(capfd, "simulate", "replay", file)
        if outcome.code == 0:
            assert "all 0 responses" not in outcome.stdout
        else:
            assert (outcome.code, "recording: " in outcome.stderr) == (1, True)


@pytest.mark.parametrize(
    ("kinds", "missing"),
    [
        ((Header,), "no snapshot and no request"),
        ((Header, recording_file.EndEntry), "no snapshot and no request"),
        (
            tuple(kind for kind in recording_file.AnyEntry.__args__ if kind is not RequestEntry),
            "3 snapshots and no",
        ),
        ((Header, RequestEntry), "3 requests, none of them with its snapshot"),
    ],
    ids=["header only", "header and end", "no request", "no snapshot"],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_a_recording_without_a_response_to_compare(
    recording: bytes,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    kinds: tuple[type, ...],
    missing: str,
    output: str,
) -> None:
    file = write(
        tmp_path / "recording.gz", [item for item in records(recording) if isinstance(item.entry, kinds)]
    )
    outcome = Outcome(capfd, "simulate", "replay", file, "-o", output)
    assert (outcome.code, "are equal" in outcome.stdout) == (1, False)
    assert f"recording: {file}: {missing}" in outcome.stderr


def test_a_recording_without_its_first_snapshots_says_how_many_responses_were_compared(
    recording: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = [
        item
        for item in records(recording)
        if not (isinstance(item.entry, SnapshotEntry) and item.entry.generation < REQUESTS)
    ]
    outcome = Outcome(capfd, "simulate", "replay", write(tmp_path / "recording.gz", kept))
    assert "1 of 3 responses are equal, byte for byte; the others were not compared" in outcome.stdout
    assert "all " not in outcome.stdout


def test_a_backtest_with_a_recording_without_pods(
    recording: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from nodewise.base.errors import BadInput
    from nodewise.policy_tools import backtest_history

    kept = [item for item in records(recording) if not isinstance(item.entry, RequestEntry)]
    with pytest.raises(BadInput, match="no filter request with a pod"):
        backtest_history.read(str(write(tmp_path / "recording.gz", kept)))


EMPTY_INPUTS = {
    "policy lint": ["policy", "lint", "empty.yaml"],
    "policy lint of other objects": ["policy", "lint", "node.yaml"],
    "policy convert": ["policy", "convert", "empty.yaml"],
    "policy test": ["policy", "test", "empty.yaml"],
    "policy test of a folder": ["policy", "test", "folder"],
    "policy test without tests": ["policy", "test", "without-tests-suite.yaml"],
    "policy test without expectations": ["policy", "test", "without-expectations-suite.yaml"],
    "policy test without policies": ["policy", "test", "without-policies-suite.yaml"],
    "policy diff without policies": ["policy", "diff", "empty.yaml", "empty.yaml", "node.yaml"],
    "policy diff without nodes": ["policy", "diff", "policy.yaml", "policy.yaml", "empty.yaml"],
    "policy diff without values": ["policy", "diff", "policy.yaml", "stricter.yaml", "node.yaml"],
    "policy diff of invalid policies": ["policy", "diff", "invalid.yaml", "invalid.yaml", "node.yaml"],
    "policy backtest without rules": [
        "policy",
        "backtest",
        "prefer.yaml",
        "node.yaml",
        "--prometheus-url=http://127.0.0.1:1",
    ],
    "decide without objects": ["decide", "empty.yaml"],
    "decide without pods": ["decide", "node.yaml"],
    "decide without nodes": ["decide", "pod.yaml"],
    "simulate replay of an empty file": ["simulate", "replay", "empty.yaml"],
    "cpu describe": ["cpu", "describe", "--conf-dir=folder"],
    "cpu reconcile": ["cpu", "reconcile", "--conf-dir=folder"],
}
POLICY = """apiVersion: nodewise.io/v1alpha1
kind: ClusterPlacementPolicy
metadata: {{name: cool}}
spec: {{podSelector: {{matchLabels: {{app: web}}}}, namespaceSelector: {{}}, {}}}
"""
SUITE = "policy_files: [{}]\ntests: {}\n"


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "folder").mkdir()
    texts = {
        "empty.yaml": "# nothing\n",
        "node.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n",
        "pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n",
        "policy.yaml": POLICY.format("avoid: [{metric: temp, above: 80}]"),
        "stricter.yaml": POLICY.format("avoid: [{metric: temp, above: 70}]"),
        "invalid.yaml": POLICY.format("avoid: [{metric: temp, above: 80}]").replace(
            "namespaceSelector: {}, ", ""
        ),
        "prefer.yaml": POLICY.format("prefer: [{metric: temp, order: Ascending}]"),
        "without-tests-suite.yaml": SUITE.format("policy.yaml", "[]"),
        "without-expectations-suite.yaml": SUITE.format("policy.yaml", "[{name: a, nodes: [n], expect: []}]"),
        "without-policies-suite.yaml": SUITE.format(
            "empty.yaml", "[{name: a, nodes: [n], expect: [{labels: {}}]}]"
        ),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", EMPTY_INPUTS)
def test_nothing_to_examine_is_no_success(inputs: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    outcome = Outcome(capfd, *EMPTY_INPUTS[name])
    assert outcome.code in {1, 2}, outcome.stdout
    assert outcome.stderr


@pytest.mark.parametrize("names", ["", " ", ","])
def test_an_extender_without_agents_does_not_start(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """It would answer that every node is suitable."""
    monkeypatch.setattr(server_components, "run_until_signal", lambda *_: None)
    outcome = Outcome(capfd, "extender", "--agents", names, "--no-cluster", "--unsafe", "--port=0")
    assert outcome.code == 2
    assert "expected the name of at least one agent" in outcome.stderr


def test_an_annotation_of_a_cluster_without_nodes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with in_memory_api_http_server.serving(FakeApi()) as server:
        outcome = Outcome(
            capfd, "annotate", "--once", "--what=allocation", "--kubeconfig", server.kubeconfig(tmp_path)
        )
    assert outcome.code == 1
    assert "found none in the cluster, expected at least one" in outcome.stderr


def test_a_doctor_that_skips_every_finding(capfd: pytest.CaptureFixture[str]) -> None:
    from nodewise.doctor.findings import CATALOGUE

    outcome = Outcome(capfd, "doctor", *(f"--skip={id_}" for id_ in CATALOGUE))
    assert outcome.code == 2
    assert "--skip: every finding; expected at least one that is left" in outcome.stderr
