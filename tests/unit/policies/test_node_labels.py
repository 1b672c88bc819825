"""Node labels of policies, beginning with the older system's cases for `deschedule` and `labeling`."""

from typing import Any

import numpy as np
import pytest

from nodewise.base import cooperative_scheduling
from nodewise.policies import node_labels
from nodewise.policies.node_labels import LabelColumn
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.state import TelemetryStateBuilder
from tests.unit.policies.policy_snapshot_builders import cluster_state, metrics_snapshot, policy, rule, series

P = "telemetry.aware.scheduling.pol/"
STALE = 900.0


def desired(
    policies: Any, *metrics: Any, owned: Any = None, nodes: str = "n1 n2 n3"
) -> dict[str, dict[str, str]]:
    cluster = cluster_state(
        policies if isinstance(policies, list) else [policies], metrics_snapshot(*metrics), nodes
    )
    agent_state = cooperative_scheduling.run_without_pauses(
        TelemetryStateBuilder(TelemetryOptions(), 60.0).build(cluster)
    )
    columns = node_labels.merge_label_columns(
        column for decided in agent_state.policies.values() for column in decided.labels
    )
    return cooperative_scheduling.run_without_pauses(
        node_labels.desired_labels(columns, cluster.nodes, owned or {})
    )


def violating(
    rules: list[Any], *metrics: Any, owned: Any = None, logical: str = "anyOf"
) -> dict[str, dict[str, str]]:
    strategy = {"rules": rules, "logicalOperator": logical}
    labels = desired(policy(labeling=strategy), *metrics, owned=owned)
    return {
        node: {key.removeprefix(P): value for key, value in labels_of_node.items()}
        for node, labels_of_node in labels.items()
    }


class TestDeschedule:
    rules = policy(deschedule=[rule("m", target=10)])

    @pytest.mark.parametrize(
        ("metrics", "owned", "labelled"),
        [
            ([series("m", n1=5, n2=15)], "", "n2"),
            ([series("m", n1=5)], "n1", ""),
            ([], "n1", "n1"),
            ([series("m", at=STALE, n1=50)], "", ""),
            ([series("m", at=STALE, n1=5, n3=None)], "n1 n2 n3 gone", "n1 n2 n3"),
        ],
        ids=["a rule is met", "no longer met", "never fetched", "stale", "stale, missing and bad values"],
    )
    def test_label_follows_valid_values_and_stays_without_them(
        self, metrics: Any, owned: str, labelled: str
    ) -> None:
        label = {"pol": "violating"}
        labels = desired(self.rules, *metrics, owned=dict.fromkeys(owned.split(), label))
        assert labels == dict.fromkeys(labelled.split(), label)

    def test_a_label_of_a_policy_that_is_gone_goes(self) -> None:
        assert desired([], series("m", n1=50), owned={"n1": {"pol": "violating"}}) == {}

    def test_all_of(self) -> None:
        strategy = {"logicalOperator": "allOf", "rules": [rule("m", target=10), rule("k", "Equals", 1)]}
        metrics = (series("m", n1=50, n2=50, n3=50), series("k", n1=1, n2=0))
        assert desired(policy(deschedule=strategy), *metrics) == {"n1": {"pol": "violating"}}
        owned = {"n2": {"pol": "violating"}, "n3": {"pol": "violating"}}
        assert desired(policy(deschedule=strategy), *metrics, owned=owned).keys() == {"n1", "n3"}

    def test_two_policies_of_one_name_label_while_any_is_violated(self) -> None:
        two = [
            policy(deschedule=[rule("m", target=10)]),
            policy(namespace="e", deschedule=[rule("k", target=1)]),
        ]
        metrics = (series("m", n1=50, n2=5, n3=5), series("k", n1=0, n2=2))
        assert desired(two, *metrics).keys() == {"n1", "n2"}
        owned = {name: {"pol": "violating"} for name in ("n1", "n2", "n3")}
        assert desired(two, *metrics, owned=owned).keys() == {"n1", "n2", "n3"}, (
            "n3 is unknown to one of them"
        )


