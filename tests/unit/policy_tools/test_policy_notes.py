"""Notes of `policy lint` about valid policies."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from nodewise.cli.main import command
from nodewise.policies import placement_policy_parser
from nodewise.policies.placement_policy import PolicyKind
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policy_tools import policy_lint, policy_timeline

WEB = {"matchLabels": {"app": "web"}}
HOT = {"metric": "temp", "above": 80}


def notes(kind: PolicyKind = "PlacementPolicy", **spec: Any) -> list[str]:
    """The notes about a policy that hot nodes do not suit, with some fields."""
    selectors = {"namespaceSelector": {}} if kind == "ClusterPlacementPolicy" else {}
    document = {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "cool"},
        "spec": {"podSelector": WEB, **selectors, "avoid": [HOT]} | spec,
    }
    data = msgspec.json.encode(document)
    assert policy_lint.lint(data, kind) == []
    return [f"{note.field}: {note.found}" for note in policy_lint.notes(data, kind, sync_period_s=5.0)]


DEVICE_RULES = [{"metric": "xid", "above": 0, "driver": "gpu.example.com", "deviceLabel": "UUID"}]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"for": "2s"}, ["spec.avoid[1].for: 2s"]),
        ({"keepFor": "4s"}, ["spec.avoid[1].keepFor: 4s"]),
        ({"for": "5s", "release": 75}, []),
    ],
)
def test_times_shorter_than_a_refresh_period(rule: dict[str, Any], expected: list[str]) -> None:
    assert notes(avoid=[HOT, HOT | rule]) == expected


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator} | ({"values": values} if values else {})]}


@pytest.mark.parametrize(
    ("selector", "has_pods"),
    [
        ({}, True),
        ({"matchLabels": {"track": "canary"}}, True),
        ({"matchLabels": {"app": "api"}}, False),
        (expression("app", "In", "api", "web"), True),
        (expression("app", "In", "api"), False),
        (expression("app", "NotIn", "api"), True),
        (expression("app", "NotIn", "api", "web"), False),
        (expression("app", "Exists"), True),
        (expression("app", "DoesNotExist"), False),
        (expression("track", "DoesNotExist"), True),
    ],
)
def test_a_canary_without_pods(selector: dict[str, Any], has_pods: bool) -> None:
    expected = [] if has_pods else ["spec.canary.podSelector: no pod of spec.podSelector"]
    assert notes(mode="Canary", canary={"podSelector": selector}) == expected


def test_a_canary_by_percent_is_for_the_extender_only() -> None:
    assert notes(mode="Canary", canary={"percent": 10}) == ["spec.canary.percent: 10"]


def test_a_canary_of_pods_taints_no_device() -> None:
    rule = {"metric": "temp", "above": 90, "driver": "gpu.example.com", "deviceLabel": "UUID"}
    canary = {"podSelector": {"matchLabels": {"app": "web"}}}
    expected = ["spec.canary.podSelector: deviceTaints with a canary of pods"]
    for spec, expected_notes in (
        ({"mode": "Canary", "canary": canary}, expected),
        ({"mode": "Canary", "canary": {"percent": 10}}, ["spec.canary.percent: 10"]),
        ({"mode": "Shadow"}, []),
    ):
        assert notes("ClusterPlacementPolicy", deviceTaints=[rule], **spec) == expected_notes


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"metric": "predicted_cpu_share", "above": 80}, ["spec.avoid[0].above: 80"]),
        ({"metric": "predicted_cpu_share", "above": "0.8", "release": "0.7"}, []),
        ({"metric": "predicted_memory_share", "atLeast": 95, "release": 90},
         ["spec.avoid[0].atLeast: 95", "spec.avoid[0].release: 90"]),
        ({"metric": "cpu_usage_share", "between": ["0.5", 80]}, ["spec.avoid[0].between: 80"]),
        ({"metric": "disk_free_ratio", "below": 10}, ["spec.avoid[0].below: 10"]),
        ({"metric": "limits_to_capacity_ratio", "above": 3}, []),
        ({"metric": "cpu_busy_ratio", "above": 40, "aggregate": "sum"}, []),
        ({"metric": "temp", "above": 80}, []),
        ({"metric": "predicted_cpu_shrae", "above": "0.8"}, ["spec.avoid[0].metric: 'predicted_cpu_shrae'"]),
        ({"metric": "Predicted-CPU-Share", "above": "0.8"}, ["spec.avoid[0].metric: 'Predicted-CPU-Share'"]),
        ({"metric": "node_load", "above": 4}, []),
    ],
)  # fmt: skip
def test_percentages_of_shares_and_misspelled_metrics(rule: dict[str, Any], expected: list[str]) -> None:
    assert notes(avoid=[rule]) == expected


SLICE = """
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1}
spec:
  driver: gpu.example.com
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0, attributes: {uuid: {string: GPU-1}, index: {int: 0}}}]
"""


@pytest.mark.parametrize(
    ("driver", "attribute", "expected"),
    [
        ("gpu.example.com", "uuid", ""),
        ("gpu.example.com", "gpu.example.com/uuid", ""),
        ("gpu.example.com", "uid", 'devices of gpu.example.com, which are index, uuid; did you mean "uuid"?'),
        ("gpu.exmaple.com", "uuid", 'a driver with a ResourceSlice; did you mean "gpu.example.com"?'),
    ],
)  # fmt: skip
def test_drivers_and_attributes_that_no_slice_in_the_files_has(
    tmp_path: Path, driver: str, attribute: str, expected: str
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"""\
apiVersion: nodewise.io/v1alpha1
kind: ClusterPlacementPolicy
metadata: {{name: gpus}}
spec:
  deviceTaints:
  - {{metric: temp, above: 90, driver: {driver}, deviceLabel: UUID, deviceAttribute: {attribute}}}
{SLICE}""")
    result = CliRunner().invoke(command, ["policy", "lint", str(file)])
    assert result.exit_code == 0
    assert expected in result.stdout
    assert len(result.stdout.splitlines()) == 1 + bool(expected)


def test_share_with_a_percent_sign_has_a_note_beside_the_problem() -> None:
    rule = {"metric": "predicted_cpu_share", "above": "80%"}
    data = msgspec.json.encode({"metadata": {"name": "cool"}, "spec": {"podSelector": WEB, "avoid": [rule]}})
    [note] = policy_lint.notes(data, "PlacementPolicy", sync_period_s=5.0)
    assert note.expected.startswith('a share such as "0.8"')


def test_guards_that_never_apply() -> None:
    assert notes(guard={"maxWaitingPods": 3}) == []
    assert notes(guard={"maxWaitingPods": 3}, enforcement="Preferred") == ["spec.guard.maxWaitingPods: 3"]
    assert notes("ClusterPlacementPolicy", guard={"maxWaitingPods": 3}) == ["spec.guard.maxWaitingPods: 3"]
    both = {"maxWaitingPods": 3, "maxRejectedShare": "0.5"}
    assert notes("ClusterPlacementPolicy", guard=both) == []


def test_notes_are_printed_and_are_no_problems(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("""\
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: cool, namespace: web}
spec:
  podSelector: {}
  mode: Canary
  canary:
    percent: 10
  avoid: [{metric: temp, above: 80}]
