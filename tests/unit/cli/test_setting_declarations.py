"""A declaration defines a flag, a variable, a key of the file, and a line of the help."""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import click
import msgspec
import pytest
from click.testing import CliRunner

from nodewise.base.errors import BadSettings
from nodewise.base.option import Option
from nodewise.cli import options_from_settings, setting_declarations
from nodewise.cli.options_from_settings import CommandLine
from nodewise.kube.kubeconfig import KubeOptions


class ExampleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of each type."""

    wait_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """How long."""

    room_bytes: int = 2**20
    """How much."""

    where: tuple[str, ...] = ("here",)
    """Which places."""

    how: Literal["well", "badly"] = "well"
    """In what way."""

    dry: bool = False
    """Whether at all."""

    guided: Annotated[bool | None, Option("--guided/--no-guided")] = None
    """Whether, or by what is installed."""

    port: int = 9001
    """Where."""

    badge: Annotated[tuple[str, ...], Option(metavar="NAME=VALUE", is_secret=True)] = ()
    """Who."""


def parse_options(*arguments: str, file: Path | None = None, **environment: str) -> ExampleOptions:
    """The settings of a command line."""
    seen: list[ExampleOptions] = []

    def callback(**values: Any) -> None:
        seen.append(options_from_settings.build_group(ExampleOptions, values))

    command = click.Command(
        "x", callback=callback, params=options_from_settings.click_parameters(ExampleOptions)
    )
    words = [*(["--config", str(file)] if file else []), *arguments]
    done = CliRunner().invoke(command, words, env=environment, standalone_mode=False)
    if done.exception:
        raise done.exception
    return seen[0]


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("wait: 2s\nhow: badly\n")
    assert parse_options().wait_s == 5
    assert parse_options(file=file).wait_s == 2
    assert parse_options(file=file, NODEWISE_WAIT="3s").wait_s == 3
    assert parse_options("--wait", "500ms", file=file, NODEWISE_WAIT="3s").wait_s == 0.5
    assert parse_options(file=file).how == "badly"


def test_service_variables_of_the_kubelet_are_ignored() -> None:
    assert parse_options(NODEWISE_PORT="tcp://10.96.0.7:443").port == 9001
    assert parse_options(NODEWISE_PORT="9002").port == 9002


def test_sizes_lists_and_switches() -> None:
    parsed = parse_options("--room-bytes", "64Mi", "--where", "a", "--where", "b", "--dry")
    assert (parsed.room_bytes, parsed.where, parsed.dry) == (64 * 2**20, ("a", "b"), True)


def test_a_switch_may_have_a_third_state_without_a_setting(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("guided: true\n")
    assert parse_options().guided is None
    assert parse_options("--guided").guided is True
    assert parse_options(NODEWISE_GUIDED="false").guided is False
    assert parse_options(file=settings).guided is True
    assert parse_options("--no-guided", file=settings, NODEWISE_GUIDED="true").guided is False


def test_variable_of_secrets_has_one_in_each_line(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("badge: [a=1 2, b=3]\n")
    assert parse_options(file=file).badge == ("a=1 2", "b=3")
    assert parse_options(file=file, NODEWISE_BADGE="a=x, y\nb=z").badge == ("a=x, y", "b=z")


@pytest.mark.parametrize("text", ["badge: {a: hunter2}\n", "badge=a=hunter2\n", "- badge=a=hunter2\n"])
def test_error_of_a_file_shows_no_secret(text: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    with pytest.raises(BadSettings) as refused:
        parse_options(file=file)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("text", ["0s", "-1s"])
def test_a_duration_without_length_is_a_usage_error_of_the_flag(text: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        parse_options("--wait", text)
    assert refused.value.format_message() == f"Invalid value for '--wait': {text} is not more than 0"


@pytest.mark.parametrize("arguments", [["--wait", "5"], ["--room-bytes", "much"], ["--how", "so-so"]])
def test_a_value_that_cannot_be_read_is_a_usage_error(arguments: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse_options(*arguments)


@pytest.mark.parametrize(
    "text", ["- a list\n", "{", "nowhere: 1\n", "wait: 2026-13-45\n", "[" * 5000, "? [a]\n: 1\n", "1: 2\n"]
)
def test_a_file_that_cannot_be_used_says_why(text: str, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(text)
    with pytest.raises(BadSettings):
        parse_options(file=file)


def test_help_and_pages_come_from_the_docstrings() -> None:
    rows = {
        setting.flag: (setting.variable, setting.default_as_text(), setting.help)
        for setting in setting_declarations.list_settings(ExampleOptions)
    }
    assert rows["--wait"] == ("NODEWISE_WAIT", "5s", "How long.")
    assert rows["--room-bytes"] == ("NODEWISE_ROOM_BYTES", "1Mi", "How much.")
    assert rows["--dry"][1] == ""


class CommonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that several agents share."""

    when_missing: Literal["accept", "pass", "reject"] = "accept"
    """Of a node without statistics."""

    score_missing: Annotated[int, msgspec.Meta(ge=0, le=10)] | None = None
    """Its score."""


