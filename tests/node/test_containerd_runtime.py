"""What a machine must have to run containers, and that nothing of them is left."""

import os
from pathlib import Path

import pytest

from tests.cluster import debian_packages
from tests.node import containerd_runtime, temporary_cgroups
from tests.node.temporary_cgroups import Hierarchy

NEW = [Hierarchy(Path("/sys/fs/cgroup"), 2, frozenset({"rw"}))]
"""cgroups of a machine that was booted with version 2 alone."""


def test_containers_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert containerd_runtime.lacking() == "they need root; run this as root"


def test_missing_tools_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert containerd_runtime.lacking() == (
        "there is no unshare and no nsenter and no mount and no setpriv on the PATH; install util-linux"
    )


def test_cgroups_of_version_2_alone_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_cgroups, "hierarchies", lambda: NEW)
    assert temporary_cgroups.lacking() == temporary_cgroups.WANTED
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert (
        "not mounted as version 1; boot with systemd.unified_cgroup_hierarchy=0"
        in containerd_runtime.lacking()
    )


def test_nothing_outlives_the_first_process(
    container_programs: debian_packages.ContainerPrograms, tmp_path: Path
) -> None:
    """All that shared its namespaces is gone once `running` is left, and the machine's settings are as before."""
    before = _settings()
    with containerd_runtime.running(container_programs, tmp_path) as running:
        namespace = _namespace(running.pid)
        assert running.pid in _sharing(namespace)
        assert running.inside("/run/containerd").is_dir()
    assert _sharing(namespace) == []
    assert not Path(containerd_runtime.SOCKET).exists()
    assert _settings() == before


@pytest.mark.usefixtures("container_programs")
def test_leftovers_of_a_killed_run_do_not_disturb() -> None:
    with temporary_cgroups.created("twice") as left, temporary_cgroups.created("twice") as own:
        assert left != own
        assert Path(temporary_cgroups.hierarchies()[0].place, own.lstrip("/")).is_dir()


def _settings() -> list[str]:
    return [Path("/proc/sys", name).read_text() for name in containerd_runtime.TUNED]


def _namespace(pid: int | str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""


def _sharing(namespace: str) -> list[int]:
    """The processes whose mounts are those of a namespace."""
    return [
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdecimal() and _namespace(path.name) == namespace
    ]
