"""`nodewise decide` on nodes as device plugins and labellers of several vendors describe them.

The files of `tests/data/gpu_nodes` have labels of Intel's NFD rules, NVIDIA's GPU feature discovery, HAMi and GKE, as
their tests and documentation show them.
"""

import json
from typing import Any, NamedTuple

from tests import forked_commands
from tests.conformance.test_command_output_and_exit_codes import NODEWISE, ROOT

FOLDER = ROOT / "tests" / "data" / "gpu_nodes"
MISSING = "Not enough GPU-resources for deployment: will not fit: the node has no GPUs: "


class Decided(NamedTuple):
    """The result by pod and node: the GPUs of the pod, or the reason of the rejection."""

    pods: dict[str, dict[str, str]]
    warnings: str


def decide(*files: str, flags: tuple[str, ...] = ()) -> Decided:
    paths = [str(FOLDER / f"{name}.yaml") for name in files]
    done = forked_commands.run(
        [NODEWISE, "decide", *paths, "--agents", "gpu", *flags, "-o", "json"], cwd=ROOT
    )
    assert done.stdout, done.stderr
    decisions = {
        decision["pod"].partition("/")[2]: decision for decision in json.loads(done.stdout)["decisions"]
    }
    return Decided({pod: _results(decision) for pod, decision in decisions.items()}, done.stderr)


def _results(decision: dict[str, Any]) -> dict[str, str]:
    details = decision.get("details", {})
    fits = {node: details.get(node, {}).get("gpu", "") for node in decision["feasible"]}
    return fits | {node: rejections[0]["reason"] for node, rejections in decision["rejected"].items()}


GENERIC = ("--gpu-profile", "generic")


def test_a_node_with_a_sick_gpu_serves_pods_with_the_others() -> None:
    decided = decide("one_gpu_sick", flags=GENERIC)
    seven = "c: card0, card1, card2, card3, card4, card5, card6"
    assert decided.pods == {
        "train": {"dgx-a": "c: card0", "dgx-b": "c: card0"},
        "train7": {"dgx-a": seven, "dgx-b": seven},
    }
    assert "Warning: node dgx-a: 7 nvidia.com/gpu is allocatable, for 7 of 8 GPUs" in decided.warnings
    assert "assumed without: card7" in decided.warnings
    assert "dgx-b" not in decided.warnings


def test_a_node_with_a_sick_gpu_serves_pods_beside_running_ones() -> None:
    assert decide("one_gpu_sick_three_running", flags=GENERIC).pods == {"new": {"dgx-a": "c: card3"}}
    assert decide("one_intel_gpu_sick").pods == {"enc": {"flex-a": "c: card0"}}


def test_nodes_of_intels_plugin_without_gpu_numbers_are_used_or_the_reason_names_the_labels() -> None:
    pods = decide("intel_plugin_0_35").pods
    assert {node: text for node, text in pods["a"].items() if node != "nolabels"} == {
        "nfdonly": "c: card0",
        "both": "c: card0",
        "xeonly": "Not enough GPU-resources for deployment: will not fit: container c: no GPU has 1 gpu.intel.com/i915"
        " left",
    }
    assert (pods["x"]["xeonly"], pods["x"]["both"]) == ("c: card0", "c: card1")
    assert pods["a"]["nolabels"] == (
        f"{MISSING}found gpu.intel.com/i915, but neither label gpu.intel.com/gpu-numbers or gpu.intel.com/device.count"
        " nor annotation nodewise.io/gpu-cards; or use --gpu-profile FILE"
    )


def test_shares_of_time_slicing_are_those_of_physical_gpus() -> None:
    pods = decide("time_slicing_and_mig", flags=GENERIC).pods
    assert pods["p1"] == {"ts-a": "c: card0"}
    assert pods["p3"] == {
        "ts-a": "Not enough GPU-resources for deployment: will not fit: container c: fewer than 3 GPUs may be used"
    }
    assert (pods["mig"], pods["shared"]) == ({"ts-a": ""}, {"ts-a": ""})


def test_nodes_as_gpu_feature_discovery_hami_and_gke_describe_them() -> None:
    decided = decide("nvidia_labels", "one_nvidia_gpu", flags=GENERIC)
    rejected = {
        node: text.removeprefix(MISSING)
        for node, text in decided.pods["one-gpu"].items()
        if text != "c: card0"
    }
    assert rejected == {
        "mig-mixed-all": "found nvidia.com/mig-1g.5gb, expected nvidia.com/gpu; pods have to request"
        " nvidia.com/mig-1g.5gb, or set annotation nodewise.io/gpu-cards",
        "mig-single-invalid": "found no resource of GPUs despite label nvidia.com/gpu.count, expected nvidia.com/gpu;"
        " check the node's device plugin",
        "time-slicing-renamed": "found nvidia.com/gpu.shared, expected nvidia.com/gpu; pods have to request"
        " nvidia.com/gpu.shared, or set annotation nodewise.io/gpu-cards",
        "hami-8x10": "annotation hami.io/node-nvidia-register does not say how many; correct it, or set annotation"
        " nodewise.io/gpu-cards",
    }
    problems = {
        line.split(": ")[2].removeprefix("node ")
        for line in decided.warnings.splitlines()
        if "Warning: node" in line
    }
    expected = {"h100x8-one-unhealthy", "mig-mixed-4-of-8", "two-models-4xT4-2xA100", "hami-8x10"}
    assert problems == expected


def test_a_reason_names_the_profile_of_the_vendor_whose_gpus_a_node_has() -> None:
    pods = decide("one_gpu_sick", "one_intel_gpu_sick").pods
    assert pods["enc"]["dgx-b"] == (
        f"{MISSING}found nvidia.com/gpu, expected gpu.intel.com/xe or gpu.intel.com/i915; use --gpu-profile nvidia"
    )


def test_nodes_of_a_dra_driver_are_left_to_kube_scheduler() -> None:
    expected = {"dra-node": "devices container-0-request-0: gpu-0", "dra-node-gfd": ""}
    assert decide("dra_driver", flags=GENERIC).pods["ext-res"] == expected
