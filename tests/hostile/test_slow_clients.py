"""Clients that send slowly or never finish the TLS handshake: deadlines end their connections; others are served."""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.hostile import honest_client_under_load, three_node_cluster_objects
from tests.hostile.extender_process import PATIENCE_S, AttackedExtender
from tests.hostile.honest_client_under_load import HEAD, LONG_DEADLINES, honest_calls, wait_until

SHORT_S = 2.0
SHORT = {
    "--handshake-timeout": f"{SHORT_S:g}s",
    "--header-timeout": f"{SHORT_S:g}s",
    "--body-idle-timeout": f"{SHORT_S:g}s",
    "--body-timeout": f"{2 * SHORT_S:g}s",
}
DRIPPERS = 150


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedExtender]:
    with honest_client_under_load.extender(tmp_path_factory.mktemp("load"), LONG_DEADLINES) as made:
        yield made


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedExtender]:
    """An extender with short deadlines."""
    with honest_client_under_load.extender(tmp_path_factory.mktemp("short"), SHORT) as made:
        yield made


def _dripping(lines: list[socket.socket], bytes_: bytes, every_s: float = 0.2) -> int:
    """Sends a byte on each connection periodically until the server has closed it. Returns how many stay open."""
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


@pytest.mark.parametrize("where", ["handshake", "header", "body"])
def test_a_slow_client_is_disconnected_at_the_deadline_and_delays_no_client(
    short: AttackedExtender, where: str
) -> None:
    descriptors = short.descriptors()
    with ExitStack() as opened, honest_calls(short, SHORT_S / 2):
        lines: list[socket.socket] = []
        for _ in range(DRIPPERS):
            with suppress(OSError):  # on a slow machine, a deadline may have closed it already
                line = short.plain() if where == "handshake" else short.line().opened
                opened.callback(line.close)
                if where == "body":
                    line.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
                lines.append(line)
        what = {"handshake": HELLO + bytes(500), "header": HEAD + b"A: " + b"b" * 5000, "body": b" "}[where]
        assert lines
        assert _dripping(lines, what) == 0
    reason = f"{where}_deadline"
    wait_until("it is counted", lambda: f'reason="{reason}"' in _metrics(short))
    wait_until("all descriptors are back", lambda: short.descriptors() <= descriptors)


def _metrics(target: AttackedExtender) -> str:
    with target.admin() as line:
        return line.ask("/metrics", b"", "GET", {}).body.decode()


def test_connections_without_a_handshake_do_not_exclude_clients(target: AttackedExtender) -> None:
    """More connections than the limit of unfinished handshakes, with new ones all the time.

    They come in groups, so that they do not exceed the limit during a single valid handshake on a slow machine.
    """
    descriptors = target.descriptors()
    with ExitStack() as opened, honest_calls(target) as took:
        for number in range(600):
            if number % 100 == 0:
                before = len(took)
                wait_until("honest calls went on", lambda before=before: len(took) > before)  # type: ignore[misc]
            opened.callback(target.plain().close)
        before = len(took)
        wait_until("honest calls go on", lambda: len(took) > before + 10)
    wait_until("all descriptors are back", lambda: target.descriptors() <= descriptors)


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
    wait_until("all descriptors are back", lambda: target.descriptors() <= descriptors)
    assert target.filter(three_node_cluster_objects.NODES).status == 200


def _drained(line: socket.socket) -> None:
    try:
        while line.recv(65536):
            pass
    except (OSError, ssl.SSLError):
        return
