"""The numbers that agents' results are based on, as JSON values."""

import math
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from nodewise.agent import Details
from nodewise.engine.decision import Decision

CANDIDATES_PER_PART: Final = 2
"""Candidates between two yields: the texts or numbers of one may take 0.2 ms."""

_EMPTY: Final = b"{}"


def numeric_details_of_candidate(
    decision: Decision, position: int, agent: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The numbers of one candidate by agent, or of one agent; only if there are any."""
    for name, details in decision.details():
        if agent in {"", name} and (numbers := details.numbers(position)):
            yield name, to_json_values(numbers)


def merge_numbers(*places: tuple[Decision, int]) -> dict[str, dict[str, Any]]:
    """By agent, the numbers of one node in several decisions, each with the node's position in it."""
    numbers: dict[str, dict[str, Any]] = {}
    for decision, position in places:
        for agent, agent_numbers in numeric_details_of_candidate(decision, position):
            numbers.setdefault(agent, {}).update(agent_numbers)
    return numbers


def encode_numbers(details: Details, size: int) -> Generator[None, None, bytes]:
    """One agent's numbers as a JSON list by candidate; an empty list if there are none. Yields between parts."""
    items: list[bytes] = []
    for candidate in range(size):
        if candidate % CANDIDATES_PER_PART == 0:
            yield
        items.append(msgspec.json.encode(to_json_values(details.numbers(candidate))))
    return b"[" + b",".join(items) + b"]" if any(item != _EMPTY for item in items) else b"[]"


def to_json_values(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers without numpy types; NaN and infinity become null."""
    return {str(key): _to_json_value(value) for key, value in numbers.items()}


def _to_json_value(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return _to_json_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return to_json_values(value)
    return [_to_json_value(item) for item in value] if isinstance(value, list | tuple) else value
