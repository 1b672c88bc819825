"""Problems of the host and of certificates: the numbered cases 81 to 98 and 102. No run is left incomplete."""

import shutil
import subprocess
from functools import partial

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.conformance.configure import fault_injection
from tests.conformance.configure.case_numbers import case
from tests.conformance.configure.control_plane_hosts import (
    AUTHORITY,
    CLIENT,
    PROGRAM,
    ControlPlaneHost,
    RunResult,
    issue,
)
from tests.conformance.configure.scheduler_manifests import kubeadm_pod, with_field
from tests.folder_permissions import let_other_users_read


def assert_refused(host: ControlPlaneHost, *flags: str, **other: str) -> str:
    before = host.snapshot()
    ran = host.run(*flags, **other)
    assert ran.code == 1, ran.err
    assert host.snapshot() == before
    return ran.err


@case(81)
def test_all_missing_files_are_reported_at_once(host):
    gone = str(host.manifest.parent / "nope.yaml")
    output = assert_refused(host, m=gone, key=str(host.k / "nope.key"))
    lines = [line for line in output.splitlines() if "no access to the file" in line]
    assert [line.partition('at path "')[2] for line in lines] == [
        f'{path}", err: open {path}: no such file or directory' for path in (gone, f"{host.k}/nope.key")
    ]
    assert "file check error: " in output


def test_a_file_that_is_missing_twice_is_reported_once(host):
    gone = str(host.k / "nope.crt")
    assert assert_refused(host, "--ca", gone, cert=gone).count(f"open {gone}: ") == 1


@case(82)
@case(83)
@case(87)
@case(88, "found before anything is written")
@case(89)
@case(90, "found before anything is written")
@case(91)
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"m": "{k}/pki"}, 'no access to the file at path "{k}/pki", err: open {k}/pki: is a directory'),
        (
            {"f": "{k}/no"},
            'no access to the file at path "{k}/no", err: open {k}/no: no such file or directory',
        ),
        ({"d": "{k}/no"}, 'can\'t create the file at path "{k}/no/scheduler-config.yaml"'),
        ({"cert_dir": "{k}/pki/ca.crt/x/"}, "file check error: {k}/pki/ca.crt/x: not a directory"),
        ({"cert_dir": "{k}/pki/ca.crt/"}, "{k}/pki/ca.crt: not a directory"),
        ({"cert_dir": "{k}/pki/ca.crt"}, "{k}/pki/ca.crt: not a directory"),
        ({"cert_dir": ""}, "file check error: mkdir : no such file or directory"),
        ({"cert": "{k}/pki"}, 'no access to the file at path "{k}/pki", err: open {k}/pki: is a directory'),
        ({"b": "{k}/no"}, 'can\'t create folders to "{k}/no", err: stat {k}/no: no such file or directory'),
        ({"d": "{k}/manifests"}, "{k}/manifests: a folder for static pods"),
        ({"b": "{k}/manifests"}, "{k}/manifests: a folder for static pods"),
        ({"cert_dir": "{k}/manifests/certs"}, "{k}/manifests/certs: a folder for static pods"),
        ({"m": "/dev/zero"}, "no regular file"),
        ({"m": "{k}/no/kube-scheduler.yaml"}, "open {k}/no/kube-scheduler.yaml: no such file or directory"),
        (
            {"m": "{k}/no/kube-scheduler.yaml"},
            "Clusters without one have --mode native from Kubernetes 1.36, --mode second-scheduler",
        ),
    ],
)
def test_paths(host, flags, says):
    paths = {name: value.format(k=host.k) for name, value in flags.items()}
    assert says.format(k=host.k) in assert_refused(host, **paths)


def test_links_that_lead_nowhere(host):
    host.config.symlink_to(host.k / "nowhere")
    assert "leads nowhere" in assert_refused(host)


NOBODY = 65534


@pytest.fixture
def root_owned_host(host):
    """A host that belongs to root and that other users can read."""
    let_other_users_read(host.k)
    for name in ("scheduler-client.key", "ca.key"):
        (host.k / "pki" / name).chmod(0o644)
    host.manifest.chmod(0o644)
    return host


def configure_as_nobody(host: ControlPlaneHost, *flags: str, **other: str) -> RunResult:
    return host.configure(*host.base_flags(**other), *flags, before=fault_injection.become_nobody)


@case(85, "the reason is told: permission denied")
@case(86)
@pytest.mark.root
def test_folders_that_are_somebody_elses(root_owned_host):
    before = root_owned_host.snapshot()
    ran = configure_as_nobody(root_owned_host)
    assert ran.code == 1
    assert f"open {root_owned_host.config}: permission denied" in ran.err
    assert f"{root_owned_host.certs}: permission denied" in ran.err
    assert f"open {root_owned_host.manifest}: permission denied" in ran.err
    assert root_owned_host.snapshot() == before


