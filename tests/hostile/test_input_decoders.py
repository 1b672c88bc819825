# ruff: noqa: E501, PT017 - rows of a table; either outcome is right, and each has to be a whole one
"""The decoders of foreign input. For every shape, they return quickly with a value or a documented error."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewise.agent import ClusterState
from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.base.errors import BadInput, NodewiseError
from nodewise.metrics import custom_metrics_api
from nodewise.metrics.custom_metrics_api import choose_version
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import MetricRequest
from nodewise.metrics.node_index import NodeIndex
from nodewise.metrics.prometheus import query_responses, source
from nodewise.metrics.series import Sample, Series, build_column, merge_newer
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyMetadata, PolicyObject
from nodewise.policies.state import TelemetryStateBuilder
from tests.hostile import json_strategies
from tests.hostile.json_strategies import anything, encoded, mostly
from tests.unit.policies.policy_snapshot_builders import tas_key

RULE_FIELDS = ("metricname", "operator", "target", "labels", "when_missing", "max_age", "query")
keys = st.sampled_from(
    (
        "strategies",
        "dontschedule",
        "scheduleonmetric",
        "deschedule",
        "labeling",
        "rules",
        "logicalOperator",
        *RULE_FIELDS,
    )
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "metricname": mostly(st.sampled_from(("temp", "m_1")), keys),
        "operator": mostly(st.sampled_from(("LessThan", "GreaterThan", "Equals")), keys),
        "target": mostly(st.integers(-9, 9) | st.sampled_from(json_strategies.QUANTITIES), keys),
        "labels": mostly(st.lists(st.sampled_from(("a=b", "c=")), max_size=3), keys),
        "when_missing": mostly(st.sampled_from(("pass", "reject")), keys),
        "max_age": mostly(st.sampled_from(("30s", "9" * 400 + "h", "0s")), keys),
        "query": mostly(st.sampled_from(("up", "up{a=", "sum(x)")), keys),
    },
)
strategies = st.fixed_dictionaries(
    {"rules": mostly(st.lists(mostly(rules, keys), max_size=3), keys)},
    optional={"logicalOperator": mostly(st.sampled_from(("allOf", "anyOf")), keys)},
)
specs = mostly(
    st.fixed_dictionaries(
        {"strategies": mostly(st.dictionaries(keys, mostly(strategies, keys), max_size=4), keys)}
    ),
    keys,
)
NODES = NodeIndex(["a", "b", "c"])


def policy_of(spec: bytes, name: str = "pol") -> PolicyObject:
    return PolicyObject(PolicyMetadata(name, "d"), msgspec.Raw(spec))


def state_of_policies(*objects: PolicyObject, values_: Any = (3, 90)) -> Any:
    """The states of these policies, with all their metrics fetched."""
    state = TelemetryStateBuilder(TelemetryOptions(), 60.0)
    listed = {(policy.metadata.namespace, policy.metadata.name): policy for policy in objects}
    metric_requests = state.metric_requests({"taspolicies": listed})
    entries = [
        ("a", custom_metrics_api.Sample(values_[0] * 10**9, None)),
        ("b", custom_metrics_api.Sample(values_[1] * 10**9, None)),
    ]
    known = MetricsSnapshot(
        {
            metric_request.key: custom_metrics_api.build_series(
                MetricRequest(metric_request.key), "s", 0.0, entries
            )
            for metric_request in metric_requests
        }
    )
    assert all(
        source.range_query(metric_request, metric_request.max_age_s) for metric_request in metric_requests
    )
    world = ClusterState(NODES, {"taspolicies": listed}, known, 0.0)
    assert all(state.problems(world.objects).values())
    return run_without_pauses(state.build(world)).policies


@given(specs)
def test_any_spec_is_read_and_decided_and_no_other_policy_notices(spec: Any) -> None:
    good = policy_of(
        b'{"strategies":{"dontschedule":{"rules":[{"metricname":"t","operator":"GreaterThan","target":50}]}}}',
        "good",
    )
    agent_state = state_of_policies(policy_of(encoded(spec)), good)
    assert agent_state[tas_key("good")].verdict.codes.tolist()[:2] == [0, 1]
    policy = agent_state[tas_key()]
    for reason in policy.verdict.reasons if policy.verdict else ():
        assert len(reason.text()) < 1200


def test_a_sample_of_a_time_to_come_does_not_hold_against_later_ones() -> None:
    """A timestamp in the future from a wrong clock must not prevent later values."""
    old = Series("m", "s", 100.0, {"a": Sample(1, 9e9), "b": Sample(1, 130.0)})
    new = Series("m", "s", 105.0, {"a": Sample(2, 104.0), "b": Sample(2, 104.0)})
    assert {
        node: sample.value for node, sample in run_without_pauses(merge_newer(old, new)).samples.items()
    } == {
        "a": 2,
        "b": 1,
    }


metric_keys = st.sampled_from(
    ("items", "describedObject", "name", "kind", "metric", "metricName", "value", "timestamp", "windowSeconds", "status",
     "data", "result", "resultType", "values", "preferredVersion", "versions", "version", "error", "errorType")
)  # fmt: skip
times = st.sampled_from(
    ("2026-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:60Z", "now", "1e9")
)
items = st.fixed_dictionaries(
    {"describedObject": mostly(st.fixed_dictionaries({"name": mostly(st.sampled_from(["a", "b"]), metric_keys)}), metric_keys)},
    optional={
        "value": mostly(st.sampled_from((*json_strategies.QUANTITIES, "5", "1500m")), metric_keys),
        "timestamp": mostly(times, metric_keys),
        "windowSeconds": mostly(st.integers(), metric_keys),
    },
)  # fmt: skip


@given(
    mostly(
        st.fixed_dictionaries(
            {"items": mostly(st.lists(mostly(items, metric_keys), max_size=4), metric_keys)}
        ),
        metric_keys,
    )
)
def test_any_answer_about_a_metric_is_a_series_or_bad_input(answer: Any) -> None:
    try:
        values = custom_metrics_api.build_series(
            MetricRequest("m"),
            "s",
            0.0,
            custom_metrics_api.node_samples(
                item for batch in custom_metrics_api.decode_items(encoded(answer)) for item in batch
            ),
        )
    except BadInput as error:
        assert error.problems
        return
    laid_out = build_column(values, NODES)
    run_without_pauses(laid_out)
    assert set(values.samples).isdisjoint(values.invalid)


series = st.fixed_dictionaries(
    {"metric": mostly(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2), metric_keys)},
    optional={
        "value": mostly(
            st.tuples(st.floats(0, 9e9), st.sampled_from((*json_strategies.QUANTITIES, "5"))), metric_keys
        ),
        "values": mostly(
            st.lists(mostly(st.tuples(st.floats(0, 9e9), st.just("5")), metric_keys), max_size=3), metric_keys
        ),
    },
)
envelopes = st.fixed_dictionaries(
    {"status": mostly(st.just("success"), metric_keys)},
    optional={
        "data": mostly(
            st.fixed_dictionaries(
                {
                    "resultType": mostly(st.sampled_from(("matrix", "vector")), metric_keys),
                    "result": mostly(st.lists(mostly(series, metric_keys), max_size=3), metric_keys),
                }
            ),
            metric_keys,
        ),
        "error": anything(metric_keys),
        "warnings": anything(metric_keys),
    },
)


@given(mostly(envelopes, metric_keys), st.sampled_from((200, 301, 400, 404, 422, 500, 503)))
def test_any_answer_of_prometheus_is_series_or_an_error(answer: Any, status: int) -> None:
    assert isinstance(query_responses.error_from_response("query", status, encoded(answer)), NodewiseError)
    try:
        listed = list(query_responses.newest_values(query_responses.decode_response(encoded(answer))))
    except BadInput as error:
        assert error.problems
        return
    for value in listed:
        try:
            query_responses.parse_sample_value(value.value)
        except ValueError as error:
            assert len(str(error)) < 200


@given(mostly(st.fixed_dictionaries({"preferredVersion": anything(metric_keys)}), metric_keys))
def test_any_discovery_is_a_version_or_an_error(answer: Any) -> None:
    try:
        assert choose_version(encoded(answer)) in ("v1beta1", "v1beta2")
    except NodewiseError as error:
        assert str(error)


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"items":' + b"[" * 100_000, b"\xff", b"", b"<html>", b"null"]
)
def test_no_answer_is_anything_but_bad_input(body: bytes) -> None:
    for read in (
        lambda: list(custom_metrics_api.decode_items(body)),
        lambda: query_responses.decode_response(body),
        lambda: choose_version(body),
    ):
        try:
            read()
        except NodewiseError as error:
            assert str(error)
    assert isinstance(query_responses.error_from_response("query", 500, body), NodewiseError)
