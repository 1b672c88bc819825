"""Processor time of short commands: versions, help, completion, `policy lint` and `decide`, beside promtool.

promtool is a program in Go for the same kind of work: it parses and checks files of rules. The commands take turns in
each round, so that other programs on the machine affect all of them alike. Wall times would depend on these programs
more than on the commands.

`measure_devices` starts `nodewise devices` with many devices and claims of an API server and of a file, and measures
its time and memory.
"""

import json
import os
import resource
import statistics
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from tests.cluster import controlplane, debian_packages, namespace_sandboxes, program_cache

from bench import benchmark_servers, etcd_population
from bench.alternating_rounds import of_rounds
from bench.etcd_population import EtcdEntry
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


def measure_devices(context: benchmark_servers.BenchContext) -> Measurement:
    """List 5,000 nodes with 8 devices each, about half of which claims have, of a real API server and from the output
    of kubectl, in alternating rounds. MissingError without the programs of a control plane.
    """
    file, is_quick = context.folder / "devices.json", context.scale is benchmark_servers.QUICK
    nodes, count = (100, 1) if is_quick else (5000, context.scale.rounds * STARTS)
    with file.open("w") as text:  # piece by piece: the peak of a child begins with the memory of its parent
        text.write('{"apiVersion": "v1", "kind": "List", "items": [')
        for number, item in enumerate(_devices_and_claims(nodes)):
            text.write(("," if number else "") + json.dumps(item, indent=4))  # about as kubectl indents
        text.write("]}")
    figures: dict[str, list[float]] = {}
    with controlplane.running(program_cache.folder(), context.folder) as plane:
        report_progress_line("filling the API server with devices and claims")
        etcd_population.fill(plane.etcd, map(_stored, _devices_and_claims(nodes)), lambda _: None)
        live: list[str | Path] = ["--kubeconfig", plane.admin.kubeconfig]
        sources: dict[str, list[str | Path]] = {
            "devices_5000": live,
            "devices_file_5000": ["--objects-from", file],
        }
        namespace_sandboxes.wait("all are served", lambda: _list_devices(live) is not None or None, 120)
        for _ in range(count):
            for name, words in sources.items():
                measured = _list_devices(words)
                if measured is None:
                    raise RuntimeError("nodewise devices failed")
                report_progress_line(f"{name}: {measured[0]:.2f} s, {measured[1]:.0f} MiB")
                for unit, value in zip(("s", "mib"), measured, strict=True):
                    figures.setdefault(f"{name}_{unit}", []).append(value)
    return Measurement(
        {key: of_rounds(values, 2 if key.endswith("_s") else 0) for key, values in figures.items()}, {}, ""
    )


def _list_devices(words: Sequence[str | Path]) -> tuple[float, float] | None:
    """The seconds and MiB of `nodewise devices`; None if it fails."""
    began = time.monotonic()
    command = [benchmark_servers.PROGRAM, "devices", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return None if process.returncode else (time.monotonic() - began, used.ru_maxrss / 1024)


def _stored(item: Row) -> EtcdEntry:
    metadata = item["metadata"] | {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-11-01T00:00:00Z"}
    folder = f"/registry/{item['kind'].lower()}s"
    place = "/".join(filter(None, (folder, metadata.get("namespace"), metadata["name"])))
    return EtcdEntry(place, etcd_population.stored(item | {"metadata": metadata}))


def _devices_and_claims(nodes: int) -> Iterator[Row]:
    driver, version = "gpu.example.com", "resource.k8s.io/v1"
    for number in range(nodes):
        node = f"node-{number:04d}"
        devices = [
            {
                "name": f"gpu-{index}",
                "attributes": {
                    "uuid": {"string": f"GPU-{number:08d}-{index:04d}"},
                    "index": {"int": index},
                    "model": {"string": "LATEST-GPU-MODEL"},
                    "driverVersion": {"version": "1.0.0"},
                },
                "capacity": {"memory": {"value": "80Gi"}},
            }
            for index in range(8)
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
        metadata = {"name": f"{node}-{driver}", "uid": f"slice-{number}", "resourceVersion": f"{number}"}
        yield {"apiVersion": version, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        for index in range(number % 9):
            request = {
                "name": "gpu",
                "exactly": {"deviceClassName": driver, "allocationMode": "ExactCount", "count": 1},
            }
            device = {"request": "gpu", "driver": driver, "pool": node, "device": f"gpu-{index}"}
            pod = {"resource": "pods", "name": f"pod-{number}-{index}", "uid": f"pod-{number}-{index}"}
            yield {
                "apiVersion": version,
                "kind": "ResourceClaim",
                "metadata": {"name": f"claim-{number}-{index}", "namespace": f"team-{number % 50}"},
                "spec": {"devices": {"requests": [request]}},
                "status": {"allocation": {"devices": {"results": [device]}}, "reservedFor": [pod]},
            }


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
