"""Cyclomatic complexity of every function, as counted by radon: branches, comprehensions and boolean operators.

Called by `make check`, which fails for a function above the bound, and for an exception that is not needed any more.
ruff's C901 counts neither comprehensions nor boolean operators.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from radon.complexity import cc_visit
from radon.visitors import Class, Function

SOURCES: Final = Path("src/nodewise")
MAX_COMPLEXITY: Final = 12
EXCEPTIONS: Final = frozenset({})
"""Exceptions above the bound, by qualified name. The list only gets shorter."""


def functions(folder: Path) -> Iterator[tuple[Path, Function]]:
    """All functions and methods below a folder, with their files."""
    for path in sorted(folder.rglob("*.py")):
        for block in cc_visit(path.read_text()):
            if not isinstance(block, Class):
                yield path, block


def problems(folder: Path) -> list[str]:
    """One line per function above the bound, and per exception without such a function."""
    complex_functions = [
        (path, function) for path, function in functions(folder) if function.complexity > MAX_COMPLEXITY
    ]
    names = {function.fullname for _, function in complex_functions}
    return [
        *(
            f"{path}:{function.lineno}: {function.fullname}: found complexity {function.complexity}, "
            f"expected at most {MAX_COMPLEXITY}"
            for path, function in complex_functions
            if function.fullname not in EXCEPTIONS
        ),
        *(
            f"{__file__}: {name}: no function of this name is above {MAX_COMPLEXITY}; remove the exception"
            for name in sorted(EXCEPTIONS - names)
        ),
    ]


if __name__ == "__main__":
    lines = problems(SOURCES)
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
