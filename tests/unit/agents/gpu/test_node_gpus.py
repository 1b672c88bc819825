"""The GPUs of a node from labels, counts and the annotation; numbers are those of the specification's cases."""

import json
from typing import Any

import pytest

from nodewise.agents.gpu import gpu_node_labels, node_gpus
from nodewise.agents.gpu.gpu_node_labels import Link
from nodewise.agents.gpu.node_gpus import GpuNode, NodeGpus
from nodewise.agents.gpu.vendor_resource_names import GENERIC, INTEL
from tests.unit.agents.gpu.gpu_node_and_pod_builders import node, raw_node


def parse(tags: str = "", allocatable: str = "") -> NodeGpus:
    return node_gpus.parse_node_gpus(node(tags, allocatable), INTEL)


def capacity(gpus: NodeGpus) -> dict[str, tuple[int, ...]]:
    return {INTEL.short(name): row for name, row in gpus.capacity.items()}


NAMES = {
    "14 lexicographic": ("gn=2.10.1", "card1 card10 card2"),
    "15 cut in three": ("gn=0.1.2 gn2=Z.5.8 gn3=Z.10", "card0 card1 card10 card2 card5 card8"),
    "20 no label": ("", ""),
    "21 the older label": ("cards=card0.card1", "card0 card1"),
    "22 the newer label wins": ("gn=3.4 cards=card0.card1", "card3 card4"),
    "34 no base label": ("gn2=Z3.4", "card3 card4"),
    "a gap ends it": ("gn=0 gn3=Z.1", "card0"),
    "other GPUs than these": ("gn=a.b", "carda cardb"),
}


@pytest.mark.parametrize(("tags", "names"), NAMES.values(), ids=NAMES)
def test_which_cards_there_are(tags: str, names: str) -> None:
    gpus = parse(tags)
    assert (gpus.names, gpus.problems) == (tuple(names.split()), ())


ODD_NAMES = {
    "23 an empty older label": ("cards=", "", "label gpu.intel.com/cards: empty, double or odd names in ''"),
    "24 a chunk without Z": (
        "gn=0.1.2 gn2=.5.8 cards=card7",
        "card7",
        "gpu-numbers2: '.5.8' does not begin with Z",
    ),
    "26 twice the same": ("gn=0.0", "card0", "empty, double or odd names in '0.0' do not count"),
    "27 an empty entry": ("gn=0.", "card0", "empty, double or odd names in '0.' do not count"),
    "an empty chunk": ("gn=0 gn2=", "", "gpu-numbers2: '' does not begin with Z"),
    "a name too long": (f"gn=0 gn2=Z.{'1' * 60}", "card0", "odd names"),
    "too many": (
        "gn=" + ".".join(map(str, range(128))),
        "",
        "128 GPUs of 0 resources; at most 127 of 64 count",
    ),
}


@pytest.mark.parametrize(("tags", "names", "problem"), ODD_NAMES.values(), ids=ODD_NAMES)
def test_names_that_cannot_count_are_left_out_with_a_problem(tags: str, names: str, problem: str) -> None:
    gpus = parse(tags)
    assert gpus.names == tuple(names.split())
    assert len(gpus.problems) == 1
    assert problem in gpus.problems[0]


CAPACITY: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "8 even": ("gn=0.1.2", "i915=900 mc=3000", {"i915": (300,) * 3, "millicores": (1000,) * 3}),
    "16 nothing allocatable": ("gn=0.1", "", {}),
    "17 memory": ("gn=0.1", "i915=600 mem=16G", {"i915": (300,) * 2, "memory.max": (8 * 10**9,) * 2}),
    "25 what is left over": ("gn=0.1", "i915=3", {"i915": (1, 1)}),
    "26 a double GPU": ("gn=0.0", "i915=4", {"i915": (4,)}),
    "38 monitoring of one GPU": ("gn=0", "i915=4 mon=1", {"i915": (4,), "i915_monitoring": (1,)}),
    "39 monitoring of two": ("gn=0.1", "i915=4 mon=1", {"i915": (2, 2)}),
    "others' resources": ("gn=0", "cpu/=4 nvidia.com/gpu=4 i915=1", {"i915": (1,)}),
    "many tiles": ("gn=0", "t=1k", {"tiles": (64,)}),
}


