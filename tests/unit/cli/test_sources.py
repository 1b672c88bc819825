"""Which sources `--metrics` makes, and in which order."""

from typing import Any

import pytest

from nodewise.cli.data_sources import SourceDependencies, create_sources
from nodewise.errors import BadSettings
from nodewise.metrics.node_attributes import NO_NODES, NodeAttributes
from nodewise.metrics.prometheus.options import PrometheusOptions
from nodewise.observe.metrics_registry import MetricsRegistry


async def nodes() -> NodeAttributes:
    return NO_NODES


def ground(api: Any = object(), *urls: str) -> SourceDependencies:  # noqa: B008 - nobody calls it
    return SourceDependencies(
        api, nodes, PrometheusOptions(prometheus_url=urls), 60.0, 5.0, MetricsRegistry()
    )


URL = "http://prometheus:9090"

MADE: dict[str, tuple[list[str], SourceDependencies, list[str]]] = {
    "auto, in a cluster": (["auto"], ground(), ["custom", "resource"]),
    "auto, with a URL": (["auto"], ground(object(), URL), ["custom", "resource", "prometheus"]),
    "auto, without a cluster": (["auto"], ground(None), []),
    "auto, with a URL and no cluster": (["auto"], ground(None, URL), ["prometheus"]),
    "the order given": (["prometheus", "custom"], ground(object(), URL), ["prometheus", "custom"]),
    "each once": (["resource", "auto", "custom"], ground(), ["resource", "custom"]),
    "a file first": (["file:m.csv", "auto"], ground(), ["file", "custom", "resource"]),
    "several addresses": (
        ["prometheus"],
        ground(None, URL, "http://b"),
        [f"prometheus {URL}", "prometheus http://b"],
    ),
}

REFUSED: dict[str, tuple[list[str], SourceDependencies, str]] = {
    "an unknown one": (
        ["datadog"],
        ground(),
        "--metrics: 'datadog'; wanted auto, custom, resource, prometheus or file",
    ),
    "no path": (["file:"], ground(), "'file:'"),
    "a path where none belongs": (["custom:x"], ground(), "'custom:x'"),
    "prometheus without a URL": (["prometheus"], ground(), "prometheus, without --prometheus-url"),
    "an API without a cluster": (["resource"], ground(None), "resource, without a cluster"),
    "a URL that is none": (["auto"], ground(object(), "prometheus:9090"), "--prometheus-url"),
}


@pytest.mark.parametrize(("names", "on", "made"), MADE.values(), ids=MADE)
def test_made(names: list[str], on: SourceDependencies, made: list[str]) -> None:
    assert [source.name for source in create_sources(names, (), on)] == made


def test_files_that_objects_come_from_are_the_first_source() -> None:
    assert [source.name for source in create_sources(["auto"], ["folder"], ground(None, URL))] == [
        "file",
        "prometheus",
    ]


@pytest.mark.parametrize(("names", "on", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(names: list[str], on: SourceDependencies, words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        create_sources(names, (), on)
