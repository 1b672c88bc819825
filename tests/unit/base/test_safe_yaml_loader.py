"""All YAML goes through one loader, which refuses what expands, nests or repeats too much."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import nodewise
from nodewise.agents.gpu import vendor_resource_names
from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, NodewiseError
from nodewise.base.safe_yaml_loader import MOST_FROM_ALIASES, load
from nodewise.cli import options_from_settings
from nodewise.doctor.collectors import workloads
from nodewise.doctor.parsing import scheduler_configuration
from nodewise.install import yaml_editor
from nodewise.kube import kubeconfig, object_files
from nodewise_cpu import configmap_store
from nodewise_cpu.configmap_store import ConfigMapTexts
from nodewise_cpu.webhook import https_server as webhook

SOURCES: Final = Path(nodewise.__file__).parent
PLUGINS: Final = SOURCES.parents[1] / "packages"
READING: Final = frozenset(
    name
    for name in dir(yaml)
    if name.endswith("Loader") or name.startswith(("load", "compose", "parse", "scan"))
) | {"safe_load", "safe_load_all", "full_load", "unsafe_load"}


def bomb(levels: int, width: int = 10) -> str:
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * width)}]" for at in range(1, levels)]
    return "\n".join(lines) + "\n"


BOMB: Final = bomb(9)
DEEP: Final = {
    "flow": "a: " + "[" * 100_000,
    "flow mappings": "a: " + "{b: " * 100_000,
    "sequences on a line": "- " * 100_000,
    "keys on a line": "? " * 100_000,
    "lines": "\n".join(" " * level + "a:" for level in range(1400)),
    "a little": "a: " + "[" * 300 + "]" * 300,
}


def uses(module: Path) -> Iterator[str]:
    """The functions of PyYAML with which a module reads YAML."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "yaml":
            yield from {node.attr} & READING
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in ("yaml", "ruamel"):
            yield node.module or ""
        if isinstance(node, ast.Import) and any(
            alias.name.startswith(("ruamel", "yaml.")) for alias in node.names
        ):
            yield "an import"


def test_only_the_loader_reads_yaml() -> None:
    readers = {path.relative_to(SOURCES).as_posix(): set(uses(path)) for path in SOURCES.rglob("*.py")}
    readers |= {path.as_posix(): set(uses(path)) for path in PLUGINS.glob("*/src/**/*.py")}
    assert [name for name, reads in readers.items() if reads] == ["base/safe_yaml_loader.py"]


def through_file(read: Callable[[str], object]) -> Callable[[str, Path], object]:
    def reader(text: str, folder: Path) -> object:
        file = folder / "file.yaml"
        file.write_text(text)
        return read(str(file))

    return reader


READERS: Final[dict[str, Callable[[str, Path], object]]] = {
    "the pools ConfigMap": lambda text, _: configmap_store.parse_config_map_data(ConfigMapTexts(text)),
    "the objects of decide and --objects-from": lambda text, _: list(
        object_files.split_documents(text.encode(), "file.yaml")
    ),
    "the manifest of a static pod": lambda text, _: yaml_editor.parse_document(text.encode(), "file.yaml"),
    "settings": through_file(lambda path: options_from_settings.read_config_file(path, [], [])),
    "a kubeconfig": through_file(lambda path: kubeconfig._read_kubeconfig(Path(path))),
    "the webhook's files": through_file(webhook.parse_server_settings),
    "a GPU profile": through_file(vendor_resource_names.load_profile),
}


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_aliases_that_multiply_and_names_the_bound(reader: str, tmp_path: Path) -> None:
    with pytest.raises(NodewiseError) as raised:
        READERS[reader](BOMB, tmp_path)
    assert f"expected at most {MOST_FROM_ALIASES} more" in str(raised.value)
    assert "file.yaml" in str(raised.value) or reader == "the pools ConfigMap"


