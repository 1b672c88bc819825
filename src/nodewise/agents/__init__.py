"""The agents, one folder each, and the functions that load them. Agents do not import each other.

A folder whose `__init__.py` has a `KIND` is one of nodewise's own agents, as are the entry points of nodewise-scorers;
`nodewise agents new` copies the folder `template`. The agent telemetry is in `nodewise.policies`. A third-party
agent is an entry point of another package in the group `nodewise.agents`, `name = "package.module:KIND"`; its results
are validated (`engine.third_party_agents`). A broken agent has no effect unless `--agents` names it, so commands list
agents with `list_usable_agent_kinds`; `load` is for an agent that the user names.
"""

import itertools
from functools import cache
from importlib import import_module, metadata
from importlib.metadata import Distribution, EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import nodewise
from nodewise.base import distributions
from nodewise.base.errors import BadSettings, Problem, did_you_mean

if TYPE_CHECKING:  # completion needs only the names of agents
    from nodewise.agent import AgentKind
    from nodewise.engine.third_party_agents import Origin

_TEMPLATE: Final = "template"
_SCORERS: Final = "nodewise-scorers"
_OF_SCORERS: Final = ("load", "safe", "congestion", "pigeon", "learned")
_FIRST: Final = ("telemetry", "gpu", *_OF_SCORERS)
"""The order in `decide` and in help; other folders follow by name."""


class InstalledAgent(NamedTuple):
    """An agent that is installed."""

    origin: "Origin"
    kind: "AgentKind | None"
    """None if it cannot be used."""
    why: str = ""
    """Why it cannot be used."""


@cache
def built_in_names() -> tuple[str, ...]:
    """The names of nodewise's own agents that are installed. No agent is imported."""
    # not pkgutil, which finds no modules in the program of the kubectl plugin
    folders = {
        file.parent.name.replace("_", "-") for path in __path__ for file in Path(path).glob("*/__init__.py")
    }
    own = {*folders, *_own_entry_points()} - {_TEMPLATE}
    return (*(name for name in _FIRST if name in own), *sorted(own.difference(_FIRST)))


def _own_entry_points() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in distributions.own_entry_points(distributions.AGENTS)}


def names() -> list[str]:
    """The names of all agents, nodewise's own first."""
    return [*built_in_names(), *sorted({entry.name for entry in _entry_points()})]


def load(name: str, argument: str = "--agents") -> "AgentKind":
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
    if name in _OF_SCORERS:
        missing = f"{name!r} needs the distribution {_SCORERS}, which is not installed"
        raise BadSettings("agents", [Problem(argument, missing, distributions.install_command(_SCORERS))])
    expected = "one of " + ", ".join(names()) + did_you_mean(name, names())
    if unreadable := _read_entry_points().unreadable:
        expected += f"; the entry points of {', '.join(unreadable)} cannot be read"
    raise BadSettings("agents", [Problem(argument, repr(name), expected)])


def find_agent_kind(name: str) -> "AgentKind | None":
    """An agent by its name; None if it is not installed or cannot be used."""
    return next((kind for kind in list_usable_agent_kinds() if kind.name == name), None)


def list_usable_agent_kinds() -> "list[AgentKind]":
    """All agents that can be used, nodewise's own first."""
    return [
        *built_in_agent_kinds(),
        *(agent.kind for agent in find_third_party_agents() if agent.kind is not None),
    ]


def built_in_agent_kinds() -> "list[AgentKind]":
    """nodewise's own agents."""
    return [_import_built_in_agent(name) for name in built_in_names()]


def installed() -> list[InstalledAgent]:
    """All agents, nodewise's own first."""
    from nodewise.engine.third_party_agents import Origin

    own = (
        InstalledAgent(Origin(kind.name, "nodewise", nodewise.__version__), kind)
        for kind in built_in_agent_kinds()
    )
    return [*own, *find_third_party_agents()]


def find_third_party_agents() -> list[InstalledAgent]:
    """Agents of other packages, by name. If two conflict, the second cannot be used."""
    from nodewise.engine.third_party_agents import Origin

    agents: list[InstalledAgent] = []
    usable_kinds = built_in_agent_kinds()
    for entry in _entry_points():
        package, version = _name_and_version(entry.dist) if entry.dist else ("", "")
        origin = Origin(entry.name, package or entry.value, version)
        if any(agent.origin.agent == entry.name for agent in agents):
            agents.append(InstalledAgent(origin, None, "another package has an agent of this name"))
            continue
        agent = _import_third_party_agent(entry, origin, tuple(usable_kinds))
        if agent.kind is not None:
            usable_kinds.append(agent.kind)
        agents.append(agent)
    return agents


def _import_built_in_agent(name: str) -> "AgentKind":
    if entry := _own_entry_points().get(name):
        return cast("AgentKind", entry.load())
    return cast("AgentKind", import_module(f"{__name__}.{name.replace('-', '_')}").KIND)


class _EntryPoints(NamedTuple):
    """The entry points of agents of all packages, and the packages whose entry points cannot be read."""

    readable: tuple[EntryPoint, ...]
    unreadable: tuple[str, ...]


def _entry_points() -> list[EntryPoint]:
    entries = (entry for entry in _read_entry_points().readable if entry.name not in built_in_names())
    return sorted(entries, key=lambda entry: entry.name)


@cache
def _read_entry_points() -> _EntryPoints:
    try:
        return _EntryPoints(tuple(entry_points(group=distributions.AGENTS)), ())
    except Exception:  # noqa: BLE001 - `importlib.metadata` has no error of its own for a damaged file of one package
        return _read_entry_points_by_package()


def _read_entry_points_by_package() -> _EntryPoints:
    """Reads each package by itself, which takes longer. Of two installations of a package, the first counts."""
    readable: dict[str, EntryPoints] = {}
    unreadable: list[str] = []
    for package in metadata.distributions():
        name = _name_and_version(package)[0]
        if name in readable:
            continue
        try:
            readable[name] = package.entry_points.select(group=distributions.AGENTS)
        except Exception:  # noqa: BLE001 - as above
            unreadable.append(name)
    return _EntryPoints(tuple(itertools.chain.from_iterable(readable.values())), tuple(unreadable))


def _name_and_version(package: Distribution) -> tuple[str, str]:
    """The name and version of a package; texts without content where its metadata has none, or cannot be read."""
    try:
        return package.name or "", package.version or ""
    except Exception:  # noqa: BLE001 - as above
        return "", ""


@cache
def _import_third_party_agent(
    entry: EntryPoint, origin: "Origin", others: "tuple[AgentKind, ...]"
) -> InstalledAgent:
    """Import an entry point and validate its kind. The result is cached."""
    from nodewise.engine import third_party_result_validation
    from nodewise.engine.third_party_agents import AgentError, ThirdPartyKind, raise_as_agent_error

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
