"""The attacks that `docs/security.md` lists, each with its tests, which `python -m tests.attack_list` prints.

A row of a table below "Tested attacks" is one attack: what is tried, the defence, and files with tests or single tests.
"""

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/security.md"
_TEST: Final = re.compile(r"`((?:tests|packages/[\w-]+/\w+_tests)/[\w/.-]+\.py)(?:::(\w+))?`")


class AttackTest(NamedTuple):
    """A file with tests, or one test."""

    path: str
    name: str = ""
    """Empty for all tests of the file."""

    def __str__(self) -> str:
        return f"{self.path}::{self.name}" if self.name else self.path


class Attack(NamedTuple):
    """A row of a table."""

    attack: str
    defence: str
    tests: tuple[AttackTest, ...]


def read() -> list[Attack]:
    """All attacks, in the order of the page."""
    section = PAGE.read_text().partition("\n## Tested attacks\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("|")]
    return [
        Attack(
            cells[0].strip(), cells[1].strip(), tuple(AttackTest(*test) for test in _TEST.findall(cells[2]))
        )
        for cells in rows
        if len(cells) == 3 and cells[2].strip() != "test" and not cells[0].startswith("---")
    ]


if __name__ == "__main__":
    print(*sorted({str(test) for attack in read() for test in attack.tests}), sep="\n")
