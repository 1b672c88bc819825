"""Workloads of the load simulation: pods with their complete future. They depend on the seed, and not on placement.

`planetlab` draws pods from recorded utilization of virtual machines, `herd` is one burst of identical pods.
"""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nodewise.base.errors import BadInput, Problem, shown, truncate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CORES: Final = 16
"""Allocatable cores of a node. Memory is never short: pods request 4 GiB per core, as nodes have."""
REQUEST_RATIO: Final = 0.2
"""Requests as a share of limits."""
REQUESTED_SHARE: Final = 0.97
"""Batches arrive while less than this share of all cores is requested."""
LIMITS: Final = (1, 2, 4)
BATCH_SIZE: Final = 12.0
"""Mean number of replicas of a batch."""
LIFE_STEPS: Final = 48.0
"""Mean lifetime."""
NOISE: Final = 0.1
HOUR_STEPS: Final = 12
DAY_STEPS: Final = 288
WARM_UP_STEPS: Final = 36

_MAX_FILE_BYTES: Final = 64 * 2**20
_FULL_PCT: Final = 100
_MISSING: Final = ("", "-", "nan", "na", "null")


class SimulatedPods(NamedTuple):
    """The pods of a run in their order of arrival, and the time that is simulated. Arrays are by pod."""

    nodes: int
    steps: int
    step_s: float
    first_counted_step: int
    applications: int
    arrival: Ints
    """The step in which the pod is submitted."""
    end: Ints
    """The first step in which it no longer exists."""
    application: Ints
    request_milli: Ints
    limit_milli: Ints
    node: Ints
    """The node of a pod that runs from the beginning; -1 for a pod that the scheduler places."""
    usage: NDArray[np.float32]
    """Cores by pod and step, 0 outside of its lifetime."""


def trace_files(directory: str) -> dict[str, Path]:
    """The files DAY.csv and DAY.csv.gz (which wins) of a directory by day. BadInput if there is none."""
    try:
        paths = sorted(Path(directory).iterdir())
    except OSError as error:
        raise BadInput("--traces", [Problem(directory, error.strerror or str(error), "a folder")]) from error
    files = {
        path.name.removesuffix(suffix): path
        for path in paths
        for suffix in (".csv", ".csv.gz")
        if path.name.endswith(suffix) and not path.name.startswith(".")
    }
    if not files:
        raise BadInput("--traces", [Problem(directory, "no file DAY.csv or DAY.csv.gz", "one file per day")])
    return files


def read_traces(directory: str, day: str) -> list[Floats]:
    """The utilization of each machine of a day as shares, one value per step. BadInput for an invalid file.

    A missing value is interpolated from its neighbours, and a line without values is left out. Lines may have
    different lengths.
    """
    files = trace_files(directory)
    if day not in files:
        wanted = f"one of {truncate(', '.join(files), 200)}"
        raise BadInput("--day", [Problem(shown(day), "no such file in --traces", wanted)])
    path = files[day]
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput("--traces", [Problem(str(path), reason, "a CSV file")]) from error
    if len(content) > _MAX_FILE_BYTES:
        raise BadInput.of("--traces", str(path), "more than 64 MiB", "per cent of CPU, a line per machine")
    traces = []
    for number, line in enumerate(content.decode("utf-8-sig", errors="replace").splitlines(), 1):
        trace = _parse_trace(line, f"{path}, line {number}")
        if len(trace):
            traces.append(trace)
    if not traces:
        raise BadInput("--traces", [Problem(str(path), "no values", "per cent of CPU, a line per machine")])
    return traces


def _parse_trace(line: str, place: str) -> Floats:
    texts = [text.strip() for text in line.strip().removesuffix(",").split(",")]
    values = np.full(len(texts), np.nan)
    for at, text in enumerate(texts):
        if text.lower() in _MISSING:
            continue
        try:
            values[at] = float(text)
        except ValueError:
            values[at] = np.inf
        if not 0 <= values[at] <= _FULL_PCT:
            raise BadInput("--traces", [Problem(place, shown(text), "a number from 0 to 100")])
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return np.zeros(0)
    steps = np.arange(len(values))
    shares: Floats = np.interp(steps, known, values[known]) / _FULL_PCT
    return shares


