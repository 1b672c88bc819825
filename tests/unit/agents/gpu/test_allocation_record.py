import json
from typing import Any

import pytest

from nodewise.agents.gpu import allocation_record
from nodewise.agents.gpu.allocation_record import Reservation
from tests.unit.agents.gpu.gpu_cluster_state_builders import entry, lease, lease_of

GOOD = entry("a", "card0,card1|", subdevices="card0:gt0,card1:gt0|", charged=("i915=1 t=1", ""))


def test_written_reservation_is_read() -> None:
    assert allocation_record.parse_lease(lease("n1", u1=GOOD)).entries == {"u1": GOOD}


def test_the_wire_form_is_the_documented_one() -> None:
    assert json.loads(json.dumps(allocation_record.reservation_to_json(GOOD))) == {
        "pod": "d/a",
        "cards": "card0,card1|",
        "tiles": "card0:gt0,card1:gt0|",
        "at": 7.0,
        "seen": "5",
        "charged": [{"gpu.intel.com/i915": 1, "gpu.intel.com/tiles": 1}, {}],
    }


def test_no_ledger_has_no_entries() -> None:
    assert (
        allocation_record.parse_lease(None)
        == allocation_record.parse_lease(lease_of("n1", ""))
        == allocation_record.EMPTY
    )


@pytest.mark.parametrize("bad", [None, 3, [], {}, {"pod": "d/a"}, {"pod": "d/a", "cards": 7}, "text"])
def test_an_entry_that_cannot_be_read_costs_no_other(bad: Any) -> None:
    record = allocation_record.parse_lease(lease("n1", u1=GOOD, u2=bad))
    assert record.entries == {"u1": GOOD}
    assert list(record.unreadable) == ["u2"]


@pytest.mark.parametrize("text", ["{", "[]", "3", '"', "null", "\x00"])
def test_a_ledger_that_cannot_be_read_says_so(text: str) -> None:
    record = allocation_record.parse_lease(lease_of("n1", text))
    assert (record.entries, record.unreadable) == ({}, {})
    assert record.problem.startswith("nodewise.io/holdings cannot be read: ")


def test_fields_of_a_newer_version_are_passed_over() -> None:
    newer = {**allocation_record.reservation_to_json(GOOD), "colour": "blue"}
    assert allocation_record.parse_lease(lease("n1", u1=newer)).entries == {"u1": GOOD}


def test_the_name_of_the_pod() -> None:
    assert Reservation("web/train-0", "").key == ("web", "train-0")
    assert Reservation("odd", "").key == ("odd", "")


@pytest.mark.parametrize(
    ("gpus", "text"),
    [
        ((("card0",),), "card0"),
        ((("card0", "card1"), ()), "card0,card1|"),
        (((), ("card0",)), "|card0"),
        (((), ()), "|"),
    ],
)
def test_cards_as_text(gpus: allocation_record.GpuNames, text: str) -> None:
    assert allocation_record.format_gpus(gpus) == text
    assert allocation_record.parse_gpus(text) == gpus


def test_tiles_as_text() -> None:
    gpus = (("card0", "card1"), (), ("card0",))
    text = allocation_record.format_subdevices(gpus, (((0, 1), (3,)), (), ((),)))
    assert text == "card0:gt0+gt1,card1:gt3||"
    assert allocation_record.parse_subdevices(text) == {"card0": {0, 1}, "card1": {3}}
    assert allocation_record.format_subdevices((("card0",),), (((),),)) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "card0",
        "card0:",
        "card0:gt",
        "card0:gtx",
        "card0:gt-1",
        "card0:x0",
        "a:gt0:gt1",
        "c:gt99999",
        "c:gt²",
    ],
)
def test_invalid_sub_devices_are_ignored(text: str) -> None:
    assert allocation_record.parse_subdevices(text) == {}
    assert allocation_record.parse_subdevices(f"{text}|card7:gt0+nonsense+gt1") == {"card7": {0, 1}}


@pytest.mark.parametrize(
    ("before", "now", "then"),
    [
        ("", "5", "5"),
        ("5", "6", "6"),
        ("9", "10", "10"),
        ("10", "9", "10"),
        ("x", "6", "6"),
        ("6", "x", "x"),
        ("٣", "2", "2"),
        ("9" * 5000, "2", "2"),
    ],
)
def test_a_version_never_goes_back(before: str, now: str, then: str) -> None:
    assert allocation_record.latest_planned_version(before, now) == then
