"""The figures of two states of the program, measured in alternating rounds: ratios, their spread, and a table."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class ComparedFigure(NamedTuple):
    """A quantity that is measured in both states. The smaller value is better, except for rates."""

    meaning: str
    unit: str
    is_rate: bool = False


class ComparedRounds(NamedTuple):
    """The values of a figure in order. The n-th values of both states belong to the same round."""

    figure: ComparedFigure
    before: list[float]
    after: list[float]

    def ratios(self) -> list[float]:
        """After divided by before, by round, because a disturbance of a whole round affects both states."""
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios())

    def slowdown(self) -> float:
        """The ratio, or its inverse for a rate: more than 1 is worse."""
        return 1 / self.ratio() if self.figure.is_rate else self.ratio()


class Comparison:
    """The rounds of all figures, in the order in which they were first measured."""

    def __init__(self) -> None:
        self._rounds: dict[ComparedFigure, ComparedRounds] = {}

    def add(self, figure: ComparedFigure, *, is_after: bool, value: float) -> None:
        """Add the value of one state in the next round of a figure."""
        rounds = self._rounds.setdefault(figure, ComparedRounds(figure, [], []))
        (rounds.after if is_after else rounds.before).append(value)

    def rounds(self) -> list[ComparedRounds]:
        """The rounds of each figure."""
        return list(self._rounds.values())


def table(comparison: Sequence[ComparedRounds]) -> str:
    """A table for a terminal: the medians of both states, the ratio, and the smallest and largest ratio of a round."""
    rows = [("figure", "before", "after", "ratio", "spread")]
    for rounds in comparison:
        medians = (f"{statistics.median(values):.4g} {rounds.figure.unit}" for values in rounds[1:])
        least, most = min(rounds.ratios()), max(rounds.ratios())
        rows.append((rounds.figure.meaning, *medians, f"{rounds.ratio():.3f}", f"{least:.2f} to {most:.2f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )
    return "\n".join(lines)


def worse_than(comparison: Sequence[ComparedRounds], limit: float) -> list[str]:
    """The figures whose ratio is worse than the limit: for 1.05, more than 5 % slower or larger."""
    return [rounds.figure.meaning for rounds in comparison if rounds.slowdown() > limit]
