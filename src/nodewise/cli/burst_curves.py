"""How the minutes of overloaded nodes add up, as SVG. Needs matplotlib, which only plots and the benchmarks use."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from nodewise.cli.curves import STYLE
from nodewise.errors import BadSettings, Problem


def draw(nodes_by_minute: Mapping[str, Sequence[float]], path: Path) -> None:
    """One curve for each name. `BadSettings` if the file cannot be written."""
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
        try:
            figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        except OSError as error:
            problem = Problem(str(path), error.strerror or str(error), "a file that can be written")
            raise BadSettings("--svg", [problem]) from error
