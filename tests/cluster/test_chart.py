"""The Helm chart with the real helm, on the real API server."""

import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools import helm_chart_generator, release

import nodewise
from tests.cluster import (
    debian_packages,
    extender_process,
    kubernetes_objects,
    metrics_pipeline,
    native_mode,
    placement_policy_specs,
    program_cache,
    prometheus_and_exporters,
    rbac_rights_comparison,
)
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.conftest import get_or_skip
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox, wait

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
CHART = ROOT / helm_chart_generator.CHART
COMBINATIONS = [ROOT / path for path in helm_chart_generator.combinations()]
METRICS = ROOT / "deploy/metrics"
ALL = CHART / "values/values-all.yaml"
NATIVE = CHART / "values/values-native.yaml"
MANIFESTS = [
    "rbac.yaml",
    "gpu.yaml",
    "memory.yaml",
    "reader.yaml",
    "annotator.yaml",
    "trust.yaml",
    "policy-fields.yaml",
    "policy-roles.yaml",
    "pod-admission.yaml",
    "extender-pods.yaml",
    "cpu.yaml",
    "cpu-agent.yaml",
    "certs.yaml",
]
NATIVE_MANIFESTS = [
    "rbac.yaml",
    "controller.yaml",
    "reader.yaml",
    "trust.yaml",
    "policy-fields.yaml",
    "policy-roles.yaml",
    "pod-admission.yaml",
    "native.yaml",
]
NATIVE_SETTINGS = {"native_mode": True}
IN_EXTENDER = "nativeMode.enabled=false"
ADVERTISES = "agents.telemetry.settings.advertise_resource=telemetry/scheduling=1000"
WORKLOADS = {"Deployment", "DaemonSet", "Job", "CronJob"}
TLS = "tls.certManager.enabled=true"


def _agents(values: Path) -> list[str]:
    """The agents of the extender that a values file enables."""
    chosen = yaml.safe_load(values.read_text())
    is_native = chosen.get("nativeMode", {}).get("enabled", False)
    agents = {"telemetry": {"enabled": not is_native}, **chosen.get("agents", {})}
    return [name for name, agent in agents.items() if agent["enabled"]]


each_combination = pytest.mark.parametrize("values", COMBINATIONS, ids=lambda path: path.stem)
each_extender = pytest.mark.parametrize(
    "values", [path for path in COMBINATIONS if _agents(path)], ids=lambda path: path.stem
)


class Helm:
    """Runs helm with the chart."""

    def __init__(self, program: Path, kubeconfig: Path, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._kubeconfig = kubeconfig

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs helm and returns the result, also of a failure."""
        home = {f"HELM_{name}_HOME": str(self._folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        return subprocess.run(
            [str(self._program), *map(str, arguments), f"--kubeconfig={self._kubeconfig}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**home, "HOME": str(self._folder), "PATH": "/usr/bin:/bin"},
        )

    def said(self, *arguments: str | Path) -> str:
        """Runs helm, checks that it succeeds, and returns its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, f"helm {' '.join(map(str, arguments))}: {done.stderr}{done.stdout}"
        return done.stdout

    def rendered(self, namespace: str, *more: str | Path) -> list[Object]:
        """The rendered objects of the chart."""
        text = self.said("template", "nodewise", CHART, "--namespace", namespace, *more)
        return [manifest for manifest in yaml.safe_load_all(text) if manifest]


@pytest.fixture(scope="session")
def helm_program(request: pytest.FixtureRequest) -> Path:
    return get_or_skip(request, program_cache.helm)


@pytest.fixture
def helm(helm_program: Path, plane: ControlPlane, tmp_path: Path) -> Helm:
    return Helm(helm_program, plane.admin.kubeconfig, tmp_path)


@pytest.fixture
def with_definitions(plane: ControlPlane) -> None:
    """Creates the definitions of TASPolicies and reports, as `helm install` does."""
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "deploy/crds"))


@each_combination
def test_lint_finds_nothing(helm: Helm, values: Path) -> None:
    output = helm.said("lint", "--strict", CHART, "--values", values)
    assert "0 chart(s) failed" in output
    assert "[WARNING]" not in output


