"""Completion and `--help` from the outlines are those of the commands themselves, and import no command."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from tools.reference.commands import every

from nodewise.base import distributions
from nodewise.cli import command_outlines, main
from tests.hostile import broken_agent_packages

COMMANDS = {typed: command for typed, command in every().items() if " " in typed}
"""Other tests call these objects, too, and click stores the names of the help option in them."""
PARSES_ITSELF = "nodewise cpu isolate"


def outline(typed: str) -> click.Command:
    command = command_outlines.find_outline(typed.split()[1:])
    assert command is not None
    return command


def output(command: click.Command, typed: str, words: Sequence[str], columns: int) -> str:
    """What the command prints for these words; for invalid words, the message."""
    *above, name = typed.split()
    command._help_option = None
    context = click.Context(main.command, info_name=above.pop(0), terminal_width=columns, **main.CONTEXT)
    for group in above:
        context = click.Context(click.Group(group), parent=context, info_name=group)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            command.make_context(name, list(words), parent=context)
        except click.exceptions.Exit:
            return printed.getvalue()
        except click.UsageError as error:
            return error.format_message()
    raise AssertionError(f"{typed} {words} is no request for help")


def completions(command: click.Command, words: Sequence[str], incomplete: str) -> list[tuple[str, str, str]]:
    """The completions behind a command that is typed alone, each with its type and help."""
    command._help_option = None
    completer = ShellComplete(command, dict(main.CONTEXT), "nodewise", "_NODEWISE_COMPLETE")
    items = completer.get_completions(list(words), incomplete)
    return [(item.type, item.value, item.help or "") for item in items]


@pytest.mark.parametrize("typed", [typed for typed in COMMANDS if typed != PARSES_ITSELF])
def test_the_help_is_that_of_the_command(typed: str) -> None:
    for words in (["--help"], ["-h"], ["--help-all"], ["--help-topic", "gpu"], ["--help-topic", "nothing"]):
        for columns in (80, 110):
            expected = output(COMMANDS[typed], typed, words, columns)
            assert output(outline(typed), typed, words, columns) == expected


@pytest.mark.parametrize("typed", COMMANDS)
def test_commands_options_and_values_are_completed_as_by_the_command(
    typed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodewise.cli.completion.list_namespaces", lambda _: ["web", "default"])
    monkeypatch.setattr("nodewise.cli.completion.list_pods", lambda *_: ["shop-1"])
    command = COMMANDS[typed]
    typed_words = [((), ""), ((), "-"), ((), "--"), ((), "examples")]
    for option in command.params:
        if isinstance(option, click.Option) and not option.is_flag:
            typed_words += [((option.opts[-1],), ""), ((option.opts[-1],), "a")]
    for words, incomplete in typed_words:
        expected = completions(command, words, incomplete)
        # groups of commands have their own texts, in help and completion alike
        shown = slice(2 if isinstance(command, click.Group) else 3)
        offered = completions(outline(typed), words, incomplete)
        assert [item[shown] for item in offered] == [item[shown] for item in expected]


_IMPORTED = """
import contextlib, json, os, sys
from nodewise.cli import main
with contextlib.redirect_stdout(open(os.devnull, "w")), contextlib.suppress(SystemExit):
    main.run(sys.argv[1:], name="nodewise")