@pytest.mark.parametrize(("tags", "allocatable", "wanted"), CAPACITY.values(), ids=CAPACITY)
def test_capacity_of_each_gpu(tags: str, allocatable: str, wanted: dict[str, tuple[int, ...]]) -> None:
    assert capacity(parse(tags, allocatable)) == wanted


@pytest.mark.parametrize("amount", ["1500m", "0.5", "-3", "many", "", "10E"])
def test_an_amount_that_cannot_be_read_is_absent(amount: str) -> None:
    gpus = parse("gn=0", f"i915={amount} mc=5")
    assert capacity(gpus) == {"millicores": (5,)}
    assert f"allocatable gpu.intel.com/i915: {amount!r} is not a whole number" in gpus.problems[0]


def test_resources_that_no_card_is_named_for_are_a_problem() -> None:
    assert parse("", "i915=2").problems == (
        (
            "gpu.intel.com/i915 is allocatable, but nothing names the GPUs of the node: neither label"
            " gpu.intel.com/gpu-numbers or gpu.intel.com/device.count nor annotation nodewise.io/gpu-cards"
        ),
    )


def test_more_resources_than_can_be_kept_are_none() -> None:
    gpus = parse("gn=0", " ".join(f"r{number}=1" for number in range(65)))
    assert (gpus.names, gpus.capacity) == ((), {})
    assert gpus.problems == ("1 GPUs of 65 resources; at most 127 of 64 count",)


MARKED = {
    "41 a bus": ("gn=0.1.2.3.4 pci=0.1_2.3.4 D:gas-disable-card3=PCI_GROUP", "card2 card3 card4"),
    "42 another": ("gn=0.1.2.3 pci=0.1_2.3 D:gas-disable-card1=PCI_GROUP", "card0 card1"),
    "43 a bus without a label": ("gn=0.1 D:gas-disable-card0=PCI_GROUP", "card0"),
    "44 any value": ("gn=0.1 D:gas-disable-card0=true", "card0"),
    "45 two": ("gn=0.1 D:gas-disable-card0=true D:gas-disable-card1=x", "card0 card1"),
    "two policies": ("gn=0.1 D(a):gas-disable-card0 D(b):gas-disable-card1", "card0 card1"),
    "46 another domain": ("gn=0.1 foo.bar/gas-disable-card0=", ""),
    "two slashes": ("gn=0.1 telemetry.aware.scheduling.a/b/gas-disable-card0=", ""),
    "141 a bus cut in three": (
        "gn=6.9.20 pci=0.1_2.3.4 pci2=Z_5.6_7.8_11.12 pci3=Z_9.10 D:gas-disable-card10=PCI_GROUP",
        "card9",
    ),
    "deschedule takes a GPU out as well": ("gn=0.1 D:gas-deschedule-pods-card1=", "card1"),
    "a bus to deschedule": ("gn=0.1.2 pci=0.2 D:gas-deschedule-pods-card0=PCI_GROUP", "card0 card2"),
    "a bus that cannot be read": ("gn=0.1 pci=0 pci2=.1 D:gas-disable-card0=PCI_GROUP", "card0"),
}


@pytest.mark.parametrize(("tags", "names"), MARKED.values(), ids=MARKED)
def test_cards_that_policies_take_out(tags: str, names: str) -> None:
    assert parse(tags).unusable == frozenset(names.split())


def test_47_a_name_is_compared_as_it_is() -> None:
    gpus = parse("gn=0.10 D:gas-disable-card10= D:gas-disable-xcard0=")
    assert gpus.unusable == {"card10"}
    assert gpus.problems == ("gas-disable-'xcard0': the node has no such GPU",)


def test_pods_of_a_card_that_is_gone_are_still_to_be_marked() -> None:
    gpus = parse("gn=0 D:gas-deschedule-pods-card3= D:gas-tile-deschedule-card3_gt7=")
    assert (gpus.descheduled, gpus.unusable) == ({"card3"}, frozenset())
    assert (gpus.subdevices_descheduled, gpus.subdevices_off) == ({"card3": {7}}, {})


