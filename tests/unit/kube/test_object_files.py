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
    assert [(pod.metadata.namespace, pod.metadata.name) for pod in objects.of(PODS, Pod)] == [
        ("default", "p"),
        ("other", "q"),
    ]
    assert [item.metadata.namespace for item in objects.of(NODES, Node)] == [""]


def test_all_unreadable_objects_are_reported_together(tmp_path: Path) -> None:
    paths = [
        write_objects(tmp_path, "broken.yaml", "a: ["),
        write_objects(tmp_path, "kindless.yaml", "a: 1"),
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
