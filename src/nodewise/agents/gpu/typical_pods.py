"""The typical pods of a cluster, as classes of what their containers request, with the frequency of each.

They are read from a file, or counted from the pods of the last seven days. The leader counts each pod when it first
sees it, and keeps the counts in a ConfigMap, one key per day, so that a new leader continues with them. The ConfigMap
also holds the newest creation time that was counted, so that the next leader does not count existing pods again. Data
that cannot be read is left out.
"""

import csv
import io
import itertools
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.agents.gpu import pod_gpu_requests as demands
from nodewise.agents.gpu.extended_resource_amounts import LARGEST, Amounts
from nodewise.agents.gpu.gpu_pod_fields import MODELS, AllocatedPod, GpuPod, GpuPodMetadata
from nodewise.agents.gpu.node_gpus import MOST_GPUS
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.pod_gpu_requests import Demand
from nodewise.agents.gpu.vendor_resource_names import ResourceProfile
from nodewise.base import clock, safe_yaml_loader
from nodewise.base.errors import UNREADABLE, BadInput, BadSettings, Problem, shown
from nodewise.kube.pod_requests import RequestedResources, RequestingContainer, RequestingSpec

DAYS: Final = 7
"""The number of days that count, including today."""
_DAY_S: Final = 86_400
_MOST_CLASSES: Final = 256
"""The most frequent classes of a day in the ConfigMap: about 100 bytes each, while a ConfigMap may have a megabyte."""
_LONGEST: Final = 512
"""The most bytes of a class in the ConfigMap; longer ones are omitted, because tenants write the names of models."""


class PodClass(NamedTuple):
    """The request of one container of a pod."""

    gpus: int
    per_gpu: Mapping[str, int]
    """By full resource name."""
    cpu_milli: int = 0
    """The request of the whole pod."""
    models: frozenset[str] | None = None
    """The allowed models; None for any."""


Classes = Mapping[PodClass, float]
"""The frequency of each class, in any unit."""
History = Mapping[int, Mapping[PodClass, int]]
"""By day since 1970, the number of pods of each class."""


def pod_classes(demand: Demand) -> Iterator[PodClass]:
    """The classes of a pod, one for each container that requests GPUs."""
    for container in demand.containers:
        if 0 < container.count <= MOST_GPUS:
            wanted = Amounts({name: amount for name, amount in container.per_gpu.items() if amount > 0})
            if wanted:
                yield PodClass(container.count, wanted, demand.cpu_milli, demand.models)


