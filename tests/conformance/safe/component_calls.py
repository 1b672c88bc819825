"""The parts that the rows of the tables ask, each with values as a table has them."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from nodewise import quantity
from nodewise.agents.learned.pods import PendingPod, pending_pod_type
from nodewise.agents.pigeon import demand, mean_covariance, resources
from nodewise.agents.pigeon.demand import DemandStatistics
from nodewise.agents.pigeon.objectives import LAYOUTS, Objective, Table
from nodewise.agents.safe import beta_distribution
from nodewise.annotator import sample_statistics
from nodewise.annotator.allocation import allocation_by_node
from nodewise.annotator.options import AnnotatorConfig
from nodewise.annotator.patches import NodeMeasurements, PatchRules, plan_patches
from nodewise.cooperative_scheduling import run_at_once
from nodewise.statistics.load_annotations import AllocationAnnotations
from tests.conformance.safe import promtool
from tests.conformance.safe.table_rows import PartRow
from tests.unit.agents.learned import pod_histories
from tests.unit.annotator import objects
from tests.unit.annotator.objects import Object


def asked(row: PartRow) -> Any:
    """What the part gives; of a mapping what the row names."""
    found = _PARTS[row.part](row.given)
    return {key: found[key] for key in row.gives} if isinstance(row.gives, dict) else found


# the beta distribution


def _distribution(given: Mapping[str, float]) -> dict[str, float]:
    x, shapes = given["x"], (given["alpha"], given["beta"])
    return {
        "complete": float(beta_distribution.complete(*shapes)),
        "below": float(beta_distribution.cdf(x, *shapes)),
        "density": float(beta_distribution.pdf(x, *shapes)),
        "residual": float(beta_distribution.mean_residual_life(x, *shapes)),
        "mean": float(beta_distribution.moments(*shapes).first),
        "variance": float(beta_distribution.variance(*shapes)),
    }


def _matched(given: list[float]) -> list[float] | None:
    shapes = [float(one) for one in beta_distribution.match_moments(*given)]
    return None if any(map(np.isnan, shapes)) else shapes


def _table(given: list[Any]) -> list[Any]:
    *shapes, begins = given
    lines = [line.split() for line in beta_distribution.table(*shapes).splitlines()]
    [line] = [line for line in lines if line[0] == begins]
    return [len(lines), line]


# the objectives of pigeon


def _objectives(shares: list[float]) -> list[float]:
    return [_of_shares("LOAD_BALANCE", shares), _of_shares("CONSOLIDATE", shares)]


def _of_shares(objective: Objective, shares: list[float]) -> float:
    """Of the shares as they are: a pod that asks for nothing changes none."""
    table = Table(np.full((1, len(shares)), 1000.0), 1000 * np.array([shares]))
    return float(LAYOUTS[objective](table, 0).measured(np.array([0]), np.zeros(1))[0])


def _variability(given: Mapping[str, Any]) -> float:
    mean = np.array(given["mean"])
    return float(
        mean_covariance.variability(mean[:, None], np.array([mean @ np.array(given["covariance"]) @ mean]))[0]
    )


def _demands(given: list[dict[str, Any]]) -> dict[str, Any]:
    found: DemandStatistics = demand.NONE
    for stretch in given:
        for number in range(stretch["pods"]):
            cpu, memory = np.array(stretch["first"]) + number * np.array(stretch["growth"])
            found = demand.add_pod(found, np.array([cpu, memory, 0, 0, 0], float))
    return {
        "mean": found.mean[:2].tolist(),
        "second_moments": found.second_moments[:2, :2].tolist(),
        "samples": found.samples,
    }


# what is learned


def _rewards(given: list[float]) -> dict[str, Any]:
    life = pod_histories.Life()
    life.tell()
    rewards, scores = [], []
    for number, reward in enumerate(given):
        life.tell(_that_earns(f"p{number}", reward))
        rewards.append(life.reward())
        scores.append(life.points()[0])
    return {"rewards": rewards, "scores": scores}


def _that_earns(name: str, reward: float) -> Any:
    if not reward:
        return pod_histories.pod(name, "n1", phase="Failed")
    return pod_histories.pod(
        name, "n1", pod_histories.running() if reward == 1 else pod_histories.terminated(0, 5)
    )


def _type(labels: dict[str, str]) -> str:
    return pending_pod_type(msgspec.convert({"metadata": {"name": "p", "labels": labels}}, PendingPod))


def _containers(given: list[dict[str, Any]]) -> float | None:
    life = pod_histories.Life()
    life.tell()
    life.tell(pod_histories.pod("p", "n1", *map(_container, given)))
    known = life.numbers()
    # with a prior of 1 what is known after one reward r is 0.9 + 0.1 r
    return round(10 * known["reward"] - 9, 6) if known["tried"] else None


def _container(given: Mapping[str, Any]) -> dict[str, Any]:
    before = pod_histories.end(0, given["ended_before"]) if "ended_before" in given else None
    if "ended" in given:
        return pod_histories.terminated(
            given.get("began", 0), given["ended"], int(before is not None), before
        )
    if "waiting" in given:
        return pod_histories.waiting()
    return pod_histories.running(int(before is not None), before, given["running"])


def _phases(given: list[str]) -> list[float]:
    life = pod_histories.Life()
    life.tell()
    for phase in given:
        if phase == "deleted":
            life.forget_pod("p")
            life.look()
        else:
            life.tell(pod_histories.pod("p", "n1", phase=phase))
    known = life.numbers()
    return [known["tried"], known["reward"]]


# what annotators write


def _allocation(given: Mapping[str, Any]) -> Mapping[str, str | None] | None:
    """What of the node is to be written where nothing stands yet, but the time; None for nothing."""
    pods = objects.read_pods(*(pod(number, one) for number, one in enumerate(given["pods"])))
    measurements = NodeMeasurements(None, run_at_once(allocation_by_node(pods)), now=0.0)
    config, rules = AnnotatorConfig(usage=False, allocation=True), PatchRules(max_age_s=3600)
    plans = run_at_once(plan_patches([objects.read_node(node(given))], measurements, config, rules))
    return plans.nodes[0].desired if plans.nodes else None


def node(given: Mapping[str, Any]) -> Object:
    """The node n1 of a row."""
    made = objects.node("n1", ready=str(given.get("ready", True)))
    made["status"]["allocatable"] = given["node"]
    return made


def pod(number: int, given: Mapping[str, Any]) -> Object:
    """One of its pods."""
    init = ({"name": "i", "resources": {"requests": given["init"]}},) if "init" in given else ()
    on = "n1" if given.get("bound", True) else ""
    return objects.pod(f"p{number}", on, *given["requests"], phase=given.get("phase", "Running"), init=init)


def _quantity(text: str) -> float | None:
    try:
        return quantity.parse(text) / quantity.NANO
    except ValueError:
        return None


def _samples(given: Mapping[str, Any]) -> list[float]:
    free = np.array(given["free"], float)
    if "allocatable" in given:
        free = sample_statistics.limit_usage_to_requests(free, given["allocatable"], given["requested"])
    return list(sample_statistics.summarize(free))


def _chunks(count: int) -> list[float]:
    means = sample_statistics.chunk_means(np.arange(1.0, count + 1))
    assert len(means) == sample_statistics.CHUNKS
    found: list[float] = means[[0, 1, 2, 3, 50, -1]].tolist()
    return found


def _memory(request: str) -> list[Any]:
    wanted = _allocation({"node": {"memory": "8Gi"}, "pods": [{"requests": [{"memory": request}]}]})
    assert wanted is not None
    text = wanted["requested-memory"]
    found = resources.requested(msgspec.convert({"requested-memory": text}, AllocationAnnotations))
    return [text, resources.counted(np.array([found]).T)[1, 0]]


_PARTS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "allocation": _allocation,
    "chunks": _chunks,
    "containers": _containers,
    "demands": _demands,
    "deviation": promtool.deviation,
    "distribution": _distribution,
    "exists": lambda given: [bool(beta_distribution.valid(*shapes)) for shapes in given],
    "line": lambda given: beta_distribution.line(*given),
    "matched": _matched,
    "memory": _memory,
    "moments": lambda given: [float(one) for one in beta_distribution.moments(*given)],
    "objectives": _objectives,
    "phases": _phases,
    "quantity": _quantity,
    "rewards": _rewards,
    "samples": _samples,
    "table": _table,
    "type": _type,
    "variability": _variability,
}
