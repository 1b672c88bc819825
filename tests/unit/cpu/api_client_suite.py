"""What every `Requests` does, whatever carries the words: stand-in and real API server pass it alike."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nodewise.cpu.api_client import ApiClient
from nodewise.errors import Conflict
from nodewise.kube.api import NotFound
from nodewise.kube.resources import Resource

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


def item(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


class ApiClientSuite:
    """Inherit it beside fixtures `asked` and `space`, a namespace that the suite may write into."""

    def test_what_is_made_can_be_read(self, asked: ApiClient, space: str) -> None:
        made = asked.create(CONFIG_MAPS.path(space), item("a", x="1"))
        assert asked.get(CONFIG_MAPS.path(space, "a")) == made
        assert made["data"] == {"x": "1"}
        assert made["metadata"]["resourceVersion"]

    def test_parameters_are_passed_on(self, asked: ApiClient, space: str) -> None:
        for name in ("b1", "b2"):
            asked.create(CONFIG_MAPS.path(space), item(name))
        found = asked.get(CONFIG_MAPS.path(space), {"fieldSelector": "metadata.name=b2"})
        assert [one["metadata"]["name"] for one in found["items"]] == ["b2"]

    def test_what_there_is_not_is_not_found(self, asked: ApiClient, space: str) -> None:
        with pytest.raises(NotFound, match="nothing"):
            asked.get(CONFIG_MAPS.path(space, "nothing"))
        with pytest.raises(NotFound):
            asked.delete(CONFIG_MAPS.path(space, "nothing"))

    def test_a_name_is_given_once(self, asked: ApiClient, space: str) -> None:
        asked.create(CONFIG_MAPS.path(space), item("c"))
        with pytest.raises(Conflict):
            asked.create(CONFIG_MAPS.path(space), item("c"))

    def test_who_writes_second_is_told(self, asked: ApiClient, space: str) -> None:
        first = asked.create(CONFIG_MAPS.path(space), item("d", x="1"))
        asked.replace(CONFIG_MAPS.path(space, "d"), first | {"data": {"x": "2"}})
        with pytest.raises(Conflict):
            asked.replace(CONFIG_MAPS.path(space, "d"), first | {"data": {"x": "3"}})
        assert asked.get(CONFIG_MAPS.path(space, "d"))["data"] == {"x": "2"}

    def test_a_merge_patch_leaves_the_rest(self, asked: ApiClient, space: str) -> None:
        asked.create(CONFIG_MAPS.path(space), item("e", x="1", y="1"))
        asked.patch(CONFIG_MAPS.path(space, "e"), {"data": {"x": "2", "y": None}}, "merge")
        assert asked.get(CONFIG_MAPS.path(space, "e"))["data"] == {"x": "2"}

    def test_a_delete_may_ask_for_a_version(self, asked: ApiClient, space: str) -> None:
        made = asked.create(CONFIG_MAPS.path(space), item("f"))
        asked.patch(CONFIG_MAPS.path(space, "f"), {"data": {"x": "2"}}, "merge")
        with pytest.raises(Conflict):
            asked.delete(
                CONFIG_MAPS.path(space, "f"),
                {"preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}},
            )
        asked.delete(CONFIG_MAPS.path(space, "f"))
        with pytest.raises(NotFound):
            asked.get(CONFIG_MAPS.path(space, "f"))

    def test_many_threads_may_ask(self, asked: ApiClient, space: str) -> None:
        """Each adds one to the same number, by compare and swap."""
        asked.create(CONFIG_MAPS.path(space), item("g", x="0"))

        def add() -> None:
            while True:
                found = asked.get(CONFIG_MAPS.path(space, "g"))
                found["data"]["x"] = str(int(found["data"]["x"]) + 1)
                try:
                    asked.replace(CONFIG_MAPS.path(space, "g"), found)
                except Conflict:
                    continue
                return

        together(add, 8)
        assert asked.get(CONFIG_MAPS.path(space, "g"))["data"] == {"x": "8"}


def together(act: Callable[[], None], number: int) -> None:
    """Have so many threads do it; what one of them raises is raised here."""
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