PREFERRED = {
    "48": ("gn=0.1 D:gas-prefer-gpu=card1", "card1"),
    "50 a GPU that is not there": ("gn=0.1 D:gas-prefer-gpu=card9", ""),
    "none": ("gn=0.1", ""),
    "the first policy by name": ("gn=0.1 D(b):gas-prefer-gpu=card0 D(a):gas-prefer-gpu=card1", "card1"),
    "the first that names a GPU of ours": (
        "gn=0.1 D(a):gas-prefer-gpu=x D(b):gas-prefer-gpu=card0",
        "card0",
    ),
}


@pytest.mark.parametrize(("tags", "name"), PREFERRED.values(), ids=PREFERRED)
def test_the_card_that_a_policy_prefers(tags: str, name: str) -> None:
    assert parse(tags).preferred == name


SUBDEVICES: dict[str, tuple[str, str, dict[str, set[int]]]] = {
    "123": ("gn=0.1 D:gas-tile-disable-card0_gt0=true", "t=4", {"card0": {0}}),
    "124 two labels, one tile": (
        "gn=0 D:gas-tile-disable-card0_gt0= D:gas-tile-deschedule-card0_gt0=",
        "t=2",
        {"card0": {0}},
    ),
    "125 no such tile": ("gn=0.1 D:gas-tile-disable-card0_gt6=", "t=4", {}),
    "130 deschedule": ("gn=0 D:gas-tile-deschedule-card0_gt0=", "t=1", {"card0": {0}}),
    "no such GPU": ("gn=0 D:gas-tile-disable-card1_gt0=", "t=1", {}),
    "no tiles": ("gn=0 D:gas-tile-disable-card0_gt0=", "i915=1", {}),
    "143 bad names": (
        "gn=0 D:gas-tile-disable-cardX_gt0= D:gas-tile-disable-card0_gtR= D:gas-tile-disable-=",
        "t=2",
        {},
    ),
    "144": (
        "gn=0.1 "
        + " ".join(
            f"D:gas-tile-disable-card{subdevice}="
            for subdevice in ("0_gt0", "0_gt3", "0_gt4", "1_gt8", "1_gt9")
        ),
        "t=8",
        {"card0": {0, 3}},
    ),
}


@pytest.mark.parametrize(("tags", "allocatable", "off"), SUBDEVICES.values(), ids=SUBDEVICES)
def test_tiles_that_policies_take_out(tags: str, allocatable: str, off: dict[str, set[int]]) -> None:
    assert parse(tags, allocatable).subdevices_off == off


def test_143_tiles_to_deschedule_and_to_prefer() -> None:
    tags = (
        "D:gas-tile-disable-card5_gt99= D:gas-tile-deschedule-card2_gt2= D:gas-tile-deschedule-card2_gt3= "
        "D:gas-tile-preferred-card2=gt1 D(q):gas-tile-preferred-card2=gx1 D(r):gas-tile-preferred-carrd2=gt3"
    )
    gpus = parse(tags)
    assert gpus.subdevices_descheduled == {"card2": {2, 3}}
    assert gpus.subdevices_preferred == {"card2": (1,)}


@pytest.mark.parametrize(
    ("tags", "preferred"),
    [
        ("D:gas-tile-preferred-card0=gt3", (3,)),
        ("D:gas-tile-preferred-card0=3", None),
        ("D(b):gas-tile-preferred-card0=gt1 D(a):gas-tile-preferred-card0=gt3", (3, 1)),
        ("D(b):gas-tile-preferred-card0=gt1 D(a):gas-tile-preferred-card0=gt1", (1,)),
    ],
    ids=["126", "133 a value that is none", "135 two policies, by name", "twice the same"],
)
def test_tiles_that_are_taken_first(tags: str, preferred: tuple[int, ...] | None) -> None:
    assert parse(f"gn=0 {tags}", "t=4").subdevices_preferred == ({"card0": preferred} if preferred else {})


