"""Calls the component that a row of the tables names, with values in the notation of the tables."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from nodewise.base import quantity
from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise_scorers.annotator import AnnotatorConfig, node_usage
from nodewise_scorers.annotator.node_patches import NodeMeasurements, allocation_by_node, plan_patches
from nodewise_scorers.learned.pod_types_and_outcomes import PodFields, pending_pod_type
from nodewise_scorers.pigeon import agent as pigeon_agent
from nodewise_scorers.pigeon import placement_objectives, scored_pod_statistics
from nodewise_scorers.pigeon.placement_objectives import LAYOUTS, NodeTable, Objective
from nodewise_scorers.pigeon.scored_pod_statistics import DemandStatistics
from nodewise_scorers.safe import risk_scores
from nodewise_scorers.statistics.load_annotations import AllocationAnnotations
from scorers_tests.conformance import promtool_query_evaluation
from scorers_tests.conformance.case_table_rows import SafePartRow
from scorers_tests.unit.annotator import annotator_node_and_pod_builders
from scorers_tests.unit.annotator.annotator_node_and_pod_builders import Object
from scorers_tests.unit.learned import pod_histories


def call_component(row: SafePartRow) -> Any:
    """The component's result; of a mapping only the keys that the row names."""
    actual = _PARTS[row.part](row.given)
    return {key: actual[key] for key in row.gives} if isinstance(row.gives, dict) else actual


# the beta distribution


def _distribution(arguments: Mapping[str, float]) -> dict[str, float]:
    x, shapes = arguments["x"], (arguments["alpha"], arguments["beta"])
    return {
        "complete": float(risk_scores.import_scipy_special().beta(*shapes)),
        "below": float(risk_scores.cdf(x, *shapes)),
        "density": float(risk_scores.pdf(x, *shapes)),
        "residual": float(risk_scores.mean_residual_life(x, *shapes)),
        "mean": float(risk_scores.moments(*shapes).first),
        "variance": float(risk_scores.variance(*shapes)),
    }


def _matched(arguments: list[float]) -> list[float] | None:
    """The shapes of the distribution with these two moments; None if there is none."""
    mean, second = arguments
    variance = second - mean * mean
    if not 0 < variance < mean * (1 - mean):  # `fit` caps the deviation
        return None
    return [float(value) for value in risk_scores.fit(mean, variance**0.5)]


def _line(shapes: list[float]) -> str:
    first, second, third = risk_scores.moments(*shapes)
    names = ("alpha", "beta", "mean", "var", "m1", "m2", "m3")
    values = (*shapes, first, risk_scores.variance(*shapes), first, second, third)
    fields = (f"{name} = {value:f}; " for name, value in zip(names, values, strict=True))
    return f"BetaDistribution: {''.join(fields)}\n"


def _table(arguments: list[Any]) -> list[Any]:
    *shapes, begins = arguments
    rows = list(zip(*risk_scores.distribution_table(*shapes).values(), strict=True))
    [row] = [row for row in rows if f"{row[0]:f}" == begins]
    return [len(rows) + 1, [f"{value:f}" for value in row]]


# the objectives of the pigeon agent


def _objectives(shares: list[float]) -> list[float]:
    return [_of_shares("LOAD_BALANCE", shares), _of_shares("CONSOLIDATE", shares)]


def _of_shares(objective: Objective, shares: list[float]) -> float:
    """The objective of one node with these shares. The pod requests nothing, so it does not change them."""
    table = NodeTable(np.full((1, len(shares)), 1000.0), 1000 * np.array([shares]))
    return float(LAYOUTS[objective](table, 0).evaluate(np.array([0]), np.zeros(1))[0])


def _variability(arguments: Mapping[str, Any]) -> float:
    mean = np.array(arguments["mean"])
    return float(
        placement_objectives.variability(
            mean[:, None], np.array([mean @ np.array(arguments["covariance"]) @ mean])
        )[0]
    )


def _demands(stretches: list[dict[str, Any]]) -> dict[str, Any]:
    statistics: DemandStatistics = scored_pod_statistics.NO_DEMAND
    for stretch in stretches:
        for number in range(stretch["pods"]):
            cpu, memory = np.array(stretch["first"]) + number * np.array(stretch["growth"])
            statistics = scored_pod_statistics.add_pod(statistics, np.array([cpu, memory, 0, 0, 0], float))
    return {
        "mean": statistics.mean[:2].tolist(),
        "second_moments": (statistics.covariance + np.outer(statistics.mean, statistics.mean))[
            :2, :2
        ].tolist(),
        "samples": statistics.samples,
    }


# the learned agent


def _rewards(arguments: list[float]) -> dict[str, Any]:
    history = pod_histories.PodHistory()
    history.update()
    rewards, scores = [], []
    for number, reward in enumerate(arguments):
        history.update(_that_earns(f"p{number}", reward))
        rewards.append(history.reward())
        scores.append(history.points()[0])
    return {"rewards": rewards, "scores": scores}


