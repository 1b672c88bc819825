"""The documents and comments that replace a TASPolicy. The laws of conversion compare verdicts."""

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from nodewise.base import clock, quantity
from nodewise.cli import policy as cli_policy
from nodewise.kube import object_files
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policy_tools import policy_writer, taspolicy_conversion
from nodewise.policy_tools.taspolicy_conversion import Conversion
from tests.unit.policies.policy_snapshot_builders import policy, rule

HOT = rule("temp", target=80)
POD_SELECTOR = {"matchLabels": {"telemetry-policy": "pol"}}
NAMESPACE_SELECTOR = {"matchLabels": {"kubernetes.io/metadata.name": "web"}}


def convert(
    name: str = "pol",
    namespace: str = "web",
    when_missing: Literal["pass", "reject"] = "pass",
    **strategies: Any,
) -> Conversion:
    return taspolicy_conversion.convert(policy(name, namespace, **strategies), when_missing)


def specs(**strategies: Any) -> dict[str, Any]:
    """The specs of the converted policies by kind."""
    made = convert(**strategies)
    assert not made.problems
    return {converted.document["kind"]: converted.document["spec"] for converted in made.policies}


def avoided(**rule: Any) -> Any:
    """The rule that replaces the only one of `dontschedule`."""
    [avoid] = specs(dontschedule=[rule])["PlacementPolicy"]["avoid"]
    return avoid


def comments(**strategies: Any) -> str:
    return "\n".join(
        comment for converted in convert(**strategies).policies for comment in converted.comments
    )


def test_rules_with_metric_names_become_a_placement_policy_of_the_same_name() -> None:
    [converted] = convert(dontschedule=[HOT], scheduleonmetric=[rule("power", "LessThan")]).policies
    assert converted.document == {
        "apiVersion": "nodewise.io/v1alpha1",
        "kind": "PlacementPolicy",
        "metadata": {"name": "pol", "namespace": "web"},
        "spec": {
            "podSelector": POD_SELECTOR,
            "avoid": [{"metric": "temp", "above": 80}],
            "prefer": [{"metric": "power", "order": "Ascending"}],
        },
    }
    assert converted.comments == (
        "Replaces TASPolicy web/pol.",
        "Selects the pods by their label telemetry-policy; any other labels can replace it.",
        "Pods of a DaemonSet are not selected.",
    )


def test_rules_with_an_effect_beyond_the_namespace_become_a_cluster_placement_policy() -> None:
    made = convert(
        dontschedule=[HOT, rule("errors", target=0, query="up", empty_means="healthy")],
        deschedule={"rules": [HOT, rule("errors", target=3)], "logicalOperator": "allOf"},
        labeling=[rule("card0", "LessThan", "0.5", labels=["card0=a", "card1=b"])],
    )
    namespaced, cluster = (converted.document for converted in made.policies)
    assert namespaced["spec"] == {"podSelector": POD_SELECTOR, "avoid": [{"metric": "temp", "above": 80}]}
    assert cluster["metadata"] == {"name": "web.pol"}
    labels = {"telemetry.aware.scheduling.pol/card0": "a", "telemetry.aware.scheduling.pol/card1": "b"}
    assert cluster["spec"] == {
        "namespaceSelector": NAMESPACE_SELECTOR,
        "podSelector": POD_SELECTOR,
        "avoid": [{"query": "up", "above": 0, "emptyMeans": "Healthy"}],
        "nodeLabels": [
            {
                "all": [{"metric": "temp", "above": 80}, {"metric": "errors", "above": 3}],
                "labels": {"pol": "violating"},
            },
            {"metric": "card0", "below": "0.5", "labels": labels},
        ],
    }
    [first, *_], [second, *more] = (converted.comments for converted in made.policies)
    assert first == second == "Replaces a part of TASPolicy web/pol."
    assert "without nodewise.io/trusted=true on namespace web its node labels have no effect" in "".join(more)
    assert "messages call it query instead of errors" in "".join(more)