def planetlab(
    traces: Sequence[Floats],
    seed: int,
    *,
    nodes: int = 60,
    request_ratio: float = REQUEST_RATIO,
    distinct_images: bool = False,
) -> SimulatedPods:
    """Batches of replicas with recorded usage.

    The replicas of a batch use a line of the day, each with an offset of up to an hour and noise. The line is their
    image: batches of one line are rollouts of one application. With `distinct_images` each batch is an application of
    its own, about which nothing is known before.
    """
    random = np.random.default_rng(seed)
    capacity = nodes * CORES * 1000
    arrivals, ends, applications, lines, offsets, limits, requests = ([] for _ in range(7))
    leaving = np.zeros(DAY_STEPS + 1, np.int64)
    requested, batches = 0, 0
    for step in range(DAY_STEPS):
        requested -= leaving[step]
        while requested < REQUESTED_SHARE * capacity:
            size = int(random.poisson(BATCH_SIZE))
            limit = 1000 * int(random.choice(LIMITS))
            line = int(random.integers(len(traces)))
            request = max(round(limit * request_ratio), 1)
            lives = np.maximum(np.ceil(random.exponential(LIFE_STEPS, size)), 1).astype(np.int64)
            offsets += random.integers(0, HOUR_STEPS + 1, size).tolist()
            arrivals += [step] * size
            ends += (step + lives).tolist()
            lines += [line] * size
            applications += [batches if distinct_images else line] * size
            limits += [limit] * size
            requests += [request] * size
            np.add.at(leaving, np.minimum(step + lives, DAY_STEPS), request)
            requested += size * request
            batches += 1
    usage = np.zeros((len(arrivals), DAY_STEPS), np.float32)
    for pod, (arrival, end) in enumerate(zip(arrivals, ends, strict=True)):
        steps = np.arange(arrival, min(end, DAY_STEPS))
        trace = traces[lines[pod]]
        noise = np.maximum(random.normal(1.0, NOISE, len(steps)), 0.0)
        usage[pod, steps] = trace[(steps + offsets[pod]) % len(trace)] * noise * limits[pod] / 1000
    return SimulatedPods(
        nodes,
        DAY_STEPS,
        300.0,
        WARM_UP_STEPS,
        batches if distinct_images else len(traces),
        np.array(arrivals, np.int64),
        np.array(ends, np.int64),
        np.array(applications, np.int64),
        np.array(requests, np.int64),
        np.array(limits, np.int64),
        np.full(len(arrivals), -1, np.int64),
        usage,
    )


HERD_PODS: Final = 7000
HERD_NODES: Final = 250
HERD_STEPS: Final = 60
"""Minutes; the burst is in the minute `HERD_ARRIVAL`, and the minutes from then on count."""
HERD_ARRIVAL: Final = 15
_HERD_REQUEST_MILLI: Final = 300
_HERD_LIMIT_MILLI: Final = 1000
_HERD_USAGE: Final = 0.3
_HERD_REPLICAS: Final = 50  # replicas that run already, from which the usage of the others is known
_OTHER_PODS: Final = 10  # other pods on each node
_OTHER_REQUEST_MILLI: Final = 400
_LEAST_BASE_LOAD: Final = 0.05
_LARGEST_BASE_LOAD: Final = (0.3, 0.5)
"""Range of the largest load of nodes before the burst, drawn for each run. With more, the burst fits nowhere."""


def herd(seed: int, nodes: int = HERD_NODES, pods: int = HERD_PODS) -> SimulatedPods:
    """A Deployment that is scaled up to `pods` within one scrape, on nodes that are loaded differently.

    The load of a node before is drawn from 5 % to a limit, which is drawn for the seed from 30 to 50 %.
    """
    random = np.random.default_rng(seed)
    others = nodes * _OTHER_PODS
    replicas = min(_HERD_REPLICAS, nodes)
    running = others + replicas
    largest = random.uniform(*_LARGEST_BASE_LOAD)
    base = random.uniform(_LEAST_BASE_LOAD, largest, nodes) * CORES / _OTHER_PODS
    mean = np.concatenate([np.repeat(base, _OTHER_PODS), np.full(replicas + pods, _HERD_USAGE)])
    noise = np.maximum(random.normal(1.0, NOISE, (running + pods, HERD_STEPS)), 0.0)
    usage = (mean[:, None] * noise).astype(np.float32)
    usage[running:, :HERD_ARRIVAL] = 0.0
    node = np.full(running + pods, -1, np.int64)
    node[:others] = np.repeat(np.arange(nodes), _OTHER_PODS)
    node[others:running] = random.permutation(nodes)[:replicas]
    is_other = np.arange(running + pods) < others
    return SimulatedPods(
        nodes,
        HERD_STEPS,
        60.0,
        HERD_ARRIVAL,
        others + 1,
        np.where(node < 0, HERD_ARRIVAL, 0),
        np.full(running + pods, HERD_STEPS, np.int64),
        np.where(is_other, np.arange(running + pods), others),
        np.where(is_other, _OTHER_REQUEST_MILLI, _HERD_REQUEST_MILLI),
        np.where(is_other, 2 * _OTHER_REQUEST_MILLI, _HERD_LIMIT_MILLI),
        node,
        usage,
    )
