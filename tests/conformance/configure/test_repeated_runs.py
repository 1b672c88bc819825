"""`--print-plan`: the same run on the other hosts of the control plane."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.configure import scheduler_manifests
from tests.conformance.configure.control_plane_hosts import Host, Ran
from tests.conformance.configure.scheduler_manifests import changed
from tests.conformance.configure.test_failures import OWN, with_own


def played(host: Host, script: str, work: Path) -> Ran:
    """The script in another folder, with `nodewise` on the path."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh"],
        input=script,
        cwd=work,
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def planned(host: Host, *flags: str, **other: str) -> str:
    before = host.everything()
    ran = host.run("--print-plan", *flags, **other)
    assert ran.code == 0, ran.err
    assert host.everything() == before
    return ran.out


@pytest.mark.parametrize(
    ("flags", "other"),
    [
        ([], {}),
        (["--agents", "telemetry,gpu", "--one-entry-per-agent", "--weights", "telemetry=3,gpu=20"], {}),
        (["--no-backup", "--kubernetes-version=1.31"], {"cert_dir": "../K/a folder", "d": "../K"}),
    ],
)
def test_the_script_does_the_same_on_another_host(host: Host, tmp_path: Path, flags, other):
    """Here: on the same one, once more as it was."""
    script = planned(host, *flags, **other)
    assert host.run(*flags, **other).code == 0
    wanted = {path: data for path, (_, data) in host.everything().items() if "backup_" not in path}
    assert host.run("--uninstall", **other).code == 0
    done = played(host, script, tmp_path)
    assert done.code == 0, done.err
    assert {path: data for path, (_, data) in host.everything().items() if "backup_" not in path} == wanted
    assert "PRIVATE" not in script
    again = played(host, script, tmp_path)
    assert again.code == 0, "it does no harm to say it twice"


def test_the_script_stops_before_anything_is_changed_where_something_is_not_as_here(
    host: Host, tmp_path: Path
):
    script = planned(host)
    host.template.write_text(scheduler_manifests.TAS + "\n")
    before = host.everything()
    done = played(host, script, tmp_path)
    assert done.code != 0
    assert str(host.template) in done.out + done.err
    assert host.everything() == before
    done = played(host, script.replace("--version | grep -q ' ", "--version | grep -q ' 9"), tmp_path)
    assert (done.code, "another version of nodewise" in done.err) == (1, True)


def test_the_script_fails_where_another_thing_comes_out(host: Host, tmp_path: Path):
    script = planned(host)
    digest = hashlib.sha256((host.k / "pki" / "ca.crt").read_bytes()).hexdigest()
    head, run, tail = script.partition("nodewise configure")
    assert digest in tail
    assert played(host, head + run + tail.replace(digest, "0" * 64), tmp_path).code != 0


def test_what_is_merged_into_has_to_be_the_same(host: Host, tmp_path: Path):
    own = host.k / "scheduler-config.yaml"
    own.write_text(OWN)
    with_own(host, str(own))
    script = planned(host, "--merge")
    own.write_text(OWN + "# another\n")
    assert str(own) in played(host, script, tmp_path).err + played(host, script, tmp_path).out
    own.write_text(OWN)
    assert played(host, script, tmp_path).code == 0
    assert planned(host, "--merge") == script, (
        "and here, when it is done, the plan is still that for the others"
    )


def test_the_plan_for_programs(host: Host):
    plan = json.loads(planned(host, "-o", "json"))
    assert plan["command"][:2] == ["nodewise", "configure"]
    assert set(plan["written"]) == {
        str(host.config),
        *(str(host.certs / name) for name in ("ca.crt", "client.crt", "client.key")),
    }
    assert host.run().code == 0
    for path, digest in plan["written"].items():
        assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == digest
    annotations = host.pod["metadata"]["annotations"]
    assert annotations["nodewise.io/config-hash"] == plan["manifest"]["configHash"]


def test_manifests_may_differ_from_host_to_host(host: Host, tmp_path: Path):
    script = planned(host)
    host.write(scheduler_manifests.text(changed(scheduler_manifests.pod(30), "spec.priority", 7)))
    assert played(host, script, tmp_path).code == 0
    assert host.pod["spec"]["priority"] == 7
    shutil.rmtree(host.certs)


@pytest.mark.parametrize("flags", [["--check"], ["--restore"], ["--uninstall"], ["--mode", "kubeadm"]])
def test_what_it_does_not_go_with(host: Host, flags):
    assert host.run("--print-plan", *flags).code == 2
