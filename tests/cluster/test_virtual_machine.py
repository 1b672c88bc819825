"""The boot of an emulated machine, with a shell script instead of the emulator."""

import contextlib
import os
from pathlib import Path

import pytest

from tests.cluster import virtual_machine
from tests.cluster.child_processes import NotReadyError

LOCKUP = "watchdog: BUG: soft lockup - CPU#0 stuck for 104s! [cryptomgr_test:90]"


def machine(folder: Path, stuck: int) -> list[str | Path]:
    """A command whose first `stuck` starts report a stuck CPU, and whose next one is up."""
    starts = folder / "starts"
    script = f"""
echo >> {starts}
if [ $(wc -l < {starts}) -gt {stuck} ]; then echo '{virtual_machine.UP}'; else echo '{LOCKUP}'; fi
exec sleep 1000
"""
    return ["sh", "-c", script]


def test_a_boot_with_a_stuck_cpu_is_ended_and_tried_again(tmp_path: Path) -> None:
    with virtual_machine.booted(machine(tmp_path, 2), tmp_path, dict(os.environ), lambda: True) as process:
        assert process.is_running
        assert len((tmp_path / "starts").read_text()) == 3


def test_the_last_boot_with_a_stuck_cpu_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="stuck for 104s"), contextlib.ExitStack() as stack:
        stack.enter_context(
            virtual_machine.booted(
                machine(tmp_path, virtual_machine.ATTEMPTS), tmp_path, dict(os.environ), lambda: True
            )
        )
    assert len((tmp_path / "starts").read_text()) == virtual_machine.ATTEMPTS


def test_a_program_that_ends_in_its_boot_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="ended with code 7"):
        virtual_machine.booted(["sh", "-c", "exit 7"], tmp_path, dict(os.environ), lambda: True)
