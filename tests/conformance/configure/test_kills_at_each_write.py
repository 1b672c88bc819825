"""Kills a run at each of its write calls. The manifest is the old or the new one, and the next run completes the work.

These tests need several hundred runs. Each test therefore forks one process that has imported everything. It calls
undisturbed runs itself, and forks a child for each run that is killed. Every round starts from a copy of the same host.
"""

import contextlib
import functools
import gc
import itertools
import os
import re
import shutil
import signal
import sys

import pytest
from click.testing import CliRunner

from nodewise.cli import configure
from nodewise.install import yaml_editor
from tests.conformance.configure import fault_injection
from tests.conformance.configure.control_plane_hosts import ControlPlaneHost
from tests.conformance.configure.scheduler_manifests import GAS_TEMPLATE


def kill_at_each_write(host: ControlPlaneHost, *flags: str) -> int:
    """Run all rounds in a process of their own. Returns the number of write calls of the run."""
    completed = host.configure(before=functools.partial(run_rounds, host, flags))
    assert completed.code == 0, completed.err
    return int(completed.out)


def run_rounds(host: ControlPlaneHost, flags: tuple[str, ...]) -> None:
    """Kill a run at its first write call, at its second, and so on until it ends by itself. Run again after each kill.

    Prints the number of write calls and ends the process.
    """
    # all rounds parse the same few texts, which takes most of the time of a run
    yaml_editor.parse_document = functools.cache(yaml_editor.parse_document)
    gc.freeze()  # a collection in a child would copy the memory of this process
    saved = host.k.with_name("saved")
    shutil.copytree(host.k, saved, symlinks=True)
    old = host.manifest.read_bytes()
    run(host, *flags)
    new, expected = host.manifest.read_bytes(), files_without_backups(host)
    assert old != new
    for number in itertools.count(1):
        shutil.rmtree(host.k)
        shutil.copytree(saved, host.k, symlinks=True)
        code = killed_run(host, number, *flags)
        assert files_read_by_kubelet(host) == ["kube-scheduler.yaml"]
        assert host.manifest.read_bytes() in (old, new), number
        if code == 0:
            break
        assert code == -signal.SIGKILL
        run(host, *flags)
        assert files_without_backups(host) == expected, number
        assert list(host.k.rglob(".nodewise-*")) == [], number
    assert files_without_backups(host) == expected
    print(number - 1)
    sys.exit()


def killed_run(host: ControlPlaneHost, number: int, *flags: str) -> int:
    """The exit code of a child that is killed at its write call of this number, if it has as many."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    with contextlib.suppress(Exception):
        fault_injection.signal_at_write(number, signal.SIGKILL)
        run(host, *flags)
        code = 0
    os._exit(code)


def run(host: ControlPlaneHost, *flags: str) -> None:
    """An undisturbed run in this process, which has to succeed."""
    arguments = [*host.base_flags(), *flags]
    with contextlib.chdir(host.work):
        completed = CliRunner().invoke(configure.command, arguments, standalone_mode=False)
    if completed.exception:
        raise completed.exception
    assert (completed.return_value or completed.exit_code) == 0, completed.stderr


def files_read_by_kubelet(host: ControlPlaneHost) -> list[str]:
    return [path.name for path in host.manifest.parent.iterdir() if path.is_file() and path.name[0] != "."]


def files_without_backups(host: ControlPlaneHost) -> dict[str, tuple[int, bytes]]:
    """Modes and contents of all files except backups, whose names in annotations are random."""
    return {
        name: (mode, re.sub(rb"backup_[0-9_-]+", b"backup", content))
        for name, (mode, content) in host.snapshot().items()
        if "backup_" not in name and content is not None
    }


@pytest.mark.parametrize("flags", [[], ["--no-backup"]], ids=["with-a-backup", "without"])
def test_a_first_run(host: ControlPlaneHost, flags: list[str]) -> None:
    assert kill_at_each_write(host, *flags) >= 20


def test_a_run_that_changes_everything_that_is_there(host: ControlPlaneHost) -> None:
    assert host.run("--no-backup").code == 0
    host.template.write_bytes(GAS_TEMPLATE.encode())
    (host.certs / "client.key").chmod(0o644)
    assert kill_at_each_write(host) >= 20


def test_taking_everything_out(host: ControlPlaneHost) -> None:
    assert host.run("--no-backup").code == 0
    assert kill_at_each_write(host, "--uninstall") >= 20


def test_restoring(host: ControlPlaneHost) -> None:
    assert host.run().code == 0
    assert kill_at_each_write(host, "--restore") >= 5
