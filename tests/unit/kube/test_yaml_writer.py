"""YAML that is written for kubectl, PyYAML and people."""

import pytest
import yaml

from nodewise.kube import object_files, yaml_writer


@pytest.mark.parametrize(
    "text",
    [
        "y",
        "N",
        "1e3",
        "0x1",
        "0X1F",
        "0B1",
        "1e1_0",
        "-_1",
        "0o7",
        "on",
        "2026-11-30",
        "1:30",
        "=",
        "x",
        "1.5",
        "null",
        "<<",
        ".5e1",
        "",
        "a, b",
    ],
)
def test_texts_stay_texts_for_kubernetes_and_pyyaml(text: str) -> None:
    value = {"a": text, text: [True, 1, 1.5, None]}
    written = yaml_writer.dump(value)
    assert yaml.load(written, yaml.CSafeLoader) == value
    assert object_files.load_with_duplicate_keys(written.encode(), "t") == [(value, [])]
    in_braces = f"{{a: {yaml_writer.scalar(text)}, b: [{yaml_writer.scalar(text)}]}}"
    assert yaml.load(in_braces, yaml.CSafeLoader) == {"a": text, "b": [text]}
    assert object_files.load_with_duplicate_keys(in_braces.encode(), "t") == [({"a": text, "b": [text]}, [])]


@pytest.mark.parametrize("text", ["a\u202eb", "a\n\u202eb", "\u200b", "a\x85b", "\x1b[31m"])
def test_characters_that_are_not_printable_are_escaped(text: str) -> None:
    written = yaml_writer.dump({"a": text, "b": "grün\nä"})
    assert written.replace("\n", "").isprintable()
    assert written.endswith("b: |-\n  grün\n  ä\n")
    assert yaml_writer.scalar(text).isprintable()
    assert yaml.load(yaml_writer.scalar(text), yaml.CSafeLoader) == text


def test_documents_are_separated_and_have_no_anchors() -> None:
    shared = {"a": ["b"]}
    assert yaml_writer.dump_all([shared, [shared, shared]]) == "a:\n- b\n---\n- a:\n  - b\n- a:\n  - b\n"
