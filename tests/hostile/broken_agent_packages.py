"""Installs packages with an agent that is created from the template and then broken."""

from collections.abc import Mapping
from pathlib import Path

from nodewise.cli.agents import agent_package_scaffold

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
    package = agent_package_scaffold.agent_package_name(name)
    changes = {EVERY_POD: ONLY_WITH_LABEL, **instead}
    for path, text in agent_package_scaffold.render_agent_package(name).items():
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
