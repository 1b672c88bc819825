"""Objectives and scores of the pigeon agent in real processes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scorers_tests.conformance import case_table_rows, extender_processes, node_and_pod_notation
from scorers_tests.conformance.case_table_rows import PigeonRequest, PigeonStory
from scorers_tests.conformance.extender_processes import Object, RunningExtender

Start = Callable[[PigeonStory], RunningExtender]
CLIENTS, TIMES = 6, 60
LOG_BYTES = 2**16


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts the process of a story, and checks its warnings."""
    with extender_processes.starting(tmp_path) as begin:

        def started(story: PigeonStory) -> RunningExtender:
            if story.config:
                (tmp_path / "pigeon.cfg").write_text(story.config + "\n")
            extender = begin(story.environment)
            warned = {event["variable"] for event in extender.events("variable_ignored")}
            assert warned == ({story.warned} if story.warned else set())
            return extender

        yield started


def pod(ask: PigeonRequest) -> Object:
    init = (
        [{"name": "i", "resources": {"requests": node_and_pod_notation.amounts(ask.init)}}]
        if ask.init
        else []
    )
    metadata = {"uid": ask.uid} if ask.uid else {}
    return extender_processes.pod(
        node_and_pod_notation.amounts(ask.pod), metadata=metadata, initContainers=init
    )


def node_numbers(extender: RunningExtender, requesting: Object, nodes: list[Object]) -> list[Object]:
    """The details and the score of each node."""
    scores = extender.scores("pigeon-holing", extender_processes.request(requesting, nodes))
    numbers = extender.numbers("pigeon", requesting["metadata"]["name"]) if nodes else {}
    assert list(scores) == [node["metadata"]["name"] for node in nodes]
    return [{**numbers[name], "score": score} for name, score in scores.items()]


def near(value: float | None, within: float) -> Any:
    return value if value is None else pytest.approx(value, abs=within, rel=0)


@pytest.mark.parametrize("story", case_table_rows.stories(), ids=lambda story: story.id)
def test_pods_one_after_another(start: Start, story: PigeonStory) -> None:
    extender = start(story)
    for ask in story.asks:
        nodes = node_and_pod_notation.nodes(story.nodes if ask.nodes is None else ask.nodes)
        decisions = node_numbers(extender, pod(ask), nodes)
        assert [decision["score"] for decision in decisions] == ask.scores, (ask.number, decisions)
        close = [near(objective, ask.within) for objective in ask.objectives]
        assert [decision["objective"] for decision in decisions] == close, (ask.number, decisions)
        if ask.demand is not None:
            differing = [decision["demand_variability"] for decision in decisions]
            assert differing == [near(ask.demand, 5e-6)] * len(decisions), ask.number


PLAIN = PigeonStory(nodes="n1(4,8Gi;1000,2Gi) n2(4,8Gi;2000,4Gi) n3(4,8Gi;3000,6Gi)", asks=[])


def test_248_many_clients_at_once_have_whole_answers(start: Start) -> None:
    extender = start(PLAIN)
    nodes = node_and_pod_notation.nodes(PLAIN.nodes)

    def client(number: int) -> list[int]:
        pods = [extender_processes.pod({"cpu": f"{100 + number}m", "memory": "1Gi"}) for _ in range(TIMES)]
        answers = [
            extender.ask("/scheduler/priorities/pigeon-holing", extender_processes.request(pod, nodes))
            for pod in pods
        ]
        return [
            len({priority["Host"] for priority in answer if 0 <= priority["Score"] <= 10})
            for answer in answers
        ]

    with ThreadPoolExecutor(CLIENTS) as pool:
        answered = list(pool.map(client, range(CLIENTS)))
    assert answered == [[3] * TIMES] * CLIENTS
    assert extender.process.is_running


def test_249_a_pod_among_400_nodes_is_logged_in_few_words(start: Start) -> None:
    extender = start(PLAIN)
    nodes = node_and_pod_notation.nodes(
        " ".join(f"n{number}(4,8Gi;{number},{number}Mi)" for number in range(400))
    )
    before = extender.process.log.stat().st_size
    extender.ask(
        "/scheduler/priorities/pigeon-holing",
        extender_processes.request(extender_processes.pod({"cpu": "1"}), nodes),
    )
    assert extender.process.log.stat().st_size - before < LOG_BYTES
