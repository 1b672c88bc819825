"""Unknown strategies and fields on a real API server and kube-scheduler, and policies stored before an upgrade."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import admission_policy_waits, extender_process, program_cache
from tests.cluster.api_client import JSON_PATCH, ApiError, ClusterApi
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import HOT
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait

DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/taspolicies.telemetry.intel.com"
STRATEGIES = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/strategies"
MISSPELT = {"dontSchedule": {"rules": [HOT]}}


@contextlib.contextmanager
def before_the_upgrade(api: ClusterApi) -> Iterator[None]:
    """Installs a definition that accepts unknown strategies, as older ones do; restores the current one at the end."""
    extender_process.define(api)
    probe = extender_process.tas_policy("probe", MISSPELT, "default")
    rules = extender_process.manifest("crds/taspolicies.yaml")[0]
    for key in STRATEGIES.split("/")[1:]:
        rules = rules[int(key)] if key.isdigit() else rules[key]
    path = f"{STRATEGIES}/x-kubernetes-validations"
    api.patch(DEFINITION, [{"op": "remove", "path": path}], JSON_PATCH)
    try:
        wait("unknown strategies are taken", lambda: _takes(api, probe) or None)
        yield
    finally:
        value = rules["x-kubernetes-validations"]
        api.patch(DEFINITION, [{"op": "add", "path": path, "value": value}], JSON_PATCH)
        wait("unknown strategies are refused", lambda: None if _takes(api, probe) else True)


def _takes(api: ClusterApi, obj: Any) -> bool:
    try:
        admission_policy_waits.try_create(api, obj)
    except ApiError:
        return False
    return True


def test_a_stored_policy_with_a_misspelt_strategy_rejects_its_pods_and_says_so(
    plane: ControlPlane, sandbox: Sandbox, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """Without this, the pod of such a policy would be bound to the node that the policy is meant to exclude."""
    extender_process.heated(sandbox, metrics, {"hot": 90}, dontschedule=[HOT])
    with before_the_upgrade(plane.api):
        sandbox.put(extender_process.tas_policy("odd", MISSPELT))
    with (
        extender_process.extender(plane, tmp_path) as nodewise,
        plane.start_scheduler({"extenders": [nodewise.entry()]}),
    ):
        sandbox.pods(
            extender_process.pod("web") | {"metadata": {"name": "web", "labels": {"telemetry-policy": "odd"}}}
        )
        message = sandbox.expect_event("web")
        assert f"{sandbox.namespace}/odd: spec.strategies.dontSchedule: an unknown strategy" in message
        assert 'did you mean "dontschedule"?' in message
        sandbox.expect_stays_unbound("web")


def test_a_stored_policy_can_be_read_changed_elsewhere_corrected_and_deleted(sandbox: Sandbox) -> None:
    api = sandbox.api
    with before_the_upgrade(api):
        made = sandbox.put(extender_process.tas_policy("odd", MISSPELT))
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies/odd"
    assert api.get(path)["spec"] == made["spec"]
    assert api.patch(path, {"metadata": {"labels": {"a": "b"}}})["metadata"]["labels"] == {"a": "b"}
    assert api.patch(f"{path}/status", {"status": {"violatingNodes": 1}})["status"] == {"violatingNodes": 1}
    with pytest.raises(ApiError, match='found strategy "dontSchedule"'):
        api.patch(path, {"spec": {"strategies": {"labeling": {"rules": [HOT]}}}})
    corrected = {"strategies": {"dontSchedule": None, "dontschedule": {"rules": [HOT]}}}
    assert list(api.patch(path, {"spec": corrected})["spec"]["strategies"]) == ["dontschedule"]
    api.delete(path)
    assert api.find(path) is None


def test_a_stored_policy_with_an_unknown_field_can_be_changed_elsewhere(sandbox: Sandbox) -> None:
    extender_process.define(sandbox.api)
    sandbox.put(
        extender_process.tas_policy("odd", {"dontschedule": {"rules": [HOT | {"whenMissing": "reject"}]}})
    )
    path = f"/apis/telemetry.intel.com/v1alpha1/namespaces/{sandbox.namespace}/taspolicies/odd"
    with extender_process.refusing_unknown_fields(sandbox.api):
        sandbox.api.patch(path, {"metadata": {"labels": {"a": "b"}}})
        sandbox.api.patch(f"{path}/status", {"status": {"violatingNodes": 1}})
        with pytest.raises(ApiError, match='did you mean "when_missing"'):
            sandbox.api.patch(path, {"spec": {"strategies": {"labeling": {"rules": [HOT]}}}})
        sandbox.api.patch(path, {"spec": {"strategies": {"dontschedule": {"rules": [HOT]}}}})


@pytest.mark.parametrize("validation", ["strict", "warn", "ignore"])
def test_kubectl_apply_is_refused_whatever_validation_it_asks_for(
    sandbox: Sandbox, tmp_path: Path, validation: str
) -> None:
    file = tmp_path / "policy.yaml"
    field = extender_process.tas_policy("odd", {"dontschedule": {"rules": [HOT | {"maxAge": "90s"}]}})
    strategy = extender_process.tas_policy("odder", MISSPELT)
    file.write_text(yaml.safe_dump_all([field, strategy]))
    extender_process.define(sandbox.api)
    with extender_process.refusing_unknown_fields(sandbox.api):
        done = _kubectl(sandbox, "apply", f"--validate={validation}", "-f", str(file))
    assert done.returncode == 1
    assert 'found field "maxAge", expected one of metricname,' in done.stderr
    assert 'did you mean "max_age"?' in done.stderr
    assert 'found strategy "dontSchedule", expected one of' in done.stderr
    assert 'did you mean "dontschedule"?' in done.stderr


def test_the_largest_policy_that_the_definition_takes_is_within_the_cost_limits(sandbox: Sandbox) -> None:
    full = HOT | {
        "labels": [f"a{number}=b" for number in range(16)],
        "when_missing": "reject",
        "max_age": "90s",
        "query": "up",
    }
    rules = {"logicalOperator": "allOf", "policyName": "p", "rules": [full] * 100}
    whole = dict.fromkeys(("dontschedule", "scheduleonmetric", "deschedule", "labeling"), rules)
    extender_process.define(sandbox.api)
    with extender_process.refusing_unknown_fields(sandbox.api):
        admission_policy_waits.try_create(
            sandbox.api, extender_process.tas_policy("large", whole, sandbox.namespace)
        )


def _kubectl(sandbox: Sandbox, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs kubectl in the test's namespace and returns the result, also of a failure."""
    plane = sandbox.plane
    command = [
        program_cache.folder() / "kubectl",
        f"--kubeconfig={plane.admin.kubeconfig}",
        "-n",
        sandbox.namespace,
    ]
    return subprocess.run(
        [*map(str, command), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