def test_a_group_with_a_query_goes_to_the_cluster_policy_as_a_whole() -> None:
    rules = [HOT, rule("errors", target=0, query="up")]
    made = specs(
        dontschedule={"rules": rules, "logicalOperator": "allOf"}, scheduleonmetric=[rule("a", "LessThan")]
    )
    assert made["ClusterPlacementPolicy"]["avoid"] == [
        {"all": [{"metric": "temp", "above": 80}, {"query": "up", "above": 0}]}
    ]
    assert made["PlacementPolicy"].keys() == {"podSelector", "prefer"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"operator": "Equals", "target": -1}, {"equals": -1}),
        ({"target": "0.8"}, {"above": "0.8"}),
        ({"target": "64Gi"}, {"above": 64 * 2**30}),
        ({"target": "1n"}, {"above": "0.000000001"}),
        ({"target": "1e100"}, {"above": "10e99"}),
        ({"target": None}, {"above": 0}),
        ({"when_missing": "reject"}, {"above": 80, "whenMissing": "Reject"}),
        ({"when_missing": "pass"}, {"above": 80}),
        ({"max_age": "90s", "aggregate": "max"}, {"aggregate": "max", "above": 80, "maxAge": "1m30s"}),
        ({"max_age": "1500ms"}, {"above": 80, "maxAge": "1.5s"}),
        ({"max_age": "8784h"}, {"above": 80, "maxAge": "8784h"}),
        ({"max_age": "0.3ns"}, {"above": 80, "maxAge": "0.000000001s"}),
    ],
    ids=str,
)
def test_fields_of_a_rule(fields: Any, expected: Any) -> None:
    assert avoided(**(HOT | fields)) == {"metric": "temp", **expected}


def test_when_missing_of_the_extender_is_written_for_rules_without_their_own() -> None:
    rules = [HOT, HOT | {"when_missing": "pass"}]
    [converted] = convert(when_missing="reject", dontschedule=rules, scheduleonmetric=[HOT]).policies
    spec = converted.document["spec"]
    assert [avoid.get("whenMissing") for avoid in spec["avoid"]] == ["Reject", None]
    assert "whenMissing" not in spec["prefer"][0]


def test_each_rule_with_labels_of_a_group_is_the_first_of_its_own() -> None:
    """The first part of a rule decides which of several values of a label applies."""
    rules = [rule("a", target=1, labels=["x=a"]), rule("b", target=2, labels=["x=b"]), rule("c", target=3)]
    made = specs(labeling={"rules": rules, "logicalOperator": "allOf"})["ClusterPlacementPolicy"]
    expected = [["a", "b", "c"], ["b", "a", "c"]]
    assert [[part["metric"] for part in entry["all"]] for entry in made["nodeLabels"]] == expected
    expected = [{"telemetry.aware.scheduling.pol/x": "a"}, {"telemetry.aware.scheduling.pol/x": "b"}]
    assert [entry["labels"] for entry in made["nodeLabels"]] == expected


DIFFERENCES: dict[str, tuple[Any, str]] = {
    "a preference without an order": (
        {"dontschedule": [HOT], "scheduleonmetric": [rule("a", "Equals")]},
        "spec.strategies.scheduleonmetric.rules[0] is left out: its operator defines no order.",
    ),
    "a second preference": (
        {"scheduleonmetric": [rule("a", "LessThan"), rule("b", "LessThan")]},
        "spec.strategies.scheduleonmetric.rules[1] is left out: only the first rule has an effect.",
    ),
    "a preference that cannot be used": (
        {"dontschedule": [HOT], "scheduleonmetric": [rule("a b", "LessThan")]},
        (
            "spec.strategies.scheduleonmetric.rules[0] is left out, it has no effect: "
            "spec.strategies.scheduleonmetric.rules[0].metricname: 'a b'; expected letters"
        ),
    ),
    "a rule for labels that cannot be used": (
        {"deschedule": [HOT, rule("m", target="warm")]},
        "A rule for node labels is left out, it has no effect: spec.strategies.deschedule.rules[1].target: 'warm'",
    ),
    "a rule without labels": (
        {"dontschedule": [HOT], "labeling": [HOT]},
        "A rule for node labels is left out, it has no effect: it has no labels",
    ),
    "a label that nodes cannot have": (
        {"labeling": [HOT | {"labels": ["fan=slow", "rack 7"]}]},
        "Left out, because it has no effect: spec.strategies.labeling.rules[0].labels[1]: 'rack 7'; expected",
    ),
    "more labels than a policy may have": (
        {
            "labeling": [
                HOT | {"labels": [f"fan{number}=on" for number in range(16)]},
                HOT | {"labels": ["x=y"]},
            ]
        },
        "Left out, because it has no effect: spec.strategies: 17 different node labels; expected at most 16",
    ),
    "an unknown operator of rules": (
        {"dontschedule": {"rules": [HOT], "logicalOperator": "noneOf"}},
        "Left out, because it has no effect: spec.strategies.dontschedule.logicalOperator: 'noneOf'",
    ),
    "no rules about pods": (
        {"deschedule": [HOT]},
        "Selects pods so that they can keep their label telemetry-policy; remove the selectors with it.",
    ),
    "a name that no pod can have as a label": (
        {
            "name": "p" * 64,
            "dontschedule": [HOT],
            "deschedule": [HOT],
            "labeling": [HOT | {"labels": ["a=b"]}],
        },
        "No pod can name the TASPolicy, so its rules about pods are left out.",
    ),
}