""")
    result = CliRunner().invoke(command, ["policy", "lint", str(file)])
    assert result.exit_code == 0
    note, summary = result.stdout.splitlines()
    assert note.startswith(
        f"{file}:8: web/cool: Note: spec.canary.percent: found 10, expected podSelector in native mode"
    )
    assert summary == "1 policy, no problem"
    result = CliRunner().invoke(command, ["policy", "lint", str(file), "-o", "json"])
    [policy] = json.loads(result.stdout)["policies"]
    assert policy["problems"] == []
    assert [(note["field"], note["line"]) for note in policy["notes"]] == [("spec.canary.percent", 8)]


def test_lint_refuses_a_misspelt_kind_beside_other_policies(tmp_path: Path) -> None:
    spec = "spec: {podSelector: {}, avoid: [{metric: heat, above: 80}]}"
    for kind in ("PlacementPolicy", "PlacementPolcy"):
        text = f"apiVersion: nodewise.io/v1alpha1\nkind: {kind}\nmetadata: {{name: a}}\n{spec}\n"
        (tmp_path / f"{kind}.yaml").write_text(text)
    result = CliRunner().invoke(command, ["policy", "lint", str(tmp_path)])
    assert result.exit_code == 1
    message = str(result.exception)
    assert "PlacementPolcy.yaml" in message
    assert 'did you mean "PlacementPolicy"?' in message


_RULE = {"metricname": "temp", "operator": "GreaterThan", "target": 1}
_TAS_POLICY = {
    "apiVersion": "telemetry.intel.com/v1alpha1",
    "kind": "TASPolicy",
    "metadata": {"name": "a"},
    "spec": {"strategies": {"dontschedule": {"rules": [_RULE]}}},
}


@pytest.mark.parametrize("name", ["lint", "convert"])
def test_folder_with_policies_in_subfolders_is_named(tmp_path: Path, name: str) -> None:
    for folder in (tmp_path, tmp_path / "base/team-a", tmp_path / ".git"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.yaml").write_text(json.dumps(_TAS_POLICY))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/suite.yaml").write_text("policy_files: [../policy.yaml]\n")
    (tmp_path / "tests/link.yaml").symlink_to(tmp_path / "missing")
    note = f"nodewise: Note: {tmp_path}: policies in subfolders are not read, such as those in {tmp_path}/base/team-a\n"
    result = CliRunner().invoke(command, ["policy", name, str(tmp_path)])
    assert (result.exit_code, result.stderr) == (0, note)
    assert CliRunner().invoke(command, ["policy", name, str(tmp_path / "base/team-a")]).stderr == ""
    (tmp_path / "policy.yaml").unlink()
    result = CliRunner().invoke(command, ["policy", name, str(tmp_path)])
    assert (result.exit_code, result.stderr) == (1, note)


def test_convert_does_not_name_subfolders_of_its_results(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(json.dumps(_TAS_POLICY))
    (tmp_path / "converted").mkdir()
    converted = CliRunner().invoke(command, ["policy", "convert", str(tmp_path)])
    (tmp_path / "converted/policy.yaml").write_text(converted.stdout)
    assert CliRunner().invoke(command, ["policy", "convert", str(tmp_path)]).stderr == ""
    assert "are not read" in CliRunner().invoke(command, ["policy", "lint", str(tmp_path)]).stderr


def test_lint_ignores_other_files_if_a_flag_says_so(tmp_path: Path) -> None:
    files = {
        "template.yaml": "{{ if .x }}\nmetadata: {annotations: {nodewise.io/woken: x}}\n",
        "node.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n",
        "policy.yaml": 'apiVersion: "nodewise.io/v1alpha1"\nkind: PlacementPolicy\nmetadata: {name: a}\n',
        "policy.json": '{"kind": "TASPolicy", "apiVersion" : "telemetry.intel.com/v1alpha1", "metadata": {}}',
    }
    paths = {name: str(tmp_path / name) for name in files}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def lint(*names: str) -> tuple[int, str]:
        words = ["policy", "lint", "--ignore-other-files", *(paths.get(name, name) for name in names)]
        result = CliRunner().invoke(command, words)
        return result.exit_code, result.stdout

    assert lint("template.yaml", "node.yaml") == (0, "0 policies, no problem\n")
    for name in ("policy.yaml", "policy.json"):
        code, output = lint(*files) if name == "policy.yaml" else lint(name)
        assert code == 3
        assert f"{paths[name]}:" in output
    assert lint(str(tmp_path))[1] == lint(*sorted(files))[1]
    assert lint("missing.yaml")[0] == 1
    assert lint("a" * 300)[0] == 1


@pytest.mark.parametrize(
    ("spec", "subjects"),
    [
        ({"deviceTaints": DEVICE_RULES}, "devices"),
        ({"namespaceSelector": {}, "avoid": [{"metric": "temp", "above": 1}]}, "pods"),
        (
            {
                "namespaceSelector": {},
                "avoid": [{"metric": "temp", "above": 1}],
                "deviceTaints": DEVICE_RULES,
            },
            "pods and devices",
        ),
    ],
)
def test_note_about_a_mode_names_pods_or_devices(spec: dict[str, Any], subjects: str) -> None:
    text = msgspec.json.encode({"metadata": {"name": "gpus"}, "spec": {"mode": "Shadow", **spec}})
    policy = placement_policy_parser.parse_policy(
        msgspec.json.decode(text, type=PolicyObject), "ClusterPlacementPolicy"
    )
    [note] = policy_timeline.mode_notes({policy.key: policy})
    assert note.endswith(f"as if it were enforced for all {subjects}, without mode Shadow")
