"""`nodewise cpu agent --isolate partition` where it cannot work."""

from pathlib import Path

from tests import forked_commands

from nodewise_cpu.node import other_cpu_managers


def start(folder: Path, *options: str) -> tuple[int, str]:
    """The exit code and stderr of an agent that cannot start."""
    store = f"--conf-dir={folder / 'state'}"
    pools = ("--num-exclusive-cores=0", "--num-shared-cores=0")
    forked_commands.run([forked_commands.NODEWISE, "cpu", "init", store, *pools])
    done = forked_commands.run(
        [forked_commands.NODEWISE, "cpu", "agent", store, f"--socket={folder / 'socket'}", *options]
    )
    return done.returncode, done.stderr


def test_partitions_need_enforcement(tmp_path: Path) -> None:
    code, stderr = start(tmp_path, "--isolate=partition")
    assert (code, "--isolate: partition; expected --enforce cgroup" in stderr) == (2, True)


def test_host_is_the_root_of_the_first_process_or_the_copy_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "proc/1/root").mkdir(parents=True)
    assert other_cpu_managers.host_root(Path("/"), tmp_path / "proc") == tmp_path / "proc/1/root"
    assert other_cpu_managers.host_root(Path("/"), tmp_path / "none") == Path("/")
    assert other_cpu_managers.host_root(tmp_path, tmp_path / "proc") == tmp_path
