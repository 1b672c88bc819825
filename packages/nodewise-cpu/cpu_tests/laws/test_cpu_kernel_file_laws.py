"""Only a line feed ends a line of the kernel's files, whatever characters the name of a cgroup has."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from hypothesis import example, given
from hypothesis import strategies as st

from nodewise.install import host_checks
from nodewise_cpu import procfs
from nodewise_cpu.agent import socket_server
from nodewise_cpu.cpusets import container_cpusets
from nodewise_cpu.kernel_file_reader import read_text, split_lines
from nodewise_cpu.pool_allocations import Task
from nodewise_cpu.procfs import CgroupOwner, parse_cgroup

CHARACTERS: Final = "".join(map(chr, range(sys.maxunicode)))
SEPARATORS: Final = [
    line[-1] for line in CHARACTERS.splitlines(keepends=True)[:-1] if not line.endswith("\n")
]
OWN: Final = CgroupOwner("01f2a6c3-9d1b-4c55-8a3e-6f0d0c8e4b11", "a" * 64)
OTHER: Final = CgroupOwner("ffffffff-9d1b-4c55-8a3e-6f0d0c8e4b11", "b" * 64)
BOOT: Final = "the boot"
SEPARATOR: Final = st.sampled_from(SEPARATORS)
LINES: Final = st.sampled_from(["0::", "3:cpuset:", "4:cpu,cpuset:", "1:name=systemd:", ":cpuset:"])


def path_of(place: CgroupOwner) -> str:
    return f"/kubepods/burstable/pod{place.pod}/{place.container}"


def test_every_separator_of_python_is_tried() -> None:
    assert {"\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"} == set(SEPARATORS)


@given(SEPARATOR, LINES, st.text(st.sampled_from([*SEPARATORS, " ", ":", "x"]), max_size=5))
def test_a_cgroup_below_a_container_is_never_another_pods(separator: str, line: str, name: str) -> None:
    text = f"0::{path_of(OWN)}/{name}{separator}{line}{path_of(OTHER)}\n"
    assert parse_cgroup(text) == OWN


@given(SEPARATOR, LINES, st.permutations(range(3)), st.integers(0, 2))
def test_the_outermost_pod_of_all_lines_counts(
    separator: str, line: str, order: list[int], inner: int
) -> None:
    """A container may create its own cgroups in each hierarchy of cgroup version 1."""
    below = f"/x{separator}{line}{path_of(OTHER)}"
    lines = [
        f"{number}:{name}:{path_of(OWN)}{below if number == inner else ''}"
        for number, name in enumerate(("cpuset", "memory", "name=systemd"))
    ]
    assert parse_cgroup("\n".join(lines[number] for number in order) + "\n") == OWN


@given(st.sampled_from(["cpuset", "memory", ""]), st.sampled_from(["cpuset", "memory", ""]))
def test_a_pod_inside_of_a_pod_loses_in_whichever_line_it_is(inner: str, outer: str) -> None:
    text = f"2:{inner}:/kubepods/pod{OWN.pod}/{OWN.container}/kubepods/pod{OTHER.pod}/{OTHER.container}\n"
    assert parse_cgroup(f"{text}1:{outer}:/kubepods/pod{OWN.pod}/{OWN.container}\n") == OWN
    nested = f"2:{inner}:/docker/x/kubepods/pod{OTHER.pod}/{OTHER.container}\n"
    assert parse_cgroup(f"{nested}1:{outer}:/kubepods/pod{OWN.pod}/{OWN.container}\n") == OWN


@given(SEPARATOR, LINES)
@example("\r", "3:cpuset:")
def test_all_that_read_cgroups_read_them_alike(separator: str, line: str) -> None:
    """The test reads real files, because Python's text mode would translate a carriage return."""
    with TemporaryDirectory() as folder:
        proc = Path(folder)
        process = proc / "17"
        process.mkdir()
        text = f"0::{path_of(OWN)}/x{separator}{line}{path_of(OTHER)}\n"
        (process / "cgroup").write_bytes(text.encode())
        (process / "stat").write_bytes(stat(f"a{separator}b").encode())
        (process / "environ").write_bytes(b"CMK_NODEWISE_TASK=1\0")
        (process / "cmdline").write_bytes(b"x\0")
        task = socket_server.read_process_as_task(proc, 17, BOOT)
        assert (task.pod, task.container) == OWN
        expected = {OWN.container: [17], OTHER.container: []}
        assert container_cpusets.list_container_processes(proc, [OWN.container, OTHER.container]) == expected
        process_table = procfs.read_processes(proc)._replace(unreadable=frozenset({17}))
        assert procfs.unreadable_processes_of(Task(16, 1, BOOT, *OTHER), process_table, proc) == ()
        assert procfs.unreadable_processes_of(Task(16, 1, BOOT, *OWN), process_table, proc) == (17,)


@given(SEPARATOR)
def test_a_processs_name_is_no_line_of_its_status(separator: str) -> None:
    with TemporaryDirectory() as folder:
        proc = Path(folder)
        (proc / "17/task/17").mkdir(parents=True)
        text = f"Name:\tx{separator}Cpus_allowed_list:\t9\nCpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n"
        for place in (proc / "17", proc / "17/task/17"):
            (place / "status").write_bytes(text.encode())
            (place / "stat").write_bytes(stat(f"x{separator}y").encode())
        assert procfs.read_allowed_cpus(proc, 17) == {0, 1}
        assert container_cpusets.read_cpuset(proc, 17).cpus == {0, 1}
        assert [thread.cpus for thread in procfs.read_threads(proc, 17)] == [{0, 1}]


@given(SEPARATOR)
def test_a_mount_point_is_one_field_of_one_line(separator: str) -> None:
    text = f"1 0 0:1 / / rw - overlay o rw\n2 1 0:2 / /x{separator}3 1 0:3 / /etc rw - ext4 /dev/a rw\n"
    assert [mount.point for mount in host_checks.parse_mountinfo(text)] == ["/", f"/x{separator}3"]


@given(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])))
def test_a_text_without_a_line_feed_is_one_line(text: str) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_bytes(f"{text}\n".encode())
        assert split_lines(read_text(file)) == [text]


def stat(name: str) -> str:
    numbers = ["1", *["0"] * 13, "0", "0", "1", "0", "5", "4096", *["0"] * 30]
    return f"17 ({name}) S " + " ".join(numbers) + "\n"
