"""`make pictures`: draws docs/pictures/terminal.svg, a terminal in which nodewise's commands run.

The commands run in a pseudoterminal, and the picture has their output and colors. The lines appear one after the other
by CSS; without animations, or where the reader prefers reduced motion, all of them are there. The picture refers to
no fonts and no other files.
"""

import contextlib
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from rich.console import Console
from rich.style import Style
from rich.text import Text

from nodewise.cli import demo
from nodewise.cli.demo import NAMESPACE, create_example_pod, demo_cluster
from nodewise.scheduling_model.simulated_cluster import Cluster

_ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = _ROOT / "docs/pictures/terminal.svg"
COLUMNS: Final = 120
_DRAFT: Final = """\
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: healthy-disks, namespace: health-metric-demo}
spec:
  podSelector: {matchLabels: {app: demo-app}}
  avoid:
  - {metric: health_metric, abuve: 0}
"""
"""A policy with a typing mistake."""
_CHARACTER: Final = 8.0  # width of a character, in pixels; the font's size is chosen to fit
_LINE: Final = 19.0
_MARGIN: Final = 16.0
_PAUSE_S: Final = 1.5
_COLORS: Final = ("", "red", "green", "yellow", "blue", "magenta", "cyan", "")
"""CSS classes of the colors of terminals; the text's color for black and white."""
_LINE_S: Final = 0.12


class Step(NamedTuple):
    """A command line and its output with escape sequences."""

    command: str
    output: str


def offline_steps(folder: Path) -> list[Step]:
    """Commands that read files only, so that their output is the same each time. `folder` gets their input."""
    (folder / "draft.yaml").write_text(_DRAFT)
    (folder / "examples").symlink_to(_ROOT / "examples")
    commands = ["nodewise decide examples/health-metric", "cat draft.yaml", "nodewise policy lint draft.yaml"]
    return [Step(command, run(command, folder)) for command in commands]


def explain_step(folder: Path) -> Step:
    """`nodewise explain` about a pod that the demo's extender has rejected on every node."""
    with demo_cluster(folder) as stage, demo.run_demo_extender(stage) as served:
        stage.measure({"rack1-a": 1, "rack1-b": 2, "rack2-a": 1})
        demo.wait_until(lambda: len(demo.rejected_nodes(served, stage.names)) == len(stage.names))
        with Cluster(stage.nodes, [demo.entry(served)]) as cluster:
            pod = create_example_pod("demo-app-5")
            stored = stage.put_unschedulable_pod(pod, "")
            placed = cluster.submit(pod | {"metadata": stored["metadata"]})  # with the same uid
            stage.put_unschedulable_pod(pod, placed.message)
        command = f"nodewise explain {NAMESPACE}/demo-app-5 --server {served.health_url}"
        return Step(command, run(command, folder, {"KUBECONFIG": stage.kubeconfig}))


def run(command: str, folder: Path, variables: Mapping[str, str | Path] | None = None) -> str:
    """What the command prints on a terminal."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        **{name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "LINES"}},
        **{name: str(value) for name, value in (variables or {}).items()},
        "PATH": programs,
        "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
    }
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command.split(), cwd=folder, env=environment, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        output = b"".join(_chunks(ours))
        process.wait()
    os.close(ours)
    return output.decode().replace("\r\n", "\n")


def _chunks(terminal: int) -> Iterator[bytes]:
    """What is written to a terminal until the last program that has it ends, which is an error of read."""
    with contextlib.suppress(OSError):
        while chunk := os.read(terminal, 65536):
            yield chunk


def draw(steps: Sequence[Step]) -> str:
    """The picture."""
    rows: list[str] = []
    begin_s, number = 0.0, 0
    for step in steps:
        prompt = Text.assemble(("$ ", "bold green"), (step.command, "bold"))
        for line in [prompt, *_lines(step.output), Text()]:
            y = _MARGIN + (number + 0.75) * _LINE
            if texts := "".join(_texts(line, y)):
                rows.append(f'<g style="animation-delay:{begin_s:.2f}s">{texts}</g>')
            number += 1
            begin_s += _LINE_S
        begin_s += _PAUSE_S
    return _FRAME.format(
        width=f"{COLUMNS * _CHARACTER + 2 * _MARGIN:g}",
        height=f"{(number - 1) * _LINE + 2 * _MARGIN:g}",
        title=escape("; ".join(step.command for step in steps)),
        rows="\n".join(rows),
    )


def _lines(output: str) -> Iterator[Text]:
    """The lines as the terminal wraps them."""
    for line in Text.from_ansi(output.rstrip("\n")).split(allow_blank=True):
        yield from line.divide(range(COLUMNS, len(line), COLUMNS)) or [line]


def _texts(line: Text, y: float) -> Iterator[str]:
    """The words of a line with their places: columns stay aligned in every font."""
    column = 0
    for segment in line.render(Console(width=10_000)):
        for match in re.finditer(r"\S+( \S+)*", segment.text.rstrip("\n")):
            x, width = _MARGIN + (column + match.start()) * _CHARACTER, len(match[0]) * _CHARACTER
            place = f'x="{x:g}" y="{y:g}" textLength="{width:g}"'
            yield f"<text {place}{_css_classes(segment.style)}>{escape(match[0])}</text>"
        column += len(segment.text)


def _css_classes(style: Style | None) -> str:
    if style is None:
        return ""
    number = style.color.number if style.color is not None else None  # 0 to 15: those of terminals
    color = _COLORS[number % 8] if number is not None and number in range(16) else ""
    names = [name for name, is_set in (("bold", style.bold), ("dim", style.dim), (color, color)) if is_set]
    return f' class="{" ".join(names)}"' if names else ""


_FRAME: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title}</title>
<style>
svg {{ background: #1e2430; border-radius: 8px }}
text {{ font: 13.3px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d8dee9 }}
.bold {{ font-weight: bold; fill: #ffffff }}
.dim {{ fill: #9aa5b5 }}
.red {{ fill: #ff8a8a }}
.green {{ fill: #8fdc8f }}
.yellow {{ fill: #f0d070 }}
.blue {{ fill: #8ab8ff }}
.magenta {{ fill: #e0a0f0 }}
.cyan {{ fill: #80dce8 }}
@keyframes appear {{ from {{ opacity: 0 }} }}
@media (prefers-reduced-motion: no-preference) {{ g {{ animation: appear 1ms step-end backwards }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#1e2430"/>
{rows}
</svg>
"""


def main() -> int:
    """Write the picture. The exit code is 0."""
    with tempfile.TemporaryDirectory(prefix="nodewise-picture-") as folder:
        decide, *lint = offline_steps(Path(folder))
        steps = [decide, explain_step(Path(folder)), *lint]
    PICTURE.write_text(draw(steps))
    print(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
