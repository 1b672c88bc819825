"""The source `otlp`. The recorded file is of the OpenTelemetry Collector 0.165 with its file exporter: two exports of
the nodes n1 (`k8s.node.name`) and n2 (`host.name`), and of a resource without a node.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import BadInput
from nodewise.metrics import otlp_files
from nodewise.metrics.metrics_source import MetricNotFound, MetricRequest
from nodewise.metrics.otlp_files import OtlpFileSource
from nodewise.metrics.series import Series

RECORDED = Path(__file__).parent / "recorded_answers/otelcol-0.165-file-exporter.jsonl"
NANO = 10**9


def fetch(source: OtlpFileSource, metric: str, aggregate: str = "") -> Series:
    return asyncio.run(source.fetch(MetricRequest(metric, aggregate=aggregate), 0.0))


def values(source: OtlpFileSource, metric: str, aggregate: str = "") -> dict[str, float]:
    return {node: sample.value / NANO for node, sample in fetch(source, metric, aggregate).samples.items()}


def point(value: float, at: int = 10, **fields: Any) -> dict[str, Any]:
    return {"timeUnixNano": str(at * NANO), "asDouble": value, **fields}


def line(*points: dict[str, Any], node: str = "n1", kind: str = "gauge") -> str:
    attributes = [{"key": "k8s.node.name", "value": {"stringValue": node}}]
    metrics = [{"name": "temp", kind: {"dataPoints": points}}]
    resource = {"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": metrics}]}
    return json.dumps({"resourceMetrics": [resource]}) + "\n"


def sensor(name: str) -> list[dict[str, Any]]:
    return [{"key": "sensor", "value": {"stringValue": name}}]


def test_recorded_gauges_and_sums_have_their_newest_values() -> None:
    source = OtlpFileSource(str(RECORDED))
    series = fetch(source, "node.temperature")
    assert values(source, "node.temperature") == {"n1": 62.5, "n2": 73.25}
    assert values(source, "node.errors") == {"n1": 3, "n2": 0}
    assert values(source, "node.fan.speed", "max") == {"n1": 744, "n2": 876}
    assert series.source == "otlp"
    assert all(1.79e9 < (sample.at or 0) < 1.8e9 for sample in series.samples.values())


def test_several_series_of_a_node_require_an_aggregation() -> None:
    assert set(fetch(OtlpFileSource(str(RECORDED)), "node.fan.speed").invalid) == {"n1", "n2"}


@pytest.mark.parametrize("metric", ["request.duration", "node.temperatur"])
def test_histogram_or_unknown_metric_is_not_found(metric: str) -> None:
    with pytest.raises(MetricNotFound, match=f"metric {metric} is not in"):
        fetch(OtlpFileSource(str(RECORDED)), metric)


def test_request_with_a_query_is_not_supported() -> None:
    assert not OtlpFileSource("x").supports(MetricRequest("temp", query="max(temp)"))


VALUES: dict[str, tuple[list[dict[str, Any]], dict[str, float]]] = {
    "older point after a newer one": ([point(2, 20), point(1, 10)], {"n1": 2}),
    "integer as text": ([{"timeUnixNano": 0, "asInt": "-7"}], {"n1": -7}),
    "point without a recorded value ends the series": (
        [point(1, 10), {"timeUnixNano": "20", "flags": 1}],
        {"n1": 1},
    ),
    "newer end of the series": ([point(1, 10), {"timeUnixNano": str(20 * NANO), "flags": 1}], {}),
    "series that has ended": (
        [point(1, 10, attributes=sensor("a")), point(2, 400, attributes=sensor("b"))],
        {"n1": 2},
    ),
    "infinite value": ([point(1) | {"asDouble": "Infinity"}], {}),
}


@pytest.mark.parametrize(("points", "expected"), VALUES.values(), ids=VALUES)
def test_points_of_one_node(tmp_path: Path, points: list[dict[str, Any]], expected: dict[str, float]) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line(point(5), node="n2") + line(*points))
    assert values(OtlpFileSource(str(file)), "temp") == expected | {"n2": 5}


def test_appended_lines_are_read_when_they_are_complete(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line(point(1)))
    source = OtlpFileSource(str(file))
    assert values(source, "temp") == {"n1": 1}
    with file.open("a") as appended:
        appended.write(line(point(2, 20))[:-10])
        appended.flush()
        assert values(source, "temp") == {"n1": 1}
        appended.write(line(point(2, 20))[-10:])
    assert values(source, "temp") == {"n1": 2}


def test_rotation_keeps_the_values_until_newer_ones(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line(point(1)) + line(point(3), node="n2"))
    source = OtlpFileSource(str(file))
    assert values(source, "temp") == {"n1": 1, "n2": 3}
    file.rename(tmp_path / "m-1.jsonl")
    assert values(source, "temp") == {"n1": 1, "n2": 3}
    file.write_text(line(point(2, 20)))
    assert values(source, "temp") == {"n1": 2, "n2": 3}


def test_truncated_or_replaced_content_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line(point(1)) + line(point(2)))
    source = OtlpFileSource(str(file))
    assert values(source, "temp") == {"n1": 2}
    file.write_text(line(point(3, 20)))
    assert values(source, "temp") == {"n1": 3}
    file.write_text(line(point(4, 30)))
    assert values(source, "temp") == {"n1": 4}


FIELD = "resourceMetrics[0].scopeMetrics[0].metrics[0]"
INVALID = {
    "no JSON": ("nonsense\n", "line 2: JSON is malformed"),
    "another signal": ('{"resourceLogs": []}\n', "line 2: Object missing required field `resourceMetrics`"),
    "another type": (
        '{"resourceMetrics": [{"scopeMetrics": 7}]}\n',
        "line 2, resourceMetrics[0].scopeMetrics: int; expected array",
    ),
    "another type of a resource": (
        '{"resourceMetrics": [{"resource": {"attributes": 5}}]}\n',
        "line 2, resourceMetrics[0].resource, attributes: int; expected array",
    ),
    "a time that is too large": (
        line(point(1) | {"timeUnixNano": "9" * 400}),
        f"line 2, {FIELD}.gauge.dataPoints[0].timeUnixNano: '999",
    ),
    "no time": (
        line(point(1) | {"timeUnixNano": "now"}),
        f"line 2, {FIELD}.gauge.dataPoints[0].timeUnixNano: 'now'; expected nanoseconds since 1970",
    ),
    "no number": (
        line({"asInt": "many"}, kind="sum"),
        f"line 2, {FIELD}.sum.dataPoints[0].asInt: 'many'; expected a number",
    ),
    "no value": (
        line({"timeUnixNano": "1"}),
        f"line 2, {FIELD}.gauge.dataPoints[0]: no value; expected asDouble or asInt",
    ),
}


@pytest.mark.parametrize(("text", "problem"), INVALID.values(), ids=INVALID)
def test_invalid_line_names_line_field_found_and_expected(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line(point(1)) + text)
    source = OtlpFileSource(str(file))
    for _ in range(2):
        with pytest.raises(BadInput) as caught:
            fetch(source, "temp")
        assert f"{file}, {problem}" in str(caught.value)
    file.write_text(line(point(1)) + "\n" + line(point(2, 20)))
    assert values(source, "temp") == {"n1": 2}


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line(point(1)) + line(point(1), node="n2"))
    monkeypatch.setattr(otlp_files, "MAX_SERIES", 1)
    with pytest.raises(BadInput, match="line 2: more series; expected at most 1 series"):
        fetch(OtlpFileSource(str(file)), "temp")
    monkeypatch.setattr(otlp_files, "MAX_LINE_BYTES", 20)
    with pytest.raises(BadInput, match="line 1: a longer line; expected a line of at most 20 bytes"):
        fetch(OtlpFileSource(str(file)), "temp")


def test_ended_series_make_room_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(line(point(1)) + line(point(2), node="n2"))
    source = OtlpFileSource(str(file))
    monkeypatch.setattr(otlp_files, "MAX_SERIES", 2)
    assert values(source, "temp") == {"n1": 1, "n2": 2}
    with file.open("a") as lines:
        lines.write(line(point(3, 400), node="n3") + line(point(4, 401), node="n4"))
    assert values(source, "temp") == {"n3": 3, "n4": 4}
    with file.open("a") as lines:
        lines.write(line(point(5, 402), node="n5"))
    for _ in range(2):
        with pytest.raises(BadInput, match="line 5: more series"):
            fetch(source, "temp")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file or directory; expected a file of OTLP/JSON metrics"):
        fetch(OtlpFileSource(str(tmp_path / "m.jsonl")), "temp")
