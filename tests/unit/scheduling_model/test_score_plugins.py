"""Scores of the simulated plugins. The numbers are from the log of kube-scheduler 1.36.3 at verbosity 10."""

from typing import Any

from nodewise.scheduling_model import parsed_nodes_and_pods, scheduler_plugins
from nodewise.scheduling_model.parsed_nodes_and_pods import NodeInfo
from tests.cluster import kubernetes_objects as made

SMALL = NodeInfo(parsed_nodes_and_pods.node(made.node("b", cpu="4", memory="8Gi")))
LARGE = NodeInfo(parsed_nodes_and_pods.node(made.node("e", cpu="8", memory="16Gi")))
WEB = made.pod("web")
TWO_CORES = parsed_nodes_and_pods.pod(WEB | {"spec": WEB["spec"] | {"resources": {"requests": {"cpu": "2"}}}})
ASKED = parsed_nodes_and_pods.container_requests_for_scoring(TWO_CORES.obj)


def test_least_allocated_is_the_free_share() -> None:
    assert scheduler_plugins.least_allocated(ASKED, SMALL) == 98
    assert scheduler_plugins.least_allocated(ASKED, LARGE.with_additional_pods(TWO_CORES)) == 86


def test_balanced_prefers_equal_shares() -> None:
    assert scheduler_plugins.balanced(TWO_CORES, SMALL) == 62
    assert scheduler_plugins.balanced(TWO_CORES, LARGE) == 68
    assert scheduler_plugins.balanced(TWO_CORES, LARGE.with_additional_pods(TWO_CORES)) == 69


def test_balanced_has_no_word_on_a_pod_that_asks_for_nothing() -> None:
    nothing = parsed_nodes_and_pods.pod({"metadata": {"name": "web"}, "spec": {"containers": [{}]}})
    assert scheduler_plugins.balanced(nothing, SMALL) == 0


def test_all_plugins_add_up() -> None:
    assert scheduler_plugins.total_scores(TWO_CORES, [SMALL, LARGE]) == [460, 466]


def test_a_soft_taint_costs_up_to_300() -> None:
    tainted = made.node("b", cpu="4", memory="8Gi")
    tainted["spec"] = {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}
    assert scheduler_plugins.total_scores(
        TWO_CORES, [NodeInfo(parsed_nodes_and_pods.node(tainted)), SMALL]
    ) == [
        160,
        460,
    ]


def test_a_preference_is_worth_up_to_200() -> None:
    named: dict[str, Any] = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [named]}}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    picky = parsed_nodes_and_pods.pod(TWO_CORES.obj | {"spec": dict(TWO_CORES.spec) | {"affinity": affinity}})
    assert scheduler_plugins.total_scores(picky, [SMALL, LARGE]) == [660, 466]


def test_a_node_without_room_on_paper_scores_nothing_for_it() -> None:
    crowded = parsed_nodes_and_pods.node_info_with_pods(
        SMALL.node, [parsed_nodes_and_pods.pod(made.pod("big", cpu="9", memory="9Gi"))]
    )
    assert scheduler_plugins.least_allocated(ASKED, crowded) == 0
