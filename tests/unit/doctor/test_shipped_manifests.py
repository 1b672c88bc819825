"""Doctor finds no problem in the rendered manifests and in the configurations that nodewise prints."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nodewise.cli.configure import command as configure
from nodewise.doctor.check_runner import examine
from nodewise.doctor.collectors import schedulers
from nodewise.doctor.collectors.rights_and_admission_policies import needed_rights
from nodewise.doctor.facts import AccessRight, ProbedServer
from nodewise.doctor.findings import Finding
from nodewise.tls.x509_certificates import CertificateIssuer
from tests.unit.doctor.facts_factory import CLIENT, CONTROLLER, HOST, YEAR
from tests.unit.doctor.test_collectors import facts

AUTHORITY = CertificateIssuer("nodewise-ca", datetime.now(UTC), YEAR)
SERVER, OWN = AUTHORITY.server([HOST], "nodewise"), AUTHORITY.client(CLIENT)
DEPLOY = Path(__file__).parents[3] / "deploy"
RENDERED = sorted(path.parent.name for path in (DEPLOY / "kustomize").glob("*/nodewise.yaml"))
CERTIFICATES = {"nodewise-tls": (SERVER, AUTHORITY), "nodewise-scheduler-client": (OWN, AUTHORITY)}
COLLECTIONS = {
    "Deployment": "apps/v1/deployments",
    "DaemonSet": "apps/v1/daemonsets",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "MutatingAdmissionPolicy": "admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    "PlacementPolicy": "nodewise.io/v1alpha1/placementpolicies",
    "ClusterPlacementPolicy": "nodewise.io/v1alpha1/clusterplacementpolicies",
    "TASPolicy": "telemetry.intel.com/v1alpha1/taspolicies",
}
OBJECTS = {"ConfigMap": "configmaps", "Service": "services"}


@pytest.fixture(autouse=True)
def _without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(_: object) -> ProbedServer:
        return ProbedServer(attempts=("not from here",))

    monkeypatch.setattr(schedulers, "connect", connect)


def parse_manifest(text: str) -> dict[str, Any]:
    """The objects of a manifest with the status of running workloads, by path."""
    objects: dict[str, Any] = {}
    for document in filter(None, yaml.load_all(text, yaml.CSafeLoader)):
        kind, metadata = document["kind"], document["metadata"]
        if kind in COLLECTIONS:
            if kind in ("Deployment", "DaemonSet"):
                document["status"] = {"readyReplicas": document["spec"].get("replicas", 1), "numberReady": 0}
            objects.setdefault(f"/apis/{COLLECTIONS[kind]}", []).append(document)
        elif kind in OBJECTS:
            objects[f"/api/v1/namespaces/{metadata['namespace']}/{OBJECTS[kind]}/{metadata['name']}"] = (
                document
            )
    for name, (leaf, authority) in CERTIFICATES.items():
        data = {"tls.crt": leaf.cert, "tls.key": leaf.key, "ca.crt": authority.cert}
        secret = {"data": {key: base64.b64encode(text).decode() for key, text in data.items()}}
        objects[f"/api/v1/namespaces/nodewise/secrets/{name}"] = secret
    ready = [{"addresses": ["10.0.0.7"], "conditions": {"ready": True}}]
    slices = "/apis/discovery.k8s.io/v1/namespaces/nodewise/endpointslices"
    objects[slices] = [{"endpoints": ready, "ports": [{"name": "https", "port": 9001}]}]
    return objects


def run_configure(*arguments: str) -> str:
    done = CliRunner().invoke(configure, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def find_problems(text: str, *files: str) -> list[Finding]:
    report = examine(facts(parse_manifest(text), (), *files))
    return [finding for finding in report.findings if finding.severity != "note"]


@pytest.fixture
def certificate_flags(tmp_path: Path) -> list[str]:
    """Flags that name kube-scheduler's certificate files."""
    for name, text in (("ca.crt", AUTHORITY.cert), ("tls.crt", OWN.cert), ("tls.key", OWN.key)):
        (tmp_path / name).write_bytes(text)
    return [f"--ca={tmp_path}/ca.crt", f"--cert={tmp_path}/tls.crt", f"--key={tmp_path}/tls.key"]


def rendered_setups() -> Iterator[tuple[str, str, list[str]]]:
    """Name, agents and flags of entries for each rendered set-up with an extender."""
    for name in RENDERED:
        lines = (
            line.strip() for line in (DEPLOY / "kustomize" / name / "nodewise.yaml").read_text().splitlines()
        )
        agents = next((line.removeprefix("agents: ") for line in lines if line.startswith("agents: ")), "")
        filtering = {"telemetry", "gpu"}.intersection(agents.split(","))
        if agents:
            yield name, agents, ["--one-entry-per-agent"]
        if agents and (
            not filtering or filtering.issuperset(agents.split(","))
        ):  # one entry cannot tell these agents apart
            yield name, agents, []


@pytest.mark.parametrize(("name", "agents", "entries"), list(rendered_setups()))
def test_rendered_set_ups(
    name: str, agents: str, entries: list[str], certificate_flags: list[str], tmp_path: Path
) -> None:
    text = (DEPLOY / "kustomize" / name / "nodewise.yaml").read_text()
    if "kind: KubeSchedulerConfiguration" in text:
        assert find_problems(text) == []
        return
    file = tmp_path / "scheduler.yaml"
    file.write_text(run_configure("render-scheduler", f"--agents={agents}", *entries, *certificate_flags))
    assert find_problems(text, str(file)) == []


