"""Executes a page: runs its commands in a shell, writes its files, and compares the output with what it shows.

Of a page's blocks, in their order:

- `sh`, `bash`: all of it is typed. `console`: what stands behind `$ `; the lines below it are what is shown.
- `text`: what the last commands have shown.
- any other language: a file, by the name in its first line, as in `# policy.yaml`; with `# in agent.py`, functions that
  take the place of those of the same names.

A command has to succeed unless the next one is `echo $?`. What is shown is found in what is printed, in its order,
however many blanks there are and whatever is printed besides; `…` and `...` stand for anything, a time or a duration
for any. A command that only looks is repeated, as a reader would, until it shows what the page says.
"""

import ast
import contextlib
import os
import re
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests import docs_page_code_blocks
from tests.docs_page_code_blocks import Block, ShellStep

PATIENCE_S: Final = 300.0
_LONGEST_S: Final = 600.0
"""Maximum duration of one step; after it, the shell is killed, so that a hanging command fails the test."""
_LOOKS: Final = re.compile(
    r"kubectl (-n \S+ )?(get|describe|logs)|(\S*/)?nodewise (explain|doctor|decide --cluster)|curl "
)
_DONE: Final = "=== done"
_TRAP: Final = "trap 'echo \"failed: $BASH_COMMAND\"' ERR"
_DURATION: Final = r"\d[\d.]*(?:ms|s|m|h|d)(?:\d+(?:s|m|h))?"
_TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
_VARIABLE: Final = re.compile(rf"…|\.\.\.|\b{_DURATION}\b|{_TIME}")


class PageReader:
    """A shell that stays, so that variables, folders and background jobs do; see `reading`."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        instead: Mapping[str, str] | None = None,
        shell: Sequence[str] = ("bash",),
    ) -> None:
        self._instead = dict(instead or {})
        self._shell = subprocess.Popen(
            shell,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._printed = ""

    def follows(self, blocks: Sequence[Block]) -> None:
        """Does what the blocks say; AssertionError, with the place on the page, where it is otherwise."""
        for block in blocks:
            try:
                self._does(block)
            except AssertionError as error:
                raise AssertionError(f"{block.where}: {error}") from None

    def types(self, commands: str, *, may_fail: bool = False) -> str:
        """What the commands print; AssertionError if one of them fails."""
        assert self._shell.stdin
        assert self._shell.stdout
        trap = "trap - ERR" if may_fail else _TRAP
        self._shell.stdin.write(f"{trap}\n{self._own(commands).rstrip()}\necho; echo '{_DONE}'\n")
        self._shell.stdin.flush()
        late = threading.Timer(_LONGEST_S, self._shell.kill)
        late.start()
        try:
            self._printed, done = _until_done(self._shell.stdout)
        finally:
            late.cancel()
        assert done, f"the shell ended, or did nothing for {_LONGEST_S:g} s: {self._printed}"
        assert "failed: " not in self._printed, self._printed
        return self._printed

    def close(self) -> None:
        """Ends the shell; its background jobs are the page's to end."""
        assert self._shell.stdin
        self._shell.stdin.close()
        assert self._shell.wait(PATIENCE_S) == 0

    def _does(self, block: Block) -> None:
        if block.language in docs_page_code_blocks.SHELL:
            for step in _with_codes(docs_page_code_blocks.steps(block)):
                self._looks(step)
        elif block.language == "text":
            self._sees(block.text.splitlines())
        else:
            self._saves(block)

    def _looks(self, step: ShellStep) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.types(step.typed, may_fail=step.typed.rstrip().endswith("\necho $?"))
                self._sees(step.shown)
            except AssertionError:
                if not _LOOKS.match(step.typed) or time.monotonic() > end:
                    raise
                time.sleep(1)
            else:
                return

    def _sees(self, shown: Sequence[str]) -> None:
        at = 0
        for line in filter(str.strip, shown):
            match = _pattern(self._own(line)).search(self._printed, at)
            assert match, f"does not show {line.strip()!r}:\n{self._printed}"
            at = match.end()

    def _saves(self, block: Block) -> None:
        first, _, rest = block.text.partition("\n")
        name = first.removeprefix("# ").removeprefix("in ")
        path = Path(self.types("pwd").strip(), name)
        path.write_text(edited(path.read_text(), rest) if first.startswith("# in ") else block.text)

    def _own(self, text: str) -> str:
        for theirs, ours in self._instead.items():
            text = text.replace(theirs, ours)
        return text


@contextlib.contextmanager
def reading(
    folder: Path,
    environment: Mapping[str, str],
    instead: Mapping[str, str] | None = None,
    shell: Sequence[str] = ("bash",),
) -> Iterator[PageReader]:
    """A reader in a folder; `instead` is what a test has of its own in the place of words of the page, `shell` the
    command line that becomes bash.
    """
    reader = PageReader(folder, environment, instead, shell)
    try:
        yield reader
    finally:
        reader.close()


def _until_done(printed: Iterable[str]) -> tuple[str, bool]:
    """What is printed, and whether it came to the mark; a job in the background may be in the middle of a line then."""
    lines: list[str] = []
    for line in printed:
        before, done, _ = line.partition(_DONE)
        lines.append(before)
        if done:
            return "".join(lines), True
    return "".join(lines), False


def plain_environment() -> dict[str, str]:
    """Ours, without what the tests' own runner and settings of nodewise have put there; wide lines."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST", "NODEWISE"))}
    return {**kept, "COLUMNS": "200"}


def edited(text: str, block: str) -> str:
    """The text with the block's functions in the place of its own."""
    lines = text.splitlines()
    replacement = block.splitlines()
    wanted = {function.name: function for function in _functions(textwrap.dedent("\n".join(replacement)))}
    there = sorted(_functions(text), key=lambda function: -function.lineno)
    assert wanted.keys() <= {function.name for function in there}
    for old in there:
        if new := wanted.get(old.name):
            lines[old.lineno - 1 : old.end_lineno] = replacement[new.lineno - 1 : new.end_lineno]
    return "\n".join(lines) + "\n"


def _functions(text: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]


def _with_codes(steps: Sequence[ShellStep]) -> list[ShellStep]:
    """Join `echo $?` with the command whose exit code it prints."""
    made: list[ShellStep] = []
    for step in steps:
        if step.typed == "echo $?\n" and made:
            before = made.pop()
            made.append(ShellStep(before.typed + step.typed, [*before.shown, *step.shown]))
        else:
            made.append(step)
    return made


def _pattern(line: str) -> re.Pattern[str]:
    made, at = [], 0
    for match in _VARIABLE.finditer(line):
        made += [_spread(line[at : match.start()]), _any(match[0])]
        at = match.end()
    return re.compile(r"(?<!\w)" + r"\s*".join([*made, _spread(line[at:])]) + r"(?!\w)")


def _spread(text: str) -> str:
    """With blanks wherever they are, as tables and answers may have more or fewer than a page shows."""
    return r"\s*".join(map(re.escape, "".join(text.split())))


def _any(variable: str) -> str:
    if variable in {"…", "..."}:
        return ".*"
    return _TIME if "T" in variable else _DURATION