NUMA: dict[str, tuple[str, tuple[set[str], ...]]] = {
    "106": ("numa=0-0.1_1-2.3", ({"card0", "card1"}, {"card2", "card3"})),
    "87 cut in two": ("numa=0-0.1_1 numa2=Z-2.3", ({"card0", "card1"}, {"card2", "card3"})),
    "118 GPUs that are not there": ("numa=0-5.6_1-0.1", (set(), {"card0", "card1"})),
    "110 no label": ("", ()),
    "empty": ("numa=", ()),
}


@pytest.mark.parametrize(("tags", "groups"), NUMA.values(), ids=NUMA)
def test_cards_by_numa_node(tags: str, groups: tuple[set[str], ...]) -> None:
    gpus = parse(f"gn=0.1.2.3 {tags}")
    assert (gpus.numa, gpus.numa_problem) == (groups, "")


@pytest.mark.parametrize("text", ["0-0.1_2.3", "0-0-1", "_", "0-0_", "-1", "0-", "0-0 numa2=1"])
def test_111_a_numa_map_that_cannot_be_read_is_a_problem(text: str) -> None:
    gpus = parse(f"gn=0.1.2.3 numa={text}")
    assert gpus.numa == ()
    assert gpus.numa_problem
    assert gpus.names == ("card0", "card1", "card2", "card3")


def link(text: str) -> Link:
    left, right = (end.split(".") for end in text.split("-"))
    return Link(f"card{left[0]}", int(left[1]), f"card{right[0]}", int(right[1]))


X = "gn=0.1.2.3 "
LINKS = {
    "79": (X + "xl=0.0-1.0_2.1-3.2", "t=16", "0.0-1.0 2.1-3.2"),
    "80 cut before": (X + "xl=0.0-1.0 xl2=Z_2.1-3.2", "t=16", "0.0-1.0 2.1-3.2"),
    "80 cut within": (X + "xl=0.0-1.0_2.1 xl2=Z-3.2", "t=16", "0.0-1.0 2.1-3.2"),
    "83 no label": (X, "t=16", ""),
    "88 device indices": (
        "gn=1.10.11.2.3.4.5.6.7.8.9 xl=5.0-6.0_1.0-2.1_10.0-0.0",
        "t=22",
        "6.0-7.0 2.0-3.1 11.0-1.0",
    ),
    "89 odd first": (X + "xl=foo_0.0-1.0", "t=16", ""),
    "89 odd last": (X + "xl=0.0-1.0_foo", "t=16", "0.0-1.0"),
    "90 no numbers": ("cards=card0.card1 xl=0.0-1.0", "t=2", ""),
    "94 one tile, two links": ("gn=0.1.2 xl=0.0-1.0_0.0-2.0", "t=3", "0.0-1.0 0.0-2.0"),
    "103 a GPU and itself": (X + "xl=0.0-0.1", "t=16", ""),
    "146 a number that is none": ("gn=0.1.foobar xl=0.0-1.0", "t=3", ""),
    "147 a device that is not there": (X + "xl=0.0-8.0_1.0-2.0", "t=16", "1.0-2.0"),
    "a tile that is not there": (X + "xl=0.0-1.9_1.0-2.0", "t=16", "1.0-2.0"),
    "no tiles that count": (X + "xl=0.0-1.9", "i915=4", "0.0-1.9"),
    "twice the same": (X + "xl=0.0-1.0_0.0-1.0", "t=16", "0.0-1.0"),
    "an empty number": ("gn=0.1. xl=0.0-1.0", "t=16", "0.0-1.0"),
}


@pytest.mark.parametrize(("tags", "allocatable", "wanted"), LINKS.values(), ids=LINKS)
def test_links_between_cards(tags: str, allocatable: str, wanted: str) -> None:
    assert parse(tags, allocatable).links == tuple(map(link, wanted.split()))


def test_138_139_a_value_in_several_labels() -> None:
    assert (
        gpu_node_labels.join_split_label({"k": "foo", "k2": "Zbar", "k3": "Zber", "k5": "Zno"}, "k")
        == "foobarber"
    )
    with pytest.raises(ValueError, match="label k2: 'bar' does not begin with Z"):
        gpu_node_labels.join_split_label({"k": "foo", "k2": "bar"}, "k")


