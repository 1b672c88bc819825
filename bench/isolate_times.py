"""What `isolate` costs until the command runs, and what a core of its own is worth to a loop beside a loaded one."""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.cluster import packages
from tests.cluster.processes import Process
from tests.cluster.test_namespaces import wait
from tests.cluster.toolchain import MissingError
from tests.node import installed_program, runtime

from bench import alternating_rounds
from bench.alternating_rounds import Rounds
from bench.bench_processes import Ground
from bench.load_clients import Taken
from bench.progress_lines import told
from bench.results import ISOLATED, PLAIN, Measured

BIN: Final = Path(sys.executable).parent
COMMAND: Final = ("/bin/busybox", "echo", "here")
ISOLATE: Final = ("/opt/bin/cmk", "isolate", "--pool=exclusive")
SPIN: Final = Path(__file__).parent / "cpu_spin.py"
LOAD: Final = "while True: pass"
PINNED, UNPINNED, WITHOUT = "exclusive", "unpinned", "without_pools"
"""The loop in the pool exclusive or anywhere, the load in the pool infra; and both anywhere."""
Turns = dict[str, float]


def measure(ground: Ground, times: int, requests: int, seconds: float) -> Measured:
    """Both, on this machine: one exclusive core, and the others infra. MissingError where nothing can be confined."""
    if why := runtime.lacking():
        raise MissingError("no file system of its own for the command", why)
    if len(os.sched_getaffinity(0)) < 2:
        raise MissingError("one core only", "run this on a machine with two")
    root = _image(ground.folder / "image")
    with _agent(root, ground.folder):
        count = max(requests // 10, 5)
        asks = {
            ISOLATED: partial(_started, root, count, (*ISOLATE, *COMMAND)),
            PLAIN: partial(_started, root, count, COMMAND),
        }
        starts = alternating_rounds.alternate(times, asks, told)
        ways: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
            PINNED: (_outside(root, "exclusive"), _outside(root, "infra")),
            UNPINNED: ((), _outside(root, "infra")),
            WITHOUT: ((), ()),
        }
        jitter: dict[str, list[Turns]] = {name: [] for name in ways}
        for _ in range(times):
            for name, (isolate, load) in ways.items():
                with _load(load):
                    jitter[name].append(turns(_spun(isolate, seconds)))
                told(f"{name}: {jitter[name][-1]}")
    return Measured(overhead(starts) | tails(jitter), starts, "", {"jitter": jitter})


def overhead(starts: Rounds) -> dict[str, float]:
    """By how much the first word of the command is later, on the median of the rounds."""
    pairs = zip(starts[ISOLATED], starts[PLAIN], strict=True)
    return {
        "isolate_overhead_ms": round(
            statistics.median(ours["p50_ms"] - plain["p50_ms"] for ours, plain in pairs), 1
        )
    }


def turns(micros: Sequence[float]) -> Turns:
    """One round: the turn in the middle, the slowest in a thousand and the slowest, microseconds."""
    values = {
        "p50_us": alternating_rounds.percentile(micros, 0.5),
        "p999_us": alternating_rounds.percentile(micros, 0.999),
        "max_us": max(micros),
    }
    return {name: round(value, 1) for name, value in values.items()} | {"turns": len(micros)}


def tails(jitter: Mapping[str, Sequence[Turns]]) -> dict[str, float]:
    """By how much the slowest turn in a thousand exceeds the one in the middle: the median round."""
    return {
        f"jitter_{name}_p999_us": round(statistics.median(run["p999_us"] - run["p50_us"] for run in runs), 1)
        for name, runs in jitter.items()
    }


def _image(root: Path) -> Path:
    """Busybox, and the mount with the program; no libraries, no Python."""
    for name in ("bin", "proc", "run/nodewise", "state"):
        (root / name).mkdir(parents=True)
    shutil.copy(packages.containers().busybox, root / "bin/busybox")
    installed_program.install(root / "opt/bin")
    return root


@contextlib.contextmanager
def _agent(root: Path, folder: Path) -> Iterator[None]:
    """A node of one exclusive core, and its agent at the usual socket of the image."""
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


def _started(root: Path, count: int, words: Sequence[str]) -> Taken:
    own = [
        "unshare",
        "--mount",
        "--propagation=private",
        sys.executable,
        "-m",
        "bench.exec_times",
        str(root),
        str(count),
    ]
    return Taken("", "", 0, 0, _micros([*own, "--", *words]))


def _outside(root: Path, pool: str) -> tuple[str, ...]:
    """`isolate` for what is not in the image: the source program, at the same agent."""
    return (str(BIN / "cmk"), "isolate", f"--pool={pool}", f"--agent-socket={root / 'run/nodewise/cpu.sock'}")


@contextlib.contextmanager
def _load(isolate: Sequence[str]) -> Iterator[None]:
    """Two busy loops: in the pool infra on the cores that are not exclusive, or anywhere."""
    command = [*isolate, sys.executable, *(["--"] if isolate else []), "-c", LOAD]
    busy = [subprocess.Popen(command) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.terminate()
            process.wait()


def _spun(isolate: Sequence[str], seconds: float) -> list[float]:
    return _micros(
        [*isolate, sys.executable, *(["--"] if isolate else []), "-I", "-S", str(SPIN), str(seconds)]
    )


def _micros(command: Sequence[str]) -> list[float]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    durations: list[float] = json.loads(done.stdout)
    return durations
