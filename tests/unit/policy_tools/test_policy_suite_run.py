"""Tests of suites pass where the agent does what they expect, and say what differs where it does not."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodewise.base.errors import BadInput
from nodewise.policies import placement_policy_parser
from nodewise.policies.policy_objects import PolicyObject
from nodewise.policy_tools import policy_suite_adequacy, policy_suite_parser
from nodewise.policy_tools.policy_suite_run import SuiteRunner
from nodewise.policy_tools.policy_timeline import TimelineSettings
from tests.unit.policy_tools.policy_suite_texts import POLICY, read, run

_WEB = "pod: web/web-1"


@pytest.mark.parametrize(
    "expect",
    [
        f"  - {{eval_time: 0, {_WEB}, rejected: {{}}, ranks: {{c: 1, b: 2, a: 3}}}}",
        f"  - {{eval_time: 1m, {_WEB}, rejected: {{a: temp above 80}}, ranks: {{c: 1, b: 2}}}}",
        f"  - {{eval_time: 90s, {_WEB}, rejected: [a]}}",
        f"  - {{eval_time: 3m, {_WEB}, rejected: {{a: ''}}}}",
        f"  - {{eval_time: 4m30s, {_WEB}, rejected: {{a: ''}}}}",
        f"  - {{eval_time: 4m31s, {_WEB}, rejected: {{}}}}",
        "  - {eval_time: 1m, labels: {}}",
        "  - {eval_time: 2m, labels: {a: {heat.nodewise.io/drain: 'true'}}}",
        # a label stays while its metric is missing
        "  - {eval_time: 7m, labels: {a: {heat.nodewise.io/drain: 'true'}}, suspended: []}",
    ],
)
def test_expectations_that_are_met(tmp_path: Path, expect: str) -> None:
    assert run(tmp_path, expect) == []


def test_a_mismatch_shows_the_differences(tmp_path: Path) -> None:
    [rejected, ranks] = run(
        tmp_path,
        f"  - {{eval_time: 1m, {_WEB}, rejected: {{a: temp above 81, b: ''}}, ranks: {{c: 2, b: 1}}}}",
    )
    assert rejected.about == "1m, pod web/web-1, rejected"
    expected = ("- a: temp above 81", "+ a: placement policy web/cool: temp above 80", "- b: rejected")
    assert rejected.lines == expected
    assert rejected.line == 30
    assert ranks.lines == ("- b: 1", "+ b: 2", "- c: 2", "+ c: 1")


def test_a_rule_whose_metric_fails_is_suspended(tmp_path: Path) -> None:
    test = """
tests:
- name: the exporter fails
  nodes: [a, b]
  pods: [{name: web-1, namespace: web}]
  input_series:
  - {series: 'temp{node="a"}', values: 90 90 _x9}
  - {series: 'temp{node="b"}', values: 70 70 _x9}
  expect:
  - {eval_time: 2m, suspended: [], pod: web/web-1, rejected: [a]}
  - {eval_time: 3m, suspended: [], pod: web/web-1, rejected: [a]}
  - {eval_time: 4m, suspended: [web/cool, drain], pod: web/web-1, rejected: [a]}
"""
    assert run(tmp_path, "", test=test) == []
    [mismatch] = run(tmp_path, "", test=test.replace("[web/cool, drain]", "[drain]"))
    assert mismatch.lines == ("+ web/cool: suspended",)


def test_a_node_is_rejected_while_all_of_its_differing_values_meet_the_rule(tmp_path: Path) -> None:
    test = """
tests:
- name: two exporters
  nodes: [a, b]
  pods: [{name: web-1, namespace: web}]
  input_series:
  - {series: 'temp{node="a", job="ipmi"}', values: 70 85 85 82x9}
  - {series: 'temp{node="a", job="redfish"}', values: 91 91 70 93x9}
  - {series: 'temp{node="b"}', values: 70x9}
  expect:
  - {eval_time: 0, pod: web/web-1, rejected: []}
  - {eval_time: 1m, pod: web/web-1, rejected: {a: temp above 80}}
  - {eval_time: 2m, pod: web/web-1, rejected: []}
  - {eval_time: 3m, pod: web/web-1, rejected: [a]}
"""
    assert run(tmp_path, "", test=test) == []


def test_events_of_pods_and_policies(tmp_path: Path) -> None:
    test = """
tests:
- name: every node is hot
  nodes: [a]
  pods: [{name: web-1, namespace: web}]
  input_series:
  - {series: 'temp{node="a"}', values: 70 90x9}
  - {series: 'power{node="a"}', values: 70x9}
  expect:
  - {eval_time: 0, events: []}
  - eval_time: 2m
    events:
    - {pod: web/web-1, reason: NoNodePasses, message: none of 1 candidates passes}
    - {policy: web/cool, reason: NoNodeLeft}
