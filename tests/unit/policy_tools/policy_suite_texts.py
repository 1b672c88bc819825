"""A small suite as text, and its runs."""

from pathlib import Path

from nodewise.policy_tools import policy_suite_parser
from nodewise.policy_tools.policy_suite import Suite
from nodewise.policy_tools.policy_suite_run import Mismatch, SuiteRunner
from nodewise.policy_tools.policy_timeline import TimelineSettings

POLICY = """
policies:
- apiVersion: nodewise.io/v1alpha1
  kind: PlacementPolicy
  metadata: {name: cool, namespace: web}
  spec:
    podSelector: {}
    avoid:
    - {metric: temp, above: 80}
    prefer:
    - {metric: power, order: Ascending}
- apiVersion: nodewise.io/v1alpha1
  kind: ClusterPlacementPolicy
  metadata: {name: drain}
  spec:
    nodeLabels:
    - {metric: temp, above: 95, labels: {heat.nodewise.io/drain: "true"}}
"""
TEST = """
tests:
- name: heat
  nodes: [a, b, c]
  pods: [{name: web-1, namespace: web}]
  input_series:
  - {series: 'temp{node="a"}', values: 80+10x2 _x5}
  - {series: 'temp{node="b"}', values: 70x20}
  - {series: 'temp{node="c"}', values: 70x20}
  - {series: 'power{node="b"}', values: 200x20}
  - {series: 'power{node="c"}', values: 100x20}
  expect:
"""


def read(folder: Path, expect: str, policy: str = POLICY, test: str = TEST) -> Suite:
    """The suite with a list of expectations."""
    path = folder / "suite.yaml"
    path.write_text(policy + test + expect)
    return policy_suite_parser.read_suite(str(path))


def run(folder: Path, expect: str, policy: str = POLICY, test: str = TEST) -> list[Mismatch]:
    """The mismatches of its test."""
    suite = read(folder, expect, policy, test)
    runner = SuiteRunner(suite, TimelineSettings())
    return [mismatch for one_test in suite.tests for mismatch in runner.run(one_test, runner.objects())]
