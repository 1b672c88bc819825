"""`nodewise cpu isolate`: runs a command on CPUs of a pool, by `workload/isolate.py`. As `cmk` it starts fast."""

import click

from nodewise_cpu.workload import isolate

_EXAMPLES = "\n".join(f"  nodewise cpu {example}" for example in isolate.EXAMPLES)
_CODES = "\n".join(f"  {code:<5}  {meaning}" for code, meaning in isolate.EXIT_CODES.items())
_HELP = f"{isolate.SUMMARY}\n\n{isolate.DETAILS}\n\n\b\nExamples:\n{_EXAMPLES}\n\n\b\nExit codes:\n{_CODES}\n"


class _IsolateCommand(click.Command):
    """Leaves the arguments to `workload/isolate.py`, because some belong to the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if isolate.find_help_or_version_flag(args) == "--help":
            return super().parse_args(ctx, ["--help"])
        ctx.args = args
        return args

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return ["--pool=POOL", "[OPTIONS]", "COMMAND", "[-- ARGUMENTS...]"]


@click.pass_context
def run(ctx: click.Context) -> None:
    """Run a command on CPUs of a pool."""
    ctx.exit(isolate.main(ctx.args, "nodewise cpu"))


command = _IsolateCommand(
    "isolate",
    callback=run,
    help=_HELP,
    short_help="Run a command on CPUs of a pool.",
    params=[
        click.Option(
            [option.name], is_flag=not option.metavar, metavar=option.metavar or None, help=option.help
        )
        for option in isolate.OPTIONS
        if option.name != "--help"
    ],
)
