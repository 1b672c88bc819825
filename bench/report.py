"""Results in words: the table on stdout, and the part of README.md that is generated, so that they never disagree."""

from pathlib import Path
from typing import Final

from bench.results import FIGURES, Figure, Results

README: Final = Path(__file__).parent / "README.md"
BEGIN: Final = "<!-- figures: written by `make bench` from results.json -->\n"
END: Final = "<!-- end of figures -->\n"

Row = tuple[str, str, str, str]


def rows(found: Results) -> list[Row]:
    """Key, what it means, its value, and its target with whether it is met; one row a figure."""
    return [
        (key, figure.meaning, _value(found[key], figure.unit), _target(found[key], figure))
        for key, figure in FIGURES.items()
    ]


def _value(value: float, unit: str) -> str:
    return f"{value:g} {unit}".strip()


def _target(value: float, figure: Figure) -> str:
    if figure.at_most is None:
        return ""
    verdict = "met" if value <= figure.at_most else "not met"
    return f"at most {_value(figure.at_most, figure.unit)}: {verdict}"


def table(found: Results) -> str:
    """For a terminal: what each figure means, its value and its target."""
    shown = [row[1:] for row in rows(found)]
    widths = [max(len(row[column]) for row in shown) for column in range(3)]
    lines = [
        f"{meaning:<{widths[0]}}  {value:>{widths[1]}}  {target}".rstrip() for meaning, value, target in shown
    ]
    return "\n".join(lines)


def block(found: Results) -> str:
    """For README.md: where it was measured, the figures, and every round."""
    machine, versions = found["machine"], found["versions"]
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        f"Measured on {found['date']}: {machine['cpu']}, {machine['cores']} cores, {machine['kernel']}.",
        f"Other programs took {machine['others_share']:.0%} of the machine during the run.",
        f"Client: {found['client']}. Versions: {named}.",
        "",
        "| key | what | figure | target |",
        "|---|---|---|---|",
        *(f"| `{key}` | {meaning} | {value} | {target} |" for key, meaning, value, target in rows(found)),
        "",
        "| series | requests a round | medians of the rounds, ms | 99th percentiles, ms |",
        "|---|---|---|---|",
        *(_series(name, found) for name in found["rounds"]),
    ]
    return "\n".join(lines) + "\n"


def _series(name: str, found: Results) -> str:
    series = found["rounds"][name]
    requests = ", ".join(f"{each['requests']:g}" for each in series)
    medians = ", ".join(f"{each['p50_ms']:g}" for each in series)
    tails = ", ".join(f"{each['p99_ms']:g}" for each in series)
    return f"| {name} | {requests} | {medians} | {tails} |"


def inserted(text: str, found: Results) -> str:
    """README.md with its figures replaced. ValueError if its markers are gone."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{README.name} lacks the lines {BEGIN!r} and {END!r}")
    return before + BEGIN + "\n" + block(found) + "\n" + END + after


def write(found: Results) -> None:
    README.write_text(inserted(README.read_text(), found))
