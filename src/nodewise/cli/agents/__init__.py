"""`nodewise agents`: lists agents, shows their options, and writes a package for a new one."""

from pathlib import Path

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodewise import agents
from nodewise.base.errors import visible
from nodewise.cli import agent_selection
from nodewise.cli.agents import agent_package_scaffold
from nodewise.cli.extender_options import setting_groups
from nodewise.cli.name_completion import AgentNames
from nodewise.cli.options_from_settings import output_option
from nodewise.cli.setting_declarations import list_settings


@click.group()
def command() -> None:
    """List agents, show their options, and create new ones.

    \b
    Examples:
      nodewise agents list
      nodewise agents show safe
      nodewise agents new quiet
    """


@command.command("list", params=[output_option(["table", "json"])])
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
    rows = [_agent_row(agent) for agent in agents.installed()]
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


def _agent_row(agent: agents.InstalledAgent) -> dict[str, str]:
    name, package, version = agent.origin
    summary = agent.kind.summary if agent.kind else ""
    broken = agent_selection.find_settings_conflict(agent.kind, setting_groups()) if agent.kind else agent.why
    return {"name": name, "summary": summary, "package": package, "version": version, "broken": broken}


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
    console.print(_escape_markup(f"reads: {', '.join(reads)}"))
    table = Table("OPTION", "DEFAULT", "MEANING", box=box.SIMPLE, header_style="")
    for row in rows:
        table.add_row(*map(_escape_markup, (row["flag"], row["default"], row["help"])))
    console.print(table)


@command.command("new")
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
    agent_package_scaffold.check_new_agent_name(name)
    chosen = folder or Path(f"nodewise-{name}")
    agent_package_scaffold.write_agent_package(name, chosen)
    module = f"src/{agent_package_scaffold.agent_package_name(name)}/agent.py"
    click.echo(
        f"{chosen}: an agent {name!r} that lets every node pass; change it in {module}\n"
        f"next: cd {chosen} && pip install --editable . && pytest && nodewise agents show {name}"
    )