def test_141_which_cards_are_on_one_bus() -> None:
    groups = gpu_node_labels.parse_groups("0.1_2.3.4")
    assert gpu_node_labels.expand_groups(["card3"], groups) == {"card2", "card3", "card4"}
    assert gpu_node_labels.expand_groups(["card20"], groups) == {"card20"}


def test_cards_that_all_name_one_large_group_cost_no_more_than_the_group() -> None:
    names = [f"card{number}" for number in range(20_000)]
    groups = gpu_node_labels.parse_groups(".".join(map(str, range(20_000))))
    assert gpu_node_labels.expand_groups(names, groups) == frozenset(names)


def test_of_very_many_links_the_first_are_read() -> None:
    by_index = tuple(f"card{number}" for number in range(100))
    text = "_".join(f"{number % 99}.{number // 99}-99.0" for number in range(100_000))
    pairs, stopped = gpu_node_labels.parse_links(text, by_index)
    assert (len(pairs), stopped) == (4096, "there are more than 4096 links; the others do not count")


def test_142_which_labels_are_of_telemetry_policies() -> None:
    tags = {
        "telemetry.aware.scheduling.foobar/gas-disable-card0": "x",
        "tellemetry.aware.scheduling.foobar/gas-disable-card0": "x",
    }
    assert gpu_node_labels.telemetry_policy_labels(tags) == [("foobar", "gas-disable-card0", "x")]


def test_146_cards_by_device_index() -> None:
    names = gpu_node_labels.parse_device_indices("1.10.11.2.3.4.5.6.7.8.9")
    assert (names[0], names[1], names[10], len(names)) == ("card1", "card2", "card11", 11)
    assert gpu_node_labels.parse_device_indices("") == ()


def generic(tags: dict[str, Any], allocatable: dict[str, Any]) -> NodeGpus:
    return node_gpus.parse_node_gpus(raw_node(tags, allocatable), GENERIC)


def test_cards_that_are_counted_by_their_resource() -> None:
    gpus = generic({}, {"nvidia.com/gpu": "2", "nvidia.com/gpu-milli": "2k", "nvidia.com/mig-1g.5gb": "7"})
    assert gpus.names == ("card0", "card1")
    assert gpus.capacity == {"nvidia.com/gpu": (1, 1), "nvidia.com/gpu-milli": (1000, 1000)}
    assert gpus.problems == ()


def test_cards_that_are_counted_by_a_label_because_each_is_offered_several_times() -> None:
    gpus = generic({"nvidia.com/gpu.count": "2"}, {"nvidia.com/gpu": "20"})
    assert (gpus.names, gpus.capacity) == (("card0", "card1"), {"nvidia.com/gpu": (10, 10)})


@pytest.mark.parametrize(
    ("tags", "allocatable", "problem"),
    [
        ({"nvidia.com/gpu.count": "two"}, {}, "label nvidia.com/gpu.count: 'two' is not a whole number"),
        ({"nvidia.com/gpu.count": "-1"}, {}, "label nvidia.com/gpu.count: '-1' is not a whole number"),
        ({"nvidia.com/gpu.count": "1E"}, {"nvidia.com/gpu": 4}, f"{10**18} GPUs; at most 127 can be kept"),
        ({}, {"nvidia.com/gpu": "128"}, "128 GPUs; at most 127 can be kept"),
    ],
)
def test_a_count_that_cannot_be_is_no_card(
    tags: dict[str, str], allocatable: dict[str, str], problem: str
) -> None:
    gpus = generic(tags, allocatable)
    assert gpus.names == ()
    assert problem in gpus.problems[0]


def annotated_gpus(annotation: Any, allocatable: str = "") -> NodeGpus:
    return node_gpus.parse_node_gpus(
        node(
            "gn=0.1.2",
            allocatable,
            gpus=annotation if isinstance(annotation, str) else json.dumps(annotation),
        ),
        INTEL,
    )


