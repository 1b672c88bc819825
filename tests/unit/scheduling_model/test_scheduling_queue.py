import math

from nodewise.scheduling_model.simulated_cluster import Queue

FIT = frozenset({"NodeResourcesFit"})
ERROR: frozenset[str] = frozenset()


def queue(*pods: tuple[str, int], now_s: float = 0) -> Queue:
    made = Queue(began_s=0)
    for key, priority in pods:
        made.add(key, priority, now_s)
    return made


def drained(waiting: Queue, now_s: float) -> list[str]:
    """The pods that are due now. Each of them is rejected again."""
    tried = []
    while (key := waiting.pop(now_s)) is not None:
        tried.append(key)
        waiting.put_back(key, FIT, now_s)
    return tried


def test_the_higher_priority_comes_first_then_who_came_first() -> None:
    assert drained(queue(("a", 0), ("b", 5), ("c", 0), ("d", 5)), now_s=0) == ["b", "d", "a", "c"]


def test_a_pod_stays_until_it_is_removed() -> None:
    waiting = queue(("a", 0))
    assert waiting.pop(0) == "a"
    assert waiting.keys() == ["a"]
    waiting.remove("a")
    assert waiting.pop(0) is None
    assert waiting.next_due_s() == math.inf


def test_what_was_rejected_waits_for_an_event_that_may_help() -> None:
    waiting = queue(("a", 0), ("b", 0))
    drained(waiting, now_s=0)
    waiting.move(lambda entry: entry.key == "b", now_s=0)
    assert drained(waiting, now_s=0) == ["b"]


def test_without_an_event_it_is_tried_after_five_minutes_at_the_next_half() -> None:
    waiting = queue(("a", 0), now_s=5)
    drained(waiting, now_s=5)
    assert waiting.next_due_s() == 330
    assert drained(waiting, now_s=329) == []
    assert drained(waiting, now_s=330) == ["a"]


def test_a_failed_attempt_is_repeated_after_a_back_off_that_doubles() -> None:
    waiting = queue(("a", 0))
    due_s = []
    now_s = 0.0
    for _ in range(6):
        assert waiting.pop(now_s) == "a"
        waiting.put_back("a", ERROR, now_s)
        assert waiting.pop(now_s) is None
        due_s.append(waiting.next_due_s() - now_s)
        now_s = waiting.next_due_s()
    assert due_s == [2, 3, 5, 9, 11, 11]


def test_a_rejection_ends_a_row_of_failures() -> None:
    waiting = queue(("a", 0))
    for rejectors in (ERROR, ERROR, FIT, ERROR):
        waiting.put_back("a", rejectors, 0)
    assert waiting.next_due_s() == 2


def test_who_backs_off_is_tried_early_where_nobody_else_is() -> None:
    waiting = queue(("a", 9))
    drained(waiting, now_s=0)
    waiting.move(lambda _: True, now_s=0)
    waiting.add("b", 0, 0)
    assert drained(waiting, now_s=0) == ["b", "a"]


def test_a_change_of_its_own_status_does_not_keep_a_pod_busy_for_ever() -> None:
    waiting = queue(("a", 0))
    tried = 0
    while (key := waiting.pop(0.5)) is not None:
        tried += 1
        waiting.put_back(key, FIT, 0.5)
        waiting.again(key, 0.5)
    assert tried == 11
    assert 0.5 < waiting.next_due_s() <= 12
