"""The folders that `configure` writes to and that are mounted from the host."""

from pathlib import Path

import msgspec
import pytest

from nodewise.base.errors import BadInput
from nodewise.cli.configure import host
from nodewise.cli.configure.options import ConfigureOptions
from nodewise.install import host_checks

INFO = """\
516 480 0:51 / / ro,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b,workdir=/c
517 516 0:55 / /proc rw,nosuid - proc proc rw
519 516 0:56 / /dev rw,nosuid - tmpfs tmpfs rw
528 516 254:0 /etc/kubernetes /etc/kubernetes rw,relatime - ext4 /dev/vda rw
529 516 254:1 /@/srv/a\\040b /srv/a\\040b rw,relatime - btrfs /dev/vdb rw
530 516 254:2 /kubernetes /host/etc/kubernetes rw,relatime - ext4 /dev/vdc rw
"""
MOUNTS = host_checks.parse_mountinfo(INFO)


@pytest.mark.parametrize(
    "folder",
    ["/etc/kubernetes", "/etc/kubernetes/schedulercerts", "/srv/a b/certs", "/host/etc/kubernetes/x"],
)
def test_a_folder_below_a_mount_is_the_hosts(folder: str) -> None:
    assert host_checks.container_folder_problems({"--cert-dir": folder}, MOUNTS) == []


@pytest.mark.parametrize("folder", ["/etc/certs", "/etc/kubernetes-certs", "/etc", "/"])
def test_any_other_is_gone_with_the_container(folder: str) -> None:
    (problem,) = host_checks.container_folder_problems(
        {"--cert-dir": folder, "-d": "/etc/kubernetes"}, MOUNTS
    )
    assert (problem.field, problem.found.split()[0]) == ("--cert-dir", folder)


def test_a_folder_with_another_path_on_the_host_is_reported_once() -> None:
    folders = [
        "/etc/kubernetes/manifests",
        "/srv/a b/c",
        "/host/etc/kubernetes/a",
        "/host/etc/kubernetes/b",
        "/etc/certs",
    ]
    assert host_checks.mounts_with_uncertain_host_path(folders, MOUNTS) == [
        host_checks.MountPoint("/host/etc/kubernetes", "/kubernetes")
    ]


def test_only_in_the_image_is_it_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ConfigureOptions()
    monkeypatch.setattr(host, "_MOUNTS", tmp_path / "mountinfo")
    host.check_container_mounts(options)
    (tmp_path / "mountinfo").write_text(INFO)
    monkeypatch.setenv("NODEWISE_IMAGE", "1")
    with pytest.raises(BadInput, match="file check error") as caught:
        host.check_container_mounts(options)
    assert [problem.field for problem in caught.value.problems] == ["--cert-dir"]
    host.check_container_mounts(msgspec.structs.replace(options, restore="newest"))
    host.check_container_mounts(msgspec.structs.replace(options, cert_dir="/etc/kubernetes/schedulercerts"))
