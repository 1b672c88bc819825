"""Prints lines to stdout and stderr. Control characters are made visible."""

import click

from nodewise.base.errors import visible


def print_line(text: str) -> None:
    """Print a line to stdout."""
    click.echo(visible(text))


def print_message(text: str) -> None:
    """Print a message to stderr."""
    click.echo(f"nodewise: {visible(text)}", err=True)
