"""`--help` of every command explains how to use it, on a terminal of 80 columns."""

import inspect
import re

import click
import pytest
from click.testing import CliRunner
from tools.reference.commands import every, help_and_default

from nodewise import agents
from nodewise.cli.main import command
from nodewise_cpu import cmk
from tests import docs_page_code_blocks
from tests.unit.test_docs_page_commands import problem

COMMANDS = every()
COLUMNS = 80


def help_text(typed: str, *words: str) -> str:
    name, *rest = typed.split()
    done = CliRunner().invoke(
        command, [*rest, *(words or ["--help"])], terminal_width=COLUMNS, prog_name=name
    )
    assert done.exit_code == 0, done.output
    return done.output


def help_block(typed: str, title: str) -> str:
    """The lines below a title of the help; empty without the title."""
    match = re.search(
        rf"^{title}:\n((?:  .*\n?)+)", inspect.cleandoc(COMMANDS[typed].help or ""), re.MULTILINE
    )
    return match[1] if match else ""


def options(typed: str) -> list[click.Option]:
    parameters = COMMANDS[typed].params
    return [
        parameter for parameter in parameters if isinstance(parameter, click.Option) and not parameter.hidden
    ]


def is_plain_group(typed: str) -> bool:
    command = COMMANDS[typed]
    return isinstance(command, click.Group) and not command.invoke_without_command


@pytest.mark.parametrize("typed", COMMANDS)
def test_no_line_is_longer_than_a_terminal(typed: str) -> None:
    assert [line for line in help_text(typed).splitlines() if len(line) > COLUMNS] == []


@pytest.mark.parametrize("typed", COMMANDS)
def test_help_begins_with_a_sentence(typed: str) -> None:
    assert re.fullmatch(
        r"[A-Z][^.]+\.",
        " ".join(inspect.cleandoc(COMMANDS[typed].help or "").split("\n\n")[0].replace("\b", "").split()),
    )


@pytest.mark.parametrize("typed", COMMANDS)
def test_it_has_examples_that_the_command_line_understands(typed: str) -> None:
    lines = list(docs_page_code_blocks.commands(help_block(typed, "Examples?")))
    assert lines
    ours = [words for words in lines if words[0] == "nodewise"]
    assert ours
    assert {" ".join(words): wrong for words in ours if (wrong := problem(words))} == {}
    assert is_plain_group(typed) or any(" ".join(words).startswith(typed) for words in ours)


@pytest.mark.parametrize("typed", [name for name in COMMANDS if not is_plain_group(name)])
def test_it_has_the_exit_codes(typed: str) -> None:
    codes = re.findall(r"^  (\S+) +\S", help_block(typed, "Exit codes"), re.MULTILINE)
    assert codes
    assert set(codes) <= {"0", "1", "2", "3", "125", "126", "127", "128+N", "else"}
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("typed", COMMANDS)
def test_each_option_has_a_meaning_and_a_form(typed: str) -> None:
    context = click.Context(COMMANDS[typed], info_name=typed)
    silent = [option.opts for option in options(typed) if not help_and_default(option, context)[0]]
    formless = [
        option.opts
        for option in options(typed)
        if not option.is_flag and option.make_metavar(context) == "TEXT"
    ]
    assert silent == []
    assert formless == [], "metavar, or `Option(metavar=…)` of the field"


LONG = [typed for typed in COMMANDS if len(options(typed)) > 30 and typed != "nodewise configure"]
"""All options of `nodewise configure` are its own."""


@pytest.mark.parametrize("typed", LONG)
def test_a_long_help_shows_common_options_and_names_the_topics_of_the_others(typed: str) -> None:
    text = help_text(typed)
    assert len(text.splitlines()) < 160
    rows = re.findall(r"^  (-.*?)(?:  |$)", text[text.index("\nOptions:\n") :], re.MULTILINE)
    shown = {flag for row in rows for flag in re.findall(r"--[\w-]+", row)}
    every = {opt for option in options(typed) for opt in option.opts if opt.startswith("--")}
    own = {opt for option in options(typed) if not getattr(option, "is_shared", False) for opt in option.opts}
    assert own - {"-o", "-n", "-w", "-l"} <= shown
    assert {"--help-topic", "--help-all"} <= shown < every | {"--help", "--help-topic", "--help-all"}
    assert "More options, by topic:" in text


