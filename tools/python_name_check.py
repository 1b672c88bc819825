"""Names in Python files: local variables are named after their content, and a class name has one meaning.

`make check` runs it. Variables are checked in all files, class names in the package: a test may name a fake after the
class that it replaces.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

FOLDERS: Final = ("bench", "packages", "src", "tests", "tools")
UNCLEAR: Final = frozenset({"asked", "found", "given", "one", "said", "told"})
"""Names that give the role of a value in a sentence instead of its content."""
SAME_MEANING: Final = frozenset(
    {
        # what each agent reads of nodes and pods
        "NodeAnnotations",
        "NodeFields",
        "NodeMetadata",
        "NodeStatus",
        "PodFields",
        "PodMetadata",
        # types of the extender protocol and of the scheduler's configuration, for the server and for the client
        "ManagedResource",
        "MetaVictims",
        "NodeList",
        "Victims",
    }
)
"""Classes that are defined several times with the same meaning."""


def main() -> None:
    """Print each unclear variable and each ambiguous class name with its place; exit code 1 if there is any."""
    paths = (path for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py")))
    messages = problems({path: ast.parse(path.read_text()) for path in paths})
    print("\n".join(messages), end="\n" if messages else "")
    sys.exit(bool(messages))


def problems(trees: Mapping[Path, ast.Module]) -> list[str]:
    """A message for each unclear variable and each ambiguous class name in these files."""
    # a variable of a nested function is a variable of both functions
    messages = [
        *dict.fromkeys(message for path, tree in trees.items() for message in _unclear_variables(path, tree))
    ]
    package = {path: tree for path, tree in trees.items() if "src" in path.parts}
    return messages + _ambiguous_classes(package)


def _unclear_variables(path: Path, tree: ast.Module) -> Iterator[str]:
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            else:
                continue
            if name in UNCLEAR:
                yield f"{path}:{node.lineno}: found the variable {name}, expected a name for what it holds"


def _ambiguous_classes(trees: Mapping[Path, ast.Module]) -> list[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{path}:{node.lineno}")
    return [
        f"{', '.join(defined)}: found several classes {name}, expected one meaning per name"
        for name, defined in sorted(places.items())
        if len(defined) > 1 and name not in SAME_MEANING
    ]


if __name__ == "__main__":
    main()
