"""The start-up overhead of `isolate`, and the jitter of a loop on an exclusive core beside a loaded one."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.cluster import debian_packages
from tests.cluster.child_processes import Process
from tests.cluster.go_toolchain import MissingError
from tests.cluster.namespace_sandboxes import wait
from tests.node import containerd_runtime, host_program_installation

from bench import alternating_rounds
from bench.alternating_rounds import Rounds
from bench.benchmark_servers import BenchContext
from bench.load_clients import LoadResult
from bench.progress_lines import report_progress_line
from bench.results import ISOLATED, PLAIN, Measurement

BIN: Final = Path(sys.executable).parent
COMMAND: Final = ("/bin/busybox", "echo", "here")
ISOLATE: Final = ("/opt/bin/cmk", "isolate", "--pool=exclusive")
SPIN: Final = Path(__file__).parent / "timed_busy_loop.py"
LOAD: Final = "while True: pass"
PINNED, UNPINNED, WITHOUT = "exclusive", "unpinned", "without_pools"
"""The loop in the pool exclusive or unpinned, with the load in the pool infra; and both unpinned."""
IterationSummary = dict[str, float]


def measure(context: BenchContext) -> Measurement:
    """Measure both with one exclusive core and infra on the others. MissingError if this machine does not allow it."""
    if why := containerd_runtime.lacking():
        raise MissingError("no file system of its own for the command", why)
    if len(os.sched_getaffinity(0)) < 2:
        raise MissingError("one core only", "run this on a machine with two")
    times = context.scale.rounds
    root = _image(context.folder / "image")
    with _agent(root, context.folder):
        count = max(context.scale.requests // 10, 5)
        asks = {
            ISOLATED: partial(_start_times, root, count, (*ISOLATE, *COMMAND)),
            PLAIN: partial(_start_times, root, count, COMMAND),
        }
        starts = alternating_rounds.alternate(times, asks, report_progress_line)
        ways: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
            PINNED: (_isolate_command(root, "exclusive"), _isolate_command(root, "infra")),
            UNPINNED: ((), _isolate_command(root, "infra")),
            WITHOUT: ((), ()),
        }
        jitter: dict[str, list[IterationSummary]] = {name: [] for name in ways}
        for _ in range(times):
            for name, (isolate, load) in ways.items():
                with _load(load):
                    jitter[name].append(iteration_summary(_spin(isolate, context.scale.seconds)))
                report_progress_line(f"{name}: {jitter[name][-1]}")
    return Measurement(overhead(starts) | tails(jitter), starts, "", {"jitter": jitter})


def overhead(starts: Rounds) -> dict[str, float]:
    """Additional time until the first output of the command, median of the rounds."""
    pairs = zip(starts[ISOLATED], starts[PLAIN], strict=True)
    return {
        "isolate_overhead_ms": alternating_rounds.of_rounds(
            (ours["p50_ms"] - plain["p50_ms"] for ours, plain in pairs), 1
        )
    }


def iteration_summary(micros: Sequence[float]) -> IterationSummary:
    """One round: the median, 99.9th percentile and maximum of the iterations, in microseconds."""
    values = {
        "p50_us": alternating_rounds.percentile(micros, 0.5),
        "p999_us": alternating_rounds.percentile(micros, 0.999),
        "max_us": max(micros),
    }
    return {name: round(value, 1) for name, value in values.items()} | {"turns": len(micros)}


def tails(jitter: Mapping[str, Sequence[IterationSummary]]) -> dict[str, float]:
    """The 99.9th percentile minus the median of the iterations, median of the rounds."""
    return {
        f"jitter_{name}_p999_us": alternating_rounds.of_rounds(
            (run["p999_us"] - run["p50_us"] for run in runs), 1
        )
        for name, runs in jitter.items()
    }


def _image(root: Path) -> Path:
    """Create a root file system with busybox and the installed program; it has no libraries and no Python."""
    for name in ("bin", "proc", "run/nodewise", "state"):
        (root / name).mkdir(parents=True)
    shutil.copy(debian_packages.containers().busybox, root / "bin/busybox")
    host_program_installation.install(root / "opt/bin")
    return root


@contextlib.contextmanager
def _agent(root: Path, folder: Path) -> Iterator[None]:
    """Run the agent of a node with one exclusive core, at the default socket of the image."""
    state, socket = root / "state", root / "run/nodewise/cpu.sock"
    words = ["init", f"--conf-dir={state}", "--num-exclusive-cores=1", "--num-shared-cores=0"]
    subprocess.run([BIN / "cmk", *words], capture_output=True, check=True)
    command = [
        BIN / "nodewise",
        "cpu",
        "agent",
        f"--conf-dir={state}",
        f"--socket={socket}",
        "--proc-fs=/proc",
    ]
    command += ["--allow-unrequested", "--no-publish", "--no-taint", "--health-port=0"]
    process = Process([*map(str, command)], folder / "agent.log")
    try:
        wait("the agent listens", lambda: socket.exists() or None)
        yield
    finally:
        process.stop()


def _start_times(root: Path, count: int, words: Sequence[str]) -> LoadResult:
    own = [
        "unshare",
        "--mount",
        "--propagation=private",
        sys.executable,
        "-m",
        "bench.command_startup_times",
        str(root),
        str(count),
    ]
    return LoadResult("", "", 0, 0, _micros([*own, "--", *words]))


def _isolate_command(root: Path, pool: str) -> tuple[str, ...]:
    """The command `isolate` of this installation, with the same agent, for programs outside the image."""
    return (str(BIN / "cmk"), "isolate", f"--pool={pool}", f"--agent-socket={root / 'run/nodewise/cpu.sock'}")


@contextlib.contextmanager
def _load(isolate: Sequence[str]) -> Iterator[None]:
    """Run two busy loops, in the pool infra or unpinned."""
    command = [*isolate, sys.executable, *(["--"] if isolate else []), "-c", LOAD]
    busy = [subprocess.Popen(command) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.terminate()
            process.wait()


def _spin(isolate: Sequence[str], seconds: float) -> list[float]:
    return _micros(
        [*isolate, sys.executable, *(["--"] if isolate else []), "-I", "-S", str(SPIN), str(seconds)]
    )


def _micros(command: Sequence[str]) -> list[float]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    durations: list[float] = json.loads(done.stdout)
    return durations
