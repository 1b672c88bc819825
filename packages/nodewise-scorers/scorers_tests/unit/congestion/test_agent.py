"""Scores of congestion factors. The numbers are those of the older agent (cases 118 to 124)."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from nodewise.agent import ClusterState, Details, NodeIndex, Snapshot
from nodewise.base import cooperative_scheduling
from nodewise.engine import agent_chain
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise_scorers.congestion import CongestionOptions
from nodewise_scorers.congestion.agent import (
    CongestionAgent,
    CongestionStateBuilder,
    NodeFields,
    NodeMetadata,
    PodFields,
)
from nodewise_scorers.statistics.load_annotations import CongestionAnnotations

NOW = 1000.0
POD = PodFields()


def node(factor: str | None) -> NodeFields:
    if factor is None:
        return NodeFields()
    return NodeFields(NodeMetadata(CongestionAnnotations(congestion_factor=factor)))


def cluster_state(factors: Mapping[str, str | None]) -> ClusterState:
    nodes = {("", name): node(factor) for name, factor in factors.items()}
    return ClusterState(NodeIndex(factors), {}, MetricsSnapshot(), NOW, nodes)


def snapshot(factors: Mapping[str, str | None], options: CongestionOptions | None = None) -> Snapshot:
    cluster = cluster_state(factors)
    agent_state = cooperative_scheduling.run_without_pauses(
        CongestionStateBuilder(options or CongestionOptions()).build(cluster)
    )
    return Snapshot(cluster.nodes, {"congestion": agent_state}, NOW, 1)


def scores(factors: Mapping[str, str | None], options: CongestionOptions | None = None) -> dict[str, int]:
    cluster_snapshot = snapshot(factors, options)
    scores = CongestionAgent(options or CongestionOptions()).score(
        POD, cluster_snapshot.nodes.named(list(factors)), cluster_snapshot
    )
    assert scores is not None
    return dict(zip(factors, scores.points.tolist(), strict=True))


def test_a_node_without_a_factor_gets_the_score_that_was_set() -> None:
    factors = {"n1": None, "n2": "50.5", "n3": "0", "n4": "30"}
    assert scores(factors, CongestionOptions(score_missing=3)) == {"n1": 3, "n2": 3, "n3": 10, "n4": 7}


def test_an_unknown_node_has_no_factor() -> None:
    cluster_snapshot = snapshot({"n1": "100"}, CongestionOptions(score_missing=4))
    scores = CongestionAgent(CongestionOptions()).score(
        POD, cluster_snapshot.nodes.named(["n9", "n1"]), cluster_snapshot
    )
    assert scores is not None
    assert scores.points.tolist() == [4, 0]


def test_no_candidates_and_no_nodes() -> None:
    cluster_snapshot = snapshot({})
    scores = CongestionAgent(CongestionOptions()).score(
        POD, cluster_snapshot.nodes.named([]), cluster_snapshot
    )
    assert scores is not None
    assert scores.points.tolist() == []


def test_without_a_state_there_are_no_scores() -> None:
    empty = Snapshot(snapshot({}).nodes, {}, 0.0)
    assert CongestionAgent(CongestionOptions()).score(POD, empty.nodes.named(["n1"]), empty) is None


class TestDetails:
    """Details name every missing factor and the default in its place."""

    def details(self) -> Details:
        texts = ["55", None, "50.5", "9" * 20, "-5", "x\n" + "y" * 60]
        factors = {f"n{number}": text for number, text in enumerate(texts)}
        cluster_snapshot = snapshot(factors)
        scores = CongestionAgent(CongestionOptions()).score(
            POD, cluster_snapshot.nodes.named(list(factors)), cluster_snapshot
        )
        assert scores is not None
        return scores.details

    def test_in_words(self) -> None:
        details = self.details()
        assert [details.text(at) for at in range(6)] == [
            "congestion-factor 55 of 100",
            "no congestion-factor",
            'congestion-factor "50.5" is not a whole number',
            'congestion-factor "99999999999999999999" is more than 64 bits hold',
            "congestion-factor -5 of 100",
            'congestion-factor "x\\n' + "y" * 38 + '…" is not a whole number',
        ]

    def test_in_numbers(self) -> None:
        details = self.details()
        assert details.numbers(0) == {"factor": 55, "max": 100}
        assert details.numbers(1) == {"factor": None, "max": 100, "missing": "no congestion-factor"}
        assert details.numbers(4) == {"factor": -5, "max": 100}
        assert msgspec.json.encode(details.numbers(2))

    def test_of_a_long_text_no_more_is_kept_than_is_shown_and_it_counts(self) -> None:
        cluster_snapshot = snapshot({"n1": "x" * 100_000, "n2": "55"})
        agent_state = cluster_snapshot.agent_states["congestion"]
        assert [len(text) for text in agent_state.invalid_texts.values()] == [41]
        scores = CongestionAgent(CongestionOptions()).score(
            POD, cluster_snapshot.nodes.named(["n1", "n2"]), cluster_snapshot
        )
        assert scores is not None
        assert scores.details is not None
        assert scores.details.nbytes > agent_state.factors[:2].nbytes + 41


class TestRejecting:
    """The agent filters only with `--when-missing reject`."""

    OPTIONS = CongestionOptions(when_missing="reject")

    def test_no_node_is_rejected_otherwise(self) -> None:
        agent = CongestionAgent(CongestionOptions())
        assert agent.predicates == {}
        assert agent_chain.filter_functions(agent) == []

    def test_nodes_without_a_factor(self) -> None:
        agent = CongestionAgent(self.OPTIONS)
        cluster_snapshot = snapshot({"n1": "1000", "n2": None, "n3": "50.5"}, self.OPTIONS)
        candidates = cluster_snapshot.nodes.named(["n1", "n2", "n3"])
        for verdict in (
            agent.filter(POD, candidates, cluster_snapshot),
            agent.preempt(POD, candidates, cluster_snapshot, {}),
        ):
            assert verdict is not None
            assert verdict.codes.tolist() == [0, 1, 1]
            assert [reason.text() for reason in verdict.reasons] == ["congestion: no fresh statistics"]
            assert verdict.details is not None
            assert verdict.details.distances().tolist() == [0, 1, 1]
        assert set(agent.predicates) == {"congestion"}

    def test_all_nodes_before_they_are_read(self) -> None:
        empty = Snapshot(snapshot({}).nodes, {}, 0.0)
        verdict = CongestionAgent(self.OPTIONS).filter(POD, empty.nodes.named(["n1", "n2"]), empty)
        assert verdict is not None
        assert verdict.codes.tolist() == [1, 1]
        assert verdict.reasons[0].is_failure


def test_all_scores_of_5000_nodes() -> None:
    rng = np.random.default_rng(3)
    factors = {f"n{i}": str(factor) for i, factor in enumerate(rng.integers(-10, 120, 5000))}
    expected = {
        name: int(10 * (1 - min(max(int(text), 0), 100) / 100) + 0.5) for name, text in factors.items()
    }
    assert scores(factors) == expected


@pytest.mark.parametrize("most", [0, -1, 2**63, 12.5, "many"])
def test_a_maximum_is_a_whole_number_above_0(most: object) -> None:
    with pytest.raises(msgspec.ValidationError, match="congestion_factor_max"):
        msgspec.convert({"congestion_factor_max": most}, CongestionOptions)


def test_any_other_is_taken() -> None:
    settings = {"congestion_factor_max": "7", "score_missing": "3"}
    options = msgspec.convert(settings, CongestionOptions, strict=False)
    assert (options.congestion_factor_max, options.score_without_statistics(10)) == (7, 3)
