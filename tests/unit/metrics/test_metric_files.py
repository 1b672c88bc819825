"""NodeMetricsLists in files, together with Nodes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nodewise.base.errors import BadInput, BadSettings, Unavailable
from nodewise.kube import object_files
from nodewise.metrics import metric_files, source_table
from nodewise.metrics.metric_files import FileSource
from nodewise.metrics.metrics_source import MetricRequest, SourceDependencies, create_metric_sources
from nodewise.metrics.node_attributes import NO_NODES, NodeAllocatable, NodeAttributes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe.metrics_registry import MetricsRegistry

NANO = 10**9

NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable": {"cpu": 4}}}
USED: dict[str, Any] = {
    "apiVersion": "metrics.k8s.io/v1beta1",
    "kind": "NodeMetricsList",
    "items": [
        {
            "metadata": {"name": "a"},
            "timestamp": "2026-11-21T00:00:00Z",
            "usage": {"cpu": "1", "memory": "1Ki"},
        }
    ],
}
ONE = {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetrics"} | USED["items"][0]


def write_objects(folder: Path, *objects: Any) -> str:
    for number, content in enumerate(objects):
        (folder / f"{number}.json").write_text(json.dumps(content))
    return str(folder)


def shares(path: str) -> dict[str, int]:
    series = metric_files.read_snapshot(object_files.read([path])).series["cpu_usage_share"]
    return {node: sample.value for node, sample in series.samples.items()}


@pytest.mark.parametrize("used", [USED, ONE], ids=["a list", "one object"])
def test_usage_is_divided_by_the_allocatable_of_the_nodes_beside_it(tmp_path: Path, used: Any) -> None:
    path = write_objects(tmp_path, used, NODE)
    assert shares(path) == {"a": NANO // 4}
    series = metric_files.read_snapshot(object_files.read([path])).series
    assert series["memory_usage"].samples["a"].value == 1024 * NANO
    assert series["memory_usage_share"].invalid == {"a": "the Node reports no allocatable memory"}


def test_without_nodes_beside_it_by_that_of_the_nodes_that_are_known(tmp_path: Path) -> None:
    known = NodeAttributes({"a": NodeAllocatable(2 * NANO, None)}, {})
    path = write_objects(tmp_path, USED)
    series = metric_files.read_snapshot(object_files.read([path]), known=known).series["cpu_usage_share"]
    assert series.samples["a"].value == NANO // 2


def test_a_source_reads_again_when_the_known_nodes_are_others(tmp_path: Path) -> None:
    allocatable = [NodeAllocatable(2 * NANO, None)]

    async def nodes() -> NodeAttributes:
        return NodeAttributes({"a": allocatable[-1]}, {})

    async def twice() -> list[int]:
        source = FileSource([write_objects(tmp_path, USED)], nodes)
        values = []
        for cores in (2, 8):
            allocatable.append(NodeAllocatable(cores * NANO, None))
            values.append((await source.fetch(MetricRequest("cpu_usage_share"), 0.0)).samples["a"].value)
        return values

    assert asyncio.run(twice()) == [NANO // 2, NANO // 8]


def test_files_without_usage_have_no_metrics_of_it(tmp_path: Path) -> None:
    source = FileSource([write_objects(tmp_path, NODE)])
    with pytest.raises(Unavailable, match="metric cpu_usage is not in"):
        asyncio.run(source.fetch(MetricRequest("cpu_usage"), 0.0))


def test_error_names_unreadable_part(tmp_path: Path) -> None:
    path = write_objects(tmp_path, ONE | {"timestamp": 5})
    with pytest.raises(BadInput, match=r"0\.json, document 1: Expected .*; expected a NodeMetrics"):
        metric_files.read_snapshot(object_files.read([path]))


def test_metrics_of_a_file_answer_the_query_of_their_name(tmp_path: Path) -> None:
    source = FileSource([write_objects(tmp_path, USED, NODE)])
    request = MetricRequest("cpu_usage", "sum by (node) (rate(x[5m]))")
    assert source.supports(request)
    assert asyncio.run(source.fetch(request, 0.0)).samples["a"].value == NANO


def test_usage_of_a_deleted_node_beside_others_is_no_problem(tmp_path: Path) -> None:
    """metrics-server has the usage of a deleted node for a while."""
    deleted = ONE | {"metadata": {"name": "gone-7"}}
    series = metric_files.read_snapshot(
        object_files.read([write_objects(tmp_path, ONE, deleted, NODE)])
    ).series
    assert list(series["cpu_usage_share"].samples) == ["a"]
    assert series["cpu_usage_share"].invalid == {}
    assert list(series["memory_usage_share"].invalid) == ["a"]


def test_usage_of_no_node_says_so(tmp_path: Path) -> None:
    other = ONE | {"metadata": {"name": "gone-7"}}
    series = metric_files.read_snapshot(object_files.read([write_objects(tmp_path, other, NODE)])).series
    assert series["cpu_usage_share"].invalid == {"gone-7": "no Node has this name"}


def test_list_of_metrics_server_with_a_deleted_node(tmp_path: Path) -> None:
    """A list as metrics-server writes it: worker-9 was deleted, and worker-3 is new."""
    items = [
        {
            "metadata": {"name": name, "creationTimestamp": None},
            "timestamp": "2026-11-28T20:31:32Z",
            "window": window,
            "usage": {"cpu": cpu, "memory": memory},
        }
        for name, window, cpu, memory in (
            ("worker-1", "20.041s", "7719234567n", "34983820Ki"),
            ("worker-2", "15s", "0", "0"),
            ("worker-9", "15s", "100m", "1Gi"),
        )
    ]
    used = {"apiVersion": "metrics.k8s.io/v1beta1", "kind": "NodeMetricsList", "items": items}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"worker-{number}"},
            "status": {"allocatable": {"cpu": "8", "memory": "32Gi"}},
        }
        for number in (1, 2, 3)
    ]
    series = metric_files.read_snapshot(object_files.read([write_objects(tmp_path, used, *nodes)])).series
    expected = {"worker-1": 964_904_321, "worker-2": 0}
    assert {node: sample.value for node, sample in series["cpu_usage_share"].samples.items()} == expected
    assert series["memory_usage_share"].samples["worker-1"].value == 1_042_599_082
    assert [metric.invalid for metric in series.values()] == [{}] * 4


async def nodes() -> NodeAttributes:
    return NO_NODES


def dependencies(api: Any = object(), *urls: str) -> SourceDependencies:  # noqa: B008 - never called
    return SourceDependencies(
        api, nodes, PrometheusOptions(prometheus_url=urls), 60.0, 5.0, MetricsRegistry()
    )


URL = "http://prometheus:9090"

MADE: dict[str, tuple[list[str], SourceDependencies, list[str]]] = {
    "auto, in a cluster": (["auto"], dependencies(), ["custom", "resource"]),
    "auto, with a URL": (["auto"], dependencies(object(), URL), ["custom", "resource", "prometheus"]),
    "auto, without a cluster": (["auto"], dependencies(None), []),
    "auto, with a URL and no cluster": (["auto"], dependencies(None, URL), ["prometheus"]),
    "the order given": (["prometheus", "custom"], dependencies(object(), URL), ["prometheus", "custom"]),
    "each once": (["resource", "auto", "custom"], dependencies(), ["resource", "custom"]),
    "a file first": (["file:m.csv", "auto"], dependencies(), ["file", "custom", "resource"]),
    "OTLP files": (["otlp:a", "otlp:b", "otlp:a"], dependencies(None), ["otlp", "otlp"]),
    "several addresses": (
        ["prometheus"],
        dependencies(None, URL, "http://b"),
        [f"prometheus {URL}", "prometheus http://b"],
    ),
}

REFUSED: dict[str, tuple[list[str], SourceDependencies, str]] = {
    "an unknown one": (
        ["datadog"],
        dependencies(),
        "--metrics: 'datadog'; expected auto, custom, resource, prometheus, file:PATH or otlp:FILE",
    ),
    "no path": (["file:"], dependencies(), "'file:'"),
    "no path after the name": (["otlp"], dependencies(), "'otlp'"),
    "a path where none belongs": (["custom:x"], dependencies(), "'custom:x'"),
    "prometheus without a URL": (
        ["prometheus"],
        dependencies(),
        "settings: --metrics prometheus requires --prometheus-url",
    ),
    "an API without a cluster": (
        ["resource"],
        dependencies(None),
        "settings: --metrics resource requires a cluster",
    ),
    "a URL that is none": (["auto"], dependencies(object(), "prometheus:9090"), "--prometheus-url"),
}


@pytest.mark.parametrize(("names", "on", "made"), MADE.values(), ids=MADE)
def test_sources_in_order(names: list[str], on: SourceDependencies, made: list[str]) -> None:
    assert [source.name for source in create_metric_sources(names, (), on)] == made


def test_files_that_objects_come_from_are_the_first_source() -> None:
    assert [
        source.name for source in create_metric_sources(["auto"], ["folder"], dependencies(None, URL))
    ] == ["file", "prometheus"]


@pytest.mark.parametrize(("names", "on", "words"), REFUSED.values(), ids=REFUSED)
def test_invalid_values_are_refused(names: list[str], on: SourceDependencies, words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        create_metric_sources(names, (), on)


def test_kinds_of_values_include_those_of_auto() -> None:
    assert source_table.kinds(["auto", "file:x", "datadog"]) == {"custom", "resource", "prometheus", "file"}


def test_help_has_all_sources_in_their_order() -> None:
    text = source_table.option_help()
    names = ("custom", "resource", "prometheus", "auto", "file:PATH", "otlp:FILE")
    places = [text.index(f"`{name}`: ") for name in names]
    assert places == sorted(places)
