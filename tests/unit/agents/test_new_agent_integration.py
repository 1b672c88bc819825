"""A new agent is one new folder: everything about it is declared there, and no other file changes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from tools import helm_chart_generator

from nodewise import agents
from nodewise.agent import AgentKind
from nodewise.cli import agent_selection, options_from_settings
from nodewise.cli import agents as agents_command
from nodewise.cli.agents import command
from nodewise.cli.extender_options import setting_groups
from nodewise.doctor.checks import extender_entries
from nodewise.doctor.collectors.rights_and_admission_policies import needed_rights
from nodewise.doctor.facts import NodewiseWorkload
from nodewise.doctor.parsing.objects import Workload
from nodewise.engine.agent_chain import AgentChain, score_functions
from nodewise.engine.third_party_agents import Origin, ThirdPartyKind

NAME = "probe"


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentKind]:
    """The kind of a template agent that is a folder of `agents` and has its own declarations."""
    folder = tmp_path / NAME
    folder.mkdir()
    for path in agents_command.TEMPLATE.glob("*.py"):
        text = path.read_text().replace("template", NAME).replace("Template", "Probe")
        added = "    load_scoring = 'whole'\n    keeps_memory = True\n    entry_weight = 30\n"
        declared = f"node_fields = NodeFields\n{added}"
        (folder / path.name).write_text(text.replace("node_fields = NodeFields\n", declared))
    monkeypatch.setattr(agents, "__path__", [*agents.__path__, str(tmp_path)])
    agents.built_in_names.cache_clear()
    yield agents.load(NAME)
    agents.built_in_names.cache_clear()
    for module in [module for module in sys.modules if module.startswith(f"nodewise.agents.{NAME}")]:
        del sys.modules[module]


def test_it_is_listed_and_shown(kind: AgentKind) -> None:
    listed = CliRunner().invoke(command, ["list", "-o", "json"], catch_exceptions=False)
    assert NAME in [row["name"] for row in json.loads(listed.output)["agents"]]
    shown = CliRunner().invoke(command, ["show", NAME, "-o", "json"], catch_exceptions=False)
    assert [option["flag"] for option in json.loads(shown.output)["options"]] == ["--probe-label"]


def test_its_options_are_settings(kind: AgentKind, tmp_path: Path) -> None:
    assert kind in agent_selection.agents_without_conflicts(*setting_groups())
    file = tmp_path / "nodewise.yaml"
    file.write_text("probe: {label: example.com/limit}")
    settings = options_from_settings.read_config_file(
        str(file), setting_groups(), agents.built_in_agent_kinds()
    )
    assert settings.sections == {NAME: {"probe_label": "example.com/limit"}}


class _SpecWithSelector(msgspec.Struct, frozen=True):
    nodeSelector: dict[str, str] = {}  # noqa: N815 - the API's name


class _PodWithSelector(msgspec.Struct, frozen=True):
    spec: _SpecWithSelector = _SpecWithSelector()


def test_an_agent_of_another_package_may_have_an_own_type_of_node_selectors(kind: AgentKind) -> None:
    installed = ThirdPartyKind(kind, Origin(NAME, "nodewise-probe", "1.0"))
    installed.pod_fields = _PodWithSelector
    assert agent_selection.find_settings_conflict(installed, setting_groups()) == ""


def test_the_chart_takes_its_options(kind: AgentKind) -> None:
    schema = next(
        text for path, text in helm_chart_generator.parts().items() if path.name == "values.schema.json"
    )
    assert "probe_label" in schema


def test_kube_scheduler_is_configured_for_it(kind: AgentKind) -> None:
    role = agent_selection.agent_role_in_extender_entry(kind, kind.options())
    assert (role.filters, role.prioritizes, role.binds, role.keeps_memory) == (True, True, False, True)
    assert role.entry_weight == 30


def test_it_can_be_weighed(kind: AgentKind) -> None:
    chain = AgentChain([kind.agent(kind.options())])
    assert [score.label for agent in chain.agents for score in score_functions(agent)] == [NAME]


def test_doctor_examines_it(kind: AgentKind) -> None:
    extender = NodewiseWorkload(
        Workload("Deployment/nodewise/nodewise", "nodewise"), {"agents": f"{NAME},safe"}
    )
    [finding] = extender_entries.check_agents_with_similar_scores.function((extender,))
    assert f"{NAME}, safe" in finding.found
    assert any("nodewise-memory" in right for right in needed_rights(extender))
