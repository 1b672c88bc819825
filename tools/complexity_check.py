"""Cyclomatic complexity of every function, as counted by radon: branches, comprehensions and boolean operators.

Called by `make check`, which fails for a function above the bound. ruff's C901 counts neither comprehensions nor
boolean operators.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from radon.complexity import cc_visit
from radon.visitors import Class, Function

SOURCES: Final = (Path("src"), *sorted(Path("packages").glob("*/src")))
MAX_COMPLEXITY: Final = 12


def functions(folder: Path) -> Iterator[tuple[Path, Function]]:
    """All functions and methods below a folder, with their files."""
    for path in sorted(folder.rglob("*.py")):
        for block in cc_visit(path.read_text()):
            if not isinstance(block, Class):
                yield path, block


def problems(folder: Path) -> list[str]:
    """One line per function above the bound."""
    return [
        f"{path}:{function.lineno}: {function.fullname}: found complexity {function.complexity}, "
        f"expected at most {MAX_COMPLEXITY}"
        for path, function in functions(folder)
        if function.complexity > MAX_COMPLEXITY
    ]


if __name__ == "__main__":
    lines = [line for folder in SOURCES for line in problems(folder)]
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
