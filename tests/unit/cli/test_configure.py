"""`nodewise configure`: objects of native mode, warnings about untested versions, and `render-scheduler`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

import nodewise
from nodewise.base.errors import BadSettings
from nodewise.cli.configure import command, platform_modes
from nodewise.install import platform_manifests
from nodewise.kube import object_files

DEPLOY = Path(__file__).parents[3] / "deploy"
VERSION = "--kubernetes-version=1.36"


def run(*flags: str) -> Result:
    return CliRunner(env={"KUBECONFIG": "nowhere"}).invoke(command, ["--mode=native", *flags])


def objects(*flags: str) -> list[Any]:
    done = run(VERSION, *flags)
    assert done.exit_code == 0, done.output
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


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
        for document in yaml.load_all((DEPLOY / name).read_text(), yaml.CSafeLoader)
    ]
    different = [
        document["metadata"]["name"]
        for document, original in zip(made, shipped, strict=True)
        if document != original
    ]
    assert different == ["nodewise-pod-labels"]


def test_no_account_may_write_admission_policies() -> None:
    """Whoever may write them can change every pod of the cluster."""
    made = objects()
    rules = [
        rule for kind in ("ClusterRole", "Role") for role in of_kind(made, kind) for rule in role["rules"]
    ]
    assert len(rules) > 5
    verbs: dict[str, set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            verbs.setdefault(group, set()).update(rule["verbs"])
    assert "*" not in verbs
    assert verbs.get("admissionregistration.k8s.io", set()) <= {"list", "watch"}


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


def parts(*words: str) -> list[Any]:
    done = CliRunner().invoke(command, ["manifests", *words])
    assert done.exit_code == 0, done.output
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


@pytest.mark.parametrize("part", platform_manifests.PARTS)
def test_a_part_is_printed_as_it_ships_without_workloads(part: str) -> None:
    shipped = [
        document
        for name in platform_manifests.PARTS[part]
        for document in yaml.load_all((DEPLOY / name).read_text(), yaml.CSafeLoader)
    ]
    assert parts(part) == [item for item in shipped if item["kind"] not in {"Deployment", "Job"}]


def test_help_describes_every_part() -> None:
    described = CliRunner().invoke(command, ["manifests", "--help"]).stdout
    assert [line.split()[0] for line in described.partition("Parts:")[2].splitlines()[1:15]] == [
        *platform_manifests.PARTS
    ]


def test_parts_are_printed_in_the_order_in_which_they_are_applied() -> None:
    assert parts("gpu", "rbac", "crds") == [*parts("crds"), *parts("rbac"), *parts("gpu")]


def test_namespace_and_account_of_parts_are_options() -> None:
    made = parts(*platform_manifests.PARTS, "-n", "mine", "--name", "sun")
    text = json.dumps(made)
    assert [document["metadata"]["name"] for document in of_kind(made, "Namespace")] == ["mine"]
    assert {item["metadata"].get("namespace", "mine") for item in made} == {"mine", "kube-system"}
    assert {item["metadata"]["name"] for item in of_kind(made, "ServiceAccount")} == {"sun", "sun-doctor"}
    bindings = [item for item in made if item["kind"].endswith("PolicyBinding")]
    policies = [item for item in made if item["kind"].endswith("AdmissionPolicy")]
    assert {item["spec"]["policyName"] for item in bindings} == {
        item["metadata"]["name"] for item in policies
    }
    assert "system:serviceaccount:mine:sun'" in text
    assert not re.search(r'"(name|policyName|namespace)": "nodewise', text)


NAMES_LIKE_OTHER_TYPES = ["y", "no", "null", "1e3", "0x1"]
"""Valid names that a parser of YAML reads as a value of another type if they have no quotes."""


@pytest.mark.parametrize("name", NAMES_LIKE_OTHER_TYPES)
@pytest.mark.parametrize(
    "words",
    [
        ["manifests", *platform_manifests.PARTS, "-n", "NAME", "--name", "NAME"],
        ["--mode=native", VERSION, "--namespace=NAME", "--image=NAME"],
        ["--mode=second-scheduler", VERSION, "--namespace=NAME", "--scheduler-name=NAME"],
        ["render-scheduler", "--scheduler-name=NAME", "--ca=a", "--cert=b", "--key=c"],
    ],
    ids=lambda words: words[0],
)
def test_names_stay_texts(name: str, words: list[str]) -> None:
    def documents(own: str) -> list[str]:
        done = CliRunner().invoke(command, [word.replace("NAME", own) for word in words])
        assert done.exit_code == 0, done.output
        documents = object_files.split_documents(done.stdout_bytes, "stdout")
        # files of a ConfigMap are texts with quotes of their own
        return [document.decode().replace(f"'{own}'", own) for _, document in documents]

    assert documents(name) == [text.replace("zqname", name) for text in documents("zqname")]


def test_a_part_that_does_not_exist_is_refused_with_the_closest_one() -> None:
    done = CliRunner().invoke(command, ["manifests", "crd"])
    assert isinstance(done.exception, BadSettings)
    assert 'did you mean "crds"?' in str(done.exception)


NEWER = "1.39 is newer than what was tried, 1.37"
OLDER = "1.32 is older than what was tried, 1.34"


@pytest.mark.parametrize(
    ("mode", "version", "warning"),
    [
        ("native", "v1.39.1", f"Kubernetes {NEWER}"),
        ("second-scheduler", "1.39", f"kube-scheduler {NEWER}"),
        ("second-scheduler", "1.32.7", f"kube-scheduler {OLDER}"),
        ("kubeadm", "1.39.0", f"kube-scheduler {NEWER}"),
        ("kind", "v1.32.0", f"kube-scheduler {OLDER}"),
        ("rke2", "1.39.0", f"kube-scheduler {NEWER}"),
    ],
)
def test_a_version_that_was_not_tried_is_a_warning(mode: str, version: str, warning: str) -> None:
    done = CliRunner().invoke(command, [f"--mode={mode}", f"--kubernetes-version={version}", *_address(mode)])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.splitlines()[0] == f"warning: {warning}"
    assert warning not in done.stdout


@pytest.mark.parametrize("mode", ["native", "second-scheduler", "kubeadm", "k3s"])
@pytest.mark.parametrize("version", ["1.36", "v1.37.2"])
def test_a_tested_version_is_no_warning(mode: str, version: str) -> None:
    done = CliRunner().invoke(command, [f"--mode={mode}", f"--kubernetes-version={version}", *_address(mode)])
    assert done.exit_code == 0, done.stderr
    assert "warning" not in done.stderr


@pytest.mark.parametrize("mode", ["native", "second-scheduler"])
def test_the_version_that_the_cluster_states_is_compared(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def state_version() -> str:
        return "v1.39.2-gke.100"

    monkeypatch.setattr(platform_modes, "_cluster_kubernetes_version", state_version)
    done = CliRunner().invoke(command, [f"--mode={mode}", "--output=json"])
    assert done.exit_code == 0, done.stderr
    assert NEWER in done.stderr
    assert json.loads(done.stdout)["kind"] == "List"


def _address(mode: str) -> list[str]:
    """The flag that a mode without names of Services needs."""
    return ["--extender-url=https://10.96.7.7:9001"] if mode in ("k3s", "rke2") else []


LOCAL = "--url=http://127.0.0.1:9001"


def render(*arguments: str) -> tuple[dict[str, Any], str]:
    """The configuration and standard error."""
    completed = CliRunner().invoke(command, ["render-scheduler", *arguments], standalone_mode=False)
    if completed.exception:
        raise completed.exception
    return yaml.load(completed.stdout, yaml.CSafeLoader), completed.stderr


def test_verbs_of_an_entry_are_those_of_its_agents() -> None:
    config, output = render(LOCAL, "--one-entry-per-agent", "--agents=telemetry,gpu,safe,congestion")
    verbs = [{key for key in entry if key.endswith("Verb")} for entry in config["extenders"]]
    assert verbs == [
        {"filterVerb", "prioritizeVerb", "preemptVerb"},
        {"filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb"},
        {"prioritizeVerb"},
        {"prioritizeVerb"},
    ]
    assert output.startswith("nodewise: the filter of safe is not called")


def test_filtered_resources_follow_from_options_of_the_agent() -> None:
    for options in ([], ["--when-missing=reject"]):
        config, _ = render(LOCAL, "--agents=congestion", "--filter-all-pods", *options)
        assert ("filterVerb" in config["extenders"][0]) == bool(options)


def test_the_resources_are_those_of_the_profile() -> None:
    config, _ = render(LOCAL, "--agents=gpu", "--gpu-profile=generic", "--weights=3", "-o", "json")
    [entry] = config["extenders"]
    assert entry["managedResources"] == [{"name": "nvidia.com/gpu"}]
    assert entry["weight"] == 3


def test_a_file_of_the_extender_serves_here_too(tmp_path: Any) -> None:
    file = tmp_path / "nodewise.yaml"
    file.write_text(
        json.dumps(
            {
                "agents": "congestion",
                "cert": "server.crt",
                "weights": "congestion=2",
                "gpu": {"profile": "generic"},
            }
        )
    )
    config, _ = render(LOCAL, f"--config={file}")
    [entry] = config["extenders"]
    assert (entry["weight"], entry.get("prioritizeVerb"), "tlsConfig" in entry) == (10, "prioritize", False)


@pytest.mark.parametrize("weights", ["x", "safe=", "=3", "-1", "1.5", "3,4", "safe=1,safe=2"])
def test_weights_that_cannot_be_read_are_named(weights: str) -> None:
    with pytest.raises(BadSettings, match="--weights"):
        render(LOCAL, "--one-entry-per-agent", "--agents=safe", f"--weights={weights}")


def test_shipped_configuration_equals_the_printed_one(tmp_path: Any) -> None:
    documents = yaml.load_all((DEPLOY / "scoring.yaml").read_text(), yaml.CSafeLoader)
    data = next(document["data"] for document in documents if document["kind"] == "ConfigMap")
    file = tmp_path / "nodewise.yaml"
    file.write_text(data["nodewise.yaml"])
    arguments = [
        f"--config={file}",
        LOCAL,
        "--whole-nodes",
        "--filter-all-pods",
        "--scheduler-name=my-scheduler",
    ]
    completed = CliRunner().invoke(command, ["render-scheduler", *arguments], standalone_mode=False)
    assert completed.stdout == data["scheduler.yaml"]
