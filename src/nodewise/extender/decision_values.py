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


def of(decision: Decision, position: int, agent: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Each agent's numbers of one candidate, or one agent's, where there are any."""
    for name, details in decision.details():
        if agent in {"", name} and (numbers := details.numbers(position)):
            yield name, plain(numbers)


def together(*places: tuple[Decision, int]) -> dict[str, dict[str, Any]]:
    """By agent, the numbers of one node in several decisions, where it stands at these positions."""
    numbers: dict[str, dict[str, Any]] = {}
    for decision, position in places:
        for agent, agent_numbers in of(decision, position):
            numbers.setdefault(agent, {}).update(agent_numbers)
    return numbers


def encoded(details: Details, size: int) -> Generator[None, None, bytes]:
    """One agent's numbers as a JSON list by candidate, made in parts; empty where there are none."""
    items: list[bytes] = []
    for candidate in range(size):
        if candidate % PART == 0:
            yield
        items.append(msgspec.json.encode(plain(details.numbers(candidate))))
    return b"[" + b",".join(items) + b"]" if any(item != _NOTHING for item in items) else b"[]"


def plain(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Without numpy's types; what is no number is null."""
    return {str(key): _plain(value) for key, value in numbers.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return plain(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
