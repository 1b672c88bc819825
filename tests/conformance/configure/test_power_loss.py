"""A run that is killed at each call that writes: the manifest is old or new, and the next run mends the rest."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.configure import fault_injection, scheduler_manifests
from tests.conformance.configure.control_plane_hosts import ControlPlaneHost


def run(host: ControlPlaneHost, *flags: str, killed_at: int = 0) -> int:
    before = partial(fault_injection.signal_at_write, killed_at, signal.SIGKILL) if killed_at else None
    return host.configure(*host.base_flags(), *flags, before=before).code


def read_by_kubelet(host: ControlPlaneHost) -> list[str]:
    return [path.name for path in host.manifest.parent.iterdir() if path.is_file() and path.name[0] != "."]


def left_behind(host: ControlPlaneHost) -> list[Path]:
    return list(host.k.rglob(".nodewise-*"))


def every_ending(tmp_path: Path, prepare, flags: list[str], mended: list[str]) -> int:
    """End a run at its first call, its second, and so on, until it ends by itself; then run again. How many calls."""
    whole = ControlPlaneHost(tmp_path / "whole")
    prepare(whole)
    old = whole.manifest.read_bytes()
    assert run(whole, *flags) == 0
    wanted = snapshot(whole)
    number = 0
    while True:
        number += 1
        host = ControlPlaneHost(tmp_path / str(number))
        prepare(host)
        own_old = host.manifest.read_bytes()
        code = run(host, *flags, killed_at=number)
        assert read_by_kubelet(host) == ["kube-scheduler.yaml"]
        text = host.manifest.read_bytes()
        new = at_home(whole.manifest.read_bytes(), whole, host)
        assert text in (own_old, new), number
        if code == 0:
            assert text == new
            return number - 1
        assert code == -signal.SIGKILL
        assert run(host, *mended) == 0
        assert snapshot(host) == wanted, number
        assert left_behind(host) == []
        assert len(old) > 0


def at_home(text: bytes, whole: ControlPlaneHost, host: ControlPlaneHost) -> bytes:
    return text.replace(str(whole.k).encode(), str(host.k).encode())


def snapshot(host: ControlPlaneHost) -> dict[str, tuple[int, bytes]]:
    """Files and modes but for backups; K stands for the folder, and the hash is left out, which K is part of."""
    files = {}
    for name, (mode, data) in host.snapshot().items():
        if "backup_" in name or data is None:
            continue
        if name.endswith("kube-scheduler.yaml"):
            pod = yaml.safe_load(data)
            pod["metadata"].get("annotations", {}).pop("nodewise.io/config-hash", None)
            pod["metadata"].get("annotations", {}).pop("nodewise.io/before-configure", None)
            files[name] = (mode, pod_text(pod, host))
        else:
            files[name] = (mode, data.replace(str(host.k).encode(), b"K"))
    return files


def pod_text(pod: dict[str, Any], host: ControlPlaneHost) -> bytes:
    return yaml.safe_dump(pod).encode().replace(str(host.k).encode(), b"K")


@pytest.mark.parametrize("flags", [[], ["--no-backup"]], ids=["with-a-backup", "without"])
def test_a_first_run(tmp_path, flags):
    calls = every_ending(tmp_path, lambda host: None, flags, flags)
    assert calls >= 20


def test_a_run_that_changes_everything_that_is_there(tmp_path):
    def prepare(host: ControlPlaneHost) -> None:
        assert run(host, "--no-backup") == 0
        host.template.write_bytes(scheduler_manifests.GAS.encode())
        (host.certs / "client.key").chmod(0o644)

    assert every_ending(tmp_path, prepare, [], []) >= 20


def test_taking_everything_out(tmp_path):
    def prepare(host: ControlPlaneHost) -> None:
        assert run(host, "--no-backup") == 0

    assert every_ending(tmp_path, prepare, ["--uninstall"], ["--uninstall"]) >= 20


def test_restoring(tmp_path):
    def prepare(host: ControlPlaneHost) -> None:
        assert run(host) == 0

    assert every_ending(tmp_path, prepare, ["--restore"], ["--restore"]) >= 5
