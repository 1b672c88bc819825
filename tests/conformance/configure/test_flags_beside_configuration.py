"""Flags that kube-scheduler ignores beside `--config`: their values move into the written configuration."""

import json

import pytest
import yaml

from tests.conformance.configure.control_plane_hosts import ControlPlaneHost
from tests.conformance.configure.scheduler_manifests import TAS_TEMPLATE, kubeadm_pod, to_yaml, with_field

COMMAND = "spec.containers.0.command"


def manifest_with_flags(*flags: str, minor: int = 35) -> str:
    pod = kubeadm_pod(minor)
    command = [*pod["spec"]["containers"][0]["command"], *flags]
    return to_yaml(with_field(pod, COMMAND, command))


def configured(host: ControlPlaneHost, text: str, *flags: str) -> str:
    """Check that a run succeeds and that a second one changes nothing. Returns standard error of the first."""
    host.template.unlink(missing_ok=True)
    host.write(text)
    ran = host.run(*flags)
    assert ran.code == 0, ran.err
    assert host.run(*flags, "--check").code == 0
    return ran.err


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (["--profiling=false"], {"enableProfiling": False}),
        (["--profiling"], {"enableProfiling": True}),
        (
            ["--profiling=F", "--contention-profiling=0"],
            {"enableProfiling": False, "enableContentionProfiling": False},
        ),
        (["--contention-profiling=true"], {"enableContentionProfiling": True}),
        (["--kube-api-qps=320", "--kube-api-burst=640"], {"clientConnection": {"qps": 320, "burst": 640}}),
        (["--kube-api-qps", "12.5", "--v=3"], {"clientConnection": {"qps": 12.5}}),
        (["--kube-api-qps=-1"], {"clientConnection": {"qps": -1}}),
        (["--kube_api_burst=77"], {"clientConnection": {"burst": 77}}),
        (["--kube-api-qps=1", "--kube-api-qps=2e2"], {"clientConnection": {"qps": 200}}),
        (
            ["--kube-api-content-type=application/json"],
            {"clientConnection": {"contentType": "application/json"}},
        ),
        (["--feature-gates=A=true", "--bind-address=0.0.0.0", "--leader-elect=false"], {}),
    ],
)
def test_value_of_ignored_flag_is_a_field_of_the_configuration(host, flags, fields):
    printed = configured(host, manifest_with_flags(*flags))
    expected = {**fields.get("clientConnection", {}), "kubeconfig": "/etc/kubernetes/scheduler.conf"}
    assert host.configuration["clientConnection"] == expected
    others = {name: value for name, value in fields.items() if name != "clientConnection"}
    own = {"apiVersion", "kind", "clientConnection", "profiles", "extenders"}
    assert {name: value for name, value in host.configuration.items() if name not in own} == others
    carried = [line for line in printed.splitlines() if "configuration: +" in line]
    assert len(carried) == len(others) + len(expected) - 1
    assert set(flags) <= set(host.container["command"])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        # an empty value is kube-scheduler's default in the configuration, and the client's default as a flag
        ("--kube-api-qps=0", {"qps": 5}),
        ("--kube-api-burst=0", {"burst": 10}),
        ("--kube-api-content-type=", {"contentType": "application/json"}),
    ],
)
def test_empty_value_keeps_the_meaning_of_the_flag(host, flag, value):
    configured(host, manifest_with_flags(flag))
    assert value.items() <= host.configuration["clientConnection"].items()


def test_flags_in_args_are_carried(host):
    pod = with_field(kubeadm_pod(34), "spec.containers.0.args", ["--profiling=false"])
    configured(host, to_yaml(pod))
    assert host.configuration["enableProfiling"] is False


def test_diff_and_json_summary_show_the_carried_fields(host):
    host.template.unlink()
    host.write(manifest_with_flags("--profiling=false", "--kube-api-burst=55"))
    shown = host.run("--dry-run")
    assert "+enableProfiling: false\n" in shown.out
    assert "+  burst: 55\n" in shown.out
    assert "configuration: + enableProfiling: false (from --profiling=false)" in shown.err
    summary = json.loads(host.run("--dry-run", "-o", "json").out)
    assert "configuration: + clientConnection.burst: 55 (from --kube-api-burst=55)" in summary["pod"]


