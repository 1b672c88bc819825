"""The GPU demand of pods, and demands that are refused on any node; numbers are those of the specification's cases."""

from typing import Any

import msgspec
import pytest

from nodewise.agents.gpu import allocation_record, gpu_pod_fields, pod_gpu_requests
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod, GpuPod
from nodewise.agents.gpu.gpu_rejection_reasons import RejectionKind
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.pod_gpu_requests import NOTHING, Demand
from nodewise.agents.gpu.vendor_resource_names import GENERIC, INTEL
from tests.unit.agents.gpu.gpu_node_and_pod_builders import container, pod, raw_pod
from tests.unit.agents.gpu.table_cases import cases

CASES = "pod_gpu_requests.yaml"
OPTIONS = GpuOptions()
LISTS = GpuOptions(enable_allowlist=True, enable_denylist=True)


def parse(gpu_pod: GpuPod, options: GpuOptions = OPTIONS) -> Demand:
    return pod_gpu_requests.parse_demand(gpu_pod, INTEL, options)


def container_counts(pod_demand: Demand) -> list[tuple[int, dict[str, int]]]:
    assert pod_demand.problem is None
    return [
        (container.count, {INTEL.short(name): a for name, a in container.per_gpu.items()})
        for container in pod_demand.containers
    ]


def refusal(gpu_pod: GpuPod, options: GpuOptions = OPTIONS) -> tuple[RejectionKind, str]:
    pod_demand = parse(gpu_pod, options)
    assert pod_demand.problem is not None
    assert pod_demand.wants_gpus
    assert pod_demand.problem.text().startswith(
        f"Not enough GPU-resources for deployment: {pod_demand.problem.kind}"
    )
    return pod_demand.problem.kind, pod_demand.problem.words


@cases(CASES, "demands")
def test_demand_of_each_container_per_gpu(containers: list[str], expected: list[list[Any]]) -> None:
    assert container_counts(parse(pod(*containers))) == [(count, per_gpu) for count, per_gpu in expected]


NOT_CONCERNED = {
    "nothing": pod(""),
    "no containers": raw_pod(None, None),
    "no resources": raw_pod([{"name": "c0"}, {"name": "c1", "resources": None}]),
    "others' resources": pod("cpu/=1 nvidia.com/gpu=1"),
    "31 no GPU in the end": pod("i915=0"),
    "monitoring": pod("mon=1"),
    "no GPU, and odd annotations": pod("i915=0", gas_same_gpu="x", gas_allocate_xelink=""),
    "odd annotations alone": pod("", gas_same_gpu="x"),
    "an init container that wants none": pod("", init=[container("i", "i915=0")]),
}


@pytest.mark.parametrize("gpu_pod", NOT_CONCERNED.values(), ids=NOT_CONCERNED)
def test_a_pod_that_asks_for_no_card_has_nothing_to_do_with_us(gpu_pod: GpuPod) -> None:
    assert parse(gpu_pod) == NOTHING
    assert not NOTHING.wants_gpus


BAD_ARGS = {
    "31": (
        pod("i915=0 mc=1"),
        "container c0: gpu.intel.com/millicores without gpu.intel.com/xe or gpu.intel.com/i915",
    ),
    "32": (
        pod("", init=[container("setup", "i915=1")]),
        "init container setup asks for 1 GPU; the containers after it have none",
    ),
    "31 in a sidecar": (
        pod("", init=[container("mesh", "mc=5", restartPolicy="Always")]),
        "container mesh: gpu.intel.com/millicores without gpu.intel.com/xe or gpu.intel.com/i915",
    ),
    "69": (
        pod("i915=1", "i915=1", gas_same_gpu="c0,c1", gas_allocate_xelink="true"),
        "gas-allocate-xelink and gas-same-gpu exclude each other",
    ),
    "81": (
        pod("", "i915=1 t=1", gas_allocate_xelink="false"),
        "container c1: an odd number of GPUs with gas-allocate-xelink",
    ),
    "153 not whole": (pod("i915=1 mc=1500m"), "container c0: gpu.intel.com/millicores is no whole number"),
    "negative": (pod("i915=-1"), "container c0: gpu.intel.com/i915 is no whole number"),
    "huge": (pod("i915=1 mem=1e30"), "container c0: gpu.intel.com/memory.max is no whole number"),
    "no quantity": (pod("i915=some"), "container c0: gpu.intel.com/i915 is no whole number"),
    "an init container's": (
        pod("", init=[container("i", "i915=x")]),
        "container i: gpu.intel.com/i915 is no whole number",
    ),
}


