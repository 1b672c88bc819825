from nodewise.kube.event_recorder import FairEventQueue


def queue(limit: int, **counts: int) -> FairEventQueue[str]:
    made: FairEventQueue[str] = FairEventQueue(limit)
    for namespace, count in counts.items():
        for number in range(count):
            made.push(namespace, 0.0, f"{namespace}{number}")
    return made


def drain(events: FairEventQueue[str], now_s: float = 0.0) -> str:
    items = []
    while (item := events.pop(now_s)) is not None:
        items.append(item)
    return " ".join(items)


def test_namespaces_take_turns() -> None:
    assert drain(queue(10, a=4, b=2, c=1)) == "a0 b0 c0 a1 b1 a2 a3"


def test_items_are_due_at_their_time() -> None:
    events = queue(10, a=1)
    events.push("a", 5.0, "later")
    events.push("b", 3.0, "sooner")
    assert drain(events) == "a0"
    assert events.next_due_s() == 3.0
    assert drain(events, 3.0) == "sooner"
    assert drain(events, 5.0) == "later"
    assert (len(events), events.next_due_s()) == (0, float("inf"))


def test_at_the_limit_nothing_is_removed_and_beyond_it_the_last_item_of_the_longest() -> None:
    events = queue(5, a=4)
    assert events.push("b", 0.0, "b0") is None
    assert events.push("b", 0.0, "b1") == "a3"
    assert drain(events) == "a0 b0 a1 b1 a2"


def test_the_last_item_is_the_one_that_is_due_last() -> None:
    events = queue(3, a=2)
    events.push("a", 9.0, "much later")
    assert events.push("b", 0.0, "b0") == "much later"


def test_there_is_room_until_namespaces_have_equally_many() -> None:
    events = queue(6, a=6)
    room = []
    for _ in range(4):
        room.append(events.has_room("b"))
        if room[-1]:
            events.push("b", 0.0, "b")
    assert room == [True, True, True, False]
    assert not events.has_room("a")
    assert queue(6, a=5).has_room("a")
