"""Prints the reference pages of `docs/reference` from the tables that the program itself reads.

`make docs` writes them; a test compares them, so that they never say anything else than the program does.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from nodewise import agents
from nodewise.cli.extender import GROUPS
from nodewise.cli.legacy import SAFE, TAS
from nodewise.cli.settings import settings
from nodewise.observe.catalogue import EVENTS, METRICS
from nodewise.observe.meters import PREFIX

FOLDER: Final = Path("docs/reference")
MADE: Final = "<!-- made by `make docs`; do not edit -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


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


def observability_page() -> str:
    """Every event and every metric."""
    metrics = (
        (f"`{PREFIX}{name}`", row.kind, ", ".join(row.labels), row.help) for name, row in METRICS.items()
    )
    events = ((f"`{name}`", row.level, row.meaning) for name, row in EVENTS.items())
    return "".join(
        [
            MADE,
            "# Events and metrics\n\n## Events\n\nLog lines on stderr; `--log-format json` for collectors.\n\n",
            table(("event", "level", "meaning"), events),
            "\n## Metrics\n\nOn the admin port, `/metrics`.\n\n",
            table(("metric", "kind", "labels", "meaning"), metrics),
        ]
    )


PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings_page,
    "observability.md": observability_page,
}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