@pytest.mark.parametrize(("gpu_pod", "words"), BAD_ARGS.values(), ids=BAD_ARGS)
def test_bad_args(gpu_pod: GpuPod, words: str) -> None:
    assert refusal(gpu_pod) == (RejectionKind.BAD_ARGS, words)


def test_linked_cards_are_even_and_containers_without_cards_do_not_matter() -> None:
    pod_demand = parse(pod("", "i915=2 t=2", "i915=4", gas_allocate_xelink=""))
    assert pod_demand.linked
    assert [container.count for container in pod_demand.containers] == [0, 2, 4]


@pytest.mark.parametrize("names", ["c0", "", "c0,c0", "c0,c7", "c0, c1", "c0,c1,", ","])
def test_67_a_group_names_two_containers_of_the_pod_at_least(names: str) -> None:
    kind, words = refusal(pod("i915=1", "i915=1", gas_same_gpu=names))
    assert kind is RejectionKind.MALFORMED
    assert words == "gas-same-gpu names two or more of the pod's containers, each once, without blanks"


@cases(CASES, "conflicts")
def test_68_containers_that_share_a_gpu_request_one_and_no_amounts_of_their_own(
    containers: list[str], words: str
) -> None:
    kind, message = refusal(pod(*containers, gas_same_gpu="c0,c1"))
    assert kind is RejectionKind.CONFLICT
    assert message.startswith(words)


@pytest.mark.parametrize(("names", "group"), [("c1,c2", (1, 2)), ("c2,c0", (2, 0)), ("c0,c1,c2", (0, 1, 2))])
def test_a_group_is_given_by_the_places_of_its_containers(names: str, group: tuple[int, ...]) -> None:
    pod_demand = parse(pod("i915=1", "i915=1 mc=4", "xe=1", gas_same_gpu=names))
    assert (pod_demand.same_gpu, pod_demand.problem) == (group, None)


def test_a_group_that_wants_more_than_64_bits_hold_is_an_overflow() -> None:
    gpu_pod = pod("i915=1 mem=9223372036854775807", "i915=1 mem=1", gas_same_gpu="c0,c1")
    assert refusal(gpu_pod) == (RejectionKind.OVERFLOW, "gas-same-gpu: the sum of gpu.intel.com/memory.max")


def test_invalid_demand_is_reported_for_nodes_with_gpus() -> None:
    at_once = {
        "both": parse(pod("i915=1", gas_same_gpu="", gas_allocate_xelink="")),
        "init": parse(pod("", init=[container("i", "i915=1")])),
        "group": parse(pod("i915=1", gas_same_gpu="")),
        "odd": parse(pod("i915=1", gas_allocate_xelink="")),
    }
    assert {
        name: demand_of_pod.problem and demand_of_pod.problem.at_once
        for name, demand_of_pod in at_once.items()
    } == {
        "both": True,
        "init": True,
        "group": False,
        "odd": False,
    }


@cases(CASES, "lists")
def test_lists_of_gpus(annotations: dict[str, str], allow: list[str] | None, deny: list[str]) -> None:
    demand = parse(pod("i915=1", **annotations), LISTS)
    assert demand.allow == (None if allow is None else {*allow})
    assert demand.deny == {*deny}
    without_lists = parse(pod("i915=1", **annotations))
    assert (without_lists.allow, without_lists.deny) == (None, frozenset())


@pytest.mark.parametrize("key", ["gas_allow", "gas_deny"])
def test_a_list_has_an_end(key: str) -> None:
    kind, words = refusal(pod("i915=1", **{key: "card1," * 1024}), LISTS)
    assert (kind, words) == (RejectionKind.MALFORMED, f"{key.replace('_', '-')} has more than 1024 names")


