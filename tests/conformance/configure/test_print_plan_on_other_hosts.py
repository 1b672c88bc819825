"""`--print-plan`: repeating a run on the other control-plane hosts."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.configure.control_plane_hosts import ControlPlaneHost, RunResult
from tests.conformance.configure.scheduler_manifests import TAS_TEMPLATE, kubeadm_pod, with_field
from tests.conformance.configure.test_host_and_certificate_problems import (
    OWN_CONFIGURATION,
    write_own_configuration,
)


def run_script(script: str, work: Path) -> RunResult:
    """Run the script in another folder, with `nodewise` on the path."""
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
    return RunResult(done.returncode, done.stdout, done.stderr)


def print_plan(host: ControlPlaneHost, *flags: str, **other: str) -> str:
    before = host.snapshot()
    ran = host.run("--print-plan", *flags, **other)
    assert ran.code == 0, ran.err
    assert host.snapshot() == before
    return ran.out


@pytest.mark.parametrize(
    ("flags", "other"),
    [
        ([], {}),
        (["--agents", "telemetry,gpu", "--one-entry-per-agent", "--weights", "telemetry=3,gpu=20"], {}),
        (["--no-backup", "--kubernetes-version=1.31"], {"cert_dir": "../K/a folder", "d": "../K"}),
    ],
)
def test_the_script_does_the_same_on_another_host(host: ControlPlaneHost, tmp_path: Path, flags, other):
    """The other host is the same one after an uninstall."""
    script = print_plan(host, *flags, **other)
    assert host.run(*flags, **other).code == 0
    wanted = {path: data for path, (_, data) in host.snapshot().items() if "backup_" not in path}
    assert host.run("--uninstall", **other).code == 0
    done = run_script(script, tmp_path)
    assert done.code == 0, done.err
    assert {path: data for path, (_, data) in host.snapshot().items() if "backup_" not in path} == wanted
    assert "PRIVATE" not in script
    again = run_script(script, tmp_path)
    assert again.code == 0, "it does no harm to say it twice"


def test_the_script_stops_before_anything_is_changed_where_something_is_not_as_here(
    host: ControlPlaneHost, tmp_path: Path
):
    script = print_plan(host)
    host.template.write_text(TAS_TEMPLATE + "\n")
    before = host.snapshot()
    done = run_script(script, tmp_path)
    assert done.code != 0
    assert str(host.template) in done.out + done.err
    assert host.snapshot() == before
    done = run_script(script.replace("--version | grep -q ' ", "--version | grep -q ' 9"), tmp_path)
    assert (done.code, "another version of nodewise" in done.err) == (1, True)


def test_the_script_fails_where_another_thing_comes_out(host: ControlPlaneHost, tmp_path: Path):
    script = print_plan(host)
    digest = hashlib.sha256((host.k / "pki" / "ca.crt").read_bytes()).hexdigest()
    head, run, tail = script.partition("nodewise configure")
    assert digest in tail
    assert run_script(head + run + tail.replace(digest, "0" * 64), tmp_path).code != 0


def test_the_configuration_to_merge_with_has_to_be_the_same(host: ControlPlaneHost, tmp_path: Path):
    own = host.k / "scheduler-config.yaml"
    own.write_text(OWN_CONFIGURATION)
    write_own_configuration(host, str(own))
    script = print_plan(host, "--merge")
    own.write_text(OWN_CONFIGURATION + "# another\n")
    assert str(own) in run_script(script, tmp_path).err + run_script(script, tmp_path).out
    own.write_text(OWN_CONFIGURATION)
    assert run_script(script, tmp_path).code == 0
    assert print_plan(host, "--merge") == script, (
        "and here, when it is done, the plan is still that for the others"
    )


def test_the_plan_for_programs(host: ControlPlaneHost):
    plan = json.loads(print_plan(host, "-o", "json"))
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


def test_manifests_may_differ_from_host_to_host(host: ControlPlaneHost, tmp_path: Path):
    script = print_plan(host)
    host.write(with_field(kubeadm_pod(30), "spec.priority", 7))
    assert run_script(script, tmp_path).code == 0
    assert host.pod["spec"]["priority"] == 7
    shutil.rmtree(host.certs)


@pytest.mark.parametrize("flags", [["--check"], ["--restore"], ["--uninstall"], ["--mode", "kubeadm"]])
def test_flags_that_contradict_print_plan(host: ControlPlaneHost, flags):
    assert host.run("--print-plan", *flags).code == 2
