"""What suites of tests for device rules detect: mutants and branches of `deviceTaints`."""

from pathlib import Path

from click.testing import CliRunner

from nodewise.cli.policy_test import command
from nodewise.policies import policy_selection
from nodewise.policies.placement_policy import Canary, Policy, PolicyKey

SUITE = """
policies:
- apiVersion: nodewise.io/v1alpha1
  kind: ClusterPlacementPolicy
  metadata: {name: gpus}
  spec:
    deviceTaints:
    - {metric: temp, above: 90, release: 80, for: 2m, maxTaintedShare: "0.5",
       driver: gpu.example.com, deviceLabel: UUID, deviceAttribute: uuid}
    - {query: xid, equals: 79, emptyMeans: Healthy, keepFor: 5m, effect: NoExecute, maxTaintedShare: "0.5",
       driver: gpu.example.com, deviceLabel: UUID, deviceAttribute: uuid}
    - {metric: clock, between: [100, 200], driver: gpu.example.com, deviceLabel: UUID, deviceAttribute: uuid}
- apiVersion: resource.k8s.io/v1
  kind: ResourceSlice
  metadata: {name: n1}
  spec:
    driver: gpu.example.com
    nodeName: n1
    pool: {name: n1, generation: 1, resourceSliceCount: 1}
    devices:
    - {name: gpu-0, attributes: {uuid: {string: GPU-0}}}
    - {name: gpu-1, attributes: {uuid: {string: GPU-1}}}
    - {name: gpu-2, attributes: {uuid: {string: GPU-2}}}
    - {name: gpu-3, attributes: {uuid: {string: GPU-3}}}
tests:
"""
HEAT = """
- name: heat
  nodes: [n1]
  input_series:
  - {series: 'temp{node="n1",UUID="GPU-0"}', values: '90 91x6 81 80'}
  - {series: 'temp{node="n1",UUID="GPU-1"}', values: '40 91x7 81x1 80'}
  - {series: 'temp{node="n1",UUID="GPU-2"}', values: '90.5x8 88.5 80'}
  - {query: xid, series: '{node="n1",UUID="GPU-0"}', values: '0x20'}
  expect:
  - {eval_time: 1m, tainted: {}}
  - {eval_time: 2m, tainted: {gpu.example.com/n1/gpu-2: NoSchedule}}
  - {eval_time: 3m, tainted: {gpu.example.com/n1/gpu-2: NoSchedule, gpu.example.com/n1/gpu-0: NoSchedule}}
  - {eval_time: 8m, tainted: {gpu.example.com/n1/gpu-2: NoSchedule, gpu.example.com/n1/gpu-0: NoSchedule}}
  - {eval_time: 9m, tainted: {gpu.example.com/n1/gpu-2: NoSchedule, gpu.example.com/n1/gpu-1: NoSchedule}}
  - {eval_time: 10m, tainted: {gpu.example.com/n1/gpu-1: NoSchedule}}
  - {eval_time: 11m, tainted: {}}
"""
XID = """
- name: error
  nodes: [n1]
  input_series:
  - {query: xid, series: '{node="n1",UUID="GPU-0"}', values: '78 79 79 _x20'}
  - {query: xid, series: '{node="n1",UUID="GPU-1"}', values: '80 80x3 0x20'}
  - {query: xid, series: '{node="n1",UUID="GPU-2"}', values: '0 0 79x2 0x20'}
  - {query: xid, series: '{node="n1",UUID="GPU-3"}', values: '0 0x2 79 0x20'}
  expect:
  - {eval_time: 0m, tainted: {}}
  - {eval_time: 1m, tainted: {gpu.example.com/n1/gpu-0: NoExecute}}
  - {eval_time: 4m, tainted: {gpu.example.com/n1/gpu-0: NoExecute, gpu.example.com/n1/gpu-2: NoExecute}}
  - {eval_time: 20m, tainted: {}}
"""
CLOCK = """
- name: clock
  nodes: [n1]
  input_series:
  - {series: 'clock{node="n1",UUID="GPU-0"}', values: '99 100 200 201'}
  expect:
  - {eval_time: 0m, tainted: {}}
  - {eval_time: 1m, tainted: {gpu.example.com/n1/gpu-0: NoSchedule}}
  - {eval_time: 2m, tainted: {gpu.example.com/n1/gpu-0: NoSchedule}}
  - {eval_time: 3m, tainted: {}}
"""


def run(folder: Path, text: str, *options: str) -> list[str]:
    file = folder / "suite.yaml"
    file.write_text(text)
    result = CliRunner().invoke(command, [str(file), *options])
    assert result.exit_code == 0, result.output
    return [line.rpartition("gpus: ")[2] for line in result.stdout.splitlines()]


