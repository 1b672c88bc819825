"""Nodes with unknown requested amounts, and unusual nodes and requests."""

import msgspec
import numpy as np
import pytest

from nodewise.agent import Names, Snapshot
from nodewise.engine import agent_chain
from nodewise.engine.agent_chain import AgentChain
from nodewise.kube.pod_requests import RequestedResources
from nodewise_scorers.pigeon.agent import PigeonAgent
from scorers_tests.unit.pigeon.cluster_notation import N3, P1, PigeonCluster, node, nodes, pod

BALANCE = {"policy_objective": "LOAD_BALANCE"}
CAPACITY = {"cpu": "4", "memory": "8Gi", "pods": "110"}


def cluster_with(**annotations: str) -> PigeonCluster:
    """A node with these annotations, next to one that is half full."""
    named = {f"requested-{key}": text for key, text in annotations.items()}
    return PigeonCluster({"it": node(CAPACITY, named), **nodes("half(4,8Gi;2000,4Gi)")}, **BALANCE)


@pytest.mark.parametrize(
    ("cpu", "share"),
    [
        pytest.param("1000", 0.25, id="a whole number"),
        pytest.param("1000.0", 0.25, id="decimal"),
        pytest.param("+1000", 0.25, id="a sign"),
        pytest.param("1e3", 0.25, id="an exponent"),
        pytest.param("999.9", 0.24975, id="what is left over of a unit does not count"),
        pytest.param("-5", 0, id="below 0"),
        pytest.param("", 0, id="empty"),
        pytest.param("abc", 0, id="no number"),
        pytest.param("nan", 0, id="not a number"),
        pytest.param("1000m", 0, id="a suffix"),
        pytest.param("9" * 400, 0, id="more digits than any number has"),
        pytest.param(" 1000", 0, id="blanks"),
    ],
)
def test_how_an_annotation_is_read(cpu: str, share: float) -> None:
    """The expected objective is the deviation of two shares, of which the other is 0.5: half of their distance."""
    result = cluster_with(cpu=cpu, memory="0").score("40m,16Mi", names="it")
    assert result.objectives == pytest.approx([abs(share + 0.01 - 0.5) / 2])


@pytest.mark.parametrize("cpu", ["1e308", "99999999999999999999", "4001"])
def test_a_node_of_which_more_is_requested_than_it_has_takes_no_pod(cpu: str) -> None:
    result = cluster_with(cpu=cpu, memory="0").score()
    assert result.scores == [0, 10]
    assert result.texts[0] == "does not fit: cpu"


def test_memory_in_the_older_annotators_decimal_form() -> None:
    cluster = PigeonCluster(
        {"it": node(CAPACITY, {"requested-cpu": "0", "requested-memory": "1610612736.0"})}
    )
    assert cluster.score(",6656Mi").scores == [10]
    assert cluster.score(",6657Mi").scores == [0]


def test_missing_amounts_are_named_and_count_as_0() -> None:
    result = cluster_with(memory="abc").score()
    assert result.scores == [10, 1]
    assert result.texts[0].endswith("; cpu, memory: no statistics")
    assert "no statistics" not in result.texts[1]


def test_the_numbers_of_a_node() -> None:
    cluster = PigeonCluster({"it": node(CAPACITY, {"requested-cpu": "1000"}), **nodes("full(4,8Gi;4000,0)")})
    scores = cluster.agent.score(pod(P1), cluster.snapshot.nodes.named(["it", "full"]), cluster.snapshot)
    assert scores is not None
    bare, full = (scores.details.numbers(at) for at in (0, 1))
    assert bare["missing"] == ["memory"]
    assert bare["objective"] == abs(bare["system_variability"] - bare["demand_variability"]) > 0
    assert np.isnan(full["objective"])
    assert "missing" not in full
    assert scores.details.nbytes > 0
    assert scores.details.distances().tolist() == [1, 1]


def test_a_resource_that_does_not_count_is_not_missed() -> None:
    result = PigeonCluster({"it": node(CAPACITY, {"requested-cpu": "0"})}, num_resources=1).score()
    assert "no statistics" not in result.texts[0]


def test_a_resource_that_a_node_does_not_have_is_not_missed() -> None:
    annotations = {f"requested-{resource}": "0" for resource in ("cpu", "memory", "pods")}
    result = PigeonCluster({"it": node(CAPACITY, annotations)}, num_resources=4).score()
    assert result.texts == ["A_BINPACK 0.000000"]


def test_a_score_of_their_own_for_nodes_without_statistics() -> None:
    node_objects = {
        "none": node(CAPACITY, None),
        "small": node({"cpu": "100m", "memory": "8Gi"}, None),
        **nodes(N3),
    }
    result = PigeonCluster(node_objects, **BALANCE, score_missing=7).score()
    assert result.scores[:2] == [7, 0]
    assert sorted(result.scores[2:]) == [1, 5, 10] or max(result.scores[2:]) == 10


def rejected(agent: PigeonAgent, snapshot: Snapshot, names: str) -> list[str]:
    verdict = agent.filter(pod(P1), snapshot.nodes.named(names.split()), snapshot)
    assert verdict is not None
    return [verdict.reasons[code - 1].text() if code else "" for code in verdict.codes.tolist()]


def test_no_node_is_rejected_by_default() -> None:
    cluster = PigeonCluster({"none": node(CAPACITY, None)})
    assert agent_chain.filter_functions(cluster.agent) == []


