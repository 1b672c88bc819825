"""Processor time of short commands: versions, help, completion, `policy lint` and `decide`, beside promtool.

promtool is a program in Go for the same kind of work: it parses and checks files of rules. The commands take turns in
each round, so that other programs on the machine affect all of them alike. Wall times would depend on these programs
more than on the commands.
"""

import os
import resource
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from tests.cluster import debian_packages

from bench import benchmark_servers
from bench.alternating_rounds import of_rounds
from bench.progress_lines import report_progress_line
from bench.results import Measurement
from nodewise.cli import command_outlines, main

ROOT: Final = Path(__file__).parents[1]
EXAMPLE: Final = "examples/health-metric"
RULES: Final = "deploy/metrics/alert-rules.yaml"
STARTS: Final = 3
"""Starts of each command in a round of the scale: nine by default."""
SHELLS: Final = ("bash", "zsh", "fish")
COMPLETED: Final = (
    "nodewise ", "nodewise ex", "nodewise extender --", "nodewise decide --output ", "nodewise decide --agents ",
    "nodewise policy lint --", "nodewise cpu init --", "nodewise annotate --",
)  # fmt: skip
"""Lines that a shell completes: commands, options, values and names of agents."""

Row = dict[str, Any]


class TimedCommand(NamedTuple):
    """A command, and the variables with which a shell requests a completion."""

    words: Sequence[str | Path]
    variables: Mapping[str, str] = {}

    @property
    def title(self) -> str:
        shell = self.variables.get("_NODEWISE_COMPLETE", "").partition("_")[0]
        if shell:
            return f"{shell}: {self.variables['COMP_WORDS']!r} TAB"
        return " ".join([Path(self.words[0]).name, *map(str, self.words[1:])])

    def cpu_ms(self) -> float:
        """The processor time of one start, with that of the children. RuntimeError if it fails."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        ended = subprocess.run(
            self.words, capture_output=True, cwd=ROOT, env={**os.environ, **self.variables}, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if ended.returncode or not ended.stdout:
            raise RuntimeError(f"{self.title} ended with {ended.returncode}: {ended.stderr[-500:]!r}")
        return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(context: benchmark_servers.BenchContext) -> Measurement:
    """Start each command several times in alternating rounds. MissingError without promtool."""
    groups = _commands(debian_packages.get().prometheus.with_name("promtool"))
    commands = [command for group in groups.values() for command in group]
    times: dict[str, list[float]] = {command.title: [] for command in commands}
    count = 1
    if context.scale is not benchmark_servers.QUICK:
        count = context.scale.rounds * STARTS
        for command in commands:
            command.cpu_ms()  # writes byte code, and fills the cache of files
    for number in range(count):
        for command in commands if number % 2 == 0 else reversed(commands):
            times[command.title].append(command.cpu_ms())
        report_progress_line(f"round {number + 1} of {count}")
    rows = {title: _row(title, series) for title, series in times.items()}
    figures = {
        f"command_{name}_ms": max(of_rounds(times[command.title], 1) for command in group)
        for name, group in groups.items()
    }
    version = _promtool_version(groups["promtool_version"][0])
    return Measurement(figures, {}, "", {"commands": list(rows.values())}, {"promtool": version})


def _commands(promtool: Path) -> Mapping[str, Sequence[TimedCommand]]:
    """The commands by figure, which is the slowest median of a group."""
    program = benchmark_servers.PROGRAM
    nodewise = {
        "version": [["--version"]],
        "help": [[*path, "--help"] for path in _command_paths(main.command, ())],
        "lint": [["policy", "lint", EXAMPLE]],
        "decide": [["decide", EXAMPLE]],
    }
    compared = {"version": ["--version"], "help": ["--help"], "check": ["check", "rules", RULES]}
    return {
        **{name: [TimedCommand([program, *words]) for words in group] for name, group in nodewise.items()},
        "completion": [
            TimedCommand([program], _completion_variables(shell, line))
            for shell in SHELLS
            for line in COMPLETED
        ],
        **{f"promtool_{name}": [TimedCommand([promtool, *words])] for name, words in compared.items()},
    }


def _command_paths(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The names of all commands of nodewise, without importing them."""
    yield path
    names = list(main.COMMANDS) if not path else getattr(command, "list_commands", lambda _: [])(None)
    for name in names:
        if (below := command_outlines.find_outline((*path, name))) is not None:
            yield from _command_paths(below, (*path, name))


def _completion_variables(shell: str, line: str) -> Mapping[str, str]:
    """What the script of a shell sets. fish passes the incomplete word instead of its number."""
    *words, incomplete = line.split(" ")
    position = incomplete if shell == "fish" else str(len(words))
    return {"_NODEWISE_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": position}


def _row(title: str, series: Sequence[float]) -> Row:
    values = {"median_ms": statistics.median(series), "min_ms": min(series), "max_ms": max(series)}
    return {
        "command": title,
        **{name: round(value, 1) for name, value in values.items()},
        "starts": len(series),
    }


def _promtool_version(command: TimedCommand) -> str:
    output = subprocess.run(command.words, capture_output=True, text=True, check=True).stdout
    return output.split()[2]
