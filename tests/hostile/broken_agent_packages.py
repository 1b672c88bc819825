"""Installs packages with an agent that is created from the template and then broken."""

from collections.abc import Callable, Mapping
from pathlib import Path

from nodewise.cli import agents

FILTER = "# Your own calculation, such as `rejected = ~(values <= limit)`, which rejects missing values too."
SCORE = (
    "# Your own calculation, such as `points = np.clip(10 - values, 0, 10)`, with a score for missing values."
)
SLOT = "values = np.full(len(cluster_state.nodes) + 1, np.nan)"
KIND = "KIND: Final = "
EVERY_POD = ').get(self._label, "")'
ONLY_WITH_LABEL = ").get(self._label)"


def install(site: Path, name: str, instead: Mapping[str, str], version: str = "1.0") -> None:
    """Installs the agent `name` with parts of its source text replaced. It evaluates only pods with its label."""
    package = agents.agent_package_name(name)
    changes = {EVERY_POD: ONLY_WITH_LABEL, **instead}
    for path, text in agents.render_agent_package(name).items():
        if not path.startswith("src/"):
            continue
        for old, new in changes.items():
            text = text.replace(old, new)  # noqa: PLW2901 - one change after the other
        file = site / path.removeprefix("src/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    code = "".join(path.read_text() for path in (site / package).glob("*.py"))
    assert [new for new in changes.values() if new not in code] == []
    metadata = site / f"{package}-{version}.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    metadata.joinpath("entry_points.txt").write_text(f"[nodewise.agents]\n{name} = {package}:KIND\n")


Installer = Callable[[Path, str], None]
"""Installs a package of an agent of this name into a folder."""


def _changed(part: str, text: str) -> Installer:
    """A package with this text in place of the beginning of a declaration. NAME is the name of the agent."""
    return lambda site, name: install(site, name, {part.replace("NAME", name): text.replace("NAME", name)})


def _entry_points(content: bytes, *, has_metadata: bool = True) -> Installer:
    """The metadata of a package without code."""

    def write(site: Path, name: str) -> None:
        package = agents.agent_package_name(name)
        metadata = site / f"{package}-1.0.dist-info"
        metadata.mkdir(parents=True)
        if has_metadata:
            text = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            metadata.joinpath("METADATA").write_text(text)
        lines = b"[nodewise.agents]\n" + content.replace(b"NAME", name.encode()) + b"\n"
        metadata.joinpath("entry_points.txt").write_bytes(lines)

    return write


_OPTION = 'NAME_label: str = "NAME/limit"'
BROKEN_PACKAGES: Mapping[str, Installer] = {
    "an import that fails": _changed(KIND, "import nowhere\nKIND: Final = "),
    "a syntax error": _changed(KIND, "KIND: Final = = "),
    "an exception": _changed(KIND, "raise RuntimeError('at import')\nKIND: Final = "),
    "an exception beside Exception": _changed(KIND, "raise BaseException('at import')\nKIND: Final = "),
    "the end of the process": _changed(KIND, "raise SystemExit(3)\nKIND: Final = "),
    "a number in place of the kind": _changed(KIND, "KIND: Final = 7 #"),
    "no kind": _changed(KIND, "OTHER: Final = "),
    "an option with another prefix": _changed(_OPTION, 'sync_period_s: str = "NAME/limit"'),
    "a default of another type": _changed(_OPTION, f'{_OPTION}\n    NAME_wait_s: str = "5"'),
    "a required option": _changed(_OPTION, "NAME_label: str"),
    "a module that is not installed": _entry_points(b"NAME = nowhere:KIND"),
    "a value that names no object": _entry_points(b"NAME = not a module!"),
    "an invalid name": _entry_points(b"Agent NAME = nowhere:KIND"),
    "a name without value": _entry_points(b"NAME"),
    "a file that is not text": _entry_points(b"NAME = \xff\xfe:KIND"),
    "no metadata": _entry_points(b"NAME = nowhere:KIND", has_metadata=False),
}
"""Packages of an agent that cannot be used, by the defect."""
UNREADABLE_NAMES = ("an invalid name", "a name without value", "a file that is not text")
"""The defects with which nodewise cannot know the name of the agent."""
