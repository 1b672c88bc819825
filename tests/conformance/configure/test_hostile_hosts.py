"""Hostile hosts: unusual files, concurrent writers, full disks, and backups of other hosts."""

import ctypes
import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from nodewise.base.errors import BadInput, Conflict
from nodewise.install import file_transaction
from nodewise.install.file_transaction import Backup, FileChange
from tests.conformance.configure import fault_injection
from tests.conformance.configure.control_plane_hosts import AUTHORITY, ControlPlaneHost
from tests.conformance.configure.scheduler_manifests import TAS_TEMPLATE, kubeadm_pod, to_yaml, with_field
from tests.conformance.configure.test_host_and_certificate_problems import assert_refused

POD = kubeadm_pod(30)
IMAGE = "spec.containers.0.image"


# other kinds of files


def test_a_manifest_that_is_a_pipe_or_a_huge_file(host):
    host.manifest.unlink()
    os.mkfifo(host.manifest)
    assert "no regular file" in host.run().err
    host.manifest.unlink()
    with host.manifest.open("wb") as file:
        file.truncate(2**40)
    ran = host.run()
    assert (ran.code, "at most" in ran.err) == (1, True)
    host.manifest.unlink()


@pytest.mark.parametrize("name", ["template", "cert", "key", "ca"])
def test_a_file_to_read_that_is_a_pipe_or_a_device(host, name):
    path = host.work / "pipe"
    os.mkfifo(path)
    flags = {"template": ["-f", str(path)], "ca": ["--ca", str(path)]}.get(name, [f"-{name}", str(path)])
    assert "no regular file" in assert_refused(host, *flags)
    assert "no regular file" in assert_refused(host, *flags[:-1], "/dev/zero")


def test_a_hard_link_of_the_manifest_is_a_warning(host):
    other = host.k / "another-name.yaml"
    os.link(host.manifest, other)
    old = other.read_bytes()
    ran = host.run()
    assert ran.code == 0
    assert f"{host.manifest} has another name" in ran.err
    assert other.read_bytes() == old


@pytest.mark.parametrize("name", ["user.owner", "security.selinux"])
def test_extended_attributes_of_a_file_are_kept(host, name):
    """The SELinux context matters most: without it a container cannot read its configuration."""
    host.config.write_text("old\n")
    value = b"system_u:object_r:etc_t:s0\0"
    try:
        for path in (host.manifest, host.config):
            os.setxattr(path, name, value)
    except OSError:
        pytest.skip(f"{name} cannot be set here")
    assert host.run().code == 0
    assert [os.getxattr(path, name) for path in (host.manifest, host.config)] == [value, value]
    assert host.run("--restore").code == 0
    assert [os.getxattr(path, name) for path in (host.manifest, host.config)] == [value, value]


def test_listed_extended_attributes_without_a_value_are_left_out(tmp_path, monkeypatch):
    def getxattr(path, name):
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), path)

    monkeypatch.setattr(os, "listxattr", lambda path: ["security.selinux"])
    monkeypatch.setattr(os, "getxattr", getxattr)
    (tmp_path / "old").write_bytes(b"old")
    file_transaction.write(str(tmp_path / "new"), b"new", 0o600, None, like=str(tmp_path / "old"))
    assert (tmp_path / "new").read_bytes() == b"new"


@pytest.mark.root
def test_owners_are_kept(host):
    host.config.write_text("old\n")
    for path in (host.manifest, host.config):
        os.chown(path, 0, 34)
    assert host.run().code == 0
    assert {(path.stat().st_uid, path.stat().st_gid) for path in (host.manifest, host.config)} == {(0, 34)}


# paths


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "scheduler-client.crt"])
def test_no_file_of_the_cluster_is_taken_for_the_place_of_the_configuration(host, name):
    template = host.work / name
    template.write_text(TAS_TEMPLATE)
    assert f"{host.k}/pki/{name}: " in assert_refused(host, f=str(template), d=str(host.k / "pki"))


def test_a_kubeconfig_is_not_overwritten_by_a_template_of_its_name(host):
    (host.k / "scheduler.conf").write_text("apiVersion: v1\nkind: Config\nclusters: []\n")
    template = host.work / "scheduler.conf"
    template.write_text(TAS_TEMPLATE)
    assert "kind Config" in assert_refused(host, f=str(template))


def test_certificates_do_not_go_where_the_clusters_own_are(host):
    other = host.write_certificate("other.crt", AUTHORITY.cert)
    assert "the cluster's own certificates" in assert_refused(
        host, "--ca", str(other), cert_dir=str(host.k / "pki")
    )


