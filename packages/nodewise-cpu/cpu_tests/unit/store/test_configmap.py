"""The store in a ConfigMap."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cpu_tests.unit.node.in_memory_api_client import InMemoryApiClient
from cpu_tests.unit.store.store_suite import FREE, HELD, StoreSuite
from nodewise.base.errors import BadInput, Conflict
from nodewise.kube.resource_kinds import CONFIG_MAPS
from nodewise_cpu import cmk_names
from nodewise_cpu.configmap_store import LEASE_S, ConfigMapStore, LockClock
from nodewise_cpu.pool_allocations import IDENTITIES

PATH = CONFIG_MAPS.path("ns", "cmk-config-node1")
LOCK = {"metadata": {"annotations": {cmk_names.OWNER: "cmk-isolate-pod"}}}


@pytest.fixture
def api_client() -> InMemoryApiClient:
    return InMemoryApiClient()


@pytest.fixture
def store(api_client: InMemoryApiClient) -> ConfigMapStore:
    return ConfigMapStore(api_client, "ns", "node1")


class TestConfigMapStore(StoreSuite):
    pass


def test_the_older_program_reads_it(store: ConfigMapStore, api_client: InMemoryApiClient) -> None:
    store.create(HELD)
    config_map = api_client.get(PATH)
    assert config_map["metadata"]["annotations"][cmk_names.OWNER] == ""
    expected = {0: {"0,4": ["17"], "1,5": []}, 1: {}}
    assert yaml.load(config_map["data"]["config"], yaml.CSafeLoader)["exclusive"] == expected


def test_keys_and_annotations_of_others_are_kept(
    store: ConfigMapStore, api_client: InMemoryApiClient
) -> None:
    store.create(FREE)
    api_client.patch(PATH, {"metadata": {"annotations": {"a": "b"}}, "data": {"other": "x"}}, "merge")
    store.replace(store.read().version, HELD)
    config_map = api_client.get(PATH)
    assert config_map["metadata"]["annotations"]["a"] == "b"
    assert config_map["data"]["other"] == "x"


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"data": None}, "data.config"),
        ({"data": {"config": "a: ["}}, "YAML"),
        ({"data": {"config": "exclusive: 5"}}, "exclusive"),
        ({"metadata": {"annotations": {IDENTITIES: "x"}}}, IDENTITIES),
        ({"metadata": {"annotations": {cmk_names.INTENT: "x"}}}, cmk_names.INTENT),
        ({"metadata": {"annotations": {cmk_names.INTENT: "{}"}}}, cmk_names.INTENT),
    ],
)
def test_error_names_unreadable_part(
    store: ConfigMapStore, api_client: InMemoryApiClient, change: dict[str, Any], seen: str
) -> None:
    store.create(FREE)
    api_client.patch(PATH, change, "merge")
    with pytest.raises(BadInput, match=seen) as caught:
        store.read()
    assert str(caught.value).startswith("cannot read ConfigMap ns/cmk-config-node1: ")


class SimulatedWait:
    """A store with a simulated clock, and events at certain seconds."""

    def __init__(self, api_client: InMemoryApiClient, events: dict[int, dict[str, Any]]) -> None:
        self.seconds, self._api_client, self._events = 0.0, api_client, events
        self.warnings: list[str] = []
        self.store = ConfigMapStore(
            api_client,
            "ns",
            "node1",
            warn=self.warnings.append,
            clock=LockClock(lambda: self.seconds, self._sleep),
        )

    def _sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if change := self._events.pop(int(self.seconds), None):
            self._api_client.patch(PATH, change, "merge")


@pytest.fixture
def locked(store: ConfigMapStore, api_client: InMemoryApiClient) -> Iterator[InMemoryApiClient]:
    store.create(FREE)
    api_client.patch(PATH, LOCK, "merge")
    return api_client


def test_the_lock_of_cmk_is_waited_for(locked: InMemoryApiClient) -> None:
    release = {"metadata": {"annotations": {cmk_names.OWNER: ""}}}
    waiting = SimulatedWait(locked, {3: release})
    version = waiting.store.read().version
    with pytest.raises(Conflict):
        waiting.store.replace(version, HELD)
    assert waiting.seconds == 3
    waiting.store.replace(waiting.store.read().version, HELD)
    assert (waiting.store.read().allocations, waiting.seconds, waiting.warnings) == (HELD, 3, [])


def test_a_lock_is_taken_over_when_nothing_has_happened_for_long(locked: InMemoryApiClient) -> None:
    """Case 103."""
    waiting = SimulatedWait(locked, {})
    waiting.store.replace(waiting.store.read().version, HELD)
    assert waiting.seconds == LEASE_S
    assert waiting.store.read().allocations == HELD
    assert locked.get(PATH)["metadata"]["annotations"][cmk_names.OWNER] == ""
    assert "cmk-isolate-pod" in waiting.warnings[0]


def test_the_lock_of_an_active_owner_is_not_taken_over(locked: InMemoryApiClient) -> None:
    """Writes of the older program are never lost while it holds its lock."""
    theirs = {"data": {"config": yaml.safe_dump({"exclusive": {0: {"0,4": ["99"], "1,5": []}}})}}
    waiting = SimulatedWait(locked, {int(LEASE_S) - 1: theirs})
    with pytest.raises(Conflict):
        waiting.store.replace(waiting.store.read().version, HELD)
    assert [
        task.pid for _, cpu_list in waiting.store.read().allocations.cpu_lists for task in cpu_list.tasks
    ] == [99]
    assert json.dumps(waiting.warnings) == "[]"
