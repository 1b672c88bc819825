"""`nodewise agents`: lists agents, shows their options, and writes a package for a new one."""

import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodewise import agents
from nodewise.base.errors import BadSettings, Problem, visible
from nodewise.cli import agent_selection
from nodewise.cli.extender_options import setting_groups
from nodewise.cli.options_from_settings import output_option
from nodewise.cli.parameter_types import AgentNames
from nodewise.cli.setting_declarations import list_settings
from nodewise.engine.third_party_result_validation import MAX_NAME_LENGTH, NAME

TEMPLATE: Final = Path(agents.__file__).parent / "template"
RESERVED: Final = frozenset(
    {"all", "agents", "bind", "extender", "none", "nodewise", "scheduler", "template", "test"}
)
"""Names with another meaning in paths and options, or in the template itself."""


def check_new_agent_name(name: str) -> None:
    """Raises `BadSettings` if an agent cannot have this name, or if one already has it."""
    actual, expected = "", "another name"
    if not NAME.fullmatch(name) or len(name) > MAX_NAME_LENGTH:
        actual = repr(name)
        expected = (
            f"small letters and digits with dashes between, at most {MAX_NAME_LENGTH}, such as my-agent"
        )
    elif name in RESERVED or keyword.iskeyword(name):
        actual = f"{name!r} is reserved"
    elif name in agents.names():
        actual = f"there is an agent {name!r}"
    if actual:
        raise BadSettings("agents new", [Problem("NAME", actual, expected)])


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
        raise BadSettings("agents new", [Problem("--folder", f"{folder} exists", "a new folder")]) from error
    except OSError as error:
        raise BadSettings("agents new", [Problem("--folder", str(error), "a folder to be made")]) from error
    for path, text in render_agent_package(name).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@click.group()
def command() -> None:
    """List agents, show their options, and create new ones.

    \b
    Examples:
      nodewise agents list
      nodewise agents show safe
      nodewise agents new quiet
    """


@command.command(
    "list", params=[output_option(["table", "json"])], short_help="List the agents that are installed."
)
def list_agents(output: str) -> None:
    """List the agents that `--agents` accepts, and agents of other packages that cannot be used, with the reason.

    \b
    Examples:
      nodewise agents list
      nodewise agents list -o json

    \b
    Exit codes:
      0  listed
      2  the command line is invalid
    """
    rows = []
    for (name, package, version), kind, why in agents.installed():
        broken = agent_selection.find_settings_conflict(kind, setting_groups()) if kind else why
        row = {"name": name, "summary": kind.summary if kind else "", "package": package}
        rows.append({**row, "version": version, "broken": broken})
    if output == "json":
        click.echo(msgspec.json.encode({"agents": rows}))
        return
    table = Table("NAME", "WHAT IT DOES", "PACKAGE", box=None, header_style="")
    for row in rows:
        package = "" if row["package"] == "nodewise" else f"{row['package']} {row['version']}"
        description = f"broken: {row['broken']}" if row["broken"] else row["summary"]
        table.add_row(*map(_escape_markup, (row["name"], description, package.strip())))
    Console(highlight=False).print(table)


def _escape_markup(text: str) -> Text:
    """Text of another package, without markup and control characters."""
    return Text(visible(text))


@command.command("show", params=[output_option(["table", "json"])])
@click.argument("name", type=AgentNames())
def show_agent(name: str, output: str) -> None:
    """Show an agent: its options, and the objects that it reads.

    \b
    Examples:
      nodewise agents show telemetry
      nodewise agents show gpu -o json

    \b
    Exit codes:
      0  shown
      2  the command line or NAME is invalid
    """
    kind = agents.load(name, "NAME")
    rows = [
        {
            "flag": setting.flag,
            "environment": setting.variable,
            "default": setting.default_as_text(),
            "help": setting.help,
        }
        for setting in list_settings(kind.options)
    ]
    reads = [f"{w.resource.plural}.{w.resource.group}".rstrip(".") for w in kind.watched(kind.options())]
    if output == "json":
        click.echo(
            msgspec.json.encode({"name": name, "summary": kind.summary, "reads": reads, "options": rows})
        )
        return
    console = Console(highlight=False)
    console.print(_escape_markup(f"{kind.name}: {kind.summary}"))
    console.print(_escape_markup(f"reads: {', '.join(reads) or 'no objects of the API server'}"))
    table = Table("OPTION", "DEFAULT", "MEANING", box=box.SIMPLE, header_style="")
    for row in rows:
        table.add_row(*map(_escape_markup, (row["flag"], row["default"], row["help"])))
    console.print(table)


@command.command("new", short_help="Write a package with an agent of your own.")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path), help="New folder. [default: nodewise-NAME]")
def new_agent(name: str, folder: Path | None) -> None:
    """Write a package with an agent of your own, its options and its tests, as a starting point.

    \b
    Examples:
      nodewise agents new quiet
      nodewise agents new quiet --folder /tmp/quiet

    \b
    Exit codes:
      0  written
      1  the folder cannot be written
      2  NAME is invalid, or the folder exists
    """
    check_new_agent_name(name)
    chosen = folder or Path(f"nodewise-{name}")
    write_agent_package(name, chosen)
    module = f"src/{agent_package_name(name)}/agent.py"
    click.echo(
        f"{chosen}: an agent {name!r} that lets every node pass; change it in {module}\n"
        f"next: cd {chosen} && pip install --editable . && pytest && nodewise agents show {name}"
    )
