"""Measures of rejections in the past, and variants of a policy."""

import io
import tracemalloc

import numpy as np

from nodewise.kube import object_files
from nodewise.metrics.prometheus.range_matrix import NodeMatrix
from nodewise.metrics.series import ValueState
from nodewise.policies.placement_policy import Policy
from nodewise.policy_tools import backtest_summary, policy_backtest, policy_timeline
from nodewise.policy_tools.backtest_summary import (
    History,
    Interval,
    PodWaits,
    RuleArrays,
    RuleContext,
    StartedPod,
)
from nodewise.policy_tools.policy_timeline import PolicyTimeline, TimelineSettings

START = 1_700_000_000.0


def mask(*rows: str):
    """A row of letters for each node: `x` rejected, `.` not, blank before the node exists."""
    return np.array([[letter == "x" for letter in row] for row in rows]).T


def history(*rows: str) -> History:
    exists = np.array([[letter != " " for letter in row] for row in rows]).T
    return History(START + 60.0 * np.arange(len(rows[0])), 60.0, exists)


def test_rejections_changes_and_outages() -> None:
    rows = (".xx..xx.", "xxx..x..", "   .xx..")
    measures = backtest_summary.measure(mask(*rows), history(*rows))
    assert measures.rejected_share == 10 / 21
    assert (measures.most_rejected, measures.most_rejected_at) == (3, START + 300)
    assert measures.changes == 4 + 3 + 2
    assert (measures.flaps, measures.flaps_per_hour) == (2, 2 / (8 / 60))
    expected = [Interval(START + 60, START + 180), Interval(START + 300, START + 360)]
    assert measures.without_eligible_node == expected
    assert measures.longest_outage_s == 120


def test_pods_wait_until_a_node_is_eligible_or_the_history_ends() -> None:
    rows = (".xx.xx", "..x.xx")
    pods = [
        StartedPod(START + 5, 0),
        StartedPod(START + 65, 0),  # on a rejected node, while the other was eligible
        StartedPod(START + 125, 1),
        StartedPod(START + 245, -1),
        StartedPod(START - 5, 0),
    ]
    measures = backtest_summary.measure(mask(*rows), history(*rows), pods)
    assert measures.pods == PodWaits(5, 2, 55.0 + 115.0, 115.0, 1)


def test_nodes_with_the_longest_rejections_come_first() -> None:
    rows = (".x.xx.", "......", "xxxx..")
    nodes = backtest_summary.node_rejections(mask(*rows), history(*rows), ("a", "b", "c"))
    assert [(node.node, node.rejected_s, node.times, node.last) for node in nodes] == [
        ("c", 240.0, 1, Interval(START, START + 240)),
        ("a", 180.0, 2, Interval(START + 180, START + 300)),
    ]
    intervals = backtest_summary.rejection_intervals(mask(*rows), history(*rows), [0, 2], 2)
    assert intervals == [(0, Interval(START + 60, START + 120)), (0, Interval(START + 180, START + 300))]


def policy(rules: str) -> Policy:
    text = f"""
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {{name: p, namespace: web}}
spec: {{podSelector: {{}}, avoid: {rules}}}
"""
    settings = TimelineSettings()
    files = object_files.read(["-"], io.BytesIO(text.encode()))
    timeline = PolicyTimeline(policy_timeline.objects_of_files(files, settings.options), settings)
    [parsed] = timeline.policies.values()
    return parsed


def values(*numbers: int) -> NodeMatrix:
    nano = np.array([numbers]) * 10**9
    return NodeMatrix(nano, np.full(nano.shape, np.uint8(ValueState.FRESH), np.uint8))


def test_alternatives_are_other_thresholds_and_the_other_meaning_of_missing_values() -> None:
    parsed = policy("[{metric: temp, above: 80}, {metric: free, below: 10, whenMissing: Reject}]")
    samples = {"temp": values(*range(101)), "free": values(*range(101))}
    changes = [(variant.rule, variant.change) for variant in policy_backtest.alternatives(parsed, samples)]
    assert changes == [
        (0, "without it"),
        (0, "above 99"),
        (0, "above 95"),
        (0, "above 90"),
        (0, "above 88"),
        (0, "above 72"),
        (0, "release: 76"),
        (0, "whenMissing: Reject"),
        (0, "for: 5m"),
        (0, "for: 15m"),
        (0, "keepFor: 15m"),
        (1, "without it"),
        (1, "below 1"),
        (1, "below 5"),
        (1, "below 9"),
        (1, "below 11"),
        (1, "release: 10.5"),
        (1, "whenMissing: Allow"),
        (1, "for: 5m"),
        (1, "for: 15m"),
        (1, "keepFor: 15m"),
    ]


def test_alternatives_of_a_rule_with_states() -> None:
    parsed = policy("[{metric: temp, above: 80, release: 70, for: 5m}]")
    changes = [variant.change for variant in policy_backtest.alternatives(parsed, {"temp": values(80)})]
    assert changes == [
        "above 88",
        "above 72",
        "release: 76",
        "without release",
        "whenMissing: Reject",
        "without for 5m",
        "for: 15m",
    ]
    assert policy_backtest.rule_text(parsed.avoid[0]) == "temp above 80, release 70, for 5m"


def test_a_flap_is_a_rejection_within_an_hour_after_the_node_passed() -> None:
    row = "x.x" + "." * 60 + "x" + "." * 61 + "x"
    measures = backtest_summary.measure(mask(row), history(row))
    assert measures.flaps == 2


def test_the_curve_of_a_threshold_counts_the_values_that_meet_the_comparison() -> None:
    for operator, at_two in (("above", 0.25), ("atLeast", 0.5), ("below", 0.5), ("atMost", 0.75)):
        parsed = policy(f"[{{metric: temp, {operator}: 2}}]")
        [curve] = policy_backtest.threshold_curves(parsed, {"temp": values(0, 1, 2, 4)})
        share = curve.shares[int(np.argmin(np.abs(np.array(curve.thresholds) - 2)))]
        assert abs(share - at_two) <= 0.25, operator
        assert sorted({round(share, 2) for share in curve.shares}) == [0, 0.25, 0.5, 0.75, 1]


def test_a_block_of_times_leaves_the_results_of_its_last_step_in_memory() -> None:
    steps, nodes = 2000, 50
    shape = steps, nodes
    matrix = NodeMatrix(np.arange(steps * nodes).reshape(shape), np.full(shape, ValueState.FRESH, np.uint8))
    temp = policy("[{metric: temp, above: 80, for: 5m}]")
    matrices = {part.metric_request().key: matrix for part in temp.avoided()}
    variants = [variant.policy for variant in policy_backtest.alternatives(temp, matrices)]
    arrays = RuleArrays(nodes, TimelineSettings().max_ages, reject_missing=False)
    context = RuleContext(START + 60.0 * np.arange(steps), {}, {})
    tracemalloc.start()
    try:
        assert any(mask.any() for mask in list(arrays.rejected(variants, matrices, context)))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < steps * nodes, "one byte for each value of one metric"