NATIVE_POLICIES = """
{apiVersion: nodewise.io/v1alpha1, kind: PlacementPolicy, metadata: {name: cool, namespace: web, uid: a},
 spec: {podSelector: {}, avoid: [{metric: heat, above: 80}]}}
---
{apiVersion: nodewise.io/v1alpha1, kind: ClusterPlacementPolicy, metadata: {name: wide, uid: b},
 spec: {namespaceSelector: {}, podSelector: {}, avoid: [{metric: heat, above: 80}]}}
---
{apiVersion: telemetry.intel.com/v1alpha1, kind: TASPolicy, metadata: {name: old, namespace: web, uid: c},
 spec: {strategies: {dontschedule: {rules: [{metricname: heat, operator: GreaterThan, target: 80}]}}}}
"""


def native_installation() -> dict[str, Any]:
    """The objects of docs/native.md with a controller that leads."""
    files = ("rbac.yaml", "trust.yaml", "controller.yaml", "native.yaml")
    objects = parse_manifest(
        "---\n".join([*((DEPLOY / file).read_text() for file in files), NATIVE_POLICIES])
    )
    spec = {"holderIdentity": "a", "renewTime": "2999-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    objects["/apis/coordination.k8s.io/v1/namespaces/nodewise/leases/nodewise-controller"] = {"spec": spec}
    values = [{"describedObject": {"name": "a"}, "metricName": "heat", "value": "20"}]
    objects["/api/v1/nodes"] = [{"metadata": {"name": "a"}}]
    objects["/apis/custom.metrics.k8s.io"] = {"preferredVersion": {"version": "v1beta1"}, "versions": []}
    objects["/apis/custom.metrics.k8s.io/v1beta1/nodes/*/heat"] = {"items": values}
    services = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.custom.metrics.k8s.io"
    objects[services] = {"status": {"conditions": [{"type": "Available", "status": "True"}]}}
    resources = [{"name": "mutatingadmissionpolicies"}]
    objects["/apis/admissionregistration.k8s.io/v1"] = {"kind": "APIResourceList", "resources": resources}
    groups = ("admissionregistration.k8s.io/v1", "nodewise.io/v1alpha1", "telemetry.intel.com/v1alpha1")
    listed = [{"versions": [{"groupVersion": group}]} for group in groups]
    objects["/apis"] = {"kind": "APIGroupList", "groups": listed}
    return objects


def native_problems(objects: dict[str, Any]) -> list[tuple[str, str, str]]:
    report = examine(facts(objects))
    return [(item.id, item.object, item.severity) for item in report.findings if item.severity != "note"]


def test_native_mode() -> None:
    assert native_problems(native_installation()) == []


@pytest.mark.parametrize(
    "name", ["nodewise-native", "nodewise-native-cluster", "nodewise-native-named", "nodewise-native-reset"]
)
def test_a_missing_binding_of_native_mode(name: str) -> None:
    objects = native_installation()
    bindings = objects["/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"]
    bindings[:] = [binding for binding in bindings if binding["spec"]["policyName"] != name]
    assert native_problems(objects) == [("pod-admission-missing", f"MutatingAdmissionPolicy/{name}", "error")]


@pytest.mark.parametrize("name", ["named", "named-exists", "size", "gate"])
def test_a_missing_binding_of_a_check_of_native_mode(name: str) -> None:
    objects = native_installation()
    bindings = objects["/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"]
    bindings[:] = [
        binding for binding in bindings if binding["spec"]["policyName"] != f"nodewise-native-{name}"
    ]
    missing = f"ValidatingAdmissionPolicy/nodewise-native-{name}"
    assert native_problems(objects) == [("pod-admission-missing", missing, "error")]


def test_native_mode_under_another_name_and_of_another_version() -> None:
    objects = native_installation()
    for kind in ("policies", "policybindings"):
        for item in objects[f"/apis/admissionregistration.k8s.io/v1/mutatingadmission{kind}"]:
            item["metadata"]["name"] = item["metadata"]["name"].replace("nodewise", "sun")
            if "policyName" in item["spec"]:
                item["spec"]["policyName"] = item["spec"]["policyName"].replace("nodewise", "sun")
    assert native_problems(objects) == []
    old = objects["/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"][0]
    old["spec"]["variables"][0]["expression"] = "false"
    assert native_problems(objects) == [
        ("pod-admission-missing", "MutatingAdmissionPolicy/sun-native", "warning")
    ]


def test_the_rights_of_the_controller_are_those_of_its_manifest() -> None:
    """What the account of rbac.yaml may do beside is the extender's."""
    rights = {str(right) for right in needed_rights(CONTROLLER)}
    rules = [
        (rule, manifest["metadata"].get("namespace", ""))
        for manifest in yaml.load_all((DEPLOY / "controller.yaml").read_text(), yaml.CSafeLoader)
        if manifest["kind"] in {"ClusterRole", "Role"}
        for rule in manifest["rules"]
    ]
    own = {
        str(AccessRight(verb, rule["apiGroups"][0], resource, namespace, name))
        for rule, namespace in rules
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
    assert own <= rights
    assert not any("nodewise-extender" in right for right in rights)


def test_native_mode_needs_its_limits() -> None:
    objects = native_installation()
    bindings = objects["/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"]
    bindings[:] = [binding for binding in bindings if binding["spec"]["policyName"] != "nodewise-pods"]
    assert native_problems(objects) == [
        ("admission-policy-missing", "ServiceAccount/nodewise/nodewise", "warning")
    ]


def test_a_scheduler_of_ones_own() -> None:
    assert find_problems((DEPLOY / "scoring.yaml").read_text()) == []


@pytest.mark.parametrize("agents", ["telemetry", "telemetry,gpu", "gpu", "safe,congestion"])
def test_a_printed_second_scheduler(agents: str) -> None:
    version = ["--kubernetes-version=v1.36.3"]
    assert find_problems(run_configure("--mode=second-scheduler", f"--agents={agents}", *version)) == []