def test_lint_finds_nothing_in_the_released_chart(
    helm: Helm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a recommendation, such as that of an icon."""
    monkeypatch.chdir(ROOT)
    image = "registry.example.org/team/nodewise"
    release.package_chart(tmp_path, "https://example.org/team/nodewise", image)
    archive = tmp_path / f"nodewise-{nodewise.__version__}.tgz"
    output = helm.said("lint", "--strict", archive)
    assert yaml.safe_load(helm.said("show", "values", archive))["image"]["repository"] == image
    assert "0 chart(s) failed" in output
    assert not {"[INFO]", "[WARNING]", "[ERROR]"} & {*output.split()}


def test_definitions_that_helm_shows_are_those_that_kubectl_applies(helm: Helm) -> None:
    """The command before an upgrade, without the repository."""
    shown = helm.said("show", "crds", CHART)
    files = sorted((ROOT / "deploy/crds").glob("*.yaml"))
    shipped = [manifest for file in files for manifest in yaml.safe_load_all(file.read_text()) if manifest]
    assert [manifest for manifest in yaml.safe_load_all(shown) if manifest] == shipped


@each_combination
def test_every_object_is_one_for_a_real_api_server(
    helm: Helm, sandbox: Sandbox, with_definitions: None, tmp_path: Path, values: Path
) -> None:
    here = ["--set", f"cpu.namespace={sandbox.namespace},cpu.createNamespace=false"]
    made = helm.rendered(sandbox.namespace, "--values", values, *here)
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(made))
    apply = ["apply", "--server-side", "--validate=strict", "-f", str(file)]
    try:
        output = sandbox.plane.kubectl(*apply)
        assert output.count("serverside-applied") == len(made)
    finally:
        sandbox.plane.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", str(file))


def test_everything_else_that_can_be_switched_on(helm: Helm, sandbox: Sandbox, tmp_path: Path) -> None:
    values = {
        "extender": {
            "hostNetwork": True,
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"a": "b"},
        },
        "service": {"clusterIP": "None"},
        "imagePullSecrets": [{"name": "registry"}],
        "networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]},
        "annotator": {"enabled": True, "settings": {"what": "usage"}},
        "settings": {"prometheus_url": ["http://prometheus:9090"]},
        "cpu": {
            "enabled": True,
            "namespace": sandbox.namespace,
            "createNamespace": False,
            "agent": {"args": ["--enforce=cgroup"], "runtimeFolder": "/run/containerd"},
            "setup": {"enabled": True},
            "webhook": {"enabled": True, "caBundle": "LS0tLS1CRUdJTg=="},
        },
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    made = helm.rendered(sandbox.namespace, "--values", file)
    registration = next(manifest for manifest in made if manifest["kind"] == "MutatingWebhookConfiguration")
    assert registration["webhooks"][0]["clientConfig"]["caBundle"] == "LS0tLS1CRUdJTg=="
    registration["webhooks"][0]["clientConfig"]["caBundle"] = ""  # the API server accepts only certificates
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all(made))
    sandbox.plane.kubectl(
        "apply",
        "--server-side",
        "--validate=strict",
        "--dry-run=server",
        "-f",
        str(tmp_path / "objects.yaml"),
    )


@pytest.mark.parametrize(
    ("values", "names"), [(ALL, MANIFESTS), (NATIVE, NATIVE_MANIFESTS)], ids=["all", "native"]
)
def test_rights_are_those_of_the_manifests(helm: Helm, values: Path, names: list[str]) -> None:
    """The chart has exactly the roles, rules and bindings of the manifests."""
    made = helm.rendered("nodewise", "--values", values, "--set", ADVERTISES)
    shipped = [manifest for name in names for manifest in extender_process.manifest(name)]
    assert _roles(made) == _roles(shipped)
    assert _bindings(made) == _bindings(shipped)


def _roles(manifests: list[Object]) -> dict[tuple[str, ...], set[rbac_rights_comparison.ApiRight]]:
    return {
        _key(manifest): rbac_rights_comparison.granted([manifest])
        for manifest in manifests
        if manifest["kind"] in {"Role", "ClusterRole"}
    }


def _bindings(manifests: list[Object]) -> dict[tuple[str, ...], Any]:
    kinds = {"RoleBinding", "ClusterRoleBinding"}
    return {
        _key(manifest): (manifest["roleRef"], manifest["subjects"])
        for manifest in manifests
        if manifest["kind"] in kinds
    }


def _key(manifest: Object) -> tuple[str, ...]:
    return manifest["kind"], manifest["metadata"]["name"], manifest["metadata"].get("namespace", "")


NEW = "--kube-version=v1.36.0"
"""The first version with MutatingAdmissionPolicies."""


@pytest.mark.parametrize(
    ("values", "option", "names"),
    [
        (ALL, "podAdmission.addResource=true", MANIFESTS),
        (NATIVE, "podAdmission.mode=warn", NATIVE_MANIFESTS),
    ],
    ids=["all", "native"],
)
def test_admission_policies_are_those_of_the_manifests(
    helm: Helm, values: Path, option: str, names: list[str]
) -> None:
    """The chart has exactly the admission policies and bindings of the manifests."""
    made = helm.rendered("nodewise", "--values", values, "--set", f"{ADVERTISES},{option}", NEW)
    shipped = _policies([manifest for name in names for manifest in extender_process.manifest(name)])
    if values is NATIVE:
        labels = "ValidatingAdmissionPolicy", "nodewise-pod-labels", ""
        variables = {variable["name"]: variable for variable in shipped[labels]["variables"]}
        variables["resource"]["expression"] = "''"  # pods need no request
    assert _policies(made) == shipped


def _policies(manifests: list[Object]) -> dict[tuple[str, ...], Object]:
    kinds = {f"{name}AdmissionPolicy{end}" for name in ("Validating", "Mutating") for end in ("", "Binding")}
    return {_key(manifest): manifest["spec"] for manifest in manifests if manifest["kind"] in kinds}


def test_admission_policies_name_the_accounts_of_the_release(helm: Helm) -> None:
    moved = _policies(helm.rendered("elsewhere", "--values", ALL, "--set", "name=other,cpu.namespace=cpus"))
    accounts = {
        name: spec["matchConditions"][0]["expression"]
        for (kind, name, _), spec in moved.items()
        if kind == "ValidatingAdmissionPolicy"
    }
    assert accounts.keys() == {
        "other-placement-policy-fields",
        "other-policy-fields",
        "other-pod-labels",
        "other-nodes",
        "other-pods",
        "other-annotator",
        "other-trust",
        "cmk-own-node",
    }
    own = "request.userInfo.username == 'system:serviceaccount:elsewhere:other"
    assert accounts["other-nodes"].startswith(f"{own}' && (")
    assert accounts["other-pods"] == f"{own}'"
    assert accounts["other-annotator"] == f"{own}-annotator'"
    assert "serviceaccount:cpus:cmk-agent" in accounts["cmk-own-node"]
    assert {spec["policyName"] for (kind, _, _), spec in moved.items() if kind.endswith("Binding")} == {
        *accounts
    }


@pytest.mark.parametrize(
    ("settings", "resources"),
    [
        (ADVERTISES, "['telemetry/scheduling']"),
        ("settings.advertise_resource=example.org/slots=5", "['example.org/slots']"),
        ("agents.telemetry.enabled=true", "[]"),
    ],
)
def test_the_policy_of_nodes_knows_the_advertised_resource(helm: Helm, settings: str, resources: str) -> None:
    made = _policies(helm.rendered("nodewise", "--set", settings))
    variables = made["ValidatingAdmissionPolicy", "nodewise-nodes", ""]["variables"]
    assert {variable["name"]: variable["expression"] for variable in variables}["resources"] == resources


def test_admission_policies_can_be_left_out_on_older_versions(helm: Helm) -> None:
    old = "--kube-version=v1.29.3"
    assert _policies(helm.rendered("nodewise", old, "--set", "admissionPolicies.enabled=false")) == {}


def test_the_policies_that_change_pods_use_the_release_and_its_resource(helm: Helm) -> None:
    options = "name=other,podAdmission.addResource=true,podAdmission.resource=example.com/mark"
    made = _policies(helm.rendered("elsewhere", NEW, "--set", options))
    names = {name for kind, name, _ in made if kind == "MutatingAdmissionPolicy"}
    assert names == {"other-extender-pods", "other-extender-pods-claims", "other-extender-pods-cluster"}
    for name in names:
        spec = made["MutatingAdmissionPolicy", name, ""]
        (namespaces,) = spec["matchConstraints"]["namespaceSelector"]["matchExpressions"]
        assert namespaces["values"] == ["kube-system", "elsewhere"]
        assert "telemetry/scheduling" not in json.dumps(spec)
        assert "'example.com/mark'" in json.dumps(spec)
        assert made["MutatingAdmissionPolicyBinding", name, ""]["policyName"] == name


def test_a_disabled_feature_has_no_rights(helm: Helm) -> None:
    made = _roles(helm.rendered("nodewise", "--set", IN_EXTENDER))
    assert {name for _, name, _ in made} == {
        "nodewise",
        "nodewise-policy-editor",
        "nodewise-policy-viewer",
        "nodewise-reader",
        "nodewise-trust",
    }
    resources = {right.resource for right in made["ClusterRole", "nodewise", ""]}
    assert "nodes/status" not in resources
    gas = _roles(helm.rendered("nodewise", "--values", CHART / "values/values-gas.yaml"))
    groups = {right.group for right in gas["ClusterRole", "nodewise", ""]}
    assert groups == {"", "events.k8s.io"}
    assert ("Role", "nodewise-gpu", "nodewise") in gas
    load_alone = f"{IN_EXTENDER},agents.telemetry.enabled=false,agents.load.enabled=true"
    load = _roles(helm.rendered("nodewise", "--set", load_alone))
    usage = {
        right.resource for right in load["ClusterRole", "nodewise", ""] if right.group == "metrics.k8s.io"
    }
    assert usage == {"nodes", "pods"}
    nothing = helm.rendered("nodewise", "--set", "agents.telemetry.enabled=false")
    assert nothing == []


def test_the_webhook_is_the_one_that_the_program_prints(helm: Helm) -> None:
    made = helm.rendered(
        "nodewise", "--values", ALL, "--set", "cpu.webhook.enabled=true,cpu.webhook.caBundle=QQ=="
    )
    ours = {_key(manifest): manifest for manifest in made}
    registration = ours["MutatingWebhookConfiguration", "cmk-webhook-config", ""]
    assert registration["webhooks"][0]["clientConfig"].pop("caBundle") == "QQ=="
    for shipped in extender_process.manifest("cpu-webhook.yaml"):
        assert _content(ours[_key(shipped)]) == _content(shipped)


def _content(manifest: Object) -> Any:
    """The content of an object for comparison; for a workload, its container."""
    if manifest["kind"] in WORKLOADS:
        return _main(manifest)
    return manifest.get("data") or manifest.get("webhooks") or manifest.get("spec")


def _main(workload: Object) -> Object:
    container: Object = _pod(workload)["containers"][0]
    return container


def _pod(workload: Object) -> Object:
    """The pod spec of a workload."""
    pod_spec: Object = workload["spec"].get("jobTemplate", workload)["spec"]["template"]["spec"]
    return pod_spec


def test_the_node_agent_is_the_one_of_the_manifests(helm: Helm) -> None:
    def container(manifests: list[Object]) -> Object:
        agent = _main(next(manifest for manifest in manifests if manifest["kind"] == "DaemonSet"))
        return {key: value for key, value in agent.items() if key not in {"imagePullPolicy", "ports"}}

    assert container(helm.rendered("nodewise", "--values", ALL)) == container(
        extender_process.manifest("cpu-agent.yaml")
    )


@each_combination
def test_pods_run_this_image_and_nothing_of_other_services_reaches_their_settings(
    helm: Helm, values: Path
) -> None:
    made = [
        manifest
        for manifest in helm.rendered("nodewise", "--values", values, "--kube-version=v1.36.0-gke.1")
        if manifest["kind"] in WORKLOADS
    ]
    assert made
    for manifest in made:
        pod = _pod(manifest)
        ours = f"nodewise:{nodewise.__version__}"
        theirs = "registry.k8s.io/kube-scheduler:v1.36.0"
        image = theirs if manifest["metadata"]["name"] == "nodewise-scheduler" else ours
        assert {container["image"] for container in pod["containers"]} == {image}
        assert pod["enableServiceLinks"] is False, (
            "a Service called nodewise sets NODEWISE_PORT, which is a setting"
        )


def test_pods_are_admitted_where_only_restricted_ones_are(helm: Helm, sandbox: Sandbox) -> None:
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    sandbox.api.patch(f"/api/v1/namespaces/{sandbox.namespace}", label)
    more: list[str | Path] = ["--values", ALL, "--set", "cpu.enabled=false"]
    made = [manifest for manifest in helm.rendered(sandbox.namespace, *more) if manifest["kind"] in WORKLOADS]
    assert {manifest["metadata"]["name"] for manifest in made} == {
        "nodewise",
        "nodewise-annotator",
        "nodewise-certs",
    }
    for manifest in made:
        spec = {key: value for key, value in _pod(manifest).items() if key != "serviceAccountName"}
        sandbox.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": manifest["metadata"]["name"]},
                "spec": spec,
            }
        )


def test_openshift_may_choose_the_user_of_pods(helm: Helm) -> None:
    """OpenShift refuses users and groups outside of the ranges of the namespace."""
    chosen = {"runAsUser", "runAsGroup", "fsGroup"}
    arguments: list[str | Path] = ["--values", ALL, "--set", "cpu.enabled=false"]
    for more, expected in ([], chosen), (["--api-versions=security.openshift.io/v1"], set[str]()):
        manifests = helm.rendered("nodewise", *arguments, *more)
        pods = [_pod(manifest) for manifest in manifests if manifest["kind"] in WORKLOADS]
        assert pods
        assert all(chosen & set(pod["securityContext"]) == expected for pod in pods)


@pytest.mark.parametrize(
    ("values", "actions", "resource"),
    [
        ("name=nodewise", ["Warn", "Audit"], "telemetry/scheduling"),
        ("podAdmission.mode=deny", ["Deny"], "telemetry/scheduling"),
        ("podAdmission.resource=", ["Warn", "Audit"], ""),
        ("podAdmission.resource=example.com/mark", ["Warn", "Audit"], "example.com/mark"),
        ("podAdmission.mode=off", None, ""),
        ("agents.telemetry.enabled=false,agents.safe.enabled=true", None, ""),
    ],
)
def test_pods_without_their_policy_are_reported_as_the_values_have_it(
    helm: Helm, values: str, actions: list[str] | None, resource: str
) -> None:
    made = {
        (manifest["kind"], manifest["metadata"]["name"]): manifest["spec"]
        for manifest in helm.rendered("nodewise", "--set", f"{IN_EXTENDER},{values}")
        if manifest["kind"].startswith("ValidatingAdmissionPolicy")
    }
    if actions is None:
        assert not any(name == "nodewise-pod-labels" for _, name in made)
        return
    policy, binding = (
        made["ValidatingAdmissionPolicy", "nodewise-pod-labels"],
        made["ValidatingAdmissionPolicyBinding", "nodewise-pod-labels"],
    )
    assert binding == {"policyName": "nodewise-pod-labels", "validationActions": actions}
    assert {"name": "resource", "expression": f"'{resource}'"} in policy["variables"]


@pytest.mark.parametrize("name", ["nodewise-annotator", "nodewise-certs", "cmk-agent", "cmk-cluster-init"])
def test_the_program_accepts_the_arguments_of_each_pod(helm: Helm, tmp_path: Path, name: str) -> None:
    """The program accepts every argument; it fails only because there is no API server."""
    more: list[str | Path] = ["--values", ALL, "--set", "cpu.setup.hosts={node1}"]
    made = helm.rendered("nodewise", *more)
    config = next(
        manifest for manifest in made if _key(manifest) == ("ConfigMap", "nodewise-annotator", "nodewise")
    )
    (tmp_path / "nodewise.yaml").write_text(config["data"]["nodewise.yaml"])
    container = _main(
        next(
            manifest
            for manifest in made
            if manifest["metadata"]["name"] == name and manifest["kind"] in WORKLOADS
        )
    )
    mounted = {"/etc/nodewise/config/nodewise.yaml": str(tmp_path / "nodewise.yaml")}
    command = [
        str(extender_process.NODEWISE),
        *container["command"][1:],
        *(_at(argument, mounted) for argument in container["args"]),
    ]
    completed = subprocess.run(
        [*command, "--kubeconfig=/nowhere/kubeconfig"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"NODE_NAME": "node1", "PATH": "/usr/bin:/bin"},
    )
    assert completed.returncode != 0
    assert "/nowhere/kubeconfig" in completed.stderr
    assert "Usage:" not in completed.stderr


def test_the_renewal_names_the_changed_values_of_the_release(helm: Helm) -> None:
    values = "name=other,service.clusterIP=10.0.0.50,tls.secretName=mine,tls.renewal.names={a.example}"
    made = helm.rendered("elsewhere", "--set", f"tls.renewal.enabled=true,{values}")
    (job,) = [manifest for manifest in made if manifest["kind"] == "CronJob"]
    assert _main(job)["args"] == [
        "--apply",
        "--namespace=elsewhere",
        "--service=other",
        "--secret=mine",
        "--client-secret=nodewise-scheduler-client",
        "--client-name=nodewise-scheduler-client",
        "--name=a.example",
        "--name=10.0.0.50",
    ]


@contextlib.contextmanager
def _installed(helm: Helm, sandbox: Sandbox, *options: str) -> Iterator[tuple[list[str | Path], str]]:
    """The arguments of `helm upgrade` for a release in the sandbox, and the output of its installation."""
    release: list[str | Path] = ["nodewise", CHART, "--namespace", sandbox.namespace, "--skip-crds"]
    notes = helm.said("install", *release, *options)
    try:
        yield release, notes
    finally:
        helm.said("uninstall", "nodewise", "--namespace", sandbox.namespace)


def test_an_upgrade_keeps_names_and_selectors_and_restarts_for_a_new_setting(
    helm: Helm, sandbox: Sandbox, with_definitions: None
) -> None:
    deployment = f"/apis/apps/v1/namespaces/{sandbox.namespace}/deployments/nodewise"
    with _installed(helm, sandbox, "--set", IN_EXTENDER) as (release, notes):
        assert f"https://nodewise.{sandbox.namespace}.svc:9001" in notes
        assert "nodewise configure render-scheduler --config nodewise.yaml --one-entry-per-agent" in notes
        before = yaml.safe_load_all(
            helm.said("get", "manifest", "nodewise", "--namespace", sandbox.namespace)
        )
        old = {_key(manifest): manifest for manifest in before}
        first = sandbox.api.get(deployment)
        helm.said(
            "upgrade", *release, "--set", f"{IN_EXTENDER},agents.gpu.enabled=true,settings.sync_period=2s"
        )
        after = yaml.safe_load_all(helm.said("get", "manifest", "nodewise", "--namespace", sandbox.namespace))
        new = {_key(manifest) for manifest in after}
        assert old.keys() < new
        second = sandbox.api.get(deployment)
        assert second["metadata"]["uid"] == first["metadata"]["uid"]
        assert second["spec"]["selector"] == first["spec"]["selector"]
        assert _checksum(second) != _checksum(first)
        config = sandbox.api.get(f"/api/v1/namespaces/{sandbox.namespace}/configmaps/nodewise")
        assert yaml.safe_load(config["data"]["nodewise.yaml"]) == {
            "agents": "telemetry,gpu",
            "sync_period": "2s",
        }
    assert sandbox.api.find(deployment) is None


def test_an_upgrade_never_removes_an_extender_that_the_scheduler_may_call(
    helm: Helm, sandbox: Sandbox, with_definitions: None
) -> None:
    """The default is native mode, and the release was installed when it was the extender."""
    deployments = f"/apis/apps/v1/namespaces/{sandbox.namespace}/deployments"

    def names() -> set[str]:
        return {item["metadata"]["name"] for item in sandbox.api.get(deployments)["items"]}

    with _installed(helm, sandbox, "--set", IN_EXTENDER) as (release, _):
        defaults = ("upgrade", *release, "--reset-values")
        notes = helm.said(*defaults)
        assert names() == {"nodewise"}
        assert "The agent telemetry stays in the extender of this release" in notes
        refused = helm.run("upgrade", *release, "--set", "nativeMode.enabled=true")
        assert "expected nativeMode.keepExtender: true until nodewise is removed" in refused.stderr
        assert names() == {"nodewise"}
        # the steps of docs/native.md
        helm.said("upgrade", *release, "--set", "nativeMode.enabled=true,nativeMode.keepExtender=true")
        assert names() == {"nodewise"}
        helm.said("upgrade", *release, "--set", "nativeMode.enabled=true")
        assert names() == {"nodewise-controller"}
        notes = helm.said(*defaults)
        assert names() == {"nodewise-controller"}
        assert "Native mode: the API server adds the requirements" in notes


def test_a_new_release_is_in_native_mode(helm: Helm, sandbox: Sandbox, with_definitions: None) -> None:
    with _installed(helm, sandbox) as (_, notes):
        assert "rollout status deployment/nodewise-controller" in notes
        assert "helm test nodewise" in notes
        assert "nodewise certs" not in notes
        for kind, path in (
            (
                "policies",
                "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/nodewise-native-named",
            ),
            ("controller", f"/apis/apps/v1/namespaces/{sandbox.namespace}/deployments/nodewise-controller"),
        ):
            assert sandbox.api.find(path), kind


@pytest.mark.parametrize(
    ("version", "options", "is_native"),
    [
        *(
            (version, "", version >= "v1.36")
            for version in ("v1.34.3", "v1.35.0", "v1.36.0-gke.1", "v1.37.2")
        ),
        ("v1.37.2", IN_EXTENDER, False),
        ("v1.37.2", "scheduler.enabled=true", False),
        ("v1.37.2", "podAdmission.addResource=true", False),
        ("v1.37.2", TLS, False),
        ("v1.37.2", "tls.renewal.enabled=true", False),
        ("v1.37.2", "agents.telemetry.enabled=false,agents.gpu.enabled=true", False),
        ("v1.37.2", "agents.gpu.enabled=true", True),
        ("v1.37.2", f"{TLS},nativeMode.enabled=true", True),
    ],
)
def test_native_mode_is_the_default_of_versions_that_have_it(
    helm: Helm, version: str, options: str, is_native: bool
) -> None:
    more = ["--set", options] if options else []
    made = helm.rendered("nodewise", f"--kube-version={version}", *more)
    names = {manifest["metadata"]["name"] for manifest in made if manifest["kind"] == "Deployment"}
    assert ("nodewise-controller" in names) is is_native
    kinds = {manifest["kind"] for manifest in made}
    assert ("MutatingAdmissionPolicy" in kinds) is (is_native or "addResource" in options)
    tests = {
        manifest["metadata"]["name"]
        for manifest in made
        if "helm.sh/hook" in manifest["metadata"].get("annotations", {})
    }
    expected = {"nodewise-native-test"} if is_native else set()
    expected |= {"nodewise-test"} if names - {"nodewise-controller", "nodewise-scheduler"} else set()
    assert tests == expected
    assert "0 chart(s) failed" in helm.said("lint", "--strict", CHART, f"--kube-version={version}", *more)


def _checksum(deployment: Object) -> str:
    checksum: str = deployment["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
    return checksum


@contextlib.contextmanager
def _applied_without_deployments(sandbox: Sandbox, made: Sequence[Object], folder: Path) -> Iterator[None]:
    """Applies the objects except Deployments, whose programs the test starts itself, and deletes them at the end."""
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all([manifest for manifest in made if manifest["kind"] != "Deployment"]))
    sandbox.plane.kubectl("apply", "--server-side", "-f", str(file))
    try:
        yield
    finally:
        sandbox.plane.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", str(file))


@each_extender
def test_the_program_of_the_pod_serves_with_its_rights(
    helm: Helm, sandbox: Sandbox, with_definitions: None, tmp_path: Path, values: Path
) -> None:
    """Starts the container's command with its files and service account, as a kubelet does."""
    space = sandbox.namespace
    made = helm.rendered(space, "--values", values, "--set", "cpu.enabled=false,annotator.enabled=false")
    with _applied_without_deployments(sandbox, made, tmp_path):
        certificates = extender_process.CertificateFiles(tmp_path)
        certificates.client = certificates.authority.issue("nodewise-scheduler-client")
        account = sandbox.plane.service_account("nodewise", space)
        config = next(
            manifest
            for manifest in made
            if manifest["kind"] == "ConfigMap" and manifest["metadata"]["name"] == "nodewise"
        )["data"]["nodewise.yaml"]
        (tmp_path / "nodewise.yaml").write_text(config)
        container = _main(
            next(manifest for manifest in made if _key(manifest) == ("Deployment", "nodewise", space))
        )
        mounted = {
            "/etc/nodewise/config/nodewise.yaml": str(tmp_path / "nodewise.yaml"),
            "/etc/nodewise/tls/tls.crt": str(certificates.server.cert),
            "/etc/nodewise/tls/tls.key": str(certificates.server.key),
            "/etc/nodewise/client-ca/ca.crt": str(certificates.authority.ca_file),
        }
        arguments = [_at(argument, mounted) for argument in container["args"]]
        free = ["--port=0", "--health-port=0", "--address=127.0.0.1", f"--kubeconfig={account.kubeconfig}"]
        here = [*arguments, *free, f"--namespace={space}", "--identity=nodewise-0", "--sync-period=500ms"]
        with extender_process.started(tmp_path, here, certificates) as running:
            running.process.wait_ready(running.is_ready)
            running.wait_leading()
            if "telemetry" in _agents(values):
                assert running.rejects(space, "a", "no-such-policy")
            assert [event for event in running.events() if "cannot" in json.dumps(event)] == []


@pytest.mark.parametrize(
    ("option", "settings"),
    [
        ("nativeMode.keepExtender=true", {"nodewise": {"agents": "telemetry", "telemetry": NATIVE_SETTINGS}}),
        (
            "agents.gpu.enabled=true",
            {"nodewise": {"agents": "gpu"}, "nodewise-controller": {"telemetry": NATIVE_SETTINGS}},
        ),
    ],
)
def test_the_agent_telemetry_of_native_mode_runs_in_one_program(
    helm: Helm, option: str, settings: Object
) -> None:
    made = helm.rendered("nodewise", "--values", NATIVE, "--set", option)
    data = {
        manifest["metadata"]["name"]: yaml.safe_load(manifest["data"]["nodewise.yaml"])
        for manifest in made
        if manifest["kind"] == "ConfigMap"
    }
    assert data == settings
    assert {manifest["metadata"]["name"] for manifest in made if manifest["kind"] == "Deployment"} == {*data}


def test_the_controller_of_native_mode_labels_nodes_with_the_rights_that_it_has(
    helm: Helm, sandbox: Sandbox, with_definitions: None, metrics: FakeCustomMetricsApi, tmp_path: Path
) -> None:
    """Starts the command of the Deployment with its settings and service account, as a kubelet does."""
    space = sandbox.namespace
    made = helm.rendered(space, "--values", NATIVE, "--set", "settings.metrics={custom}")
    with _applied_without_deployments(sandbox, made, tmp_path):
        objects = {_key(manifest): manifest for manifest in made}
        config = tmp_path / "nodewise.yaml"
        config.write_text(objects["ConfigMap", "nodewise-controller", space]["data"]["nodewise.yaml"])
        container = _main(objects["Deployment", "nodewise-controller", space])
        assert container["command"] == ["nodewise", "controller"]
        mounted = {"/etc/nodewise/config/nodewise.yaml": str(config)}
        arguments = [_at(argument, mounted) for argument in container["args"]]
        account = sandbox.plane.service_account("nodewise", space)
        sandbox.nodes(kubernetes_objects.node("hot"))
        metrics.set("heat", {"hot": 90})
        spec = {"podSelector": {}, "avoid": [{"metric": "heat", "above": 80}]}
        # policies of nodewise's own namespace are not enforced
        policy = sandbox.create(placement_policy_specs.policy(spec, namespace="default"))
        key = native_mode.LABEL_PREFIX + policy["metadata"]["uid"]
        with extender_process.controller(
            account, tmp_path, *arguments, "--health-port=0", f"--namespace={space}"
        ):
            labels = functools.partial(_labels, sandbox, "hot")
            wait("the node is labelled", lambda: labels().get(key) == "violating" or None, show=labels)
            done = _run_test_pod(made, account)
            assert (done.returncode, done.stderr) == (0, "")
            assert "leads, and the API server adds the requirements of policies to pods" in done.stdout
        done = _run_test_pod(made, account)
        assert done.returncode == 1
        assert "found no renewal of the Lease nodewise-controller in" in done.stderr
        name = "nodewise-native-named"
        sandbox.api.delete(f"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/{name}")
        done = _run_test_pod(made, account)
        assert done.returncode == 1
        assert f"found no MutatingAdmissionPolicyBinding {name}, expected all of native mode" in done.stderr


def _run_test_pod(made: Sequence[Object], account: User) -> subprocess.CompletedProcess[str]:
    """Runs the command of the Pod of `helm test` with its account, and a wait of two seconds."""
    pod = next(manifest for manifest in made if manifest["metadata"]["name"] == "nodewise-native-test")
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python3", "-c"]
    (script,) = container["args"]
    assert script.count("range(60)") == 1
    return subprocess.run(
        [sys.executable, "-c", script.replace("range(60)", "range(2)")],
        capture_output=True,
        text=True,
        check=False,
        env={"KUBECONFIG": str(account.kubeconfig)},
    )


def _labels(sandbox: Sandbox, node: str) -> dict[str, str]:
    labels: dict[str, str] = sandbox.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
    return labels


def _at(argument: str, mounted: dict[str, str]) -> str:
    flag, sign, path = argument.partition("=")
    assert path in mounted or not path.startswith("/"), f"{argument}: nothing is mounted there"
    return f"{flag}{sign}{mounted.get(path, path)}"


def test_files_of_kustomize_equal_the_output_of_helm(
    helm_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    made = helm_chart_generator.kustomizations(helm_program)
    there = {path for path in helm_chart_generator.KUSTOMIZE.rglob("*") if path.is_file()}
    assert there == {
        *made,
        *(path for path in helm_chart_generator.parts() if helm_chart_generator.KUSTOMIZE in path.parents),
    }
    assert [str(path) for path, text in made.items() if path.read_text() != text] == [], "run `make chart`"


@each_combination
def test_kubectl_builds_workloads_in_the_namespaces_that_it_makes(plane: ControlPlane, values: Path) -> None:
    folder = ROOT / helm_chart_generator.KUSTOMIZE / values.stem.removeprefix("values-")
    manifests = list(yaml.safe_load_all(plane.kubectl("kustomize", str(folder))))
    assert {manifest["kind"] for manifest in manifests} & WORKLOADS
    made = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "Namespace"}
    used = {
        manifest["metadata"]["namespace"] for manifest in manifests if "namespace" in manifest["metadata"]
    }
    assert used <= {"default", "kube-system", *made}


def test_objects_of_other_projects_are_made_where_they_are_wanted(helm: Helm) -> None:
    plain = {manifest["apiVersion"] for manifest in helm.rendered("nodewise", "--values", ALL)}
    assert not [
        api_version
        for api_version in plain
        if api_version.startswith(("monitoring.coreos.com", "cert-manager.io"))
    ]
    more = [
        "--set",
        f"{TLS},tls.renewal.enabled=false,serviceMonitor.enabled=true,prometheusRule.enabled=true",
    ]
    made = helm.rendered("nodewise", "--values", ALL, *more)
    shipped = yaml.safe_load((ROOT / helm_chart_generator.PROMETHEUS_RULE).read_text())["spec"]
    assert [manifest["spec"] for manifest in made if manifest["kind"] == "PrometheusRule"] == [shipped]
    addressed = str(
        helm.rendered("nodewise", *more, "--set", "prometheusRule.runbookUrl=https://docs.example/x/")
    )
    assert "'runbook_url': 'https://docs.example/x/NodewiseNotReady.md'" in addressed
    named = {_key(manifest)[:2] for manifest in made}
    assert {
        ("ServiceMonitor", "nodewise"),
        ("ServiceMonitor", "nodewise-annotator"),
        ("PodMonitor", "cmk-agent"),
    } < named
    services = {manifest["metadata"]["name"]: manifest for manifest in made if manifest["kind"] == "Service"}
    for monitor in (manifest for manifest in made if manifest["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        chosen = [service for service in services.values() if wanted <= service["metadata"]["labels"].items()]
        (service,) = chosen
        assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    certificates = {
        manifest["spec"]["secretName"]: manifest["spec"]
        for manifest in made
        if manifest["kind"] == "Certificate"
    }
    assert certificates["nodewise-tls"]["dnsNames"][0] == "nodewise.nodewise.svc"
    assert certificates["nodewise-scheduler-client"]["usages"] == ["client auth", "digital signature"]


@each_extender
def test_a_second_scheduler_is_configured_as_the_program_would_have_it(
    helm: Helm, tmp_path: Path, values: Path
) -> None:
    made = helm.rendered("nodewise", "--values", values, "--set", "scheduler.enabled=true")
    data = {
        manifest["metadata"]["name"]: manifest["data"] for manifest in made if manifest["kind"] == "ConfigMap"
    }
    file = tmp_path / "nodewise.yaml"
    file.write_text(data["nodewise"]["nodewise.yaml"])
    folder = "/etc/nodewise/client"
    command = [
        str(extender_process.NODEWISE),
        "configure",
        "render-scheduler",
        f"--config={file}",
        "--one-entry-per-agent",
    ]
    command += [f"--ca={folder}/ca.crt", f"--cert={folder}/tls.crt", f"--key={folder}/tls.key"]
    command += ["--scheduler-name=nodewise-scheduler"]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    wanted = yaml.safe_load(completed.stdout)
    wanted["leaderElection"]["resourceNamespace"] = "nodewise"
    ours = yaml.safe_load(data["nodewise-scheduler"]["scheduler.yaml"])
    assert ours == wanted


def test_a_second_scheduler_runs_and_has_every_right_that_it_needs(
    helm: Helm, sandbox: Sandbox, with_definitions: None, tmp_path: Path
) -> None:
    """kube-scheduler with the chart's configuration and service account acquires its Lease and places a pod."""
    space = sandbox.namespace
    made = helm.rendered(space, "--values", CHART / "values/values-second-scheduler.yaml")
    certificates = extender_process.CertificateFiles(tmp_path)
    certificates.client = certificates.authority.issue("nodewise-scheduler-client")
    with _applied_without_deployments(sandbox, made, tmp_path):
        config = next(
            manifest["data"]["scheduler.yaml"]
            for manifest in made
            if manifest["kind"] == "ConfigMap" and "scheduler.yaml" in manifest["data"]
        )
        for name, path in (
            ("ca.crt", certificates.authority.ca_file),
            ("tls.crt", certificates.client.cert),
            ("tls.key", certificates.client.key),
        ):
            config = config.replace(f"/etc/nodewise/client/{name}", str(path))
        account = sandbox.plane.service_account("nodewise-scheduler", space)
        with extender_process.extender(
            sandbox.plane, tmp_path, "--client-name=nodewise-scheduler-client", certificates=certificates
        ) as running:
            config = config.replace(f"https://nodewise.{space}.svc:9001", running.url)
            process = sandbox.plane.start_scheduler(config, user=account)
            try:
                sandbox.nodes(kubernetes_objects.node("chart-node"))
                sandbox.put(_chosen("one"))
                pod_path = f"/api/v1/namespaces/{space}/pods/one"
                wait("the pod is bound", lambda: sandbox.api.get(pod_path)["spec"].get("nodeName"))
                sandbox.put(_chosen("two", limits=extender_process.LIMITS))
                wait("nodewise was asked", lambda: running.decisions("two") or None)
                lease = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases/nodewise-scheduler"
                assert sandbox.api.find(lease)
                assert "is forbidden" not in process.log.read_text()
            finally:
                process.stop()


def _chosen(name: str, **more: Any) -> Object:
    """A pod for the second scheduler that names a policy which does not exist."""
    made = kubernetes_objects.pod(name, labels={"telemetry-policy": "none"}, **more)
    made["spec"]["schedulerName"] = "nodewise-scheduler"
    return made


def test_the_demo_of_metrics_names_each_nodes_value(
    plane: ControlPlane,
    sandbox: Sandbox,
    prometheus_programs: debian_packages.PrometheusPrograms,
    adapter_program: Path,
    tmp_path: Path,
) -> None:
    """The shipped relabelling and rules work between a real exporter and the API server, and without the adapter."""
    stack = yaml.safe_load((METRICS / "kube-prometheus-stack.yaml").read_text())
    (relabelling,) = stack["prometheus-node-exporter"]["prometheus"]["monitor"]["relabelings"]
    # without pod discovery, the node's name is in another label; `instance` is an address, as in a cluster
    to_node = {"source_labels": ["instance"], "target_label": relabelling["targetLabel"]}
    to_address = {"source_labels": ["__address__"], "target_label": "instance"}
    job = {**prometheus_and_exporters.JOB, "relabel_configs": [to_node, to_address]}
    rules = tmp_path / "rules.yaml"
    adapter_rules = yaml.safe_load((METRICS / "prometheus-adapter.yaml").read_text())["rules"]
    rules.write_text(yaml.safe_dump({"rules": adapter_rules["custom"]}))
    sandbox.nodes(kubernetes_objects.node("chart-a"), kubernetes_objects.node("chart-b"))
    settings = yaml.safe_load((CHART / "values/values-prometheus.yaml").read_text())["settings"]
    with (
        prometheus_and_exporters.running(
            prometheus_programs, tmp_path / "monitoring", ["chart-a", "chart-b"], [job]
        ) as scraping,
        metrics_pipeline.running_adapter(plane, adapter_program, scraping.url, rules) as adapter,
        metrics_pipeline.registered(sandbox.api, scraping, adapter) as ends,
    ):
        ends.set_health("chart-a", 0)
        ends.set_health("chart-b", 2)
        ends.wait_visible("health_metric", {"chart-a": "0", "chart-b": "2"})
        config = tmp_path / "nodewise.yaml"
        config.write_text(yaml.safe_dump(settings | {"prometheus_url": [scraping.url]}))
        unhealthy = {"metricname": "node_health_metric", "operator": "GreaterThan", "target": 0}
        extender_process.policy(sandbox, dontschedule=[unhealthy])
        with extender_process.extender(plane, tmp_path, f"--config={config}") as running:
            running.wait_fetched("node_health_metric")
            wait("b is avoided", lambda: running.rejects(sandbox.namespace, "chart-b") or None)
            assert not running.rejects(sandbox.namespace, "chart-a")
