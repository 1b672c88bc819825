"""What a machine must have to run containers, and that nothing of them is left."""

from pathlib import Path

import pytest

from tests.cluster import debian_packages
from tests.node import containerd_runtime, temporary_cgroups


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
