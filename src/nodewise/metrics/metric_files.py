"""Source `file`: MetricValueLists and NodeMetricsLists in YAML or JSON, or CSV lines `node,metric,value[,timestamp]`.

The age of a value without a timestamp is unknown, so the value counts as fresh.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from nodewise.base import cooperative_scheduling
from nodewise.base.errors import UNREADABLE, BadInput, Problem, did_you_mean
from nodewise.kube import object_files
from nodewise.kube.object_files import FileObjects
from nodewise.kube.resource_kinds import NODES
from nodewise.kube.struct_type_merge import merge
from nodewise.metrics import (
    custom_metrics_api,
    missing_values,
    node_attributes,
    resource_metrics_api,
    source_table,
)
from nodewise.metrics.custom_metrics_api import MetricValue, NodeSample
from nodewise.metrics.metrics_snapshot import MetricsSnapshot
from nodewise.metrics.metrics_source import (
    AGGREGATIONS,
    MetricNotFound,
    MetricRequest,
    MetricsSource,
    SourceDependencies,
)
from nodewise.metrics.node_attributes import NodeAttributeFields, NodeAttributes, NodeLookup
from nodewise.metrics.resource_metrics_api import NodeMetrics
from nodewise.metrics.series import Series

_CUSTOM: Final = "custom.metrics.k8s.io"
_CSV_FIELDS: Final = (3, 4)
_WHAT: Final = "metrics from files"
_NODE: Final[Any] = merge("Node", NodeAttributeFields)

T = TypeVar("T")


def create_sources(dependencies: SourceDependencies, paths: Sequence[str]) -> list[MetricsSource]:
    """One source of all these files and folders."""
    return [FileSource(tuple(paths), dependencies.nodes)]


class FileSource:
    """The source `file`. Files are reread when they change."""

    name = source_table.FILE

    def __init__(self, paths: Sequence[str], nodes: NodeLookup | None = None) -> None:
        self._paths = paths
        self._nodes = nodes
        self._fingerprint: object = None
        self._known = node_attributes.NO_NODES
        self._snapshot = MetricsSnapshot()

    def supports(self, request: MetricRequest) -> bool:
        """Any metric by name. The query of a rule is ignored: the file's values of that name are its result.

        So `decide`, which reads only files, returns the same results as an extender that serves from them.
        """
        return bool(request.metric) and not (request.by_pod or request.device_label)

    async def fetch(self, request: MetricRequest, now: float) -> Series:
        """The metric in the files. `MetricNotFound` if it is not there, `BadInput` if the files cannot be read."""
        known = await self._nodes() if self._nodes else node_attributes.NO_NODES
        current = fingerprint_files(self._paths)
        if current != self._fingerprint or known is not self._known:
            plain, tables = split_paths(self._paths)
            self._snapshot = read_snapshot(
                object_files.read(plain) if plain else FileObjects({}), tables, known
            )
            self._fingerprint, self._known = current, known
        series = select_series(self._snapshot, request)
        if series is None:
            raise missing_from_files(request.metric, ", ".join(self._paths), self._snapshot)
        return msgspec.structs.replace(series, fetched_at=now)


def missing_from_files(metric: str, files: str, snapshot: MetricsSnapshot) -> MetricNotFound:
    """The error for a metric that is not in these files, with the most similar name of those that are."""
    cause = missing_values.cause("MetricUnknown", source_table.FILE, "has no metric of this name")
    return MetricNotFound(
        f"metric {metric} is not in {files}{did_you_mean(metric, [*snapshot.series])}", cause=cause
    )


def select_series(snapshot: MetricsSnapshot, request: MetricRequest) -> Series | None:
    """The series of a metric by name, regardless of the query of the request; None if it is missing. Files have no
    values of devices.
    """
    if request.device_label:
        return None
    name = MetricRequest(request.metric, aggregate=request.aggregate).key
    return snapshot.series.get(name) or snapshot.series.get(request.metric)


def read_snapshot(
    objects: FileObjects, tables: Iterable[Path] = (), known: NodeAttributes = node_attributes.NO_NODES
) -> MetricsSnapshot:
    """All metrics of these objects and CSV files. `BadInput` names each line that cannot be read.

    Usage of nodes (NodeMetrics) is divided by the allocatable resources of the Nodes among the objects; without any, of
    the nodes that are `known`. The snapshot contains a metric with several values per node once more for each
    aggregation.
    """
    by_metric: dict[str, list[NodeSample]] = {}
    for item in (
        *_read_metric_value_lists(objects),
        *(item for table in tables for item in _parse_csv_values(table)),
    ):
        by_metric.setdefault(item.metric_name, []).extend(custom_metrics_api.node_samples([item]))
    for metric, usage in _node_usage_by_metric(objects, known).items():
        by_metric.setdefault(metric, []).extend(usage)
    return MetricsSnapshot(
        {
            request.key: custom_metrics_api.build_series(request, source_table.FILE, 0.0, entries)
            for metric, entries in by_metric.items()
            if entries
            for request in _requests_of_metric(metric, entries)
        }
    )


def _requests_of_metric(metric: str, entries: Sequence[NodeSample]) -> list[MetricRequest]:
    has_several = len({node for node, _ in entries}) < len(entries)
    return [
        MetricRequest(metric, aggregate=aggregation)
        for aggregation in ("", *(AGGREGATIONS if has_several else ()))
    ]


def split_paths(paths: Iterable[str]) -> tuple[list[str], list[Path]]:
    """Paths of objects, and CSV files; a folder may contain both."""
    plain: list[str] = []
    tables: list[Path] = []
    for path in paths:
        folder = Path(path)
        if folder.suffix == ".csv":
            tables.append(folder)
            continue
        inside = sorted(folder.glob("*.csv")) if folder.is_dir() else []
        tables += inside
        if not inside or any(file.suffix in object_files.SUFFIXES for file in folder.iterdir()):
            plain.append(path)
    return plain, tables


def fingerprint_files(paths: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
    """Names, modification times and sizes of all files, which differ after a change."""
    metrics: list[tuple[str, int, int]] = []
    for path in map(Path, paths):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            try:
                stat = file.stat()
            except OSError:
                continue
            metrics.append((str(file), stat.st_mtime_ns, stat.st_size))
    return tuple(metrics)


def _read_metric_value_lists(objects: FileObjects) -> Iterator[MetricValue]:
    for where, item in _decode_objects(objects, (_CUSTOM, "MetricValue"), MetricValue):
        if not item.metric_name or not item.describedObject.name:
            raise BadInput.of(_WHAT, where, "no metric or no node", "metric.name and describedObject.name")
        yield item


def _node_usage_by_metric(objects: FileObjects, known: NodeAttributes) -> dict[str, list[NodeSample]]:
    listed = [
        item for _, item in _decode_objects(objects, (resource_metrics_api.GROUP, "NodeMetrics"), NodeMetrics)
    ]
    if not listed:
        return {}
    own = objects.of(NODES, _NODE)
    nodes = (
        cooperative_scheduling.run_without_pauses(node_attributes.read_node_attributes(own)) if own else known
    )
    return cooperative_scheduling.run_without_pauses(resource_metrics_api.by_metric(listed, nodes))


def _decode_objects(objects: FileObjects, kind: tuple[str, str], type_: type[T]) -> Iterator[tuple[str, T]]:
    """The objects of a kind, each with its location in the files."""
    decode = msgspec.json.Decoder(type_).decode
    for entry in objects.entries(*kind):
        try:
            yield entry.where, decode(entry.data)
        except UNREADABLE as error:
            raise BadInput(_WHAT, [Problem(entry.where, str(error), f"a {kind[1]}")]) from error


def _parse_csv_values(table: Path) -> Iterator[MetricValue]:
    try:
        text = table.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(_WHAT, [Problem(str(table), str(error), "a CSV file")]) from error
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not row or row[0].lstrip().startswith("#") or row[:3] == ["node", "metric", "value"]:
            continue
        if len(row) not in _CSV_FIELDS:
            problem = Problem(f"{table}, line {number}", ",".join(row), "node,metric,value[,timestamp]")
            raise BadInput(_WHAT, [problem])
        node, metric, value, *stamp = (field.strip() for field in row)
        yield custom_metrics_api.make_metric_value(node, metric, value, stamp[0] if stamp else None)