def test_leader_election_flags_are_carried_only_where_they_are_ignored(host):
    flags = ["--leader-elect-lease-duration=40s", "--leader-elect=false", "--lock-object-name=mine"]
    configured(host, manifest_with_flags(*flags, minor=21))
    # kubeadm's own --leader-elect=true comes first
    expected = {"leaseDuration": "40s", "leaderElect": False, "resourceName": "mine"}
    assert host.configuration["leaderElection"] == expected
    configured(host, manifest_with_flags(*flags[:2], minor=22), "--replace")
    assert "leaderElection" not in host.configuration


def test_flag_without_a_field_is_named(host):
    printed = configured(host, manifest_with_flags("--pod-max-in-unschedulable-pods-duration=9m"))
    assert "--pod-max-in-unschedulable-pods-duration=9m has no field in the configuration" in printed
    assert "--pod-max-in-unschedulable-pods-duration=9m" in host.container["command"]
    printed = configured(host, manifest_with_flags("--scheduler-name=mine", minor=20), "--replace")
    assert "warning: --scheduler-name=mine has no effect beside --config" in printed


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--profiling=no", "true or false"),
        ("--kube-api-qps=fast", "a number"),
        ("--kube-api-burst=-4", "a whole number from 0 on"),
        ("--kube-api-burst=3000000000", "a whole number"),
        ("--kube-api-burst", "a whole number"),
        ("--kube-api-content-type=$(TYPE)", "without variables"),
    ],
)
def test_value_that_no_field_can_have_is_refused(host, flag, expected):
    host.template.unlink()
    host.write(manifest_with_flags(flag))
    before = host.snapshot()
    ran = host.run()
    assert ran.code == 1
    assert flag in ran.err
    assert expected in ran.err
    assert host.snapshot() == before


def test_template_keeps_its_own_fields_and_receives_the_others(host):
    value = yaml.load(TAS_TEMPLATE, yaml.CSafeLoader) | {"enableProfiling": True}
    host.template.write_text(yaml.safe_dump(value))
    host.write(manifest_with_flags("--profiling=false", "--kube-api-qps=90"))
    ran = host.run()
    assert ran.code == 0, ran.err
    assert host.configuration["enableProfiling"] is True
    assert host.configuration["clientConnection"]["qps"] == 90
    assert "warning: --profiling=false has no effect beside --config" in ran.err
    assert "sets enableProfiling to True" in ran.err


def test_merged_configuration_stays_and_a_warning_names_the_flags(host):
    own = host.k / "own.yaml"
    own.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        "clientConnection: {burst: 30}\n"
    )
    text = manifest_with_flags(f"--config={own}", "--profiling=false", "--kube-api-burst=30")
    printed = configured(host, text, "--merge")
    assert "enableProfiling" not in host.configuration
    assert (
        f"--profiling=false has no effect beside --config, before and after this run: set enableProfiling in {own}"
        in printed
    )
    assert "warning: --kube-api-burst" not in printed
    # the configuration of the user is gone, and its flags say what it was to be
    configured(host, text, "--replace")
    assert host.configuration["enableProfiling"] is False


def test_configuration_of_an_earlier_run_receives_the_flags(host):
    host.template.unlink()
    host.write(manifest_with_flags())
    assert host.run().code == 0
    host.write(
        host.manifest.read_text().replace(
            "- --leader-elect=true", "- --leader-elect=true\n    - --profiling=false"
        )
    )
    assert host.run("--check").code == 3
    assert host.run().code == 0
    assert host.configuration["enableProfiling"] is False
    assert host.run("--uninstall").code == 0
    assert not host.config.exists()
    assert host.manifest.read_text() == manifest_with_flags("--profiling=false")