def annotated_pod(**annotations: str) -> GpuPod:
    renamed = {f"nodewise.io/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return raw_pod([container("c0", "i915=1")], (), renamed)


def test_models_are_named_between_commas() -> None:
    assert parse(annotated_pod(gpu_models="V100M16, V100M32,")).models == {"V100M16", "V100M32"}
    assert parse(annotated_pod()).models is None
    expected = (RejectionKind.MALFORMED, "nodewise.io/gpu-models names no model")
    assert refusal(annotated_pod(gpu_models=" ,")) == expected


@pytest.mark.parametrize("word", ["first-fit", "pack", "spread", "balanced", "fragmentation"])
def test_a_pod_may_say_how_it_is_placed(word: str) -> None:
    assert parse(annotated_pod(gpu_placement=word)).placement == word


@pytest.mark.parametrize("word", ["", "Pack", "best", "pack,spread"])
def test_an_unknown_placement_is_refused(word: str) -> None:
    assert refusal(annotated_pod(gpu_placement=word)) == (
        RejectionKind.MALFORMED,
        "nodewise.io/gpu-placement is none of first-fit, pack, spread, balanced, fragmentation",
    )


def test_annotations_count_by_being_there() -> None:
    pod_demand = parse(pod("i915=2", gas_allocate_xelink="false", gas_allocate_single_numa=""))
    assert (pod_demand.linked, pod_demand.single_numa) == (True, True)


def test_a_limit_without_a_request_is_a_request() -> None:
    limits = {"gpu.intel.com/i915": 2, "gpu.intel.com/millicores": 10, "cpu": "1"}
    requests = {"gpu.intel.com/millicores": "4", "cpu": None}
    pod_demand = parse(raw_pod([{"name": "c0", "resources": {"limits": limits, "requests": requests}}]))
    assert container_counts(pod_demand) == [(2, {"i915": 1, "millicores": 2})]
    assert pod_demand.cpu_milli == 1000


@pytest.mark.parametrize(
    ("cpu", "milli"), [("1500m", 1500), (2, 2000), ("1u", 1), (0.25, 250), ("x", 0), (None, 0), ("-1", 0)]
)
def test_cpu_of_typical_pods(cpu: Any, milli: int) -> None:
    requests = {"gpu.intel.com/i915": "1", "cpu": cpu}
    assert parse(raw_pod([{"name": "c0", "resources": {"requests": requests}}])).cpu_milli == milli


def test_other_profiles_have_other_names() -> None:
    gpu_pod = pod("nvidia.com/gpu=2 nvidia.com/gpu-milli=901 nvidia.com/mig-1g.5gb=1 i915=1")
    pod_demand = pod_gpu_requests.parse_demand(gpu_pod, GENERIC, OPTIONS)
    assert [(container.count, dict(container.per_gpu)) for container in pod_demand.containers] == [
        (2, {"nvidia.com/gpu": 1, "nvidia.com/gpu-milli": 450})
    ]
    assert pod_gpu_requests.parse_demand(pod("nvidia.com/mig-1g.5gb=1"), GENERIC, OPTIONS) == NOTHING


def test_allocations_count_the_whole_request_of_a_refused_pod() -> None:
    gpu_pod = pod("i915=2 mc=5", "mc=7 foo=x", "", init=[container("i", "i915=1")])
    totals = [
        {INTEL.short(name): amount for name, amount in totals_of_container.items()}
        for totals_of_container in gpu_pod_fields.container_amounts(gpu_pod, INTEL)
    ]
    assert totals == [{"i915": 2, "millicores": 5}, {"millicores": 7}, {}]


def test_names_of_any_length_make_no_long_text() -> None:
    gpu_pod = raw_pod([container("c" * 10_000, "x" * 10_000 + "=1")])
    pod_demand = parse(gpu_pod)
    assert pod_demand.problem is not None
    assert len(pod_demand.problem.text()) < 300


def test_pods_of_one_kind_ask_one_question() -> None:
    same = {parse(pod("i915=2 mc=5")), parse(pod("mc=5 i915=2")), parse(pod("mc=5 i915=2 t=0"))}
    assert len(same) == 1
    assert len(same | {parse(pod("i915=2 mc=6"))}) == 2


def test_a_pod_in_the_books_is_read_like_one_to_be_placed() -> None:
    body = (
        b'{"metadata": {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "7", "annotations": null,'
        b' "labels": {"a": "b", "gpu.aware.scheduling/deschedule-pod": "gpu"}}, "status": {"phase": "Running"},'
        b' "spec": {"nodeName": "n", "containers": [{"name": "c0", "resources":'
        b' {"requests": {"gpu.intel.com/i915": "1"}}}]}}'
    )
    decoded = msgspec.json.decode(body, type=AllocatedPod)
    assert (decoded.metadata.uid, decoded.metadata.resourceVersion, decoded.spec.nodeName) == ("u", "7", "n")
    assert decoded.metadata.labels is not None
    assert decoded.metadata.labels.deschedule == "gpu"
    assert parse(decoded) == parse(pod("i915=1"))


def test_a_pod_has_so_many_containers() -> None:
    most = allocation_record.MOST_CONTAINERS
    assert len(container_counts(parse(pod("i915=1", *[""] * (most - 1))))) == most == 64
    kind, words = refusal(pod("i915=1", *[""] * most))
    expected = (RejectionKind.BAD_ARGS, "the pod has 65 containers; at most 64 where one asks for GPUs")
    assert (kind, words) == expected
    assert parse(pod(*[""] * (most + 1), "i915=0")) == NOTHING


def test_annotations_leave_room_for_those_of_the_cards() -> None:
    gpu_pod = pod("i915=1")
    room = allocation_record.MOST_ANNOTATION_BYTES - allocation_record.max_annotation_bytes(
        parse(gpu_pod).containers, INTEL.subdevices
    )
    for size, fits in ((room, True), (room + 1, False)):
        metadata = msgspec.structs.replace(gpu_pod.metadata, annotations={"ü": "x" * (size - 2)})
        annotated_pod = msgspec.structs.replace(gpu_pod, metadata=metadata)
        assert (parse(annotated_pod).problem is None) == fits
        if not fits:
            assert f"have {size} bytes; at most {room}" in refusal(annotated_pod)[1]


def test_many_containers_and_resources_are_looked_at_up_to_a_bound() -> None:
    """One pod must neither delay the search by seconds nor fill the memory with arrays of its resources."""
    most, names = allocation_record.MOST_GPUS, pod_gpu_requests.MOST_RESOURCES
    assert len(container_counts(parse(pod(*["i915=4"] * (most // 4))))) == most // 4
    kind, words = refusal(pod("i915=5", *["i915=4"] * (most // 4 - 1)))
    expected = (RejectionKind.BAD_ARGS, f"the containers ask for more than {most} GPUs altogether")
    assert (kind, words) == expected
    assert parse(pod(f"i915={10**18}", "i915=1")).problem is None
    assert refusal(pod(*[f"i915={10**18}"] * 5)) == (kind, words)
    many = " ".join(f"x{number}=1" for number in range(names))
    assert container_counts(parse(pod(f"i915=1 {many[:-5]}")))
    kind, words = refusal(pod(f"i915=1 {many}"))
    assert kind == RejectionKind.BAD_ARGS
    assert words.startswith(f"the containers ask for {names + 1} resources of GPUs")
    assert parse(pod(f"i915=0 {many}")).problem is not None


@pytest.mark.parametrize("requests", ["i915={}", "i915=1 mc={}", "i915=1 foo={}"])
def test_amounts_with_equal_hashes_make_no_demands_with_equal_hashes(requests: str) -> None:
    """Thousands of pods with such demands would make each look-up of a demand compare all of them."""
    step = 2**61 - 1
    hashes = {hash(parse(pod(requests.format(5 + step * number)))) for number in range(3)}
    assert len(hashes) == 3
    assert hash(parse(pod("i915=1 mc=5 mem=7"))) == hash(parse(pod("i915=1 mem=7 mc=5")))