def test_cards_that_differ() -> None:
    gpus = annotated_gpus(
        [
            {
                "name": "b",
                "model": "Max",
                "capacity": {"gpu.intel.com/i915": 2, "gpu.intel.com/memory.max": "48Gi"},
            },
            {"name": "a", "model": "Flex", "capacity": {"gpu.intel.com/i915": 1}},
        ]
    )
    assert (gpus.names, gpus.models, gpus.problems) == (("a", "b"), ("Flex", "Max"), ())
    assert capacity(gpus) == {"i915": (1, 2), "memory.max": (0, 48 * 2**30)}


def test_cards_without_a_capacity_have_an_even_share() -> None:
    gpus = annotated_gpus([{"name": "a", "model": "Max"}, {"name": "b", "capacity": None}], "i915=5")
    assert (gpus.models, capacity(gpus)) == (("Max", ""), {"i915": (2, 2)})


ODD_ANNOTATIONS: dict[str, tuple[Any, str, str]] = {
    "no JSON": ("{", "", "annotation nodewise.io/gpu-cards: Input data was truncated"),
    "empty": ("", "", "annotation nodewise.io/gpu-cards: Input data was truncated"),
    "a mapping": ({}, "", "{}; expected a list of at most 127 GPUs"),
    "null": (None, "", "None; expected a list"),
    "too many": (
        [{"name": f"c{number}"} for number in range(128)],
        "",
        "expected a list of at most 127 GPUs",
    ),
    "too deep": ("[" * 100_000, "", "annotation nodewise.io/gpu-cards"),
    "no GPU": ([3, {"name": "a"}], "a", "3; expected a GPU with a name of its own"),
    "no name": ([{"model": "x"}, {"name": "a"}], "a", "expected a GPU with a name of its own"),
    "a name twice": ([{"name": "a"}, {"name": "a"}], "a", "expected a GPU with a name of its own"),
    "a name for two": ([{"name": "a,b"}, {"name": "a"}], "a", "{'name': 'a,b'}; expected a GPU"),
    "a name of lines": ([{"name": "a\n"}, {"name": "a"}], "a", "expected a GPU"),
    "a model too long": ([{"name": "a", "model": "m" * 64}], "a", "a: model 'mmm"),
    "a model of numbers": ([{"name": "a", "model": 7}], "a", "a: model 7; expected a text"),
    "a capacity of text": (
        [{"name": "a", "capacity": "2"}],
        "a",
        "a: capacity '2'; expected amounts by resource",
    ),
    "an amount that is none": (
        [{"name": "a", "capacity": {"gpu.intel.com/i915": [1]}}],
        "a",
        "a: gpu.intel.com/i915: [1] is not a whole number",
    ),
    "no resource of ours": (
        [{"name": "a", "capacity": {"gpu": 1}}],
        "a",
        "gpu is no resource of these GPUs",
    ),
}


@pytest.mark.parametrize(("annotation", "names", "problem"), ODD_ANNOTATIONS.values(), ids=ODD_ANNOTATIONS)
def test_invalid_parts_of_the_annotation_are_omitted(annotation: Any, names: str, problem: str) -> None:
    gpus = annotated_gpus(annotation)
    assert gpus.names == tuple(names.split())
    assert len(gpus.problems) == 1
    assert problem in gpus.problems[0]


@pytest.mark.parametrize("raw", [None, [], 3, "x", {"gpu.intel.com/gpu-numbers": 3}])
def test_labels_and_amounts_of_another_form_are_none(raw: Any) -> None:
    assert node_gpus.parse_node_gpus(raw_node(raw, raw), INTEL).names == ()


def test_a_node_of_nothing_has_no_cards_and_no_problem() -> None:
    for profile in (INTEL, GENERIC):
        gpus = node_gpus.parse_node_gpus(GpuNode(), profile)
        assert gpus == NodeGpus(missing=gpus.missing)
        assert gpus.missing.words.startswith("found no resource of GPUs, expected ")


def test_number_of_problems_is_limited() -> None:
    gpus = parse(" ".join(f"D:gas-disable-x{number}=" for number in range(40)))
    assert len(gpus.problems) == 17
    assert gpus.problems[-1] == "and 24 more"
