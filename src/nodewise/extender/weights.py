"""How much each priority counts where several are asked: `--weights`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from nodewise.errors import BadSettings, Problem
from nodewise.option import Option

_MOST: Final = 10**6
"""Far from where sums of scores would be no numbers any more."""


class ChainOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the agents' answers become one."""

    weights: Annotated[str, Option(metavar="NAME=WEIGHT,…")] = ""
    """How much priorities count beside each other, such as `safe-overload=1,safe-balance=10,congestion=2`: each by its
    own name, or all of an agent by the agent's. What is not named counts 1. A node's score is the weighted mean of
    those that have something to say about the pod, rounded."""


class Priority(NamedTuple):
    """One that can be weighed."""

    agent: str
    label: str
    """Its own name; empty where it has none but the agent's."""


Weights = Mapping[Priority, float]


def weighed(options: ChainOptions, priorities: Iterable[Priority]) -> Weights:
    """The weight of each of these. `BadSettings` names every part of the option that cannot be used.

    Names of priorities that are not among these are errors: a misspelt one would count 1 in silence.
    """
    found = dict.fromkeys(priorities, 1.0)
    problems: list[Problem] = []
    parts = [part.strip() for part in options.weights.split(",") if part.strip()]
    times = Counter(map(_name, parts))
    for part in sorted(parts, key=lambda part: _is_own(part, found)):
        name, weight = _name(part), _number(part.partition("=")[2])
        meant = [one for one in found if name in {one.label, one.agent}]
        if not name or weight is None:
            problems.append(Problem("--weights", repr(part), f"name=number, from 0 to {_MOST}"))
        elif times[name] > 1:
            problems.append(Problem("--weights", repr(part), "it once"))
        elif not meant:
            known = sorted({one.label or one.agent for one in found} | {one.agent for one in found})
            problems.append(Problem("--weights", repr(part), "one of " + ", ".join(known)))
        else:
            own = [one for one in meant if one.label == name]
            found.update(dict.fromkeys(own or meant, weight))
    if parts and not problems and not any(found.values()):
        problems.append(Problem("--weights", repr(options.weights), "at least one weight above 0"))
    if problems:
        raise BadSettings("settings", problems)
    return found


def _is_own(part: str, found: Weights) -> bool:
    """A priority's own name comes after its agent's, so that it wins, in whichever order they were given."""
    return any(one.label == _name(part) for one in found)


def _name(part: str) -> str:
    return part.partition("=")[0].strip()


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= _MOST else None
