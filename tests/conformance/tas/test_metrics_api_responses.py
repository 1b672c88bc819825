"""Requests to the metrics API, the values that are read from its responses, and invalid policy objects.

These are the rows of metrics.yaml and controller.yaml with responses that a real server does not give. The tests pass
them to the code that reads them.
"""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from nodewise.base import clock, quantity
from nodewise.base.errors import NodewiseError
from nodewise.kube.api_server_interface import NONE, NotFound, Params
from nodewise.kube.reflector import ObjectDecoder
from nodewise.metrics.custom_metrics_api import CustomMetricsSource
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.series import Series
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import taspolicy_parser as policies
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.state import POLICIES, TelemetryStateBuilder
from tests.conformance.tas import case_cluster_objects, case_table_rows
from tests.conformance.tas.faulty_proxy import METRICS
from tests.conformance.tas.non_request_rows import (
    AnswerRow,
    AnswerTable,
    MetricsApiResponse,
    ObjectRow,
    ObjectTable,
)

PERIOD_S = 5.0


class FakeMetricsApi:
    """The part of an API server that a source of metrics calls. It records every call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._offered: tuple[str, ...] = ()
        self._answers: dict[str, bytes] = {}

    async def get(self, path: str, params: Params = NONE, **_: Any) -> bytes:
        assert not params
        self.calls.append(path)
        if path not in self._answers:
            raise NotFound(f"get {path}")
        return self._answers[path]

    def offer(self, look: MetricsApiResponse) -> None:
        """Set the responses of one fetch."""
        self.calls.clear()
        self._offered = look.offered or self._offered
        paths = [f"{METRICS}/{version}/nodes/%2A/m" for version in self._offered]
        self._answers = {METRICS: _group(self._offered), **dict.fromkeys(paths, _listed(look))}


def _group(offered: tuple[str, ...]) -> bytes:
    versions = [{"version": version} for version in offered]
    group = {"kind": "APIGroup", "versions": versions, "preferredVersion": versions[0]}
    return json.dumps(group).encode()


def _listed(look: MetricsApiResponse) -> bytes:
    items = [
        case_cluster_objects.value("m", item["node"], item["value"])
        | {k: v for k, v in item.items() if k != "node"}
        for item in look.items
    ]
    return json.dumps({"kind": "MetricValueList", "items": items}).encode()


def requests_of(row: AnswerRow) -> tuple[frozenset[MetricRequest], tuple[str, ...]]:
    """The metrics that the row's rule requests, and the problems of the rule."""
    rule = (
        {"metricname": "m", "operator": "GreaterThan", "target": 10}
        if isinstance(row.rule, str)
        else row.rule
    )
    spec = {"strategies": {"dontschedule": {"rules": [rule]}}}
    policy = PolicyObject(PolicyMetadata("pol", "d"), msgspec.Raw(msgspec.json.encode(spec)))
    state = TelemetryStateBuilder(TelemetryOptions(trust_all_namespaces=True), 60.0)
    objects = {POLICIES: {("d", "pol"): policy}}
    return state.metric_requests(objects), state.problems(objects).get("d/pol", ())


async def check_looks(row: AnswerRow, metric_requests: frozenset[MetricRequest]) -> None:
    api = FakeMetricsApi()
    source = CustomMetricsSource(api)
    for number, look in enumerate(row.looks):
        api.offer(look)
        (series,) = [
            await try_fetch(source, metric_request, number * PERIOD_S) for metric_request in metric_requests
        ]
        assert api.calls == [f"{METRICS}{end}" for end in look.calls]
        assert (series and read_of(series, look)) == look.read


async def try_fetch(source: CustomMetricsSource, metric_request: MetricRequest, now: float) -> Series | None:
    try:
        return await source.fetch(metric_request, now)
    except NodewiseError:
        return None


def read_of(series: Series, look: MetricsApiResponse) -> dict[str, dict[str, Any]]:
    """The values that were read, with the fields that the row names."""
    values = {
        node: {
            "value": str(sample.value // quantity.NANO),
            "at": None if sample.at is None else clock.format_rfc3339(sample.at),
            "window_s": sample.window_s,
        }
        for node, sample in series.samples.items()
    }
    expected = look.read or {}
    return {node: {field: values[node][field] for field in expected.get(node, {})} for node in values}


@pytest.mark.parametrize(
    "row", case_table_rows.read("metrics", AnswerTable).answers, ids=lambda row: f"{row.number} {row.name}"
)
def test_answers(row: AnswerRow) -> None:
    metric_requests, problems = requests_of(row)
    if row.problem:
        assert metric_requests == frozenset()
        assert any(row.problem in problem for problem in problems)
    asyncio.run(check_looks(row, metric_requests))


@pytest.mark.parametrize(
    "row", case_table_rows.read("controller", ObjectTable).objects, ids=lambda row: f"{row.number} {row.name}"
)
def test_objects(row: ObjectRow, capsys: pytest.CaptureFixture[str]) -> None:
    decoder: ObjectDecoder[PolicyObject] = ObjectDecoder("TASPolicy", PolicyObject, MetricsRegistry())
    decoder.restart()
    for item in row.items:
        decoder.add(msgspec.Raw(item.encode()))
    decoder.finish()
    objects = {"/".join(key): policy for key, policy in decoder.store.snapshot().items()}
    assert objects.keys() == row.read.keys()
    for name, problem in row.read.items():
        text = "; ".join(map(str, policies.parse_policy(objects[name]).problems))
        assert problem in text
        assert bool(problem) == bool(text)
    output = "".join(capsys.readouterr())
    assert all(word in output for word in (row.logged.event, *row.logged.about))
