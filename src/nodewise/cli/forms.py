"""The form in which a command prints, told by `-o`."""

from collections.abc import Iterable

import click


def option(forms: Iterable[str], help_: str = "Form of what is printed.") -> click.Option:
    """`-o`, `--output`: one of these forms, the first of them unless told."""
    choices = list(forms)
    return click.Option(
        ["-o", "--output"], type=click.Choice(choices), default=choices[0], show_default=True, help=help_
    )