def test_tests_of_each_branch_detect_all_mutants(tmp_path: Path) -> None:
    lines = run(tmp_path, SUITE + HEAT + XID + CLOCK, "--coverage", "--mutate")
    expected = ["coverage: tests reach 13 of 13 branches of rules", "mutants: tests detect 27 of 27 (100 %)"]
    assert lines[-2:] == expected


def test_branches_and_mutants_beyond_one_test_are_listed(tmp_path: Path) -> None:
    short = """
- name: short
  nodes: [n1]
  input_series:
  - {series: 'temp{node="n1",UUID="GPU-0"}', values: '95x5'}
  expect:
  - {eval_time: 5m, tainted: {gpu.example.com/n1/gpu-0: NoSchedule}}
"""
    lines = run(tmp_path, SUITE + short, "--coverage", "--mutate")
    for text in (
        "spec.deviceTaints[0]: every device meets it",
        "spec.deviceTaints[0]: no device meets it for less than for",
        "spec.deviceTaints[0]: no device is still tainted that no longer meets it",
        "spec.deviceTaints[0]: no device is beyond maxTaintedShare",
        "spec.deviceTaints[1]: no device meets it",
        "spec.deviceTaints[0].above: 90 → 81: no test detects it",
        "spec.deviceTaints[0].release: removed: no test detects it",
        "spec.deviceTaints[0].for: removed: no test detects it",
        "spec.deviceTaints[0].maxTaintedShare: 0.5 → 0.99999999: no test detects it",
        "spec.deviceTaints[1].keepFor: removed: no test detects it",
        "spec.deviceTaints[2].between: 100 → 90: no test detects it",
        "spec.deviceTaints[2].between: between → atLeast: no test detects it",
        "spec.deviceTaints[2]: removed: no test detects it",
    ):
        assert text in lines, "\n".join(lines)
    for text in (
        "spec.deviceTaints[0].above: 90 → 99",
        "spec.deviceTaints[0].effect",
        "spec.deviceTaints[0]: removed",
    ):
        assert not any(line.startswith(text) for line in lines)


def test_large_limit_of_few_devices_has_a_mutant_that_tests_detect(tmp_path: Path) -> None:
    hot = "\n".join(
        f"  - {{series: 'temp{{node=\"n1\",UUID=\"GPU-{n}\"}}', values: '95x5'}}" for n in range(4)
    )
    tainted = ", ".join(f"gpu.example.com/n1/gpu-{n}: NoSchedule" for n in range(3))
    expectation = f"{{eval_time: 5m, tainted: {{{tainted}}}}}"
    test = f"- name: limit\n  nodes: [n1]\n  input_series:\n{hot}\n  expect: [{expectation}]"
    lines = run(
        tmp_path, SUITE.replace('maxTaintedShare: "0.5"', 'maxTaintedShare: "0.9"') + test, "--mutate"
    )
    assert not any("[0].maxTaintedShare" in line for line in lines)


CANARY = """
- name: canary
  nodes: [n1, n2]
  input_series:
  - {series: 'temp{node="n1",UUID="GPU-0"}', values: '95x5'}
  - {series: 'temp{node="n2",UUID="GPU-9"}', values: '95x5'}
  expect:
  - {eval_time: 5m, tainted: {gpu.example.com/NODE/GPU: NoSchedule}}
"""


def canary_nodes(percent: int) -> list[str]:
    key = PolicyKey("ClusterPlacementPolicy", "", "gpus")
    policy = Policy(key, mode="Canary", canary=Canary(percent=percent))
    return [node for node in ("n1", "n2") if policy_selection.taints_devices_of(policy, node)]


def test_canary_has_branches_of_devices_inside_and_outside(tmp_path: Path) -> None:
    second = SUITE.split("- apiVersion: resource.k8s.io/v1")[1].replace("n1", "n2").replace("GPU-0", "GPU-9")
    head = SUITE.replace(
        "spec:\n    deviceTaints", "spec:\n    mode: Canary\n    canary: {percent: 50}\n    deviceTaints", 1
    )
    suite = head.replace("tests:\n", "") + "- apiVersion: resource.k8s.io/v1" + second + CANARY
    percent, in_canary = next(
        (percent, nodes[0]) for percent in range(1, 100) if len(nodes := canary_nodes(percent)) == 1
    )
    suite = suite.replace("percent: 50", f"percent: {percent}")
    suite = suite.replace("NODE/GPU", f"{in_canary}/gpu-0")
    lines = run(tmp_path, suite, "--coverage", "--mutate")
    assert not any("spec.canary" in line or "spec.mode" in line for line in lines)
    assert "coverage: tests reach 6 of 13 branches of rules" in lines
