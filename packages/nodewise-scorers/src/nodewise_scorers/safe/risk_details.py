"""The risk of each candidate, as numbers and as text, which are computed when they are read."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nodewise_scorers.safe import beta_distribution
from nodewise_scorers.safe.state import Shares
from nodewise_scorers.statistics.missing_statistics import StatisticStatus
from nodewise_scorers.statistics.node_usage_reader import RESOURCES

_BLOCK: Final = 64
"""Candidates whose risk is computed together in about 0.3 ms; one by one it takes ten times as long."""


class RiskDetails:
    """Details of one response (`agent.Details`). Exact risks are computed when they are first read."""

    def __init__(
        self, shares: Shares, threshold: float, percentile: float, *, prints_table: bool = False
    ) -> None:
        self.shares = shares
        self.threshold = threshold
        self.percentile = percentile
        self.prints_table = prints_table
        self._risks: dict[int, NDArray[np.float64]] = {}
        """By block, by resource and candidate."""

    @property
    def nbytes(self) -> int:
        """Includes the risks of all candidates."""
        return self.shares.nbytes + self.shares.mean.nbytes

    def text(self, candidate: int) -> str:
        """`cpu 62 % ± 10 %, risk 0.03 %; memory: no statistics`."""
        return "; ".join(
            self._resource_text(resource, number, candidate) for number, resource in enumerate(RESOURCES)
        )

    def _resource_text(self, resource: str, number: int, candidate: int) -> str:
        missing = StatisticStatus(int(self.shares.missing[number, candidate]))
        if missing not in (StatisticStatus.PRESENT, StatisticStatus.NO_DEVIATION):
            return f"{resource}: {missing.words}"
        mean = self.shares.mean[number, candidate]
        spread = missing.words and f", {missing.words}"
        deviation = spread or f" ± {_format_percent(self.shares.deviation[number, candidate])}"
        risk = _format_percent(self._candidate_risk(number, candidate))
        return f"{resource} {_format_percent(mean)}{deviation}, risk {risk}"

    def _candidate_risk(self, number: int, candidate: int) -> float:
        block, place = divmod(candidate, _BLOCK)
        return float(self._compute_risks_of_block(block)[number, place])

    def _compute_risks_of_block(self, block: int) -> NDArray[np.float64]:
        """The risks of some candidates, by resource."""
        risks = self._risks.get(block)
        if risks is None:
            here = slice(block * _BLOCK, (block + 1) * _BLOCK)
            mean, deviation = self.shares.mean[:, here], self.shares.deviation[:, here]
            risks = self._risks[block] = beta_distribution.risk(mean, deviation, self.threshold)
        return risks

    def distances(self) -> NDArray[np.float64]:
        """By candidate: how far the risk is above the accepted one; 1 where there are no statistics."""
        size = self.shares.mean.shape[1]
        if not size:
            return np.zeros(0)
        risks = np.concatenate(
            [self._compute_risks_of_block(block) for block in range(-(-size // _BLOCK))], axis=1
        )
        worst = np.fmax(*risks)
        beyond = np.maximum(worst - self.percentile, 0.0) / max(1 - self.percentile, np.finfo(float).tiny)
        distances: NDArray[np.float64] = np.nan_to_num(np.minimum(beyond, 1.0), nan=1.0)
        return distances

    def numbers(self, candidate: int) -> Mapping[str, Any]:
        """By resource: `mean_share`, `std_share`, `alpha`, `beta`, `risk`, `threshold`; `missing` where it is."""
        return {
            resource: self._resource_numbers(number, candidate) for number, resource in enumerate(RESOURCES)
        }

    def _resource_numbers(self, number: int, candidate: int) -> dict[str, Any]:
        mean = float(self.shares.mean[number, candidate])
        deviation = float(self.shares.deviation[number, candidate])
        shapes = beta_distribution.fit(mean, deviation if deviation >= beta_distribution.STEADY else 0.0)
        numbers: dict[str, Any] = {
            "mean_share": mean,
            "std_share": deviation,
            "alpha": float(shapes.alpha),
            "beta": float(shapes.beta),
            "risk": self._candidate_risk(number, candidate),
            "threshold": self.threshold,
        }
        missing = StatisticStatus(int(self.shares.missing[number, candidate]))
        if missing:
            numbers["missing"] = missing.words
        if self.prints_table and beta_distribution.is_valid(*shapes):
            numbers["table"] = _distribution_table(shapes)
        return numbers


def _distribution_table(shapes: beta_distribution.BetaShapes) -> dict[str, list[float]]:
    """Density, cumulative probability and mean residual of the distribution at steps of 0.05."""
    x = np.arange(21) / 20
    functions = {
        "pdf": beta_distribution.pdf,
        "cdf": beta_distribution.cdf,
        "residual": beta_distribution.mean_residual_life,
    }
    return {"x": x.tolist(), **{name: function(x, *shapes).tolist() for name, function in functions.items()}}


def _format_percent(share: float) -> str:
    """Format with three digits: `62 %`, `0.0345 %`."""
    return f"{100 * share:.3g} %"