def test_nodes_without_statistics_are_rejected_where_asked_for() -> None:
    cluster = PigeonCluster({"none": node(CAPACITY, None), **nodes(N3)}, when_missing="reject")
    assert rejected(cluster.agent, cluster.snapshot, "none n1") == ["pigeon: no fresh statistics", ""]


@pytest.mark.parametrize(("when_missing", "kept"), [("reject", [False, True]), ("accept", [True, True])])
def test_all_agents_together_ask_it_as_well(when_missing: str, kept: list[bool]) -> None:
    cluster = PigeonCluster({"none": node(CAPACITY, None), **nodes(N3)}, when_missing=when_missing)
    candidates = cluster.snapshot.nodes.named(["none", "n1"])
    assert AgentChain([cluster.agent]).feasible(pod(P1), candidates, cluster.snapshot).tolist() == kept


def test_before_the_first_view_nothing_is_known() -> None:
    cluster = PigeonCluster(when_missing="reject")
    empty = Snapshot(cluster.snapshot.nodes, {}, 0.0)
    assert set(rejected(cluster.agent, empty, "n1 n2 nX")) == {"pigeon: starting, the nodes are not read yet"}
    assert cluster.agent.score(pod(P1), empty.nodes.named(["n1"]), empty) is None


def test_an_unknown_node_fits_no_pod() -> None:
    result = PigeonCluster(N3).score(names="n1 nX")
    assert result.scores == [10, 0]
    assert result.texts[1] == "does not fit: cpu, memory; cpu, memory: no statistics"
    assert result.objectives[1] != result.objectives[1]


def test_an_unknown_node_has_no_statistics() -> None:
    cluster = PigeonCluster(N3, when_missing="reject")
    assert rejected(cluster.agent, cluster.snapshot, "n1 nX") == ["", "pigeon: no fresh statistics"]


@pytest.mark.parametrize("objective", ["A_BINPACK", "LOAD_BALANCE", "CONSOLIDATE"])
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_equal_nodes_get_equal_scores(objective: str, count: int) -> None:
    same = node(CAPACITY, {"requested-cpu": "700", "requested-memory": "1395864371"})
    cluster = PigeonCluster({f"n{number}": same for number in range(count)}, policy_objective=objective)
    cluster.prioritize("100m,1Gi")
    assert cluster.score().scores == [10] * count


def test_no_candidates() -> None:
    cluster = PigeonCluster(N3)
    scores = cluster.agent.score(pod(P1), Names.of([]), cluster.snapshot)
    assert scores is not None
    assert len(scores.points) == 0


def test_only_some_of_the_nodes_are_asked_about_and_all_count() -> None:
    whole, part = PigeonCluster(N3).score(), PigeonCluster(N3).score(names="n2 n3")
    assert part.objectives == whole.objectives[1:]
    assert part.scores == [10, 1]


def test_a_pod_with_requests_of_its_own_needs_their_room() -> None:
    pigeon_pod = pod("100m")
    resources = RequestedResources({"cpu": "2500m"})
    pigeon_pod = msgspec.structs.replace(
        pigeon_pod, spec=msgspec.structs.replace(pigeon_pod.spec, resources=resources)
    )
    assert PigeonCluster(N3, **BALANCE).score(pigeon_pod).scores == [10, 0, 0]


def test_gpus_are_counted() -> None:
    node_texts = "a(4,8Gi,110,4;0,0,0,2) b(4,8Gi,110,4;0,0,0,4)"
    result = PigeonCluster(node_texts, num_resources=4).score("1,1Gi,,2")
    assert result.scores == [10, 0]
    assert result.texts[1] == "does not fit: gpu"


def test_gpus_may_have_another_resource_name() -> None:
    node_objects = {"a": node({**CAPACITY, "nvidia.com/gpu": "1"}, None), "b": node(CAPACITY, None)}
    pigeon_pod = pod("1,1Gi")
    container = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    pigeon_pod.spec.containers[0].resources.requests.update(container)  # type: ignore[index,union-attr]
    result = PigeonCluster(node_objects, num_resources=4, pigeon_gpu_resource="nvidia.com/gpu").score(
        pigeon_pod
    )
    assert result.scores == [10, 0]


def test_nodes_that_do_not_change_are_not_laid_out_again() -> None:
    node_objects = nodes(N3)
    cluster = PigeonCluster(node_objects)
    first = cluster.snapshot.agent_states["pigeon"]
    cluster.set_nodes(node_objects)
    assert cluster.snapshot.agent_states["pigeon"] is first
    cluster.set_nodes(nodes(N3))
    assert cluster.snapshot.agent_states["pigeon"] is first, "other objects that say the same"
    cluster.set_nodes({**node_objects, "n2": nodes("n2(4,8Gi;0,0)")["n2"]})
    assert cluster.snapshot.agent_states["pigeon"] is not first
    actual = cluster.score().scores
    assert actual == PigeonCluster("n1(4,8Gi;1000,2Gi) n2(4,8Gi;0,0) n3(4,8Gi;3000,6Gi)").score().scores


def test_storage_has_the_same_unit_in_requests_and_capacity() -> None:
    """Rows 169 and 170 of the older system's cases: 1Gi fitted nowhere and 4Gi everywhere."""
    cluster = PigeonCluster(
        "a(4,8Gi,110,0,100Gi;0,0,0,0,0) b(4,8Gi,110,0,100Gi;0,0,0,0,98Gi)", num_resources=5
    )
    assert cluster.score("1,1Gi,,,1Gi").scores == [10, 1]
    assert cluster.score("1,1Gi,,,4Gi").scores == [10, 0]
