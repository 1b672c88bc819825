import json
from typing import Any

import pytest

from nodewise.base.errors import BadInput
from nodewise.kube import object_files


def read(text: str) -> list[tuple[int, Any]]:
    return [(number, json.loads(data)) for number, data in object_files.split_documents(text.encode(), "F")]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("y", True),
        ("Yes", True),
        ("on", True),
        ("off", False),
        ("n", False),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("2026-11-21", "2026-11-21"),
        ("2026-11-21T00:43:47Z", "2026-11-21T00:43:47Z"),
        ("017", 15),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", 1000),
        ("-3", -3),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.", 1.0),
        (".nan", ".nan"),
        ("250m", "250m"),
        ("1.5Gi", "1.5Gi"),
        ("08", 8.0),
        ('"1"', "1"),
        ("{a: 1}", {"a": 1}),
        ("=", "="),
    ],
)
def test_plain_scalars_have_the_types_of_kubectl(written: str, value: object) -> None:
    assert read(f"k: {written}") == [(1, {"k": value})]


def test_keys_are_texts() -> None:
    assert read("1: a\nyes: b\n~: c\n2026-11-21: d\n") == [
        (1, {"1": "a", "yes": "b", "~": "c", "2026-11-21": "d"})
    ]


def test_documents_are_counted_as_they_stand_and_empty_ones_left_out() -> None:
    assert read("---\na: 1\n---\n---\n# nothing\n---\nb: 2\n") == [(1, {"a": 1}), (4, {"b": 2})]


def test_json_may_stand_between_lines_of_dashes() -> None:
    assert read('{"a": 1}\n---\n{"b": 2}\n') == [(1, {"a": 1}), (2, {"b": 2})]


def test_json_documents_may_follow_each_other() -> None:
    assert read('{"a": 1}\n{"b": 2}{"c": 3}') == [(1, {"a": 1}), (2, {"b": 2}), (3, {"c": 3})]


def test_anchors_and_merges_are_written_out() -> None:
    text = "base: &b {k: 1}\nmore: {<<: *b, j: 2}\nsame: *b\n"
    assert read(text) == [(1, {"base": {"k": 1}, "more": {"k": 1, "j": 2}, "same": {"k": 1}})]


BOMB = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("a: 1\na: 2\n", "the key 'a' twice", id="a key twice"),
        pytest.param("a: [", "document 1, line 2, column 1: while parsing", id="no YAML"),
        pytest.param(
            "a: 1\n---\nb: [", "document 2, line 4, column 1: while parsing", id="the number of the document"
        ),
        pytest.param('{"a": ', "document 1: Expecting value", id="cut off JSON"),
        pytest.param('{"a": 1} x', "document 2: Expecting value", id="something after JSON"),
        pytest.param("? [1]\n: 2\n", "a key that is no text", id="a list as key"),
        pytest.param(
            "a: !!python/name:os.system", "could not determine a constructor", id="a tag of Python's"
        ),
        pytest.param("a: &a [*a]", "inside of what it refers to", id="an alias within itself"),
        pytest.param(BOMB, "expected at most 100000 more", id="a bomb of aliases"),
        pytest.param("[" * 100_000, "document 1", id="deep JSON"),
        pytest.param("a: " + "[" * 100_000, "nested deeper", id="deep YAML"),
        pytest.param("- " * 100_000, "nested deeper", id="deep on one line"),
        pytest.param(
            "\n".join(" " * i + "a:" for i in range(3000)), "nested deeper", id="deep by indentation"
        ),
        pytest.param("a: \x00", "not allowed", id="a control character"),
        pytest.param(f"a: {'9' * 5000}", "document 1", id="a number without end"),
    ],
)
def test_error_names_unreadable_part(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=r"^F: ") as raised:
        read(text)
    assert words in str(raised.value)


def test_yaml_may_begin_as_json_does() -> None:
    assert list(object_files.split_documents(b"{kind: Node, metadata: {name: a}}", "f")) == [
        (1, b'{"kind":"Node","metadata":{"name":"a"}}')
    ]
