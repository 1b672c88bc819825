"""Errors of `cmk install`, run as a user runs it."""

import subprocess
import sys
from pathlib import Path

from tests import forked_commands

CMK = Path(sys.executable).parent / "cmk"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return forked_commands.run([CMK, "install", *map(str, words)])


def test_a_folder_that_is_not_ready(tmp_path: Path) -> None:
    done = run("--from", tmp_path, "--install-dir", tmp_path / "bin")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path}: not a ready folder; expected the program cmk" in done.stderr
    assert not (tmp_path / "bin").exists()


def test_a_folder_to_build_that_is_there(tmp_path: Path) -> None:
    done = run("--build", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path}: exists; expected a new folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_mount_that_no_container_can_have() -> None:
    done = run("--mount-path", "opt/bin")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--mount-path: opt/bin; expected an absolute path" in done.stderr


def test_a_program_that_names_no_loader(tmp_path: Path) -> None:
    ready, host = tmp_path / "ready", tmp_path / "bin"
    (ready / "lib").mkdir(parents=True)
    (ready / "lib/ld-linux-x86-64.so.2").write_bytes(b"")
    (ready / "cmk").write_text("#!/bin/sh\n")
    done = run("--from", ready, "--install-dir", host)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        "cannot relocate the program: executable: b'#!/bin/s'; expected a 64-bit ELF executable"
        in done.stderr
    )
    assert not host.exists()


def test_a_host_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "bin").write_text("")
    done = run("--install-dir", tmp_path / "bin")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is a file" in done.stderr
