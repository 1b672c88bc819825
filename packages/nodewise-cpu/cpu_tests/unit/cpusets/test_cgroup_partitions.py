"""Partitions of containers in a tree of files; `tests/node/test_container_partitions.py` has those of the kernel."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nodewise.base.errors import BadInput, Refused
from nodewise_cpu.cpusets.container_cpusets import CgroupPartitions

POD, OTHER_POD = "0f5b2c66-1f1e-4b55-8f6b-0d3c5a9be001", "0f5b2c66-1f1e-4b55-8f6b-0d3c5a9be002"
ONE, TWO = "a1" * 32, "b2" * 32
CPUS = frozenset({2, 10})


class CgroupTree:
    """The cgroups of a node."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        self.record = folder / "run" / "partitions.json"
        self.record.parent.mkdir(mode=0o755)
        self.create("")
        for name, text in (("cgroup.controllers", "cpuset cpu\n"), ("cpuset.cpus.isolated", "\n")):
            (self.root / name).write_text(text)

    def create(self, cgroup: str) -> str:
        path = self.root
        for name in ("", *filter(None, cgroup.split("/"))):
            path /= name
            path.mkdir(exist_ok=True)
            for file, text in (("cpuset.cpus.exclusive", ""), ("cpuset.cpus.partition", "member")):
                if not (path / file).exists():
                    (path / file).write_text(f"{text}\n")
        return cgroup

    def partitions(self) -> CgroupPartitions:
        return CgroupPartitions(self.root, self.record)

    def exclusive(self) -> dict[str, str]:
        """`cpuset.cpus.exclusive` of each cgroup that has some."""
        texts = {
            str(path.parent.relative_to(self.root)): path.read_text().strip()
            for path in sorted(self.root.rglob("cpuset.cpus.exclusive"))
        }
        return {cgroup: text for cgroup, text in texts.items() if text}

    def state(self, cgroup: str) -> str:
        return (self.root / cgroup / "cpuset.cpus.partition").read_text().strip()


@pytest.fixture
def tree(tmp_path: Path) -> CgroupTree:
    return CgroupTree(tmp_path)


def cgroupfs(pod: str, container: str, qos: str = "/burstable") -> str:
    return f"kubepods{qos}/pod{pod}/{container}"


def systemd(pod: str, container: str) -> str:
    slice_name = f"kubepods-besteffort-pod{pod.replace('-', '_')}.slice"
    return f"kubepods.slice/kubepods-besteffort.slice/{slice_name}/cri-containerd-{container}.scope"


@pytest.mark.parametrize("path", [cgroupfs, systemd])
def test_container_and_all_cgroups_above_it_have_the_cpus_exclusively(
    tree: CgroupTree, path: Callable[[str, str], str]
) -> None:
    cgroup = tree.create(path(POD, ONE))
    tree.create(path(OTHER_POD, TWO))
    assert tree.partitions().isolate(ONE, CPUS)
    parts = cgroup.split("/")
    assert tree.exclusive() == {"/".join(parts[:count]): "2,10" for count in range(1, len(parts) + 1)}
    assert tree.state(cgroup) == "isolated"
    assert not tree.partitions().isolate(ONE, CPUS)
    assert tree.partitions().release([ONE])
    assert (tree.exclusive(), tree.state(cgroup), tree.record.exists()) == ({}, "member", False)


def test_cpus_of_other_containers_and_programs_are_kept(tree: CgroupTree) -> None:
    first, second = tree.create(cgroupfs(POD, ONE)), tree.create(cgroupfs(OTHER_POD, TWO, ""))
    (tree.root / "kubepods/cpuset.cpus.exclusive").write_text("14-15\n")
    partitions = tree.partitions()
    partitions.isolate(ONE, CPUS)
    partitions.isolate(TWO, frozenset({5}))
    assert tree.exclusive()["kubepods"] == "2,5,10,14-15"
    assert (tree.exclusive()["kubepods/burstable"], tree.exclusive()[second]) == ("2,10", "5")
    partitions.release([TWO])
    assert (tree.exclusive()["kubepods"], tree.state(first), tree.state(second)) == (
        "2,10,14-15", "isolated", "member",
    )  # fmt: skip
    partitions.release()
    assert tree.exclusive() == {"kubepods": "14-15"}


