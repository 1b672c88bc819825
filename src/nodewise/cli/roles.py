"""Whom kube-scheduler is to ask, as the flags of `nodewise configure` name them."""

from typing import Any, Final

from nodewise.agent import AgentKind
from nodewise.binder import BindPlugin
from nodewise.cli import kinds
from nodewise.cli.extender_options import GROUPS
from nodewise.configure.scheduler import Role
from nodewise.errors import BadSettings, Problem
from nodewise.extender import chain

_DIGITS: Final = 18


def named(text: str) -> list[AgentKind]:
    """Agents by their names, separated by commas. `BadSettings` for one that cannot be used."""
    return kinds.chosen([name.strip() for name in text.split(",") if name.strip()], *GROUPS)


def role(kind: AgentKind, options: Any) -> Role:
    """What an agent has to be asked, as it says itself."""
    agent = kind.agent(options)
    return Role(
        kind.name,
        filters=bool(chain.judging(agent)),
        prioritizes=bool(chain.rankings(agent)),
        binds=isinstance(agent, BindPlugin),
        resources=kind.resources(options),
    )


def weights(text: str) -> dict[str, int]:
    """`20`, or `safe=20,congestion=5`."""
    found: dict[str, int] = {}
    problems = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, equals, number = (side.strip() for side in part.rpartition("="))
        if (equals and not name) or name in found or not (number.isascii() and number.isdecimal()):
            problems.append(Problem("--weights", repr(part), "a whole number, or agent=number, each once"))
        else:
            found[name] = int(number[:_DIGITS])
    if problems:
        raise BadSettings("settings", problems)
    return found
