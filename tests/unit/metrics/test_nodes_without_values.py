"""Nodes without values are named, with the closest name among series of no node."""

import pytest

from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.metrics import missing_values
from nodewise.metrics.missing_values import NONE
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.series import Sample, Series, build_column, empty_column

NODES = NodeIndex(
    ["store-1.rack.example.org", "store-2.rack.example.org", "web-1", "web-2", "web-3", "web-4"]
)
WEB = ("web-1", "web-2", "web-3", "web-4")
STORES = ("store-1.rack.example.org", "store-2.rack.example.org")


def text(
    *nodes: str, unmatched: tuple[str, ...] = (), invalid: dict[str, str] | None = None, healthy: bool = False
) -> str:
    samples = {node: Sample(1, 0.0) for node in nodes}
    series = Series("fan", "prometheus", 0.0, samples, invalid or {}, unmatched=unmatched)
    column = run_without_pauses(build_column(series, NODES))
    without = missing_values.nodes_without_values(series, NODES, column, empty_is_healthy=healthy)
    return run_without_pauses(missing_values.describe("fan", without))


def test_nodes_without_a_series_are_named_with_the_closest_name() -> None:
    assert text(*WEB, unmatched=("store-2.cage.example.org", "store-1", "zzz")) == (
        "no series of fan on 2 nodes: store-1.rack.example.org, store-2.rack.example.org; closest names in series of"
        ' no node: "store-1" for store-1.rack.example.org, "store-2.cage.example.org" for store-2.rack.example.org'
    )


def test_misspelt_name_is_the_closest_one() -> None:
    expected = 'no series of fan on 1 node: web-4; closest names in series of no node: "wbe-4" for web-4'
    assert text(*STORES, *WEB[:3], unmatched=("wbe-4",)) == expected


def test_message_names_a_few_nodes_and_counts_the_others() -> None:
    assert text("web-1") == (
        "no series of fan on 5 nodes: store-1.rack.example.org, store-2.rack.example.org, web-2 and 2 more"
    )


def test_invalid_values_are_named_with_the_reason() -> None:
    invalid = {"web-2": "NaN is no number that a rule can compare"}
    expected = "no valid value of fan on 1 node: web-2: NaN is no number that a rule can compare"
    assert text(*STORES, "web-1", "web-3", "web-4", invalid=invalid) == expected


@pytest.mark.parametrize(
    "nodes", [(), (*STORES, *WEB)], ids=["no node has a value", "every node has a value"]
)
def test_nothing_is_named_unless_some_nodes_have_values(nodes: tuple[str, ...]) -> None:
    assert text(*nodes, unmatched=("store-1",)) == ""


def test_node_without_a_series_is_healthy_where_that_is_the_rule_unless_series_match_no_node() -> None:
    assert text(*WEB, healthy=True) == ""
    assert '"store-1" for store-1.rack.example.org' in text(*WEB, healthy=True, unmatched=("store-1",))


def test_values_under_names_of_no_node_are_compared_too() -> None:
    """Values of the custom metrics API have the name of their node."""
    assert '"store-1" for store-1.rack.example.org' in text(*WEB, "store-1")


def test_equal_situations_are_equal() -> None:
    series = Series("fan", "prometheus", 0.0, {})
    column = empty_column(NODES)
    assert missing_values.nodes_without_values(series, NODES, column) == NONE
