"""The histogram of new pods, and the treatment of invalid data in its ConfigMap."""

from typing import Any

import msgspec
import pytest

from nodewise.agents.gpu import typical_pods
from nodewise.agents.gpu.gpu_pod_fields import AllocatedPod
from nodewise.agents.gpu.options import GpuOptions
from nodewise.agents.gpu.state import DEMAND_CONFIGMAP
from nodewise.agents.gpu.typical_pods import (
    NAME,
    UNTIL,
    DemandConfigMap,
    DemandHistogram,
    DemandMetadata,
    DemandReader,
)
from nodewise.agents.gpu.vendor_resource_names import INTEL
from nodewise.base import clock, cooperative_scheduling
from tests.unit.agents.gpu.gpu_cluster_state_builders import agent_state, cluster_state, node, pod

NOW = clock.parse_rfc3339("2026-11-21T12:00:00Z")
TODAY = int(NOW // 86_400)
READER = DemandReader(INTEL, GpuOptions(), NOW)
NOTHING = DemandHistogram({}, "")


def new_pod(name: str, at: str = "2026-11-21T11:00:00Z", requests: str = "i915=1 mc=100") -> AllocatedPod:
    made = pod(name, requests=(requests,))
    return msgspec.structs.replace(
        made, metadata=msgspec.structs.replace(made.metadata, creationTimestamp=at)
    )


def add(counted: DemandHistogram, old: Any = (), new: Any = ()) -> DemandHistogram:
    return cooperative_scheduling.run_without_pauses(
        typical_pods.add_pods_to_histogram(counted, old, new, READER)
    )


def counts(counted: DemandHistogram) -> dict[int, int]:
    """The number of pods by days before today."""
    return {TODAY - day: sum(classes.values()) for day, classes in counted.history.items()}


def config_map(counted: DemandHistogram) -> DemandConfigMap:
    return DemandConfigMap(
        DemandMetadata(NAME, "nw", "1"),
        dict(cooperative_scheduling.run_without_pauses(typical_pods.encode_histogram(counted))),
    )


def test_each_counts_on_the_day_on_which_it_came() -> None:
    pods = [
        new_pod("a"),
        new_pod("b", "2026-11-19T01:00:00Z"),
        new_pod("c", "2026-11-14T01:00:00Z"),
        new_pod("d", ""),
    ]
    histogram = add(NOTHING, pods)
    assert counts(histogram) == {0: 1, 2: 1}, (
        "what is older than seven days does not count, nor without a time"
    )
    assert histogram.until == "2026-11-21T11:00:00Z"
    assert counts(add(NOTHING, new=[new_pod("d", "")])) == {0: 1}


def test_those_that_a_leader_before_counted_are_not_counted_again() -> None:
    before = add(NOTHING, [new_pod("a")])
    again = add(
        before,
        [new_pod("a"), new_pod("b", "2026-11-21T11:00:01Z")],
        [new_pod("late", "2026-11-21T10:59:00Z")],
    )
    assert counts(again) == {0: 3}


def test_pods_without_gpus_have_no_class() -> None:
    assert add(NOTHING, [new_pod("a", requests="")]).history == {}


def test_written_histogram_is_read_again() -> None:
    histogram = add(
        NOTHING, [new_pod("a"), new_pod("b"), new_pod("c", "2026-11-20T01:00:00Z", "i915=2 mc=500")]
    )
    actual = cooperative_scheduling.run_without_pauses(typical_pods.parse_histogram(config_map(histogram)))
    assert actual == histogram
    assert cooperative_scheduling.run_without_pauses(typical_pods.parse_histogram(None)) == NOTHING


@pytest.mark.parametrize(
    "data", [None, {}, {"day-x": "[]"}, {f"day-{TODAY}": "{"}, {f"day-{TODAY}": '[{"pods": -1}]'}]
)
def test_garbage_counts_for_nothing(data: dict[str, str] | None) -> None:
    histogram = cooperative_scheduling.run_without_pauses(
        typical_pods.parse_histogram(DemandConfigMap(DemandMetadata(NAME), data))
    )
    assert histogram.history == {}
    assert counts(add(histogram, [new_pod("a")])) == {0: 1}


def test_a_time_in_the_future_stops_no_counting_of_those_that_come() -> None:
    wild = cooperative_scheduling.run_without_pauses(
        typical_pods.parse_histogram(DemandConfigMap(DemandMetadata(NAME), {UNTIL: "x"}))
    )
    assert counts(add(wild, new=[new_pod("a")])) == {0: 1}


def test_the_body_is_bound_to_the_version_that_was_read() -> None:
    assert "resourceVersion" not in typical_pods.histogram_config_map({}, "nw", "")["metadata"]
    expected = {"name": NAME, "namespace": "nw", "resourceVersion": "7"}
    assert typical_pods.histogram_config_map({}, "nw", "7")["metadata"] == expected


def test_agent_state_has_tables_of_counted_pods() -> None:
    plain = cluster_state({"n1": node()})
    assert not agent_state(plain).workload
    objects = {**plain.objects, DEMAND_CONFIGMAP: {("nw", NAME): config_map(add(NOTHING, [new_pod("a")]))}}
    cluster = msgspec.structs.replace(plain, objects=objects, now=NOW)
    assert list(agent_state(cluster).workload.resources) == ["gpu.intel.com/i915", "gpu.intel.com/millicores"]
    eight_days_later = msgspec.structs.replace(cluster, now=NOW + 8 * 86_400)
    assert not agent_state(eight_days_later).workload
