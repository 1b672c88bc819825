"""Runs all stories at the same time: steps that do not affect each other share a round.

A round is the next step of every story whose next step has no fault of the process. If there is none, it is the next
step of every story with the same fault. The state of the other stories must not change.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tests.conformance.tas.faulty_proxy import NODES
from tests.conformance.tas.story_definitions import Labels, TasStory, Upheaval
from tests.conformance.tas.story_environment import POLICIES, TasEnvironment
from tests.conformance.tas.story_runner import DEADLINE_S, TasStoryRun

BLIND_S = 1.5
"""How long a process that cannot list nodes is observed: six refresh periods."""


def run_stories(stories: Sequence[TasStory], environment: TasEnvironment) -> list[TasStoryRun]:
    """Run every story from beginning to end. Each run contains its failures."""
    seen: Counter[str] = Counter()
    story_runs = []
    for story in stories:
        seen[story.number] += 1
        tag = f"{story.number.lower() or 'new'}-{seen[story.number]}"
        story_runs.append(TasStoryRun(story, tag, environment))
    for story_run in story_runs:
        story_run.begin()
    environment.start()
    environment.schedule()
    environment.settle()
    while waiting := [story_run for story_run in story_runs if story_run.next]:
        _round(_together(waiting), story_runs, environment)
    environment.settle()
    environment.stop()
    for story_run in story_runs:
        story_run.end()
    return story_runs


def _together(waiting: Sequence[TasStoryRun]) -> list[TasStoryRun]:
    """The stories whose next step belongs to this round."""
    ordinary = [story_run for story_run in waiting if story_run.next and not story_run.next.process]
    if ordinary:
        return ordinary
    upheavals = {_upheaval(story_run) for story_run in waiting}
    first = next(upheaval for upheaval in _UPHEAVALS if upheaval in upheavals)
    return [story_run for story_run in waiting if _upheaval(story_run) == first]


def _upheaval(story_run: TasStoryRun) -> Upheaval:
    return story_run.next.process if story_run.next else ""


def _round(
    together: Sequence[TasStoryRun], everybody: Sequence[TasStoryRun], environment: TasEnvironment
) -> None:
    with _UPHEAVALS[_upheaval(together[0])](environment, everybody):
        for story_run in together:
            story_run.act()
        if _upheaval(together[0]) == "blind":
            _until_so(together, environment)
    _until_so(together, environment)
    environment.settle()
    labels = environment.labels()
    for story_run in together:
        if story_run.next and (why := story_run.lacks(labels)):
            story_run.fail(f"step {story_run.number}, after it was so: {why}")
    polled = _polled(environment, together) if any(t.next and t.next.polled for t in together) else {}
    for story_run in together:
        if story_run.next:
            story_run.finish(polled)


def _until_so(together: Sequence[TasStoryRun], environment: TasEnvironment) -> None:
    """Wait until the state of every story is as its step expects. A story that exceeds the deadline has failed."""
    waiting = {story_run: "" for story_run in together if story_run.next}
    began = time.monotonic()
    while waiting:
        labels = environment.labels()
        waiting = {story_run: why for story_run in waiting if (why := story_run.lacks(labels))}
        for story_run in list(waiting):
            if time.monotonic() > began + DEADLINE_S:
                story_run.fail(f"step {story_run.number}, after {DEADLINE_S:g} s: {waiting.pop(story_run)}")
        time.sleep(0.05)


def _polled(environment: TasEnvironment, together: Sequence[TasStoryRun]) -> Counter[str]:
    """How often each metric is requested from now on, in a few periods.

    A metric whose response is late is not requested again in each period, so this waits for the metrics that a story
    expects to be requested.
    """
    steps = [(story_run.names, story_run.next) for story_run in together if story_run.next]
    wanted = {
        names.metric(metric) for names, step in steps for metric, is_asked in step.polled.items() if is_asked
    }
    environment.pass_periods(2)
    before = len(environment.metrics.asked)
    environment.pass_periods(2)
    ends = time.monotonic() + DEADLINE_S
    while not wanted <= set(environment.metrics.asked[before:]) and time.monotonic() < ends:
        time.sleep(0.05)
    return Counter(environment.metrics.asked[before:])


@contextlib.contextmanager
def _calm(_: TasEnvironment, __: Sequence[TasStoryRun]) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _restarted(environment: TasEnvironment, _: Sequence[TasStoryRun]) -> Iterator[None]:
    environment.stop()
    yield
    environment.start()


@contextlib.contextmanager
def _relisted(environment: TasEnvironment, _: Sequence[TasStoryRun]) -> Iterator[None]:
    """The watches of nodes and policies miss all changes in the block, including deleted policies."""
    _lose(environment, NODES, POLICIES)
    yield
    environment.proxy.find(NODES, POLICIES, expired=True)
    _until_watched(environment, NODES, POLICIES)


@contextlib.contextmanager
def _blind(environment: TasEnvironment, _: Sequence[TasStoryRun]) -> Iterator[None]:
    _lose(environment, NODES)
    yield
    environment.proxy.find(NODES)
    _until_watched(environment, NODES)


@contextlib.contextmanager
def _started_blind(environment: TasEnvironment, everybody: Sequence[TasStoryRun]) -> Iterator[None]:
    environment.stop()
    yield
    environment.proxy.lose(NODES)
    before = environment.labels()
    environment.start(until_ready=False)
    environment.wait("nodes are asked for in vain", lambda: environment.run.events("kube_lost") or None)
    time.sleep(BLIND_S)
    _unchanged(before, environment.labels(), everybody)
    environment.proxy.find(NODES)
    environment.wait_ready()


def _unchanged(before: Labels, after: Labels, everybody: Sequence[TasStoryRun]) -> None:
    for node, labels in before.items():
        if after[node] != labels:
            owner = next(story for story in everybody if node.startswith(f"{story.names.tag}-"))
            owner.fail(f"{node} changed while nobody could list nodes: {labels} {after[node]}")


def _lose(environment: TasEnvironment, *collections: str) -> None:
    """Fail requests for these collections, and wait until the process has sent one to each."""
    environment.proxy.in_vain.clear()
    environment.proxy.lose(*collections)
    for path in collections:
        environment.wait(
            f"{path} is asked for in vain", lambda path=path: environment.proxy.in_vain[path] or None
        )


def _until_watched(environment: TasEnvironment, *collections: str) -> None:
    for path in collections:
        environment.wait(f"{path} is watched", lambda path=path: environment.proxy.watched[path] or None)


# the order matters: a process that lost its watches more often waits longer before it lists again
_UPHEAVALS: dict[
    Upheaval, Callable[[TasEnvironment, Sequence[TasStoryRun]], contextlib.AbstractContextManager[None]]
] = {
    "": _calm,
    "relist": _relisted,
    "blind": _blind,
    "restart": _restarted,
    "blind start": _started_blind,
}
