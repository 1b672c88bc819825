"""The pods that came in the last seven days, as they are counted in a ConfigMap of ours.

The leader counts each pod when it is first seen. Who leads after it knows of the pods that are there already, by the
newest creation time that was counted, whether they were.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise import clock
from nodewise.agents.gpu import demand as demands
from nodewise.agents.gpu import typical
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.pods import BookedPod
from nodewise.agents.gpu.profile import Profile
from nodewise.agents.gpu.typical import History, PodClass

NAME: Final = "nodewise-gpu-typical-pods"
UNTIL: Final = "counted-until"
"""Key of the ConfigMap: the creation time of the newest pod that was counted."""


class CensusMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name


class Census(msgspec.Struct, frozen=True):
    """The ConfigMap."""

    metadata: CensusMetadata
    data: dict[str, str] | None = None


class Counted(NamedTuple):
    """What stands there."""

    history: History
    until: str
    """RFC 3339; empty: nobody was counted yet."""


def read(found: Census | None) -> Generator[None, None, Counted]:
    """What can be read of it; nothing where there is none."""
    data = (found.data or {}) if found is not None else {}
    history: dict[int, Mapping[PodClass, int]] = {}
    for key, text in data.items():
        history.update(typical.decode({key: text}))
        yield
    return Counted(history, data.get(UNTIL, ""))


def data_of(counted: Counted) -> Generator[None, None, Mapping[str, str]]:
    """The ConfigMap's data."""
    found = {UNTIL: counted.until}
    for day, classes in counted.history.items():
        found |= typical.encode({day: classes})
        yield
    return found


class Reader(NamedTuple):
    """By what pods are read."""

    profile: Profile
    options: GpuOptions
    now: float

    def classes(self, pod: BookedPod) -> Iterable[PodClass]:
        return typical.of(demands.read(pod, self.profile, self.options))

    def day(self, pod: BookedPod) -> int:
        """On which it came; today where nobody knows."""
        today = typical.day(self.now)
        try:
            return min(typical.day(clock.parse_rfc3339(pod.metadata.creationTimestamp)), today)
        except ValueError:
            return today


def added(
    counted: Counted, old: Iterable[BookedPod], new: Iterable[BookedPod], reader: Reader
) -> Generator[None, None, Counted]:
    """With the pods that are new, and the old ones that were not counted yet; without days that are over."""
    came: dict[int, Counter[PodClass]] = {}
    until = counted.until
    for pod in (*(one for one in old if one.metadata.creationTimestamp > counted.until), *new):
        came.setdefault(reader.day(pod), Counter()).update(reader.classes(pod))
        until = max(until, pod.metadata.creationTimestamp)
        yield
    today = typical.day(reader.now)
    days = (today - ago for ago in range(typical.DAYS))
    sums = {day: Counter(counted.history.get(day, {})) + came.get(day, Counter()) for day in days}
    return Counted({day: classes for day, classes in sums.items() if classes}, until)


def body(data: Mapping[str, str], namespace: str, version: str) -> Mapping[str, Any]:
    """The object to be written; `version` is that of the one before, empty if there is none."""
    meta = {"name": NAME, "namespace": namespace} | ({"resourceVersion": version} if version else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
