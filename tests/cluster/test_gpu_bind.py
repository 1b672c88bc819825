"""Binding of pods with GPUs by a real kube-scheduler: the pod goes to a node with a free GPU and is annotated."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import gpu_cluster, kubernetes_objects
from tests.cluster.controlplane import ControlPlane
from tests.cluster.extender_process import ExtenderProcess
from tests.cluster.namespace_sandboxes import Sandbox, wait

pytestmark = pytest.mark.kubernetes_versions


@pytest.fixture
def running(plane: ControlPlane, sandbox: Sandbox, tmp_path: Path) -> Iterator[ExtenderProcess]:
    """nodewise, with a node of two GPUs with 1000 millicores each, and a scheduler that calls nodewise."""
    sandbox.nodes(gpu_cluster.node("g1", cards=2, shares=10, millicores=1000))
    with (
        gpu_cluster.extender(plane, tmp_path) as served,
        plane.start_scheduler({"extenders": [gpu_cluster.entry(served)]}),
    ):
        yield served


def test_a_pod_is_bound_with_its_cards_in_annotations(sandbox: Sandbox, running: ExtenderProcess) -> None:
    made = gpu_cluster.pod("train", 2, millicores=600)
    made["metadata"]["annotations"] = {"mine": "stays"}
    sandbox.pods(made)
    assert sandbox.expect_bound("train") == "g1"
    pod = sandbox.pod("train")
    assert pod is not None
    annotations = pod["metadata"]["annotations"]
    assert annotations["mine"] == "stays"
    assert annotations["gas-container-cards"] == "card0,card1"
    assert annotations["cards.nodewise.io/main"] == "0,1"
    assert annotations["gas-ts"].isdecimal()
    assert "gas-container-tiles" not in annotations
    entry = gpu_cluster.allocation_record(sandbox, "g1")[pod["metadata"]["uid"]]
    assert entry["cards"] == "card0,card1"
    assert [event["holds"] for event in running.wait_events("bound")] == ["main: card0, card1"]


def test_pods_share_cards_until_these_are_full(sandbox: Sandbox, running: ExtenderProcess) -> None:
    """The node has 800 free millicores in total, but no single GPU has enough for a third pod of 600 millicores."""
    names = ["one", "two", "three"]
    sandbox.pods(*(gpu_cluster.pod(name, 1, millicores=600) for name in names))
    wait("two are bound", lambda: len(_bound_pods(sandbox, names)) == 2 or None)
    waiting = (set(names) - _bound_pods(sandbox, names)).pop()
    why = "Not enough GPU-resources for deployment: will not fit"
    # the first attempt may have passed filter before the bind call of another pod, and failed in its own bind call
    wait("the event has the reason", lambda: any(why in text for text in sandbox.events(waiting)) or None)
    assert sorted(
        card for name in _bound_pods(sandbox, names) for card in gpu_cluster.cards_of(sandbox.pod(name) or {})
    ) == [
        "card0",
        "card1",
    ]
    gone = _bound_pods(sandbox, names).pop()
    sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/{gone}")
    sandbox.expect_bound(waiting)


def test_a_pod_without_cards_that_is_sent_to_us_is_bound_too(
    sandbox: Sandbox, running: ExtenderProcess
) -> None:
    """`i915: 0` is a managed resource as well, so kube-scheduler delegates binding to nodewise."""
    sandbox.pods(gpu_cluster.pod("none", 0))
    assert sandbox.expect_bound("none") == "g1"
    assert "gas-container-cards" not in (sandbox.pod("none") or {})["metadata"].get("annotations", {})


def test_an_init_container_and_a_sidecar_get_cards(sandbox: Sandbox, running: ExtenderProcess) -> None:
    """kube-scheduler counts the sidecar in addition, and nothing for the init container."""
    made = gpu_cluster.pod("train", 1, millicores=900)
    made["spec"]["initContainers"] = [
        {**gpu_cluster.pod("", 1, millicores=900)["spec"]["containers"][0], "name": "setup"},
        {
            **gpu_cluster.pod("", 1, millicores=200)["spec"]["containers"][0],
            "name": "log",
            "restartPolicy": "Always",
        },
    ]
    sandbox.pods(made)
    assert sandbox.expect_bound("train") == "g1"
    pod = sandbox.pod("train")
    assert pod is not None
    annotations = pod["metadata"]["annotations"]
    assert annotations["gas-container-cards"] == "card0"
    numbers = {key: value for key, value in annotations.items() if key.startswith("cards.nodewise.io/")}
    assert numbers == {
        "cards.nodewise.io/main": "0",
        "cards.nodewise.io/log": "1",
        "cards.nodewise.io/setup": "0",
    }
    assert gpu_cluster.allocation_record(sandbox, "g1")[pod["metadata"]["uid"]]["cards"] == "card0|card1"
    assert [event["holds"] for event in running.wait_events("bound")] == [
        "main: card0; log: card1; setup: card0"
    ]
    sandbox.pods(gpu_cluster.pod("more", 1, millicores=900))
    assert "no GPU has 900 gpu.intel.com/millicores left" in sandbox.expect_event("more")
    sandbox.api.delete(f"/api/v1/namespaces/{sandbox.namespace}/pods/train")
    assert sandbox.expect_bound("more") == "g1"


def test_an_init_container_that_asks_for_more_than_later_ones_is_refused(
    sandbox: Sandbox, running: ExtenderProcess
) -> None:
    made = gpu_cluster.pod("early", 1)
    made["spec"]["initContainers"] = [{**made["spec"]["containers"][0], "name": "first"}]
    made["spec"]["containers"][0] = kubernetes_objects.pod("early")["spec"]["containers"][0]
    sandbox.pods(made)
    assert "init container first asks for 1 GPU; the containers after it have none" in sandbox.expect_event(
        "early"
    )


def test_a_victim_is_taken_only_where_its_card_helps(sandbox: Sandbox, running: ExtenderProcess) -> None:
    """On `g1` the small pods' cards stay too full without any one of them; where preemption helps, it happens."""
    sandbox.pods(*(gpu_cluster.pod(name, 1, millicores=800) for name in ("low-1", "low-2")))
    for name in ("low-1", "low-2"):
        sandbox.expect_bound(name)
    urgent = gpu_cluster.pod("urgent", 1, millicores=900)
    urgent["spec"] |= kubernetes_objects.pod("urgent", priority=100)["spec"] | {
        "containers": urgent["spec"]["containers"]
    }
    sandbox.pods(urgent)
    sandbox.expect_bound("urgent")
    left = [name for name in ("low-1", "low-2") if sandbox.pod(name)]
    assert len(left) == 1
    assert gpu_cluster.cards_of(sandbox.pod(left[0]) or {}) != gpu_cluster.cards_of(
        sandbox.pod("urgent") or {}
    )


def _bound_pods(sandbox: Sandbox, names: list[str]) -> set[str]:
    pod_names = set()
    for name in names:
        with contextlib.suppress(KeyError):
            if (sandbox.pod(name) or {"spec": {}})["spec"]["nodeName"]:
                pod_names.add(name)
    return pod_names
