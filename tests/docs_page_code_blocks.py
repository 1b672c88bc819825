"""The code blocks of pages, and the commands in them, as a reader copies them."""

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
LEARN: Final = ROOT / "docs/learn"
HOW_TO: Final = ROOT / "docs/how-to"
SHELL: Final = frozenset({"console", "sh", "bash"})

_FENCED: Final = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_PROMPT: Final = "$ "
_BETWEEN: Final = frozenset("|&;()\n")
_REDIRECTIONS: Final = frozenset({">", ">>", "<", "<<", ">&"})
_NODEWISE: Final = {".venv/bin/nodewise": "nodewise", "/opt/bin/cmk": "cmk"}


class Block(NamedTuple):
    """A block of a page: its language, and its text without the margin of the list that it stands in."""

    page: Path
    line: int
    """Of its first line of text, from 1."""
    language: str
    text: str

    @property
    def where(self) -> str:
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{page}:{self.line}"


class ShellStep(NamedTuple):
    """What is typed at a prompt, and the lines that the page shows below it."""

    typed: str
    shown: Sequence[str]


def pages() -> list[Path]:
    """What operators read: README and all of docs, without the reasons of `adr` and what is printed by `make docs`."""
    apart = (ROOT / "docs/adr", ROOT / "docs/reference")
    docs = [page for page in (ROOT / "docs").rglob("*.md") if not page.is_relative_to(apart[0])]
    return [ROOT / "README.md", *sorted(page for page in docs if not page.is_relative_to(apart[1]))]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks, in their order."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, match.start()) + 2, match[2], textwrap.dedent(match[3]))
        for match in _FENCED.finditer(text)
    ]


def section(page: Path, begin: str, end: str = "\n## ") -> list[Block]:
    """The blocks from a heading on to the next one of its kind, or to what `end` is."""
    text = page.read_text()
    at = text.index(f"\n{begin}")
    stop = text.find(end, at + 1)
    first, last = (text.count("\n", 0, place) for place in (at, stop if stop >= 0 else len(text)))
    return [block for block in blocks(page) if first < block.line <= last]


def steps(block: Block) -> list[ShellStep]:
    """What a block of a shell has typed: all of it, or of `console` what stands behind a prompt."""
    if block.language != "console":
        return [ShellStep(block.text, ())]
    made: list[tuple[list[str], list[str]]] = []
    goes_on = False
    for line in block.text.splitlines():
        if goes_on:
            made[-1][0].append(line)
        elif line.startswith(_PROMPT):
            made.append(([line.removeprefix(_PROMPT)], []))
        elif made:
            made[-1][1].append(line)
        goes_on = (goes_on or line.startswith(_PROMPT)) and (line.endswith("\\") or _is_open(made[-1][0]))
    return [ShellStep("\n".join(typed) + "\n", shown) for typed, shown in made]


def _is_open(lines: Sequence[str]) -> bool:
    """Whether a quote goes on in the next line."""
    try:
        shlex.split("\n".join(lines), comments=True)
    except ValueError:
        return True
    return False


def commands(typed: str) -> Iterator[list[str]]:
    """The simple commands of what is typed, word by word, without redirections, variables and `sudo`."""
    text = re.sub(r"(^|\s)#.*$", r"\1", _without_documents(typed.replace("\\\n", " ")), flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for word in [*lexer, "\n"]:
        if not set(word) <= _BETWEEN:
            words.append(word)
            continue
        if simple := _bare(words):
            yield simple
        words = []


def _without_documents(typed: str) -> str:
    """Without what stands in a here-document."""
    return re.sub(r"<<-?\s*'?(\w+)'?(.*?)\n.*?^\s*\1$", r"\2", typed, flags=re.MULTILINE | re.DOTALL)


def _bare(words: Sequence[str]) -> list[str]:
    left: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _REDIRECTIONS:
            skip = True
            if left and left[-1].isdecimal():  # 2>
                left.pop()
        elif left or not (word == "sudo" or re.match(r"[A-Za-z_]\w*=", word)):
            left.append(word)
    return [_NODEWISE.get(left[0], left[0]), *left[1:]] if left else []
