"""Node metrics from files: MetricValueLists in YAML or JSON, or CSV lines `node,metric,value[,timestamp]`.

A value without a timestamp is as new as the last reading: its age is unknown and counts as fresh.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from nodewise.errors import UNREADABLE, BadInput, Problem, Unavailable
from nodewise.kube import files
from nodewise.kube.files import Objects
from nodewise.metrics import values
from nodewise.metrics.series import Series
from nodewise.metrics.snapshot import Snapshot
from nodewise.metrics.source import Want
from nodewise.metrics.values import Item

SOURCE: Final = "file"
_GROUP: Final = "custom.metrics.k8s.io"
_CSV_FIELDS: Final = (3, 4)
_decode_item = msgspec.json.Decoder(Item).decode


class FileMetrics:
    """The source `file`. Files are read again when they changed."""

    name = SOURCE

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._seen: object = None
        self._snapshot = Snapshot()

    async def fetch(self, want: Want, now: float) -> Series:
        """The metric as it stands in the files. `Unavailable` if it does not, `BadInput` if they cannot be read."""
        seen = fingerprint(self._paths)
        if seen != self._seen:
            plain, tables = split(self._paths)
            self._snapshot = snapshot(files.read(plain) if plain else Objects({}), tables)
            self._seen = seen
        found = self._snapshot.series.get(want.metric)
        if found is None:
            raise Unavailable(f"metric {want.metric} is not in {', '.join(self._paths)}")
        return msgspec.structs.replace(found, fetched_at=now)


def snapshot(objects: Objects, tables: Iterable[Path] = ()) -> Snapshot:
    """All metrics of these objects and CSV files. `BadInput` names each line that cannot be read."""
    by_metric: dict[str, list[Item]] = {}
    for item in (*_listed(objects), *(item for table in tables for item in _rows(table))):
        by_metric.setdefault(item.metric_name, []).append(item)
    return Snapshot(
        {
            metric: values.collect(Want(metric), SOURCE, 0.0, values.entries(found))
            for metric, found in by_metric.items()
        }
    )


def split(paths: Iterable[str]) -> tuple[list[str], list[Path]]:
    """Paths of objects, and CSV files; a folder may hold both."""
    plain: list[str] = []
    tables: list[Path] = []
    for path in paths:
        found = Path(path)
        if found.suffix == ".csv":
            tables.append(found)
            continue
        inside = sorted(found.glob("*.csv")) if found.is_dir() else []
        tables += inside
        if not inside or any(file.suffix in files.SUFFIXES for file in found.iterdir()):
            plain.append(path)
    return plain, tables


def fingerprint(paths: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
    """What changes when a file of these changes: names, times and sizes."""
    found: list[tuple[str, int, int]] = []
    for path in map(Path, paths):
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            try:
                stat = file.stat()
            except OSError:
                continue
            found.append((str(file), stat.st_mtime_ns, stat.st_size))
    return tuple(found)


def _listed(objects: Objects) -> Iterator[Item]:
    for entry in objects.entries(_GROUP, "MetricValue"):
        try:
            item = _decode_item(entry.data)
        except UNREADABLE as error:
            raise BadInput(
                "metrics from files", [Problem(entry.where, str(error), "a MetricValue")]
            ) from error
        if not item.metric_name or not item.describedObject.name:
            problem = Problem(entry.where, "no metric or no node", "metric.name and describedObject.name")
            raise BadInput("metrics from files", [problem])
        yield item


def _rows(table: Path) -> Iterator[Item]:
    try:
        text = table.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("metrics from files", [Problem(str(table), str(error), "a CSV file")]) from error
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not row or row[0].lstrip().startswith("#") or row[:3] == ["node", "metric", "value"]:
            continue
        if len(row) not in _CSV_FIELDS:
            problem = Problem(f"{table}, line {number}", ",".join(row), "node,metric,value[,timestamp]")
            raise BadInput("metrics from files", [problem])
        node, metric, value, *stamp = (field.strip() for field in row)
        yield values.item(node, metric, value, stamp[0] if stamp else None)
