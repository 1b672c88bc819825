"""The page that builds an agent, followed to the letter: its blocks are run in their order, as a reader copies them.

pip installs the package for good, into an environment of the test's own that sees this one's packages beside its own.
"""

import ast
import os
import re
import shutil
import subprocess
import sysconfig
import textwrap
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster import availability, processes

PAGE = Path(__file__).parents[2] / "docs/learn/build-an-agent.md"
SERVED = "127.0.0.1:9001"
PATIENCE_S = 300


class Block(NamedTuple):
    """A block of the page: its language, and its text."""

    language: str
    text: str


def blocks() -> list[Block]:
    return [
        Block(*found)
        for found in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    ]


def environment(folder: Path, port: int) -> dict[str, str]:
    """A fresh environment of Python, whose pip needs no network, with the commands that the page calls."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    for name in ("nodewise", "pip", "pytest"):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {python} -m {name} "$@"\n')
        command.chmod(0o755)
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "NODEWISE"))}
    return {
        **plain,
        "PATH": f"{folder / 'bin'}:{plain['PATH']}",
        "COLUMNS": "200",
        "NODEWISE_PORT": str(port),
        "NODEWISE_HEALTH_PORT": "0",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


class Reader:
    """Somebody in a shell, who also edits files."""

    def __init__(self, folder: Path, port: int) -> None:
        self._served = f"127.0.0.1:{port}"
        self.shell = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment(folder / "environment", port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def types(self, commands: str) -> str:
        """What the commands print; AssertionError if one of them fails."""
        assert self.shell.stdin
        assert self.shell.stdout
        script = commands.replace(SERVED, self._served)
        if script.rstrip().endswith("&"):
            script += (
                f"until curl -s -o {os.devnull} {self._served}; do kill -0 $! || break; sleep 0.1; done\n"
            )
        self.shell.stdin.write(f"trap 'echo failed: $BASH_COMMAND' ERR\n{script}\necho; echo '=== done'\n")
        self.shell.stdin.flush()
        lines: list[str] = []
        for line in self.shell.stdout:
            if line == "=== done\n":
                break
            lines.append(line)
        printed = "".join(lines)
        assert "failed: " not in printed, printed
        return printed

    def folder(self) -> Path:
        return Path(self.types("pwd").strip())

    def saves(self, block: Block) -> None:
        """A file whose name stands in its first line, or functions in the place of those of the same names."""
        first, _, rest = block.text.partition("\n")
        name = first.removeprefix("# ").removeprefix("in ")
        path = self.folder() / name
        path.write_text(edited(path.read_text(), rest) if first.startswith("# in ") else block.text)


def bare(text: str) -> str:
    """Without blanks, of which tables and answers may have more than a page shows."""
    return "".join(text.split())


def edited(text: str, block: str) -> str:
    """The text with the block's functions in the place of its own."""
    lines = text.splitlines()
    given = block.splitlines()
    wanted = {one.name: one for one in functions(textwrap.dedent("\n".join(given)))}
    there = sorted(functions(text), key=lambda one: -one.lineno)
    assert wanted.keys() <= {one.name for one in there}
    for old in there:
        if new := wanted.get(old.name):
            lines[old.lineno - 1 : old.end_lineno] = given[new.lineno - 1 : new.end_lineno]
    return "\n".join(lines) + "\n"


def functions(text: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]


def test_building_an_agent(tmp_path: Path) -> None:
    if not (shutil.which("bash") and shutil.which("curl")):
        availability.not_run("the page calls bash and curl: apt-get install bash curl")
    reader = Reader(tmp_path, processes.free_port())
    printed = ""
    try:
        for block in blocks():
            if block.language == "sh":
                printed = reader.types(block.text)
            elif block.language == "text":
                assert [line for line in block.text.splitlines() if bare(line) not in bare(printed)] == [], (
                    printed
                )
            else:
                reader.saves(block)
        # what the page says of an entry point: it is the installed package that is found, by its metadata
        found = reader.types(
            "python -c \"from importlib.metadata import entry_points as e; print(e(name='quiet'))\""
        )
        assert "nodewise_quiet:KIND" in found
    finally:
        assert reader.shell.stdin
        reader.shell.stdin.close()
        assert reader.shell.wait(PATIENCE_S) == 0


def test_the_page_has_all_kinds_of_blocks() -> None:
    """So that the test above cannot pass by finding none."""
    found = blocks()
    assert {block.language for block in found} == {"sh", "text", "python", "yaml"}
    assert PAGE.read_text().count("```") == 2 * len(found)
    assert len(found) > 10


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    reader = Reader(tmp_path, processes.free_port())
    with pytest.raises(AssertionError, match="failed: false"):
        reader.types("false")
    assert reader.shell.stdin
    reader.shell.stdin.close()
    reader.shell.wait(PATIENCE_S)
