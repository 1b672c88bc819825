"""Tests of every `ApiClient`, with an in-memory and with a real API server."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nodewise.base.errors import Conflict
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.resource_kinds import Resource
from nodewise_cpu.cluster.api_server import ApiClient

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


def item(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


class ApiClientSuite:
    """Tests of an `ApiClient`. Subclasses define the fixtures `api_client` and `space`, the namespace of the tests."""

    def test_a_created_object_can_be_read(self, api_client: ApiClient, space: str) -> None:
        made = api_client.create(CONFIG_MAPS.path(space), item("a", x="1"))
        assert api_client.get(CONFIG_MAPS.path(space, "a")) == made
        assert made["data"] == {"x": "1"}
        assert made["metadata"]["resourceVersion"]

    def test_parameters_are_passed_on(self, api_client: ApiClient, space: str) -> None:
        for name in ("b1", "b2"):
            api_client.create(CONFIG_MAPS.path(space), item(name))
        config_maps = api_client.get(CONFIG_MAPS.path(space), {"fieldSelector": "metadata.name=b2"})
        assert [config_map["metadata"]["name"] for config_map in config_maps["items"]] == ["b2"]

    def test_a_missing_object_is_not_found(self, api_client: ApiClient, space: str) -> None:
        with pytest.raises(NotFound, match="nothing"):
            api_client.get(CONFIG_MAPS.path(space, "nothing"))
        with pytest.raises(NotFound):
            api_client.delete(CONFIG_MAPS.path(space, "nothing"))

    def test_a_second_create_is_a_conflict(self, api_client: ApiClient, space: str) -> None:
        api_client.create(CONFIG_MAPS.path(space), item("c"))
        with pytest.raises(Conflict):
            api_client.create(CONFIG_MAPS.path(space), item("c"))

    def test_a_replace_of_an_old_version_is_a_conflict(self, api_client: ApiClient, space: str) -> None:
        first = api_client.create(CONFIG_MAPS.path(space), item("d", x="1"))
        api_client.replace(CONFIG_MAPS.path(space, "d"), first | {"data": {"x": "2"}})
        with pytest.raises(Conflict):
            api_client.replace(CONFIG_MAPS.path(space, "d"), first | {"data": {"x": "3"}})
        assert api_client.get(CONFIG_MAPS.path(space, "d"))["data"] == {"x": "2"}

    def test_a_merge_patch_leaves_the_rest(self, api_client: ApiClient, space: str) -> None:
        api_client.create(CONFIG_MAPS.path(space), item("e", x="1", y="1"))
        api_client.patch(CONFIG_MAPS.path(space, "e"), {"data": {"x": "2", "y": None}}, "merge")
        assert api_client.get(CONFIG_MAPS.path(space, "e"))["data"] == {"x": "2"}

    def test_a_delete_may_require_a_version(self, api_client: ApiClient, space: str) -> None:
        made = api_client.create(CONFIG_MAPS.path(space), item("f"))
        api_client.patch(CONFIG_MAPS.path(space, "f"), {"data": {"x": "2"}}, "merge")
        with pytest.raises(Conflict):
            api_client.delete(
                CONFIG_MAPS.path(space, "f"),
                {"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}},
            )
        api_client.delete(CONFIG_MAPS.path(space, "f"))
        with pytest.raises(NotFound):
            api_client.get(CONFIG_MAPS.path(space, "f"))

    def test_threads_may_use_one_client(self, api_client: ApiClient, space: str) -> None:
        """Each thread increments the same number by compare and swap."""
        api_client.create(CONFIG_MAPS.path(space), item("g", x="0"))

        def add() -> None:
            while True:
                current = api_client.get(CONFIG_MAPS.path(space, "g"))
                current["data"]["x"] = str(int(current["data"]["x"]) + 1)
                try:
                    api_client.replace(CONFIG_MAPS.path(space, "g"), current)
                except Conflict:
                    continue
                return

        together(add, 8)
        assert api_client.get(CONFIG_MAPS.path(space, "g"))["data"] == {"x": "8"}


def together(act: Callable[[], None], number: int) -> None:
    """Run a function in several threads, and raise the first error of a thread."""
    raised: list[BaseException] = []

    def safely() -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=safely) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
