"""Laws of the safe agent, for any load, pod and setting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.series import Sample, Series
from nodewise_scorers.statistics import node_usage_reader
from nodewise_scorers.statistics.node_usage_reader import StatisticsOptions
from scorers_tests.unit.safe.safe_agent_calls import GIB, KEYS, NOW, AgentCall, loaded, node, pod

NOTHING = pod()
MIB = GIB // 1024
SHARES = st.floats(0, 1) | st.sampled_from([0.0, 1e-9, 0.3, 0.5, 0.9, 1 - 1e-9, 1.0])
DEVIATIONS = st.floats(0, 1) | st.floats(0, 1e-5) | st.sampled_from([0.0, 0.005, 0.1, 0.5])
PERCENTS = st.sampled_from([0, 1, 30, 50, 90, 99, 100])
"""Percentages. They are few, because the creation of an agent takes time."""
TEXTS = st.one_of(
    st.integers(0, 5000).map(str),
    st.integers(0, 9 * GIB).map(str),
    st.text(max_size=8),
    st.floats().map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(
        ["", " 2000 ", "2000m", "nan", "inf", "-inf", "1e308", "-1e308", "1e309", "0x1p4", "N/A"]
    ),
)
QUANTITIES = st.one_of(
    st.none(), st.text(max_size=6), st.sampled_from(["0", "4", "500m", "8Gi", "1e300", "-1", "9E"])
)


@given(SHARES, DEVIATIONS, SHARES, DEVIATIONS, PERCENTS, PERCENTS)
def test_a_node_with_more_risk_never_scores_higher_and_is_not_the_only_one_accepted(
    mean, deviation, other_mean, other_deviation, utilization, percentile
):
    agent = AgentCall(
        loaded(mean, deviation, "a"),
        loaded(other_mean, other_deviation, "b"),
        safe_utilization=utilization,
        safe_percentile=percentile,
    )
    risks = [agent.numbers(NOTHING, number)["cpu"]["risk"] for number in (0, 1)]
    less, more = np.argsort(risks)
    points, accepted = agent.overload(NOTHING), agent.accepts(NOTHING)
    assert points[less] >= points[more]
    assert accepted[less] >= accepted[more]
    assert accepted == [risk <= percentile / 100 for risk in risks]


@given(SHARES, DEVIATIONS, PERCENTS, PERCENTS)
def test_risk_never_rises_with_the_threshold(mean, deviation, first, other):
    low, high = (
        AgentCall(loaded(mean, deviation), safe_utilization=utilization)
        for utilization in sorted((first, other))
    )
    risks = [agent.numbers(NOTHING)["cpu"]["risk"] for agent in (low, high)]
    assert risks[0] >= risks[1]
    assert low.overload(NOTHING) <= high.overload(NOTHING)
    assert low.accepts(NOTHING) <= high.accepts(NOTHING)


@given(SHARES, SHARES, DEVIATIONS, DEVIATIONS)
def test_balance_never_rises_with_the_load(mean, other_mean, deviation, other_deviation):
    (less, more), (steady, lively) = sorted((mean, other_mean)), sorted((deviation, other_deviation))
    agent = AgentCall(loaded(less, steady, "a"), loaded(more, steady, "b"), loaded(less, lively, "c"))
    best, busier, livelier = agent.balance(NOTHING)
    assert best >= busier
    assert best >= livelier


@given(SHARES, DEVIATIONS, st.integers(0, 8000), st.integers(0, 8000))
def test_balance_score_never_rises_with_the_request(mean, deviation, first, other):
    small, large = (pod(cpu=f"{milli}m") for milli in sorted((first, other)))
    agent = AgentCall(loaded(mean, deviation))
    assert agent.balance(small) >= agent.balance(large)


@given(
    st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, TEXTS)), max_size=4),
    st.none() | st.fixed_dictionaries({}, optional={"cpu": QUANTITIES, "memory": QUANTITIES}),
    st.fixed_dictionaries({}, optional={"cpu": QUANTITIES, "memory": QUANTITIES}),
    PERCENTS,
    PERCENTS,
    st.sampled_from(["accept", "reject"]),
    st.none() | st.integers(0, 10),
)
def test_scores_are_0_to_10_and_missing_statistics_are_named_for_any_annotations(
    given_nodes, room, requests, utilization, percentile, when_missing, score_missing
):
    nodes = [node(f"n{number}", room, **statistics) for number, statistics in enumerate(given_nodes)]
    agent = AgentCall(
        *nodes,
        safe_utilization=utilization,
        safe_percentile=percentile,
        when_missing=when_missing,
        score_missing=score_missing,
    )
    wanted = pod(**requests)
    verdict, points, balance = agent.filter(wanted), agent.overload(wanted), agent.balance(wanted)
    assert all(0 <= score <= 10 for score in (*points, *balance))
    for number in range(len(nodes)):
        numbers = verdict.details.numbers(number)
        known = [row for row in numbers.values() if not np.isnan(row["risk"])]
        for row in numbers.values():
            assert row in known or row["missing"] not in ("", "no deviation")
        for row in known:
            assert 0 <= row["risk"] <= 1
            assert row.get("missing", "no deviation") == "no deviation"
            assert row["std_share"] == 0 or "missing" not in row
        risky = any(row["risk"] > percentile / 100 for row in known)
        assert bool(verdict.codes[number]) == (risky or (not known and when_missing == "reject"))
        assert verdict.details.text(number)
        if not known:
            assert points[number] == balance[number] == (score_missing or 0)


@given(st.lists(st.tuples(SHARES, DEVIATIONS), min_size=1, max_size=8), st.data(), PERCENTS)
def test_a_node_gets_the_same_answer_whoever_stands_beside_it(loads, data, percentile):
    nodes = [loaded(*load, name=f"n{number}") for number, load in enumerate(loads)]
    names = data.draw(st.lists(st.sampled_from([node.metadata.name for node in nodes]), unique=True))
    agent = AgentCall(*nodes, safe_percentile=percentile)
    wanted = pod(cpu="250m")
    alone = [AgentCall(nodes[int(name[1:])], safe_percentile=percentile).all(wanted) for name in names]
    accepted = (agent.filter(wanted, names).codes == 0).tolist()
    assert (
        list(zip(accepted, agent.overload(wanted, names), agent.balance(wanted, names), strict=True)) == alone
    )


@given(*[st.integers(0, 4000)] * 2, *[st.integers(0, 8192).map(lambda count: count * MIB)] * 2)
def test_metrics_and_annotations_that_say_the_same_get_the_same_answer(cpu, cpu_std, memory, memory_std):
    annotated = node(cpu=4000 - cpu, cpu_std=cpu_std, memory=8 * GIB - memory, memory_std=memory_std)
    milli, nano = 10**6, 10**9
    values = (cpu * milli, cpu_std * milli, memory * nano, memory_std * nano)
    metric_requests = node_usage_reader.metric_requests(StatisticsOptions(statistics="metrics"))
    series = (
        Series(metric_request.key, "prometheus", NOW, {"n1": Sample(value, None)})
        for metric_request, value in zip(metric_requests, values, strict=True)
    )
    snapshot = MetricsSnapshot({metric_series.metric: metric_series for metric_series in series})
    wanted = pod(cpu="250m", memory="1Gi")
    measured = AgentCall(node(), metrics_snapshot=snapshot, statistics="metrics")
    assert measured.all(wanted) == AgentCall(annotated).all(wanted)
    assert repr(measured.numbers(wanted)) == repr(AgentCall(annotated).numbers(wanted))
