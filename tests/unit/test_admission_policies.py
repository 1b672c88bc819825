"""The shipped admission policies allow exactly the fields that the code writes."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from nodewise.agents.gpu import agent, controller
from nodewise.agents.gpu.gpu_pod_fields import GPU_NUMBERS, GPUS, SUBDEVICES
from nodewise.engine import pod_requeueing
from nodewise.extender import binding
from nodewise.policies import node_labels, taspolicy_parser
from nodewise_scorers.annotator.node_patches import WrittenAnnotations

DEPLOY = Path(__file__).parents[2] / "deploy"
STATISTICS = {field.encode_name for field in msgspec.structs.fields(WrittenAnnotations)}
ALL_POLICIES = [
    (path.name, item["metadata"]["name"])
    for path in sorted(DEPLOY.glob("*.yaml"))
    for item in yaml.load_all(path.read_text(), yaml.CSafeLoader)
    if item and item["kind"] == "ValidatingAdmissionPolicy"
]


def policy(file: str, name: str) -> dict[str, Any]:
    objects = yaml.load_all((DEPLOY / file).read_text(), yaml.CSafeLoader)
    (spec,) = [
        item["spec"]
        for item in objects
        if (item["kind"], item["metadata"]["name"]) == ("ValidatingAdmissionPolicy", name)
    ]
    return dict(spec)


def words(file: str, name: str, variable: str) -> set[str]:
    """The string literals of a variable."""
    variables = {variable["name"]: variable["expression"] for variable in policy(file, name)["variables"]}
    return set(re.findall(r"'([^']*)'", variables[variable]))


def test_the_annotations_of_nodes() -> None:
    assert words("annotator.yaml", "nodewise-annotator", "annotationKeys") == STATISTICS
    assert words("rbac.yaml", "nodewise-nodes", "annotationKeys") == STATISTICS | {pod_requeueing.ANNOTATION}


def test_the_labels_of_nodes() -> None:
    assert words("rbac.yaml", "nodewise-nodes", "otherLabels") == {
        node_labels.VERDICT_LABEL_PREFIX,
        taspolicy_parser.PREFIX,
        taspolicy_parser.VIOLATING,
        "/",
        f"^[^/]+{node_labels.NODEWISE_DOMAIN.replace('.', '[.]')}/",
    }


def test_writes_of_only_own_labels_of_nodes_skip_the_comparisons() -> None:
    (condition,) = policy("rbac.yaml", "nodewise-nodes")["matchConditions"]
    prefixes = set(re.findall(r"startsWith\('([^']*)'\)", condition["expression"]))
    assert prefixes == {node_labels.VERDICT_LABEL_PREFIX, taspolicy_parser.PREFIX}


def test_the_labels_of_pods() -> None:
    topology = {"topology.kubernetes.io/zone", "topology.kubernetes.io/region"}
    own = {controller.DESCHEDULE_LABEL, controller.DESCHEDULE_VALUE}
    assert words("gpu.yaml", "nodewise-pods", "otherLabels") == own | topology


def test_the_annotations_of_pods() -> None:
    of_bindings = {agent.BIND_TIME, GPUS, SUBDEVICES, GPU_NUMBERS}
    assert words("gpu.yaml", "nodewise-pods", "otherAnnotations") == of_bindings | {
        binding.RESERVATION_DROPPED_ANNOTATION
    }


CONDITIONS = {
    "cmk-own-node": "request.userInfo.username in [",
    "nodewise-annotator": "request.userInfo.username == ",
    "nodewise-device-taints": "request.userInfo.username == ",
    "nodewise-native-gate": "oldObject.spec.?schedulingGates",
    "nodewise-native-named": "object.spec.?nodeName",
    "nodewise-native-named-exists": "object.spec.?nodeName",
    "nodewise-native-size": "'nodewise.io/denied' in object.metadata.?annotations",
    "nodewise-nodes": "request.userInfo.username == ",
    "nodewise-pod-labels": "request.operation == 'CREATE' || ",
    "nodewise-pods": "request.userInfo.username == ",
    "nodewise-placement-policy-fields": "oldObject == null || object.?spec",
    "nodewise-policy-fields": "oldObject == null || object.?spec",
    "nodewise-trust": "object.metadata.?labels[?'nodewise.io/trusted'].hasValue() && ",
}


def test_each_policy_has_a_condition() -> None:
    assert {name for _, name in ALL_POLICIES} == CONDITIONS.keys()


WARNS = ("pod-admission.yaml", "nodewise-pod-labels")
DENY = [name for name in ALL_POLICIES if name != WARNS]


def test_the_policy_about_everybodys_pods_only_warns_and_its_errors_stop_none() -> None:
    spec = policy(*WARNS)
    assert spec["failurePolicy"] == "Ignore"
    *_, bound = yaml.load_all((DEPLOY / WARNS[0]).read_text(), yaml.CSafeLoader)
    assert bound["spec"] == {"policyName": WARNS[1], "validationActions": ["Warn", "Audit"]}


@pytest.mark.parametrize(("file", "name"), DENY, ids=[name for _, name in DENY])
def test_every_policy_denies_and_fails_closed_only_for_its_matches(file: str, name: str) -> None:
    spec = policy(file, name)
    # An error about parameters precedes match conditions, so that only a policy without parameters fails closed.
    assert spec["failurePolicy"] == ("Ignore" if "paramKind" in spec else "Fail")
    condition, *_ = spec["matchConditions"]
    assert condition["expression"].startswith(CONDITIONS[name])
    objects = yaml.load_all((DEPLOY / file).read_text(), yaml.CSafeLoader)
    bindings = [item["spec"] for item in objects if item["kind"] == "ValidatingAdmissionPolicyBinding"]
    (actions,) = [item["validationActions"] for item in bindings if item["policyName"] == name]
    assert actions == ["Deny"]


def test_named_pods_are_denied_while_the_policy_with_parameters_ignores_errors() -> None:
    """Both apply to the same pods."""
    with_parameters, without = (
        policy("native.yaml", f"nodewise-native-named{end}") for end in ("", "-exists")
    )
    assert ("paramKind" in with_parameters, "paramKind" in without) == (True, False)
    for field in ("matchConstraints", "matchConditions"):
        assert with_parameters[field] == without[field]


def mutating(kind: str, file: str = "extender-pods.yaml") -> dict[str, Any]:
    """The policy of a file for the pods of a kind."""
    documents = yaml.load_all((DEPLOY / file).read_text(), yaml.CSafeLoader)
    objects = [item for item in documents if item["kind"] == "MutatingAdmissionPolicy"]
    (spec,) = [item["spec"] for item in objects if item["spec"].get("paramKind", {}).get("kind") == kind]
    return dict(spec)


def test_mutating_policies_differ_only_in_the_fields_of_the_cluster_kind() -> None:
    """No list of Objects in a `value`: it panics in the API server, which then refuses the pod."""
    own, wide = mutating("PlacementPolicy"), mutating("ClusterPlacementPolicy")
    variables = {variable["name"]: variable["expression"] for variable in wide["variables"]}
    is_selected, _ = variables.pop("isSelected"), variables.pop("namespaceLabels")
    assert {variable["name"]: variable["expression"] for variable in own["variables"]} == variables
    (own_mutation,), (wide_mutation,) = own.pop("mutations"), wide.pop("mutations")
    patch = own_mutation["jsonPatch"]["expression"]
    assert wide_mutation["jsonPatch"]["expression"] == f"!variables.isSelected ? [] : {patch}"
    for spec in (own, wide):
        del spec["variables"], spec["paramKind"]
        assert spec["failurePolicy"] == "Ignore"
    assert own == wide
    pods = own["matchConditions"][-1]["expression"]
    namespaces = is_selected.replace("namespaceSelector", "podSelector")
    labels = "object.metadata.?labels.orValue({})"
    assert namespaces.replace("variables.namespaceLabels", labels) == pods
    assert (
        re.findall(r"value: (?!Object\.spec\.containers\.resources\{\}|\"1\"|\{variables\.resource: )", patch)
        == []
    )


@pytest.mark.parametrize("kind", ["PlacementPolicy", "ClusterPlacementPolicy"])
def test_the_extender_and_native_mode_select_the_same_pods(kind: str) -> None:
    extender, native = mutating(kind), mutating(kind, "native.yaml")
    assert native["matchConstraints"] == extender["matchConstraints"]
    conditions, native_conditions = (
        {condition["name"]: condition["expression"] for condition in spec["matchConditions"]}
        for spec in (extender, native)
    )
    # native mode gives pods of the mode Shadow nothing, and is idempotent in its mutation
    del native_conditions["policy-mode-enforces"], native_conditions["policy-has-not-stepped-back"]
    del conditions["policy-has-rules-for-pods"], conditions["pod-does-not-request-the-resource"]
    del native_conditions["policy-has-a-node-label"]
    del native_conditions["pod-is-not-denied"]  # native mode denies pods that exceed a limit
    assert native_conditions == conditions
    variables, native_variables = (
        {variable["name"]: variable["expression"] for variable in spec["variables"]}
        for spec in (extender, native)
    )
    for name in ("isSelected", "namespaceLabels"):
        assert native_variables.get(name) == variables.get(name)


def test_only_the_policy_that_removes_requirements_is_evaluated_once() -> None:
    """The API server evaluates mutating policies in any order; after a change it evaluates the others again."""
    documents = yaml.load_all((DEPLOY / "native.yaml").read_text(), yaml.CSafeLoader)
    policies = [item for item in documents if item["kind"] == "MutatingAdmissionPolicy"]
    assert {item["metadata"]["name"]: item["spec"]["reinvocationPolicy"] for item in policies} == {
        "nodewise-native": "IfNeeded",
        "nodewise-native-cluster": "IfNeeded",
        "nodewise-native-named": "IfNeeded",
        "nodewise-native-reset": "Never",
    }


def test_the_account_may_change_the_same_of_pods_with_and_without_gpus() -> None:
    """Whoever applies both files gets the policy of the last one."""
    assert policy("controller.yaml", "nodewise-pods") == policy("gpu.yaml", "nodewise-pods")
