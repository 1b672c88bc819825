"""A converted TASPolicy has the same verdicts, ranks and node labels."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from nodewise.agent import ClusterState, NodeIndex, ObjectKey, Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.kube import object_files
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise.policies import node_labels
from nodewise.policies.agent import TelemetryAgent
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_namespace_trust import NAMESPACES
from nodewise.policies.policy_objects import RESOURCES, PolicyObject
from nodewise.policies.policy_selection import PodFields, PodMetadata
from nodewise.policies.state import TelemetryStateBuilder
from nodewise.policy_tools import policy_lint, policy_writer, taspolicy_conversion
from tests.unit.policies.policy_snapshot_builders import NOW, namespaces, policy

NODES: Final = tuple(f"n{number}" for number in range(5))
TIMES: Final = (NOW, NOW + 40.0, NOW + 80.0)
MAX_AGE_S: Final = 60.0
POD: Final = PodFields(PodMetadata("d", {"telemetry-policy": "pol", "app": "x"}))

Objects = Mapping[str, Mapping[ObjectKey, Any]]
Values = Mapping[tuple[str, str], "list[MetricValues | None]"]
"""By metric or query, and aggregation: the values at each of `TIMES`; None if no source has the metric."""


class MetricValues(NamedTuple):
    """The response of a source: values in units with their ages, and nodes with an invalid value."""

    age_s: float
    samples: Mapping[str, tuple[int, float]]
    invalid: frozenset[str]


def rules(
    *, labels: bool = False, invalid: bool = True, query: bool = True
) -> st.SearchStrategy[dict[str, Any]]:
    """Rules, seldom with an invalid field, and in `labeling` with labels."""
    odd = [None] * 12 + ([{"operator": "Above"}, {"target": "warm"}] if invalid else [])
    names = st.sampled_from(["card0", "card1"])
    label = st.builds("{}={}".format, names, st.sampled_from(["a", "b"]))
    return st.builds(
        lambda parts, wrong: {
            key: value for key, value in (parts | (wrong or {})).items() if value is not None
        },
        st.fixed_dictionaries(
            {
                "metricname": st.sampled_from(["a", "b"]),
                "operator": st.sampled_from(["GreaterThan", "LessThan", "Equals"]),
                "target": st.integers(-3, 3)
                | st.sampled_from(["1500m", "0.1", "1e30", "2Ki", "1n", "1e120"]),
                "when_missing": st.sampled_from([None, None, "pass", "reject"]),
                "max_age": st.sampled_from([None, None, "1m", "30s", "45500ms", "1h"]),
                "aggregate": st.sampled_from([None, None, "max"]),
                "query": st.sampled_from([None, None, None, "up * 2"] if query else [None]),
                "empty_means": st.sampled_from([None, "healthy"]),
                "labels": st.lists(label, max_size=2) if labels else st.none(),
            }
        ),
        st.sampled_from(odd),
    )


def strategies(**more: Any) -> st.SearchStrategy[dict[str, Any]]:
    listed = st.lists(rules(**more), min_size=1, max_size=4)
    return st.fixed_dictionaries(
        {"rules": listed}, optional={"logicalOperator": st.sampled_from(["anyOf", "allOf"])}
    )


POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "dontschedule": strategies(invalid=False),
        "scheduleonmetric": strategies(),
        "deschedule": strategies(),
        "labeling": strategies(labels=True),
    },
).map(lambda strategies: policy(**strategies))
NAMESPACED = st.fixed_dictionaries(
    {"dontschedule": strategies(invalid=False, query=False)},
    optional={"scheduleonmetric": strategies(invalid=False, query=False)},
).map(lambda strategies: policy(**strategies))
"""Policies with no effect beyond their namespace."""
METRIC_VALUES = st.builds(
    MetricValues,
    st.sampled_from([0.0, 0.0, 50.0, 100.0]),
    st.dictionaries(
        st.sampled_from([*NODES, "unknown"]),
        st.tuples(st.integers(-4, 4), st.sampled_from([0.0, 0.0, 0.0, 35.0, 70.0])),
    ),
    st.frozensets(st.sampled_from(NODES), max_size=1),
)
VALUES: st.SearchStrategy[Values] = st.fixed_dictionaries(
    {
        (source, aggregate): st.lists(
            METRIC_VALUES | st.just(MetricValues(0.0, {}, frozenset())) | st.none(),
            min_size=len(TIMES),
            max_size=len(TIMES),
        )
        for source in ("a", "b", "up * 2")
        for aggregate in ("", "max")
    }
)


def converted(tas_policy: PolicyObject, when_missing: Any) -> Objects:
    """The objects that replace a policy, after a round trip through YAML, which `policy lint` accepts."""
    conversion = taspolicy_conversion.convert(tas_policy, when_missing)
    assume(not conversion.problems)
    text = "---\n".join(policy_writer.format_policy(*made) for made in conversion.policies)
    objects: dict[str, dict[ObjectKey, Any]] = {}
    for _, document in object_files.split_documents(text.encode(), "test"):
        kind = msgspec.json.decode(document)["kind"]
        assert policy_lint.lint(document, kind) == []
        made = msgspec.json.decode(document, type=PolicyObject)
        objects.setdefault(RESOURCES[kind].plural, {})[made.metadata.namespace, made.metadata.name] = made
    return objects


def evaluate(objects: Objects, values: Values, options: TelemetryOptions) -> list[Snapshot]:
    """The snapshots at each of `TIMES`, by one builder, which suspends rules."""
    builder = TelemetryStateBuilder(options, MAX_AGE_S)
    snapshots = []
    index = NodeIndex(NODES)
    for step, now in enumerate(TIMES):
        series = {}
        for request in builder.metric_requests(objects):
            metric_values = values[request.query or request.metric, request.aggregate][step]
            if metric_values is not None:
                samples = {
                    n: Sample(value * 10**9, now - age) for n, (value, age) in metric_values.samples.items()
                }
                invalid = dict.fromkeys(metric_values.invalid, "bad")
                good = {node: sample for node, sample in samples.items() if node not in invalid}
                series[request.key] = Series(request.key, "test", now - metric_values.age_s, good, invalid)
        state = builder.build(ClusterState(index, objects, MetricsSnapshot(series), now))
        agent_states = {"telemetry": cooperative_scheduling.run_without_pauses(state)}
        snapshots.append(Snapshot(index, agent_states, now, step))
    return snapshots


def rejected(snapshot: Snapshot) -> list[bool]:
    verdict = TelemetryAgent().filter(POD, snapshot.nodes.named(NODES), snapshot)
    return [False] * len(NODES) if verdict is None else (verdict.codes != 0).tolist()


def points(snapshot: Snapshot) -> list[int] | None:
    scores = TelemetryAgent().score(POD, snapshot.nodes.named(NODES), snapshot)
    return None if scores is None else [int(point) for point in scores.points]


def labels(snapshot: Snapshot) -> dict[str, tuple[list[str], list[bool]]]:
    """By key, the label of each node, and where an existing one stays."""
    states = snapshot.agent_states["telemetry"].policies
    assigned = node_labels.combine_policy_labels(
        {key: (state.policy, state.labels) for key, state in states.items()}
    )
    return {
        key: (
            ["" if code == 0 else column.values[code - 1] for code in column.codes[:-1].tolist()],
            column.hold[:-1].tolist(),
        )
        for key, column in assigned.columns.items()
    }


def labelled(snapshot: Snapshot) -> dict[str, list[str]]:
    """By key, the label of each node; `*` where there is none, and an existing one stays."""
    return {
        key: [name or "*" * stays for name, stays in zip(names, holds, strict=True)]
        for key, (names, holds) in labels(snapshot).items()
    }


def is_ordered(tas_policy: PolicyObject) -> bool:
    """Whether the policy prefers nodes by an order; the new kinds cannot express others."""
    listed = msgspec.json.decode(tas_policy.spec)["strategies"].get("scheduleonmetric", {"rules": []})[
        "rules"
    ]
    return not listed or listed[0]["operator"] in ("GreaterThan", "LessThan")


@given(POLICIES, VALUES, st.sampled_from(["pass", "reject"]))
def test_a_converted_policy_has_the_same_verdicts_ranks_and_labels(
    tas_policy: PolicyObject, values: Values, when_missing: Any
) -> None:
    options = TelemetryOptions(when_missing=when_missing)
    trusted = {NAMESPACES: namespaces("d")}
    new = converted(tas_policy, when_missing)
    old = {"taspolicies": {("d", "pol"): tas_policy}}
    before = evaluate(old | trusted, values, options)
    after = evaluate(new | trusted, values, options)
    both = evaluate(old | new | trusted, values, options)
    assert [rejected(snapshot) for snapshot in after] == [rejected(snapshot) for snapshot in before]
    assert [rejected(snapshot) for snapshot in both] == [rejected(snapshot) for snapshot in before]
    assert [labels(snapshot) for snapshot in after] == [labels(snapshot) for snapshot in before]
    assert [labelled(snapshot) for snapshot in both] == [labelled(snapshot) for snapshot in before]
    if is_ordered(tas_policy):
        assert [points(snapshot) for snapshot in after] == [points(snapshot) for snapshot in before]
        assert [points(snapshot) for snapshot in both] == [points(snapshot) for snapshot in before]


@given(NAMESPACED, VALUES)
def test_a_policy_that_needs_no_trust_is_converted_alike_without_it(
    tas_policy: PolicyObject, values: Values
) -> None:
    new = converted(tas_policy, "pass")
    assert "clusterplacementpolicies" not in new
    before = evaluate({"taspolicies": {("d", "pol"): tas_policy}}, values, TelemetryOptions())
    after = evaluate(new, values, TelemetryOptions())
    assert [rejected(snapshot) for snapshot in after] == [rejected(snapshot) for snapshot in before]
    if is_ordered(tas_policy):
        assert [points(snapshot) for snapshot in after] == [points(snapshot) for snapshot in before]
