"""The environment of a command if the program has its own libraries."""

import sys

import pytest

from nodewise_cpu.workload import isolate

CARRIED = {"LD_LIBRARY_PATH": "/opt/bin/cmk.d", "_PYI_ARCHIVE_FILE": "x", "_MEIPASS2": "y", "A": "b"}


def test_a_script_only_adds_the_variables_of_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", dict(CARRIED))
    assert isolate.command_environment({"CMK_CPUS_ASSIGNED": "1"}) == {**CARRIED, "CMK_CPUS_ASSIGNED": "1"}


@pytest.mark.parametrize("original", [None, "", "/usr/local/lib"])
def test_the_commands_libraries_are_not_ours(monkeypatch: pytest.MonkeyPatch, original: str | None) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    before = {} if original is None else {"LD_LIBRARY_PATH_ORIG": original}
    monkeypatch.setattr("os.environ", {**CARRIED, **before})
    after = {} if original is None else {"LD_LIBRARY_PATH": original}
    assert isolate.command_environment({}) == {"A": "b", **after}