def test_a_volume_of_our_names_that_another_container_uses(host):
    sidecar = {"name": "sidecar", "image": "a/b:v1", "volumeMounts": [{"name": "certdir", "mountPath": "/x"}]}
    volumes = [*POD["spec"]["volumes"], {"name": "certdir", "emptyDir": {}}]
    pod = with_field(POD, "spec.volumes", volumes)
    host.write(with_field(pod, "spec.containers", [*POD["spec"]["containers"], sidecar]))
    assert "'sidecar'" in assert_refused(host)


def run_on_mount(folder: Path, options: str, run: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with this folder as a temporary file system."""
    inner = f'mount -t tmpfs -o {options} none "$0" && cp -a "$0.saved/." "$0" && exec "$@"'
    if "ro" in options.split(","):
        inner = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    words = ["unshare", "--mount", "--propagation=private", "sh", "-c", inner, str(folder), *run]
    done = subprocess.run(words, cwd=work, capture_output=True, text=True, timeout=120, check=False)
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip("cannot mount here")
    return done


@pytest.mark.root
def test_a_file_system_that_is_read_only(host):
    program = [sys.executable, "-B", "-m", "nodewise", "configure", *host.base_flags()]
    done = run_on_mount(host.k, "ro", program, host.work)
    assert done.returncode == 1
    assert f"open {host.manifest}: read-only file system" in done.stderr
    assert run_on_mount(host.k, "ro", [*program, "-dry-run"], host.work).returncode == 0


@pytest.mark.parametrize("pages", range(7, 17, 2))
@pytest.mark.root
def test_a_disk_that_is_full(host, pages):
    """A full disk at any file leaves everything unchanged."""
    shutil.copytree(host.k, f"{host.k}.saved", symlinks=True)
    script = host.work / "run.sh"
    words = [sys.executable, "-B", "-m", "nodewise", "configure", *host.base_flags()]
    script.write_text(
        'fill() { cat /dev/zero > "$1/filler" 2> /dev/null; truncate --size "-$2" "$1/filler"; }\n'
        f'K="{host.k}"; fill "$K" {pages * 4096 - 6 * 4096}\n'
        'before=$(cd "$K" && find . ! -name filler -type f -exec sha256sum {} + | sort)\n'
        f"{subprocess.list2cmdline(words)}; code=$?\n"
        'after=$(cd "$K" && find . ! -name filler -type f -exec sha256sum {} + | sort)\n'
        '[ "$code" = 0 ] && { echo done; exit 0; }\n'
        '[ "$before" = "$after" ] && [ "$code" = 1 ] && { echo same; exit 0; }\n'
        'echo "$after"; exit 9\n'
    )
    done = run_on_mount(host.k, "size=256k", ["sh", str(script)], host.work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() in {"done", "same"}
    if done.stdout.strip() == "same":
        assert "nothing was changed: No space left on device" in done.stderr


# concurrent writers


def planned_changes(tmp_path: Path) -> list[FileChange]:
    first, second = tmp_path / "config", tmp_path / "manifest"
    second.write_bytes(b"old")
    return [FileChange(str(first), None, b"new", 0o644), FileChange(str(second), b"old", b"new", 0o600)]


def test_a_concurrent_write_during_staging_is_not_overwritten(tmp_path, monkeypatch):
    changes = planned_changes(tmp_path)
    real = file_transaction.write_staged

    def write_staged(path, *more):
        result = real(path, *more)
        if path.endswith("manifest"):
            Path(path).write_bytes(b"theirs")
        return result

    monkeypatch.setattr(file_transaction, "write_staged", write_staged)
    with pytest.raises(Conflict, match="changed by another process"):
        file_transaction.commit_changes(changes, Backup(str(tmp_path), "backup_x"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"manifest": b"theirs"}


def test_a_later_write_of_another_process_survives_a_failed_run(tmp_path, monkeypatch):
    changes = planned_changes(tmp_path)

    manifest = Path(changes[1].path)

    def fail_after_the_manifest_is_replaced(folder):
        if manifest.read_bytes() == b"new":
            manifest.write_bytes(b"theirs")
            raise OSError(errno.EIO, os.strerror(errno.EIO), changes[0].path)

    monkeypatch.setattr(file_transaction, "fsync_folder", fail_after_the_manifest_is_replaced)
    with pytest.raises(Exception, match="Input/output error"):
        file_transaction.commit_changes(changes, Backup(str(tmp_path), "backup_x"))
    assert (tmp_path / "manifest").read_bytes() == b"theirs"


def test_a_write_of_another_process_after_ours_is_an_error_and_undoes_the_other_files(tmp_path, monkeypatch):
    config, manifest = (Path(change.path) for change in planned_changes(tmp_path))

    def write_after_the_manifest_is_replaced(folder):
        if manifest.read_bytes() == b"new":
            config.write_bytes(b"theirs")

    monkeypatch.setattr(file_transaction, "fsync_folder", write_after_the_manifest_is_replaced)
    with pytest.raises(Conflict, match="config is not what was written"):
        file_transaction.commit_changes(
            [FileChange(str(config), None, b"new", 0o644), FileChange(str(manifest), b"old", b"new", 0o600)],
            Backup(str(tmp_path), "backup_x"),
        )
    expected = {"config": b"theirs", "manifest": b"old"}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == expected


IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_NONBLOCK = 0x2, 0x80, 0x100, 0x200, 0o4000


def inotify_events(descriptor: int) -> list[tuple[int, str]]:
    """Events of the names in a folder, as the kubelet receives them: inotify(7)."""
    data, events = os.read(descriptor, 2**16), []
    while data:
        _, mask, _, length = struct.unpack_from("iIII", data)
        events.append((mask & 0xFFFF, data[16 : 16 + length].rstrip(b"\0").decode()))
        data = data[16 + length :]
    return events


@pytest.mark.parametrize("flags", [[], ["--restore"], ["--uninstall"]])
def test_a_watcher_of_the_folder_sees_one_whole_manifest_replace_another(host, flags):
    if flags:
        assert host.run().code == 0
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(IN_NONBLOCK)
    watched = IN_MODIFY | IN_MOVED_TO | IN_CREATE | IN_DELETE
    assert libc.inotify_add_watch(descriptor, os.fsencode(host.manifest.parent), watched) > 0
    assert host.run(*flags).code == 0
    seen = [(mask, name) for mask, name in inotify_events(descriptor) if not name.startswith(".")]
    os.close(descriptor)
    assert seen == [(IN_MOVED_TO, "kube-scheduler.yaml")]


def test_control_c_at_any_moment(tmp_path):
    """Everything is old or new, no temporary file remains, and the next run succeeds."""
    number, codes = 0, set()
    while True:
        number += 3
        host = ControlPlaneHost(tmp_path / str(number))
        before = host.snapshot()
        done = host.configure(
            *host.base_flags(), before=partial(fault_injection.signal_at_write, number, signal.SIGINT)
        )
        codes.add(done.code)
        if done.code == 0:
            break
        is_new = "schedulerconfig" in host.manifest.read_text()
        assert is_new or host.snapshot() == before, number
        assert list(host.k.rglob(".nodewise-*")) == []
        assert [path.name for path in host.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]
        ran = host.run()
        assert ran.code == 0
        assert host.run("--check").code == 0
    assert number > 20
    assert codes <= {0, 1, 130, -signal.SIGINT}


# backups of other hosts


def test_a_backup_of_an_older_kube_scheduler_is_not_restored_after_an_upgrade(host):
    assert host.run().code == 0
    [backup] = host.backups
    upgraded = with_field(POD, IMAGE, "registry.k8s.io/kube-scheduler:v1.31.4")
    host.write(upgraded)
    output = assert_refused(host, "--restore")
    assert "v1.30.0" in output
    assert "v1.31.4" in output
    assert "--uninstall" in output
    assert host.run("--restore", str(backup), "--replace").code == 0
    assert host.pod == POD


def test_a_backup_of_another_cluster_is_not_restored_and_of_another_host_only_with_a_warning(host):
    assert host.run().code == 0
    [backup] = host.backups
    index = backup / "nodewise-backup.json"
    value = json.loads(index.read_text())
    assert value["host"] == os.uname().nodename
    index.write_text(json.dumps({**value, "cluster": "another"}))
    assert "of another cluster" in assert_refused(host, "--restore")
    index.write_text(json.dumps({**value, "host": "another"}))
    ran = host.run("--restore", str(backup))
    assert (ran.code, "made on the host another" in ran.err) == (0, True)


def test_a_restore_warns_about_changes_that_it_loses(host):
    assert host.run().code == 0
    host.write(host.manifest.read_text() + "# mine\n")
    assert "was changed since that run" in host.run("--restore", "--dry-run").err


def test_a_backup_of_another_manifest_is_not_restored(host, tmp_path):
    assert host.run().code == 0
    other = ControlPlaneHost(tmp_path / "other")
    assert "another manifest" in assert_refused(other, "--restore", str(host.backups[0]))


ENTRY = {"path": "/x", "name": None, "mode": 1, "owner": None, "before": None, "after": None}
INDEXES = [
    "{}",
    "[]",
    '{"finished": false, "files": [{"path": "/x"}]}',
    json.dumps({"finished": True, "files": [ENTRY | {"path": "relative"}]}),
    json.dumps({"finished": True, "files": [ENTRY | {"name": "../../etc/passwd"}]}),
    '{"finished": "no"',
]


@pytest.mark.parametrize("text", INDEXES)
def test_a_backup_whose_index_makes_no_sense(host, text):
    folder = host.k / "backup_2026-01-01_1"
    folder.mkdir()
    (folder / "nodewise-backup.json").write_text(text)
    assert "nodewise-backup.json" in assert_refused(host, "--restore", str(folder))
    output = host.run().err
    assert f"{folder}" in output, "a run says what it leaves alone"
    assert "schedulerconfig" in host.manifest.read_text()


def mark_unfinished(host: ControlPlaneHost) -> None:
    index = host.backups[0] / "nodewise-backup.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "finished": False}))


def test_an_unfinished_run_is_not_undone_under_a_manifest_that_somebody_has_changed_since(host):
    """Undoing it would remove the configuration that the changed manifest names."""
    assert host.run().code == 0
    mark_unfinished(host)
    theirs = host.manifest.read_text().replace("--leader-elect=true", "--leader-elect=true\n    - --v=4")
    host.write(theirs)
    (host.k / "pki" / "scheduler-client.crt").write_text("no certificate any more")
    ran = host.run()
    assert ran.code == 1
    assert host.config.exists()
    assert (host.certs / "client.key").exists()
    assert host.manifest.read_text() == theirs


# edits of the user after a run


def test_a_configuration_that_the_user_put_in_our_place_stays_when_we_go(host):
    assert host.run().code == 0
    host.write(host.manifest.read_text().replace(f"--config={host.config}", "--config=/mine.yaml"))
    ran = host.run("--uninstall")
    assert ran.code == 0
    assert "--config=/mine.yaml" in host.container["command"]
    assert "/mine.yaml is not ours, and stays" in ran.err


def test_another_dns_policy_that_the_user_set_stays_when_we_go(host):
    assert host.run().code == 0
    host.write(host.manifest.read_text().replace("ClusterFirstWithHostNet", "Default"))
    assert host.run("--uninstall").code == 0
    assert host.pod == with_field(POD, "spec.dnsPolicy", "Default")


def test_our_annotations_were_removed(host):
    assert host.run().code == 0
    pod = host.pod
    del pod["metadata"]["annotations"]
    host.write(pod)
    ran = host.run("--uninstall")
    assert ran.code == 0
    assert host.pod == POD
    assert host.config.exists(), "nobody can say any more that it is as we wrote it"


def test_one_of_our_volumes_was_removed(host):
    assert host.run().code == 0
    pod = host.pod
    del pod["spec"]["volumes"][-1], pod["spec"]["containers"][0]["volumeMounts"][-1]
    host.write(pod)
    assert host.run().code == 0, "a run puts it back"
    assert host.run("--check").code == 0
    assert host.run("--uninstall").code == 0
    assert host.pod == POD


def test_additions_of_the_user_survive_an_uninstall(host):
    assert host.run().code == 0
    pod = host.pod
    pod["metadata"]["annotations"]["a/b"] = "c"
    pod["spec"]["containers"][0]["command"].append("--v=5")
    pod["spec"]["volumes"].append({"name": "mine", "emptyDir": {}})
    host.write(pod)
    assert host.run("--uninstall").code == 0
    wanted = (
        with_field(POD, "metadata.annotations", {"a/b": "c"}) if "annotations" in POD["metadata"] else POD
    )
    pod_after = host.pod
    assert pod_after["metadata"].pop("annotations") == {"a/b": "c"}
    assert pod_after["spec"]["containers"][0]["command"].pop() == "--v=5"
    assert pod_after["spec"]["volumes"].pop() == {"name": "mine", "emptyDir": {}}
    assert pod_after == wanted


# several documents and unusual texts


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("spec:\n", "spec: !!map\n"),
        ("  hostNetwork: true\n", "  ? hostNetwork\n  : true\n"),
        ("    - kube-scheduler\n", "    - >-\n      kube-scheduler\n"),
        ("    - kube-scheduler\n", "    - &program kube-scheduler\n"),
        ("status: {}\n", "status: {}\n...\n"),
        ("apiVersion: v1\n", "%YAML 1.1\n---\napiVersion: v1\n"),
        ("status: {}\n", "status: {}\n\n\n# the end, without a line end"),
        ("  volumes:\n", "  volumes:   # all of them\n\n"),
    ],
)
def test_odd_texts_are_edited_or_refused_and_never_broken(host, old, new):
    text = to_yaml(POD).replace(old, new)
    assert text != to_yaml(POD)
    host.write(text)
    before = host.snapshot()
    ran = host.run()
    if ran.code:
        assert (ran.code, host.snapshot()) == (1, before)
        return
    assert f"--config={host.config}" in host.container["command"]
    expected = "ClusterFirstWithHostNet"
    assert yaml.load(host.manifest.read_bytes(), yaml.CSafeLoader)["spec"]["dnsPolicy"] == expected
    assert host.run("--uninstall").code == 0
    assert host.manifest.read_text() == text


def test_content_has_a_limit(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**34)
    with pytest.raises(BadInput, match="at most"):
        file_transaction.read_file(str(path))
