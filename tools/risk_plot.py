"""Draws docs/pictures/safe-tail.svg: the risk of overload and the score by the usage of a node.

`make pictures` runs it.
"""

from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nodewise.cli.policy_backtest.html_page import STYLE
from nodewise_scorers.safe import SafeOptions
from nodewise_scorers.safe.risk_scores import RiskScorer

PICTURE: Final = Path("docs/pictures/safe-tail.svg")
_DEVIATIONS_PCT: Final = (5, 10, 20, 30)
_MEANS: Final = np.linspace(0, 1, 1001)


def main() -> None:
    """Draw the plot with the default settings."""
    options = SafeOptions()
    tail = RiskScorer(options.safe_utilization / 100, options.safe_percentile / 100)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        for number, pct in enumerate(_DEVIATIONS_PCT):
            _draw(left, right, tail, pct, f"C{number}")
        left.axhline(options.safe_percentile, color="#888888", linestyle="--", linewidth=1)
        left.set(title=f"Risk of more than {options.safe_utilization} %", ylabel="risk, %", ylim=(0, 50))
        right.set(title="safe-overload", ylabel="score", yticks=range(0, 11, 2))
        left.legend(frameon=False, title="deviation", loc="upper left")
        for axes in (left, right):
            axes.set(xlabel="mean use with the pod, %", xlim=(0, 100))
        figure.savefig(PICTURE, format="svg", metadata={"Date": None, "Creator": None})


def _draw(left: Axes, right: Axes, tail: RiskScorer, deviation_pct: int, color: str) -> None:
    deviations = np.full_like(_MEANS, deviation_pct / 100)
    risks, scores = tail.risk(_MEANS, deviations), tail.scores(_MEANS, deviations)
    left.plot(100 * _MEANS, 100 * risks, color=color, label=f"{deviation_pct} %")
    right.plot(100 * _MEANS, scores, color=color, drawstyle="steps-mid")


if __name__ == "__main__":
    main()