@pytest.mark.parametrize("typed", LONG)
def test_all_options_are_in_the_complete_help(typed: str) -> None:
    text = help_text(typed, "--help-all")
    assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
    assert [option.opts for option in options(typed) if f"{option.opts[-1]}" not in text] == []


def test_options_of_an_agent_are_shown_for_that_agent_only() -> None:
    assert "--gpu-placement" not in help_text("nodewise extender")
    gpu, telemetry = (help_text("nodewise extender", "--help-topic", name) for name in ("gpu", "telemetry"))
    assert "\n  --gpu-placement " in gpu
    assert "--allowed-metrics" not in gpu
    assert "\n  --allowed-metrics " in telemetry
    assert "\n  --when-missing " in telemetry, "which it shares with other agents"
    assert "--gpu-placement" not in telemetry


@pytest.mark.parametrize(
    ("word", "shown"),
    [("tls", "--client-ca"), ("Prometheus", "--prometheus-ca"), ("body-idle", "--body-idle-timeout")],
)
def test_a_topic_is_a_word_of_a_heading_or_part_of_a_name(word: str, shown: str) -> None:
    assert f"\n  {shown} " in help_text("nodewise extender", "--help-topic", word)


def test_a_topic_that_does_not_exist_suggests_the_closest() -> None:
    done = CliRunner().invoke(command, ["extender", "--help-topic", "telemtry"])
    assert done.exit_code == 2
    assert "there is no help about 'telemtry'; did you mean \"telemetry\"?" in done.output


@pytest.mark.parametrize(
    ("words", "closest"),
    [("extendr", "extender"), ("cpu isolat", "isolate"), ("configure redner-scheduler", "render-scheduler")],
)
def test_an_unknown_command_suggests_the_closest(words: str, closest: str) -> None:
    done = CliRunner().invoke(command, words.split())
    assert done.exit_code == 2
    assert f"Did you mean '{closest}'?" in done.output


def test_options_are_grouped_by_heading() -> None:
    text = help_text("nodewise extender", "--help-all")
    titles = re.findall(r"^(\S.*):$", text, re.MULTILINE)
    assert "Options" in titles
    assert {f"Agent {name}" for name in (kind.name for kind in agents.built_in_agent_kinds())} <= set(titles)
    assert {"Several agents", "Port, TLS and limits of requests"} <= set(titles)
    at = text.index
    assert at("Port, TLS and limits of requests:") < at("\n  --client-ca ") < at("Agent telemetry:")
    assert at("Several agents:") < at("\n  --score-missing ") < at("Agent gpu:")


@pytest.mark.parametrize("typed", COMMANDS)
def test_a_number_that_has_a_default_shows_it(typed: str) -> None:
    context = click.Context(COMMANDS[typed], info_name=typed)
    numbers = (click.types.IntParamType, click.types.FloatParamType)
    numeric = [
        option
        for option in options(typed)
        if isinstance(option.type, numbers) and isinstance(option.default, int | float)
    ]
    assert [option.opts for option in numeric if not help_and_default(option, context)[1]] == []


def test_cmk_has_the_same_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cmk.run(["describe", "--help"])
    output = capsys.readouterr().out
    assert "Usage: cmk describe" in output
    assert help_block("nodewise cpu describe", "Exit codes").strip().splitlines()[0] in output


def test_isolate_tells_the_same_where_it_starts_fast(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cmk.run(["isolate", "--help"])
    output = capsys.readouterr().out
    assert [line for line in output.splitlines() if len(line) > COLUMNS] == []
    assert help_block("nodewise cpu isolate", "Exit codes") in f"{output}\n"
