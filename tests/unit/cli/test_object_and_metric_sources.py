"""The sources for values of `--metrics`, in their order."""

from typing import Any

import msgspec
import pytest

from nodewise import agents
from nodewise.base.errors import BadSettings
from nodewise.cli import object_and_metric_sources
from nodewise.cli.object_and_metric_sources import (
    MOST_WAITING_POD_BYTES,
    SourceDependencies,
    create_metric_sources,
)
from nodewise.engine.agent_chain import AgentChain
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
        "--metrics: 'datadog'; expected auto, custom, resource, prometheus or file",
    ),
    "no path": (["file:"], dependencies(), "'file:'"),
    "a path where none belongs": (["custom:x"], dependencies(), "'custom:x'"),
    "prometheus without a URL": (["prometheus"], dependencies(), "prometheus, without --prometheus-url"),
    "an API without a cluster": (["resource"], dependencies(None), "resource, without a cluster"),
    "a URL that is none": (["auto"], dependencies(object(), "prometheus:9090"), "--prometheus-url"),
}


def test_the_largest_waiting_pod() -> None:
    """A larger one is not stored, whichever of the fields that agents read are large."""
    kind = agents.load("gpu")
    chain = AgentChain([kind.agent(kind.options())])
    target = object_and_metric_sources.waiting_pods_target([kind], chain)
    assert target.keep is not None

    def waiting_pod(allowed: str) -> Any:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        device = {"resources": {"limits": {"gpu.intel.com/i915": "1"}}}
        document = {
            "metadata": {"name": "a", "annotations": {"gas-allow": allowed}},
            "spec": {"containers": [device]},
            "status": {"conditions": [condition]},
        }
        return msgspec.convert(document, target.type)

    rest = MOST_WAITING_POD_BYTES - len(msgspec.json.encode(waiting_pod("")))
    for size in (rest, rest + 1):
        pod = waiting_pod("x" * size)
        if size == rest:
            assert target.keep(pod) is pod
            continue
        with pytest.raises(
            ValueError, match=f"have {MOST_WAITING_POD_BYTES + 1} bytes, and only a pod with at most"
        ):
            target.keep(pod)


@pytest.mark.parametrize(("names", "on", "made"), MADE.values(), ids=MADE)
def test_made(names: list[str], on: SourceDependencies, made: list[str]) -> None:
    assert [source.name for source in create_metric_sources(names, (), on)] == made


def test_files_that_objects_come_from_are_the_first_source() -> None:
    assert [
        source.name for source in create_metric_sources(["auto"], ["folder"], dependencies(None, URL))
    ] == [
        "file",
        "prometheus",
    ]


@pytest.mark.parametrize(("names", "on", "words"), REFUSED.values(), ids=REFUSED)
def test_refused(names: list[str], on: SourceDependencies, words: str) -> None:
    with pytest.raises(BadSettings, match=words):
        create_metric_sources(names, (), on)
