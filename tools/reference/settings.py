"""The page of settings."""

import inspect
from collections.abc import Iterable

import msgspec

from nodewise import agents
from nodewise.cli.extender import GROUPS
from nodewise.cli.legacy import GAS, SAFE, TAS
from nodewise.cli.settings import settings
from tools.reference.text import MADE, table


def settings_page() -> str:
    """Every setting of `nodewise extender`."""
    kinds = agents.own()
    groups = [*GROUPS, *(kind.options for kind in kinds)]
    parts = [
        MADE,
        "# Settings of `nodewise extender`\n\n",
        "A flag wins over the environment, that over the file of `--config`, that over the default. In the file a\n",
        "setting's key is its flag without the leading dashes and with `_` for `-`. Durations are like `500ms`,\n",
        "`5s`, `1m30s`; sizes like `64Mi`. What stands below an agent's name, as in `telemetry: {max_age: 2m}`, is\n",
        "for that agent alone, and wins over the rest of the file.\n",
        *(_group(group) for group in _with_bases(groups)),
        "\n## Flags of Telemetry Aware Scheduling\n\n",
        table(("old flag", "becomes"), ((f"`-{old}`", _new(flag.name)) for old, flag in TAS.items())),
        "\n## Further flags of GPU Aware Scheduling\n\n",
        table(("old flag", "becomes"), ((f"`-{old}`", _new(flag.name)) for old, flag in GAS.items())),
        "\n## Environment variables of kube-safe-scheduler\n\n",
        "Where neither the flag nor its own variable is given. A value that cannot be used is told in one line,\n",
        "`variable_ignored`, and the default holds.\n\n",
        table(
            ("old variable", "speaks for", "values"),
            ((f"`{one.name}`", f"`--{field.replace('_', '-')}`", one.wanted) for field, one in SAFE.items()),
        ),
    ]
    return "".join(parts)


def _new(name: str) -> str:
    return f"`{name}`" if name else "accepted, without meaning here"


def _with_bases(groups: Iterable[type[msgspec.Struct]]) -> list[type[msgspec.Struct]]:
    """The groups, and before each what it inherits from, all once."""
    every = (base for group in groups for base in (*group.__mro__[1:], group))
    return list(
        dict.fromkeys(one for one in every if issubclass(one, msgspec.Struct) and one is not msgspec.Struct)
    )


def _group(group: type[msgspec.Struct]) -> str:
    own = [s for s in settings(group) if s.field in inspect.get_annotations(group)]
    rows = ((f"`{s.flag}`", f"`{s.variable}`", s.shown_default(), s.help) for s in own)
    summary = (group.__doc__ or "").strip().splitlines()[0]
    return f"\n## {summary}\n\n" + table(("flag", "environment", "default", "meaning"), rows)