"""
    assert run(tmp_path, "", test=test) == []
    [mismatch] = run(tmp_path, "", test=test.replace("NoNodeLeft", "AllWell"))
    assert mismatch.lines[0] == "- policy web/cool: AllWell"
    assert mismatch.lines[1].startswith(
        "+ policy web/cool: NoNodeLeft: no node is left for the selected pods"
    )


def test_the_result_of_a_query_and_several_series_of_a_node(tmp_path: Path) -> None:
    policy = """
policies:
- apiVersion: nodewise.io/v1alpha1
  kind: ClusterPlacementPolicy
  metadata: {name: errors}
  spec:
    podSelector: {}
    namespaceSelector: {}
    avoid:
    - {query: 'rate(errors[5m]) > 0', above: 0, emptyMeans: Healthy}
    - {metric: temp, aggregate: max, atLeast: 80}
"""
    test = """
tests:
- name: errors and the hottest sensor
  nodes: [a, b, c]
  pods: [{name: web-1}]
  input_series:
  - {query: 'rate(errors[5m]) > 0', series: '{node="a"}', values: _x2 1 _x9}
  - {series: 'temp{node="a", sensor="0"}', values: 50x9}
  - {series: 'temp{node="b", sensor="0"}', values: 50x9}
  - {series: 'temp{node="b", sensor="1"}', values: 70+5x2 stale}
  - {series: 'temp{node="c", sensor="1"}', values: 50x9}
  expect:
  - {eval_time: 1m, pod: default/web-1, rejected: {}}
  - {eval_time: 2m, pod: default/web-1, rejected: {a: query above 0, b: max(temp) atLeast 80}}
  # an ended series does not count beside one that has not ended
  - {eval_time: 3m, pod: default/web-1, rejected: {}}
"""
    assert run(tmp_path, "", policy=policy, test=test) == []


def test_nan_after_a_value_is_a_missed_scrape(tmp_path: Path) -> None:
    test = """
tests:
- name: the exporter fails
  nodes: [a, b]
  pods: [{name: web-1, namespace: web}]
  input_series:
  - {series: 'temp{node="a"}', values: 90 90 NaN NaN NaN}
  - {series: 'temp{node="b"}', values: 70x9}
  - {series: 'power{node="a"}', values: 70x9}
  expect:
  - {eval_time: 2m, pod: web/web-1, rejected: [a]}
  - {eval_time: 4m, pod: web/web-1, rejected: []}
"""
    assert run(tmp_path, "", test=test) == []


def test_an_expectation_at_a_multiple_of_an_interval_with_a_fraction(tmp_path: Path) -> None:
    expect = f"  - {{eval_time: 3600ms, {_WEB}, rejected: [a]}}\n"
    assert run(tmp_path, expect, policy=f"{POLICY}evaluation_interval: 1200ms\n") == []


_AVOID = {"avoid": [{"metric": "temp", "above": 80}]}
_PREFER = {"prefer": [{"metric": "temp", "order": "Ascending"}]}
_LABEL = {"nodeLabels": [{"metric": "temp", "above": 95, "labels": {"heat.nodewise.io/drain": "true"}}]}


@pytest.mark.parametrize(
    "spec",
    [
        {**_AVOID, **_PREFER, "guard": {"maxRejectedShare": "0.5"}, "enforcement": "Preferred"},
        {**_AVOID, **_LABEL, "mode": "Canary", "canary": {"percent": 5}},
        {**_PREFER, **_LABEL, "mode": "Shadow"},
        {**_AVOID, **_PREFER, "enforcement": None},
        {"avoid": [{"metric": "temp", "above": 80, "release": 75}], **_PREFER},
        {"avoid": [{"metric": "temp", "atMost": "0.5", "release": 1}], **_PREFER},
    ],
)
def test_mutants_are_valid_policies(spec: dict[str, Any]) -> None:
    """An invalid policy rejects every node, so almost any test would detect it."""
    selectors = {"podSelector": {}, "namespaceSelector": {}}
    mutants = list(policy_suite_adequacy.mutants("ClusterPlacementPolicy", {**selectors, **spec}))
    assert any(mutant.change == "removed" for mutant in mutants)
    for mutant in mutants:
        policy = PolicyObject(spec=msgspec.Raw(msgspec.json.encode(mutant.spec)))
        parsed = placement_policy_parser.parse_policy(policy, "ClusterPlacementPolicy")
        assert parsed.problems == (), mutant


def detected_mutants(folder: Path, policy: str, test: str) -> dict[tuple[str, str], bool]:
    """Whether the test detects each mutant of the only policy, by place and change."""
    suite = read(folder, "", policy, test)
    runner = SuiteRunner(suite, TimelineSettings())
    [(key, item)] = suite.policies().items()
    return {
        (mutant.place, mutant.change): any(
            runner.run(suite.tests[0], runner.objects({key: mutant.spec}), with_texts=False)
        )
        for mutant in policy_suite_adequacy.mutants(key.kind, item.spec())
    }


def test_rules_with_hold_times_and_their_mutants(tmp_path: Path) -> None:
    policy = """
policies:
- apiVersion: nodewise.io/v1alpha1
  kind: PlacementPolicy
  metadata: {name: cool, namespace: web}
  spec:
    podSelector: {}
    avoid:
    - {metric: temp, above: 80, release: 70, for: 2m}
    - {metric: load, above: 4, keepFor: 3m}
