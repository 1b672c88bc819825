"""The stored form of allocations."""

import json

import pytest

from nodewise.base.errors import BadInput
from nodewise_cpu import pool_allocations
from nodewise_cpu.configmap_store import ConfigMapTexts
from nodewise_cpu.configmap_store import format_config_map_data as format_data
from nodewise_cpu.configmap_store import parse_config_map_data as parse_data
from nodewise_cpu.pool_allocations import Task

CONFIG = """\
exclusive:
  0:
    4,12: []
    5,13:
    - '48624'
  1: {}
infra:
  0:
    0,8,1,9: []
shared:
  0:
    '3': []
"""
TASK = Task(48624, start=1234, boot="b", pod="p", container="c")
IDENTITIES = '{"exclusive":{"5,13":[{"boot":"b","container":"c","pid":48624,"pod":"p","start":1234}]}}'


def test_a_state_of_cmk_is_written_unchanged() -> None:
    assert format_data(parse_data(ConfigMapTexts(CONFIG))) == ConfigMapTexts(CONFIG, "{}")


def test_identities_of_tasks_are_stored_separately() -> None:
    allocations = parse_data(ConfigMapTexts(CONFIG, IDENTITIES))
    assert allocations.pools["exclusive"].sockets[0][1].tasks == (TASK,)
    assert format_data(allocations) == ConfigMapTexts(CONFIG, IDENTITIES)


def test_a_task_that_an_older_program_took_away_is_gone() -> None:
    released = CONFIG.replace("\n    - '48624'", " []")
    assert format_data(parse_data(ConfigMapTexts(released, IDENTITIES))) == ConfigMapTexts(released, "{}")


def test_two_tasks_of_one_process_id_stay_two() -> None:
    """A task whose wrapper has ended may still have descendants when another task gets its process id."""
    other = TASK._replace(start=99)
    allocations = parse_data(ConfigMapTexts(CONFIG, IDENTITIES))
    both = allocations.with_tasks(lambda _, cpu_list: (*cpu_list.tasks, other) if cpu_list.tasks else ())
    assert parse_data(format_data(both)) == both


@pytest.mark.parametrize(
    "config",
    [
        "exclusive: {'0': {'4,12': [1, 2]}}",
        "exclusive: {0: {'4,12': ['1, 2']}}",
        "exclusive: {0: {'4,12': ['1', 2]}, 1: null}",
    ],
)
def test_forms_that_are_read_as_well(config: str) -> None:
    allocations = parse_data(ConfigMapTexts(config))
    assert allocations.pools["exclusive"].sockets[0] == (
        pool_allocations.parse_cpu_list("4,12", tasks=[Task(1), Task(2)]),
    )


def test_a_list_of_one_cpu_may_be_a_number_and_nothing_is_an_empty_list() -> None:
    allocations = parse_data(ConfigMapTexts("shared: {0: {3: null}}"))
    assert format_data(allocations).config == "shared:\n  0:\n    '3': []\n"


def test_slots_are_ordered_by_number() -> None:
    allocations = parse_data(ConfigMapTexts("exclusive: {0: {'10,26': [], '9,25': [], '2,18': []}}"))
    texts = [cpu_list.text for cpu_list in allocations.pools["exclusive"].cpu_lists]
    assert texts == ["2,18", "9,25", "10,26"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("exclusive: [", "YAML"),
        ("- 1", "config: [1]; expected a mapping"),
        ("just text", "expected a mapping"),
        ("foo: {}", "pool 'foo'"),
        ("exclusive: [1]", "config.exclusive: [1]; expected a mapping"),
        ("exclusive: {a: {}}", "config.exclusive: 'a'; expected a whole number"),
        ("exclusive: {-1: {}}", "config.exclusive: -1; expected a whole number"),
        ("exclusive: {true: {}}", "config.exclusive: True; expected a whole number"),
        ("exclusive: {0: {'1-': []}}", "config.exclusive.0: '1-'"),
        ("exclusive: {0: {'': []}}", "config.exclusive.0: ''; expected at least one CPU"),
        ("exclusive: {0: {'1': 5}}", "config.exclusive.0.1: 5; expected a list"),
        ("exclusive: {0: {'1': ['']}}", "config.exclusive.0.1: ''; expected a whole number"),
        ("exclusive: {0: {'1': [x, 2.5]}}", "config.exclusive.0.1: 2.5; expected a whole number"),
    ],
)
def test_errors_of_a_corrupt_state_name_the_place(config: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_data(ConfigMapTexts(config))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "identities",
    ["{", "[]", "5", '{"exclusive": []}', '{"exclusive": {"5,13": 1}}']
    + [
        json.dumps({"exclusive": {"5,13": [task]}})
        for task in ([], {"pid": 1}, {"pid": "x", "start": 1}, {"pid": 1, "start": 1, "boot": 5})
    ],
)
def test_corrupt_identities_are_an_error_and_never_a_free_slot(identities: str) -> None:
    with pytest.raises(BadInput, match=r"cpu\.nodewise\.io/tasks"):
        parse_data(ConfigMapTexts(CONFIG, identities))


def test_all_faults_are_reported_together() -> None:
    with pytest.raises(BadInput) as caught:
        parse_data(ConfigMapTexts("foo: {}\nexclusive: {0: {'1-': [], '2': [x]}}"))
    assert len(caught.value.problems) == 3
