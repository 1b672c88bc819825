"""Versions of Kubernetes: which are tested, and those that API servers state."""

from pathlib import Path

import pytest

from nodewise.base.errors import BadInput
from nodewise.install import scheduler_versions
from nodewise.install.scheduler_versions import SchedulerVersion
from tests.cluster import program_cache


def test_the_tested_versions_are_those_that_the_tests_run_on() -> None:
    minors = [int(name.partition(".")[2]) for name in program_cache.RELEASES]
    assert (min(minors), max(minors)) == (scheduler_versions.OLDEST_TESTED, scheduler_versions.NEWEST)
    assert f"1.{scheduler_versions.NEWEST}" == program_cache.DEFAULT


@pytest.mark.parametrize(
    ("minor", "expected"),
    [
        (19, ["Kubernetes 1.19 is older than what was tried, 1.34"]),
        (33, ["Kubernetes 1.33 is older than what was tried, 1.34"]),
        (34, []),
        (37, []),
        (38, ["Kubernetes 1.38 is newer than what was tried, 1.37"]),
        (140, ["Kubernetes 1.140 is newer than what was tried, 1.37"]),
    ],
)
def test_a_version_that_the_tests_do_not_run_on_has_a_warning(minor: int, expected: list[str]) -> None:
    assert SchedulerVersion(minor).untested_warnings("Kubernetes") == expected


@pytest.mark.parametrize(
    ("text", "minor"),
    [
        ("v1.37.2", 37),
        ("v1.33.5-eks-113cf36", 33),
        ("v1.36.0-gke.1064000", 36),
        ("v1.34.1+k3s1", 34),
        ("v1.38.0-beta.0.12+4d2cb9e1b0ac0b-dirty", 38),
        ("1.16", 16),
    ],
)
def test_the_version_of_an_api_server_may_be_that_of_a_distribution(text: str, minor: int) -> None:
    assert scheduler_versions.parse_cluster_version(text).minor == minor


@pytest.mark.parametrize("text", ["", "v0.0.0-master+$Format:%H$", "latest", "v2.1.0", "v1", "v1.x"])
def test_a_text_that_is_no_version_of_kubernetes_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="gitVersion"):
        scheduler_versions.parse_cluster_version(text)


def test_page_of_supported_versions_has_the_versions_that_the_tests_run() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/supported-versions.md").read_text()
    modules = {
        "prometheus-adapter": program_cache.PROMETHEUS_ADAPTER,
        "OpenTelemetry Collector": program_cache.OTELCOL,
        "Helm": program_cache.HELM,
        "descheduler": program_cache.DESCHEDULER,
        "Karpenter": program_cache.KARPENTER,
        "krew": program_cache.KREW,
    }
    rows = [f"| {name} | {module.version.removeprefix('v')} |" for name, module in modules.items()]
    rows.append(f"| {program_cache.VERSION.removeprefix('v')} |")
    assert [row for row in rows if f"\n{row}" not in page] == []
    releases = [release.version.removeprefix("v") for release in program_cache.RELEASES.values()]
    assert [version for version in releases if version not in page] == []