@pytest.mark.parametrize(("strategies", "comment"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_comment_names_each_difference(strategies: Any, comment: str) -> None:
    assert comment in comments(**strategies), comments(**strategies)


def test_each_part_that_is_left_out_has_one_comment() -> None:
    rules = [rule("a", "Equals")]
    assert comments(dontschedule=[HOT], scheduleonmetric=rules).count("scheduleonmetric.rules[0]") == 1
    bad = rule("m", target="warm", labels=["a=b"])
    assert comments(dontschedule=[HOT], labeling=[bad]).count("labeling.rules[0].target") == 1


REFUSED: dict[str, tuple[Any, str]] = {
    "a rule that cannot be evaluated": (
        {"dontschedule": [HOT, rule("m", "Above", 1)]},
        "spec.strategies.dontschedule.rules[1].operator: 'Above'; expected LessThan or",
    ),
    "an unknown strategy": (
        {"dontSchedule": [HOT], "deschedule": [HOT]},
        "spec.strategies.dontSchedule: an unknown strategy",
    ),
    "a group of more than 16 rules": (
        {"dontschedule": {"rules": [HOT] * 17, "logicalOperator": "allOf"}},
        "spec.avoid[0].all: 17 entries; expected a list of 1 to 16 entries",
    ),
    "labels of a large group": (
        {"labeling": {"rules": [HOT | {"labels": ["x=a"]}] * 11, "logicalOperator": "allOf"}},
        "spec: 121 rules in nodeLabels; expected at most 100, counting those in all",
    ),
    "a target with too many digits": (
        {"dontschedule": [HOT | {"target": "1" * 70}]},
        "spec.strategies: a target with 70 digits; expected at most 64 characters",
    ),
    "pods of kube-system": (
        {"namespace": "kube-system", "dontschedule": [HOT]},
        "metadata.namespace: 'kube-system'; expected another namespace: only TASPolicies apply to its pods",
    ),
    "no rules": ({}, "spec.strategies: no value; expected dontschedule or"),
}


@pytest.mark.parametrize(("strategies", "problem"), REFUSED.values(), ids=REFUSED)
def test_a_policy_that_cannot_be_expressed_is_refused(strategies: Any, problem: str) -> None:
    made = convert(**strategies)
    assert made.policies == ()
    assert any(problem in str(text) for text in made.problems), made.problems


def test_a_hundred_alternatives_are_converted() -> None:
    assert len(specs(dontschedule=[HOT] * 100)["PlacementPolicy"]["avoid"]) == 100


@given(st.integers(-(10**120), 10**120).map(lambda value: value * 10**9) | st.integers(-(10**40), 10**40))
def test_targets_keep_their_value(nano: int) -> None:
    try:
        text = taspolicy_conversion.format_target(nano)
    except ValueError:
        assert len(str(abs(nano)).rstrip("0")) > 55
        return
    assert quantity.parse(str(text)) == nano


@given(st.floats(1e-9, 366 * 86400.0))
def test_ages_keep_their_value_to_the_nanosecond(seconds: float) -> None:
    assert abs(clock.parse_duration(taspolicy_conversion.format_age(seconds)) - seconds) < 1e-6


TEXTS = st.text(max_size=12) | st.sampled_from(
    ["y", "No", "1e3", "0x1", "~", "true", "a: b", "- a", "#", ".inf"]
)


@given(
    st.recursive(
        TEXTS | st.integers(-(2**63), 2**63 - 1),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    ).map(lambda value: {"value": value})
)
def test_yaml_of_any_document_is_read_back(document: Any) -> None:
    text = policy_writer.format_policy(document, ["a comment\n- with: lines"])
    assert yaml.load(text, yaml.CSafeLoader) == document
    [(_, data)] = object_files.split_documents(text.encode(), "test")
    [(_, again)] = object_files.split_documents(policy_writer.format_policy(document).encode(), "test")
    assert data == again


TAS_POLICY = """\
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: cool, namespace: web}
spec:
  strategies:
    dontschedule:
      rules:
      - {metricname: cpu_temp, operator: GreaterThan, target: 80, when_missing: reject}
    scheduleonmetric:
      rules:
      - {metricname: package_power, operator: LessThan}
    deschedule:
      rules:
      - {metricname: cpu_temp, operator: GreaterThan, target: 95}
"""
CONVERTED = """\
# Replaces a part of TASPolicy web/cool.
# Selects the pods by their label telemetry-policy; any other labels can replace it.
# Pods of a DaemonSet are not selected.
apiVersion: nodewise.io/v1alpha1
kind: PlacementPolicy
metadata:
  name: cool
  namespace: web
spec:
  podSelector:
    matchLabels:
      telemetry-policy: cool
  avoid:
  - metric: cpu_temp
    above: 80
    whenMissing: Reject
  prefer:
  - metric: package_power
    order: Ascending
---
# Replaces a part of TASPolicy web/cool.
# Needs no trusted namespace. The TASPolicy does: without nodewise.io/trusted=true on namespace web
# its node labels have no effect, and its rules with a query reject every node.
apiVersion: nodewise.io/v1alpha1
kind: ClusterPlacementPolicy
metadata:
  name: web.cool
spec:
  nodeLabels:
  - metric: cpu_temp
    above: 95
    labels:
      cool: violating
"""


def test_policy_is_converted_with_comments_and_the_same_pods() -> None:
    [(_, data)] = object_files.split_documents(TAS_POLICY.encode(), "test")
    made = taspolicy_conversion.convert(msgspec.json.decode(data, type=PolicyObject), "pass")
    assert "---\n".join(policy_writer.format_policy(*converted) for converted in made.policies) == CONVERTED


def test_each_label_that_is_dropped_is_named_once() -> None:
    many = [f"n{number}=1" for number in range(17)]
    made = convert(
        labeling=[
            rule("a", target=1, labels=["a=1", "a=2", "zone", 5]),
            rule("a", "Above", 1, labels=["a=1", "c=1"]),
            rule("b", target=1, labels=many[:15]),
            rule("b", target=2, labels=many[15:]),
        ]
    )
    named = {problem.field.removeprefix("spec.strategies."): problem.found for problem in made.left_out}
    place = "labeling.rules[{}].labels[{}]"
    assert named == {
        "labeling.rules[1].operator": "'Above'",
        "spec.strategies": "19 different node labels",
        place.format(0, 1): "'a=2'",
        place.format(0, 2): "'zone'",
        place.format(0, 3): "5",
        place.format(1, 0): "'a=1'",
        place.format(1, 1): "'c=1'",
        # the label of the unusable rule is one of the 16 that a policy may have
        place.format(2, 14): "'n14=1'",
        place.format(3, 0): "'n15=1'",
        place.format(3, 1): "'n16=1'",
    }
    [converted] = made.policies
    text = "\n".join(converted.comments)
    assert all(text.count(problem.field) == 1 or "labels[" not in problem.field for problem in made.left_out)
    whole = convert(labeling=[rule("a", target=1, labels=["a=1", "b="]), rule("b", target=1, labels=["a=1"])])
    assert whole.left_out == ()


def test_a_comment_names_the_labels_of_the_object() -> None:
    made = taspolicy_conversion.convert(policy("pol", "web", dontschedule=[HOT]), "pass", ["app", "note"])
    assert made.policies[0].comments[1] == (
        "Labels and annotations of the TASPolicy itself are left out: app, note."
    )


def test_a_policy_that_loses_a_label_has_the_exit_code_of_lint(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    text = """\
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {name: cards, namespace: web, annotations: {note: x, kubectl.kubernetes.io/last-applied-configuration: "{}"}}
spec:
  strategies:
    labeling:
      rules:
      - {metricname: card, operator: GreaterThan, target: 1, labels: ["card=1", LABEL]}
"""
    for label, code in (("zone2", 3), ("card=2", 3), ("zone=2", 0)):
        file.write_text(text.replace("LABEL", label))
        convert, lint = (
            CliRunner().invoke(cli_policy.command, [name, str(file)]) for name in ("convert", "lint")
        )
        assert (convert.exit_code, lint.exit_code) == (code, code)
        assert "left out: note.\n" in convert.stdout
        place = f"{file}:8: web/cards: spec.strategies.labeling.rules[0].labels[1]: found '{label}', expected"
        assert convert.stderr.startswith(f"nodewise: not converted: {place}") == (code == 3)


@pytest.mark.parametrize("metadata", ["labels: 5", "annotations: [note]", "labels: null"])
def test_labels_of_another_type_are_not_named(tmp_path: Path, metadata: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(f"""\
apiVersion: telemetry.intel.com/v1alpha1
kind: TASPolicy
metadata: {{name: cards, namespace: web, {metadata}}}
spec: {{strategies: {{dontschedule: {{rules: [{{metricname: card, operator: GreaterThan, target: 1}}]}}}}}}
""")
    result = CliRunner().invoke(cli_policy.command, ["convert", str(file)])
    assert (result.exit_code, "left out" in result.stdout) == (0, False)
