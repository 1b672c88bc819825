"""`nodewise configure --mode native`: one manifest of the shipped files."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import nodewise
from nodewise.base.errors import BadSettings
from nodewise.cli.configure import command
from nodewise.install import platform_manifests

DEPLOY = Path(__file__).parents[3] / "deploy"
VERSION = "--kubernetes-version=1.36"


def run(*flags: str) -> Result:
    return CliRunner(env={"KUBECONFIG": "nowhere"}).invoke(command, ["--mode=native", *flags])


def objects(*flags: str) -> list[Any]:
    done = run(VERSION, *flags)
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.stdout))


def of_kind(made: list[Any], kind: str) -> list[Any]:
    return [document for document in made if document["kind"] == kind]


def container(made: list[Any]) -> Any:
    (deployment,) = of_kind(made, "Deployment")
    return deployment["spec"]["template"]["spec"]["containers"][0]


def test_it_contains_the_shipped_files_with_the_definitions_first() -> None:
    made = objects()
    assert [document["kind"] for document in made[:4]] == ["CustomResourceDefinition"] * 3 + ["Namespace"]
    shipped = [
        document
        for name in platform_manifests.FILES
        for document in yaml.safe_load_all((DEPLOY / name).read_text())
    ]
    different = [
        document["metadata"]["name"]
        for document, original in zip(made, shipped, strict=True)
        if document != original
    ]
    assert different == ["nodewise-pod-labels"]


def test_no_account_has_rights_on_admission_policies() -> None:
    """Whoever may write them can change every pod of the cluster."""
    made = objects()
    rules = [
        rule for kind in ("ClusterRole", "Role") for role in of_kind(made, kind) for rule in role["rules"]
    ]
    assert len(rules) > 5
    groups = {group for rule in rules for group in rule["apiGroups"]}
    assert not {"admissionregistration.k8s.io", "*"} & groups


def test_pods_need_no_request_for_a_resource() -> None:
    policies = of_kind(objects(), "ValidatingAdmissionPolicy")
    (labels,) = [policy for policy in policies if policy["metadata"]["name"] == "nodewise-pod-labels"]
    assert {"name": "resource", "expression": "''"} in labels["spec"]["variables"]


def test_namespace_image_and_source_of_metrics_are_options() -> None:
    url = "http://prometheus.monitoring:9090/x?a={b},c"
    made = objects("--namespace=mine", "--image=registry.example.org/nodewise:1", f"--prometheus-url={url}")
    assert container(made)["image"] == "registry.example.org/nodewise:1"
    assert container(made)["command"][-1] == f"--prometheus-url={url}"
    assert [document["metadata"]["name"] for document in of_kind(made, "Namespace")] == ["mine"]
    namespaces = {document["metadata"].get("namespace", "mine") for document in made}
    subjects = {
        subject["namespace"]
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for document in of_kind(made, kind)
        for subject in document["subjects"]
    }
    assert namespaces == subjects == {"mine"}
    text = json.dumps(made)
    assert "system:serviceaccount:mine:nodewise" in text
    assert "system:serviceaccount:nodewise:" not in text
    assert '"values": ["kube-system", "mine"]' in text
    assert '"values": ["kube-system", "nodewise"]' not in text
    plain = container(objects())
    assert plain["image"] == f"nodewise:{nodewise.__version__}"
    assert not any("prometheus" in word for word in plain["command"])


def test_json_is_a_list() -> None:
    done = run(VERSION, "--output=json")
    assert json.loads(done.stdout)["items"] == objects()


def test_an_unknown_version_is_a_note() -> None:
    done = run()
    assert done.exit_code == 0
    assert "The version of the cluster could not be read" in done.stderr


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        (
            "--kubernetes-version=1.35.4",
            "Kubernetes 1.35; expected 1.36 or later; --mode second-scheduler",
        ),
        ("--agents=gpu", "--agents"),
        ("--scheduler-name=a", "--scheduler-name"),
        ("--prometheus-url=prometheus:9090", "an address such as http://prometheus.monitoring:9090"),
    ],
)
def test_options_without_meaning_in_native_mode_are_refused(flag: str, message: str) -> None:
    done = CliRunner().invoke(command, ["--mode=native", flag])
    assert isinstance(done.exception, BadSettings)
    assert message in str(done.exception)


def test_other_modes_have_the_source_of_metrics_where_they_run_nodewise() -> None:
    url = "--prometheus-url=http://prometheus:9090"
    second = CliRunner().invoke(command, ["--mode=second-scheduler", VERSION, url])
    assert url in second.stdout
    for mode in ("kubeadm", "host"):
        assert isinstance(CliRunner().invoke(command, [f"--mode={mode}", url]).exception, BadSettings)
