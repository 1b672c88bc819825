"""The agents of a command: selection by name, conflicts with other settings, and roles in an extender's entry."""

from collections.abc import Iterable
from typing import Any, Final, cast

from nodewise import agents
from nodewise.agent import AgentKind
from nodewise.agent.bind_plugin_interface import BindPlugin
from nodewise.base.errors import BadSettings, Problem
from nodewise.cli import options_from_settings
from nodewise.cli.extender_options import setting_groups
from nodewise.cli.options_from_settings import KnownSettings
from nodewise.cli.setting_declarations import Group, list_settings
from nodewise.engine import agent_chain, object_feed
from nodewise.engine.pod_requeueing import WaitingPodFields
from nodewise.engine.third_party_agents import ThirdPartyKind
from nodewise.install.scheduler_configuration import AgentRole
from nodewise.kube.struct_type_merge import merge

_MAX_DIGITS: Final = 18


def known_settings() -> KnownSettings:
    """The settings that a settings file may contain. An agent that cannot be used stops no command."""
    groups = setting_groups()
    kinds: list[AgentKind] = []
    unusable: dict[str, str] = {}
    for (name, package, version), kind, why in agents.installed():
        if kind is not None and not (why := find_settings_conflict(kind, groups)):
            kinds.append(kind)
        else:
            unusable[name] = f"{package} {version}".strip() + f": {why}"
    for kind in kinds:
        unusable.pop(kind.name, None)  # a second package with an agent of this name
    return KnownSettings(groups, kinds, unusable)


def agents_without_conflicts(*groups: Group) -> list[AgentKind]:
    """All agents that do not conflict with these settings, by default those of the extender."""
    groups = groups or setting_groups()
    return [kind for kind in agents.list_usable_agent_kinds() if not find_settings_conflict(kind, groups)]


def load_agents_by_name(names: Iterable[str], *groups: Group) -> list[AgentKind]:
    """The agents of these names. `BadSettings` if one does not exist or conflicts with these settings, by default those
    of the extender.
    """
    kinds = [agents.load(name) for name in names]
    problems = [
        Problem("--agents", f"{kind.name!r} cannot be used: {why}", "")
        for kind in kinds
        if (why := find_settings_conflict(kind, groups or setting_groups()))
    ]
    if problems:
        raise BadSettings("agents", problems)
    return kinds


def find_settings_conflict(kind: Any, groups: Iterable[Group]) -> str:
    """Why an agent of another package cannot be used; empty if it can. nodewise's own agents have no conflicts."""
    if not isinstance(kind, ThirdPartyKind):
        return ""
    from nodewise.cli.decide_inputs import PodPlacement

    try:
        object_feed.merge_node_types([cast("AgentKind", kind)])
        merge("Pod", WaitingPodFields, PodPlacement, kind.pod_fields)
    except TypeError as error:
        return str(error)
    try:
        options_from_settings.click_parameters(kinds=[cast("AgentKind", kind)], has_file=False)
    except Exception as error:  # noqa: BLE001 - any type, default and docstring may be declared
        return f"its options cannot be made flags: {type(error).__name__}: {error}"
    flags = {setting.field: setting.flag for group in groups for setting in list_settings(group)}
    shared = [flags[setting.field] for setting in list_settings(kind.options) if setting.field in flags]
    return f"its option {shared[0]} is one of nodewise's own" if shared else ""


def parse_agents(text: str) -> list[AgentKind]:
    """The agents in a comma-separated list of names. `BadSettings` if one cannot be used."""
    return load_agents_by_name([name.strip() for name in text.split(",") if name.strip()])


def agent_role_in_extender_entry(kind: AgentKind, options: Any) -> AgentRole:
    """The verbs and resources that an extender's entry needs for an agent, according to the agent itself."""
    agent = kind.agent(options)
    return AgentRole(
        kind.name,
        filters=bool(agent_chain.filter_functions(agent)),
        prioritizes=bool(agent_chain.score_functions(agent)),
        binds=isinstance(agent, BindPlugin),
        resources=kind.resources(options),
        keeps_memory=kind.keeps_memory,
        entry_weight=kind.entry_weight,
    )


def parse_agent_weights(text: str) -> dict[str, int]:
    """The weights by agent in a text: `safe=20,congestion=5`, or `20`, whose key is empty."""
    numbers: dict[str, int] = {}
    problems = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, equals, number = (side.strip() for side in part.rpartition("="))
        if (equals and not name) or name in numbers or not (number.isascii() and number.isdecimal()):
            problems.append(Problem("--weights", repr(part), "a whole number, or agent=number, each once"))
        else:
            numbers[name] = int(number[:_MAX_DIGITS])
    if problems:
        raise BadSettings("settings", problems)
    return numbers
