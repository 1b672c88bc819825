"""The agents, one folder each; they do not know each other. The registry below is all that the rest knows.

A third party's agent comes in as an entry point of the group `nodewise.agents`: `name = "package.module:KIND"`.
"""

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, cast

from nodewise.agent import AgentKind
from nodewise.errors import BadSettings, Problem

REGISTRY: Final[dict[str, str]] = {
    "telemetry": "nodewise.agents.telemetry:KIND",
    "gpu": "nodewise.agents.gpu:KIND",
    "safe": "nodewise.agents.safe:KIND",
    "congestion": "nodewise.agents.congestion:KIND",
    "pigeon": "nodewise.agents.pigeon:KIND",
}


def names() -> list[str]:
    """All agents there are, our own first."""
    return [
        *REGISTRY,
        *sorted(e.name for e in entry_points(group="nodewise.agents") if e.name not in REGISTRY),
    ]


def load(name: str) -> AgentKind:
    """An agent by its name; only what is asked for is imported. `BadSettings` if there is none."""
    if name in REGISTRY:
        module, _, attribute = REGISTRY[name].partition(":")
        return cast("AgentKind", getattr(import_module(module), attribute))
    for entry in entry_points(group="nodewise.agents", name=name):
        found: Any = entry.load()
        return cast("AgentKind", found)
    raise BadSettings("agents", [Problem("--agents", repr(name), "one of " + ", ".join(names()))])
