import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodewise.base.errors import BadInput
from nodewise.kube import object_files, struct_type_merge
from nodewise.kube.resource_kinds import NODES, PODS
from nodewise.kube.store import StoreWriter


class LabelledObject(msgspec.Struct, frozen=True):
    labels: dict[str, str] = {}


class Labelled(msgspec.Struct, frozen=True):
    metadata: LabelledObject


Node = struct_type_merge.merge("Node", Labelled)
Pod = struct_type_merge.merge("Pod")

NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: %s}\n"


def node(name: str, **meta: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **meta}}


def write_objects(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def names(objects: object_files.FileObjects) -> list[str]:
    return [item.metadata.name for item in objects.of(NODES, Node)]


def test_yaml_json_folders_and_standard_input_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_objects(folder, "2.yml", NODE % "c" + "---\n" + NODE % "d")
    write_objects(folder, "1.json", node("b"))
    write_objects(folder, "notes.txt", "not for us: [")
    (folder / "deeper").mkdir()
    single = write_objects(tmp_path, "a.yaml", NODE % "a")
    stdin = io.BytesIO((NODE % "e").encode())
    objects = object_files.read([single, str(folder), "-"], stdin)
    assert names(objects) == ["a", "b", "c", "d", "e"]
    assert objects.kinds() == [("", "Node")]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"apiVersion": "v1", "kind": "List", "items": [node("a"), node("b")]}, id="a List"),
        pytest.param(
            {"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "a"}}, node("b")]},
            id="a NodeList, as the API server gives it",
        ),
        pytest.param(
            {
                "apiVersion": "v1",
                "kind": "List",
                "items": [node("a"), {"apiVersion": "v1", "kind": "NodeList", "items": [node("b")]}],
            },
            id="a list in a list",
        ),
    ],
)
def test_lists_are_unrolled(tmp_path: Path, content: Any) -> None:
    assert names(object_files.read([write_objects(tmp_path, "f.json", content)])) == ["a", "b"]


def test_lists_of_any_kind_are_unrolled(tmp_path: Path) -> None:
    content = {
        "apiVersion": "custom.metrics.k8s.io/v1beta2",
        "kind": "MetricValueList",
        "items": [{"value": "1"}, {"value": "2"}],
    }
    objects = object_files.read([write_objects(tmp_path, "f.json", content)])
    entries = objects.entries("custom.metrics.k8s.io", "MetricValue")
    assert [json.loads(entry.data)["value"] for entry in entries] == ["1", "2"]
    assert entries[1].where.endswith("f.json, document 1, items[1]")


def test_other_kinds_are_kept_undecoded(tmp_path: Path) -> None:
    objects = object_files.read([write_objects(tmp_path, "f.yaml", "apiVersion: a.b/v1\nkind: C\nx: 1\n")])
    assert objects.kinds() == [("a.b", "C")]
    assert objects.entries("a.b", "C")[0].data == b'{"apiVersion":"a.b/v1","kind":"C","x":1}'
    assert objects.entries("a.b", "D") == []


def test_a_namespaced_object_without_a_namespace_is_in_default(tmp_path: Path) -> None:
    text = "kind: Pod\napiVersion: v1\nmetadata: {name: %s}\n---\n"
    path = write_objects(tmp_path, "f.yaml", text % "p" + text % "q, namespace: other" + NODE % "z")
    objects = object_files.read([path])
    expected = [("default", "p"), ("other", "q")]
    assert [(pod.metadata.namespace, pod.metadata.name) for pod in objects.of(PODS, Pod)] == expected
    assert [item.metadata.namespace for item in objects.of(NODES, Node)] == [""]


def test_all_unreadable_objects_are_reported_together(tmp_path: Path) -> None:
    paths = [
        write_objects(tmp_path, "broken.yaml", "a: ["),
        write_objects(tmp_path, "kindless.yaml", "a: 1"),
        write_objects(tmp_path, "bare.json", [node("a")]),
        write_objects(tmp_path, "list.json", {"apiVersion": "v1", "kind": "List", "items": [node("a"), 3]}),
        tmp_path / "none.yaml",
    ]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput) as raised:
        object_files.read([*paths, tmp_path / "empty"])
    problems = [str(problem).replace(f"{tmp_path}/", "") for problem in raised.value.problems]
    assert problems[0].startswith("broken.yaml, document 1, line 2, column 1: while parsing a flow node")
    assert problems[1:] == [
        """kindless.yaml, document 1: '{"a":1}'; expected an object with apiVersion and kind""",
        "bare.json, document 1: a list; expected an object: a document for each, or one of the kind List with `items`",
        "list.json, document 1, items[1]: `int`; expected `object`",
        "none.yaml: No such file or directory; expected a file that can be read",
        "empty: a folder without such files; expected files in .yaml, .yml, .json",
    ]


def test_objects_that_cannot_be_decoded_are_named_with_file_document_and_field(tmp_path: Path) -> None:
    text = NODE % "a" + "---\n" + NODE % "b, labels: {k: 1}" + "---\n" + "apiVersion: v1\nkind: Node\n"
    objects = object_files.read([write_objects(tmp_path, "f.yaml", text)])
    with pytest.raises(BadInput) as raised:
        names(objects)
    assert str(raised.value).replace(f"{tmp_path}/", "") == (
        "objects of kind Node: f.yaml, document 2: metadata.labels[...]: `int`; expected `str`; "
        "f.yaml, document 3: Object missing required field `metadata`"
    )


def test_an_object_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    objects = object_files.read(
        [write_objects(tmp_path, "1.yaml", NODE % "a"), write_objects(tmp_path, "2.yaml", NODE % "a")]
    )
    with pytest.raises(BadInput, match=r"2\.yaml, document 1: Node a occurs twice"):
        names(objects)


def test_the_stores_of_a_cluster_are_filled_from_files(tmp_path: Path) -> None:
    writer = StoreWriter[Any]()
    writer.replace(object_files.read([write_objects(tmp_path, "f.yaml", NODE % "a")]).of(NODES, Node))
    assert writer.store.synced
    assert writer.store.get("", "a") is not None


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
        ("0X1F", 31),
        ("-0B1_1", -3),
        ("0O17", 15),
        ("0x", "0x"),
        ("0b_", "0b_"),
        ("1_000", 1000),
        ("+_1", 1),
        ("1e1_0", 1e10),
        (".5_", ".5_"),
        ("7e1280", "7e1280"),
        ("<<", "<<"),
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


@pytest.mark.parametrize(
    "text", ["metadata:\n  name: {{ .Values.name }}\n", "{{- if .Values.a }}\na: 1\n{{- end }}\n"]
)
def test_errors_of_templates_have_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(BadInput) as raised:
        object_files.read([tmp_path])
    assert raised.value.remedy.endswith("render the template first")


def test_yaml_may_begin_as_json_does() -> None:
    assert list(object_files.split_documents(b"{kind: Node, metadata: {name: a}}", "f")) == [
        (1, b'{"kind":"Node","metadata":{"name":"a"}}')
    ]
