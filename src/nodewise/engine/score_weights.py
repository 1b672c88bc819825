"""The weights of the agents' scores: `--weights`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from nodewise.base.errors import BadSettings, Problem
from nodewise.base.option import Option

_MOST: Final = 10**6
"""The largest weight; sums of weighted scores stay finite."""


class ChainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Combination of the scores of several agents."""

    weights: Annotated[str, Option(metavar="NAME=WEIGHT,…")] = ""
    """Weights of priorities, such as `safe-overload=1,safe-balance=10,congestion=2`: by the priority's own name, or by
    the agent's name for all of its priorities. The default is 1. A node's score is the weighted mean of the priorities
    that score the pod, rounded."""


class Priority(NamedTuple):
    """A score function that can have a weight."""

    agent: str
    label: str
    """Its own name; empty if it has only the agent's."""


Weights = Mapping[Priority, float]


def parse_weights(options: ChainOptions, priorities: Iterable[Priority]) -> Weights:
    """The weight of each priority. `BadSettings` names each invalid part of the option.

    Unknown names are errors, because a misspelt name would silently leave the weight at 1.
    """
    weights = dict.fromkeys(priorities, 1.0)
    parts = [part.strip() for part in options.weights.split(",") if part.strip()]
    times = Counter(map(_name_in_weight_part, parts))
    problems: list[Problem] = []
    # parts with a priority's own name come last, so that they override those with the agent's name
    for part in sorted(parts, key=lambda part: _is_priority_label(_name_in_weight_part(part), weights)):
        name, weight = _name_in_weight_part(part), _parse_weight(part.partition("=")[2])
        if not name or weight is None:
            problems.append(Problem("--weights", repr(part), f"name=number, from 0 to {_MOST}"))
        elif times[name] > 1:
            problems.append(Problem("--weights", repr(part), "each name once"))
        elif named := _priorities_named(name, weights):
            weights.update(dict.fromkeys(named, weight))
        else:
            problems.append(
                Problem("--weights", repr(part), "one of " + ", ".join(_valid_priority_names(weights)))
            )
    if parts and not problems and not any(weights.values()):
        problems.append(Problem("--weights", repr(options.weights), "at least one weight above 0"))
    if problems:
        raise BadSettings("settings", problems)
    return weights


def _is_priority_label(name: str, priorities: Iterable[Priority]) -> bool:
    return any(priority.label == name for priority in priorities)


def _priorities_named(name: str, priorities: Iterable[Priority]) -> list[Priority]:
    """The priority with this name, else all priorities of the agent with this name."""
    priorities = list(priorities)
    own = [priority for priority in priorities if priority.label == name]
    return own or [priority for priority in priorities if priority.agent == name]


def _valid_priority_names(priorities: Iterable[Priority]) -> list[str]:
    """All valid names."""
    return sorted(
        {name for priority in priorities for name in (priority.label or priority.agent, priority.agent)}
    )


def _name_in_weight_part(part: str) -> str:
    return part.partition("=")[0].strip()


def _parse_weight(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= _MOST else None
