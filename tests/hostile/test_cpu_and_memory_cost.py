"""The CPU time and memory that hostile bodies cost."""

from collections.abc import Callable, Iterator

import pytest

from tests.hostile import honest_client_under_load, response_checks, three_node_cluster_objects
from tests.hostile.extender_process import AttackedExtender, RawConnection, candidates
from tests.hostile.honest_client_under_load import HEAD, LONG_DEADLINES, honest_calls, wait_until
from tests.hostile.hostile_input_corpus import cases, data

TRIES = 5
"""Number of attempts. An allocator may return memory late; a leak occurs in each attempt."""
MARGIN_MIB = 32.0
"""Accepted difference in MiB between two measurements: memory of the largest bodies that the allocator keeps."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedExtender]:
    with honest_client_under_load.extender(tmp_path_factory.mktemp("load"), LONG_DEADLINES) as made:
        yield made


def _cpu_ms(
    target: AttackedExtender, line: RawConnection, path: str, body: bytes, enough_ms: float = 0.0
) -> float:
    """The minimum CPU time of a body in the event loop in up to ten attempts, until one is at most `enough_ms`."""
    costs: list[float] = []
    while len(costs) < 10 and min(costs, default=enough_ms + 1) > enough_ms:
        before = target.cpu_ms()
        line.ask(path, body)
        costs.append(target.cpu_ms() - before)
    return min(costs)


def test_no_body_of_the_corpus_keeps_the_loop_longer_than_a_large_honest_one(
    target: AttackedExtender,
) -> None:
    """The test measures CPU time, so that other load on the machine has no effect."""
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
    """Checks that many bodies leave no more resident memory in MiB than few bodies do."""
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
    with honest_calls(target):
        _check_growth(lambda: go(1), lambda: go(4))
    wait_until("all descriptors are back", lambda: target.descriptors() <= descriptors)


def test_unknown_names_do_not_outgrow_the_room_for_decisions(target: AttackedExtender) -> None:
    """Each of these decisions holds 25 MB of names that no node has."""
    body = candidates(f"{number:0253d}" for number in range(100_000))

    def most(times: int) -> float:
        """The maximum resident memory in MiB after each of the requests, since the allocator may return memory at any
        time.
        """
        most_mib = 0.0
        with target.line() as line:
            for _ in range(times):
                line.ask("/scheduler/filter", body)
                most_mib = max(most_mib, target.rss_mib())
        return most_mib

    _check_growth(lambda: most(4), lambda: most(8))
    assert target.metric("decisions_bytes") <= 4 * 2**20


def test_the_largest_body_and_one_byte_more(target: AttackedExtender) -> None:
    """The limit is 256 MiB by default, for declared lengths and for chunks. At most one body stays in memory."""
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
        answer = line.ask("/scheduler/filter", candidates(three_node_cluster_objects.NODES).ljust(most))
    assert response_checks.check_filtered(answer, three_node_cluster_objects.NODES)[1] == {
        three_node_cluster_objects.HOT: three_node_cluster_objects.WHY
    }


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
        assert target.filter(three_node_cluster_objects.NODES).status == 200
