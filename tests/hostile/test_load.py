"""What hostile clients cost everybody else: steps of the event loop, memory, connections."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster.test_namespaces import wait
from tests.hostile import cluster_files, responses
from tests.hostile.cases import cases, data
from tests.hostile.extender_process import PATIENCE_S, AttackedExtender, RawConnection, candidates

LONG = {
    "--handshake-timeout": "10m",
    "--header-timeout": "10m",
    "--body-idle-timeout": "10m",
    "--body-timeout": "10m",
    "--decisions-bytes": "4Mi",
}
"""No deadline that a slow machine would reach."""
SHORT_S = 2.0
SHORT = {
    "--handshake-timeout": f"{SHORT_S:g}s",
    "--header-timeout": f"{SHORT_S:g}s",
    "--body-idle-timeout": f"{SHORT_S:g}s",
    "--body-timeout": f"{2 * SHORT_S:g}s",
}
TRIES = 5
"""An allocator gives back as it pleases; what is left behind for good is so each time."""
MARGIN_MIB = 32.0
"""By how much resident memory may differ between two looks: what the allocator keeps of the largest bodies."""
DRIPPERS = 150


def _target(folder: Path, flags: Mapping[str, str]) -> AttackedExtender:
    options = [part for pair in flags.items() for part in pair]
    return AttackedExtender(folder, ["--objects-from", cluster_files.write(folder), *options])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedExtender]:
    with _target(tmp_path_factory.mktemp("load"), LONG) as made:
        yield made


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedExtender]:
    """One whose deadlines are short."""
    with _target(tmp_path_factory.mktemp("short"), SHORT) as made:
        yield made


@contextmanager
def honest(target: AttackedExtender, excused_s: float = PATIENCE_S) -> Iterator[list[float]]:
    """An honest client that asks all the while, on connections of its own: seconds of each exchange.

    One that failed after `excused_s` may have met a deadline because the machine stood still; three may.
    """
    took: list[float] = []
    wrong: list[str] = []
    late: list[str] = []
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            began = time.monotonic()
            try:
                with target.line() as line:
                    for _ in range(10):
                        answer = line.ask("/scheduler/filter", candidates(cluster_files.NODES))
                        assert responses.check_filtered(answer, cluster_files.NODES)[1] == {
                            cluster_files.HOT: cluster_files.WHY
                        }
            except (OSError, AssertionError) as error:
                (wrong if time.monotonic() - began < excused_s else late).append(repr(error))
            took.append(time.monotonic() - began)
            ended.wait(0.02)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join(PATIENCE_S)
    assert not wrong, wrong[:3]
    assert len(late) <= 3, late
    assert len(took) > len(late)


def _until(what: str, see: Callable[[], bool]) -> None:
    wait(what, lambda: see() or None, PATIENCE_S, str)


def _cpu_ms(
    target: AttackedExtender, line: RawConnection, path: str, body: bytes, enough_ms: float = 0.0
) -> float:
    """What a body costs the event loop, at best of some tries; the first that is cheap enough will do."""
    costs: list[float] = []
    while len(costs) < 10 and min(costs, default=enough_ms + 1) > enough_ms:
        before = target.cpu_ms()
        line.ask(path, body)
        costs.append(target.cpu_ms() - before)
    return min(costs)


def test_no_body_of_the_corpus_keeps_the_loop_longer_than_a_large_honest_one(
    target: AttackedExtender,
) -> None:
    """Counted by processor time, so that what else this machine does makes no difference."""
    with target.line() as line:
        large = candidates(f"{number:0253d}" for number in range(100_000))
        honest_ms = _cpu_ms(target, line, "/scheduler/filter", large)
        costs = {
            name: _cpu_ms(target, line, case.get("path", "/scheduler/filter"), data(case["body"]), honest_ms)
            for name, case in cases("bodies").items()
        }
    worst = max(costs, key=lambda name: costs[name])
    print(
        f"an honest body of {len(large)} bytes: {honest_ms:.1f} ms; the worst, {worst}: {costs[worst]:.1f} ms"
    )
    assert costs[worst] <= 2 * honest_ms, {
        name: round(cost) for name, cost in costs.items() if cost > honest_ms
    }


def _check_growth(few: Callable[[], float], many: Callable[[], float]) -> None:
    """That many bodies leave no more MiB behind than few do."""
    seen = []
    for _ in range(TRIES):
        seen.append((round(few(), 1), round(many(), 1)))
        if seen[-1][1] <= seen[-1][0] + MARGIN_MIB:
            return
    raise AssertionError(f"resident MiB after few and after many: {seen}")


def test_bodies_leave_no_memory_and_no_descriptors_behind(target: AttackedExtender) -> None:
    bodies = [
        (case.get("path", "/scheduler/filter"), data(case["body"])) for case in cases("bodies").values()
    ]

    def go(times: int) -> float:
        for _ in range(times):
            with target.line() as line:
                for path, body in bodies:
                    line.ask(path, body)
        return target.rss_mib()

    go(1)
    descriptors = target.descriptors()
    with honest(target):
        _check_growth(lambda: go(1), lambda: go(4))
    _until("all descriptors are back", lambda: target.descriptors() <= descriptors)


def test_unknown_names_do_not_outgrow_the_room_for_decisions(target: AttackedExtender) -> None:
    """Each of these decisions holds 25 MB of names that no node has."""
    body = candidates(f"{number:0253d}" for number in range(100_000))

    def most(times: int) -> float:
        """The most that was resident after any of so many requests: the allocator gives back as it pleases."""
        most_mib = 0.0
        with target.line() as line:
            for _ in range(times):
                line.ask("/scheduler/filter", body)
                most_mib = max(most_mib, target.rss_mib())
        return most_mib

    _check_growth(lambda: most(8), lambda: most(12))
    assert target.metric("decisions_bytes") <= 4 * 2**20


def _dripping(lines: list[socket.socket], bytes_: bytes, every_s: float = 0.2) -> int:
    """Send a byte on each now and then until the server has closed them all; how many it did not."""
    left = dict.fromkeys(lines, 0)
    ends = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < ends:
        for line, sent in list(left.items()):
            try:
                line.sendall(bytes_[sent % len(bytes_) : sent % len(bytes_) + 1])
                left[line] = sent + 1
            except OSError:
                del left[line]
        time.sleep(every_s)
    return len(left)


HELLO = bytes.fromhex("16030102000100")
HEAD = b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize("where", ["handshake", "header", "body"])
def test_who_drips_is_left_by_the_deadline_and_keeps_nobody_waiting(
    short: AttackedExtender, where: str
) -> None:
    descriptors = short.descriptors()
    with ExitStack() as opened, honest(short, SHORT_S / 2):
        lines: list[socket.socket] = []
        for _ in range(DRIPPERS):
            with suppress(OSError):  # a deadline may have ended it already, on a slow machine
                line = short.plain() if where == "handshake" else short.line().opened
                opened.callback(line.close)
                if where == "body":
                    line.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
                lines.append(line)
        what = {"handshake": HELLO + bytes(500), "header": HEAD + b"A: " + b"b" * 5000, "body": b" "}[where]
        assert lines
        assert _dripping(lines, what) == 0
    reason = f"{where}_deadline"
    assert f'reason="{reason}"' in _metrics(short)
    _until("all descriptors are back", lambda: short.descriptors() <= descriptors)


def _metrics(target: AttackedExtender) -> str:
    with target.admin() as line:
        return line.ask("/metrics", b"", "GET", {}).body.decode()


def test_a_flood_of_connections_that_never_shake_hands_keeps_nobody_out(target: AttackedExtender) -> None:
    """More than may be between accept and the end of the handshake, and new ones all the while.

    Not so many at once that they are more than those while one honest handshake is under way on a slow machine.
    """
    descriptors = target.descriptors()
    with ExitStack() as opened, honest(target) as took:
        for number in range(600):
            if number % 100 == 0:
                before = len(took)
                _until("honest calls went on", lambda before=before: len(took) > before)  # type: ignore[misc]
            opened.callback(target.plain().close)
        before = len(took)
        _until("honest calls go on", lambda: len(took) > before + 10)
    _until("all descriptors are back", lambda: target.descriptors() <= descriptors)


def test_rubbish_in_the_handshake(target: AttackedExtender) -> None:
    descriptors = target.descriptors()
    for data_ in (
        b"\x16",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"\x80\x2e\x01\x03\x01",
        b"\x15\x03\x03\x00\x02\x02\x28",
    ):
        with target.plain() as line:
            line.sendall(data_)
            line.shutdown(socket.SHUT_WR)
            _drained(line)
    _until("all descriptors are back", lambda: target.descriptors() <= descriptors)
    assert target.filter(cluster_files.NODES).status == 200


def _drained(line: socket.socket) -> None:
    try:
        while line.recv(65536):
            pass
    except (OSError, ssl.SSLError):
        return


def test_the_largest_body_and_one_byte_more(target: AttackedExtender) -> None:
    """256 MiB by default; by its declared length and in chunks. No more than one of them is still held."""
    seen = [target.rss_mib()]
    for _ in range(TRIES):
        for _ in range(2):
            _largest(target)
        seen.append(target.rss_mib())
        if seen[-1] <= seen[-2] + MARGIN_MIB:
            break
    else:
        raise AssertionError(f"resident MiB after each four: {seen}")
    assert seen[-1] <= seen[0] + 256 + 3 * MARGIN_MIB, seen


def _largest(target: AttackedExtender) -> None:
    most = 2**28
    with target.line() as line:
        line.send(HEAD + b"Content-Length: %d\r\n\r\n" % (most + 1))
        answer = line.answer()
    assert answer is not None
    assert (answer.status, answer.field()) == (413, "Content-Length")
    piece = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    with target.line() as line:
        line.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(most // 2**20):
            line.send(piece)
        line.send(b"1\r\n \r\n")
        answer = line.answer()
    assert answer is not None
    assert (answer.status, answer.field()) == (413, "body")
    with target.line() as line:
        answer = line.ask("/scheduler/filter", candidates(cluster_files.NODES).ljust(most))
    assert responses.check_filtered(answer, cluster_files.NODES)[1] == {cluster_files.HOT: cluster_files.WHY}


def test_large_bodies_go_one_after_another_on_all_routes_together(target: AttackedExtender) -> None:
    head = HEAD + b"Content-Length: 20000000\r\nExpect: 100-continue\r\n\r\n"
    with target.line() as first, target.line() as second, target.line() as third:
        for line, verb in ((first, b"filter"), (second, b"prioritize")):
            line.send(head.replace(b"filter", verb))
            assert line.opened.recv(1000).startswith(b"HTTP/1.1 100 ")
        third.send(head.replace(b"filter", b"preempt"))
        answer = third.answer()
        assert answer is not None
        assert answer.status == 503
        assert target.filter(cluster_files.NODES).status == 200
