"""Creates a package for a new agent: a copy of the folder `agents/template` under another name."""

import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodewise import agents
from nodewise.base.errors import BadSettings, Problem
from nodewise.engine.third_party_result_validation import MAX_NAME_LENGTH, NAME

TEMPLATE: Final = Path(agents.__file__).parent / "template"
RESERVED: Final = frozenset(
    {"all", "agents", "bind", "extender", "none", "nodewise", "scheduler", "template", "test"}
)
"""Names with another meaning in paths and options, or in the template itself."""


def check_new_agent_name(name: str) -> None:
    """Raises `BadSettings` if an agent cannot have this name, or if one already has it."""
    expected = f"small letters and digits with dashes between, at most {MAX_NAME_LENGTH}, such as my-agent"
    if not NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        raise BadSettings("agents new", [Problem("NAME", repr(name), expected)])
    if name in RESERVED or keyword.iskeyword(name):
        raise BadSettings("agents new", [Problem("NAME", f"{name!r} is reserved", "another name")])
    if name in agents.names():
        raise BadSettings("agents new", [Problem("NAME", f"there is an agent {name!r}", "another name")])


def agent_package_name(name: str) -> str:
    """The name of an agent's Python package."""
    return "nodewise_" + name.replace("-", "_")


def render_agent_package(name: str) -> Mapping[str, str]:
    """The text of each file of the package, by its path in the new folder."""
    rest = TEMPLATE / "package"
    paths = {f"src/nodewise_template/{path.name}": path for path in TEMPLATE.glob("*.py")}
    paths |= {str(path.relative_to(rest)): path for path in rest.rglob("*") if path.suffix in _SUFFIXES}
    return {
        _replace_template_name(to, name): _replace_template_name(path.read_text(), name)
        for to, path in sorted(paths.items())
    }


_SUFFIXES: Final = {".py", ".toml", ".md"}


def _replace_template_name(text: str, name: str) -> str:
    """The template's text with another name, in each form in which the template's name occurs."""
    identifier = name.replace("-", "_")
    forms = {
        "nodewise.agents.template": agent_package_name(name),
        "nodewise_template": agent_package_name(name),
        "test_template": f"test_{identifier}",
        "template_": f"{identifier}_",
        "Template": "".join(part.capitalize() for part in name.split("-")),
        "template": name,
    }
    return re.sub("|".join(map(re.escape, forms)), lambda match: forms[match[0]], text)


def write_agent_package(name: str, folder: Path) -> None:
    """Write the package into a new folder. `BadSettings` if the folder exists or cannot be created."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError as error:
        raise BadSettings("agents new", [Problem("--folder", f"{folder} exists", "a new one")]) from error
    except OSError as error:
        raise BadSettings("agents new", [Problem("--folder", str(error), "a folder to be made")]) from error
    for path, text in render_agent_package(name).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
