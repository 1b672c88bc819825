"""The histogram of the pods of the last seven days, which the leader keeps in a ConfigMap.

The leader counts each pod when it first sees it. The ConfigMap also holds the newest creation time that was counted, so
that the next leader does not count existing pods again.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agents.gpu import pod_gpu_requests as demands
from nodewise.agents.gpu import typical_pods
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.typical_pods import History, PodClass
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import clock

NAME: Final = "nodewise-gpu-typical-pods"
UNTIL: Final = "counted-until"
"""Key of the ConfigMap: the creation time of the newest pod that was counted."""


class DemandMetadata(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""
    resourceVersion: str = ""  # noqa: N815 - the API's name


class DemandConfigMap(msgspec.Struct, frozen=True):
    """The fields of the ConfigMap that are read."""

    metadata: DemandMetadata
    data: dict[str, str] | None = None


class DemandHistogram(NamedTuple):
    """The contents of the ConfigMap."""

    history: History
    until: str
    """The newest creation time that was counted, RFC 3339; empty if no pod was counted."""


def parse_histogram(configmap: DemandConfigMap | None) -> Generator[None, None, DemandHistogram]:
    """Parse the ConfigMap; invalid parts are omitted, and without a ConfigMap the histogram is empty."""
    data = (configmap.data or {}) if configmap is not None else {}
    history: dict[int, Mapping[PodClass, int]] = {}
    for key, text in data.items():
        history.update(typical_pods.decode({key: text}))
        yield
    return DemandHistogram(history, data.get(UNTIL, ""))


def encode_histogram(counted: DemandHistogram) -> Generator[None, None, Mapping[str, str]]:
    """The data of the ConfigMap."""
    data = {UNTIL: counted.until}
    for day, classes in counted.history.items():
        data |= typical_pods.encode({day: classes})
        yield
    return data


class DemandReader(NamedTuple):
    """The settings and the time for reading pods."""

    profile: ResourceProfile
    options: GpuOptions
    now: float

    def classes(self, pod: AllocatedPod) -> Iterable[PodClass]:
        return typical_pods.pod_classes(demands.parse_demand(pod, self.profile, self.options))

    def day(self, pod: AllocatedPod) -> int:
        """The day on which the pod was created; today if unknown."""
        today = typical_pods.day_since_1970(self.now)
        try:
            return min(
                typical_pods.day_since_1970(clock.parse_rfc3339(pod.metadata.creationTimestamp)), today
            )
        except ValueError:
            return today


def add_pods_to_histogram(
    counted: DemandHistogram, old: Iterable[AllocatedPod], new: Iterable[AllocatedPod], reader: DemandReader
) -> Generator[None, None, DemandHistogram]:
    """Add new pods, and old pods that were not counted yet. Days that no longer count are dropped."""
    came: dict[int, Counter[PodClass]] = {}
    until = counted.until
    for pod in (*(pod for pod in old if pod.metadata.creationTimestamp > counted.until), *new):
        came.setdefault(reader.day(pod), Counter()).update(reader.classes(pod))
        until = max(until, pod.metadata.creationTimestamp)
        yield
    today = typical_pods.day_since_1970(reader.now)
    days = (today - ago for ago in range(typical_pods.DAYS))
    sums = {day: Counter(counted.history.get(day, {})) + came.get(day, Counter()) for day in days}
    return DemandHistogram({day: classes for day, classes in sums.items() if classes}, until)


def histogram_config_map(data: Mapping[str, str], namespace: str, version: str) -> Mapping[str, Any]:
    """The ConfigMap to write; `version` is that of the previous one, empty if there is none."""
    meta = {"name": NAME, "namespace": namespace} | ({"resourceVersion": version} if version else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
