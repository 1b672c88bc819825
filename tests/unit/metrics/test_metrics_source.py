"""The sources for values of `--metrics`, in their order."""

from typing import Any

import pytest

from nodewise.base.errors import BadSettings
from nodewise.metrics import source_table
from nodewise.metrics.metrics_source import SourceDependencies, create_metric_sources
from nodewise.metrics.node_attributes import NO_NODES, NodeAttributes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe.metrics_registry import MetricsRegistry


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
    ] == [
        "file",
        "prometheus",
    ]


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
