"""Shell completion: the script of a shell, and names completed from the cluster and from installed agents."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

import click
import msgspec
from click.shell_completion import ShellComplete, get_completion_class

from nodewise.base.errors import NodewiseError
from nodewise.cli import main

if TYPE_CHECKING:  # completion of other words needs no API server
    from nodewise.kube.api_server_interface import Api
    from nodewise.kube.kubeconfig import KubeOptions
    from nodewise.kube.resource_kinds import Resource

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


_TIMEOUT_S: Final = 2.0
_LIMIT_S: Final = 3.0  # time after which the program ends without completions
_MOST: Final = "1000"  # objects that are listed


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class ListedNames(msgspec.Struct, frozen=True):
    """A list of objects, of which only the names are read."""

    items: tuple[_Object, ...] = ()


async def list_names(api: "Api", resource: "Resource", namespace: str, timeout_s: float) -> list[str]:
    """The first names of objects of a kind. Errors are those of `Api.get` and of msgspec."""
    body = await api.get(resource.path(namespace), {"limit": _MOST}, timeout_s=timeout_s)
    return [item.metadata.name for item in msgspec.json.decode(body, type=ListedNames).items]


def list_namespaces(ctx: click.Context) -> list[str]:
    """The namespaces of the cluster that the command line names so far; none if it cannot be read."""
    from nodewise.kube.resource_kinds import NAMESPACES

    return _names(ctx, NAMESPACES)


def list_pods(ctx: click.Context, namespace: str) -> list[str]:
    """The pods of a namespace, by default that of the context, as `list_namespaces`."""
    from nodewise.kube.resource_kinds import PODS

    return _names(ctx, PODS, namespace)


def _names(ctx: click.Context, resource: "Resource", namespace: str = "") -> list[str]:
    """The names of objects of the cluster that the command line names so far; none if it cannot be read."""
    import asyncio

    from nodewise.kube.kubeconfig import KubeOptions

    options = KubeOptions(
        kubeconfig=ctx.params.get("kubeconfig") or "", context=ctx.params.get("context") or ""
    )
    try:
        with _limited_time():
            return asyncio.run(_list_names(options, resource, namespace))
    except (NodewiseError, msgspec.MsgspecError):
        return []


@contextmanager
def _limited_time() -> Iterator[None]:
    """End the process if the block takes too long.

    A timeout in the event loop would not suffice: the loop waits for its thread that resolves the name of the API
    server, which takes long without a network.
    """
    before = signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def _list_names(options: "KubeOptions", resource: "Resource", namespace: str) -> list[str]:
    from nodewise.kube.api_client_creation import open_api

    async with open_api(options) as api:
        inside = (namespace or api.namespace) if resource.namespaced else ""
        return await list_names(api, resource, inside, _TIMEOUT_S)