class FirstOptions(CommonOptions, frozen=True, kw_only=True):
    """The options of the first agent."""

    first_share: int = 90
    """How much."""

    first_wait_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """How long."""


class SecondOptions(CommonOptions, frozen=True, kw_only=True):
    """The options of the second agent."""

    second_words: tuple[str, ...] = ()
    """Which."""


class OldOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an agent with other choices for a shared option."""

    when_missing: Literal["pass", "reject"] = "pass"
    """Of a node without a value."""


class ExampleKind(NamedTuple):
    name: str
    options: type[msgspec.Struct]


KINDS = [
    ExampleKind("first", FirstOptions),
    ExampleKind("second", SecondOptions),
    ExampleKind("old", OldOptions),
]


def parse_agent_options(
    *arguments: str, file: str = "", tmp_path: Path, **environment: str
) -> dict[str, Any]:
    """The options of each agent for a command line and a file."""
    seen: dict[str, Any] = {}

    def callback(**values: Any) -> None:
        seen.update({kind.name: CommandLine(values).agent_options(kind) for kind in KINDS})

    command = click.Command(
        "x", callback=callback, params=options_from_settings.click_parameters(ExampleOptions, kinds=KINDS)
    )
    path = tmp_path / "f.yaml"
    path.write_text(file)
    done = CliRunner().invoke(
        command, ["--config", str(path), *arguments], env=environment, standalone_mode=False
    )
    if done.exception:
        raise done.exception
    return seen


def test_setting_of_several_agents_is_one_option(tmp_path: Path) -> None:
    every = options_from_settings.click_parameters(ExampleOptions, kinds=KINDS)
    assert len({setting.name for setting in every}) == len(every)
    [option] = [setting for setting in every if setting.name == "when_missing"]
    assert isinstance(option, click.Option)
    assert isinstance(option.type, click.Choice)
    assert option.type.choices == ("accept", "pass", "reject")
    assert option.help == (
        "[first, second] Of a node without statistics. [old] Of a node without a value. [default: accept]"
    )
    options_by_agent = parse_agent_options(
        "--when-missing", "reject", "--score-missing", "3", tmp_path=tmp_path
    )
    assert [options.when_missing for options in options_by_agent.values()] == ["reject"] * 3
    assert (options_by_agent["first"].score_missing, options_by_agent["second"].score_missing) == (3, 3)


@pytest.mark.parametrize(
    ("word", "its"), [("", ("accept", "pass")), ("accept", ("accept", "pass")), ("pass", ("pass", "pass"))]
)
def test_an_agent_that_knows_another_word_for_the_same_takes_it(
    word: str, its: tuple[str, str], tmp_path: Path
) -> None:
    options_by_agent = parse_agent_options(*(["--when-missing", word] if word else []), tmp_path=tmp_path)
    assert (options_by_agent["first"].when_missing, options_by_agent["old"].when_missing) == its
    assert options_by_agent["first"].score_missing is None


def test_two_settings_of_one_name_that_mean_different_things_are_refused() -> None:
    class Other(msgspec.Struct):
        wait_s: float = 1.0

    with pytest.raises(BadSettings, match="--wait: two agents declare it"):
        options_from_settings.click_parameters(ExampleOptions, kinds=[ExampleKind("other", Other)])


def test_a_section_is_for_one_agent_alone(tmp_path: Path) -> None:
    file = "when_missing: reject\nfirst: {share: 80, wait: 2s, when_missing: pass, score_missing: 4}\n"
    options_by_agent = parse_agent_options(file=file, tmp_path=tmp_path)
    assert options_by_agent["first"] == FirstOptions(
        first_share=80, first_wait_s=2.0, when_missing="pass", score_missing=4
    )
    expected = ("reject", "reject")
    assert (options_by_agent["second"].when_missing, options_by_agent["old"].when_missing) == expected


def test_keys_of_a_section_may_have_the_agents_name_before_them(tmp_path: Path) -> None:
    options_by_agent = parse_agent_options(
        file="first: {first_share: 80}\nsecond: {words: one}\n", tmp_path=tmp_path
    )
    assert (options_by_agent["first"].first_share, options_by_agent["second"].second_words) == (80, ("one",))


def test_flags_and_variables_win_over_a_section(tmp_path: Path) -> None:
    file = "first: {share: 80, wait: 2s}\nfirst_share: 70\nsecond: {words: [a, b]}"
    options_by_agent = parse_agent_options(
        "--first-share", "60", file=file, NODEWISE_FIRST_WAIT="3s", tmp_path=tmp_path
    )
    assert (options_by_agent["first"].first_share, options_by_agent["first"].first_wait_s) == (60, 3.0)
    assert options_by_agent["second"].second_words == ("a", "b")
    assert parse_agent_options(file=file, tmp_path=tmp_path)["first"].first_share == 80


BAD_SECTIONS = {
    "an unknown key": ("first: {sahre: 1}", "f.yaml: first: sahre: an unknown setting; expected share"),
    "another agent's key": ("second: {share: 1}", "f.yaml: second: share: an unknown setting; expected"),
    "an unknown agent": ("frist: {share: 1}", "f.yaml: frist: an unknown setting; expected first"),
    "no mapping": ("first: 1", "f.yaml: first: an unknown setting; expected"),
    "one setting twice": ("first: {share: 1, first_share: 2}", "f.yaml: first: first_share: the setting is here"),
    "a wrong word": ("old: {when_missing: never}", "f.yaml: old: when_missing: 'never' is not one of 'accept', "),
    "half of a whole number": ("first: {share: 1.5}", "f.yaml: first: share: '1.5' is not a valid integer"),
    "a list": ("first: {share: [1]}", "f.yaml: first: share: [1]; expected one value"),
    "a mapping": ("wait: {share: 1}", "f.yaml: wait: {'share': 1}; expected one value"),
    "out of bounds": ("first: {wait: -1}", "f.yaml: first: first_wait: -1.0; expected float >= 0"),
    "no key": ("first: {1: 2}", "f.yaml: first: 1: an unknown setting"),
}  # fmt: skip


@pytest.mark.parametrize(("file", "message"), BAD_SECTIONS.values(), ids=BAD_SECTIONS)
def test_invalid_section_is_reported_with_its_place(file: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as refused:
        parse_agent_options(file=file, tmp_path=tmp_path)
    assert message in str(refused.value)


def test_all_problems_of_a_file_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as refused:
        parse_agent_options(file="first: {a: 1, b: 2}\nc: 3\n", tmp_path=tmp_path)
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize("limits", [{"kube_qps": 0.0}, {"kube_qps": -1.0}, {"kube_burst": 0}])
def test_a_limit_under_which_nothing_could_ever_be_written_is_refused(limits: dict[str, float]) -> None:
    defaults = {setting.field: setting.default for setting in setting_declarations.list_settings(KubeOptions)}
    with pytest.raises(BadSettings, match="--kube-"):
        options_from_settings.build_group(KubeOptions, defaults | limits)
