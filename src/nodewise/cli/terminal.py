"""Lines on standard output and standard error. Control characters in text of others are made visible."""

import click

from nodewise.terminal_escaping import visible


def print_line(text: str) -> None:
    """A line on standard output."""
    click.echo(visible(text))


def print_message(text: str) -> None:
    """A line on standard error, where data do not go."""
    click.echo(f"nodewise: {visible(text)}", err=True)