@pytest.mark.parametrize(
    "text", [*DEEP.values(), "a: 1\na: 2\n", "a: &a [*a]\n"], ids=[*DEEP, "key", "within"]
)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_deep_and_repeated_values(reader: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(
        NodewiseError, match=r"nested deeper than 200|the key 'a' twice|inside of what it refers to"
    ):
        READERS[reader](text, tmp_path)


@pytest.mark.parametrize("text", ["!!int ''", "!!float ''", f"!!float '1{':59' * 200}.5'"])
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_values_that_are_not_of_their_tag(
    reader: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(NodewiseError):
        READERS[reader](f"a: {text}\n", tmp_path)


@pytest.mark.parametrize("number", [f"1{':59' * 1500}", f"1{':59' * 1500}.5", f"0x{'f' * 5000}"])
def test_a_long_number_is_refused_before_it_is_computed(number: str) -> None:
    with pytest.raises(BadInput, match=f"a number of {len(number)} characters, expected at most 3500"):
        load(f"a: {number}\n", "file.yaml")


def test_value_that_does_not_match_its_tag_is_refused() -> None:
    with pytest.raises(BadInput, match="document 1"):
        load("a: !!bool maybe\n", "file.yaml")


def test_doctor_ignores_refused_documents() -> None:
    assert str(MOST_FROM_ALIASES) in str(scheduler_configuration.parse(BOMB.encode()).problem)
    assert str(MOST_FROM_ALIASES) in str(workloads.parse_descheduler_policy("here", BOMB.encode()).plugins)


class CountingLoader(safe_yaml_loader.Loader):
    """A loader that counts the values that it constructs."""

    made = 0

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        CountingLoader.made += 1
        return super().construct_object(node, deep=deep)


def test_nothing_is_expanded_before_it_is_counted() -> None:
    CountingLoader.made = 0
    with pytest.raises(BadInput):
        list(safe_yaml_loader.load_all(BOMB, "file.yaml", CountingLoader))
    assert CountingLoader.made == 0


def test_aliases_may_add_as_many_values_as_the_bound_says() -> None:
    """Each item of the list `b` adds a list of 10 values, so 11."""
    whole = MOST_FROM_ALIASES // 10

    def text(items: int) -> str:
        return "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\nb: [" + ", ".join(["*a"] * items) + "]\n"

    assert len(load(text(whole), "file.yaml")["b"]) == whole
    with pytest.raises(BadInput, match="aliases expand 14 values"):
        load(text(whole + 1), "file.yaml")


def test_values_without_aliases_have_no_bound() -> None:
    assert len(load("[" + "1," * (2 * MOST_FROM_ALIASES) + "]", "file.yaml")) == 2 * MOST_FROM_ALIASES


def test_a_merged_key_may_be_overridden_and_merged_again() -> None:
    text = "base: &base {x: 1, y: 2}\nmid: {a: &a {<<: *base, x: 3}}\nend: {<<: *a, z: 4}\n"
    assert load(text, "file.yaml")["end"] == {"x": 3, "y": 2, "z": 4}
    [(_, data)] = object_files.split_documents(text.encode(), "file.yaml")
    assert b'"end":{"x":3,"y":2,"z":4}' in data


@pytest.mark.parametrize("text", ["a: 1\n---\nb: 2\n", "a: 2001-99-99\n", "a: \x00\n", "[1]: 2\n", "\ud800"])
def test_other_than_one_yaml_document_is_bad_input(text: str) -> None:
    with pytest.raises(BadInput, match=r"file\.yaml"):
        load(text, "file.yaml")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(
            "a: 1\nb: [\n",
            "document 1, line 3, column 1: while parsing a flow node, did not find expected node content; "
            "expected YAML",
            id="invalid syntax",
        ),
        pytest.param(
            "a: 1\nb: 'x\nc: 1\n",
            "document 1, line 4, column 1: while scanning a quoted scalar of line 2, found unexpected end of stream; "
            "expected YAML",
            id="an unclosed quote",
        ),
        pytest.param(
            "kind: Pod\n  a: 1\n",
            "document 1, line 2, column 4: mapping values are not allowed in this context; expected YAML",
            id="without a context",
        ),
        pytest.param(
            "a: 1\na: 2\n",
            "document 1, line 2, column 1: found the key 'a' twice, expected once; expected YAML",
            id="twice",
        ),
        pytest.param(
            "a: \x00\n",
            "document 1, position 3: character #x0000: control characters are not allowed; expected YAML",
            id="no text",
        ),
    ],
)
@pytest.mark.parametrize("read", [load, safe_yaml_loader.compose_all])
def test_errors_name_the_source_and_the_place_without_names_of_the_library(
    read: Callable[[str, str], object], text: str, error: str
) -> None:
    with pytest.raises(BadInput) as raised:
        read(text, "file.yaml")
    assert str(raised.value) == f"file.yaml: {error}"


@pytest.mark.parametrize("read", [load, safe_yaml_loader.compose_all])
@pytest.mark.parametrize("text", ["a: {{ .Values.a }\n", "{% if a %}\na: 1\n"])
def test_errors_of_templates_have_the_remedy(read: Callable[[str, str], object], text: str) -> None:
    with pytest.raises(BadInput) as raised:
        read(text, "file.yaml")
    assert raised.value.remedy == "the file has {{ }} or {% %} of a template: render the template first"


def test_utf_16_is_no_yaml() -> None:
    """The check of the nesting looks at bytes, so it would find no nesting in UTF-16."""
    with pytest.raises(BadInput):
        load(("- " * 100_000).encode("utf-16"), "file.yaml")


@pytest.mark.parametrize("what", DEEP)
def test_no_nesting_ends_the_process(what: str) -> None:
    """libyaml composes documents recursively in C."""
    program = (
        "import sys\n"
        "from nodewise.base import safe_yaml_loader\n"
        "try: safe_yaml_loader.load(sys.stdin.read(), 'x')\n"
        "except safe_yaml_loader.BadInput: print('refused')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], input=DEEP[what], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "refused\n"
