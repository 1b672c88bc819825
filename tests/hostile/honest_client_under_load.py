"""An extender under load, and an honest client that calls it meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.cluster.namespace_sandboxes import wait
from tests.hostile import response_checks, three_node_cluster_objects
from tests.hostile.extender_process import PATIENCE_S, AttackedExtender, candidates

LONG_DEADLINES: Final = {
    "--handshake-timeout": "10m",
    "--header-timeout": "10m",
    "--body-idle-timeout": "10m",
    "--body-timeout": "10m",
    "--decisions-bytes": "4Mi",
}
"""Flags with deadlines that are not reached even on a slow machine."""
HEAD: Final = b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def extender(folder: Path, flags: Mapping[str, str]) -> AttackedExtender:
    """An extender with the policy of `three_node_cluster_objects`. The `with` statement starts it."""
    options = [part for pair in flags.items() for part in pair]
    return AttackedExtender(folder, ["--objects-from", three_node_cluster_objects.write(folder), *options])


@contextmanager
def honest_calls(target: AttackedExtender, excused_s: float = PATIENCE_S) -> Iterator[list[float]]:
    """Calls filter continuously on its own connections; yields the list of the seconds that ten calls on a connection
    took.

    A connection that fails after `excused_s` may have reached a deadline on a slow machine; three of these are
    accepted.
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
                        answer = line.ask("/scheduler/filter", candidates(three_node_cluster_objects.NODES))
                        assert response_checks.check_filtered(answer, three_node_cluster_objects.NODES)[
                            1
                        ] == {three_node_cluster_objects.HOT: three_node_cluster_objects.WHY}
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


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    """Waits for a condition of the extender."""
    wait(what, lambda: is_so() or None, PATIENCE_S, str)
