"""The presets of the library: their files, policies and suites, and changes of their thresholds."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from nodewise.base.errors import BadSettings
from nodewise.cli import main
from nodewise.policies.placement_policy_fields import GUARD
from nodewise.policy_tools import library, policy_library, policy_lint
from tests import policy_library_samples

PRESETS = library.preset_names()


def policy(*words: str) -> Result:
    return CliRunner().invoke(main.command, ["policy", *words])


def new(preset: str, *flags: str) -> Any:
    """The printed policy, which `policy lint` accepts without notes."""
    result = policy("new", f"--preset={preset}", *flags)
    assert result.exit_code == 0, (result.output, result.exception)
    document = yaml.load(result.stdout, yaml.CSafeLoader)
    data = msgspec.json.encode(document)
    assert policy_lint.lint(data, document["kind"]) == []
    assert policy_lint.notes(data, document["kind"], 5.0) == []
    return document


def refusal(*words: str) -> str:
    result = policy(*words)
    assert result.stdout == ""
    assert isinstance(result.exception, BadSettings)
    return str(result.exception)


def test_the_library_has_the_subjects_that_users_look_for() -> None:
    assert {
        *("disk-wear", "psi", "nic-errors", "gpu-ecc", "gpu-xid", "temperature"),
        *("clock-skew", "conntrack", "memory-pressure"),
    } <= {*PRESETS}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_begins_in_shadow_with_a_guard(name: str) -> None:
    document = new(name)
    assert document["metadata"] == {"name": f"avoid-{name}"}
    spec = document["spec"]
    assert spec["mode"] == "Shadow"
    assert spec["podSelector"] == {}
    assert {"maxRejectedShare"} <= spec["guard"].keys() <= GUARD.fields.keys()
    has_query = any("query" in rule for rule in spec["avoid"])
    assert document["kind"] == ("ClusterPlacementPolicy" if has_query else "PlacementPolicy")
    assert spec.get("namespaceSelector") == ({} if has_query else None)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("flags", [["-lapp=web"], ["--enforcement=Preferred", "--namespace=shop", "-l{}"]])
def test_the_suite_of_a_preset_detects_every_mutant(name: str, flags: list[str], tmp_path: Path) -> None:
    folder = str(tmp_path / "made")
    assert policy("new", f"--preset={name}", *flags, f"--folder={folder}").exit_code == 0
    tested = policy("test", folder, "--coverage", "--mutate")
    assert tested.exit_code == 0, tested.output
    covered = re.search(r"tests reach (\d+) of (\d+) branches", tested.stdout)
    assert covered, tested.stdout
    assert covered[1] == covered[2], tested.stdout
    missed = [line for line in tested.stdout.splitlines() if line.endswith("no test detects it")]
    if "--enforcement=Preferred" in flags:
        # a preferred policy that rejects every node has no effect
        missed = [line for line in missed if "emptyMeans: removed" not in line]
    assert missed == []


@pytest.mark.parametrize("name", PRESETS)
def test_the_sample_of_a_preset_has_the_metrics_of_its_rules(name: str) -> None:
    preset = policy_library.load(name)
    lines = policy_library_samples.sample_lines(preset, preset.rules[0], 60)
    for text in (preset.sample.splitlines(), lines):
        assert [*text_string_to_metric_families("\n".join(text) + "\n")]
    families = {re.split("[{ ]", line)[0] for line in lines if not line.startswith("#")}
    for rule in preset.rules:
        names = re.findall(r"\b(?:node|smartctl|nvme)_\w+|\bDCGM_\w+", rule.query or rule.metric)
        assert names
        assert {*names} <= families
        assert policy_library_samples.sample_lines(preset, rule, 60) != policy_library_samples.sample_lines(
            preset, None, 60
        )


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_shown_with_its_exporter_sample_and_sources(name: str) -> None:
    result = policy("library", name)
    assert result.exit_code == 0, result.output
    preset = policy_library.load(name)
    assert yaml.load(result.stdout, yaml.CSafeLoader) == new(name)
    for text in (f"# Exporter: {preset.exporter}, with ", *(f"# Source: {text}" for text in preset.sources)):
        assert text in result.stdout
    for line in preset.sample.splitlines():
        assert line in result.stdout
    listed = policy("library").stdout
    assert all(text in listed for text in (name, preset.subject, preset.exporter, *preset.metrics()))


def test_the_list_in_json() -> None:
    entries = {entry.pop("name"): entry for entry in msgspec.json.decode(policy("library", "-ojson").stdout)}
    assert [*entries] == PRESETS
    assert entries["temperature"]["metrics"] == ["node_hwmon_temp_celsius", "node_hwmon_temp_crit_celsius"]
    assert all(
        entry.keys() == {"subject", "exporter", "needs", "metrics", "sources"} for entry in entries.values()
    )


def test_flags_change_the_rule_with_their_operator() -> None:
    first, second = new("clock-skew", "--below=0.5", "--for=1h")["spec"]["avoid"]
    assert (first["above"], first["for"]) == ("0.05", "5m")
    assert (second["below"], second["for"]) == ("0.5", "1h")
    [rule] = new("temperature", "--keep-for=1h")["spec"]["avoid"]
    assert rule["keepFor"] == "1h"
    assert "release" not in rule
    first, _ = new("disk-wear", "--above=95", "--release=94")["spec"]["avoid"]
    assert (first["above"], first["release"]) == (95, 94)


@pytest.mark.parametrize(
    ("name", "flags", "release"),
    [
        ("temperature", ["--above=0.8"], "0.76"),
        ("temperature", ["--above=0.8", "--release=0.5"], "0.5"),
        ("memory-pressure", ["--below=0.05"], "0.075"),
        ("conntrack", ["--above=0.81"], "0.61"),
    ],
)
def test_a_release_keeps_its_ratio_to_another_threshold(name: str, flags: list[str], release: str) -> None:
    assert new(name, *flags)["spec"]["avoid"][0]["release"] == release


@pytest.mark.parametrize("name", PRESETS)
def test_the_suite_follows_a_changed_threshold(name: str, tmp_path: Path) -> None:
    rule = new(name)["spec"]["avoid"][0]
    flag = "--above=0.02" if "above" in rule else "--below=0.02"
    folder = str(tmp_path / "made")
    assert policy("new", f"--preset={name}", flag, "-lapp=web", f"--folder={folder}").exit_code == 0
    tested = policy("test", folder, "--mutate")
    assert tested.exit_code == 0, tested.output
    assert "(100 %)" in tested.stdout


def test_a_query_in_a_namespace_is_a_cluster_policy_for_its_pods() -> None:
    document = new("psi", "--namespace=shop", "--name=calm", "-lapp=web", "--mode=Enforce")
    assert document["kind"] == "ClusterPlacementPolicy"
    assert document["metadata"] == {"name": "calm"}
    spec = document["spec"]
    assert spec["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}
    assert spec["podSelector"] == {"matchLabels": {"app": "web"}}
    assert "mode" not in spec
    assert new("disk-wear", "--namespace=shop")["metadata"]["namespace"] == "shop"
    wide = new("disk-wear", "--cluster-wide")
    assert (wide["kind"], wide["spec"]["namespaceSelector"]) == ("ClusterPlacementPolicy", {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new", "--preset=disk-ware"], "'disk-ware'; expected a preset: "),
        (["new", "--preset=disk-ware"], 'did you mean "disk-wear"?'),
        (["library", "../psi"], "'../psi'; expected a preset: "),
        (["library", "psi", "-ojson"], "-o: 'json'; expected text for one preset"),
        (["new", "--preset=psi", "--metric=up"], "--metric: 'up'; expected --preset without --metric"),
        (["new", "--preset=psi", "--aggregate=max"], "--aggregate: 'max'; expected --preset without"),
        (["new", "--preset=psi", "--below=1"], "--below: '1'; expected --above, the operator of the rules"),
        (["new", "--preset=psi", "--above=hot"], "--above: 'hot'; expected a Kubernetes quantity"),
        (["new", "--preset=psi", "--release=2"], "spec.avoid[0].release: 2; expected a value below '0.6'"),
        (["new", "--preset=temperature", "--release=0.1", "--keep-for=1m"], "release and keepFor together"),
    ],
)
def test_wrong_flags_of_a_preset(words: list[str], message: str) -> None:
    assert message in refusal(*words)


def test_files_show_which_nodes_a_preset_rejects_now(tmp_path: Path) -> None:
    name, warning = "smartctl_device_percentage_used", "smartctl_device_critical_warning"
    values = [f"a,{name},97", f"b,{name},12", f"a,{warning},0"]
    (tmp_path / "metrics.csv").write_text("\n".join(values) + "\n")
    result = policy("new", "--preset=disk-wear", "-l{}", str(tmp_path))
    assert "# 1 of 2 nodes now: a\n" in result.stdout
    assert f"# max({name}): 2 nodes with a value from source file, 0 without\n" in result.stdout
    assert result.stderr == ""
    (tmp_path / "metrics.csv").write_text(values[0] + "\n")
    result = policy("new", "--preset=disk-wear", "-l{}", str(tmp_path))
    assert result.exit_code == 0
    assert f"nodewise: max({warning}): " in result.stderr
    result = policy("new", "--preset=conntrack", "-l{}", str(tmp_path))
    assert result.exit_code == 0
    assert "used share of the conntrack table: a query requires --prometheus-url" in result.stderr


def test_interfaces_of_machines_count_and_those_of_pods_do_not() -> None:
    pattern = r"device=~'(.*?)'"
    [devices] = {
        device
        for rule in policy_library.load("nic-errors").rules
        for device in re.findall(pattern, rule.query)
    }
    names = ["eth0", "eno1", "enp3s0f0", "ens5", "end0", "enP2p1s0", "enx001122", "ib0", "ibp1s0", "bond0"]
    assert [name for name in names if not re.fullmatch(devices, name)] == []
    names = [
        "lo",
        "veth12ab",
        "eni0a1b2c3d4e5",
        "cali123",
        "lxc123",
        "cni0",
        "tunl0",
        "docker0",
        "azv1",
        "ifb0",
    ]
    assert [name for name in names if re.fullmatch(devices, name)] == []


@pytest.mark.parametrize(("flag", "field"), [("--for", "for"), ("--keep-for", "keepFor")])
def test_a_duration_of_zero_is_refused(flag: str, field: str) -> None:
    assert f"spec.avoid[0].{field}: '0ms'" in refusal("new", "--preset=conntrack", flag, "0s")
