"""A user of a control-plane host forges files for `nodewise configure`, which root runs: it writes none of them."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodewise.install.file_transaction import digest
from tests.conformance.configure.control_plane_hosts import ControlPlaneHost

pytestmark = pytest.mark.root
TENANT = 1000
PAYLOAD = b"#!/bin/sh\nid\n"


@pytest.fixture
def host(tmp_path: Path) -> ControlPlaneHost:
    return ControlPlaneHost(tmp_path)


def planted(parent: Path, victim: Path, *, finished: bool) -> Path:
    """Creates a forged backup of an interrupted run, whose restoration would write a setuid program to a path."""
    folder = parent / "backup_2026-01-01_1"
    folder.mkdir(parents=True)
    (folder / "program").write_bytes(PAYLOAD)
    shared: dict[str, Any] = {"mode": 0o4755, "owner": None}
    # as if the run had removed the program and had not created the other file yet
    files = [
        {"path": str(victim), "name": "program", "before": digest(PAYLOAD), "after": None, **shared},
        {"path": str(victim) + ".2", "name": None, "before": None, "after": digest(b"x"), **shared},
    ]
    (folder / "nodewise-backup.json").write_text(json.dumps({"finished": finished, "files": files}))
    return folder


def give(*paths: Path) -> None:
    for path in paths:
        for entry in (path, *path.rglob("*")):
            os.chown(entry, TENANT, TENANT)


@pytest.mark.parametrize("flags", [[], ["--restore"]], ids=["run", "restore"])
@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=["owned", "sticky"])
def test_a_planted_backup_has_root_write_nothing(
    host: ControlPlaneHost, tmp_path: Path, flags: list[str], mode: int
) -> None:
    victim, parent = tmp_path / "victim", tmp_path / "backups"
    folder = planted(parent, victim, finished=bool(flags))
    if mode == 0o755:
        give(parent)
    else:
        give(folder)
        parent.chmod(mode)
    before = host.snapshot()
    ran = host.run(*flags, b=str(parent))
    assert ran.code == 1
    assert not victim.exists()
    assert host.snapshot() == before
    if not flags:
        assert f"{parent}: owner " in ran.err
        assert "chown root" in ran.err


def test_a_planted_backup_beside_roots_own_is_named_and_left(host: ControlPlaneHost, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    folder = planted(host.k, victim, finished=False)
    give(folder)
    ran = host.run()
    assert ran.code == 0, ran.err
    assert f'"{folder}" is no backup that can be used' in ran.err
    assert not victim.exists()
    assert host.run("--restore", str(folder)).code == 1
    assert not victim.exists()


def test_a_backup_has_only_files_written_that_the_command_manages(
    host: ControlPlaneHost, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    folder = planted(host.k, victim, finished=False)
    ran = host.run()
    assert ran.code == 0, ran.err
    assert "does not manage" in ran.err
    assert not victim.exists()
    ran = host.run("--restore", str(folder), "--replace")
    assert ran.code == 1
    assert f"{victim}; expected one that this command manages" in ran.err
    assert not victim.exists()


def test_setuid_is_never_restored(host: ControlPlaneHost) -> None:
    assert host.run().code == 0
    [backup] = host.backups
    index = backup / "nodewise-backup.json"
    value = json.loads(index.read_text())
    value["files"] = [entry | {"mode": entry["mode"] | 0o7000} for entry in value["files"]]
    index.write_text(json.dumps(value))
    ran = host.run("--restore")
    assert ran.code == 0, ran.err
    assert not any(mode & 0o7000 for mode, content in host.snapshot().values() if content is not None)


@pytest.mark.parametrize(
    "what", ["manifest", "template", "key", "config", "folder of the manifest", "folder of keys"]
)
def test_no_file_of_another_user_is_used(host: ControlPlaneHost, what: str) -> None:
    host.config.write_text("old\n")
    paths = {
        "manifest": host.manifest,
        "template": host.template,
        "key": host.k / "pki/scheduler-client.key",
        "config": host.config,
        "folder of the manifest": host.manifest.parent,
        "folder of keys": host.k / "pki",
    }
    os.chown(paths[what], TENANT, 0)
    before = host.snapshot()
    ran = host.run()
    assert ran.code == 1
    assert f"{paths[what]}: owner 1000, mode {stat.S_IMODE(paths[what].stat().st_mode):04o}" in ran.err
    assert host.snapshot() == before
    os.chown(paths[what], 0, 0)
    ran = host.run()
    assert ran.code == 0, ran.err


def test_a_folder_that_everybody_may_write_to_gets_no_certificates(
    host: ControlPlaneHost, tmp_path: Path
) -> None:
    certs = tmp_path / "certs"
    certs.mkdir()
    certs.chmod(0o1777)
    ran = host.run(cert_dir=str(certs))
    assert ran.code == 1
    assert f"{certs}: owner 0, mode 1777; expected owner root, writable by no one else" in ran.err
    assert list(certs.iterdir()) == []


def test_certificates_are_not_written_where_another_user_could_exchange_them(tmp_path: Path) -> None:
    folder = tmp_path / "user/pki"
    folder.mkdir(parents=True)
    os.chown(folder.parent, TENANT, 0)
    command = [sys.executable, "-m", "nodewise", "certs", "--host", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert f"{folder.parent}: owner 1000" in ran.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["tls.crt", "tls.key", "ca.crt", "client.key"])
@pytest.mark.parametrize("kind", ["pipe", "device", "huge file", "folder"])
def test_a_file_that_never_ends_is_no_certificate(tmp_path: Path, kind: str, name: str) -> None:
    folder = tmp_path / "pki"
    folder.mkdir()
    file = folder / name
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    else:
        with file.open("wb") as sparse:
            sparse.truncate(2**40)
    ran = run_certs(folder)
    assert ran.returncode == 1
    expected = {"huge file": "1099511627776 bytes", "folder": "Is a directory"}.get(kind, "no regular file")
    assert str(file) in ran.stderr
    assert expected in ran.stderr
    assert [entry.name for entry in folder.iterdir()] == [name]


@pytest.mark.parametrize("link", ["hard", "symbolic"])
def test_certificates_replace_a_link_and_not_its_target(tmp_path: Path, link: str) -> None:
    folder, other = tmp_path / "pki", tmp_path / "other"
    folder.mkdir()
    other.write_text("precious")
    if link == "hard":
        os.link(other, folder / "tls.key")
    else:
        (folder / "tls.key").symlink_to(other)
    assert "was not written by nodewise certs" in run_certs(folder).stderr
    ran = run_certs(folder, "--replace")
    assert ran.returncode == 0, ran.stderr
    assert other.read_text() == "precious"
    assert "PRIVATE KEY" in (folder / "tls.key").read_text()


def test_a_key_is_readable_for_root_only_whatever_the_umask(tmp_path: Path) -> None:
    ran = run_certs(tmp_path / "pki", umask=0)
    assert ran.returncode == 0, ran.stderr
    modes = {
        name: stat.S_IMODE((tmp_path / "pki" / name).stat().st_mode) for name in ("tls.key", "client.key")
    }
    assert modes == {"tls.key": 0o600, "client.key": 0o600}
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o755


def run_certs(folder: Path, *flags: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nodewise", "certs", "--host", str(folder), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, umask=umask)
