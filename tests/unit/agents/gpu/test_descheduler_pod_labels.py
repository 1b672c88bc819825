"""Pods that get the label for the descheduler."""

from typing import Any

import msgspec
import pytest

from nodewise.agents.gpu import controller
from nodewise.agents.gpu.gpu_pod_fields import AllocatedLabels, AllocatedPod
from nodewise.base import cooperative_scheduling
from tests.unit.agents.gpu.gpu_cluster_state_builders import (
    agent_state,
    cluster_state,
    entry,
    lease,
    node,
    pod,
)

SUBDEVICED = "i915=1 t=1"
HOT = "telemetry.aware.scheduling.hot/gas-"
GROUPS = {"gpu.intel.com/pci-groups": "0.1"}


def marked(numbers: str = "0.1.2", **policy_labels: str) -> Any:
    named = {
        HOT + key.replace("_gt", "#").replace("__", "-").replace("#", "_gt"): text
        for key, text in policy_labels.items()
    }
    return node("i915=9 mc=3000 t=6", numbers, **GROUPS, **named)


def labelled_pod(gpu_pod: AllocatedPod, value: str | None = "gpu") -> AllocatedPod:
    metadata = msgspec.structs.replace(gpu_pod.metadata, labels=AllocatedLabels(value))
    return msgspec.structs.replace(gpu_pod, metadata=metadata)


def label_changes(nodes: dict[str, Any], *pods: AllocatedPod, leases: Any = ()) -> dict[str, bool]:
    changes = cooperative_scheduling.run_without_pauses(
        controller.label_changes(agent_state(cluster_state(nodes, pods, leases)))
    )
    return {change.pod.metadata.name: change.is_wanted for change in changes}


@pytest.mark.parametrize(
    ("mark", "goes"),
    [
        ({"deschedule__pods__card0": "true"}, ["zero"]),
        ({"deschedule__pods__card0": "PCI_GROUP"}, ["zero", "one"]),
        ({"disable__card0": "true"}, []),
        ({"deschedule__pods__card9": "true"}, []),
        ({"deschedule__pods__xcard0": "true"}, []),
    ],
)
def test_pods_of_a_card(mark: dict[str, str], goes: list[str]) -> None:
    pods = [pod("zero", "n1", "card0"), pod("one", "n1", "card1"), pod("two", "n1", "card2")]
    assert label_changes({"n1": marked(**mark)}, *pods) == dict.fromkeys(goes, True)


@pytest.mark.parametrize(
    ("mark", "goes"),
    [
        ({"tile__deschedule__card0_gt1": "true"}, ["one"]),
        ({"tile__disable__card0_gt1": "true"}, []),
        ({"tile__deschedule__card1_gt1": "true"}, []),
    ],
)
def test_pods_of_a_tile(mark: dict[str, str], goes: list[str]) -> None:
    pods = [
        pod(name, "n1", "card0", (SUBDEVICED,), subdevices=f"card0:gt{at}")
        for at, name in enumerate(("zero", "one"))
    ]
    assert label_changes({"n1": marked(**mark)}, *pods) == dict.fromkeys(goes, True)


GPU0 = {"n1": marked(deschedule__pods__card0="true")}


def test_any_container_counts() -> None:
    assert label_changes(GPU0, pod("p", "n1", "card1|card2,card0", ("i915=1", "i915=2"))) == {"p": True}


def test_pod_is_labelled_before_it_runs_and_not_after_its_end() -> None:
    pods = [
        pod(phase.lower(), "n1", "card0", phase=phase)
        for phase in ("Pending", "Running", "Succeeded", "Failed")
    ]
    assert label_changes(GPU0, *pods) == {"pending": True, "running": True}


def test_reservation_counts_instead_of_annotations_of_a_tenant() -> None:
    record = lease("n1", uid_liar=entry("liar", "card0"), uid_honest=entry("honest", "card1"))
    pods = [pod("liar", "n1", "card1"), pod("honest", "n1", "card0")]
    assert label_changes(GPU0, *pods, leases=[record]) == {"liar": True}


def test_unbound_pod_is_not_labelled() -> None:
    assert label_changes(GPU0, pod("p"), leases=[lease("n1", uid_p=entry("p", "card0"))]) == {}


def test_a_label_that_is_right_is_left() -> None:
    assert label_changes(GPU0, labelled_pod(pod("p", "n1", "card0")), pod("q", "n1", "card1")) == {}


@pytest.mark.parametrize(
    "gpu_pod",
    [
        pod("p", "n1", "card1"),
        pod("p", "n1", "card0", phase="Succeeded"),
        pod("p", "gone", "card0"),
        pod("p"),
    ],
    ids=["of another card", "ended", "on a node that is gone", "on no node"],
)
def test_label_without_a_policy_is_removed(gpu_pod: AllocatedPod) -> None:
    assert label_changes(GPU0, labelled_pod(gpu_pod)) == {"p": False}


def test_another_value_is_somebody_elses_until_the_pod_is_to_go() -> None:
    pods = [labelled_pod(pod("p", "n1", "card1"), "mine"), labelled_pod(pod("q", "n1", "card0"), "mine")]
    assert label_changes(GPU0, *pods) == {"q": True}


def test_invalid_sub_device_names_have_no_effect() -> None:
    assert label_changes(GPU0, pod("p", "n1", "x", (SUBDEVICED,), subdevices="x:gt0")) == {}


def test_the_patch_is_for_this_very_pod() -> None:
    patch = controller.label_patch(controller.LabelChange(pod("p"), is_wanted=True))
    assert patch == {"metadata": {"uid": "uid-p", "labels": {controller.DESCHEDULE_LABEL: "gpu"}}}
    taken = controller.label_patch(controller.LabelChange(pod("p"), is_wanted=False))
    assert taken["metadata"]["labels"] == {controller.DESCHEDULE_LABEL: None}
