"""nodewise's other distributions, which are released with this one and plug in through entry points.

`nodewise-cpu` and `nodewise-scorers` declare their commands, agents and tasks of the leader as entry points. Only these
two are looked up instead of all installed packages.
"""

from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint  # not at the start, because `--help` needs no entry points

EXTRAS: Final = {"nodewise-cpu": "cpu", "nodewise-scorers": "scorers"}
"""The extra of nodewise that installs a distribution."""
AGENTS: Final = "nodewise.agents"
COMMANDS: Final = "nodewise.commands"
LEADER_TASKS: Final = "nodewise.leader_tasks"
COMPUTED_METRICS: Final = "nodewise.computed_metrics"


@cache
def own_entry_points(group: str) -> "tuple[EntryPoint, ...]":
    """The entry points of a group in the installed ones of nodewise's distributions, in the declared order."""
    return tuple(entry for name in EXTRAS for entry in _entry_points_of(name) if entry.group == group)


def packages() -> list[str]:
    """The Python packages of the other distributions, installed or not."""
    return [name.replace("-", "_") for name in EXTRAS]


def has_third_party_agents() -> bool:
    """Whether a package of others declares agents, or the packages cannot be read."""
    from importlib.metadata import entry_points

    try:
        entries = entry_points(group=AGENTS)
    except Exception:  # noqa: BLE001 - `importlib.metadata` has no error of its own for a damaged file of one package
        return True
    return any(entry.dist is None or entry.dist.name not in EXTRAS for entry in entries)


def install_command(name: str) -> str:
    return f"pip install 'nodewise[{EXTRAS[name]}]'"


def _entry_points_of(name: str) -> "tuple[EntryPoint, ...]":
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return tuple(distribution(name).entry_points)
    except PackageNotFoundError:
        return ()
