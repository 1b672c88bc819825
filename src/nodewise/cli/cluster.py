"""Which cluster a command that only looks is about."""

from typing import Any

import click

from nodewise.kube.options import KubeOptions


def options() -> list[click.Parameter]:
    """The two options by which kubectl is told, too."""
    return [
        click.Option(
            ["--kubeconfig"],
            default="",
            envvar="NODEWISE_KUBECONFIG",
            metavar="FILE",
            help="A kubeconfig file; default: as kubectl takes it.",
        ),
        click.Option(
            ["--context"],
            default="",
            envvar="NODEWISE_CONTEXT",
            metavar="NAME",
            help="A context of the kubeconfig.",
        ),
    ]


def chosen(given: dict[str, Any]) -> KubeOptions:
    """What was chosen with these options."""
    return KubeOptions(kubeconfig=given["kubeconfig"], context=given["context"])
