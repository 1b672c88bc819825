"""Laws of the GPU layout of nodes, for any labels, amounts and annotations."""

import json
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from nodewise.agents.gpu import gpu_node_labels, node_gpus
from nodewise.agents.gpu.node_gpus import GPUS, GpuNode, NodeGpus
from nodewise.agents.gpu.vendor_resource_names import AMD, GENERIC, INTEL, NVIDIA, ResourceProfile

TELEMETRY = "telemetry.aware.scheduling."
KEYS = [
    "gpu-numbers",
    "gpu-numbers2",
    "gpu-numbers3",
    "cards",
    "numa-gpu-map",
    "numa-gpu-map2",
    "xe-links",
    "pci-groups",
]
WISHES = [
    "gas-disable-card0",
    "gas-disable-card1",
    "gas-deschedule-pods-card1",
    "gas-prefer-gpu",
    "gas-tile-disable-card0_gt0",
    "gas-tile-deschedule-card0_gt1",
    "gas-tile-preferred-card0",
]
NEAR = st.from_regex(r"Z?[0-3_.-]{0,12}", fullmatch=True) | st.sampled_from(
    ["PCI_GROUP", "card0", "gt1", "0.1.2.3", "0-0.1_1-2.3"]
)
VALUES = NEAR | st.text(max_size=20)
GOOD_LABELS = st.sampled_from(KEYS).map(INTEL.prefix.__add__) | st.sampled_from(
    [
        *(
            f"nvidia.com/gpu.{name}"
            for name in ("count", "replicas", "product", "memory", "sharing-strategy")
        ),
        *(
            f"amd.com/gpu.{name}"
            for name in ("device-id", "vram", "product-name.a", "compute-memory-partition")
        ),
        "cloud.google.com/gke-max-shared-clients-per-gpu",
        "gpu.intel.com/device.count",
        "gpu.intel.com/device-id.0380-56c0.count",
    ]
)
WISH_LABELS = st.builds(
    lambda policy, wish: f"{TELEMETRY}{policy}/{wish}",
    st.sampled_from(["a", "b", ""]),
    st.sampled_from(WISHES) | st.text("gas-tile_0123/", max_size=12),
)
LABELS = st.dictionaries(GOOD_LABELS | WISH_LABELS | st.text(max_size=10), VALUES, max_size=14)
RESOURCES = st.sampled_from(
    [f"{INTEL.prefix}{name}" for name in ("i915", "xe", "tiles", "millicores", "x")]
    + ["nvidia.com/gpu", "nvidia.com/gpu-milli", "amd.com/gpu", "cpu"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
QUANTITIES = st.from_regex(
    r"[+-]?[0-9]{1,20}(\.[0-9]{1,3})?([numkMGTPE]|[KMGTPE]i|e[0-9]{1,3})?", fullmatch=True
)
AMOUNTS = st.dictionaries(
    RESOURCES | st.text(max_size=5), st.integers(0, 99).map(str) | QUANTITIES | SCALARS, max_size=6
)
ENTRIES = st.fixed_dictionaries(
    {}, optional={"name": VALUES | SCALARS, "model": VALUES | SCALARS, "capacity": AMOUNTS | SCALARS}
)
ANNOTATIONS = (
    st.none()
    | st.text(max_size=20)
    | st.lists(ENTRIES | SCALARS, max_size=70).map(json.dumps)
    | AMOUNTS.map(json.dumps)
)
PROFILES = st.sampled_from([INTEL, NVIDIA, AMD, GENERIC])


def node(labels: Any, allocatable: Any, annotation: str | None) -> GpuNode:
    metadata = {"labels": labels, "annotations": {GPUS: annotation}}
    body = json.dumps({"metadata": metadata, "status": {"allocatable": allocatable}})
    return msgspec.json.decode(body.replace("NaN", "null").replace("Infinity", "1"), type=GpuNode)


def read(labels: Any, allocatable: Any, annotation: str | None, profile: ResourceProfile) -> NodeGpus:
    return node_gpus.parse_node_gpus(node(labels, allocatable, annotation), profile)


EVERYTHING = (LABELS | SCALARS, AMOUNTS | SCALARS, ANNOTATIONS, PROFILES)


@given(*EVERYTHING)
@example({"nvidia.com/gpu.count": "9223372036854775807"}, {}, None, GENERIC)
@example({"gpu.intel.com/gpu-numbers": "0", "gpu.intel.com/gpu-numbers2": ""}, {}, None, INTEL)
@example({"gpu.intel.com/gpu-numbers": "0"}, {"gpu.intel.com/tiles": "1E"}, None, INTEL)
def test_whatever_a_node_says_is_read_within_bounds(
    labels: Any, allocatable: Any, annotation: str | None, profile: ResourceProfile
) -> None:
    devices = read(labels, allocatable, annotation, profile)
    assert devices.names == tuple(sorted(set(devices.names)))
    assert len(devices.names) == len(devices.models) <= node_gpus.MOST_GPUS
    assert all(0 < len(name) <= 63 and not set(name) & set(",|:+ ") for name in devices.names)
    assert len(devices.capacity) <= node_gpus.MOST_RESOURCES
    assert all(map(profile.has, devices.capacity))
    assert all(len(row) == len(devices.names) and any(row) for row in devices.capacity.values())
    assert all(0 <= amount < 2**63 for row in devices.capacity.values() for amount in row)
    assert all(
        amount <= gpu_node_labels.MOST_SUBDEVICES for amount in devices.capacity.get(profile.subdevices, ())
    )
    assert len(devices.problems) <= 17
    assert all(len(text) < 400 for text in devices.problems)


@given(*EVERYTHING)
def test_all_that_is_said_of_cards_is_said_of_those_that_are_there(
    labels: Any, allocatable: Any, annotation: str | None, profile: ResourceProfile
) -> None:
    devices = read(labels, allocatable, annotation, profile)
    subdevices = dict(zip(devices.names, devices.capacity.get(profile.subdevices, ()), strict=False))
    assert devices.unusable <= set(devices.names)
    assert devices.preferred in {"", *devices.names}
    assert devices.subdevices_off.keys() <= set(devices.names)
    assert all(
        0 <= subdevice < subdevices[gpu] for gpu, off in devices.subdevices_off.items() for subdevice in off
    )
    assert all(group <= set(devices.names) for group in devices.numa)
    assert not (devices.numa and devices.numa_problem)
    assert {link.left for link in devices.links} | {link.right for link in devices.links} <= set(
        devices.names
    )
    assert all(link.left != link.right for link in devices.links)
    assert len(devices.links) == len(set(devices.links)) <= gpu_node_labels.MOST_LINKS


@given(LABELS, AMOUNTS, ANNOTATIONS, PROFILES, st.randoms(use_true_random=False))
def test_the_order_of_labels_and_amounts_does_not_matter(
    labels: dict[str, str],
    allocatable: dict[str, Any],
    annotation: str | None,
    profile: ResourceProfile,
    random: Any,
) -> None:
    def shuffled(labels: dict[str, Any]) -> dict[str, Any]:
        items = list(labels.items())
        random.shuffle(items)
        return dict(items)

    first = read(labels, allocatable, annotation, profile)
    again = read(shuffled(labels), shuffled(allocatable), annotation, profile)
    assert first == again
    assert list(first.capacity) == list(again.capacity)


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=64, unique=True),
    st.dictionaries(st.sampled_from(["i915", "xe", "tiles", "millicores"]), st.integers(0, 10**6)),
)
def test_cards_together_have_no_more_than_the_node_and_lack_less_than_one_each(
    numbers: list[int], given_amounts: dict[str, int]
) -> None:
    label = ".".join(map(str, numbers))
    chunks = [label[at : at + 60] for at in range(0, len(label), 60)]
    labels = {
        f"{INTEL.prefix}gpu-numbers{at + 1 if at else ''}": f"Z{chunk}" if at else chunk
        for at, chunk in enumerate(chunks)
    }
    allocatable = {INTEL.prefix + name: str(amount) for name, amount in given_amounts.items()}
    devices = read(labels, allocatable, None, INTEL)
    assert set(devices.names) == {f"card{number}" for number in numbers}
    for resource, text in allocatable.items():
        given_amount = int(text)
        if resource == INTEL.subdevices:
            given_amount = min(given_amount, 64 * len(numbers) + given_amount % len(numbers))
        left = given_amount - sum(devices.capacity.get(resource, ()))
        assert 0 <= left < len(numbers)
