"""All stories told at once: what may happen beside each other happens in one round.

A round is the next step of every story whose next step is an ordinary one, or, when there is none left, of every
story that waits for the same upheaval. Stories that wait, or are at their end, must stay as they are.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from tests.conformance.tas.faulty_proxy import NODES
from tests.conformance.tas.stories import Labels, TasStory, Upheaval
from tests.conformance.tas.story_environment import POLICIES, TasEnvironment
from tests.conformance.tas.story_runner import DEADLINE_S, TasStoryRun

BLIND_S = 1.5
"""How long a process that cannot list nodes is looked at: three refresh periods."""


def tell(stories: Sequence[TasStory], stage: TasEnvironment) -> list[TasStoryRun]:
    """Every story from beginning to end, with what went wrong in it."""
    seen: Counter[str] = Counter()
    tellings = []
    for story in stories:
        seen[story.number] += 1
        tag = f"{story.number.lower() or 'new'}-{seen[story.number]}"
        tellings.append(TasStoryRun(story, tag, stage))
    for telling in tellings:
        telling.begin()
    stage.start()
    stage.schedule()
    stage.settle()
    while waiting := [telling for telling in tellings if telling.next]:
        _round(_together(waiting), tellings, stage)
    stage.settle()
    stage.stop()
    for telling in tellings:
        telling.end()
    return tellings


def _together(waiting: Sequence[TasStoryRun]) -> list[TasStoryRun]:
    """Those that take their next step now."""
    ordinary = [telling for telling in waiting if telling.next and not telling.next.process]
    if ordinary:
        return ordinary
    upheavals = {_upheaval(telling) for telling in waiting}
    first = next(upheaval for upheaval in _UPHEAVALS if upheaval in upheavals)
    return [telling for telling in waiting if _upheaval(telling) == first]


def _upheaval(telling: TasStoryRun) -> Upheaval:
    return telling.next.process if telling.next else ""


def _round(together: Sequence[TasStoryRun], everybody: Sequence[TasStoryRun], stage: TasEnvironment) -> None:
    with _UPHEAVALS[_upheaval(together[0])](stage, everybody):
        for telling in together:
            telling.act()
        if _upheaval(together[0]) == "blind":
            _until_so(together, stage)
    _until_so(together, stage)
    stage.settle()
    labels = stage.labels()
    for telling in together:
        if telling.next and (why := telling.lacks(labels)):
            telling.fail(f"step {telling.number}, after it was so: {why}")
    polled = _polled(stage, together) if any(t.next and t.next.polled for t in together) else {}
    for telling in together:
        if telling.next:
            telling.finish(polled)


def _until_so(together: Sequence[TasStoryRun], stage: TasEnvironment) -> None:
    """Wait until every story is as its step says; one that is not in time has failed."""
    waiting = {telling: "" for telling in together if telling.next}
    began = time.monotonic()
    while waiting:
        labels = stage.labels()
        waiting = {telling: why for telling in waiting if (why := telling.lacks(labels))}
        for telling in list(waiting):
            if time.monotonic() > began + DEADLINE_S:
                telling.fail(f"step {telling.number}, after {DEADLINE_S:g} s: {waiting.pop(telling)}")
        time.sleep(0.05)


def _polled(stage: TasEnvironment, together: Sequence[TasStoryRun]) -> Counter[str]:
    """How often each metric is asked for from now on, in a few periods.

    One whose answer is late is not asked for anew in each of them; those that a story wants asked are waited for.
    """
    steps = [(telling.names, telling.next) for telling in together if telling.next]
    wanted = {
        names.metric(metric) for names, step in steps for metric, is_asked in step.polled.items() if is_asked
    }
    stage.pass_periods(2)
    before = len(stage.metrics.asked)
    stage.pass_periods(2)
    ends = time.monotonic() + DEADLINE_S
    while not wanted <= set(stage.metrics.asked[before:]) and time.monotonic() < ends:
        time.sleep(0.05)
    return Counter(stage.metrics.asked[before:])


@contextlib.contextmanager
def _calm(_: TasEnvironment, __: Sequence[TasStoryRun]) -> Iterator[None]:
    yield


@contextlib.contextmanager
def _restarted(stage: TasEnvironment, _: Sequence[TasStoryRun]) -> Iterator[None]:
    stage.stop()
    yield
    stage.start()


@contextlib.contextmanager
def _relisted(stage: TasEnvironment, _: Sequence[TasStoryRun]) -> Iterator[None]:
    """What happens meanwhile is missed by the watches; the policies deleted meanwhile too."""
    _lose(stage, NODES, POLICIES)
    yield
    stage.between.find(NODES, POLICIES, expired=True)
    _until_watched(stage, NODES, POLICIES)


@contextlib.contextmanager
def _blind(stage: TasEnvironment, _: Sequence[TasStoryRun]) -> Iterator[None]:
    _lose(stage, NODES)
    yield
    stage.between.find(NODES)
    _until_watched(stage, NODES)


@contextlib.contextmanager
def _started_blind(stage: TasEnvironment, everybody: Sequence[TasStoryRun]) -> Iterator[None]:
    stage.stop()
    yield
    stage.between.lose(NODES)
    before = stage.labels()
    stage.start(until_ready=False)
    stage.wait("nodes are asked for in vain", lambda: stage.run.events("kube_lost") or None)
    time.sleep(BLIND_S)
    _unchanged(before, stage.labels(), everybody)
    stage.between.find(NODES)
    stage.wait_ready()


def _unchanged(before: Labels, after: Labels, everybody: Sequence[TasStoryRun]) -> None:
    for node, labels in before.items():
        if after[node] != labels:
            owner = next(story for story in everybody if node.startswith(f"{story.names.tag}-"))
            owner.fail(f"{node} changed while nobody could list nodes: {labels} {after[node]}")


def _lose(stage: TasEnvironment, *collections: str) -> None:
    """Wait until the process has noticed."""
    stage.between.in_vain.clear()
    stage.between.lose(*collections)
    for path in collections:
        stage.wait(f"{path} is asked for in vain", lambda path=path: stage.between.in_vain[path] or None)


def _until_watched(stage: TasEnvironment, *collections: str) -> None:
    for path in collections:
        stage.wait(f"{path} is watched", lambda path=path: stage.between.watched[path] or None)


# in this order, because a process waits the longer the more often it lost its watches
_UPHEAVALS: dict[
    Upheaval, Callable[[TasEnvironment, Sequence[TasStoryRun]], contextlib.AbstractContextManager[None]]
] = {
    "": _calm,
    "relist": _relisted,
    "blind": _blind,
    "restart": _restarted,
    "blind start": _started_blind,
}
