"""The kernel's files are read through one module."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import nodewise_cpu
from nodewise.base.errors import BadInput
from nodewise_cpu import cpu_set_formats
from nodewise_cpu.kernel_file_reader import split_lines

FOLDER: Final = Path(nodewise_cpu.__file__).parent
OTHER_FILES: Final = {
    "cluster/object_writer.py": "messages of pods",
    "bundle.py": "what PyInstaller prints",
    "node/machine_features.py": "a file that nodewise wrote",
    "node/other_cpu_managers.py": "settings of systemd, separated by any white space",
    "workload/service_account_client.py": "the token and namespace of the service account",
}
"""Modules of the CPU manager that split or read other texts than the kernel's."""


def text_calls(module: Path) -> Iterator[str]:
    """Calls that treat more characters than a line feed as the end of a line."""
    for node in ast.walk(ast.parse(module.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method = node.func.attr
        if method in ("read_text", "splitlines", "readlines") or (method == "split" and not node.args):
            yield f"line {node.lineno}: .{method}"
        mode = node.args[0] if method == "open" and node.args else None
        if isinstance(mode, ast.Constant) and "b" not in str(mode.value):
            yield f"line {node.lineno}: .open in text mode"


@pytest.mark.parametrize(
    "module",
    sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py") if path.parent.name != "cli"),
)
def test_no_module_reads_a_kernel_file_in_text_mode(module: str) -> None:
    assert bool(list(text_calls(FOLDER / module))) == (module in OTHER_FILES)


@pytest.mark.parametrize(
    ("text", "lines"), [("", []), ("a", ["a"]), ("a\n", ["a"]), ("a\n\nb\r\n", ["a", "", "b\r"])]
)
def test_lines_end_at_a_line_feed(text: str, lines: list[str]) -> None:
    assert split_lines(text) == lines


@pytest.mark.parametrize("text", ["0\u20281", "0,\x0b1", "\u0661", "0\x85"])
def test_white_space_and_digits_of_other_scripts_are_no_cpus(text: str) -> None:
    with pytest.raises(BadInput):
        cpu_set_formats.parse_cpu_numbers(text)