def test_cpus_of_an_ended_container_are_free_for_the_next_one(tree: CgroupTree) -> None:
    cgroup = tree.create(cgroupfs(POD, ONE))
    tree.partitions().isolate(ONE, CPUS)
    for path in (tree.root / cgroup, (tree.root / cgroup).parent):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    tree.create(cgroupfs(OTHER_POD, TWO, ""))
    assert tree.partitions().isolate(TWO, CPUS)
    assert "kubepods/burstable" not in tree.exclusive()
    assert list(json.loads(tree.record.read_text())) == [TWO]
    assert not tree.partitions().release_ended()


def test_partition_with_other_cpus_is_undone_before_its_cpuset_changes(tree: CgroupTree) -> None:
    cgroup = tree.create(cgroupfs(POD, ONE))
    partitions = tree.partitions()
    partitions.isolate(ONE, CPUS)
    partitions.release_unless(ONE, CPUS)
    assert tree.state(cgroup) == "isolated"
    partitions.release_unless(ONE, frozenset({3}))
    assert (tree.state(cgroup), tree.exclusive()) == ("member", {})


def test_next_agent_completes_and_undoes_partitions_of_ended_agent(tree: CgroupTree) -> None:
    """The agent ended after it wrote the file and before, or while, it changed the cgroups."""
    cgroup = tree.create(cgroupfs(POD, ONE))
    tree.record.write_text(json.dumps({ONE: {"cpus": "2,10", "cgroup": cgroup}}))
    (tree.root / "kubepods/cpuset.cpus.exclusive").write_text("2,10\n")
    assert tree.partitions().isolate(ONE, CPUS)
    assert tree.state(cgroup) == "isolated"
    tree.record.write_text(json.dumps({ONE: {"cpus": "2,10", "cgroup": cgroup}}))
    assert tree.partitions().release()
    assert (tree.state(cgroup), tree.exclusive()) == ("member", {})


def test_partition_that_became_invalid_is_created_again(tree: CgroupTree) -> None:
    cgroup = tree.create(cgroupfs(POD, ONE))
    tree.partitions().isolate(ONE, CPUS)
    (tree.root / cgroup / "cpuset.cpus.partition").write_text(
        "isolated invalid (Parent is not a partition root)\n"
    )
    assert tree.partitions().isolate(ONE, CPUS)
    assert tree.state(cgroup) == "isolated"


def test_container_without_a_cgroup_is_refused(tree: CgroupTree) -> None:
    """A cgroup below a container's own, which the container may create, is not its partition."""
    tree.create(f"{cgroupfs(POD, ONE)}/pod{OTHER_POD}/{TWO}")
    with pytest.raises(Refused, match="no cgroup below"):
        tree.partitions().isolate(TWO, CPUS)
    assert (tree.exclusive(), tree.record.exists()) == ({}, False)


def test_controller_that_is_missing_in_a_pod_is_named(tree: CgroupTree) -> None:
    cgroup = tree.create(cgroupfs(POD, ONE))
    for file in (tree.root / cgroup).iterdir():
        file.unlink()
    with pytest.raises(Refused, match="the controller cpuset in all cgroups of pods"):
        tree.partitions().isolate(ONE, CPUS)


@pytest.mark.parametrize(
    ("missing", "expected"),
    [("cgroup.controllers", "cgroup version 1"), ("cpuset.cpus.isolated", r"Linux 6\.7 or newer")],
)
def test_old_kernels_and_cgroups_are_refused(tree: CgroupTree, missing: str, expected: str) -> None:
    tree.partitions().check_support()
    (tree.root / missing).unlink()
    with pytest.raises(Refused, match=expected):
        tree.partitions().check_support()


@pytest.mark.parametrize("text", ["{", "[1]", '{"x": {"cpus": 5, "cgroup": "a"}}', '{"x": {"cpus": "1-"}}'])
def test_record_that_cannot_be_read_is_an_error_with_a_remedy(tree: CgroupTree, text: str) -> None:
    tree.record.write_text(text)
    with pytest.raises(BadInput, match="remove it"):
        tree.partitions().release()