@case(102, "allowed")
@pytest.mark.root
def test_a_dry_run_needs_no_rights_to_write(root_owned_host):
    before = root_owned_host.snapshot()
    ran = configure_as_nobody(root_owned_host, "-dry-run")
    assert ran.code == 0, ran.err
    assert f"+    - --config={root_owned_host.config}" in ran.out
    assert root_owned_host.snapshot() == before


@pytest.mark.root
def test_unreadable_files_are_reported(root_owned_host):
    root_owned_host.run()
    ran = configure_as_nobody(root_owned_host, "-dry-run")
    assert ran.code == 1
    assert f"{root_owned_host.certs}/client.key: permission denied" in ran.err


@case(94, "found before anything is written")
def test_a_deployment_that_is_not_there(tmp_path):
    host = ControlPlaneHost(tmp_path, 23)
    assert "couldn't read deployment file" in assert_refused(host, tas_depl="nope.yaml")


@case(95)
def test_no_deployment(tmp_path):
    assert ControlPlaneHost(tmp_path, 23).run(tas_depl="").code == 0


@case(96, "only node-role.kubernetes.io/control-plane is replaced; a second run writes nothing")
def test_deployments_on_request(tmp_path):
    host = ControlPlaneHost(tmp_path, 23)
    names = [host.work / "deploy" / name for name in ("tas-deployment.yaml", "gas.yaml")]
    names[1].write_text("# control-plane\nb: node-role.kubernetes.io/control-plane\n")
    deployments = {"tas_depl": "deploy/tas-deployment.yaml", "gas_depl": "deploy/gas.yaml"}
    ran = host.run(**deployments)
    assert [f'Deployment at "{name}" modified' in ran.err for name in names] == [True, True]
    assert names[1].read_text() == "# control-plane\nb: node-role.kubernetes.io/master\n"
    assert host.run("--check", **deployments).code == 0


@case(97, "nothing is made")
def test_no_folder_is_left(host):
    deep = str(host.k / "x" / "p" / "q" / "certs")
    assert_refused(host, cert_dir=deep, key=str(host.k / "nope"))
    assert host.run("-dry-run", cert_dir=deep).code == 0
    assert not (host.k / "x").exists()
    assert host.run(cert_dir=deep).code == 0
    assert (host.k / "x" / "p" / "q" / "certs" / "client.key").exists()


@case(98, "written: bytes are compared")
def test_a_byte_that_is_no_text(host):
    host.run()
    wanted = host.config.read_bytes()
    host.config.write_bytes(wanted.replace(b"weight: 1", b"weight: 1 # \xff"))
    assert host.run("--check").code == 3
    assert host.run().code == 0
    assert host.config.read_bytes() == wanted


OTHER = issue("etcd-ca", is_ca=True)


@pytest.mark.parametrize(
    ("cert", "key", "says"),
    [
        (AUTHORITY.cert, AUTHORITY.key, "the key of a CA: -cert"),
        (issue("x", by=AUTHORITY, key=AUTHORITY.key).cert, AUTHORITY.key, "the key of a CA: --ca"),
        (issue("x", by=AUTHORITY, key=OTHER.key).cert, OTHER.key, "pki/etcd/odd-name.pem"),
        (b"CRT", b"KEY", "no certificate in PEM"),
        (CLIENT.cert, issue("y").key, "not the key of the certificate"),
        (*issue("x", by=AUTHORITY, days=-1), "over since"),
        (*issue("x", by=AUTHORITY, usage=ExtendedKeyUsageOID.SERVER_AUTH), "not for client use"),
    ],
)
def test_certificates_that_cannot_be_used(host, cert, key, says):
    (host.k / "pki" / "etcd").mkdir()
    (host.k / "pki" / "etcd" / "odd-name.pem").write_bytes(OTHER.cert)
    host.write_certificate("scheduler-client.crt", cert)
    host.write_certificate("scheduler-client.key", key)
    output = assert_refused(host)
    assert says in output
    assert "PRIVATE" not in output
    if "the key of a CA" in output:
        assert host.run("--allow-ca-key").code == 0


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        (CLIENT, ""),
        (issue("system:kube-scheduler", by=AUTHORITY), ""),
        (issue("my-scheduler", by=AUTHORITY), "nodewise needs --client-name 'my-scheduler'"),
        (
            issue("system:kube-scheduler", by=AUTHORITY, usage=ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE),
            "lacks the extended key usage clientAuth",
        ),
    ],
    ids=["issued", "kubeadm", "another name", "any usage"],
)
def test_a_certificate_that_nodewise_would_refuse_is_reported(host, certificate, says):
    host.write_certificate("scheduler-client.crt", certificate.cert)
    host.write_certificate("scheduler-client.key", certificate.key)
    ran = host.run("-dry-run")
    assert ran.code == 0
    assert says in ran.out + ran.err
    assert ("-cert has" in ran.out + ran.err or "-cert lacks" in ran.out + ran.err) == bool(says)


