"""Formats the values behind agents' verdicts, and the parts of a score."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nodewise.engine.scheduling_attempt_explanation import ScorePart


def format_agent_values(by_agent: Mapping[str, Mapping[str, Any]]) -> str:
    """`safe cpu mean_share=0.62 risk=0.0003; safe memory missing=no statistics; congestion factor=50`."""
    return "; ".join(line for agent, values in by_agent.items() for line in _flatten_to_lines(agent, values))


def _flatten_to_lines(path: str, values: Mapping[str, Any]) -> Iterator[str]:
    """One line for each innermost mapping: the keys that lead there, then its values. None is left out."""
    own = [
        f"{key}={_format_value(value)}"
        for key, value in values.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    if own:
        yield f"{path} {' '.join(own)}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten_to_lines(f"{path} {key}", value)


def _format_value(value: Any) -> str:
    """A number with four significant digits."""
    if isinstance(value, list | tuple):
        return ",".join(map(_format_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_score_parts(score_parts: Iterable[ScorePart]) -> str:
    """`safe-overload 9, congestion 5 x2`: weights where they are not 1."""
    return ", ".join(
        f"{part.label} {part.points}" + (f" x{part.weight:.4g}" if part.weight != 1 else "")
        for part in score_parts
    )
