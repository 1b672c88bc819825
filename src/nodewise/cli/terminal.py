"""Lines for people. Words of tenants, servers and files may be among them: a terminal shows and does not obey them."""

import click

from nodewise.visible import visible


def say(text: str) -> None:
    """A line on standard output."""
    click.echo(visible(text))


def tell(text: str) -> None:
    """A line on standard error, where data do not go."""
    click.echo(f"nodewise: {visible(text)}", err=True)
