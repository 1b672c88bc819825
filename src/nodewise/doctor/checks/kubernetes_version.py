"""The check of the cluster's version of Kubernetes."""

from collections.abc import Iterator

from nodewise.doctor.findings import Finding, check, finding
from nodewise.install import scheduler_versions
from nodewise.install.scheduler_versions import SchedulerVersion


@check("kubernetes-version-untested")
def check_kubernetes_version(cluster_version: SchedulerVersion | None) -> Iterator[Finding]:
    """Whether the tests of nodewise run on the minor version of the API server.

    An older version is a note: what nodewise needs of it is known, and checked where it is used.
    """
    if cluster_version is None:
        return
    expected = f"1.{scheduler_versions.OLDEST_TESTED} to 1.{scheduler_versions.NEWEST}"
    is_older = cluster_version.minor < scheduler_versions.OLDEST_TESTED
    for text in cluster_version.untested_warnings("Kubernetes"):
        yield finding(
            "kubernetes-version-untested", "API server", text, expected, severity="note" if is_older else None
        )
