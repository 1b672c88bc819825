import json
from typing import Any

import pytest

from nodewise.agents.gpu import ledger
from nodewise.agents.gpu.ledger import Entry
from tests.unit.agents.gpu.facts import entry, lease, lease_of

GOOD = entry("a", "card0,card1|", tiles="card0:gt0,card1:gt0|", charged=("i915=1 t=1", ""))


def test_what_was_written_is_read() -> None:
    assert ledger.read(lease("n1", u1=GOOD)).entries == {"u1": GOOD}


def test_the_wire_form_is_the_documented_one() -> None:
    assert json.loads(json.dumps(ledger.wire(GOOD))) == {
        "pod": "d/a",
        "cards": "card0,card1|",
        "tiles": "card0:gt0,card1:gt0|",
        "at": 7.0,
        "seen": "5",
        "charged": [{"gpu.intel.com/i915": 1, "gpu.intel.com/tiles": 1}, {}],
    }


def test_no_ledger_has_no_entries() -> None:
    assert ledger.read(None) == ledger.read(lease_of("n1", "")) == ledger.EMPTY


@pytest.mark.parametrize("bad", [None, 3, [], {}, {"pod": "d/a"}, {"pod": "d/a", "cards": 7}, "text"])
def test_an_entry_that_cannot_be_read_costs_no_other(bad: Any) -> None:
    found = ledger.read(lease("n1", u1=GOOD, u2=bad))
    assert found.entries == {"u1": GOOD}
    assert list(found.unreadable) == ["u2"]


@pytest.mark.parametrize("text", ["{", "[]", "3", '"', "null", "\x00"])
def test_a_ledger_that_cannot_be_read_says_so(text: str) -> None:
    found = ledger.read(lease_of("n1", text))
    assert (found.entries, found.unreadable) == ({}, {})
    assert found.problem.startswith("nodewise.io/holdings cannot be read: ")


def test_fields_of_a_newer_version_are_passed_over() -> None:
    newer = {**ledger.wire(GOOD), "colour": "blue"}
    assert ledger.read(lease("n1", u1=newer)).entries == {"u1": GOOD}


def test_the_name_of_the_pod() -> None:
    assert Entry("web/train-0", "").key == ("web", "train-0")
    assert Entry("odd", "").key == ("odd", "")


@pytest.mark.parametrize(
    ("cards", "text"),
    [
        ((("card0",),), "card0"),
        ((("card0", "card1"), ()), "card0,card1|"),
        (((), ("card0",)), "|card0"),
        (((), ()), "|"),
    ],
)
def test_cards_as_text(cards: ledger.Cards, text: str) -> None:
    assert ledger.cards_text(cards) == text
    assert ledger.read_cards(text) == cards


def test_tiles_as_text() -> None:
    cards = (("card0", "card1"), (), ("card0",))
    text = ledger.tiles_text(cards, (((0, 1), (3,)), (), ((),)))
    assert text == "card0:gt0+gt1,card1:gt3||"
    assert ledger.read_tiles(text) == {"card0": {0, 1}, "card1": {3}}
    assert ledger.tiles_text((("card0",),), (((),),)) == ""


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
def test_what_is_no_tile_is_passed_over(text: str) -> None:
    assert ledger.read_tiles(text) == {}
    assert ledger.read_tiles(f"{text}|card7:gt0+nonsense+gt1") == {"card7": {0, 1}}


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
    assert ledger.newer(before, now) == then
