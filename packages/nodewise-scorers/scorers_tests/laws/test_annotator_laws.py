"""Laws of annotations, for any measurements, requests and existing annotations."""

from math import isnan, nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from nodewise.base.cooperative_scheduling import run_without_pauses
from nodewise_scorers.annotator import node_patches, node_usage
from nodewise_scorers.annotator.node_usage import NodeUsage, ResourceUsage
from nodewise_scorers.statistics import load_annotations
from nodewise_scorers.statistics.load_annotations import ANNOTATED_AT, Capacity
from scorers_tests.unit.annotator.annotator_node_and_pod_builders import pod, read_pods

NOW = 1_800_000_000.0
MAX_AGE_S = 3600
WHOLE = st.builds(Capacity, st.integers(0, 2**53), st.integers(0, 2**53))
NUMBERS = st.floats() | st.floats(0, 1e18) | st.just(nan)
USED = st.builds(ResourceUsage, NUMBERS, NUMBERS, NUMBERS)
USAGE = st.builds(NodeUsage, USED, USED)
TEXTS = st.sampled_from(
    ["", "0", "-1", "100", "1e308", "NaN", "inf", "N/A", "2000m", "1610612736.0"]
) | st.text(max_size=12)
TIMES = st.sampled_from(
    ["", "yesterday", "2027-01-15T08:00:00Z", "2099-01-01T00:00:00Z", "1970-01-01T00:00:00Z"]
)
STANDING = st.dictionaries(st.sampled_from(node_usage.USAGE_KEYS), TEXTS) | st.fixed_dictionaries(
    {ANNOTATED_AT: TIMES}, optional=dict.fromkeys(node_usage.USAGE_KEYS, TEXTS)
)
QUANTITIES = (
    st.none() | st.integers(-(10**20), 10**20) | st.sampled_from(["1", "250m", "1.5Gi", "-3", "much", "1e3"])
)
PODS = st.lists(st.dictionaries(st.sampled_from(["cpu", "memory", "gpu", "x/y"]), QUANTITIES), max_size=4)


@given(USAGE, WHOLE)
def test_free_amounts_are_between_zero_and_allocatable(measured: NodeUsage, whole: Capacity) -> None:
    for key, text in node_usage.usage_annotations(measured, whole).items():
        if text is not None:
            most = whole.cpu_milli if key.endswith("cpu") else whole.memory_bytes
            assert 0 <= load_annotations.number(text) <= most


@given(USAGE, WHOLE)
def test_a_reader_has_the_real_use_again(measured: NodeUsage, whole: Capacity) -> None:
    texts = node_usage.usage_annotations(measured, whole)
    for key, used, most, digits in (
        (load_annotations.MEAN_FREE_CPU, measured.cpu.mean, whole.cpu_milli, 0.001),
        (load_annotations.MEAN_FREE_MEMORY, measured.memory.mean, whole.memory_bytes, 1.0),
    ):
        if texts[key] is not None:
            read = most - load_annotations.number(texts[key])
            assert abs(read - min(max(used, 0), most)) <= digits + 1e-12 * most


@given(STANDING, USAGE, WHOLE)
def test_written_annotations_are_not_written_again(
    stands: dict[str, str], measured: NodeUsage, whole: Capacity
) -> None:
    wanted = node_usage.usage_annotations(measured, whole)
    written = node_patches.compute_patch(stands, wanted, {}, NOW, MAX_AGE_S)
    left = {key: text for key, text in {**stands, **written}.items() if text is not None}
    assert node_patches.compute_patch(left, wanted, {}, NOW, MAX_AGE_S) == {}


@given(STANDING, USAGE, WHOLE)
def test_fresh_annotations_are_right_within_two_percent(
    stands: dict[str, str], measured: NodeUsage, whole: Capacity
) -> None:
    wanted = node_usage.usage_annotations(measured, whole)
    left = {**stands, **node_patches.compute_patch(stands, wanted, {}, NOW, MAX_AGE_S)}
    assert (
        node_patches.statistics_age_s({key: text for key, text in left.items() if text}, NOW) < MAX_AGE_S / 2
    )
    for key, text in wanted.items():
        stood = load_annotations.number(left.get(key))
        if text is None:
            assert left.get(key) is None
        else:
            assert abs(load_annotations.number(text) - stood) <= 0.02 * abs(stood)


@given(STANDING)
def test_unmeasured_nodes_get_no_new_annotations(stands: dict[str, str]) -> None:
    assert node_patches.patch_without_usage(stands, {}, NOW, MAX_AGE_S) == {}


@given(PODS, WHOLE)
def test_requested_and_free_amounts_are_whole_numbers(
    pod_requests: list[dict[str, object]], whole: Capacity
) -> None:
    pods = read_pods(*(pod(str(number), "a", requests) for number, requests in enumerate(pod_requests)))
    allocated = run_without_pauses(node_patches.allocation_by_node(pods)).get("a", node_patches.Allocation())
    for text in node_patches.allocation_annotations(allocated, whole).values():
        assert text.isascii()
        assert text.isdigit()
    assert allocated.pods == len(pod_requests)


@given(arrays.arrays(np.float64, st.integers(1, 400), elements=st.floats(0, 1e15)), st.integers(1, 120))
def test_chunks_keep_the_mean(samples: np.ndarray, chunks: int) -> None:
    means = node_usage.means_of_sample_chunks(samples, chunks)
    assert len(means) == min(len(samples), chunks)
    assert samples.min() * (1 - 1e-9) <= means.min()
    assert means.max() <= samples.max() * (1 + 1e-9)
    if len(samples) % chunks == 0:
        np.testing.assert_allclose(means.mean(), samples.mean(), rtol=1e-9)


@given(arrays.arrays(np.float64, st.integers(0, 150), elements=st.floats(0, 1e15) | st.just(nan)))
def test_a_forecast_is_near_the_samples_or_missing(samples: np.ndarray) -> None:
    ahead = node_usage.predict_next(samples)
    if len(samples) < node_usage.MIN_VALUES or np.isnan(samples).any():
        assert isnan(ahead)
    else:
        spread = samples.max() - samples.min()
        assert samples.min() - spread <= ahead <= samples.max() + spread
