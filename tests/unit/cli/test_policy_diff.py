"""`nodewise policy diff`: nodes, pods and node labels that change if policies replace others."""

from pathlib import Path

import httpx2
import msgspec
import pytest
from click.testing import CliRunner, Result

from nodewise.agents.telemetry import KIND
from nodewise.base.errors import BadInput
from nodewise.cli import policy_diff
from nodewise.devices.device_taint_rules import TaintOfPolicy
from nodewise.devices.resource_slices import DeviceId
from nodewise.kube.resource_kinds import DEVICE_TAINT_RULES, NODES, PODS
from nodewise.metrics.prometheus import client
from nodewise.policies import device_taints, placement_policy_parser
from nodewise.policies.options import TelemetryOptions
from nodewise.policies.policy_objects import PolicyObject
from nodewise.scheduling_model import in_memory_api_http_server
from nodewise.scheduling_model.in_memory_api import FakeApi
from tests.cluster import device_objects
from tests.unit.metrics.fake_prometheus_history import URL, FakeHistory, Value

_POLICY = """
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata: {name: cool, namespace: web}
spec:
  podSelector: {matchLabels: {app: web}}
  avoid:
  - {metric: temp, above: 80}
  prefer:
  - {metric: temp, order: Ascending}
---
apiVersion: nodewise.io/v1alpha1
kind: ClusterPlacementPolicy
metadata: {name: drain}
spec:
  nodeLabels:
  - {metric: temp, above: 85, labels: {heat.nodewise.io/drain: "true"}}
"""
_NODES = "".join(f"---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n" for name in "abcd")
_POD = """---
apiVersion: v1
kind: Pod
metadata: {{name: {}, namespace: web, labels: {{app: {}}}}}
spec: {{nodeName: {}}}
"""
_PODS = _POD.format("web-1", "web", "c") + _POD.format("web-2", "web", "''") + _POD.format("db", "db", "c")
_METRICS = "a,temp,50\nb,temp,60\nc,temp,75\nd,temp,90\n"
_SHADOW = _POLICY.replace("spec:\n  podSelector", "spec:\n  mode: Shadow\n  podSelector")
_CANARY = _SHADOW.replace("mode: Shadow", "mode: Canary\n  canary: {podSelector: {matchLabels: {try: it}}}")
_CANARY_PODS = _PODS.replace("{app: web}}\nspec: {nodeName: ''}", "{app: web, try: it}}\nspec: {}")
"""Of the pods that the policy selects, the second one is part of the canary."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    (inputs / "nodes.yaml").write_text(_NODES)
    (inputs / "pods.yaml").write_text(_PODS)
    (inputs / "metrics.csv").write_text(_METRICS)
    (tmp_path / "old.yaml").write_text(_POLICY)
    return tmp_path


def diff(folder: Path, new: str, *more: str) -> Result:
    (folder / "new.yaml").write_text(new)
    arguments = [str(folder / "old.yaml"), str(folder / "new.yaml"), str(folder / "inputs"), *more]
    return CliRunner().invoke(policy_diff.command, arguments)


def test_verdicts_ranks_and_labels_that_change(folder: Path) -> None:
    new = _POLICY.replace("above: 80", "above: 70").replace("Ascending", "Descending").replace("85", "95")
    result = diff(folder, new)
    assert result.exit_code == 3
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "web/web-1 and 1 more pod: of 4 nodes, 1 verdict and 2 ranks change",
        "NODE PODS THERE BEFORE AFTER",
        "c 1 rank 3 rejected: placement policy web/cool: temp above 70",
        "a - rank 1 rank 2",
        "b - rank 2 rank 1",
        "NODE LABEL BEFORE AFTER",
        "d heat.nodewise.io/drain true -",
        "2 of 2 selected pods change, 1 node labels change",
    ]


def test_the_same_as_json(folder: Path) -> None:
    [group] = msgspec.json.decode(
        diff(folder, _POLICY.replace("above: 80", "above: 70"), "-o", "json").stdout
    )["pods"]
    assert group == {
        "pods": ["web/web-1", "web/web-2"],
        "policies": {"before": ["placement policy web/cool"], "after": ["placement policy web/cool"]},
        "nodes": [
            {
                "node": "c",
                "running": 1,
                "before": {"rejected": None, "rank": 3},
                "after": {"rejected": "placement policy web/cool: temp above 70", "rank": None},
            }
        ],
    }


def test_pods_of_a_canary_and_others_are_compared_separately(folder: Path) -> None:
    """The first pod is not part of it, and keeps its verdicts."""
    (folder / "inputs" / "pods.yaml").write_text(_CANARY_PODS)
    (folder / "old.yaml").write_text(_SHADOW)
    result = diff(folder, _CANARY)
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "placement policy web/cool: mode Shadow before, Canary (podSelector) after",
        "web/web-2: of 4 nodes, 1 verdict and 3 ranks change",
        "NODE BEFORE AFTER",
        "d accepted rejected: placement policy web/cool: temp above 80",
        "a accepted rank 1",
        "b accepted rank 2",
        "c accepted rank 3",
        "1 of 2 selected pods change, 0 node labels change",
    ]


_PERCENT = _CANARY.replace("podSelector: {matchLabels: {try: it}}", "percent: 1")
_GUARD = _POLICY.replace("avoid:", 'guard: {maxRejectedShare: "0.5"}\n  avoid:')
_NOTE = "Note: placement policy web/cool is evaluated as if it were enforced for all pods, without"
_MODE = "placement policy web/cool: mode"


@pytest.mark.parametrize(
    ("old", "new", "notes", "changed"),
    [
        (_SHADOW, _SHADOW, [f"{_NOTE} mode Shadow"], "bc"),
        (_CANARY, _CANARY, [f"{_NOTE} mode Canary"], "bc"),
        (_PERCENT, _PERCENT, [f"{_NOTE} mode Canary"], "bc"),
        (_GUARD, _GUARD, [f"{_NOTE} guard"], "bc"),
        (_POLICY, _SHADOW, [f"{_NOTE} mode Shadow", f"{_MODE} Enforce before, Shadow after"], "bc"),
        (
            _CANARY,
            _SHADOW,
            [
                f"{_NOTE} mode Canary",
                f"{_NOTE} mode Shadow",
                f"{_MODE} Canary (podSelector) before, Shadow after",
            ],
            "bc",
        ),
        # more effect: the policy rejects nothing before
        (_SHADOW, _POLICY, [f"{_MODE} Shadow before, Enforce after"], "abcd"),
        (_SHADOW, _PERCENT, [f"{_MODE} Shadow before, Canary (1 %) after"], ""),
        (_PERCENT, _CANARY, [f"{_MODE} Canary (1 %) before, Canary (podSelector) after"], ""),
        (_SHADOW, _SHADOW.replace("name: cool", "name: cold"), None, "bc"),
    ],
)
def test_modes_are_compared_as_if_enforced_unless_new_has_more_effect(
    folder: Path, old: str, new: str, notes: list[str] | None, changed: str
) -> None:
    (folder / "old.yaml").write_text(old)
    result = diff(folder, new.replace("above: 80", "above: 55"))
    lines = result.stdout.splitlines()
    head = [line for line in lines if line.startswith((_NOTE, _MODE))]
    assert head == (head if notes is None else notes)
    assert (
        "".join(sorted(line[2] for line in lines if line.startswith("  ") and "NODE" not in line)) == changed
    )
    assert result.exit_code == 3


def test_the_same_rules_in_another_mode(folder: Path) -> None:
    result = diff(folder, _SHADOW)
    assert (result.stdout.splitlines()[1:], result.exit_code) == (
        [f"{_MODE} Enforce before, Shadow after", "0 of 2 selected pods change, 0 node labels change"],
        3,
    )
    (folder / "old.yaml").write_text(_SHADOW)
    result = diff(folder, _SHADOW)
    assert (result.stdout.splitlines()[1:], result.exit_code) == (["nothing changes"], 0)
    invalid = _SHADOW.replace("Shadow", "Shdow")
    assert "spec.mode" in diff(folder, invalid).stdout, "an invalid policy still rejects all nodes"


@pytest.mark.parametrize(
    "new",
    [
        _POLICY,
        # another reason for the same nodes, and another name
        _POLICY.replace("above: 80", "atLeast: 78"),
        _POLICY.replace("name: cool", "name: cooler"),
    ],
)
def test_nothing_changes(folder: Path, new: str) -> None:
    result = diff(folder, new)
    assert (result.stdout, result.exit_code) == ("nothing changes\n", 0)


def test_the_old_policy_counts_only_before(folder: Path) -> None:
    """Also where FILE has it."""
    (folder / "inputs" / "policy.yaml").write_text(_POLICY)
    result = diff(folder, _POLICY.replace("name: cool", "name: cooler").replace("above: 80", "above: 95"))
    assert "rejected: placement policy web/cool: temp above 80" in result.stdout
    assert "web/cooler" not in result.stdout


def test_without_pods_an_example_of_each_selector_is_compared(folder: Path) -> None:
    (folder / "inputs" / "pods.yaml").unlink()
    result = diff(folder, _POLICY.replace("above: 80", "above: 70"))
    assert result.stdout.startswith("web/pods of web/cool: of 4 nodes, 1 verdict and 0 ranks change\n")


def test_wrong_inputs(folder: Path) -> None:
    assert "no policy; expected one of" in str(diff(folder, _NODES).exception)
    (folder / "inputs" / "nodes.yaml").unlink()
    assert "no Node; expected at least one" in str(diff(folder, _POLICY).exception)
    paths = [str(folder / "old.yaml")] * 2
    assert "FILE: no file" in str(CliRunner().invoke(policy_diff.command, paths).exception)


_HISTORY_OPTIONS = ("--since", "1h", "--prometheus-url", URL)


def serve_history(monkeypatch: pytest.MonkeyPatch, value_of_b: Value, other_value: Value) -> FakeHistory:
    """A Prometheus with the temperatures of four nodes."""
    fake = FakeHistory(
        {
            (("__name__", "temp"), ("node", node)): value_of_b if node == "b" else other_value
            for node in "abcd"
        }
    )
    transport = httpx2.MockTransport(fake.answer)
    monkeypatch.setattr(
        client,
        "_create_client",
        lambda *_: httpx2.AsyncClient(base_url=URL, transport=transport),
    )
    return fake


def test_times_without_values_are_no_times_at_which_nothing_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cold_for_20_minutes(at: float) -> str | None:
        return "50" if fake.now - at <= 20 * 60 else None

    fake = serve_history(monkeypatch, cold_for_20_minutes, cold_for_20_minutes)
    lines = diff(folder, _POLICY, *_HISTORY_OPTIONS).stdout.splitlines()
    assert (lines[0], *lines[-2:]) == (
        "nothing changes now",
        "note: the first 40 of 60 times are not compared: a metric has no values",
        "nothing changes at the last 20 times; the 40 before are unknown",
    )
    document = msgspec.json.decode(diff(folder, _POLICY, *_HISTORY_OPTIONS, "-o", "json").stdout)
    assert document["history"]["evaluations"] == {"compared": 20, "left_out": 40}


def test_a_history_without_values_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_history(monkeypatch, lambda _: None, lambda _: None)
    result = diff(folder, _POLICY, *_HISTORY_OPTIONS)
    assert isinstance(result.exception, BadInput)
    assert "history: no time from " in str(result.exception)
    assert "at which all metrics have values; expected at least one" in str(result.exception)


def test_a_metric_without_values_is_named(folder: Path) -> None:
    (folder / "inputs" / "metrics.csv").write_text("a,tmp,50\n")
    result = diff(folder, _POLICY.replace("above: 80", "above: 70"))
    assert result.stdout == "nothing was compared\n"
    assert isinstance(result.exception, BadInput)
    [warning] = result.stderr.splitlines()
    assert warning.startswith(
        "nodewise: Warning: no node has a value of temp: the file of --metrics has no metric"
    )
    assert warning.endswith("; rules with these metrics are not compared")


def test_one_of_two_metrics_without_values_is_named(folder: Path) -> None:
    (folder / "inputs" / "metrics.csv").write_text("a,tmp,50\n")
    both = _POLICY.replace("above: 80}", "above: 80}\n  - {metric: tmp, above: 90}")
    (folder / "old.yaml").write_text(both)
    result = diff(folder, both.replace("above: 80", "above: 70"))
    assert (result.stdout, result.exit_code) == ("nothing changes, as far as metrics have values\n", 0)
    assert "no node has a value of temp" in result.stderr


def test_the_history_of_a_node_whose_differing_values_all_meet_the_rule(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = serve_history(monkeypatch, lambda _: "77.5", lambda _: "50")
    fake.series = {**fake.series, (("__name__", "temp"), ("node", "b"), ("job", "other")): lambda _: "79"}
    options = ("-o", "json", *_HISTORY_OPTIONS)
    for threshold, changed in (("75", ["b"]), ("78", [])):
        result = diff(folder, _POLICY.replace("above: 80", f"above: {threshold}"), *options)
        groups = msgspec.json.decode(result.stdout)["history"]["pods"]
        assert [entry["node"] for group in groups for entry in group["nodes"]] == changed


def test_the_history(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node b had 75 for the first 20 of 60 minutes, and 85 for ten more."""

    def value_of_b(at: float) -> str:
        minutes = round((fake.now // 60 * 60 - at) / 60)
        return "75" if minutes >= 40 else "85" if minutes >= 30 else "60"

    fake = serve_history(monkeypatch, value_of_b, lambda _: "50")
    options = _HISTORY_OPTIONS
    result = diff(folder, _POLICY.replace("above: 80", "above: 70"), *options)
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    heading = lines.index("web/web-1 and 1 more pod: 1 nodes change; no node was left for 0 before, 0 after")
    expected = ["NODE REJECTED BEFORE AFTER ONLY BEFORE ONLY AFTER", "b 10m 30m 0 20m"]
    assert lines[heading + 1 :] == expected
    document = msgspec.json.decode(diff(folder, _POLICY, *options, "-o", "json").stdout)
    assert document["history"]["pods"] == []
    (folder / "inputs" / "pods.yaml").write_text(_CANARY_PODS)
    document = msgspec.json.decode(diff(folder, _SHADOW, *options, "-o", "json").stdout)
    assert (document["history"]["pods"], document["modes"][0]["after"]) == ([], "Shadow")
    stricter = _SHADOW.replace("above: 80", "above: 70")
    [group] = msgspec.json.decode(diff(folder, stricter, *options, "-o", "json").stdout)["history"]["pods"]
    assert (group["pods"], group["nodes"][0]["only_after"]) == (["web/web-1", "web/web-2"], 1200)
    (folder / "old.yaml").write_text(_SHADOW)
    [group] = msgspec.json.decode(diff(folder, _CANARY, *options, "-o", "json").stdout)["history"]["pods"]
    assert (group["pods"], group["nodes"][0]["only_after"]) == (["web/web-2"], 600)
    assert "--prometheus-url: no value" in str(diff(folder, _POLICY, "--since", "1h").exception)


def test_the_objects_of_a_cluster_with_the_metrics_of_a_file(folder: Path) -> None:
    api = FakeApi(*(watched.resource for watched in KIND.watched(TelemetryOptions())))
    for name in "abcd":
        api.put(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    metadata = {"name": "web-1", "namespace": "web", "labels": {"app": "web"}}
    api.put(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": "c"}})
    (folder / "new.yaml").write_text(_POLICY.replace("above: 80", "above: 70"))
    paths = [str(folder / name) for name in ("old.yaml", "new.yaml", "inputs/metrics.csv")]
    with in_memory_api_http_server.serving(api) as server:
        kubeconfig = str(server.kubeconfig(folder))
        result = CliRunner().invoke(
            policy_diff.command,
            [*paths, "--cluster", "--kubeconfig", kubeconfig, "--now", "2026-11-21T00:00:00Z"],
        )
        assert {verb for verb, _ in server.call(lambda served: served.calls)} == {"get"}
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "web/web-1: of 4 nodes, 1 verdict and 0 ranks change"
    assert lines[2] == "c 1 rank 3 rejected: placement policy web/cool: temp above 70"


def test_device_without_a_value_is_unknown(tmp_path: Path) -> None:
    """Without Prometheus, it is unknown whether the new rule would taint the device."""
    rule = {"metric": "xid", "above": 0, "driver": "gpu.example.com", "deviceLabel": "UUID"}
    document = {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": "ClusterPlacementPolicy",
        "metadata": {"name": "gpus"},
    }
    other = rule | {"metric": "ecc_errors"}
    sides = {"old": [rule], "new": [rule | {"metric": "xid_errors"}], "none": [], "both": [rule, other]}
    for name, rules in {**sides, "other": [other]}.items():
        spec = (
            {"deviceTaints": rules}
            if rules
            else {"namespaceSelector": {}, "avoid": [{"metric": "m", "above": 1}]}
        )
        (tmp_path / f"{name}.yaml").write_bytes(msgspec.yaml.encode({**document, "spec": spec}))
    text = msgspec.json.encode({**document, "spec": {"deviceTaints": [rule]}})
    policy = placement_policy_parser.parse_policy(
        msgspec.json.decode(text, type=PolicyObject), "ClusterPlacementPolicy"
    )
    identity = device_taints.rule_id(policy.device_taints[0])
    device = DeviceId("gpu.example.com", "a", "gpu-0")
    taint = TaintOfPolicy("gpus", "", device, "NoSchedule", (identity,), "xid above 0")
    objects = [
        taint.body(DEVICE_TAINT_RULES),
        device_objects.resource_slice("a", [device_objects.device("gpu-0")]),
    ]
    inputs = tmp_path / "inputs.yaml"
    inputs.write_text(_NODES + "".join(f"---\n{msgspec.yaml.encode(item).decode()}" for item in objects))

    def diff(old: str, new: str, *options: str) -> str:
        arguments = [*(str(tmp_path / f"{side}.yaml") for side in (old, new)), str(inputs), *options]
        return CliRunner().invoke(policy_diff.command, arguments).stdout

    def changes(old: str, new: str) -> tuple[list[str], list[str]]:
        output = msgspec.json.decode(diff(old, new, "--output=json"))
        return [change["device"] for change in output["devices"]], output["unknown_devices"]

    assert changes("old", "new") == ([], [str(device)])
    lines = diff("old", "new").splitlines()
    assert lines[0] == "Note: 1 device has no value for a rule that differs: whether it changes is unknown"
    assert lines[-1].endswith("1 device rule and 0 of 1 device change, 1 unknown")
    assert changes("old", "none") == ([str(device)], [])
    # the taint of the device stays, and it is unknown whether the earlier rule would taint it
    assert changes("new", "old") == ([str(device)], [])
    assert "a/gpu-0  no value  NoSchedule: xid above 0" in diff("new", "old")
    # the rule that stays has no value before and after, and changes nothing
    assert changes("both", "other") == ([str(device)], [])
