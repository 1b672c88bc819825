"""The placement `fragmentation` in a real process: free GPUs count only on nodes with free CPU.

The typical pods request half a GPU and 4 CPUs. A GPU on a node with less free CPU is of no use to them. A pod
that requests a GPU and little CPU therefore fits best on such a node. A pod that requests no GPU fits worst on a node
where both GPUs and CPU are free.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked_commands
from tests.cluster.api_client import Object, path_of
from tests.cluster.namespace_sandboxes import wait
from tests.conformance.gas import node_and_pod_notation, story_environment
from tests.conformance.gas.story_environment import PATIENCE_S, GasEnvironment

TYPICAL = "pods,cpu,gpu.intel.com/i915,gpu.intel.com/millicores\n10,4,1,500\n"
NODES = ["n1", "n2", "n3"]
NODE = "gn=0; i915=4 mc=1000 cpu=8"
ASKED = "[i915=1 mc=500 cpu=1]"


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    file = tmp_path / "typical.csv"
    file.write_text(TYPICAL)
    return ["--gpu-placement=fragmentation", f"--gpu-typical-pods={file}"]


@pytest.fixture
def environment(tmp_path: Path, flags: list[str]) -> Iterator[GasEnvironment]:
    with story_environment.running_in_memory(tmp_path) as api_server:
        made = GasEnvironment(api_server, tmp_path, flags)
        for name in NODES:
            made.node(name, NODE)
        yield made
        made.close()


def best(environment: GasEnvironment, pod: Object) -> str:
    points = environment.points(environment.extender(), pod, NODES)
    return max(points, key=lambda name: points[name])


def until_best(environment: GasEnvironment, pod: Object, node: str) -> None:
    """Wait until the node has the best score. The process receives pods by a watch, with a delay."""
    wait(f"{node} is best", lambda: best(environment, pod) == node or None, PATIENCE_S)


def test_cards_are_used_up_first_where_plain_pods_have_taken_the_cpu(environment: GasEnvironment) -> None:
    requesting = environment.pod("asked", ASKED)
    for node in reversed(NODES):
        plain = environment.pod(f"plain-{node}", "[cpu=6]", node=node)
        until_best(environment, requesting, node)
        environment.set_phase(plain, "Succeeded")


def test_plain_pods_go_where_they_take_no_cpu_from_free_cards(environment: GasEnvironment) -> None:
    requesting = environment.pod("asked", "[cpu=3]")
    for node in reversed(NODES):
        plain = [environment.pod(f"{node}-{on}", f"[cpu={5 if on == node else 2}]", node=on) for on in NODES]
        until_best(environment, requesting, node)
        for pod in plain:
            environment.set_phase(pod, "Failed")


def test_pods_that_are_bound_by_us_take_their_cpu(environment: GasEnvironment) -> None:
    requesting = environment.pod("asked", ASKED)
    for node in reversed(NODES):
        bound = environment.pod(f"bound-{node}", "[i915=1 mc=1 cpu=6]")
        answer = environment.bind(
            environment.extender(), bound["metadata"]["name"], bound["metadata"]["uid"], node
        )
        assert answer.json()["Error"] == ""
        until_best(environment, requesting, node)
        environment.api.delete(path_of(bound))


def test_one_node_alone_is_the_best(environment: GasEnvironment) -> None:
    points = environment.points(environment.extender(), environment.pod("asked", ASKED), NODES)
    assert sorted(points.values()) == [8, 9, 10]


@pytest.mark.parametrize("node", NODES)
def test_decide_goes_by_the_cpu_of_files(tmp_path: Path, flags: list[str], node: str) -> None:
    requesting, plain = (
        node_and_pod_notation.pod("asked", ASKED, {}),
        node_and_pod_notation.pod("plain", "[cpu=6]", {}),
    )
    plain["spec"]["nodeName"] = node
    listed = [*(node_and_pod_notation.node(name, NODE) for name in NODES), requesting, plain]
    file = tmp_path / "world.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": listed}))
    done = forked_commands.run([forked_commands.NODEWISE, "decide", file, *flags, "-o", "json"], check=True)
    (decision,) = json.loads(done.stdout)["decisions"]
    assert decision["scores"][node] == max(decision["scores"].values()) == 10
