"""Alternating rounds: the measured program alternates with the no-op server, and the median round counts."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from bench.load_clients import LoadResult

Measure = Callable[[], LoadResult]
Round = dict[str, float]
"""One series in one round: `p10_ms` to `p99_ms`, `max_ms` and `requests`."""
PERCENTILES: Final = (10, 25, 50, 75, 90, 99)
Rounds = dict[str, list[Round]]
"""Rounds by series, in order. The n-th rounds of all series belong together."""


class RoundFigure(float):
    """A figure of several rounds that also has their smallest and largest value."""

    spread: tuple[float, float]


def of_rounds(
    values: Iterable[float], digits: int, figure: Callable[[Sequence[float]], float] = statistics.median
) -> RoundFigure:
    """A rounded figure of one value per round, by default the median, with its spread."""
    rounds = list(values)
    result = RoundFigure(round(figure(rounds), digits))
    result.spread = round(min(rounds), digits), round(max(rounds), digits)
    return result


def alternate(count: int, asks: Mapping[str, Measure], report_progress: Callable[[str], Any]) -> Rounds:
    """Measure `count` rounds of all series; every other round uses the reverse order."""
    rounds: Rounds = {name: [] for name in asks}
    for number in range(count):
        order = list(asks) if number % 2 == 0 else list(asks)[::-1]
        for name in order:
            rounds[name].append(summary(asks[name]()))
            report_progress(
                f"round {number + 1} of {count}, {name}: median {rounds[name][-1]['p50_ms']:.2f} ms"
            )
    return rounds


def summary(taken: LoadResult) -> Round:
    """Percentiles, maximum and number of requests of a round."""
    shares = {f"p{share}_ms": percentile(taken.micros, share / 100) / 1000 for share in PERCENTILES}
    return {
        **{name: round(value, 3) for name, value in shares.items()},
        "max_ms": round(max(taken.micros) / 1000, 3),
        "requests": len(taken.micros),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def scaled(figure: float, factor: float, digits: int) -> RoundFigure:
    """A figure times a constant, with the same rounds."""
    result = RoundFigure(round(figure * factor, digits))
    spread = figure.spread if isinstance(figure, RoundFigure) else (figure, figure)
    result.spread = round(spread[0] * factor, digits), round(spread[1] * factor, digits)
    return result


def median(series: Sequence[Round], field: str) -> RoundFigure:
    """The median of a field over the rounds."""
    return of_rounds((each[field] for each in series), 3)


def ratio(series: Sequence[Round], to: Sequence[Round], field: str) -> RoundFigure:
    """The median of the rounds' ratios, because a disturbance of a whole round affects both sides."""
    pairs = zip(series, to, strict=True)
    return of_rounds((own[field] / other[field] for own, other in pairs), 2)
