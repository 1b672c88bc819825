"""The pages of the documentation agree with the repository."""

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import msgspec
import pytest
import yaml
from tools import command_outlines, reference
from tools.mkdocs_hook import lines, links

from nodewise.cli.main import COMMANDS
from nodewise.observe.logs import EVENTS
from nodewise.observe.metrics_registry import METRICS
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policy_tools import policy_lint
from tests import docs_page_code_blocks
from tests.cluster import rbac_rights_comparison
from tests.cluster.rbac_rights_comparison import ApiRight

ROOT = Path(__file__).parents[2]
SOURCES = "\n".join(
    path.read_text() for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py"))
)


def test_every_file_that_architecture_names_exists() -> None:
    named = re.findall(
        r"`((?:src|packages|tests|docs|bench|deploy|examples)/[\w./-]*)`",
        (ROOT / "ARCHITECTURE.md").read_text(),
    )
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_package_and_module_is_in_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = [path for path in (ROOT / "src/nodewise").iterdir() if not path.name.startswith("_")]
    rooms += ROOT.glob("packages/*/src/*/")
    names = sorted(str(path.relative_to(ROOT)) for path in rooms if any(path.glob("*.py")))
    assert [name for name in names if name not in text] == []


OLDER_PROGRAMS = {"cmk.py", "node-annotator/usage/k8s_analytics.py"}
"""Files of older programs that docstrings name."""


def named_files(path: Path) -> set[str]:
    """The Python files that the docstring of a module names."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return set(re.findall(r"`([\w/-]+\.py)`", text)) - OLDER_PROGRAMS


def test_every_file_that_the_docstring_of_a_module_names_exists() -> None:
    """Beside the module, in its distribution, or in the repository."""
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in (ROOT / "src/nodewise", *ROOT.glob("packages/*/src/*"))
        for path in package.rglob("*.py")
        for name in named_files(path)
        if not any((folder / name).exists() for folder in (path.parent, package, ROOT))
    ]
    assert missing == []


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_pages_equal_the_generated_ones(name: str) -> None:
    page = ROOT / "docs/reference" / name
    assert page.exists(), "run `make docs`"
    assert page.read_text() == reference.PAGES[name](), "run `make docs`"


def test_reference_has_no_page_of_a_command_that_is_no_more() -> None:
    pages = {f"commands/{path.name}" for path in (ROOT / "docs/reference/commands").glob("*.md")}
    assert pages <= reference.PAGES.keys(), "run `make docs`"


def test_every_event_and_metric_has_a_use_and_every_use_a_row() -> None:
    emitted = set(re.findall(r'logs\.emit\(\s*"(\w+)"', SOURCES))
    counted = set(
        re.findall(
            r'(?:metrics_registry|_metrics_registry)\.(?:count|set|observe|forget)\(\s*"(\w+)"', SOURCES
        )
    )
    assert emitted <= EVENTS.keys()
    assert counted <= METRICS.keys()
    # the row in the table is no use
    assert {name for name in EVENTS if f'"{name}"' not in SOURCES.replace(f'"{name}": ', "")} == set()
    assert {name for name in METRICS if f'"{name}"' not in SOURCES.replace(f'"{name}": ', "")} == set()


PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples", "bench") for page in (ROOT / folder).rglob("*.md")),
]
"""The pages of the repository. `tools/mkdocs_hook.py` includes the same text in the site."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Links work on GitHub and in the site: they are relative paths to files of the repository and their headings."""
    for written, path, anchor in links(page.read_text(), page):
        assert not written.startswith("/"), f"{written}: a path from this page, please"
        assert path.exists(), written
        assert path.is_relative_to(ROOT), written
        assert not anchor or headings(path).count(anchor) == 1, f"{written}: no such heading, or several"
    own = re.findall(r"\]\(#([^)]+)\)", page.read_text())
    assert [anchor for anchor in own if headings(page).count(anchor) != 1] == []