def _that_earns(name: str, reward: float) -> Any:
    if not reward:
        return pod_histories.pod(name, "n1", phase="Failed")
    return pod_histories.pod(
        name, "n1", pod_histories.running() if reward == 1 else pod_histories.terminated(0, 5)
    )


def _type(labels: dict[str, str]) -> str:
    return pending_pod_type(msgspec.convert({"metadata": {"name": "p", "labels": labels}}, PodFields))


def _containers(containers: list[dict[str, Any]]) -> float | None:
    history = pod_histories.PodHistory()
    history.update()
    history.update(pod_histories.pod("p", "n1", *map(_container, containers)))
    known = history.numbers()
    # with a prior of 1, the stored reward after one reward r is 0.9 + 0.1 r
    return round(10 * known["reward"] - 9, 6) if known["tried"] else None


def _container(arguments: Mapping[str, Any]) -> dict[str, Any]:
    before = pod_histories.end(0, arguments["ended_before"]) if "ended_before" in arguments else None
    if "ended" in arguments:
        return pod_histories.terminated(
            arguments.get("began", 0), arguments["ended"], int(before is not None), before
        )
    if "waiting" in arguments:
        return pod_histories.waiting()
    return pod_histories.running(int(before is not None), before, arguments["running"])


def _phases(phases: list[str]) -> list[float]:
    history = pod_histories.PodHistory()
    history.update()
    for phase in phases:
        if phase == "deleted":
            history.forget_pod("p")
            history.build()
        else:
            history.update(pod_histories.pod("p", "n1", phase=phase))
    known = history.numbers()
    return [known["tried"], known["reward"]]


# the annotations of `nodewise annotate`


def _allocation(arguments: Mapping[str, Any]) -> Mapping[str, str | None] | None:
    """The planned annotations of a node that has none, without the time; None if nothing is to be written."""
    pods = annotator_node_and_pod_builders.read_pods(
        *(pod(number, pod_arguments) for number, pod_arguments in enumerate(arguments["pods"]))
    )
    measurements = NodeMeasurements(None, run_without_pauses(allocation_by_node(pods)), now=0.0)
    config, rules = AnnotatorConfig("allocation"), 3600
    plans = run_without_pauses(
        plan_patches(
            [annotator_node_and_pod_builders.read_node(node(arguments))], measurements, config, rules
        )
    )
    return plans.nodes[0].desired if plans.nodes else None


def node(arguments: Mapping[str, Any]) -> Object:
    """The node `n1` of a row."""
    made = annotator_node_and_pod_builders.node("n1", ready=str(arguments.get("ready", True)))
    made["status"]["allocatable"] = arguments["node"]
    return made


def pod(number: int, arguments: Mapping[str, Any]) -> Object:
    """A pod of a row, named by its number."""
    init = ({"name": "i", "resources": {"requests": arguments["init"]}},) if "init" in arguments else ()
    on = "n1" if arguments.get("bound", True) else ""
    return annotator_node_and_pod_builders.pod(
        f"p{number}", on, *arguments["requests"], phase=arguments.get("phase", "Running"), init=init
    )


def _quantity(text: str) -> float | None:
    try:
        return quantity.parse(text) / quantity.NANO
    except ValueError:
        return None


def _samples(arguments: Mapping[str, Any]) -> list[float]:
    free = np.array(arguments["free"], float)
    if "allocatable" in arguments:
        free = node_usage.limit_usage_to_requests(free, arguments["allocatable"], arguments["requested"])
    return list(node_usage.summarize(free))


def _chunks(count: int) -> list[float]:
    means = node_usage.means_of_sample_chunks(np.arange(1.0, count + 1))
    assert len(means) == node_usage.CHUNKS
    values: list[float] = means[[0, 1, 2, 3, 50, -1]].tolist()
    return values


def _memory(request: str) -> list[Any]:
    wanted = _allocation({"node": {"memory": "8Gi"}, "pods": [{"requests": [{"memory": request}]}]})
    assert wanted is not None
    text = wanted["requested-memory"]
    amount = pigeon_agent.requests_from_annotations(
        msgspec.convert({"requested-memory": text}, AllocationAnnotations)
    )
    return [text, pigeon_agent.to_agent_units(np.array([amount]).T)[1, 0]]


_PARTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "allocation": _allocation,
    "chunks": _chunks,
    "containers": _containers,
    "demands": _demands,
    "deviation": promtool_query_evaluation.deviation,
    "distribution": _distribution,
    "exists": lambda arguments: [bool(risk_scores.is_valid(*shapes)) for shapes in arguments],
    "line": _line,
    "matched": _matched,
    "memory": _memory,
    "moments": lambda arguments: [float(value) for value in risk_scores.moments(*arguments)],
    "objectives": _objectives,
    "phases": _phases,
    "quantity": _quantity,
    "rewards": _rewards,
    "samples": _samples,
    "table": _table,
    "type": _type,
    "variability": _variability,
}
