"""The table of commands. A command's module is imported only when it is called, so that `--help` is fast."""

import contextlib
import errno
import gc
import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

import nodewise
from nodewise.base import distributions
from nodewise.base.errors import BadSettings, NodewiseError, short
from nodewise.cli import terminal_output

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: Final = {
    # module, or the distribution that has the command as an entry point; and the short help
    "extender": ("nodewise.cli.extender", "Serve kube-scheduler: filter, prioritize, preempt and bind."),
    "controller": ("nodewise.cli.controller", "Label nodes and write the status of policies."),
    "decide": ("nodewise.cli.decide", "Decide which nodes pods may go to, offline or for a cluster."),
    "devices": (
        "nodewise.cli.devices",
        "List devices of DRA drivers, their holders and taints, and the claims that fit.",
    ),
    "explain": ("nodewise.cli.explain", "Explain why a pod is on its node, or still waits."),
    "metrics": ("nodewise.cli.metrics", "List the metrics of nodes, and the policies that use them."),
    "simulate": (
        "nodewise.cli.simulate",
        "Replay recordings, and compare load-aware placements.",
    ),
    "demo": ("nodewise.cli.demo", "See nodewise work on this machine, with nothing installed."),
    "annotate": (
        "nodewise-scorers",
        "Write statistics of nodes as annotations, for agents that read them.",
    ),
    "cpu": ("nodewise-cpu", "Manage pools of CPU cores on nodes."),
    "configure": (
        "nodewise.cli.configure",
        "Print the objects of native mode, or make kube-scheduler call nodewise.",
    ),
    "certs": (
        "nodewise.cli.certs",
        "Issue and renew certificates of nodewise and of kube-scheduler as its client.",
    ),
    "doctor": ("nodewise.cli.doctor", "Find problems of an installation, each with its remedy."),
    "policy": ("nodewise.cli.policy", "Write, check and convert policies."),
    "agents": ("nodewise.cli.agents", "List agents, show their options, and create new ones."),
    "completion": ("nodewise.cli.completion", "Print the script with which a shell completes command lines."),
}


CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
"""Context settings of all command lines."""
_HELP_FLAGS: Final = frozenset({"-h", "--help", "--help-all", "--help-topic"})
_MAX_ERROR_LENGTH: Final = 10_000  # maximum number of characters of an error message
_WRITE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class CommandTable(click.Group):
    """A group that imports a command's module only when the command is called, and not for its help and completion."""

    def __init__(
        self,
        *arguments: Any,
        commands_of: Mapping[str, tuple[str, str]],
        outline_path: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        """`commands_of`: by command, its module (`MODULE:ATTRIBUTE` of several) or distribution (`DISTRIBUTION:ENTRY
        POINT` below another command), and its short help.
        `outline_path`: the names above the commands in the outlines; None for a group that is in an outline itself.
        """
        super().__init__(*arguments, **options)
        self._table, self._outline_path = commands_of, outline_path

    @property
    def texts(self) -> dict[str, str]:
        """The short help of each command."""
        return {name: text for name, (_, text) in self._table.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        is_completing = ctx is not None and ctx.resilient_parsing
        if is_completing and (outline := self._find_outline(cmd_name)):
            return outline
        module, _, attribute = self._table[cmd_name][0].partition(":")
        if module not in distributions.EXTRAS:
            return _import_command(cmd_name, module, attribute or "command")
        # a distribution that is not installed is no reason for a message during completion
        return None if is_completing else _command_of_distribution(module, attribute or cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if ctx.parent is None and not ctx.resilient_parsing:
            self._print_help(ctx, *args)
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(args[0], possibilities=self._table, ctx=ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(self.texts.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=text)
            for name, text in self.texts.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def _find_outline(self, name: str) -> click.Command | None:
        if self._outline_path is None or name not in self._table:
            return None
        from nodewise.cli import command_outlines

        return command_outlines.find_outline((*self._outline_path, name))

    def _print_help(self, ctx: click.Context, name: str, *words: str) -> None:
        """Print the help of a command below and exit, if the words request it; else the command handles them."""
        requests_help = any(word.partition("=")[0] in _HELP_FLAGS for word in words)
        if requests_help and (outline := self._find_outline(name)):
            with (
                contextlib.suppress(click.UsageError),
                outline.make_context(name, list(words), parent=ctx) as below,
            ):
                outline.invoke(below)


def _import_command(name: str, module: str, attribute: str) -> click.Command:
    gc.disable()  # imports leave hardly any garbage, and collections take a twentieth of their time
    try:
        command = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module or not getattr(sys, "frozen", False):
            raise
        why = f"{name} is not part of the program that is installed on hosts: run it from nodewise's image"
        raise click.ClickException(why) from error
    finally:
        gc.enable()
    assert isinstance(command, click.Command)
    return command


def _command_of_distribution(distribution: str, name: str) -> click.Command:
    """The command that another distribution of nodewise adds. `ClickException` if it is not installed."""
    for entry in distributions.own_entry_points(distributions.COMMANDS):
        if entry.name == name:
            command = entry.load()
            assert isinstance(command, click.Command)
            return command
    remedy = distributions.install_command(distribution)
    raise click.ClickException(f"{name} is part of {distribution}, which is not installed: {remedy}")


@click.group(
    cls=CommandTable,
    commands_of=COMMANDS,
    outline_path=(),
    context_settings=CONTEXT,
    epilog="Shell completion: source <(nodewise completion bash) (or zsh, fish).",
)
@click.version_option(nodewise.__version__, prog_name="nodewise", message="%(prog)s %(version)s")
def command() -> None:
    """Platform-aware scheduling for Kubernetes: a stock kube-scheduler that sees live node telemetry.

    `nodewise COMMAND --help` describes a command and its common options; --help-all shows all of its options. An option
    of a server can also be set in the environment or in the file of --config: --sync-period is NODEWISE_SYNC_PERIOD,
    and the key sync_period. A flag overrides the environment, which overrides the file.

    \b
    Examples:
      nodewise demo
      nodewise decide examples/health-metric
      nodewise configure --mode native | kubectl apply --server-side -f -
      nodewise policy new --preset temperature

    \b
    Exit codes of all commands:
      0  success, or a positive answer
      1  failure; stderr has the reason
      2  the command line or a setting is invalid
      3  a negative answer
    """


def run(
    arguments: Sequence[str] | None = None, program: click.Command = command, name: str | None = None
) -> NoReturn:
    """Run a command line. An error becomes one line on stderr and an exit code."""
    words = list(arguments) if arguments is not None else None
    _open_missing_streams()
    try:
        code = program.main(args=words, prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = 130
    except BadSettings as error:
        code = print_error(error, terminal_output.USAGE)
    except NodewiseError as error:
        code = print_error(error, terminal_output.FAILED)
    except BrokenPipeError:
        sys.stderr.close()
        code = 0
    except OSError as error:
        if error.filename is not None or error.errno not in _WRITE_ERRORS:
            raise
        terminal_output.print_message(f"cannot write: {error.strerror}; expected space for the output")
        # at the end, Python would try to write what is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = terminal_output.FAILED
    sys.exit(code if isinstance(code, int) else 0)


def _open_missing_streams() -> None:
    """Python has None in place of a standard stream that whoever started this process closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the end


def run_as_kubectl_plugin() -> NoReturn:
    """The program `kubectl-nodewise`: the same commands as `kubectl nodewise COMMAND`."""
    run(name="kubectl nodewise")


def print_error(error: NodewiseError, code: int) -> int:
    """Print an error in one line. Returns the exit code."""
    text = str(error)
    # a flag or an argument (FILE) needs no word about where it is; a key of the settings file does
    if re.match("settings: (--|[A-Z])", text):
        text = text.removeprefix("settings: ")
    terminal_output.print_message(short(text, _MAX_ERROR_LENGTH))
    return code
