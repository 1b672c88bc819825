"""Help of commands with a hundred options: below what they are about, not in one list."""

import click


class Sectioned(click.Command):
    """Shows options that have a `section` below it, after those that have none."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(section(parameter) or "Options", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def section(parameter: click.Parameter) -> str:
    """What a parameter is about; empty for one that belongs to its command alone."""
    return str(getattr(parameter, "section", ""))


def titled(title: str, options: list[click.Parameter]) -> list[click.Parameter]:
    """These options, which the help shows below a title of their own."""
    for one in options:
        one.section = title  # type: ignore[attr-defined]
    return options
