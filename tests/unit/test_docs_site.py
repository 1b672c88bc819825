"""The documentation site builds without warnings, and loads nothing from other hosts."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tools.mkdocs_hook import indented

ROOT = Path(__file__).parents[2]
LOADS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "srcset", "object": "data"}
SECTIONS = ("Learn", "How-to", "Reference", "Concepts")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def pages(site: Path) -> Iterator[tuple[str, str]]:
    for page in site.rglob("*.html"):
        yield page.relative_to(site).as_posix(), page.read_text()


class Loads(HTMLParser):
    """A parser that collects the URLs that a browser loads for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if value and LOADS.get(tag) == name]


def loaded(text: str) -> list[str]:
    reader = Loads()
    reader.feed(text)
    return reader.found


def test_each_page_of_docs_is_in_the_site(site: Path) -> None:
    written = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")}
    assert [page for page in sorted(written) if not (site / page).exists()] == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    resources = {(name, url) for name, text in pages(site) for url in loaded(text)}
    assert any(url.endswith(".css") for _, url in resources)
    assert [(name, url) for name, url in resources if urlsplit(url).netloc] == []


def test_no_page_makes_the_theme_fetch_from_another_host(site: Path) -> None:
    """The theme loads a script for diagrams and the stars of a repository for pages that have these elements."""
    asks = re.compile(r'class="mermaid|data-md-component="source"')
    assert [name for name, text in pages(site) if asks.search(text)] == []
    styles = "\n".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(\s*[\"']?(?:https?:)?//|@import", styles) == []


def test_files_and_links_of_pages_exist(site: Path) -> None:
    for name, text in pages(site):
        folder = (site / name).parent if name != "404.html" else site
        urls = [urlsplit(url) for url in [*loaded(text), *re.findall(r'<a [^>]*href="([^"]+)"', text)]]
        own = [url.path.lstrip("/") for url in urls if url.path and not url.netloc]
        assert [path for path in own if not (folder / path).exists()] == [], name


def test_every_page_shows_the_four_sections(site: Path) -> None:
    text = (site / "index.html").read_text()
    tabs = re.findall(r'class="md-tabs__link">\s*([^<]+?)\s*<', text)
    assert tabs[1:] == list(SECTIONS)


def test_the_search_finds_words_of_a_page(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    assert any("percentageOfNodesToScore" in entry["text"] for entry in entries)
    assert "percentageOfNodesToScore" in (site / "search/search_index.js").read_text(), (
        "for a page opened as a file"
    )


def test_the_search_ranks_pages_with_steps_before_the_reference(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    boosts: dict[str, set[float]] = {}
    for entry in entries:
        folder, slash, _ = entry["location"].partition("/")
        boosts.setdefault(folder if slash else "", set()).add(entry.get("boost", 1))
    others = boosts["understand"] | boosts[""]
    assert min(boosts["how-to"] | boosts["learn"]) > max(others)
    assert min(others) > max(boosts["reference"] | boosts["runbooks"])


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("text\n\n  indented", "text\n\n  indented"),
        ("- one\n  goes on\n\n  more\n\ntext", "- one\n    goes on\n\n    more\n\ntext"),
        (
            "1. one\n\n   ```sh\n   if\n     x\n   ```\n2. two",
            "1. one\n\n    ```sh\n    if\n      x\n    ```\n2. two",
        ),
        ("- one\n  - two\n    on\n- three", "- one\n    - two\n        on\n- three"),
        ("```yaml\n- a:\n  - b\n```", "```yaml\n- a:\n  - b\n```"),
        ("- one\nlazy\n\n    code", "- one\nlazy\n\n    code"),
    ],
    ids=[
        "no list",
        "text in an item",
        "code in an item",
        "lists in lists",
        "code",
        "text that goes on at the margin",
    ],
)
def test_content_of_list_items_is_indented_for_mkdocs(written: str, made: str) -> None:
    assert indented(written) == made
