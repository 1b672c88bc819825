"""PlacementPolicy and ClusterPlacementPolicy on a real API server: accepted and rejected specs, status, kubectl."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.cluster import (
    admission_policy_waits,
    extender_process,
    kubernetes_objects,
    placement_policy_server,
    read_only_commands,
)
from tests.cluster.api_client import ApiError, ClusterApi, Object, path_of
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.placement_policy_server import FIELD_POLICY, refusal
from tests.cluster.placement_policy_specs import (
    ACCEPTED,
    COOL,
    GROUP,
    HOT,
    PLURALS,
    RANK,
    REJECTED,
    WIDE,
    avoiding,
    namespaced,
    policy,
)


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[ClusterApi]:
    with placement_policy_server.defining_both_kinds(plane.api):
        yield plane.api


def _without_none(obj: Any) -> Any:
    """A copy without fields that are None."""
    if isinstance(obj, dict):
        return {key: _without_none(value) for key, value in obj.items() if value is not None}
    return [_without_none(value) for value in obj] if isinstance(obj, list) else obj


@pytest.mark.parametrize("obj", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(api: ClusterApi, obj: Object) -> None:
    assert refusal(api, _without_none(obj)) == ""


@pytest.mark.parametrize(("obj", "parts"), REJECTED.values(), ids=REJECTED)
def test_rejected_with_the_field_and_the_expected_value(
    api: ClusterApi, obj: Object, parts: list[str]
) -> None:
    message = refusal(api, _without_none(obj))
    assert [part for part in parts if part not in message] == [], message


def test_a_new_policy_for_a_metric_of_the_cluster_is_accepted(
    plane: ControlPlane, api: ClusterApi, sandbox: Sandbox, metrics: FakeCustomMetricsApi
) -> None:
    sandbox.nodes(*kubernetes_objects.nodes("a b c"))
    metrics.set("disk_temp", {"a": 30, "b": "41500m", "c": 90})
    rights = [rule("list", "nodes"), rule("get", "*", "custom.metrics.k8s.io")]
    kubeconfig = f"--kubeconfig={read_only_commands.reader(plane, rights).kubeconfig}"
    for kind in ((), ("--cluster-wide",)):
        done = read_only_commands.run(
            "policy",
            "new",
            kubeconfig,
            "--metric=disk_temp",
            "--above=41.5",
            "-l",
            "app=web",
            "-n",
            "default",
            *kind,
        )
        assert "# 1 of 3 nodes now: c\n" in done.stdout, done.stderr
        assert refusal(api, yaml.safe_load(done.stdout)) == ""
    misspelt = read_only_commands.run("policy", "new", kubeconfig, "--metric=disk_tmp", "--above=1")
    assert "expected a metric of nodes, such as disk_temp" in misspelt.stderr


def test_the_largest_policy_is_within_the_cost_limits(api: ClusterApi) -> None:
    rule = {
        "query": "q" * 4096,
        "aggregate": "max",
        "atLeast": "0" * 64,
        "maxAge": f"1.{'0' * 28}ms",
        "emptyMeans": "Healthy",
    }
    selector = {
        "matchLabels": {f"{'d' * 200}.example.com/{'k' * 60}{n}": "v" * 63 for n in range(20)},
        "matchExpressions": [
            {"key": f"k{n}", "operator": "In", "values": ["v" * 63] * 50} for n in range(20)
        ],
    }
    labels = {f"{'a' * 200}.nodewise.io/{'k' * 60}{n}": "v" * 63 for n in range(16)}
    held = rule | {"release": f"-{'9' * 63}"}
    times = {"for": rule["maxAge"]}
    groups: list[Object] = [{"all": [rule] * 16}] * 6 + [rule] * 4
    avoided: list[Object] = [{"all": [held] * 16} | times] * 6 + [held | times] * 4
    spec = {
        "namespaceSelector": selector,
        "podSelector": selector,
        "avoid": avoided,
        "prefer": [{"query": "q" * 4096, "order": "Descending", "weight": 100}] * 16,
        "nodeLabels": [group | {"labels": labels} for group in groups],
    }
    assert refusal(api, policy(spec, "ClusterPlacementPolicy")) == ""


def test_fields_that_were_stored_before_block_only_changes_of_the_spec(api: ClusterApi) -> None:
    """A policy that was stored with an unknown field, such as one of a newer version, can be changed elsewhere."""
    binding = FIELD_POLICY[1]
    odd = avoiding(colour="red")
    api.delete(path_of(binding))
    admission_policy_waits.wait_allowed(lambda: admission_policy_waits.try_create(api, odd))
    path = path_of(api.create(odd))
    api.create(binding)
    admission_policy_waits.wait_denied(
        lambda: admission_policy_waits.try_create(api, policy(odd["spec"], name="other"))
    )
    assert api.get(path)["spec"]["avoid"][0]["colour"] == "red"
    api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    api.patch(f"{path}/status", {"status": {"rejectedNodes": 1}})
    with pytest.raises(ApiError, match=r'spec.avoid\[0\]: found field "colour"'):
        api.patch(path, {"spec": {"prefer": [RANK]}})
    api.delete(path)


def test_status_is_separate_from_the_spec_and_conditions_merge_by_type(api: ClusterApi) -> None:
    path = path_of(api.create(namespaced(avoid=[HOT]) | {"status": {"mode": "forged"}}))
    assert "status" not in api.get(path)
    for manager, kind in (("one", "Ready"), ("other", "Suspended")):
        condition = {
            "type": kind,
            "status": "True",
            "reason": "AsExpected",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        body = {"apiVersion": GROUP, "kind": "PlacementPolicy", "status": {"conditions": [condition]}}
        api.request(
            "PATCH",
            f"{path}/status",
            content=json.dumps(body),
            params={"fieldManager": manager},
            headers={"Content-Type": "application/apply-patch+yaml"},
        )
    stored = api.get(path)
    assert [condition["type"] for condition in stored["status"]["conditions"]] == ["Ready", "Suspended"]
    assert stored["metadata"]["generation"] == 1
    assert api.patch(path, {"spec": {"prefer": [RANK]}})["metadata"]["generation"] == 2
    with pytest.raises(ApiError, match=r"status.conditions\[0\].reason: Required value"):
        api.patch(f"{path}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    api.delete(path)


STATUS: Final = {
    "mode": "Enforce",
    "selectedPods": 12,
    "rejectedNodes": 3,
    "nodeLabel": "policy.nodewise.node-restriction.kubernetes.io/1",
    "active": True,
    "rules": [
        {"rule": "avoid[0]", "expression": "temp above 80", "nodes": 3, "missing": 0, "suspended": False}
    ],
    "conditions": [
        {
            "type": kind,
            "status": "True",
            "reason": "AsExpected",
            "message": "fine",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind in ("Ready", "MetricsAvailable")
    ],
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [("PlacementPolicy", "plp"), ("ClusterPlacementPolicy", "cplp"), ("PlacementPolicy", "nodewise")],
)
def test_kubectl_get_shows_the_columns(plane: ControlPlane, api: ClusterApi, kind: str, name: str) -> None:
    path = path_of(api.create(policy(COOL if kind == "PlacementPolicy" else WIDE, kind)))
    devices = {} if kind == "PlacementPolicy" else {"taintedDevices": 2}
    api.patch(f"{path}/status", {"status": STATUS | devices})
    try:
        head, row, *_ = plane.kubectl("get", name, "-n", "default").splitlines()
        columns = ["NAME", "MODE", "PODS", "NODES REJECTED", "METRICS", "READY", "AGE", "MESSAGE"]
        columns[4:4] = ["DEVICES TAINTED"] * len(devices)
        assert re.split(" {2,}", head.strip()) == columns
        assert row.split()[1:5] == ["Enforce", "12", "3", "2" if devices else "True"]
        wide = plane.kubectl("get", name, "-n", "default", "-o", "wide")
        columns[5:5] = ["WOULD TAINT"] * len(devices)
        assert re.split(" {2,}", wide.splitlines()[0].strip()) == [*columns[:-1], "ENFORCEMENT", columns[-1]]
    finally:
        api.delete(path)


@pytest.mark.parametrize("plural", PLURALS.values())
def test_kubectl_explains_every_field(plane: ControlPlane, api: ClusterApi, plural: str) -> None:
    [definition] = extender_process.manifest(f"crds/{plural}.yaml")
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for path, fields in explained_objects(plural, schema):
        shown = " ".join(plane.kubectl("explain", path).split())
        missing = [
            f"{path}.{name}"
            for name, field in fields.items()
            if name not in {"apiVersion", "kind", "metadata"}
            and " ".join(field["description"].split()) not in shown
        ]
        assert missing == []


def explained_objects(path: str, field: Any) -> Iterator[tuple[str, Any]]:
    """The fields of each object below a schema, with its path as `kubectl explain` takes it."""
    field = field.get("items", field)
    if "properties" in field:
        yield path, field["properties"]
        for name, inner in field["properties"].items():
            yield from explained_objects(f"{path}.{name}", inner)


@pytest.mark.parametrize("validation", ["strict", "warn", "ignore"])
def test_kubectl_apply_is_refused_whatever_validation_it_asks_for(
    plane: ControlPlane,
    api: ClusterApi,
    tmp_path: Path,
    validation: str,
) -> None:
    file = tmp_path / "policy.json"
    file.write_text(json.dumps(avoiding(maxage="2m")))
    with pytest.raises(AssertionError, match=r'spec.avoid\[0\]: found field "maxage".*did you mean "maxAge"'):
        plane.kubectl("apply", f"--validate={validation}", "-f", str(file))


@pytest.mark.parametrize(
    "missing", [("taspolicies",), ("taspolicies", *PLURALS.values())], ids=["one", "all"]
)
def test_the_extender_is_ready_without_definitions(
    plane: ControlPlane, sandbox: Sandbox, tmp_path: Path, missing: Sequence[str]
) -> None:
    """Pods that name a policy are rejected meanwhile: there is no such policy. Other pods pass."""
    folders = {plural: f"/apis/{group}/v1alpha1/{plural}" for group, plural in extender_process.POLICY_KINDS}
    for plural in missing:
        plane.api.delete(path_of(extender_process.manifest(f"crds/{plural}.yaml")[0]))
        wait(f"{plural} are not served", lambda path=folders[plural]: not plane.api.answers(path) or None)  # type: ignore[misc]
    (node,) = kubernetes_objects.nodes("a")
    sandbox.nodes(node)
    certificates = extender_process.CertificateFiles(tmp_path)
    arguments = extender_process.arguments(extender_process.user(plane), certificates)
    with extender_process.started(tmp_path, arguments, certificates) as served:
        served.process.wait_ready(served.is_ready)
        served.wait_events("kube_kind_not_served", len(missing))
        assert served.rejects(sandbox.namespace, "a")
        assert not served.rejects(sandbox.namespace, "a", labels={"app": "web"})
