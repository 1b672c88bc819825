"""The agents, one folder each; they do not know each other. The registry below is all that the rest knows.

`template` is the one to copy: `nodewise agents new`. A third party's agent comes in as an entry point of the group
`nodewise.agents`, `name = "package.module:KIND"`, and is contained (`extender.containing`). One that cannot be used
stands in nobody's way who does not ask for it.
"""

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple, cast

import nodewise
from nodewise.agent import AgentKind
from nodewise.errors import BadSettings, Problem
from nodewise.extender import containing, shapes
from nodewise.extender.deadlines import Failed, Worker
from nodewise.extender.warden import START_S, Origin

REGISTRY: Final[dict[str, str]] = {
    "telemetry": "nodewise.agents.telemetry:KIND",
    "gpu": "nodewise.agents.gpu:KIND",
    "safe": "nodewise.agents.safe:KIND",
    "congestion": "nodewise.agents.congestion:KIND",
    "pigeon": "nodewise.agents.pigeon:KIND",
    "learned": "nodewise.agents.learned:KIND",
}


GROUP: Final = "nodewise.agents"
"""Of entry points."""


class Found(NamedTuple):
    """An agent that is installed, be it of use or not."""

    origin: Origin
    kind: AgentKind | None
    why: str = ""
    """It cannot be used."""


def names() -> list[str]:
    """All agents there are, our own first."""
    return [*REGISTRY, *sorted({entry.name for entry in _entries()})]


def load(name: str) -> AgentKind:
    """An agent by its name. `BadSettings` if there is none, or none that can be used."""
    if name in REGISTRY:
        return _own(name)
    for one in outside():
        if one.origin.agent == name:
            if one.kind is None:
                seen = f"{name!r} of {one.origin.package} {one.origin.version} cannot be used: {one.why}"
                raise BadSettings("agents", [Problem("--agents", seen, "")])
            return one.kind
    raise BadSettings("agents", [Problem("--agents", repr(name), "one of " + ", ".join(names()))])


def usable() -> list[AgentKind]:
    """All that can be used, our own first."""
    return [*own(), *(one.kind for one in outside() if one.kind is not None)]


def own() -> list[AgentKind]:
    """Those of nodewise itself."""
    return [_own(name) for name in REGISTRY]


def installed() -> list[Found]:
    """All that there are, our own first."""
    ours = [Found(Origin(name, "nodewise", nodewise.__version__), _own(name)) for name in REGISTRY]
    return [*ours, *outside()]


def outside() -> list[Found]:
    """Those of other packages, by name. Of two that do not get on with each other the second is of no use."""
    found: list[Found] = []
    taken = own()
    for entry in _entries():
        package = entry.dist
        origin = Origin(
            entry.name, package.name if package else entry.value, package.version if package else ""
        )
        if any(one.origin.agent == entry.name for one in found):
            found.append(Found(origin, None, "another package has an agent of this name"))
            continue
        one = _opened(entry, origin, tuple(taken))
        taken += [one.kind] if one.kind else []
        found.append(one)
    return found


def _own(name: str) -> AgentKind:
    module, _, attribute = REGISTRY[name].partition(":")
    return cast("AgentKind", getattr(import_module(module), attribute))


def _entries() -> list[EntryPoint]:
    return sorted(
        (one for one in entry_points(group=GROUP) if one.name not in REGISTRY), key=lambda one: one.name
    )


@cache
def _opened(entry: EntryPoint, origin: Origin, others: tuple[AgentKind, ...]) -> Found:
    """What an entry point leads to, imported once. Importing runs code of others, so it has a deadline too."""

    def contained() -> containing.ContainedKind:
        return containing.contained(shapes.kind(entry.load(), entry.name, others), origin)

    try:
        kind = Worker(f"{entry.name}-import").do(contained, START_S)
    except Failed as failed:
        return Found(origin, None, _words(failed))
    return Found(origin, cast("AgentKind", kind))


def _words(failed: Failed) -> str:
    """In one line."""
    cause = failed.__cause__
    told = failed.why if cause is None else f"{failed.why}: {cause}"
    return shapes.text(" ".join(told.split()))
