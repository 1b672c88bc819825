"""The decisions about each folder of `examples/` are those in its README: passing nodes, scores and reasons."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests import forked_commands
from tests.conformance.test_command_output_and_exit_codes import NODEWISE, ROOT

EXAMPLES = ROOT / "examples"


class ExpectedDecisions(NamedTuple):
    """The expected decision, which is the same for every pod of a folder."""

    scores: dict[str, int]
    rejected: dict[str, str]


EXPECTED = {
    "health-metric": ExpectedDecisions(
        {"rack1-a": 10, "rack2-a": 10},
        {"rack1-b": "placement policy health-metric-demo/healthy-disks: health_metric above 0"},
    ),
    "power": ExpectedDecisions(
        {"node2": 10, "master1": 9},
        {"node1": "placement policy power-demo/power-sensitive: package_power_avg above 60"},
    ),
    "taspolicy": ExpectedDecisions(
        {"rack1-a": 10},
        {
            "rack1-b": "telemetry policy taspolicy-demo/demo-policy: health_metric Equals 2",
            "rack2-a": "telemetry policy taspolicy-demo/demo-policy: health_metric Equals 1",
        },
    ),
    "labeling": ExpectedDecisions({"node1": 0, "node2": 0}, {}),
    "several-rules": ExpectedDecisions(
        {"calm": 10, "roomy": 9},
        {
            "hot": "placement policy several-rules-demo/web: temperature above 80",
            "full": "placement policy several-rules-demo/web: freeRAM below 200",
            "hot-and-full": "placement policy several-rules-demo/web: temperature above 80",
        },
    ),
    "overload": ExpectedDecisions(
        {"steady": 7, "half": 6, "new": 0},
        {"bursty": "safe: risk of cpu above 30 %", "leaky": "safe: risk of memory above 30 %"},
    ),
}


CARDS = {
    "model-3": "serve: card1",
    "pair": "train: card2 gt0, card3 gt0",
    "staged": "serve: card1; cache: card2; load: card1",
    "near": "serve: card2, card3",
}
"""The GPUs of each pod of `gpu-cards` on the only node where it fits."""


SIZES = {
    "demo/small-1": {"empty": 10, "quarter": 7, "half": 4, "most": 1},
    "demo/large": {"empty": 1, "quarter": 10, "half": 0, "most": 0},
    "demo/small-2": {"empty": 1, "quarter": 4, "half": 7, "most": 10},
}
"""The scores of the nodes of `mixed-sizes` for each pod, in the order of the pods."""


def decide(*arguments: str) -> list[dict[str, Any]]:
    """The decisions of `nodewise decide`. Every pod must fit a node."""
    command = [NODEWISE, "decide", *arguments, "-o", "json"]
    done = forked_commands.run(command, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    decisions: list[dict[str, Any]] = json.loads(done.stdout)["decisions"]
    return decisions


def test_every_example_is_here() -> None:
    expected = {*EXPECTED, "devices", "gpu-cards", "mixed-sizes"}
    assert {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()} == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_is_decided_as_its_readme_says(name: str) -> None:
    for decision in decide(f"examples/{name}"):
        assert set(decision["feasible"]) == EXPECTED[name].scores.keys()
        assert decision["scores"] == EXPECTED[name].scores
        assert {node: why[0]["reason"] for node, why in decision["rejected"].items()} == EXPECTED[
            name
        ].rejected
        assert all(len(why) == 1 for why in decision["rejected"].values())
        assert decision["error"] is None


SAME_REQUESTS: dict[str, dict[str, Any]] = {
    "pod-level": {
        "containers": [{"name": "web"}],
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
    },
    "pod-level limits": {
        "containers": [{"name": "web"}],
        "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}},
    },
    "overhead": {"containers": [{"name": "web"}], "overhead": {"cpu": "500m", "memory": "1Gi"}},
    "sidecar": {
        "containers": [{"name": "web", "resources": {"requests": {"cpu": "200m", "memory": "1Gi"}}}],
        "initContainers": [
            {"name": "mesh", "restartPolicy": "Always", "resources": {"limits": {"cpu": "300m"}}}
        ],
    },
}


@pytest.mark.parametrize("name", SAME_REQUESTS)
def test_a_pod_that_requests_the_same_otherwise_is_decided_alike(name: str, tmp_path: Path) -> None:
    """`overload` rejects two nodes of five for a pod with these requests, and none for a pod without requests."""
    (tmp_path / "nodes.yaml").write_text((EXAMPLES / "overload" / "nodes.yaml").read_text())
    metadata = {"name": "web", "namespace": "demo"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": SAME_REQUESTS[name]}
    (tmp_path / "pods.yaml").write_text(yaml.safe_dump(pod))
    (decision,) = decide(str(tmp_path))
    assert decision["scores"] == EXPECTED["overload"].scores
    assert decision["rejected"].keys() == EXPECTED["overload"].rejected.keys()


def test_the_example_of_cards_is_decided_as_its_readme_says() -> None:
    decisions = decide("examples/gpu-cards")
    readme = (EXAMPLES / "gpu-cards" / "README.md").read_text()
    assert {decision["pod"].partition("/")[2] for decision in decisions} == CARDS.keys()
    for decision in decisions:
        expected = (["gpu"], ["four-linked"], None)
        assert (decision["agents"], decision["feasible"], decision["error"]) == expected
        cards = CARDS[decision["pod"].partition("/")[2]]
        assert decision["details"]["four-linked"] == {"gpu": cards}
        assert cards in readme
        assert "no-cards" not in decision["details"]
    short = "card0 has 3G gpu.intel.com/memory.max left, 5G wanted: 2G too little"
    assert decisions[0]["details"]["two-cards"] == {"gpu": short}
    assert short in readme


DEVICES = {
    "devices-demo/small": (
        {
            "full-pairs": "devices container-0-request-0: gpu-0",
            "one-left": "devices container-0-request-0: gpu-3",
            "no-gpus": "",
        },
        {},
        "one-left",
    ),
    "devices-demo/pair": (
        {"full-pairs": "devices gpus: gpu-0, gpu-1"},
        {
            "one-left": "the claims do not fit the free devices",
            "no-gpus": "the node has no devices for the claims",
        },
        "full-pairs",
    ),
}
"""By pod of `devices`: the devices by node, why other nodes do not fit, and the best node."""


def test_the_example_of_devices_is_decided_as_its_readme_says() -> None:
    decisions = decide("examples/devices", "--gpu-placement", "pack")
    readme = (EXAMPLES / "devices" / "README.md").read_text()
    assert {decision["pod"] for decision in decisions} == DEVICES.keys()
    for decision in decisions:
        devices, misfits, best = DEVICES[decision["pod"]]
        assert (decision["agents"], decision["error"]) == (["gpu"], None)
        details = {node: decision["details"].get(node, {}).get("gpu", "") for node in decision["feasible"]}
        assert (details, decision.get("misfits", {})) == (devices, misfits)
        assert max(decision["scores"], key=decision["scores"].__getitem__) == best
        for node, text in {**devices, **misfits}.items():
            score = decision["scores"][node]
            assert f"{decision['pod']:<20}{node:<12}{score:<7}" in readme
            assert text in readme


def test_the_readme_of_devices_shows_their_list() -> None:
    done = forked_commands.run([NODEWISE, "devices", "--objects-from", "examples/devices"], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    readme = (EXAMPLES / "devices" / "README.md").read_text()
    assert f"$ nodewise devices --objects-from examples/devices\n{done.stdout}```\n" in readme


def test_the_example_of_mixed_sizes_is_decided_as_its_readme_says() -> None:
    decisions = decide("examples/mixed-sizes")
    readme = (EXAMPLES / "mixed-sizes" / "README.md").read_text()
    assert {decision["pod"]: decision["scores"] for decision in decisions} == SIZES
    for decision in decisions:
        best = max(SIZES[decision["pod"]], key=SIZES[decision["pod"]].__getitem__)
        assert (decision["agents"], decision["error"]) == (["pigeon"], None)
        assert f"  {best} " in readme
        assert f"A_BINPACK {decision['numbers']['pigeon'][best]['objective']:.6f}" in readme


def test_the_example_of_overload_has_the_loads_that_its_readme_tells() -> None:
    (decided,) = decide("examples/overload")
    readme = (EXAMPLES / "overload" / "README.md").read_text()
    assert decided["agents"] == ["safe"]
    assert decided["details"]["steady"]["safe"] in readme
    for node, numbers in decided["numbers"]["safe"].items():
        cpu = numbers["cpu"]
        if node != "new":
            mean, deviation, risk = (100 * cpu[name] for name in ("mean_share", "std_share", "risk"))
            assert f"| `{node}` | {mean:.3g} % ± {deviation:.3g} % | {risk:.3g} % |" in readme


def test_running_pods_stay_on_the_cards_that_they_hold() -> None:
    stays_by_pod = {
        decision["pod"]: decision["stays"] for decision in decide("examples/gpu-cards", "--running")
    }
    expected = {"gpu-demo/model-1", "gpu-demo/model-2", "gpu-demo/trainer"}
    assert {pod for pod, stays in stays_by_pod.items() if stays} == expected


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {"overload"}))
def test_the_policy_of_an_example_has_no_problem(name: str) -> None:
    done = forked_commands.run([NODEWISE, "policy", "lint", f"examples/{name}"], cwd=ROOT)
    count = "2 policies" if name in {"several-rules", "health-metric"} else "1 policy"
    assert (done.returncode, done.stdout) == (0, f"{count}, no problem\n")


@pytest.mark.parametrize("folder", ["health-metric", "power"])
def test_a_deployment_makes_the_pods_that_are_decided(folder: str) -> None:
    """The labels that a policy selects and the affinity are the same in both places."""
    deployment = yaml.load((EXAMPLES / folder / "cluster" / "deployment.yaml").read_text(), yaml.CSafeLoader)
    made = deployment["spec"]["template"]
    manifest = yaml.load((EXAMPLES / folder / "pods.yaml").read_text(), yaml.CSafeLoader)
    pod = manifest["items"][0] if manifest["kind"] == "List" else manifest
    assert made["metadata"]["labels"] == pod["metadata"]["labels"]
    assert deployment["metadata"]["namespace"] == pod["metadata"]["namespace"]
    assert made["spec"].get("affinity") == pod["spec"].get("affinity")


def test_the_readme_of_taspolicy_shows_its_conversion() -> None:
    done = forked_commands.run([NODEWISE, "policy", "convert", "examples/taspolicy"], cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    readme = (EXAMPLES / "taspolicy" / "README.md").read_text()
    assert f"$ nodewise policy convert examples/taspolicy\n{done.stdout}```\n" in readme


@pytest.mark.parametrize("readme", sorted(EXAMPLES.rglob("README.md")), ids=lambda path: path.parent.name)
def test_a_readme_names_every_file_beside_it(readme: Path) -> None:
    text = readme.read_text()
    files = {path.name for path in readme.parent.iterdir()} - {"README.md"}
    assert [name for name in sorted(files) if name not in text] == []
