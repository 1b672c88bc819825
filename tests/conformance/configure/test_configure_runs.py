"""Normal runs and dry runs: the numbered cases 1 to 28 and 99 to 111."""

import json
import os
import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import forked_commands
from tests.conformance.configure.case_numbers import case
from tests.conformance.configure.control_plane_hosts import AUTHORITY, CLIENT, PROGRAM, ControlPlaneHost
from tests.conformance.configure.scheduler_manifests import (
    BOTH_TEMPLATE,
    GAS_TEMPLATE,
    TAS_TEMPLATE,
    kubeadm_pod,
    with_field,
)

HASH, BEFORE = "nodewise.io/config-hash", "nodewise.io/before-configure"


def permissions(path: os.PathLike[str]) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def split_additions(pod):
    """The pod without the additions of a run, and the additions."""
    container, spec = pod["spec"]["containers"][0], pod["spec"]
    added = {
        "command": [container["command"].pop()],
        "mounts": [container["volumeMounts"].pop() for _ in range(2)][::-1],
        "volumes": [spec["volumes"].pop() for _ in range(2)][::-1],
        "dnsPolicy": spec.pop("dnsPolicy"),
        "annotations": pod["metadata"].pop("annotations"),
    }
    return pod, added


@case(
    1,
    "the volumes have types, an annotation has the hash; caFile and httpTimeout are written; the backup has an index",
)
def test_a_first_run(host):
    old = host.manifest.read_bytes()
    ran = host.run()
    assert ran.code == 0
    assert host.configuration["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert (host.certs / "client.key").read_bytes() == CLIENT.key
    assert (host.certs / "client.crt").read_bytes() == CLIENT.cert
    assert (host.certs / "ca.crt").read_bytes() == AUTHORITY.cert
    expected = [0o600, 0o644, 0o644]
    assert [permissions(host.certs / name) for name in ("client.key", "client.crt", "ca.crt")] == expected
    pod, added = split_additions(host.pod)
    assert pod == kubeadm_pod(30)
    assert added["command"] == [f"--config={host.config}"]
    assert added["mounts"] == [
        {"mountPath": str(host.config), "name": "schedulerconfig", "readOnly": True},
        {"mountPath": "/host/certs", "name": "certdir", "readOnly": True},
    ]
    assert added["volumes"] == [
        {"hostPath": {"path": str(host.config), "type": "File"}, "name": "schedulerconfig"},
        {"hostPath": {"path": str(host.certs), "type": "Directory"}, "name": "certdir"},
    ]
    assert added["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert set(added["annotations"]) == {HASH, BEFORE}
    entry = host.configuration["extenders"][0]
    assert entry["tlsConfig"]["caFile"] == "/host/certs/ca.crt"
    assert entry["httpTimeout"] == "5s"
    [backup] = host.backups
    assert permissions(backup) == 0o700
    assert {path.name for path in backup.iterdir()} == {"kube-scheduler.yaml", "nodewise-backup.json"}
    assert (backup / "kube-scheduler.yaml").read_bytes() == old
    assert permissions(backup / "kube-scheduler.yaml") == 0o600
    for text in (
        f'Backups written to folder "{backup}"',
        f'Certs written to folder "{host.certs}"',
        f'Manifest file is located at: "{host.manifest}"',
        f'Scheduler config file is located at: "{host.template}"',
        f'Scheduler config destination will be: "{host.config}"',
        f'Scheduler config written to "{host.config}"',
        f'Manifest written to "{host.manifest}"',
        "Done.",
    ):
        assert text in ran.err.splitlines()
    assert [path.name for path in host.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]


def test_the_next_step_is_printed(host):
    output = host.run().err
    assert "kubectl --namespace kube-system get pods --selector component=kube-scheduler" in output
    assert "nodewise configure --restore" in output
    assert "--print-plan" in output
    assert "kubelet" not in host.run().err, "nothing is restarted when nothing changed"
    assert "Do the same on the other hosts" in host.run("--uninstall").err


@case(2, "no backup is made that would have to be removed")
def test_a_second_run_changes_nothing(host):
    host.run()
    before = host.snapshot()
    ran = host.run()
    assert ran.code == 0
    assert "No changes needed, config not written." in ran.err
    assert "No changes needed, manifest not written." in ran.err
    assert host.snapshot() == before
    assert len(host.backups) == 1


VERSIONS = {
    **dict.fromkeys((19, 20, 21), "v1beta1"),
    **dict.fromkeys((22, 23, 24), "v1beta2"),
    **dict.fromkeys(range(25, 38), "v1"),
}


@case(3, "the extenders' deployments are changed on request only")
@case(4, "the extenders' deployments are changed on request only")
@case(5)
@case(6)
@case(7, "the annotations and the volumes' types come with the four additions")
@case(8)
@pytest.mark.parametrize("minor", VERSIONS)
def test_every_version_of_kubeadm(tmp_path, minor):
    host = ControlPlaneHost(tmp_path, minor)
    assert host.run().code == 0
    assert host.configuration["apiVersion"] == f"kubescheduler.config.k8s.io/{VERSIONS[minor]}"
    assert split_additions(host.pod)[0] == kubeadm_pod(minor)
    assert "control-plane" in (host.work / "deploy" / "tas-deployment.yaml").read_text()


@case(9)
def test_an_unused_configuration_is_overwritten(host):
    host.config.write_text("old\n")
    host.config.chmod(0o600)
    assert host.run().code == 0
    assert host.configuration["kind"] == "KubeSchedulerConfiguration"
    assert permissions(host.config) == 0o600
    assert (host.backups[0] / "scheduler-config.yaml").read_text() == "old\n"
    assert (host.backups[0] / "kube-scheduler.yaml").exists()


@case(10, "only what changes is in the backup")
def test_a_configuration_that_is_right_already(host):
    old = host.manifest.read_bytes()
    host.run()
    host.write(old)
    ran = host.run()
    assert "No changes needed, config not written." in ran.err
    assert "Manifest written to" in ran.err
    assert len(host.backups) == 2


@case(12)
@pytest.mark.parametrize("flags", [["-b", "/dev/null"], ["--no-backup"]])
def test_no_backup(host, flags):
    ran = host.configure(*host.base_flags(), *flags)
    assert (ran.code, host.backups) == (0, [])
    assert "Backups written" not in ran.err


@case(14, "one spelling is written, without the slash at the end")
@pytest.mark.parametrize("slash", ["", "/"])
def test_the_folder_of_certificates_is_written_one_way(host, slash):
    host.run(cert_dir=f"{host.certs}{slash}")
    assert host.pod["spec"]["volumes"][-1]["hostPath"]["path"] == str(host.certs)


@case(15, "the key is for its owner only, whatever it was")
def test_the_key_of_a_former_run_is_closed(host):
    host.certs.mkdir(mode=0o700)
    (host.certs / "client.key").write_bytes(b"old")
    (host.certs / "client.key").chmod(0o644)
    assert host.run().code == 0
    assert (permissions(host.certs), permissions(host.certs / "client.key")) == (0o700, 0o600)
    (host.certs / "client.key").chmod(0o644)
    assert host.run().code == 0
    assert permissions(host.certs / "client.key") == 0o600


def kubeadm_pod_of_user(**context: int) -> dict[str, Any]:
    """The pod that kubeadm writes with the feature RootlessControlPlane."""
    return with_field(kubeadm_pod(30), "spec.containers.0.securityContext", context)


@pytest.mark.root
@pytest.mark.parametrize("field", ["runAsGroup", "fsGroup"])
def test_kube_scheduler_of_another_user_can_read_its_files(host, field):
    """Root stays the owner, because a run refuses files that other users can write to."""
    host.config.write_text("old\n")
    host.config.chmod(0o600)
    host.write(kubeadm_pod_of_user(runAsUser=2000, **{field: 2001}))
    assert host.run().code == 0
    for path in (host.certs / "client.key", host.config):
        assert (permissions(path), path.stat().st_uid, path.stat().st_gid) == (0o640, os.geteuid(), 2001)
    assert permissions(host.certs / "client.crt") == 0o644
    assert host.run("--check").code == 0
    assert host.run("--restore").code == 0
    assert (permissions(host.config), host.config.stat().st_gid) == (0o600, os.getegid())


@pytest.mark.root
def test_a_changed_group_of_kube_scheduler_gets_the_key(host):
    for group in (2001, 2002):
        host.write(kubeadm_pod_of_user(runAsUser=2000, runAsGroup=group))
        assert host.run().code == 0
        assert (host.certs / "client.key").stat().st_gid == group


def test_files_that_kube_scheduler_of_another_user_could_not_read_are_refused(host):
    for group, actual in (({}, "no value"), ({"runAsGroup": 2**40}, str(2**40))):
        host.write(kubeadm_pod_of_user(runAsUser=2000, **group))
        before = host.snapshot()
        ran = host.run()
        assert (ran.code, host.snapshot()) == (1, before)
        assert f"securityContext.runAsGroup beside runAsUser: 2000: {actual}; expected" in ran.err
    host.certs.mkdir(mode=0o700)
    host.write(kubeadm_pod_of_user(runAsUser=2000, runAsGroup=2000))
    before = host.snapshot()
    ran = host.run()
    assert (ran.code, host.snapshot()) == (1, before)
    assert f"{host.certs} with the mode 700; expected" in ran.err


@case(16, "the file that is not used any more is named")
def test_a_template_of_another_name(host):
    host.run()
    other = host.work / "gas-config.yaml"
    other.write_bytes(GAS_TEMPLATE.encode())
    ran = host.run(f=str(other))
    new = str(host.k / "gas-config.yaml")
    assert f"--config={new}" in host.container["command"]
    assert not [word for word in host.container["command"] if str(host.config) in word]
    assert host.container["volumeMounts"][1]["mountPath"] == new
    assert host.config.exists()
    assert f"{host.config} is not used any more" in ran.err


@case(17, "the manifest's annotation changes, so that the kubelet starts kube-scheduler anew")
def test_another_template_of_the_same_name(host):
    host.run()
    before = host.pod
    host.template.write_bytes(GAS_TEMPLATE.encode())
    assert host.run().code == 0
    assert "gas-service" in host.config.read_text()
    after = host.pod
    assert before["metadata"]["annotations"].pop(HASH) != after["metadata"]["annotations"].pop(HASH)
    assert before == after


@case(18)
def test_a_plus_in_the_name(host):
    both = host.work / "scheduler-config-tas+gas.yaml"
    both.write_bytes(BOTH_TEMPLATE.encode())
    assert host.run(f=str(both)).code == 0
    assert f"--config={host.k}/scheduler-config-tas+gas.yaml" in host.container["command"]


@case(20)
def test_the_template_is_the_destination(host):
    host.config.write_bytes(TAS_TEMPLATE.encode())
    assert host.run(f=str(host.config)).code == 0
    assert host.configuration["apiVersion"].endswith("/v1")


@case(21, "modes are those that are meant, whatever the umask")
def test_a_narrow_umask(host):
    ran = host.configure(*host.base_flags(), before=partial(os.umask, 0o077))
    assert ran.code == 0
    names = (host.config, host.certs, host.certs / "client.crt", host.certs / "client.key")
    assert [permissions(name) for name in names] == [0o644, 0o755, 0o644, 0o600]


@case(22)
def test_a_symbolic_link_stays(host):
    target = host.k / "real.yaml"
    host.manifest.rename(target)
    host.manifest.symlink_to(target)
    assert host.run().code == 0
    assert host.manifest.is_symlink()
    assert f"--config={host.config}" in target.read_text()
    assert permissions(target) == 0o600


@case(23, "names of files are absolute")
def test_a_relative_folder(host):
    assert host.run(d="../K").code == 0
    assert f"--config={host.config}" in host.container["command"]
    assert host.container["volumeMounts"][1]["mountPath"] == str(host.config)


@case(25, "line ends become LF")
def test_a_template_with_carriage_returns(host):
    host.template.write_bytes(TAS_TEMPLATE.encode())
    assert b"\r\n" in host.template.read_bytes()
    assert host.run().code == 0
    assert b"\r" not in host.config.read_bytes()
    assert host.configuration["apiVersion"] == "kubescheduler.config.k8s.io/v1"


@case(26, "the version that this kube-scheduler reads is written, and it is told")
def test_a_template_with_a_version_of_its_own(host):
    host.template.write_text(TAS_TEMPLATE.replace("XVERSIONX", "v1beta1"))
    ran = host.run()
    assert host.configuration["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert "says kubescheduler.config.k8s.io/v1beta1" in ran.err


@case(27, "only apiVersion is set, by its place")
def test_a_placeholder_in_a_comment(host):
    host.template.write_text("# XVERSIONX is set\r\n" + TAS_TEMPLATE)
    assert host.run().code == 0
    assert host.config.read_bytes().startswith(b"# XVERSIONX is set\n")
    assert host.configuration["apiVersion"] == "kubescheduler.config.k8s.io/v1"


def test_template_with_an_empty_tls_configuration_gets_the_ca(host):
    before, _, rest = TAS_TEMPLATE.partition("  tlsConfig:")
    host.template.write_text(f"{before}  tlsConfig:\r\n")
    assert rest
    assert host.run("--ca", str(host.k / "pki" / "ca.crt")).code == 0
    assert host.configuration["extenders"][0]["tlsConfig"] == {"caFile": "/host/certs/ca.crt"}


@case(28, "refused")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("}{", "yaml"),
        ("just words", "no map"),
        (TAS_TEMPLATE.replace("KubeSchedulerConfiguration", "Pod"), "kind"),
        (TAS_TEMPLATE.replace("filterVerb", "filterverb"), "extenders[0].filterverb"),
        (TAS_TEMPLATE.replace("weight: 1", "weight: -1"), "extenders[0].weight"),
        (TAS_TEMPLATE.replace("https://tas", "tas"), "extenders[0].urlPrefix"),
        (TAS_TEMPLATE.replace("ignorable: true", "ignorable: 1"), "extenders[0].ignorable"),
        (TAS_TEMPLATE.replace("ignorable: true", "httpTimeout: 5"), "extenders[0].httpTimeout"),
        (TAS_TEMPLATE.replace("extenders:", "profiles:"), "extenders"),
    ],
)
def test_a_template_that_kube_scheduler_would_not_start_with(host, text, names):
    host.template.write_text(text)
    before = host.snapshot()
    ran = host.run()
    assert ran.code == 1
    assert names in ran.err
    assert host.snapshot() == before


@case(125, "refused")
def test_a_template_that_names_a_certificate_that_is_not_there(host):
    host.template.write_text(TAS_TEMPLATE.replace("client.crt", "other.crt"))
    before = host.snapshot()
    ran = host.run()
    assert ran.code == 1
    assert "extenders[0].tlsConfig.certFile: /host/certs/other.crt" in ran.err
    assert host.snapshot() == before


@case(99, "unified diffs on stdout")
def test_a_dry_run_changes_nothing(host):
    before = host.snapshot()
    ran = host.run("-dry-run")
    assert ran.code == 0
    assert host.snapshot() == before
    lines = ran.err.splitlines()
    assert lines.index(f'Scheduler config changes compared to "{host.config}":') < lines.index(
        f'Manifest changes at "{host.manifest}":'
    )
    assert lines[-1] == "Done."
    assert f"+    - --config={host.config}" in ran.out.splitlines()
    assert "\x1b" not in ran.out
    removed = [line for line in ran.out.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert removed == []


@case(100)
def test_a_dry_run_after_a_run(host):
    host.run()
    ran = host.run("-dry-run")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines().count("no changes") == 2


def test_check_says_whether_something_would_change(host):
    assert host.run("--check").code == 3
    host.run()
    assert host.run("--check").code == 0


@case(101)
def test_a_dry_run_without_a_folder_for_backups(host):
    assert host.run("-dry-run", b=str(host.k / "nowhere")).code == 0


@case(103, "a unified diff, coloured on a terminal only")
def test_a_difference_is_shown_by_lines(host):
    host.run()
    host.template.write_text(TAS_TEMPLATE.replace("weight: 1", "weight: 7"))
    lines = host.run("-dry-run").out.splitlines()
    assert "-  weight: 1" in lines
    assert "+  weight: 7" in lines
    assert "   prioritizeVerb: scheduler/prioritize" in lines


@pytest.mark.parametrize(
    ("flags", "env", "coloured"),
    [([], {}, True), (["--no-color"], {}, False), ([], {"NO_COLOR": "1"}, False)],
)
def test_colours_are_for_terminals(host, flags, env, coloured):
    ours, theirs = os.openpty()
    words = [*PROGRAM, *host.base_flags(), "-dry-run", *flags]
    done = subprocess.run(
        words,
        cwd=host.work,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
        timeout=120,
        check=False,
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            output += os.read(ours, 2**16)
        except OSError:
            break
    os.close(ours)
    assert done.returncode == 0
    assert (b"\x1b[32m+" in output) is coloured


@case(106, "on stdout")
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(flag):
    # in an own process: click keeps the names of the help option from the first context of a command
    ran = forked_commands.run([forked_commands.NODEWISE, "configure", flag])
    assert ran.returncode == 0
    assert "--cert-dir" in ran.stdout


@case(107)
@pytest.mark.parametrize("words", [["--bogus"], ["-v=4"], ["-dry-run=maybe"]])
def test_flags_that_do_not_exist(host, words):
    before = host.snapshot()
    assert host.run(*words).code == 2
    assert host.snapshot() == before


@case(108, "a word that belongs to nothing is a mistake")
@pytest.mark.parametrize("words", [["-dry-run", "true", "-m", "X"], ["stray"]])
def test_stray_words(host, words):
    before = host.snapshot()
    assert host.run(*words).code == 2
    assert host.snapshot() == before


@case(109)
def test_the_last_of_a_flag_counts(host):
    ran = host.configure("-m", str(host.k / "nope.yaml"), *host.base_flags())
    assert ran.code == 0


@case(110, "a diff, or a summary in JSON")
def test_standard_output_has_diffs_only(host):
    summary = json.loads(host.run("-dry-run", "-o", "json").out)
    expected = (True, False, "kubescheduler.config.k8s.io/v1")
    assert (summary["changed"], summary["written"], summary["apiVersion"]) == expected
    assert {file["change"] for file in summary["files"]} == {"write"}
    assert not any("PRIVATE" in file["diff"] for file in summary["files"])
    assert f"command: + --config={host.config}" in summary["pod"]
    assert host.run().out == ""
    assert json.loads(host.run("-o", "json").out)["changed"] is False


@case(111)
def test_dry_run_may_be_false(host):
    assert host.run("--dry-run=false").code == 0
    assert host.backups


def test_without_a_template_there_is_one_of_our_own(host):
    host.template.unlink()
    ran = host.run()
    assert ran.code == 0
    assert "the built-in template" in ran.err
    [entry] = host.configuration["extenders"]
    assert entry["urlPrefix"] == "https://nodewise.nodewise.svc:9001/scheduler"
    assert (entry["ignorable"], entry["nodeCacheCapable"]) == (False, True)
    assert entry["tlsConfig"]["caFile"] == "/host/certs/ca.crt"
    assert host.configuration["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}


@pytest.mark.parametrize(
    ("flags", "paths"),
    [
        (["--extender", "tas"], ["scheduler"]),
        (["--extender", "both"], ["agents/telemetry", "agents/gpu"]),
        (["--agents", "gpu", "--namespace", "mine"], ["scheduler"]),
        (
            ["--agents", "telemetry,congestion", "--one-entry-per-agent"],
            ["agents/telemetry", "agents/congestion"],
        ),
    ],
)
def test_agents_in_one_entry_or_several(host, flags, paths):
    ran = host.run(*flags)
    assert ran.code == 0, ran.err
    entries = host.configuration["extenders"]
    assert [entry["urlPrefix"].partition(":9001/")[2] for entry in entries] == paths
    resources = {resource["name"] for entry in entries for resource in entry.get("managedResources", [])}
    if "both" in flags or "gpu" in flags:
        assert {"gpu.intel.com/i915", "gpu.intel.com/xe"} <= resources
    if "--namespace" in flags:
        assert entries[0]["urlPrefix"].startswith("https://nodewise.mine.svc:")


@pytest.mark.parametrize(
    "flags",
    [
        ["--merge", "--replace"],
        ["--insecure", "--ca", "x"],
        ["--uninstall", "--restore"],
        ["-f", "x", "--namespace", "y"],
        ["--extender", "tas", "--agents", "gpu"],
        ["-b", ""],
        ["--weights", "many"],
        ["--kubernetes-version", "new"],
        ["--namespace", "Not_A_Name"],
        ["--namespace", "x" * 64],
    ],
)
def test_flags_that_contradict_each_other(host, flags):
    before = host.snapshot()
    assert host.run(*flags).code == 2
    assert host.snapshot() == before


def test_without_a_ca_when_somebody_insists(host):
    ran = host.run("--insecure")
    assert ran.code == 0
    assert "kube-scheduler does not verify the server" in ran.err
    assert host.configuration["extenders"][0]["tlsConfig"]["insecure"] is True
    assert not (host.certs / "ca.crt").exists()


def test_yaml_readers_accept_the_output(host):
    host.run()
    assert yaml.load(host.manifest.read_bytes(), yaml.CSafeLoader)["kind"] == "Pod"
