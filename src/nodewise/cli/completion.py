"""`nodewise completion`: the script with which a shell completes command lines; completion for the kubectl plugin."""

import sys
from typing import Final, NoReturn

import click
from click.shell_completion import ShellComplete, get_completion_class

from nodewise.cli import main

_NO_FILES, _FILES = 4, 0
"""Directives of kubectl (cobra's `ShellCompDirectiveNoFileComp` and `ShellCompDirectiveDefault`)."""
_VARIABLE: Final = "_NODEWISE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script with which a shell completes commands, options, values and names.

    Names are those of agents, and of the namespaces and pods of the cluster that your kubeconfig names. kubectl 1.26 or
    later completes `kubectl nodewise` as well, without this script.

    \b
    Examples:
      source <(nodewise completion bash)    # in ~/.bashrc; bash 4.4 or later
      source <(nodewise completion zsh)     # in ~/.zshrc
      nodewise completion fish | source     # in ~/.config/fish/config.fish

    \b
    Exit codes:
      0  printed
      2  the command line is invalid
    """
    kind = get_completion_class(shell)
    assert kind is not None
    # without the check of bash's version, which would start bash
    click.echo(ShellComplete.source(kind(main.command, {}, "nodewise", _VARIABLE)))


def run_for_kubectl() -> NoReturn:
    """The program `kubectl_complete-nodewise`, which kubectl calls with the words behind `kubectl nodewise`."""
    *words, incomplete = sys.argv[1:] or [""]
    items = ShellComplete(main.command, dict(main.CONTEXT), "nodewise", _VARIABLE).get_completions(
        words, incomplete
    )
    for item in items:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    has_files = any(item.type in ("file", "dir") for item in items)
    click.echo(f":{_FILES if has_files else _NO_FILES}")
    sys.exit(0)