CARD1 = rule("memory", target=20, labels=["gpu=card1"])
CARD0 = rule("cpu", "Equals", 200, labels=["gpu=card0"])
LABELS: dict[str, tuple[list[Any], list[Any], dict[str, dict[str, str]]]] = {
    "a rule": (
        [rule("a", target=100, labels=["card0=true"])],
        [series("a", n1=200, n2=100)],
        {"n1": {"card0": "true"}},
    ),
    "every label of a rule": (
        [rule("a", target=1, labels=["l1=foo", "l2=bar"])],
        [series("a", n1=2)],
        {"n1": {"l1": "foo", "l2": "bar"}},
    ),
    "of one name the greatest value": (
        [rule("a", target=100, labels=["foo=1"]), rule("b", target=100, labels=["foo=2"])],
        [series("a", n1=200, n2=400), series("b", n1=300, n2=300)],
        {"n1": {"foo": "2"}, "n2": {"foo": "1"}},
    ),
    "of one name the smallest value with LessThan": (
        [
            rule("memory", "LessThan", 10000, labels=["gpu=card0"]),
            rule("cpu", "LessThan", 10000, labels=["gpu=card1"]),
        ],
        [series("memory", n1=2000), series("cpu", n1=200)],
        {"n1": {"gpu": "card1"}},
    ),
    "the first of equal values": (
        [rule("a", target=1, labels=["x=first"]), rule("b", target=1, labels=["x=second"])],
        [series("a", n1=5), series("b", n1=5)],
        {"n1": {"x": "first"}},
    ),
    "the first of Equals": (
        [rule("memory", "Equals", 2000, labels=["gpu=card1"]), CARD0],
        [series("memory", n1=2000), series("cpu", n1=200)],
        {"n1": {"gpu": "card1"}},
    ),
    "each name has its own greatest value": (
        [rule("b", target=100, labels=["foo=1", "bar=1"]), rule("a", target=100, labels=["foo=2"])],
        [series("a", n1=400), series("b", n1=300)],
        {"n1": {"foo": "2", "bar": "1"}},
    ),
    "unlike operators exclude each other and nothing else": (
        [CARD1, CARD0, rule("cpu", "Equals", 200, labels=["solo=1"])],
        [series("memory", n1=200, n2=200), series("cpu", n1=200, n2=3)],
        {"n1": {"solo": "1"}, "n2": {"gpu": "card1"}},
    ),
    "invalid labels are left out": (
        [rule("a", target=1, labels=["good=1", "bad", "a/b=c", "x=y=z", "e=", "=v", 7])],
        [series("a", n1=2)],
        {"n1": {"good": "1", "e": ""}},
    ),
}


class TestLabeling:
    @pytest.mark.parametrize(("rules", "metrics", "labels"), LABELS.values(), ids=LABELS)
    def test_labels_of_rules_that_are_met(
        self, rules: list[Any], metrics: list[Any], labels: dict[str, dict[str, str]]
    ) -> None:
        assert violating(rules, *metrics) == labels

    def test_labels_stay_until_every_metric_has_values_or_a_failure(self) -> None:
        rules, owned = [CARD1, CARD0], {"n2": {f"{P}gpu": "card1"}}
        assert violating(rules, series("cpu", n1=200, n2=200), owned=owned) == {"n2": {"gpu": "card1"}}
        labels = violating(rules, series("cpu", n1=200), series("memory", n1=5), owned=owned)
        assert labels == {"n1": {"gpu": "card0"}, "n2": {"gpu": "card1"}}

    def test_all_of(self) -> None:
        rules = [rule("a", target=1, labels=["x=1"]), rule("b", target=1, labels=["y=1"])]
        metrics = (series("a", n1=2, n2=2), series("b", n1=2, n2=0))
        assert violating(rules, *metrics, logical="allOf") == {"n1": {"x": "1", "y": "1"}}

    def test_missing_evidence_holds_a_label_of_ours_as_it_is(self) -> None:
        rules = [rule("a", target=100, labels=["foo=1"]), rule("b", target=100, labels=["foo=2"])]
        owned = {"n1": {f"{P}foo": "2"}}
        assert violating(rules, series("a", n1=200), series("b", n2=1), owned=owned) == {"n1": {"foo": "2"}}
        assert violating(rules, series("a", n1=200), series("b", n2=1)) == {"n1": {"foo": "1"}}
        assert violating(rules, series("a", n1=5), series("b", n1=5), owned=owned) == {}


def test_nodes_that_begin_to_violate_a_policy_are_written_first_and_namespaces_take_turns() -> None:
    size = np.zeros(1, np.int16)
    columns = {
        key: LabelColumn(key, ("violating", "ok"), size, size > 0, namespaces=frozenset([key]))
        for key in ("a", "b")
    }
    owned = {"n1": {"a": "violating"}, "n2": {"a": "violating"}}
    wanted = {
        "n1": {"a": "ok"},
        "n2": {},
        "n3": {"a": "violating"},
        "n4": {"b": "ok"},
        "n5": {"a": "violating"},
        "n6": {"b": "violating"},
    }
    ordered = [
        cooperative_scheduling.run_without_pauses(node_labels.order_fairly(columns, wanted, owned, turn))
        for turn in range(3)
    ]
    assert ordered[0] == ordered[2] == ["n3", "n6", "n5", "n4", "n1", "n2"]
    assert ordered[1] == ["n6", "n3", "n4", "n5", "n1", "n2"]


def test_labels_that_waiting_pods_require_precede_others_of_the_same_namespace_only() -> None:
    size = np.zeros(1, np.int16)
    columns = {
        key: LabelColumn(key, ("violating", "ok"), size, size > 0, namespaces=frozenset([namespace]))
        for key, namespace in (("a", "x"), ("b", "x"), ("c", "y"))
    }
    wanted = {
        "n1": {"b": "ok"},
        "n2": {"c": "ok"},
        "n3": {"a": "ok"},
        "n4": {"a": "violating"},
        "n5": {"c": "ok"},
    }
    ordering = node_labels.order_fairly(columns, wanted, {}, waited_for=frozenset(["a"]))
    assert cooperative_scheduling.run_without_pauses(ordering) == ["n4", "n2", "n3", "n5", "n1"]


def test_a_node_begins_to_violate_when_a_label_becomes_violating() -> None:
    begins = node_labels.begins_to_violate
    assert begins({"a": "violating"}, {})
    assert begins({"a": "violating", "b": "ok"}, {"a": "ok"})
    assert not begins({"a": "violating", "b": "ok"}, {"a": "violating"})
    assert not begins({}, {"a": "violating"})
