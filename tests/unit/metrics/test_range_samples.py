"""All samples of a range, by node; invalid series do not affect others."""

import json
from typing import Any

import pytest

from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.metrics.node_attributes import NodeAttributes
from nodewise.metrics.prometheus import node_matching, query_responses, range_matrix

LABELS = node_matching.series_labels()
NODES = NodeAttributes({}, {"a": "a", "b": "b", "10.0.0.1": "a"})


def read(*series: tuple[dict[str, Any], Any]) -> dict[str, list[list[float]]]:
    listed = [{"metric": labels, "values": values} for labels, values in series]
    body = {"status": "success", "data": {"resultType": "matrix", "result": listed}}
    samples = range_matrix.samples_by_node(
        query_responses.decode_response(json.dumps(body).encode()), LABELS, NODES
    )
    return {name: points.tolist() for name, points in run_without_pauses(samples).items()}


def test_samples_are_of_the_node_that_a_label_names() -> None:
    samples = read(
        ({"node": "a"}, [[1, "2"], [3, "4.5e3"]]), ({"node": "stranger"}, [[1, "2"]]), ({}, [[1, "2"]])
    )
    assert samples == {"a": [[1, 2], [3, 4500]]}


def test_an_address_will_do() -> None:
    assert read(({"instance": "10.0.0.1:9100"}, [[1, "2"]])) == {"a": [[1, 2]]}


def test_several_series_of_a_node_are_one_in_order_of_time() -> None:
    samples = read(
        ({"node": "a", "pod": "new"}, [[4, "40"], [5, "50"]]),
        ({"node": "a", "pod": "old"}, [[3, "30"], [4, "41"]]),
    )
    assert samples == {"a": [[3, 30], [4, 41], [5, 50]]}


def test_invalid_samples_are_left_out() -> None:
    samples = read(
        ({"node": "a"}, [[1, "NaN"], [2, "2"], [3, "+Inf"], [4, "-Inf"]]), ({"node": "b"}, [[1, "NaN"]])
    )
    assert samples == {"a": [[2, 2]]}


def test_nan_after_the_last_sample_is_no_sample() -> None:
    samples = read(
        ({"node": "a", "pod": "old"}, [[1, "20"], [2, "21"], [3, "NaN"]]),
        ({"node": "a", "pod": "new"}, [[3, "90"], [4, "91"]]),
    )
    assert samples == {"a": [[1, 20], [2, 21], [3, 90], [4, 91]]}


@pytest.mark.parametrize(
    "values",
    [
        [],
        None,
        "text",
        [[1]],
        [[1, 2]],
        [["1", "2"]],
        [[1, "much"]],
        [[1, "2", 3]],
        {"1": "2"},
        [[None, None]],
    ],
)
def test_unreadable_series_does_not_affect_others(values: Any) -> None:
    assert read(({"node": "a"}, values), ({"node": "b"}, [[1, "2"]])) == {"b": [[1, 2]]}


def test_a_histogram_has_no_values() -> None:
    assert read(({"node": "b"}, [[1, "2"]])) == {"b": [[1, 2]]}
    body = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"node": "a"}}]}}
    assert (
        run_without_pauses(
            range_matrix.samples_by_node(
                query_responses.decode_response(json.dumps(body).encode()), LABELS, NODES
            )
        )
        == {}
    )
