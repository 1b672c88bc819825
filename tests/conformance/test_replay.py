"""A recording of a real extender that was stopped or killed gives the same responses when it is replayed."""

import http.client
import itertools
import json
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from nodewise.cli import demo
from nodewise.engine import recording_file
from nodewise.engine.recording_file import RequestEntry
from tests import forked_commands

ROOT = Path(__file__).parents[2]
NODEWISE = Path(sys.executable).parent / "nodewise"
NODES = ["rack1-a", "rack1-b", "rack2-a", "nobody"]
PATIENCE_S = 60.0


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples/health-metric", tmp_path / "objects"))


class RecordedCaller:
    """A client in place of kube-scheduler, with one connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
        self.asked = 0

    def ask(self, path: str, body: bytes) -> bytes:
        self.asked += 1
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        with self._connection.getresponse() as response:
            return response.read()

    def filter(self, *names: str) -> Any:
        return json.loads(self.ask("/scheduler/filter", body(NodeNames=list(names or NODES))))

    def until(self, kept: list[str]) -> None:
        """Repeat filter requests until exactly these nodes pass."""
        for _ in tries():
            if self.filter()["NodeNames"] == kept:
                return
        raise AssertionError(f"never {kept}, but {self.filter()}")

    def everything(self) -> None:
        whole = {"items": [{"metadata": {"name": name}, "spec": {"x": 1}} for name in NODES]}
        victims = {name: {"Pods": [{"UID": "v"}]} for name in NODES}
        for prefix in ("/scheduler", "/agents/telemetry"):
            for policy in (None, "missing", ""):
                self.ask(f"{prefix}/filter", body(policy, NodeNames=NODES))
                self.ask(f"{prefix}/filter", body(policy, Nodes=whole))
                self.ask(f"{prefix}/prioritize", body(policy, NodeNames=NODES))
                self.ask(f"{prefix}/preempt", body(policy, NodeNameToMetaVictims=victims))
            for bad in (b"", b"garbage", b'{"Pod":{}}', b"[" * 9999):
                self.ask(f"{prefix}/filter", bad)


def tries() -> Iterator[int]:
    end = time.monotonic() + PATIENCE_S
    for number in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
        yield number
        time.sleep(0.02)


def body(policy: str | None = None, namespace: str = "health-metric-demo", **more: Any) -> bytes:
    """A request about a pod that the policy of the example selects; `policy` is a TASPolicy that its label names."""
    labels = {"app": "demo-app"} | ({} if policy is None else {"telemetry-policy": policy})
    metadata = {"name": "p", "namespace": namespace, "uid": "u", "labels": labels}
    return json.dumps({"Pod": {"metadata": metadata}, **more}).encode()


def arguments(objects: Path, file: Path, *more: str) -> list[str]:
    return ["--objects-from", str(objects), "--record", str(file), "--sync-period=100ms", *more]


def replay(file: Path, *more: str) -> tuple[int, Any]:
    done = forked_commands.run([NODEWISE, "simulate", "replay", file, "-o", "json", *more])
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_recorded_responses_of_a_real_extender_are_repeated(objects: Path, tmp_path: Path) -> None:
    file = tmp_path / "recording.gz"
    with demo.extender(arguments(objects, file)) as extender:
        extender.wait_ready()
        caller = RecordedCaller(extender.url)
        caller.everything()
        caller.until(["rack1-a", "rack2-a", "nobody"])
        policy = objects / "policy.yaml"
        policy.write_text(policy.read_text().replace("above: 0", "below: 1"))
        caller.until(["rack1-b", "nobody"])
        caller.everything()
        (objects / "more.csv").write_text("node,metric,value\nrack1-a,health_metric,1\n")
        nodes = objects / "nodes.yaml"
        nodes.write_text(nodes.read_text().replace("rack2-a", "rack9-z"))
        caller.everything()
        policy.unlink()
        caller.until(NODES)
        caller.everything()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, report = replay(file)
    assert (code, report["differences"], report["notes"], report["end"]) == (0, [], [], "stopped")
    assert report["same"] == report["requests"] == caller.asked
    assert report["worlds"] > 4


def test_another_policy_shows_its_differences(objects: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "recording.gz", tmp_path / "policy.yaml"
    other.write_text((objects / "policy.yaml").read_text().replace("above: 0", "below: 1"))
    with demo.extender(arguments(objects, file)) as extender:
        extender.wait_ready()
        caller = RecordedCaller(extender.url)
        caller.filter()
    code, report = replay(file, "--policy", str(other))
    assert (code, report["same"], report["different"]) == (3, 0, 1)
    assert report["pods"] == {"health-metric-demo/p": {"requests": 1, "kept": 1, "rejected": 2, "scored": 0}}
    text = "placement policy health-metric-demo/healthy-disks: health_metric"
    assert report["differences"][0]["nodes"] == [
        {"node": "rack1-a", "recorded": "kept", "replayed": f"{text} below 1"},
        {"node": "rack2-a", "recorded": "kept", "replayed": f"{text} below 1"},
        {"node": "rack1-b", "recorded": f"{text} above 0", "replayed": "kept"},
    ]


def test_after_a_kill_all_that_was_flushed_is_answered_again(objects: Path, tmp_path: Path) -> None:
    file = tmp_path / "recording.gz"
    with demo.extender(arguments(objects, file)) as extender:
        extender.wait_ready()
        caller = RecordedCaller(extender.url)
        caller.everything()
        flushed = caller.asked
        assert any(exchanges(file) >= flushed for _ in tries())
        caller.everything()
        extender.kill()
    code, report = replay(file)
    assert (code, report["different"], report["end"]) == (0, 0, "cut off")
    assert flushed <= report["same"] <= caller.asked
    assert report["notes"] == ["the recording is incomplete; it ends at its last flush"]


def exchanges(file: Path) -> int:
    """The number of requests in the file, to which the extender still writes."""
    with file.open("rb") as opened:
        return sum(isinstance(record.entry, RequestEntry) for record in recording_file.read(opened))


def test_at_its_limit_a_recording_ends_and_the_extender_serves_on(objects: Path, tmp_path: Path) -> None:
    file = tmp_path / "recording.gz"
    with demo.extender(arguments(objects, file, "--record-max-bytes=4Ki")) as extender:
        extender.wait_ready()
        caller = RecordedCaller(extender.url)
        for number in tries():
            caller.filter(*(f"node-{number}-{n * 7919 % 997}" for n in range(200)))
            if file.stat().st_size > 4096:
                break
        assert caller.filter()["NodeNames"] == ["rack1-a", "rack2-a", "nobody"]
    code, report = replay(file)
    assert (code, report["different"], report["end"]) == (0, 0, "full")
    assert 0 < report["same"] < caller.asked


def test_a_file_that_cannot_be_written_is_a_wrong_setting(objects: Path, tmp_path: Path) -> None:
    flags = arguments(objects, tmp_path / "nowhere/recording.gz", "--unsafe", "--port=0", "--health-port=0")
    done = forked_commands.run([NODEWISE, "extender", *flags])
    assert done.returncode == 2
    assert "--record" in done.stderr


@pytest.mark.parametrize(("contents", "message"), [(None, "No such file"), (b"words", "entry 1")])
def test_a_file_that_is_no_recording_is_bad_input(
    tmp_path: Path, contents: bytes | None, message: str
) -> None:
    file = tmp_path / "recording.gz"
    if contents is not None:
        file.write_bytes(contents)
    done = forked_commands.run([NODEWISE, "simulate", "replay", file])
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_in_words(tmp_path: Path) -> None:
    """`--when-missing` is the default of TASPolicies."""
    file = tmp_path / "recording.gz"
    with demo.extender(arguments(ROOT / "examples/taspolicy", file)) as extender:
        extender.wait_ready()
        request = body("demo-policy", "taspolicy-demo", NodeNames=NODES)
        RecordedCaller(extender.url).ask("/scheduler/filter", request)
    same = forked_commands.run([NODEWISE, "simulate", "replay", file])
    assert same.stdout.splitlines()[-1] == "all 1 responses are equal, byte for byte"
    other = forked_commands.run([NODEWISE, "simulate", "replay", file, "--when-missing=reject"])
    assert other.returncode == 3
    assert "changed: --when-missing: pass -> reject" in other.stdout
    line = "  nobody: kept -> telemetry policy taspolicy-demo/demo-policy: no fresh value of health_metric"
    assert line in other.stdout.splitlines()


def test_help_has_an_example() -> None:
    done = forked_commands.run([NODEWISE, "simulate", "replay", "--help"])
    assert "Examples:" in done.stdout
