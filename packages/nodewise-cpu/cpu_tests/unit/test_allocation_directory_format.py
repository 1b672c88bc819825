"""The directory form of allocations."""

import pytest

from nodewise.base.errors import BadInput
from nodewise_cpu import directory_store
from nodewise_cpu.pool_allocations import Task


def test_a_directory_of_cmk_is_read() -> None:
    files = {
        "lock": "",
        "pools": None,
        "pools/readme": "not a pool",
        "pools/exclusive": None,
        "pools/exclusive/exclusive": "1",
        "pools/exclusive/0": None,
        "pools/exclusive/0/4,12/tasks": " 2000\n",
        "pools/exclusive/1": None,
        "pools/infra/exclusive": "0",
        "pools/infra/0/0-2,8-10/tasks": "3000, 3001,3002",
    }
    allocations = directory_store.parse_files(files)
    expected = {"exclusive": True, "infra": False}
    assert {pool.name: pool.is_exclusive for pool in allocations.pools.values()} == expected
    assert allocations.pools["exclusive"].sockets[1] == ()
    assert allocations.pools["exclusive"].sockets[0][0].tasks == (Task(2000),)
    infra = allocations.pools["infra"].sockets[0][0]
    assert (infra.cpus, [task.pid for task in infra.tasks]) == ((0, 1, 2, 8, 9, 10), [3000, 3001, 3002])


def test_any_name_is_a_pool_and_the_oldest_have_another_name_now() -> None:
    files = {
        "pools/mine/exclusive": "1",
        "pools/dataplane/exclusive": "1",
        "pools/controlplane/exclusive": "0",
    }
    allocations = directory_store.parse_files(files)
    expected = {"mine": True, "exclusive": True, "shared": False}
    assert {name: pool.is_exclusive for name, pool in allocations.pools.items()} == expected
    assert allocations.pools["shared"].name == "shared"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"pools/exclusive/exclusive": "1", "pools/exclusive/0/tasks": "555"},
            "pools/exclusive/0/tasks: a CPU list",
        ),
        ({"pools/incorrect_pool_name": None}, "pools/incorrect_pool_name/exclusive: no such file"),
        ({"pools/a/exclusive": "1", "pools/a/0/x/tasks": ""}, "config.a.0: 'x'"),
        (
            {"pools/a/exclusive": "1", "pools/a/0/1/tasks": "1;2"},
            "config.a.0.1: '1;2'; expected a whole number",
        ),
        (
            {"pools/dataplane/exclusive": "1", "pools/exclusive/exclusive": "1"},
            "pools/dataplane: beside pools/exclusive; expected one of the two",
        ),
        ({"tasks.json": "{"}, "tasks.json: '{'; expected JSON"),
        ({"tasks.json": "[]"}, "expected a mapping"),
    ],
)
def test_invalid_files_are_named(files: dict[str, str | None], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        directory_store.parse_files(files)
    assert message in str(caught.value)


def test_a_list_whose_tasks_are_a_folder_is_free() -> None:
    files = {"pools/a/exclusive": "1", "pools/a/0": None, "pools/a/0/1": None, "pools/a/0/1/tasks": None}
    (cpu_list,) = directory_store.parse_files(files).pools["a"].sockets[0]
    assert (cpu_list.text, cpu_list.tasks) == ("1", ())


def test_an_empty_directory_has_no_pool() -> None:
    assert directory_store.parse_files({}).pools == {}
