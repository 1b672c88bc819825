"""Properties of the advertisement: it is idempotent, and keeps the changes of others."""

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodewise.kube.resource_kinds import NODES
from nodewise.scheduling_model.in_memory_api import FakeApi
from nodewise_cpu.cluster import api_server, exclusive_core_advertisement
from nodewise_cpu.cluster.api_server import TABLE, ApiFeatures
from nodewise_cpu.cluster.blocking_client import BlockingClient
from nodewise_cpu.cmk_names import EXCLUSIVE_CORES, LABEL, NON_ISOLCPUS_CORES, TAINT

FAKE = FakeApi()
CLIENT = BlockingClient(FAKE)
NAMES = map("n{}".format, itertools.count())

DIALECTS = st.sampled_from([row for row in TABLE if row.resources])
EFFECTS = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])
TAINTS = st.lists(
    st.fixed_dictionaries(
        {"key": st.sampled_from(["a", "b", "cmk.example.com/c", TAINT]), "effect": EFFECTS},
        optional={"value": st.sampled_from(["", "true"]), "timeAdded": st.just("2026-01-02T03:04:05Z")},
    ),
    unique_by=lambda taint: (taint["key"], taint["effect"]),
    max_size=4,
)
CAPACITY = st.dictionaries(
    st.sampled_from(["cpu", "memory", "example.com/card", EXCLUSIVE_CORES, NON_ISOLCPUS_CORES]),
    st.integers(0, 5).map(str),
)
COUNTS = st.fixed_dictionaries(
    {EXCLUSIVE_CORES: st.integers(0, 9)}, optional={NON_ISOLCPUS_CORES: st.integers(0, 9)}
)


def a_node(dialect: ApiFeatures, taints: list[Any], capacity: dict[str, str]) -> str:
    """The name of a node with these taints in the version's form."""
    name = next(NAMES)
    spec = exclusive_core_advertisement.taints_patch(taints, dialect)
    metadata = {**spec.get("metadata", {}), "name": name, "labels": {"zone": "a"}}
    CLIENT.create(
        NODES.path(), {**spec, "metadata": metadata, "status": {"capacity": capacity, "phase": "x"}}
    )
    return name


def others(name: str, dialect: ApiFeatures) -> tuple[Any, ...]:
    """All fields of the node except those of the advertisement."""
    node = CLIENT.get(NODES.path(name=name))
    taints = [
        taint for taint in exclusive_core_advertisement.read_taints(node, dialect) if taint["key"] != TAINT
    ]
    capacity = {
        key: node["status"]["capacity"][key] for key in node["status"]["capacity"] if "cmk" not in key
    }
    labels = {key: value for key, value in node["metadata"]["labels"].items() if key != LABEL}
    return taints, capacity, labels, node["status"]["phase"]


@given(DIALECTS, TAINTS, CAPACITY, COUNTS, st.booleans())
def test_advertisement_is_idempotent_and_keeps_the_changes_of_others(
    dialect: ApiFeatures, taints: list[Any], capacity: dict[str, str], counts: dict[str, int], taint: bool
) -> None:
    name = a_node(dialect, taints, capacity)
    before = others(name, dialect)
    exclusive_core_advertisement.advertise(CLIENT, name, counts, taint=taint, features=dialect)
    advertised = CLIENT.get(NODES.path(name=name))
    assert not exclusive_core_advertisement.advertise(CLIENT, name, counts, taint=taint, features=dialect)
    assert CLIENT.get(NODES.path(name=name)) == advertised
    assert others(name, dialect) == before
    for resource, resource_name in dialect.resources.items():
        count = counts.get(resource, 0)
        wanted = str(count) if count or resource == EXCLUSIVE_CORES else None
        assert advertised["status"]["capacity"].get(resource_name) == wanted
    assert not taint or any(
        exclusive_core_advertisement.is_cpu_manager_taint(taint)
        for taint in exclusive_core_advertisement.read_taints(advertised, dialect)
    )
    exclusive_core_advertisement.withdraw_node_resources(CLIENT, name, features=dialect)
    left = CLIENT.get(NODES.path(name=name))
    assert others(name, dialect) == before
    assert LABEL not in left["metadata"]["labels"]
    assert not any(
        resource_name in left["status"]["capacity"] for resource_name in dialect.resources.values()
    )
    assert not exclusive_core_advertisement.withdraw_node_resources(CLIENT, name, features=dialect)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4), st.sampled_from(["", "-rc.1", "+k3s1", "-gke.100"])
)
def test_a_version_is_understood_by_the_newest_row_that_is_not_newer(numbers: list[int], end: str) -> None:
    version = api_server.parse_kubernetes_version("v" + ".".join(map(str, numbers)) + end)
    row = api_server.features_of_kubernetes_version(version)
    assert row.since <= version
    assert all(other.since > version for other in TABLE[TABLE.index(row) + 1 :])
