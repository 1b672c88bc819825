"""The check of the cluster's version of Kubernetes."""

from collections.abc import Iterator
from typing import Final

from nodewise.configure import scheduler_versions
from nodewise.configure.scheduler_versions import SchedulerVersion
from nodewise.doctor.check_declaration import check
from nodewise.doctor.findings import Finding, finding


@check("kubernetes-version-untested")
def check_kubernetes_version(cluster_version: SchedulerVersion | None) -> Iterator[Finding]:
    """Whether the tests of nodewise run on the minor version of the API server."""
    expected = f"1.{scheduler_versions.OLDEST_TESTED} to 1.{scheduler_versions.NEWEST}"
    for text in cluster_version.untested_warnings("Kubernetes") if cluster_version else ():
        yield finding("kubernetes-version-untested", "API server", text, expected)


CHECKS: Final = (check_kubernetes_version,)
