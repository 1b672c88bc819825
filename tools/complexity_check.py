"""Size of modules, and cyclomatic complexity of functions, as counted by radon.

radon counts branches, comprehensions and boolean operators; ruff's C901 counts neither of the last two. `make check`
fails for a module that is too long, for a function of more than 12 that does not give a reason in a comment
`# complexity: REASON` in the lines of its signature, and for one of more than 15.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from radon.complexity import cc_visit
from radon.visitors import Class, Function

SOURCES: Final = (Path("src"), *sorted(Path("packages").glob("*/src")))
MAX_COMPLEXITY: Final = 12
"""Without a reason."""
MAX_EXPLAINED: Final = 15
MAX_LINES: Final = 800
"""Of a module."""
_REASON: Final = "# complexity: "


def problems(folder: Path) -> Iterator[str]:
    """One line per module and function above its bound."""
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text()
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            yield f"{path}: found {len(lines)} lines, expected at most {MAX_LINES}"
        for block in cc_visit(text):
            if isinstance(block, Class) or block.complexity <= MAX_COMPLEXITY:
                continue
            limit = MAX_EXPLAINED if _has_reason(lines, block) else MAX_COMPLEXITY
            if block.complexity > limit:
                yield (
                    f"{path}:{block.lineno}: {block.fullname}: found complexity {block.complexity}, "
                    f"expected at most {limit}"
                )


def _has_reason(lines: list[str], function: Function) -> bool:
    for line in lines[function.lineno - 1 : function.endline]:
        if _REASON in line:
            return True
        if line.split("  #")[0].rstrip().endswith(":"):
            return False
    return False


if __name__ == "__main__":
    messages = [message for folder in SOURCES for message in problems(folder)]
    print(*messages, sep="\n", end="\n" if messages else "")
    sys.exit(bool(messages))
