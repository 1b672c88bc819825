"""What the agent goes by, as `GET /state/pigeon` shows it: what pods ask for, and what nodes have."""

from collections.abc import Generator

import msgspec

from nodewise.agents.pigeon import demand as demands
from nodewise.agents.pigeon.config import Aim
from nodewise.agents.pigeon.resources import NAMES, UNIT_NAMES
from nodewise.agents.pigeon.state import Slot


def state(agent_state: Slot, aim: Aim) -> Generator[None, None, bytes]:
    """JSON, with an entry for each resource that counts, in the units that the agent counts in."""
    statistics = agent_state.memory.statistics
    deviations = statistics.covariance.diagonal() ** 0.5
    rows = zip(
        NAMES,
        UNIT_NAMES,
        agent_state.scale.tolist(),
        statistics.mean.tolist(),
        deviations.tolist(),
        strict=False,
    )
    document = {
        "objective": aim.objective,
        "demand_variability": demands.variability(statistics, agent_state.scale),
        "pods": statistics.samples,
        "resources": {
            name: {"unit": unit, "node_mean": node, "pod_mean": mean, "pod_deviation": deviation}
            for name, unit, node, mean, deviation in rows
        },
    }
    yield
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"
