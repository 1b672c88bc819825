"""A hook of mkdocs for the site; `mkdocs.yml` refers to it.

Pages are written for a reader of the repository, and the site shows the same text. So here

- a link that leaves `docs` leads to a copy of that file in the site, below `repository/`: Markdown as a page, other
  text as a page that shows it, all else as it is; and what those pages link to is there as well;
- what stands inside a list item may be indented as Markdown wants it (two or three columns), not only by four;
- `folder/*` in the nav stands for the pages of that folder which the nav does not name itself.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]
COPIES: Final = "repository"
"""Folder of the site that mirrors the repository."""
_FENCE: Final = re.compile(r" *(```+|~~~+)")
_LINK: Final = re.compile(r"`[^`\n]*`|(?<=\]\()[^)\s]+(?=[)\s])")
_ITEM: Final = re.compile(r"( *)(?:[-*+]|\d+[.)]) +")
_BOOSTS: Final = {"learn": 2, "how-to": 2, "reference": 0.5, "runbooks": 0.5, "adr": 0.25, COPIES: 0.25}
"""Search boosts by folder: pages with the steps of a task come before those that list all options."""
_LANGUAGES: Final = {
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".py": "python",
    ".sh": "sh",
    ".csv": "text",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand `folder/*` in the nav to the pages of the folder."""
    named = set(_names(config.nav))
    config.nav = _filled(config.nav, Path(config.docs_dir), named)
    return config


def _names(nav: Any) -> Iterator[str]:
    """Yield all pages of a nav."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _names(part)


def _filled(nav: Any, docs: Path, named: set[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _filled(part, docs, named) for title, part in nav.items()}
    if not isinstance(nav, list):
        return nav
    filled: list[Any] = []
    for part in nav:
        if isinstance(part, str) and part.endswith("/*"):
            paths = (page.relative_to(docs).as_posix() for page in sorted(docs.glob(f"{part}.md")))
            filled += [name for name in paths if name not in named]
        else:
            filled.append(_filled(part, docs, named))
    return filled


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository to which pages link."""
    pages = [ROOT / "docs" / file.src_uri for file in files if file.is_documentation_page()]
    wanted = [
        ROOT / name.removeprefix(f"{COPIES}/") for name in _names(config.nav) if name.startswith(COPIES)
    ]
    wanted += [target for page in pages for target in _targets(page)]
    seen: set[Path] = set()
    while wanted:
        path = wanted.pop()
        if path in seen or path.is_relative_to(ROOT / "docs") or not path.exists():
            continue
        seen.add(path)
        files.append(_copy(path, config))
        wanted += _targets(path) if path.suffix == ".md" else ()
    return files


def _copy(path: Path, config: MkDocsConfig) -> File:
    """Create a file of the site from a file of the repository."""
    name = source(path)
    if path.suffix == ".md" or not name.endswith(".md"):
        return File.generated(config, name, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV)
    title = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        text = "".join(
            f"- `{entry.name}`\n" for entry in sorted(path.iterdir()) if not entry.name.startswith((".", "_"))
        )
    else:
        text = f"````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"
    head = f"---\ntitle: {title}\nsearch: {{exclude: true}}\n---\n\n# `{title}`\n\n"
    return File.generated(config, name, content=head + text, inclusion=InclusionLevel.NOT_IN_NAV)


def source(path: Path) -> str:
    """Path of a file or folder of the repository in the site, relative to the site's sources."""
    if path.is_relative_to(ROOT / "docs"):
        return path.relative_to(ROOT / "docs").as_posix()
    name = f"{COPIES}/{path.relative_to(ROOT).as_posix()}"
    if path.is_dir():
        return f"{name}/README.md"
    return name if path.suffix in {".md", ".svg", ".png"} else f"{name}.md"


def _targets(page: Path) -> list[Path]:
    """Files and folders of the repository to which a page links."""
    return [path for _, path, _ in links(page.read_text(), page)]


def links(text: str, page: Path) -> list[tuple[str, Path, str]]:
    """Links of a page to files: the link as written, the file or folder, and the anchor, empty for none."""
    targets: list[tuple[str, Path, str]] = []

    def note(link: str) -> str:
        if (read := _read(link, page)) is not None:
            targets.append((link, *read))
        return link

    _with_links(text, note)
    return targets


def _read(link: str, page: Path) -> tuple[Path, str] | None:
    """The file of a link and its anchor; None for links within the page or to another host."""
    name, _, anchor = link.partition("#")
    if not name or re.match(r"[a-z]+:", name):
        return None
    path = Path(posixpath.normpath((page.parent / name).as_posix()))
    readme = path / "README.md"
    return (readme if readme.exists() else path), anchor


def _with_links(text: str, change: Callable[[str], str]) -> str:
    """Change the targets of all links outside of code."""

    def rewrite(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith("`") else change(match[0])

    return "\n".join(line if is_code else _LINK.sub(rewrite, line) for line, is_code in lines(text))


def lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it belongs to a fenced block."""
    fence = ""
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
            yield line, True
        elif match and match[1].startswith(fence) and line.strip() == match[1]:
            fence = ""
            yield line, True
        else:
            yield line, bool(fence)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Convert the text of a page for mkdocs."""
    path = _origin(page.file.src_uri)
    page.meta.setdefault("search", {"boost": _BOOSTS.get(page.file.src_uri.partition("/")[0], 1)})

    def moved(link: str) -> str:
        read = _read(link, path)
        if read is None:
            return link
        to = posixpath.relpath(source(read[0]), posixpath.dirname(page.file.src_uri) or ".")
        return to + (f"#{read[1]}" if read[1] else "")

    text = re.sub(r"\A(<!--.*?-->\s*)+", "", markdown, flags=re.DOTALL)  # or the title is not found
    return indented(_with_links(text, moved))


def _origin(name: str) -> Path:
    """The file of the repository for a page of the site."""
    if not name.startswith(f"{COPIES}/"):
        return ROOT / "docs" / name
    return ROOT / name.removeprefix(f"{COPIES}/")


def indented(text: str) -> str:
    """Indent the contents of list items by four columns per level."""
    made: list[str] = []
    margins: list[int] = []
    """Columns at which the text of the open list items starts."""
    for line, is_code in lines(text):
        blank = len(line) - len(line.lstrip(" "))
        if line.strip():
            while margins and blank < margins[-1]:
                margins.pop()
        made.append(
            line if not line.strip() else " " * 4 * len(margins) + line[margins[-1] if margins else 0 :]
        )
        if not is_code and (item := _ITEM.match(line)):
            margins.append(item.end())
    return "\n".join(made)
