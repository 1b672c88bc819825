"""What a machine must have to run containers, and that nothing of them is left."""

import os
from pathlib import Path

import pytest

from tests.cluster import debian_packages
from tests.node import containerd_runtime, temporary_cgroups
from tests.node.temporary_cgroups import Hierarchy


def test_containers_need_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert containerd_runtime.lacking() == "they need root; run this as root"


def test_missing_tools_are_named_with_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    assert containerd_runtime.lacking() == (
        "there is no unshare and no nsenter and no mount and no setpriv on the PATH; install util-linux"
    )


@pytest.fixture
def version_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hierarchy:
    """The only hierarchy of a machine: files in a folder instead of the kernel's."""
    hierarchy = Hierarchy(tmp_path, 2, frozenset({"rw"}))
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids rdma misc\n")
    monkeypatch.setattr(temporary_cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(temporary_cgroups, "hierarchies", lambda: [hierarchy])
    return hierarchy


def test_cgroups_of_version_2_alone_suffice(version_2: Hierarchy) -> None:
    assert temporary_cgroups.lacking() == set()
    with temporary_cgroups.created("new") as name:
        assert (version_2.place / name.lstrip("/")).is_dir()
        enabled = (version_2.place / "cgroup.subtree_control").read_text()
        assert enabled == "+cpu +cpuset +hugetlb +memory +pids"
    assert [path for path in version_2.place.iterdir() if path.is_dir()] == []


def test_missing_controllers_are_named(version_2: Hierarchy, monkeypatch: pytest.MonkeyPatch) -> None:
    (version_2.place / "cgroup.controllers").write_text("cpuset memory\n")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert containerd_runtime.lacking() == (
        "there are no cgroup controllers cpu, pids; mount them at /sys/fs/cgroup, as version 1 or 2"
    )


def test_controllers_of_version_1_count_beside_a_hierarchy_of_version_2_elsewhere(
    version_2: Hierarchy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd mounts such a hierarchy, and programs do not use it."""
    old = [Hierarchy(Path(f"/old/{name}"), 1, frozenset({"rw", name})) for name in ("cpu", "cpuset", "pids")]
    monkeypatch.setattr(temporary_cgroups, "ROOT", Path("/old"))
    monkeypatch.setattr(temporary_cgroups, "hierarchies", lambda: [*old, version_2])
    assert temporary_cgroups.lacking() == {"memory"}


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