print(json.dumps(sorted(sys.modules)))
"""


def imported_modules(*words: str, typed: str = "", site: Path | None = None) -> set[str]:
    """The modules that a command line imports; with `typed`, the completion of that line."""
    environment = {**os.environ, "PYTHONPATH": str(site or "")}
    if typed:
        words_before = typed.count(" ")
        environment |= {
            "_NODEWISE_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(words_before)
        }  # fmt: skip
    arguments = [sys.executable, "-c", _IMPORTED, *words]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, env=environment)
    return set(json.loads(done.stdout))


HEAVY = {
    "numpy",
    "msgspec",
    "yaml",
    "structlog",
    "httpx2",
    "cryptography",
    "asyncio",
    "rich",
    "prometheus_client",
}


def heavy_modules(modules: set[str]) -> set[str]:
    """The modules of commands, agents and large libraries among these."""
    light = {
        "nodewise.cli.main", "nodewise.cli.command_outlines", "nodewise.cli.command_help",
        "nodewise.cli.older_program_flags", "nodewise.cli.parameter_types", "nodewise.cli.terminal_output",
    }  # fmt: skip
    own = {
        name for name in modules
        if name.startswith(("nodewise.cli.", "nodewise.agents.", "nodewise_cpu", "nodewise_scorers"))
    }  # fmt: skip
    return (own - light) | (HEAVY & modules)


@pytest.mark.parametrize(
    "typed",
    [
        "nodewise ", "nodewise ex", "nodewise extender --", "nodewise decide --output ", "nodewise cpu ",
        "nodewise cpu init --", "nodewise policy lint examples", "nodewise annotate --", "nodewise simulate ",
        "nodewise configure render-scheduler --", "nodewise certs --", "nodewise agents ",
    ],
)  # fmt: skip
def test_completion_imports_no_command(typed: str) -> None:
    assert heavy_modules(imported_modules(typed=typed)) == set()


@pytest.mark.parametrize("typed", [typed for typed in COMMANDS if typed.count(" ") == 1])
def test_help_imports_no_command(typed: str) -> None:
    assert heavy_modules(imported_modules(*typed.split()[1:], "--help")) == set()


@pytest.mark.parametrize("command", ["lint", "convert"])
def test_commands_that_only_read_policies_import_no_arrays(command: str) -> None:
    modules = imported_modules("policy", command, "examples/taspolicy/policy.yaml")
    assert "nodewise.policies.taspolicy_parser" in modules, "the policies were read"
    assert {"numpy", "asyncio", "httpx2"}.isdisjoint(modules)


@pytest.mark.parametrize("command", ["decide", "extender", "configure", "configure render-scheduler"])
def test_names_of_agents_are_completed_without_importing_them(command: str) -> None:
    modules = imported_modules(typed=f"nodewise {command} --agents t")
    assert heavy_modules(modules) == set()
    assert "nodewise.agents" in modules


def test_options_of_another_packages_agent_are_in_help_and_completion(tmp_path: Path) -> None:
    broken_agent_packages.install(tmp_path, "quiet", {})
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "nodewise", "extender", "--help-all"]
    text = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
    assert "Agent quiet:" in text
    typed = "nodewise extender --quiet"
    environment |= {"_NODEWISE_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": "2"}
    words = [sys.executable, "-c", "from nodewise.cli.main import run; run([], name='nodewise')"]
    offered = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
    assert offered.startswith("plain,--quiet-")
    assert heavy_modules(imported_modules("doctor", "--help", site=tmp_path)) == set()


def test_without_nodewise_scorers_its_agents_and_commands_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(distributions.EXTRAS, "nodewise-scorers", "")
    monkeypatch.setattr(distributions, "packages", lambda: ["nodewise_cpu"])
    assert command_outlines.find_outline(["annotate"]) is None
    text = output(outline("nodewise extender"), "nodewise extender", ["--help-all"], 110)
    assert "Agent gpu:" in text
    assert "Agent safe:" not in text
    assert completions(outline("nodewise simulate"), (), "l") == []


def test_a_command_below_another_says_which_distribution_it_is_part_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributions, "own_entry_points", lambda _: ())
    with pytest.raises(click.ClickException) as error:
        main.command.main(["simulate", "load", "herd"], standalone_mode=False)
    assert error.value.message == (
        "simulate load is part of nodewise-scorers, which is not installed: pip install 'nodewise[scorers]'"
    )


def test_the_help_of_a_command_in_a_container_is_not_that_of_isolate() -> None:
    """`--help` behind the command belongs to it."""
    words = [sys.executable, "-m", "nodewise", "cpu", "isolate", "--pool=infra", "ls", "--help"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert "Usage: nodewise cpu isolate" not in done.stdout


def test_invalid_words_beside_help_are_refused_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.run(["explain", "--namspace", "web", "--help"], name="nodewise")
    assert ended.value.code == 2
    assert "'--namespace', '--nodewise-namespace'" in capsys.readouterr().err
