"""The agents, one folder each, and the functions that load them. Agents do not import each other.

A folder whose `__init__.py` has a `KIND` is a built-in agent; `nodewise agents new` copies the folder `template`.
A third-party agent is an entry point of the group `nodewise.agents`, `name = "package.module:KIND"`; its results are
validated (`extender.third_party_agents`). A broken agent has no effect unless `--agents` names it.
"""

import pkgutil
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple, cast

import nodewise
from nodewise.agent import AgentKind
from nodewise.errors import BadSettings, Problem, did_you_mean
from nodewise.extender import third_party_result_validation
from nodewise.extender.third_party_agents import AgentError, Origin, ThirdPartyKind, raise_as_agent_error

ENTRY_POINT_GROUP: Final = "nodewise.agents"
_TEMPLATE: Final = "template"
_FIRST: Final = ("telemetry", "gpu", "safe", "congestion", "pigeon", "learned")
"""The order in `decide` and in help; other folders follow by name."""


class InstalledAgent(NamedTuple):
    """An agent that is installed."""

    origin: Origin
    kind: AgentKind | None
    """None if it cannot be used."""
    why: str = ""
    """Why it cannot be used."""


@cache
def built_in_names() -> tuple[str, ...]:
    """The names of nodewise's own agents, which are those of their folders. No agent is imported."""
    folders = {module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if module.ispkg}
    return (*_FIRST, *sorted(folders - {*_FIRST, _TEMPLATE}))


def names() -> list[str]:
    """The names of all agents, nodewise's own first."""
    return [*built_in_names(), *sorted({entry.name for entry in _entry_points()})]


def load(name: str, argument: str = "--agents") -> AgentKind:
    """An agent by its name. `BadSettings` names the argument if the agent is not installed or cannot be used."""
    if name in built_in_names():
        return _import_built_in_agent(name)
    for agent in find_third_party_agents():
        if agent.origin.agent == name:
            if agent.kind is None:
                package = f"{agent.origin.package} {agent.origin.version}"
                why = f"{name!r} of {package} cannot be used: {agent.why}"
                raise BadSettings("agents", [Problem(argument, why, "")])
            return agent.kind
    expected = "one of " + ", ".join(names()) + did_you_mean(name, names())
    raise BadSettings("agents", [Problem(argument, repr(name), expected)])


def find_agent_kind(name: str) -> AgentKind | None:
    """An agent by its name; None if it is not installed or cannot be used."""
    return next((kind for kind in list_usable_agent_kinds() if kind.name == name), None)


def list_usable_agent_kinds() -> list[AgentKind]:
    """All agents that can be used, nodewise's own first."""
    return [
        *built_in_agent_kinds(),
        *(agent.kind for agent in find_third_party_agents() if agent.kind is not None),
    ]


def built_in_agent_kinds() -> list[AgentKind]:
    """nodewise's own agents."""
    return [_import_built_in_agent(name) for name in built_in_names()]


def installed() -> list[InstalledAgent]:
    """All agents, nodewise's own first."""
    own = (
        InstalledAgent(Origin(kind.name, "nodewise", nodewise.__version__), kind)
        for kind in built_in_agent_kinds()
    )
    return [*own, *find_third_party_agents()]


def find_third_party_agents() -> list[InstalledAgent]:
    """Agents of other packages, by name. If two conflict, the second cannot be used."""
    agents: list[InstalledAgent] = []
    usable_kinds = built_in_agent_kinds()
    for entry in _entry_points():
        package = entry.dist
        origin = Origin(
            entry.name, package.name if package else entry.value, package.version if package else ""
        )
        if any(agent.origin.agent == entry.name for agent in agents):
            agents.append(InstalledAgent(origin, None, "another package has an agent of this name"))
            continue
        agent = _import_third_party_agent(entry, origin, tuple(usable_kinds))
        if agent.kind is not None:
            usable_kinds.append(agent.kind)
        agents.append(agent)
    return agents


def _import_built_in_agent(name: str) -> AgentKind:
    return cast("AgentKind", import_module(f"{__name__}.{name.replace('-', '_')}").KIND)


def _entry_points() -> list[EntryPoint]:
    entries = (entry for entry in entry_points(group=ENTRY_POINT_GROUP) if entry.name not in built_in_names())
    return sorted(entries, key=lambda entry: entry.name)


@cache
def _import_third_party_agent(
    entry: EntryPoint, origin: Origin, others: tuple[AgentKind, ...]
) -> InstalledAgent:
    """Import an entry point and validate its kind. The result is cached."""
    try:
        with raise_as_agent_error(origin):
            kind = ThirdPartyKind(
                third_party_result_validation.validate_kind(entry.load(), entry.name, others), origin
            )
    except AgentError as error:
        cause = error.__cause__
        why = error.why if cause is None else f"{error.why}: {cause}"
        return InstalledAgent(
            origin, None, third_party_result_validation.validate_text(" ".join(why.split()))
        )
    return InstalledAgent(origin, cast("AgentKind", kind))
