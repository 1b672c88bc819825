"""The numbers that agents' answers rest on, as JSON takes them."""

import math
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

import numpy as np

from nodewise.agent import Details, Numbered
from nodewise.extender.decision import Decision

PART: Final = 2
"""Candidates at once, where others wait: the words or numbers of one may take 0.2 ms."""


def of(given: Decision, position: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each agent's numbers of one candidate, where there are any."""
    for agent, one in given.details():
        if isinstance(one, Numbered) and (found := one.numbers(position)):
            yield agent, plain(found)


def listed(given: Details, size: int) -> Generator[None, None, list[dict[str, Any]]]:
    """One agent's numbers by candidate, made in parts; empty where there are none."""
    found: list[dict[str, Any]] = []
    if isinstance(given, Numbered):
        for candidate in range(size):
            if candidate % PART == 0:
                yield
            found.append(plain(given.numbers(candidate)))
    return found if any(found) else []


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Without numpy's types; what is no number is null."""
    return {str(key): _plain(value) for key, value in given.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return plain(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