"""
    test = """
tests:
- name: verdicts are delayed
  nodes: [a]
  pods: [{name: web-1, namespace: web}]
  input_series:
  - {series: 'temp{node="a"}', values: 90x3 75x2 60x9}
  - {series: 'load{node="a"}', values: 0x9 5 0x9}
  expect:
  - {eval_time: 1m, pod: web/web-1, rejected: {}}
  - {eval_time: 2m, pod: web/web-1, rejected: [a]}
  - {eval_time: 5m, pod: web/web-1, rejected: [a]}
  - {eval_time: 8m, pod: web/web-1, rejected: {}}
  - {eval_time: 11m, pod: web/web-1, rejected: [a]}
  - {eval_time: 15m, pod: web/web-1, rejected: {}}
"""
    assert run(tmp_path, "", policy=policy, test=test) == []
    detected = detected_mutants(tmp_path, policy, test)
    actual = {place: detected[place, "removed"] for place, _ in detected if place.endswith(("or", "release"))}
    assert actual == {"spec.avoid[0].for": True, "spec.avoid[0].release": True, "spec.avoid[1].keepFor": True}


def test_a_rule_with_between_and_its_mutants(tmp_path: Path) -> None:
    policy = """
policies:
- apiVersion: nodewise.io/v1alpha1
  kind: PlacementPolicy
  metadata: {name: warm, namespace: web}
  spec:
    podSelector: {}
    avoid:
    - {metric: temp, between: [60, "80"], whenMissing: Reject}
"""
    test = """
tests:
- name: both ends are included
  nodes: [a, b, c, d, e]
  pods: [{name: web-1, namespace: web}]
  input_series:
  - {series: 'temp{node="a"}', values: 59x9}
  - {series: 'temp{node="b"}', values: 60x9}
  - {series: 'temp{node="c"}', values: 80x9}
  - {series: 'temp{node="d"}', values: 81x9}
  expect:
  - eval_time: 1m
    pod: web/web-1
    rejected:
      b: temp atLeast 60 and temp atMost 80
      c: temp atLeast 60 and temp atMost 80
      e: ''
"""
    assert run(tmp_path, "", policy=policy, test=test) == []
    detected = detected_mutants(tmp_path, policy, test)
    assert detected["spec.avoid[0].all[0].atLeast", "atLeast → above"]
    assert detected["spec.avoid[0].all[1].atMost", "atMost → below"]


_DEVICES = """
policies:
- apiVersion: nodewise.io/v1alpha1
  kind: ClusterPlacementPolicy
  metadata: {name: hot}
  spec:
    mode: Shadow
    deviceTaints:
    - {metric: temp, above: 90, release: 80, for: 2m, driver: gpu.example.com, deviceLabel: UUID, deviceAttribute: uuid}
- apiVersion: resource.k8s.io/v1
  kind: ResourceSlice
  metadata: {name: n1}
  spec:
    driver: gpu.example.com
    nodeName: n1
    pool: {name: n1, generation: 1, resourceSliceCount: 1}
    devices:
    - {name: gpu-0, attributes: {uuid: {string: GPU-1}}}
    - {name: gpu-1, attributes: {uuid: {string: GPU-2}}}
tests:
- name: hot GPU is tainted
  nodes: [n1]
  input_series:
  - {series: 'temp{node="n1",UUID="GPU-1"}', values: '40 95x4 85 70'}
  - {series: 'temp{node="n1",UUID="GPU-2"}', values: '40x8'}
  expect:
"""


@pytest.mark.parametrize(
    ("time", "expected", "differences"),
    [
        ("2m", "{}", ()),
        ("3m", "{gpu.example.com/n1/gpu-0: NoSchedule}", ()),
        ("6m", "{gpu.example.com/n1/gpu-0: NoSchedule}", ()),
        ("7m", "{}", ()),
        ("7m", "{gpu.example.com/n1/gpu-1: NoExecute}", ("- gpu.example.com/n1/gpu-1: NoExecute",)),
    ],
)
def test_devices_are_tainted_as_expected(
    tmp_path: Path, time: str, expected: str, differences: tuple[str, ...]
) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(f"{_DEVICES}  - {{eval_time: {time}, tainted: {expected}}}\n")
    suite = policy_suite_parser.read_suite(str(file))
    runner = SuiteRunner(suite, TimelineSettings())
    mismatches = list(runner.run(suite.tests[0], runner.objects()))
    assert [line for mismatch in mismatches for line in mismatch.lines] == list(differences)


def test_device_of_no_slice_is_an_error_with_the_closest_device(tmp_path: Path) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(f"{_DEVICES}  - {{eval_time: 1m, tainted: {{gpu.example.com/n1/gpu0: NoSchedule}}}}\n")
    with pytest.raises(BadInput, match=r'DRIVER/POOL/DEVICE; did you mean "gpu.example.com/n1/gpu-0"'):
        policy_suite_parser.read_suite(str(file))
