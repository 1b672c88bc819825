"""Names and error texts in Python files.

A local variable is named after its content, a test after the behaviour that it checks, a class name has one meaning,
and an error text names what it found and expected. `make check` runs it. Variables are checked in all files, class
names and error texts in the packages: a test may name a fake after the class that it replaces.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

FOLDERS: Final = ("bench", "packages", "src", "tests", "tools")
UNCLEAR: Final = frozenset({"asked", "found", "given", "one", "said", "told"})
"""Names that give the role of a value in a sentence instead of its content."""
RIDDLE: Final = re.compile(r"what_|who_|nobody|is_none_|told")
"""Words of a test name that hide which value or which user the test is about."""
PRONOUN: Final = re.compile(
    r"(?:at least |not |no new |a new )?(?:one|ones|none|another|nothing|it|both|both or none|two|that|those)"
    r"|.*\b(?:one of them|one at least|somebody|nobody|anybody)\b.*",
    re.DOTALL,
)
"""A text that has a pronoun where the reader expects the value or the kind of value."""
PROBLEMS: Final = ("Problem", "add_problem", "of")
"""The last part of the names of functions that take what was found and expected."""
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
        *dict.fromkeys(message for path, tree in trees.items() for message in _unclear_variables(path, tree)),
        *(message for path, tree in trees.items() for message in _unclear_tests(path, tree)),
    ]
    package = {path: tree for path, tree in trees.items() if "src" in path.parts}
    errors = [message for path, tree in package.items() for message in _pronouns_in_errors(path, tree)]
    return messages + errors + _ambiguous_classes(package)


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


def _unclear_tests(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        if match := RIDDLE.search(node.name):
            yield (
                f"{path}:{node.lineno}: found {match[0]} in the name {node.name}, "
                "expected the behaviour in plain words"
            )


def _pronouns_in_errors(path: Path, tree: ast.Module) -> Iterator[str]:
    """Texts of what a `Problem` found and expected. A part of a text with values is not checked."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in PROBLEMS):
            continue
        for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
            if (
                isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
                and PRONOUN.fullmatch(argument.value)
            ):
                yield f"{path}:{argument.lineno}: found {argument.value!r} in an error, expected a noun"


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