def headings(page: Path) -> list[str]:
    """The anchors of a page's headings on GitHub and in the site."""
    text = "\n".join(line for line, is_code in lines(page.read_text()) if not is_code)
    shown = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
        for line in re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    )
    return [re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in shown]


@pytest.mark.parametrize(
    "manifest",
    [
        "rbac.yaml",
        "controller.yaml",
        "memory.yaml",
        "certs.yaml",
        "reader.yaml",
        "cpu-agent.yaml",
        "trust.yaml",
        "device-taints.yaml",
    ],
)
def test_the_page_of_rights_has_a_row_for_each(manifest: str) -> None:
    page = (ROOT / "docs/rights.md").read_text()
    section = page.partition(f"`deploy/{manifest}`\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:5] for line in section.splitlines() if line.startswith("| `")]
    granted = rbac_rights_comparison.granted(
        yaml.load_all((ROOT / "deploy" / manifest).read_text(), yaml.CSafeLoader)
    )
    documented = [right for row in rows for right in _rights(*row)]
    assert set(documented) == granted
    assert len(documented) == len(granted)


def _rights(verbs: str, resources: str, group: str, where: str) -> Iterator[ApiRight]:
    """The rights of a row, which may name several verbs and resources, and objects from one number to another."""
    namespace = re.search(r"namespace `([^`]+)`", where)
    name = re.search(r"only `([^`]+)`", where)
    numbered = re.search(r"only `([^`]+-)0` to `\1(\d+)`", where)
    names = [name[1] if name else ""]
    if numbered:
        names = [f"{numbered[1]}{number}" for number in range(int(numbered[2]) + 1)]
    rows = product(re.findall("`([^`]+)`", verbs), re.findall("`([^`]+)`", resources), names)
    for verb, resource, name_of_object in rows:
        yield ApiRight(
            verb,
            "" if group.strip() == "core" else group.strip(" `"),
            resource,
            name_of_object,
            namespace[1] if namespace else "",
        )


def test_policies_in_pages_and_examples_have_no_problems() -> None:
    """Complete policies of all kinds: `policy lint` accepts them."""
    texts = {
        block.where: block.text
        for page in docs_page_code_blocks.pages()
        for block in docs_page_code_blocks.blocks(page)
        if block.language == "yaml"
    } | {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "examples").rglob("*.yaml")}
    problems = {}
    kinds = set()
    for where, text in texts.items():
        for document in yaml.load_all(text, yaml.CSafeLoader):
            kind = document.get("kind") if isinstance(document, dict) else None
            if kind in RESOURCES and "spec" in document:
                kinds.add(kind)
                if listed := policy_lint.lint(msgspec.json.encode(document), kind):
                    problems[where] = listed
    assert problems == {}
    assert kinds == set(RESOURCES)


def test_a_clone_has_a_placed_pod_after_at_most_twelve_commands() -> None:
    """`tests/node/test_docs_learn_pages.py` follows these blocks, with the two commands of kind between them."""
    readme = ROOT / "README.md"
    install = docs_page_code_blocks.section(readme, "## Install")
    first_policy = docs_page_code_blocks.section(readme, "## The first policy", "\n`nodewise explain")
    typed = [step.typed for block in (*install, *first_policy) for step in docs_page_code_blocks.steps(block)]
    commands = [command for text in typed for command in docs_page_code_blocks.commands(text)]
    assert ["kubectl", "run", "web"] in [command[:3] for command in commands]
    assert len(commands) <= 12


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in COMMANDS if f"nodewise {name}" not in text] == []


def test_every_dependency_is_locked_and_no_address_is() -> None:
    lock = (ROOT / "uv.lock").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    for name in re.findall(r'^  "([a-z0-9-]+)[><=]', project, re.MULTILINE):
        assert f'name = "{name}"' in lock, f"{name}: run `make lock`"
    assert "://" not in lock


def test_the_outlines_describe_the_commands() -> None:
    """Completion and `--help` read them instead of importing the commands."""
    files = command_outlines.outlines()
    assert [path for path, text in files.items() if (ROOT / path).read_text() != text] == [], (
        "call `make docs`"
    )