def day_since_1970(at_s: float) -> int:
    """The day of a time, in seconds since 1970."""
    return int(at_s // _DAY_S)


def counts_of_recent_classes(history: History, today: int) -> Classes:
    """The classes of all days that count."""
    total: Counter[PodClass] = Counter()
    for when, counts in history.items():
        if today - DAYS < when <= today:
            total.update(counts)
    return total


class _Kept(msgspec.Struct, omit_defaults=True):
    """A class in the form of the ConfigMap."""

    pods: int
    gpus: int = msgspec.field(name="cards")
    per_gpu: dict[str, int] = msgspec.field(name="per_card")
    cpu_milli: int = 0
    models: list[str] | None = None


def _encode_classes_of_day(counts: Mapping[PodClass, int]) -> str:
    rows = [
        _Kept(
            pods,
            pod_class.gpus,
            dict(sorted(pod_class.per_gpu.items())),
            pod_class.cpu_milli,
            None if pod_class.models is None else sorted(pod_class.models),
        )
        for pod_class, pods in counts.items()
    ]
    texts = [(-row.pods, msgspec.json.encode(row)) for row in rows]
    kept = (text for _, text in sorted(texts) if len(text) <= _LONGEST)
    return f"[{b','.join(itertools.islice(kept, _MOST_CLASSES)).decode()}]"


def _decode_classes_of_day(text: str) -> Iterator[tuple[PodClass, int]]:
    try:
        rows = msgspec.json.decode(text, type=list[msgspec.Raw])
    except UNREADABLE:
        return
    for raw in rows[:_MOST_CLASSES]:
        try:
            row = msgspec.json.decode(raw, type=_Kept)
        except UNREADABLE:
            continue
        amounts = [*row.per_gpu.values(), row.pods]
        if all(0 < amount <= LARGEST for amount in amounts) and 0 < row.gpus <= MOST_GPUS and row.per_gpu:
            models = None if row.models is None else frozenset(row.models)
            cpu_milli = min(max(row.cpu_milli, 0), LARGEST)
            yield PodClass(row.gpus, Amounts(row.per_gpu), cpu_milli, models), row.pods


_EXPECTED: Final = "pods (their number), requests (of a container) and models"


def load_typical_pods(path: str, profile: ResourceProfile, options: GpuOptions) -> Classes:
    """The classes of a file: a list, in YAML or JSON, of entries with the fields `pods`, `requests` and `models`:

        - {pods: 1047, requests: {cpu: 3152m, nvidia.com/gpu: 1, nvidia.com/gpu-milli: 810}}
        - {pods: 44, requests: {cpu: 88, nvidia.com/gpu: 8}, models: [G2, V100M32]}

    or a CSV file with the columns `pods`, `models` (with | between them) and one for each resource. `BadSettings` names
    everything that is wrong with it.
    """
    problems: list[Problem] = []
    classes: Counter[PodClass] = Counter()
    for number, entry in enumerate(_read_file_entries(path), 1):
        where = f"{path}: entry {number}"
        try:
            pods, pod_classes = _parse_entry(where, entry, profile, options)
        except BadSettings as error:
            problems += error.problems
            continue
        for pod_class in pod_classes:
            classes[pod_class] += pods
    if problems:
        raise _invalid_entry_error(*problems)
    return classes


def _read_file_entries(path: str) -> list[Any]:
    try:
        data = Path(path).read_bytes()
        entries: Any = []
        if not path.endswith(".csv"):
            entries = safe_yaml_loader.load(data, path)
        else:
            for line in csv.DictReader(io.StringIO(data.decode()), strict=True):
                cells = {key: value for key, value in line.items() if value}
                entry: dict[str, Any] = {key: cells.pop(key) for key in ("pods", "models") if key in cells}
                if "models" in entry:
                    entry["models"] = entry["models"].split("|")
                entries.append({**entry, "requests": cells})
    except (OSError, ValueError, BadInput, csv.Error) as error:
        problem = Problem("--gpu-typical-pods", f"{path}: {error}", "a readable YAML, JSON or CSV file")
        raise _invalid_entry_error(problem) from error
    if not isinstance(entries, list):
        raise _invalid_entry_error(Problem(path, shown(entries), "a list"))
    return entries


def _parse_entry(  # complexity: one branch for each field
    where: str, entry: Any, profile: ResourceProfile, options: GpuOptions
) -> tuple[int, list[PodClass]]:
    """The number of pods and the classes of a pod with these requests and models, parsed as a real pod."""
    if not isinstance(entry, dict):
        raise _invalid_entry_error(Problem(where, shown(entry), _EXPECTED))
    unknown = [key for key in entry if key not in ("pods", "requests", "models")]
    if unknown:
        raise _invalid_entry_error(
            *(Problem(f"{where}: {key}", "an unknown field", _EXPECTED) for key in unknown)
        )
    models, where_requests = entry.get("models"), f"{where}: requests"
    try:
        requests = msgspec.convert(entry.get("requests", {}), dict[str, str | int | float | None])
    except msgspec.ValidationError as error:
        raise _invalid_entry_error(Problem(where_requests, str(error), "quantities by resource")) from error
    annotations = {}
    if models is not None:
        if not isinstance(models, list) or not all(isinstance(model, str) for model in models):
            raise _invalid_entry_error(Problem(f"{where}: models", shown(models), "a list of names"))
        annotations[MODELS] = ",".join(models)
    container = RequestingContainer("typical", RequestedResources(requests))
    pod = GpuPod(RequestingSpec((container,)), GpuPodMetadata(annotations))
    demand = demands.parse_demand(pod, profile, options)
    if demand.problem is not None:
        raise _invalid_entry_error(Problem(where_requests, demand.problem.text(), demand.problem.remedy()))
    classes = list(pod_classes(demand))
    if not classes:
        expected = f"some {' or '.join(profile.counts)}"
        raise _invalid_entry_error(Problem(where_requests, shown(sorted(requests)), expected))
    return _parse_pod_count(where, entry.get("pods", 1)), classes


def _parse_pod_count(where: str, value: Any) -> int:
    try:
        pods = 0 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError):
        pods = 0
    if not 0 < pods <= LARGEST:
        raise _invalid_entry_error(Problem(f"{where}: pods", shown(value), "a whole number above 0"))
    return pods


def _invalid_entry_error(*problems: Problem) -> BadSettings:
    return BadSettings("typical pods", problems)


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
        number = key.removeprefix("day-")
        if number.isascii() and number.isdecimal() and len(number) < len(str(LARGEST)):
            counts = Counter(dict(_decode_classes_of_day(text)))
            if counts:
                history[int(number)] = counts
        yield
    return DemandHistogram(history, data.get(UNTIL, ""))


def encode_histogram(counted: DemandHistogram) -> Generator[None, None, Mapping[str, str]]:
    """The data of the ConfigMap; equal histograms yield equal texts."""
    data = {UNTIL: counted.until}
    for day, classes in counted.history.items():
        data[f"day-{day}"] = _encode_classes_of_day(classes)
        yield
    return data


class DemandReader(NamedTuple):
    """The settings and the time for reading pods."""

    profile: ResourceProfile
    options: GpuOptions
    now: float

    def classes(self, pod: AllocatedPod) -> Iterable[PodClass]:
        return pod_classes(demands.parse_demand(pod, self.profile, self.options))

    def day(self, pod: AllocatedPod) -> int:
        """The day on which the pod was created; today if unknown."""
        today = day_since_1970(self.now)
        try:
            return min(day_since_1970(clock.parse_rfc3339(pod.metadata.creationTimestamp)), today)
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
    today = day_since_1970(reader.now)
    days = (today - ago for ago in range(DAYS))
    sums = {day: Counter(counted.history.get(day, {})) + came.get(day, Counter()) for day in days}
    return DemandHistogram({day: classes for day, classes in sums.items() if classes}, until)


def histogram_config_map(data: Mapping[str, str], namespace: str, version: str) -> Mapping[str, Any]:
    """The ConfigMap to write; `version` is that of the previous one, empty if there is none."""
    meta = {"name": NAME, "namespace": namespace} | ({"resourceVersion": version} if version else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
