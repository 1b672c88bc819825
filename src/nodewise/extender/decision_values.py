"""The numbers that agents' answers rest on, as JSON takes them."""

import math
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from nodewise.agent import Details
from nodewise.extender.decision import Decision

PART: Final = 2
"""Candidates at once, where others wait: the words or numbers of one may take 0.2 ms."""

_NOTHING: Final = b"{}"


def of(given: Decision, position: int, agent: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each agent's numbers of one candidate, or one agent's, where there are any."""
    for name, one in given.details():
        if agent in {"", name} and (found := one.numbers(position)):
            yield name, plain(found)


def together(*given: tuple[Decision, int]) -> dict[str, dict[str, Any]]:
    """By agent, the numbers of one node in several decisions, where it stands at these positions."""
    found: dict[str, dict[str, Any]] = {}
    for decision, position in given:
        for agent, one in of(decision, position):
            found.setdefault(agent, {}).update(one)
    return found


def encoded(given: Details, size: int) -> Generator[None, None, bytes]:
    """One agent's numbers as a JSON list by candidate, made in parts; empty where there are none."""
    found: list[bytes] = []
    for candidate in range(size):
        if candidate % PART == 0:
            yield
        found.append(msgspec.json.encode(plain(given.numbers(candidate))))
    return b"[" + b",".join(found) + b"]" if any(one != _NOTHING for one in found) else b"[]"


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
