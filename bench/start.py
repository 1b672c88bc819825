"""Start, memory and the event loop's steps: a real API server with 5,000 nodes of 10 kB and 50,000 pods of 5 kB."""

import contextlib
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster import controlplane, custom_metrics, objects, programs, sandboxes, served
from tests.cluster.access import User
from tests.cluster.sandboxes import Sandbox, wait

from bench import fleet, names, population, rivals, stage, steps
from bench.clients import Client, Question
from bench.fleet import Object
from bench.names import NODES, PATHS
from bench.progress import told
from bench.results import Measured

POD_COUNT: Final = 50_000
MOVING_METRIC: Final = fleet.OTHERS[-1]
MOVING_TARGET: Final = 897_300
"""Of values up to 900,000: some fifteen of 5,000 nodes are above it, other ones in each period."""
SETTLE_S: Final = 6.0
"""After it is ready, or leads: three periods."""
LEADS_S: Final = 60.0
"""The extender before may have been ended before it gave the lead back."""


class Start(NamedTuple):
    """One start of the extender."""

    ready_s: float
    rss_mib: float
    """The larger of when it was ready and some periods later."""
    peak_mib: float


class Plane(NamedTuple):
    """The control plane with everything in it, and who the extender is to it."""

    sandbox: Sandbox
    folder: Path
    user: User


def measure(ground: stage.Ground, times: int, seconds: float) -> Measured:
    """So many starts, then as many rounds of steps, each with so many seconds of filter and of prioritize by names."""
    told("finding the control plane (where it has to be built: five minutes)")
    with _filled(programs.folder(), ground.folder) as plane:
        starts = []
        for number in range(times):
            starts.append(_start(plane, number))
            told(f"start {number + 1} of {times}: {starts[-1]}")
        listing, rounds = _steps(plane, ground.client, times, seconds)
    figures = {
        "ready_s": round(statistics.median(one.ready_s for one in starts), 2),
        "rss_50000_pods_mib": round(statistics.median(one.rss_mib for one in starts), 1),
        "rss_50000_pods_peak_mib": round(statistics.median(one.peak_mib for one in starts), 1),
    }
    more = {
        "starts": [one._asdict() for one in starts],
        "steps": steps.longest([step for found in rounds for step in found]),
        "step_rounds": [steps.figures([found]) for found in rounds],
        "steps_of_start": steps.longest(listing),
    }
    versions = {"kubernetes": programs.VERSION}
    return Measured(figures | steps.figures(rounds), {}, "", more, versions)


@contextlib.contextmanager
def _filled(found: Path, folder: Path) -> Iterator[Plane]:
    """A control plane with nodes, pods, policies, and ten metrics that change."""
    named = fleet.names(NODES)
    with controlplane.running(found, folder) as plane, sandboxes.created(plane) as sandbox:
        for what, entries in (
            (f"{NODES} nodes", population.nodes(named)),
            (f"{POD_COUNT} pods", population.pods(named, POD_COUNT)),
        ):
            told(f"writing {what} into etcd")
            population.fill(plane.etcd, entries, lambda count: told(f"{count} written"))
        served.define(plane.api)
        sandbox.create(objects.namespace(fleet.NAMESPACE, trusted=True))
        for policy in policies():
            sandbox.create(policy)
        with (
            custom_metrics.behind(sandbox, folder, ("v1beta2",)) as metrics,
            rivals.feeding(metrics, named, fleet.METRICS),
        ):
            yield Plane(sandbox, folder, served.user(plane))


def policies() -> list[Object]:
    """The fleet's, and one whose labels are on other nodes after each refresh."""
    rule = {
        "metricname": MOVING_METRIC,
        "operator": "GreaterThan",
        "target": MOVING_TARGET,
        "labels": ["tier=hot"],
    }
    given = [*fleet.policies(), fleet.policy("moving", {"labeling": {"rules": [rule]}})]
    own = ("uid", "resourceVersion", "generation")
    return [
        one | {"metadata": {key: value for key, value in one["metadata"].items() if key not in own}}
        for one in given
    ]


@contextlib.contextmanager
def _extender(
    plane: Plane, folder: Path, program: tuple[str | Path, ...]
) -> Iterator[tuple[stage.Extender, Client]]:
    """An extender with the rights that ship, and who may ask it."""
    folder.mkdir()
    papers = served.Papers(folder)
    given = [*served.arguments(plane.user, papers), f"--sync-period={rivals.PERIOD_S}s", "--log-format=json"]
    with stage.serving(program, given, folder / "extender.log") as extender:
        yield extender, Client((), papers.authority.ca_file, papers.client)


def _start(plane: Plane, number: int) -> Start:
    with _extender(plane, plane.folder / f"start-{number}", stage.PROGRAM) as (extender, _):
        rss_mib = extender.rss_mib()
        time.sleep(SETTLE_S)
        return Start(
            round(extender.ready_s, 2),
            round(max(rss_mib, extender.rss_mib()), 1),
            round(extender.peak_mib(), 1),
        )


def _steps(
    plane: Plane, asking: Client, times: int, seconds: float
) -> tuple[list[steps.Step], list[list[steps.Step]]]:
    """Those until it leads, in which all is listed, and of each round those while it is asked.

    RuntimeError if no label was written meanwhile: then the work was not that which is meant.
    """
    folder = plane.folder / "steps"
    written = plane.folder / "steps.jsonl"
    bodies = names.write(plane.folder / "steps-requests", fleet.requests(fleet.names(NODES), names.PODS))
    with _extender(plane, folder, stage.stepping(written)) as (extender, papers):
        told("waiting until it leads: the first labels are written")
        wait("labels are written", lambda: extender.count("label_writes_total") or None, LEADS_S)
        time.sleep(SETTLE_S)
        told("measuring the steps of the event loop")
        labelled, ends_s = extender.count("label_writes_total"), [time.monotonic()]
        client = asking._replace(ca=papers.ca, pair=papers.pair)
        for _ in range(times):
            for path in PATHS.values():
                client.ask(Question(extender.url + path, bodies, seconds=seconds))
            ends_s.append(time.monotonic())
        changed = extender.count("label_writes_total") - labelled
        told(f"{changed:g} labels were written meanwhile")
        if not changed:
            raise RuntimeError("no label was written while the steps were measured")
    return steps.read(written, 0.0, ends_s[0]), [steps.read(written, *span) for span in pairwise(ends_s)]
