"""Alternating rounds: who is measured takes turns with the do-nothing server, and the median round counts."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bench.load_clients import Taken

Ask = Callable[[], Taken]
Round = dict[str, float]
"""One series in one round: `p10_ms` to `p99_ms`, `max_ms` and `requests`."""
PERCENTILES: Final = (10, 25, 50, 75, 90, 99)
Rounds = dict[str, list[Round]]
"""By series: its rounds, in order. The n-th rounds of all series belong together."""


def alternate(count: int, asks: Mapping[str, Ask], report_progress: Callable[[str], Any]) -> Rounds:
    """So many rounds of all series; every other round goes through them backwards."""
    rounds: Rounds = {name: [] for name in asks}
    for number in range(count):
        order = list(asks) if number % 2 == 0 else list(asks)[::-1]
        for name in order:
            rounds[name].append(summary(asks[name]()))
            report_progress(
                f"round {number + 1} of {count}, {name}: median {rounds[name][-1]['p50_ms']:.2f} ms"
            )
    return rounds


def summary(taken: Taken) -> Round:
    """A round in a few numbers."""
    shares = {f"p{share}_ms": percentile(taken.micros, share / 100) / 1000 for share in PERCENTILES}
    return {
        **{name: round(value, 3) for name, value in shares.items()},
        "max_ms": round(max(taken.micros) / 1000, 3),
        "requests": len(taken.micros),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def median(series: Sequence[Round], field: str) -> float:
    """The median round."""
    return round(statistics.median(each[field] for each in series), 3)


def ratio(series: Sequence[Round], to: Sequence[Round], field: str) -> float:
    """The median of the rounds' ratios: what disturbs a whole round disturbs both sides."""
    pairs = zip(series, to, strict=True)
    return round(statistics.median(own[field] / other[field] for own, other in pairs), 2)
