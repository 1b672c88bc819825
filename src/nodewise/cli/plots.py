"""SVG plots: the share of GPUs that a placement allocates, and the minutes of overloaded nodes.

Only plots and the benchmarks need matplotlib.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nodewise.base.errors import BadSettings, Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = Mapping[int, float]
"""Allocated per cent of all GPUs, by requested per cent."""

STYLE: Final[Any] = {
    "svg.hashsalt": "nodewise",  # stable element ids
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "figure.facecolor": "white",
}
"""Matplotlib settings, shared with the plots of the benchmarks."""
_FROM_PCT: Final = 80  # below this share every placement allocates all requested GPUs


def check_matplotlib_installed(flag: str = "--svg") -> None:
    """Raise BadSettings if matplotlib, which `flag` needs, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise BadSettings(flag, [Problem("matplotlib", "not installed", "pip install 'nodewise[plots]'")])


def plot_gpu_allocation_curves(ours: Mapping[str, Curve], published: Mapping[str, Curve], path: Path) -> None:
    """Plot our curves, and published ones as dotted lines. BadSettings if the file cannot be written."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        axes.set_title("Allocated GPUs")
        axes.set_xlabel("requested so far, % of all GPUs")
        axes.set_ylabel("allocated, % of all GPUs")
        _plot_curves(axes, ours, "-", "")
        _plot_curves(axes, published, ":", "published: ")
        curves = [*ours.values(), *published.values()]
        shown = [allocated for curve in curves for pct, allocated in curve.items() if pct >= _FROM_PCT]
        if shown:  # the range where the curves differ
            axes.set_xlim(_FROM_PCT, max(pct for curve in curves for pct in curve))
            axes.set_ylim(min(shown) - 1, 100)
        axes.legend(frameon=False, loc="lower right")
        _save_svg_figure(figure, path)


def _plot_curves(axes: "Axes", curves: Mapping[str, Curve], style: str, prefix: str) -> None:
    for number, (name, curve) in enumerate(curves.items()):
        points = sorted(curve.items())
        marker = "o" if prefix else ""
        axes.plot(
            [pct for pct, _ in points],
            [allocated for _, allocated in points],
            style,
            color=f"C{number % 10}",
            marker=marker,
            markersize=3,
            linewidth=1 if prefix else 2,
            label=f"{prefix}{name}",
        )


def plot_overloaded_nodes(nodes_by_minute: Mapping[str, Sequence[float]], path: Path) -> None:
    """Plot one curve per name. BadSettings if the file cannot be written."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4), layout="constrained")
        axes = figure.subplots()
        axes.set(
            title="Minutes of nodes above 90 % of CPU or memory", xlabel="hours", ylabel="node-minutes so far"
        )
        for name, nodes in nodes_by_minute.items():
            hours = [minute / 60 for minute in range(1, len(nodes) + 1)]
            axes.plot(hours, list(accumulate(nodes)), linewidth=2, label=name)
        axes.legend(frameon=False, loc="upper left")
        _save_svg_figure(figure, path)


def _save_svg_figure(figure: "Figure", path: Path) -> None:
    try:
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    except OSError as error:
        problem = Problem(str(path), error.strerror or str(error), "a file that can be written")
        raise BadSettings("--svg", [problem]) from error
