"""Laws of the demand of pods, for any requests and annotations."""

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from nodewise.agents.gpu import gpu_pod_fields, pod_gpu_requests
from nodewise.agents.gpu.gpu_pod_fields import GpuPod
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.pod_gpu_requests import NOTHING
from nodewise.agents.gpu.vendor_resource_names import GENERIC, INTEL, ResourceProfile

RESOURCES = st.sampled_from(
    [f"{INTEL.prefix}{name}" for name in ("i915", "xe", "tiles", "millicores", "i915_monitoring")]
    + ["nvidia.com/gpu", "nvidia.com/gpumem", "cpu"]
)
QUANTITIES = st.from_regex(
    r"[+-]?[0-9]{1,20}(\.[0-9]{1,3})?([numkMGTPE]|[KMGTPE]i|e[0-9]{1,3})?", fullmatch=True
)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
AMOUNTS = st.integers(0, 4).map(str) | QUANTITIES | NUMBERS | st.none() | st.text(max_size=5)
REQUESTS = st.none() | st.dictionaries(RESOURCES | st.text(max_size=4), AMOUNTS, max_size=5)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["c0", "c1", "c2"]) | st.text(max_size=70)},
        optional={
            "resources": st.none()
            | st.fixed_dictionaries({}, optional={"requests": REQUESTS, "limits": REQUESTS}),
            "restartPolicy": st.none() | st.just("Always"),
        },
    ),
    max_size=4,
)
KEYS = [
    pod_gpu_requests.ALLOW,
    pod_gpu_requests.DENY,
    pod_gpu_requests.SAME_GPU,
    pod_gpu_requests.LINKED,
    pod_gpu_requests.SINGLE_NUMA,
    pod_gpu_requests.MODELS,
    pod_gpu_requests.PLACEMENT,
]
WORDS = st.sampled_from(["c0,c1", "c1,c2,c0", "card0", "pack", "", ",", "V100"]) | st.text(max_size=100)
ANNOTATIONS = st.none() | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), WORDS, max_size=5)
PROFILES = st.sampled_from([INTEL, GENERIC])
OPTIONS = st.builds(GpuOptions, enable_allowlist=st.booleans(), enable_denylist=st.booleans())


def pod(containers: Any, init: Any = None, annotations: Any = None) -> GpuPod:
    spec = {"containers": containers, "initContainers": init}
    return msgspec.json.decode(
        msgspec.json.encode({"metadata": {"annotations": annotations}, "spec": spec}), type=GpuPod
    )


@given(CONTAINERS, st.none() | CONTAINERS, ANNOTATIONS, PROFILES, OPTIONS)
@example(
    [{"name": "c0", "resources": {"requests": {"nvidia.com/gpu": "9" * 5000}}}],
    None,
    None,
    GENERIC,
    GpuOptions(),
)
def test_whatever_a_pod_says_is_a_demand_within_bounds_or_a_problem_in_few_words(
    containers: Any, init: Any, annotations: Any, profile: ResourceProfile, options: GpuOptions
) -> None:
    parsed = pod_gpu_requests.parse_demand(pod(containers, init, annotations), profile, options)
    if parsed.problem is not None:
        assert parsed == pod_gpu_requests.Demand(problem=parsed.problem, refused=parsed.refused)
        assert all(map(profile.has, parsed.refused))
        assert len(parsed.refused) <= pod_gpu_requests.MOST_RESOURCES
        assert parsed.problem.words
        assert parsed.problem.hint
        assert len(parsed.problem.text()) <= 256
        assert parsed.wants_gpus
        return
    assert parsed == NOTHING or len(parsed.containers) == len(containers)
    for container in parsed.containers:
        assert 0 <= container.count < 2**63
        assert all(
            profile.has(resource) and 0 <= amount < 2**63 for resource, amount in container.per_gpu.items()
        )
        assert bool(container.count) == bool(container.per_gpu)
        assert not container.count or any(container.per_gpu.get(resource) == 1 for resource in profile.counts)
        assert not (parsed.linked and container.count % 2)
    assert not parsed.same_gpu or all(parsed.containers[at].count == 1 for at in parsed.same_gpu)
    assert len(parsed.same_gpu) == len(set(parsed.same_gpu)) != 1


@given(CONTAINERS, st.none() | CONTAINERS, ANNOTATIONS, PROFILES, OPTIONS)
def test_equal_pods_ask_equal_questions(
    containers: Any, init: Any, annotations: Any, profile: ResourceProfile, options: GpuOptions
) -> None:
    first, again = (
        pod_gpu_requests.parse_demand(pod(containers, init, annotations), profile, options) for _ in range(2)
    )
    assert (first, hash(first)) == (again, hash(again))


@given(CONTAINERS, st.none() | CONTAINERS, ANNOTATIONS)
def test_a_pod_that_names_none_of_our_resources_has_nothing_to_do_with_us(
    containers: Any, init: Any, annotations: Any
) -> None:
    given_pod = pod(containers, init, annotations)
    if not gpu_pod_fields.requests_gpu_resources(given_pod, INTEL):
        assert pod_gpu_requests.parse_demand(given_pod, INTEL, GpuOptions()) == NOTHING


@given(CONTAINERS, PROFILES)
def test_shares_of_all_cards_do_not_exceed_the_request(containers: Any, profile: ResourceProfile) -> None:
    given_pod = pod(containers)
    parsed, whole = (
        pod_gpu_requests.parse_demand(given_pod, profile, GpuOptions()),
        gpu_pod_fields.container_amounts(given_pod, profile),
    )
    assert len(whole) == len(containers)
    for container, amount in zip(parsed.containers, whole, strict=False):
        for resource, share in container.per_gpu.items():
            assert 0 <= amount[resource] - share * container.count < container.count
