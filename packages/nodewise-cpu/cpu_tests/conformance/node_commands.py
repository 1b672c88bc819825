"""Commands on a node, run as a user runs them, with synthetic machines, states, processes and clusters."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests import forked_commands

from cpu_tests.conformance import case_table_rows
from cpu_tests.conformance.minimal_api_server import MinimalApiServer, serving
from nodewise_cpu import directory_store, pool_allocations
from nodewise_cpu.pool_allocations import Allocations

NODEWISE = Path(sys.executable).parent / "nodewise"
BOOT = "one"
CONFIG_MAP = "/api/v1/namespaces/default/configmaps/cmk-config-n1"


def run(
    *arguments: object, before: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command. `before` is a program that starts nodewise in a real process."""
    command = [NODEWISE, "cpu", *map(str, arguments)]
    variables = {"PATH": "/usr/bin:/bin", **(environment or {})}
    if before:
        return subprocess.run(
            [*before, *command], env=variables, capture_output=True, text=True, timeout=120, check=False
        )
    return forked_commands.run(command, env=variables)


def json_output(*arguments: object) -> Any:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write(files: Mapping[str, str | None], at: Path) -> Path:
    """Write files below a folder; None is a folder."""
    for path, text in files.items():
        whole = at / path
        (whole if text is None else whole.parent).mkdir(parents=True, exist_ok=True)
        if text is not None:
            whole.write_text(text)
    return at


def allocations_of(pools: case_table_rows.Pools) -> Allocations:
    """The allocations of a node with these CPU lists and no tasks."""
    return pool_allocations.allocations_without_tasks(
        {name: {at: text.split() for at, text in pool.items()} for name, pool in pools.items()}
    )


def directory_of(allocations: Allocations, at: Path) -> Path:
    return write(directory_store.format_files(allocations), at)


def processes(alive: Mapping[int, str], at: Path) -> Path:
    """A `/proc` with these processes and their affinities."""
    files: dict[str, str | None] = {"sys/kernel/random/boot_id": f"{BOOT}\n"}
    for pid, cpus in alive.items():
        fields = ["S", "0", *["0"] * 17, "5", *["0"] * 30]
        files[f"{pid}/stat"] = f"{pid} (sleep) {' '.join(fields)}\n"
        files[f"{pid}/environ"] = ""
        files[f"{pid}/status"] = f"Name:\tsleep\nCpus_allowed_list:\t{cpus}\n"
    return write(files, at)


@contextmanager
def cluster(version: str, folder: Path) -> Iterator[tuple[MinimalApiServer, list[str]]]:
    """An API server with one node, and the options to connect to it."""
    with serving(version) as server:
        server.node("n1")
        yield server, ["--kubeconfig", str(server.kubeconfig(folder)), "--node-name", "n1"]
