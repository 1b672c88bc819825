"""A run that is killed at each call that writes: the manifest is old or new, and the next run mends the rest."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.configure import pods
from tests.conformance.configure.hosts import Host

KILLED = -signal.SIGKILL
ENDED = """
import os, signal, sys

left = int(sys.argv.pop(1))
sys.dont_write_bytecode = True

def counted(name):
    real = getattr(os, name)
    def call(*given, **named):
        global left
        writes = name != "open" or given[1] & (os.O_CREAT | os.O_TRUNC)
        left -= bool(writes)
        if left == 0 and writes:
            if name == "write":
                real(given[0], bytes(given[1])[: len(given[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*given, **named)
    setattr(os, name, call)

from nodewise.cli import configure
from nodewise.cli.main import run
for name in ("open", "write", "mkdir", "rename", "replace", "unlink", "rmdir", "chmod", "fchmod", "fchown"):
    counted(name)
run()
"""


def ended_at(host: Host, number: int, *flags: str) -> int:
    words = [sys.executable, "-c", ENDED, str(number), "configure", *host.base(), *flags]
    return subprocess.run(words, cwd=host.work, capture_output=True, timeout=120, check=False).returncode


def read_by_kubelet(host: Host) -> list[str]:
    return [path.name for path in host.manifest.parent.iterdir() if path.is_file() and path.name[0] != "."]


def left_behind(host: Host) -> list[Path]:
    return list(host.k.rglob(".nodewise-*"))


def every_ending(tmp_path: Path, prepare, flags: list[str], mended: list[str]) -> int:
    """End a run at its first call, its second, and so on, until it ends by itself; then run again. How many calls."""
    whole = Host(tmp_path / "whole")
    prepare(whole)
    old = whole.manifest.read_bytes()
    assert whole.run(*flags).code == 0
    wanted = snapshot(whole)
    number = 0
    while True:
        number += 1
        host = Host(tmp_path / str(number))
        prepare(host)
        own_old = host.manifest.read_bytes()
        code = ended_at(host, number, *flags)
        assert read_by_kubelet(host) == ["kube-scheduler.yaml"]
        text = host.manifest.read_bytes()
        new = at_home(whole.manifest.read_bytes(), whole, host)
        assert text in (own_old, new), number
        if code == 0:
            assert text == new
            return number - 1
        assert code == KILLED
        assert host.run(*mended).code == 0
        assert snapshot(host) == wanted, number
        assert left_behind(host) == []
        assert len(old) > 0


def at_home(text: bytes, whole: Host, host: Host) -> bytes:
    return text.replace(str(whole.k).encode(), str(host.k).encode())


def snapshot(host: Host) -> dict[str, tuple[int, bytes]]:
    """Files and modes but for backups; K stands for the folder, and the hash is left out, which K is part of."""
    found = {}
    for name, (mode, data) in host.everything().items():
        if "backup_" in name or data is None:
            continue
        if name.endswith("kube-scheduler.yaml"):
            pod = yaml.safe_load(data)
            pod["metadata"].get("annotations", {}).pop("nodewise.io/config-hash", None)
            pod["metadata"].get("annotations", {}).pop("nodewise.io/before-configure", None)
            found[name] = (mode, pod_text(pod, host))
        else:
            found[name] = (mode, data.replace(str(host.k).encode(), b"K"))
    return found


def pod_text(pod: dict[str, Any], host: Host) -> bytes:
    return yaml.safe_dump(pod).encode().replace(str(host.k).encode(), b"K")


@pytest.mark.parametrize("flags", [[], ["--no-backup"]], ids=["with-a-backup", "without"])
def test_a_first_run(tmp_path, flags):
    calls = every_ending(tmp_path, lambda host: None, flags, flags)
    assert calls >= 20


def test_a_run_that_changes_everything_that_is_there(tmp_path):
    def prepare(host: Host) -> None:
        assert host.run("--no-backup").code == 0
        host.template.write_bytes(pods.GAS.encode())
        (host.certs / "client.key").chmod(0o644)

    assert every_ending(tmp_path, prepare, [], []) >= 20


def test_taking_everything_out(tmp_path):
    def prepare(host: Host) -> None:
        assert host.run("--no-backup").code == 0

    assert every_ending(tmp_path, prepare, ["--uninstall"], ["--uninstall"]) >= 20


def test_restoring(tmp_path):
    def prepare(host: Host) -> None:
        assert host.run().code == 0

    assert every_ending(tmp_path, prepare, ["--restore"], ["--restore"]) >= 5