def test_the_old_defaults_are_the_keys_of_a_ca(host):
    ca = {"cert": f"{host.k}/pki/ca.crt", "key": f"{host.k}/pki/ca.key"}
    output = assert_refused(host, **ca)
    assert "--allow-ca-key" in output
    assert "nodewise certs --host" in output, "how to get a certificate is told where it is missing"


def test_restore_brings_everything_back(host):
    host.config.write_text("old\n")
    host.config.chmod(0o640)
    before = host.snapshot()
    host.run()
    [backup] = host.backups
    ran = host.configure(*host.base_flags(), "--restore")
    assert ran.code == 0, ran.err
    assert f"  command: - --config={host.config}" in ran.err.splitlines()
    shutil.rmtree(backup)
    host.certs.rmdir()
    assert host.snapshot() == before


def test_restore_of_a_named_backup_and_of_the_older_configurators(host):
    old = host.manifest.read_bytes()
    folder = host.k / "backup_2023-12-13_123"
    folder.mkdir()
    (folder / "kube-scheduler.yaml").write_bytes(old)
    host.run("--no-backup")
    assert host.configure(*host.base_flags(), "--restore", str(folder)).code == 0
    assert host.manifest.read_bytes() == old
    assert "is no backup" in assert_refused(host, "--restore", str(host.k / "pki"))


def test_a_backup_that_was_changed_is_not_restored(host):
    host.run()
    (host.backups[0] / "kube-scheduler.yaml").write_text("x")
    assert "not as it was saved" in assert_refused(host, "--restore")


def test_uninstall_removes_all_additions(host):
    before = host.snapshot()
    host.run()
    ran = host.run("--uninstall")
    assert ran.code == 0
    assert "Certs removed from folder" in ran.err
    for backup in host.backups:
        shutil.rmtree(backup)
    assert host.snapshot() == before
    assert host.run("--uninstall", "--check").code == 0


def test_uninstall_leaves_files_that_were_changed_since(host):
    host.run()
    host.config.write_text(host.config.read_text() + "# mine\n")
    ran = host.run("--uninstall")
    assert f"{host.config} is not as it was written, and stays" in ran.err
    assert host.config.exists()
    assert "schedulerconfig" not in host.manifest.read_text()


OWN_CONFIGURATION = """\
# ours
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler  # keep
extenders:
- urlPrefix: http://127.0.0.1:1/other
  prioritizeVerb: p
  weight: 3
"""


def write_own_configuration(host: ControlPlaneHost, path: str) -> None:
    words = ["kube-scheduler", f"--config={path}"]
    host.write(with_field(kubeadm_pod(30), "spec.containers.0.command", words))


@pytest.mark.parametrize("name", ["scheduler-config.yaml", "own.yaml"])
def test_merging_into_a_configuration_of_the_users_own(host, name):
    own = host.k / name
    own.write_text(OWN_CONFIGURATION)
    write_own_configuration(host, str(own))
    before = host.snapshot()
    assert host.run("--merge").code == 0
    text = host.config.read_text()
    assert text.startswith(OWN_CONFIGURATION)
    assert [entry["weight"] for entry in host.configuration["extenders"]] == [3, 1]
    assert host.run("--merge", "--check").code == 0
    assert host.run().code == 1
    assert host.run("--uninstall").code == 0
    for backup in host.backups:
        shutil.rmtree(backup)
    assert host.snapshot() == before


def test_merging_into_a_version_that_is_not_read_any_more(host):
    own = host.k / "own.yaml"
    own.write_text(OWN_CONFIGURATION.replace("/v1\n", "/v1beta2\n"))
    write_own_configuration(host, str(own))
    assert "apiVersion" in assert_refused(host, "--merge")


def test_the_disk_is_full(host, tmp_path):
    """A file that cannot be written leaves everything unchanged."""
    before = host.snapshot()
    for size in (100, 600, 1000, 1500):
        ran = host.configure(*host.base_flags(), before=partial(fault_injection.limit_files, size))
        assert ran.code == 1
        assert "nothing was changed: File too large" in ran.err
        assert host.snapshot() == before


def test_one_at_a_time(host):
    """Concurrent runs wait for each other, and the last one changes nothing."""
    running = [
        subprocess.Popen([*PROGRAM, *host.base_flags()], cwd=host.work, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert sum("Manifest written" in text for text in outputs) == 1
    assert len(host.backups) == 1
