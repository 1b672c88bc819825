"""Which agents a command knows: our own, and those of other packages that get on with its other settings."""

from collections.abc import Iterable
from typing import Any, cast

from nodewise import agents
from nodewise.agent import AgentKind
from nodewise.cli import feeds
from nodewise.cli.reading import PodPlace
from nodewise.cli.settings import Group, declared
from nodewise.errors import BadSettings, Problem
from nodewise.extender.third_party import ThirdPartyKind
from nodewise.extender.waking import WaitingFields
from nodewise.kube.fields import merge


def known(*groups: Group) -> list[AgentKind]:
    """All that can be used beside these settings."""
    return [kind for kind in agents.usable() if not clash(kind, groups)]


def chosen(names: Iterable[str], *groups: Group) -> list[AgentKind]:
    """Those of these names. `BadSettings` for one that is not there, or cannot be used beside these settings."""
    found = [agents.load(name) for name in names]
    problems = [
        Problem("--agents", f"{kind.name!r} cannot be used: {why}", "")
        for kind in found
        if (why := clash(kind, groups))
    ]
    if problems:
        raise BadSettings("agents", problems)
    return found


def clash(kind: Any, groups: Iterable[Group]) -> str:
    """What hinders an agent of another package; empty for nothing. Our own get on with everything."""
    if not isinstance(kind, ThirdPartyKind):
        return ""
    try:
        feeds.node_type([cast("AgentKind", kind)])
        merge("Pod", WaitingFields, PodPlace, kind.pod_fields)
    except TypeError as error:
        return str(error)
    flags = {setting.field: setting.flag for group in groups for setting in declared(group)}
    shared = [flags[setting.field] for setting in declared(kind.options) if setting.field in flags]
    return f"its option {shared[0]} is one of nodewise's own" if shared else ""
