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


SAMPLES: dict[str, tuple[list[tuple[dict[str, str], Any]], dict[str, list[list[float]]]]] = {
    "the node that a label names": (
        [({"node": "a"}, [[1, "2"], [3, "4.5e3"]]), ({"node": "stranger"}, [[1, "2"]]), ({}, [[1, "2"]])],
        {"a": [[1, 2], [3, 4500]]},
    ),
    "an address": ([({"instance": "10.0.0.1:9100"}, [[1, "2"]])], {"a": [[1, 2]]}),
    "several series of a node in order of time": (
        [
            ({"node": "a", "pod": "new"}, [[4, "40"], [5, "50"]]),
            ({"node": "a", "pod": "old"}, [[3, "30"], [4, "41"]]),
        ],
        {"a": [[3, 30], [4, 41], [5, 50]]},
    ),
    "invalid samples": (
        [({"node": "a"}, [[1, "NaN"], [2, "2"], [3, "+Inf"], [4, "-Inf"]]), ({"node": "b"}, [[1, "NaN"]])],
        {"a": [[2, 2]]},
    ),
    "NaN after the last sample": (
        [
            ({"node": "a", "pod": "old"}, [[1, "20"], [2, "21"], [3, "NaN"]]),
            ({"node": "a", "pod": "new"}, [[3, "90"], [4, "91"]]),
        ],
        {"a": [[1, 20], [2, 21], [3, 90], [4, 91]]},
    ),
}


@pytest.mark.parametrize(("series", "samples"), SAMPLES.values(), ids=SAMPLES)
def test_valid_samples_are_grouped_by_node(series: Any, samples: dict[str, list[list[float]]]) -> None:
    assert read(*series) == samples


UNREADABLE = ([], None, "text", [[1]], [[1, 2]], [["1", "2"]], [[1, "much"]], [[1, "2", 3]], {"1": "2"})


@pytest.mark.parametrize("values", [*UNREADABLE, [[None, None]]])
def test_unreadable_series_does_not_affect_others(values: Any) -> None:
    assert read(({"node": "a"}, values), ({"node": "b"}, [[1, "2"]])) == {"b": [[1, 2]]}


def test_a_histogram_has_no_values() -> None:
    body = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"node": "a"}}]}}
    decoded = query_responses.decode_response(json.dumps(body).encode())
    assert run_without_pauses(range_matrix.samples_by_node(decoded, LABELS, NODES)) == {}
