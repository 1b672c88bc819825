"""The notation of the tables has the meaning that its page describes."""

import pytest

from tests.conformance.gas import node_and_pod_notation


def test_labels_of_a_node():
    text = "gn=0.1 gn2=Z.2 cards= D:gas-disable-card0 D(a):gas-prefer-gpu=card1 foo.bar/x=y; i915=2"
    labels = node_and_pod_notation.node("n", text)["metadata"]["labels"]
    assert labels == {
        "kubernetes.io/hostname": "n",
        "gpu.intel.com/gpu-numbers": "0.1",
        "gpu.intel.com/gpu-numbers2": "Z.2",
        "gpu.intel.com/cards": "",
        "telemetry.aware.scheduling.pol/gas-disable-card0": "true",
        "telemetry.aware.scheduling.a/gas-prefer-gpu": "card1",
        "foo.bar/x": "y",
    }


def test_a_label_that_there_is_not():
    with pytest.raises(KeyError):
        node_and_pod_notation.node("n", "gm=0.1; i915=2")


@pytest.mark.parametrize(
    ("text", "allocatable", "capacity"),
    [
        ("gn=0; i915=4 mc=1k", {"i915": "4", "millicores": "1k"}, {"i915": "4", "millicores": "1k"}),
        ("gn=0; ; i915=4", {}, {"i915": "4"}),
        ("; ", {}, {}),
    ],
)
def test_resources_of_a_node(text, allocatable, capacity):
    status = node_and_pod_notation.node("n", text)["status"]
    for field, wanted in (("allocatable", allocatable), ("capacity", capacity)):
        amounts = {name: amount for name, amount in status[field].items() if "/" in name}
        assert amounts == {f"gpu.intel.com/{name}": amount for name, amount in wanted.items()}


def test_containers_of_a_pod():
    spec = node_and_pod_notation.pod("p", "init:setup[i915=1] [mon=1][] side[mc=5]", {}, "xe")["spec"]
    assert [(container["name"], container["resources"]["requests"]) for container in spec["containers"]] == [
        ("c0", {"gpu.intel.com/xe_monitoring": "1"}),
        ("c1", {}),
        ("side", {"gpu.intel.com/millicores": "5"}),
    ]
    (init,) = spec["initContainers"]
    assert init["resources"]["requests"] == {"gpu.intel.com/xe": "1"}


@pytest.mark.parametrize("text", ["", "[i915=1", "[i915=1] x"])
def test_invalid_notation_of_a_pod_is_an_error(text):
    with pytest.raises(ValueError, match="is no container"):
        node_and_pod_notation.pod("p", text, {})


def test_a_pod_that_is_there_already():
    running = node_and_pod_notation.running("n1 c=card0|card1 t=|card1:gt0; [i915=1][i915=1]")
    assert running.node == "n1"
    assert running.annotations == {"gas-container-cards": "card0|card1", "gas-container-tiles": "|card1:gt0"}
    assert running.containers == "[i915=1][i915=1]"
