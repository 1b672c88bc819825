"""Typical pods: parsed, counted and stored."""

import json

import pytest

from nodewise.agents.gpu import typical_pods
from nodewise.agents.gpu.extended_resource_amounts import Amounts
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.typical_pods import (
    DemandConfigMap,
    DemandHistogram,
    DemandMetadata,
    History,
    PodClass,
)
from nodewise.agents.gpu.vendor_resource_names import GENERIC
from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise.base.errors import BadSettings
from tests.unit.agents.gpu.gpu_fragmentation_layouts import demand, share

HALF = "{cpu: 3152m, nvidia.com/gpu: 1, nvidia.com/gpu-milli: 500}"
EXPECTED = {share(500, cpu_milli=3152): 7, share(1000, gpus=8, models=["A", "B"]): 2}


def load(tmp_path, text, name="pods.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return typical_pods.load_typical_pods(str(path), GENERIC, GpuOptions(gpu_profile="generic"))


def encode(history: History) -> dict[str, str]:
    return dict(run_without_pauses(typical_pods.encode_histogram(DemandHistogram(history, ""))))


def decode(data: dict[str, str]) -> History:
    configmap = DemandConfigMap(DemandMetadata(typical_pods.NAME), data)
    return run_without_pauses(typical_pods.parse_histogram(configmap)).history


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "pods.yaml",
            (
                f"- {{pods: 7, requests: {HALF}}}\n"
                "- {pods: 2, requests: {nvidia.com/gpu: 8, nvidia.com/gpu-milli: 8000}, models: [A, B]}"
            ),
        ),
        (
            "pods.json",
            (
                '[{"pods": 7, "requests": {"cpu": "3152m", "nvidia.com/gpu": 1, "nvidia.com/gpu-milli": 500}},'
                '{"pods": 2, "requests": {"nvidia.com/gpu": "8", "nvidia.com/gpu-milli": "8k"}, "models": ["B", "A"]}]'
            ),
        ),
        (
            "pods.csv",
            "pods,cpu,models,nvidia.com/gpu,nvidia.com/gpu-milli\n7,3152m,,1,500\n2,,A|B,8,8000\n",
        ),
    ],
)
def test_a_file_is_read(tmp_path, name, text) -> None:
    assert load(tmp_path, text, name) == EXPECTED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1", "expected a list"),
        ("- 1", "entry 1: 1"),
        ("- {pods: 0, requests: " + HALF + "}", "entry 1: pods: 0; expected a whole number above 0"),
        ("- {pod: 1, requests: " + HALF + "}", "entry 1: pod: an unknown field"),
        ("- {requests: {cpu: 1}}", "entry 1: requests: ['cpu']; expected some nvidia.com/gpu"),
        ("- {requests: {nvidia.com/gpu: 1.5}}", "no whole number"),
        ("- {requests: [1]}", "entry 1: requests"),
        ("- {requests: " + HALF + ", models: A}", "entry 1: models: 'A'; expected a list of names"),
        ("- {requests: {nvidia.com/gpu: 1}}\n- 2\n- 3", "entry 3"),
        ("- [", "a readable YAML, JSON or CSV file"),
    ],
)
def test_problems_of_a_file_name_entry_and_field(tmp_path, text, words) -> None:
    with pytest.raises(BadSettings) as error:
        load(tmp_path, text)

    assert words in str(error.value)


def test_only_the_last_seven_days_count() -> None:
    half_gpu = share(500)
    history = {day: {half_gpu: 2} for day in range(100, 110)}

    assert typical_pods.counts_of_recent_classes(history, 109) == {half_gpu: 14}
    assert typical_pods.counts_of_recent_classes(history, 112) == {half_gpu: 8}


def test_a_history_survives_the_config_map() -> None:
    history = {20000: EXPECTED, 20001: {share(100): 1}}

    assert decode(encode(history)) == history


def test_the_config_map_has_place_for_whatever_tenants_ask_for() -> None:
    names = [frozenset(f"{number}-{at}" for at in range(500)) for number in range(300)]
    wide = {
        PodClass(1, Amounts({"nvidia.com/gpu": 1}), number, models): 9 for number, models in enumerate(names)
    }
    plain = PodClass(1, Amounts({"nvidia.com/gpu": 1}))
    long = {PodClass(1, Amounts({"nvidia.com/gpu": 1}), 0, frozenset({f"{n:0400}"})): 9 for n in range(300)}
    data = encode({day: {**wide, **long, plain: 10} for day in range(7)})
    assert sum(map(len, data.values())) < 2**20
    assert plain in decode(data)[3]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{}",
        "null",
        '[{"pods": 0, "cards": 1, "per_card": {"a": 1}}]',
        '[{"pods": 1, "cards": 0, "per_card": {"a": 1}}]',
        '[{"pods": 1, "cards": 1, "per_card": {}}]',
        '[{"pods": 1, "cards": 1, "per_card": {"a": -1}}]',
        '[{"pods": 1, "cards": 1, "per_card": {"a": 99999999999999999999}}]',
        "[" * 100_000,
    ],
)
def test_garbage_in_the_config_map_is_left_out(text) -> None:
    good = json.dumps([{"pods": 2, "cards": 1, "per_card": {"a": 3}}, 7])

    history = decode({"day-5": text, "day-6": good, "day-x": good, "other": good})

    assert [sum(counts.values()) for counts in history.values()] == [2]


def test_each_container_with_cards_is_a_class() -> None:
    single = demand(500, cpu_milli=100)
    both = single._replace(containers=(*single.containers, *demand(200, gpus=2).containers))

    actual = list(typical_pods.pod_classes(both))
    assert actual == [share(500, cpu_milli=100), share(200, gpus=2, cpu_milli=100)]
