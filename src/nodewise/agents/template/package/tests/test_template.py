"""Tests of the agent's responses to requests of kube-scheduler."""

from typing import Any

from nodewise.agents.template import KIND
from nodewise.extender.agent_testing import AgentTester

NODES: list[dict[str, Any]] = [
    {"metadata": {"name": "low", "annotations": {"template/value": "2"}}},
    {"metadata": {"name": "high", "annotations": {"template/value": "9"}}},
    {"metadata": {"name": "silent"}},
]


def pod(limit: str | None = None) -> dict[str, Any]:
    labels = {} if limit is None else {"template/limit": limit}
    return {"metadata": {"name": "web", "namespace": "default", "labels": labels}}


def rejected(limit: str | None = None) -> dict[str, str]:
    """The rejected nodes and reasons for a pod with this label."""
    response = AgentTester(KIND).call("/scheduler/predicates/template", pod(limit), NODES)
    assert response["Error"] == ""
    return (response["FailedNodes"] or {}) | (response["FailedAndUnresolvableNodes"] or {})


def scores(limit: str | None = None) -> dict[str, int]:
    """The scores by node for a pod with this label."""
    response = AgentTester(KIND).call("/scheduler/priorities/template", pod(limit), NODES)
    return {score["Host"]: score["Score"] for score in response}


def test_rejected_nodes() -> None:
    assert rejected() == {}
    assert rejected("5") == {}


def test_scores_of_nodes() -> None:
    assert scores("5") == {"low": 1, "high": 1, "silent": 1}


def test_invalid_limits() -> None:
    assert rejected("many") == {}
    assert rejected("") == rejected("1e400") == {}
