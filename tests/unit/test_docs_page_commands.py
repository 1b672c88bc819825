"""The pages contain only existing commands, options, files, fields and values of the chart."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from nodewise.base.errors import BadInput, BadSettings
from nodewise.cli.main import command
from nodewise.install import scheduler_configuration_file, scheduler_versions
from nodewise.observe.logs import EVENTS
from nodewise.observe.metrics_registry import METRICS
from nodewise.policies.placement_policy import PolicyKind
from nodewise.policies.policy_objects import RESOURCES
from nodewise.policy_tools import policy_lint
from nodewise_cpu import cli
from nodewise_cpu.cli import cmk_flags
from nodewise_cpu.workload import isolate
from tests import docs_page_code_blocks
from tests.docs_page_code_blocks import ROOT, Block

LEARN_TESTS: Final = (
    "cluster/test_devices_page.py",
    "conformance/test_build_an_agent_page.py",
    "node/test_docs_learn_pages.py",
)
SCHEMA = json.loads((ROOT / "deploy/chart/nodewise/values.schema.json").read_text())
SHELLS = [
    block
    for page in docs_page_code_blocks.pages()
    for block in docs_page_code_blocks.blocks(page)
    if block.language in docs_page_code_blocks.SHELL
]
YAML = [
    block
    for page in docs_page_code_blocks.pages()
    for block in docs_page_code_blocks.blocks(page)
    if block.language == "yaml"
]
PROGRAMS = ("nodewise", "cmk")
RECIPES = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
INLINE = re.compile(r"`((?:nodewise|cmk) [^`\n]*)`")
UNKNOWN = r"No such option|No such command '[^A-Z']+'|no such option"
FILE_OPTIONS = ("-f", "--filename", "--values", "-k", "--kustomize")
OURS = ("deploy/", "examples/", "docs/", "bench/")
KINDS = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
}


def problem(words: list[str]) -> str:
    """The usage error of a command line; empty if it is valid. The command does not run."""
    try:
        if words[0] == "nodewise":
            _read(command, words)
        elif words[1:2] == ["isolate"]:
            isolate.parse_isolate_arguments(words[2:])
        else:
            _read(cli.command, ["cmk", *cmk_flags.translate_command_line(words[1:])])
    except (click.UsageError, BadSettings) as error:
        return error.format_message() if isinstance(error, click.UsageError) else str(error)
    except click.exceptions.Exit:
        pass
    return ""


def _read(group: click.Command, words: list[str]) -> None:
    parent, left = None, words
    command: click.Command | None = group
    while command:
        here = command.make_context(left[0], list(left[1:]), parent=parent)
        parent, rest = here, [*here._protected_args, *here.args]
        if not isinstance(command, click.Group) or not rest:
            return
        _, command, behind = command.resolve_command(here, rest)
        left = [rest[0], *behind]


def _given(words: list[str]) -> Iterator[str]:
    """The files of the repository that a command names. For kubectl, `deploy/NAME` may also be a Deployment."""
    for before, word in itertools.pairwise(words):
        option, _, value = word.rpartition("=")
        path = value if option.startswith("-") else word
        if path.startswith(OURS) and (
            words[0] != "kubectl" or before in FILE_OPTIONS or option in FILE_OPTIONS
        ):
            yield path


@pytest.mark.parametrize("block", SHELLS, ids=lambda block: block.where)
def test_documented_commands_files_and_make_targets_exist(block: Block) -> None:
    lines = [
        words
        for step in docs_page_code_blocks.steps(block)
        for words in docs_page_code_blocks.commands(step.typed)
    ]
    checked = [(words, problem(_without_gaps(words))) for words in lines if words[0] in PROGRAMS]
    assert [f"{' '.join(words)}: {wrong}" for words, wrong in checked if wrong] == []
    assert [path for words in lines for path in _given(words) if not list(_there(path))] == []
    recipes = {word for words in lines if words[0] == "make" for word in words[1:] if "=" not in word}
    assert recipes <= RECIPES


def _without_gaps(words: list[str]) -> list[str]:
    return [word for word in words if word not in {"…", "..."}]


@pytest.mark.parametrize("page", docs_page_code_blocks.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_sentences_exist(page: Path) -> None:
    """Arguments may be left out, and a word in capitals is a placeholder. A text with a colon is a message."""
    lines = [line.partition(" | ")[0] for line in INLINE.findall(page.read_text()) if ": " not in line]
    problems = {line: problem(_without_gaps(line.replace("…", " … ").split())) for line in lines}
    assert {line: wrong for line, wrong in problems.items() if re.search(UNKNOWN, wrong)} == {}


def _there(path: str) -> Iterator[Path]:
    if "…" not in path:
        return ROOT.glob(path.rstrip("/"))
    return iter([ROOT])


@pytest.mark.parametrize("page", docs_page_code_blocks.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_and_log_events_exist(page: Path) -> None:
    text = page.read_text()
    metrics = set(re.findall(r"`nodewise_(\w+)", text))
    assert {name for name in metrics if name not in METRICS} == set()
    events = set(re.findall(r"`(\w+)`,? in (?:nodewise's|the|its) log", text))
    assert events <= EVENTS.keys()


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.where)
def test_yaml_can_be_read(block: Block) -> None:
    documents = [document for document in yaml.load_all(block.text, yaml.CSafeLoader) if document is not None]
    assert documents
    for document in documents:
        if not isinstance(document, dict):
            continue
        if document.get("kind") == "KubeSchedulerConfiguration" or set(document) == {"extenders"}:
            assert doubts(document) == []
        elif document.get("kind") in RESOURCES:
            assert lint(document, document["kind"]) == []
        elif set(document) == {"rules"}:
            strategies = {"dontschedule": document}
            assert lint({"metadata": {"name": "p"}, "spec": {"strategies": strategies}}) == []
        elif "kind" not in document and set(document) <= SCHEMA["properties"].keys():
            assert list(wrong_values(document, SCHEMA)) == []


def lint(policy: Mapping[str, Any], kind: PolicyKind = "TASPolicy") -> list[str]:
    """The problems that `nodewise policy lint` reports for a policy; the API version may be left out."""
    resource = RESOURCES[kind]
    whole = {"apiVersion": f"{resource.group}/{resource.version}", **policy}
    return [str(problem) for problem in policy_lint.lint(json.dumps(whole).encode(), kind)]


def doubts(configuration: Mapping[str, Any]) -> list[str]:
    """The problems that `nodewise configure` reports for a configuration of kube-scheduler."""
    whole = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        **configuration,
    }
    context = scheduler_configuration_file.RenderContext(
        scheduler_versions.parse_version("1.36.3"), "", "", insecure=False
    )
    try:
        return list(
            scheduler_configuration_file.render_template(
                yaml.safe_dump(whole).encode(), "the page", context
            ).warnings
        )
    except BadInput as error:
        return [str(error)]


def wrong_values(value: Any, schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """The problems of chart values that do not conform to the schema."""
    if "$ref" in schema:
        schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(isinstance(value, KINDS[kind]) for kind in kinds if kind != "null"):
        yield f"{at}: {value!r} is none of {kinds}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    if not isinstance(value, dict):
        return
    known = schema.get("properties", {})
    for key, inner in value.items():
        if key in known:
            yield from wrong_values(inner, known[key], f"{at}.{key}")
        elif schema.get("additionalProperties") is False:
            yield f"{at}.{key} is not known"


def test_every_page_to_learn_from_is_followed_by_a_test() -> None:
    tests = "".join((ROOT / "tests" / name).read_text() for name in LEARN_TESTS)
    assert [
        page.name for page in docs_page_code_blocks.LEARN.glob("*.md") if f'"{page.name}"' not in tests
    ] == []


def test_a_page_that_is_wrong_is_noticed() -> None:
    (line,) = docs_page_code_blocks.commands("sudo X=1 nodewise decide --nope 2>/dev/null # as it was\n")
    assert line == ["nodewise", "decide", "--nope"]
    assert "No such option" in problem(line)
    assert "No such command" in problem(["nodewise", "decode"])
    assert "no such option" in problem(["cmk", "isolate", "--pole", "x", "--", "true"])
    assert "Missing argument" in problem(["nodewise", "explain"])
    assert list(wrong_values({"agents": {"gpu": {"on": True}}}, SCHEMA)) == [".agents.gpu.on is not known"]
    assert list(wrong_values({"settings": {"sync_periods": "2s"}}, SCHEMA)) != []
    assert doubts({"extenders": [{"urlPrefix": "http://x", "filterVerb": "f", "ignorable": True}]}) != []
    rule = {"metricname": "heat", "operator": "Above", "target": 1}
    assert (
        lint({"metadata": {"name": "p"}, "spec": {"strategies": {"dontschedule": {"rules": [rule]}}}}) != []
    )
    assert len(SHELLS) > 40
